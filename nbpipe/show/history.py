"""History of a run in columns: rates over time, for lines that are drawn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypedDict

from ..engine.stats import Row
from .snapshot import CHANGES, ChangePart, change_parts, label, rounded
from .watch import Watched

POINTS = 600
_SHORTEST_S = 0.2  # rates over so short a time are those of buffers being filled [s]


class HistoryPart(TypedDict):
    """Rates of each stage, and of the loop as "consumer" [items/s], at `time_s` (Unix) [s]."""

    time_s: list[float]
    stages: dict[str, list[float]]
    changes: list[ChangePart]


def history(watched: Watched, points: int = POINTS) -> HistoryPart:
    """Return the rates of all stages over time.

    Args:
        watched: the run.
        points: most times; of more, some are left out evenly.
    """
    ticks = ticks_of(watched.history())
    chosen = [ticks[place] for place in spread(len(ticks), points)]
    names = {str(row["stage"]): None for tick in chosen for row in tick}
    columns: dict[str, list[float]] = {name: [0.0] * len(chosen) for name in names}
    for place, tick in enumerate(chosen):
        for row in tick:
            columns[str(row["stage"])][place] = rounded(float(row["items_per_s"]))
    zero_s = unix_zero_s(ticks)
    return {
        "time_s": [round(zero_s + time_of(tick), 3) for tick in chosen],
        "stages": {label(name): column for name, column in columns.items()},
        "changes": change_parts(watched.events[-CHANGES:]),
    }


def ticks_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Gather the rows that were taken at the same time, oldest first."""
    ticks: list[list[Row]] = []
    for row in rows:
        if ticks and ticks[-1][0]["time_s"] == row["time_s"]:
            ticks[-1].append(row)
        else:
            ticks.append([row])
    if len(ticks) > 1 and time_of(ticks[0]) < _SHORTEST_S:
        del ticks[0]
    return ticks


def time_of(tick: Sequence[Row]) -> float:
    """Return the time of a tick since the run began [s]."""
    return float(tick[0]["time_s"])


def unix_zero_s(ticks: Sequence[Sequence[Row]]) -> float:
    """Return the Unix time at which the run began [s].

    Rows that hold the time of day, "when_s", say it; else the last row is taken as new.
    """
    if not ticks:
        return time.time()
    last = ticks[-1][0]
    return float(last.get("when_s", time.time())) - float(last["time_s"])


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` places out of `count`, evenly spread, the last one among them."""
    if count <= most:
        return list(range(count))
    return [(number + 1) * count // most - 1 for number in range(most)]
