"""What a profile says: the finding, what limits, which values it suggests, and how it is shown."""

import json
import math

import pytest

from tests.profile.inner import LockUse, Profile, Rate, RateWindow, StageRate


def rows_of(stage, rates, *, now=1, **more):
    """Give a row for each number of calls; the loop gets what the stage hands on."""
    return tuple(
        StageRate(stage, calls=calls, now=calls == now, per_s=rate, feeds_per_s=rate, **more)
        for calls, rate in rates.items()
    )


def profile_of(*rows, ceiling=None, live=None, cores=8.0, locks=None, **more):
    """Give a profile of these rows."""
    about = {"spreads": {}, "complete": True, "unit": "batches", **more}
    return Profile(
        rows=tuple(rows), ceiling=ceiling, live=live, cores=cores, locks=locks or {}, **about
    )


READ = rows_of("read", {1: 10.0, 2: 20.0, 4: 40.0, 8: 41.0})
BATCH = StageRate("batch", now=True, per_s=500.0, feeds_per_s=500.0)


@pytest.mark.parametrize(
    ("ceiling", "begins"),
    [
        (5.0, "Data is not the problem: the training step is slower than the pipeline."),
        (10.0, "Data and training are about equally fast; read limits the data."),
        (30.0, "Data is the problem: read limits it."),
        (None, "read limits the pipeline."),
    ],
)
def test_finding(ceiling, begins):
    """The first line answers whether data is the problem."""
    found = profile_of(*READ, BATCH, ceiling=ceiling)
    assert found.verdict()[0] == begins
    assert (found.feeds, found.limit) == (10.0, "read")


@pytest.mark.parametrize(("ceiling", "calls"), [(5.0, 1), (19.0, 2), (30.0, 4), (None, 4)])
def test_fewest_calls_that_feed_the_loop(ceiling, calls):
    """No more calls than the step needs; without a step, the fewest that are as fast as any."""
    assert profile_of(*READ, BATCH, ceiling=ceiling).suggest() == {"read": calls}


def test_action():
    """It says what to set and what that gives, and what then is left."""
    found = profile_of(*READ, BATCH, ceiling=100.0, live=9.8)
    assert found.verdict()[1:] == [
        (
            "At the present knobs the pipeline feeds 10 batches/s. The training step alone reaches "
            "100 batches/s. A run of everything reached 9.8 batches/s."
        ),
        "Set read.concurrency to 4: the pipeline then feeds about 40 batches/s.",
        "More calls do not help further: make read cheaper.",
    ]


def test_a_stage_without_knobs_limits():
    """It is not advised to have more calls."""
    slow = StageRate("batch", now=True, per_s=3.0, feeds_per_s=3.0)
    found = profile_of(*READ, slow, ceiling=100.0)
    assert found.verdict()[-1] == "batch does one thing at a time: make it cheaper."


def test_cores_limit_all_stages_together():
    """Stages that compute share the cores: each alone would be faster."""
    rows = (*rows_of("decode", {1: 10.0}, cpu_s=0.3), *rows_of("augment", {1: 10.0}, cpu_s=0.1))
    found = profile_of(*rows, cores=2.0, ceiling=100.0)
    assert (found.feeds, found.limit) == (5.0, "cores")
    assert found.verdict()[0] == "Data is the problem: the cores limit it."
    assert found.verdict()[-1] == "More calls do not help: all 2 cores compute."


def test_the_lock_limits_all_threads_together():
    """Threads that hold the interpreter lock take turns, whatever stage they are of."""
    rows = (
        *rows_of("parse", {1: 10.0}, slot_s=0.1),
        *rows_of("clean", {1: 10.0}, slot_s=0.1),
    )
    locks = {"parse": LockUse(1.0, 0.1), "clean": LockUse(0.5, 0.1)}
    found = profile_of(*rows, locks=locks, ceiling=100.0)
    assert (round(found.feeds, 3), found.limit) == (6.667, "lock")
    assert found.verdict()[-1] == ('More threads do not help: use executor="process" for parse.')
    assert "parse holds the lock 100% of 100 ms: more threads do not help" in repr(found)


