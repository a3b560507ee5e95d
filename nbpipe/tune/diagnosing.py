"""Diagnose: what a run says of itself, or of its last epoch."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..metrics import Row, StageStats
from ..operations import Call
from ..stats import worker_count
from ..text import shortened
from ..units import format_count, format_share
from ..watch import Status, Watched
from .case import Case, averages_of
from .hang import hang_of
from .past import WINDOW_S, futile_raise, growth_of, last_stretch, span_s, turned_since
from .rules import FAILED, HANGS, STARTS, Diagnosis, decide, futile, patient, shown

EARLY_S = 1.0  # nothing is said of stats of so short a time,
FEW, FEW_S = 3, 5.0  # nor, for some seconds more, while no stage has made so many items
_ONE = {"items": "item", "batches": "batch"}
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
        return Diagnosis(None, "paused: no call starts", f"{status.called}.resume() goes on")
    if status.state in _OVER:
        return _over(watched, status, stats)
    if status.state != "running":
        iterated = status.called.partition(".")[0]  # the run, or the loader
        return Diagnosis(None, "not started", f"iterate the {iterated}, then look again")
    starts = _starting(stats)
    if starts is not None:
        return starts
    hang = hang_of(watched.stages, stats)
    if hang is not None:
        return Diagnosis(hang.stages[0], str(hang), kind=HANGS)
    growth = functools.partial(growth_of, watched, history=watched.history)
    case = Case.of(watched.stages, stats, status, span_s(watched, status), growth)
    if is_early(case):
        return Diagnosis(None, "too early to tell", "look again in a few seconds")
    return _worthwhile(watched, patient(case, decide(case)), watched.history)


def _starting(stats: Mapping[str, StageStats]) -> Diagnosis | None:
    """Say which workers only start: before their first result nothing else limits."""
    for address, row in stats.items():
        if row.starting >= max(1, row.workers) and not row.items_out:
            text = f"{shown(address)} is {worker_count(row.workers, row.starting, 0)}"
            return Diagnosis(address, text, "its items come when they are there", kind=STARTS)
    return None


def is_early(case: Case) -> bool:
    """Say whether the stats are those of too short a time to say anything."""
    if case.span_s < EARLY_S:
        return True
    most = max((row.items_out for row in case.rows.values()), default=0)
    return case.span_s < FEW_S and max(most, case.status.delivered - case.status.resumed) < FEW


def _worthwhile(
    watched: Watched, found: Diagnosis, history: Callable[[], Sequence[Row]]
) -> Diagnosis:
    """Take a suggestion back where the last such raise brought nothing."""
    if found.suggestion is None:
        return found
    vain = futile_raise(watched, found.suggestion, history)
    return found if vain is None else futile(found, vain.old, vain.new)


def _failed(status: Status, watched: Watched) -> Diagnosis:
    named = [name for name in watched.stages if f"stage {name!r}" in status.error]
    lost = [failure.stage for failure in watched.failures() if failure.epoch == status.epoch]
    name = max(named, key=len) if named else lost[-1] if lost else None
    who = "the epoch" if name is None else shown(name)
    text = f"{who} failed: {shortened(status.error, 300)}" if status.error else f"{who} failed"
    advice = f"{status.called}.failures() gives inputs and tracebacks"
    stage = watched.stages.get(name or "")
    if stage is not None and isinstance(stage.spec, Call) and status.called == "run":
        advice += "; on_error='skip' leaves such items out, nbpipe.Retry(2) tries again"
    return Diagnosis(name, text, advice, kind=FAILED)


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
    past = watched.history()
    rows, since_s = last_stretch(past, status, watched.events)
    averages = averages_of(rows, stats, since_s)
    if not averages:
        share = status.waited_s / status.elapsed_s if status.elapsed_s > 0 else 0.0
        unit = status.units.get(next(reversed(tuple(watched.stages)), ""), "items")
        one = status.delivered == 1
        count = f"{format_count(status.delivered)} {_ONE.get(unit, unit) if one else unit}"
        text = f"{status.state}; {count} {'was' if one else 'were'} delivered"
        return Diagnosis(
            None, f"{text}, the loop waited for data {format_share(share)} of the time"
        )
    growth = functools.partial(growth_of, watched, history=lambda: past)
    case = Case.of(watched.stages, averages, status, WINDOW_S, growth)
    found = _worthwhile(watched, decide(case), lambda: past)
    found = replace(found, text=f"{status.state}; in its last seconds {found.text}")
    names = [name for name in (found.stage, *(found.suggestion or ())[:1]) if name]
    turned = turned_since(watched.stages, rows, names)
    if not turned:
        return found
    advice = f"{shown(turned)} was turned since: run another epoch"
    return replace(found, advice=advice, suggestion=None)
