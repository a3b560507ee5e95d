"""Rank: of the ranks that take their steps together, the one that the others wait for."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import NamedTuple

from ...base.format import format_share
from ...engine.measures.stats import RankPace, Status
from .diagnosis import LIMITS, Diagnosis

_LEAST = 0.05  # a rank that waits less gains nothing
_TIMES = 3.0  # so many times as long as the others wait
_TOGETHER = 1.1  # rates that differ by less are those of steps that all ranks take together


class _Straggler(NamedTuple):
    """The rank that sets the pace.

    Attributes:
        pace: how its loop goes.
        others: median share of the time that the others wait.
    """

    pace: RankPace
    others: float


def rank(status: Status, starved: float) -> Diagnosis | None:
    """Find that another rank sets the pace: this one waits for it inside its training step.

    Args:
        status: of the run.
        starved: share of the time that the loop of this rank waits for data.
    """
    found = _straggler(status)
    if found is None or found.pace.rank == status.rank or found.pace.waits < _TIMES * starved:
        return None
    slow, waits = found.pace, "waited" if status.is_over else "waits"
    share, others = format_share(slow.waits), format_share(found.others)
    return Diagnosis(
        cause="rank",
        text=f"{_sets_the_pace(status, slow)}: it {waits} {share}, the others {others}.",
        evidence="the ranks take their steps together",
        advice=f"Look at {status.called}.diagnose() of rank {slow.rank}.",
    )


def with_rank(status: Status, found: Diagnosis) -> Diagnosis:
    """Add to what limits this rank that it sets the pace of the others."""
    slow = _straggler(status)
    if slow is None or slow.pace.rank != status.rank or found.kind != LIMITS:
        return found
    wait = "waited" if status.is_over else "wait"
    pace = _sets_the_pace(status, slow.pace)
    more = f"{pace[0].lower()}{pace[1:]}, the others {wait} {format_share(slow.others)}"
    return replace(found, evidence=", ".join(filter(None, [found.evidence, more])))


def _sets_the_pace(status: Status, slow: RankPace) -> str:
    return f"Rank {slow.rank} of {status.world_size} set{'' if status.is_over else 's'} the pace"


def _straggler(status: Status) -> _Straggler | None:
    """Return the rank that waits for its data while the others do not."""
    paces = status.ranks
    rates = [one.batches_per_s for one in paces]
    if len(paces) < 2 or max(rates) > _TOGETHER * min(rates):  # noqa: PLR2004  one is no others
        return None
    slow = max(paces, key=lambda one: one.waits)
    others = statistics.median(one.waits for one in paces if one is not slow)
    if slow.waits < _LEAST or slow.waits < _TIMES * others:
        return None
    return _Straggler(slow, others)
