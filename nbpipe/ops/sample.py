"""Rows drawn by weight, and chunks of one order for the rank that comes for them first."""

from __future__ import annotations

import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..base.seeding import Path, uniforms
from ..errors import ArgumentError, ArgumentTypeError
from .index import LONGEST, Order, Picked, Remaining, Rows, paths_of

# -- Weighted orders: rows drawn by weight, with or without replacement ----------------------------
Weights: TypeAlias = NDArray[np.float64]


class Draw(ABC):
    """How rows are drawn; frozen.

    Args:
        weights: one for each row, finite and at least 0, any scale; shape (n,) float64.

    Attributes:
        rows: how many rows there are to draw from.
        drawable: how many of them have a weight above 0.
        digest: of the weights, for those who compare.
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
    def images(self, count: int, generator: Generator) -> Rows | Draws:
        """Draw `count` rows; numbers of drawn rows are indexed by those of the new order."""


@final
class WithReplacement(Draw):
    """A row may come again; each draw is made by itself, in constant memory beside the weights.

    Source: Devroye, "Non-Uniform Random Variate Generation", 1986, III.2: inversion of the
    distribution function by bisection.
    """

    __slots__ = ("_sums",)

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._sums = np.cumsum(_scaled(weights))

    def _check_count(self, count: int) -> None:
        if count and not self.drawable:
            raise ArgumentError(
                f"sample weights must have one above 0, got none in {self.rows} rows"
            )

    def images(self, count: int, generator: Generator) -> Draws:
        """Return the draws without making them."""
        return Draws(self._sums, generator)


@final
class WithoutReplacement(Draw):
    """No row comes twice: as if drawn one by one, each from the rows that are left.

    Source: Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Information
    Processing Letters 97, 2006: the rows with the greatest u ** (1 / weight), in that order; here
    in the form of exponential times divided by weights, the smallest first.
    """

    __slots__ = ("_weights",)

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._weights = _scaled(weights)

    def _check_count(self, count: int) -> None:
        if count > self.drawable:
            raise ArgumentError(
                f"sample n must be at most {self.drawable} without replacement, the rows with a "
                f"weight above 0, got {count}; give n={self.drawable}, or replacement=True"
            )

    def images(self, count: int, generator: Generator) -> Rows:
        """Draw all rows at once."""
        times = np.full(self.rows, np.inf)
        drawable = self._weights > 0
        times[drawable] = generator.standard_exponential(self.drawable) / self._weights[drawable]
        if count >= self.rows:
            return times.argsort(kind="stable")
        first = np.argpartition(times, count)[:count]
        return first[times[first].argsort(kind="stable")]


@final
class Draws:
    """Draws with replacement in random access."""

    __slots__ = ("_key", "_sums")

    def __init__(self, sums: Weights, generator: Generator) -> None:
        self._sums = sums
        self._key = generator.integers(0, 2**64, dtype=np.uint64)

    def __getitem__(self, rows: Rows) -> Rows:
        """Return what each draw in `rows` drew, an array of shape (n,) int64."""
        places = uniforms(self._key, rows) * self._sums[-1]
        found: Rows = self._sums.searchsorted(places, side="right")
        return found


@final
class SampledOrder(Order):
    """Drawn rows; their paths are their new positions, so a row drawn twice has two."""

    __slots__ = ("_child", "_count", "_draw", "_generator", "_images")

    def __init__(
        self, child: Order, draw: Draw, count: int | None, generator: Callable[[], Generator]
    ) -> None:
        self._count = draw.rows if count is None else count
        self._start_straight(self._count)
        self._child, self._draw, self._generator = child, draw, generator
        self._images: Rows | Draws | None = None

    def pick(self, rows: Rows) -> Picked:
        """Look up what was drawn; the first call draws."""
        if self._images is None:
            self._draw.check(self._child.length, self._count)
            self._images = self._draw.images(self._count, self._generator())
        return (rows,), self._child.pick(self._images[rows])[1]


def checked_weights(values: object) -> Weights:
    """Copy weights into an array.

    Raises:
        ArgumentError: not one finite number of at least 0 for each row.
        ArgumentTypeError: no sequence.
    """
    held = _on_host(_sequence("sample weights", values))
    try:
        found = np.array(held, np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"sample weights must be numbers, one for each row: {error}") from None
    if found.ndim != 1:
        raise ArgumentError(
            f"sample weights must be one number for each row, got an array of shape {found.shape}"
        )
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if wrong.size:
        raise ArgumentError(
            "sample weights must be finite numbers of at least 0, got "
            f"{float(found[wrong[0]])!r} for row {wrong[0]}"
        )
    return found


def class_weights(labels: object) -> Weights:
    """Return each row one divided by the number of rows with its label.

    Raises:
        ArgumentError: labels of more than one dimension.
        ArgumentTypeError: no sequence, or a label that is not hashable.
    """
    held: Any = _on_host(_sequence("balance labels", labels))
    if getattr(held, "ndim", 1) != 1:
        raise ArgumentError(
            f"balance labels must be one for each row, got an array of shape {held.shape}; of "
            "one-hot rows give labels.argmax(1)"
        )
    numbers: dict[Any, int] = {}
    try:
        ids = [numbers.setdefault(_plain(label), len(numbers)) for label in held]
    except TypeError as error:
        raise ArgumentTypeError(f"balance labels must be hashable: {error}") from None
    rows = np.array(ids, np.int64)
    return 1.0 / np.bincount(rows)[rows] if ids else np.zeros(0)


def _sequence(what: str, values: object) -> object:
    sized = hasattr(type(values), "__len__") and hasattr(type(values), "__iter__")
    if not sized or isinstance(values, str | bytes | Mapping | set | frozenset):
        raise ArgumentTypeError(
            f"{what} must be a sequence with one for each row, got {type(values).__name__}"
        )
    return values


def _on_host(values: Any) -> Any:
    """Return a tensor, wherever it lies, as an array."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()


