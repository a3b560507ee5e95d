"""Calls that are on the way to a worker and back for most of the time, and what shortens it."""

from __future__ import annotations

from collections.abc import Sequence

from ...ops.stage import regions_of
from .case import Case, item_bytes
from .diagnosis import Cause, short_name
from .load import MOST, SLOW_S, Load

FAR = 0.1  # a way that takes less of the time is not worth a word
_SHORT_S = 0.0001  # calls so short are not worth a way to a worker [s]
_LARGE_BYTES = 1 << 18  # results so large take their time on the way [bytes]
_ITEMS = "sending items to the workers takes longer than the work itself"
_RESULTS = "sending its large results takes longer than the work itself"


def sending(case: Case, load: Load) -> tuple[Cause, str, str] | None:
    """Return why calls are on the way for most of the time, and what helps; or None."""
    own = case.stages[load.host].executor == "process"
    if load.p50_s < _SHORT_S and own:
        return "sending", _ITEMS, f"Run it in threads: {in_threads(case)}."
    threads = case.rows[load.host].worker_threads
    if not own and load.p50_s > SLOW_S and _at_work(load) >= MOST * threads:
        return "cluster", "its calls wait for a free worker", "Give the cluster more workers."
    group = _sharing(case, load.host)
    if own and item_bytes(case.rows[group[-1]]) > _LARGE_BYTES:
        return "sending", _RESULTS, _for_large(case, load, group)
    if load.p50_s <= SLOW_S or not own:
        more = "a batch instead of a sample" if case.is_run else "a larger batch_size"
        return "sending", _ITEMS, f"Give each call more work: {more}."
    return None


def in_threads(case: Case) -> str:
    """Return what runs calls in threads."""
    return "leave out executor=" if case.is_run else 'workers="thread"'


def finds_workers(case: Case, load: Load) -> bool:
    """Return whether calls on the way to a cluster are so few that workers of it wait for them."""
    threads = case.rows[load.host].worker_threads
    far = case.stages[load.host].executor != "process" and load.p50_s > SLOW_S
    return far and load.slots <= 1.5 * threads and _at_work(load) < MOST * threads


def _at_work(load: Load) -> float:
    """Return how many of its calls are not on the way."""
    return load.slots * (1.0 - load.away / load.share)


def _sharing(case: Case, host: str) -> list[str]:
    """Return the stages that share their workers with a stage, from that on."""
    names = iter(case.stages)
    groups = ([next(names) for _ in one] for one in regions_of(tuple(case.stages.values())))
    return next(one for one in groups if host in one)


def _for_large(case: Case, load: Load, group: Sequence[str]) -> str:
    """Return what helps where results are large: to copy them once less, if that is possible."""
    specs = [case.stages[name].executor_spec for name in group]
    calls = [name for name in group if case.stages[name].spec.runs == "call"]
    copied = all(place is None or place.copy for place in specs)
    if not case.is_run or not calls or not copied:
        return f"Give smaller results, or run it in threads: {in_threads(case)}."
    where = "" if load.address in calls else f" in {short_name(calls[-1])}"
    return f"Leave its results in shared memory: copy=False{where}."
