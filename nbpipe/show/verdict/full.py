"""A stage whose call slots are full: it is the bottleneck, and what would widen it."""

from __future__ import annotations

import math
import sys

from ...base.format import format_seconds, format_share
from ...base.knobs import Knob
from ...executors.interface import MOST_PROCESSES
from ..history import Growth, enough_calls
from .case import Case, is_crowded
from .diagnosis import PRICE, Cause, Diagnosis, short_name
from .load import Load
from .lock import is_held, turns
from .sending import FAR, finds_workers, in_threads, sending

_LOCKED = 0.4  # of its calls wait for a lock: that is what limits
_COMPUTES = 0.4  # of the time of its calls, or of the cores it could use: a stage computes
_WAITS = 3.0  # busy slots for each core that is at work: its calls wait
_CHEAPER = "Make its function cheaper"
_QUICKER = "Speed up what its calls wait for"


def loaded(case: Case, least: float) -> Diagnosis | None:
    """Find the stage with the highest load, if that is at least `least`."""
    top = max((load.share for load in case.loads), default=0.0)
    if top < least:
        return None
    # Of equals the upper one: were the lower one slower, the upper one would be blocked.
    load = next(load for load in case.loads if load.share >= top - 0.01)
    if load.stage.executor == "device":
        return _on_device(case, load)
    found = sending(case, load) if load.away > load.share / 2 else None
    if found is not None and not finds_workers(case, load):
        return _bottleneck(case, load, *found)
    if load.knob is None:
        return _bottleneck(case, load, *_without_knob(case, load))
    return _with_knob(case, load, load.knob)


def _bottleneck(
    case: Case,
    load: Load,
    cause: Cause,
    why: str,
    advice: str,
    *,
    target: tuple[str, str, int] | None = None,
) -> Diagnosis:
    """Return that a load is the bottleneck; `why` ends the evidence, and may be empty."""
    return Diagnosis(
        stage=load.address,
        cause=cause,
        text=case.bottleneck(load.address),
        evidence=", ".join(filter(None, [*_seen(case, load), why])),
        advice=advice,
        suggestion=target,
    )


def _seen(case: Case, load: Load) -> list[str]:
    """Return how busy a load is, how long a call takes, and whether that is spent waiting."""
    phrases = [f"busy {format_share(load.share - load.away)}"]
    if load.away >= FAR:
        phrases.append(f"{format_share(load.away)} on the way to and from its workers")
    if load.p50_s:
        mean = " on average" if load.stage.op == "flat_map" else ""
        phrases.append(f"{format_seconds(load.p50_s)} a call{mean}")
        phrases.append(_spent(case, load))
    return phrases


def _spent(case: Case, load: Load) -> str:
    """Return whether calls compute or wait, and for what, where that was measured of them alone."""
    if load.address != load.host:
        return ""
    if is_held(case, load) and load.lock_share is not None:
        return f"{format_share(load.lock_share)} of it waiting for the interpreter lock"
    if load.share_of_call is None:
        return ""
    return "mostly computing" if load.share_of_call >= 1 / 2 else "mostly waiting"


# -- one call at a time ----------------------------------------------------------------------------
def _on_device(case: Case, load: Load) -> Diagnosis:
    if load.stage.op == "to_device":
        advice = "Send fewer bytes: copy uint8, and convert it in a map on the device."
        return _bottleneck(case, load, "copy", "one copy at a time", advice)
    advice = "Do less on the device before the training step."
    return _bottleneck(case, load, "device", "one batch at a time", advice)


def _without_knob(case: Case, load: Load) -> tuple[Cause, str, str]:
    """Return what helps a stage that makes one call at a time."""
    stage = load.stage
    if case.status.by_loop:
        return (
            "own-loop",
            "the training loop makes its batches itself",
            "Set num_workers=2: from the next epoch on, workers make the batches.",
        )
    if stage.op == "source":
        return "source", "a source is read by one call at a time", _for_source(case)
    if stage.op == "batch" and getattr(stage.spec, "cost", None) is not None:
        return (
            "batch",
            "batches of a budget are made one at a time",
            "Find the cost in a map stage before it, and collate in a map stage after it.",
        )
    if stage.op == "batch":
        return (
            "batch",
            "batches are made one at a time",
            f'Make batches in worker processes: executor="process". {PRICE}',
        )
    if stage.executor == "inline":
        return (
            "inline",
            f"it runs inside {short_name(load.host)}, one call at a time",
            "Give it threads of its own: executor='thread', concurrency=2.",
        )
    advice = "Move slow work into a map stage with concurrency."
    return "one-call", "it does one thing at a time", advice


def _for_source(case: Case) -> str:
    if case.is_run:
        return "Let it give paths or indices, and load them in a map stage with concurrency."
    return (
        "Make the sampler cheaper, or let each worker process read its part of an "
        "IterableDataset, by get_worker_info()."
    )


