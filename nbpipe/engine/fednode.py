"""FedNode: a source that reads what is pushed to it, and rests while there is nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .expand import ExpandNode
from .feed import Feed
from .lane import Lane
from .task import Task

if TYPE_CHECKING:
    from .epoch import Epoch
    from .opening import Opener


class FedNode(ExpandNode):
    """Draws only what is there, so that no thread waits for indices.

    Args:
        opener: makes the iterator over the items.
        feed: where the indices come from.
    """

    __slots__ = ("feed",)

    def __init__(self, lane: Lane, epoch: Epoch, opener: Opener, feed: Feed) -> None:
        super().__init__(lane, epoch, opener, source=True)
        self.feed = feed

    def has_input(self) -> bool:
        """Say whether there is an index to draw, or the end to be noticed."""
        return bool(self.feed.ready or self.feed.ended) and super().has_input()

    def runnable(self) -> bool:
        """Say whether `take` would give a task."""
        return self.has_input() and super().runnable()

    def take(self, now_ns: int) -> Task | None:
        """Draw what is there."""
        return super().take(now_ns) if self.has_input() else None

    def chunk(self, room: int, available: int) -> int:
        """Give the number of items to read: no more than there are indices, or one for the end."""
        return super().chunk(room, min(available, max(1, self.feed.ready)))

    def finish(self) -> None:
        """Hear no more indices: everything was read, or one failed."""
        super().finish()
        self.feed.cut()

    def halt(self) -> None:
        """Stop, and let nobody wait who pushes indices."""
        super().halt()
        self.feed.cut()
