"""Polling: what reading stats and history 4 times a second adds to the CPU time of W2.

Windows with and without a reader alternate inside one epoch, so that drift hits both alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Self

import nbpipe

from .job import Job
from .meter import Meter

PERIOD_S = 0.25
SWITCH_S = 2.0
Numbers = dict[str, float]


def measure(job: Job, shape: str, peer: ModuleType) -> Numbers:
    """Measure CPU seconds per item with a reader and without, in turn."""
    plain, polled = _Sum(), _Sum()
    reader_cpu_s = 0.0
    with peer.build(job, shape).start() as run:
        batches = iter(run)
        for _ in range(max(1, job.warmup // 32)):
            next(batches)
        for _ in range(max(1, round(job.window_s / (2 * SWITCH_S)))):
            plain.take(batches, SWITCH_S)
            with _Reader(run) as reader:
                polled.take(batches, SWITCH_S)
            reader_cpu_s += reader.cpu_s
    return {
        "cpu_us_per_item_plain": 1e6 * plain.cpu_s / plain.items,
        "cpu_us_per_item_polled": 1e6 * polled.cpu_s / polled.items,
        "added_share": reader_cpu_s / (polled.cpu_s - reader_cpu_s),
        "of_a_core": reader_cpu_s / polled.elapsed_s,
    }


class _Sum:
    """Items, wall and CPU time of the windows of one kind."""

    def __init__(self) -> None:
        self.items = 0
        self.cpu_s = 0.0
        self.elapsed_s = 0.0

    def take(self, batches: Iterator[Any], window_s: float) -> None:
        """Consume for `window_s`."""
        meter = Meter()
        while meter.elapsed_s() < window_s:
            self.items += len(next(batches))
        self.cpu_s += meter.cpu_s()
        self.elapsed_s += meter.elapsed_s()


class _Reader:
    """A thread that reads a run's stats and history 4 times a second."""

    def __init__(self, run: nbpipe.Run) -> None:
        self._run = run
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.cpu_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._done.wait(PERIOD_S):
            self._run.stats()
            self._run.history()
        self.cpu_s = time.thread_time()
