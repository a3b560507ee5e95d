"""What is said of a run in each of its states, and of an epoch that is over."""

from dataclasses import replace

import pytest

import nbpipe
from nbpipe.metrics import StageStats
from nbpipe.tune import diagnose
from nbpipe.tune.case import averages_of, is_crowded, quota_cores
from tests.gates import finished
from tests.view.fakes import photographs


def watched(state="running", **changes):
    """Give the run of six stages in another state."""
    run = photographs()
    run.now = replace(run.now, state=state, **changes)
    return run


@pytest.mark.parametrize(
    ("state", "changes", "start"),
    [
        ("ready", {}, "not started"),
        ("paused", {}, "paused"),
        ("running", {"elapsed_s": 0.4}, "too early to tell"),
        ("running", {}, "decode limits"),
        ("finished", {}, "finished; in its last seconds decode limits"),
        ("cancelled", {}, "cancelled; in its last seconds decode limits"),
        ("closed", {}, "closed; in its last seconds decode limits"),
        ("failed", {"error": "StageError: stage 'read' failed on item 3: no"}, "read failed: "),
        ("failed", {"error": "KeyError: 1"}, "decode failed: KeyError: 1"),  # the last failure
        ("failed", {"error": "", "epoch": 7}, "the epoch failed"),
    ],
)
def test_states(state, changes, start):
    """Each state is told in words of its own."""
    said = diagnose(watched(state, **changes))
    assert (said.text[: len(start)], said.suggestion is None or "decode" in said.text) == (
        start,
        True,
    )


def test_few_items():
    """An epoch of few items is not judged in its first seconds."""
    rows = {name: replace(one, items_out=2) for name, one in photographs().rows.items()}
    run = watched(elapsed_s=3, delivered=0)
    run.rows = rows
    assert diagnose(run).text == "too early to tell"


def test_over_without_history():
    """An epoch too short for the history is summed up."""
    run = watched("finished", elapsed_s=0.5, waited_s=0.25, delivered=100)
    run.past = []
    assert str(diagnose(run)) == (
        "finished; 100 items were delivered, the loop waited for data 50 % of the time"
    )


def test_turned_after_the_epoch():
    """What the last epoch says of a knob does not hold for another value."""
    run = watched("finished")
    run.stages["decode"].concurrency = 9
    found = diagnose(run)
    assert (found.stage, found.suggestion, "run another epoch" in found.advice) == (
        "decode",
        None,
        True,
    )


def test_over_is_asked_once():
    """The history of an epoch that is over is read once, until something changes."""
    run = watched("finished")
    asked = []
    told = run.history
    run.history = lambda: asked.append(1) or told()
    diagnose(run)
    diagnose(run)
    run.now = replace(run.now, epoch=2)
    diagnose(run)
    assert len(asked) == 2


def test_failed_stage_says_where_to_look():
    """A failure in a user's function comes with the ways to go on."""
    found = diagnose(watched("failed", error="StageError: stage 'decode' failed on item 3: no"))
    assert (found.stage, "run.failures()" in found.advice, "Retry" in found.advice) == (
        "decode",
        True,
        True,
    )


def test_averages_weigh_by_time():
    """A row of the history counts for the time since the one before."""
    rows = [
        {"stage": "a", "time_s": t, "busy": b, "starved": 0, "blocked": 0, "items_per_s": 0}
        for t, b in [(0.0, 0.0), (1.0, 1.0), (2.0, 0.5)]
    ]
    found = averages_of(rows[1:], {"a": StageStats()}, 0.0)
    assert found["a"].busy == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("text", "cores"), [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1)]
)
def test_quota(tmp_path, text, cores):
    """A container's quota is read, part of a core counts as one."""
    (tmp_path / "cpu.max").write_text(text, encoding="ascii")
    assert quota_cores(tmp_path / "cpu.max") == cores


@pytest.mark.parametrize("text", ["max 100000", "", "1 0", None])
def test_no_quota(tmp_path, text):
    """Without a quota that can be read, every core counts."""
    if text is not None:
        (tmp_path / "cpu.max").write_text(text, encoding="ascii")
    assert quota_cores(tmp_path / "cpu.max") > 10**6


@pytest.mark.parametrize(("load", "crowded"), [(1e9, True), (0.0, False), (None, False)])
def test_crowded(monkeypatch, load, crowded):
    """The load of the machine is read where the system tells it."""

    def told():
        if load is None:
            raise OSError("unknown")
        return (load, load, load)

    monkeypatch.setattr("os.getloadavg", told, raising=False)
    assert is_crowded() == crowded


def test_real_run_that_fails():
    """The stage that failed is named, with the error."""

    def decode(number):
        raise ValueError(f"no picture {number}")

    with nbpipe.source(range(3)).map(decode).start() as run:
        with pytest.raises(nbpipe.StageError):
            finished(list, run)
        found = diagnose(run)
    assert (found.stage, "no picture 0" in found.text) == ("decode", True)
