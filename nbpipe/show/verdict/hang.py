"""Hang: the call that has been in progress for far longer than calls of its stage take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ...base.format import format_seconds, shortened
from ...engine.measures.stats import StageStats, Status
from ...executors.stack import Place
from ...ops.stage import Stage, regions_of
from .diagnosis import HANGS, Diagnosis

LEAST_S = 5.0  # no call hangs before,
TIMES = 20.0  # nor while it takes less than so many times the 99th percentile
_LEAST_LIMIT_S = 30.0  # no shorter time limit is advised [s]
_LIMITS_S = (30, 60, 120, 300, 600, 1800, 3600)  # time limits as people write them [s]
_NAME = 60


class Hang(NamedTuple):
    """The call that has been in progress for the longest time of those that hang.

    Attributes:
        stages: addresses of the stages that it goes through: one, or all of those that share
            their workers.
        age_s: time since it began [s].
        item: the item that it works on, or "first to last"; empty where that is not known.
        runs: it is still in progress; False once its worker was ended with the epoch.
        usual_s: 99th percentile of the calls that have ended; 0 where none has [s].
    """

    stages: tuple[str, ...]
    age_s: float
    item: str
    runs: bool = True
    usual_s: float = 0.0

    def __str__(self) -> str:
        """Return it in one sentence, without the period."""
        name = shortened(" > ".join(self.stages), _NAME)
        age = format_seconds(int(self.age_s))
        hangs = "hangs: one call has been running for" if self.runs else "hung: one call ran for"
        where = f", on item{'s' * (' to ' in self.item)} {self.item}" if self.item else ""
        return f"{name} {hangs} {age}{where}"

    def diagnosis(
        self, stages: Mapping[str, Stage], status: Status, place: Place | None
    ) -> Diagnosis:
        """Return it with what to do, and with how the epoch ended if it is over.

        Args:
            stages: by address.
            status: of the run.
            place: the line of user code that the call is in, if it is known.
        """
        found = Diagnosis(
            stage=self.stages[0],
            cause="hangs",
            text=f"{self}.",
            evidence="" if place is None else str(place),
            advice=_way_out(stages[self.stages[-1]], status, _limit_for(self.usual_s)),
            kind=HANGS,
        )
        return found.after(status.state) if status.is_over else found


def hang_of(stages: Mapping[str, Stage], stats: Mapping[str, StageStats]) -> Hang | None:
    """Find the call that hangs, or that has hung for the longest time; None without one.

    While workers start, or a cluster has none, calls wait for those, and none is reported as hung.
    """
    found: Hang | None = None
    addresses = iter(stages)
    for region in regions_of(tuple(stages.values())):
        shared = tuple(next(addresses) for _ in region)
        rows = [stats[name] for name in shared if name in stats]
        idle = region[0].executor == "dask" and not any(row.workers for row in rows)
        if not rows or idle or any(row.starting for row in rows):
            continue
        last = rows[-1]
        usual_s = sum(row.latency_p99_s for row in rows)
        if not last.oldest_s or last.oldest_s < max(LEAST_S, TIMES * usual_s):
            continue
        if found is None or last.oldest_s > found.age_s:
            found = Hang(shared, last.oldest_s, last.oldest_item, last.running > 0, usual_s)
    return found


def _limit_for(usual_s: float) -> int:
    """Return a time limit that only calls that hang reach [s]."""
    least_s = max(_LEAST_LIMIT_S, TIMES * usual_s)
    return next((limit for limit in _LIMITS_S if limit >= least_s), math.ceil(least_s))


def _way_out(stage: Stage, status: Status, limit_s: int) -> str:
    """Return what ends a call that hangs."""
    if status.called != "run":
        return _way_out_of_a_loader(stage, status, limit_s)
    limit = getattr(stage.spec, "timeout_s", None)
    if limit is not None:
        return f"Set a timeout_s below {limit:g} to end such calls sooner."
    bounded = stage.spec.runs == "call" and not stage.spec.expands
    if not bounded or stage.executor == "device":
        return "Set a time limit on what it waits for, for example on the connection."
    if stage.executor in ("thread", "inline"):
        return (
            f'Write executor="process", timeout_s={limit_s} to end such calls: a thread cannot be '
            "stopped, a process can."
        )
    return f"Write timeout_s={limit_s} to end such calls."


def _way_out_of_a_loader(stage: Stage, status: Status, limit_s: int) -> str:
    if status.by_loop:
        return (
            f'Write num_workers=2, workers="process", timeout={limit_s} to get an error instead: '
            "your own thread makes the batches, and cannot be stopped."
        )
    process = "" if stage.executor == "process" else 'workers="process", '
    return f"Write {process}timeout={limit_s} to get an error instead."
