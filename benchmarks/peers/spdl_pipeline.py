"""SPDL: `spdl.pipeline.PipelineBuilder`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spdl.pipeline import AsyncQueue, Pipeline, PipelineBuilder

from ..job import Job
from ..photos import photo_paths
from ..tasks import BATCH, decode, fetch, same, wait_async


class DeepQueue(AsyncQueue):
    """A queue of 64 between stages, where SPDL's own holds 2."""

    def __init__(self, info: Any, *, buffer_size: int = 1) -> None:
        super().__init__(info, buffer_size=max(buffer_size, 64))


@contextmanager
def open_pipeline(job: Job, shape: str) -> Iterator[Iterator[Any]]:
    """Build, start, and give the pipeline's iterator; stop it at the end."""
    pipeline = _BUILDERS[shape](job)
    with pipeline.auto_stop():
        yield iter(pipeline)


def _order(job: Job) -> str:
    order: str = job.option("order", default="input")
    return order


def _build(builder: PipelineBuilder[Any, Any], job: Job, threads: int) -> Pipeline[Any]:
    settings: dict[str, Any] = {"use_thread_output_queue": job.option("thread_queue", default=True)}
    if not job.option("hooks", default=False):
        settings["task_hook_factory"] = lambda _: []
    if not job.option("queue_stats", default=False):
        settings["queue_class"] = (
            DeepQueue if job.option("deep_queues", default=False) else AsyncQueue
        )
    return builder.add_sink(job.option("sink", default=3)).build(num_threads=threads, **settings)


def _noop(job: Job) -> Pipeline[Any]:
    builder = PipelineBuilder[Any, Any]().add_source(range(job.items))
    for _ in range(3):
        builder.pipe(same, concurrency=4, output_order=_order(job))
    return _build(builder, job, job.option("threads", default=12))


def _io(job: Job) -> Pipeline[Any]:
    from ..tensors import stack, to_tensor

    builder = (
        PipelineBuilder[Any, Any]()
        .add_source(range(job.items))
        .pipe(fetch, concurrency=32, output_order=_order(job))
        .pipe(to_tensor, concurrency=8, output_order=_order(job))
        .aggregate(BATCH)
        .pipe(stack)
    )
    return _build(builder, job, job.option("threads", default=41))


def _decode(job: Job) -> Pipeline[Any]:
    import numpy as np

    threads = job.option("threads", default=job.cores)
    builder = (
        PipelineBuilder[Any, Any]()
        .add_source(photo_paths(job.photos, job.items))
        .pipe(decode, concurrency=threads, output_order=_order(job))
        .aggregate(BATCH)
        .pipe(np.stack)
    )
    return _build(builder, job, threads + 1)


def _wait(job: Job) -> Pipeline[Any]:
    builder = PipelineBuilder[Any, Any]().add_source(range(job.items))
    builder.pipe(wait_async, concurrency=256, output_order=_order(job))
    return _build(builder, job, job.option("threads", default=2))


_BUILDERS = {"noop": _noop, "io": _io, "decode": _decode, "wait": _wait}
