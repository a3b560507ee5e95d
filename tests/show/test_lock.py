"""Threads that take turns at the interpreter lock, for real, on a machine that others use."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

import nbpipe
from nbpipe.base import gil

SECONDS = 4.0


def count(number):
    """Compute in Python for about a millisecond."""
    return sum(k * k for k in range(15_000 + number % 2))


def wait(number):
    """Wait for about four milliseconds, in one sleep."""
    time.sleep(0.004)
    return number


@contextlib.contextmanager
def others(processes):
    """Have so many processes compute all the time."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def diagnoses(pipe):
    """Run a pipeline for some seconds; return what was said meanwhile, and the stats of the end."""
    said, until_s = [], time.monotonic() + SECONDS
    with pipe.start() as run:
        for _ in run:
            if time.monotonic() > until_s:
                break
            said.append(run.diagnose())
        return said, run.stats()


@pytest.mark.slow
@pytest.mark.skipif(
    not (gil.COUNTS_SWITCHES and gil.is_locked()),
    reason="needs an interpreter lock, and switches counted by Linux",
)
@pytest.mark.parametrize("busy", [False, True])
def test_loops_of_python_are_never_told_to_try_more_threads(busy):
    """Waits for the lock count as no waits for a disk, whatever else computes."""
    concurrency = max(4, os.cpu_count() or 1)
    pipe = nbpipe.source(range(1 << 20)).map(count, concurrency=concurrency).batch(20)
    with others((os.cpu_count() or 1) if busy else 0):
        said, stats = diagnoses(pipe)
    assert [str(one) for one in said if one.suggestion] == []
    assert max(stats["count"].cpu_share, stats["count"].cpu_share_p50) >= 0.4


@pytest.mark.slow
def test_calls_that_wait_are_told_to_try_more_threads():
    """On the same busy machine, threads that sleep may be more."""
    pipe = nbpipe.source(range(1 << 20)).map(wait, concurrency=4).batch(20)
    with others(os.cpu_count() or 1):
        said, _ = diagnoses(pipe)
    assert ("wait", "concurrency", 8) in [one.suggestion for one in said]
