"""SPDL's settings, and its processes: an executor, a region, an iterable with an arena."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from spdl.pipeline import (
    AsyncQueue,
    Pipeline,
    PipelineBuilder,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    iterate_in_subprocess,
    run_pipeline_in_subprocess,
)
from spdl.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig

from ..job import Job
from ..tasks import producer

CONTEXT = "forkserver"
BYTES_PER_FLOAT = 4
ORDER = "input"


def settings(job: Job) -> dict[str, Any]:
    """Return the arguments of `build`: statistics are off unless the job wants them."""
    found: dict[str, Any] = {"use_thread_output_queue": True}
    if not job.option("hooks", default=False):
        found["task_hook_factory"] = _no_hooks
    if not job.option("queue_stats", default=False):
        found["queue_class"] = AsyncQueue
    return found


def _no_hooks(_: object) -> list[Any]:
    return []


@dataclass(frozen=True, slots=True)
class Arrays:
    """Every `step`-th array; an iterable that can be read again, as SPDL asks for."""

    produce: Callable[[int], Any]
    numbers: range

    def __iter__(self) -> Iterator[Any]:
        """Compute one after the other."""
        return map(self.produce, self.numbers)


@contextmanager
def started(pipeline: Pipeline[Any]) -> Iterator[Iterator[Any]]:
    """Start a pipeline and give its iterator; stop it at the end."""
    with pipeline.auto_stop():
        yield iter(pipeline)


def open_processes(job: Job) -> AbstractContextManager[Iterator[Any]]:
    """Open the arrays of W4 and W6 by the way that the job names."""
    return _OPENERS[job.option("way", default="executor")](job)


@contextmanager
def open_isolated(builder: PipelineBuilder[Any, Any], job: Job) -> Iterator[Iterator[Any]]:
    """Open a whole pipeline in a process of its own."""
    config = builder.add_sink(job.option("sink", default=3)).get_config()
    batches = run_pipeline_in_subprocess(
        config,
        num_threads=job.option("threads", default=41),
        mp_context=CONTEXT,
        buffer_size=job.option("buffer", default=3),
        **settings(job),
    )
    yield iter(batches)
    del batches
    gc.collect()


def _source(job: Job) -> PipelineBuilder[Any, Any]:
    return PipelineBuilder[Any, Any]().add_source(range(job.items))


@contextmanager
def _executor(job: Job) -> Iterator[Iterator[Any]]:
    workers = job.option("workers", default=2)
    context = multiprocessing.get_context(CONTEXT)
    with ProcessPoolExecutor(workers, mp_context=context) as executor:
        call: dict[str, Any] = {"executor": executor, "output_order": ORDER}
        call["concurrency"] = workers
        if chunk := job.option("chunk", default=0):
            many = partial(_each, producer(job))
            builder = _source(job).aggregate(chunk).pipe(many, **call).disaggregate()
        else:
            builder = _source(job).pipe(producer(job), **call)
        pipeline = builder.add_sink(job.option("sink", default=3)).build(
            num_threads=1, **settings(job)
        )
        with pipeline.auto_stop():
            yield iter(pipeline)


def _each(produce: Callable[[int], Any], numbers: list[int]) -> list[Any]:
    return [produce(number) for number in numbers]


def _region(job: Job) -> AbstractContextManager[Iterator[Any]]:
    pool = ProcessPoolExecutorConfig(job.option("workers", default=2), mp_context=CONTEXT)
    builder = (
        _source(job)
        .to(pool, buffer_size=job.option("buffer_in", default=1))
        .pipe(producer(job))
        .to(MAIN_PROCESS, buffer_size=job.option("buffer_out", default=1))
    )
    pipeline = builder.add_sink(job.option("sink", default=3)).build(num_threads=2, **settings(job))
    return started(pipeline)


@contextmanager
def _arena(job: Job) -> Iterator[Iterator[Any]]:
    """Open a process for each worker, which SPDL gives an arena each, and take in turn."""
    workers = job.option("workers", default=1)
    parts = [_part(job, range(first, job.items, workers)) for first in range(workers)]
    yield _in_turn(parts)
    del parts
    gc.collect()


def _part(job: Job, numbers: range) -> Iterable[Any]:
    return iterate_in_subprocess(
        partial(Arrays, producer(job), numbers),
        buffer_size=job.option("buffer", default=3),
        arena=_arena_of(job),  # whose condition asks for the default start method
    )


def _arena_of(job: Job) -> SharedMemoryRingBuffer | SharedMemorySegmentPool:
    slots = job.option("slots", default=8)
    size_bytes = job.floats * BYTES_PER_FLOAT
    if job.option("way", default="") == "pool":
        return SharedMemorySegmentPool(size_bytes, slots)
    return SharedMemoryRingBuffer(size_bytes * slots)


def _in_turn(parts: list[Iterable[Any]]) -> Iterator[Any]:
    """Take from each in turn, which keeps the order of the input."""
    iterators = [iter(part) for part in parts]
    if len(iterators) == 1:
        return iterators[0]
    return (item for turn in zip(*iterators, strict=True) for item in turn)


_OPENERS = {"executor": _executor, "region": _region, "ring": _arena, "pool": _arena}
