"""Life: what is true of a run from its start to its end, apart from what it shows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import NamedTuple

from .. import gil
from ..checkpoint import Place, unreadable
from ..errors import (
    ConcurrentIterationError,
    ReentrantRunError,
    RunClosedError,
    StateError,
    WorkerStartError,
)
from ..rest import Rest
from ..threads import holds, in_new_thread
from ..watch import Status
from .epoch import LOG, Epoch
from .failures import one_line
from .indices import GivenOrder
from .machine import Machine
from .noting import Stages
from .record import Record

READY, FINISHED, STOPPED = "ready", "finished", "stopped"
CANCELLED, FAILED = "cancelled", "failed"


class _Ending(NamedTuple):
    """An epoch that is no longer iterated, and what else is to be told of its end."""

    epoch: Epoch
    ticket: int
    given: GivenOrder | None
    error: BaseException | None


class Life:
    """One run's epochs and end; its methods may be called from any thread.

    Attributes:
        machine: the stages, wherever they run.
        scheduler: hands the items to the loop.
        record: what is remembered.
        epoch: the epoch in progress, or None.
        owner: the thread that iterates it.
        given: the order of that epoch, or of the last one, where it came from outside.
        number: number of the epoch in progress, or of the last one.
        next_epoch: number of the epoch that starts next.
        outcome: how the last epoch ended: FINISHED, STOPPED, CANCELLED, FAILED; READY before
            the first.
        error: why the last epoch failed, or None.
        begun_ns: when the last epoch began; 0 before the first.
        ended_ns: when it ended; 0 while one is in progress.
        items_before: items handed out before it began.
        waited_before_ns: time waited before it began [ns].
        following: where the next epoch begins, where that is in its middle.
        left: where the last epoch was left, unless it came to its end.
        delivered_before: items of the epoch that the loop had in another run.
        between_waits: called by the consumer before it takes an item, and again and again
            while it waits for one; None where there is nothing to do meanwhile.
        closed: nothing may start any more.
        forked: this process is a copy, in which nothing of the run works.
    """

    def __init__(self, machine: Machine, record: Record) -> None:
        self.machine = machine
        self.scheduler = machine.scheduler
        self.record = record
        self.epoch: Epoch | None = None
        self.owner: threading.Thread | None = None
        self.given: GivenOrder | None = None
        self.number = 0
        self.next_epoch = 0
        self.outcome = READY
        self.error: BaseException | None = None
        self.begun_ns = self.ended_ns = 0
        self.items_before = self.waited_before_ns = 0
        self.between_waits: Callable[[], object] | None = None
        self.closed = False
        self.forked = False
        self.following: Place | None = None
        self.left: Place | None = None
        self.delivered_before = 0
        self._begun_at = Place(0)
        self._past: Epoch | None = None  # the last one, where it was not broken off
        self._ticket = 0
        self._lock = threading.RLock()  # an iterator that is garbage may end below us
        self._beginning = threading.Lock()
        self._ending: _Ending | None = None
        self._finishing = threading.RLock()

    def start_epoch(self, given: GivenOrder | None = None) -> Epoch:
        """Start the next epoch; cancel the one that this thread left unfinished.

        Args:
            given: takes the place of the source's own order.

        Raises:
            RunClosedError: the run is closed, or was started in another process.
            ConcurrentIterationError: another thread is iterating.
            ReentrantRunError: a stage of this run asks for it.
        """
        self.check_open()
        self.check_outside("iterate")
        with self._beginning:
            return self._start_epoch(given)

    def _start_epoch(self, given: GivenOrder | None) -> Epoch:
        self.check_open()
        epoch, owner, me = self.epoch, self.owner, threading.current_thread()
        if epoch is not None and owner is not None and owner is not me and owner.is_alive():
            raise ConcurrentIterationError(
                f"this run is being iterated by thread {owner.name!r}; end that epoch with "
                "run.stop(), or start a second run for a second loop"
            )
        if epoch is not None:
            self.end(epoch)
        self._finish()
        before, place = self.following, self._following(given)
        self.number = place.epoch
        self.next_epoch = place.epoch + 1
        self.owner = me
        gil.lower(self)
        try:
            self._begin(perf_counter_ns())
            if self.given is not None:
                self.given.close(None)  # an interrupt may have come between an end and this
            self.given, self.following, self.left, self._past = given, None, None, None
            self._begun_at, self.delivered_before = place, place.delivered
            self._ticket, here, stands = self.machine.begin(given, place.stands or {})
            self.epoch = epoch = self.scheduler.start_epoch(place.epoch, here, stands)
            epoch.delivered = self._delivered
        except BaseException as error:
            gil.restore(self)
            if isinstance(error, WorkerStartError):  # nothing has begun
                self.next_epoch, self.following = place.epoch, before
            if place.stands and isinstance(error, TypeError | ValueError | LookupError):
                raise unreadable(error) from error
            raise
        return epoch

    def _following(self, given: GivenOrder | None) -> Place:
        place = self.following
        if place is None or place.epoch != self.next_epoch:
            return Place(self.next_epoch)
        if place.given and given is None:
            raise StateError(
                "the state is of an epoch in an order from outside, so that order is needed to go "
                "on: run.iterate(indices), with the same indices"
            )
        if place.is_inside and given is not None and not place.given:
            raise StateError(
                "the state is of an epoch in the pipeline's own order, so it cannot go on in "
                "another one; iterate the run itself, or give an order to the epoch after it"
            )
        return place

    def _delivered(self) -> int:
        return self.record.consumer.items - self.items_before

    def place(self) -> Place:
        """Say where the run stands: behind the last item that the loop has had.

        Raises:
            StateError: the epoch was left, and nobody can say where.
        """
        epoch = self.epoch
        found = self.left if epoch is None else self._place_in(epoch)
        if found is None:
            following = self.following
            if following is None or following.epoch != self.next_epoch:
                return Place(self.next_epoch, 0, self.machine.caches())
            return following
        if found.stands is None:
            raise StateError(
                "the process of the stages does not tell where they stand: it died in the epoch, "
                "or is too busy; go on from an earlier state, or ask again"
            )
        return found

    def stands(self, number: int, rest: Rest) -> Stages | None:
        """Say where the stages stand in the epoch with this number, or in the last one."""
        epoch = self.epoch or self._past
        if epoch is None or epoch.context.epoch != number:
            return None
        with self.scheduler.lock:
            return epoch.stands(rest)

    def _place_left(self, epoch: Epoch) -> Place:
        """Say where an epoch is left; whatever happens, it must end."""
        try:
            return self._place_in(epoch)
        except Exception:
            LOG.warning("it cannot be told where the epoch was left", exc_info=True)
            return Place(self.number)

    def _place_in(self, epoch: Epoch) -> Place:
        delivered = self._delivered()
        stands = self.machine.stands(epoch, delivered)
        return Place(self.number, self.delivered_before + delivered, stands, self.given is not None)

    def _begin(self, now_ns: int) -> None:
        consumer = self.record.consumer
        with self.scheduler.lock:
            self.record.begin(now_ns)
        self.outcome, self.error = CANCELLED, None
        self.begun_ns, self.ended_ns = now_ns, 0
        self.items_before, self.waited_before_ns = consumer.items, consumer.waited_ns

    def end(
        self, epoch: Epoch, outcome: str = CANCELLED, error: BaseException | None = None
    ) -> None:
        """End an epoch, however far it got; ending it again does nothing."""
        if holds(self.scheduler.lock):  # garbage asks for it, in the midst of something
            in_new_thread(lambda: self.end(epoch, outcome, error))
            return
        left = None
        if self.epoch is epoch and outcome in (CANCELLED, FAILED):
            left = self._place_left(epoch)
        with self._lock:
            ours = self.epoch is epoch
            if ours:
                self._past = epoch if outcome in (FINISHED, FAILED) else None
                self._give_back(left)
                self.outcome, self.error = outcome, error
                self.ended_ns = perf_counter_ns()
                self._ending = _Ending(epoch, self._ticket, self.given, error)
                self.epoch, self.left = None, left
        if ours:
            self._finish()

    def _finish(self) -> None:
        """Do the rest of an end, or of one that an interrupt hit; it may be done twice."""
        with self._finishing:
            ending = self._ending
            if ending is None:
                return
            with self.scheduler.lock:
                self.record.end(self.ended_ns)
            gil.restore(self)
            if ending.given is not None:  # first: whoever waits in `load` is to hear of the end
                ending.given.close(ending.error)
            self.scheduler.end_epoch(ending.epoch)
            self.machine.cancel(ending.ticket)
            self._ending = None

    def _give_back(self, left: Place | None) -> None:
        """Let an epoch that went on from a state, and was left untouched, go on there again."""
        begun = self._begun_at
        if left is not None and begun.is_inside and left.delivered == begun.delivered:
            self.following, self.next_epoch = begun, begun.epoch

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted."""
        epoch = self.epoch
        if epoch is not None:
            self.end(epoch, STOPPED)

    def close(self, timeout_s: float) -> None:
        """End everything; warn of stages that are still inside user code."""
        if holds(self.scheduler.lock):
            in_new_thread(lambda: self.close(timeout_s))
            return
        self.closed = True
        epoch = self.epoch
        if epoch is not None:
            self.end(epoch)
        self._finish()
        gil.restore(self)
        late = self.machine.close(timeout_s)
        if late:
            LOG.warning(
                "run closed, but after %g s still inside user code: %s", timeout_s, ", ".join(late)
            )

    def status(
        self,
        *,
        trains: bool,
        epochs: tuple[int, int] | None,
        total: int | None,
        units: Mapping[str, str],
    ) -> Status:
        """Say where the run is.

        Args:
            trains: a loop in the background is under way.
            epochs: epochs that it was asked for, and those that have begun, or None.
            total: items of an epoch, or None.
            units: what each stage hands on, by address.
        """
        consumer = self.record.consumer
        now_ns = self.ended_ns or perf_counter_ns()
        since_ns = consumer.waits_since_ns or now_ns
        waited_ns = consumer.waited_ns + max(0, now_ns - since_ns) - self.waited_before_ns
        error = self.error
        return Status(
            state=self._state(trains=trains),
            epoch=self.number,
            epochs=None if epochs is None else epochs[0],
            epochs_begun=None if epochs is None else epochs[1],
            delivered=self.delivered_before + consumer.items - self.items_before,
            total=total,
            units=units,
            elapsed_s=(now_ns - self.begun_ns) / 1e9 if self.begun_ns else 0.0,
            waited_s=waited_ns / 1e9,
            cpu_cores=self.machine.cpu_cores,
            error="" if error is None else one_line(error).removeprefix("nbpipe.errors."),
            held_bytes=self.machine.held_bytes,
            limit_bytes=self.machine.limit_bytes,
            resumed=self.delivered_before,
        )

    def _state(self, *, trains: bool) -> str:
        if self.closed:
            return "closed"
        if self.scheduler.paused:
            return "paused"
        return "running" if trains or self.epoch is not None else self.outcome

    def disown(self) -> None:
        """Take note that this process is a fork: locks and threads stayed in the other one."""
        self.forked = True
        if self.epoch is not None:
            self.epoch.direct = False
        self.machine.disown()

    def check_open(self) -> None:
        """Refuse a run that cannot work here."""
        if self.forked:
            raise RunClosedError(
                "this run belongs to the process that started it, and this process was forked "
                "from it; start a run here"
            )
        if self.closed:
            raise RunClosedError("this run is closed; start another with pipe.start()")

    def check_outside(self, verb: str) -> None:
        """Refuse what a stage must not do to its own run."""
        if self.scheduler.is_own_thread(threading.get_ident()):
            raise ReentrantRunError(
                f"a stage cannot {verb} the run that runs it; do it outside, or call run.stop() "
                "to end the epoch"
            )
