"""Index plans: frozen recipes for the order in which a source is read by index."""

from __future__ import annotations

import itertools
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.random import Generator

from ..base.seeding import Path, Permutation, order_generator
from ..errors import ArgumentError, ArgumentTypeError, LengthUnknownError
from .index import (
    LONGEST,
    ClaimOrder,
    CutOrder,
    Draw,
    ItemsOrder,
    JoinedOrder,
    Lengths,
    NumberedOrder,
    Order,
    Picked,
    RepeatOrder,
    SampledOrder,
    ShardOrder,
    ShuffledOrder,
    Store,
    Tail,
    paths_of,
)
from .remaining import Remaining, Rows

# -- Index steps: what a plan of an order is made of; each opens an order for one epoch ------------
_TABLE_ROWS = 2**20  # a longer permutation is computed block by block instead of kept


@dataclass(frozen=True, slots=True)
class PlanEpoch:
    """What an order depends on beside its plan; `passes` of the nearest repeat first."""

    number: int
    passes: tuple[int, ...]
    lengths: Lengths


class PlanStep(ABC):
    """One step of a plan."""

    __slots__ = ()

    @property
    def inner(self) -> tuple[PlanStep, ...]:
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

    @property
    def sharded(self) -> bool:
        """Whether the rows are part of a global order."""
        return any(step.sharded for step in self.inner)

    @abstractmethod
    def open(self, epoch: PlanEpoch) -> Order:
        """Make the order of `epoch`."""

    @abstractmethod
    def words(self) -> str:
        """Tell what this step and those before it do."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ItemsStep(PlanStep):
    """A source from first to last."""

    items: Any

    def open(self, epoch: PlanEpoch) -> Order:
        """Read the source."""
        return ItemsOrder(self.items, epoch.lengths.of(self.items))

    def words(self) -> str:
        """Tell what this step and those before it do."""
        return type(self.items).__name__


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ConcatStep(PlanStep):
    """One order after the other."""

    steps: tuple[PlanStep, ...]

    @property
    def inner(self) -> tuple[PlanStep, ...]:
        """The steps that this one reads."""
        return self.steps

    def open(self, epoch: PlanEpoch) -> Order:
        """Join the orders."""
        return JoinedOrder([step.open(epoch) for step in self.steps])

    def words(self) -> str:
        """Tell what this step and those before it do."""
        return f"concat of {len(self.steps)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InnerStep(PlanStep):
    """A step that reads one other."""

    step: PlanStep

    @property
    def inner(self) -> tuple[PlanStep, ...]:
        """The steps that this one reads."""
        return (self.step,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShuffleStep(InnerStep):
    """A permutation of all rows."""

    seed: int

    @property
    def shuffles(self) -> bool:
        """Whether passes differ from one another."""
        return True

    def open(self, epoch: PlanEpoch) -> Order:
        """Make the permutation when the first row is picked."""
        child = self.step.open(epoch)
        length = child.length or 0

        def permutation() -> Rows | Permutation:
            generator = order_generator(self.seed, epoch.number, epoch.passes or 0)
            long = length > _TABLE_ROWS
            return Permutation(length, generator) if long else generator.permutation(length)

        return ShuffledOrder(child, permutation)

    def words(self) -> str:
        """Tell what this step and those before it do."""
        return f"{self.step.words()}, shuffle {self.seed}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShardStep(InnerStep):
    """One rank's part."""

    rank: int
    world_size: int
    tail: Tail

    @property
    def sharded(self) -> bool:
        """Whether the rows are part of a global order."""
        return True

    def open(self, epoch: PlanEpoch) -> Order:
        """Keep this rank's rows."""
        return ShardOrder(self.step.open(epoch), self.rank, self.world_size, self.tail)

    def words(self) -> str:
        """Tell what this step and those before it do."""
        return f"{self.step.words()}, shard {self.rank} of {self.world_size} ({self.tail})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CutStep(InnerStep):
    """Rows from `start` on."""

    start: int
    count: int | None  # None: all that follow

    @property
    def endless(self) -> bool:
        """Whether the rows never end, unless there are none."""
        return self.count is None and self.step.endless

    def open(self, epoch: PlanEpoch) -> Order:
        """Cut the order."""
        return CutOrder(self.step.open(epoch), self.start, self.count)

    def words(self) -> str:
        """Tell what this step and those before it do."""
        verb = f"skip {self.start}" if self.count is None else f"take {self.count}"
        return f"{self.step.words()}, {verb}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RepeatStep(InnerStep):
    """Passes over all rows."""

    times: int | None

    @property
    def endless(self) -> bool:
        """Whether the rows never end, unless there are none."""
        return self.times is None or (self.times > 0 and self.step.endless)

    def open(self, epoch: PlanEpoch) -> Order:
        """Open the order anew for each pass."""

        def open_pass(number: int) -> Order:
            return self.step.open(PlanEpoch(epoch.number, (number, *epoch.passes), epoch.lengths))

        return RepeatOrder(open_pass, self.times, shuffles=self.step.shuffles)

    def words(self) -> str:
        """Tell what this step and those before it do."""
        return f"{self.step.words()}, repeat" + ("" if self.times is None else f" {self.times}")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EnumerateStep(InnerStep):
    """Items with their numbers."""

    def open(self, epoch: PlanEpoch) -> Order:
        """Number the rows."""
        return NumberedOrder(self.step.open(epoch))

    def words(self) -> str:
        """Tell what this step and those before it do."""
        return f"{self.step.words()}, enumerate"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SampleStep(InnerStep):
    """Rows drawn by weight."""

    draw: Draw
    count: int | None  # None: as many as there are rows
    seed: int

    @property
    def shuffles(self) -> bool:
        """Whether passes differ from one another."""
        return True

    def open(self, epoch: PlanEpoch) -> Order:
        """Draw when the first row is picked."""

        def generator() -> Generator:
            return order_generator(self.seed, epoch.number, epoch.passes or 0).spawn(1)[0]

        return SampledOrder(self.step.open(epoch), self.draw, self.count, generator)

    def words(self) -> str:
        """Tell what this step and those before it do."""
        count = "" if self.count is None else f" {self.count}"
        return f"{self.step.words()}, sample{count} {self.seed}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClaimStep(InnerStep):
    """Chunks of rows, each for the rank that comes first."""

    chunk: int
    store: Store | None
    name: str

    def open(self, epoch: PlanEpoch) -> Order:
        """Name the cursor by pipeline, epoch and passes."""
        key = f"{self.name}/{epoch.number}/{'/'.join(map(str, epoch.passes))}"
        return ClaimOrder(self.step.open(epoch), self.chunk, self.store, key)

    def words(self) -> str:
        """Tell what this step and those before it do."""
        return f"{self.step.words()}, claim {self.chunk}"


