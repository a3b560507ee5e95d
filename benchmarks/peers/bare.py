"""Bare: the same work by the barest equivalent, without queues; results are dropped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from ..job import Job
from ..meter import tree_cpu_s
from ..photos import photo_paths
from ..tasks import BATCH, burn, decode, fetch, same, wait_async
from . import bare_processes


def noop(job: Job) -> float:
    """Call the three functions in a loop."""
    start_s = time.perf_counter()
    for item in range(job.items):
        same(same(same(item)))
    return time.perf_counter() - start_s


def io(job: Job) -> float:
    """Run 32 threads of the first stage beside 8 of the second, which stack what they make."""
    from ..tensors import stack, to_tensor

    def make_batches(items: Iterator[int]) -> None:
        rows = []
        for item in items:
            rows.append(to_tensor(item))
            if len(rows) == BATCH:
                stack(rows)
                rows = []

    first, second = iter(range(job.items)), iter(range(job.items))
    return _threads([(32, _each(fetch, first)), (8, lambda: make_batches(second))])


def busy_io(job: Job) -> float:
    """Take the larger of `io` and the consumer's own time."""
    data_s = io(job)
    start_s = time.perf_counter()
    for _ in range(job.items // BATCH):
        burn(job.burn_loops)
    return max(data_s, time.perf_counter() - start_s)


def warm(job: Job, shape: str) -> dict[str, float]:
    """Do what `benchmarks.warm` measures: in processes, or for batches as `busy_io`."""
    if shape == "compute":
        return bare_processes.compute(job)
    if shape == "transport":
        return bare_processes.transport(job)
    start_cpu_s = tree_cpu_s()
    elapsed_s = busy_io(job)
    return {"elapsed_s": elapsed_s, "cpu_s": tree_cpu_s() - start_cpu_s}


def photos(job: Job, threads: int) -> float:
    """Decode and stack in a pool of threads."""
    import numpy as np

    paths = iter(photo_paths(job.photos, job.items))

    def make_batches() -> None:
        samples = []
        for path in paths:
            samples.append(decode(path))
            if len(samples) == BATCH:
                np.stack(samples)
                samples = []

    return _threads([(threads, make_batches)])


def coroutines(job: Job) -> float:
    """Run 256 asyncio tasks that share one iterator."""
    items = iter(range(job.items))

    async def work() -> None:
        for item in items:
            await wait_async(item)

    async def everything() -> None:
        await asyncio.gather(*(work() for _ in range(256)))

    start_s = time.perf_counter()
    asyncio.run(everything())
    return time.perf_counter() - start_s


def _each(fn: Callable[[int], object], items: Iterable[int]) -> Callable[[], None]:
    def work() -> None:
        for item in items:
            fn(item)

    return work


def _threads(groups: list[tuple[int, Callable[[], None]]]) -> float:
    workers = [threading.Thread(target=work) for count, work in groups for _ in range(count)]
    start_s = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start_s