def test_a_run_that_is_slower_than_its_parts():
    """That is said, with the way to find the cause, unless the rounds were that far apart."""
    slower = "The run is slower than its parts"
    assert slower in repr(profile_of(*READ, live=5.0))
    assert slower not in repr(profile_of(*READ, live=5.0, spreads={"live": 0.7}))
    assert slower not in repr(profile_of(*READ, live=9.0))


def test_noise():
    """Rounds that differ by 15% or more are noisy: half their range is written beside the rate."""
    quiet = Rate([RateWindow(100.0), RateWindow(105.0), RateWindow(110.0)])
    noisy = Rate([RateWindow(100.0), RateWindow(80.0), RateWindow(124.0)])
    assert (quiet.is_noisy, noisy.is_noisy, noisy.per_s) == (False, True, 100.0)
    row = StageRate("read", calls=1, now=True, per_s=100.0, spread=noisy.spread, is_noisy=True)
    assert row.row("items") == ["read", "→ 1", "100 items/s", "", "noisy: ±22%"]
    found = profile_of(*READ, ceiling=100.0, spreads={"ceiling": noisy.spread})
    assert "The training step alone reaches 100 batches/s (noisy: ±22%)." in found.verdict()[1]


@pytest.mark.parametrize(
    ("ceiling", "finding"),
    [
        (12.0, "Too noisy to tell: measure again when less runs on the machine."),
        (8.0, "Too noisy to tell: measure again when less runs on the machine."),
        (20.0, "Data is the problem: read limits it."),
        (5.0, "Data is not the problem: the training step is slower than the pipeline."),
    ],
)
def test_what_is_too_noisy_to_tell(ceiling, finding):
    """Rates that differ by less than their rounds do are not compared."""
    rows = rows_of("read", {1: 10.0}, spread=0.3, is_noisy=True)
    assert profile_of(*rows, ceiling=ceiling).verdict()[0] == finding


def test_interrupted():
    """The first line says that more was to come."""
    found = profile_of(*READ, complete=False)
    assert found.verdict()[0] == "Interrupted: this is what was measured until then."
    nothing = profile_of(StageRate("read", note="not measured yet"), complete=False)
    assert nothing.verdict() == ["Nothing was measured at the present knobs."]
    assert (nothing.feeds, nothing.suggest()) == (0.0, {})


def test_shown_safely():
    """Names come from outside."""
    name = "<b>$x$</b>"
    found = profile_of(*rows_of(name, {1: 1.0}), locks={name: LockUse(why_none="<i>")})
    assert "<b>$x$" not in found._repr_html_()
    assert "<i>" not in found._repr_html_()


def test_as_data():
    """The rows are dicts for a table of pandas, and everything is ready for JSON."""
    idle = StageRate("aside", calls=1, now=True, per_s=3.0, feeds_per_s=math.inf)
    found = profile_of(*READ, idle, locks={"read": LockUse(0.25, 0.1)})
    assert [row["lock_share"] for row in found.table()] == [0.25] * 4 + [None]
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert (data["limit"], data["suggest"]) == ("read", {"aside": 1, "read": 4})
    assert [row["feeds_per_s"] for row in data["rows"]] == [10.0, 20.0, 40.0, 41.0, None]


def test_figure():
    """A line for each stage over its calls, a level for others, the step and the run."""
    pytest.importorskip("plotly")
    name = "<b>$x$</b>"
    rows = (*READ, BATCH, *rows_of(name, {1: 3.0, 2: 6.0}))
    drawn = profile_of(*rows, ceiling=30.0, live=9.0).figure()
    shown = {trace.name: (tuple(trace.x), tuple(trace.y)) for trace in drawn.data}
    assert shown["read"] == ((1, 2, 4, 8), (10.0, 20.0, 40.0, 41.0))
    assert shown["batch"] == ((1, 8), (500.0, 500.0))
    assert shown["training step alone"] == ((1, 8), (30.0, 30.0))
    assert shown["a run of all"] == ((1, 8), (9.0, 9.0))
    assert "&lt;b&gt;&#36;x&#36;&lt;/b&gt;" in shown
    assert profile_of().figure().data == ()
