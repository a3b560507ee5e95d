"""A pipeline that a notebook shows: a person exports it, starts it and trains with it."""

import json

import pytest

from tests.browser.lab import CELL_MS
from tests.browser.panel import SETUP

pytestmark = pytest.mark.browser

PIPE = """
train = nbpipe.source(range(40), name="files").map(slow, concurrency=2).batch(4)
train
"""
LOOP = "print('batches', sum(1 for batch in train_run))"


def test_start_here(open_cells):
    """The form exports, the button starts, and the panel stands below it; the file keeps both."""
    page = open_cells(SETUP, PIPE, LOOP)
    page.run_cells(0, 1)
    page.button("export").click()
    page.page.keyboard.type("shown.py")
    page.page.keyboard.press("Enter")
    page.field("exported").wait_for(timeout=CELL_MS)
    page.button("start").click()
    page.wait_state("ready", number=1)
    page.nudge("slow", number=1)
    page.run_cell(2)
    page.wait_state("finished", number=1)
    next_step = page.field("next").inner_text()
    offered = [page.button(op).is_visible() for op in ("start", "export")]
    page.save()
    (page.folder / "shown.py").unlink()
    saved = json.loads((page.folder / page.name).read_text(encoding="utf-8"))["cells"][1]["outputs"]
    texts = ["".join(one["data"]["text/plain"]) for one in saved]
    assert page.said(2) == "batches 10\n"
    assert " ".join(next_step.split()) == (
        "Started: train_run Next, in a cell: for batch in train_run: Copy"
    )
    assert (offered, page.panel().get_attribute("data-state")) == ([False, False], "started")
    assert texts[:3] == [""] * 3
    assert [text.splitlines()[0].partition(";")[0] for text in texts[3:]] == [
        "files > slow > batch",
        "Pipeline of 3 stages, 10 batches an epoch",
    ]
