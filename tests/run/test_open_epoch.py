"""An epoch to which indices are pushed: order, bounds, threads, and every way it may end."""

import contextlib
import gc
import os
import signal
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from tests.chains import build
from tests.gates import (
    HANG_S,
    Calls,
    Gate,
    HangError,
    consumer_waits,
    delivered,
    drained,
    finished,
    quiet,
    said_in_a_fork,
    stage,
    until,
)
from tests.inner import call_between_waits
from tests.models import passed
from tests.run.test_iterate import failing
from tests.strategies import CALL_STEPS, GATHER_STEPS, HANDS

ITEMS = [10 * number for number in range(40)]


def chain(**calls):
    """Make a chain of tens and one stage, "w"."""
    return nbpipe.source(ITEMS).map(stage("thread", **calls), concurrency=2, name="w")


class Gated(list):
    """Items of which each read counts itself and waits at a gate."""

    def __init__(self, items, gate, calls):
        super().__init__(items)
        self.read = stage("thread", gate=lambda _: gate, calls=calls)

    def __getitem__(self, index):
        return self.read(super().__getitem__(index))


class Pusher(threading.Thread):
    """Loads in a thread; keeps how many were taken, and what ended it."""

    def __init__(self, epoch, loads, *, end=True):
        super().__init__(name="test-pusher", daemon=True)
        self.epoch, self.loads, self.end = epoch, loads, end
        self.taken, self.error = 0, None
        self.start()

    def run(self):
        try:
            for load in self.loads:
                self.epoch.load(load)
                self.taken += 1
            if self.end:
                self.epoch.end()
        except Exception as error:
            self.error = error
        finally:
            self.epoch = None  # else it would keep the epoch open

    def wait(self):
        """Wait for its end, and give what ended it."""
        self.join(HANG_S)
        if self.is_alive():
            raise HangError("a load hangs")
        return self.error


def waits_in_load(epoch):
    """Wait until some thread waits for room."""
    until(lambda: epoch._feed._changed._waiters)


def waits_for_item(epoch):
    """Wait until the consumer waits for an item."""
    consumer_waits(epoch._items())


@contextlib.contextmanager
def interrupted_once(wait):
    """Interrupt the main thread after a wait; again until it hears, for it may just fall asleep."""
    heard = threading.Event()
    main = threading.main_thread().ident

    def hear(number, frame):
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    def interrupt():
        wait()
        while not heard.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            heard.wait(0.01)

    before = signal.signal(signal.SIGINT, hear)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(HANG_S)
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def full(*, depth=2):
    """Give a run whose source waits at a gate, with an epoch in which every place is taken."""
    gate, calls = Gate(), Calls()
    with nbpipe.source(Gated(ITEMS, gate, calls)).start() as run:
        epoch = run.open_epoch(depth=depth)
        epoch.load([0])
        calls.wait_begun(1)
        for index in range(depth):
            finished(epoch.load, [index + 1])
        try:
            yield run, epoch, gate
        finally:
            gate.open()


# -- what goes in comes out ------------------------------------------------------------------------
def test_loads_come_out_in_order():
    """Items come in the order of the loads, and end after `end`."""
    with chain().start() as run:
        epoch = run.open_epoch()
        pusher = Pusher(epoch, [[3, 1], (4,), np.array([1, 5]), range(9, 6, -1), iter([2, 2])])
        got = drained(epoch)
        assert (got, pusher.wait()) == ([30, 10, 40, 10, 50, 90, 80, 70, 20, 20], None)


def test_one_thread_that_loads_and_takes():
    """A driver that stays two loads ahead never waits for itself."""

    def drive(epoch):
        epoch.load(range(4))
        epoch.load(range(4, 8))
        for step in range(2, 10):
            yield next(epoch)
            epoch.load(range(4 * step, 4 * step + 4))
        epoch.end()
        yield from epoch

    pipe = nbpipe.source(ITEMS).map(lambda item: item, concurrency=3).batch(4, collate=list)
    with pipe.start() as run, run.open_epoch() as epoch:
        got = drained(drive(epoch))
    assert got == [ITEMS[at : at + 4] for at in range(0, 40, 4)]


