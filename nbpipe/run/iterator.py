"""The loop over a run: an epoch being iterated, one with indices pushed, a thread for several."""

from __future__ import annotations

import _thread
import contextvars
import linecache
import sys
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep
from typing import Any, Protocol, SupportsIndex, final

from ..base.checks import function, integer, is_coroutine_function, refuse_coroutine, seconds
from ..base.format import shortened
from ..base.names import shown
from ..base.seeding import Entry
from ..base.threads import FREE_THREADED, Latch, holds, in_new_thread
from ..engine.epoch import LOG, Epoch
from ..engine.external import Feed, lot_of
from ..engine.machine import CANCELLED, FAILED, FINISHED, STOPPED, RunLifecycle, surfaced
from ..engine.scheduler import FOUND, OVER, WAIT
from ..errors import (
    ArgumentTypeError,
    ConcurrentIterationError,
    EpochClosedError,
    show_briefly,
)
from ..executors.transfer import await_stream, opened
from ..ops.chain import known_length
from ..ops.stage import Chain, has_device

_MOMENT_S = 0.0001
LOOK_UP_S = 1.0  # an interrupt that comes just as a wait begins is not seen before that [s]
ATTEND_S = 0.05  # a kernel that waits answers its front end at least this often [s]


def _nothing() -> None:
    """Do nothing between two rounds of a wait."""


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
        life: RunLifecycle,
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
        self._before = life.delivered_before
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
            EpochClosedError: a second loop over the run has ended this one.
            ConcurrentIterationError: another thread waits in this iterator.
        """
        epoch = self._epoch
        if self._between is not None:
            self._between()
        at = epoch.at  # from here no call: neither an interrupt nor another thread comes between
        if at < epoch.until and not self._opens:
            values = epoch.values
            here = at - epoch.first
            value = values[here]
            values[here] = None
            epoch.at = at + 1
            return value
        return self._next(epoch)[1]

    def _next_in_turn(self) -> Any:
        """Return the next item where no interpreter lock keeps other threads out."""
        epoch = self._epoch
        if self._between is not None:
            self._between()
        at = epoch.at
        if at < epoch.until and get_ident() == self._thread and not self._opens:
            self._taking = True  # from here no call: no interrupt comes before the loop has it
            values = epoch.values
            here = at - epoch.first
            try:
                value = values[here]
            except IndexError:  # another thread has just ended it
                self._taking = False
                return self._next(epoch)[1]
            if not self._shared:
                values[here] = None
                epoch.at = at + 1
                self._taking = False
                return value
            self._taking = False
        return self._next(epoch)[1]

    if FREE_THREADED:
        __next__ = _next_in_turn

    def take(self) -> Entry | None:
        """Wait for the next item; return it with its path, or None at the end.

        The epoch is not over by that: `finish` or `close` end it.

        Raises:
            StageError: as `__next__` does.
        """
        epoch = self._epoch
        entry = self._found(epoch)
        error = None if epoch.over else surfaced(epoch.error)
        if entry is None and error is not None:
            raise error
        return entry

    @property
    def ready(self) -> bool:
        """Whether there is an item to be taken without a wait."""
        epoch = self._epoch
        return epoch.has_results and not (self._scheduler.paused or epoch.paused or self._done)

    def _next(self, epoch: Epoch) -> Entry:
        entry = self._found(epoch)
        if entry is None:
            if epoch.ended_by is not None:
                raise _ended_by(*epoch.ended_by)
            self.finish()
            raise StopIteration
        return entry

    def _found(self, epoch: Epoch) -> Entry | None:
        """Wait for the next item; None behind the last one, or where the epoch has ended."""
        life = self._life
        if get_ident() != self._thread:
            life.check_outside("iterate")
            self._thread = get_ident()
            if FREE_THREADED:
                self._share()
        if epoch.stepwise:
            life.time_step(epoch)
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
                break
        return None

    def _taken(self, epoch: Epoch, shared: bool) -> Entry | None:  # noqa: FBT001
        """Take the next item; None where another thread was quicker, or has ended the epoch."""
        self._life.owner = threading.current_thread()
        try:
            self._taking = True
            at, values, paths = epoch.at, epoch.values, epoch.paths
            here = at - epoch.first
            if self._shared is not shared or at >= epoch.until:
                return None
            entry = paths[here], self._opened(values[here]) if self._opens else values[here]
            values[here] = None  # from here no call: no interrupt comes before the loop has it
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
        """Have the streams of this thread wait for a batch, once they are not far behind it."""
        begun_ns = perf_counter_ns()
        try:
            await_stream(value)
            begun_ns = perf_counter_ns()  # till here it was the loop's own work that took so long
            return opened(value)
        except Exception:  # the loop gets this error, and then the next item
            self._epoch.at += 1
            raise
        finally:
            self._consumer.waited_ns += perf_counter_ns() - begun_ns

    def _wait(self, epoch: Epoch) -> None:
        consumer, gate = self._consumer, epoch.gate
        between, round_s = self._between or _nothing, ATTEND_S if self._between else LOOK_UP_S
        begun_ns = consumer.active_ns(perf_counter_ns())
        try:
            self._waits = True
            consumer.waits_since_ns = begun_ns
            # In CPython 3.14 an interrupt at the end of a round would pass `finally` by, if the
            # round ended with a condition.
            while not gate.acquire(timeout=round_s):
                between()
        except KeyboardInterrupt as stop:  # the notebook's stop button: no fault of what waits
            show_briefly(stop)
            raise
        finally:
            self._waits = False
            consumer.waits_since_ns = 0
            consumer.waited_ns += consumer.active_ns(perf_counter_ns()) - begun_ns

    def finish(self) -> None:
        """End the epoch, of which the loop has had everything; raise what ended it.

        Raises:
            StageError: a stage failed.
            CacheError: a cache cannot be written.
        """
        if self._done:
            return
        epoch = self._epoch
        error = None if epoch.over else surfaced(epoch.error)
        if error is None and not epoch.over:
            try:
                self._life.machine.finish(epoch)
            except Exception as problem:  # noqa: BLE001  raised below
                error = problem
        self._end(FINISHED if error is None else FAILED, error)
        if error is not None:
            raise error

    def close(self) -> None:
        """Cancel what is left of the epoch; closing again does nothing."""
        self._end(CANCELLED, None)

    def stop(self) -> None:
        """End it as if it were exhausted."""
        self._end(STOPPED, None)

    def leave(self, had: int) -> None:
        """Cancel it for a loop elsewhere, which has had so many of the items taken [items]."""
        self._epoch.at, self._epoch.until = had, 0
        self.close()

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
        return shown(self, ("fail", "finish", "leave", "ready", "stop", "take"))

    def __length_hint__(self) -> int:
        """Return the number of items left, or 0 where it is not known."""
        total = None if self._done else known_length(self._chain)
        return 0 if total is None else max(0, total - self._before - self._epoch.at)

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


def _ended_by(file: str, line: int) -> EpochClosedError:
    """Return the error of a loop that was ended by a second one, which began at a line."""
    text = shortened(linecache.getline(file, line).strip())
    name = f" of {Path(file).name}" if Path(file).is_file() else ""  # a cell has no file
    place = f" at line {line}{name}" + (f", `{text}`" if text else "") if line else ""
    return EpochClosedError(
        f"this loop over the run was ended by a second loop, which began{place}; a run has one "
        "loop at a time: leave the first one with break before, or start a second run with "
        "pipe.start()"
    )


def close_dropped(life: RunLifecycle, close: Callable[[], object]) -> None:
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


# -- OpenEpoch: an epoch to which indices are pushed while it runs ---------------------------------
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

    def __init__(self, items: EpochIterator, feed: Feed, life: RunLifecycle) -> None:
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


# -- Training: the loop over a run, in a thread of its own -----------------------------------------
class Iterate(Protocol):
    """Starts an epoch."""

    def __call__(self, *, last: bool) -> EpochIterator:
        """Start the next epoch; `last`: no other is wanted behind it."""


@final
class Training:
    """Calls `step` with every item of some epochs, in a thread.

    Args:
        iterate: starts an epoch.
        step: called with each item.
        epochs: how many epochs [epochs].

    Attributes:
        first: the first epoch, started by whoever asks for the loop, who is the one to be
            told why it cannot be.
        error: what ended the loop before its time, or None.
        total: epochs that are wanted [epochs].
        begun: epochs that have begun [epochs].
        stopping: no further epoch is wanted.
        thread: the thread; it becomes the owner of the epochs.
    """

    def __init__(self, iterate: Iterate, step: Callable[[Any], object], *, epochs: int) -> None:
        if is_coroutine_function(function("train step", step)):
            raise ArgumentTypeError(
                "train step must be a plain function, got an async one; call asyncio.run in it, "
                "or write the loop yourself: for batch in run"
            )
        self.total = integer("train epochs", epochs, minimum=1, unit="epochs")
        self.first: EpochIterator | None = None
        self.error: BaseException | None = None
        self.stopping = self._all_begun = False
        self.begun = 0
        self._iterate = iterate
        self._step = step
        self._ended = Latch()
        context = contextvars.copy_context()  # what it prints belongs to the cell that started it
        self.thread = threading.Thread(
            target=context.run, args=(self._loop,), name="nbpipe-train", daemon=True
        )

    @property
    def ended(self) -> bool:
        """Whether the loop has ended, in whatever way."""
        return self._ended.is_open

    @property
    def goes_on(self) -> bool:
        """Whether another epoch is to begin, also between two of them."""
        return not (self._all_begun or self.stopping or self.ended or self.error is not None)

    def wait(self, timeout_s: float | None, between: Callable[[], object] | None) -> bool:
        """Wait for the end of the loop; return whether it has come.

        Args:
            timeout_s: how long at most [s], or None.
            between: called again and again meanwhile, or None.
        """
        if between is None:
            return self._ended.wait(timeout_s)
        until_s = None if timeout_s is None else monotonic() + timeout_s
        while not self._ended.wait(ATTEND_S):
            between()
            if until_s is not None and monotonic() >= until_s:
                return False
        return True

    def _epochs(self) -> Iterator[EpochIterator]:
        for number in range(self.total):
            if number and self.stopping:
                return
            first, self.first = self.first, None
            self.begun = number + 1
            epoch = first or self._iterate(last=self.begun == self.total)
            self._all_begun = self.begun == self.total
            if self.stopping:  # since it was asked above
                epoch.stop()
            yield epoch

    def _loop(self) -> None:
        epoch = None
        try:
            for epoch in self._epochs():
                for item in epoch:
                    refuse_coroutine("train step", self._step(item))
        except BaseException as error:  # noqa: BLE001  `wait` raises it, the panel shows it
            self.error = error
            if epoch is not None:
                epoch.fail(error)
            LOG.error("training ended: %s: %s", type(error).__name__, error)
        finally:
            self._ended.open()
