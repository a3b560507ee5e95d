"""Index orders: rows in random access, and which of them are still wanted."""

from __future__ import annotations

import functools
import itertools
import operator
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, final

import numpy as np
from numpy.typing import NDArray

from ..base.format import shortened
from ..base.seeding import Path, Permutation
from ..errors import ArgumentError, StateError

# -- Index orders: rows in random access, each with a path and an item of a source -----------------
# `sampler.py` says what to do; the classes here are what it opens for one epoch. An order is asked
# for blocks of rows, as int64 arrays of shape (n,), and gives the columns of their paths and a lazy
# iterator over their items: indices are computed in blocks, items are read one at a time.
Tail: TypeAlias = Literal["pad", "drop", "uneven"]
Rows: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = tuple[Rows, ...]  # one for each element of a path; -1 where it has none
Picked: TypeAlias = tuple[Columns, Iterator[Any]]

LONGEST = 2**62  # rows; no epoch gets there, and int64 holds it
_KEPT_ROWS = 2**22  # of the passes that stay at hand, beside the last two
_KEPT_PASSES = 64


class Lengths:
    """The sources' lengths as an epoch found them; each source is asked once."""

    __slots__ = ("_read",)

    def __init__(self) -> None:
        self._read: dict[int, tuple[Any, int]] = {}

    def of(self, items: Any) -> int:
        """Return the length of `items` at the epoch's start."""
        known = self._read.get(id(items))
        if known is None:
            known = self._read[id(items)] = (items, len(items))
        return known[1]

    def check(self) -> None:
        """Raise ArgumentError where a source has another length now."""
        for items, before in self._read.values():
            now = len(items)
            if now != before:
                raise ArgumentError(
                    f"the length of a source must stay the same during an epoch, got {before} "
                    f"at its start and {now} now ({type(items).__name__}); change it between "
                    "epochs, or give the source a copy"
                )

    def watch(self) -> Iterator[tuple[Path, Any]]:
        """Iterate over nothing, checking at the end of what stands before."""
        self.check()
        yield from ()


class Order(ABC):
    """Rows of one epoch.

    Padded rows get paths that no row has: `end + offset + stride * j` for j = 0, 1, 2, ..., where
    ranks have strides that interlock.

    Attributes:
        length: number of rows; None where they never end.
        end: first elements of paths are below it, whatever the rank.
        stride, offset: say which numbers from `end` on are free for this rank.
        straight: the paths are the successive ints before `end`.
        sharded: the rows are part of a global order, whose paths they keep.
    """

    __slots__ = ("end", "length", "offset", "sharded", "straight", "stride")

    length: int | None
    end: int
    stride: int
    offset: int
    straight: bool
    sharded: bool

    @abstractmethod
    def pick(self, rows: Rows) -> Picked:
        """Return path columns and items for `rows`, at least one."""

    def run(self, row: int) -> Iterator[tuple[Path, Any]] | None:
        """Iterate in C from `row` on, where that needs no blocks."""
        return None

    def _start_straight(self, length: int) -> None:
        self.length = self.end = length
        self.stride, self.offset = 1, 0
        self.straight, self.sharded = True, False

    def _follow(self, child: Order) -> None:
        self.length, self.end = child.length, child.end
        self.stride, self.offset = child.stride, child.offset
        self.straight, self.sharded = child.straight, child.sharded


class ItemsOrder(Order):
    """A source from first to last."""

    __slots__ = ("_get", "_items")

    def __init__(self, items: Any, length: int) -> None:
        self._start_straight(length)
        self._items = items
        self._get: Callable[[int], Any] = functools.partial(operator.getitem, items)

    def run(self, row: int) -> Iterator[tuple[Path, Any]] | None:
        """Iterate over builtin sequences by themselves; others may read as they are indexed."""
        items = self._items
        if type(items) is range:
            return zip(range(row, self.end), items[row:], strict=False)
        if type(items) is list or type(items) is tuple:
            return zip(range(row, self.end), itertools.islice(items, row, None), strict=False)
        return None

    def pick(self, rows: Rows) -> Picked:
        """Read each item when it is asked for."""
        return (rows,), map(self._get, rows.tolist())


class ShuffledOrder(Order):
    """A permutation; rows get new positions, but those of a shard keep their global ones."""

    __slots__ = ("_child", "_images", "_permutation")

    def __init__(self, child: Order, permutation: Callable[[], Rows | Permutation]) -> None:
        if child.sharded:
            self._follow(child)
            self.straight = False
        else:
            self._start_straight(child.length or 0)
        self._child = child
        self._permutation = permutation
        self._images: Rows | Permutation | None = None

    def pick(self, rows: Rows) -> Picked:
        """Send rows through the permutation, which the first call makes."""
        if self._images is None:
            self._images = self._permutation()
        columns, items = self._child.pick(self._images[rows])
        return columns if self.sharded else (rows,), items


