"""Ratios: medians and quotients of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

__all__ = ["median", "percentile", "ratio", "ratios"]


def percentile(values: Sequence[float], percent: float) -> float:
    """Give the smallest value that at least `percent` % of the values do not exceed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("percentile needs at least 1 value, got none")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # ceiling: the nearest-rank definition
    return ordered[max(0, int(rank) - 1)]


def ratios(above: dict[int, float], below: dict[int, float]) -> list[float]:
    """Divide round by round, where both have a number."""
    return [above[number] / below[number] for number in above if below.get(number)]


def ratio(above: dict[int, float], below: dict[int, float]) -> float | None:
    """Give the median of the quotients of all rounds, or None where no round has both."""
    quotients = ratios(above, below)
    return median(quotients) if quotients else None
