"""Index orders: rows in random access, in the order of a source, permuted, drawn or claimed."""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, cast, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..base.format import shortened
from ..base.seeding import Path, Permutation, order_generator, uniforms
from ..errors import ArgumentError, LengthUnknownError, add_note
from .ranges import IndexRanges, Indices

Tail: TypeAlias = Literal["pad", "drop", "uneven"]


Columns: TypeAlias = tuple[Indices, ...]  # one for each element of a path; -1 where it has none

Picked: TypeAlias = tuple[Columns, Iterator[Any]]

LONGEST = 2**62  # rows; no epoch gets there, and int64 holds it

_KEPT_ROWS = 2**22  # of the passes that stay at hand, beside the last two

_KEPT_PASSES = 64

_TABLE_ROWS = 2**20  # a longer permutation is computed block by block instead of kept


def rows_of(items: Any) -> int:
    """Return the length of a source that is read by index.

    Raises:
        ArgumentError: it is more than `LONGEST`.
        LengthUnknownError: its `__len__` raised an error.
        TypeError: it has no `__len__`.
    """
    try:
        length = len(items)
    except OverflowError:  # Python's own bound, 2**63
        length = LONGEST + 1
    except Exception as error:
        if not hasattr(type(items), "__len__"):
            raise
        raise LengthUnknownError(
            f"the length of a source is not known: __len__ of {type(items).__name__} raised "
            f"{shortened(f'{type(error).__name__}: {error}'.removesuffix(': '))}"
        ) from error
    if length > LONGEST:
        raise ArgumentError(
            f"source must have at most 2**62 items, got a {type(items).__name__} of more; for "
            "numbers without an end give source(lambda: itertools.count())"
        )
    return length


class Lengths:
    """The sources' lengths as an epoch found them; each source is asked once."""

    __slots__ = ("_read",)

    def __init__(self) -> None:
        self._read: dict[int, tuple[Any, int]] = {}

    def of(self, items: Any) -> int:
        """Return the length of `items` at the epoch's start."""
        known = self._read.get(id(items))
        if known is None:
            known = self._read[id(items)] = (items, rows_of(items))
        return known[1]

    @property
    def numbers(self) -> list[int]:
        """Those that were asked for, in that order."""
        return [length for _, length in self._read.values()]

    def check(self) -> None:
        """Raise ArgumentError where a source has another length now."""
        for items, before in self._read.values():
            now = rows_of(items)
            if now != before:
                raise ArgumentError(
                    f"the length of a source must stay the same during an epoch, got {before} "
                    f"at its start and {now} now ({type(items).__name__}); change it between "
                    "epochs, or give the source a copy"
                )

    def watch(self) -> Iterator[tuple[Path, Any]]:
        """Iterate over nothing, checking at the end of the stages before."""
        self.check()
        yield from ()


@dataclass(frozen=True, slots=True)
class PlanEpoch:
    """What an order depends on beside its plan; `passes` of the nearest repeat first."""

    number: int
    passes: tuple[int, ...]
    lengths: Lengths

    def generator(self, seed: int) -> Generator:
        """Return the generator of an order with this seed."""
        return order_generator(seed, self.number, self.passes or 0)


class OrderPlan(Protocol):
    """What an order reads: it is opened for the epoch, and by `repeat` for each pass."""

    @property
    def shuffles(self) -> bool:
        """Whether passes differ from one another."""

    def open(self, epoch: PlanEpoch) -> Order:
        """Make the order of one epoch."""


class Order(ABC):
    """Indices of one epoch.

    Padded rows get paths that no row has: `end + offset + stride * j` for j = 0, 1, 2, ..., where
    ranks have strides that interlock.

    Attributes:
        length: number of rows; None where they never end.
        end: first elements of paths are below it, whatever the rank.
        stride, offset: say which numbers from `end` on are free for this rank.
        straight: the paths are the successive ints before `end`.
        sharded: the rows are part of a global order, whose paths they keep.
        reading: of the rows that are being read the number of the first, and their paths.
    """

    __slots__ = ("_child", "end", "length", "offset", "reading", "sharded", "straight", "stride")

    _child: Order

    length: int | None
    end: int
    stride: int
    offset: int
    straight: bool
    sharded: bool
    reading: tuple[int, Sequence[Path]]

    @abstractmethod
    def pick(self, rows: Indices) -> Picked:
        """Return path columns and items for `rows`, at least one."""

    def columns(self, row: int) -> tuple[Sequence[Path], Iterator[Any]] | None:
        """Return the paths from `row` on and an iterator over the items, where both are in C."""
        return None

    def run(self, row: int) -> Iterator[tuple[Path, Any]] | None:
        """Iterate in C from `row` on, where that needs no blocks."""
        columns = self.columns(row)
        return None if columns is None else zip(*columns, strict=False)

    def _start_straight(self, length: int) -> None:
        self.length = self.end = length
        self.stride, self.offset = 1, 0
        self.straight, self.sharded = True, False
        self.reading = 0, range(length)

    def _follow(self, child: Order) -> Order:
        self._child = child
        self.length, self.end = child.length, child.end
        self.stride, self.offset = child.stride, child.offset
        self.straight, self.sharded = child.straight, child.sharded
        self.reading = 0, ()
        return child


