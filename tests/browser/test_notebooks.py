"""Notebooks as a reader runs them: Shift+Enter, cell by cell, on a small screen."""

import pytest

from tests.browser.lab import CELL_MS, ROOT, open_notebook
from tests.browser.panel import PanelPage

pytestmark = [pytest.mark.browser, pytest.mark.torch]
RUNS = ".nbpipe-panel[aria-label='nbpipe run']"
SECONDS = "6"  # that a cell trains
PARTS = [".nbp-head", ".nbp-verdict", ".nbp-table"]
# By part of the last panel that is running, whether all of it can be seen; false without such one.
IN_VIEW = """([runs, parts]) => {
    const panel = [...document.querySelectorAll(runs)].at(-1);
    if (panel?.dataset.state !== 'running') return false;
    const seen = panel.closest('.jp-WindowedPanel-outer').getBoundingClientRect();
    return parts.map(part => {
        const box = panel.querySelector(part).getBoundingClientRect();
        return box.top >= seen.top - 1 && box.bottom <= seen.bottom + 1;
    });
}"""


@pytest.mark.parametrize(
    ("name", "trains"),
    [
        ("01_quickstart", "train(run, seconds)"),
        ("02_live", "train(run, seconds)"),
        ("05_training", "whole = []"),
        ("06_autotune", "train(run, seconds=5)"),
    ],
)
def test_panel_is_in_view_while_a_cell_trains(chromium, tmp_path, monkeypatch, name, trains):
    """The panel stays in view in the cell that trains first, and every cell runs to its end."""
    monkeypatch.setenv("NBPIPE_NOTEBOOK_SECONDS", SECONDS)
    source = ROOT / "notebooks" / f"{name}.ipynb"
    size = {"width": 1280, "height": 900, "scale": 1}
    with open_notebook(chromium, source, tmp_path, kind=PanelPage, **size) as page:
        cells = page.sources()
        first = next(n for n, cell in enumerate(cells) if cell.startswith(trains))
        seen = None
        page.show_cell(0)
        page.page.locator(".jp-Cell").first.click(position={"x": 5, "y": 5})
        for place in range(len(cells)):
            page.page.keyboard.press("Shift+Enter")
            if page.cell(place)["cell_type"] != "code":
                continue
            if place == first:
                watched = {"arg": [RUNS, PARTS], "timeout": CELL_MS}
                seen = page.page.wait_for_function(IN_VIEW, **watched).json_value()
            page.wait_ran(place)
        errors = [page.said(n) for n in range(len(cells)) if has_error(page.cell(n))]
    assert (errors, seen) == ([], [True] * len(PARTS))


def has_error(cell):
    """Return whether a cell ended in an error."""
    return any(output["output_type"] == "error" for output in cell.get("outputs", ()))
