"""Bare processes: two that only compute (W4), and one that fills memory another copies (W6)."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..job import Job
from ..meter import tree_cpu_s
from ..tasks import producer

WORKERS = 2
SLOTS = 4
Numbers = dict[str, float]


def compute(job: Job) -> Numbers:
    """Call the stage in two processes, which share one counter, and drop the results."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(WORKERS + 1)
    counter = context.Value("q", 0)
    with _processes(context, _compute, [(job, counter, barrier)] * WORKERS):
        barrier.wait()
        return _timed(barrier.wait)


def transport(job: Job) -> Numbers:
    """Fill slots of shared memory in place in a process, and copy each out in this one."""
    context = multiprocessing.get_context("spawn")
    slots = _Slots(context.Semaphore(SLOTS), context.Semaphore(0), job.floats)
    memory = SharedMemory(create=True, size=SLOTS * job.floats * 4)
    try:
        with _processes(context, _fill, [(slots, memory.name, job.warmup + job.items)]):
            slots.copy_out(memory, job.warmup)
            return _timed(lambda: slots.copy_out(memory, job.items))
    finally:
        memory.close()
        memory.unlink()


def _timed(work: Callable[[], object]) -> Numbers:
    start_cpu_s, start_s = tree_cpu_s(), time.perf_counter()
    work()
    elapsed_s = time.perf_counter() - start_s
    return {"elapsed_s": elapsed_s, "cpu_s": tree_cpu_s() - start_cpu_s}


class _Slots(NamedTuple):
    """Slots of shared memory that go round: empty ones and filled ones."""

    empty: Any
    filled: Any
    floats: int

    def view(self, memory: SharedMemory, item: int) -> NDArray[np.float32]:
        """Return the slot of an item; every number of items is a multiple of the slots."""
        offset = item % SLOTS * self.floats * 4
        return np.frombuffer(memory.buf, np.float32, self.floats, offset)

    def copy_out(self, memory: SharedMemory, items: int) -> None:
        """Copy `items` slots in turn."""
        for item in range(items):
            self.filled.acquire()
            self.view(memory, item).copy()
            self.empty.release()


@contextmanager
def _processes(context: SpawnContext, target: Any, shares: list[tuple[Any, ...]]) -> Iterator[None]:
    processes = [context.Process(target=target, args=share) for share in shares]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.join()


def _compute(job: Job, counter: Any, barrier: Any) -> None:
    work = producer(job)
    for item in range(job.warmup // WORKERS):
        work(item)
    barrier.wait()
    while (item := _next(counter)) < job.items:
        work(item)
    barrier.wait()


def _next(counter: Any) -> int:
    with counter.get_lock():
        item: int = counter.value
        counter.value += 1
    return item


def _fill(slots: _Slots, name: str, items: int) -> None:
    memory = SharedMemory(name)
    for item in range(items):
        slots.empty.acquire()
        slots.view(memory, item).fill(item)
        slots.filled.release()
    memory.close()


WORKS = {"compute": compute, "transport": transport}
