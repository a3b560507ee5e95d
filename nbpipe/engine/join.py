"""Joins, `repeat` and `route`: items moved between queues under the lock; no user code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.random import Generator

from ..base.seeding import Entry
from ..errors import ArgumentError
from ..ops.remaining import Remaining, check_below
from ..ops.route import Route
from .fold import StreamNode
from .node import CHEAP_NS, CHUNK_FOR_EACH, CHUNK_MAX, Draws, Node, Stages, note, stages_of
from .runtime import StageRuntime
from .task import EMPTY, SIZED, Task

if TYPE_CHECKING:
    from .epoch import Epoch


# -- PumpNode: moves items between queues under the lock; no user code -----------------------------
# Joins (`zip`, `concat`; `drawing.py`), `repeat` (`passes.py`) and the two ends of `route` are
# pumps: they differ in their `Mover`, which decides what goes next. Every decision depends only on
# what the inputs hold and whether they are done, never on timing, so the order is deterministic.
class Mover(ABC):
    """Decides which entries a pump moves next."""

    @abstractmethod
    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Take at most `room` entries from the inputs; end the node where it is over."""

    @abstractmethod
    def rest_above(
        self, node: PumpNode, below: Mapping[int, Remaining], stages: Stages
    ) -> Sequence[Remaining | None]:
        """Tell what is wanted of each input, given what is wanted here; None: as from the start."""

    @abstractmethod
    def forget(self, below: Mapping[int, Remaining]) -> None:
        """Hear what may still be wanted."""


class PumpNode(Node):
    """A node without tasks, but for what its mover leaves to be done without the lock."""

    __slots__ = ("_aside", "_problem", "_then", "mover")

    def __init__(self, runtime: StageRuntime, epoch: Epoch, mover: Mover) -> None:
        super().__init__(runtime, epoch)
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
        self.active_without_input = self.active_without_room = self.epoch.changed = True

    def pump(self, now_ns: int) -> bool:
        """Move what can be moved; say whether anything changed."""
        if self.done or self.halted or self._aside is not None:
            return False
        room = self.room()
        if room > 0 and all(above.comes_in_lots(CHEAP_NS) for above in self.upstream):
            room = min(CHUNK_MAX, CHUNK_FOR_EACH * self.runtime.prefetch)
        entries = self.mover.move(self, room) if room > 0 else []
        if entries:
            self.runtime.counters.items_in += len(entries)
            self.emit_entries(entries, now_ns)
            self.freed(now_ns)
        return bool(entries) or self.done

    def rest_above(
        self, below: Mapping[int, Remaining], stages: Stages
    ) -> Sequence[Remaining | None]:
        """Let the mover say what is wanted of each input."""
        return self.mover.rest_above(self, below, stages)

    def forget(self, below: Mapping[int, Remaining]) -> None:
        """Let the mover forget what nobody wants any more."""
        self.mover.forget(below)

    def take(self, now_ns: int) -> Task | None:
        """Return what was set aside."""
        return self.started(Task(self, 0, EMPTY, results=[]), now_ns) if self.runnable() else None

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
        self.active_without_input = self.active_without_room = False
        if self.done or self.halted or then is None:
            return
        if self._problem is not None:
            self.end(self._problem)
        else:
            then()

    def comes_in_lots(self, slow_ns: int) -> bool:
        """Tell whether the inputs do."""
        return all(above.comes_in_lots(slow_ns) for above in self.upstream)

    def has_input(self) -> bool:
        """Tell whether any input holds something."""
        return any(above.out.count for above in self.upstream)

    def exhausted(self) -> bool:
        """Leave the end to the mover."""
        return False

    def end(self, error: BaseException | None = None) -> None:
        """End the stream here; inputs that are left are not needed any more."""
        self.epoch.halt(self.upstream)
        self.error = error
        self.finish()


