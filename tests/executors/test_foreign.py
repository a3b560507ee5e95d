"""Any `concurrent.futures.Executor` as the executor of a stage."""

import itertools
import multiprocessing
import os
import pickle
import re
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import nbpipe
from nbpipe import ExecutorBrokenError, StageTimeoutError, UnpicklableError
from tests.executors import programs
from tests.gates import HANG_S, delivered, drained, set_clock, still_alive, until


class SyncExecutor(Executor):
    """Does the work where it is asked for."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class PicklingExecutor(Executor):
    """Pickles the work and its result, as an executor with other processes does."""

    def __init__(self, threads, protocol=pickle.HIGHEST_PROTOCOL):
        self.threads, self.protocol = threads, protocol

    def sent(self, value):
        """Give a copy of a value."""
        return pickle.loads(pickle.dumps(value, self.protocol))

    def submit(self, fn, /, *args, **kwargs):
        job = self.sent((fn, args, kwargs))
        return self.threads.submit(lambda: self.sent(job[0](*job[1], **job[2])))


def spawn_pool():
    """Give the standard library's pool, with fresh interpreters."""
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


@contextmanager
def loky_pool():
    """Give loky's pool; it ends its threads after `shutdown` has returned."""
    loky = pytest.importorskip("loky")
    before = set(threading.enumerate())
    with loky.ProcessPoolExecutor(2) as executor:
        yield executor
    new = set(threading.enumerate()) - before
    still_alive([one for one in new if one.name.startswith(("ExecutorManager", "QueueFeeder"))])
    multiprocessing.active_children()  # forgets processes that have ended


@pytest.fixture(scope="module", autouse=True)
def tracker():
    """Start loky's helper process, which lives as long as this one, before leaks are counted."""
    try:
        from loky.backend import resource_tracker
    except ImportError:
        return
    resource_tracker.ensure_running()


POOLS = pytest.mark.parametrize("pool", [spawn_pool, loky_pool], ids=["spawn", "loky"])


@pytest.fixture
def threads():
    """Give an executor of threads."""
    with ThreadPoolExecutor(2, "theirs") as executor:
        yield executor


def on(executor, fn, items, *, name="work", **options):
    """Have a function called on items by an executor."""
    return nbpipe.source(items).map(fn, name=name, executor=executor, **options)


def watch(executor):
    """Give a list that grows by the future of each call that an executor is given."""
    futures, submit = [], executor.submit

    def watched(*args):
        futures.append(submit(*args))
        return futures[-1]

    executor.submit = watched
    return futures


# -- in this process -------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(2), SyncExecutor])
def test_in_this_process_nothing_is_pickled(make):
    """Threads and synchronous executors work on the function itself, picklable or not."""
    gate = threading.Lock()
    with make() as executor:
        got = drained(on(executor, lambda value: (value, gate), [1, 2]))
    assert got == [(1, gate), (2, gate)]


def test_calls_run_in_the_executor(threads):
    """The executor's own threads call the function."""
    with on(threads, lambda _: threading.current_thread().name, range(9)).start() as run:
        names = drained(run)
        assert run["work"].workers == 2
    assert {name.partition("_")[0] for name in names} == {"theirs"}


def test_time_counts_from_the_beginning_of_a_call(monkeypatch, threads):
    """A call that waits for a free thread is not late, however little time it has."""
    now_s, gate = [0.0], threading.Event()
    set_clock(monkeypatch, lambda: now_s[0], "monotonic")
    blocked = [threads.submit(gate.wait) for _ in range(2)]
    sent = watch(threads)
    with on(threads, programs.double, [7], timeout_s=HANG_S).start() as run:
        items = iter(run)
        until(lambda: sent)
        now_s[0] = 10 * HANG_S
        gate.set()
        assert drained(items) == [14]
    assert [future.result() for future in blocked] == [True, True]


def test_call_that_takes_too_long_is_an_error(threads):
    """The error names stage, item, executor and limit; the thread is freed."""
    gate = threading.Event()
    _, error = delivered(on(threads, lambda _: gate.wait(), [0], timeout_s=0.01))
    gate.set()
    with pytest.raises(StageTimeoutError, match=r"'work' on item 0 \(ThreadP.*timeout_s=0.01"):
        raise error
    assert (error.stage, error.path) == ("work", 0)


def test_an_epoch_that_is_left_takes_back_what_has_not_begun(threads):
    """Calls that wait in the executor are cancelled, those in progress end."""
    gate, running, begun = threading.Event(), threading.Barrier(3), []
    sent = watch(threads)

    def work(item):
        begun.append(item)
        running.wait()
        gate.wait()

    with on(threads, work, range(3), concurrency=3).start() as run:
        items = iter(run)
        running.wait()
        until(lambda: len(sent) == 3)
        items.close()
        until(lambda: any(future.cancelled() for future in sent))
        gate.set()
    # Which two begin, the order of our threads decides.
    assert (len(set(begun)), [one.cancelled() for one in sent].count(True)) == (2, 1)


