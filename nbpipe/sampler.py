"""Samplers: frozen recipes for the order in which a source is read by index.

An `IndexPlan` holds no numbers, only what to do. Resolved for an epoch it becomes a
`ResolvedOrder`: rows 0, 1, 2, ..., each with a path and an item, from any row on.
"""

from __future__ import annotations

import itertools
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from .errors import ArgumentError, ArgumentTypeError, LengthUnknownError
from .index_order import (
    LONGEST,
    CutOrder,
    ItemsOrder,
    JoinedOrder,
    Lengths,
    NumberedOrder,
    Order,
    RepeatOrder,
    Rows,
    ShardOrder,
    ShuffledOrder,
    Tail,
    paths_of,
)
from .seeding import Path, Permutation, order_generator

_FIRST_BLOCK = 64  # rows; blocks then double, so that the first row comes at once
_BLOCK = 4096
_TABLE_ROWS = 2**20  # a longer permutation is computed block by block instead of kept
_MOST_RANKS = 2**31


def default_rank() -> tuple[int, int] | None:
    """Give (rank, world_size) of `torch.distributed`, or None where it is not initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


@final
@dataclass(frozen=True, slots=True, eq=False)
class IndexPlan:
    """How to read a source by index; every method gives a new plan.

    A row's path is its index in the global order, before any `shard`: an int, or a tuple with one
    element more for the pass of each `repeat`. After `shuffle` it is the position in the shuffled
    order; `take` and `skip` keep the positions; rows that `shard` repeats get positions past the
    end. No two rows of an epoch, whatever their rank, share a path.

    Attributes:
        step: the last step of the plan.
    """

    step: _Step

    @classmethod
    def of(cls, items: Any) -> IndexPlan:
        """Read `items` from first to last; it has a length and takes indices.

        Raises:
            ArgumentTypeError: it has no length, or cannot be indexed.
        """
        if not hasattr(type(items), "__len__") or not hasattr(type(items), "__getitem__"):
            raise ArgumentTypeError(
                "items read by index must have __len__ and __getitem__, got "
                f"{type(items).__name__}; use list(items), or shuffle with buffer_size="
            )
        return cls(_Items(items))

    @staticmethod
    def concat(plans: Iterable[IndexPlan]) -> IndexPlan:
        """Read one plan after the other; the paths go on where those of the plan before end."""
        return IndexPlan(_Concat(tuple(plan.step for plan in plans)))

    def shuffle(self, seed: int = 0) -> IndexPlan:
        """Permute all rows; the permutation depends on (seed, epoch) and the pass alone.

        More than 2**20 rows are permuted in constant memory, by a keyed bijection.

        Raises:
            ArgumentError: `seed` is no int, or the rows never end.
        """
        seed = _whole("shuffle seed", seed, minimum=None)
        if self.step.endless:
            raise ArgumentError(
                "shuffle must follow rows that end, got repeat(None) before it; shuffle before "
                "repeat, or give buffer_size="
            )
        return IndexPlan(_Shuffle(self.step, seed))

    def shard(self, rank: int, world_size: int, tail: Tail = "pad") -> IndexPlan:
        """Keep rows rank, rank + world_size, ... of the global order.

        Args:
            rank: this rank, 0 to world_size - 1.
            world_size: number of ranks, 1 to 2**31.
            tail: where the rows do not divide: "pad" repeats rows from the start of the global
                order, "drop" leaves the last ones out, "uneven" gives some ranks one row more.

        Raises:
            ArgumentError: a value out of range.
        """
        world_size = _whole("shard world_size", world_size, minimum=1, maximum=_MOST_RANKS)
        rank = _whole("shard rank", rank, minimum=0)
        if rank >= world_size:
            raise ArgumentError(
                f"shard rank must be below world_size, got rank {rank} of {world_size}; ranks "
                "count from 0"
            )
        if tail not in ("pad", "drop", "uneven"):
            raise ArgumentError(f"shard tail must be 'pad', 'drop' or 'uneven', got {tail!r}")
        return IndexPlan(_Shard(self.step, rank, world_size, tail))

    def take(self, n: int) -> IndexPlan:
        """Keep the first `n` rows, an int of at least 0 (else ArgumentError)."""
        return IndexPlan(_Cut(self.step, 0, min(LONGEST, _whole("take n", n, minimum=0))))

    def skip(self, n: int) -> IndexPlan:
        """Leave out the first `n` rows, an int of at least 0 (else ArgumentError)."""
        return IndexPlan(_Cut(self.step, min(LONGEST, _whole("skip n", n, minimum=0)), None))

    def repeat(self, n: int | None = None) -> IndexPlan:
        """Read everything `n` times, or for ever; each pass shuffles anew.

        Raises:
            ArgumentError: `n` is not None or an int of at least 0.
        """
        times = None if n is None else _whole("repeat n", n, minimum=0)
        return IndexPlan(_Repeat(self.step, times))

    def enumerate(self) -> IndexPlan:
        """Make each item a pair (number of its row, item)."""
        return IndexPlan(_Enumerate(self.step))

    def length(self) -> int | None:
        """Count the rows, by the present lengths of the sources; None where they never end."""
        return self.resolve(0).length

    def resolve(self, epoch: int, passes: tuple[int, ...] = ()) -> ResolvedOrder:
        """Fix the order of one epoch, by the present lengths of the sources.

        Args:
            epoch: number of the epoch.
            passes: numbers of the passes of repeats around the plan, the nearest one first;
                they change what `shuffle` does as a `repeat` of the plan would, not the paths.
        """
        lengths = Lengths()
        return ResolvedOrder(self.step.open(_Epoch(epoch, passes, lengths)), lengths)

    def __repr__(self) -> str:
        return f"IndexPlan({self.step.words()})"


@final
class ResolvedOrder:
    """The order of one epoch.

    Attributes:
        length: number of rows; None where they never end.
    """

    __slots__ = ("_lengths", "_order", "length")

    def __init__(self, order: Order, lengths: Lengths) -> None:
        self.length = order.length
        self._order = order
        self._lengths = lengths

    def __len__(self) -> int:
        if self.length is None:
            raise LengthUnknownError(
                "the order has no length: repeat(None) never ends; use repeat(n) or take(n)"
            )
        return self.length

    def rows(self, start: int = 0) -> Iterator[tuple[Path, Any]]:
        """Iterate over (path, item) from row `start` on; items are read one at a time.

        Raises:
            ArgumentError: `start` is no row and not the end, or (at the end of the iteration, or
                on IndexError) a source changed its length.
        """
        row = _whole("start", start, minimum=0)
        if self.length is not None and row > self.length:
            raise ArgumentError(f"start must be an int in [0, {self.length}] rows, got {start!r}")
        run = self._order.run(row)
        return self._in_blocks(row) if run is None else itertools.chain(run, self._lengths.watch())

    def read(self, i: int) -> tuple[Path, Any]:
        """Give (path, item) of row `i`.

        Raises:
            IndexError: there is no such row.
            ArgumentError: `i` is not an int of at least 0, or a source changed its length.
        """
        row = _whole("row", i, minimum=0)
        if self.length is not None and row >= self.length:
            raise IndexError(f"row must be below {self.length}, the number of rows, got {i!r}")
        columns, items = self._order.pick(np.array([row], np.int64))
        try:
            return paths_of(columns)[0], next(items)
        except IndexError:
            self._lengths.check()
            raise

    def _in_blocks(self, row: int) -> Iterator[tuple[Path, Any]]:
        size = _FIRST_BLOCK
        end = LONGEST if self.length is None else self.length
        try:
            while row < end:
                stop = min(row + size, end)
                columns, items = self._order.pick(np.arange(row, stop, dtype=np.int64))
                yield from zip(paths_of(columns), items, strict=False)
                row, size = stop, min(2 * size, _BLOCK)
        except IndexError:
            self._lengths.check()
            raise
        self._lengths.check()


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What an order depends on beside its plan; `passes` of the nearest repeat first."""

    number: int
    passes: tuple[int, ...]
    lengths: Lengths


