"""How a run is shown: its panel, and a picture that stays in the file."""

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest

import nbpipe
from tests.jupyter.conftest import Outputs
from tests.jupyter.inner import WIDGET_VIEW, RunDisplay


@pytest.fixture
def outputs():
    """Give what was shown."""
    return Outputs()


@pytest.fixture
def display(outputs):
    """Give a display."""
    return RunDisplay(outputs)


@pytest.fixture
def run():
    """Give a run."""
    with nbpipe.source(range(4)).map(abs, name="decode").start() as run:
        yield run


@pytest.fixture
def no_panel(monkeypatch):
    """Be without the package that the panel needs."""
    monkeypatch.setitem(sys.modules, "nbpipe.jupyter.panel", None)


@pytest.mark.usefixtures("no_panel")
def test_without_the_extra_there_is_the_picture(display, outputs, run, caplog):
    """Where anywidget is missing, the picture is shown, and a line says what to type."""
    display.show(run)
    (shown,) = outputs.shown
    found = (
        "decode" in shown.data["text/html"],
        "pip install 'jupyter-nbpipe[jupyter]'" in caplog.text,
    )
    assert found == (True, True)


def test_closed_run_is_a_picture(display, outputs, run):
    """A run that is closed is shown without controls."""
    run.close()
    display.show(run)
    assert [WIDGET_VIEW in shown.data for shown in outputs.shown] == [False]


@pytest.mark.usefixtures("no_panel")
def test_picture_follows_the_run(display, outputs, run):
    """After an epoch the picture is brought up to date, in its place."""
    display.show(run)
    list(run)
    display.keep_all()
    first, second = outputs.shown
    found = (second.place, second.update, "finished" in second.data["text/plain"].lower())
    assert found == (first.place, True, True)


@pytest.mark.usefixtures("no_panel")
def test_picture_that_is_right_is_left_alone(display, outputs, run):
    """Nothing is written while nothing changed."""
    display.show(run)
    display.keep_all()
    display.keep_all()
    assert len(outputs.shown) == 1


@pytest.mark.usefixtures("no_panel")
def test_all_pictures_of_a_run_share_one_place(display, outputs, run):
    """A run that was shown twice has two pictures, and one message brings both up to date."""
    display.show(run)
    display.show(run)
    list(run)
    display.keep_all()
    places = [(shown.place, shown.update) for shown in outputs.shown]
    place = places[0][0]
    assert places == [(place, False), (place, False), (place, True)]


@pytest.mark.usefixtures("no_panel")
def test_display_holds_no_run(display, outputs):
    """A run that was shown can still go."""
    run = nbpipe.source(range(3)).start()
    display.show(run)
    reference = weakref.ref(run)
    del run
    gc.collect()
    assert reference() is None


def test_run_draws_itself_where_no_kernel_is(run):
    """Outside a notebook a run gives its picture as HTML, as Markdown and as text."""
    data = run._repr_mimebundle_()
    assert sorted(data) == ["text/html", "text/markdown", "text/plain"]
    assert all("decode" in text for text in data.values())


@pytest.fixture
def marimo(monkeypatch):
    """Be in marimo: what it makes is a list of a word and what it was given."""
    made = {word: lambda given, word=word: [word, given] for word in ("vstack", "md", "Html")}
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(**made))


@pytest.mark.usefixtures("marimo")
def test_marimo_shows_the_panel_and_when_it_is_live(run):
    """Above the panel a line says that a cell which iterates holds it up."""
    pytest.importorskip("anywidget")
    word, ((_, line), panel) = run._display_()
    panel.close()
    assert (word, repr(panel)) == ("vstack", "Panel(source > decode)")
    assert (
        line
        == "In marimo the panel is live between two cells, and while `run.train(step)` iterates."
    )


@pytest.mark.usefixtures("marimo", "no_panel")
def test_marimo_shows_the_picture_without_the_extra(run):
    """Where anywidget is missing, the picture is shown."""
    word, picture = run._display_()
    assert (word, "decode" in picture) == ("Html", True)