def test_a_load_wakes_who_waits_for_it():
    """A consumer that waits gets an item as soon as its index was pushed."""
    with chain().start() as run, run.open_epoch() as epoch:
        got, came = [], threading.Semaphore(0)

        def consume():
            for item in epoch:
                got.append(item)
                came.release()

        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        for index in (5, 3):
            waits_for_item(epoch)
            epoch.load([index])
            assert came.acquire(timeout=HANG_S)
        waits_for_item(epoch)
        epoch.end()
        thread.join(HANG_S)
        assert (got, thread.is_alive()) == ([50, 30], False)


def test_an_epoch_without_loads():
    """An epoch that is ended at once is empty; so are loads without an index."""
    with chain().start() as run:
        epoch = run.open_epoch(depth=1)
        for _ in range(5):
            finished(epoch.load, [])
        epoch.end()
        epoch.end()
        assert (drained(epoch), drained(run), run.epoch) == ([], ITEMS, 1)


def test_many_threads_may_load():
    """Loads of several threads come one after the other, none of them torn or lost."""
    loads = [[[10 * of + n] * 7 for n in range(10)] for of in range(4)]
    with chain().start() as run, run.open_epoch() as epoch:
        pushers = [Pusher(epoch, mine, end=False) for mine in loads]
        got = [[finished(next, epoch) for _ in range(7)] for _ in range(40)]
        errors = [pusher.wait() for pusher in pushers]
    assert errors == [None] * 4
    assert all(len(set(lot)) == 1 for lot in got)
    firsts = [lot[0] for lot in got]
    for mine in loads:
        own = {ITEMS[load[0]] for load in mine}
        assert [item for item in firsts if item in own] == sorted(own)


CUTS = st.lists(st.lists(st.integers(0, 11), max_size=4), max_size=6)


@given(CUTS, st.lists(st.one_of(CALL_STEPS, GATHER_STEPS), max_size=3), HANDS, st.integers(1, 3))
def test_random_loads_through_random_chains(loads, steps, hands, depth):
    """However an order is cut into loads, items are those of the order in one."""
    items = list(range(5, 17))
    recipe = [["items", items], ["map", 0], *steps]
    with build(recipe, hands).start() as run, run.open_epoch(depth=depth) as epoch:
        pusher = Pusher(epoch, loads)
        found = drained(epoch)
        assert pusher.wait() is None
    assert found == passed([items[n] for load in loads for n in load], ["map", 0], *steps)


def test_random_numbers_do_not_depend_on_the_loads():
    """What an item draws depends on its place in the epoch and its index alone."""

    def draw(item, rng):
        return item, float(rng.random())

    found = []
    with nbpipe.source(ITEMS).map(draw, concurrency=2).start(seed=3) as run:
        for cut in (1, 2, 5):
            run.set_epoch(0)
            epoch = run.open_epoch()
            Pusher(epoch, [[2, 7, 2, 2, 9][at : at + cut] for at in range(0, 5, cut)])
            found.append(drained(epoch))
        run.set_epoch(0)
        found.append(drained(run.iterate([2, 7, 2, 2, 9])))
    assert found == [found[0]] * 4


def test_lengths_are_not_known():
    """Nobody knows how much will be pushed: there is no total, and no length to hint at."""
    with chain().start() as run:
        epoch = run.open_epoch()
        during = run.status().total, iter(epoch).__length_hint__()
        epoch.close()
        iter(run)
        assert (during, run.status().total) == ((None, 0), 40)


def test_nothing_works_while_nothing_is_loaded():
    """No thread waits for indices: the source is starved, not busy."""
    with chain().start() as run, run.open_epoch() as epoch:
        epoch.load([1])
        first = finished(next, epoch)
        quiet(run)
        running = run.stats()["source"].running
        epoch.load([2])
        assert (first, running, finished(next, epoch)) == (10, 0, 20)


