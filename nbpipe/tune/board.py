"""Board: the knobs that a tuner may turn, and how far."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import final

from ..base.knobs import AUTOTUNE, Knob
from ..executors.interface import MOST_PROCESSES
from ..ops.stage import Stage
from .point import Point, Slots, slots_of

MOST = 64  # concurrent calls that are tried without being asked
COMPUTES = 0.4  # of the time of its calls: a stage computes
_MOST_PREFETCH = 1024
_ROUNDING = 0.1  # of a call: so little more than a whole number is none


@final
class Board:
    """The knobs of the stages of one run.

    Args:
        stages: by address.
        cores: cores that the process may use.
        keep: addresses of stages to leave alone.
        most: the most concurrent calls of a stage.
        budget: the knob of the run's budget for all buffers, or None.

    Attributes:
        groups: the stages that share slots.
        turned: called with each knob that was turned, its value before, and the reason.
        caps: the most that memory allows, by knob.
        first: the values before the first turn.
        loop_cpu: share of its own steps in which the loop computes.
    """

    def __init__(
        self,
        stages: Mapping[str, Stage],
        *,
        cores: float,
        keep: Collection[str] = (),
        most: int = MOST,
        budget: Knob | None = None,
    ) -> None:
        self.stages = stages
        self.groups: tuple[Slots, ...] = slots_of(stages)
        self.cores = cores
        self.keep = frozenset(keep)
        self.most = most
        self.turned: Callable[[Knob, int, str], object] = lambda *_: None
        self.caps: dict[Knob, int] = {}
        self.first: dict[Knob, int] = {}
        self.loop_cpu = 0.0
        self._budget = budget
        self._theirs: set[Knob] = set()

    def knob(self, stage: str, name: str = "concurrency") -> Knob | None:
        """Return a knob that may be turned; None where there is none, or a person turned it."""
        knob = self.stages[stage].knobs.get(name) if stage in self.stages else None
        return None if knob is None or stage in self.keep else self._ours(knob)

    @property
    def budget(self) -> Knob | None:
        """The budget for all buffers, if it may be turned."""
        return None if self._budget is None else self._ours(self._budget)

    @property
    def limit_bytes(self) -> int | None:
        """The budget in force; None without one [bytes]."""
        return None if self._budget is None else self._budget.value

    def _ours(self, knob: Knob) -> Knob | None:
        """Return a knob, unless others have turned it."""
        if knob in self._theirs:
            return None
        last = knob.last_change
        if last is not None and last.by != AUTOTUNE:
            self._theirs.add(knob)  # for good
            return None
        return knob

    @property
    def theirs(self) -> list[str]:
        """The names of the knobs that others turned."""
        return sorted(knob.name for knob in tuple(self._theirs))

    @property
    def left_alone(self) -> list[tuple[str, str, int]]:
        """The knobs that others turned: stage, name and value of each."""
        found: dict[Knob, tuple[str, str, int]] = {}
        for address, stage in self.stages.items():
            for name, knob in stage.knobs.items():
                if knob in self._theirs:
                    found.setdefault(knob, (address, name, knob.value))
        return list(found.values())

    def value(self, stage: str, name: str = "concurrency") -> int:
        """Return the value in force; 1 without such a knob."""
        knob = self.stages[stage].knobs.get(name)
        return 1 if knob is None else knob.value

    @property
    def tunable(self) -> list[str]:
        """The stages whose calls may be changed, in order."""
        return [one.address for one in self.groups if self.knob(one.address) is not None]

    @property
    def watched(self) -> list[Knob]:
        """All knobs of the run, those that are left alone included."""
        known = [knob for stage in self.stages.values() for knob in stage.knobs.values()]
        return known if self._budget is None else [*known, self._budget]

    @property
    def knobs(self) -> list[tuple[str, Knob]]:
        """The knobs that may be turned, each with its stage."""
        found = {
            knob: stage
            for name in ("concurrency", "prefetch")
            for stage in self.stages
            if (knob := self.knob(stage, name)) is not None
        }
        return [(stage, knob) for knob, stage in found.items()]

    def most_alone(self, stage: str) -> int:
        """Return the most calls that a stage may get, whatever the others do."""
        knob = self.knob(stage)
        if knob is None:
            return self.value(stage)
        most = min(knob.maximum, self.most, self.caps.get(knob, self.most))
        if self.stages[stage].executor == "process":
            most = min(most, math.ceil(MOST_PROCESSES * self.cores))
        return max(1, most)

    def limit(self, stage: str, point: Point) -> int:
        """Return the most calls that a stage may try: one more than the cores that are left."""
        most = self.most_alone(stage)
        share = point.cores.get(stage, 0.0)
        if share < COMPUTES:
            return most
        others = sum(
            point.cores[name] * min(point.slots_s[name] * point.rate, point.calls[name])
            for name in self._computing(point)
            if name != stage
        )
        left = max(1.0, self.cores_beside_loop(point) - others)
        return max(1, min(most, math.ceil(left / share - _ROUNDING) + 1))

    def cores_beside_loop(self, point: Point) -> float:
        """Return the cores for stages that compute: one less where the loop computes as well."""
        loop = self.loop_cpu * (1.0 - point.wait) >= COMPUTES
        return max(1.0, self.cores - 1.0) if loop else self.cores

    def _computing(self, point: Point) -> list[str]:
        return [name for name, share in point.cores.items() if share >= COMPUTES]

    def within_cores(self, wanted: Mapping[str, int], point: Point) -> dict[str, int]:
        """Return how many calls each stage may get, where those that compute share the cores."""
        found = dict(wanted)
        names = self._computing(point)
        need = sum(point.cores[name] * point.slots_s[name] for name in names)
        if need <= 0:
            return found
        for name in names:
            part = point.cores[name] * point.slots_s[name] / need
            share_of_cores = self.cores_beside_loop(point) * part
            most = max(1, math.ceil(share_of_cores / point.cores[name] - _ROUNDING))
            if name in found:
                found[name] = min(found[name], most)
        return found

    def turn(self, stage: str, name: str, value: int, why: str) -> bool:
        """Turn a knob within its limits; return whether that changed it."""
        knob = self.knob(stage, name)
        if knob is None:
            return False
        most = self.caps.get(knob, _MOST_PREFETCH if name == "prefetch" else knob.maximum)
        value = max(knob.minimum, min(value, knob.maximum, max(most, knob.minimum)))
        return value != knob.value and self.set(knob, value, why)

    def set(self, knob: Knob, value: int, why: str) -> bool:
        """Set a knob to a value that it takes; return True."""
        old = knob.value
        self.first.setdefault(knob, old)
        knob.set(value, by=AUTOTUNE, why=why)
        self.turned(knob, old, why)
        return True

    @property
    def turned_by_it(self) -> dict[Knob, int]:
        """The knobs that still have the tuner's values, and the values before its first turn."""
        return {
            knob: value
            for knob, value in tuple(self.first.items())
            if knob.value != value and knob.last_change and knob.last_change.by == AUTOTUNE
        }

    def undo(self) -> None:
        """Restore the values before the first turn, unless they were changed since."""
        for knob, value in self.turned_by_it.items():
            self.set(knob, value, "undone")
        self.first.clear()