# -- What is left of an index order, from a place in its middle on ---------------------------------
class RestOrder(Order):
    """The rows of another order that are still wanted, with the paths they had."""

    __slots__ = ("_child", "_rest")

    def __init__(self, child: Order, rest: Remaining) -> None:
        self._follow(child)
        self.straight = False
        self._child = child
        self._rest = rest
        if child.length is not None:
            self.length = _count(rest, child.length)

    def run(self, row: int) -> Iterator[tuple[Path, Any]] | None:
        """Iterate in C where nothing but the beginning is left out."""
        return None if self._rest.gaps else self._child.run(self._rest.start + row)

    def pick(self, rows: Rows) -> Picked:
        """Return the child's rows that are wanted."""
        return self._child.pick(self._rest.pick(rows))


def _count(rest: Remaining, length: int) -> int:
    gaps = sum(min(end, length) - first for first, end in rest.gaps if first < length)
    return max(0, length - rest.start - gaps)


@dataclass(frozen=True, slots=True, eq=False)
class LeftStep(InnerStep):
    """What is left of the rows of the step before."""

    rest: Remaining

    def open(self, epoch: PlanEpoch) -> Order:
        """Leave out what is not wanted."""
        return RestOrder(self.step.open(epoch), self.rest)

    def words(self) -> str:
        """Tell where it begins."""
        return f"{self.step.words()}, from row {self.rest.start}"


# -- Samplers: frozen recipes for the order in which a source is read by index ---------------------
# An `IndexPlan` holds no numbers, only what to do. Resolved for an epoch it becomes a
# `ResolvedOrder`: rows 0, 1, 2, ..., each with a path and an item, from any row on.
_FIRST_BLOCK = 64  # rows; blocks then double, so that the first row comes at once
_BLOCK = 4096
_MOST_RANKS = 2**31


