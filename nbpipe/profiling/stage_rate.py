"""StageRate: how fast one stage is alone, with some number of calls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from ..base.format import format_rate, format_share, shortened

LONGEST_NAME = 60


@final
@dataclass(frozen=True, slots=True)
class StageRate:
    """How fast one stage is alone, with some number of calls.

    Attributes:
        stage: its address.
        beside: addresses of the stages that share its calls, and were measured with it.
        calls: calls at once; None without such a knob.
        now: this is the present value.
        per_s: what it hands on [items/s or batches/s]; 0 if it was not measured.
        unit: "items" or "batches".
        feeds_per_s: what the training loop could get from it; infinity if it needs nothing.
        spread: half the range of the rounds, as a share of `per_s`.
        is_noisy: the rounds differ by 15% or more.
        slot_s: time in calls for each item of the loop [s]; 0 if it is not known.
        cpu_s: time on a core for each item of the loop [s]; 0 if it is not known.
        note: what else there is to know.
    """

    stage: str
    beside: tuple[str, ...] = ()
    calls: int | None = None
    now: bool = False
    per_s: float = 0.0
    unit: str = "items"
    feeds_per_s: float = math.inf
    spread: float = 0.0
    is_noisy: bool = False
    slot_s: float = 0.0
    cpu_s: float = 0.0
    note: str = ""

    def row(self, loop_unit: str) -> list[str]:
        """Return the cells of a table."""
        name = shortened(" + ".join((self.stage, *self.beside)), LONGEST_NAME)
        calls = "" if self.calls is None else f"{'→ ' if self.now else ''}{self.calls}"
        if not self.per_s:
            return [name, calls, "", "", self.note]
        feeds = format_rate(self.feeds_per_s, loop_unit) if self.feeds_per_s < math.inf else ""
        notes = [*noise(self.spread, noisy=self.is_noisy), *([self.note] if self.note else [])]
        return [name, calls, format_rate(self.per_s, self.unit), feeds, "; ".join(notes)]


def noise(spread: float, *, noisy: bool) -> list[str]:
    """Say that rounds differ, if they do."""
    return [f"noisy: ±{format_share(spread)}"] if noisy else []
