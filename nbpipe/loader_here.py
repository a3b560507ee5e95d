"""Here: the epochs that a loader makes in the calling thread, as a run shows its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns, time
from traceback import walk_tb
from typing import final

from .engine.failures import formatted, one_line
from .engine.lane import BLOCKED, READY, Lane
from .engine.life import CANCELLED, STOPPED
from .engine.record import Record
from .failure import Failure
from .iterator import ATTEND_S
from .metrics import Row, StageStats
from .stage import CONSUMER, Chain, addresses
from .watch import Status

_MADE_IN = "fetch"  # the stage whose calls the loop makes itself


@final
class HereEpoch:
    """One epoch that is made in the calling thread; the thread tells it what it does.

    Args:
        here: the loader's epochs of this kind.
        number: of the epoch.
        before: batches of the epoch that the loop had before.
        total: batches of the epoch, or None.

    Attributes:
        outcome: how it ended; CANCELLED while it has not.
    """

    def __init__(self, here: Here, number: int, before: int, total: int | None) -> None:
        self.number = number
        self.outcome = CANCELLED
        self.over = False
        self._here = here
        self._before = before
        self._total = total
        self._error: BaseException | None = None
        self._stopping = False
        self._delivered = before
        self._waited_ns = self._asked_ns = 0  # not 0: a batch is being made since then
        self._begun_ns = self._last_ns = perf_counter_ns()

    # -- what the iterating thread tells ----------------------------------------------------
    def ask(self) -> None:
        """Hear that a batch is wanted; wait while it is paused.

        Raises:
            StopIteration: it was stopped.
        """
        here = self._here
        between = here.between_waits
        if between is not None:
            between()
        here.wait_while_paused()
        if self._stopping:
            self.end(STOPPED)
            raise StopIteration
        self._asked_ns = perf_counter_ns()
        here.begin_call(self._asked_ns)

    def made(self) -> None:
        """Hear that the batch is there."""
        self._delivered += 1
        self._note(self._here.end_call(perf_counter_ns(), self.number))

    def _note(self, now_ns: int) -> None:
        asked_ns, self._asked_ns = self._asked_ns, 0
        self._waited_ns += max(0, now_ns - asked_ns) if asked_ns else 0
        self._last_ns = now_ns

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """Hear that the epoch is over; again does nothing."""
        if self.over:
            return
        self.over = True
        self.outcome, self._error = outcome, error
        if isinstance(error, Exception):
            self._here.fail(error, self.number, self._delivered)
        self._note(self._here.end(perf_counter_ns(), self.number))

    # -- what others ask and do -------------------------------------------------------------
    def stop(self) -> None:
        """End it as if it were exhausted, before its next batch."""
        self._stopping = True
        self._here.resume()

    def now_ns(self, *, going: bool) -> int:
        """Give the time that its stats are of [ns].

        Args:
            going: it may go on: its iterator is there.
        """
        return perf_counter_ns() if going else self._last_ns

    def status(self, *, going: bool) -> Status:
        """Say where it is.

        Args:
            going: it may go on: its iterator is there.
        """
        now_ns = self.now_ns(going=going)
        asked_ns = self._asked_ns
        waited_ns = self._waited_ns + (max(0, now_ns - asked_ns) if asked_ns else 0)
        state = ("paused" if self._here.paused else "running") if going else self.outcome
        return Status(
            state=state,
            epoch=self.number,
            epochs=None,
            epochs_begun=None,
            delivered=self._delivered,
            total=self._total,
            units={},
            elapsed_s=(now_ns - self._begun_ns) / 1e9,
            waited_s=waited_ns / 1e9,
            cpu_cores=self._here.record.cpu_cores,
            error="" if self._error is None else one_line(self._error),
            held_bytes=None,
            limit_bytes=None,
            resumed=self._before,
            by_loop=True,
        )


@final
class Here:
    """Counts what a loader makes in the calling thread, over all of its epochs.

    Attributes:
        record: how long the loop waited, and the history.
        between_waits: called before a batch is made, and again and again during a pause, or None.
    """

    def __init__(self) -> None:
        self.record = Record()
        self.between_waits: Callable[[], object] | None = None
        self._lanes: dict[str, Lane] = {}
        self._lock = threading.RLock()  # stats are read while batches are made
        self._sample_ns = 0
        self._going = threading.Event()
        self._going.set()

    def begin(self, chain: Chain, number: int, before: int, total: int | None) -> HereEpoch:
        """Begin an epoch.

        Args:
            chain: the stages that it is shown as.
            number: of the epoch.
            before: batches of it that the loop had before.
            total: batches of it, or None.
        """
        with self._lock:
            now_ns = perf_counter_ns()
            self.record.end(now_ns)  # the one before may have been dropped
            self.record.begin(now_ns)
            for address, stage in addresses(chain).items():
                lane = self._lanes.get(address)
                if lane is None or lane.stage is not stage:
                    lane = self._lanes[address] = Lane(address, stage, prefetch=0, now_ns=now_ns)
                lane.active = 0
                lane.skip_time(now_ns)
                lane.state = BLOCKED  # nothing is made before it is wanted
                if not lane.counters.first_ns:
                    lane.counters.first_ns = now_ns
            self.record.consumer.waits_since_ns = 0
            return HereEpoch(self, number, before, total)

    def begin_call(self, now_ns: int) -> None:
        """Hear that a batch is being made."""
        with self._lock:
            self.record.consumer.waits_since_ns = now_ns
            lane = self._lanes.get(_MADE_IN)
            if lane is not None:
                lane.account(now_ns, READY)
                lane.active = 1

    def end_call(self, now_ns: int, epoch: int) -> int:
        """Hear that a batch was made; give the time [ns]."""
        with self._lock:
            spent_ns = self._back(now_ns)
            consumer = self.record.consumer
            consumer.items += 1
            for address, lane in self._lanes.items():
                lane.counters.items_in += 1
                lane.counters.items_out += 1
                if address == _MADE_IN:
                    lane.learn(spent_ns, 1, now_ns)
            if now_ns >= self._sample_ns:
                self._sample(now_ns, epoch, last=False)
        return now_ns

    def fail(self, error: Exception, epoch: int, place: int) -> None:
        """Hear that a batch could not be made.

        Args:
            error: why.
            epoch: its number.
            place: of the batch in the epoch.
        """
        with self._lock:
            address = self._stage_of(error)
            lane = self._lanes.get(address)
            if lane is not None:
                lane.counters.errors += 1
            self.record.failures.append(
                Failure(
                    stage=address,
                    path=place,
                    epoch=epoch,
                    error=one_line(error),
                    traceback=formatted(error),
                    input="",
                    attempts=1,
                    when_s=time(),
                )
            )

    def _stage_of(self, error: Exception) -> str:
        """Give the stage whose function an error came through; else it is the first one's."""
        ran = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
        for address, lane in self._lanes.items():
            call = vars(type(getattr(lane.stage, "fn", None))).get("__call__")
            if getattr(call, "__code__", None) in ran:
                return address
        return next(iter(self._lanes), _MADE_IN)

    def end(self, now_ns: int, epoch: int) -> int:
        """Hear that an epoch is over; give the time [ns]."""
        with self._lock:
            self._back(now_ns)
            self._sample(now_ns, epoch, last=True)
            self.record.end(now_ns)
        return now_ns

    def _back(self, now_ns: int) -> int:
        """Note that the loop is its own again; give the time that it was not [ns]."""
        consumer = self.record.consumer
        since_ns, consumer.waits_since_ns = consumer.waits_since_ns, 0
        spent_ns = max(0, now_ns - since_ns) if since_ns else 0
        consumer.waited_ns += spent_ns
        lane = self._lanes.get(_MADE_IN)
        if lane is not None:
            lane.account(now_ns, BLOCKED)
            lane.active = 0
        return spent_ns

    def _sample(self, now_ns: int, epoch: int, *, last: bool) -> None:
        lanes = [(lane, 0, 0) for lane in self._lanes.values()]
        self._sample_ns = self.record.sample(now_ns, epoch, lanes, last=last)

    # -- looking in -----------------------------------------------------------------------
    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Give stats by address, and of the loop."""
        with self._lock:
            since_ns = self.record.consumer.waits_since_ns
            running_ns = max(0, now_ns - since_ns) if since_ns else 0
            rows = {
                address: lane.stats(now_ns, 0, running_ns if address == _MADE_IN else 0)
                for address, lane in self._lanes.items()
            }
            rows[CONSUMER] = self.record.consumer.stats(now_ns)
        return rows

    def history(self) -> list[Row]:
        """Give one row a second and stage."""
        with self._lock:
            return self.record.history()

    def failures(self) -> list[Failure]:
        """Give the last batches that could not be made, oldest first."""
        with self._lock:
            return list(self.record.failures)

    # -- reaching in ----------------------------------------------------------------------
    @property
    def paused(self) -> bool:
        """Whether no further batch is to be made."""
        return not self._going.is_set()

    def pause(self) -> None:
        """Let no further batch be made."""
        self._going.clear()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    def wait_while_paused(self) -> None:
        """Wait until batches may be made."""
        while not self._going.wait(ATTEND_S):
            if self.between_waits is not None:
                self.between_waits()
