"""Memory: a budget for the bytes held in all buffers of a run.

Called under the scheduler's lock. Entries carry their size as a third element while they wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..tree import size_bytes
from .task import Entry

if TYPE_CHECKING:
    from .node import Node

_SHRINKS = 1.1  # a stage whose results are at most this much larger than its input


_SIZED = 3  # elements of an entry that carries its size


class Memory:
    """Bytes held in buffers, and the rule for what may still start.

    Args:
        limit_bytes: the budget [bytes].
    """

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def hold(self, entries: Iterable[Entry]) -> list[Entry]:
        """Measure entries that go into a buffer."""
        sized = [(path, value, size_bytes(value)) for path, value, *_ in entries]
        self.held_bytes += sum(entry[2] for entry in sized)
        return sized

    def release(self, entries: Iterable[Entry]) -> None:
        """Count entries that left a buffer."""
        self.held_bytes -= sum(entry[2] for entry in entries if len(entry) == _SIZED)

    def affordable(self, node: Node, nodes: Iterable[Node]) -> int:
        """Give the number of results of `node` that there is place for, at least 1."""
        if not node.lane.item_bytes:
            return 1
        left = self.limit_bytes - self.held_bytes - _being_made(nodes)
        return max(1, int(left / node.lane.item_bytes))

    def admits(self, node: Node, nodes: Iterable[Node], *, waits: bool) -> bool:
        """Say whether a call of `node` may start.

        A stage that does not make items larger may always start: it empties a buffer. Others
        wait until what is held and what is being made leaves room. When nothing is running
        and the consumer has nothing (`waits`), one call may start whatever is held: a batch
        larger than the budget is made item by item instead of never.
        """
        lane = node.lane
        grows = not node.upstream or lane.item_bytes > _SHRINKS * input_bytes(node)
        if not grows:
            return True
        making = _being_made(nodes)
        idle = all(n.lane.active == 0 for n in nodes)
        if not lane.item_bytes and lane.active:
            return False  # measure one item first
        return self.held_bytes + making + lane.item_bytes <= self.limit_bytes or (idle and waits)


def _being_made(nodes: Iterable[Node]) -> float:
    return sum(node.reserved * node.lane.item_bytes for node in nodes)


def input_bytes(node: Node) -> float:
    """Estimate the bytes that one call of `node` takes from its buffers."""
    return (getattr(node, "gather", 0) or 1) * sum(above.lane.item_bytes for above in node.upstream)
