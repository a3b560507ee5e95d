"""Goals: what nbpipe wants to reach, as questions that the raw numbers answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .results import BARE, OURS, Results

Measure = Callable[[Results], float | None]
STAGES = 3


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal: a number that must reach a bound.

    Attributes:
        workload: key of the workload.
        text: the goal in words.
        measure: finds the number in the results.
        at_least: smallest number that meets it, or None.
        at_most: largest number that meets it, or None.
        against: the peer it is measured against; such a goal counts as met when the
            workload's share of bare is, as nobody can do better than that.
    """

    workload: str
    text: str
    measure: Measure
    at_least: float | None = None
    at_most: float | None = None
    against: str = ""

    def is_met(self, results: Results) -> bool | None:
        """Tell whether the number reaches the bound; None where there is no number."""
        number = self.measure(results)
        if number is None:
            return None
        high_enough = self.at_least is None or number >= self.at_least
        return high_enough and (self.at_most is None or number <= self.at_most)


def verdict(goal: Goal, results: Results) -> str:
    """Say "met", "missed", or "not measured"; "met by share of bare" where that decides."""
    met = goal.is_met(results)
    if met is None:
        return "not measured"
    if met:
        return "met"
    if goal.against and _share_is_met(goal.workload, results):
        return "met by share of bare"
    return "missed"


def _share_is_met(workload: str, results: Results) -> bool:
    shares = [goal for goal in GOALS if goal.workload == workload and goal.text in _SHARE_TEXTS]
    return any(goal.is_met(results) for goal in shares)


def _times(workload: str, peer: str, bound: float, who: str = OURS) -> Goal:
    measure = partial(_rate_ratio, workload, peer, who=who)
    text = f"at least {bound:g} x {peer}"
    text = text if who == OURS else f"{who.removeprefix(OURS).strip()}: {text}"
    return Goal(workload, text, measure, at_least=bound, against=peer)


def _share(workload: str, bound: float) -> Goal:
    return Goal(
        workload, f"at least {bound:.0%} of bare", partial(_rate_ratio, workload, BARE), bound
    )


def _value(workload: str, text: str, value: str, bound: float) -> Goal:
    return Goal(workload, text, partial(_median, workload, value), at_most=bound)


def _rate_ratio(workload: str, peer: str, results: Results, who: str = OURS) -> float | None:
    return results.ratio(workload, who, peer, "items_per_s")


def _median(workload: str, value: str, results: Results) -> float | None:
    return results.median(workload, OURS, value)


def _us_per_stage(results: Results) -> float | None:
    us_per_item = results.median("W1", OURS, "us_per_item")
    return None if us_per_item is None else us_per_item / STAGES


def _cpu_of_torchdata(results: Results) -> float | None:
    return results.ratio("W2", OURS, "torchdata", "cpu_us_per_item")


def _cpu_above_bare(results: Results) -> float | None:
    ours = results.median("W5", OURS, "cpu_us_per_item")
    bare = results.median("W5", BARE, "cpu_us_per_item")
    return None if ours is None or bare is None else ours - bare


GOALS = (
    _times("W1", "spdl", 100),
    _times("W1", "grain", 10),
    _times("W1", "torchdata", 2),
    Goal("W1", "at most 1 us per item and stage", _us_per_stage, at_most=1.0),
    _share("W2", 0.97),
    _times("W2", "spdl", 2.5),
    Goal("W2", "CPU per item at most 0.5 x torchdata's", _cpu_of_torchdata, at_most=0.5),
    _share("W2b", 0.80),
    _times("W2b", "spdl", 3),
    _share("W2i", 0.92),
    _share("W3", 0.95),
    _times("W3", "spdl", 1.6),
    _times("W3", "grain", 1),
    _times("W3", "torchdata", 1),
    _share("W4", 0.90),
    _times("W4", "spdl", 2),
    _times("W4", "grain", 1.4),
    _share("W5", 0.95),
    _times("W5", "spdl", 3),
    Goal("W5", "at most 10 us of CPU an item above bare", _cpu_above_bare, at_most=10.0),
    _times("W6", "spdl pool", 0.85),
    _times("W6", "spdl pool", 0.95, who="nbpipe views"),
    _times("W6", "DataLoader", 5),
    _times("W6s", "spdl ring", 4),
    _value("W7", "first batch at most 0.02 s after the start", "first_s", 0.020),
    _value("W7", "close at most 0.001 s after the running task", "close_beyond_task_s", 0.001),
    _value("W7", "no thread left", "threads_left", 0),
    _value("live", "growth 1 -> 32 under 0.005 s at p95", "grow_p95_s", 0.005),
    _value("live", "no surplus start after a shrink", "surplus_starts", 0),
    _value("live", "nothing lost, doubled or reordered", "disordered", 0),
    _value("metrics", "reading at 4 Hz adds at most 0.01 of the CPU", "added_share", 0.01),
    _value("idle", "paused: under 0.001 of a core", "paused_share", 0.001),
    _value("idle", "blocked: under 0.001 of a core", "blocked_share", 0.001),
    _value("idle4", "paused: under 0.001 of a core", "paused_share", 0.001),
    _value("idle4", "blocked: under 0.001 of a core", "blocked_share", 0.001),
)
_SHARE_TEXTS = frozenset(goal.text for goal in GOALS if goal.text.endswith("of bare"))