def _plain(label: Any) -> Any:
    """Return a label that equals its equals: tensors without dimensions do not."""
    return label.item() if getattr(label, "ndim", None) == 0 else label


def _scaled(weights: Weights) -> Weights:
    """Bring the greatest weight to 1, so that no sum is infinite."""
    most = weights.max(initial=0.0)
    return weights / most if most else weights


# -- Claims: chunks of one global order, each for the rank that comes for it first -----------------
_BLOCK = 4096  # rows picked at once
_opened: dict[int, _Opened] = {}  # by identity: a store need not be hashable
_lock = threading.Lock()


class Store(Protocol):
    """Holds numbers that all ranks share, as every `torch.distributed.Store` does."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to the number of this name, which begins at 0, in one step; give the sum."""


@final
class LocalStore:
    """The store of a job that has one rank; for one run at a time."""

    digest_module: ClassVar[str] = "nbpipe.claims"  # in cache folders written before

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number that begins at 0; give the sum."""
        with self._lock:
            self._numbers[key] += amount
            return self._numbers[key]

    def __repr__(self) -> str:
        return "LocalStore()"


@final
class ClaimOrder(Order):
    """Rows of a global order, in chunks taken from a cursor in a store.

    Args:
        child: the global order.
        chunk: rows taken at a time.
        store: holds the cursor; None for the default process group's.
        key: of the pipeline, the epoch and the pass.

    Attributes:
        claimed: runs of rows that were taken so far, each from its first row to below its end.
    """

    __slots__ = ("_child", "_chunk", "_key", "_store", "claimed")

    def __init__(self, child: Order, chunk: int, store: Store | None, key: str) -> None:
        self._follow(child)
        self.length, self.straight, self.sharded = None, False, True
        self._child, self._chunk, self._store, self._key = child, chunk, store, key
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

    def pick(self, rows: Rows) -> Picked:
        """Refuse: which row is next, the other ranks decide."""
        raise ArgumentError("claimed rows must be read one after the other; shard splits by number")

    def wanted(self, rest: Remaining) -> Remaining:
        """Tell which rows of the global order are wanted, given which of those claimed are.

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
        return Remaining.of(0, sorted(done))

    def _cursor(self, store: Store) -> str:
        """Name the cursor; an epoch that this process reads again gets another one."""
        key = f"nbpipe/{self._key}/{self._child.length}"
        with _lock:
            counts = _counts(store)
            counts[key] += 1
            return f"{key}/{counts[key]}"

    def _rows(self, store: Store, cursor: str) -> Iterator[tuple[Path, Any]]:
        end = LONGEST if self._child.length is None else self._child.length
        while True:
            after = store.add(cursor, self._chunk)
            start, stop = after - self._chunk, min(after, end)
            if start >= end:
                return
            self._note(start, stop)
            for row in range(start, stop, _BLOCK):
                rows = np.arange(row, min(row + _BLOCK, stop), dtype=np.int64)
                columns, items = self._child.pick(rows)
                yield from zip(paths_of(columns), items, strict=False)

    def _note(self, start: int, stop: int) -> None:
        if self.claimed and self.claimed[-1][1] == start:
            self.claimed[-1] = (self.claimed[-1][0], stop)
        else:
            self.claimed.append((start, stop))


class _Opened(NamedTuple):
    """The cursors that this process has opened in a store."""

    store: Callable[[], Store | None]
    counts: Counter[str]


def _counts(store: Store) -> Counter[str]:
    """Return how often each cursor of a store was opened; one that is forgotten is let go."""
    known = _opened.get(id(store))
    if known is None or known.store() is not store:
        known = _opened[id(store)] = _Opened(_referred(store, id(store)), Counter())
    return known.counts


def _referred(store: Store, number: int) -> Callable[[], Store | None]:
    def forget(gone: object, opened: dict[int, _Opened] = _opened) -> None:
        known = opened.get(number)
        if known is not None and known.store is gone:
            del opened[number]

    try:
        return weakref.ref(store, forget)
    except TypeError:  # with slots: it is kept, as nothing else tells that it is gone
        return lambda: store


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
