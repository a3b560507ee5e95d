"""Route: items part by a key, and come together again in input order."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from ..executors.inflight import opened
from ..operations import Route
from ..rest import Rest
from .join import Mover, PumpNode
from .logs import Draws
from .node import Node
from .noting import Stages
from .task import Entry, Task


def numbers_of(spec: Route) -> dict[Any, int]:
    """Number the branches by their keys."""
    return {value: number for number, value in enumerate(spec.values)}


class Chooser:
    """Finds the branch of an item: gives its number and the item.

    Args:
        stage: its address.
        spec: the key's function.
        numbers: what `numbers_of` gave.
    """

    def __init__(self, stage: str, spec: Route, numbers: dict[Any, int]) -> None:
        self._stage = stage
        self._key = spec.key
        self._reads = False
        self._numbers = numbers

    def let_read(self) -> None:
        """Hear that items are batches in flight; they pass as they are."""
        self._reads = True

    def __call__(self, value: Any) -> tuple[int, Any]:
        """Give the branch's number and the item.

        Raises:
            ArgumentError: no branch has this key.
        """
        key = self._key(opened(value) if self._reads else value)
        number = self._numbers.get(key)
        if number is None:
            known = ", ".join(repr(known) for known in self._numbers)
            raise ArgumentError(
                f"{self._stage} key must be one of {known}, got {key!r}; add a branch for it"
            )
        return number, value


class Outlet(Node):
    """The beginning of one branch: a queue that a `SplitMover` fills."""

    __slots__ = ()

    def take(self, now_ns: int) -> Task | None:
        """Give no task."""
        return None

    def runnable(self) -> bool:
        """Never need a thread."""
        return False

    def work(self, task: Task) -> None:
        """Never be called."""
        raise TypeError("an outlet has no tasks")

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Never be called."""
        raise TypeError("an outlet has no tasks")

    def forget(self, below: Mapping[int, Rest]) -> None:
        """Know nothing that could be forgotten."""

    def has_input(self) -> bool:
        """Hold nothing of its own."""
        return False

    def exhausted(self) -> bool:
        """Be over when the split is."""
        return True


class SplitMover(Mover):
    """Moves each item to the outlet that its key chose, and notes the order.

    Attributes:
        order: for each item on its way, its branch and its path.
    """

    def __init__(self, outlets: list[Outlet]) -> None:
        self._outlets = outlets
        self._draws = Draws(len(outlets))
        self.order: deque[tuple[int, Any]] = deque()

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Fill the outlets while the next one has room."""
        queue = node.upstream[0].out
        while queue:
            branch, value = queue[0][1]
            outlet = self._outlets[branch]
            if outlet.room() <= 0:
                return []
            entry = queue.popleft()
            node.epoch.release((entry,))
            outlet.emit(((entry[0], value, *entry[2:]),), node.epoch.now_ns)
            self.order.append((branch, entry[0]))
            self._draws.note(branch)
            node.epoch.changed = True
        if node.upstream[0].done:
            node.error = node.upstream[0].error
            node.done = node.epoch.changed = True
            for outlet in self._outlets:
                outlet.end_of_input(None)  # the error comes after all items: the merge has it
        return []

    def rest_above(
        self, node: PumpNode, below: Mapping[int, Rest], stages: Stages
    ) -> Sequence[Rest | None]:
        """Want the items of which an outlet wants anything."""
        return (self._gathered(below),)

    def _gathered(self, below: Mapping[int, Rest]) -> Rest:
        return self._draws.gathered([below[id(outlet)] for outlet in self._outlets])

    def forget(self, below: Mapping[int, Rest]) -> None:
        """Forget to which outlets the items went of which none wants anything."""
        self._draws.forget(self._gathered(below).start)


class MergeMover(Mover):
    """Takes the items back in the order in which they were parted.

    The results of one item are known by their path, which begins with the item's own; an item
    has no further result once something else comes out of its branch, or nothing is left in it.

    Args:
        split: the pump in front of the branches.
        branches: the nodes of each branch, outlet first.
    """

    def __init__(
        self, split: PumpNode, order: deque[tuple[int, Any]], branches: list[list[Node]]
    ) -> None:
        self._split = split
        self._order = order
        self._branches = branches
        self._draws = Draws(len(branches))

    def rest_above(
        self, node: PumpNode, below: Mapping[int, Rest], stages: Stages
    ) -> Sequence[Rest | None]:
        """Part what is wanted by the branches that the items came from."""
        (rest,) = below.values()
        return self._draws.parted(rest)[0]

    def forget(self, below: Mapping[int, Rest]) -> None:
        """Forget from which branches the items came that nobody wants any more."""
        self._draws.forget(min(rest.start for rest in below.values()))

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Move from the branch whose turn it is."""
        moved: list[Entry] = []
        while self._order and len(moved) < room:
            branch, path = self._order[0]
            last = self._branches[branch][-1]
            if last.out and _belongs(last.out[0][0], path):
                moved.append(last.out.popleft())
                self._draws.note(branch)
                continue
            if not last.out and last.done and last.error is not None:
                if not moved:
                    node.end(last.error)
                return moved
            if not last.out and not last.done and not self._empty(branch):
                return moved
            self._order.popleft()
        if not moved and not self._order and self._split.done:
            node.end(self._split.error)
        return moved

    def _empty(self, branch: int) -> bool:
        return not any(node.busy() for node in self._branches[branch])


def _belongs(path: Any, owner: Any) -> bool:
    if path == owner:
        return True
    if not isinstance(path, tuple):
        return False
    start = owner if isinstance(owner, tuple) else (owner,)
    return path[: len(start)] == start
