"""Are two batches the same, in value and in type?"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader

import nbpipe


def same(one, other):
    """Say whether two batches are the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = one.dtype == other.dtype and one.layout == other.layout
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        return alike and torch.equal(one, other) and one.requires_grad == other.requires_grad
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def epochs(loader, count=2):
    """Give the batches of some epochs."""
    got = [list(loader) for _ in range(count)]
    getattr(loader, "close", int)()  # torch's has none
    return got


def of_torch(dataset, **options):
    """Give the batches of two epochs of torch's loader, with torch's seed 7."""
    torch.manual_seed(7)
    return epochs(DataLoader(dataset, **options))


def of_nbpipe(dataset, **options):
    """Give the batches of two epochs of our loader, with torch's seed 7."""
    torch.manual_seed(7)
    return epochs(nbpipe.DataLoader(dataset, **options))