class _Step(ABC):
    """One step of a plan."""

    __slots__ = ()

    @property
    def inner(self) -> tuple[_Step, ...]:
        """The steps that this one reads."""
        return ()

    @property
    def endless(self) -> bool:
        """Whether the rows never end, unless there are none."""
        return any(step.endless for step in self.inner)

    @property
    def shuffles(self) -> bool:
        """Whether passes differ from one another."""
        return any(step.shuffles for step in self.inner)

    @abstractmethod
    def open(self, epoch: _Epoch) -> Order:
        """Make the order of `epoch`."""

    @abstractmethod
    def words(self) -> str:
        """Say what this step and those before it do."""


@dataclass(frozen=True, slots=True, eq=False)
class _Items(_Step):
    items: Any

    def open(self, epoch: _Epoch) -> Order:
        return ItemsOrder(self.items, epoch.lengths.of(self.items))

    def words(self) -> str:
        return type(self.items).__name__


@dataclass(frozen=True, slots=True, eq=False)
class _Concat(_Step):
    steps: tuple[_Step, ...]

    @property
    def inner(self) -> tuple[_Step, ...]:
        return self.steps

    def open(self, epoch: _Epoch) -> Order:
        return JoinedOrder([step.open(epoch) for step in self.steps])

    def words(self) -> str:
        return f"concat of {len(self.steps)}"


