"""The end of workers: with their run, however and whenever that ends."""

import contextlib
import gc
import os
import threading
import weakref

import psutil
import pytest

from tests.executors.processes.chain import placed
from tests.gates import HANG_S, drained, finished


def processes(run):
    """Give the workers of a run."""
    return [psutil.Process(pid) for pid in run["fn"].pids]


def alive(workers):
    """Give those that do not end."""
    return psutil.wait_procs(workers, timeout=HANG_S)[1]


def test_a_run_that_is_dropped():
    """A run that nobody holds any more takes its workers with it."""
    run = placed(100, lambda n: n, prefetch=1).start()
    items = iter(run)
    finished(next, items)
    workers, died = processes(run), weakref.ref(run)
    del run, items
    gc.collect()
    assert (died(), alive(workers)) == (None, [])


@pytest.mark.parametrize("fails", [True, False])
def test_a_loop_over_a_pipeline_that_is_left(fails):
    """One epoch of a pipeline takes its workers with it when the loop fails or is left."""
    workers = []

    def train():
        for n, pid in placed(100, lambda n: (n, os.getpid())):
            workers.append(psutil.Process(pid))
            if n == 5 and fails:
                raise ZeroDivisionError
            if n == 5:
                break

    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        finished(train)
    gc.collect()
    assert (len(workers), alive(workers)) == (6, [])


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.01, 0.03, 0.1])
def test_close_while_workers_start(gate, after_s):
    """A run that is closed while its workers start leaves none of them, though they never end."""

    def work(n):
        gate.wait()
        return n

    run = placed(10, work, concurrency=3).start()
    items = iter(run)
    threading.Event().wait(after_s)  # somewhere in the start
    finished(lambda: run.close(timeout_s=0))
    del items
    assert run["fn"].pids == ()


def test_many_short_lives():
    """Runs that are closed at any moment, one after the other, leave nothing behind."""
    counts = []
    for taken in range(12):
        run = placed(50, lambda n: n, concurrency=3).start()
        items = iter(run)
        counts.append(len(finished(lambda items=items, n=taken: [next(items) for _ in range(n)])))
        finished(lambda run=run: run.close(timeout_s=0))
        del items, run
    assert counts == list(range(12))


def test_close_while_paused(bell):
    """A paused run closes at once, with its workers."""
    run = placed(50, bell.ring, prefetch=1).start()
    items = iter(run)
    bell.wait()
    run.pause()
    finished(run.close)
    del items
    assert (run.closed, run["fn"].pids) == (True, ())


def test_a_worker_that_is_stopped():
    """A worker that hears nothing any more is killed when the run closes."""
    with placed(10, lambda n: n).start() as run:
        drained(run)
        workers = processes(run)
        for worker in workers:
            worker.suspend()
    assert (len(workers) > 0, alive(workers)) == (True, [])


def test_a_thread_that_a_stage_leaves_behind():
    """A thread of user code does not keep a worker from leaving."""

    def work(n):
        threading.Thread(target=threading.Event().wait).start()
        return n

    with placed(4, work).start() as run:
        got = drained(run)
        workers = processes(run)
    assert (got, alive(workers)) == ([0, 1, 2, 3], [])
