"""Case: the numbers that a diagnosis rests on."""

from __future__ import annotations

import functools
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..base.format import format_share
from ..base.knobs import Knob
from ..engine.stats import StageStats, Status
from ..ops.stage import CONSUMER, Stage, share_workers
from .history import WINDOW_S, Past

# Stages count items, batches or chunks: they are compared by load, the share of its call slots that
# a stage keeps busy, never by rate.
_INLINE_HOSTS = ("source", "map", "filter", "batch")
_SATURATED = 0.85  # an inline stage so busy may be busier than its own row can say


class Load(NamedTuple):
    """How much of its slots a stage keeps busy, with the inline stages that run inside it.

    Attributes:
        address: of the stage that takes most of the time.
        stage: the stage.
        host: address of the stage whose slots these are; inline stages have none of their own.
        share: busy share of the slots, 0 to 1.
        slots: slots that are busy on average.
        p50_s: median time of a call of `stage` [s].
        knob: `host`'s concurrency, where it has one.
        away: part of `share` in which calls are on the way to a worker and back.
        cpu_share: share of their time in which the calls compute, as was measured, or None.
    """

    address: str
    stage: Stage
    host: str
    share: float
    slots: float
    p50_s: float
    knob: Knob | None
    away: float = 0.0
    cpu_share: float | None = None

    @property
    def cpu_cores(self) -> float | None:
        """Processor time of its calls, where it was measured [cores]."""
        if self.cpu_share is None:
            return None
        return self.cpu_share * self.slots * (1.0 - self.away / max(self.share, 1e-9))


class Case(NamedTuple):
    """What a diagnosis rests on.

    Attributes:
        stages: by address.
        rows: stats by address, in order, without the loop's.
        starved: share of the time that the loop waits for data.
        loads: load of every stage that has slots.
        status: of the run.
        cores: cores that this process may use.
        locked: the interpreter lets one thread run Python at a time.
        now_s: time of day [s].
        span_s: how far back the stats reach [s].
        past: what the history tells, or None.
    """

    stages: Mapping[str, Stage]
    rows: Mapping[str, StageStats]
    starved: float
    loads: Sequence[Load]
    status: Status
    cores: int
    locked: bool
    now_s: float
    span_s: float = WINDOW_S
    past: Past | None = None

    @classmethod
    def of(
        cls,
        stages: Mapping[str, Stage],
        stats: Mapping[str, StageStats],
        status: Status,
        span_s: float,
        past: Past,
    ) -> Case:
        """Gather what is known."""
        rows = {name: stats[name] for name in stages if name in stats}
        loop = stats.get(CONSUMER)
        starved = loop.starved if loop is not None else 0.0
        loads, now_s = loads_of(stages, rows), time.time()
        machine = (cores(), is_locked(), now_s, span_s, past)
        return cls(stages, rows, starved, loads, status, *machine)

    def just_turned(self, knob: Knob) -> bool:
        """Tell whether the stats are still those of an earlier value."""
        change = knob.last_change
        since_s = math.inf if change is None else self.now_s - change.when_s
        return since_s < min(WINDOW_S, self.span_s)

    def own_cores(self, load: Load) -> float | None:
        """Return the processor time of a load, or what only this one can be using [cores]."""
        cpu = self.status.cpu_cores
        if load.cpu_cores is not None or cpu is None:
            return load.cpu_cores
        others = sum(self._most_cores(other) for other in self.loads if other is not load)
        return max(0.0, cpu - others - (1.0 - self.starved))

    def _most_cores(self, load: Load) -> float:
        """Return the processor time that a load may be using; an event loop is one thread."""
        host = self.stages[load.host]
        if host.executor == "device":
            return min(1.0, load.slots)
        if host.placement is not None:
            return 0.0  # its calls compute in other processes
        if load.cpu_cores is not None:
            return load.cpu_cores
        return min(1.0, load.slots) if host.executor == "coroutine" else load.slots

    @property
    def at_work(self) -> float | None:
        """Cores of this machine that the pipeline and the loop use, workers' included."""
        if self.status.cpu_cores is None:
            return None
        workers = [
            load.cpu_cores or 0.0
            for load in self.loads
            if self.stages[load.host].executor == "process"
        ]
        return min(float(self.cores), self.status.cpu_cores + sum(workers))

    @property
    def wait(self) -> str:
        """How long the loop waits, in words."""
        return f"the training loop waits for data {format_share(self.starved)} of the time"


def loads_of(stages: Mapping[str, Stage], rows: Mapping[str, StageStats]) -> list[Load]:
    """Return the load of each stage; one that runs inside another counts with it."""
    groups: list[list[str]] = []
    for name in rows:
        if groups and _runs_inside(stages[name], stages[groups[-1][0]]):
            groups[-1].append(name)
        else:
            groups.append([name])
    return [_load(group, stages, rows) for group in groups]


def _runs_inside(stage: Stage, host: Stage) -> bool:
    if share_workers(host, stage):
        return True
    fused = stage.executor == "inline" and stage.op in ("map", "filter")
    return fused and host.op in _INLINE_HOSTS and host.executor != "coroutine"


def _load(
    group: Sequence[str], stages: Mapping[str, Stage], rows: Mapping[str, StageStats]
) -> Load:
    host = group[0]
    row = rows[host]
    slots = max(1, row.concurrency)
    parts = {host: row.busy * slots}
    for name in group[1:]:
        busy = rows[name].busy
        if stages[name].placement is not None:  # the region's slots are its own, too
            parts[name] = busy * slots
            continue
        # its own row knows one slot; what is more shows as waiting above it
        parts[name] = max(busy, row.waiting * slots) if busy > _SATURATED else busy
    most = max(parts, key=lambda name: parts[name])
    away = 0.0
    if stages[host].placement is not None:  # a slot is taken until the answer is back
        last = rows[group[-1]]
        away = max(0.0, 1.0 - last.starved - last.blocked - sum(parts.values()) / slots)
    used = min(float(slots), sum(parts.values()) + away * slots)
    knob = stages[host].knobs.get("concurrency")
    p50_s = rows[most].latency_p50_s
    share = used / slots
    return Load(most, stages[most], host, share, used, p50_s, knob, away, row.cpu_share)


@functools.cache
def cores() -> int:
    """Return the cores that this process may use; a container's quota counts."""
    allowed = getattr(os, "sched_getaffinity", None)
    count = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    return max(1, min(count, quota_cores(Path("/sys/fs/cgroup/cpu.max"))))


def quota_cores(file: Path) -> int:
    """Read the quota of a control group, "max 100000" or "200000 100000"; none is a large one."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ArithmeticError):
        return sys.maxsize


def is_locked() -> bool:
    """Tell whether this interpreter lets one thread run Python at a time."""
    enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return enabled()
