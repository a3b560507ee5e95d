"""torch: `torch.utils.data.DataLoader` with worker processes, the only ones it has."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..job import Job
from ..photos import photo_paths
from ..tasks import BATCH, decode, fetch, producer, same, wait_async
from ..tensors import to_tensor


class Numbers(Dataset[int]):
    """The three no-op calls on an index."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> int:
        return same(same(same(index)))


class Rows(Dataset[Tensor]):
    """Both waits of W2 for an index."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> Tensor:
        return to_tensor(fetch(index))


class Photos(Dataset[NDArray[np.uint8]]):
    """Decoded photographs."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        return decode(self.paths[index])


class Waits(Dataset[int]):
    """A whole batch of asynchronous waits at once."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> int:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[int]:
        async def gather() -> list[int]:
            return list(await asyncio.gather(*map(wait_async, indices)))

        return asyncio.run(gather())


class Arrays(Dataset[Tensor]):
    """The arrays of W4 and W6 as tensors, which its processes hand over in shared memory."""

    def __init__(self, job: Job) -> None:
        self.items = job.items
        self.produce = producer(job)

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.produce(index))


@contextmanager
def open_pipeline(job: Job, shape: str) -> Iterator[Iterator[Any]]:
    """Give a loader's iterator; its processes end when the iterator is collected."""
    yield _BUILDERS[shape](job)


def _noop(job: Job) -> Iterator[Any]:
    workers, size = job.option("workers", default=4), job.option("batch", default=256)
    loader = DataLoader(
        Numbers(job.items),
        batch_size=size,
        num_workers=workers,
        collate_fn=list,
        prefetch_factor=job.option("prefetch", default=2) if workers else None,
    )
    return itertools.chain.from_iterable(loader)


def _io(job: Job) -> Iterator[Any]:
    return iter(
        DataLoader(Rows(job.items), batch_size=BATCH, num_workers=job.option("workers", default=40))
    )


def _decode(job: Job) -> Iterator[Any]:
    photos = Photos(photo_paths(job.photos, job.items))
    return iter(
        DataLoader(
            photos,
            batch_size=BATCH,
            num_workers=job.option("threads", default=job.cores),
            collate_fn=np.stack if job.option("numpy", default=False) else None,
        )
    )


def _wait(job: Job) -> Iterator[Any]:
    workers, size = job.option("workers", default=4), job.option("batch", default=64)
    loader = DataLoader(Waits(job.items), batch_size=size, num_workers=workers, collate_fn=list)
    return itertools.chain.from_iterable(loader)


def _arrays(job: Job) -> Iterator[Any]:
    torch.multiprocessing.set_sharing_strategy(job.option("sharing", default="file_descriptor"))
    size = job.option("batch", default=None)  # None: sample by sample
    loader = DataLoader(
        Arrays(job),
        batch_size=size,
        num_workers=job.option("workers", default=2),
        prefetch_factor=job.option("prefetch", default=2),
    )
    return itertools.chain.from_iterable(loader) if size else iter(loader)


_BUILDERS = {
    "noop": _noop,
    "io": _io,
    "decode": _decode,
    "wait": _wait,
    "compute": _arrays,
    "transport": _arrays,
}
