"""Goals: what nbpipe wants to reach, as questions that the raw numbers answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
        """Return whether the number reaches the bound; None where there is no number."""
        number = self.measure(results)
        if number is None:
            return None
        high_enough = self.at_least is None or number >= self.at_least
        return high_enough and (self.at_most is None or number <= self.at_most)

    def verdict(self, results: Results) -> str:
        """Return "met", "missed", "not measured", or "met by share of bare"."""
        met = self.is_met(results)
        if met is None:
            return "not measured"
        shares = [goal for goal in GOALS if (goal.workload, goal.against) == (self.workload, BARE)]
        if not met and self.against and any(goal.is_met(results) for goal in shares):
            return "met by share of bare"
        return "met" if met else "missed"


def _times(workload: str, peer: str, bound: float, who: str = OURS) -> Goal:
    text = f"at least {bound:.0%} of bare" if peer == BARE else f"at least {bound:g} x {peer}"
    text = text if who == OURS else f"{who.removeprefix(OURS).strip()}: {text}"
    return Goal(workload, text, lambda found: found.ratio(workload, who, peer), bound, None, peer)


def _most(workload: str, text: str, value: str, bound: float, scale: float = 1.0) -> Goal:
    def measure(results: Results) -> float | None:
        found = results.median(workload, OURS, value)
        return None if found is None else found * scale

    return Goal(workload, text, measure, at_most=bound)


def _cpu_above_bare(results: Results) -> float | None:
    ours, bare = (results.median("W5", who, "cpu_us_per_item") for who in (OURS, BARE))
    return None if ours is None or bare is None else ours - bare


GOALS = (
    _times("W1", "spdl", 100),
    _times("W1", "grain", 10),
    _times("W1", "torchdata", 2),
    _most("W1", "at most 0.33 µs per item and stage", "us_per_item", 0.33, 1 / STAGES),
    _times("W2", BARE, 0.90),
    _times("W2", "spdl", 2.5),
    _times("W2b", BARE, 0.80),
    _times("W2b", "spdl", 3),
    _times("W2i", BARE, 0.92),
    _times("W3", BARE, 0.95),
    _times("W3", "spdl", 1.6),
    _times("W3", "grain", 1),
    _times("W3", "torchdata", 1),
    _times("W4", BARE, 0.90),
    _times("W4", "spdl", 2),
    _times("W4", "grain", 1.4),
    _times("W5", BARE, 0.95),
    _times("W5", "spdl", 3),
    Goal("W5", "at most 10 µs of CPU an item above bare", _cpu_above_bare, at_most=10.0),
    _times("W6", "spdl pool", 0.9),
    _times("W6", "spdl pool", 1.2, who="nbpipe views"),
    _times("W6", "DataLoader", 5),
    _times("W6s", "spdl ring", 3),
    _times("W6s", "spdl ring", 4, who="nbpipe views"),
    _most("W7", "first batch at most 0.02 s after the start", "first_s", 0.020),
    _most("W7", "close at most 0.001 s after the running task", "close_beyond_task_s", 0.001),
    _most("W7", "no thread left", "threads_left", 0),
    _most("live", "growth 1 -> 32 under 0.005 s at p95", "grow_p95_s", 0.005),
    _most("live", "no surplus start after a shrink", "surplus_starts", 0),
    _most("live", "nothing lost, doubled or reordered", "disordered", 0),
    _most("metrics", "reading at 4 Hz adds at most 0.01 of the CPU", "added_share", 0.01),
    *(
        _most(workload, f"{state}: under 0.001 of a core", f"{state}_share", 0.001)
        for workload in ("idle", "idle4")
        for state in ("paused", "blocked")
    ),
)
