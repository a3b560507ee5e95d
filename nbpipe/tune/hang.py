"""Hang: a call that has been in progress for far longer than calls of its stage take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..metrics import StageStats
from ..region import regions_of
from ..stage import Stage
from ..text import shortened
from ..units import format_seconds

LEAST_S = 5.0  # no call hangs before,
TIMES = 20.0  # nor while it takes less than so many times the 99th percentile
_NAME = 60


class Hang(NamedTuple):
    """The call that has been in progress for the longest time of those that hang.

    Attributes:
        stages: addresses of the stages that it goes through: one, or all of those that share
            their workers.
        age_s: time since it began [s].
        item: the item that it works on, or "first to last"; empty where that is not known.
    """

    stages: tuple[str, ...]
    age_s: float
    item: str

    def __str__(self) -> str:
        """Say it in one sentence."""
        name = shortened(" > ".join(self.stages), _NAME)
        text = f"a call of {name} has been running for {format_seconds(int(self.age_s))}"
        if not self.item:
            return text
        return f"{text}, on item{'s' * (' to ' in self.item)} {self.item}"


def hang_of(stages: Mapping[str, Stage], stats: Mapping[str, StageStats]) -> Hang | None:
    """Find the call that hangs, or that has hung for the longest time; None without one.

    While workers start, or a cluster has none, calls wait for those, and none is said to hang.
    """
    found: Hang | None = None
    addresses = iter(stages)
    for region in regions_of(tuple(stages.values())):
        shared = tuple(next(addresses) for _ in region)
        rows = [stats[name] for name in shared if name in stats]
        nobody = region[0].executor == "dask" and not any(row.workers for row in rows)
        if not rows or nobody or any(row.starting for row in rows):
            continue
        last = rows[-1]
        usual_s = sum(row.latency_p99_s for row in rows)
        if not last.oldest_s or last.oldest_s < max(LEAST_S, TIMES * usual_s):
            continue
        if found is None or last.oldest_s > found.age_s:
            found = Hang(shared, last.oldest_s, last.oldest_item)
    return found
