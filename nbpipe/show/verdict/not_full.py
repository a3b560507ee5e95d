"""No stage is full, and training waits: for memory, for a slow call, for a core, or in bursts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...base.format import format_bytes, format_seconds, format_share
from ...base.knobs import Knob
from ...engine.measures.stats import StageStats
from ...ops.stage import CONSUMER
from .case import Case, is_crowded, item_bytes
from .diagnosis import Diagnosis, short_name
from .load import HELD_UP, SLOW_S

_STRAGGLING = 4.0  # p95 over p50 of calls that differ much
_FEW = 16  # results so large that no more of them fit into the budget may be what waits for room


def memory(case: Case) -> Diagnosis | None:
    """Find a stage whose calls could run, and wait for room in the memory budget."""
    limit = case.status.limit_bytes
    if not limit:
        return None
    waits = {
        load.host: case.waiting(load)
        for load in case.loads
        if load.p50_s > SLOW_S or item_bytes(case.rows[load.host]) >= limit / _FEW
    }
    name = max(waits, key=lambda name: waits[name], default="")
    if waits.get(name, 0.0) < HELD_UP:
        return None
    verb = "held" if case.status.is_over else "holds"
    room = format_bytes(2 * limit).replace(" ", "")  # as one writes it
    return Diagnosis(
        stage=name,
        cause="memory",
        text=f"The memory budget {verb} {short_name(name)} back: {case.wait}.",
        evidence=f"budget {format_bytes(limit)}, calls without room {format_share(waits[name])}",
        advice=f'Start with memory="{room}".',
    )


def stragglers(case: Case) -> Diagnosis | None:
    """Find results that wait for an earlier one: blocked, while the next stage has no input."""
    names = list(case.rows)
    for name, below in zip(names, [*names[1:], CONSUMER], strict=True):
        row = case.rows[name]
        starved = case.starved if below == CONSUMER else case.rows[below].starved
        spec: Any = case.stages[name].spec
        if spec.runs != "call" or not spec.ordered or row.concurrency == 1:
            continue
        uneven = row.latency_p50_s > 0 and row.latency_p95_s >= _STRAGGLING * row.latency_p50_s
        apart = row.blocked + starved > 1 + HELD_UP / 2 or uneven
        if apart and min(row.blocked, starved) >= HELD_UP:
            return _straggler(case, name, row)
    return None


def _straggler(case: Case, name: str, row: StageStats) -> Diagnosis:
    ratio = row.latency_p95_s / row.latency_p50_s if row.latency_p50_s else 1.0
    p50, p95 = format_seconds(row.latency_p50_s), format_seconds(row.latency_p95_s)
    other = "Write ordered=False: results come as they are ready, in another order each time."
    if not case.is_run:
        other = "Make the slow items of the dataset faster to load."
    found = Diagnosis(
        stage=name,
        cause="slow-calls",
        text=case.bottleneck(name),
        evidence=f"slow calls hold back the order, p50 {p50}, p95 {p95}",
        advice=other,
    )
    knob = case.stages[name].knobs.get("prefetch")
    return _deeper(case, found, name, knob, math.ceil(row.concurrency * min(ratio, 1e6)))


def bursts(case: Case) -> Diagnosis | None:
    """Find that the last buffer is full at one time and starves the loop at another.

    It cannot be both at once: where the shares say so, stages above it wait for something else.
    """
    deep = [name for name in case.rows if "prefetch" in case.stages[name].knobs]
    name = deep[-1] if deep else ""
    blocked = case.rows[name].blocked if deep else 0.0
    if blocked < HELD_UP or blocked + case.starved > 1 + HELD_UP / 2:
        return None
    verb = "came" if case.status.is_over else "comes"
    found = Diagnosis(
        cause="bursts",
        text=f"No stage is full, but work {verb} in bursts: {case.wait}.",
        evidence=f"{short_name(name)} is blocked {format_share(blocked)} of the time",
        advice="Make the pauses of the training loop shorter.",
    )
    knob = case.stages[name].knobs["prefetch"]
    return _deeper(case, found, name, knob, 4 * knob.value)


def crowded(case: Case) -> Diagnosis | None:
    """Find calls that could run and wait for a core, because others use the machine."""
    if not is_crowded(case.status, case.cores):
        return None
    waits = {load.host: case.waiting(load) for load in case.loads if load.p50_s > SLOW_S}
    name = max(waits, key=lambda name: waits[name], default="")
    full = next((case.fullness(load) for load in case.loads if load.host == name), "")
    if waits.get(name, 0.0) < HELD_UP or not full:
        return None
    verb = "waited" if case.status.is_over else "waits"
    return Diagnosis(
        stage=name,
        cause="no-core",
        text=f"{short_name(name)} {verb} for a free core: {case.wait}.",
        evidence=full,
        advice="Look again when less runs on this machine.",
    )


def _deeper(
    case: Case, otherwise: Diagnosis, name: str, knob: Knob | None, enough: int
) -> Diagnosis:
    """Advise a deeper buffer: twice as deep at least, four times at most; else as it is there."""
    value = 0 if knob is None else min(max(enough, 2 * knob.value), 4 * knob.value, knob.maximum)
    if knob is None or value <= knob.value:
        return otherwise
    tried = case.tried(name, "prefetch", knob.value)
    if tried is not None:
        setting, number = case.setting("prefetch", tried)
        advice = f"{otherwise.advice} A {setting} of {number} made no difference."
        return replace(otherwise, advice=advice)
    setting, number = case.setting("prefetch", value, name)
    advice = f"Set {setting} to {number}."
    return replace(otherwise, advice=advice, suggestion=(name, "prefetch", value))
