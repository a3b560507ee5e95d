"""PumpNode: moves items between queues under the lock; no user code, no task.

Joins (`zip`, `concat`, `mix`, `interleave`), `repeat`, and the two ends of `route` are pumps:
they differ in their `Mover`, which decides what goes next. Every decision depends only on what
the inputs hold and whether they are done, never on timing, so the order is deterministic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError
from .lane import Lane
from .node import Node
from .task import Entry, Task

if TYPE_CHECKING:
    from .epoch import Epoch


_DRY_PASSES = 100  # a filter may drop all of a few passes by chance, not of so many


class Mover(ABC):
    """Decides which entries a pump moves next."""

    @abstractmethod
    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Take at most `room` entries from the inputs; end the node where it is over."""


class PumpNode(Node):
    """A node without tasks."""

    __slots__ = ("mover",)

    def __init__(self, lane: Lane, epoch: Epoch, mover: Mover) -> None:
        super().__init__(lane, epoch)
        self.mover = mover

    def pump(self, now_ns: int) -> bool:
        """Move what can be moved; say whether anything changed."""
        if self.done or self.halted:
            return False
        room = self.room()
        entries = self.mover.move(self, room) if room > 0 else []
        if entries:
            self.epoch.release(entries)
            self.lane.counters.items_in += len(entries)
            self.emit(entries, now_ns)
            self.freed(now_ns)
        return bool(entries) or self.done

    def take(self, now_ns: int) -> Task | None:
        """Give no task."""
        return None

    def runnable(self) -> bool:
        """Never need a thread."""
        return False

    def work(self, task: Task) -> None:
        """Never be called."""
        raise TypeError("a pump has no tasks")

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Never be called."""
        raise TypeError("a pump has no tasks")

    def has_input(self) -> bool:
        """Say whether any input holds something."""
        return any(above.out for above in self.upstream)

    def exhausted(self) -> bool:
        """Leave the end to the mover."""
        return False

    def end(self, error: BaseException | None = None) -> None:
        """End the stream here; inputs that are left are not needed any more."""
        self.epoch.halt(self.upstream)
        self.error = error
        self.finish()


def _ended(above: Node) -> bool:
    return above.done and not above.out


def _from_input(entry: Entry, number: int) -> Entry:
    """Put the input's number in front of the path: no path then begins with another's."""
    path = entry[0]
    return ((number, *path) if isinstance(path, tuple) else (number, path), *entry[1:])


def _cut_others(node: PumpNode, ended: int) -> None:
    """Note that only one input was asked for its end."""
    for number, above in enumerate(node.upstream):
        if number != ended:
            above.cut_off()


class ZipMover(Mover):
    """One item from each input."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._count = 0

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Move whole rows."""
        queues = [above.out for above in node.upstream]
        count = min(room, *(len(queue) for queue in queues))
        if not count:
            self._end(node)
            return []
        self._count += count
        rows = [tuple(queue.popleft() for queue in queues) for _ in range(count)]
        for row in rows:
            node.epoch.release(row)
        return [(row[0][0], tuple(entry[1] for entry in row)) for row in rows]

    def _end(self, node: PumpNode) -> None:
        """End as Python's own zip would: the inputs are asked for an item in their order."""
        ended: int | None = None
        longer: int | None = None
        for number, above in enumerate(node.upstream):
            if above.out:
                longer = number if longer is None else longer
            elif not above.done:
                return
            elif above.error is not None:
                node.end(above.error)
                return
            else:
                ended = number if ended is None else ended
            if ended is not None and (longer is not None or not self._strict):
                break
        if ended is None:
            return
        if not self._strict:
            _cut_others(node, ended)
        node.end(self._unequal(ended, longer) if self._strict and longer is not None else None)

    def _unequal(self, ended: int, longer: int) -> ArgumentError:
        return ArgumentError(
            f"zip needs pipelines of equal length: pipeline {ended} ended after {self._count} "
            f"items, pipeline {longer} has more; use strict=False to stop at the shortest"
        )


