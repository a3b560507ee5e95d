"""SPDL's ways to feed a loop, in the order of the input and without its statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import numpy as np
from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess

from .. import job as others
from ..peers.spdl_processes import CONTEXT, ORDER, settings
from . import work
from .job import Job

SINK = 3
LEAN = settings(others.Job("feed", "spdl", items=0))
Builder = PipelineBuilder[Any, Any]


@contextmanager
def threads(job: Job) -> Iterator[Iterator[Any]]:
    """Make items and batches in threads of this process."""
    with _moved(_batches(job), job, job.workers + 1) as batches:
        yield batches


@contextmanager
def subprocess(job: Job) -> Iterator[Iterator[Any]]:
    """Make items and batches in threads of a process of their own."""
    config = _batches(job).add_sink(SINK).get_config()
    there: Iterable[Any] = run_pipeline_in_subprocess(
        config, num_threads=job.workers + 1, mp_context=CONTEXT, **LEAN
    )
    with _moved(Builder().add_source(there), job, 1) as batches:
        yield batches


@contextmanager
def pool(job: Job) -> Iterator[Iterator[Any]]:
    """Make a whole batch in each call of a process pool."""
    inputs = work.inputs(job.work, job.batches * job.size, job.photos)
    lists = [inputs[at : at + job.size] for at in range(0, len(inputs), job.size)]
    call = work.AllOf(work.ITEMS[job.work])
    with ProcessPoolExecutor(job.workers, mp_context=get_context(CONTEXT)) as executor:
        builder = Builder().add_source(lists)
        builder.pipe(call, executor=executor, concurrency=job.workers, output_order=ORDER)
        with _moved(builder, job, 1) as batches:
            yield batches


def _batches(job: Job) -> Builder:
    inputs = work.inputs(job.work, job.batches * job.size, job.photos)
    item = work.ITEMS[job.work]
    builder = Builder().add_source(inputs)
    builder.pipe(item, concurrency=job.workers, output_order=ORDER)
    return builder.aggregate(job.size).pipe(np.stack)


@contextmanager
def _moved(builder: Builder, job: Job, threads: int) -> Iterator[Iterator[Any]]:
    """Build a pipeline; on a GPU its batches are copied in a thread of their own."""
    with ThreadPoolExecutor(1) as thread:
        if job.device == "cuda":
            import torch
            from spdl.io import transfer_tensor_h2d

            builder.pipe(torch.from_numpy).pipe(transfer_tensor_h2d, executor=thread)
        pipeline = builder.add_sink(SINK).build(num_threads=threads + 1, **LEAN)
        with pipeline.auto_stop():
            yield iter(pipeline)