class ItemsOrder(Order):
    """A source from first to last."""

    __slots__ = ("_get", "_items")

    def __init__(self, epoch: PlanEpoch, items: Any) -> None:
        self._start_straight(epoch.lengths.of(items))
        self._items = items
        self._get: Callable[[int], Any] = functools.partial(operator.getitem, items)

    def columns(self, row: int) -> tuple[Sequence[Path], Iterator[Any]] | None:
        """Iterate over builtin sequences by themselves; others may read as they are indexed."""
        items = self._items
        if type(items) is range:
            return range(row, self.end), iter(items[row:])
        if type(items) is list or type(items) is tuple:
            return range(row, self.end), itertools.islice(items, row, self.end)
        return None

    def pick(self, rows: Indices) -> Picked:
        """Read each item when it is asked for."""
        items = map(self._get, rows.tolist())
        return (rows,), itertools.chain(items, self._beyond())

    def _beyond(self) -> Iterator[Any]:
        """Refuse to be asked for more than was picked: an item that ends `map` looks like its end.

        Raises:
            RuntimeError: once it is asked.
        """
        yield from ()
        kind = type(self._items).__name__
        raise RuntimeError(f"the source's {kind}.__getitem__ raised StopIteration")


class ShuffledOrder(Order):
    """A permutation; rows get new positions, but those of a shard keep their global ones."""

    __slots__ = ("_epoch", "_images", "_seed")

    def __init__(self, epoch: PlanEpoch, plan: OrderPlan, seed: int) -> None:
        child = self._follow(plan.open(epoch))
        if not child.sharded:
            self._start_straight(child.length or 0)
        self.straight = not child.sharded
        self._epoch, self._seed = epoch, seed
        self._images: Indices | Permutation | None = None

    def pick(self, rows: Indices) -> Picked:
        """Send rows through the permutation, which the first call makes."""
        if self._images is None:
            self._images = self._permutation()
        columns, items = self._child.pick(self._images[rows])
        return columns if self.sharded else (rows,), items

    def _permutation(self) -> Indices | Permutation:
        generator, length = self._epoch.generator(self._seed), self._child.length or 0
        long = length > _TABLE_ROWS
        return Permutation(length, generator) if long else generator.permutation(length)


class ShardOrder(Order):
    """Every `world_size`-th row; a padded row is an early one with a path past the end."""

    __slots__ = ("_rank", "_world_size")

    def __init__(
        self, epoch: PlanEpoch, plan: OrderPlan, rank: int, world_size: int, tail: Tail
    ) -> None:
        child = self._follow(plan.open(epoch))
        self.sharded, self.straight = True, False
        self._rank, self._world_size = rank, world_size
        if child.length is not None:
            self.length = _share(child.length, rank, world_size, tail)
            if tail == "pad":
                self.end += child.stride * (self.length * world_size - child.length)
        self.offset += child.stride * rank
        self.stride *= world_size

    def pick(self, rows: Indices) -> Picked:
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

    __slots__ = ("_start",)

    def __init__(self, epoch: PlanEpoch, plan: OrderPlan, start: int, count: int | None) -> None:
        child = self._follow(plan.open(epoch))
        self._start = start if child.length is None else min(start, child.length)
        left = None if child.length is None else child.length - self._start
        self.length = min((n for n in (left, count) if n is not None), default=None)
        if child.straight and left is not None and self.length is not None:
            self.end = child.end - left + self.length  # what was cut off is free

    def pick(self, rows: Indices) -> Picked:
        """Return the child's rows."""
        return self._child.pick(rows + self._start)


