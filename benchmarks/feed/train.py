"""Train: real training steps on a GPU, fed by a chain.

The same steps run first on a batch that lies on the GPU already: their rate is what a loader can
reach at best.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from itertools import repeat
from statistics import median
from typing import Any, NamedTuple

import torch

from . import work
from .chains import opened
from .job import Job, Numbers
from .models import Step, step_of


class Steps(NamedTuple):
    """What the steps took.

    Attributes:
        whole_s: mean time of a step, wait included, until the device has done all [s].
        own_s: median time of the loop's own part of a step [s].
        wait: share of the time that the loop waits for a batch.
        cores: processor time of this process, in cores.
    """

    whole_s: float
    own_s: float
    wait: float
    cores: float


def measure(job: Job) -> Numbers:
    """Measure the steps on a resident batch, then those that the chain feeds."""
    step = step_of(job.model, job.device)
    made = work.AllOf(work.ITEMS[job.work])(work.inputs(job.work, job.size, job.photos))
    alone = _run(job, step, repeat(torch.from_numpy(made).to(job.device)))
    gc.collect()
    begun_s = time.perf_counter()
    with opened(job) as batches:
        step(next(batches))
        first_s = time.perf_counter() - begun_s
        fed = _run(job, step, batches)
    return {
        "share": alone.whole_s / fed.whole_s,
        "items_per_s": job.size / fed.whole_s,
        "alone_items_per_s": job.size / alone.whole_s,
        "own_s": fed.own_s,
        "alone_own_s": alone.own_s,
        "wait": fed.wait,
        "cores": fed.cores,
        "alone_cores": alone.cores,
        "first_s": first_s,
    }


def _run(job: Job, step: Step, batches: Iterator[Any]) -> Steps:
    for _ in range(job.skipped):
        step(next(batches))
    _synchronize(job.device)
    own_s, waited_s = [], 0.0
    cpu_s, begun_s = time.process_time(), time.perf_counter()
    for _ in range(job.steps):
        asked_s = time.perf_counter()
        batch = next(batches)
        got_s = time.perf_counter()
        step(batch)
        del batch
        waited_s += got_s - asked_s
        own_s.append(time.perf_counter() - got_s)
    _synchronize(job.device)
    took_s = time.perf_counter() - begun_s
    cpu_s = time.process_time() - cpu_s
    return Steps(took_s / job.steps, median(own_s), waited_s / took_s, cpu_s / took_s)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
