"""Engine: the stages of a run, its life from start to end, and what it remembers."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from time import perf_counter_ns, process_time_ns, time
from typing import Any, NamedTuple

from ..base import threads
from ..base.knobs import KnobChange
from ..base.threads import holds, in_new_thread, own_idle_ns
from ..errors import (
    ConcurrentIterationError,
    ReentrantRunError,
    RunClosedError,
    StateError,
)
from ..executors.interface import Executor
from ..ops.checkpoint import EpochPlace, caches
from ..ops.ranges import IndexRanges
from ..ops.stage import CONSUMER, Chain, user_line
from .epoch import LOG, Epoch
from .external import ExternalOrder
from .failures import KEPT, Failure, one_line
from .node import StageStates
from .scheduler import Scheduler, snapshot, stats
from .stats import (
    PACE_NS,
    SAMPLE_NS,
    WINDOW_NS,
    Counters,
    Reading,
    Row,
    StageRuntime,
    StageStats,
    Status,
    shares_between,
    stats_of,
)
from .step_time import CORES, LOCK, STEP_EVENT, UNKNOWN, StepFindings, StepTimes

# -- RunRecord: what a run remembers: the consumer's waits, history, failures, knob changes --------
_ROW_NS = 1_000_000_000
_LAST_ROW_NS = 10_000_000  # the last row of an epoch covers at least so much
TICKS_KEPT = 600
_CORE_READINGS = 4  # fewer say little
EVENTS_KEPT = 10_000


@dataclass(eq=False, repr=False, slots=True)
class Consumer:
    """How long the training loop waited for data; its methods are called under the lock.

    Attributes:
        counted: items that it has had, without those of `epoch`.
        epoch: the epoch in progress, which counts its own; or None.
        waited_ns: time spent waiting, written by the consuming thread; pauses are left out.
        waits_since_ns: beginning of the wait in progress on the clock of `active_ns`, or 0.
        steps: times the steps of the loop; None where something else takes the items.
    """

    counted: int = 0
    epoch: Epoch | None = None
    waited_ns: int = 0
    waits_since_ns: int = 0
    counters: Counters = field(default_factory=Counters)
    steps: StepTimes | None = None
    _since_ns: int = 0
    _paused: tuple[int, int] = (0, 0)  # since when [ns], or 0; time of the pauses before [ns]
    _resumed_ns: int = 0  # on the clock of `active_ns`
    _before_pause: StageStats | None = None  # when the last pause of this epoch began
    _past: StageStats | None = None  # at the end of the last epoch

    @property
    def items(self) -> int:
        """Items that it has had."""
        return self.counted + (0 if self.epoch is None else self.epoch.at)

    def takes(self, epoch: Epoch | None) -> None:
        """Called when it takes its items from an epoch, or from none any more."""
        self.counted, self.epoch = self.items, epoch

    def pause(self, now_ns: int, *, paused: bool) -> bool:
        """Stop the clock of the loop, or let it go on; again does nothing.

        From then on stats are of the time in the pause, or of that behind it.

        Returns:
            Whether it did either.
        """
        since_ns, before_ns = self._paused
        if paused == bool(since_ns):
            return False
        if paused:
            self._before_pause = self.stats(now_ns)
            self._paused = (now_ns, before_ns)
        else:
            self._paused = (0, before_ns + now_ns - since_ns)
            self._resumed_ns = self.active_ns(now_ns)
        if self._since_ns:
            self.settle(now_ns)
            self.counters.begin_window(now_ns, 0)
        return True

    @property
    def is_paused(self) -> bool:
        """Whether the clock of the loop stands still."""
        return self._paused[0] > 0

    def since_pause_s(self, begun_ns: int, active_ns: int) -> float | None:
        """Return the time since the last pause in an epoch was over, None where none was [s]."""
        resumed_ns = self._resumed_ns
        return (active_ns - resumed_ns) / 1e9 if resumed_ns > begun_ns else None

    def active_ns(self, now_ns: int) -> int:
        """Return the time now on a clock that stands still while the run is paused [ns]."""
        since_ns, before_ns = self._paused
        return (since_ns or now_ns) - before_ns

    @property
    def paused_ns(self) -> int:
        """Time of all pauses that are over, and 1 ns more in one [ns]."""
        since_ns, before_ns = self._paused
        return before_ns + (since_ns > 0)

    def begin(self, now_ns: int) -> None:
        """Called when an epoch begins."""
        if self.steps is not None:
            self.steps.begin()
        self._since_ns = self.active_ns(now_ns)
        self._past = self._before_pause = None
        if not self.counters.first_ns:
            self.counters.first_ns = now_ns

    def settle(self, now_ns: int) -> None:
        """Bring the counters up to date."""
        counters, active_ns = self.counters, self.active_ns(now_ns)
        if self._since_ns:
            counters.slot_ns += max(0, active_ns - self._since_ns)
            self._since_ns = active_ns
        since = self.waits_since_ns
        counters.starved_ns = self.waited_ns + (max(0, active_ns - since) if since else 0)
        counters.busy_ns = max(0, counters.slot_ns - counters.starved_ns)
        counters.items_in = counters.items_out = self.items

    def end(self, now_ns: int) -> None:
        """Called when the epoch is over; again does nothing."""
        if self._past is None:
            active_ns, stats = self.active_ns(now_ns), self.stats(now_ns)
            stands = self._paused[0] or active_ns - self._resumed_ns < PACE_NS
            before = self._before_pause if stands else None
            self._past = stats if before is None else stats.at_the_pace_of(before)
            self._since_ns = 0
            self.takes(None)

    def stats(self, now_ns: int) -> StageStats:
        """Read the counters; between epochs, as they were at the end of the last one."""
        if self._past is not None:
            return self._past
        self.settle(now_ns)
        return stats_of(
            self.counters,
            now_ns,
            running_ns=0,
            running=0,
            concurrency=1,
            queued=0,
            prefetch=0,
        ).with_mean(self.counters.slot_ns)

    def with_means(self, rows: Mapping[str, StageStats], now_ns: int) -> dict[str, StageStats]:
        """Return rows of stages with mean rates by the clock of the loop: without pauses."""
        if self._past is None:
            self.settle(now_ns)
        active_ns = self.counters.slot_ns
        return {address: row.with_mean(active_ns) for address, row in rows.items()}


class RunRecord:
    """History, failures and knob changes of one run; bounded.

    Every second a tick of one row for each stage is kept; when there are many ticks, every
    second one of the older half is dropped, so that old times are thinned, not forgotten.
    """

    def __init__(self) -> None:
        self.consumer = Consumer()
        self.failures: deque[Failure] = deque(maxlen=KEPT)
        self.failed = 0  # items, those forgotten included
        self.events: deque[KnobChange] = deque(maxlen=EVENTS_KEPT)
        self._cores: deque[tuple[int, int, int | None]] = deque(maxlen=WINDOW_NS // SAMPLE_NS + 1)
        self._ticks: list[list[Row]] = []
        self._last: dict[str, Reading] = {}
        self._begun_ns = self._last_row_ns = perf_counter_ns()
        self._ended_ns = self._begun_ns
        self._was_paused = False  # since the last tick

    def remember(self, failure: Failure) -> None:
        """Keep a failed item; under the lock."""
        self.failures.append(failure)
        self.failed += 1

    def time_steps(self, lock: AbstractContextManager[object]) -> None:
        """Time the steps of the loop; a finding is an event, kept under this lock."""
        events = self.events

        def found(findings: StepFindings) -> None:
            with lock:
                events.append(slowdown(findings))

        self.consumer.steps = StepTimes(found)

    @property
    def step_findings(self) -> dict[str, Any]:
        """The findings about the loop's steps, as fields of a status."""
        steps = self.consumer.steps
        return {} if steps is None else steps.findings.fields()

    def begin(self, now_ns: int) -> None:
        """Called when an epoch begins; the time since the last one is left out of all rates."""
        rest_ns = now_ns - self._ended_ns
        self._last_row_ns += rest_ns
        if self.consumer.counters.first_ns:
            self.consumer.counters.rest_ns += rest_ns
        self._last = {
            stage: reading._replace(at_ns=reading.at_ns + rest_ns)
            for stage, reading in self._last.items()
        }
        self.consumer.begin(now_ns)

    def resume(self, now_ns: int, runtimes: Iterable[tuple[StageRuntime, int, int]]) -> None:
        """Called when a pause is over; it is left out of the rates of all rows. Under the lock."""
        for runtime, _, running_ns in runtimes:
            self._last[runtime.address] = runtime.counters.read(now_ns, running_ns)
        self._last[CONSUMER] = self.consumer.counters.read(now_ns, 0)
        self._last_row_ns = now_ns
        self._was_paused = True

    def end(self, now_ns: int) -> None:
        """Called when the epoch is over."""
        self._ended_ns = now_ns
        self.consumer.end(now_ns)

    def sample(
        self,
        now_ns: int,
        epoch: int,
        runtimes: Iterable[tuple[StageRuntime, int, int]],
        *,
        last: bool,
    ) -> int:
        """Keep a reading of every stage; return the time of the next [ns]. Under the lock.

        A row is kept every second in which there was no pause, and at the end of an epoch.
        """
        self.consumer.settle(now_ns)
        self.consumer.counters.sample(now_ns, 0)
        self._cores.append((now_ns, process_time_ns(), own_idle_ns()))
        rows: list[Row] = []
        due = now_ns - self._last_row_ns >= (_LAST_ROW_NS if last else _ROW_NS)
        due = due and (last or not self.consumer.is_paused)
        for runtime, queued, running_ns in runtimes:
            runtime.account(now_ns)
            runtime.counters.sample(now_ns, running_ns)
            if due:
                reading = runtime.counters.read(now_ns, running_ns)
                rows.append(self._row(runtime.address, epoch, reading, runtime, queued))
        if due:
            reading = self.consumer.counters.read(now_ns, 0)
            rows.append(self._row(CONSUMER, epoch, reading, None, 0))
            self._ticks.append(rows)
            self._last_row_ns, self._was_paused = now_ns, False
            self._thin()
        return now_ns + SAMPLE_NS

    def _row(
        self, stage: str, epoch: int, reading: Reading, runtime: StageRuntime | None, queued: int
    ) -> Row:
        before = self._last.get(stage) or Reading(self._last_row_ns, 0, 0, 0, 0, 0)
        self._last[stage] = reading
        busy, starved, blocked = shares_between(before, reading)
        elapsed_s = max(reading.at_ns - before.at_ns, 1) / 1e9
        return {
            "when_s": time(),
            "time_s": (reading.at_ns - self._begun_ns) / 1e9,
            "epoch": epoch,
            "stage": stage,
            "items_out": reading.items_out,
            "items_per_s": (reading.items_out - before.items_out) / elapsed_s,
            "busy": busy,
            "starved": starved,
            "blocked": blocked,
            "queued": queued,
            "running": runtime.active if runtime else 0,
            "concurrency": runtime.concurrency if runtime else 1,
            "prefetch": runtime.prefetch if runtime else 0,
            "paused": int(self._was_paused),
        }

    def _thin(self) -> None:
        if len(self._ticks) > TICKS_KEPT:
            half = TICKS_KEPT // 2
            for dropped, kept in zip(self._ticks[1:half:2], self._ticks[2::2], strict=False):
                for row in kept if dropped[0]["paused"] else ():
                    row["paused"] = 1
            self._ticks = self._ticks[:half:2] + self._ticks[half:]

    @property
    def cpu_cores(self) -> float | None:
        """Processor time of the whole process over the last seconds [cores]."""
        return self._mean_cores(itemgetter(1))

    @property
    def idle_cores(self) -> float | None:
        """How many cores had nothing to do over the last seconds, or None [cores]."""
        return self._mean_cores(itemgetter(2))

    def _mean_cores(self, time_of: Callable[[tuple[Any, ...]], int | None]) -> float | None:
        readings = tuple(self._cores)
        first = bisect_left(readings, (readings[-1][0] - WINDOW_NS,)) if readings else 0
        if len(readings) - first < _CORE_READINGS:
            return None
        old, new = readings[first], readings[-1]
        before_ns, spent_ns = time_of(old), time_of(new)
        if before_ns is None or spent_ns is None:
            return None
        return (spent_ns - before_ns) / max(1, new[0] - old[0])

    def history(self, lock: AbstractContextManager[object]) -> list[Row]:
        """Return all rows, oldest first; `lock` is that under which they are kept."""
        with lock:
            ticks = self._ticks.copy()
        return [dict(row) for tick in ticks for row in tick]


