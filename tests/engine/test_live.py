"""What may happen to a run at any moment, from any thread: knobs, pause, stop, close, memory."""

import gc
import threading
from time import perf_counter_ns

import numpy as np
import pytest

import nbpipe
from tests.gates import (
    HANG_S,
    Calls,
    Gate,
    consumer_waits,
    delivered,
    drained,
    finished,
    quiet,
    set_clock,
    stage,
    until,
)

KINDS = ("thread", "coroutine")


# -- knobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_raised_prefetch_fills_at_once(kind):
    """A raised prefetch lets a stage that had no room go on, with nobody taking items."""
    calls = Calls()
    with (
        nbpipe.source(range(200)).map(stage(kind, calls=calls), prefetch=1, name="w").start() as run
    ):
        items = iter(run)
        calls.wait_begun(2)
        quiet(run)
        run["w"].prefetch = 40
        calls.wait_begun(41)
        quiet(run)
        assert 41 <= calls.begun <= 40 + 64  # and perhaps a chunk of cheap calls
        assert drained(items) == list(range(200))


def test_knobs_of_every_stage_may_be_turned_while_all_buffers_are_full():
    """Whatever is raised or lowered while the consumer is away, it finds all items after."""
    chain = nbpipe.source(range(3000)).map(lambda n: n, name="a").filter(lambda _: True, name="b")
    chain = chain.flat_map(lambda n: [n], name="c").batch(7, collate=list)
    with chain.start() as run:
        items = iter(run)
        got = [finished(next, items)]
        for value in (50, 1, 9, 1, 200, 2):
            for address in run.stages:
                for knob in run[address].knobs.values():
                    knob.set(value)
            quiet(run)
            got.append(finished(next, items))
        got += drained(items)
    assert [n for batch in got for n in batch] == list(range(3000))


def test_tuned_knobs_stay_for_the_next_epoch_and_run():
    """A knob belongs to its stage: later epochs and runs begin with its value."""
    gate = Gate()
    calls = Calls()
    chain = nbpipe.source(range(20)).map(
        stage("thread", gate=lambda _: gate, calls=calls), name="w"
    )
    chain["w"].concurrency = 5
    with chain.start() as first:
        held = iter(first)
        calls.wait_running(5)
        gate.open()
        assert drained(held) == drained(first) == list(range(20))
        with chain.start() as second:
            assert second.stats()["w"].concurrency == 5
            assert second["w"] is first["w"] is chain["w"]


def test_limits_of_a_shared_stage_count_for_each_run():
    """Two live runs that share a stage share its knob, but each has its own calls."""
    gate, calls = Gate(), Calls()
    fn = stage("thread", gate=lambda _: gate, calls=calls)
    chain = nbpipe.source(range(20)).map(fn, concurrency=2, name="w")
    with chain.start() as one, chain.take(10).start() as two:
        held = iter(one), iter(two)
        calls.wait_running(4)
        one["w"].concurrency = 3
        calls.wait_running(6)
        gate.open()
        assert [drained(items) for items in held] == [list(range(20)), list(range(10))]


def test_events_tell_who_turned_what():
    """Every change of a knob is kept in order: who, from, to, why."""
    with nbpipe.source(range(5)).map(lambda n: n, name="w").start() as run:
        run["w"].concurrency = 3
        finished(lambda: run["w"].knob("concurrency").set(3))  # no change
        finished(lambda: run["w"].knob("prefetch").set(4, by="panel", why="slider"))
        with pytest.raises(nbpipe.KnobError):
            run["w"].concurrency = 0
        found = [(e.knob, e.old, e.new, e.by, e.why) for e in run.events]
    assert found == [("w.concurrency", 1, 3, "code", ""), ("w.prefetch", 8, 4, "panel", "slider")]


def test_events_are_read_while_a_knob_is_turned():
    """The events can be read at any moment, also where a collection just then turns a knob."""
    thresholds = gc.get_threshold()

    class Garbage:
        def __init__(self):
            self.me = self

        def __del__(self):
            knob.set(1 + knob.value % 2)

    try:
        with nbpipe.source(range(5)).map(lambda n: n, name="w").start() as run:
            knob = run["w"].knob("concurrency")
            for value in range(2, 60):
                knob.set(value)
            for number in range(1, 40):  # each time the collection comes at another moment
                Garbage()
                gc.set_threshold(number)
                seen = run.events
                gc.set_threshold(0)
            # Where another thread is collecting just then, a collection here does nothing.
            until(lambda: [gc.collect()] and len(run.events) >= 58 + 39)
            assert (len(seen) >= 58, len(run.events)) == (True, 58 + 39)
    finally:
        gc.set_threshold(*thresholds)


