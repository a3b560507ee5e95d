"""torchdata: nodes of `torchdata.nodes` under its `Loader`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torchdata.nodes import (
    BaseNode,
    Batcher,
    IterableWrapper,
    Loader,
    Mapper,
    ParallelMapper,
    Prefetcher,
)

from ..job import Job
from ..photos import photo_paths
from ..tasks import BATCH, decode, fetch, producer, same, wait
from ..tensors import Tensors, stack, to_tensor


@contextmanager
def open_pipeline(job: Job, shape: str) -> Iterator[Iterator[Any]]:
    """Give a loader's iterator; its threads end when it is collected, as there is no close."""
    loader = Loader(_BUILDERS[shape](job), restart_on_stop_iteration=False)
    yield iter(loader)
    del loader
    gc.collect()


def _map(node: BaseNode[Any], fn: Any, threads: int, job: Job) -> BaseNode[Any]:
    return ParallelMapper(
        node,
        fn,
        num_workers=threads,
        in_order=True,
        method="thread",
        snapshot_frequency=job.option("snapshot_frequency", default=1000),
        prebatch=job.option("prebatch", default=None),
    )


def _prefetched(node: BaseNode[Any], job: Job) -> BaseNode[Any]:
    depth = job.option("prefetch", default=0)
    often = job.option("snapshot_frequency", default=1000)
    return Prefetcher(node, depth, snapshot_frequency=often) if depth else node


def _noop(job: Job) -> BaseNode[Any]:
    node: BaseNode[Any] = IterableWrapper(range(job.items))
    for _ in range(3):
        node = _map(node, same, 4, job)
    return _prefetched(node, job)


def _io(job: Job) -> BaseNode[Any]:
    node: BaseNode[Any] = IterableWrapper(range(job.items))
    node = _map(_map(node, fetch, 32, job), to_tensor, 8, job)
    return _prefetched(Mapper(Batcher(node, BATCH), stack), job)


def _decode(job: Job) -> BaseNode[Any]:
    paths = photo_paths(job.photos, job.items)
    node: BaseNode[Any] = IterableWrapper(paths)
    node = _map(node, decode, job.option("threads", default=job.cores), job)
    return _prefetched(Mapper(Batcher(node, BATCH), np.stack), job)


def _wait(job: Job) -> BaseNode[Any]:
    return _map(IterableWrapper(range(job.items)), wait, 256, job)


def _arrays(job: Job) -> BaseNode[Any]:
    produce = producer(job)
    return ParallelMapper(
        IterableWrapper(range(job.items)),
        Tensors(produce) if job.option("tensors", default=True) else produce,
        num_workers=job.option("workers", default=2),
        in_order=True,
        method="process",
        multiprocessing_context="forkserver",
        snapshot_frequency=job.option("snapshot_frequency", default=1000),
        prebatch=job.option("prebatch", default=None),
    )


_ARRAYS = dict.fromkeys(("compute", "transport"), _arrays)
_BUILDERS = {"noop": _noop, "io": _io, "decode": _decode, "wait": _wait, **_ARRAYS}
