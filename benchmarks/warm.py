"""Warm: a stream after its processes have started and know their work (W4, W6, W2i).

The first items of the epoch are taken before the clock starts, whoever runs: a process takes from
some milliseconds to seconds to start, and peers differ in when they start theirs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .job import Job
from .meter import tree_cpu_s
from .stream import with_rates
from .tasks import BATCH, burn

Numbers = dict[str, float]


def measure(job: Job, shape: str, peer: ModuleType) -> Numbers:
    """Measure an epoch from its first item after the warm-up to its last."""
    if not hasattr(peer, "open_pipeline"):
        return with_rates({"items": job.items, **peer.warm(job, shape)})
    whole = job.sized(job.warmup + job.items)
    with peer.open_pipeline(whole, shape) as iterator:
        received = _take(iterator, job, shape, job.warmup)
        start_cpu_s, start_s = tree_cpu_s(), time.perf_counter()
        received += _take(iterator, job, shape, job.items)
        elapsed_s = time.perf_counter() - start_s
        spent_s = tree_cpu_s() - start_cpu_s
        received += [_number(item, shape) for item in iterator]
        del iterator  # some peers close only when nothing holds their iterator
    numbers = {"items": job.items, "elapsed_s": elapsed_s, "cpu_s": spent_s}
    return with_rates({**numbers, **_check(received, range(0, whole.items, _step(shape)))})


def _take(iterator: Iterator[Any], job: Job, shape: str, items: int) -> list[float]:
    """Consume `items` items and give the number that each carries, or the first of its batch."""
    loops = job.burn_loops if shape == "io" else 0
    received = []
    for _ in range(items // _step(shape)):
        received.append(_number(next(iterator), shape))
        burn(loops)
    return received


def _step(shape: str) -> int:
    return BATCH if shape == "io" else 1


def _number(item: Any, shape: str) -> float:
    """Give the number an item carries; -1 for an array whose last number is another."""
    if shape == "io":
        return float(item[0, 0])
    first = float(item[0])
    return first if first == item[-1] else -1.0


def _check(received: list[float], expected: range) -> Numbers:
    return {
        "lost": len(set(expected) - set(received)) * float(expected.step),
        "in_order": float(received == list(expected)),
    }
