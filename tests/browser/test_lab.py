"""A newcomer's first minute: JupyterLab opens on a notebook, and all of it runs."""

import shutil

import pytest

from tests.browser.lab import QUICKSTART, open_page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_quickstart_runs_in_lab(chromium, lab_address, lab_folder):
    """Every cell of the quickstart runs without an error, and the pipeline's table is shown."""
    place = lab_folder / "quickstart"
    place.mkdir()
    for path in (QUICKSTART, *QUICKSTART.parent.glob("*.py")):
        shutil.copy(path, place)
    with open_page(chromium, lab_address) as notebook:
        notebook.open(f"{place.name}/{QUICKSTART.name}")
        notebook.command("notebook:clear-all-cell-outputs")  # stored ones, and their numbers
        notebook.page.set_default_timeout(120_000)  # for all cells together
        notebook.run_all()
        cells = notebook.code_cells()
        shown = notebook.show_output("nbpipe-table")
        if shown:
            notebook.page.locator(".jp-OutputArea-output .nbpipe-table").first.wait_for()
        notebook.shut_down()
    outputs = [output for cell in cells for output in cell["outputs"]]
    not_run = [cell["source"] for cell in cells if not cell["execution_count"]]
    errors = [output["evalue"] for output in outputs if output["output_type"] == "error"]
    assert (not_run, errors, shown) == ([], [], True)