class RepeatOrder(Order):
    """Passes over one order; the pass becomes the last element of the path."""

    __slots__ = ("_count", "_epoch", "_kept", "_plan")

    def __init__(self, epoch: PlanEpoch, plan: OrderPlan, times: int | None) -> None:
        self._epoch, self._plan = epoch, plan
        self._kept: dict[int, Order] = {}
        self._count = count = self._follow(self._pass(0)).length
        self.straight = False
        if count == 0 or times == 0:
            self.length = 0
        elif count is not None:
            self.length = None if times is None else min(count * times, LONGEST)

    def pick(self, rows: Indices) -> Picked:
        """Return rows of the passes, each of which shuffles in its own way."""
        if self._count is None:  # the first pass never ends
            columns, items = self._child.pick(rows)
            return (*columns, np.zeros_like(rows)), items
        passes, inside = np.divmod(rows, self._count)
        if self._plan.shuffles:
            columns, items = _gathered(passes, lambda n, at: self._pass(n).pick(inside[at]))
        else:
            columns, items = self._child.pick(inside)
        return (*columns, passes), items

    def _pass(self, number: int) -> Order:
        order = self._kept.get(number)
        if order is None:
            epoch = replace(self._epoch, passes=(number, *self._epoch.passes))
            order = self._kept[number] = self._plan.open(epoch)
            most = min(_KEPT_PASSES, _KEPT_ROWS // (order.length or 1))
            if len(self._kept) > max(2, most):
                self._kept.pop(next(iter(self._kept)), None)  # the oldest
        return order


class NumberedOrder(Order):
    """Items with the numbers of their rows."""

    __slots__ = ()

    def __init__(self, epoch: PlanEpoch, plan: OrderPlan) -> None:
        self._follow(plan.open(epoch))

    def pick(self, rows: Indices) -> Picked:
        """Pair each item with its row."""
        columns, items = self._child.pick(rows)
        return columns, zip(rows.tolist(), items, strict=False)


class RestOrder(Order):
    """The rows of another order that are still wanted, with the paths they had."""

    __slots__ = ("_rest",)

    def __init__(self, epoch: PlanEpoch, plan: OrderPlan, rest: IndexRanges) -> None:
        child = self._follow(plan.open(epoch))
        self.straight = False
        self._rest = rest
        if child.length is not None:
            self.length = max(0, child.length - rest.within(child.length).left_out)

    def columns(self, row: int) -> tuple[Sequence[Path], Iterator[Any]] | None:
        """Iterate in C where nothing but the beginning is left out."""
        columns = None if self._rest.gaps else self._child.columns(self._rest.start + row)
        if columns is not None:
            self.reading = 0, range(self._rest.start, self._child.end)
        return columns

    def pick(self, rows: Indices) -> Picked:
        """Return the child's rows that are wanted."""
        return self._child.pick(self._rest.pick(rows))


class JoinedOrder(Order):
    """One order after the other; each one's paths are moved past the ends of those before."""

    __slots__ = ("_members", "_moves", "_starts")

    def __init__(self, epoch: PlanEpoch, *plans: OrderPlan) -> None:
        members = [plan.open(epoch) for plan in plans]
        finite = list(itertools.takewhile(lambda order: order.length is not None, members))
        self._members = members[: len(finite) + 1]  # nothing follows one that never ends
        lengths = [order.length or 0 for order in self._members]
        ends = [min(end, LONGEST) for end in itertools.accumulate(lengths, initial=0)]
        self._starts = np.array(ends[:-1], dtype=np.int64)
        self._moves = [0, *itertools.accumulate(order.end for order in self._members)]
        self._start_straight(self._moves[-1])
        self.straight = False
        self.length = ends[-1] if len(finite) == len(members) else None
        for order in self._members:
            self.sharded |= order.sharded
            self.stride, self.offset = max((self.stride, self.offset), (order.stride, order.offset))

    def pick(self, rows: Indices) -> Picked:
        """Return each row from its member."""
        ids = np.searchsorted(self._starts, rows, side="right") - 1
        return _gathered(ids, lambda member, at: self._pick_from(member, rows[at]))

    def _pick_from(self, member: int, rows: Indices) -> Picked:
        columns, items = self._members[member].pick(rows - self._starts[member])
        return (columns[0] + self._moves[member], *columns[1:]), items


def _gathered(ids: Indices, pick: Callable[[int, Any], Picked]) -> Picked:
    """Pick row i from the order `ids[i]`; the items stay lazy and in the order of the rows."""
    if (ids == ids[0]).all():
        return pick(int(ids[0]), slice(None))
    columns: list[Indices] = []
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


Weights: TypeAlias = NDArray[np.float64]


class Draw(ABC):
    """How rows are drawn; frozen.

    Args:
        weights: one for each row, finite and at least 0, any scale; shape (n,) float64.

    Attributes:
        rows: how many rows there are to draw from.
        drawable: how many of them have a weight above 0.
        digest: of the weights, to compare them.
    """

    __slots__ = ("digest", "drawable", "rows")

    digest_module: ClassVar[str] = "nbpipe.weighted"  # in cache folders written before

    def __init__(self, weights: Weights) -> None:
        self.rows = len(weights)
        self.digest = blake2b(weights.tobytes(), digest_size=16).hexdigest()
        self.drawable = int(np.count_nonzero(weights))

    def check(self, rows: int | None, count: int) -> None:
        """Refuse weights that are not those of `rows` rows, or too few to draw `count`.

        Raises:
            ArgumentError: they are.
        """
        if rows != self.rows:
            raise ArgumentError(
                f"weights or labels must be one for each row, got {self.rows} for {rows} rows"
            )
        self._check_count(count)

    @abstractmethod
    def _check_count(self, count: int) -> None:
        """Refuse to draw `count` rows where there are too few."""

    @abstractmethod
    def images(self, count: int, generator: Generator) -> Indices | Draws:
        """Draw `count` rows; numbers of drawn rows are indexed by those of the new order."""


@final
class Draws:
    """Draws with replacement in random access."""

    __slots__ = ("_key", "_sums")

    def __init__(self, sums: Weights, generator: Generator) -> None:
        self._sums = sums
        self._key = generator.integers(0, 2**64, dtype=np.uint64)

    def __getitem__(self, rows: Indices) -> Indices:
        """Return what each draw in `rows` drew, an array of shape (n,) int64."""
        places = uniforms(self._key, rows) * self._sums[-1]
        found: Indices = self._sums.searchsorted(places, side="right")
        return found


@final
class SampledOrder(Order):
    """Drawn rows; their paths are their new positions, so a row drawn twice has two."""

    __slots__ = ("_count", "_draw", "_epoch", "_images", "_seed")

    def __init__(
        self, epoch: PlanEpoch, plan: OrderPlan, draw: Draw, count: int | None, seed: int
    ) -> None:
        self._child = plan.open(epoch)
        self._count = draw.rows if count is None else count
        self._start_straight(self._count)
        self._draw, self._epoch, self._seed = draw, epoch, seed
        self._images: Indices | Draws | None = None

    def pick(self, rows: Indices) -> Picked:
        """Look up what was drawn; the first call draws."""
        if self._images is None:
            self._draw.check(self._child.length, self._count)
            generator = self._epoch.generator(self._seed).spawn(1)[0]
            self._images = self._draw.images(self._count, generator)
        return (rows,), self._child.pick(self._images[rows])[1]


_BLOCK = 4096  # rows picked at once

# How often each cursor of a store was opened, by identity: a store need not be hashable.
_opened: dict[int, tuple[Callable[[], Store | None], Counter[str]]] = {}

_lock = threading.Lock()


class Store(Protocol):
    """Holds numbers that all ranks share; every `torch.distributed.Store` does.

    Examples:
        >>> import nbpipe
        >>> store: nbpipe.ranks.Store = nbpipe.ranks.LocalStore()
        >>> list(nbpipe.source(range(3)).claim(store=store))
        [0, 1, 2]
    """

    def add(self, key: str, amount: int, /) -> int:
        """Add to the number of this name in one step, and return the sum.

        Args:
            key: name of the number, which begins at 0.
            amount: what to add.

        Examples:
            >>> from nbpipe.ranks import LocalStore, Store
            >>> store: Store = LocalStore()
            >>> store.add("cursor", 64), store.add("cursor", 64)
            (64, 128)
        """


@final
class LocalStore:
    """The store of a job with one rank, for one run at a time.

    Examples:
        >>> import nbpipe
        >>> store = nbpipe.ranks.LocalStore()
        >>> list(nbpipe.source(range(3)).claim(store=store))
        [0, 1, 2]
    """

    digest_module: ClassVar[str] = "nbpipe.claims"  # in cache folders written before

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, key: str, amount: int, /) -> int:
        """Add to the number of this name in one step, and return the sum.

        Args:
            key: name of the number, which begins at 0.
            amount: what to add.

        Examples:
            >>> from nbpipe.ranks import LocalStore
            >>> LocalStore().add("cursor", 64)
            64
        """
        with self._lock:
            self._numbers[key] += amount
            return self._numbers[key]

    def __repr__(self) -> str:
        return "LocalStore()"


