"""Dask in processes of its own, pipelines on it: interrupts, deaths, restarts, a lost scheduler."""

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nbpipe
from nbpipe import ExecutorBrokenError
from tests.executors import programs
from tests.executors.clusters import (
    cluster,
    distributed,
    offload_thread,  # noqa: F401  a fixture
    scheduler_process,
    worker_process,
)
from tests.gates import Bell, Gate, delivered, drained, until

# Each process of a cluster imports Dask as it starts: seconds, on a machine with other work many.
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def client():
    """Give a client of two workers, each a process with one thread."""
    with cluster(processes=True) as client:
        yield client


def at_gate(bell, gate):
    """Make a function that rings, waits at the gate, and gives its process's id."""

    def work(_):
        bell.ring()
        gate.wait()
        return os.getpid()

    return work


@pytest.mark.slow
def test_workers_live_on_when_the_group_is_interrupted(client):
    """The stop button ends no worker, nor one that starts later, and keeps no value back."""
    first = drained(nbpipe.source([0]).map(programs.interrupts_ignored, executor=client))
    client.cluster.scale(3)
    client.wait_for_workers(3)
    ignored = client.run(programs.interrupts_ignored, None)
    pids = client.run(os.getpid)
    for pid in pids.values():
        os.kill(pid, signal.SIGINT)
    assert (first, list(ignored.values())) == ([True], [True] * 3)
    assert client.run(os.getpid) == pids


@pytest.mark.slow
def test_restart_of_the_workers_in_mid_call(client, bell, gate):
    """After `client.restart()` calls in progress are done again, large captures included."""
    weights, wait = np.ones(200_000), at_gate(bell, gate)

    def work(value):
        return wait(value), weights.size

    with nbpipe.source([0]).map(work, executor=client).start() as run:
        items = iter(run)
        bell.wait()
        client.restart()
        bell.wait()
        gate.open()
        ((pid, size),) = drained(items)
    assert (size, pid in client.run(os.getpid).values()) == (200_000, True)


@pytest.mark.slow
def test_cluster_that_is_closed_in_mid_call(bell, gate):
    """Closing the cluster wakes every thread that waits."""
    with (
        cluster(processes=True, workers=1) as client,
        nbpipe.source([0]).map(at_gate(bell, gate), executor=client).start() as run,
    ):
        items = iter(run)
        bell.wait()
        client.cluster.close()
        _, error = delivered(items)
    assert type(error) is ExecutorBrokenError


@pytest.mark.slow
def test_scheduler_that_is_killed_in_mid_call(bell, gate):
    """A scheduler that is gone is an error of every call, at once and later."""
    with (
        scheduler_process() as (scheduler, address),
        worker_process(address),
        distributed.Client(address) as client,
        nbpipe.source([0]).map(at_gate(bell, gate), executor=client).start() as run,
    ):
        items = iter(run)
        bell.wait()
        scheduler.kill()
        errors = [delivered(items)[1], delivered(run)[1]]
    assert [type(error) for error in errors] == [ExecutorBrokenError] * 2


# -- Pipelines whose stages run on Dask, or on an executor that the user made ----------------------
def fail_on_seven(item):
    """Fail on one item."""
    if item == 7:
        raise ValueError("seven")
    return 2 * item


def kill_on_seven(item):
    """Kill the worker on one item."""
    if item == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.fixture(params=["dask", "threads"])
def executor(request):
    """Give an executor: Dask workers with several threads, or a pool of threads."""
    if request.param == "dask":
        with cluster(threads=2) as client:
            yield client
    else:
        with ThreadPoolExecutor(4) as pool:
            yield pool


# -- as in threads ---------------------------------------------------------------------------------


