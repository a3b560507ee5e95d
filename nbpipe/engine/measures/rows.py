"""StageRows: the stats of every stage of a run, now and at the end of its last epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from time import perf_counter_ns
from typing import final

from ..epoch import Epoch
from ..nodes.fused import FusedStages
from ..nodes.node import Task
from ..scheduler import Scheduler
from .counters import Booked, StageRuntime
from .stats import PACE_NS, StageStats, at_the_pace_of

Ages = Mapping[str, tuple[int, str]]  # by address: the time of the oldest call [ns], and its item
_NOTHING_RUNS = (0, "")


@final
class StageRows:
    """Reads the counters of every stage; methods are called under the lock, but `stats`.

    Args:
        scheduler: does the work.
        fused_stages: the stages with workers outside the run's threads.

    Attributes:
        past: the stats at the end of the last epoch; empty before.
    """

    def __init__(self, scheduler: Scheduler, fused_stages: FusedStages) -> None:
        self._scheduler = scheduler
        self._fused_stages = fused_stages
        self.past: dict[str, StageStats] = {}
        self._before_pause: dict[str, StageStats] = {}  # when the last pause of the epoch began
        self._booked: list[tuple[StageRuntime, Booked]] = []  # likewise
        self._resumed_ns = 0

    # -- what happens to a run ------------------------------------------------------------
    def begin(self) -> None:
        """Note that an epoch begins."""
        self._before_pause, self._booked = {}, []

    def pause(self, now_ns: int, *, paused: bool) -> None:
        """Note that a pause begins or ends; rates and shares are of the time since then."""
        runtimes = self._scheduler.runtimes.values()
        if paused:
            self._before_pause = self._rows(now_ns, {})
            self._booked = [(runtime, runtime.booked()) for runtime in runtimes]
        else:
            self._resumed_ns = now_ns
            self._leave_out_pause(now_ns)
        for runtime, _, running_ns in self.snapshot(now_ns):
            runtime.counters.begin_window(now_ns, running_ns)

    def end(self, now_ns: int, starting: set[str]) -> None:
        """Keep the stats at the end of an epoch; in a pause, or just after it, those before it.

        Args:
            now_ns: when.
            starting: stages whose workers have yet to start.
        """
        scheduler, before = self._scheduler, self._before_pause
        self._leave_out_pause(now_ns)
        ages = self._oldest(now_ns, scheduler.epoch)
        ages = {address: age for address, age in ages.items() if address not in starting}
        self.past = self._rows(now_ns, ages)
        if scheduler.paused or now_ns - self._resumed_ns < PACE_NS:
            for name in self.past.keys() & before.keys():
                self.past[name] = at_the_pace_of(self.past[name], before[name])

    def _leave_out_pause(self, now_ns: int) -> None:
        """Leave the pause in progress, if there is one, out of the sums of slot-time."""
        for runtime, booked in self._booked:
            runtime.leave_out(booked, now_ns)
        self._booked = []

    # -- queries --------------------------------------------------------------------------
    def snapshot(self, now_ns: int) -> list[tuple[StageRuntime, int, int]]:
        """Return for every stage its runtime, its results that wait, and the time of its calls.

        The time is that of the calls in progress [ns]. The states of cheap stages are up to date
        then.
        """
        scheduler = self._scheduler
        waiting: dict[StageRuntime, int] = {}
        for node in scheduler.epoch.order if scheduler.epoch is not None else ():
            node.runtime.account(now_ns)
            node.runtime.state = node.state()
            waiting[node.runtime] = max(0, node.held() - node.gathers)
        spent: dict[StageRuntime, int] = {}
        for task in scheduler.at_work():
            if task.started_ns and not task.ended_ns and not task.node.shares_workers:
                runtime = task.node.runtime
                spent[runtime] = spent.get(runtime, 0) + max(0, now_ns - task.started_ns)
        return [
            (runtime, waiting.get(runtime, 0), spent.get(runtime, 0))
            for runtime in scheduler.runtimes.values()
        ]

    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Return the stats of every stage that was built; called without the lock.

        Between epochs they are those at the end of the last one, with the limits in force and the
        calls in progress as they are.
        """
        scheduler = self._scheduler
        with scheduler.lock:
            if scheduler.epoch is not None:
                rows = self._rows(now_ns, self._oldest(now_ns))
            else:
                for runtime in scheduler.runtimes.values():
                    runtime.skip_time(now_ns)
                ages = self._oldest(perf_counter_ns())  # calls in progress may be younger
                rows = self._afterwards(ages) if self.past else self._rows(now_ns, ages)
        if not self._fused_stages.serves:
            return rows
        return {address: self._with_workers(address, row) for address, row in rows.items()}

    def _oldest(self, now_ns: int, epoch: Epoch | None = None) -> dict[str, tuple[int, str]]:
        return {
            address: (now_ns - since_ns, task.node.runner.item_of(task))
            for address, (since_ns, task) in self.oldest(now_ns, epoch).items()
        }

    def oldest(self, now_ns: int, epoch: Epoch | None = None) -> dict[str, tuple[int, Task]]:
        """Return the oldest call of each stage with calls in progress, and when it began [ns].

        Args:
            now_ns: calls that began later do not count.
            epoch: only its calls count; None for all.
        """
        found: dict[str, tuple[int, Task]] = {}
        for task in self._scheduler.at_work():
            if not task.started_ns or task.ended_ns or epoch not in (None, task.node.epoch):
                continue
            node, runtime = task.node, task.node.runtime
            if task.step and not node.shares_workers:
                runtimes = (runtime, *node.rest_runtimes)
                runtime = runtimes[min(task.step, len(runtimes) - 1)]
            since_ns = max(task.started_ns, task.seen_ns)
            if since_ns < (found[runtime.address][0] if runtime.address in found else now_ns):
                found[runtime.address] = since_ns, task
        return found

    def _rows(self, now_ns: int, ages: Ages) -> dict[str, StageStats]:
        return {
            runtime.address: runtime.stats(
                now_ns, queued, running_ns, ages.get(runtime.address, _NOTHING_RUNS)
            )
            for runtime, queued, running_ns in self.snapshot(now_ns)
        }

    def _afterwards(self, ages: Ages) -> dict[str, StageStats]:
        """Return the stats at the end of the last epoch, with present limits and calls."""
        rows = {}
        for address, runtime in self._scheduler.runtimes.items():
            past = self.past[address]
            left = round(1e9 * past.oldest_s), past.oldest_item  # it may have ended since
            age_ns, item = ages.get(address, left)
            rows[address] = dataclasses.replace(
                past,
                running=runtime.active,
                concurrency=runtime.concurrency,
                queued=0,
                prefetch=runtime.prefetch,
                oldest_s=age_ns / 1e9,
                oldest_item=item,
            )
        return rows

    def _with_workers(self, address: str, row: StageStats) -> StageStats:
        """Add the workers of a fused stage to the row of its first stage."""
        executor = self._fused_stages.executor(address)
        if executor is None:
            return row
        if not row.items_out and executor.starting >= max(1, executor.workers):
            # Their calls are in progress, but nothing is inside a function yet.
            row = dataclasses.replace(row, busy=0.0, starved=0.0, blocked=0.0, waiting=1.0)
        if self._fused_stages.head(address) != address:
            return row
        return dataclasses.replace(
            row,
            workers=executor.workers,
            worker_threads=executor.worker_threads,
            starting=executor.starting,
            memory_bytes=executor.memory_bytes,
        )