_WHY = {LOCK: "hold the interpreter lock", CORES: "take its cores", UNKNOWN: "slow it"}


def slowdown(found: StepFindings) -> KnobChange:
    """Return the event that workers slow the loop: its step at rest, and at work [ms]."""
    at_rest, at_work = (round(1e3 * (step or 0.0)) for step in (found.at_rest_s, found.step_s))
    why = f"the loader slows the loop: its workers {_WHY[found.slowed_by]}"
    return KnobChange(time(), STEP_EVENT, at_rest, at_work, "nbpipe", why)


def sampler(scheduler: Scheduler, record: RunRecord) -> Callable[..., int]:
    """Return what the scheduler calls now and then to have its counters kept."""
    reference = weakref.ref(scheduler)  # the scheduler holds this function

    def sample(now_ns: int, last: bool = False) -> int:  # noqa: FBT001, FBT002
        engine = reference()
        if engine is None or engine.epoch is None:
            return now_ns
        epoch = engine.epoch.context.epoch
        return record.sample(now_ns, epoch, snapshot(engine, now_ns), last=last)

    return sample


# -- RunLifecycle: what is true of a run from its start to its end, apart from what it shows -------
READY, FINISHED, STOPPED = "ready", "finished", "stopped"
CANCELLED, FAILED = "cancelled", "failed"


