"""Export from the panel: a person tunes in mid-epoch and takes the pipeline home as a module."""

import pytest

from tests.browser.lab import CELL_MS
from tests.browser.panel import RUN, SETUP, start, train
from tests.scripts import printed

pytestmark = pytest.mark.browser

LOAD = "import tuned; print(tuned.build_pipeline()['slow'].concurrency)"
CAPTURES = """
fh = open("log.txt", "w")
def decode(x):
    fh.write(str(x))
    return slow(x)
run = nbpipe.source(range(100)).map(decode).start()
run
"""


def export(page, path):
    """Open the form, type a path over the one that is there, and press Enter."""
    page.button("export").click()
    page.page.keyboard.type(path)
    page.page.keyboard.press("Enter")


def wait_seen(locator):
    """Wait until a part of the panel is seen, however long an export takes; return its text."""
    locator.wait_for(timeout=CELL_MS)
    return locator.inner_text()


def loaded(folder):
    """Import the module in a fresh process, and give what it was tuned to."""
    return int(printed("-c", LOAD, cwd=folder))


def test_export_in_mid_epoch(open_cells):
    """While a cell trains: the file is written and imports; what is turned then is told."""
    page = open_cells(SETUP, RUN, train("stop-export"))
    start(page)
    page.nudge("slow")
    export(page, "tuned.py")
    path = wait_seen(page.field("exported"))
    value = loaded(page.folder)
    page.nudge("slow")
    note = wait_seen(page.panel().get_by_text("slow.concurrency 3 → 4"))
    running = page.is_running(2)
    page.finish(2, "stop-export")
    assert (path, value, note, running) == (
        str(page.folder.resolve() / "tuned.py"),
        3,
        "changed since export to tuned.py: slow.concurrency 3 → 4",
        True,
    )


def test_edited_file_is_asked_about(open_cells):
    """After the epoch: a file that holds something else is replaced when its text was read."""
    page = open_cells(SETUP, "run = nbpipe.source(range(9)).map(slow).start()\nrun", "list(run)")
    file = page.folder / "edited.py"
    file.write_text("mine = '<b>1</b>'\n")
    page.run_cells(*range(3))
    page.wait_state("finished")
    export(page, file.name)
    text = wait_seen(page.field("refusal"))
    before = file.read_text()
    page.button("overwrite").click()
    path = wait_seen(page.field("exported"))
    assert ("-mine = '<b>1</b>'" in text, before, path, "def slow" in file.read_text()) == (
        *(True, "mine = '<b>1</b>'\n", str(file.resolve()), True),
    )


def test_refusal_is_shown_in_full(open_cells):
    """Between cells: what cannot be written is named, with what uses it; then one may go on."""
    page = open_cells(SETUP, CAPTURES)
    page.run_cells(0, 1)
    page.panel().wait_for()
    export(page, "refused.py")
    text = wait_seen(page.field("refusal"))
    page.page.keyboard.press("Escape")
    closed = page.field("refusal").is_visible()
    found = ["'fh'" in text, "open it inside" in text, "used by: decode() [In[2]]" in text, closed]
    assert (found, (page.folder / "refused.py").exists()) == ([True, True, True, False], False)
