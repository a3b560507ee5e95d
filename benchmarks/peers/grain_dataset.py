"""grain: `MapDataset`, read by threads with `to_iter_dataset`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grain
from grain.experimental import ThreadPrefetchIterDataset

from ..job import Job
from ..photos import photo_paths
from ..tasks import BATCH, decode, fetch, producer, same, wait


@contextmanager
def open_pipeline(job: Job, shape: str) -> Iterator[Iterator[Any]]:
    """Give a dataset's iterator; close it at the end."""
    iterator = iter(_BUILDERS[shape](job))
    try:
        yield iterator
    finally:
        iterator.close()


def _read(dataset: Any, threads: int, job: Job) -> Any:
    depth = job.option("buffer", default=500)
    return dataset.to_iter_dataset(grain.ReadOptions(threads, depth))


def _batched(dataset: Any, threads: int, stack: Callable[[Any], Any], job: Job) -> Any:
    if job.option("batch_in_threads", default=False):
        return _read(dataset.batch(BATCH, batch_fn=stack), threads, job)
    batches = _read(dataset, threads, job).batch(BATCH, batch_fn=stack)
    depth = job.option("prefetch", default=0)
    return ThreadPrefetchIterDataset(batches, prefetch_buffer_size=depth) if depth else batches


def _in_processes(dataset: Any, workers: int, job: Job) -> Any:
    depth = job.option("worker_buffer", default=4)
    return dataset.mp_prefetch(grain.MultiprocessingOptions(workers, depth))


def _noop(job: Job) -> Any:
    dataset = grain.MapDataset.source(range(job.items)).map(same).map(same).map(same)
    return _read(dataset, job.option("threads", default=4), job)


def _io(job: Job) -> Any:
    from ..tensors import stack, to_tensor

    dataset = grain.MapDataset.source(range(job.items)).map(fetch).map(to_tensor)
    batches = _batched(dataset, job.option("threads", default=40), stack, job)
    return _in_processes(batches, 1, job) if job.option("isolate", default=False) else batches


def _decode(job: Job) -> Any:
    import numpy as np

    dataset = grain.MapDataset.source(photo_paths(job.photos, job.items)).map(decode)
    return _batched(dataset, job.option("threads", default=job.cores), np.stack, job)


def _wait(job: Job) -> Any:
    dataset = grain.MapDataset.source(range(job.items)).map(wait)
    return _read(dataset, 256, job)


def _arrays(job: Job) -> Any:
    dataset = grain.MapDataset.source(range(job.items)).map(producer(job))
    read = _read(dataset, job.option("threads", default=0), job)
    return _in_processes(read, job.option("workers", default=2), job)


_ARRAYS = dict.fromkeys(("compute", "transport"), _arrays)
_BUILDERS = {"noop": _noop, "io": _io, "decode": _decode, "wait": _wait, **_ARRAYS}