def default_rank() -> tuple[int, int] | None:
    """Return (rank, world_size) of `torch.distributed`, or None where it is not initialised."""
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

    step: PlanStep

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
        return cls(ItemsStep(items))

    @staticmethod
    def concat(plans: Iterable[IndexPlan]) -> IndexPlan:
        """Read one plan after the other; the paths go on where those of the plan before end."""
        return IndexPlan(ConcatStep(tuple(plan.step for plan in plans)))

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
        return IndexPlan(ShuffleStep(self.step, seed))

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
        return IndexPlan(ShardStep(self.step, rank, world_size, tail))

    def take(self, n: int) -> IndexPlan:
        """Keep the first `n` rows, an int of at least 0 (else ArgumentError)."""
        return IndexPlan(CutStep(self.step, 0, min(LONGEST, _whole("take n", n, minimum=0))))

    def skip(self, n: int) -> IndexPlan:
        """Leave out the first `n` rows, an int of at least 0 (else ArgumentError)."""
        return IndexPlan(CutStep(self.step, min(LONGEST, _whole("skip n", n, minimum=0)), None))

    def repeat(self, n: int | None = None) -> IndexPlan:
        """Read everything `n` times, or for ever; each pass shuffles anew.

        Raises:
            ArgumentError: `n` is not None or an int of at least 0.
        """
        times = None if n is None else _whole("repeat n", n, minimum=0)
        return IndexPlan(RepeatStep(self.step, times))

    def sample(self, draw: Draw, n: int | None = None, seed: int = 0) -> IndexPlan:
        """Draw `n` rows by weight, as many as there are where None; anew in each epoch and pass.

        Raises:
            ArgumentError: `n` or `seed` is no int, or the rows never end or are part of a global
                order. When a row is read: their number is not that of the weights.
        """
        seed = _whole("sample seed", seed, minimum=None)
        count = None if n is None else _whole("sample n", n, minimum=0, maximum=LONGEST)
        if self.step.endless:
            raise ArgumentError(
                "sample must follow rows that end, got repeat(None) before it; sample before repeat"
            )
        self._check_global("sample")
        return IndexPlan(SampleStep(self.step, draw, count, seed))

    def claim(self, chunk: int, store: Store | None, name: str) -> IndexPlan:
        """Take chunks of the rows from a cursor that all ranks share; nothing may follow.

        Args:
            chunk: rows taken at a time, an int of at least 1.
            store: holds the cursor; None for that of the default process group.
            name: tells apart the cursors of one job.

        Raises:
            ArgumentError: a value out of range, or the rows are part of a global order.
        """
        chunk = _whole("claim chunk", chunk, minimum=1, maximum=LONGEST)
        self._check_global("claim")
        return IndexPlan(ClaimStep(self.step, chunk, store, name))

    def _check_global(self, verb: str) -> None:
        if self.step.sharded:
            raise ArgumentError(
                f"{verb} must come before shard, got rows of one rank; all ranks {verb} from the "
                "same global order"
            )

    @property
    def claimed(self) -> bool:
        """Whether the rows are claimed, and so cannot be read in any order."""
        return isinstance(self.step, ClaimStep)

    def enumerate(self) -> IndexPlan:
        """Make each item a pair (number of its row, item)."""
        return IndexPlan(EnumerateStep(self.step))

    def rest(self, rest: Remaining) -> IndexPlan:
        """Read only what is left of the rows; they keep their paths."""
        return self if rest.is_all else IndexPlan(LeftStep(self.step, rest))

    def rest_of_world(self, rest: Remaining) -> IndexPlan:
        """Read only what is left of the rows in front of the shard or claim that ends the plan."""
        last = self.step
        if rest.is_all or not isinstance(last, ShardStep | ClaimStep):
            return self
        return IndexPlan(replace(last, step=LeftStep(last.step, rest)))

    def length(self) -> int | None:
        """Count the rows, by the present lengths of the sources; None where they never end.

        Raises:
            LengthUnknownError: the rows are claimed.
        """
        if self.claimed:
            raise LengthUnknownError(
                "claim gives each rank as many items as it has time for, so their number is not "
                "known; that of all ranks is the len() of the pipeline before claim"
            )
        return self.resolve(0).length

    def resolve(self, epoch: int, passes: tuple[int, ...] = ()) -> ResolvedOrder:
        """Fix the order of one epoch, by the present lengths of the sources.

        Args:
            epoch: number of the epoch.
            passes: numbers of the passes of repeats around the plan, the nearest one first;
                they change what `shuffle` does as a `repeat` of the plan would, not the paths.
        """
        lengths = Lengths()
        return ResolvedOrder(self.step.open(PlanEpoch(epoch, passes, lengths)), lengths)

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

    def unclaimed(self, rest: Remaining) -> Remaining:
        """Tell which rows in front of a claim are wanted, given which of those it read are."""
        order = self._order
        return order.wanted(rest) if isinstance(order, ClaimOrder) else Remaining()

    def read(self, i: int) -> tuple[Path, Any]:
        """Return (path, item) of row `i`.

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
