"""Diagnose: what a run says of itself, or of its last epoch; a call that hangs comes first."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ..base.format import format_count, format_seconds, format_share, shortened
from ..engine.stats import StageStats, Status, worker_count
from ..ops.stage import CONSUMER, Stage, regions_of
from .empty import nothing_came
from .history import WINDOW_S, Past, averages_of, last_stretch, past_of, span_s, turned_since
from .rules import FAILED, HANGS, STARTS, Case, Diagnosis, decide, short_name
from .slowed import slowed
from .watch import RunView

# -- Hang: a call that has been in progress for far longer than calls of its stage take ------------
LEAST_S = 5.0  # no call hangs before,
TIMES = 20.0  # nor while it takes less than so many times the 99th percentile
_LEAST_LIMIT_S = 30.0  # no shorter time limit is advised [s]
_LIMITS_S = (30, 60, 120, 300, 600, 1800, 3600)  # time limits as people write them [s]
_NAME = 60


class Hang(NamedTuple):
    """The call that has been in progress for the longest time of those that hang.

    Attributes:
        stages: addresses of the stages that it goes through: one, or all of those that share
            their workers.
        age_s: time since it began [s].
        item: the item that it works on, or "first to last"; empty where that is not known.
        runs: it is still in progress; False once its worker was ended with the epoch.
        usual_s: 99th percentile of the calls that have ended; 0 where none has [s].
    """

    stages: tuple[str, ...]
    age_s: float
    item: str
    runs: bool = True
    usual_s: float = 0.0

    def __str__(self) -> str:
        """Return it in one sentence."""
        name = shortened(" > ".join(self.stages), _NAME)
        age = format_seconds(int(self.age_s))
        hangs = "hangs: one call has been running for" if self.runs else "hung: one call ran for"
        where = f", on item{'s' * (' to ' in self.item)} {self.item}" if self.item else ""
        return f"{name} {hangs} {age}{where}"

    def diagnosis(self, stages: Mapping[str, Stage], status: Status) -> Diagnosis:
        """Return it with what to do, and with how the epoch ended if it is over."""
        over = f"{status.state}; " if status.is_over else ""
        advice = _way_out(stages[self.stages[-1]], status, _limit_for(self.usual_s))
        return Diagnosis(self.stages[0], f"{over}{self}.", advice, kind=HANGS)


def _limit_for(usual_s: float) -> int:
    """Return a time limit that only calls that hang reach [s]."""
    least_s = max(_LEAST_LIMIT_S, TIMES * usual_s)
    return next((limit for limit in _LIMITS_S if limit >= least_s), math.ceil(least_s))


def _way_out(stage: Stage, status: Status, limit_s: int) -> str:
    """Return what ends a call that hangs."""
    if status.called != "run":
        return _way_out_of_a_loader(stage, status, limit_s)
    limit = getattr(stage.spec, "timeout_s", None)
    if limit is not None:
        return f"Its time limit of {limit:g} s ends it; a lower timeout_s ends it sooner."
    bounded = stage.spec.runs == "call" and not stage.spec.expands
    if not bounded or stage.executor == "device":
        return "Set a time limit on what it waits for, for example on the connection."
    if stage.executor in ("thread", "inline"):
        return (
            "A thread cannot be stopped, a process can: write "
            f'executor="process", timeout_s={limit_s} to end such calls.'
        )
    return f"Write timeout_s={limit_s} to end such calls."


def _way_out_of_a_loader(stage: Stage, status: Status, limit_s: int) -> str:
    if status.by_loop:
        return (
            "Your own thread makes the batches and cannot be stopped: write "
            f'num_workers=2, workers="process", timeout={limit_s} to get an error instead.'
        )
    process = "" if stage.executor == "process" else 'workers="process", '
    return f"Write {process}timeout={limit_s} to get an error instead."


def hang_of(stages: Mapping[str, Stage], stats: Mapping[str, StageStats]) -> Hang | None:
    """Find the call that hangs, or that has hung for the longest time; None without one.

    While workers start, or a cluster has none, calls wait for those, and none is reported as hung.
    """
    found: Hang | None = None
    addresses = iter(stages)
    for region in regions_of(tuple(stages.values())):
        shared = tuple(next(addresses) for _ in region)
        rows = [stats[name] for name in shared if name in stats]
        idle = region[0].executor == "dask" and not any(row.workers for row in rows)
        if not rows or idle or any(row.starting for row in rows):
            continue
        last = rows[-1]
        usual_s = sum(row.latency_p99_s for row in rows)
        if not last.oldest_s or last.oldest_s < max(LEAST_S, TIMES * usual_s):
            continue
        if found is None or last.oldest_s > found.age_s:
            found = Hang(shared, last.oldest_s, last.oldest_item, last.running > 0, usual_s)
    return found


# -- Diagnose: what a run says of itself, or of its last epoch -------------------------------------
EARLY_S = 1.0  # stats of so short a time give no verdict,
FEW, FEW_S = 3, 5.0  # nor, for some seconds more, while no stage has made so many items
_SHORTEST_S = 0.2  # nothing is advised after an epoch of less: its rates are of filling buffers [s]
_SAME_S = 1e-6  # times that differ by no more are one [s]
_ONE = {"items": "item", "batches": "batch"}


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
        return Diagnosis(None, "paused: no call starts", f"{status.called}.resume() continues")
    if status.is_over:
        return _over(watched, status, stats)
    if status.state != "running":
        iterated = status.called.partition(".")[0]  # the run, or the loader
        return Diagnosis(None, "not started", f"iterate the {iterated}, then look again")
    starts = _starting(stats)
    if starts is not None:
        return starts
    hang = hang_of(watched.stages, stats)
    if hang is not None:
        return hang.diagnosis(watched.stages, status)
    nothing = nothing_came(watched.stages, status, stats)
    if nothing is not None:
        return nothing
    span = span_s(watched, status)
    case = Case.of(watched.stages, stats, status, span, past_of(watched))
    if _is_early(case):
        return Diagnosis(None, "too early to tell", "look again in a few seconds")
    return patient(case, slowed(case) or decide(case))


def _starting(stats: Mapping[str, StageStats]) -> Diagnosis | None:
    """Return which workers only start: before their first result nothing else limits."""
    for address, row in stats.items():
        if row.starting >= max(1, row.workers) and not row.items_out:
            text = f"{short_name(address)} is {worker_count(row.workers, row.starting, 0)}"
            return Diagnosis(address, text, "its items come when they are there", kind=STARTS)
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
    advice = f"{short_name(stage)}.{name} was turned just now: look again in a few seconds"
    return replace(found, advice=advice, suggestion=None)


def _failed(status: Status, watched: RunView) -> Diagnosis:
    named = [name for name in watched.stages if f"stage {name!r}" in status.error]
    failures = watched._core.unnamed_failures()
    lost = [failure for failure in failures if failure.epoch == status.epoch]
    name = max(named, key=len) if named else lost[-1].stage if lost else None
    who = "the epoch" if name is None else short_name(name)
    text = f"{who} failed: {shortened(status.error, 300)}" if status.error else f"{who} failed"
    advice = f"{status.called}.failures() gives inputs and tracebacks"
    stage = watched.stages.get(name or "")
    if stage is not None and stage.spec.runs == "call" and status.called == "run":
        last = next((failure.error for failure in reversed(lost) if failure.stage == name), "")
        advice += f"; {_RETRY if _may_pass(last) else _SKIP}"
    return Diagnosis(name, text, advice, kind=FAILED)


_SKIP = "on_error='skip' leaves such items out"
_RETRY = "on_error=nbpipe.Retry(2) tries such items again"


def _may_pass(error: str) -> bool:
    """Return whether an error, as "TimeoutError: ...", is of a kind that may be gone next time."""
    kind = error.partition(":")[0]
    return any(word in kind for word in ("Timeout", "Connection", "WorkerDied"))


def _over(watched: RunView, status: Status, stats: Mapping[str, StageStats]) -> Diagnosis:
    """Diagnose the last epoch; once, for it no longer changes, but for a call that hangs."""
    hang = hang_of(watched.stages, stats) if status.has_begun else None
    if hang is not None:
        return hang.diagnosis(watched.stages, status)
    nothing = nothing_came(watched.stages, status, stats)
    if nothing is not None:
        return replace(nothing, text=f"{status.state}; {nothing.text}")
    knobs = tuple(k.value for stage in watched.stages.values() for k in stage.knobs.values())
    key = (status.state, status.epoch, status.delivered, knobs)
    known = _known.get(watched)
    if known is None or known[0] != key:
        known = _known[watched] = (key, _afterwards(watched, status, stats))
    return known[1]


_known: weakref.WeakKeyDictionary[RunView, tuple[object, Diagnosis]] = weakref.WeakKeyDictionary()


def _afterwards(watched: RunView, status: Status, stats: Mapping[str, StageStats]) -> Diagnosis:
    if not status.has_begun:
        return Diagnosis(None, f"{status.state}; no epoch was begun")
    if status.delivered == status.resumed and not status.came_to_its_end:
        return Diagnosis(None, f"{status.state} before the first {_ONE.get(status.unit, 'item')}")
    past = watched.history()
    rows, since_s = last_stretch(past, status, watched.events)
    rows = rows if status.elapsed_s >= _SHORTEST_S else []
    averages = averages_of(rows, stats, since_s)
    if not averages:
        unit, one = status.unit, status.delivered == 1
        count = f"{format_count(status.delivered)} {_ONE.get(unit, unit) if one else unit}"
        text = f"{status.state}; {count} {'was' if one else 'were'} delivered"
        share = format_share(status.waited_share)
        return Diagnosis(None, f"{text}, the training loop waited for data {share} of the time")
    loop, whole_s = averages.get(CONSUMER), float(rows[-1]["time_s"]) - since_s
    if loop is not None and whole_s >= status.elapsed_s - _SAME_S:  # they are the whole epoch
        averages[CONSUMER] = replace(loop, starved=status.waited_share)
    case = Case.of(watched.stages, averages, status, WINDOW_S, Past(watched, lambda: past))
    found = slowed(case) or decide(case)
    found = replace(found, text=f"{status.state}; in its last seconds {found.text}")
    names = [name for name in (found.stage, *(found.suggestion or ())[:1]) if name]
    turned = turned_since(watched.stages, rows, names)
    if not turned:
        return found
    advice = f"{short_name(turned)} was turned since: run another epoch"
    return replace(found, advice=advice, suggestion=None)
