"""The epochs of a loader that have begun, and the runs that make their batches."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from _thread import get_ident
from collections.abc import Collection
from typing import Any, NamedTuple, final

from ..engine.lifecycle import READY
from ..engine.nodes.failures import Failure
from ..run.run import Run
from .local import LocalRun
from .worker_run import close_run


class BegunEpoch(NamedTuple):
    """One epoch.

    Attributes:
        number: of the epoch, from 0.
        maker: makes the batches.
        iterator: refers to the iterator of the epoch, unless that was dropped.
        thread: identifier of the thread that began it.
        offset: what is added to the maker's epoch numbers.
    """

    number: int
    maker: Run | LocalRun
    iterator: weakref.ref[Any]
    thread: int
    offset: int

    @property
    def is_newest(self) -> bool:
        """Whether its maker has begun it, and no epoch after it."""
        maker = self.maker
        begun = isinstance(maker, LocalRun) or maker._core.life.outcome != READY
        return begun and maker.epoch + self.offset == self.number

    @property
    def in_progress(self) -> bool:
        """Whether more batches may come."""
        iterator = self.iterator()
        return iterator is not None and not iterator.over

    def renumbered(self, failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
        """Return failures of the maker with the loader's epoch numbers."""
        if not self.offset:
            return failures
        return tuple(dataclasses.replace(one, epoch=one.epoch + self.offset) for one in failures)


@final
class EpochLog:
    """The epochs of a loader that have begun: those in progress, and the newest.

    Attributes:
        number: of the epoch that began last, or -1.
    """

    def __init__(self) -> None:
        self.number = -1
        self._epochs: list[BegunEpoch] = []
        self._makers: list[Run | LocalRun] = []  # those that are not closed
        self._lock = threading.RLock()

    @property
    def current(self) -> BegunEpoch | None:
        """The newest epoch in progress, else the newest."""
        begun = [one for one in self._epochs if one.is_newest]
        newest = begun[-1] if begun else None
        return next((one for one in reversed(begun) if one.in_progress), newest)

    @property
    def makers(self) -> list[Run | LocalRun]:
        """What makes batches, or can make those of the next epoch."""
        return [one for one in self._makers if not one.closed]

    def begins(self, iterator: Any, maker: Run | LocalRun, number: int = 0) -> None:
        """Note an epoch that is about to begin; it counts once its maker has begun it.

        Args:
            iterator: of the epoch; it is held weakly.
            maker: makes the batches.
            number: of the epoch there.
        """
        with self._lock:
            self.number += 1
            self._keep(maker)
            refers, offset = weakref.ref(iterator), self.number - number
            begun = BegunEpoch(self.number, maker, refers, get_ident(), offset)
            last = self.current
            kept = (one for one in self._epochs if one.in_progress or one is last)
            self._epochs = [*kept, begun]

    def not_begun(self, iterator: Any) -> None:
        """Forget an epoch that could not begin."""
        with self._lock:
            self._epochs = [one for one in self._epochs if one.iterator() is not iterator]
            self.number -= 1

    def moved(self, run: Run, other: Run) -> None:
        """Note that another run makes the batches of an epoch that has begun."""
        with self._lock:
            self._epochs = [
                one._replace(maker=other) if one.maker is run else one for one in self._epochs
            ]
            self._keep(other)

    def _keep(self, maker: Run | LocalRun) -> None:
        if not any(one is maker for one in self._makers):
            self._makers = [*self.makers, maker]

    def is_busy(self, run: Run) -> bool:
        """Return whether an epoch of a run is in progress."""
        return any(one.in_progress and one.maker is run for one in tuple(self._epochs))

    def close_epochs(self, threads: Collection[int]) -> bool:
        """Close the epochs that some threads began; return whether one was in progress."""
        found = False
        for one in tuple(self._epochs):
            iterator = one.iterator()
            if iterator is not None and one.thread in threads:
                found = found or one.in_progress
                iterator.close()
        return found

    def close(self, timeout_s: float) -> None:
        """Close all epochs and all runs.

        Args:
            timeout_s: how long to wait for calls in progress [s].
        """
        for maker in self._makers:
            close_run(maker, timeout_s)
        for one in tuple(self._epochs):
            iterator = one.iterator()
            if iterator is not None:
                iterator.close()
