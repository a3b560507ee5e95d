"""Threads that the system does not give: a run goes on with those it has, or says so."""

import threading
from contextlib import contextmanager

import pytest

import nbpipe
from nbpipe import StageError, WorkerStartError
from tests.gates import Calls, Gate, delivered, drained, finished, quiet, stage


@contextmanager
def at_most(count, name):
    """Let threads of a name start so many times in all, then no more."""
    start, given = threading.Thread.start, []

    def limited(thread):
        if thread.name.startswith(name):
            if len(given) == count:
                raise RuntimeError("can't start new thread")
            given.append(thread.name)
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        yield given


async def soon(item):
    """Give the item, from the event loop."""
    return item


def numbers(executor="thread", **options):
    """Give a chain of numbers and one stage, "same"."""
    if executor == "coroutine":
        return nbpipe.source(range(40)).map(soon, name="same", **options)
    return nbpipe.source(range(40)).map(int, executor=executor, name="same", **options)


def none_at_work(run):
    """Say that no stage has a call in progress, nor a worker."""
    return [(row.running, row.workers) for row in run.stats().values()] == [(0, 0)] * 3


@pytest.mark.parametrize("count", [1, 2])
def test_an_epoch_goes_on_with_the_threads_there_are(count):
    """An epoch that cannot have all threads is whole, and the next one tries again."""
    with numbers(concurrency=4).start() as run:
        with at_most(count, "nbpipe-worker") as given:
            assert drained(run) == list(range(40))
        quiet(run)
        assert none_at_work(run)
        assert len(given) == count
        assert drained(run) == list(range(40))


@pytest.mark.parametrize(
    ("executor", "name"),
    [("thread", "nbpipe-worker"), ("thread", "nbpipe-ticker"), ("coroutine", "nbpipe-event-loop")],
)
def test_an_epoch_without_any_thread_says_so(executor, name, caplog):
    """Where there is none, the loop hears why; nothing is left at work, and nobody is blamed."""
    with numbers(executor).start() as run:
        with at_most(0, name):
            _, error = delivered(_epoch(run))
            quiet(run)
        assert isinstance(error, WorkerStartError)
        assert "no thread could be started" in str(error)
        assert none_at_work(run)
        over, still = run.status(), run.status()
        assert (over.state, over.error.partition(":")[0]) == ("failed", "WorkerStartError")
        assert over.elapsed_s == still.elapsed_s  # its clock stands still
        assert drained(run) == list(range(40))
        assert run.epoch == (0 if name == "nbpipe-ticker" else 1)  # it had not begun
    assert caplog.messages == []


def _epoch(run):
    yield from run


def test_a_knob_that_is_raised_again_finds_its_threads():
    """Threads stay parked when concurrency is lowered, and serve when it is raised again."""
    calls, first, second = Calls(), Gate(), Gate()
    gates = [first] * 8 + [None] * 12 + [second] * 20
    function = stage("thread", calls=calls, gate=gates.__getitem__)
    pipe = nbpipe.source(range(40)).map(function, concurrency=8, prefetch=40, name="work")
    with at_most(1000, "nbpipe-worker") as started, pipe.start() as run:
        items = iter(run)
        calls.wait_running(8)
        pipe["work"].concurrency = 1
        first.open()
        calls.wait_begun(21)
        calls.wait_running(1)
        pipe["work"].concurrency = 8
        calls.wait_running(8)
        assert len(started) <= 8 + 2  # of the stage, of the source, and one more
        second.open()
        assert list(items) == list(range(40))


def test_a_worker_without_its_thread(caplog):
    """A worker process whose thread cannot start is not waited for; the stage's error says why."""
    with numbers("process", concurrency=2).start() as run:
        with at_most(0, "nbpipe-start"):
            _, error = delivered(run)
            quiet(run)
        assert isinstance(error, StageError)
        assert isinstance(error.__cause__, WorkerStartError)
        assert "no thread could be started" in str(error.__cause__)
        assert none_at_work(run)
        finished(run.close)
    assert caplog.messages == []


@pytest.mark.slow
def test_an_epoch_goes_on_with_the_workers_there_are():
    """One worker does the work where a thread for a second one cannot be started."""
    with numbers("process", concurrency=2).start() as run, at_most(1, "nbpipe-start") as given:
        assert drained(run) == list(range(40))
        assert (run.stats()["same"].workers, len(given)) == (1, 1)


def test_a_training_without_its_thread(caplog):
    """`train` says so, and the run is as it was before."""
    with numbers().start() as run:
        with at_most(0, "nbpipe-train"), pytest.raises(WorkerStartError, match="training loop"):
            run.train(print)
        assert run.wait()
        assert drained(run) == list(range(40))
    assert caplog.messages == []
