"""Walk the nodes of an epoch from what the loop has had up to the sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...ops.ranges import IndexRanges
from .node import Node
from .provenance import StageStates


def stages_of(last: Node, rest: IndexRanges, *, with_earlier: bool = True) -> StageStates:
    """Return the states of all stages.

    Args:
        last: the last node.
        rest: the results of it that are wanted.
        with_earlier: count the failures of earlier passes of a repeat, too.
    """
    stages: StageStates = {}
    for node, below in _walk(last, rest, stages):
        done, retried = node.provenance.inputs_done(below)
        node.failures.record_state(stages, done, retried, with_earlier=with_earlier)
        node.provenance.record_state(below, stages)
    return stages


def forget(last: Node, rest: IndexRanges) -> None:
    """Let all nodes forget what is not needed to resume with `rest`."""
    for node, below in list(_walk(last, rest, {})):
        node.provenance.forget(below)


def leave(last: Node, rest: IndexRanges) -> None:
    """Notify the provenance of all nodes of the epoch's end and of the results still wanted."""
    for node, below in list(_walk(last, rest, {})):
        node.provenance.leave(below)


def _walk(
    last: Node, rest: IndexRanges, stages: StageStates
) -> Iterator[tuple[Node, Mapping[int, IndexRanges]]]:
    """Yield each node, most downstream first, with what each node below wants of it."""
    wanted: dict[int, dict[int, IndexRanges]] = {id(last): {0: rest}}
    for node in reversed(_upstream_first(last, [], set())):
        below = wanted.get(id(node))
        if below is None:
            continue
        rests = node.provenance.rest_above(below, stages)
        for above, one in zip(node.upstream, rests, strict=False):
            if one is not None:
                wanted.setdefault(id(above), {})[id(node)] = one
        yield node, below


def nodes_above(node: Node) -> list[Node]:
    """Return all nodes above this one, most downstream first."""
    return _upstream_first(node, [], set())[-2::-1]


def _upstream_first(node: Node, found: list[Node], seen: set[int]) -> list[Node]:
    if id(node) not in seen:
        seen.add(id(node))
        for above in node.upstream:
            _upstream_first(above, found, seen)
        found.append(node)
    return found
