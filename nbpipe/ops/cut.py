"""take, skip, window, enumerate, repeat: which items pass, how often, and with which number."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ..base.checks import integer
from ..base.seeding import Entry
from .chain import append_plain
from .index import LONGEST
from .plan import IndexPlan
from .ranges import IndexRanges, NodeState, StatefulOp
from .stage import Chain, Operation, Runs, Stage


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cut(Operation):
    """Some of the items, by their number: what `take` and `skip` have in common."""

    chooses: ClassVar[bool] = True
    new_order: ClassVar[bool | None] = False
    positional: ClassVar[tuple[str, ...]] = ("count",)
    count: int

    def detail(self) -> str:
        """Return the count."""
        return str(self.count)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Take(Cut):
    """The first `count` items."""

    label: ClassVar[str] = "take"

    def reorder(self, plan: IndexPlan) -> IndexPlan | None:
        """Cut the order."""
        return plan.take(self.count)

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Return at most the count."""
        return min(number, self.count)

    def stateful(self, epoch: int, passes: tuple[int, ...], node_state: NodeState) -> StatefulOp:
        """Count the items."""
        return Taking(self.count, node_state)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Skip(Cut):
    """All but the first `count` items."""

    label: ClassVar[str] = "skip"

    def reorder(self, plan: IndexPlan) -> IndexPlan | None:
        """Cut the order."""
        return plan.skip(self.count)

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Return the remaining items."""
        return max(0, number - self.count)

    def stateful(self, epoch: int, passes: tuple[int, ...], node_state: NodeState) -> StatefulOp:
        """Count the items."""
        return Skipping(self.count, node_state)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Window(Operation):
    """Lists of `size` neighbours, `stride` apart."""

    label: ClassVar[str] = "window"
    may_branch: ClassVar[bool] = True
    positional: ClassVar[tuple[str, ...]] = ("size",)
    gathers: ClassVar[bool] = True
    size: int
    stride: int = 1

    @property
    def remembers(self) -> bool:
        """It does: windows overlap."""
        return True

    @property
    def made_of(self) -> int:
        """How many items a window has."""
        return self.size

    def detail(self) -> str:
        """Return size and stride."""
        return f"{self.size} by {self.stride}"

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Count the whole windows."""
        return max(0, (number - self.size) // self.stride + 1) if number < math.inf else number

    def stateful(self, epoch: int, passes: tuple[int, ...], node_state: NodeState) -> StatefulOp:
        """Keep the last items."""
        return Windowing(self.size, self.stride, node_state)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Enumerate(Operation):
    """Pairs of a number and an item."""

    label: ClassVar[str] = "enumerate"
    new_order: ClassVar[bool | None] = False
    numbers: ClassVar[bool] = True

    def reorder(self, plan: IndexPlan) -> IndexPlan | None:
        """Number the rows."""
        return plan.enumerate()

    def stateful(self, epoch: int, passes: tuple[int, ...], node_state: NodeState) -> StatefulOp:
        """Count the items."""
        return Enumerating(node_state)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Repeat(Operation):
    """`times` passes, or passes for ever."""

    label: ClassVar[str] = "repeat"
    chooses: ClassVar[bool] = True
    new_order: ClassVar[bool | None] = False
    positional: ClassVar[tuple[str, ...]] = ("times",)
    runs: ClassVar[Runs] = "repeat"
    times: int | None = None

    @property
    def times_given(self) -> float:
        """Once in each pass."""
        return math.inf if self.times is None else self.times

    def detail(self) -> str:
        """Return the number of passes."""
        return "for ever" if self.times is None else str(self.times)

    def reorder(self, plan: IndexPlan) -> IndexPlan | None:
        """Repeat the order."""
        return plan.repeat(self.times)

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Count the items of all passes."""
        return number * self.times_given if number else 0


def append_take(chain: Chain, n: int) -> Chain:
    """Append a take stage."""
    return append_plain(chain, Take(integer("take n", n, minimum=0, unit="items")))


def append_skip(chain: Chain, n: int) -> Chain:
    """Append a skip stage."""
    return append_plain(chain, Skip(integer("skip n", n, minimum=0, unit="items")))


def append_window(chain: Chain, size: int, stride: int) -> Chain:
    """Append a window stage."""
    size = integer("window size", size, minimum=1, unit="items")
    return append_plain(
        chain, Window(size, integer("window stride", stride, minimum=1, unit="items"))
    )


def append_enumerate(chain: Chain) -> Chain:
    """Append an enumerate stage."""
    return append_plain(chain, Enumerate())


def append_repeat(chain: Chain, n: int | None) -> Chain:
    """Append a repeat stage."""
    return append_plain(
        chain, Repeat(None if n is None else integer("repeat n", n, minimum=1, unit="passes"))
    )


class Taking(StatefulOp):
    """The first `count` items."""

    def __init__(self, count: int, node_state: NodeState) -> None:
        self._count = self._left = node_state.get("left", count)
        self.finished = self._left == 0

    def rest_of_input(self, rest: IndexRanges, node_state: NodeState) -> IndexRanges:
        """Return how many items are left to take."""
        node_state["left"] = max(0, self._count - rest.left_out)
        return rest

    def process(self, entry: Entry) -> Entry | None:
        """Let an item pass while there are some to take."""
        self._left -= 1
        self.finished = self._left <= 0
        return entry


class Skipping(StatefulOp):
    """All but the first `count` items."""

    def __init__(self, count: int, node_state: NodeState) -> None:
        self._count = self._left = node_state.get("left", count)

    def rest_of_input(self, rest: IndexRanges, node_state: NodeState) -> IndexRanges:
        """Return how many items are still to be left out."""
        if rest.is_all:
            node_state["left"] = left = self._left
            return IndexRanges(self._count - left)
        node_state["left"] = 0
        return rest.moved(self._count)

    def process(self, entry: Entry) -> Entry | None:
        """Let an item pass once enough were left out."""
        if self._left:
            self._left -= 1
            return None
        return entry


class Windowing(StatefulOp):
    """Lists of `size` neighbours, `stride` apart; the path is that of the first.

    A window that is not whole is left out.
    """

    def __init__(self, size: int, stride: int, node_state: NodeState) -> None:
        self._size = size
        self._stride = stride
        self._entries: deque[Entry] = deque(maxlen=size)
        self._skipped = node_state.get("skip", 0)
        self._until = self._skipped + size
        self._pushed = 0

    def rest_of_input(self, rest: IndexRanges, node_state: NodeState) -> IndexRanges:
        """Begin with the first item of the next window; windows after it overlap."""
        first = self._skipped + rest.start * self._stride if rest.start else 0
        start = min(first, self._pushed)
        node_state["skip"] = first - start if rest.start else self._skipped
        if rest.gaps:
            node_state["drop"] = rest.behind_start().data
        return IndexRanges(start)

    def process(self, entry: Entry) -> Entry | None:
        """Add an item; give a window when one is whole."""
        self._pushed += 1
        self._entries.append(entry)
        self._until -= 1
        if self._until:
            return None
        self._until = self._stride
        return (self._entries[0][0], [one[1] for one in self._entries])


class Enumerating(StatefulOp):
    """Pairs of a number and an item."""

    def __init__(self, node_state: NodeState) -> None:
        self._rest = IndexRanges.read(node_state.get("rest", [0, []]))
        self._numbers = self._rest.numbers(LONGEST)

    def rest_of_input(self, rest: IndexRanges, node_state: NodeState) -> IndexRanges:
        """Return which numbers are still to be given."""
        node_state["rest"] = self._rest.of_wanted(rest).data
        return rest

    def process(self, entry: Entry) -> Entry | None:
        """Number an item."""
        return (entry[0], (next(self._numbers), entry[1]))