def _ended(above: Node) -> bool:
    return above.done and not above.out.count


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
        self, node: PumpNode, below: Mapping[int, Remaining], stages: Stages
    ) -> Sequence[Remaining | None]:
        """Want the same of each input."""
        return tuple(below.values()) * len(node.upstream)

    def forget(self, below: Mapping[int, Remaining]) -> None:
        """Know nothing that could be forgotten."""

    def _end(self, node: PumpNode) -> None:
        """End as Python's own zip would: the inputs are asked for an item in their order."""
        ended: int | None = None
        longer: int | None = None
        for number, above in enumerate(node.upstream):
            if above.out.count:
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
        self, node: PumpNode, below: Mapping[int, Remaining], stages: Stages
    ) -> Sequence[Remaining | None]:
        """Part what is wanted by the numbers of entries that the inputs gave."""
        (rest,) = below.values()
        rests: list[Remaining | None] = [None] * len(node.upstream)
        begun = 0
        for number, count in enumerate(self._moved, self._first):
            end = begun + count
            if number == self._current:
                rests[number] = rest.since(begun)
            elif rest.first_from(begun) < end or any(rests):
                rests[number] = rest.until(end).since(begun)
            begun = end
        wanted = [number for number, one in enumerate(rests) if one is not None]
        rests[self._current + 1 :] = [Remaining()] * (len(rests) - self._current - 1)
        if self._deepen:
            stages.setdefault(node.runtime.address, {})["first"] = wanted[0]
        return rests

    def forget(self, below: Mapping[int, Remaining]) -> None:
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


# -- Joins that draw: `mix` by weight, `interleave` by turns ---------------------------------------
_AT_ONCE = 2**16  # draws


class DrawingMover(Mover):
    """Takes each item from the input that is next.

    Where an epoch goes on in its middle, the inputs of the items that were moved, but that the
    loop had not got, are known: they come first.

    Args:
        address: of the stage.
        count: inputs.
        again: inputs of the items that come first.
    """

    def __init__(self, address: str, count: int, again: Sequence[int]) -> None:
        check_below(address, "again", again, count)
        self.draws = Draws(count)
        self.again = deque(again)

    def rest_above(
        self, node: PumpNode, below: Mapping[int, Remaining], stages: Stages
    ) -> Sequence[Remaining | None]:
        """Part what is wanted by the inputs that were drawn."""
        (rest,) = below.values()
        rests, again = self.draws.parted(rest)
        node_state = {"again": [*again, *self.again], **self.node_state()}
        stages.setdefault(node.runtime.address, {}).update(node_state)
        return rests

    @abstractmethod
    def node_state(self) -> dict[str, Any]:
        """Tell from where the drawing goes on; JSON-ready."""

    def forget(self, below: Mapping[int, Remaining]) -> None:
        """Forget from which inputs the entries were that nobody wants any more."""
        self.draws.forget(min(rest.start for rest in below.values()))

    def take(self, above: Node, number: int) -> Entry:
        """Take an entry of an input."""
        self.draws.note(number)
        return from_input(above.out.popleft(), number)

    def move_again(self, node: PumpNode, room: int) -> list[Entry]:
        """Move what comes first; an input that has not so much any more is passed over."""
        moved: list[Entry] = []
        while self.again and len(moved) < room:
            number = self.again[0]
            above = node.upstream[number]
            if above.out.count:
                moved.append(self.take(above, number))
            elif not above.done:
                break
            elif above.error is not None:
                if not moved:
                    node.end(above.error)
                break
            self.again.popleft()
        return moved


class MixMover(DrawingMover):
    """Draws an input by weight for each item.

    Args:
        address: of the stage.
        weights: of the inputs.
        rng: for the draws.
        shortest: end with the first input that ends.
        node_state: what the state of the node said.
    """

    def __init__(
        self,
        address: str,
        weights: Sequence[float],
        rng: np.random.Generator,
        *,
        shortest: bool,
        node_state: Mapping[str, Any],
    ) -> None:
        super().__init__(address, len(weights), node_state.get("again", ()))
        left = node_state.get("open", range(len(weights)))
        check_below(address, "open", left or (len(weights),), len(weights))
        self._weights = {number: weights[number] for number in left}
        self._rng = rng
        self._draws: int = node_state.get("draws", 0)
        self._shortest = shortest
        self._next: int | None = None
        for begun in range(0, self._draws, _AT_ONCE):
            rng.random(min(_AT_ONCE, self._draws - begun))

    def node_state(self) -> dict[str, Any]:
        """Tell how often was drawn, and from what."""
        drawn = self._draws - (self._next is not None)
        return {"draws": drawn, "open": list(self._weights)}

    def _draw(self) -> int:
        if self._next is None:
            self._draws += 1
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
        moved = self.move_again(node, room)
        while len(moved) < room and not self.again:
            drawn = self._draw()
            above = node.upstream[drawn]
            if above.out.count:
                moved.append(self.take(above, drawn))
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
                    cut_others(node, drawn)
                node.end(error)
            return
        del self._weights[drawn]
        self._next = None


