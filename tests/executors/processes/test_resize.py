"""The limit of a stage of processes, changed while items flow."""

import os
import random
import threading

import psutil
import pytest

from tests.executors.processes.chain import placed
from tests.gates import HANG_S, Calls, drained, finished, quiet, stage

CHANGES = 1000
LIMITS = (1, 6, 2, 8, 1, 3)


def until(event):
    """Count until an event is set."""

    def items():
        item = 0
        while not event.is_set():
            yield item
            item += 1

    return items


def change(stage, done):
    """Change the knobs of a stage at random, as fast as it goes."""
    rng = random.Random(5)
    for _ in range(CHANGES):
        stage.concurrency = rng.choice(LIMITS)
        stage.prefetch = rng.randint(1, 9)
        done.wait(0.0005)
    done.set()


@pytest.mark.parametrize("ordered", [True, False])
def test_thousands_of_changes_under_load(ordered):
    """Nothing is lost, doubled or reordered, and never are more calls in progress than allowed."""
    done, calls = threading.Event(), Calls()
    chain = placed(until(done), stage("process", calls=calls), ordered=ordered)
    with chain.start() as run:
        changer = threading.Thread(target=change, args=(run["fn"], done))
        changer.start()
        got = drained(run)
        changer.join()
    assert (got if ordered else sorted(got)) == list(range(len(got)))
    assert (calls.begun, calls.running, calls.peak <= max(LIMITS)) == (len(got), 0, True)


@pytest.mark.parametrize("at_work", [False, True])
def test_surplus_workers_leave(bell, gate, at_work):
    """After the limit is lowered, workers without work leave, the others after their call."""

    def work(n):
        bell.ring(n)
        gate.wait()
        return n

    with placed(range(20), work, concurrency=6).start() as run:
        items = iter(run)
        processes = [psutil.Process(pid) for _, pid in bell.wait(6)]
        if at_work:
            run["fn"].concurrency = 2
            assert run["fn"].workers == 6
        gate.open()
        got = drained(items)
        quiet(run)
        run["fn"].concurrency = 2
        kept = run["fn"].pids
        gone = [process for process in processes if process.pid not in kept]
        _, alive = psutil.wait_procs(gone, timeout=HANG_S)
        again = drained(run)
    assert (len(kept), alive) == (2, [])
    assert got == again == list(range(20))


def test_workers_start_with_the_work_there_is():
    """A high limit starts no workers for which there is nothing to do."""
    with placed(range(1), lambda n: os.getpid(), concurrency=16).start() as run:
        (pid,) = finished(list, run)
        assert run["fn"].pids == (pid,)