class _Ending(NamedTuple):
    """An epoch that is no longer iterated, and what else is to be told of its end."""

    epoch: Epoch
    ticket: int
    external: ExternalOrder | None
    error: BaseException | None


class RunLifecycle:
    """One run's epochs and end; its methods may be called from any thread.

    Attributes:
        machine: the stages, wherever they run.
        scheduler: hands the items to the loop.
        record: what is remembered.
        epoch: the epoch in progress, or None.
        owner: the thread that iterates it.
        external: the order of that epoch, or of the last one, where it came from outside.
        number: number of the epoch in progress, or of the last one.
        next_epoch: number of the epoch that starts next.
        outcome: how the last epoch ended: FINISHED, STOPPED, CANCELLED, FAILED; READY before
            the first.
        error: why the last epoch failed, or None.
        begun_ns: when the last epoch began, on the clock of the consumer; 0 before the first.
        elapsed_ns: time that it took, without pauses; 0 while one is in progress.
        ended_ns: when it ended; 0 while one is in progress.
        had: items of it that the loop has had, once it is over.
        waited_before_ns: time waited before it began [ns].
        following: where the next epoch begins, where that is in its middle.
        left: where the last epoch was left, unless it came to its end.
        delivered_before: items of the epoch that the loop had in another run.
        between_waits: called by the consumer before it takes an item, and again and again
            while it waits for one; None where there is nothing to do meanwhile.
        closed: nothing may start any more.
        forked: this process is a copy, in which nothing of the run works.
    """

    def __init__(self, machine: Engine, record: RunRecord) -> None:
        self.machine = machine
        self.scheduler = machine.scheduler
        self.record = record
        self.epoch: Epoch | None = None
        self.owner: threading.Thread | None = None
        self.external: ExternalOrder | None = None
        self.number = 0
        self.next_epoch = 0
        self.outcome = READY
        self.error: BaseException | None = None
        self.begun_ns = self.elapsed_ns = self.ended_ns = 0
        self.had = self.waited_before_ns = 0
        self.between_waits: Callable[[], object] | None = None
        self.closed = False
        self.forked = False
        self.following: EpochPlace | None = None
        self.left: EpochPlace | None = None
        self.delivered_before = 0
        self._begun_at: EpochPlace | None = None  # where it was told to go on, in mid-epoch or not
        self._begins: EpochPlace | None = None  # where the epoch begins that is being built
        self._before: EpochPlace | None = None  # what `following` was before that
        self._to_stop = False  # it is to end as soon as it is there
        self._ticket = self._skipped = 0
        self._patience_s = 0.0  # so long whoever closed it waits for calls in progress
        self._beginning = threading.Lock()
        self._ending: _Ending | None = None
        self._finishing = threading.RLock()

    def start_epoch(
        self, external: ExternalOrder | None = None, *, reads_ahead: bool = False
    ) -> Epoch:
        """Start the next epoch; cancel the one that this thread left unfinished.

        Args:
            external: takes the place of the source's own order.
            reads_ahead: the epoch behind it is read ahead, unless an order is given.

        Raises:
            RunClosedError: the run is closed, or was started in another process.
            ConcurrentIterationError: another thread is iterating.
            ReentrantRunError: a stage of this run asks for it.
        """
        self.check_open()
        self.check_outside("iterate")
        with self._beginning:
            return self._start_epoch(external, reads_ahead=reads_ahead and external is None)

    def _start_epoch(self, external: ExternalOrder | None, *, reads_ahead: bool) -> Epoch:
        self.check_open()
        epoch = self.epoch
        if epoch is not None:
            self.check_free()
            self.end(epoch, ended_by=user_line())
        self._finish()
        threads.lower_switch_interval(self)
        try:
            if self.external is not None:
                self.external.close(None)  # an interrupt may have come between an end and this
            place = self._begin(external)
            ticket, here, node_state = self.machine.begin(external, place.node_state or {})
            epoch = self.scheduler.start_epoch(
                place.epoch, here, node_state, reads_ahead=reads_ahead
            )
            self._has_begun(epoch, ticket)
        except BaseException as error:
            threads.restore_switch_interval(self)
            if self.epoch is None:
                self._not_begun(error)
            if self.closed:  # meanwhile: what has begun since then ends, too
                self.close(self._patience_s)
            raise
        return epoch

    def _following(self, external: ExternalOrder | None) -> EpochPlace:
        place = self._next_place
        if place.external and external is None:
            raise StateError(
                "the state is of an epoch in an order from outside, so that order is needed to go "
                "on: run.iterate(indices), with the same indices"
            )
        if place.is_inside and external is not None and not place.external:
            raise StateError(
                "the state is of an epoch in the pipeline's own order, so it cannot go on in "
                "another one; iterate the run itself, or give an order to the epoch after it"
            )
        return place

    @property
    def _next_place(self) -> EpochPlace:
        place = self.following
        told = place is not None and place.epoch == self.next_epoch
        return place if place is not None and told else EpochPlace(self.next_epoch)

    def set_epoch(self, number: int) -> None:
        """Have the next epoch take this number; one that was left is not gone on with any more."""
        with self.scheduler.lock:
            self.next_epoch = number
            if self.epoch is None:
                self.left = None
            if self._begun_at is not None and self._begun_at.epoch != number:
                self._begun_at = None
        self.scheduler.drop_ahead(unless=number)

    def go_on_from(self, place: EpochPlace) -> None:
        """Have the next epoch begin at a place."""
        with self.scheduler.lock:
            self.following, self.next_epoch = place, place.epoch
            self.left = self._begun_at = None
        self.scheduler.drop_ahead()

    def _delivered(self) -> int:
        epoch = self.epoch
        return self.had if epoch is None else epoch.at

    def place(self) -> EpochPlace:
        """Tell where the run stands: behind the last item that the loop has had.

        Raises:
            StateError: the epoch was left, and nobody can say where.
        """
        epoch = self.epoch
        found = self._place_between() if epoch is None else self._place_in(epoch)
        if found is None:  # another thread has begun or ended one just now
            return self.place()
        if found.node_state is None:
            raise StateError(
                "the process of the stages does not tell where they stand: it died in the epoch, "
                "or is too busy; go on from an earlier state, or ask again"
            )
        return found

    def _place_between(self) -> EpochPlace | None:
        """Tell where the next epoch begins, or the last one was left; None while one is there."""
        with self.scheduler.lock:
            if self.epoch is not None or self.left is not None:
                return self.left
            place = self._begins or self._next_place
        if place.node_state is None:
            place = replace(place, node_state=self.machine.caches())
        return place

    def node_state(self, number: int, rest: IndexRanges) -> StageStates | None:
        """Tell where the stages stand in the epoch in progress, if it has this number."""
        epoch = self.epoch
        if epoch is None or epoch.context.epoch != number:
            return None
        with self.scheduler.lock:
            return epoch.node_state(rest)

    def _place_left(self, epoch: Epoch) -> EpochPlace | None:
        """Tell where an epoch is left; whatever happens, it must end."""
        try:
            return self._place_in(epoch)
        except Exception:
            LOG.warning("it cannot be told where the epoch was left", exc_info=True)
            return EpochPlace(self.number)

    def _place_in(self, epoch: Epoch) -> EpochPlace | None:
        """Tell where an epoch stands; None where another thread has ended it meanwhile."""
        with self.scheduler.lock:
            number, before, delivered = self.number, self.delivered_before, self._delivered()
            outer = self.external is not None
            if self.epoch is not epoch:
                return None
        node_state = self.machine.node_state(epoch, delivered)
        if self.epoch is not epoch:
            return None
        return EpochPlace(number, before + delivered, node_state, outer)

    def _begin(self, external: ExternalOrder | None) -> EpochPlace:
        """Let the next epoch be in progress, for all who ask; it is built after that."""
        consumer, now_ns = self.record.consumer, perf_counter_ns()
        _past = self.error, self.external  # the user's go without the lock
        me = threading.current_thread()
        with self.scheduler.lock:
            place = self._following(external)
            self.record.begin(now_ns)
            self.number, self.owner, self.external = place.epoch, me, external
            self.outcome, self.error, self.left = CANCELLED, None, None
            self.begun_ns, self.elapsed_ns, self.ended_ns = consumer.active_ns(now_ns), 0, 0
            self.had, self.waited_before_ns = 0, consumer.waited_ns
            self.delivered_before, self._skipped = place.delivered, 0
            self._begun_at = place if place is self.following else None
            self._before, self._to_stop = self.following, False
            self._begins = replace(place, external=external is not None)
            self.following, self.next_epoch = None, place.epoch + 1
        return place

    def _has_begun(self, epoch: Epoch, ticket: int) -> None:
        with self.scheduler.lock:
            self.record.consumer.takes(epoch)
            epoch.times_steps = self.record.consumer.steps is not None
            self._ticket, self.epoch, self._begins = ticket, epoch, None
        self.check_open()
        if self._to_stop:
            self.end(epoch, STOPPED)

    def _not_begun(self, error: BaseException) -> None:
        """Take back an epoch that could not begin, but for what others have said meanwhile."""
        failed = isinstance(error, Exception)
        with self.scheduler.lock:
            place, self._begins = self._begins, None
            if place is None:  # it was refused before it was said to be in progress
                return
            if self.following is None and self.next_epoch == place.epoch + 1:
                self.following, self.next_epoch = self._before, place.epoch
            self._stop_clock(*(FAILED, error) if failed else (CANCELLED, None))
            self.record.end(self.ended_ns)

    def _stop_clock(self, outcome: str, error: BaseException | None) -> None:
        self.outcome, self.error = outcome, error
        self.ended_ns = perf_counter_ns()
        self.elapsed_ns = self.record.consumer.active_ns(self.ended_ns) - self.begun_ns

    def end(
        self,
        epoch: Epoch,
        outcome: str = CANCELLED,
        error: BaseException | None = None,
        *,
        ended_by: tuple[str, int] | None = None,
    ) -> None:
        """End an epoch, however far it got; ending it again does nothing.

        Args:
            epoch: the epoch.
            outcome: how it ends.
            error: why it failed, or None.
            ended_by: file and line of a second loop, for which it ends; or None.
        """
        if holds(self.scheduler.lock):  # garbage asks for it, in the midst of something
            in_new_thread(lambda: self.end(epoch, outcome, error))
            return
        try:
            self._hold_back(epoch, held=True)  # the loop has nothing more, be it another thread's
            left = self._place_left(epoch) if outcome in (CANCELLED, FAILED) else None
            with self.scheduler.lock:
                ours = self.epoch is epoch
                if ours:
                    epoch.ended_by = ended_by
                    self._give_back(left)
                    self._stop_clock(outcome, error)
                    self._ending = _Ending(epoch, self._ticket, self.external, error)
                    self._skipped, self.had = epoch.skipped, epoch.at
                    self.epoch, self.left = None, left
        except BaseException:  # an interrupt: it goes on
            self._hold_back(epoch, held=self.scheduler.paused)
            raise
        if ours:
            self._finish()

    def _hold_back(self, epoch: Epoch, *, held: bool) -> None:
        """Let the loop have nothing more of the epoch in progress for now, or let it go on."""
        with self.scheduler.lock:
            if self.epoch is epoch:
                epoch.set_paused(held)

    def time_step(self, epoch: Epoch) -> None:
        """Called when the loop asks for an item, where its steps are timed."""
        consumer, steps = self.record.consumer, self.record.consumer.steps
        if steps is not None:
            epoch.stepwise = steps.take(consumer.waited_ns, consumer.paused_ns, self.machine)

    def _finish(self) -> None:
        """Do the rest of an end, or of one that an interrupt hit; it may be done twice."""
        with self._finishing:
            ending = self._ending
            if ending is None:
                return
            with self.scheduler.lock:
                self.record.end(self.ended_ns)
            threads.restore_switch_interval(self)
            if ending.external is not None:  # first: whoever waits in `load` is to hear of the end
                ending.external.close(ending.error)
            if self.outcome != FINISHED:
                self.scheduler.drop_ahead()
            self.machine.cancel(ending.ticket, ending.epoch)
            self.scheduler.end_epoch(ending.epoch)
            self._ending = None

    def _give_back(self, left: EpochPlace | None) -> None:
        """Let an epoch that began where a state says, and was left untouched, begin there again."""
        begun = self._begun_at
        if left is not None and begun is not None and left.delivered == begun.delivered:
            self.following, self.next_epoch = begun, begun.epoch

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted, also one that only begins."""
        with self.scheduler.lock:
            epoch, self._to_stop = self.epoch, self._begins is not None
        if epoch is not None:
            self.end(epoch, STOPPED)

    def close(self, timeout_s: float) -> None:
        """End everything; warn of stages that are still inside user code."""
        if holds(self.scheduler.lock):
            in_new_thread(lambda: self.close(timeout_s))
            return
        self.closed, self._patience_s = True, timeout_s
        epoch = self.epoch
        if epoch is not None:
            self.end(epoch)
        self._finish()
        threads.restore_switch_interval(self)
        late = self.machine.close(timeout_s)
        if late:
            LOG.warning(
                "run closed, but after %g s still inside user code: %s", timeout_s, ", ".join(late)
            )

    def status(self, *, trains: bool, total: Callable[..., int | None], **known: Any) -> Status:
        """Tell where the run is.

        Args:
            trains: a loop in the background is under way.
            total: counts the items of an epoch in this order; told when it began [ns], too, or 0
                of one that is not in progress.
            known: fields that the run knows.
        """
        with self.scheduler.lock:  # of one moment, whoever begins an epoch, or ends it
            moment = self._moment(trains=trains)
            begun, error, epoch = bool(self.begun_ns), self.error, self.epoch
            order = self.external, 0 if epoch is None else self.begun_ns
            skipped = self._skipped if epoch is None else epoch.skipped
        return Status(
            **moment,
            total=total(*order),
            cpu_cores=self.machine.cpu_cores,
            idle_cores=self.machine.idle_cores,
            error="" if error is None else one_line(error).removeprefix("nbpipe.errors."),
            held_bytes=self.machine.held_bytes,
            limit_bytes=self.machine.limit_bytes,
            skipped=skipped + (self.machine.skipped if begun else 0),
            ahead=self.machine.reads_ahead_of(moment["epoch"]),
            isolated=self.machine.isolated_stages,
            process_bytes=self.machine.process_bytes,
            **self.record.step_findings,
            **known,
        )

    def _moment(self, *, trains: bool) -> dict[str, Any]:
        consumer, begun_ns, elapsed_ns = self.record.consumer, self.begun_ns, self.elapsed_ns
        if self.is_in_progress:
            elapsed_ns = consumer.active_ns(perf_counter_ns()) - begun_ns
        now_ns = begun_ns + elapsed_ns
        since_ns = consumer.waits_since_ns or now_ns
        waited_ns = consumer.waited_ns + max(0, now_ns - since_ns) - self.waited_before_ns
        return {
            "state": self._state(trains=trains),
            "outcome": self.outcome,
            "epoch": self.number,
            "delivered": self.delivered_before + self._delivered(),
            "resumed": self.delivered_before,
            "elapsed_s": elapsed_ns / 1e9,
            "waited_s": waited_ns / 1e9,
            "since_pause_s": consumer.since_pause_s(begun_ns, now_ns),
        }

    @property
    def is_in_progress(self) -> bool:
        """Whether an epoch is in progress, also one that only begins."""
        return bool(self.begun_ns) and not self.ended_ns

    def _state(self, *, trains: bool) -> str:
        if self.closed:
            return "closed"
        if self.scheduler.paused:
            return "paused"
        return "running" if trains or self.is_in_progress else self.outcome

    def disown(self) -> None:
        """Take note that this process is a fork: locks and threads stayed in the other one."""
        self.forked = True
        if self.epoch is not None:
            self.epoch.until = 0
        self.machine.disown()

    def check_free(self) -> None:
        """Refuse a thread other than the one that iterates, or is about to go on with that."""
        self.check_open()
        self.check_outside("iterate")
        owner = self.owner
        if owner is not None and owner is not threading.current_thread() and owner.is_alive():
            raise ConcurrentIterationError(
                f"this run is being iterated by thread {owner.name!r}; end that epoch with "
                "run.stop(), or start a second run for a second loop"
            )

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


# -- Engine: the stages of a run, wherever they run: what they did, and what they are told ---------
class Engine:
    """The stages of a run, in this process; asked and told from any thread.

    Args:
        chain: the stages.
        record: what the run remembers.
        seed: the run's.
        memory_bytes: budget for what all buffers hold [bytes], or None.

    Attributes:
        scheduler: hands the items to the loop.
        limit_bytes: the budget.
        isolated: the stages run in a process of their own.
        isolated_stages: addresses of those that do.
        process_bytes: memory of that process [bytes].
        skipped: items that failed there in this epoch and were left out [items].
        sources_read: called when what follows reads the sources as they are then.
    """

    isolated = False
    isolated_stages: tuple[str, ...] = ()
    process_bytes = 0
    skipped = 0

    def __init__(
        self, chain: Chain, record: RunRecord, *, seed: int, memory_bytes: int | None
    ) -> None:
        self.scheduler = Scheduler(chain, seed=seed, memory_bytes=memory_bytes)
        self.limit_bytes = memory_bytes
        self._chain = chain
        self._record = record
        self.scheduler.remember = record.remember
        self.scheduler.sample = sampler(self.scheduler, record)
        self.sources_read: Callable[[], object] = lambda: None

    def begin(
        self, external: ExternalOrder | None, node_state: StageStates
    ) -> tuple[int, ExternalOrder | None, StageStates]:
        """Called when an epoch begins, and where its stages go on.

        Returns:
            A ticket, the order that is read here, and where the stages here go on.
        """
        self.sources_read()
        return 0, external, node_state

    def node_state(self, epoch: Epoch, delivered: int) -> StageStates | None:
        """Tell where the stages stand when the loop has had so many items of an epoch."""
        with self.scheduler.lock:
            return epoch.node_state(IndexRanges(delivered))

    def caches(self) -> StageStates:
        """Tell of each cache which epoch made its items."""
        return caches(self._chain)

    def finish(self, epoch: Epoch) -> None:
        """Called when the loop has had all of an epoch; without the lock: it may be slow.

        Raises:
            CacheError: a cache cannot be written.
        """
        epoch.commit()

    def cancel(self, ticket: int, epoch: Epoch) -> None:
        """Called when an epoch is about to end: nothing more of it is wanted."""

    def refresh(self) -> None:
        """Take over the knobs' values."""
        self.scheduler.refresh()

    def pause(self, *, paused: bool) -> None:
        """Let nothing start, or let it go on."""
        self.scheduler.pause(paused=paused)
        with self.scheduler.lock:  # of two threads, the clock follows who was the last, too
            now_ns = perf_counter_ns()
            paused = self.scheduler.paused
            if self._record.consumer.pause(now_ns, paused=paused) and not paused:
                self._record.resume(now_ns, snapshot(self.scheduler, now_ns))

    def hold(self, most_ns: int) -> bool:
        """Begin no further call for so long at most; return False where few items are ready."""
        return self.scheduler.hold(most_ns)

    def rested_ns(self) -> int | None:
        """Return when the last call ended; 0 while some are in progress, None if it is over."""
        return self.scheduler.rested_ns()

    def release(self) -> None:
        """Let calls begin again."""
        self.scheduler.release()

    def renew(self) -> None:
        """Called when functions may have changed."""
        self.scheduler.fused_stages.each(lambda executor: executor.renew())

    def close(self, timeout_s: float) -> list[str]:
        """End everything; give the stages still inside user code."""
        return self.scheduler.close(timeout_s)

    def disown(self) -> None:
        """Take note that this process was forked: all of it stayed in the other one."""
        self.scheduler.disown()

    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Return the stats of every stage."""
        rows = stats(self.scheduler, now_ns)
        with self.scheduler.lock:
            return self._record.consumer.with_means(rows, now_ns)

    def history(self) -> list[Row]:
        """Return the rows of all stages and of the consumer, oldest first."""
        return self._record.history(self.scheduler.lock)

    def failures(self) -> tuple[Failure, ...]:
        """Return the last failed items, oldest first."""
        with self.scheduler.lock:
            return tuple(self._record.failures)

    def failures_since(self, count: int) -> tuple[tuple[Failure, ...], int]:
        """Return the last failed items behind the first `count`, and how many failed in all."""
        with self.scheduler.lock:
            record = self._record
            old = max(0, len(record.failures) - (record.failed - count))
            return tuple(record.failures)[old:], record.failed

    def executor(self, address: str) -> Executor | None:
        """Return what serves a stage from outside the run's threads, or None."""
        return self.scheduler.fused_stages.executor(address)

    @property
    def cpu_cores(self) -> float | None:
        """Processor time of the stages' process over the last seconds [cores]."""
        with self.scheduler.lock:
            return self._record.cpu_cores

    @property
    def idle_cores(self) -> float | None:
        """How many cores had nothing to do over the last seconds, or None [cores]."""
        with self.scheduler.lock:
            return self._record.idle_cores

    def reads_ahead_of(self, number: int) -> bool:
        """Tell whether the epoch behind the one with this number is being read."""
        ahead = self.scheduler.ahead
        return ahead is not None and ahead.number == number + 1 and ahead.has_begun

    @property
    def held_bytes(self) -> int | None:
        """Bytes in all buffers, where there is a budget for them [bytes]."""
        if self.limit_bytes is None:
            return None
        with self.scheduler.lock:
            memories = [epoch.memory for epoch in self.scheduler.epochs]
        held = [memory.held_bytes for memory in memories if memory is not None]
        return sum(held) if held else None


class CarriedError(Exception):
    """Carries an error of another process through a source of this one, which would wrap it.

    Args:
        error: what the loop is to see.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def surfaced(error: BaseException | None) -> BaseException | None:
    """Return the error that ended an epoch as the loop is to see it."""
    cause = None if error is None else error.__cause__
    return cause.error if isinstance(cause, CarriedError) else error


def knob_watcher(machine: Engine, record: RunRecord) -> Callable[[KnobChange], None]:
    """Return what a knob calls when it was turned."""
    reference = weakref.ref(machine)  # knobs outlive runs

    def changed(change: KnobChange) -> None:
        one = reference()
        if one is not None:
            with one.scheduler.lock:
                record.events.append(change)
            if record.consumer.steps is not None:
                record.consumer.steps.turned()
            one.refresh()

    return changed
