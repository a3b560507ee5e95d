"""Dask workers in processes of their own: interrupts, deaths, restarts, a lost scheduler."""

import os
import signal

import numpy as np
import pytest

from nbpipe.errors import ExecutorBrokenError
from nbpipe.executors.dask import DaskCaller, DaskExecutor
from tests.executors import programs
from tests.executors.clusters import (
    cluster,
    distributed,
    offload_thread,  # noqa: F401  a fixture
    scheduler_process,
    worker_process,
)
from tests.executors.programs import Program, job, values_of


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


def caller_of(client):
    """Give a caller."""
    return DaskCaller(DaskExecutor(client))


def test_workers_live_on_when_the_group_is_interrupted(client):
    """The stop button ends no worker, nor one that starts later, and keeps no value back."""
    caller = caller_of(client)
    program = Program(programs.interrupts_ignored)
    first = values_of(caller.call(job(program, 0)))
    client.cluster.scale(3)
    client.wait_for_workers(3)
    ignored = client.run(programs.interrupts_ignored, None)
    pids = client.run(os.getpid)
    for pid in pids.values():
        os.kill(pid, signal.SIGINT)
    assert (first, list(ignored.values())) == ([True], [True] * 3)
    assert client.run(os.getpid) == pids


def test_restart_of_the_workers_in_mid_call(client, engine, bell, gate):
    """After `client.restart()` calls in progress are done again, large captures included."""
    caller, weights = caller_of(client), np.ones(200_000)
    wait = at_gate(bell, gate)

    def work(value):
        return wait(value), weights.size

    waiting = engine.submit(caller.call, job(Program(work), 0))
    bell.wait()
    client.restart()
    bell.wait()
    gate.open()
    ((pid, size),) = values_of(waiting.result())
    assert (size, pid in client.run(os.getpid).values()) == (200_000, True)


def test_cluster_that_is_closed_in_mid_call(engine, bell, gate):
    """Closing the cluster wakes every thread that waits."""
    with cluster(processes=True, workers=1) as client:
        caller = caller_of(client)
        waiting = engine.submit(caller.call, job(Program(at_gate(bell, gate)), 0))
        bell.wait()
        client.cluster.close()
        error = waiting.exception()
    assert type(error) is ExecutorBrokenError


def test_scheduler_that_is_killed_in_mid_call(engine, bell, gate):
    """A scheduler that is gone is an error of every call, at once and later."""
    with (
        scheduler_process() as (scheduler, address),
        worker_process(address),
        distributed.Client(address) as client,
    ):
        caller = caller_of(client)
        waiting = engine.submit(caller.call, job(Program(at_gate(bell, gate)), 0))
        bell.wait()
        scheduler.kill()
        errors = [waiting.exception()]
        errors += [engine.submit(caller.call, job(Program(programs.double), 1)).exception()]
    assert [type(error) for error in errors] == [ExecutorBrokenError] * 2
