"""Datasets that the tests of the loader read."""

import os
import random
from collections import namedtuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

Point = namedtuple("Point", "x y")  # noqa: PYI024  as users write it


class Made(Dataset):
    """Gives what a function makes of an index."""

    def __init__(self, make, length=11):
        self.make = make
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.make(index)


class Numbers(Made):
    """Gives each index as a tensor."""

    def __init__(self, length=23):
        super().__init__(torch.tensor, length)


class AtOnce(Numbers):
    """Reads all indices of a batch at once, and says so."""

    def __getitems__(self, indices):
        return [torch.tensor([index, len(indices)]) for index in indices]


class Failing(Numbers):
    """Raises an error for one index."""

    def __init__(self, error, at=9, length=23):
        super().__init__(length)
        self.error = error
        self.at = at

    def __getitem__(self, index):
        if index == self.at:
            raise self.error
        return super().__getitem__(index)


class Workers(Numbers):
    """Says who reads: the number of the worker, how many there are, its seed, its process."""

    def __getitem__(self, index):
        info = get_worker_info()
        if info is None:
            return index, -1, 0, 0, os.getpid()
        return index, info.id, info.num_workers, info.seed, os.getpid()


class Drawn(Numbers):
    """Draws from torch's own generator."""

    def __getitem__(self, index):
        return torch.rand(2)


class Stream(IterableDataset):
    """Gives numbers, and never asks who reads them."""

    def __init__(self, length=21):
        self.length = length

    def __iter__(self):
        yield from range(self.length)


class Sized(Stream):
    """Says that it gives so many samples."""

    def __init__(self, length=21, said=21):
        super().__init__(length)
        self.said = said

    def __len__(self):
        return self.said


class Parted(Stream):
    """Gives each worker its part of the numbers."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, self.length, step)


class Ranged(IterableDataset):
    """Gives the numbers of a range that `worker_init_fn` may narrow."""

    def __init__(self, start, end):
        self.start = start
        self.end = end

    def __iter__(self):
        yield from range(self.start, self.end)


def narrow(worker):
    """Give a worker its part of a `Ranged`."""
    info = get_worker_info()
    dataset = info.dataset
    each = (dataset.end - dataset.start) // info.num_workers
    dataset.start += worker * each
    dataset.end = dataset.start + each


class Cursor(IterableDataset):
    """Is its own iterator, and begins again only where it is told to.

    Args:
        length: numbers that it gives.
        rewinds: `iter` begins at the first one again.
    """

    def __init__(self, length=10, *, rewinds=True):
        self.length = length
        self.rewinds = rewinds
        self.at = 0

    def __iter__(self):
        if self.rewinds:
            self.at = 0
        return self

    def __next__(self):
        if self.at >= self.length:
            raise StopIteration
        self.at += 1
        return self.at - 1


class Fickle(IterableDataset):
    """Draws its samples from the global generators, and never asks who reads them."""

    def __iter__(self):
        for _ in range(6):
            yield random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002
