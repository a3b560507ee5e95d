"""Dask as the executor of a stage: what a executor promises, on clusters in this process."""

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import numpy as np
import pytest

from nbpipe.errors import (
    ArgumentError,
    ArgumentTypeError,
    ExecutorBrokenError,
    StageError,
    StageTimeoutError,
)
from nbpipe.executors.dask import ClusterExecutor, DaskExecutor, dask_executor_of
from tests.executors import programs
from tests.executors.clusters import (
    cluster,
    distributed,
    offload_thread,  # noqa: F401  a fixture
)
from tests.executors.programs import BEGUN, GATE, Program, request, values_of
from tests.gates import HANG_S


@pytest.fixture
def client():
    """Give a client of two workers with a thread each, in this process."""
    with cluster() as client:
        yield client


@pytest.fixture
def single():
    """Give a client of one worker with one thread, in this process."""
    with cluster(workers=1) as client:
        yield client


@pytest.fixture
def engine():
    """Threads that call; the gate opens after the test."""
    GATE.clear()
    while BEGUN.acquire(blocking=False):
        pass
    with ThreadPoolExecutor(8) as executor:
        yield executor
        GATE.set()


def executor_of(client, **options):
    """Give a executor with these options."""
    return ClusterExecutor(DaskExecutor(client, **options))


def settle(client):
    """Wait until the scheduler has heard all that was said before."""
    assert client.submit(int, pure=False).result() == 0


def tasks(client):
    """List our tasks that the scheduler and the client do not forget: that may take a few turns."""
    end_s = monotonic() + HANG_S
    while True:
        settle(client)
        known = (*client.cluster.scheduler.tasks, *client.futures)
        ours = [key for key in known if key.startswith("work")]
        if not ours or monotonic() > end_s:
            return ours


def programs_held(client):
    """List the scattered programs that the client holds."""
    return [key for key in client.futures if "-program-" in key]


# -- what a user passes ----------------------------------------------------------------------------
def test_a_client_or_the_default_one_is_meant(client):
    """A client, a `DaskExecutor` and "dask" name the cluster; nothing else does."""
    given = DaskExecutor(client, scatter=False)
    found = [dask_executor_of(value) for value in (client, "dask", given)]
    assert [one.client for one in found] == [client] * 3
    assert found[2] is given
    assert [dask_executor_of(value) for value in ("process", None, 3)] == [None] * 3


def test_no_cluster_is_started_silently():
    """Without a client, "dask" is an error that says how to make one."""
    with pytest.raises(ArgumentError, match=r"client = distributed.Client\(\)"):
        dask_executor_of("dask")


def test_options_are_checked(client):
    """What Dask could not use is refused at once."""
    with pytest.raises(ArgumentTypeError, match=r"must be a distributed.Client, got 'tcp"):
        DaskExecutor("tcp://scheduler:8786")
    with pytest.raises(ArgumentError, match="scatter must be True, False or 'auto', got 'no'"):
        DaskExecutor(client, scatter="no")


def test_asynchronous_client_is_refused(client):
    """A client that lives in the caller's event loop could not be waited for."""
    options = {"asynchronous": True, "set_as_default": False}

    async def make():
        async with distributed.Client(client.scheduler.address, **options) as other:
            DaskExecutor(other)

    with pytest.raises(ArgumentTypeError, match="without asynchronous=True"):
        asyncio.run(make())


# -- calls -----------------------------------------------------------------------------------------


def test_results_do_not_stay_on_the_workers(client):
    """As soon as a result is here, Dask forgets the task."""
    executor = executor_of(client)
    for n in range(5):
        executor.call(request(Program(programs.double), n))
    assert tasks(client) == []


def test_children_of_an_item(client):
    """A function that gives many items gives all of them; what it raises comes after them."""
    children = executor_of(client).expand(request(programs.Expanding(None), 3, epoch=2))
    values = [next(children) for _ in range(3)]
    with pytest.raises(ValueError, match="item 0 in epoch 2") as caught:
        next(children)
    assert (values, caught.traceback[-1].name) == ([0, 1, 2], "open")


def test_worker_init_is_called_once(client, engine):
    """`prepare` of a program is called before its first item, once in a process."""
    program = programs.Prepared(programs.double)
    list(engine.map(executor_of(client).call, [request(program, n) for n in range(8)]))
    assert (BEGUN.acquire(blocking=False), BEGUN.acquire(blocking=False)) == (True, False)


