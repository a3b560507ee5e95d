"""Controls: ordinary ipywidgets bound to the knobs of a run."""

import pytest

pytest.importorskip("ipywidgets")

import nbpipe
from nbpipe import MissingExtraError
from tests.jupyter.conftest import publisher_of
from tests.jupyter.inner import controls_module


@pytest.fixture
def run():
    """Give a run."""
    pipe = nbpipe.source(range(100)).map(abs, name="decode", concurrency=2).batch(4)
    with pipe.start() as run:
        yield run


@pytest.fixture
def box(run):
    """Give its controls."""
    box = run.controls()
    yield box
    box.close_all()


def rows(box):
    """Give the slider and the number of each knob by its label."""
    cells = box.children[1].children
    found = [cells[at : at + 3] for at in range(0, len(cells), 3)]
    return {label.value: (slider, number) for label, slider, number in found}


def button(box, name):
    """Give a button."""
    return next(one for one in box.children[0].children if one.description == name)


def test_every_knob_has_a_row(box):
    """There is a slider for every knob, with the value in force."""
    values = {name: slider.value for name, (slider, _) in rows(box).items()}
    assert values == {
        "source prefetch": 16,
        "decode concurrency": 2,
        "decode prefetch": 8,
        "batch prefetch": 2,
    }


@pytest.fixture
def shared():
    """Give a run in which three stages share their workers."""
    pipe = (
        nbpipe.source(range(100), name="files")
        .map(abs, name="decode", executor="process", concurrency=2)
        .map(float, name="widen", executor="process")
        .batch(4, executor="process")
    )
    with pipe.start() as run:
        yield run


def test_shared_knob_has_one_row(shared):
    """A concurrency that stages share is there once; only the last of them has a prefetch."""
    box = shared.controls()
    values = {name: slider.value for name, (slider, _) in rows(box).items()}
    told = [cell.tooltip for cell in box.children[1].children[3:4]]
    box.close_all()
    assert (values, told) == (
        {"files prefetch": 16, "decode concurrency": 2, "batch prefetch": 2},
        ["decode.concurrency [calls], shared by decode, widen, batch"],
    )


def test_shared_knob_is_turned_for_all(shared):
    """Moving its slider turns all stages, and turning any of them moves the slider."""
    box = shared.controls()
    slider, number = rows(box)["decode concurrency"]
    slider.value = 5
    turned = [shared[name].concurrency for name in ("decode", "widen", "batch")]
    shared["batch"].concurrency = 3
    moved = (slider.value, number.value, len(shared.events))
    box.close_all()
    assert (turned, moved) == ([5, 5, 5], (3, 3, 2))


@pytest.mark.parametrize("which", [0, 1], ids=["slider", "number"])
def test_widget_turns_the_knob(run, box, which):
    """Moving the slider or typing a number turns the knob; the other one follows."""
    pair = rows(box)["decode concurrency"]
    pair[which].value = 9
    made = [(change.knob, change.new, change.by) for change in run.events]
    assert (made, [widget.value for widget in pair]) == (
        [("decode.concurrency", 9, "controls")],
        [9, 9],
    )


def test_widgets_follow_the_knob(run, box):
    """A knob that is turned from code moves its widgets, beyond the slider's end too."""
    run["decode"].concurrency = 40
    slider, number = rows(box)["decode concurrency"]
    assert (slider.value, number.value, slider.max >= 40) == (40, 40, True)


def test_buttons(run, box):
    """The buttons pause, resume and undo."""
    run["decode"].concurrency = 5
    states = []
    for name in ("Pause", "Resume", "Undo"):
        button(box, name).click()
        states.append(run.paused)
    assert (states, run["decode"].concurrency) == ([True, False, False], 2)


def test_button_of_a_run_that_was_paused_elsewhere(run, monkeypatch):
    """The button says what it does, also after a pause from elsewhere, until the run is closed."""
    with publisher_of(controls_module, monkeypatch) as publisher:
        box = run.controls()
        (label,) = publisher._feeds.values()
        said = []
        for act in (run.pause, run.resume, run.pause):
            act()
            label.publish()
            said.append(box.children[0].children[0].description)
        button(box, "Resume").click()
        found = (run.paused, label.wanted)
        run.close()
        over = label.wanted
        box.close_all()
    assert (said, found, over) == (["Resume", "Pause", "Resume"], (False, True), False)


@pytest.mark.parametrize("value", [0, -3, 1025])
def test_number_out_of_range_is_refused(run, box, value):
    """A number that the knob does not take goes back, and the rule is shown."""
    _, number = rows(box)["decode concurrency"]
    number.value = value
    found = (number.value, run["decode"].concurrency, "[1, 1024]" in box.children[-1].value)
    assert found == (2, 2, True)


def test_refusal_is_escaped():
    """Names come from outside: they are shown as text."""
    with nbpipe.source(range(3)).map(abs, name="<b>").start() as run:
        box = run.controls()
        rows(box)["<b> concurrency"][1].value = 0
        shown = box.children[-1].value
        box.close_all()
    assert shown.startswith("&lt;b&gt;.concurrency must be")


def test_missing_extra_is_named(run, monkeypatch):
    """Without ipywidgets, the error holds the line to type."""
    import sys

    monkeypatch.setitem(sys.modules, "nbpipe.jupyter.controls", None)
    with pytest.raises(MissingExtraError, match=r"jupyter-nbpipe\[jupyter\]") as caught:
        run.controls()
    assert "ipywidgets" in str(caught.value)
