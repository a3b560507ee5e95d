"""Where the stages of an epoch stand: from what the loop has had, upwards to the sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..rest import Rest
from .node import Node
from .noting import Stages


def stages_of(last: Node, rest: Rest) -> Stages:
    """Say where all stages stand, given what is wanted of the last one."""
    stages: Stages = {}
    for node, below in _walked(last, rest, stages):
        seen = node.dropped + sum(one.left_out for one in below.values())
        _note_failures(node, seen, stages)
    return stages


def forget(last: Node, rest: Rest) -> None:
    """Let all nodes forget what is not needed in order to go on with `rest`."""
    for node, below in list(_walked(last, rest, {})):
        node.forget(below)


def _walked(last: Node, rest: Rest, stages: Stages) -> Iterator[tuple[Node, Mapping[int, Rest]]]:
    wanted: dict[int, dict[int, Rest]] = {id(last): {0: rest}}
    for node in reversed(_upstream_first(last, [], set())):
        below = wanted.get(id(node))
        if below is None:
            continue
        for above, one in zip(node.upstream, node.rest_above(below, stages), strict=False):
            if one is not None:
                wanted.setdefault(id(above), {})[id(node)] = one
        yield node, below


def _upstream_first(node: Node, found: list[Node], seen: set[int]) -> list[Node]:
    if id(node) not in seen:
        seen.add(id(node))
        for above in node.upstream:
            _upstream_first(above, found, seen)
        found.append(node)
    return found


def _note_failures(node: Node, seen: int, stages: Stages) -> None:
    """Note how many items failed of those that are not wanted again."""
    lanes, budgets = (node.lane, *node.rest_lanes), (node.budget, *node.rest_budgets)
    for lane, budget in zip(lanes, budgets, strict=True):
        failures = 0 if budget is None else budget.failures - budget.broken
        if failures:
            stages.setdefault(lane.address, {})["failed"] = [failures, seen]
