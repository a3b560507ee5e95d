"""Stream: one whole epoch, from the start of the pipeline to its last item (W1, W2, W3, W5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from .job import Job
from .meter import Meter
from .tasks import burn

Numbers = dict[str, float]
Check = Callable[[], Numbers]  # looks at what came out, after the clock has stopped
_SINGLE = ("noop", "wait")
_BARE = {"noop": "noop", "io": "io", "wait": "coroutines"}


def measure(job: Job, shape: str, peer: ModuleType) -> Numbers:
    """Measure one epoch; photographs with as many threads as cores and with twice as many."""
    if shape != "decode":
        return _measure_once(job, shape, peer)
    tries = [_measure_threads(job, shape, peer, job.cores * factor) for factor in (1, 2)]
    return max(tries, key=lambda numbers: numbers["items_per_s"])


def _measure_threads(job: Job, shape: str, peer: ModuleType, threads: int) -> Numbers:
    options = {**job.options, "threads": threads}
    numbers = _measure_once(job.with_options(options), shape, peer)
    return {**numbers, "threads": threads}


def _measure_once(job: Job, shape: str, peer: ModuleType) -> Numbers:
    is_bare = not hasattr(peer, "open_pipeline")
    run = _run_bare if is_bare else _run_pipeline
    if job.warmup:
        run(job.sized(job.warmup), shape, peer)
    return with_rates(run(job, shape, peer))


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
    if shape == "decode":
        elapsed_s = peer.photos(job, job.option("threads", default=job.cores))
    elif job.burn_loops:
        elapsed_s = peer.busy_io(job)
    else:
        elapsed_s = getattr(peer, _BARE[shape])(job)
    switches = meter.switches() / job.items
    numbers = {"items": job.items, "elapsed_s": elapsed_s, "cpu_s": meter.cpu_s()}
    return {**numbers, "switches_per_item": switches}


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
    first = next(iterator)
    first_s = meter.elapsed_s()
    in_order = _first_number(first) in (0, None)
    burn(job.burn_loops)
    items = len(first)
    for batch in iterator:
        in_order = in_order and _first_number(batch) in (items, None)
        items += len(batch)
        burn(job.burn_loops)
    last_s = meter.elapsed_s()

    def check() -> Numbers:
        return {
            "items": items,
            "steady_per_s": (items - len(first)) / (last_s - first_s),
            "lost": job.items - items,
            "in_order": float(in_order),
        }

    return {"first_s": first_s, "elapsed_s": last_s}, check


def _first_number(batch: Any) -> float | None:
    """Give the number that the first row of a W2 batch carries; None for photographs."""
    return float(batch[0, 0]) if batch.ndim == 2 else None
