"""Index plans: frozen recipes for the order in which a source is read by index."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from ..base.seeding import Path
from ..errors import ArgumentError, LengthUnknownError
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
    PlanEpoch,
    RepeatOrder,
    RestOrder,
    SampledOrder,
    ShardOrder,
    ShuffledOrder,
    Store,
    Tail,
    paths_of,
)
from .ranges import IndexRanges

# An `IndexPlan` holds no numbers, only what to do. Resolved for an epoch it becomes a
# `ResolvedOrder`: rows 0, 1, 2, ..., each with a path and an item, from any row on.
_FIRST_BLOCK = 64  # rows; blocks then double, so that the first row comes at once
_BLOCK = 4096
_STRIDE = 2**16  # rows that are searched at once
_SEARCHED = 2**22  # rows in which a path is looked for


def default_rank() -> tuple[int, int] | None:
    """Return (rank, world_size) of `torch.distributed`, or None where it is not initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IndexPlan:
    """How to read a source by index; every method gives a new plan, of arguments that were checked.

    A row's path is its index in the global order, before any `shard`: an int, or a tuple with one
    element more for the pass of each `repeat`. After `shuffle` it is the position in the shuffled
    order; `take` and `skip` keep the positions; rows that `shard` repeats get positions past the
    end. No two rows of an epoch, whatever their rank, share a path.

    Attributes:
        step: the class of the last order.
        arguments: of that: the plans that it reads first.
        endless: the rows never end, unless there are none.
        shuffles: passes differ from one another.
        sharded: the rows are part of a global order.
    """

    step: Callable[..., Order]
    arguments: tuple[Any, ...]
    endless: bool = False
    shuffles: bool = False
    sharded: bool = False

    @classmethod
    def of(cls, items: Any) -> IndexPlan:
        """Read `items` from first to last; it has a length and takes indices."""
        return cls(ItemsOrder, (items,))

    @staticmethod
    def concat(plans: Iterable[IndexPlan]) -> IndexPlan:
        """Read one plan after the other; its paths continue after those of the plan before."""
        parts = tuple(plans)
        return IndexPlan(
            JoinedOrder,
            parts,
            endless=any(plan.endless for plan in parts),
            shuffles=any(plan.shuffles for plan in parts),
            sharded=any(plan.sharded for plan in parts),
        )

    def _then(self, step: Callable[..., Order], *arguments: Any, **flags: bool) -> IndexPlan:
        return replace(self, step=step, arguments=(self, *arguments), **flags)

    def shuffle(self, seed: int = 0) -> IndexPlan:
        """Permute all rows; the permutation depends on (seed, epoch) and the pass alone.

        More than 2**20 rows are permuted in constant memory, by a keyed bijection.

        Raises:
            ArgumentError: the rows never end.
        """
        self._check_end("shuffle", ", or give buffer_size=")
        return self._then(ShuffledOrder, seed, shuffles=True)

    def shard(self, rank: int, world_size: int, tail: Tail = "pad") -> IndexPlan:
        """Keep rows rank, rank + world_size, ... of the global order.

        Args:
            rank: this rank, 0 to world_size - 1.
            world_size: number of ranks.
            tail: where the rows do not divide: "pad" repeats rows from the start of the global
                order, "drop" leaves the last ones out, "uneven" gives some ranks one row more.
        """
        return self._then(ShardOrder, rank, world_size, tail, sharded=True)

    def take(self, n: int) -> IndexPlan:
        """Keep the first `n` rows."""
        return self._then(CutOrder, 0, min(LONGEST, n), endless=False)

    def skip(self, n: int) -> IndexPlan:
        """Leave out the first `n` rows."""
        return self._then(CutOrder, min(LONGEST, n), None)

    def repeat(self, n: int | None = None) -> IndexPlan:
        """Read everything `n` times, or for ever; each pass shuffles again."""
        return self._then(RepeatOrder, n, endless=n is None or (n > 0 and self.endless))

    def sample(self, draw: Draw, n: int | None = None, seed: int = 0) -> IndexPlan:
        """Draw `n` rows by weight, as many as there are where None; again in each epoch and pass.

        Raises:
            ArgumentError: the rows never end or are part of a global order. When a row is read:
                their number is not that of the weights.
        """
        self._check_end("sample")
        self._check_global("sample")
        return self._then(SampledOrder, draw, n, seed, shuffles=True)

    def claim(self, chunk: int, store: Store | None, name: str) -> IndexPlan:
        """Take chunks of the rows from a cursor that all ranks share; nothing may follow.

        Args:
            chunk: rows taken at a time.
            store: holds the cursor; None for that of the default process group.
            name: tells apart the cursors of one job.

        Raises:
            ArgumentError: the rows are part of a global order.
        """
        self._check_global("claim")
        return self._then(ClaimOrder, chunk, store, name)

    def _check_end(self, verb: str, way_out: str = "") -> None:
        if self.endless:
            raise ArgumentError(
                f"{verb} must follow rows that end, got repeat(None) before it; {verb} before "
                f"repeat{way_out}"
            )

    def _check_global(self, verb: str) -> None:
        if self.sharded:
            raise ArgumentError(
                f"{verb} must come before shard, got rows of one rank; all ranks {verb} from the "
                "same global order"
            )

    @property
    def claimed(self) -> bool:
        """Whether the rows are claimed, and so cannot be read in any order."""
        return self.step is ClaimOrder

    def enumerate(self) -> IndexPlan:
        """Make each item a pair (number of its row, item)."""
        return self._then(NumberedOrder)

    def rest(self, rest: IndexRanges) -> IndexPlan:
        """Read only the remaining rows; they keep their paths."""
        return self if rest.is_all else self._then(RestOrder, rest)

    def rest_of_world(self, rest: IndexRanges) -> IndexPlan:
        """Read only the remaining rows before the shard or claim that ends the plan."""
        if rest.is_all or self.step not in (ShardOrder, ClaimOrder):
            return self
        before, *arguments = self.arguments
        return replace(self, arguments=(before.rest(rest), *arguments))

    def of_indices(self, lengths: Lengths) -> IndexPlan:
        """Return the plan that gives (source, index) in the place of each item.

        Indices keep their paths; what `enumerate` puts before an item is left out.

        Args:
            lengths: of the sources.
        """
        if self.step is ItemsOrder:
            (items,) = self.arguments
            return replace(self, arguments=(SourceIndices(items, lengths.of(items)),))
        if self.step is NumberedOrder:
            inner: IndexPlan = self.arguments[0]
            return inner.of_indices(lengths)
        parts = (
            part.of_indices(lengths) if isinstance(part, IndexPlan) else part
            for part in self.arguments
        )
        return replace(self, arguments=tuple(parts))

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

    def open(self, epoch: PlanEpoch) -> Order:
        """Make the order of one epoch."""
        return self.step(epoch, *self.arguments)

    def resolve(
        self, epoch: int, passes: tuple[int, ...] = (), lengths: Lengths | None = None
    ) -> ResolvedOrder:
        """Fix the order of one epoch, by the present lengths of the sources.

        Args:
            epoch: number of the epoch.
            passes: numbers of the passes of repeats around the plan, the nearest one first;
                they change what `shuffle` does as a `repeat` of the plan would, not the paths.
            lengths: those that the sources had, where these are not the present ones.
        """
        lengths = lengths or Lengths()
        return ResolvedOrder(self.open(PlanEpoch(epoch, passes, lengths)), lengths)


