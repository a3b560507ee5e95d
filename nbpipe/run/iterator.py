"""EpochIterator: one epoch, as the consumer sees it."""

from __future__ import annotations

import _thread
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator
from time import perf_counter_ns, sleep
from typing import Any, final

from ..base.names import shown
from ..base.seeding import Entry
from ..base.threads import FREE_THREADED, holds, in_new_thread
from ..engine.epoch import Epoch
from ..engine.machine import CANCELLED, FAILED, FINISHED, Life, surfaced
from ..engine.scheduler import FOUND, OVER, WAIT
from ..errors import ConcurrentIterationError, LengthUnknownError
from ..executors.device import opened
from ..ops.chain import length
from ..ops.stage import Chain, has_device

_MOMENT_S = 0.0001
LOOK_UP_S = 1.0  # an interrupt that comes just as a wait begins is not seen before that [s]
ATTEND_S = 0.05  # a kernel that waits answers its front end at least this often [s]


@final
class EpochIterator(Iterator[Any]):
    """One epoch being iterated; closing or dropping it cancels what is left.

    Args:
        life: the run's.
        epoch: the epoch.
        chain: the run's stages, for the number of items.
        keeps: kept alive while the iterator is.
        at_end: called after the epoch has ended.
    """

    def __init__(
        self,
        life: Life,
        epoch: Epoch,
        chain: Chain,
        *,
        keeps: object,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        self._life = life
        self._epoch = epoch
        self._chain = chain
        self._keeps = keeps
        self._at_end = at_end
        self._scheduler = life.scheduler
        self._consumer = life.record.consumer
        self._before = self._consumer.items - life.delivered_before
        self._thread = get_ident()
        self._between = life.between_waits
        self._turn = threading.Lock()
        self._waits = False
        self._taking = self._shared = False
        self._done = False
        self._opens = has_device(chain)

    def __next__(self) -> Any:
        """Return the next item; wait for it, also while the run is paused.

        Raises:
            StageError: a stage failed; its exception is the `__cause__`.
            ConcurrentIterationError: another thread waits in this iterator.
        """
        epoch = self._epoch
        if self._between is not None:
            self._between()
        at = epoch.at
        if at < epoch.until and get_ident() == self._thread and not self._opens:
            self._taking = True  # from here no call: no interrupt comes before the loop has it
            values = epoch.values
            try:
                value = values[at]
            except IndexError:  # another thread has just ended it
                self._taking = False
                return self._next(epoch)[1]
            if not self._shared:
                values[at] = None
                self._consumer.items += 1
                epoch.at = at + 1
                self._taking = False
                return value
            self._taking = False
        return self._next(epoch)[1]

    def take(self) -> Entry | None:
        """Wait for the next item; return it with its path, or None at the end.

        Raises:
            StageError: as `__next__` does.
        """
        try:
            return self._next(self._epoch)
        except StopIteration:
            return None

    @property
    def ready(self) -> bool:
        """Whether there is an item to be taken without a wait."""
        epoch = self._epoch
        left = epoch.at < len(epoch.values) or epoch.sink.count > 0
        return left and not self._scheduler.paused and not self._done

    def _next(self, epoch: Epoch) -> Entry:
        life = self._life
        if get_ident() != self._thread:
            life.check_outside("iterate")
            self._thread = get_ident()
            if FREE_THREADED:
                self._share()
        while not self._done:
            if life.forked:
                life.check_open()
            if self._waits:
                raise ConcurrentIterationError(
                    "another thread is waiting in this iterator; let one thread iterate"
                )
            shared, entry = self._shared, None
            with self._turn:  # whoever looks in vain waits before another one looks
                found = self._scheduler.have_next(epoch)
                if found is WAIT:
                    self._wait(epoch)
                elif found is FOUND and shared:
                    entry = self._taken(epoch, shared)
            if found is FOUND and not shared:
                entry = self._taken(epoch, shared)
            if entry is not None:
                return entry
            if found is OVER:
                self._over(epoch)
        raise StopIteration

    def _taken(self, epoch: Epoch, shared: bool) -> Entry | None:  # noqa: FBT001
        """Take the next item; None where another thread was quicker, or has ended the epoch."""
        self._life.owner = threading.current_thread()
        try:
            self._taking = True
            at, values, paths = epoch.at, epoch.values, epoch.paths
            if self._shared is not shared or at >= len(values):
                return None
            entry = paths[at], self._opened(values[at]) if self._opens else values[at]
            values[at] = None  # from here no call: no interrupt comes before the loop has it
            self._consumer.items += 1
            epoch.at = at + 1
            return entry
        finally:
            self._taking = False

    def _share(self) -> None:
        """Have items be taken in turn from now on: without an interpreter lock, two take one."""
        self._shared = True
        while self._taking:  # the thread that was alone is about to have its item
            sleep(_MOMENT_S)

    def _opened(self, value: Any) -> Any:
        """Have the streams of this thread wait for a batch; one that is copied is waited for."""
        begun_ns = perf_counter_ns()
        try:
            return opened(value)
        except Exception:  # the loop gets this error, and then the next item
            self._consumer.items += 1
            self._epoch.at += 1
            raise
        finally:
            self._consumer.waited_ns += perf_counter_ns() - begun_ns

    def _wait(self, epoch: Epoch) -> None:
        consumer, between, gate = self._consumer, self._between, epoch.gate
        begun_ns = consumer.active_ns(perf_counter_ns())
        try:
            self._waits = True
            consumer.waits_since_ns = begun_ns
            while not gate.acquire(timeout=LOOK_UP_S if between is None else ATTEND_S):
                if between is not None:
                    between()
        finally:
            self._waits = False
            consumer.waits_since_ns = 0
            consumer.waited_ns += consumer.active_ns(perf_counter_ns()) - begun_ns

    def _over(self, epoch: Epoch) -> None:
        error = None if epoch.over else surfaced(epoch.error)
        if error is None and not epoch.over:
            try:
                epoch.commit()
            except Exception as problem:  # noqa: BLE001  raised below
                error = problem
        self._end(FINISHED if error is None else FAILED, error)
        if error is not None:
            raise error

    def close(self) -> None:
        """Cancel what is left of the epoch; closing again does nothing."""
        self._end(CANCELLED, None)

    def fail(self, error: BaseException) -> None:
        """Cancel what is left of the epoch: the loop's own code failed."""
        self._end(FAILED, error)

    def _end(self, outcome: str, error: BaseException | None) -> None:
        if self._done:
            return
        self._done = True
        self._life.end(self._epoch, outcome, error)
        if self._at_end is not None:
            self._at_end()

    def __dir__(self) -> list[str]:
        return shown(self, ("fail", "ready", "take"))

    def __length_hint__(self) -> int:
        """Return the number of items left, or 0 where it is not known."""
        try:
            return max(0, length(self._chain) - (self._consumer.items - self._before))
        except LengthUnknownError:
            return 0

    def __iter__(self) -> EpochIterator:
        return self

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # the run was closed; modules may be empty by now, arguments are not
            return
        if getattr(self, "_done", True):
            return
        try:
            close_dropped(self._life, self.close)
        except KeyboardInterrupt:  # nobody could catch it here
            in_new_thread(_thread.interrupt_main)


def close_dropped(life: Life, close: Callable[[], object]) -> None:
    """Close what was collected, unless it is another process's.

    Garbage may be found by a thread that holds the lock of the run, or that works for it: then
    another thread does it.

    Args:
        life: of the run.
        close: ends what was collected.
    """
    if life.forked:
        return
    scheduler = life.scheduler
    if holds(scheduler.lock) or scheduler.is_own_thread(get_ident()):
        in_new_thread(close)
    else:
        close()
