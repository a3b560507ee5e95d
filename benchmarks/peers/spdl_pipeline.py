"""SPDL: `spdl.pipeline.PipelineBuilder`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from spdl.pipeline import Pipeline, PipelineBuilder

from ..job import Job
from ..photos import photo_paths
from ..tasks import BATCH, decode, fetch, same, wait_async
from .spdl_processes import ORDER, open_isolated, open_processes, settings, started


def open_pipeline(job: Job, shape: str) -> AbstractContextManager[Iterator[Any]]:
    """Build, start, and give the pipeline's iterator; stop it at the end."""
    if shape in ("compute", "transport"):
        return open_processes(job)
    if job.option("isolate", default=False):
        return open_isolated(_io_builder(job), job)
    return started(_BUILDERS[shape](job))


def _build(builder: PipelineBuilder[Any, Any], job: Job, threads: int) -> Pipeline[Any]:
    return builder.add_sink(job.option("sink", default=3)).build(
        num_threads=threads, **settings(job)
    )


def _noop(job: Job) -> Pipeline[Any]:
    builder = PipelineBuilder[Any, Any]().add_source(range(job.items))
    for _ in range(3):
        builder.pipe(same, concurrency=4, output_order=ORDER)
    return _build(builder, job, job.option("threads", default=12))


def _io(job: Job) -> Pipeline[Any]:
    return _build(_io_builder(job), job, job.option("threads", default=41))


def _io_builder(job: Job) -> PipelineBuilder[Any, Any]:
    from ..tensors import stack, to_tensor

    return (
        PipelineBuilder[Any, Any]()
        .add_source(range(job.items))
        .pipe(fetch, concurrency=32, output_order=ORDER)
        .pipe(to_tensor, concurrency=8, output_order=ORDER)
        .aggregate(BATCH)
        .pipe(stack)
    )


def _decode(job: Job) -> Pipeline[Any]:
    import numpy as np

    threads = job.option("threads", default=job.cores)
    builder = (
        PipelineBuilder[Any, Any]()
        .add_source(photo_paths(job.photos, job.items))
        .pipe(decode, concurrency=threads, output_order=ORDER)
        .aggregate(BATCH)
        .pipe(np.stack)
    )
    return _build(builder, job, threads + 1)


def _wait(job: Job) -> Pipeline[Any]:
    builder = PipelineBuilder[Any, Any]().add_source(range(job.items))
    builder.pipe(wait_async, concurrency=256, output_order=ORDER)
    return _build(builder, job, job.option("threads", default=2))


_BUILDERS = {"noop": _noop, "io": _io, "decode": _decode, "wait": _wait}
