"""ChildReport: what a process tells of its pipeline, and how the run's history is put together."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from time import perf_counter_ns

from ...engine.failures import Failure
from ...engine.scheduler import Scheduler, stats
from ...engine.stats import Row, StageStats
from ...ops.stage import Chain, addresses

_NEAR_S = 2.0  # the loop's row of another time says nothing [s]


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers of a stage, as its `Caller` knows them."""

    count: int = 0
    pids: tuple[int, ...] = ()
    link: str | None = None
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ChildReport:
    """A pipeline at one moment.

    Attributes:
        stats: of its stages, by address.
        failures: the last failed items; None where they are those of the report before.
        cpu_cores: processor time of the process over the last seconds [cores].
        held_bytes: bytes in all buffers, where there is a budget for them [bytes].
        workers: of the stages that have some, by address.
    """

    stats: dict[str, StageStats]
    failures: tuple[Failure, ...] | None
    cpu_cores: float | None
    held_bytes: int | None
    workers: dict[str, Workers]

    def following(self, before: ChildReport) -> ChildReport:
        """Return the report with what it left out."""
        if self.failures is not None:
            return self
        return dataclasses.replace(self, failures=before.failures)


def seen_s(failures: tuple[Failure, ...] | None) -> float | None:
    """Tell which failures are known, so that they need not be sent again."""
    return failures[-1].when_s if failures else None


def report_before(chain: Chain, *, seed: int, memory_bytes: int | None) -> ChildReport:
    """Return the report of a pipeline that has done nothing yet.

    Raises:
        CacheError: a cache folder was written by another chain.
    """
    scheduler = Scheduler(chain, seed=seed, memory_bytes=memory_bytes)
    rows = stats(scheduler, perf_counter_ns())
    served = [name for name in addresses(chain) if scheduler.regions.caller(name) is not None]
    scheduler.close(0)
    return ChildReport(rows, (), None, None, dict.fromkeys(served, Workers()))


# -- history ------------------------------------------------------------------------------
def shifted(rows: Sequence[Row], ours: Sequence[Row]) -> list[Row]:
    """Return rows with times since the beginning of this run, not of that in the child."""
    if not rows or not ours:
        return list(rows)
    shift_s = _zero_s(rows[0]) - _zero_s(ours[0])
    return [{**row, "time_s": float(row["time_s"]) + shift_s} for row in rows]


def _zero_s(row: Row) -> float:
    return float(row["when_s"]) - float(row["time_s"])


def merged(rows: Sequence[Row], ours: Sequence[Row]) -> list[Row]:
    """Add to the rows of each time those of ours that are nearest."""
    ticks = [list(tick) for _, tick in groupby(ours, key=lambda row: float(row["time_s"]))]
    times = [float(tick[0]["time_s"]) for tick in ticks]
    found: list[Row] = []
    for time_s, tick in groupby(rows, key=lambda row: float(row["time_s"])):
        found += tick
        places = range(*_around(bisect_left(times, time_s), len(times)))
        near = min(places, key=lambda place: abs(times[place] - time_s), default=None)
        if near is not None and abs(times[near] - time_s) < _NEAR_S:
            found += [{**row, "time_s": time_s} for row in ticks[near]]
    return found


def _around(place: int, count: int) -> tuple[int, int]:
    return max(0, place - 1), min(count, place + 1)