class InterleaveMover(DrawingMover):
    """Takes turns between the inputs that are open.

    Args:
        address: of the stage.
        count: inputs.
        cycle: inputs that are open at once.
        node_state: what the state of the node said.
    """

    def __init__(self, address: str, count: int, cycle: int, node_state: Mapping[str, Any]) -> None:
        super().__init__(address, count, node_state.get("again", ()))
        self._open: list[int] = list(node_state.get("open", range(min(cycle, count))))
        self._following: int = node_state.get("following", len(self._open))
        self._count = count
        self._turn: int = node_state.get("turn", 0)
        check_below(address, "open", self._open, count)
        check_below(address, "turn", (self._turn,), len(self._open) or 1)

    @property
    def at_first(self) -> set[int]:
        """Inputs that are to be open when the epoch begins."""
        return {*self._open, *self.again}

    def node_state(self) -> dict[str, Any]:
        """Tell which inputs are open, and whose turn it is."""
        return {"open": list(self._open), "turn": self._turn, "following": self._following}

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Move one item from each open input in turn."""
        moved = self.move_again(node, room)
        while len(moved) < room and not self.again:
            if not self._open:
                if not moved:
                    node.end()
                break
            number = self._open[self._turn]
            above = node.upstream[number]
            if above.out.count:
                moved.append(self.take(above, number))
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


# -- Route: items part by a key, and come together again in input order ----------------------------
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
        self._numbers = numbers

    def __call__(self, value: Any) -> tuple[int, Any]:
        """Return the branch's number and the item.

        Raises:
            ArgumentError: no branch has this key.
        """
        key = self._key(value)
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
        """Return no task."""
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

    def forget(self, below: Mapping[int, Remaining]) -> None:
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
        while queue.count:
            branch, value = queue.first_value
            outlet = self._outlets[branch]
            if outlet.room() <= 0:
                return []
            entry = queue.popleft()
            outlet.emit_entries([(entry[0], value, *entry[2:])], node.epoch.now_ns)
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
        self, node: PumpNode, below: Mapping[int, Remaining], stages: Stages
    ) -> Sequence[Remaining | None]:
        """Want the items of which an outlet wants anything."""
        return (self._gathered(below),)

    def _gathered(self, below: Mapping[int, Remaining]) -> Remaining:
        return self._draws.gathered([below[id(outlet)] for outlet in self._outlets])

    def forget(self, below: Mapping[int, Remaining]) -> None:
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
        self, node: PumpNode, below: Mapping[int, Remaining], stages: Stages
    ) -> Sequence[Remaining | None]:
        """Part what is wanted by the branches that the items came from."""
        (rest,) = below.values()
        return self._draws.parted(rest)[0]

    def forget(self, below: Mapping[int, Remaining]) -> None:
        """Forget from which branches the items came that nobody wants any more."""
        self._draws.forget(min(rest.start for rest in below.values()))

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Move from the branch whose turn it is."""
        moved: list[Entry] = []
        while self._order and len(moved) < room:
            branch, path = self._order[0]
            last = self._branches[branch][-1]
            if last.out.count and _belongs(last.out.first_path, path):
                moved.append(last.out.popleft())
                self._draws.note(branch)
                continue
            if not last.out.count and last.done and last.error is not None:
                if not moved:
                    node.end(last.error)
                return moved
            if not last.out.count and not last.done and not self._empty(branch):
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


# -- RepeatMover: the passes of a `repeat` behind stages that are built anew for each --------------
_DRY_PASSES = 100  # a filter may drop all of a few passes by chance, not of so many


@dataclass(frozen=True, slots=True)
class _Pass:
    """A pass that was moved to its end; its entries are those from `begun` to below `end`."""

    number: int
    last: Node
    begun: int
    end: int


