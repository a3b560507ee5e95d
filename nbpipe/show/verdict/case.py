"""Case: the numbers that a diagnosis rests on, and the words that they all need."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...base.format import format_share
from ...base.gil import is_locked
from ...base.knobs import Knob
from ...base.machine import Machine
from ...engine.measures.lock_waits import LockedCalls
from ...engine.measures.stats import StageStats, Status
from ...ops.stage import CONSUMER, Stage
from ..history import WINDOW_S, Past
from .diagnosis import short_name
from .load import Load, loads_of

NEARLY_ALL = 0.9  # of the cores at work: the machine is full


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
        lock_wait: tells how much the calls of a stage wait for a lock now.
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
    lock_wait: Callable[[str], LockedCalls | None] = lambda _: None

    @classmethod
    def of(
        cls,
        stages: Mapping[str, Stage],
        stats: Mapping[str, StageStats],
        status: Status,
        span_s: float,
        past: Past,
    ) -> Case:
        """Gather the numbers of a run."""
        rows = {name: stats[name] for name in stages if name in stats}
        loop = stats.get(CONSUMER)
        starved = loop.starved if loop is not None else 0.0
        count = cores()
        loads = loads_of(stages, rows, crowded=is_crowded(status, count))
        machine = (count, is_locked(), time.time(), span_s, past)
        return cls(stages, rows, starved, loads, status, *machine)

    def just_turned(self, knob: Knob) -> bool:
        """Return whether the stats are still those of an earlier value."""
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
        if host.executor_spec is not None:
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

    def fullness(self, load: Load) -> str:
        """Return who uses the cores that a load would compute on; empty where some are idle."""
        used, idle = self.at_work, self.status.idle_cores
        if used is None:
            return ""
        if used >= NEARLY_ALL * self.cores:
            return f"{used:.1f} of {self.cores} cores in use"
        if idle is None or not is_crowded(self.status, self.cores):
            return ""
        if self.stages[load.host].executor == "dask":
            return ""  # its cores may be those of other machines
        return f"{self.cores - used - idle:.1f} of {self.cores} cores used by other programs"

    def waiting(self, load: Load) -> float:
        """Return the share of a stage's slots that could run and do not."""
        row = self.rows[load.host]
        return 1.0 - load.share - row.starved - row.blocked

    def tried(self, address: str, name: str, value: int) -> int | None:
        """Return the lowest value of a knob above its own that gave no more when it was tried.

        Trials count while all other knobs have the values that they had then.
        """
        if self.past is None:
            return None
        now = {
            (name, one): k.value
            for name in self.stages
            for one, k in self.stages[name].knobs.items()
        }
        last = {
            frozenset((one.old, one.new)): one
            for one in self.past.trials
            if (one.stage, one.knob) == (address, name)
            if all(now.get(key) == value for key, value in one.others.items())
        }
        found = [max(pair) for pair, one in last.items() if one.gave_no_more(value)]
        return min(found) if found else self.past.gave_no_more(address, name, now)

    # -- words -------------------------------------------------------------------------------------
    @property
    def is_run(self) -> bool:
        """Whether it is the run of a pipeline, not of a `DataLoader`."""
        return self.status.called == "run"

    @property
    def wait(self) -> str:
        """How long training waits, as the end of a sentence."""
        share, whole = format_share(self.starved), format_share(self.status.waited_share)
        if not self.status.is_over:
            return f"training waits {share} of the time"
        text = f"training waited {share} of the time in the last seconds"
        return text if share == whole else f"{text}, {whole} in the whole epoch"

    def bottleneck(self, address: str) -> str:
        """Return the sentence that a stage is the bottleneck."""
        verb = "was" if self.status.is_over else "is"
        return f"{short_name(address)} {verb} the bottleneck: {self.wait}."

    def setting(self, knob: str, value: int, stage: str = "") -> tuple[str, int]:
        """Return what sets a knob in the code, and to what: of a `DataLoader` its argument."""
        if self.is_run:
            return f"{short_name(stage)}.{knob}" if stage else knob, value
        if knob != "prefetch":
            return "num_workers", value
        workers = self.rows["fetch"].concurrency if "fetch" in self.rows else 1
        return "prefetch_factor", math.ceil(value / max(1, workers))


def item_bytes(row: StageStats) -> float:
    """Return the size of a result [bytes]."""
    return row.bytes_out / max(1, row.items_out)


def is_crowded(status: Status, count: int) -> bool:
    """Return whether nearly all of so many cores are in use, be it by others."""
    return status.idle_cores is not None and status.idle_cores <= (1 - NEARLY_ALL) * count


@functools.cache
def cores() -> int:
    """Return the cores that this process may use; a container's quota counts."""
    return max(1, math.ceil(Machine().cores()))