def test_call_from_inside_a_worker(client):
    """A task of the cluster may itself have work done there."""

    def outer():
        executor = ClusterExecutor(dask_executor_of("dask"))
        return values_of(executor.call(request(Program(programs.double), 21)))

    assert client.submit(outer).result() == [42]


# -- how programs travel ---------------------------------------------------------------------------
@pytest.mark.slow
def test_large_program_is_scattered_once(client, engine):
    """What is large is put on the workers once, and again when it changed."""
    executor = executor_of(client)
    weights = np.ones(200_000)
    program = Program(lambda value: value + weights.sum())
    values = list(engine.map(executor.call, [request(program, n) for n in range(8)]))
    held = programs_held(client)
    program.fn = lambda value: value - weights.sum()
    executor.renew()
    changed = values_of(executor.call(request(program, 0)))
    settle(client)
    assert [values_of(response)[0] for response in values] == [200_000 + n for n in range(8)]
    assert (changed, len(held), len(programs_held(client))) == ([-200_000], 1, 1)
    assert held != programs_held(client)


@pytest.mark.parametrize("scatter", [True, False])
def test_scatter_as_asked(client, scatter):
    """Small programs are scattered where that is asked for, large ones not where it is refused."""
    executor = executor_of(client, scatter=scatter)
    captured = np.ones(10 if scatter else 200_000)
    values = values_of(executor.call(request(Program(lambda value: value + captured.size), 1)))
    assert (values, len(programs_held(client))) == ([1 + captured.size], int(scatter))


def test_lost_program_is_scattered_again(client):
    """A scattered program that Dask no longer has does not cost an item."""
    executor = executor_of(client, scatter=True)
    program = Program(programs.double)
    executor.call(request(program, 1))
    (key,) = programs_held(client)
    client.cancel([distributed.Future(key, client)])
    assert values_of(executor.call(request(program, 4))) == [8]


# -- time, and the end -----------------------------------------------------------------------------
def test_call_that_takes_too_long_is_an_error(single, engine):
    """The error names item and executor; the worker goes on with other work afterwards."""
    executor = executor_of(single)
    late = engine.submit(executor.call, request(Program(programs.wait_at_gate), 1, timeout_s=0.2))
    error = late.exception()
    GATE.set()
    after = values_of(executor.call(request(Program(programs.double), 2, timeout_s=HANG_S)))
    assert (type(error), error.path, error.executor) == (StageTimeoutError, 0, "dask")
    assert after == [4]


def test_cancel_frees_the_threads_at_once(single, engine):
    """After an epoch nobody waits; what has not begun is dropped."""
    executor, program = executor_of(single), Program(programs.wait_at_gate)
    waiting = [engine.submit(executor.call, request(program, n)) for n in range(3)]
    BEGUN.acquire()
    executor.cancel()
    errors = [type(future.exception()) for future in waiting]
    GATE.set()
    assert (errors, tasks(single)) == ([StageError] * 3, [])
    assert values_of(executor.call(request(Program(programs.double), 5))) == [10]


def test_client_that_is_closed_in_mid_call(engine):
    """Closing the client wakes every thread that waits, with an error that says so."""
    with cluster(workers=1) as client:
        executor, program = executor_of(client), Program(programs.wait_at_gate)
        waiting = [engine.submit(executor.call, request(program, n)) for n in range(4)]
        BEGUN.acquire()
        client.close()
        errors = [future.exception() for future in waiting]
        GATE.set()
        after = engine.submit(executor.call, request(program, 9)).exception()
    assert {type(error) for error in (*errors, after)} == {ExecutorBrokenError}
    assert all("keep the client and its cluster open" in str(error) for error in (*errors, after))
    assert (executor.workers, executor.memory_bytes, executor.close(1)) == (0, 0, [])


def test_interrupts_stay_as_they_are_in_this_process(client):
    """Workers in the notebook's own process do not take its stop button away."""
    before = signal.getsignal(signal.SIGINT)
    executor_of(client).call(request(Program(programs.double), 1))
    assert signal.getsignal(signal.SIGINT) is before


# -- looking in ------------------------------------------------------------------------------------
def test_workers_are_counted(client):
    """The executor knows the workers, their threads and memory, and the dashboard."""
    executor = executor_of(client)
    assert executor.worker_threads == sum(client.nthreads().values())
    found = executor.workers, executor.memory_bytes > 1_000_000, executor.pids
    assert found == (2, True, ())
    assert executor.link == client.dashboard_link