def test_executor_that_was_shut_down_is_named(threads):
    """Work for an executor that is shut down is an error that says what to do."""
    threads.shutdown()
    _, error = delivered(on(threads, programs.double, [1]))
    with pytest.raises(ExecutorBrokenError, match="after shutdown; keep the executor open"):
        raise error
    assert error.path == 0


# -- in other processes ----------------------------------------------------------------------------


@pytest.mark.slow
@POOLS
def test_function_that_changed_reaches_the_workers(pool):
    """Each epoch calls the function as it is then."""
    word = ["old"]
    with pool() as executor, on(executor, lambda _: word[0], [0]).start() as run:
        first = drained(run)
        word[0] = "new"
        assert (first, drained(run)) == (["old"], ["new"])


@POOLS
def test_worker_that_dies_is_an_error(pool):
    """A pool that lost a worker is named with the item, and with the way out."""
    with pool() as executor:
        _, error = delivered(on(executor, programs.die, [0]))
    with pytest.raises(ExecutorBrokenError, match="executor='process'"):
        raise error
    assert (error.stage, error.path) == ("work", 0)


@pytest.mark.slow
@POOLS
@pytest.mark.parametrize(
    ("fn", "items", "words"),
    [
        (programs.double, [1, threading.Lock()], r"'work' .* item 1 a _thread.lock"),
        (programs.lock, [1], r"result of stage 'work' .* item 0 a _thread"),
    ],
)
def test_what_cannot_be_pickled_is_named(pool, fn, items, words):
    """The error names stage, item and type; the pool goes on."""
    with pool() as executor:
        _, error = delivered(on(executor, fn, items))
        after = drained(on(executor, programs.double, [4]))
    assert isinstance(error.__cause__, UnpicklableError)
    assert re.search(words, str(error))
    assert after == [8]


@pytest.mark.slow
def test_time_counts_when_an_item_leaves_for_a_process(tmp_path):
    """A call in another process that takes too long is an error; the pool goes on with it."""
    fifo = tmp_path / "gate"
    os.mkfifo(fifo)
    with spawn_pool() as executor:
        drained(on(executor, programs.double, [1]))  # the workers have started
        _, error = delivered(on(executor, programs.wait_for_file, [fifo], timeout_s=0.2))
        fifo.write_bytes(b"")
    with pytest.raises(StageTimeoutError, match=r"timeout_s=0\.2"):
        raise error
    assert fifo.with_suffix(".begun").exists()


def test_time_is_given_to_every_call_of_a_job(monkeypatch, threads):
    """Of stages that share a worker each call has the whole time, for none says when it begins."""
    times_s = itertools.chain([0.0], itertools.repeat(1.5 * HANG_S))

    def clock():
        time_s = next(times_s)
        if time_s:  # the call in progress is looked at
            programs.GATE.set()
        return time_s

    programs.GATE.clear()
    set_clock(monkeypatch, clock, "monotonic")
    executor = PicklingExecutor(threads)
    chain = on(executor, programs.wait_at_gate, [5], timeout_s=HANG_S)
    chain = chain.map(programs.double, executor=executor, timeout_s=HANG_S)
    assert drained(chain) == [10]


# -- how programs travel ---------------------------------------------------------------------------
@pytest.mark.parametrize("protocol", [4, 5])
def test_items_survive_any_protocol(threads, protocol):
    """Executors pickle as they like; arrays come out equal and writable."""
    executor = PicklingExecutor(threads, protocol)
    items = [np.arange(100_000), b"x" * 100_000]
    array, text = drained(on(executor, lambda item: item, items))
    array[0] = 1
    assert (array[1:4].tolist(), text) == ([1, 2, 3], b"x" * 100_000)


@pytest.mark.slow
@POOLS
@pytest.mark.parametrize("method", ["map", "flat_map"])
def test_a_buffer_that_is_filled_again(pool, method):
    """Several items are sent to a process at once: each comes as it was when it was given."""
    buffer = np.zeros(1000)

    def fill(n):
        buffer[:] = n
        return {"a": [buffer]}

    def split(n):
        return map(fill, range(10 * n, 10 * n + 10))

    function, items = (fill, 60) if method == "map" else (split, 6)
    with pool() as executor:
        chain = getattr(nbpipe.source(range(items)), method)(function, executor=executor)
        got = [one["a"][0] for one in chain]
    assert [(one.min(), one.max()) for one in got] == [(n, n) for n in range(60)]
