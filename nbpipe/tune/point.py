"""Points: the measurements of one setting of the knobs, and how they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, final

from ..engine.measures.stats import StageStats
from ..ops.stage import Stage, share_workers

SAME = 0.03  # rates that differ by less are equal
_HELD, _FULL, _SWINGS = 0.1, 0.7, 0.2  # shares: held, busy; waiting and blocked


class Observation(NamedTuple):
    """A run at one moment.

    Attributes:
        time_s: time on a clock that never goes back [s].
        state: state of the run, "running" while an epoch is in progress.
        epoch: number of the epoch.
        stats: by address; the training loop is "consumer".
        resident_bytes: memory of the process and all below it; None if it is not known [bytes].
        left: batches to the end of the epoch; None if it is not known.
        loop_cpu: share of its own steps in which the loop computes.
        held_bytes: what all buffers hold; None without a budget for them [bytes].
    """

    time_s: float
    state: str
    epoch: int
    stats: Mapping[str, StageStats]
    resident_bytes: int | None = None
    left: int | None = None
    loop_cpu: float = 0.0
    held_bytes: int | None = None


class Slots(NamedTuple):
    """Neighbours that share call slots: a stage with the inline stages inside it, or a region.

    Attributes:
        address: the first of them; it has the knob.
        members: addresses of all.
        away: calls are made elsewhere, so that the way there takes slots as well.
    """

    address: str
    members: tuple[str, ...]
    away: bool

    def used_s(self, stats: Mapping[str, StageStats]) -> float:
        """Return the slot-time that calls have taken so far [s]."""
        if self.away:
            row = stats[self.members[-1]]
            return row.slot_s - row.starved_s - row.blocked_s
        return sum(stats[name].busy_s for name in self.members)


def slots_of(stages: Mapping[str, Stage]) -> tuple[Slots, ...]:
    """Return which stages share slots, in the order of the stages."""
    groups: list[list[str]] = []
    for name, stage in stages.items():
        above = stages[groups[-1][-1]] if groups else None
        inline = stage.executor == "inline" and stage.op in ("map", "filter")
        if above is not None and (inline or share_workers(above, stage)):
            groups[-1].append(name)
        else:
            groups.append([name])
    return tuple(Slots(one[0], tuple(one), _is_away(stages[one[0]])) for one in groups)


def _is_away(stage: Stage) -> bool:
    return stage.executor_spec is not None and stage.executor != "device"


@final
class Point(NamedTuple):
    """What one window measured.

    Attributes:
        time_s: when the window ended [s].
        batches: taken in it.
        rate: batches a second.
        error: standard error of the rate.
        wait: share of the time that the loop waited.
        step_s: the loop's own time per batch [s].
        slots_s: by stage, the slot-time of its calls per batch [s].
        busy: by stage, the share of its slots that calls took.
        blocked: by stage, the share of its slots that had no room for a result.
        starved: by stage, the share of its slots that had no input.
        held: by stage, the share of the time in which its slots had no room while the loop waited.
        calls: by stage, the limit in force.
        cores: by stage, the share of its calls' time in which they compute; 0 if not known.
        short: stages whose calls are so short that they run in chunks.
        burst: batches that could be made while a loop that pauses regularly does so once.
        worse: the window was cut off: this setting is surely slower than the floor.
        lasts: share of the rate that would last if no buffer became emptier.
    """

    time_s: float
    batches: float
    rate: float
    error: float
    wait: float
    step_s: float
    slots_s: Mapping[str, float]
    busy: Mapping[str, float]
    blocked: Mapping[str, float]
    starved: Mapping[str, float]
    held: Mapping[str, float]
    calls: Mapping[str, int]
    cores: Mapping[str, float]
    short: frozenset[str] = frozenset()
    burst: float = 0.0
    worse: bool = False
    lasts: float = 1.0

    @property
    def waiting(self) -> float:
        """Share of its slots in which a stage could have made a call and did not, at most."""
        works = [name for name, slots_s in self.slots_s.items() if slots_s > 0]
        shares = (self.busy[name] + self.blocked[name] + self.starved[name] for name in works)
        return 1.0 - min(1.0, *shares, 1.0)

    @property
    def held_back(self) -> list[str]:
        """The stages whose results wait for an earlier one while the loop waits; most first."""
        names, found = list(self.busy), []
        for place, name in enumerate(names):
            below = names[place + 1 :]
            feeds = not below or self.starved[below[0]] > _HELD
            free = all(self.busy[one] <= _FULL for one in below)
            if self.held[name] > _HELD and feeds and free:
                found.append(name)
        return sorted(found, key=lambda one: (-self.held[one], -names.index(one)))

    @property
    def lasting(self) -> Point:
        """The same with the rate that would last if no buffer became emptier."""
        return self._replace(rate=self.rate * self.lasts, lasts=1.0)

    @property
    def swings(self) -> bool:
        """Whether the last buffer is empty and full in turn."""
        return min(self.wait, list(self.blocked.values())[-1]) > _SWINGS

    def averaged(self, other: Point) -> Point:
        """Return the point with the mean rate of two windows of one setting."""
        error = math.hypot(self.error, other.error) / 2
        return self._replace(rate=(self.rate + other.rate) / 2, error=error)

    def differs(self, other: Point) -> bool:
        """Return whether one window each shows which of two settings is faster."""
        doubt = 2.0 * math.hypot(self.error, other.error) / max(self.rate, other.rate)
        return abs(self.rate / other.rate - 1.0) >= max(doubt, SAME) or doubt <= SAME


class Measure(NamedTuple):
    """How to measure.

    Attributes:
        least_s, most_s: how long a window lasts [s].
        batches: and how many batches it has at least.
        within: it ends when the error of the rate is such a share of it.
        floor: it ends early when the rate is surely lower [batches/s].
        step_s: time of the loop's own step, for that comparison [s].
        settles: before it, the knobs that were turned come into force.
    """

    least_s: float = 1.0
    most_s: float = 4.0
    batches: int = 10
    within: float = 0.02
    floor: float = 0.0
    step_s: float = 0.0
    settles: bool = True
