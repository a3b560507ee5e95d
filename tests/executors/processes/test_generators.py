"""`flat_map` in workers: children come as they are made, no more than are wanted."""

import functools
import os
import signal
from itertools import count, islice
from pathlib import Path

import pytest

import nbpipe
from tests.executors.processes import chain
from tests.gates import delivered, drained, finished, quiet, until

placed = functools.partial(chain.placed, method="flat_map")


def rested(run):
    """Wait until no worker has anything to do: else the next epoch starts another one."""
    executor = run._core.engine.workers("fn")()
    until(lambda: len(executor._idle) == len(executor._slots))


def is_dead(pid):
    """Return whether a process has ended, whether anybody has asked for its end or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_children_come_before_the_last_is_made(bell, gate):
    """A generator streams: its first children are here while it waits for more."""

    def work(n):
        yield "first"
        bell.ring()
        gate.wait()
        yield "second"

    with placed(range(1), work).start() as run:
        items = iter(run)
        first = finished(next, items)
        bell.wait()
        gate.open()
        assert [first, *drained(items)] == ["first", "second"]


def test_an_endless_generator_is_bounded(bell):
    """Of a generator without end no more is made than the buffers hold."""

    def work(n):
        for k in count():
            bell.ring(k)
            yield k

    with placed(range(1), work, prefetch=5, concurrency=1).start() as run:
        items = iter(run)
        bell.wait(6)
        quiet(run)
        made = len(bell.rings()) + 6
        got = finished(lambda: list(islice(items, 500)))
        items.close()
    assert (got, made <= 5 + 1 + 1) == (list(range(500)), True)


def test_an_abandoned_generator_is_closed(bell):
    """After `break` its `finally` runs, and the worker goes on to other work."""

    def work(n):
        try:
            yield from count()
        finally:
            bell.ring(n)

    with placed(range(3), work, concurrency=1).start() as run:
        pids = []
        for _ in range(3):
            items = iter(run)
            finished(lambda items=items: list(islice(items, 20)))
            items.close()
            bell.wait()
            rested(run)
            pids.append(run["fn"].pids)
    assert pids[0] == pids[1] == pids[2]


def test_an_abandoned_generator_whose_worker_died(caplog):
    """Nothing is left to close, and nothing is told; the next epoch has another worker."""
    with placed(range(3), lambda n: count(), prefetch=5, concurrency=1).start() as run:
        items = iter(run)
        finished(next, items)
        quiet(run)
        (pid,) = run["fn"].pids
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_dead(pid))
        items.close()
        quiet(run)
        assert finished(lambda: list(islice(run, 3))) == [0, 1, 2]
    assert [record.getMessage() for record in caplog.records] == []


def test_a_generator_of_a_run_that_is_closed(bell):
    """Closing the run closes the generator, too, or ends its worker."""

    def work(n):
        bell.ring()
        yield from count()

    run = placed(range(3), work).start()
    items = iter(run)
    bell.wait()
    finished(next, items)
    finished(run.close)
    assert (run.closed, run["fn"].pids) == (True, ())


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_generator_that_fails_midway(on_error):
    """Its children so far come; then the error, or the next item."""

    def work(n):
        yield n, 0
        yield n, 1
        if n == 1:
            raise ValueError("no more")
        yield n, 2

    got, error = delivered(placed(range(3), work, on_error=on_error))
    first = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert got == (first if on_error == "raise" else [*first, (2, 0), (2, 1), (2, 2)])
    assert (error is None) == (on_error == "skip")
    assert error is None or (type(error.__cause__), error.path) == (ValueError, 1)


def test_no_iterable():
    """What is no iterable is named as an error of its item."""
    got, error = delivered(placed(range(3), lambda n: n))
    assert (got, error.stage, error.path) == ([], "fn", 0)
    assert "int" in str(error)


def dies_once(path, after):
    """Make a generator whose worker dies once in the middle of item 1."""

    def work(n):
        for k in range(8):
            if n == 1 and k == after and not path.exists():
                path.touch()
                os._exit(4)
            yield n, k

    return work


@pytest.mark.parametrize("on_error", ["raise", nbpipe.Retry(1)])
@pytest.mark.parametrize("after", [0, 5])
def test_killed_in_the_middle_of_a_generator(tmp_path, after, on_error):
    """Another worker makes the children again; those that came already come once."""
    work = dies_once(tmp_path / "died", after)
    got = drained(placed(range(4), work, prefetch=2, on_error=on_error))
    assert got == [(n, k) for n in range(4) for k in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 3])
def test_the_generator_that_others_wait_for_is_killed(bell, gate, limit):
    """Workers of generators that wait for their turn do not keep the first from going on."""

    def work(n):
        bell.ring(n)
        if n == 0:
            gate.wait()
        for k in range(30):
            yield n, k

    with placed(range(5), work, prefetch=2, concurrency=3).start() as run:
        items = iter(run)
        pids = dict(bell.wait(3))
        run["fn"].concurrency = limit
        os.kill(pids[0], signal.SIGKILL)
        gate.open()
        got = drained(items)
    assert got == [(n, k) for n in range(5) for k in range(30)]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_poison_in_the_middle_of_a_generator(on_error):
    """A generator that kills every worker is named; its children so far came."""

    def work(n):
        yield n, 0
        if n == 1:
            os._exit(4)
        yield n, 1

    with placed(range(3), work, on_error=on_error).start() as run:
        got, error = delivered(run)
        (failure,) = run.failures()
    first = [(0, 0), (0, 1)]
    assert got[:2] == first
    assert [item for item in got if item[0] == 2] == (
        [(2, 0), (2, 1)] if on_error == "skip" else []
    )
    assert (failure.path, "exit code 4" in failure.error) == (1, True)
    assert (type(error) is nbpipe.WorkerDiedError) == (on_error == "raise")


def test_children_that_cannot_be_sent():
    """A child that cannot come back is an error of its item."""
    import threading

    def work(n):
        yield n
        yield threading.Lock() if n == 1 else n

    with placed(range(3), work, on_error="skip").start() as run:
        got = drained(run)
        failures = [failure.path for failure in run.failures()]
    assert failures == [1]
    assert [n for n in got if n != 1] == [0, 0, 2, 2]
