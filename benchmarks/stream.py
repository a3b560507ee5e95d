"""Stream: one whole epoch, from the start of the pipeline to its last item (W1, W2, W3, W5).

Where there are processes (W2i, W4, W6) the first items of the epoch are taken before the clock
starts: a process takes from some milliseconds to seconds to start, and peers differ in when they
start theirs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from .job import Job
from .meter import Meter, tree_cpu_s
from .tasks import BATCH, burn

Numbers = dict[str, float]
Check = Callable[[], Numbers]  # looks at what came out, after the clock has stopped
_SINGLE = ("noop", "wait")


def measure(job: Job, shape: str, peer: ModuleType) -> Numbers:
    """Measure one epoch; photographs with as many threads as cores, one more, and twice as many."""
    if job.is_warm:
        return with_rates(_measure_warm(job, shape, peer))
    if shape != "decode":
        return _measure_once(job, shape, peer)
    counts = (job.cores, job.cores + 1, 2 * job.cores)
    jobs = [job.changed(options={**job.options, "threads": threads}) for threads in counts]
    tries = [_measure_once(one, shape, peer) for one in jobs]
    return max(tries, key=lambda numbers: numbers["items_per_s"])


def _measure_once(job: Job, shape: str, peer: ModuleType) -> Numbers:
    run = _run_pipeline if hasattr(peer, "open_pipeline") else _run_bare
    if job.warmup:
        run(job.changed(items=job.warmup), shape, peer)
    _clear_garbage()
    return with_rates(run(job, shape, peer))


def _clear_garbage() -> None:
    """Collect garbage, and leave what there is out of later collections.

    To go through all objects of torch takes 80 ms, which fall into one epoch and not into another.
    """
    gc.collect()
    gc.freeze()


def with_rates(numbers: Numbers) -> Numbers:
    """Add what one item costs to items, wall and CPU time."""
    per_s = numbers["items"] / numbers["elapsed_s"]
    return {
        **numbers,
        "items_per_s": per_s,
        "us_per_item": 1e6 / per_s,
        "cpu_us_per_item": 1e6 * numbers["cpu_s"] / numbers["items"],
    }


def _run_bare(job: Job, shape: str, peer: ModuleType) -> Numbers:
    meter = Meter()
    elapsed_s = peer.elapsed_s(job, shape)
    spent = {"cpu_s": meter.cpu_s(), "switches_per_item": meter.switches() / job.items}
    return {"items": job.items, "elapsed_s": elapsed_s, **spent}


def _run_pipeline(job: Job, shape: str, peer: ModuleType) -> Numbers:
    consume = _consume_items if shape in _SINGLE else _consume_batches
    meter = Meter()
    with peer.open_pipeline(job, shape) as iterator:
        times, check = consume(job, iterator, meter)
        del iterator  # some peers close only when nothing holds their iterator
    times["close_s"] = meter.elapsed_s() - times["elapsed_s"]
    times["cpu_s"] = meter.cpu_s()
    times["switches_per_item"] = meter.switches() / job.items
    return {**times, **check()}


def _consume_items(job: Job, iterator: Iterator[Any], meter: Meter) -> tuple[Numbers, Check]:
    received = [next(iterator)]
    first_s = meter.elapsed_s()
    received.extend(iterator)
    last_s = meter.elapsed_s()

    def check() -> Numbers:
        return {
            "items": len(received),
            "steady_per_s": (len(received) - 1) / (last_s - first_s),
            "lost": job.items - len(set(received)),
            "in_order": float(received == list(range(job.items))),
        }

    return {"first_s": first_s, "elapsed_s": last_s}, check


def _consume_batches(job: Job, iterator: Iterator[Any], meter: Meter) -> tuple[Numbers, Check]:
    items, first, first_s, in_order = 0, 0, 0.0, True
    for batch in iterator:
        if not items:
            first, first_s = len(batch), meter.elapsed_s()
        if batch.ndim == 2:  # the first row of a W2 batch carries its number
            in_order = in_order and float(batch[0, 0]) == items
        items += len(batch)
        burn(job.burn_loops)
    last_s = meter.elapsed_s()

    def check() -> Numbers:
        return {
            "items": items,
            "steady_per_s": (items - first) / (last_s - first_s),
            "lost": job.items - items,
            "in_order": float(in_order),
        }

    return {"first_s": first_s, "elapsed_s": last_s}, check


# -- After the processes have started and know their work ------------------------------------------
def _measure_warm(job: Job, shape: str, peer: ModuleType) -> Numbers:
    """Measure an epoch from its first item after the warm-up to its last."""
    if not hasattr(peer, "open_pipeline"):
        return {"items": job.items, **peer.warm(job, shape)}
    whole, step = job.warmup + job.items, BATCH if shape == "io" else 1
    with peer.open_pipeline(job.changed(items=whole), shape) as iterator:
        received = _take(iterator, job, shape, job.warmup // step)
        _clear_garbage()
        start_cpu_s, start_s = tree_cpu_s(), time.perf_counter()
        received += _take(iterator, job, shape, job.items // step)
        elapsed_s = time.perf_counter() - start_s
        spent_s = tree_cpu_s() - start_cpu_s
        received += [_number(item, shape) for item in iterator]
        del iterator  # some peers close only when nothing holds their iterator
    expected = range(0, whole, step)
    return {
        "items": job.items,
        "elapsed_s": elapsed_s,
        "cpu_s": spent_s,
        "lost": len(set(expected) - set(received)) * float(step),
        "in_order": float(received == list(expected)),
    }


def _take(iterator: Iterator[Any], job: Job, shape: str, count: int) -> list[float]:
    """Consume items or batches; return the number that each carries, or its first item."""
    loops = job.burn_loops if shape == "io" else 0
    received = []
    for _ in range(count):
        received.append(_number(next(iterator), shape))
        burn(loops)
    return received


def _number(item: Any, shape: str) -> float:
    """Return the number an item carries; -1 for an array whose last number is another."""
    if shape == "io":
        return float(item[0, 0])
    first = float(item[0])
    return first if first == item[-1] else -1.0
