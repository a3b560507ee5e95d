"""RunRecord: what a run remembers: waits of the loop, history, failed items, knob changes."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from operator import itemgetter
from time import perf_counter_ns, process_time_ns, time
from typing import Any

from ...base.knobs import KnobChange
from ...base.threads import own_idle_ns
from ...ops.stage import CONSUMER
from ..nodes.failures import KEPT, Failure
from .consumer import Consumer
from .counters import SAMPLE_NS, WINDOW_NS, Reading, StageRuntime, shares_between
from .stats import Row
from .step_time import CORES, LOCK, STEP_EVENT, UNKNOWN, StepFindings, StepTimes

_ROW_NS = 1_000_000_000
_LAST_ROW_NS = 10_000_000  # the last row of an epoch covers at least this
TICKS_KEPT = 600
_CORE_READINGS = 4  # a mean of fewer readings is too rough
EVENTS_KEPT = 10_000


class RunRecord:
    """History, failed items and knob changes of one run; bounded.

    Each second adds a tick: one row for each stage. Above 600 ticks, every second tick of the
    older half is dropped, so the past gets coarser but is never lost.

    Attributes:
        consumer: the training loop.
        failures: the last failed items, oldest first.
        failed: number of all failed items [items].
        events: the last knob changes, oldest first.
    """

    def __init__(self) -> None:
        self.consumer = Consumer()
        self.failures: deque[Failure] = deque(maxlen=KEPT)
        self.failed = 0
        self.events: deque[KnobChange] = deque(maxlen=EVENTS_KEPT)
        self._cores: deque[tuple[int, int, int | None]] = deque(maxlen=WINDOW_NS // SAMPLE_NS + 1)
        self._ticks: list[list[Row]] = []
        self._last: dict[str, Reading] = {}
        self._begun_ns = self._last_row_ns = perf_counter_ns()
        self._ended_ns = self._begun_ns
        self._was_paused = False  # since the last tick

    def remember(self, failure: Failure) -> None:
        """Keep a failed item; call it under the lock."""
        self.failures.append(failure)
        self.failed += 1

    def failures_since(
        self, count: int, lock: AbstractContextManager[object]
    ) -> tuple[tuple[Failure, ...], int]:
        """Return the failed items after the first `count`, and the number of all."""
        with lock:
            old = max(0, len(self.failures) - (self.failed - count))
            return tuple(self.failures)[old:], self.failed

    def time_steps(self, lock: AbstractContextManager[object]) -> None:
        """Time the steps of the loop; each finding becomes an event, added under `lock`."""
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
        """Start an epoch; rates leave out the time since the last one."""
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
        """End a pause; the rates of all rows leave it out. Call it under the lock."""
        for runtime, _, running_ns in runtimes:
            self._last[runtime.address] = runtime.counters.read(now_ns, running_ns)
        self._last[CONSUMER] = self.consumer.counters.read(now_ns, 0)
        self._last_row_ns = now_ns
        self._was_paused = True

    def end(self, now_ns: int) -> None:
        """End the epoch."""
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
        """Read the counters of every stage; call it under the lock.

        A tick is added every second without a pause, and at the end of an epoch.

        Args:
            now_ns: the time now [ns].
            epoch: number of the epoch.
            runtimes: for each stage its runtime, its queued results, the time of running calls.
            last: the epoch ends.

        Returns:
            When to sample next [ns].
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
        """Processor time of this process over the last seconds [cores]; None if not known yet."""
        return self._mean_cores(itemgetter(1))

    @property
    def idle_cores(self) -> float | None:
        """Idle cores over the last seconds [cores]; None if the system does not report them."""
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
        """Return all rows, oldest first; `lock` is the lock that guards them."""
        with lock:
            ticks = self._ticks.copy()
        return [dict(row) for tick in ticks for row in tick]


_WHY = {LOCK: "hold the interpreter lock", CORES: "take its cores", UNKNOWN: "slow it"}


def slowdown(found: StepFindings) -> KnobChange:
    """Return the event of a loop slowed by workers: its step while they rest and work [ms]."""
    at_rest, at_work = (round(1e3 * (step or 0.0)) for step in (found.at_rest_s, found.step_s))
    why = f"data loading slows training: its workers {_WHY[found.slowed_by]}"
    return KnobChange(time(), STEP_EVENT, at_rest, at_work, "nbpipe", why)