@dataclass(frozen=True, slots=True, eq=False)
class _OneInner(_Step):
    step: _Step

    @property
    def inner(self) -> tuple[_Step, ...]:
        return (self.step,)


@dataclass(frozen=True, slots=True, eq=False)
class _Shuffle(_OneInner):
    seed: int

    @property
    def shuffles(self) -> bool:
        return True

    def open(self, epoch: _Epoch) -> Order:
        child = self.step.open(epoch)
        length = child.length or 0

        def permutation() -> Rows | Permutation:
            generator = order_generator(self.seed, epoch.number, epoch.passes or 0)
            long = length > _TABLE_ROWS
            return Permutation(length, generator) if long else generator.permutation(length)

        return ShuffledOrder(child, permutation)

    def words(self) -> str:
        return f"{self.step.words()}, shuffle {self.seed}"


@dataclass(frozen=True, slots=True, eq=False)
class _Shard(_OneInner):
    rank: int
    world_size: int
    tail: Tail

    def open(self, epoch: _Epoch) -> Order:
        return ShardOrder(self.step.open(epoch), self.rank, self.world_size, self.tail)

    def words(self) -> str:
        return f"{self.step.words()}, shard {self.rank} of {self.world_size} ({self.tail})"


@dataclass(frozen=True, slots=True, eq=False)
class _Cut(_OneInner):
    start: int
    count: int | None  # None: all that follow

    @property
    def endless(self) -> bool:
        return self.count is None and self.step.endless

    def open(self, epoch: _Epoch) -> Order:
        return CutOrder(self.step.open(epoch), self.start, self.count)

    def words(self) -> str:
        verb = f"skip {self.start}" if self.count is None else f"take {self.count}"
        return f"{self.step.words()}, {verb}"


@dataclass(frozen=True, slots=True, eq=False)
class _Repeat(_OneInner):
    times: int | None

    @property
    def endless(self) -> bool:
        return self.times is None or (self.times > 0 and self.step.endless)

    def open(self, epoch: _Epoch) -> Order:
        def open_pass(number: int) -> Order:
            return self.step.open(_Epoch(epoch.number, (number, *epoch.passes), epoch.lengths))

        return RepeatOrder(open_pass, self.times, shuffles=self.step.shuffles)

    def words(self) -> str:
        return f"{self.step.words()}, repeat" + ("" if self.times is None else f" {self.times}")


@dataclass(frozen=True, slots=True, eq=False)
class _Enumerate(_OneInner):
    def open(self, epoch: _Epoch) -> Order:
        return NumberedOrder(self.step.open(epoch))

    def words(self) -> str:
        return f"{self.step.words()}, enumerate"


def _whole(what: str, value: Any, *, minimum: int | None, maximum: int | None = None) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    low = number is not None and minimum is not None and number < minimum
    if number is None or low or (maximum is not None and number > maximum):
        rule = "" if minimum is None else f" of at least {minimum}"
        rule = rule if maximum is None else f" in [{minimum}, {maximum}]"
        raise ArgumentError(f"{what} must be an int{rule}, got {value!r}")
    return number
