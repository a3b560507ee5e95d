"""OpenEpoch: an epoch to which indices are pushed while it runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex, final

from ..base.checks import seconds
from ..engine.external import Feed, lot_of
from ..engine.machine import Life
from .iterator import EpochIterator


@final
class OpenEpoch(Iterable[Any]):
    """Indices go in with `load`, from any thread; items come out by iterating.

    `for` takes the epoch over: leaving the loop, however, cancels the epoch. `next(epoch)`
    leaves it open, until `close()`, the end of a `with` block, or when it is dropped.

    Args:
        items: the iterator of the epoch.
        feed: takes the indices.
        life: the run's.
    """

    def __init__(self, items: EpochIterator, feed: Feed, life: Life) -> None:
        self._kept: EpochIterator | None = items
        self._items = weakref.ref(items)
        self._feed = feed
        self._life = life

    def load(self, indices: Iterable[SupportsIndex], *, timeout_s: float | None = None) -> bool:
        """Push the indices of one load; wait while `depth` loads wait for the source.

        What a `batch` stage gathers does not depend on loads: one that is no multiple of the
        batch size waits there for the next load, or for `end()`. Once a stage has failed, or a
        `take` has had enough, what is loaded is dropped at once, and iterating tells the rest.

        Args:
            indices: ints from 0 to the source's length - 1: a list, an array, a tensor, or
                anything else that ends. One that is no index ends the iteration with a
                `StageError` of the source, after the items before it.
            timeout_s: how long to wait at most [s]; None for as long as it takes.

        Returns:
            Whether they were taken: False where the time was over.

        Raises:
            ArgumentTypeError: `indices` cannot be iterated, or have no order.
            EpochClosedError: the epoch is over, or `end()` was called; also out of a wait.
            ReentrantRunError: a stage of this run asks for it.
            RunClosedError: this process was forked from the one that the run lives in.
        """
        life = self._life
        if timeout_s is not None:
            timeout_s = seconds("load timeout_s", timeout_s, zero=True)
        if life.forked:
            life.check_open()
        life.check_outside("load indices into")
        return self._feed.load(lot_of(indices), timeout_s, life.between_waits)

    def end(self) -> None:
        """Tell that nothing more is loaded: iterating ends after what was; again does nothing."""
        self._feed.end()

    def __next__(self) -> Any:
        """Return the next item; wait for it.

        Without enough indices loaded that is for ever: where one thread loads and iterates, it
        must load what it wants to take before it takes it.

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
        """Cancel what is left of the epoch; closing again does nothing."""
        items, self._kept = self._items(), None
        if items is not None:
            items.close()

    def __enter__(self) -> OpenEpoch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
