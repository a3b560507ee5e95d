"""What the history tells: how far the stats reach, an epoch's last seconds, calls that wait."""

import re
import threading
import time
from dataclasses import replace

import pytest

import nbpipe
from nbpipe.base.knobs import KnobChange
from nbpipe.engine.measures import record
from nbpipe.ops.stage import changed as stage_with
from nbpipe.run import iterator
from nbpipe.show.diagnose import diagnose
from nbpipe.show.history import (
    last_stretch,
    latencies,
    proportional,
    remembered,
    span_s,
    trials_in,
)
from nbpipe.show.snapshot import snapshot
from nbpipe.show.verdict import case
from tests.gates import HANG_S, HangError, set_clock, stacks
from tests.show.fakes import BEGUN_S, NOW_S, past_of, photographs


@pytest.fixture
def at_now(monkeypatch):
    """Stop the clock when the fixed history ends."""
    monkeypatch.setattr(time, "time", lambda: NOW_S)


def turn(second, old, new, knob="decode.concurrency"):
    """Give a knob change, so many seconds after the run began."""
    return KnobChange(BEGUN_S + second, knob, old, new, "panel", "")


def watched(*events, past=None, **changes):
    """Give the run of six stages with other events and another status."""
    run = photographs(**changes)
    run.events = events
    run.past = run.past if past is None else past
    return run


def paced(rates, **changes):
    """Give a history in which decode has these rates, one a second."""
    past = past_of(photographs().rows, len(rates))
    for row in past:
        row["items_per_s"] = rates[int(row["time_s"])]
        row.update(changes.get(row["stage"], {}))
    return past


# -- how far the stats reach -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elapsed_s", "last_row_s", "reach_s"),
    [
        (33.25, 0.0, 33.25),
        (0.5, 0.75, 4.75),  # one epoch after the other
        (0.5, 2.75, 4.75),
        (0.5, 60.0, 0.5),  # the last epoch is long over
    ],
)
def test_span(at_now, elapsed_s, last_row_s, reach_s):
    """Stats reach back into the epochs before, 5 s at most."""
    past = past_of(photographs().rows)
    for row in past:
        row["when_s"] += 0.75 - last_row_s
    run = watched(past=past, elapsed_s=elapsed_s)
    assert span_s(run, run.now) == pytest.approx(reach_s, abs=0.5 + 1e-6)


# -- the last seconds of an epoch ------------------------------------------------------------------


def stretch_s(run):
    """Give the seconds of the rows of the last stretch."""
    rows, since_s = last_stretch(run.history(), run.now, run.events)
    return sorted({int(row["time_s"]) for row in rows}), since_s


@pytest.mark.parametrize(
    ("turned_s", "seconds", "since_s"),
    [
        ((), [35, 36, 37, 38, 39], 34.25),
        ((12.0,), [35, 36, 37, 38, 39], 34.25),
        ((36.5,), [38, 39], 37.25),  # the row of the turn itself is of both values
        ((39.0,), [35, 36, 37, 38], 34.25),  # too late for a row of its own
        ((37.5, 38.5), [35, 36, 37], 34.25),
        ((60.0,), [35, 36, 37, 38, 39], 34.25),  # after the epoch
    ],
)
def test_last_stretch(turned_s, seconds, since_s):
    """The last seconds speak, none from before the last knob change."""
    run = watched(*(turn(at, 2, 4) for at in turned_s))
    assert stretch_s(run) == (seconds, since_s)


def test_stretch_of_a_short_epoch():
    """Rows of the epoch before are left out."""
    past = past_of(photographs().rows)
    for row in past:
        row["epoch"] = 0 if row["time_s"] < 38 else 1
    assert stretch_s(watched(past=past, elapsed_s=2.0)) == ([38, 39], 37.25)


def test_epoch_without_a_row():
    """An epoch too short for a row is not judged by the one before it."""
    found = diagnose(watched(state="finished", epoch=7, delivered=3))
    assert str(found).startswith("Finished after 3 batches: ")


