"""Live: how soon a running stage grows from 1 to 32 calls and shrinks again."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from types import ModuleType

import nbpipe

from .gauge import Gauge
from .job import Job
from .ratios import median, percentile

CALL_S = 0.010
WORKERS = 32
_PATIENCE_S = 10.0
Numbers = dict[str, float]


def measure(job: Job, _shape: str, _peer: ModuleType) -> Numbers:
    """Turn the knob up and down while another thread consumes."""
    gauge = Gauge(CALL_S)
    pipe = nbpipe.source(range(job.items)).map(gauge, name="gauge")
    with pipe.start() as run:
        consumer = _Consumer(run)
        consumer.start()
        try:
            cycles = [_cycle(pipe["gauge"], gauge) for _ in range(job.cycles)]
        finally:
            consumer.stop()
    grown = [grow_s for grow_s, _ in cycles]
    shrunk = [shrink_s for _, shrink_s in cycles]
    return {
        "grow_s": median(grown),
        "grow_p95_s": percentile(grown, 95),
        "shrink_s": median(shrunk),
        "surplus_starts": gauge.surplus_starts,
        "disordered": consumer.disordered,
        "items": consumer.items,
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


class _Consumer(threading.Thread):
    """Takes items as fast as they come and checks their order."""

    def __init__(self, run: Iterable[int]) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._stopping = False
        self.items = 0
        self.disordered = 0

    def run(self) -> None:
        for expected, item in zip(itertools.count(), self._run, strict=False):
            self.items += 1
            self.disordered += item != expected
            if self._stopping:
                return

    def stop(self) -> None:
        self._stopping = True
        self.join(_PATIENCE_S)
