"""What is advised where threads take turns at the interpreter lock, or sleep on a busy machine."""

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest

import nbpipe
from tests.gates import set_clock
from tests.show.inner import gil

SECONDS = 4.0


def count(number):
    """Compute in Python for about a millisecond."""
    return sum(k * k for k in range(15_000 + number % 2))


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


class Sleepers:
    """Threads that sleep side by side, on a clock of its own and a machine without an idle core.

    Each sleep takes 4 ms; then the thread waits another one until it has a core.
    """

    def __init__(self, count):
        self.sleeps = 0
        self.together = threading.Barrier(count, self.sleep)

    def sleep(self):
        """Let the time of one sleep pass."""
        self.sleeps += 1

    def wait(self, number):
        """Sleep until as many others do."""
        with contextlib.suppress(threading.BrokenBarrierError):  # the test is over
            self.together.wait()
        return number


def test_calls_that_wait_are_told_to_try_more_threads(monkeypatch):
    """On a busy machine, threads that sleep may be more."""
    sleepers = Sleepers(4)
    set_clock(monkeypatch, lambda: 1 + sleepers.sleeps * 5_000_000)
    set_clock(monkeypatch, lambda: (0, sleepers.sleeps * 1_000_000), "core_times_ns")
    set_clock(monkeypatch, lambda: gil.Switches(sleepers.sleeps, 0), "switches")
    set_clock(monkeypatch, lambda: 0, "own_idle_ns")
    said = None
    with nbpipe.source(range(40_000)).map(sleepers.wait, concurrency=4).batch(20).start() as run:
        for _ in run:
            said = run.diagnose().suggestion
            if said:
                break
        sleepers.together.abort()
    assert said == ("wait", "concurrency", 8)
