"""Decode: JPEG decoding alone, against bare worker processes that drop what they decode."""

from __future__ import annotations

import time

from .chains import opened
from .job import Job, Numbers


def measure(job: Job) -> Numbers:
    """Take batches as fast as they come."""
    with opened(job) as batches:
        for _ in range(job.skipped):
            next(batches)
        cpu_s, begun_s = time.process_time(), time.perf_counter()
        for _ in range(job.steps):
            next(batches)
        took_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    items = job.steps * job.size
    return {"items_per_s": items / took_s, "cpu_s": cpu_s / items}