# -- several calls at once -------------------------------------------------------------------------
def _with_knob(case: Case, load: Load, knob: Knob) -> Diagnosis:
    """Return whether more calls at once would help, and how many."""
    computes, full, held = _computing(case, load), case.fullness(load), is_held(case, load)
    if computes and full and not (held and load.takes_turns):
        advice = f"{_CHEAPER}: more calls at once find no free core."
        return _bottleneck(case, load, "full-machine", full, advice)
    if held:
        return _bottleneck(case, load, *turns(case, load))
    at_lock = _at_a_lock(case, load, knob) if computes is not True else None
    if at_lock is not None:
        return at_lock
    growth = case.past and case.past.growth(load.host)
    if growth:
        return _in_turn(case, load, growth, computes=computes)
    value, useful = _wanted_concurrency(case, load, knob), _useful_concurrency(case, load)
    if value > useful and knob.value >= useful:
        return _enough(case, load, knob.value)
    value, less = min(value, useful), _QUICKER if computes is False else _CHEAPER
    name, now = case.setting("concurrency", knob.value)
    if value <= knob.value:
        advice = f"{less}: {name} {now} is the maximum."
        return _bottleneck(case, load, "most-calls", "", advice)
    tried = case.tried(load.host, "concurrency", knob.value)
    if tried is not None:
        return _bottleneck(case, load, "tried", "", f"{less}: {name} {tried} was no faster.")
    return _more_calls(case, load, value)


def _more_calls(case: Case, load: Load, value: int) -> Diagnosis:
    inside = load.address != load.host
    name, number = case.setting("concurrency", value, load.host if inside else "")
    why = f"it runs inside {short_name(load.host)}" if inside else ""
    target = load.host, "concurrency", value
    return _bottleneck(case, load, "more-calls", why, f"Set {name} to {number}.", target=target)


def _at_a_lock(case: Case, load: Load, knob: Knob) -> Diagnosis | None:
    """Advise the calls that do not wait for a lock, where most of them do."""
    found = case.lock_wait(load.host)
    if found is None or found.place is None or found.share < _LOCKED:
        return None
    value = enough_calls(1.0 - found.share, load.slots, knob.value)
    if value >= knob.value:
        return None
    name, number = case.setting("concurrency", value)
    why = f"{format_share(found.share)} of its calls wait for a lock: {found.place}"
    advice = f"Set {name} to {number}: more calls only wait for one another."
    target = load.host, "concurrency", value
    return _bottleneck(case, load, "calls-in-turn", why, advice, target=target)


def _in_turn(case: Case, load: Load, growth: Growth, *, computes: bool | None) -> Diagnosis:
    """Advise fewer calls where more of them wait for one another."""
    if computes:
        shared = "a core"
    elif computes is None or is_crowded(case.status, case.cores):
        shared = "a lock, a disk or a core"
    else:
        shared = "a lock or a disk"
    enough = growth.enough(case.rows[load.host].items_per_s)
    name, number = case.setting("concurrency", enough)
    why = (
        f"calls of {short_name(load.host)} take {growth.times:.1f} times as long at {name} "
        f"{growth.high} as at {growth.low}"
    )
    advice = f"Set {name} to {number}: more calls only wait for one another, at {shared}."
    target = load.host, "concurrency", enough
    return _bottleneck(case, load, "calls-in-turn", why, advice, target=target)


def _enough(case: Case, load: Load, calls: int) -> Diagnosis:
    """Say that more calls than these would find no core, or need no process."""
    if not _needs_no_process(case, load):
        advice = f"{_CHEAPER}: {calls} calls at once are enough for {case.cores} cores."
        return _bottleneck(case, load, "enough-calls", "", advice)
    if load.stage.op == "batch":
        where = "Write collate=list, and collate in a map stage after it, in threads"
    else:
        where = f"Run it in threads: {in_threads(case)}"
    why = f"{calls} processes on {case.cores} cores"
    advice = f"{where}. Many more calls can wait there."
    return _bottleneck(case, load, "many-processes", why, advice)


def _needs_no_process(case: Case, load: Load) -> bool:
    """Return whether calls in processes wait so long that twice as many would leave cores idle."""
    own = case.stages[load.host].executor == "process" and load.share_of_call is not None
    return own and 2 * MOST_PROCESSES * (load.share_of_call or 0.0) < 1


def _useful_concurrency(case: Case, load: Load) -> int:
    """Return how many calls at once the cores can serve: many, where calls mostly wait."""
    if case.stages[load.host].executor not in ("thread", "process"):
        return sys.maxsize  # one event loop, or the machines of others
    process = case.stages[load.host].executor == "process"
    most = MOST_PROCESSES * case.cores if process else sys.maxsize
    if load.share_of_call is None:
        return case.cores if _computing(case, load) else most
    return min(most, max(case.cores, int(case.cores / max(load.share_of_call, 1e-3))))


def _wanted_concurrency(case: Case, load: Load, knob: Knob) -> int:
    """Return the concurrency that would bring a stage level with what limits next.

    One more at least, twice as much at most.
    """
    others = [other.share for other in case.loads if other is not load]
    next_load = max([1.0 - case.starved, *others, 0.01])
    value = math.ceil(knob.value * load.share / next_load - 0.01)
    return min(max(value, knob.value + 1), 2 * knob.value, knob.maximum)


def _computing(case: Case, load: Load) -> bool | None:
    """Return whether the calls of a stage compute, or wait; None where both may be.

    Where it was not measured, the processor time is known of the whole process alone: calls surely
    compute where nothing else can be using it, and evidently wait where they are many more than the
    cores at work.
    """
    cpu, own = case.status.cpu_cores, case.own_cores(load)
    if load.stage.executor == "coroutine":
        return False
    if load.share_of_call is not None:
        return load.share_of_call >= _COMPUTES
    if load.stage.executor_spec is not None or cpu is None or own is None:
        return None
    if own >= _COMPUTES * min(load.slots, case.cores):
        return True
    return False if load.slots >= _WAITS * cpu else None
