"""Dask as the executor of a stage: what a executor promises, on clusters in this process."""

import asyncio
import signal
import traceback
from time import monotonic

import numpy as np
import pytest

import nbpipe
from nbpipe import (
    ArgumentError,
    ArgumentTypeError,
    DaskExecutor,
    ExecutorBrokenError,
    StageTimeoutError,
)
from tests.executors import programs
from tests.executors.clusters import (
    cluster,
    distributed,
    offload_thread,  # noqa: F401  a fixture
)
from tests.executors.programs import BEGUN, GATE
from tests.gates import HANG_S, delivered, drained


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


@pytest.fixture(autouse=True)
def gate():
    """Close the gate before a test, and open it after one."""
    GATE.clear()
    while BEGUN.acquire(blocking=False):
        pass
    yield GATE
    GATE.set()


def on(executor, fn, items=range(8), **options):
    """Have a function called on items by a cluster."""
    return nbpipe.source(items).map(fn, name="work", executor=executor, **options)


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
@pytest.mark.parametrize("word", ["client", "dask", "spec"])
def test_a_client_or_the_default_one_is_meant(client, word):
    """A client, a `DaskExecutor` and "dask" name the cluster."""
    given = {"client": client, "dask": "dask", "spec": DaskExecutor(client, scatter=False)}[word]
    with on(given, programs.double).start() as run:
        assert drained(run) == list(range(0, 16, 2))
        assert (run["work"].workers, run["work"].link) == (2, client.dashboard_link)


def test_no_cluster_is_started_silently():
    """Without a client, "dask" is an error that says how to make one."""
    with pytest.raises(ArgumentError, match=r"client = distributed.Client\(\)"):
        list(on("dask", programs.double))


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
    with on(client, programs.double).start() as run:
        drained(run)
        assert tasks(client) == []


def test_children_of_an_item(client):
    """A function that gives many items gives all of them; what it raises comes after them."""
    children = nbpipe.source([3]).flat_map(programs.expand_and_fail, executor=client)
    got, error = delivered(children)
    cause = error.__cause__
    assert (got, type(cause), str(cause)) == ([0, 1, 2], ValueError, "after 3")
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "expand_and_fail"


def test_worker_init_is_called_once(client):
    """It is called before the first item, once in a process."""
    drained(on(client, programs.double, concurrency=4, worker_init=programs.prepare))
    assert (BEGUN.acquire(blocking=False), BEGUN.acquire(blocking=False)) == (True, False)


def test_call_from_inside_a_worker(client):
    """A task of the cluster may itself have work done there."""

    def outer():
        return list(on("dask", programs.double, [21]))

    assert client.submit(outer).result() == [42]


# -- how programs travel ---------------------------------------------------------------------------
@pytest.mark.slow
def test_large_program_is_scattered_once(client):
    """What is large is put on the workers once, and again when it changed."""
    weights, sign = np.ones(200_000), [1]
    chain = on(client, lambda value: value + sign[0] * weights.sum(), concurrency=4)
    with chain.start() as run:
        values = drained(run)
        held = programs_held(client)
        sign[0] = -1
        changed = drained(run)
        settle(client)
        held_then = programs_held(client)
    assert values == [200_000 + n for n in range(8)]
    assert changed == [n - 200_000 for n in range(8)]
    assert (len(held), len(held_then), held != held_then) == (1, 1, True)


@pytest.mark.parametrize("scatter", [True, False])
def test_scatter_as_asked(client, scatter):
    """Small programs are scattered where that is asked for, large ones not where it is refused."""
    captured = np.ones(10 if scatter else 200_000)
    executor = DaskExecutor(client, scatter=scatter)
    with on(executor, lambda value: value + captured.size, [1]).start() as run:
        assert drained(run) == [1 + captured.size]
        assert len(programs_held(client)) == int(scatter)


def test_lost_program_is_scattered_again(client):
    """A scattered program that Dask no longer has does not cost an item."""
    with on(DaskExecutor(client, scatter=True), programs.double).start() as run:
        drained(run)
        (key,) = programs_held(client)
        client.cancel([distributed.Future(key, client)])
        assert drained(run) == list(range(0, 16, 2))


# -- time, and the end -----------------------------------------------------------------------------
def test_call_that_takes_too_long_is_an_error(single, gate):
    """The error names item and executor; the worker goes on with other work afterwards."""
    _, error = delivered(on(single, programs.wait_at_gate, [1], timeout_s=0.2))
    gate.set()
    after = drained(on(single, programs.double, [2], timeout_s=HANG_S))
    assert (type(error), error.path, error.executor) == (StageTimeoutError, 0, "dask")
    assert after == [4]


def test_an_epoch_that_is_left_frees_the_threads_at_once(single, gate):
    """After an epoch nobody waits; what has not begun is dropped."""
    with on(single, programs.wait_at_gate, concurrency=3).start() as run:
        items = iter(run)
        BEGUN.acquire()
        items.close()
        gate.set()
        assert tasks(single) == []
        assert drained(run) == list(range(8))


def test_client_that_is_closed_in_mid_call(gate):
    """Closing the client wakes every thread that waits, with an error that says so."""
    with cluster(workers=1) as client:
        with on(client, programs.wait_at_gate, concurrency=4).start() as run:
            items = iter(run)
            BEGUN.acquire()
            client.close()
            errors = [delivered(items)[1], delivered(run)[1]]
            gate.set()
            seen = run["work"].workers, run["work"].memory_bytes
        assert {type(error) for error in errors} == {ExecutorBrokenError}
        assert all("keep the client and its cluster open" in str(error) for error in errors)
        assert seen == (0, 0)


def test_interrupts_stay_as_they_are_in_this_process(client):
    """Workers in the notebook's own process do not take its stop button away."""
    before = signal.getsignal(signal.SIGINT)
    drained(on(client, programs.double))
    assert signal.getsignal(signal.SIGINT) is before


# -- looking in ------------------------------------------------------------------------------------
def test_workers_are_counted(client):
    """A stage knows the workers, their threads and memory, and the dashboard."""
    with on(client, programs.double).start() as run:
        drained(run)
        row, stage = run.stats()["work"], run["work"]
        assert row.worker_threads == sum(client.nthreads().values())
        found = stage.workers, stage.memory_bytes > 1_000_000, stage.pids
        assert found == (2, True, ())
        assert stage.link == client.dashboard_link