def test_turning_a_knob_after_close_is_harmless():
    """The knob lives on with its stage; a closed run hears nothing."""
    run = nbpipe.source(range(5)).map(lambda n: n, name="w").start()
    drained(run)
    run.close()
    run["w"].concurrency = 4
    assert (run.events, run["w"].concurrency) == ((), 4)


# -- pause -----------------------------------------------------------------------------------------


def test_resume_goes_on_behind_a_half_gathered_batch():
    """Paused at any moment, a run of cheap stages goes on: no buffer has to be empty for it."""
    chain = nbpipe.source(range(2000)).map(lambda n: n, name="a").batch(32, collate=list)
    with chain.start() as run:
        got = []

        def consume():
            for batch in run:
                got.extend(batch)
                run.pause()
                quiet(run)
                run.resume()

        for _ in range(5):
            got.clear()
            finished(consume)
            assert got == list(range(2000))


def test_pause_holds_back_what_the_loop_took_with_its_chunk():
    """Items of a chunk that is being handed out wait as well until the run goes on."""
    with nbpipe.source(range(5000)).map(lambda item: item).start() as run:
        items = iter(run)
        got = [next(items) for _ in range(1000)]
        run.pause()
        loop = threading.Thread(target=lambda: got.extend(items), daemon=True)
        loop.start()
        consumer_waits(items)
        before = len(got)
        run.resume()
        loop.join(HANG_S)
    assert (before, got) == (1000, list(range(5000)))


def test_pause_and_resume_thousands_of_times():
    """Pausing and resuming from another thread loses nothing and strands nobody."""
    over = threading.Event()
    chain = nbpipe.source(range(20_000)).map(lambda n: n, concurrency=2)
    with chain.filter(lambda n: n % 3).batch(32, collate=list).start() as run:

        def turn():
            while not over.is_set():
                run.pause()
                run.resume()
                over.wait(0.0005)

        turner = threading.Thread(target=turn)
        turner.start()
        try:
            got = drained(run)
        finally:
            over.set()
            turner.join()
    assert [n for batch in got for n in batch] == [n for n in range(20_000) if n % 3]


def test_paused_time_is_neither_elapsed_nor_waited(monkeypatch):
    """While a run is paused, for an hour, its clock stands still, though the loop waits for it."""
    paused_s = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + paused_s[0] * 10**9)
    with nbpipe.source(range(100)).map(lambda n: n).start() as run:
        items = iter(run)
        next(items)
        run.pause()
        before = run.status()
        loop = threading.Thread(target=lambda: drained(items), daemon=True)
        loop.start()
        consumer_waits(items)
        paused_s[0] = 3600
        during = run.status()
        run.resume()
        loop.join(HANG_S)
        after = run.status()
    times = [(one.elapsed_s, one.waited_s) for one in (before, during)]
    assert (times[0], after.elapsed_s > during.elapsed_s) == (times[1], True)
    assert (after.state, max(after.elapsed_s, after.waited_s) < 3600) == ("finished", True)


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rates_are_those_of_the_pause_from_its_beginning_on(isolate):
    """In a pause all rates are 0 at once: they do not fall as the last seconds are forgotten."""
    with nbpipe.source(range(1000)).map(lambda n: n, name="w").start(isolate=isolate) as run:
        items = iter(run)
        for _ in range(500):
            next(items)
        quiet(run)
        before = run.stats()
        run.pause()
        during = run.stats()
    rates = [
        [rows[name].items_per_s > 0 for name in ("w", "consumer")] for rows in (before, during)
    ]
    assert rates == [[True, True], [False, False]]
    assert (during["w"].busy, during["consumer"].starved) == (0.0, 0.0)


# -- what the status tells -------------------------------------------------------------------------


def odd(n):
    """Refuse even numbers."""
    if n % 2 == 0:
        raise ValueError(n)
    return n


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_skipped_items_are_counted_for_each_epoch(isolate):
    """An epoch tells how many items failed and were left out, also after it."""
    chain = nbpipe.source(range(10)).map(odd, on_error="skip")
    with chain.start(isolate=isolate) as run:
        found = [(drained(run), run.status().skipped) for _ in range(2)]
    assert found == [([1, 3, 5, 7, 9], 5)] * 2


