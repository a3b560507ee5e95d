"""Calls that take too long: their worker is killed, it alone, and `on_error` decides.

Their time is that of a clock which stands still until the test lets it go on: on a machine that
stands still no other call takes too long.
"""

import contextlib
import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import nbpipe
from tests.executors.processes import chain
from tests.gates import HANG_S, delivered, drained, held, set_clock

placed = functools.partial(chain.placed, timeout_s=HANG_S)


class Clock:
    """Tells the time of calls; it goes on by a quarter of `HANG_S` with each line of a worker."""

    def __init__(self):
        self.now_s = 0.0
        self.lines = []

    def __call__(self):
        return self.now_s

    def write(self, text):
        """Take a line in."""
        self.lines.append(text)
        self.now_s += HANG_S / 4

    def flush(self):
        """Do nothing."""


@pytest.fixture
def clock(monkeypatch):
    """Give a clock that calls are held against; what workers print must be redirected to it."""
    clock = Clock()
    set_clock(monkeypatch, clock, "monotonic")
    return clock


def take_too_long():
    """Let more time pass than a call has, and do not come back."""
    for _ in range(6):
        print("still at it")
    threading.Event().wait()


def stuck_at(item, gate, bell=None):
    """Make a function that takes too long for one item, from when a gate is opened."""

    def work(n):
        if bell is not None:
            bell.ring(n)
        if n == item:
            gate.wait()
            take_too_long()
        return n

    return work


def outcome(run, clock, gate, item, stage="fn"):
    """Take all items of a run; once its only call in progress is on this item, time passes."""
    with contextlib.redirect_stdout(clock), ThreadPoolExecutor(1) as pool:
        loop = pool.submit(delivered, run)
        held(run, stage, item)
        gate.open()
        return loop.result()


@pytest.mark.slow
def test_a_call_that_takes_too_long(clock, gate):
    """The item is named in a StageTimeoutError, after all items before it."""
    with placed(10, stuck_at(4, gate)).start() as run:
        got, error = outcome(run, clock, gate, 4)
        (failure,) = run.failures()
    assert got == [0, 1, 2, 3]
    assert (type(error), error.stage, error.path) == (nbpipe.StageTimeoutError, "fn", 4)
    assert (isinstance(error, TimeoutError), error.executor) == (True, "process")
    assert f"timeout_s={HANG_S:g}" in failure.error


def test_a_worker_that_says_nothing():
    """Its call ends when the time is over, though nothing is heard of it."""
    stuck = placed(1, lambda n: threading.Event().wait(), timeout_s=0.05)
    got, error = delivered(stuck)
    assert (got, type(error), error.path) == ([], nbpipe.StageTimeoutError, 0)


@pytest.mark.slow
def test_its_worker_alone_is_killed(clock, gate, bell):
    """The other workers keep their processes, and what they have loaded."""
    with placed(40, stuck_at(4, gate, bell), concurrency=3, on_error="skip").start() as run:
        got, _ = outcome(run, clock, gate, 4)
        pids = run["fn"].pids
        rung = bell.wait(40)
        late = {pid for n, pid in rung if n == 4}
        others = {pid for n, pid in rung[:30]} - late
    assert got == [n for n in range(40) if n != 4]
    assert (len(late), others <= set(pids), late & set(pids)) == (1, True, set())


@pytest.mark.slow
def test_a_call_that_took_too_long_is_tried_again(clock, gate, tmp_path):
    """With Retry, another worker gets the item."""

    def work(n):
        mark = tmp_path / str(n)
        if n == 3 and not mark.exists():
            mark.touch()
            gate.wait()
            take_too_long()
        return n

    with placed(8, work, on_error=nbpipe.Retry(1)).start() as run:
        got, _ = outcome(run, clock, gate, 3)
        retries = run.stats()["fn"].retries
    assert (got, retries) == (list(range(8)), 1)


@pytest.mark.slow
@pytest.mark.parametrize(("times", "then"), [(1, "raise"), (2, "skip")])
def test_tries_come_to_an_end(clock, gate, bell, times, then):
    """An item that always takes too long is tried as often as was said."""
    retry = nbpipe.Retry(times, then=then)
    with placed(4, stuck_at(2, gate, bell), concurrency=1, on_error=retry).start() as run:
        got, error = outcome(run, clock, gate, 2)
        (failure,) = run.failures()
        tried = [n for n, _ in bell.rings()].count(2)
    found = got, failure.attempts, tried
    assert found == ([0, 1, 3] if then == "skip" else [0, 1], times + 1, times + 1)
    assert isinstance(error, nbpipe.StageTimeoutError) == (then == "raise")


@pytest.mark.slow
def test_the_stage_at_fault_is_named_in_a_region(clock, gate):
    """Of stages that share a worker, the one whose call took too long is named."""
    work = stuck_at(4, gate)
    options = {"executor": "process", "timeout_s": HANG_S}
    chain = nbpipe.source(range(8)).map(lambda n: n, name="first", **options)
    chain = chain.map(work, name="second", **options).map(lambda n: n, name="third", **options)
    with chain.start() as run:
        got, error = outcome(run, clock, gate, 4, "third")  # whose row has calls of the region
        pids = [run[name].pids for name in ("first", "second", "third")]
    assert (got, error.stage, error.path) == ([0, 1, 2, 3], "second", 4)
    assert pids[0] == pids[1] == pids[2]


def test_time_counts_for_one_call(clock):
    """Neither the calls of a region nor those of one worker are added up."""

    def slow(n):
        for _ in range(3):
            print(n)
        return n

    options = {"executor": "process", "concurrency": 1, "timeout_s": HANG_S}
    chain = nbpipe.source(range(4)).map(slow, name="first", **options)
    chain = chain.map(slow, name="second", **options)
    with contextlib.redirect_stdout(clock), chain.start() as run:
        assert drained(run) == list(range(4))


def test_tries_in_a_worker_have_the_whole_time_each(clock, tmp_path):
    """What raises and is called again has `timeout_s` once more."""

    def work(n):
        for _ in range(3):
            print(n)
        mark = tmp_path / str(n)
        if not mark.exists():
            mark.touch()
            raise ValueError(n)
        return n

    options = {"on_error": nbpipe.Retry(1), "concurrency": 1, "timeout_s": HANG_S}
    with contextlib.redirect_stdout(clock), placed(2, work, **options).start() as run:
        assert drained(run) == [0, 1]


def test_the_start_of_a_worker_is_no_call(clock):
    """Workers may take as long as they need until they can begin."""

    def slow_init():
        for _ in range(8):
            print("starting")

    options = {"worker_init": slow_init, "concurrency": 1, "timeout_s": HANG_S}
    with contextlib.redirect_stdout(clock), placed(4, lambda n: n, **options).start() as run:
        assert drained(run) == list(range(4))