# -- the bound -------------------------------------------------------------------------------------
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_depth_bounds_the_loads_that_wait(depth):
    """No more than `depth` loads are taken beside the one that the source has begun."""
    with full(depth=depth) as (_, epoch, gate):
        refused = [
            epoch.load([39], timeout_s=0),
            finished(lambda: epoch.load([39], timeout_s=0.01)),
        ]
        gate.open()
        epoch.load([depth + 1])
        epoch.end()
        assert (refused, drained(epoch)) == ([False, False], ITEMS[: depth + 2])


def test_a_load_that_waits_goes_on_when_one_is_begun():
    """Room is made when the source begins a load, not when it was consumed."""
    with full() as (_, epoch, gate):
        pusher = Pusher(epoch, [[3], [4]])
        waits_in_load(epoch)
        before = pusher.taken
        gate.open()
        assert (before, pusher.wait()) == (0, None)
        assert drained(epoch) == ITEMS[:5]


@pytest.mark.parametrize("depth", [0, -1, 1.5, True, "2", 100_000])
def test_a_wrong_depth_is_refused(depth):
    """The depth is an int in its range."""
    with (
        chain().start() as run,
        pytest.raises(nbpipe.ArgumentError, match="open_epoch depth must be an int in"),
    ):
        run.open_epoch(depth=depth)
    assert run.epoch == 0


def test_a_kernel_is_served_while_a_load_waits():
    """Who waits in a load looks after other things, as who waits for an item does."""
    with full() as (run, epoch, gate):
        looks = []

        def look():
            looks.append(1)
            if len(looks) == 3:
                gate.open()
                until(epoch._feed._admits)  # there is room before it would be asked to look again

        call_between_waits(run, look)
        assert epoch.load([3])
        call_between_waits(run, None)
        refused_at_once = len(looks)
        epoch.end()
        assert (drained(epoch), refused_at_once) == (ITEMS[:4], 3)


# -- errors ----------------------------------------------------------------------------------------
def test_a_wrong_index_fails_in_its_place():
    """Items before a wrong index come, also of its load; then an error that names it."""
    with chain().start() as run:
        epoch = run.open_epoch()
        epoch.load([3, 1])
        epoch.load([4, 40, 5])
        got, error = delivered(epoch)
        assert (got, error.stage, error.path) == ([30, 10, 40], "source", (3, 40))
        assert "index number 3 of the epoch must be an int in [0, 39], got 40" in str(error)


@pytest.mark.parametrize("indices", ["12", {1: 2}, {1, 2}, 5, None])
def test_what_is_no_load_is_refused_at_once(indices):
    """A load that is no iterable changes nothing."""
    with chain().start() as run, run.open_epoch() as epoch:
        with pytest.raises(nbpipe.ArgumentTypeError, match="load indices must be an iterable"):
            epoch.load(indices)
        epoch.load([1])
        epoch.end()
        assert drained(epoch) == [10]


@pytest.mark.parametrize("timeout_s", [-1, "1", float("nan"), True])
def test_a_wrong_timeout_is_refused(timeout_s):
    """The time to wait is a number of seconds."""
    with (
        chain().start() as run,
        run.open_epoch() as epoch,
        pytest.raises(nbpipe.ArgumentError, match="load timeout_s must be a number"),
    ):
        epoch.load([1], timeout_s=timeout_s)
    assert run.closed


def test_after_a_failure_no_load_waits():
    """A driver is not held up by a stage that failed: it hears of it where it takes items."""
    with nbpipe.source(ITEMS).map(failing, name="w").start() as run:
        epoch = run.open_epoch(depth=1)
        for index in (1, 4, 2, 3, 5, 6, 7, 8, 9, 10):
            assert finished(epoch.load, [index])
        got, error = delivered(epoch)
        with pytest.raises(nbpipe.EpochClosedError) as caught:
            epoch.load([1])
        assert (got, error.stage, caught.value.__cause__) == ([10], "w", error)
        assert drained(run.iterate([1])) == [10]


