"""OpenEpoch: an epoch to which indices are loaded while it runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex, final

from ..base.checks import seconds
from ..engine.lifecycle import RunLifecycle
from ..engine.nodes.external import Feed, lot_of
from .iterator import EpochIterator


@final
class OpenEpoch(Iterable[Any]):
    """An epoch that reads the indices you load while it runs.

    `load(indices)` works from any thread; iterating gives the items. A `for` loop owns the epoch:
    leaving the loop cancels it. `next(epoch)` leaves it open, until `close()`, the end of a `with`
    block, or until it is dropped.

    Args:
        items: the iterator of the epoch.
        feed: takes the indices.
        life: lifecycle of the run.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(list("abcdef")).start() as run, run.open_epoch() as epoch:
        ...     _ = epoch.load([5, 0])
        ...     epoch.end()
        ...     list(epoch)
        ['f', 'a']
    """

    def __init__(self, items: EpochIterator, feed: Feed, life: RunLifecycle) -> None:
        self._kept: EpochIterator | None = items
        self._items = weakref.ref(items)
        self._feed = feed
        self._life = life

    def load(self, indices: Iterable[SupportsIndex], *, timeout_s: float | None = None) -> bool:
        """Load indices; wait while `depth` loads are waiting for the source.

        A `batch` stage fills its batches across loads: the last items of a load wait there for the
        next load or for `end()`. After a stage failed, or a `take` has enough, indices are dropped
        immediately; iterating raises the error or ends.

        Args:
            indices: ints from 0 to the source's length - 1: a list, an array, a tensor, or
                anything else that ends. An invalid index ends the iteration with a `StageError`
                of the source, after the items before it.
            timeout_s: longest wait [s]; None has no limit.

        Returns:
            Whether the indices were loaded; False after the timeout.

        Raises:
            ArgumentTypeError: `indices` cannot be iterated, or have no order.
            EpochClosedError: the epoch is over, or `end()` was called, even during the wait.
            ReentrantRunError: a stage of this run calls it.
            RunClosedError: this process was forked from the run's process.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(list("abc")).start() as run, run.open_epoch() as epoch:
            ...     epoch.load([2, 0])
            ...     next(epoch), next(epoch)
            True
            ('c', 'a')
        """
        life = self._life
        if timeout_s is not None:
            timeout_s = seconds("load timeout_s", timeout_s, zero=True)
        if life.forked:
            life.check_open()
        life.check_outside("load indices into")
        return self._feed.load(lot_of(indices), timeout_s, life.between_waits)

    def end(self) -> None:
        """End the epoch after the indices loaded so far; a second call does nothing.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(list("abc")).start() as run, run.open_epoch() as epoch:
            ...     loaded = epoch.load([1])
            ...     epoch.end()
            ...     list(epoch)
            ['b']
        """
        self._feed.end()

    def __next__(self) -> Any:
        """Wait for the next item and return it.

        Load enough indices first: a thread that both loads and iterates waits forever for an item
        whose index it has not loaded.

        Raises:
            StageError: a stage failed; its exception is the `__cause__`.
            ConcurrentIterationError: another thread waits in this epoch.
        """
        items = self._items()
        if items is None:
            raise StopIteration
        return next(items)

    def __iter__(self) -> Iterator[Any]:
        items, self._kept = self._items(), None
        return iter(()) if items is None else items

    def close(self) -> None:
        """Cancel the rest of the epoch; a second call does nothing.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(list("abc")).start() as run:
            ...     epoch = run.open_epoch()
            ...     epoch.close()
            ...     list(epoch)
            []
        """
        items, self._kept = self._items(), None
        if items is not None:
            items.close()

    def __enter__(self) -> OpenEpoch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
