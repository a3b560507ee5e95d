"""Regions: neighbouring stages that run in one worker, item by item, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from .operations import Batch, Call, FlatMap
from .placement import Placement
from .stage import Chain, Stage


def joined(chain: Chain, spec: Call | Batch, placement: Placement) -> Stage | None:
    """Give the stage whose workers a new stage shares, or None where it gets its own.

    A batch needs every input of its own, so it shares no workers with stages that may drop
    items. A `flat_map` holds its worker from its first child to its last, so it stays alone.
    """
    above = chain[-1] if chain else None
    if above is None or above.placement is None or not placement.joins(above.placement):
        return None
    if isinstance(spec, FlatMap) or isinstance(above.spec, FlatMap):
        return None
    calls = [stage.spec for stage in region_of(chain) if isinstance(stage.spec, Call)]
    if isinstance(spec, Batch):
        whole = all(call.label == "map" and not call.policy.skips for call in calls)
        batched = any(isinstance(stage.spec, Batch) for stage in region_of(chain))
        return above if whole and not batched else None
    return above if all(_agree(call, spec) for call in calls) else None


def _agree(one: Call, other: Call) -> bool:
    return (one.policy, one.timeout_s, one.ordered) == (
        other.policy,
        other.timeout_s,
        other.ordered,
    )


def region_of(chain: Sequence[Stage]) -> list[Stage]:
    """Give the region that ends with the last stage of a chain: those that share its limit."""
    region = [chain[-1]]
    for stage in reversed(chain[:-1]):
        if not share_workers(stage, region[0]):
            break
        region.insert(0, stage)
    return region


def share_workers(above: Stage, below: Stage) -> bool:
    """Say whether two neighbours belong to one region: they share one limit."""
    if above.placement is None or below.placement is None:
        return False
    word = above.placement.limit
    limit = above.knobs.get(word)
    return limit is not None and limit is below.knobs.get(word)


def regions_of(chain: Sequence[Stage]) -> list[list[Stage]]:
    """Part a chain into regions; a stage that shares no workers is alone."""
    groups: list[list[Stage]] = []
    for stage in chain:
        if groups and share_workers(groups[-1][-1], stage):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups
