"""nbpipe: the pipelines of all workloads, in the notation of its README."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import nbpipe

from ..job import Job
from ..photos import photo_paths
from ..tasks import BATCH, decode, fetch, producer, same, wait_async


def build(job: Job, shape: str) -> nbpipe.Pipeline:
    """Give the pipeline of a workload, with the prefetch that the job asks for."""
    pipe = _BUILDERS[shape](job)
    prefetch = job.option("prefetch", default=None)
    for stage in pipe.stages:
        if prefetch is not None and "prefetch" in stage.knobs:
            stage.prefetch = prefetch
    return pipe


@contextmanager
def open_pipeline(job: Job, shape: str) -> Iterator[Iterator[Any]]:
    """Start a run and give its iterator; close the run at the end."""
    settings = {"isolate": True} if job.option("isolate", default=False) else {}
    with build(job, shape).start(**settings) as run:
        yield iter(run)


def _noop(job: Job) -> nbpipe.Pipeline:
    pipe = nbpipe.source(range(job.items))
    for _ in range(3):
        pipe = pipe.map(same, concurrency=4)
    return pipe


def _io(job: Job) -> nbpipe.Pipeline:
    from ..tensors import to_tensor

    fetched = nbpipe.source(range(job.items)).map(fetch, concurrency=32)
    return fetched.map(to_tensor, concurrency=8).batch(BATCH)


def _decode(job: Job) -> nbpipe.Pipeline:
    paths = photo_paths(job.photos, job.items)
    threads = job.option("threads", default=job.cores)
    return nbpipe.source(paths).map(decode, concurrency=threads).batch(BATCH)


def _wait(job: Job) -> nbpipe.Pipeline:
    return nbpipe.source(range(job.items)).map(wait_async, concurrency=256)


def _arrays(job: Job) -> nbpipe.Pipeline:
    settings = {name: job.options[name] for name in ("copy",) if name in job.options}
    workers = job.option("workers", default=2)
    return nbpipe.source(range(job.items)).map(
        producer(job), executor="process", concurrency=workers, **settings
    )


_ARRAYS = dict.fromkeys(("compute", "transport"), _arrays)
_BUILDERS = {"noop": _noop, "io": _io, "decode": _decode, "wait": _wait, **_ARRAYS}
