"""Runs and pipelines are displayed by IPython: what captures, names or formats outputs has them."""

import pytest

from tests.kernel.client import is_status, parent

WIDGET = "application/vnd.jupyter.widget-view+json"
# The front end is not what is tested, and need not be built.
START = (
    """
import ipywidgets, nbpipe
from IPython.display import clear_output, display
from IPython.utils.capture import capture_output
from nbpipe.jupyter import panel
panel.front_end = lambda name: "export default {}"
runs = [nbpipe.source(range(9), name=name).start() for name in ("first", "second")]
run, other = runs
def kinds(data):
    return [WIDGET in data, *sorted(kind for kind in data if kind.startswith("text/"))]
"""
    f"WIDGET = {WIDGET!r}\n"
)


class Display:
    """A kernel in which two runs have started."""

    def __init__(self, talk):
        self.talk = talk
        talk.client.run(START)

    def shown(self, code, cell=None):
        """Run a cell; return what it has published: kind, display_id and data of each output."""
        heard = len(self.talk.client.heard)
        self.talk.client.run(code, cell)
        found = []
        for one in self.talk.client.heard[heard:]:
            kind, content = one["msg_type"], one["content"]
            if kind in ("display_data", "update_display_data", "execute_result"):
                place = content.get("transient", {}).get("display_id")
                found.append((kind, place, content["data"]))
        return found

    def run(self, code):
        """Run a cell; return what it has printed."""
        return self.talk.client.run(code).strip()


@pytest.fixture
def display(talk):
    """Give a kernel in which two runs, `run` and `other`, have started."""
    yield Display(talk)
    talk.client.run("for one in runs: one.close()\nipywidgets.Widget.close_all()")


def words(outputs):
    """Return of each output whether it is a panel, and the first word of its text."""
    return [(WIDGET in data, data["text/plain"].partition("\n")[0]) for *_, data in outputs]


LOADER = pytest.param("nbpipe.DataLoader([1])", marks=[pytest.mark.torch, pytest.mark.slow])


@pytest.mark.parametrize("what", ["run", "nbpipe.source([1])", LOADER])
def test_what_is_captured_is_not_shown(display, what):
    """`capture_output` keeps a run, a pipeline and a loader; `show` shows them."""
    display.run(f"one = {what}")
    inside = display.shown("with capture_output() as captured:\n    display(one)")
    count, html = display.run(
        "print(len(captured.outputs), 'text/html' in captured.outputs[0].data)"
    ).split()
    later = display.shown("captured.show()")
    assert (inside, count, html) == ([], "1", "True")
    assert WIDGET in later[0][2]
    assert all("nbpipe" not in data for *_, data in later)


def test_a_captured_last_line_is_not_shown(display):
    """`%%capture` keeps the run that ends the cell."""
    inside = display.shown("%%capture captured\nrun")
    shown = display.run("print(kinds(captured.outputs[0].data))")
    assert (inside, shown) == ([], "[True, 'text/html', 'text/markdown', 'text/plain']")


def test_a_last_line_is_a_panel_and_its_picture(display):
    """A run that ends a cell is two outputs; beside the picture stands no text of the panel."""
    assert words(display.shown("run")) == [(True, ""), (False, "first")]


def test_a_display_that_has_a_name_is_replaced(display):
    """A run takes the `display_id` it is given, and another one or a text takes its place."""
    shown = display.shown("handle = display(run, display_id='named')")
    updated = display.shown("handle.update(other)")
    text = display.shown("handle.update('text')")
    (_, name, _), (_, place, _) = shown
    assert (name, words(shown)) == ("named", [(True, ""), (False, "first")])
    assert [(kind, place) for kind, place, _ in updated] == [
        ("update_display_data", "named"),
        ("update_display_data", place),
    ]
    assert words(updated) == [(True, ""), (False, "second")]
    assert words(text) == [(False, ""), (False, "'text'")]


def test_a_run_in_the_place_of_something_else(display):
    """In the place of a text stands the panel with its picture, and the picture when it closes."""
    display.run("handle = display('text', display_id='other')")
    updated = display.shown("handle.update(run)")
    closed = display.shown("run.close()")
    assert words(updated) == [(True, "first")]
    assert [(place, word) for (_, place, _), word in zip(closed, words(closed), strict=True)] == [
        ("other", (False, "first"))
    ]
    assert "closed" in closed[0][2]["text/plain"]


def test_formatting_shows_nothing(display):
    """What IPython makes of a run or a pipeline is returned, and nothing is published."""
    code = """
pipe = nbpipe.source([1])
format = get_ipython().display_formatter.format
found = [kinds(format(one)[0]) for one in (run, pipe)]
repr(run), run._repr_mimebundle_()
print(found)
"""
    shown = display.shown(code)
    found = display.run("print(found)")
    assert shown == []
    assert found == str(
        [[True, "text/html", "text/markdown", "text/plain"], [False, "text/html", "text/plain"]]
    )


def test_an_output_widget_takes_a_run(display):
    """`Output.append_display_data` holds the panel and the picture."""
    display.run("out = ipywidgets.Output()\nout.append_display_data(run)")
    assert display.run("print(kinds(out.outputs[0]['data']))").startswith("[True, 'text/html'")


def test_one_picture_is_kept_of_a_run_that_is_shown_in_a_loop(display):
    """A cell that shows its run again with each batch keeps one picture of it up to date."""
    code = "for item in run:\n    clear_output(wait=True)\n    display(run)"
    shown = display.shown(code, "loop")
    places = {place for kind, place, data in shown if WIDGET not in data}
    updates = [place for kind, place, _ in shown if kind == "update_display_data"]
    assert len(shown) == 2 * 9 + 1
    assert (len(places), updates) == (1, list(places))


LOCAL = """
def show():
    with nbpipe.source(range(9), name="local").start() as mine:
        display(mine)
        list(mine)
show()
"""


def test_a_run_that_a_function_showed_is_kept_as_it_ended(display):
    """The picture of a run that is closed and gone says so, and how far it came."""
    *_, (kind, _, data) = display.shown(LOCAL)
    lines = data["text/plain"].splitlines()
    assert (kind, lines[0]) == ("update_display_data", "local")
    assert lines[1].startswith("closed, epoch 0, 9/9 items")


INTERACTIVE = """
def show(number):
    with nbpipe.source(range(number)).start() as mine:
        display(mine)
        list(mine)
box = ipywidgets.interactive(show, number=(0, 40, 1))
print("id", box.children[0].model_id)
"""
PANELS = """
widgets = ipywidgets.widgets.widget._instances.values()
print([type(one).__name__ for one in widgets].count("Panel"))
"""


def test_panels_that_callbacks_show_do_not_pile_up(display):
    """A slider whose function shows a run leaves the panels of its cell and of the last call."""
    slider = display.run(INTERACTIVE).split()[-1]
    for value in range(5):
        state = {"method": "update", "state": {"value": value}, "buffer_paths": []}
        asked = display.talk.say(slider, state)
        display.talk.client.wait(
            lambda one, asked=asked: is_status(one, "idle") and parent(one) == asked, "its end"
        )
    assert display.run(PANELS) == "2"
