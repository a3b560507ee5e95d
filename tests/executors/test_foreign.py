"""Any `concurrent.futures.Executor` as the executor of a stage."""

import multiprocessing
import os
import pickle
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import nbpipe
from nbpipe.engine.nodes.program import FusedPart, FusedProgram
from nbpipe.errors import ExecutorBrokenError, StageError, StageTimeoutError, UnpicklableError
from nbpipe.executors.futures import ForeignExecutor, Payload
from nbpipe.ops.batch import Batch
from nbpipe.ops.call import Map
from tests.executors import programs
from tests.executors.programs import Program, request, values_of
from tests.gates import HANG_S, still_alive


class SyncExecutor(Executor):
    """Does the work where it is asked for."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


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
    with ThreadPoolExecutor(2) as executor:
        yield executor


def note_callbacks(executor):
    """Give an event for the moment when somebody listens to the next future of an executor."""
    noted, submit = threading.Event(), executor.submit

    def watched(*args):
        future = submit(*args)
        listen = future.add_done_callback
        future.add_done_callback = lambda fn: (listen(fn), noted.set())
        return future

    executor.submit = watched
    return noted


def close(foreign):
    """Close a foreign; nothing is late."""
    assert foreign.close(HANG_S) == []


# -- in this process -------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(2), SyncExecutor])
def test_in_this_process_nothing_is_pickled(make):
    """Threads and synchronous executors work on the program itself, picklable or not."""
    gate = threading.Lock()
    with make() as executor:
        foreign = ForeignExecutor(executor)
        response = foreign.call(request(Program(lambda value: (value, gate)), 1, 2))
        close(foreign)
    assert response.results == [(0, (1, gate)), (1, (2, gate))]


def test_call_runs_in_the_executor(threads):
    """The executor's own thread calls the function, and the caller waits for it."""
    foreign = ForeignExecutor(threads)
    mine = threads.submit(threading.get_ident).result()
    (ident,) = values_of(foreign.call(request(Program(programs.thread_id), 0)))
    assert (ident == mine or ident != threading.get_ident(), foreign.workers) == (True, 2)


def test_time_counts_from_the_beginning_of_a_call(threads, engine):
    """A call that waits for a free thread is not late, however little time it has."""
    foreign, gate = ForeignExecutor(threads), threading.Event()
    blocked = [threads.submit(gate.wait) for _ in range(2)]
    noted = note_callbacks(threads)
    waiting = engine.submit(foreign.call, request(Program(programs.double), 7, timeout_s=HANG_S))
    noted.wait()
    (call,) = foreign._calls
    deadline_s = call._deadline_s
    gate.set()
    assert (values_of(waiting.result()), deadline_s) == ([14], None)
    assert [future.result() for future in blocked] == [True, True]


def test_call_that_takes_too_long_is_an_error(threads):
    """The error names stage, item, executor and limit; the thread is freed."""
    foreign, gate = ForeignExecutor(threads), threading.Event()
    with pytest.raises(StageTimeoutError, match=r"'work' on item 0 .*timeout_s=0.01") as caught:
        foreign.call(request(Program(lambda _: gate.wait()), 0, timeout_s=0.01))
    gate.set()
    error = caught.value
    assert (error.stage, error.path, error.executor) == ("work", 0, "ThreadPoolExecutor")


@pytest.mark.parametrize("epochs", [(), (0,)], ids=["all", "one"])
def test_cancel_takes_back_what_has_not_begun(threads, engine, epochs):
    """Calls that wait in the executor are cancelled, but those sent ahead for the next epoch."""
    foreign, gate = ForeignExecutor(threads), threading.Event()
    running = threading.Barrier(3)
    program = Program(lambda value: (value < 2 and running.wait(), gate.wait(), value)[-1])
    begun = [engine.submit(foreign.call, request(program, n)) for n in range(2)]
    running.wait()
    noted = note_callbacks(threads)
    ahead = engine.submit(foreign.call, request(program, 2, epoch=1))
    noted.wait()
    foreign.cancel(*epochs)
    error = None if epochs else ahead.exception()
    gate.set()
    assert [values_of(future.result()) for future in begun] == [[0], [1]]
    if epochs:
        assert values_of(ahead.result()) == [2]
    else:
        assert type(error) is ExecutorBrokenError


def test_close_frees_the_threads_and_names_what_runs(threads, engine):
    """A call that does not end is named, and nobody waits for it any longer."""
    foreign, gate, running = ForeignExecutor(threads), threading.Event(), threading.Event()
    slow = request(Program(lambda _: (running.set(), gate.wait()), "slow"), 0)
    waiting = engine.submit(foreign.call, slow)
    running.wait()
    late = foreign.close(0.01)
    errors = [type(waiting.exception()), type(engine.submit(foreign.call, slow).exception())]
    gate.set()
    assert (late, errors) == (["slow"], [StageError, StageError])


