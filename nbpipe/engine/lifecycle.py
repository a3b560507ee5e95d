"""RunLifecycle: a run from its start to its end: it starts epochs, ends them, and closes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import NamedTuple

from ..base import threads
from ..base.threads import holds, in_new_thread
from ..errors import ConcurrentIterationError, ReentrantRunError, RunClosedError
from ..ops.checkpoint import EpochPlace
from ..ops.stage import user_line
from .engine import Engine
from .epoch import LOG, Epoch
from .measures.record import RunRecord
from .nodes.external import ExternalOrder
from .position import RunPosition

# How the last epoch ended; READY before the first.
READY, FINISHED, STOPPED = "ready", "finished", "stopped"
CANCELLED, FAILED = "cancelled", "failed"


def in_turn(
    first: Callable[[], object] | None, others: Iterable[Callable[[], object]]
) -> Callable[[], object] | None:
    """Return a function that calls all of these; None if there are none."""
    calls = (*others,) if first is None else (first, *others)
    if len(calls) <= 1:
        return calls[0] if calls else None

    def call_all() -> None:
        for call in calls:
            call()

    return call_all


class _Ending(NamedTuple):
    """An epoch that ended, with its remaining clean-up."""

    epoch: Epoch
    ticket: int
    external: ExternalOrder | None
    error: BaseException | None


class RunLifecycle:
    """Starts and ends the epochs of one run, and closes it; any thread may call it.

    An interrupt may hit any line. So an epoch that was ended is cleaned up by the next call that
    comes here, if the first attempt did not get through.

    Args:
        engine: the stages.
        record: keeps history, failed items and the waits of the loop.

    Attributes:
        scheduler: moves items to the loop.
        position: which epoch it is, how far, and where the next one begins.
        owner: the thread that iterates.
        outcome: how the last epoch ended.
        error: why it failed, or None.
        begun_ns: start of the last epoch, on the clock of the consumer; 0 before the first.
        elapsed_ns: length of the last epoch, without pauses; 0 while one is in progress.
        ended_ns: when it ended; 0 while one is in progress.
        waited_before_ns: time that the loop waited in earlier epochs [ns].
        between_waits: the loop calls it before it takes an item, and repeatedly while it waits;
            so does another thread that waits for the run.
        loop_calls: the loop alone calls these as well.
        closed: nothing may start.
        forked: this process is a fork: the run belongs to its parent.
    """

    def __init__(self, engine: Engine, record: RunRecord) -> None:
        self.engine = engine
        self.scheduler = engine.scheduler
        self.record = record
        self.position = RunPosition(engine)
        self.owner: threading.Thread | None = None
        self.outcome = READY
        self.error: BaseException | None = None
        self.begun_ns = self.elapsed_ns = self.ended_ns = self.waited_before_ns = 0
        self.between_waits: Callable[[], object] | None = None
        self.loop_calls: list[Callable[[], object]] = []
        self.closed = False
        self.forked = False
        self._starting = threading.Lock()
        self._stop_at_start = False  # `stop` was called while the epoch was built
        self._ticket = 0
        self._patience_s = 0.0  # the timeout of `close`
        self._ending: _Ending | None = None
        self._finishing = threading.RLock()

    # -- an epoch starts ----------------------------------------------------------------------
    def start_epoch(
        self, external: ExternalOrder | None = None, *, reads_ahead: bool = False
    ) -> Epoch:
        """Start the next epoch; cancel the one that this thread left unfinished.

        Args:
            external: an order that replaces the source's own.
            reads_ahead: read the epoch after it ahead, unless an order is given.

        Raises:
            RunClosedError: the run is closed, or was started in another process.
            ConcurrentIterationError: another thread is iterating.
            ReentrantRunError: a stage of this run calls it.
            StateError: the loaded state belongs to another order.
        """
        self.check_open()
        self.check_outside("iterate")
        with self._starting:
            return self._start_epoch(external, reads_ahead=reads_ahead and external is None)

    def _start_epoch(self, external: ExternalOrder | None, *, reads_ahead: bool) -> Epoch:
        self.check_open()
        position = self.position
        if position.epoch is not None:
            self.check_free()
            self.end(position.epoch, ended_by=user_line())
        self._finish()
        threads.lower_switch_interval(self)
        try:
            if position.external is not None:
                position.external.close(None)  # an interrupt may have kept its end from doing so
            place = self._start_clock(external)
            ticket, here, node_state = self.engine.begin(external, place.node_state or {})
            epoch = self.engine.epochs.start(place.epoch, here, node_state, reads_ahead=reads_ahead)
            self._started(epoch, ticket)
        except BaseException as error:
            threads.restore_switch_interval(self)
            if position.epoch is None:
                self._not_started(error)
            if self.closed:  # another thread closed the run meanwhile
                self.close(self._patience_s)
            raise
        return epoch

    def _start_clock(self, external: ExternalOrder | None) -> EpochPlace:
        """Make the next epoch the one in progress; it is built after that."""
        consumer, now_ns = self.record.consumer, perf_counter_ns()
        _past = self.error, self.position.external  # user objects are freed without the lock
        owner = threading.current_thread()
        with self.scheduler.lock:
            place = self.position.start(external)
            self.record.begin(now_ns)
            self.owner, self.outcome, self.error = owner, CANCELLED, None
            self.begun_ns, self.elapsed_ns, self.ended_ns = consumer.active_ns(now_ns), 0, 0
            self.waited_before_ns = consumer.waited_ns
            self._stop_at_start = False
        return place

    def _started(self, epoch: Epoch, ticket: int) -> None:
        with self.scheduler.lock:
            self.record.consumer.takes(epoch)
            epoch.output.times_steps = self.record.consumer.steps is not None
            self._ticket = ticket
            self.position.started(epoch)
        self.check_open()
        if self._stop_at_start:
            self.end(epoch, STOPPED)

    def _not_started(self, error: BaseException) -> None:
        """Undo the start of an epoch that could not be built."""
        failed = isinstance(error, Exception)
        with self.scheduler.lock:
            if self.position.take_back():
                self._stop_clock(*(FAILED, error) if failed else (CANCELLED, None))
                self.record.end(self.ended_ns)

    # -- it ends --------------------------------------------------------------------------------
    def end(
        self,
        epoch: Epoch,
        outcome: str = CANCELLED,
        error: BaseException | None = None,
        *,
        ended_by: tuple[str, int] | None = None,
    ) -> None:
        """End an epoch at any point; ending it again does nothing.

        Args:
            epoch: the epoch.
            outcome: how it ends.
            error: why it failed, or None.
            ended_by: file and line of the second loop that ends it, or None.
        """
        if holds(self.scheduler.lock):  # called by garbage collection in the middle of a change
            in_new_thread(lambda: self.end(epoch, outcome, error))
            return
        position = self.position
        try:
            self._hold_back(epoch, held=True)  # the loop may run in another thread
            left = position.place_left(epoch) if outcome in (CANCELLED, FAILED) else None
            with self.scheduler.lock:
                ours = position.epoch is epoch
                if ours:
                    epoch.ended_by = ended_by
                    self._stop_clock(outcome, error)
                    self._ending = _Ending(epoch, self._ticket, position.external, error)
                    position.end(epoch, left)
        except BaseException:  # an interrupt: the epoch continues
            self._hold_back(epoch, held=self.scheduler.paused)
            raise
        if ours:
            self._finish()

    def _hold_back(self, epoch: Epoch, *, held: bool) -> None:
        """Give the loop no item of the epoch in progress, or give it items again."""
        with self.scheduler.lock:
            if self.position.epoch is epoch:
                epoch.output.pause(paused=held)

    def _stop_clock(self, outcome: str, error: BaseException | None) -> None:
        self.outcome, self.error = outcome, error
        self.ended_ns = perf_counter_ns()
        self.elapsed_ns = self.record.consumer.active_ns(self.ended_ns) - self.begun_ns

    def _finish(self) -> None:
        """Clean up after the epoch that ended, unless that is done; it may run twice."""
        with self._finishing:
            ending = self._ending
            if ending is None:
                return
            with self.scheduler.lock:
                self.record.end(self.ended_ns)
            threads.restore_switch_interval(self)
            if ending.external is not None:  # first, to wake threads that wait in `load`
                ending.external.close(ending.error)
            if self.outcome != FINISHED:
                self.engine.epochs.drop_ahead()
            self.engine.cancel(ending.ticket, ending.epoch)
            self.engine.epochs.end(ending.epoch)
            self._ending = None

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted, even while it is being built."""
        with self.scheduler.lock:
            epoch, self._stop_at_start = self.position.epoch, self.position.is_starting
        if epoch is not None:
            self.end(epoch, STOPPED)

    @property
    def is_in_progress(self) -> bool:
        """Whether an epoch is in progress or being built."""
        return bool(self.begun_ns) and not self.ended_ns

    # -- the next one -----------------------------------------------------------------------------
    def set_epoch(self, number: int) -> None:
        """Set the number of the next epoch; give up resuming any other."""
        with self.scheduler.lock:
            self.position.set_next(number)
        self.engine.epochs.drop_ahead(unless=number)

    def resume_at(self, place: EpochPlace) -> None:
        """Have the next epoch begin at a place."""
        with self.scheduler.lock:
            self.position.resume(place)
        self.engine.epochs.drop_ahead()

    # -- the run ends -------------------------------------------------------------------------
    def close(self, timeout_s: float) -> None:
        """End everything; warn about stages that are still in user code."""
        if holds(self.scheduler.lock):
            in_new_thread(lambda: self.close(timeout_s))
            return
        self.closed, self._patience_s = True, timeout_s
        epoch = self.position.epoch
        if epoch is not None:
            self.end(epoch)
        self._finish()
        threads.restore_switch_interval(self)
        late = self.engine.close(timeout_s)
        if late:
            LOG.warning(
                "run closed, but after %g s still inside user code: %s", timeout_s, ", ".join(late)
            )

    def disown(self) -> None:
        """Drop the run in a forked process: locks and threads stayed in the parent."""
        self.forked = True
        if self.position.epoch is not None:
            self.position.epoch.output.until = 0
        self.engine.disown()

    # -- refusals -----------------------------------------------------------------------------
    def check_free(self) -> None:
        """Refuse every thread but the one that iterates.

        Raises:
            ConcurrentIterationError: another thread iterates.
            RunClosedError, ReentrantRunError: as for `check_open` and `check_outside`.
        """
        self.check_open()
        self.check_outside("iterate")
        owner = self.owner
        if owner is not None and owner is not threading.current_thread() and owner.is_alive():
            raise ConcurrentIterationError(
                f"this run is being iterated by thread {owner.name!r}; end that epoch with "
                "run.stop(), or start a second run for a second loop"
            )

    def check_open(self) -> None:
        """Refuse a closed run, and one that another process started.

        Raises:
            RunClosedError: it is one of these.
        """
        if self.forked:
            raise RunClosedError(
                "this run belongs to the process that started it, and this process was forked "
                "from it; start a run here"
            )
        if self.closed:
            raise RunClosedError("this run is closed; start another with pipe.start()")

    def check_outside(self, verb: str) -> None:
        """Refuse what a stage must not do to its own run.

        Raises:
            ReentrantRunError: a thread of this run calls it.
        """
        if self.scheduler.is_own_thread(threading.get_ident()):
            raise ReentrantRunError(
                f"a stage cannot {verb} the run that runs it; do it outside, or call run.stop() "
                "to end the epoch"
            )
