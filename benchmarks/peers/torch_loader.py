"""torch: `torch.utils.data.DataLoader` with worker processes, the only ones it has."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..job import Job
from ..photos import photo_paths
from ..tasks import BATCH, decode, fetch, producer, same, wait_async
from ..tensors import Tensors, to_tensor


@dataclass(frozen=True)
class Made(Dataset[Any]):
    """What a function makes of each of some inputs."""

    make: Callable[[Any], Any]
    inputs: Sequence[Any]

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.make(self.inputs[index])


class Waits(Made):
    """A whole batch of asynchronous waits at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        async def gather() -> list[int]:
            return list(await asyncio.gather(*map(self.make, indices)))

        return asyncio.run(gather())


def _noops(item: int) -> int:
    return same(same(same(item)))


def _row(item: int) -> Tensor:
    return to_tensor(fetch(item))


@contextmanager
def open_pipeline(job: Job, shape: str) -> Iterator[Iterator[Any]]:
    """Give a loader's iterator; its processes end when the iterator is collected."""
    yield _BUILDERS[shape](job)


def _noop(job: Job) -> Iterator[Any]:
    workers, size = job.option("workers", default=4), job.option("batch", default=256)
    loader = DataLoader(
        Made(_noops, range(job.items)),
        batch_size=size,
        num_workers=workers,
        collate_fn=list,
        prefetch_factor=job.option("prefetch", default=2) if workers else None,
    )
    return itertools.chain.from_iterable(loader)


def _io(job: Job) -> Iterator[Any]:
    rows = Made(_row, range(job.items))
    return iter(DataLoader(rows, BATCH, num_workers=job.option("workers", default=40)))


def _decode(job: Job) -> Iterator[Any]:
    photos = Made(decode, photo_paths(job.photos, job.items))
    return iter(DataLoader(photos, BATCH, num_workers=job.option("threads", default=job.cores)))


def _wait(job: Job) -> Iterator[Any]:
    workers, size = job.option("workers", default=4), job.option("batch", default=64)
    waits = Waits(wait_async, range(job.items))
    loader = DataLoader(waits, size, num_workers=workers, collate_fn=list)
    return itertools.chain.from_iterable(loader)


def _arrays(job: Job) -> Iterator[Any]:
    size = job.option("batch", default=None)  # None: sample by sample
    loader = DataLoader(
        Made(Tensors(producer(job)), range(job.items)),
        batch_size=size,
        num_workers=job.option("workers", default=2),
        prefetch_factor=job.option("prefetch", default=2),
    )
    return itertools.chain.from_iterable(loader) if size else iter(loader)


_ARRAYS = dict.fromkeys(("compute", "transport"), _arrays)
_BUILDERS = {"noop": _noop, "io": _io, "decode": _decode, "wait": _wait, **_ARRAYS}
