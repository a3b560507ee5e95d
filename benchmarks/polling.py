"""Polling: what reading stats and history 4 times a second adds to the CPU time of W2.

Windows with and without a reader alternate inside one epoch, so that drift hits both alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import nbpipe

from .job import Job
from .meter import Meter
from .tasks import BATCH

PERIOD_S = 0.25
SWITCH_S = 2.0
Numbers = dict[str, float]


def measure(job: Job, shape: str, peer: ModuleType) -> Numbers:
    """Measure CPU seconds per item with a reader and without, in turn."""
    spent: dict[str, list[tuple[int, float, float]]] = {"plain": [], "polled": []}
    reader_s: list[float] = []
    with peer.build(job, shape).start() as run:
        batches = iter(run)
        for _ in range(max(1, job.warmup // BATCH)):
            next(batches)
        for _ in range(max(1, round(job.window_s / (2 * SWITCH_S)))):
            spent["plain"].append(_take(batches))
            with _reading(run, reader_s):
                spent["polled"].append(_take(batches))
    sums = {name: list(map(sum, zip(*rows, strict=True))) for name, rows in spent.items()}
    _, polled_cpu_s, polled_s = sums["polled"]
    return {
        **{f"cpu_us_per_item_{name}": 1e6 * one[1] / one[0] for name, one in sums.items()},
        "added_share": sum(reader_s) / (polled_cpu_s - sum(reader_s)),
        "of_a_core": sum(reader_s) / polled_s,
    }


def _take(batches: Iterator[Any]) -> tuple[int, float, float]:
    """Consume for a window; return items, CPU time and wall time."""
    meter, items = Meter(), 0
    while meter.elapsed_s() < SWITCH_S:
        items += len(next(batches))
    return items, meter.cpu_s(), meter.elapsed_s()


@contextmanager
def _reading(run: nbpipe.Run, spent_s: list[float]) -> Iterator[None]:
    """Read a run's stats and history 4 times a second; note what the thread has used."""
    done = threading.Event()

    def read() -> None:
        while not done.wait(PERIOD_S):
            run.stats()
            run.history()
        spent_s.append(time.thread_time())

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