@final
class SourceIndices(Sequence[tuple[Any, int]]):
    """Stands for the items of a source: which source it is, and the index.

    Args:
        items: the source.
        length: how many there are, or were.
    """

    def __init__(self, items: Any, length: int) -> None:
        self._items = items
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._items, index


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

    def rows(self, start: int = 0) -> Iterator[tuple[Path, Any]]:
        """Iterate over (path, item) from row `start` on; items are read one at a time.

        Raises:
            ArgumentError: at the end of the iteration, or on IndexError: a source changed its
                length.
        """
        run = self._order.run(start)
        if run is None:
            return self._in_blocks(start)
        return itertools.chain(run, self._lengths.watch())

    def columns(self) -> tuple[Sequence[Path], Iterator[Any]] | None:
        """Return all paths and an iterator over the items, where both are read in C; else None.

        Raises:
            ArgumentError: at the end of the iteration: a source changed its length.
        """
        columns = self._order.columns(0)
        if columns is None:
            return None
        return columns[0], itertools.chain(columns[1], self._lengths.watch())

    def path_at(self, row: int) -> Path:
        """Return the path of a row that is being read; after the last one, a path that none has.

        The reader may be another thread.
        """
        first, paths = self._order.reading
        return paths[row - first] if 0 <= row - first < len(paths) else self._order.end

    def item(self, row: int) -> Any:
        """Read the item of one row."""
        return next(self._order.pick(np.array([row], np.int64))[1])

    def find(self, path: tuple[int, ...]) -> int | None:
        """Return the row whose path is `path`, or what it begins with; None where there is none.

        It looks through 2**22 rows at most, beginning where it is in an order of one rank.
        """
        end = _SEARCHED if self.length is None else min(self.length, _SEARCHED)
        likely = min(path[0], end) // _STRIDE * _STRIDE
        for start in (likely, *range(0, end, _STRIDE)):
            rows = np.arange(start, min(start + _STRIDE, end), dtype=np.int64)
            columns = self._order.pick(rows)[0] if len(rows) else ()
            at = np.flatnonzero(columns[0] == path[0]) if columns else ()
            for place in at:
                found = tuple(int(column[place]) for column in columns if column[place] >= 0)
                if found == path[: len(found)]:
                    return int(rows[place])
        return None

    def unclaimed(self, rest: IndexRanges) -> IndexRanges:
        """Return which rows in front of a claim are wanted, given which of those it read are."""
        order = self._order
        return order.wanted(rest) if isinstance(order, ClaimOrder) else IndexRanges()

    def _in_blocks(self, row: int) -> Iterator[tuple[Path, Any]]:
        size = _FIRST_BLOCK
        end = LONGEST if self.length is None else self.length
        try:
            while row < end:
                stop = min(row + size, end)
                columns, items = self._order.pick(np.arange(row, stop, dtype=np.int64))
                paths = paths_of(columns)
                self._order.reading = row, paths
                yield from zip(paths, items, strict=False)
                row, size = stop, min(2 * size, _BLOCK)
        except IndexError:
            self._lengths.check()
            raise
        self._lengths.check()
