"""Memory: what a raise would need, and what is taken back when the ceiling is near."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ..base.format import format_bytes
from ..base.knobs import Knob
from ..engine.measures.stats import StageStats
from .board import Board
from .point import Observation, Point

GUARD = 0.95  # of the ceiling: nothing is raised beyond, and above it something is taken back
FREE = 0.75  # of the ceiling: below it, what memory allowed is forgotten
_RELEASE = 0.85  # above it, freed memory is returned to the system
_RELEASE_S = 1.0
_KEPT = 1.2  # what the allocator keeps of what was alive,
_KEPT_LARGE = 2.0  # and of large results in many threads
_CUT_S, _CUT_STEPS = 0.5, 3  # a cut shows after so long
_SHOWS = 0.98  # of the memory before a cut: less was freed
_VAIN, _VAIN_S = 2, 30.0
_WORTH, _CUT_BUDGET = 0.05, 0.75  # of the ceiling: what buffers hold is worth a cut; to so much
_WAITS = 0.2  # of the time of its slots, calls of a stage wait for room in the budget
_MORE = 1.1  # of the budget: a raise that is worth it
_GREW = 1.5  # times as large as before: results have grown
_SMALL = 0.01  # of the ceiling: a buffer that is not worth a cut


@final
class MemoryGuard:
    """Keeps the resident memory of a process tree below a ceiling.

    Args:
        board: the knobs.
        ceiling_bytes: the ceiling; None without one [bytes].
        release: returns freed memory to the system.

    Attributes:
        ceiling_bytes: the ceiling; None without one [bytes].
        others_bytes: gives what other runs of the process may still take [bytes].
    """

    def __init__(
        self, board: Board, ceiling_bytes: int | None, release: Callable[[], object]
    ) -> None:
        self._board = board
        self.ceiling_bytes = ceiling_bytes
        self._release = release
        self._released_s = self._cut_s = self._blind_s = float("-inf")
        self._before = 0  # resident before the last cut [bytes]
        # While memory was far from its ceiling: the sizes of results, and what others had [bytes].
        self._sizes: dict[str, float] = {}
        self._rest = 0.0
        self._vain = 0
        self._now: Observation | None = None
        self.others_bytes: Callable[[], float] = lambda: 0.0

    @property
    def is_foreign(self) -> bool:
        """Whether the memory belongs to something that no knob changes."""
        return self._now is not None and self._now.time_s < self._blind_s

    def look(self, one: Observation, step_s: float) -> bool:
        """Take something back if the ceiling is near; return whether a knob was turned."""
        self._now, ceiling, resident = one, self.ceiling_bytes, one.resident_bytes
        if ceiling is None or resident is None or resident <= _RELEASE * ceiling:
            self._sizes = {name: size_of(one, name) for name in self._board.stages}
            held = sum(
                (one.stats[n].queued + one.stats[n].running) * s for n, s in self._sizes.items()
            )
            self._rest = max(0.0, (resident or 0) - _KEPT * held)
            return False
        if one.time_s - self._released_s > _RELEASE_S:
            self._released_s = one.time_s
            self._release()
            return False  # the next observation shows it
        wait_s = max(_CUT_S, min(3.0, _CUT_STEPS * step_s))
        if resident <= GUARD * ceiling or one.time_s < self._cut_s + wait_s or self.is_foreign:
            return False
        freed = resident <= _SHOWS * self._before or self._is_of_grown_items(one)
        self._vain = 0 if freed or not self._before else self._vain + 1
        if self._vain >= _VAIN:
            self._vain, self._before, self._blind_s = 0, 0, one.time_s + _VAIN_S
            return False
        self._before, self._cut_s = resident, one.time_s
        cuts = self._cut_budget(one) or self._cut(one, "prefetch")
        return cuts or self._cut(one, "concurrency")

    def _is_of_grown_items(self, one: Observation) -> bool:
        """Return whether results have grown, and as many as the knobs allow explain the memory.

        What a cut frees does not show while they grow, or while the allocator keeps it.
        """
        if not any(size_of(one, name) > _GREW * size for name, size in self._sizes.items()):
            return False
        results = sum(size_of(one, name) * self._most_results(name) for name in self._sizes)
        return self._rest + _KEPT_LARGE * results > GUARD * (self.ceiling_bytes or 0)

    def _most_results(self, stage: str) -> int:
        board, knobs = self._board, self._board.stages[stage].knobs
        return sum(
            board.value(stage, name) for name in ("prefetch", "concurrency") if name in knobs
        )

    def why(self) -> str:
        """Return the reason of a cut."""
        resident = self._now.resident_bytes if self._now is not None else None
        return f"memory: {format_bytes(resident or 0)} of {format_bytes(self.ceiling_bytes or 0)}"

    def _cut_budget(self, one: Observation) -> bool:
        """Lower the budget for all buffers, where they hold something."""
        budget, held = self._board.budget, one.held_bytes or 0
        if budget is None or held < _WORTH * (self.ceiling_bytes or 0):
            return False
        value = int(_CUT_BUDGET * min(budget.value, held))
        return value < budget.value and self._board.set(budget, value, self.why())

    def widen(self, point: Point) -> bool:
        """Raise the budget for all buffers, where calls wait for room in it and there is memory."""
        budget, one, ceiling = self._board.budget, self._now, self.ceiling_bytes
        if budget is None or one is None or not ceiling or one.resident_bytes is None:
            return False
        if point.waiting < _WAITS or self.is_foreign:
            return False
        room = (GUARD * ceiling - one.resident_bytes - self.others_bytes()) / _KEPT
        value = int(min(budget.maximum, 2 * budget.value, budget.value + room))
        if value < _MORE * budget.value:
            return False
        why = f"calls wait for room {point.waiting:.0%}, and the loop waits {point.wait:.0%}"
        return self._board.set(budget, value, why)

    def _cut(self, one: Observation, name: str) -> bool:
        """Lower the knob whose results take most memory; buffers by half, calls by a quarter."""
        board, ceiling = self._board, self.ceiling_bytes or 0
        held: dict[Knob, tuple[float, str]] = {}
        for stage in one.stats:
            knob = board.knob(stage, name) if stage in board.stages else None
            if knob is not None:
                least = board.first.get(knob, knob.value) if name == "concurrency" else 1
                most = max(held.get(knob, (0.0, ""))[0], (knob.value - least) * size_of(one, stage))
                held[knob] = most, stage
        knob = max(held, key=lambda one: held[one][0], default=None)
        if knob is None or held[knob][0] < _SMALL * ceiling:
            return False
        least = board.first.get(knob, knob.value) if name == "concurrency" else 1
        value = max(least, int(knob.value * (0.5 if name == "prefetch" else 0.75)))
        board.caps[knob] = value
        return board.set(knob, value, self.why())

    def fitting(self, stage: str, name: str, value: int) -> int:
        """Return the value that fits under the ceiling; buffers are halved to make room."""
        knob, one = self._board.knob(stage, name), self._now
        if knob is None or value <= knob.value or self.ceiling_bytes is None:
            return value
        if one is None or one.resident_bytes is None or self.is_foreign:
            return knob.value
        while value > knob.value:
            needed = self._full_bytes(one) + _KEPT * (value - knob.value) * size_of(one, stage)
            needed += (value - knob.value) * _worker_bytes(one.stats[stage])
            if needed <= GUARD * self.ceiling_bytes:
                return value
            if name != "concurrency" or not self._cut(one, "prefetch"):
                value = (value + knob.value) // 2
        return value

    def _full_bytes(self, one: Observation) -> float:
        """Return what would be resident with every buffer full and every call with a result."""
        return (one.resident_bytes or 0) + self.missing_bytes + self.others_bytes()

    @property
    def missing_bytes(self) -> float:
        """What buffers that become full, and calls that are still idle, would add [bytes]."""
        one, missing, results = self._now, 0.0, 0.0
        if one is None:
            return 0.0
        for name, stage in self._board.stages.items():
            row, prefetch = one.stats[name], self._board.value(name, "prefetch")
            free = max(0, prefetch - row.queued) if "prefetch" in stage.knobs else 0
            idle = max(0, self._board.value(name) - row.running)
            missing += free * size_of(one, name)
            results += idle * ("concurrency" in stage.knobs) * size_of(one, name)
        limit = self._board.limit_bytes
        if limit is not None and one.held_bytes is not None:
            missing = min(missing, max(0, limit - one.held_bytes))
        return _KEPT * (missing + results)


def size_of(one: Observation, stage: str) -> float:
    """Return the size of a result of a stage [bytes]."""
    return float(one.stats[stage].item_bytes)


def _worker_bytes(row: StageStats) -> float:
    return row.memory_bytes / row.workers if row.workers else 0.0