def test_batches_are_made_there(executor):
    """A batch joins the region of the stage above it: whole batches come back."""
    chain = (
        nbpipe.source(range(10))
        .map(np.float64, executor=executor, concurrency=2)
        .batch(4, executor=executor)
    )
    assert [batch.tolist() for batch in drained(chain)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_results_on_their_way_when_an_epoch_is_left():
    """To leave an epoch whose results are being fetched does not stop the client from fetching."""
    with cluster(threads=4) as client:
        permits = 5  # of the client, for fetching; private, but nothing else makes it wait

        async def hold():
            for _ in range(permits):
                await client._gather_semaphore.acquire()

        async def let_go():
            for _ in range(permits):
                client._gather_semaphore.release()

        def are_done():
            return [one.status for one in tuple(client.futures.values())] == ["finished"] * 4

        chain = nbpipe.source(range(4)).map(abs, executor=client, concurrency=4)
        with chain.start() as run:
            assert drained(run) == list(range(4))
            client.sync(hold)
            items = iter(run)
            until(are_done)
            items.close()
            client.sync(let_go)
            assert drained(run) == list(range(4))
        until(lambda: not client.futures)


def test_function_that_changed_between_epochs():
    """The next epoch calls the function as it is then."""
    factor = [2]
    with cluster() as client:
        chain = nbpipe.source(range(3)).map(lambda item: item * factor[0], executor=client)
        with chain.start() as run:
            before = drained(run)
            factor[0] = 5
            assert (before, drained(run)) == ([0, 2, 4], [0, 5, 10])


def test_result_that_cannot_be_sent_is_a_failed_item():
    """Its item fails, and the others come."""

    def sometimes(item):
        return threading.Lock() if item == 7 else item

    with cluster() as client:
        chain = nbpipe.source(range(20)).map(
            sometimes, executor=client, concurrency=4, name="m", on_error="skip"
        )
        with chain.start() as run:
            got = drained(run)
            (failure,) = run.failures()
    assert (got, failure.path) == ([n for n in range(20) if n != 7], 7)
    assert "UnpicklableError" in failure.error


# -- workers that are processes --------------------------------------------------------------------
@pytest.mark.slow
def test_worker_that_is_killed_costs_nothing(client):
    """Every item comes, in order, though a worker was killed at work."""
    bell, gate = Bell(), Gate()

    def work(item):
        if item == 5:
            bell.ring()
            gate.wait()
        return item

    chain = nbpipe.source(range(40)).map(work, executor=client, concurrency=4)
    with chain.start() as run:
        items = iter(run)
        first = next(items)
        ((_, pid),) = bell.wait()
        os.kill(pid, signal.SIGKILL)
        gate.open()
        got = [first, *drained(items)]
    assert got == list(range(40))


@pytest.mark.slow
def test_item_that_kills_every_worker_is_skipped():
    """A poisonous item is named; the others come."""
    with cluster(processes=True, allowed_failures=0) as client:
        chain = nbpipe.source(range(12)).map(
            kill_on_seven, executor=client, name="m", on_error="skip"
        )
        with chain.start() as run:
            got = drained(run)
            (failure,) = run.failures()
    assert (got, failure.path) == ([n for n in range(12) if n != 7], 7)
    assert ("WorkerDiedError" in failure.error, failure.attempts) == (True, 2)


@pytest.mark.slow
def test_cluster_is_scaled_in_mid_epoch(client):
    """Workers come and go while items do; none is lost or comes twice."""
    chain = nbpipe.source(range(8, 308)).map(
        fail_on_seven, executor=client, concurrency=8, name="m"
    )
    with chain.start() as run:
        items = iter(run)
        first = [next(items) for _ in range(10)]
        client.cluster.scale(4)
        client.wait_for_workers(4)
        middle = [next(items) for _ in range(50)]
        client.cluster.scale(1)
        rest = drained(items)
    assert first + middle + rest == [2 * n for n in range(8, 308)]


@pytest.mark.slow
def test_equal_items_draw_different_numbers(client):
    """Dask does not take two calls with equal arguments for one; epochs differ, runs do not."""

    def draw(_):
        return random.random()

    chain = nbpipe.source([0] * 20).map(draw, executor=client, concurrency=4, name="m")
    with chain.start(seed=1) as run:
        first, second = drained(run), drained(run)
    with chain.start(seed=1) as run:
        again = drained(run)
    assert (len({*first, *second}), again) == (40, first)


@pytest.mark.slow
def test_default_client_is_found_when_the_run_starts(client):
    """executor="dask" means the client that was made last."""
    chain = nbpipe.source(range(5)).map(fail_on_seven, executor="dask", name="m")
    with chain.start() as run:
        assert (drained(run), run["m"].workers) == ([0, 2, 4, 6, 8], 2)
        assert run.stats()["m"].worker_threads == sum(client.nthreads().values())
        assert run["m"].link == distributed.default_client().dashboard_link