@final
class ClaimOrder(Order):
    """Indices of a global order, in chunks taken from a cursor in a store.

    Args:
        epoch: the cursor is that of the epoch and its passes.
        plan: the global order.
        chunk: rows taken at a time.
        store: holds the cursor; None for the default process group's.
        name: tells apart the cursors of one job.

    Attributes:
        claimed: runs of rows that were taken so far, each from its first row to below its end.
    """

    __slots__ = ("_chunk", "_key", "_store", "claimed")

    def __init__(
        self, epoch: PlanEpoch, plan: OrderPlan, chunk: int, store: Store | None, name: str
    ) -> None:
        self._follow(plan.open(epoch))
        self.length, self.straight, self.sharded = None, False, True
        self._key = f"{name}/{epoch.number}/{'/'.join(map(str, epoch.passes))}"
        self._chunk, self._store = chunk, store
        self.claimed: list[tuple[int, int]] = []

    def run(self, row: int) -> Iterator[tuple[Path, Any]]:
        """Iterate over what this rank gets.

        Raises:
            ArgumentError: there is no store, or `row` is not 0.
        """
        if row:
            raise ArgumentError(f"claimed rows must be read from the start, got row {row}")
        store = default_store() if self._store is None else self._store
        return self._rows(store, self._cursor(store))

    def pick(self, rows: Indices) -> Picked:
        """Refuse: which row is next, the other ranks decide."""
        raise ArgumentError("claimed rows must be read one after the other; shard splits by number")

    def wanted(self, rest: IndexRanges) -> IndexRanges:
        """Return which rows of the global order are wanted, given which of those claimed are.

        Those that other ranks claimed are among them: they say so themselves.
        """
        done, number = [], 0
        runs = deque([(0, rest.start), *rest.gaps])
        for start, stop in tuple(self.claimed):
            after = number + stop - start
            while runs and runs[0][0] < after:
                first, end = runs[0]
                done.append((start + max(first, number) - number, start + min(end, after) - number))
                if end > after:
                    break
                runs.popleft()
            number = after
        return IndexRanges.of(0, sorted(done))

    def _cursor(self, store: Store) -> str:
        """Name the cursor; an epoch that this process reads again gets another one."""
        key = f"nbpipe/{self._key}/{self._child.length}"
        with _lock:
            counts = _counts(store)
            counts[key] += 1
            return f"{key}/{counts[key]}"

    def _rows(self, store: Store, cursor: str) -> Iterator[tuple[Path, Any]]:
        end, count = LONGEST if self._child.length is None else self._child.length, 0
        while True:
            try:
                after = store.add(cursor, self._chunk)
            except Exception as error:
                add_note(error, "a claim asked its store which items are next: no item failed")
                raise
            start, stop = after - self._chunk, min(after, end)
            if start >= end:
                return
            self._note(start, stop)
            for row in range(start, stop, _BLOCK):
                rows = np.arange(row, min(row + _BLOCK, stop), dtype=np.int64)
                columns, items = self._child.pick(rows)
                self.reading = count, paths_of(columns)
                yield from zip(self.reading[1], items, strict=False)
                count += len(rows)

    def _note(self, start: int, stop: int) -> None:
        if self.claimed and self.claimed[-1][1] == start:
            self.claimed[-1] = (self.claimed[-1][0], stop)
        else:
            self.claimed.append((start, stop))


def _counts(store: Store) -> Counter[str]:
    known = _opened.get(id(store))
    if known is None or known[0]() is not store:
        try:
            referred: Callable[[], Store | None] = weakref.ref(store)
        except TypeError:  # with slots: it is kept
            referred = lambda: store  # noqa: E731
        known = _opened[id(store)] = (referred, Counter())
    return known[1]


def default_store() -> Store:
    """Return the store of the default process group.

    Raises:
        ArgumentError: there is no such group.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise ArgumentError(
            "claim needs a store that all ranks share, and torch.distributed is not initialised; "
            "call init_process_group first, or give claim(store=torch.distributed.TCPStore(host, "
            "port, is_master=rank == 0)), or, where there is one rank, "
            "claim(store=nbpipe.ranks.LocalStore())"
        )
    store: Store = distributed.distributed_c10d._get_default_store()
    return store