class ShardOrder(Order):
    """Every `world_size`-th row; a padded row is an early one with a path past the end."""

    __slots__ = ("_child", "_rank", "_world_size")

    def __init__(self, child: Order, rank: int, world_size: int, tail: Tail) -> None:
        self._follow(child)
        self.sharded, self.straight = True, False
        self._child, self._rank, self._world_size = child, rank, world_size
        if child.length is not None:
            self.length = _share(child.length, rank, world_size, tail)
            if tail == "pad":
                self.end += child.stride * (self.length * world_size - child.length)
        self.offset += child.stride * rank
        self.stride *= world_size

    def pick(self, rows: Rows) -> Picked:
        """Return rows of the global order, from its start again where they pass its end."""
        rows, child = rows * self._world_size + self._rank, self._child
        past = () if child.length is None else np.flatnonzero(rows >= child.length)
        if child.length is None or not len(past):
            return child.pick(rows)
        columns, items = child.pick(rows % child.length)
        first = columns[0].copy()
        first[past] = child.end + child.offset + child.stride * (rows[past] - child.length)
        return (first, *columns[1:]), items


def _share(count: int, rank: int, world_size: int, tail: Tail) -> int:
    if tail == "pad":
        return -(-count // world_size)
    if tail == "drop":
        return count // world_size
    return max(0, -(-(count - rank) // world_size))


class CutOrder(Order):
    """`count` rows from `start` on, with the paths they had."""

    __slots__ = ("_child", "_start")

    def __init__(self, child: Order, start: int, count: int | None) -> None:
        self._follow(child)
        self._child = child
        self._start = start if child.length is None else min(start, child.length)
        left = None if child.length is None else child.length - self._start
        self.length = min((n for n in (left, count) if n is not None), default=None)
        if child.straight and left is not None and self.length is not None:
            self.end = child.end - left + self.length  # what was cut off is free

    def pick(self, rows: Rows) -> Picked:
        """Return the child's rows."""
        return self._child.pick(rows + self._start)


class RepeatOrder(Order):
    """Passes over one order; the pass becomes the last element of the path."""

    __slots__ = ("_child", "_count", "_kept", "_open_pass", "_shuffles")

    def __init__(
        self, open_pass: Callable[[int], Order], times: int | None, *, shuffles: bool
    ) -> None:
        self._open_pass, self._shuffles = open_pass, shuffles
        self._kept: dict[int, Order] = {}
        self._child = self._pass(0)
        self._follow(self._child)
        self.straight = False
        self._count = count = self._child.length
        if count == 0 or times == 0:
            self.length = 0
        elif count is not None:
            self.length = None if times is None else min(count * times, LONGEST)

    def pick(self, rows: Rows) -> Picked:
        """Return rows of the passes, each of which shuffles in its own way."""
        if self._count is None:  # the first pass never ends
            columns, items = self._child.pick(rows)
            return (*columns, np.zeros_like(rows)), items
        passes, inside = np.divmod(rows, self._count)
        if self._shuffles:
            columns, items = _gathered(passes, lambda n, at: self._pass(n).pick(inside[at]))
        else:
            columns, items = self._child.pick(inside)
        return (*columns, passes), items

    def _pass(self, number: int) -> Order:
        order = self._kept.get(number)
        if order is None:
            order = self._kept[number] = self._open_pass(number)
            most = min(_KEPT_PASSES, _KEPT_ROWS // (order.length or 1))
            if len(self._kept) > max(2, most):
                self._kept.pop(next(iter(self._kept)), None)  # the oldest
        return order


class NumberedOrder(Order):
    """Items with the numbers of their rows."""

    __slots__ = ("_child",)

    def __init__(self, child: Order) -> None:
        self._follow(child)
        self._child = child

    def pick(self, rows: Rows) -> Picked:
        """Pair each item with its row."""
        columns, items = self._child.pick(rows)
        return columns, zip(rows.tolist(), items, strict=False)


class JoinedOrder(Order):
    """One order after the other; each one's paths are moved past the ends of those before."""

    __slots__ = ("_members", "_moves", "_starts")

    def __init__(self, members: Sequence[Order]) -> None:
        finite = list(itertools.takewhile(lambda order: order.length is not None, members))
        self._members = members[: len(finite) + 1]  # nothing follows one that never ends
        lengths = [order.length or 0 for order in self._members]
        self._starts = np.cumsum([0, *lengths], dtype=np.int64)[:-1]
        self._moves = [0, *itertools.accumulate(order.end for order in self._members)]
        self._start_straight(self._moves[-1])
        self.straight = False
        self.length = sum(lengths) if len(finite) == len(members) else None
        for order in self._members:
            self.sharded |= order.sharded
            self.stride, self.offset = max((self.stride, self.offset), (order.stride, order.offset))

    def pick(self, rows: Rows) -> Picked:
        """Return each row from its member."""
        ids = np.searchsorted(self._starts, rows, side="right") - 1
        return _gathered(ids, lambda member, at: self._pick_from(member, rows[at]))

    def _pick_from(self, member: int, rows: Rows) -> Picked:
        columns, items = self._members[member].pick(rows - self._starts[member])
        return (columns[0] + self._moves[member], *columns[1:]), items


def _gathered(ids: Rows, pick: Callable[[int, Any], Picked]) -> Picked:
    """Pick row i from the order `ids[i]`; the items stay lazy and in the order of the rows."""
    if (ids == ids[0]).all():
        return pick(int(ids[0]), slice(None))
    columns: list[Rows] = []
    parts: dict[int, Iterator[Any]] = {}
    for number in np.unique(ids).tolist():
        at = np.flatnonzero(ids == number)
        picked, parts[number] = pick(number, at)
        while len(columns) < len(picked):
            columns.append(np.full(len(ids), -1, np.int64))
        for column, values in zip(columns, picked, strict=False):
            column[at] = values
    return tuple(columns), map(next, map(parts.__getitem__, ids.tolist()))


def paths_of(columns: Columns) -> Sequence[Path]:
    """Return one path for each row: an int, or a tuple where there are more elements."""
    if len(columns) == 1:
        return cast("list[Path]", columns[0].tolist())
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    if all(int(column.min()) >= 0 for column in columns):
        return rows
    short = [tuple(n for n in row if n >= 0) for row in rows]
    return [row if len(row) > 1 else row[0] for row in short]


# -- Remaining: which items of a stream are still wanted, by their numbers alone -------------------
_MOST = 2**62

Run = tuple[int, int]  # numbers from the first one to below the second


@final
@dataclass(frozen=True, slots=True)
class Remaining:
    """The items of a stream from number `start` on, but for those in `holes`.

    Attributes:
        start: number of the first item that is wanted.
        holes: runs of later items that are not, in ascending order and apart from one another.
    """

    start: int = 0
    gaps: tuple[Run, ...] = ()

    @classmethod
    def of(cls, start: int, gaps: Iterable[Run]) -> Remaining:
        """Join runs that touch, in ascending order of their beginnings, and what `start` meets."""
        joined: list[Run] = []
        for first, end in gaps:
            if first <= start:
                start = max(start, end)
            elif joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            elif first < end:
                joined.append((first, end))
        return cls(start, tuple(joined))

    @classmethod
    def of_arrays(cls, start: int, firsts: Rows, ends: Rows) -> Remaining:
        """Join runs as `of` does, in any order, as two arrays of shape (n,) int64."""
        order = np.argsort(firsts, kind="stable")
        firsts, ends = firsts[order], np.maximum.accumulate(ends[order])
        reach = np.maximum(start, np.append(start, ends[:-1]))  # how far those before it go
        beyond = firsts > reach
        met = int(beyond.argmax()) if beyond.any() else len(firsts)
        start = max(start, int(ends[met - 1])) if met else start
        firsts, ends = firsts[met:], ends[met:]
        apart = np.ones(len(firsts), bool)
        apart[1:] = firsts[1:] > ends[:-1]
        lasts = ends[np.append(apart[1:], True)] if len(ends) else ends
        return cls(start, tuple(zip(firsts[apart].tolist(), lasts.tolist(), strict=True)))

    @classmethod
    def only(cls, wanted: Iterable[int] | Rows, frontier: int) -> Remaining:
        """Want the numbers given, in ascending order, and all from `frontier` on."""
        numbers = np.fromiter(wanted, np.int64) if not isinstance(wanted, np.ndarray) else wanted
        firsts, ends = np.append(-1, numbers) + 1, np.append(numbers, frontier)
        gaps = firsts < ends
        return cls.of_arrays(0, firsts[gaps], ends[gaps])

    @classmethod
    def read(cls, data: Any) -> Remaining:
        """Read what `data` wrote.

        Raises:
            StateError: something else stands there.
        """
        try:
            start, gaps = data
            runs = [(first, end) for first, end in gaps]
        except (TypeError, ValueError):
            start, runs = None, []
        numbers = (start, *itertools.chain(*runs))
        if not all(type(number) is int and 0 <= number < _MOST for number in numbers):
            raise StateError(
                "a position in a state must be [start, [[first, end], ...]], got "
                f"{shortened(repr(data))}; give what run.state_dict() returned"
            )
        return cls.of(start, sorted(runs))

    @property
    def data(self) -> list[Any]:
        """The numbers as JSON-ready lists."""
        return [self.start, [list(run) for run in self.gaps]]

    @property
    def is_all(self) -> bool:
        """Whether every item is wanted."""
        return not self.start and not self.gaps

    @property
    def left_out(self) -> int:
        """Items that are not wanted."""
        return self.start + sum(end - first for first, end in self.gaps)

    def moved(self, by: int) -> Remaining:
        """Count the stream from another beginning."""
        return Remaining(self.start + by, tuple((first + by, end + by) for first, end in self.gaps))

    def behind_start(self) -> Remaining:
        """Count from the first item that is wanted."""
        return self.moved(-self.start)

    def since(self, begun: int) -> Remaining:
        """Return what is wanted from number `begun` on, counted from there."""
        gaps = [(max(0, first - begun), end - begun) for first, end in self.gaps]
        return Remaining.of(max(0, self.start - begun), [run for run in gaps if run[1] > 0])

    def until(self, end: int) -> Remaining:
        """Forget what is not wanted from number `end` on."""
        gaps = [(first, min(after, end)) for first, after in self.gaps if first < end]
        return Remaining(self.start, tuple(gaps))

    def within(self, count: int) -> Remaining:
        """Tell the same of a stream that has `count` items."""
        gaps = [(first, min(end, count)) for first, end in self.gaps if first < count]
        return Remaining(min(self.start, count), tuple(gaps))

    def first_from(self, number: int) -> int:
        """Return the first wanted number that is not below `number`."""
        number = max(number, self.start)
        place = bisect_right(self.gaps, (number, 2**63)) - 1
        return number if place < 0 else max(number, self.gaps[place][1])

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int) or number < self.start:
            return False
        place = bisect_right(self.gaps, (number, 2**63)) - 1
        return place < 0 or number >= self.gaps[place][1]

    def numbers(self, end: int) -> Iterator[int]:
        """Return the wanted numbers below `end`."""
        at = self.start
        for first, after in self.gaps:
            yield from range(at, min(first, end))
            at = after
        yield from range(at, end)

    @property
    def arrays(self) -> tuple[Rows, Rows]:
        """The beginnings and the ends of the holes, arrays of shape (n,) int64."""
        flat = np.fromiter(itertools.chain.from_iterable(self.gaps), np.int64)
        return flat[::2], flat[1::2]

    def places(self) -> tuple[Rows, Rows]:
        """Return for each run of wanted items its first number, and how many are wanted before."""
        firsts, ends = self.arrays
        begins = np.append(self.start, ends)
        return begins, np.append(0, np.cumsum(firsts - begins[:-1]))

    def of_wanted(self, inner: Remaining) -> Remaining:
        """Want only part of this: `inner` counts the items that are wanted here."""
        if self.is_all or inner.is_all:
            return inner if self.is_all else self
        (start,) = self.pick(np.array([inner.start])).tolist()
        firsts, ends = inner.arrays
        mine = self.arrays
        gaps = np.append(self.pick(firsts), mine[0]), np.append(self.pick(ends - 1) + 1, mine[1])
        return Remaining.of_arrays(start, *gaps)

    def mask(self, begin: int, count: int) -> NDArray[np.bool_]:
        """Tell of `count` numbers from `begin` on whether they are wanted, as shape (count,)."""
        steps = np.zeros(count + 1, np.int64)
        firsts, ends = (np.clip(one - begin, 0, count) for one in self.arrays)
        np.add.at(steps, firsts, 1)
        np.add.at(steps, ends, -1)
        wanted: NDArray[np.bool_] = np.cumsum(steps[:-1]) == 0
        wanted[: max(0, self.start - begin)] = False
        return wanted

    def both(self, other: Remaining) -> Remaining:
        """Want what both want."""
        firsts, ends = (np.append(*pair) for pair in zip(self.arrays, other.arrays, strict=True))
        return Remaining.of_arrays(max(self.start, other.start), firsts, ends)

    def ranked(self, other: Remaining) -> Remaining:
        """Count what `other` wants among what is wanted here: `of_wanted` the other way."""
        begins, counts = self.places()
        most = np.append(np.diff(counts), _MOST)

        def inner(numbers: Rows) -> Rows:
            run = np.maximum(0, np.searchsorted(begins, numbers, side="right") - 1)
            found: Rows = counts[run] + np.clip(numbers - begins[run], 0, most[run])
            return found

        (start,) = inner(np.array([other.start])).tolist()
        firsts, ends = map(inner, other.arrays)
        return Remaining.of_arrays(start, firsts[firsts < ends], ends[firsts < ends])

    def pick(self, rows: Rows) -> Rows:
        """Return the numbers of the wanted items `rows`, an array of shape (n,) int64."""
        begins, counts = self.places()
        run = np.searchsorted(counts, rows, side="right") - 1
        found: Rows = begins[run] + rows - counts[run]
        return found
