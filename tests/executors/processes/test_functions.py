"""What is sent with a function: captured data, helpers, and what cannot be sent."""

import os
import threading

import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.executors.processes.work import LARGE_BYTES, Counted
from tests.gates import delivered, drained, finished


def test_captured_data_is_sent_once(bell):
    """20 MB go to each worker once; here they are pickled once an epoch, and once to be named."""
    pickled = []
    data = Counted(bell, pickled)

    def work(n):
        return n, data.nbytes, os.getpid()

    with placed(60, work).start() as run:
        got = [drained(run) for _ in range(2)]
        loaded = [pid for _, pid in bell.rings()]
        pids = {pid for epoch in got for _, _, pid in epoch}
    assert [[(n, size) for n, size, _ in epoch] for epoch in got] == [
        [(n, LARGE_BYTES) for n in range(60)]
    ] * 2
    assert pickled == [os.getpid()] * 3
    assert sorted(loaded) == sorted(pids)


def test_a_run_goes_on_after_a_refusal():
    """What was refused is tried again with the next epoch: the cause may be gone by then."""
    held = [threading.Lock()]

    def work(n):
        return n + len(held)

    with placed(5, work).start() as run:
        with pytest.raises(nbpipe.UnpicklableError, match="held"):
            iter(run)
        held.clear()
        assert drained(run) == list(range(5))


def test_an_item_that_cannot_be_sent():
    """An item that cannot go to a worker is an error of that item, and named by its type."""
    got, error = delivered(placed([0, 1, threading.Lock(), 3], lambda n: n))
    assert got == [0, 1]
    assert (error.stage, error.path) == ("fn", 2)
    assert "lock" in str(error)


def test_a_result_that_cannot_be_sent():
    """A result that cannot come back is an error of its item; the worker lives on."""

    def work(n):
        return threading.Lock() if n == 3 else (n, os.getpid())

    with placed(8, work, concurrency=1, on_error="skip").start() as run:
        got = drained(run)
        (failure,) = run.failures()
    assert [n for n, _ in got] == [0, 1, 2, 4, 5, 6, 7]
    assert (len({pid for _, pid in got}), failure.path) == (1, 3)
    assert "lock" in failure.error


class Bad:
    """Can be pickled, and not loaded."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize(
    ("items", "fn"),
    [([0, Bad(), 2], lambda n: n), (3, lambda n: Bad() if n == 1 else n)],
    ids=["item", "result"],
)
def test_what_cannot_be_loaded(items, fn):
    """What fails to load, in the worker or on its way back, is an error of that item alone."""
    with placed(items, fn, on_error="skip").start() as run:
        got = drained(run)
        failures = run.failures()
    assert (got, [failure.path for failure in failures]) == ([0, 2], [1])
    assert "no number" in failures[0].error


def test_a_function_that_cannot_be_loaded():
    """A function that the worker cannot load ends the epoch, whatever `on_error`."""
    bad = Bad()

    def work(n):
        return bad

    with placed(4, work, on_error="skip").start() as run:
        got, error = finished(lambda: delivered(run))
    assert got == []
    assert "could not be loaded" in str(error)
