"""Claims: chunks of one global order, each for the rank that comes for it first."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, final

import numpy as np

from .errors import ArgumentError
from .index_order import LONGEST, Order, Picked, Rows, paths_of
from .rest import Rest
from .seeding import Path

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

    def wanted(self, rest: Rest) -> Rest:
        """Say which rows of the global order are wanted, given which of those claimed are.

        Those that other ranks claimed are among them: they say so themselves.
        """
        done, number = [], 0
        runs = deque([(0, rest.start), *rest.holes])
        for start, stop in tuple(self.claimed):
            after = number + stop - start
            while runs and runs[0][0] < after:
                first, end = runs[0]
                done.append((start + max(first, number) - number, start + min(end, after) - number))
                if end > after:
                    break
                runs.popleft()
            number = after
        return Rest.of(0, sorted(done))

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
    """Give the store of the default process group.

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