class RepeatMover(Mover):
    """Passes over the part of the pipeline above, which is built anew for each.

    Args:
        times: number of passes; None for ever.
        build: gives the part above for a pass, most downstream first; called under the lock.
        look: looks again which caches are complete, before it; called without the lock.
        node_state: number of the first pass, and whether there were items before.
    """

    def __init__(
        self,
        times: int | None,
        build: Callable[[int], Sequence[Node]],
        look: Callable[[], None],
        node_state: Mapping[str, Any],
    ) -> None:
        self._times = times
        self._build = build
        self._look = look
        self._pass = self._built = node_state.get("pass", 0)
        self._dry = 0  # passes without items since the last one that had some
        self._moved: bool = node_state.get("moved", False)
        self._count = self._begun = 0  # entries, and those before the present pass
        self._past: deque[_Pass] = deque()

    def rest_above(
        self, node: PumpNode, below: Mapping[int, Remaining], stages: Stages
    ) -> Sequence[Remaining | None]:
        """Begin in the pass of the first entry that is wanted."""
        (rest,) = below.values()
        address = node.runtime.address
        found = next((one for one in self._past if rest.start < one.end), None)
        if found is None:
            note(stages, address, {"pass": self._built, "moved": self._moved})
            return (rest.since(self._begun),)
        node_state: dict[str, Any] = {"pass": found.number, "moved": True}
        stages.update(stages_of(found.last, rest.until(found.end).since(found.begun)))
        later = [(a, b) for a, b in rest.gaps if b > found.end]
        if later:
            left_out = rest.until(found.end).left_out
            runs = [(max(a, found.end) - left_out, b - left_out) for a, b in later]
            node_state["drop"] = Remaining.of(0, runs).data
        note(stages, address, node_state)
        return (None,)

    def forget(self, below: Mapping[int, Remaining]) -> None:
        """Forget the passes of which nothing is wanted any more."""
        start = min(rest.start for rest in below.values())
        while self._past and self._past[0].end <= start:
            self._past.popleft()

    def move(self, node: PumpNode, room: int) -> list[Entry]:
        """Move what is there; begin the next pass at the end."""
        above = node.upstream[0]
        count = min(room, len(above.out))
        if count:
            self._moved, self._dry = True, -1
            self._count += count
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
        elif keeping := node.epoch.keeping(node.epoch.above(node)):
            node.set_aside(lambda: self._keep(keeping), lambda: self._turn(node))
        else:
            self._turn(node)
        return []

    def _keep(self, nodes: Sequence[StreamNode]) -> None:
        """Let caches keep what the pass made: on a disk, that takes its time."""
        for node in nodes:
            node.commit()
        self._look()

    def _turn(self, node: PumpNode) -> None:
        """Begin the next pass."""
        self._past.append(_Pass(self._built, node.upstream[0], self._begun, self._count))
        self._begun, self._built = self._count, self._pass
        node.epoch.replace(node, self._build(self._pass))

    def _ran_dry(self, node: PumpNode) -> ArgumentError:
        return ArgumentError(
            f"{node.runtime.address} for ever must have items to go on with, got none in "
            f"{_DRY_PASSES} passes; check that the source can be read again, or give repeat(n)"
        )


# -- What joins pipelines, by the operation's word -------------------------------------------------
class Joining(NamedTuple):
    """A join of several pipelines in one pass.

    Attributes:
        address: of the stage.
        spec: its operation.
        inputs: how many pipelines it joins.
        node_state: where it goes on.
        generator: returns the generator of a seed, in this epoch and pass.
    """

    address: str
    spec: Any
    inputs: int
    node_state: dict[str, Any]
    generator: Callable[[int], Generator]


Joined = tuple[Mover, Container[int]]  # a mover, and the inputs that are open at first


def _zip(join: Joining) -> Joined:
    return ZipMover(strict=join.spec.strict), range(join.inputs)


def _concat(join: Joining) -> Joined:
    first = join.node_state.get("first", 0)
    check_below(join.address, "first", (first,), join.inputs)
    return ConcatMover(first=first), range(first, first + 2)


def _interleave(join: Joining) -> Joined:
    turns = InterleaveMover(join.address, join.inputs, join.spec.cycle, join.node_state)
    return turns, turns.at_first


def _mix(join: Joining) -> Joined:
    spec, rng = join.spec, join.generator(join.spec.seed)
    shortest = spec.stop == "shortest"
    mover = MixMover(join.address, spec.weights, rng, shortest=shortest, node_state=join.node_state)
    return mover, range(join.inputs)


MOVERS: Mapping[str, Callable[[Joining], Joined]] = {
    "zip": _zip,
    "concat": _concat,
    "interleave": _interleave,
    "mix": _mix,
}
