"""Slowed: what a run says of a loop whose steps take longer than they did, or than at rest."""

from __future__ import annotations

import math

from ..base.format import format_seconds, format_share
from ..engine.step_time import CORES, LOCK
from ..ops.stage import CONSUMER
from .rules import CONTENT, SLOWS, Case, Diagnosis, Load, short_name

_LEAST_CORES = 0.1  # threads that compute less are not those that hold the lock [cores]
_FEWER = "fewer calls use fewer cores, and fewer batches are ready"
_CHEAPER = "no call can be left out: make a function cheaper, or take a machine with more cores"


def slowed(case: Case) -> Diagnosis | None:
    """Return the verdict that workers slow the loop, or that it is being checked; else None.

    A loop that loses more by waiting for data hears of that.
    """
    status = case.status
    step_s, at_rest_s, before_s = status.step_s, status.step_at_rest_s, status.step_before_s
    if step_s and at_rest_s and status.slowed_by:
        loses = 1.0 - at_rest_s / step_s
        return _verdict(case, step_s, at_rest_s) if loses >= case.starved else None
    if step_s and before_s and case.starved < CONTENT:
        return _longer(case, step_s, before_s)
    return None


def _longer(case: Case, step_s: float, before_s: float) -> Diagnosis:
    """Tell that steps are longer than they were, and that it is not known why."""
    took = f"{format_seconds(step_s)}, {format_seconds(before_s)} before"
    text = f"a step of the training loop takes longer: {took}"
    if case.status.step_untold:
        why = "too few batches are ready, or steps are too long, to see whether the loader is why"
        advice = "give the last stage a larger prefetch"
        if case.status.called != "run":
            advice = "set a larger prefetch_factor"
        return Diagnosis(None, f"{text}; {why}", advice)
    if case.status.is_over:
        return Diagnosis(None, text, "whether the loader is why shows in a longer epoch")
    return Diagnosis(None, text, "whether the loader is why is being checked: look again soon")


def _verdict(case: Case, step_s: float, at_rest_s: float) -> Diagnosis:
    took = f"{format_seconds(step_s)}, but {format_seconds(at_rest_s)} while workers rest"
    text = f"the loader slows the loop: a step takes {took}"
    if case.starved >= CONTENT:
        text = f"{text}, and it waits for data {format_share(case.starved)} of the time"
    if case.status.slowed_by == LOCK:
        return _lock(case, text)
    if case.status.slowed_by == CORES:
        return _cores(case, text)
    return Diagnosis(CONSUMER, text, _apart(case), kind=SLOWS)


# -- the interpreter lock --------------------------------------------------------------------------
_PRICE = "its workers take seconds to start, and the memory of an interpreter each"
_APART = (
    "start with isolate=True: a process of its own takes seconds to start, and each batch is "
    "copied once"
)
_FEWER_WORKERS = "set a smaller num_workers: fewer batches are ready then"
_FEWER_CALLS = "lower the concurrency of its stages: fewer batches are ready then"
_LARGER = "its process sends many messages: let batches be larger"
_JOINED = 'make batches in its workers, with executor="process": the first one comes later'


def _lock(case: Case, text: str) -> Diagnosis:
    """Name what holds the lock: threads that compute, else the answers of worker processes."""
    if case.status.isolated:
        return Diagnosis(CONSUMER, text, _LARGER, kind=SLOWS)
    load = max(case.loads, key=_in_threads, default=None)
    if load is not None and _in_threads(load) >= _LEAST_CORES:
        text = f"{text}; threads of {short_name(load.address)} hold the interpreter lock"
        return Diagnosis(CONSUMER, text, _out_of_threads(case, load), kind=SLOWS)
    away = [one for one in case.loads if case.stages[one.host].executor_spec is not None]
    if not away:
        text = f"{text}; its threads hold the interpreter lock"
        return Diagnosis(CONSUMER, text, _apart(case), kind=SLOWS)
    name = short_name(max(away, key=lambda one: case.rows[one.host].items_per_s).host)
    text = f"{text}; threads that serve the workers of {name} hold the interpreter lock"
    if not _is_run(case):
        return Diagnosis(CONSUMER, text, _FEWER_WORKERS, kind=SLOWS)
    batches = any(one.stage.op == "batch" and one not in away for one in case.loads)
    return Diagnosis(CONSUMER, text, _JOINED if batches else _APART, kind=SLOWS)


def _apart(case: Case) -> str:
    """Return what helps whichever stage it is."""
    if not _is_run(case):
        return _FEWER_WORKERS
    return _FEWER_CALLS if case.status.isolated else _APART


def _in_threads(load: Load) -> float:
    """Return how many cores the calls of a load use in threads of the run."""
    if load.stage.executor_spec is not None or load.stage.executor == "device":
        return 0.0
    return load.slots if load.cpu_cores is None else load.cpu_cores


_PROCESSES = f'set workers="process": {_PRICE.replace("its workers", "they")}'


def _out_of_threads(case: Case, load: Load) -> str:
    """Return what takes the calls of a stage out of the threads of the run."""
    if not _is_run(case):
        return _PROCESSES
    moves = load.address == load.host and load.stage.op in ("map", "filter", "flat_map", "batch")
    if not moves or load.stage.executor == "coroutine":
        return _APART
    return f'try executor="process" for {short_name(load.address)}: {_PRICE}'


# -- cores -----------------------------------------------------------------------------------------
def _cores(case: Case, text: str) -> Diagnosis:
    """Advise fewer calls of the stage that uses most cores."""
    text = f"{text}; workers take its cores"
    loads = [one for one in case.loads if one.knob is not None and one.knob.value > 1]
    load = max(loads, key=lambda one: one.cpu_cores or one.slots, default=None)
    if load is None or load.knob is None:
        return Diagnosis(CONSUMER, text, _CHEAPER, kind=SLOWS)
    value = max(1, min(load.knob.value - 1, math.ceil(load.slots)))
    name, suggestion = short_name(load.host), (load.host, "concurrency", value)
    if not _is_run(case):
        return Diagnosis(CONSUMER, text, f"set num_workers={value}: {_FEWER}", suggestion, SLOWS)
    advice = f"try concurrency {value} of {name}: {_FEWER}"
    return Diagnosis(CONSUMER, text, advice, suggestion, kind=SLOWS)


def _is_run(case: Case) -> bool:
    """Return whether it is the run of a pipeline, not of a loader."""
    return case.status.called == "run"
