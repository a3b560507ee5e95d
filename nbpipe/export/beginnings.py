"""Beginnings: stages that several chains of one pipeline have in common."""

from __future__ import annotations

from collections import Counter

from .. import operations as ops
from ..stage import Chain


def shared_beginnings(chain: Chain) -> set[tuple[int, ...]]:
    """Give the longest beginnings that several chains have in common, as ids of stages."""
    counts: Counter[tuple[int, ...]] = Counter()
    for one in _chains(chain):
        ids = tuple(map(id, one))
        counts.update(ids[:count] for count in range(1, len(ids) + 1))
    several = {key for key, count in counts.items() if count > 1}
    return {key for key in several if not any(_extends(other, key, counts) for other in several)}


def _extends(
    other: tuple[int, ...], key: tuple[int, ...], counts: Counter[tuple[int, ...]]
) -> bool:
    longer = len(other) > len(key) and other[: len(key)] == key
    return longer and counts[other] == counts[key]


def _chains(chain: Chain) -> list[Chain]:
    """Give a chain and all that it joins; branches of routes have no beginning of their own."""
    found = [chain]
    for stage in chain:
        if not isinstance(stage.spec, ops.Route):
            for one in stage.inputs:
                found += _chains(one)
    return found
