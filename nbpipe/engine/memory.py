"""Memory: a budget for the bytes held in all buffers of a run.

Called under the scheduler's lock. Entries carry their size as a third element while they wait:
they were measured by the thread that made them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .task import SIZED, Entry

if TYPE_CHECKING:
    from .node import Node

_SHRINKS = 1.1  # a stage whose results are at most this much larger than its input


class Memory:
    """Bytes held in buffers, and the rule for what may still start.

    Args:
        limit_bytes: the budget [bytes].
    """

    __slots__ = ("_making_bytes", "_running", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._making_bytes = 0.0  # estimated, of the results that places are reserved for
        self._running = 0  # tasks

    def hold(self, entries: Iterable[Entry]) -> None:
        """Count entries that go into a buffer."""
        self.held_bytes += _bytes_of(entries)

    def release(self, entries: Iterable[Entry]) -> None:
        """Count entries that left a buffer."""
        self.held_bytes -= _bytes_of(entries)

    def began(self, node: Node) -> None:
        """Hear that a task of `node` was taken."""
        self._running += 1
        self.note(node)

    def ended(self, node: Node) -> None:
        """Hear that a task of `node` was settled."""
        self._running -= 1
        self.note(node)

    def note(self, node: Node) -> None:
        """Hear that the places which `node` has reserved may be others now."""
        promised_bytes = 0.0 if node.done else node.reserved * node.lane.item_bytes
        self._making_bytes += promised_bytes - node.promised_bytes
        node.promised_bytes = promised_bytes

    def affordable(self, node: Node) -> int:
        """Give the number of results of `node` that there is place for, at least 1."""
        if not node.lane.item_bytes:
            return 1
        left = self.limit_bytes - self.held_bytes - self._making_bytes
        return max(1, int(left / node.lane.item_bytes))

    def admits(self, node: Node, *, waits: bool) -> bool:
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
        if not lane.item_bytes and lane.active:
            return False  # measure one item first
        wanted_bytes = self.held_bytes + self._making_bytes + lane.item_bytes
        return wanted_bytes <= self.limit_bytes or (waits and not self._running)


def _bytes_of(entries: Iterable[Entry]) -> int:
    return sum(entry[2] for entry in entries if len(entry) == SIZED)


def input_bytes(node: Node) -> float:
    """Estimate the bytes that one call of `node` takes from its buffers."""
    return (getattr(node, "gather", 0) or 1) * sum(above.lane.item_bytes for above in node.upstream)
