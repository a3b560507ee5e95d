"""What a notebook that was executed holds of its runs: no stale line, and the code once."""

import json
import subprocess
import sys

import pytest

from tests.ipynb import write_notebook

pytest.importorskip("nbconvert")

pytestmark = [pytest.mark.slow, pytest.mark.kernel]
RUN = "run = nbpipe.source(range(20)).map(abs, name='decode').map(abs).batch(2).start()\nrun"
EPOCH = "for batch in run: pass"
STATES = "application/vnd.jupyter.widget-state+json"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Execute a notebook that shows twenty runs and closes the last one; return its file."""
    path = tmp_path_factory.mktemp("saved") / "twenty.ipynb"
    shown = [text for number in range(20) for text in (f"# {number}\n{RUN}", EPOCH)]
    write_notebook(path, "import nbpipe", *shown, "run.close()")
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace"]
    subprocess.run([*command, str(path)], check=True, capture_output=True)
    return path


@pytest.fixture
def panels(executed):
    """Return the states of the panels."""
    widgets = json.loads(executed.read_text(encoding="utf-8"))["metadata"]["widgets"]
    states = widgets[STATES]["state"].values()
    return [one["state"] for one in states if one["model_name"] == "AnyModel"]


def test_a_notebook_holds_the_front_end_once(executed, panels):
    """A notebook of twenty runs stays under 400 kB; a panel is 6 kB at most."""
    sizes = [len(json.dumps(one)) for one in panels]
    assert executed.stat().st_size < 400_000
    assert (len(sizes), max(sizes) < 6000) == (20, True)


def test_nothing_says_that_a_closed_run_is_open(executed, panels):
    """Beside the picture of a closed run stands no other text, and its saved panel is closed."""
    cells = json.loads(executed.read_text(encoding="utf-8"))["cells"]
    panel, picture = ("".join(one["data"]["text/plain"]) for one in cells[-3]["outputs"])
    assert (panel, picture.splitlines()[1].partition(",")[0]) == ("", "closed")
    states = sorted(json.loads(one["snapshot"])["state"] for one in panels)
    assert states == ["closed", *["finished"] * 19]
