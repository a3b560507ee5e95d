"""Load: how much of its call slots each stage keeps busy.

Stages count items, batches or chunks: they are compared by load, never by rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...base.knobs import Knob
from ...engine.measures.stats import StageStats
from ...ops.stage import Stage, share_workers

FULL = 0.85  # a stage so loaded limits
MOST = 0.6  # so loaded it limits where nothing else explains the wait
HELD_UP = 0.2  # blocked, or ready and not running, for longer than this is worth a cure
SLOW_S = 0.001  # calls so long wait for room and not for a thread, and are worth their way [s]
TAKES_TURNS = 0.3  # of the time of its calls they wait for the interpreter lock
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
        p50_s: median time of a call of `stage`, or the mean one of a `flat_map` [s].
        knob: `host`'s concurrency, where it has one.
        away: part of `share` in which calls are on the way to a worker and back.
        cpu_share: share of their time in which the calls compute, as was measured, or None.
        share_of_call: that of one call; where others use the machine, of the median one, if it is
            larger: some wait for one that holds a lock and waits for a core.
        lock_share: share of their time in which the calls wait for the interpreter lock, or None.
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
    share_of_call: float | None = None
    lock_share: float | None = None

    @property
    def cpu_cores(self) -> float | None:
        """Processor time of its calls, where it was measured [cores]."""
        if self.cpu_share is None:
            return None
        computing = self.cpu_share * (1.0 - (self.lock_share or 0.0))
        return computing * self.slots * (1.0 - self.away / max(self.share, 1e-9))

    @property
    def takes_turns(self) -> bool:
        """Whether its calls wait for the interpreter lock for much of their time."""
        return self.lock_share is not None and self.lock_share >= TAKES_TURNS


def loads_of(
    stages: Mapping[str, Stage], rows: Mapping[str, StageStats], *, crowded: bool = False
) -> list[Load]:
    """Return the load of each stage; one that runs inside another counts with it.

    Args:
        stages: by address.
        rows: stats by address, in order.
        crowded: no core is free.
    """
    groups: list[list[str]] = []
    for name in rows:
        if groups and _runs_inside(stages[name], stages[groups[-1][0]]):
            groups[-1].append(name)
        else:
            groups.append([name])
    return [_load(group, stages, rows, crowded=crowded) for group in groups]


def _runs_inside(stage: Stage, host: Stage) -> bool:
    if share_workers(host, stage):
        return True
    fused = stage.executor == "inline" and stage.op in ("map", "filter")
    return fused and host.op in _INLINE_HOSTS and host.executor != "coroutine"


def _load(
    group: Sequence[str],
    stages: Mapping[str, Stage],
    rows: Mapping[str, StageStats],
    *,
    crowded: bool,
) -> Load:
    host = group[0]
    row = rows[host]
    slots = max(1, row.concurrency)
    parts = {host: row.busy * slots}
    for name in group[1:]:
        busy = rows[name].busy
        if stages[name].executor_spec is not None:  # the region's slots are its own, too
            parts[name] = busy * slots
            continue
        # its own row knows one slot; what is more shows as waiting above it
        parts[name] = max(busy, row.waiting * slots) if busy > _SATURATED else busy
    most = max(parts, key=lambda name: parts[name])
    away = 0.0
    # A slot is taken until the answer is back; while workers start, they are what it waits for.
    elsewhere = stages[host].executor_spec is not None and stages[host].executor != "device"
    if elsewhere and not rows[host].starting:
        last = rows[group[-1]]
        away = max(0.0, 1.0 - last.starved - last.blocked - sum(parts.values()) / slots)
    used = min(float(slots), sum(parts.values()) + away * slots)
    knob = stages[host].knobs.get("concurrency")
    p50_s, of_call = _time_of_call_s(stages[most], rows[most]), row.cpu_share
    if crowded and of_call is not None:
        of_call = max(of_call, row.cpu_share_p50 or 0.0)
    shares = (away, row.cpu_share, of_call, row.lock_share)
    return Load(most, stages[most], host, used / slots, used, p50_s, knob, *shares)


def _time_of_call_s(stage: Stage, row: StageStats) -> float:
    """Return how long a call takes; of a `flat_map` only the time of each item is measured."""
    if stage.op != "flat_map" or not (row.items_in and row.items_per_s):
        return row.latency_p50_s
    each_s = row.busy * row.concurrency / row.items_per_s
    return each_s * row.items_out / row.items_in
