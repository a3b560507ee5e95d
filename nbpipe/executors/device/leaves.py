"""Leaves: the parts of a nested batch that go to a device."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...base.collate import BatchMemory
from ...base.tree import MAX_DEPTH, children, map_leaves, rebuild

_NUMERIC = frozenset("biufc")


def moved(batch: Any, move: Callable[[Any], Any], depth: int = 0) -> Any:
    """Build the same nesting with `move(leaf)` for each leaf that can be moved.

    What has a method `to` is one, whatever it holds: it knows best what of it goes where.
    """
    kind = type(batch)
    if kind is dict:
        held = [*batch.values()]
    elif kind is list or kind is tuple:
        held = batch
    elif _is_movable(batch):
        return move(batch)
    else:
        pairs = children(batch)
        if pairs is None:
            return batch
        held = [value for _, value in pairs]
    if depth > MAX_DEPTH:
        return map_leaves(lambda leaf: leaf, batch)  # raises
    values = [moved(value, move, depth + 1) for value in held]
    if all(map(operator.is_, values, held)):
        return batch
    return dict(zip(batch, values, strict=True)) if kind is dict else rebuild(batch, values)


def _is_movable(value: Any) -> bool:
    if callable(getattr(value, "to", None)):
        return not isinstance(value, type)
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return False
    return has_tensors(value.dtype)


def has_tensors(dtype: np.dtype[Any]) -> bool:
    """Return whether torch can hold arrays of a dtype: numbers except longdouble."""
    return dtype.kind in _NUMERIC and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def as_tensor(leaf: Any, memory: BatchMemory | None = None) -> Any:
    """Make a tensor of a numpy array, sharing its memory where that may be; else copy it.

    Args:
        leaf: an array, or what is returned as it is.
        memory: where to copy it to.
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    import torch

    array = np.asarray(leaf)
    native = array.dtype.newbyteorder("=")
    plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    if not plain or array.dtype != native:
        copy = None if memory is None else memory.array(array.shape, native)
        if copy is None:
            copy = np.empty(array.shape, native)
        np.copyto(copy, array)
        array = copy
    return torch.from_numpy(array)
