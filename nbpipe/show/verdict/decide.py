"""Decide: the first rule that fits the numbers of a case makes the diagnosis.

The most loaded stage above a loop that waits limits; where no stage is full, the order, the
buffers or the items themselves do.
"""

from __future__ import annotations

from collections.abc import Callable

from ...base.format import format_rate
from ...ops.stage import CONSUMER
from ..history import Past, Trial, enough_calls
from .case import Case
from .diagnosis import KEEPS_UP, SLOWER, Diagnosis
from .full import loaded
from .load import FULL, MOST
from .lock import event_loop
from .not_full import bursts, crowded, memory, stragglers
from .rank import rank, with_rank

CONTENT = 0.05  # a loop that waits less gains nothing from a faster pipeline


def decide(case: Case) -> Diagnosis:
    """Return the first diagnosis that fits."""
    found = (rule(case) for rule in _RULES)
    first = next((one for one in found if one is not None), None) or _changing(case)
    return with_rank(case.status, first)


def _keeps_up(case: Case) -> Diagnosis | None:
    if case.starved >= CONTENT:
        return None
    text = f"The data {'kept' if case.status.is_over else 'keeps'} up: {case.wait}."
    return Diagnosis(stage=CONSUMER, cause="keeps-up", text=text, kind=KEEPS_UP)


def _slower(case: Case) -> Diagnosis | None:
    """Find that the last turn of a knob was a raise that brought less."""
    last = case.past.trials[-1] if case.past is not None and case.past.trials else None
    if last is None or not last.made_it_slower:
        return None
    if case.stages[last.stage].knobs[last.knob].value != last.new:
        return None
    unit = case.status.units.get(last.stage, "items")
    before, after = format_rate(last.before_per_s, unit), format_rate(last.after_per_s, unit)
    name, old = case.setting(last.knob, last.old)
    what, new = case.setting(last.knob, last.new, last.stage)
    value = _enough(case.past, last)
    _, enough = case.setting(last.knob, value)
    return Diagnosis(
        stage=last.stage,
        cause="raise-was-slower",
        text=f"Raising {what} from {old} to {new} made it slower.",
        evidence=f"{before} before, {after} since",
        advice=f"Set {name} to {old} again." if enough == old else f"Set {name} to {enough}.",
        suggestion=(last.stage, last.knob, value),
        kind=SLOWER,
    )


def _enough(past: Past | None, last: Trial) -> int:
    """Return the value to go back to: of calls, as many as the better rate needs."""
    least_s = past.least_s(last.stage) if past is not None else None
    if last.knob != "concurrency" or least_s is None:
        return last.old
    return enough_calls(least_s, max(last.before_per_s, last.after_per_s), last.old)


def _changing(case: Case) -> Diagnosis:
    over = case.status.is_over
    text = f"No stage {'was' if over else 'is'} the bottleneck for long: {case.wait}."
    advice = "Run another epoch." if over else "Look again in a few seconds."
    return Diagnosis(cause="changing", text=text, advice=advice)


_RULES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    lambda case: rank(case.status, case.starved),
    _keeps_up,
    _slower,
    lambda case: loaded(case, FULL),
    event_loop,
    memory,
    stragglers,
    lambda case: loaded(case, MOST),
    bursts,
    crowded,
)
