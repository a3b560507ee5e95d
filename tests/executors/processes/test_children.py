"""Processes that a stage starts itself, in its worker."""

import multiprocessing
import os

import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.gates import drained

METHODS = multiprocessing.get_all_start_methods()


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_a_forked_pool(capfd):
    """A stage may have a pool of its own; what that prints harms nobody."""

    def work(n):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            found = pool.map(abs, range(-n, 0))
            pool.apply(print, ("from the pool",))
        return sum(found)

    assert drained(placed(4, work)) == [sum(range(n + 1)) for n in range(4)]


@pytest.mark.skipif("fork" not in METHODS, reason="no fork here")
def test_a_fork_that_holds_all_files(tmp_path, bell, gate):
    """A forked process that goes on without an exec hides no death of its worker either."""

    def work(n):
        mark = tmp_path / str(n)
        if n == 2 and not mark.exists():
            mark.touch()
            if os.fork() == 0:
                gate.wait()
                os._exit(0)
            os._exit(3)
        return n

    with placed(6, work).start() as run:
        got = drained(run)
        gate.open()
    assert got == list(range(6))


def test_a_pipeline_with_processes_in_a_stage():
    """Even one with processes: they are gone with it."""

    def work(n):
        return sum(nbpipe.source(range(n)).map(lambda k: k + 1, executor="process"))

    assert drained(placed(3, work, concurrency=1)) == [0, 1, 3]
