"""Indices that come from outside the pipeline, for one epoch."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, final

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError
from ..executors.remote_errors import PackedError, pack_error
from ..operations import as_int
from ..text import shortened

_BLOCK = 4096  # numbers of an array that are taken out at once


@final
class NotAnIndex:
    """Takes the place of an index that was no int; the source refuses it when it comes to it.

    Args:
        value: what was given.
    """

    __slots__ = ("text",)

    def __init__(self, value: object) -> None:
        self.text = shortened(repr(value))

    def __repr__(self) -> str:
        return self.text


@final
class Broken:
    """Takes the place of an index: whatever gave them raised; it may cross to another process.

    Args:
        error: what was raised.
    """

    __slots__ = ("_packed",)

    def __init__(self, error: BaseException) -> None:
        self._packed: PackedError = pack_error(error)

    @property
    def error(self) -> BaseException:
        """The exception, with its traceback as a note."""
        return self._packed.unpack()


class NothingReadyError(Exception):
    """There is no index now, but there may be one later."""


Index: TypeAlias = int | NotAnIndex | Broken


class GivenOrder(ABC):
    """The order of one epoch, as a list of indices that the source is to read."""

    @property
    @abstractmethod
    def count(self) -> int | None:
        """Number of indices; None where it is not known before they are given."""

    @abstractmethod
    def draw(self) -> Iterator[Index]:
        """Give the indices one by one; called once, in the thread that reads the source.

        Raises:
            NothingReadyError: there is none now; the iterator can be asked again.
        """

    @property
    @abstractmethod
    def inner(self) -> object:
        """What is to be closed when the epoch is over and nothing draws any more."""

    @abstractmethod
    def close(self, error: BaseException | None) -> None:
        """Hear that the epoch is over, and what ended it before its time; from any thread."""


@final
class Listed(GivenOrder):
    """The indices of an iterable, drawn as the source comes to them.

    Args:
        indices: an iterable of ints.

    Raises:
        ArgumentTypeError: it cannot be iterated, has no order, or is a generator that was read.
    """

    def __init__(self, indices: Iterable[Any]) -> None:
        self._indices = checked("iterate indices", indices)
        self._inner: object = None

    @property
    def count(self) -> int | None:
        """The length of the iterable, where it has one."""
        try:
            return len(self._indices)
        except (TypeError, NotImplementedError):
            return None

    def draw(self) -> Iterator[Index]:
        """Iterate."""
        indices = self._indices
        if is_array(indices):
            return _of_array(indices)
        numbers = iter(indices)
        if numbers is not indices:  # else it is the user's own, who may go on with it
            self._inner = numbers
        return map(as_index, numbers)

    def draw_lots(self, size: int) -> Iterator[list[Index]]:
        """Give `size` indices at once where that keeps nobody waiting, else one by one."""
        ready = is_array(self._indices) or isinstance(self._indices, list | tuple | range)
        lot: list[Index] = []
        for index in self.draw():
            lot.append(index)
            if not ready or len(lot) == size:
                yield lot
                lot = []
        if lot:
            yield lot

    @property
    def inner(self) -> object:
        """The iterator, where it was made here."""
        return self._inner

    def close(self, error: BaseException | None) -> None:
        """Leave the iterator to whoever draws from it."""


def checked(what: str, indices: Any) -> Any:
    """Check that `indices` can be iterated, and in an order.

    Raises:
        ArgumentTypeError: it cannot; the message starts with `what`.
    """
    orderly = hasattr(indices, "__iter__") or hasattr(indices, "__getitem__")
    if isinstance(indices, str | bytes | Mapping | AbstractSet) or not orderly:
        raise ArgumentTypeError(
            f"{what} must be an iterable of ints in an order, got {shortened(repr(indices))}; "
            "give a list, an array, or anything that yields ints"
        )
    if getattr(indices, "shape", None) == ():
        raise ArgumentTypeError(
            f"{what} must be an iterable of ints in an order, got the number {indices!r}; give "
            "a list of it"
        )
    if inspect.isgenerator(indices) and inspect.getgeneratorstate(indices) == inspect.GEN_CLOSED:
        raise ArgumentTypeError(
            f"{what} must be something that was not read yet, got a generator that was read to "
            "its end before; make a new one for each epoch"
        )
    return indices


def is_array(indices: object) -> bool:
    """Say whether the numbers lie in an array or a tensor."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return isinstance(indices, np.ndarray) or (tensor is not None and isinstance(indices, tensor))


def as_index(value: object) -> Index:
    """Give an int as it is, or what stands for anything else."""
    number = as_int(value)
    return NotAnIndex(value) if number is None else number


def lot_of(indices: Any) -> Sequence[Index]:
    """Give all of some indices.

    Raises:
        ArgumentTypeError: they cannot be iterated, or have no order.
    """
    found = checked("load indices", indices)
    return list(_of_array(found) if is_array(found) else map(as_index, found))


def _of_array(numbers: Any) -> Iterator[Index]:
    """Take the numbers out block by block: one by one costs ten times as much."""
    for start in range(0, len(numbers), _BLOCK):
        yield from map(as_index, numbers[start : start + _BLOCK].tolist())


def index_error(ordinal: int, index: object, length: int, source: str) -> ArgumentError:
    """Make the error for an index that the source does not have."""
    rule = f"an int in [0, {length - 1}]" if length else "absent"
    return ArgumentError(
        f"index number {ordinal} of the epoch must be {rule}, got {index!r}: source {source!r} "
        f"has {length} items, counted from 0"
    )