def test_after_a_take_has_enough_no_load_waits():
    """What is pushed behind the end of a `take` is dropped."""
    with chain().take(3).start() as run:
        epoch = run.open_epoch(depth=1)
        pusher = Pusher(epoch, [[n, n] for n in range(20)])
        assert (drained(epoch), type(pusher.wait())) in [
            ([0, 0, 10], type(None)),
            ([0, 0, 10], nbpipe.EpochClosedError),
        ]


def test_a_stage_may_not_load_into_its_own_run():
    """Who works for the run cannot wait for it."""
    box = []
    with nbpipe.source(ITEMS).map(lambda item: box[0].load([item])).start() as run:
        epoch = run.open_epoch()
        box.append(epoch)
        epoch.load([1])
        _, error = delivered(epoch)
        box.clear()
    assert isinstance(error.__cause__, nbpipe.ReentrantRunError)


def test_nothing_is_loaded_after_the_end():
    """After `end`, and after the epoch, a load says so."""
    with chain().start() as run:
        epoch = run.open_epoch()
        epoch.load([1])
        epoch.end()
        with pytest.raises(nbpipe.EpochClosedError, match=r"end\(\) was called"):
            epoch.load([2])
        got = drained(epoch)
        with pytest.raises(nbpipe.EpochClosedError, match=r"run\.open_epoch\(\)"):
            epoch.load([2])
        epoch.end()
        assert (got, drained(epoch), next(epoch, "over")) == ([10], [], "over")


# -- leaving ---------------------------------------------------------------------------------------
def leave_with(run, epoch):
    """Leave a `with` block."""
    with epoch:
        pass


def leave_by_error(run, epoch):
    """Raise in a `with` block."""
    with pytest.raises(KeyError), epoch:
        raise KeyError


def leave_by_iterating(run, epoch):
    """Start an epoch of another kind."""
    iter(run).close()


def leave_by_opening(run, epoch):
    """Start one of the same kind."""
    run.open_epoch().close()


LEAVES = {
    "close": lambda run, epoch: epoch.close(),
    "with": leave_with,
    "error": leave_by_error,
    "stop": lambda run, epoch: run.stop(),
    "close the run": lambda run, epoch: run.close(0),
    "close the epochs": lambda run, epoch: run._core.close_epochs(),
    "iterate": leave_by_iterating,
    "open another": leave_by_opening,
    "drop the loop": lambda run, epoch: iter(epoch) and None,
}
SECOND = ("iterate", "open another")  # loops over the run whose epoch it is


@pytest.mark.parametrize("way", ["end", *LEAVES])
def test_leaving_wakes_a_load_that_waits(way):
    """However an epoch is ended or left, a load that waits for room says that it is over."""
    with full() as (run, epoch, gate):
        pusher = Pusher(epoch, [[5]])
        waits_in_load(epoch)
        epoch.end() if way == "end" else LEAVES[way](run, epoch)
        error = pusher.wait()
        gate.open()
        assert isinstance(error, nbpipe.EpochClosedError)
        got, ended_by = delivered(epoch)
        assert got == (ITEMS[:3] if way == "end" else [])
        assert type(ended_by) is (nbpipe.EpochClosedError if way in SECOND else type(None))


@pytest.mark.slow
def test_dropping_the_epoch_cancels_it():
    """An epoch that nobody holds is over."""
    with chain().start() as run:
        epoch = run.open_epoch()
        epoch.load([1, 2, 3])
        feed = epoch._feed
        quiet(run)
        del epoch
        gc.collect()
        with pytest.raises(nbpipe.EpochClosedError):
            feed.load([1])
        assert (run.status().state, drained(run)) == ("cancelled", ITEMS)


def test_a_break_cancels_the_epoch():
    """Leaving the `for` loop leaves the epoch, whoever else still holds it."""
    with chain().start() as run:
        epoch = run.open_epoch()
        pusher = Pusher(epoch, [[n % 40] for n in range(1000)])
        for item in epoch:
            if item == 20:
                break
        assert isinstance(pusher.wait(), nbpipe.EpochClosedError)
        assert (drained(run), run.epoch) == (ITEMS, 1)