class ConcatMover(Mover):
    """One input after the other; the one after the current one is warming up.

    Args:
        deepen: put the input's number in front of each path.
    """

    def __init__(self, *, deepen: bool = True) -> None:
        self._current = 0
        self._deepen = deepen

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Move from the current input."""
        moved: list[Entry] = []
        while len(moved) < room:
            above = node.upstream[self._current]
            count = min(room - len(moved), len(above.out))
            taken = [above.out.popleft() for _ in range(count)]
            moved += [_from_input(one, self._current) for one in taken] if self._deepen else taken
            if not _ended(above):
                break
            if above.error is not None or self._current + 1 == len(node.upstream):
                if not moved:
                    node.end(above.error)
                break
            self._current += 1
            node.epoch.open(node.upstream[self._current + 1 : self._current + 2])
        return moved


class MixMover(Mover):
    """Draws an input by weight for each item."""

    def __init__(
        self, weights: Sequence[float], rng: np.random.Generator, *, shortest: bool
    ) -> None:
        self._weights = dict(enumerate(weights))
        self._rng = rng
        self._shortest = shortest
        self._next: int | None = None

    def _draw(self) -> int:
        if self._next is None:
            point = self._rng.random() * sum(self._weights.values())
            drawn = 0
            for drawn, weight in self._weights.items():  # noqa: B007  the last one stays
                point -= weight
                if point < 0:
                    break
            self._next = drawn
        return self._next

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Move while the input drawn has something."""
        moved: list[Entry] = []
        while len(moved) < room:
            drawn = self._draw()
            above = node.upstream[drawn]
            if above.out:
                moved.append(_from_input(above.out.popleft(), drawn))
                self._next = None
                continue
            if above.done:
                self._drop(node, drawn, above.error, moved)
            if not above.done or node.done or moved:
                break
        return moved

    def _drop(
        self, node: PumpNode, drawn: int, error: BaseException | None, moved: list[Entry]
    ) -> None:
        if error is not None or self._shortest or len(self._weights) == 1:
            if not moved:
                if self._shortest:
                    _cut_others(node, drawn)
                node.end(error)
            return
        del self._weights[drawn]
        self._next = None


class InterleaveMover(Mover):
    """Takes turns between the inputs that are open."""

    def __init__(self, count: int, cycle: int) -> None:
        self._open = list(range(min(cycle, count)))
        self._following = len(self._open)
        self._count = count
        self._turn = 0

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Move one item from each open input in turn."""
        moved: list[Entry] = []
        while len(moved) < room:
            if not self._open:
                if not moved:
                    node.end()
                break
            number = self._open[self._turn]
            above = node.upstream[number]
            if above.out:
                moved.append(_from_input(above.out.popleft(), number))
                self._turn = (self._turn + 1) % len(self._open)
                continue
            if not above.done:
                break
            if above.error is not None:
                if not moved:
                    node.end(above.error)
                break
            self._replace(node)
        return moved

    def _replace(self, node: PumpNode) -> None:
        if self._following < self._count:
            self._open[self._turn] = self._following
            node.epoch.open(node.upstream[self._following : self._following + 1])
            self._following += 1
        else:
            del self._open[self._turn]
            self._turn = self._turn % len(self._open) if self._open else 0


class RepeatMover(Mover):
    """Passes over the part of the pipeline above, which is built anew for each.

    Args:
        times: number of passes; None for ever.
        build: gives the part above for a pass, most downstream first.
    """

    def __init__(self, times: int | None, build: Callable[[int], Sequence[Node]]) -> None:
        self._times = times
        self._build = build
        self._pass = 0
        self._dry = 0  # passes without items since the last one that had some
        self._moved = False

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Move what is there; begin the next pass at the end."""
        above = node.upstream[0]
        count = min(room, len(above.out))
        if count:
            self._moved, self._dry = True, -1
            return [above.out.popleft() for _ in range(count)]
        if not above.done:
            return []
        self._pass += 1
        self._dry += 1
        if above.error is not None or self._pass == self._times:
            node.end(above.error)
        elif self._times is None and not self._moved:
            node.end()  # for ever nothing
        elif self._times is None and self._dry == _DRY_PASSES:
            node.end(self._ran_dry(node))
        else:
            node.epoch.commit(node.epoch.above(node))
            node.epoch.replace(node, self._build(self._pass))
        return []

    def _ran_dry(self, node: PumpNode) -> ArgumentError:
        return ArgumentError(
            f"{node.lane.address} for ever must have items to go on with, got none in "
            f"{_DRY_PASSES} passes; check that the source can be read again, or give repeat(n)"
        )