def test_executor_that_was_shut_down_is_named(threads):
    """Work for an executor that is shut down is an error that says what to do."""
    threads.shutdown()
    foreign = ForeignExecutor(threads)
    with pytest.raises(ExecutorBrokenError, match="after shutdown; keep the executor open") as e:
        foreign.call(request(Program(programs.double), 1, first=3))
    assert (e.value.path, type(e.value.__cause__)) == (3, RuntimeError)


# -- in other processes ----------------------------------------------------------------------------


@pytest.mark.slow
@POOLS
def test_function_that_changed_reaches_the_workers(pool):
    """After `renew` the function is pickled again; without it, workers keep theirs."""
    with pool() as executor:
        foreign = ForeignExecutor(executor)
        program = Program(lambda _: "old")
        first = values_of(foreign.call(request(program, 0)))
        program.fn = lambda _: "new"
        kept = values_of(foreign.call(request(program, 0)))
        foreign.renew()
        changed = values_of(foreign.call(request(program, 0)))
        close(foreign)
    assert (first, kept, changed) == (["old"], ["old"], ["new"])


@POOLS
def test_worker_that_dies_is_an_error(pool):
    """A pool that lost a worker is named with the item, and with the way out."""
    with pool() as executor:
        foreign = ForeignExecutor(executor)
        with pytest.raises(ExecutorBrokenError, match="executor='process'") as caught:
            foreign.call(request(Program(programs.die), 0, first=5))
        close(foreign)
    assert (caught.value.stage, caught.value.path) == ("work", 5)


@pytest.mark.slow
@POOLS
def test_item_that_cannot_be_pickled_is_named(pool):
    """The error names stage, item and type; the pool goes on."""
    with pool() as executor:
        foreign = ForeignExecutor(executor)
        with pytest.raises(UnpicklableError, match=r"'work' .* item 1 a _thread.lock"):
            foreign.call(request(Program(programs.double), 1, threading.Lock()))
        after = values_of(foreign.call(request(Program(programs.double), 4)))
        close(foreign)
    assert after == [8]


@pytest.mark.slow
@POOLS
def test_result_that_cannot_be_pickled_is_named(pool):
    """The error comes from the worker, and names stage, item and type."""
    with pool() as executor:
        foreign = ForeignExecutor(executor)
        with pytest.raises(UnpicklableError, match=r"result of stage 'work' .* item 2 a _thread"):
            foreign.call(request(Program(programs.lock), 0, first=2))
        close(foreign)
    assert foreign.workers == 2


@pytest.mark.slow
def test_time_counts_when_an_item_leaves_for_a_process(tmp_path):
    """A call in another process that takes too long is an error; the pool goes on with it."""
    fifo = tmp_path / "gate"
    os.mkfifo(fifo)
    with spawn_pool() as executor:
        foreign = ForeignExecutor(executor)
        values_of(foreign.call(request(Program(programs.double), 1)))  # the workers have started
        with pytest.raises(StageTimeoutError, match=r"timeout_s=0\.2"):
            foreign.call(request(Program(programs.wait_for_file), fifo, timeout_s=0.2))
        fifo.write_bytes(b"")
        close(foreign)
    assert fifo.with_suffix(".begun").exists()


def test_time_is_given_to_every_call_of_a_job():
    """Of stages that share a worker each call has the whole time, for none says when it begins."""
    two = [FusedPart(name, Map(fn=programs.double)) for name in ("one", "other")]
    job_of_two = FusedProgram(two, seed=0, executor="executor")
    whole = FusedProgram([*two, FusedPart("batch", Batch(size=3))], seed=0, executor="executor")
    entries = [(0, 5), (1, 6)]
    assert (job_of_two.calls(entries), whole.calls([(0, entries)])) == (4, 4)


# -- how programs travel ---------------------------------------------------------------------------
@pytest.mark.parametrize("protocol", [4, 5])
def test_payload_survives_any_protocol(protocol):
    """Executors pickle as they like; arrays come out equal and writable."""
    values = [(0, np.arange(100_000)), (1, b"x" * 100_000)]
    copy = pickle.loads(pickle.dumps(Payload.of(values), protocol)).open()
    copy[0][1][0] = 1
    assert (copy[0][1][1:4].tolist(), copy[1]) == ([1, 2, 3], values[1])


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
