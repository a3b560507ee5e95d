"""Bare worker processes: they make all items and drop them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from typing import Any

from . import work
from .job import Job

CHUNK = 16  # items of a message


@contextmanager
def opened(job: Job) -> Iterator[Iterator[Any]]:
    """Give lists of the items' shapes; the process of the loop does next to nothing."""
    paths = work.inputs(job.work, job.batches * job.size, job.photos)
    with get_context("fork").Pool(job.workers) as pool:
        shapes = pool.imap(work.shape_of, paths, chunksize=CHUNK)
        yield iter(lambda: list(islice(shapes, job.size)), [])
