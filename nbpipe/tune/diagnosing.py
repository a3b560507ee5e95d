"""Diagnose: what a run says of itself, or of its last epoch."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..metrics import Row, StageStats
from ..operations import Call
from ..stage import Stage
from ..text import shortened
from ..units import format_count, format_share
from ..watch import Status, Watched
from .case import Case, averages_of
from .rules import Diagnosis, decide, patient, shown

EARLY_S = 1.0  # nothing is said of an epoch so young,
FEW, FEW_S = 3, 5.0  # nor, for some seconds more, while no stage has made so many items
LAST_ROWS = 10  # ticks of the history that speak for an epoch that is over
_OVER = ("finished", "stopped", "cancelled", "closed")


def diagnose(watched: Watched) -> Diagnosis:
    """Name what limits a run, from the last 5 s of its stats.

    Of an epoch that is over, the last seconds of the history speak.
    """
    return judge(watched, watched.status(), watched.stats())


def judge(watched: Watched, status: Status, stats: Mapping[str, StageStats]) -> Diagnosis:
    """Diagnose from a status and stats that were read before."""
    if status.state == "failed":
        return _failed(status, watched)
    if status.state == "paused":
        return Diagnosis(None, "paused: no call starts", "run.resume() goes on")
    if status.state in _OVER:
        return _over(watched, status, stats)
    if status.state != "running":
        return Diagnosis(None, "not started", "iterate the run, then look again")
    case = Case.of(watched.stages, stats, status)
    if is_early(status, case.rows):
        return Diagnosis(None, "too early to tell", "look again in a few seconds")
    return patient(case, decide(case))


def is_early(status: Status, rows: Mapping[str, StageStats]) -> bool:
    """Say whether an epoch is too young to say anything of it."""
    if status.elapsed_s < EARLY_S:
        return True
    most = max((row.items_out for row in rows.values()), default=0)
    return status.elapsed_s < FEW_S and max(most, status.delivered) < FEW


def _failed(status: Status, watched: Watched) -> Diagnosis:
    named = [name for name in watched.stages if f"stage {name!r}" in status.error]
    lost = [failure.stage for failure in watched.failures() if failure.epoch == status.epoch]
    name = max(named, key=len) if named else lost[-1] if lost else None
    who = "the epoch" if name is None else shown(name)
    text = f"{who} failed: {shortened(status.error, 300)}" if status.error else f"{who} failed"
    advice = "run.failures() gives inputs and tracebacks"
    stage = watched.stages.get(name or "")
    if stage is not None and isinstance(stage.spec, Call):
        advice += "; on_error='skip' leaves such items out, nbpipe.Retry(2) tries again"
    return Diagnosis(name, text, advice)


def _over(watched: Watched, status: Status, stats: Mapping[str, StageStats]) -> Diagnosis:
    """Diagnose the last epoch; once, for it no longer changes."""
    knobs = tuple(k.value for stage in watched.stages.values() for k in stage.knobs.values())
    key = (status.state, status.epoch, status.delivered, knobs)
    known = _known.get(watched)
    if known is None or known[0] != key:
        known = _known[watched] = (key, _afterwards(watched, status, stats))
    return known[1]


_known: weakref.WeakKeyDictionary[Watched, tuple[object, Diagnosis]] = weakref.WeakKeyDictionary()


def _afterwards(watched: Watched, status: Status, stats: Mapping[str, StageStats]) -> Diagnosis:
    rows = watched.history()[-LAST_ROWS * (len(stats) + 1) :]
    averages = averages_of(rows, stats)
    if not averages:
        share = status.waited_s / status.elapsed_s if status.elapsed_s > 0 else 0.0
        text = f"{status.state}; {format_count(status.delivered)} items were delivered"
        return Diagnosis(
            None, f"{text}, the loop waited for data {format_share(share)} of the time"
        )
    found = decide(Case.of(watched.stages, averages, status))
    found = replace(found, text=f"{status.state}; in its last seconds {found.text}")
    turned = turned_since(watched.stages, rows, (found.stage, *(found.suggestion or ())[:1]))
    if not turned:
        return found
    return replace(found, advice=f"{turned} was turned since: run another epoch", suggestion=None)


def turned_since(
    stages: Mapping[str, Stage], rows: Sequence[Row], names: Iterable[str | None]
) -> str:
    """Name a knob of these stages whose value is not that of the last row; empty without one."""
    last = {row["stage"]: row for row in rows}
    for name in names:
        if name is None or name not in stages or name not in last:
            continue
        for knob_name, knob in stages[name].knobs.items():
            if last[name].get(knob_name, knob.value) != knob.value:
                return f"{shown(name)}.{knob_name}"
    return ""
