"""Restart: time to the first batch, and to close after a few batches (W7)."""

from __future__ import annotations

import time
from statistics import median
from types import ModuleType

from .job import Job
from .meter import Meter
from .tasks import JOURNAL

BATCHES = 5
Numbers = dict[str, float]


def measure(job: Job, shape: str, peer: ModuleType) -> Numbers:
    """Start, take 5 batches, close; again and again. The first start of the process is cold."""
    cycles = [_cycle(job, shape, peer) for _ in range(job.cycles)]
    later = cycles[1:] or cycles
    return {
        "first_s": median(cycle["first_s"] for cycle in later),
        "first_cold_s": cycles[0]["first_s"],
        "close_s": median(cycle["close_s"] for cycle in later),
        "close_beyond_task_s": median(cycle["beyond_s"] for cycle in later),
        "close_beyond_task_max_s": max(cycle["beyond_s"] for cycle in cycles),
        "late_calls": max(cycle["late_calls"] for cycle in cycles),
        "threads_left": max(cycle["threads_left"] for cycle in cycles),
    }


def _cycle(job: Job, shape: str, peer: ModuleType) -> Numbers:
    JOURNAL.clear()
    meter = Meter()
    with peer.open_pipeline(job, shape) as iterator:
        next(iterator)
        first_s = meter.elapsed_s()
        for _ in range(BATCHES - 1):
            next(iterator)
        close_at_s = time.perf_counter()
        del iterator  # some peers close only when nothing holds their iterator
    closed_at_s, threads_left = time.perf_counter(), meter.threads_left()
    calls = tuple(JOURNAL)
    ends = [end for start, end in calls if start <= close_at_s < end <= closed_at_s]
    return {
        "first_s": first_s,
        "close_s": closed_at_s - close_at_s,
        "beyond_s": closed_at_s - max(ends, default=close_at_s),
        "late_calls": sum(start > close_at_s for start, _ in calls),
        "threads_left": threads_left,
    }
