"""Calls that take turns: at the interpreter lock, or on the one thread of the event loop."""

from __future__ import annotations

from .case import Case, is_crowded
from .diagnosis import PRICE, Cause, Diagnosis
from .load import HELD_UP, SLOW_S, Load

_CROWDED_CORE = 0.3  # of one, on a machine that others use, threads get so much [cores]
_ONE_CORE = (0.8, 1.25)  # what threads use that take turns at the interpreter lock [cores]
_TURNS = 1.5  # slots that are busy where threads take turns: at least so many
_OWN_CORES = 0.5  # what only this stage can be using, to be sure that it computes [cores]
_ON_LOOP = "its calls compute on the one thread of the event loop"
_OFF_LOOP = "Compute in a map stage after it, with an ordinary function: that runs in threads."


def is_held(case: Case, load: Load) -> bool:
    """Return whether calls of a stage take turns on one core that nothing else explains.

    Where others use the machine, threads that take turns get less than a core: then it must have
    been measured that they wait for the lock.
    """
    executor = case.stages[load.host].executor
    cpu, own = case.status.cpu_cores, case.own_cores(load)
    if not case.locked or executor not in ("thread", "coroutine"):
        return False
    if case.cores == 1 or load.slots < _TURNS or cpu is None or own is None:
        return False
    if load.lock_share is None:
        return _in_one_core(cpu, _ONE_CORE[0]) and own >= _OWN_CORES
    return load.takes_turns and cpu >= _least(case) and own >= _OWN_CORES * min(1.0, cpu)


def turns(case: Case, load: Load) -> tuple[Cause, str, str]:
    """Return why calls of a stage take turns, and what helps."""
    if case.stages[load.host].executor == "coroutine":
        return "event-loop", _ON_LOOP, _OFF_LOOP
    where = 'executor="process"' if case.is_run else 'workers="process"'
    several = load.takes_turns and (case.status.cpu_cores or 0.0) > _ONE_CORE[1]
    if several:
        why = "its threads wait for the interpreter lock"
    else:
        why = "its threads share one core because of the interpreter lock"
    return "lock", why, f"Run it in worker processes: {where}. {PRICE}"


def event_loop(case: Case) -> Diagnosis | None:
    """Find calls that wait for the event loop, because others compute on it."""
    if not _in_one_core(case.status.cpu_cores, _least(case)):
        return None
    for load in case.loads:
        remote = case.stages[load.host].executor == "coroutine"
        if remote and load.p50_s > SLOW_S and case.waiting(load) >= 2 * HELD_UP:
            return Diagnosis(
                stage=load.host,
                cause="event-loop",
                text=case.bottleneck(load.host),
                evidence=_ON_LOOP,
                advice=_OFF_LOOP,
            )
    return None


def _least(case: Case) -> float:
    """Return the least of a core that calls use which take turns [cores]."""
    return _CROWDED_CORE if is_crowded(case.status, case.cores) else _ONE_CORE[0]


def _in_one_core(cpu_cores: float | None, least: float) -> bool:
    return cpu_cores is not None and least <= cpu_cores <= _ONE_CORE[1]
