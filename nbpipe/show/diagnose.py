"""Diagnose: what limits a run, or limited its last epoch; a call that hangs comes first."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace

from ..base.format import format_count, format_share, shortened, unit_of
from ..engine.measures.stats import StageStats, Status
from ..ops.stage import CONSUMER, Stage
from .history import WINDOW_S, Past, averages_of, last_stretch, past_of, span_s, turned_since
from .verdict.case import Case
from .verdict.decide import decide
from .verdict.diagnosis import FAILED, STARTS, Diagnosis, sentence, short_name
from .verdict.empty import nothing_came
from .verdict.hang import Hang, hang_of
from .verdict.memory import nearly_full
from .verdict.slowed import slowed
from .watch import RunView

EARLY_S = 1.0  # stats of so short a time give no verdict,
FEW, FEW_S = 3, 5.0  # nor, for some seconds more, while no stage has made so many items
_SHORTEST_S = 0.2  # nothing is advised after an epoch of less: its rates are of filling buffers [s]
_SAME_S = 1e-6  # times that differ by no more are one [s]


def diagnose(watched: RunView) -> Diagnosis:
    """Name what limits a run, from the last 5 s of its stats.

    Of an epoch that is over, the last seconds of the history speak.
    """
    return diagnose_from(watched, watched.status(), watched.stats())


def diagnose_from(watched: RunView, status: Status, stats: Mapping[str, StageStats]) -> Diagnosis:
    """Diagnose from a status and stats that were read before."""
    if status.state == "failed":
        return _failed(status, watched)
    if status.state == "paused":
        advice = f"Press Resume or call {status.called}.resume()."
        return Diagnosis(cause="paused", text="Paused.", advice=advice)
    if status.is_over:
        return _over(watched, status, stats)
    if status.state != "running":
        iterated = status.called.partition(".")[0]  # the run, or the loader
        advice = f"Run `for batch in {iterated}:` in a cell."
        return Diagnosis(cause="not-started", text="Waiting for your loop.", advice=advice)
    starts = _starting(watched.stages, stats)
    if starts is not None:
        return starts
    hang = hang_of(watched.stages, stats)
    if hang is not None:
        return _hanging(watched, status, hang)
    nothing = nothing_came(watched.stages, status, stats)
    if nothing is not None:
        return nothing
    span = span_s(watched, status)
    case = Case.of(watched.stages, stats, status, span, past_of(watched))
    case = case._replace(lock_wait=watched._core.lock_wait)
    if _is_early(case):
        return Diagnosis(
            cause="early", text="Too early to tell.", advice="Look again in a few seconds."
        )
    found = nearly_full(case) or slowed(case) or decide(case)
    return patient(case, attended(watched, found))


def attended(watched: RunView, found: Diagnosis) -> Diagnosis:
    """Take a suggestion back while a tuner turns its knob."""
    tuner = watched.tuner
    if tuner is None or found.suggestion is None or not tuner.turns(*found.suggestion[:2]):
        return found
    advice = f"Autotune is working on it: {tuner.state}."
    return replace(found, cause="autotune", advice=advice, suggestion=None)


def _hanging(watched: RunView, status: Status, hang: Hang) -> Diagnosis:
    place = watched._core.place(hang.stages[-1])
    return hang.diagnosis(watched.stages, status, place)


def _starting(stages: Mapping[str, Stage], stats: Mapping[str, StageStats]) -> Diagnosis | None:
    """Return which workers only start: before their first result nothing else limits."""
    for address, row in stats.items():
        if row.starting >= max(1, row.workers) and not row.items_out:
            stage = stages.get(address)
            kind = "worker process" if stage and stage.executor == "process" else "worker"
            plural = "" if row.starting == 1 else "es" if kind.endswith("s") else "s"
            text = f"Starting {row.starting} {kind}{plural} for {short_name(address)}..."
            return Diagnosis(stage=address, cause="starting", text=text, kind=STARTS)
    return None


def _is_early(case: Case) -> bool:
    """Return whether the stats are those of too short a time to say anything."""
    if case.span_s < EARLY_S:
        return True
    most = max((row.items_out for row in case.rows.values()), default=0)
    return case.span_s < FEW_S and max(most, case.status.delivered - case.status.resumed) < FEW


def patient(case: Case, found: Diagnosis) -> Diagnosis:
    """Take a suggestion back while the last turn of its knob does not show yet."""
    if found.suggestion is None:
        return found
    stage, name, _ = found.suggestion
    if not case.just_turned(case.stages[stage].knobs[name]):
        return found
    setting, _ = case.setting(name, 1, stage)
    advice = f"Look again in a few seconds: {setting} has just changed."
    return replace(found, cause="just-turned", advice=advice, suggestion=None)


def _failed(status: Status, watched: RunView) -> Diagnosis:
    named = [name for name in watched.stages if f"stage {name!r}" in status.error]
    failures = watched._core.unnamed_failures()
    lost = [failure for failure in failures if failure.epoch == status.epoch]
    name = max(named, key=len) if named else lost[-1].stage if lost else None
    who = "The epoch" if name is None else short_name(name)
    text = f"{who} failed: {shortened(status.error, 300)}" if status.error else f"{who} failed"
    advice = f"See {status.called}.failures() for inputs and tracebacks"
    stage = watched.stages.get(name or "")
    if stage is not None and stage.spec.runs == "call" and status.called == "run":
        last = next((failure.error for failure in reversed(lost) if failure.stage == name), "")
        advice += f". {_RETRY if _may_pass(last) else _SKIP}"
    return Diagnosis(
        stage=name, cause="failed", text=sentence(text), advice=f"{advice}.", kind=FAILED
    )


_SKIP = "Write on_error='skip' to leave such items out"
_RETRY = "Write on_error=nbpipe.Retry(2) to try such items again"


def _may_pass(error: str) -> bool:
    """Return whether an error, as "TimeoutError: ...", is of a kind that may be gone next time."""
    kind = error.partition(":")[0]
    return any(word in kind for word in ("Timeout", "Connection", "WorkerDied"))


def _over(watched: RunView, status: Status, stats: Mapping[str, StageStats]) -> Diagnosis:
    """Diagnose the last epoch; once, for it no longer changes, but for a call that hangs."""
    hang = hang_of(watched.stages, stats) if status.has_begun else None
    if hang is not None:
        return _hanging(watched, status, hang)
    nothing = nothing_came(watched.stages, status, stats)
    if nothing is not None:
        return nothing.after(status.state)
    knobs = tuple(k.value for stage in watched.stages.values() for k in stage.knobs.values())
    key = (status.state, status.epoch, status.delivered, knobs)
    known = _known.get(watched)
    if known is None or known[0] != key:
        known = _known[watched] = (key, _afterwards(watched, status, stats))
    return known[1]


_known: weakref.WeakKeyDictionary[RunView, tuple[object, Diagnosis]] = weakref.WeakKeyDictionary()


def _afterwards(watched: RunView, status: Status, stats: Mapping[str, StageStats]) -> Diagnosis:
    state = status.state.capitalize()
    if not status.has_begun:
        return Diagnosis(cause="short-epoch", text=f"{state} before the first epoch.")
    if status.delivered == status.resumed and not status.came_to_its_end:
        first = unit_of(1, status.unit)
        return Diagnosis(cause="short-epoch", text=f"{state} before the first {first}.")
    past = watched.history()
    rows, since_s = last_stretch(past, status, watched.events)
    rows = rows if status.elapsed_s >= _SHORTEST_S else []
    averages = averages_of(rows, stats, since_s)
    if not averages:
        count = f"{format_count(status.delivered)} {unit_of(status.delivered, status.unit)}"
        share = format_share(status.waited_share)
        text = f"{state} after {count}: training waited {share} of the time."
        return Diagnosis(cause="short-epoch", text=text)
    loop, whole_s = averages.get(CONSUMER), float(rows[-1]["time_s"]) - since_s
    if loop is not None and whole_s >= status.elapsed_s - _SAME_S:  # they are the whole epoch
        averages[CONSUMER] = replace(loop, starved=status.waited_share)
    case = Case.of(watched.stages, averages, status, WINDOW_S, Past(watched, lambda: past))
    found = (slowed(case) or decide(case)).after(status.state)
    names = [name for name in (found.stage, *(found.suggestion or ())[:1]) if name]
    turned = turned_since(watched.stages, rows, names)
    if not turned:
        return found
    advice = f"Run another epoch: {short_name(turned)} has changed since."
    return replace(found, cause="turned-since", advice=advice, suggestion=None)
