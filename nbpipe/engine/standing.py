"""Where the stages of an epoch stand: from what the loop has had, upwards to the sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..rest import Rest
from .node import Node
from .noting import Stages


def stages_of(last: Node, rest: Rest) -> Stages:
    """Say where all stages stand, given what is wanted of the last one."""
    stages: Stages = {}
    for node, _ in _walked(last, rest, stages):
        _note_failures(node, stages)
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


def _note_failures(node: Node, stages: Stages) -> None:
    lanes, budgets = (node.lane, *node.rest_lanes), (node.budget, *node.rest_budgets)
    for lane, budget in zip(lanes, budgets, strict=True):
        if budget is not None and budget.failures:
            stages.setdefault(lane.address, {})["failed"] = [budget.failures, budget.seen]