def told(run):
    """Give the shares of waiting in the sentence and in the row of the loop."""
    shares = re.findall(r"([\d.]+%) (?:of the time|in the whole)", diagnose(run).text)
    return shares, snapshot(run)["waited_share"]


def test_an_epoch_that_is_over_is_told_with_one_share_of_waiting():
    """Of a short one the last seconds are all; of a longer one the sentence tells both shares."""
    past = past_of(photographs().rows, 3)
    short = watched(past=past, state="finished", elapsed_s=2.25, waited_s=2.0)
    assert told(short) == (["89%"], 0.889)
    assert told(watched(state="finished", waited_s=16.0)) == (["62%", "48%"], 0.481)
    assert told(watched(state="running", waited_s=16.0)) == (["62%"], 0.62)


# -- calls that wait for one another ---------------------------------------------------------------


def settings_of(*stretches, **changes):
    """Give a history of stretches of decode, each 12 s of one (concurrency, rate)."""
    past = paced([rate for _, rate in stretches for _ in range(12)], **changes)
    for row in past:
        if row["stage"] == "decode":
            row["concurrency"] = stretches[int(row["time_s"]) // 12][0]
    return past


@pytest.mark.parametrize(
    ("stretches", "changes", "grown"),
    [
        ([(2, 100), (5, 103)], {}, (2, 5)),  # a lock inside: the rate is what it was
        ([(2, 100), (5, 115)], {}, (2, 5)),  # as good as
        ([(2, 100), (5, 160)], {}, None),
        ([(1, 50), (4, 200), (5, 201)], {}, (4, 5)),  # one disk, which four calls fill
        ([(2, 100), (5, 100), (3, 100), (5, 240)], {}, None),  # the last stretch speaks
        ([(5, 100), (2, 40), (5, 100)], {}, None),
        ([(5, 100)], {}, None),
        ([(2, 100), (5, 103)], {"consumer": {"starved": 0.01}}, None),  # the loop limited
        ([(2, 100), (5, 103)], {"decode": {"busy": 0.5, "starved": 0.5}}, None),  # others did
    ],
)
def test_latency_that_grows_with_concurrency(stretches, changes, grown):
    """Latency in proportion to concurrency is seen, whatever else was done since."""
    knob = photographs().stages["decode"].knobs["concurrency"]
    found = proportional(latencies(settings_of(*stretches, **changes), "decode"), knob.value)
    assert (found and found[:2]) == grown


@pytest.mark.parametrize(("cores", "cpu"), [(8, 0.1), (2, None)])
def test_no_more_of_calls_that_wait_for_one_another(at_now, monkeypatch, cores, cpu):
    """Such a stage is never advised more concurrency, in no words."""
    monkeypatch.setattr(case, "cores", lambda: cores)
    other = turn(13, 8, 16, "read.prefetch")
    run = watched(turn(12, 2, 5), other, past=settings_of((2, 100), (5, 103)), cpu_cores=cpu)
    run.stages["decode"].knobs["concurrency"]._last = run.events[0]
    found = diagnose(run)
    assert "2.4 times as long at concurrency 5 as at 2" in found.evidence
    assert (found.stage, found.suggestion) == ("decode", ("decode", "concurrency", 2))
    assert (found.cause, "wait for one another" in found.advice) == ("calls-in-turn", True)


def few(past, seconds, busy):
    """Have decode, with five slots, be less busy in the first seconds: the loop sets the pace."""
    for row in past:
        if row["stage"] == "decode":
            row.update(concurrency=5)
            if row["time_s"] < seconds:
                row.update(busy=busy, blocked=1 - busy)
    return past


@pytest.mark.parametrize(
    ("past", "calls"),
    [
        (settings_of((1, 100), (4, 102), (5, 103)), 2),  # 1.04: more than the one that was tried
        (settings_of((1, 40), (4, 102), (5, 103)), 3),
        (few(paced([100] * 12 + [103] * 12), 12, 0.2), 1),  # no knob was turned
        (few(paced([100] * 12 + [230] * 12), 12, 0.2), None),  # the calls took half as long
        (few(paced([100] * 24), 12, 0.04), 1),  # a fifth of a call
        (few(paced([100] * 24), 1, 0.2), None),  # for too short a time
    ],
)
def test_one_jump_to_the_calls_that_the_rate_needs(at_now, monkeypatch, past, calls):
    """The rate needs its calls at the latency that they had when they were few."""
    monkeypatch.setattr(case, "cores", lambda: 8)
    run = watched(past=past, cpu_cores=0.1)
    run.rows["decode"] = replace(run.rows["decode"], items_per_s=103.0)
    found = diagnose(run)
    if calls is None:
        assert found.cause == "more-calls"
    else:
        assert found.suggestion == ("decode", "concurrency", calls)
        assert (found.cause, f"Set concurrency to {calls}: " in found.advice) == (
            "calls-in-turn",
            True,
        )


def test_a_raise_that_made_it_slower_is_taken_back_further(at_now, monkeypatch):
    """Where fewer calls than before are enough, they are advised."""
    monkeypatch.setattr(case, "cores", lambda: 8)
    run = watched(
        turn(12, 1, 4), turn(24, 4, 5), past=settings_of((1, 100), (4, 99), (5, 60)), cpu_cores=0.1
    )
    found = diagnose(run)
    assert (found.cause, found.advice) == ("raise-was-slower", "Set concurrency to 2.")
    assert found.suggestion == ("decode", "concurrency", 2)


@pytest.mark.slow
def test_a_real_lock_without_any_turn():
    """A loop that was slow at first shows how long a call takes alone."""
    lock, begun_s = threading.Lock(), time.monotonic()

    def query(number):
        with lock:
            time.sleep(0.005)
        return number

    with nbpipe.source(range(10**6)).map(query, concurrency=8).start() as run:
        for _ in run:
            if time.monotonic() - begun_s < 4:
                time.sleep(0.02)
            elif (found := run.diagnose()).cause == "calls-in-turn":
                break
    stage, knob, value = found.suggestion
    assert (stage, knob, value < 4) == ("query", "concurrency", True)  # 2 on a quiet machine
    assert [change for change in run.events if change.knob == "concurrency"] == []


# -- a turn that made it slower --------------------------------------------------------------------


def test_raise_that_made_it_slower(at_now, monkeypatch):
    """It is reported with both rates; the value before is suggested, and is not undone again."""
    monkeypatch.setattr(case, "cores", lambda: 8)
    run = watched(turn(12, 2, 5), past=settings_of((2, 100), (5, 60)), cpu_cores=0.1)
    found = diagnose(run)
    assert str(found) == (
        "Raising decode.concurrency from 2 to 5 made it slower (100 items/s before, 60 items/s "
        "since). Set concurrency to 2 again."
    )
    assert (found.kind, found.suggestion) == ("slower", ("decode", "concurrency", 2))
    back = watched(
        *(turn(12, 2, 5), turn(24, 5, 2)),
        past=settings_of((2, 100), (5, 60), (2, 101)),
        cpu_cores=0.1,
    )
    for one in back.past:  # all other knobs as they are
        knobs = {} if one["stage"] == "consumer" else back.stages[one["stage"]].knobs
        one.update(
            {k: knobs[k].value for k in knobs if (one["stage"], k) != ("decode", "concurrency")}
        )
    back.stages["decode"].knobs["concurrency"].set(2)
    back.stages["decode"].knobs["concurrency"]._last = None
    back.rows["decode"] = replace(back.rows["decode"], concurrency=2, busy=0.97)
    found = diagnose(back)
    assert (found.kind, found.cause, found.suggestion) == ("limits", "tried", None)
    assert found.advice == "Speed up what its calls wait for: concurrency 5 was no faster."
    back.stages["read"].knobs["prefetch"].set(9)  # with that it may be otherwise
    assert diagnose(back).suggestion == ("decode", "concurrency", 4)


@pytest.mark.parametrize(
    ("stretches", "changes", "slower"),
    [
        ([(2, 100), (5, 60)], {}, True),
        ([(2, 100), (5, 95)], {}, False),  # not by much
        ([(5, 100), (2, 60)], {}, False),  # it was lowered
        ([(2, 100), (5, 60)], {"consumer": {"starved": 0.01}}, False),  # the loop set the pace
        ([(2, 100), (5, 60), (2, 100)], {}, False),  # it was undone
    ],
)
def test_what_counts_as_slower(stretches, changes, slower):
    """A raise counts where the loop waited for data before and since."""
    past = settings_of(*stretches, **changes)
    last = (trials_in(past, photographs().stages) or [None])[-1]
    assert (last is not None and last.made_it_slower) == slower


def test_two_knobs_turned_at_once():
    """What came of one of them is not known."""
    past = settings_of((2, 100), (5, 60))
    for one in past:
        if one["stage"] == "read":
            one["prefetch"] = 16 if one["time_s"] < 12 else 32
    assert not trials_in(past, photographs().stages)


@pytest.mark.parametrize("rates", [[100, 60] * 6 + [60, 90] * 6, [100] * 12 + [60] * 3])
def test_rates_that_do_not_tell(rates):
    """Rates that vary as much as they fell, or that are few, say nothing."""
    past = paced(rates)
    for one in past:
        if one["stage"] == "decode":
            one["concurrency"] = 2 if one["time_s"] < 12 else 5
    last = (trials_in(past, photographs().stages) or [None])[-1]
    assert last is None or not last.made_it_slower


# -- the same, seen in a run -----------------------------------------------------------------------

STEP_NS = 200_000_000  # the time of one call that has nothing to wait for


class World:
    """A stage's function and a clock that moves only while all its calls, and the loop, wait.

    Args:
        shared: the calls go one after the other through what they share; else side by side.
    """

    def __init__(self, *, shared):
        self.now_ns = 10**9
        self.limit = lambda: 1
        self.given = 0  # items that the loop has had
        self._ended = 0
        self._loop_waits = False
        self._shared = shared
        self._calls = []
        self._changed = threading.Condition()

    def __call__(self, item):
        with self._changed:
            self._calls.append(item)
            self._turn()
            if not self._changed.wait_for(lambda: item not in self._calls, HANG_S):
                raise HangError(f"a call never ended\n{stacks()}")
        return item

    def clock(self):
        """Give the time to whoever asks but the loop [ns]."""
        return self.now_ns

    def time_of_day(self):
        """Give the time of day [s]."""
        return BEGUN_S + self.now_ns / 1e9

    def clock_of_loop(self):
        """Give the time to the loop, which asks as it begins and as it ends to wait [ns]."""
        with self._changed:
            now_ns = self.now_ns
            self._loop_waits = not self._loop_waits
            self._turn()
        return now_ns

    def end(self):
        """Let all calls end."""
        with self._changed:
            self.limit = lambda: 0
            self._turn()

    def _turn(self):
        limit = self.limit()
        waits = self._loop_waits and self.given == self._ended and len(self._calls) == limit
        if waits or not limit:
            ended = 1 if self._shared and limit else len(self._calls)
            self.now_ns += STEP_NS
            self._ended += ended
            del self._calls[:ended]
            self._changed.notify_all()


@pytest.fixture
def world(request, monkeypatch):
    """Give a world whose clock is that of every run."""
    made = World(shared=request.param)
    set_clock(monkeypatch, made.clock)
    monkeypatch.setattr(iterator, "perf_counter_ns", made.clock_of_loop)
    monkeypatch.setattr(time, "time", made.time_of_day)
    monkeypatch.setattr(record, "time", made.time_of_day)
    return made


@pytest.mark.parametrize(("world", "wanted"), [(True, 2), (False, 8)], indirect=["world"])
def test_no_more_of_calls_that_share_something(world, wanted):
    """A run whose calls wait for one another is advised no more of them; another one is."""
    items = nbpipe.source(range(10_000))
    chain = items.map(world, name="fetch", concurrency=2, ordered=False)
    with chain.start() as run:
        world.limit = lambda: run["fetch"].concurrency
        for _ in run:
            world.given += 1
            if world.now_ns > 8e9:
                run["fetch"].concurrency = 4
            if world.now_ns > 16e9:
                found = run.diagnose()
                break
        world.end()
    advised = found.suggestion and found.suggestion[2]
    assert (found.stage, advised) == ("fetch", wanted)


# -- what earlier runs tried -----------------------------------------------------------------------


def run_at(first, concurrency, rate, **changes):
    """Give a new run of the stages of `first`, in which decode had one concurrency and rate."""
    knob = first.stages["decode"].knobs["concurrency"]
    knob.set(concurrency)
    knob._last = None
    past = settings_of((concurrency, rate))
    for one in past:  # the other knobs as they are
        knobs = {} if one["stage"] == "consumer" else first.stages[one["stage"]].knobs
        one.update({k: knobs[k].value for k in knobs})
    run = replace(first, past=past, events=(), **changes)
    decode = run.rows["decode"]
    run.rows = {**run.rows, "decode": replace(decode, concurrency=concurrency)}
    return run


def test_what_earlier_runs_tried_is_remembered(at_now, monkeypatch):
    """A stage that waits for a lock is advised one raise, not one in each new run."""
    monkeypatch.setattr(case, "cores", lambda: 8)
    first = watched(cpu_cores=0.1)
    said = [diagnose(run_at(first, *each)) for each in ((2, 100.0), (4, 101.0), (2, 100.0))]
    assert [one.suggestion for one in said] == [
        ("decode", "concurrency", 4),
        ("decode", "concurrency", 2),
        None,
    ]
    assert "2.0 times as long at concurrency 4 as at 2" in said[1].evidence
    assert "concurrency 4 was no faster" in said[2].advice


def test_raises_of_new_runs_that_help_go_further(at_now, monkeypatch):
    """Where a raise brought as much more, the next one is advised."""
    monkeypatch.setattr(case, "cores", lambda: 8)
    first = watched(cpu_cores=0.1)
    said = [diagnose(run_at(first, *each)) for each in ((2, 100.0), (4, 199.0), (2, 100.0))]
    assert [one.suggestion[2] for one in said] == [4, 8, 4]


@pytest.mark.parametrize("changed", ["decode", "read"])
def test_what_was_tried_of_another_function_is_forgotten(at_now, monkeypatch, changed):
    """A new function, of the stage or before it, begins without what was tried."""
    monkeypatch.setattr(case, "cores", lambda: 8)
    first = watched(cpu_cores=0.1)
    diagnose(run_at(first, 2, 100.0))
    old = first.stages[changed]
    spec = replace(old.spec, fn=lambda item: item)
    stages = {**first.stages, changed: stage_with(old, spec=spec)}
    found = diagnose(run_at(first, 4, 101.0, stages=stages))
    assert found.suggestion == ("decode", "concurrency", 8)


def test_what_is_remembered_is_bounded():
    """Of many values that were tried, the last ones are kept."""
    first = watched(cpu_cores=0.1)
    for value in range(1, 40):
        run = run_at(first, value, 100.0)
        known = remembered(run.past, run.stages, "decode", "concurrency")
    assert list(known) == list(range(24, 40))


def test_a_busy_machine_does_not_undo_what_was_tried(at_now, monkeypatch):
    """A value that did worse in a later run is still known by its best."""
    monkeypatch.setattr(case, "cores", lambda: 8)
    first = watched(cpu_cores=0.1)
    said = [diagnose(run_at(first, *each)) for each in ((2, 100.0), (4, 110.0), (2, 60.0))]
    assert (said[1].suggestion[2], said[2].suggestion) == (2, None)