def test_next_leaves_the_epoch_open():
    """Taking single items is no loop: nothing is left by it."""
    with chain().start() as run, run.open_epoch() as epoch:
        got = []
        for index in range(6):
            epoch.load([index])
            got.append(finished(next, epoch))
        items = iter(epoch)
        epoch.load([7])
        got += [next(items), iter(epoch) is items]
        assert got == [*ITEMS[:6], 70, True]


def test_a_failing_stage_wakes_a_load_that_waits():
    """A load in another thread does not wait for room that is never made."""
    gate, calls = Gate(), Calls()
    pipe = nbpipe.source(ITEMS, prefetch=1).map(
        stage("thread", gate=lambda _: gate, calls=calls, result=failing), name="w", prefetch=1
    )
    with pipe.start() as run:
        epoch = run.open_epoch(depth=1)
        pusher = Pusher(epoch, [[4]] * 10, end=False)
        calls.wait_begun(1)
        waits_in_load(epoch)
        gate.open()
        dropped = pusher.wait(), pusher.taken
        got, error = delivered(epoch)
        assert (dropped, got, error.stage) == ((None, 10), [], "w")


def test_paused_runs_take_loads():
    """Loads are taken while the run is paused, as far as there is room; nothing is read."""
    calls = Calls()
    with nbpipe.source(Gated(ITEMS, None, calls)).start() as run, run.open_epoch() as epoch:
        run.pause()
        taken = [epoch.load([n], timeout_s=0) for n in range(4)]
        quiet(run)
        begun = calls.begun
        run.resume()
        epoch.end()
        assert (taken, begun, drained(epoch)) == ([True, True, False, False], 0, [0, 10])


def test_an_interrupt_ends_a_load_that_waits():
    """The stop button reaches who waits in a load; the epoch can be gone on with."""
    with full() as (_, epoch, gate):
        with interrupted_once(lambda: waits_in_load(epoch)), pytest.raises(KeyboardInterrupt):
            epoch.load([5])
        gate.open()
        epoch.load([6])
        epoch.end()
        assert drained(epoch) == [0, 10, 20, 60]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_loads_nothing():
    """In a forked child a load is refused at once, whatever the parent's threads held."""

    def load():
        with pytest.raises(nbpipe.RunClosedError):
            epoch.load([1])
        return "refused"

    with chain().start() as run, run.open_epoch() as epoch:
        said = said_in_a_fork(load)
        epoch.load([1])
        epoch.end()
        assert (said, drained(epoch)) == ("refused", [10])


# -- a process of its own --------------------------------------------------------------------------
def test_an_isolated_run_opens_no_epoch():
    """What is pushed while it runs cannot be sent as a whole; the refusal says what to do."""
    with chain().start(isolate=True) as run:
        with pytest.raises(nbpipe.ArgumentError, match="start the run without isolate"):
            run.open_epoch()
        assert (drained(run), run.epoch) == (ITEMS, 0)


# -- going on from a state -------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 3, 20])
def test_an_epoch_goes_on_where_it_stood(size):
    """The same loads, pushed again from the first, give what had not come yet."""
    order = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
    loads = [order[at : at + size] for at in range(0, len(order), size)]
    pipe = chain().batch(2, collate=list)
    wanted = [[ITEMS[order[at]], ITEMS[order[at + 1]]] for at in range(0, len(order), 2)]
    with pipe.start() as run:
        epoch = run.open_epoch()
        pusher = Pusher(epoch, loads)
        before = [finished(next, epoch) for _ in range(3)]
        state = run.state_dict()
        epoch.close()
        pusher.wait()
    with pipe.start() as run:
        run.load_state_dict(state)
        epoch = run.open_epoch()
        pusher = Pusher(epoch, loads)
        rest = drained(epoch)
        assert (before + rest, pusher.wait()) == (wanted, None)
