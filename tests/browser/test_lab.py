"""A newcomer's first minute: JupyterLab opens on a notebook, and all of it runs."""

import pytest

from tests.browser.lab import QUICKSTART, open_notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_quickstart_runs_in_lab(chromium, tmp_path):
    """Every cell of the quickstart runs without an error, and the pipeline's table is shown."""
    with open_notebook(chromium, QUICKSTART, tmp_path) as notebook:
        notebook.page.set_default_timeout(120_000)  # for all cells together
        notebook.run_all()
        cells = notebook.code_cells()
        shown = notebook.show_output("nbpipe-table")
        if shown:
            notebook.page.locator(".jp-OutputArea-output .nbpipe-table").first.wait_for()
    outputs = [output for cell in cells for output in cell["outputs"]]
    not_run = [cell["source"] for cell in cells if not cell["execution_count"]]
    errors = [output["evalue"] for output in outputs if output["output_type"] == "error"]
    assert (not_run, errors, shown) == ([], [], True)
