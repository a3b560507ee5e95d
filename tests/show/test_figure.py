"""The figure: what is drawn, on which axes, and that names are shown as they are."""

import sys

import pytest

import nbpipe
from nbpipe import KnobChange
from tests.show.fakes import (
    BEGUN_S,
    FakeTuner,
    FakeWatched,
    past_of,
    photographs,
    row,
)
from tests.show.inner import Decision, addresses, figure

pytest.importorskip("plotly")


def traces(drawn):
    """Give the traces by name, and the heat map."""
    return {trace.name or trace.type: trace for trace in drawn.data}


def test_stages_by_what_they_hand_on():
    """Stages of items share an axis, stages of batches and the loop another."""
    drawn = figure(photographs())
    axes = {name: trace.yaxis for name, trace in traces(drawn).items()}
    assert [axes[name] for name in ("files", "read", "decode")] == ["y", "y", "y"]
    assert [axes[name] for name in ("batch", "normalise", "training loop")] == ["y2"] * 3
    assert (drawn.layout.yaxis.title.text, drawn.layout.yaxis2.title.text) == (
        "items/s",
        "batches/s",
    )


def test_queues():
    """The heat map shows queued of prefetch + concurrency, without stages that hold nothing."""
    heat = traces(figure(photographs()))["heatmap"]
    shown = figure(photographs()).layout.yaxis4.ticktext
    assert shown == ("files", "read", "decode", "batch", "normalise")
    assert (heat.z[0][0], heat.z[2][0], heat.text[1][0]) == (16 / 17, 0, "read: 31 of 32")


def test_lines_that_lie_on_one_another_are_all_seen():
    """The lines of an axis differ in width: each is wider than those that are drawn over it."""
    widths = [trace.line.width for trace in figure(photographs()).data if trace.yaxis == "y"]
    assert widths[:4] == [5.0, 4.0, 3.0, 2.0]


def test_heat_map_is_explained():
    """Words above the heat map, and beside its colours, say what they mean."""
    drawn = figure(photographs())
    titles = [note.text for note in drawn.layout.annotations]
    assert titles[-1].startswith("How full each queue is: bright, it is full")
    assert traces(drawn)["heatmap"].colorbar.ticktext == ("empty", "half", "full")


def test_long_names_keep_their_ends():
    """Stages that are numbered have long names which are alike but for their end."""
    names = [f"normalise_and_augment_step_{number}" for number in range(2)]
    pipe = nbpipe.source(range(8)).map(abs, name=names[0]).map(abs, name=names[1])
    rows = dict.fromkeys(names, row(0.5, 0.5, 0, 8.0))
    run = FakeWatched(addresses(pipe.chain), rows, past=past_of(rows))
    shown = [trace.name for trace in figure(run).data[:2]]
    assert (
        shown
        == [*figure(run).layout.yaxis3.ticktext]
        == ["normalise…t_step_0", "normalise…t_step_1"]
    )


def test_long_names_that_differ_in_their_middle():
    """Where a cut would make two names one, as much more of all is shown as tells them apart."""
    names = [f"stage_number_{number:02}_of_many" for number in range(2)]
    pipe = nbpipe.source(range(8)).map(abs, name=names[0]).map(abs, name=names[1])
    rows = dict.fromkeys(names, row(0.5, 0.5, 0, 8.0))
    drawn = figure(FakeWatched(addresses(pipe.chain), rows, past=past_of(rows)))
    assert [trace.name for trace in drawn.data[:2]] == names
    assert [*drawn.layout.yaxis3.ticktext] == names


def test_changes_are_marked():
    """Each knob change has a line through all plots and words to hover over."""
    drawn = figure(photographs())
    marks = traces(drawn)["knob change"]
    lines = [shape for shape in drawn.layout.shapes if shape.type == "line"]
    assert (marks.x, [line.x0 for line in lines]) == ((12.5, 21.75), [12.5, 21.75])
    assert marks.hovertext[1] == "decode.concurrency 4 → 5<br>by panel: decode limits"


def test_trials_that_were_taken_back_are_pale():
    """Their marks say so."""
    run = photographs()
    trial = run.events[0]
    run.tuner = FakeTuner(log=(Decision(trial.when_s, "", trial.knob, 2, 4, taken_back=True),))
    drawn = figure(run)
    marks = traces(drawn)["knob change"]
    lines = [shape.opacity for shape in drawn.layout.shapes if shape.type == "line"]
    assert (marks.marker.opacity, lines) == ((0.35, 1), [0.35, 1])
    assert [one.endswith("<br>taken back") for one in marks.hovertext] == [True, False]


@pytest.mark.slow
def test_many_changes():
    """Only the last changes are marked."""
    run = photographs()
    run.events = tuple(KnobChange(BEGUN_S + n / 20, "a.b", n, n + 1, "", "") for n in range(500))
    layout = figure(run).layout
    assert sum(shape.type == "line" for shape in layout.shapes) == 100


def test_names_are_shown_as_they_are():
    """Tags, entities and TeX in names are text: plotly would draw some of them."""
    run = photographs()
    run.events = (KnobChange(BEGUN_S + 9, "<b>&amp;$x$", 1, 2, "<i>", "<a href='x'>"),)
    drawn = figure(run)
    names = [*traces(drawn), *drawn.layout.yaxis4.ticktext, drawn.layout.title.text]
    said = traces(drawn)["knob change"].hovertext[0].replace("<br>", "")
    assert [name for name in names if "<" in name or "$" in name] == []
    assert said == "&lt;b&gt;&amp;amp;&#36;x&#36; 1 → 2by &lt;i&gt;: &lt;a href='x'&gt;"


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "unit"), [(100, "[s]"), (1000, "[min]"), (12_000, "[h]")])
def test_time_axis(seconds, unit):
    """Long histories are in minutes or hours."""
    run = photographs()
    step = max(1, seconds // 100)
    run.past = [row for row in past_of(run.rows, seconds) if int(row["time_s"]) % step == 0]
    assert unit in figure(run).layout.xaxis4.title.text


def test_gaps_between_epochs():
    """Where nothing ran between two epochs, lines are broken, and the loop does not wait."""
    run = photographs()
    for one in run.past:
        one["time_s"] += 60 * one["epoch"]
    drawn = traces(figure(run))
    rates, waits = drawn["decode"].y, drawn["training loop waits"].y
    assert [place for place, rate in enumerate(rates) if rate is None] == [6, 7]
    assert waits[5:9] == (62.0, None, None, 62.0)


def test_nothing_yet():
    """An empty history gives a figure that says so."""
    (note,) = figure(FakeWatched()).layout.annotations
    assert "No history yet" in note.text


def test_without_plotly(monkeypatch):
    """The pip line is given where plotly is missing."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(nbpipe.MissingExtraError, match=r"pip install 'jupyter-nbpipe\[jupyter\]'"):
        figure(photographs())
