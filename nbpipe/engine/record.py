"""Record: what a run remembers: the consumer's waits, history, failures, knob changes."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns, process_time_ns, time
from typing import TYPE_CHECKING

from ..failure import Failure
from ..knobs import KnobChange
from ..metrics import (
    SAMPLE_NS,
    WINDOW_NS,
    Counters,
    Reading,
    Row,
    StageStats,
    shares_between,
    stats_of,
)
from ..stage import CONSUMER
from .failures import KEPT
from .lane import Lane
from .look import catch_up, look

if TYPE_CHECKING:
    from .scheduler import Scheduler

_ROW_NS = 1_000_000_000
_LAST_ROW_NS = 10_000_000  # the last row of an epoch covers at least so much
TICKS_KEPT = 600
_CPU_READINGS = 4  # fewer say little
EVENTS_KEPT = 10_000


class Consumer:
    """How long the training loop waited for data; its methods are called under the lock.

    Attributes:
        items: items handed out; written by the consuming thread alone.
        waited_ns: time spent waiting, likewise.
        waits_since_ns: beginning of the wait in progress, or 0.
    """

    __slots__ = ("_past", "_since_ns", "counters", "items", "waited_ns", "waits_since_ns")

    def __init__(self) -> None:
        self.items = 0
        self.waited_ns = 0
        self.waits_since_ns = 0
        self.counters = Counters()
        self._since_ns = 0
        self._past: StageStats | None = None  # at the end of the last epoch

    def begin(self, now_ns: int) -> None:
        """Hear that an epoch begins."""
        self._since_ns = now_ns
        self._past = None
        if not self.counters.first_ns:
            self.counters.first_ns = now_ns

    def settle(self, now_ns: int) -> None:
        """Bring the counters up to date."""
        counters = self.counters
        if self._since_ns:
            counters.slot_ns += max(0, now_ns - self._since_ns)
            self._since_ns = now_ns
        since = self.waits_since_ns
        counters.starved_ns = self.waited_ns + (max(0, now_ns - since) if since else 0)
        counters.busy_ns = max(0, counters.slot_ns - counters.starved_ns)
        counters.items_in = counters.items_out = self.items

    def end(self, now_ns: int) -> None:
        """Hear that the epoch is over; again does nothing."""
        if self._past is None:
            self._past = self.stats(now_ns)
            self._since_ns = 0

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
        )


class Record:
    """History, failures and knob changes of one run; bounded.

    Every second a tick of one row for each stage is kept; when there are many ticks, every
    second one of the older half is dropped, so that old times are thinned, not forgotten.
    """

    def __init__(self) -> None:
        self.consumer = Consumer()
        self.failures: deque[Failure] = deque(maxlen=KEPT)
        self.events: deque[KnobChange] = deque(maxlen=EVENTS_KEPT)
        self._cpu: deque[tuple[int, int]] = deque(maxlen=WINDOW_NS // SAMPLE_NS + 1)
        self._ticks: list[list[Row]] = []
        self._last: dict[str, Reading] = {}
        self._begun_ns = self._last_row_ns = perf_counter_ns()
        self._ended_ns = self._begun_ns

    def begin(self, now_ns: int) -> None:
        """Hear that an epoch begins; the time since the last one is left out of all rates."""
        rest_ns = now_ns - self._ended_ns
        self._last_row_ns += rest_ns
        self._last = {
            stage: reading._replace(at_ns=reading.at_ns + rest_ns)
            for stage, reading in self._last.items()
        }
        self.consumer.begin(now_ns)

    def end(self, now_ns: int) -> None:
        """Hear that the epoch is over."""
        self._ended_ns = now_ns
        self.consumer.end(now_ns)

    def sample(
        self, now_ns: int, epoch: int, lanes: Iterable[tuple[Lane, int, int]], *, last: bool
    ) -> int:
        """Keep a reading of every lane; give the time of the next [ns]. Under the lock.

        A row is kept every second, and at the end of an epoch.
        """
        self.consumer.settle(now_ns)
        self.consumer.counters.sample(now_ns, 0)
        self._cpu.append((now_ns, process_time_ns()))
        rows: list[Row] = []
        due = now_ns - self._last_row_ns >= (_LAST_ROW_NS if last else _ROW_NS)
        for lane, queued, running_ns in lanes:
            lane.account(now_ns, lane.state)
            lane.counters.sample(now_ns, running_ns)
            if due:
                reading = lane.counters.read(now_ns, running_ns)
                rows.append(self._row(lane.address, epoch, reading, lane, queued))
        if due:
            reading = self.consumer.counters.read(now_ns, 0)
            rows.append(self._row(CONSUMER, epoch, reading, None, 0))
            self._ticks.append(rows)
            self._last_row_ns = now_ns
            self._thin()
        return now_ns + SAMPLE_NS

    def _row(self, stage: str, epoch: int, reading: Reading, lane: Lane | None, queued: int) -> Row:
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
            "running": lane.active if lane else 0,
            "concurrency": lane.concurrency if lane else 1,
            "prefetch": lane.prefetch if lane else 0,
        }

    def _thin(self) -> None:
        if len(self._ticks) > TICKS_KEPT:
            half = TICKS_KEPT // 2
            self._ticks = self._ticks[:half:2] + self._ticks[half:]

    @property
    def cpu_cores(self) -> float | None:
        """Processor time of the whole process over the last seconds [cores]."""
        readings = tuple(self._cpu)
        readings = tuple(one for one in readings if one[0] >= readings[-1][0] - WINDOW_NS)
        if len(readings) < _CPU_READINGS:
            return None
        (since_ns, before_ns), (now_ns, spent_ns) = readings[0], readings[-1]
        return (spent_ns - before_ns) / max(1, now_ns - since_ns)

    def history(self) -> list[Row]:
        """Give all rows, oldest first."""
        return [dict(row) for tick in self._ticks for row in tick]


def sampler(scheduler: Scheduler, record: Record) -> Callable[..., int]:
    """Give what the scheduler calls now and then to have its counters kept."""
    reference = weakref.ref(scheduler)  # the scheduler holds this function

    def sample(now_ns: int, last: bool = False) -> int:  # noqa: FBT001, FBT002
        engine = reference()
        if engine is None or engine.epoch is None:
            return now_ns
        catch_up(engine)
        epoch = engine.epoch.context.epoch
        return record.sample(now_ns, epoch, look(engine, now_ns), last=last)

    return sample
