"""Slowed: the steps of the training loop take longer than before, or than while workers rest."""

from __future__ import annotations

import math

from ...base.format import format_seconds
from ...engine.measures.step_time import CORES, LOCK
from ...ops.stage import CONSUMER
from .case import Case
from .decide import CONTENT
from .diagnosis import PRICE, SLOWS, Cause, Diagnosis, short_name
from .load import Load
from .rank import rank

_LEAST_CORES = 0.1  # threads that compute less are not those that hold the lock [cores]
_FEWER = "Fewer batches are then ready."
_CAUSES: dict[str, Cause] = {LOCK: "slowed-by-lock", CORES: "slowed-by-cores"}


def slowed(case: Case) -> Diagnosis | None:
    """Return the verdict that workers slow the loop, or that it is being checked; else None.

    A loop that loses more by waiting for data hears of that.
    """
    status = case.status
    step_s, at_rest_s, before_s = status.step_s, status.step_at_rest_s, status.step_before_s
    if step_s and at_rest_s and status.slowed_by:
        loses = 1.0 - at_rest_s / step_s
        return _verdict(case, step_s, at_rest_s) if loses >= case.starved else None
    if step_s and before_s and case.starved < CONTENT and rank(status, case.starved) is None:
        return _longer(case, step_s, before_s)
    return None


def _longer(case: Case, step_s: float, before_s: float) -> Diagnosis:
    """Report that steps are longer than they were, and that it is not known why."""
    over = case.status.is_over
    now, before = format_seconds(step_s), format_seconds(before_s)
    text = f"A training step {'took' if over else 'takes'} longer: {now}, {before} before."
    evidence, asked = "", "whether the workers are the cause"
    if case.status.step_untold:
        larger = "prefetch for the last stage" if case.is_run else "prefetch_factor"
        evidence = f"too few batches are ready, or steps are too long, to see {asked}"
        advice = f"Set a larger {larger}."
    elif over:
        advice = f"Run a longer epoch to see {asked}."
    else:
        advice = f"Look again soon: {asked} is being checked."
    return Diagnosis(cause="longer-steps", text=text, evidence=evidence, advice=advice)


def _verdict(case: Case, step_s: float, at_rest_s: float) -> Diagnosis:
    slows, takes, rest = "slows", "takes", "rest"
    if case.status.is_over:
        slows, takes, rest = "slowed", "took", "rested"
    took = f"{takes} {format_seconds(step_s)}, and {format_seconds(at_rest_s)} while workers {rest}"
    evidence, advice, target = _why(case)
    waits = case.wait if case.starved >= CONTENT else ""
    return Diagnosis(
        stage=CONSUMER,
        cause=_CAUSES.get(case.status.slowed_by, "slowed"),
        text=f"Data loading {slows} training: a step {took}.",
        evidence=", ".join(filter(None, [evidence, waits])),
        advice=advice,
        suggestion=target,
        kind=SLOWS,
    )


def _why(case: Case) -> tuple[str, str, tuple[str, str, int] | None]:
    """Return what slows the steps, where that is known, and what helps."""
    if case.status.slowed_by == CORES:
        return _cores(case)
    evidence, advice = _lock(case) if case.status.slowed_by == LOCK else ("", _apart(case))
    return evidence, advice, None


# -- the interpreter lock --------------------------------------------------------------------------
_APART = "Start with isolate=True. Its process takes seconds to start, and copies each batch once."
_FEWER_WORKERS = f"Set a smaller num_workers. {_FEWER}"
_FEWER_CALLS = f"Lower the concurrency of its stages. {_FEWER}"
_LARGER = "Make batches larger: its process then sends fewer messages."
_JOINED = (
    'Make batches in its workers too, with executor="process". The first batch then comes later.'
)


def _lock(case: Case) -> tuple[str, str]:
    """Name what holds the lock: threads that compute, else the answers of worker processes."""
    if case.status.isolated:
        return "", _LARGER
    load = max(case.loads, key=_in_threads, default=None)
    if load is not None and _in_threads(load) >= _LEAST_CORES:
        name = short_name(load.address)
        return f"threads of {name} hold the interpreter lock", _out_of_threads(case, load)
    away = [one for one in case.loads if case.stages[one.host].executor_spec is not None]
    if not away:
        return "its threads hold the interpreter lock", _apart(case)
    name = short_name(max(away, key=lambda one: case.rows[one.host].items_per_s).host)
    evidence = f"threads that serve the workers of {name} hold the interpreter lock"
    if not case.is_run:
        return evidence, _FEWER_WORKERS
    batches = any(one.stage.op == "batch" and one not in away for one in case.loads)
    return evidence, _JOINED if batches else _APART


def _apart(case: Case) -> str:
    """Return what helps whichever stage it is."""
    if not case.is_run:
        return _FEWER_WORKERS
    return _FEWER_CALLS if case.status.isolated else _APART


def _in_threads(load: Load) -> float:
    """Return how many cores the calls of a load use in threads of the run."""
    if load.stage.executor_spec is not None or load.stage.executor == "device":
        return 0.0
    return load.slots if load.cpu_cores is None else load.cpu_cores


def _out_of_threads(case: Case, load: Load) -> str:
    """Return what takes the calls of a stage out of the threads of the run."""
    if not case.is_run:
        return f'Set workers="process". {PRICE}'
    moves = load.address == load.host and load.stage.op in ("map", "filter", "flat_map", "batch")
    if not moves or load.stage.executor == "coroutine":
        return _APART
    return f'Run {short_name(load.address)} in worker processes: executor="process". {PRICE}'


# -- cores -----------------------------------------------------------------------------------------
def _cores(case: Case) -> tuple[str, str, tuple[str, str, int] | None]:
    """Advise fewer calls of the stage that uses most cores."""
    evidence = "workers use the cores that training needs"
    loads = [one for one in case.loads if one.knob is not None and one.knob.value > 1]
    load = max(loads, key=lambda one: one.cpu_cores or one.slots, default=None)
    if load is None or load.knob is None:
        advice = "Make a function cheaper, or use a machine with more cores."
        return evidence, advice, None
    value = max(1, min(load.knob.value - 1, math.ceil(load.slots)))
    setting, number = case.setting("concurrency", value, load.host)
    target = load.host, "concurrency", value
    return evidence, f"Set {setting} to {number}. {_FEWER}", target
