"""EpochIterator: the items of one epoch, as the training loop takes them."""

from __future__ import annotations

import _thread
import linecache
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any, final

from ..base.format import shortened
from ..base.names import shown
from ..base.seeding import Entry
from ..base.threads import FREE_THREADED, holds, in_new_thread
from ..engine.engine import surfaced
from ..engine.epoch import Epoch
from ..engine.lifecycle import CANCELLED, FAILED, FINISHED, STOPPED, RunLifecycle, in_turn
from ..engine.scheduler import FOUND, OVER, WAIT
from ..errors import ConcurrentIterationError, EpochClosedError, show_briefly
from ..executors.device.flight import await_stream, opened
from ..executors.torch_ranges import wait_range
from ..ops.chain import known_length
from ..ops.stage import Chain, has_device

_MOMENT_S = 0.0001
LOOK_UP_S = 1.0  # a wait ends this often, to see an interrupt that came as it began [s]
ATTEND_S = 0.05  # while it waits, a kernel answers its front end at least this often [s]


def _nothing() -> None:
    """Do nothing between two rounds of a wait."""


@final
class EpochIterator(Iterator[Any]):
    """The items of one epoch; closing or dropping it cancels the rest.

    Args:
        life: lifecycle of the run.
        epoch: the epoch.
        chain: the stages, for the number of items.
        keeps: an object to keep alive as long as the iterator.
        at_end: called after the end of the epoch.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(4)).start() as run:
        ...     items = iter(run)
        ...     next(items), next(items)
        ...     items.close()  # the rest is not made
        (0, 1)
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
        self._output = epoch.output
        self._chain = chain
        self._keeps = keeps
        self._at_end = at_end
        self._scheduler = life.scheduler
        self._consumer = life.record.consumer
        self._before = life.position.delivered_before
        self._thread = get_ident()
        self.renew_calls()
        self._turn = threading.Lock()
        self._waits = False
        self._taking = self._shared = False
        self._done = False
        self._opens = has_device(chain)

    def __next__(self) -> Any:
        """Wait for the next item and return it; during a pause, wait for `resume()`.

        Raises:
            StageError: a stage failed; its exception is the `__cause__`.
            EpochClosedError: a second loop over the run ended this one.
            ConcurrentIterationError: another thread waits in this iterator.
        """
        output = self._output
        if self._between is not None:
            self._between()
        at = output.at  # no call from here on, so no interrupt or other thread can come between
        if at < output.until and not self._opens:
            values = output.values
            here = at - output.first
            value = values[here]
            values[here] = None
            output.at = at + 1
            return value
        return self._next()[1]

    def _next_in_turn(self) -> Any:
        """Do the same in free-threaded Python, where no lock keeps other threads out."""
        output = self._output
        if self._between is not None:
            self._between()
        at = output.at
        if at < output.until and get_ident() == self._thread and not self._opens:
            self._taking = True  # no call from here on, so no interrupt can come between
            values = output.values
            here = at - output.first
            try:
                value = values[here]
            except IndexError:  # another thread has just ended it
                self._taking = False
                return self._next()[1]
            if not self._shared:
                values[here] = None
                output.at = at + 1
                self._taking = False
                return value
            self._taking = False
        return self._next()[1]

    if FREE_THREADED:
        __next__ = _next_in_turn

    def renew_calls(self) -> None:
        """Call what the run's loop is to call by now, from the next item on."""
        self._between = in_turn(self._life.between_waits, self._life.loop_calls)

    def take(self) -> Entry | None:
        """Wait for the next item; return it with its path, or None after the last one.

        The epoch stays open until `finish` or `close`.

        Raises:
            StageError: a stage failed.
        """
        entry = self._found()
        error = None if self._epoch.over else surfaced(self._output.error)
        if entry is None and error is not None:
            raise error
        return entry

    @property
    def ready(self) -> bool:
        """Whether the next item can be taken without a wait."""
        output = self._output
        return output.has_results and not (self._scheduler.paused or output.paused or self._done)

    def _next(self) -> Entry:
        entry = self._found()
        if entry is None:
            if self._epoch.ended_by is not None:
                raise _ended_by(*self._epoch.ended_by)
            self.finish()
            raise StopIteration
        return entry

    def _found(self) -> Entry | None:
        """Wait for the next item; None after the last one, or if the epoch has ended."""
        life, epoch = self._life, self._epoch
        if get_ident() != self._thread:
            life.check_outside("iterate")
            self._thread = get_ident()
            if FREE_THREADED:
                self._share()
        if self._output.stepwise:
            self._time_step()
        while not self._done:
            if life.forked:
                life.check_open()
            if self._waits:
                raise ConcurrentIterationError(
                    "another thread is waiting in this iterator; let one thread iterate"
                )
            shared, entry = self._shared, None
            with self._turn:  # if no item is ready, wait before another thread asks
                found = self._scheduler.have_next(epoch)
                if found is WAIT:
                    self._wait()
                elif found is FOUND and shared:
                    entry = self._taken(shared)
            if found is FOUND and not shared:
                entry = self._taken(shared)
            if entry is not None:
                return entry
            if found is OVER:
                break
        return None

    def _time_step(self) -> None:
        consumer, rests = self._consumer, self._life.engine.rest
        if consumer.steps is not None:
            stepwise = consumer.steps.take(consumer.waited_ns, consumer.paused_ns, rests)
            self._output.stepwise = stepwise

    def _taken(self, shared: bool) -> Entry | None:  # noqa: FBT001
        """Take the next item; None if another thread took it, or ended the epoch."""
        self._life.owner, output = threading.current_thread(), self._output
        try:
            self._taking = True
            at, values, paths = output.at, output.values, output.paths
            here = at - output.first
            if self._shared is not shared or at >= output.until:
                return None
            entry = paths[here], self._opened(values[here]) if self._opens else values[here]
            values[here] = None  # no call from here on, so no interrupt can come between
            output.at = at + 1
            return entry
        finally:
            self._taking = False

    def _share(self) -> None:
        """Have threads take turns: without an interpreter lock, two could take the same item."""
        self._shared = True
        while self._taking:  # the first thread is about to take its item
            sleep(_MOMENT_S)

    def _opened(self, value: Any) -> Any:
        """Have the streams of this thread wait for a batch, once they are close to it."""
        begun_ns = perf_counter_ns()
        try:
            await_stream(value)
            begun_ns = perf_counter_ns()  # until here, the loop's own work took the time
            return opened(value)
        except Exception:  # the loop gets this error; after it, the next item
            self._output.at += 1
            raise
        finally:
            self._consumer.waited_ns += perf_counter_ns() - begun_ns

    def _wait(self) -> None:
        consumer, gate = self._consumer, self._output.gate
        between, round_s = self._between or _nothing, ATTEND_S if self._between else LOOK_UP_S
        at_ns = perf_counter_ns()
        begun_ns = consumer.active_ns(at_ns)
        profiled = wait_range()
        try:
            if profiled is not None:
                profiled.__enter__()
            self._waits = True
            consumer.waits_since_ns = begun_ns
            # If the round ended with a condition, an interrupt at its end would skip `finally` in
            # CPython 3.14.
            while not gate.acquire(timeout=round_s):
                between()
        except KeyboardInterrupt as stop:  # the notebook's stop button: the stack explains nothing
            show_briefly(stop)
            raise
        finally:
            self._waits = False
            consumer.waits_since_ns = 0
            now_ns = perf_counter_ns()
            consumer.waited_ns += consumer.active_ns(now_ns) - begun_ns
            if consumer.trace is not None:
                consumer.trace.add_wait(at_ns, now_ns)
            if profiled is not None:
                profiled.__exit__(None, None, None)

    def finish(self) -> None:
        """End the epoch after its last item.

        Raises:
            StageError: a stage failed.
            CacheError: a cache cannot be written.
        """
        if self._done:
            return
        epoch = self._epoch
        error = None if epoch.over else surfaced(self._output.error)
        if error is None and not epoch.over:
            try:
                self._life.engine.finish(epoch)
            except Exception as problem:  # noqa: BLE001  raised below
                error = problem
        self._end(FINISHED if error is None else FAILED, error)
        if error is not None:
            raise error

    def close(self) -> None:
        """Cancel the rest of the epoch; a second call does nothing.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     items = iter(run)
            ...     first = next(items)
            ...     items.close()
            ...     list(items)
            []
        """
        self._end(CANCELLED, None)

    def stop(self) -> None:
        """End the epoch as if it were exhausted."""
        self._end(STOPPED, None)

    def leave(self, had: int) -> None:
        """Cancel it for a loop in another process, which took `had` of its items [items]."""
        self._output.at, self._output.until = had, 0
        self.close()

    def fail(self, error: BaseException) -> None:
        """Cancel the rest of the epoch: the loop's own code failed."""
        self._end(FAILED, error)

    def _end(self, outcome: str, error: BaseException | None) -> None:
        if self._done:
            return
        self._done = True
        self._life.end(self._epoch, outcome, error)
        if self._at_end is not None:
            self._at_end()

    def __dir__(self) -> list[str]:
        return shown(self, ("fail", "finish", "leave", "ready", "renew_calls", "stop", "take"))

    def __length_hint__(self) -> int:
        """Return the number of items left, or 0 if it is not known."""
        total = None if self._done else known_length(self._chain)
        return 0 if total is None else max(0, total - self._before - self._output.at)

    def __iter__(self) -> EpochIterator:
        return self

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # the run was closed; modules may be empty, but not default arguments
            return
        if getattr(self, "_done", True):
            return
        try:
            close_dropped(self._life, self.close)
        except KeyboardInterrupt:  # no code could catch it here
            in_new_thread(_thread.interrupt_main)


def _ended_by(file: str, line: int) -> EpochClosedError:
    """Return the error of a loop that a second loop, which began at this line, has ended."""
    text = shortened(linecache.getline(file, line).strip())
    name = f" of {Path(file).name}" if Path(file).is_file() else ""  # a cell has no file
    place = f" at line {line}{name}" + (f", `{text}`" if text else "") if line else ""
    return EpochClosedError(
        f"this loop over the run was ended by a second loop, which began{place}; a run has one "
        "loop at a time: leave the first one with break before, or start a second run with "
        "pipe.start()"
    )


def close_dropped(life: RunLifecycle, close: Callable[[], object]) -> None:
    """Close an iterator that was collected, unless the run belongs to another process.

    Garbage collection may run in a thread that holds the run's lock or works for it. Then another
    thread closes the iterator.

    Args:
        life: lifecycle of the run.
        close: closes the iterator.
    """
    if life.forked:
        return
    scheduler = life.scheduler
    if holds(scheduler.lock) or scheduler.is_own_thread(get_ident()):
        in_new_thread(close)
    else:
        close()
