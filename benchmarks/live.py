"""Live: how soon a running stage grows from 1 to 32 calls and shrinks again."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from statistics import median
from types import ModuleType

import nbpipe

from .job import Job

CALL_S = 0.010
WORKERS = 32
_PATIENCE_S = 10.0
Numbers = dict[str, float]


def measure(job: Job, _shape: str, _peer: ModuleType) -> Numbers:
    """Turn the knob up and down while another thread takes the items and checks their order."""
    gauge, disordered, stopping = Gauge(CALL_S), 0, threading.Event()
    pipe = nbpipe.source(range(job.items)).map(gauge, name="gauge")

    def consume() -> None:
        nonlocal disordered
        for expected, item in enumerate(run):
            disordered += item != expected
            if stopping.is_set():
                return

    with pipe.start() as run:
        consumer = threading.Thread(target=consume)
        consumer.start()
        try:
            cycles = [_cycle(pipe["gauge"], gauge) for _ in range(job.cycles)]
        finally:
            stopping.set()
            consumer.join(_PATIENCE_S)
    grown, shrunk = zip(*cycles, strict=True)
    return {
        "grow_s": median(grown),
        "grow_p95_s": percentile(grown, 95),
        "shrink_s": median(shrunk),
        "surplus_starts": gauge.surplus_starts,
        "disordered": disordered,
    }


def _cycle(stage: nbpipe.Stage, gauge: Gauge) -> tuple[float, float]:
    """Give the time until 32 calls are in progress, and until only the allowed one is left."""
    gauge.allow(WORKERS)
    gauge.watch(WORKERS)
    start_s = time.perf_counter()
    stage.concurrency = WORKERS
    grow_s = gauge.wait_reached(_PATIENCE_S) - start_s
    start_s = time.perf_counter()
    stage.concurrency = 1
    gauge.allow(1)
    gauge.watch(1)
    shrink_s = gauge.wait_reached(_PATIENCE_S) - start_s
    return grow_s, max(0.0, shrink_s - CALL_S)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` % of the values do not exceed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("percentile needs at least 1 value, got none")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # ceiling: the nearest-rank definition
    return ordered[max(0, int(rank) - 1)]


class Gauge:
    """A stage function that sleeps and counts who is inside.

    Args:
        call_s: time of a call [s].
    """

    def __init__(self, call_s: float) -> None:
        self._call_s = call_s
        self._lock = threading.Lock()
        self._reached = threading.Event()
        self._reached_s = 0.0
        self._target = -1
        self._limit = 1
        self._active = 0
        self.surplus_starts = 0

    def __call__(self, item: int) -> int:
        """Sleep; a call that starts although as many as allowed are inside is surplus."""
        with self._lock:
            self.surplus_starts += self._active >= self._limit
            self._active += 1
            self._note()
        time.sleep(self._call_s)
        with self._lock:
            self._active -= 1
            self._note()
        return item

    def allow(self, limit: int) -> None:
        """Say how many calls are allowed from now on."""
        with self._lock:
            self._limit = limit

    def watch(self, target: int) -> None:
        """Watch for the moment at which exactly `target` calls are inside."""
        with self._lock:
            self._target = target
            self._reached.clear()
            self._note()

    def wait_reached(self, timeout_s: float) -> float:
        """Wait for what is watched for and give its time on the `perf_counter` [s].

        Raises:
            TimeoutError: it did not happen in time.
        """
        if not self._reached.wait(timeout_s):
            raise TimeoutError(f"{self._active} calls in progress, not {self._target}")
        return self._reached_s

    def _note(self) -> None:
        if self._active == self._target:
            self._target = -1
            self._reached_s = time.perf_counter()
            self._reached.set()
