"""PumpNode: moves items between queues under the lock; no user code.

Joins (`zip`, `concat`; `drawing.py`), `repeat` (`passes.py`) and the two ends of `route` are pumps:
they differ in their `Mover`, which decides what goes next. Every decision depends only on what
the inputs hold and whether they are done, never on timing, so the order is deterministic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..rest import Rest
from .lane import Lane
from .node import Node
from .noting import Stages
from .task import SIZED, Entry, Task

if TYPE_CHECKING:
    from .epoch import Epoch


class Mover(ABC):
    """Decides which entries a pump moves next."""

    @abstractmethod
    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Take at most `room` entries from the inputs; end the node where it is over."""

    @abstractmethod
    def rest_above(
        self, node: PumpNode, below: Mapping[int, Rest], stages: Stages
    ) -> Sequence[Rest | None]:
        """Say what is wanted of each input, given what is wanted here; None: as from the start."""

    @abstractmethod
    def forget(self, below: Mapping[int, Rest]) -> None:
        """Hear what may still be wanted."""


class PumpNode(Node):
    """A node without tasks, but for what its mover leaves to be done without the lock."""

    __slots__ = ("_aside", "_problem", "_then", "mover")

    def __init__(self, lane: Lane, epoch: Epoch, mover: Mover) -> None:
        super().__init__(lane, epoch)
        self.mover = mover
        self._aside: Callable[[], None] | None = None
        self._then: Callable[[], None] | None = None
        self._problem: BaseException | None = None

    def set_aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Have a thread do what is slow, without the lock; nothing is moved meanwhile.

        Args:
            work: what it raises ends the stream here.
            then: called under the lock, once that is done.
        """
        self._aside, self._then = work, then
        self.active_without_input = self.epoch.changed = True

    def pump(self, now_ns: int) -> bool:
        """Move what can be moved; say whether anything changed."""
        if self.done or self.halted or self._aside is not None:
            return False
        room = self.room()
        entries = self.mover.move(self, room) if room > 0 else []
        if entries:
            self.epoch.release(entries)
            self.lane.counters.items_in += len(entries)
            self.emit(entries, now_ns)
            self.freed(now_ns)
        return bool(entries) or self.done

    def rest_above(self, below: Mapping[int, Rest], stages: Stages) -> Sequence[Rest | None]:
        """Let the mover say what is wanted of each input."""
        return self.mover.rest_above(self, below, stages)

    def forget(self, below: Mapping[int, Rest]) -> None:
        """Let the mover forget what nobody wants any more."""
        self.mover.forget(below)

    def take(self, now_ns: int) -> Task | None:
        """Give what was set aside."""
        return self.started(Task(self, 0, deque()), now_ns) if self.runnable() else None

    def runnable(self) -> bool:
        """Need a thread for what was set aside alone."""
        return self._aside is not None and not (self.running or self.done or self.halted)

    def work(self, task: Task) -> None:
        """Do what was set aside."""
        assert self._aside is not None
        try:
            self._aside()
        except BaseException as error:  # it ends the stream, in its place
            self._problem = error

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Go on once that is done."""
        then, self._aside, self._then = self._then, None, None
        self.active_without_input = False
        if self.done or self.halted or then is None:
            return
        if self._problem is not None:
            self.end(self._problem)
        else:
            then()

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


def from_input(entry: Entry, number: int) -> Entry:
    """Put the input's number in front of the path: no path then begins with another's."""
    path = entry[0]
    return ((number, *path) if isinstance(path, tuple) else (number, path), *entry[1:])


def _joined(row: tuple[Entry, ...]) -> Entry:
    """Make one entry of a row; its size is the sum, where they have one."""
    values = tuple(entry[1] for entry in row)
    if len(row[0]) < SIZED:
        return (row[0][0], values)
    return (row[0][0], values, sum(entry[2] for entry in row))


def cut_others(node: PumpNode, ended: int) -> None:
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
        return [_joined(row) for row in rows]  # as large as the row, which the pump releases

    def rest_above(
        self, node: PumpNode, below: Mapping[int, Rest], stages: Stages
    ) -> Sequence[Rest | None]:
        """Want the same of each input."""
        return tuple(below.values()) * len(node.upstream)

    def forget(self, below: Mapping[int, Rest]) -> None:
        """Know nothing that could be forgotten."""

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
            cut_others(node, ended)
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
        first: number of the input that is read first.
    """

    def __init__(self, *, deepen: bool = True, first: int = 0) -> None:
        self._first = self._current = first
        self._deepen = deepen
        self._moved = [0]  # for each input from the first one on, entries

    def rest_above(
        self, node: PumpNode, below: Mapping[int, Rest], stages: Stages
    ) -> Sequence[Rest | None]:
        """Part what is wanted by the numbers of entries that the inputs gave."""
        (rest,) = below.values()
        rests: list[Rest | None] = [None] * len(node.upstream)
        begun = 0
        for number, count in enumerate(self._moved, self._first):
            end = begun + count
            if number == self._current:
                rests[number] = rest.since(begun)
            elif rest.first_from(begun) < end or any(rests):
                rests[number] = rest.until(end).since(begun)
            begun = end
        wanted = [number for number, one in enumerate(rests) if one is not None]
        rests[self._current + 1 :] = [Rest()] * (len(rests) - self._current - 1)
        if self._deepen:
            stages.setdefault(node.lane.address, {})["first"] = wanted[0]
        return rests

    def forget(self, below: Mapping[int, Rest]) -> None:
        """Keep one number for each input."""

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Move from the current input."""
        moved: list[Entry] = []
        while len(moved) < room:
            above = node.upstream[self._current]
            count = min(room - len(moved), len(above.out))
            taken = [above.out.popleft() for _ in range(count)]
            moved += [from_input(one, self._current) for one in taken] if self._deepen else taken
            self._moved[-1] += count
            if not _ended(above):
                break
            if above.error is not None or self._current + 1 == len(node.upstream):
                if not moved:
                    node.end(above.error)
                break
            self._current += 1
            self._moved.append(0)
            node.epoch.open(node.upstream[self._current + 1 : self._current + 2])
        return moved
