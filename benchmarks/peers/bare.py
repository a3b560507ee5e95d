"""Bare: the same work by the barest equivalent, without queues; results are dropped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable

from ..job import Job
from ..meter import tree_cpu_s
from ..photos import photo_paths
from ..tasks import BATCH, burn, decode, fetch, same, wait_async
from . import bare_processes

Work = Callable[[], object]
Step = Callable[..., object]


def elapsed_s(job: Job, shape: str) -> float:
    """Do the work of a workload; return how long it took, or the consumer's own time if longer."""
    work_s = _timed(_WORKS[shape](job))
    if not job.burn_loops:
        return work_s
    consumer_s = _timed([lambda: [burn(job.burn_loops) for _ in range(job.items // BATCH)]])
    return max(work_s, consumer_s)


def warm(job: Job, shape: str) -> dict[str, float]:
    """Do the work of a workload of processes, or of batches in threads."""
    if shape in bare_processes.WORKS:
        return bare_processes.WORKS[shape](job)
    start_cpu_s = tree_cpu_s()
    return {"elapsed_s": elapsed_s(job, shape), "cpu_s": tree_cpu_s() - start_cpu_s}


def _timed(works: list[Work]) -> float:
    """Do each in a thread of its own, or in this one where there is one."""
    workers = [threading.Thread(target=work) for work in works[1:]]
    start_s = time.perf_counter()
    for worker in workers:
        worker.start()
    works[0]()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start_s


def _noop(job: Job) -> list[Work]:
    """Call the three functions in a loop."""

    def work() -> None:
        for item in range(job.items):
            same(same(same(item)))

    return [work]


def _io(job: Job) -> list[Work]:
    """Run 32 threads of the first stage beside 8 of the second, which stack what they make."""
    from ..tensors import stack, to_tensor

    first, second = iter(range(job.items)), iter(range(job.items))

    def fetch_all() -> None:
        for item in first:
            fetch(item)

    return [fetch_all] * 32 + [_batches(to_tensor, second, stack)] * 8


def _decode(job: Job) -> list[Work]:
    """Decode and stack in a pool of threads."""
    import numpy as np

    paths = iter(photo_paths(job.photos, job.items))
    return [_batches(decode, paths, np.stack)] * job.option("threads", default=job.cores)


def _batches(
    make: Callable[..., object], items: Iterable[object], stack: Callable[..., object]
) -> Work:
    def work() -> None:
        made: list[object] = []
        for item in items:
            made.append(make(item))
            if len(made) == BATCH:
                stack(made)
                made = []

    return work


def _wait(job: Job) -> list[Work]:
    """Run 256 asyncio tasks that share one iterator."""
    items = iter(range(job.items))

    async def one() -> None:
        for item in items:
            await wait_async(item)

    async def everything() -> None:
        await asyncio.gather(*(one() for _ in range(256)))

    return [lambda: asyncio.run(everything())]


_WORKS = {"noop": _noop, "io": _io, "decode": _decode, "wait": _wait}