def test_an_item_that_ends_the_epoch_was_not_skipped():
    """What fails the epoch was not left out."""
    with nbpipe.source(range(10)).map(odd).start() as run:
        with pytest.raises(nbpipe.StageError):
            drained(run)
        assert (run.status().state, run.status().skipped) == ("failed", 0)


# -- stop and close --------------------------------------------------------------------------------


def test_stage_may_stop_its_own_run():
    """`run.stop()` in a stage ends the epoch without an error."""
    box = []

    def work(item):
        if item == 30:
            box[0].stop()
        return item

    with nbpipe.source(range(1000)).map(work).start() as run:
        box.append(run)
        got, error = delivered(run)
        assert (error, run.stopped, got) == (None, True, list(range(len(got))))


def test_stop_between_epochs_does_nothing():
    """Without an epoch in progress there is nothing to stop."""
    with nbpipe.source(range(5)).start() as run:
        run.stop()
        drained(run)
        run.stop()
        assert run.stopped is False


def test_closing_while_threads_are_being_started():
    """Closing right after a start ends every thread, begun or about to begin."""
    problems = []
    chain = (
        nbpipe.source(range(100)).map(lambda n: n, concurrency=8).map(lambda n: n, concurrency=8)
    )
    for _ in range(100):
        run = chain.start()
        items = iter(run)
        try:
            finished(run.close)
        except RuntimeError as error:
            problems.append(error)
        items.close()
    assert problems == []


def test_close_in_mid_epoch_is_not_kept_waiting_by_the_ticker():
    """No thread is left behind by a close at any moment of an epoch of cheap items."""
    chain = nbpipe.source(range(3000)).map(lambda n: n)
    left = []
    for taken in range(0, 1200, 12):
        run = chain.start()
        items = iter(run)
        finished(lambda items=items, taken=taken: [next(items) for _ in range(taken)])
        run.close(timeout_s=HANG_S)
        left += [thread.name for thread in threading.enumerate() if "nbpipe" in thread.name]
    assert left == []


# -- memory ----------------------------------------------------------------------------------------
MB = 1 << 20


def made_of(size_bytes):
    """Make a function that gives arrays of this size."""
    return lambda item: np.full(size_bytes, item % 251, np.uint8)


@pytest.mark.parametrize(
    ("make", "concurrency", "count"),
    [
        (np.ones, 1, 2000),
        (np.ones, 4, 2000),
        (np.empty, 1, 5000),  # untouched memory: made in a microsecond, and so in chunks
    ],
)
def test_memory_budget_bounds_what_is_held(make, concurrency, count):
    """With the consumer away, the bytes held stay within the budget and one item for each call."""
    begun, held = [], []

    def work(item):
        begun.append(item)
        return make(MB, np.uint8)

    chain = nbpipe.source(range(count + 1000)).map(work, prefetch=1000, concurrency=concurrency)
    with chain.start(memory="8 MB") as run:
        items = iter(run)
        for taken in range(1, count + 1):
            finished(next, items) if taken == 1 else next(items)
            if taken % 250 == 0:
                quiet(run)
                held.append(len(begun) - taken)
    assert max(held) <= 8 + concurrency


def test_memory_budget_smaller_than_one_item():
    """Items larger than the whole budget still come, one by one."""
    chain = nbpipe.source(range(20)).map(made_of(MB), concurrency=4, prefetch=16)
    with chain.start(memory=1000) as run:
        assert [item[0] for item in drained(run)] == list(range(20))


def test_memory_budget_smaller_than_one_batch():
    """A batch larger than the budget is made item by item instead of never."""
    chain = nbpipe.source(range(96)).map(made_of(100_000), concurrency=3)
    with chain.batch(32).map(lambda batch: batch.shape).start(memory="1 MB") as run:
        assert [drained(run) for _ in range(2)] == [[(32, 100_000)] * 3] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_memory_budget_with_every_kind_of_stage(kind):
    """Nothing is lost or stuck under a tight budget, whatever the stages are."""
    chain = nbpipe.source(range(300)).map(stage(kind), concurrency=4, name="a")
    chain = chain.flat_map(lambda n: [np.full(5000, n % 100)] * 2, concurrency=2)
    chain = chain.filter(lambda row: row[0] % 2, name="odd").batch(7, collate=len)
    with chain.start(memory="300 kB") as run:
        assert [sum(drained(run)) for _ in range(2)] == [300, 300]
