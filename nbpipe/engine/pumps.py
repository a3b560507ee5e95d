"""Joins, `repeat` and `route`: items moved between queues under the lock; no user code."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from ..base.checks import refuse_coroutine
from ..base.seeding import Entry
from ..errors import ArgumentError
from ..ops.index import LONGEST
from ..ops.join import ChoiceLog, Join
from ..ops.ranges import IndexRanges
from ..ops.route import Route
from .map import StreamNode, keeping
from .node import Node, NodeEpoch, StageStates, Task, leave, nodes_above, record_state, stages_of
from .stats import CHEAP_NS, StageRuntime, most_at_once


# -- PumpNode: moves items between queues under the lock; no user code -----------------------------
# Joins (`ops/join.py`), `repeat` and the two ends of `route` are pumps, which differ in what they
# move next. Every decision depends only on what the inputs hold and whether they are done, never on
# timing, so the order is deterministic.
class PumpNode(Node):
    """A node without tasks, but for what is left to be done without the lock."""

    __slots__ = ("_aside", "_problem", "_then")

    def __init__(self, runtime: StageRuntime, epoch: NodeEpoch) -> None:
        super().__init__(runtime, epoch)
        self._aside: Callable[[], None] | None = None
        self._then: Callable[[], None] | None = None
        self._problem: BaseException | None = None

    @abstractmethod
    def move(self, room: int) -> list[Entry]:
        """Take at most `room` entries from the inputs; end the node where it is over."""

    def set_aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Have a thread do what is slow, without the lock; nothing is moved meanwhile.

        Args:
            work: what it raises ends the stream here.
            then: called under the lock, once that is done.
        """
        self._aside, self._then = work, then
        self.active_without_input = self.epoch.changed = True

    def pump(self, now_ns: int) -> bool:
        """Move what can be moved; tell whether anything changed."""
        if self.done or self.halted or self._aside is not None:
            return False
        room = self.room()
        if room > 0 and all(above.comes_in_chunks(CHEAP_NS) for above in self.upstream):
            room = most_at_once(self.runtime.prefetch)
        entries = self.move(room) if room > 0 else []
        if entries:
            self.counts.items_in += len(entries)
            self.emit_entries(entries, now_ns)
            self.freed(now_ns)
        return bool(entries) or self.done

    def take(self, now_ns: int) -> Task | None:
        """Return what was set aside."""
        return self.started(Task(self, 0, now_ns), now_ns) if self.runnable() else None

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

    def comes_in_chunks(self, slow_ns: int) -> bool:
        """Tell whether the inputs do."""
        return all(above.comes_in_chunks(slow_ns) for above in self.upstream)

    def has_input(self) -> bool:
        """Tell whether any input holds something."""
        return any(above.out.count for above in self.upstream)

    def exhausted(self) -> bool:
        """End where `move` does."""
        return False

    def end(self, error: BaseException | None = None) -> None:
        """End the stream here; inputs that are left are not needed any more."""
        self.epoch.halt(self.upstream)
        self.error = error
        self.finish()


# -- JoinNode: hosts a join ------------------------------------------------------------------------
@final
class JoinNode(PumpNode):
    """Moves what a join takes from the nodes above, which are its inputs."""

    __slots__ = ("_join",)

    def __init__(self, runtime: StageRuntime, epoch: NodeEpoch, join: Join) -> None:
        super().__init__(runtime, epoch)
        self._join = join

    def move(self, room: int) -> list[Entry]:
        """Take what is next; open the inputs that are wanted, and end where the join does."""
        join, above = self._join, self.upstream
        entries = join.take(above, room)
        if join.wanted:
            self.epoch.open([above[number] for number in join.wanted])
            join.wanted.clear()
        if join.over:
            for number in join.unread:
                above[number].cut_off()
            self.end(join.error)
        return entries

    def rest_above(
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> Sequence[IndexRanges | None]:
        """Let the join tell what is wanted of each input."""
        (rest,) = below.values()
        node_state: dict[str, Any] = {}
        rests = self._join.rest_of_inputs(rest, len(self.upstream), node_state)
        record_state(stages, self.runtime.address, node_state)
        return rests

    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Let the join forget what nobody wants any more."""
        self._join.forget(min(rest.start for rest in below.values()))


# -- Route: items part by a key, and come together again in input order ----------------------------
def numbers_of(spec: Route) -> dict[Any, int]:
    """Number the branches by their keys."""
    return {value: number for number, value in enumerate(spec.values)}


class Selector:
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
            refuse_coroutine(f"{self._stage} key", key)
            known = ", ".join(repr(known) for known in self._numbers)
            raise ArgumentError(
                f"{self._stage} key must be one of {known}, got {key!r}; add a branch for it"
            )
        return number, value


@final
class RouteOutput(PumpNode):
    """The beginning of one branch: a queue that a `Demux` fills."""

    __slots__ = ()

    def move(self, room: int) -> list[Entry]:
        """Take nothing: it is given what comes."""
        return []

    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Know nothing that could be forgotten."""

    def exhausted(self) -> bool:
        """Be over when the split is."""
        return True


@final
class Demux(PumpNode):
    """Moves each item to the outlet that its key chose, and notes the order.

    Attributes:
        order: for each item on its way, the number of its branch.
    """

    __slots__ = ("_draws", "_outlets", "order")

    def __init__(self, runtime: StageRuntime, epoch: NodeEpoch, outlets: list[RouteOutput]) -> None:
        super().__init__(runtime, epoch)
        self._outlets = outlets
        self._draws = ChoiceLog(len(outlets))
        self.order: deque[int] = deque()

    def move(self, room: int) -> list[Entry]:
        """Fill the outlets while the next one has room."""
        (above,), epoch = self.upstream, self.epoch
        queue = above.out
        while queue.count:
            branch, value = queue.first_value
            outlet = self._outlets[branch]
            if outlet.room() <= 0:
                return []
            entry = queue.popleft()
            outlet.emit_entries([(entry[0], value, *entry[2:])], epoch.now_ns)
            self.order.append(branch)
            self._draws.record(branch)
            epoch.changed = True
        if above.done:
            self.done = epoch.changed = True
            for outlet in self._outlets:
                outlet.end_of_input(above.error)
        return []

    def rest_above(
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> Sequence[IndexRanges | None]:
        """Want the items of which an outlet wants anything."""
        return (self._gathered(below),)

    def _gathered(self, below: Mapping[int, IndexRanges]) -> IndexRanges:
        return self._draws.gathered([below[id(outlet)] for outlet in self._outlets])

    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Forget to which outlets the items went of which none wants anything."""
        self._draws.forget(self._gathered(below).start)


@final
class Branch:
    """How far one branch of a route is.

    Args:
        outlet: where its items begin.
        last: its last node.

    Attributes:
        last: that node.
        taken: results that were taken from it.
        passed: items of which no further result comes.
    """

    __slots__ = ("_nodes", "last", "passed", "taken")

    def __init__(self, outlet: RouteOutput, last: Node) -> None:
        self.last = last
        self.taken = self.passed = 0
        nodes: list[Node] = []
        while last is not outlet:
            nodes.append(last)
            last = last.head if isinstance(last, Mux) else last.upstream[0]
        self._nodes = tuple(nodes)

    def reached(self) -> int:
        """Return the number of the item at which the next result came, or may still come."""
        number = self.taken
        for node in self._nodes:
            number = node.input_of(number)
        return number


@final
class Mux(PumpNode):
    """Takes the results of branches in the order in which the items were parted.

    A result stands where the item stood at which it came: that of a batch, where its last item
    did. What a branch gives at the end of its items, as a batch that is not full, comes behind
    all of that, branch by branch.

    Args:
        split: stands in front of the branches.
        branches: those.
    """

    __slots__ = ("_base", "_branches", "_draws", "_inputs", "_passed", "_split")

    def __init__(
        self, runtime: StageRuntime, epoch: NodeEpoch, split: Demux, branches: list[Branch]
    ) -> None:
        super().__init__(runtime, epoch)
        self._split = split
        self._branches = branches
        self._draws = ChoiceLog(len(branches))
        self._passed = 0  # items of which no further result comes
        self._inputs = array("q")  # for each result from `_base` on, the number of its item
        self._base = 0

    @property
    def head(self) -> Node:
        """What stands in front of the branches, and finds them."""
        return self._split.upstream[0]

    def rest_above(
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> Sequence[IndexRanges | None]:
        """Part what is wanted by the branches that the items came from."""
        (rest,) = below.values()
        return self._draws.parted(rest)[0]

    def input_of(self, result: int) -> int:
        """Return the number of the item, among all of the route, at which a result came."""
        at = result - self._base
        return self._inputs[at] if at < len(self._inputs) else self._passed

    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Forget from which branches the items came that nobody wants any more."""
        start = min(rest.start for rest in below.values())
        self._draws.forget(start)
        del self._inputs[: max(0, start - self._base)]
        self._base = max(start, self._base)

    def move(self, room: int) -> list[Entry]:
        """Move from the branch whose turn it is."""
        moved: list[Entry] = []
        order, before = self._split.order, self._passed
        while order and len(moved) < room:
            branch = self._branches[order[0]]
            if branch.reached() > branch.passed:
                branch.passed += 1
                self._passed += 1
                order.popleft()
            elif branch.last.out.count:
                moved.append(self._next_of(order[0]))
            else:
                if branch.last.done and not moved:
                    self.end(branch.last.error)
                break
        if not order and self._split.done:
            self._move_last(moved, room)
        if self._passed > before and not moved:
            self.epoch.changed = True
        return moved

    def _next_of(self, number: int) -> Entry:
        branch = self._branches[number]
        branch.taken += 1
        self._draws.record(number)
        self._inputs.append(self._passed)
        return branch.last.out.popleft()

    def _move_last(self, moved: list[Entry], room: int) -> None:
        """Move what each branch gives at its end; end with the first error, or behind the last."""
        for number, branch in enumerate(self._branches):
            last = branch.last
            while last.out.count and len(moved) < room:
                moved.append(self._next_of(number))
            if last.out.count or not last.done:
                return
            if last.error is not None:
                if not moved:
                    self.end(last.error)
                return
        if not moved:
            self.end()


# -- RepeatNode: the passes of a `repeat` behind stages that are built anew for each ---------------
_DRY_PASSES = 100  # a filter may drop all of a few passes by chance, not of so many


@dataclass(frozen=True, slots=True)
class _PastPass:
    """A pass that was moved to its end; its entries are those from `begun` to below `end`."""

    number: int
    last: Node
    begun: int
    end: int

    def part(self, rest: IndexRanges) -> IndexRanges:
        """Return what is wanted of this pass, given what is of all."""
        return rest.within(self.end).since(self.begun)


@dataclass(frozen=True, slots=True)
class _TakenBack:
    """Takes back what a cache has kept, when the epoch is cleared up."""

    node: StreamNode

    def close(self) -> None:
        self.node.undo_commit()


@final
class RepeatNode(PumpNode):
    """Passes over the part of the pipeline above, which is built anew for each.

    Args:
        times: number of passes; None for ever.
        build: gives the part above for a pass, most downstream first; called under the lock.
        look: looks again which caches are complete, before it; called without the lock.
        node_state: number of the first pass, and whether there were items before.
        later: where the stages above began, or are to begin, in later passes, by their numbers.

    Attributes:
        kept: of passes that caches have kept already, how many entries had come by their end,
            and the nodes of those caches; until the loop has had so many.
    """

    __slots__ = (
        "_begun", "_build", "_built", "_count", "_dry", "_later", "_look", "_moved", "_pass",
        "_past", "_times", "kept",
    )  # fmt: skip

    def __init__(
        self,
        runtime: StageRuntime,
        epoch: NodeEpoch,
        *,
        times: int | None,
        build: Callable[[int], Sequence[Node]],
        look: Callable[[], None],
        node_state: Mapping[str, Any],
        later: Mapping[int, StageStates],
    ) -> None:
        super().__init__(runtime, epoch)
        self._times = times
        self._later = later
        self._build = build
        self._look = look
        self._pass = self._built = node_state.get("pass", 0)
        self._dry = 0  # passes without items since the last one that had some
        self._moved: bool = node_state.get("moved", False)
        self._count = self._begun = 0  # entries, and those before the present pass
        self._past: deque[_PastPass] = deque()
        self.kept: list[tuple[int, Sequence[StreamNode]]] = []

    def rest_above(
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> Sequence[IndexRanges | None]:
        """Begin in the pass of the first entry that is wanted."""
        (rest,) = below.values()
        return (None if self._past_wanted(rest) else rest.since(self._begun),)

    def _past_wanted(self, rest: IndexRanges) -> list[_PastPass]:
        return [one for one in self._past if rest.start < one.end]

    def record_state(self, below: Mapping[int, IndexRanges], stages: StageStates) -> None:
        """Note where the stages above stand in each pass of which something is wanted."""
        (rest,) = below.values()
        passes = self._past_wanted(rest)
        node_state: dict[str, Any] = {"pass": self._built, "moved": self._moved}
        told: list[StageStates] = []
        if passes:
            first, *later = passes
            stages.update(stages_of(first.last, first.part(rest)))
            node_state = {"pass": first.number, "moved": True}
            later.append(_PastPass(self._built, self.upstream[0], self._begun, LONGEST))
            told += (self._part_of(one, rest) for one in later)
        to_come = range(self._built + 1, max(self._later, default=0) + 1)
        told += (self._later.get(number, {}) for number in to_come)
        while told and not told[-1]:
            told.pop()
        record_state(stages, self.runtime.address, node_state | ({"later": told} if told else {}))

    def _part_of(self, one: _PastPass, rest: IndexRanges) -> StageStates:
        """Tell where the stages of a later pass stand; nothing where it is to begin afresh."""
        part = one.part(rest)
        stages = stages_of(one.last, part, alone=True)
        return {} if part.is_all and one.number not in self._later else stages

    @property
    def has_kept(self) -> bool:
        """Whether a cache may have kept what the loop has not had."""
        return bool(self.kept or self._past)

    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Forget the passes of which nothing is wanted any more."""
        start = min(rest.start for rest in below.values())
        while self._past and self._past[0].end <= start:
            self._past.popleft()
        self.kept = [one for one in self.kept if one[0] > start]

    def leave(self, below: Mapping[int, IndexRanges]) -> None:
        """Have no pass kept of which the loop has not had everything, nor any within a pass."""
        (rest,) = below.values()
        for count, nodes in self.kept:
            if count > rest.start:
                self.epoch.pending_close += map(_TakenBack, nodes)
        for one in self._past:
            leave(one.last, rest.within(one.end).since(one.begun))

    def move(self, room: int) -> list[Entry]:
        """Move what is there; begin the next pass at the end."""
        above = self.upstream[0]
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
            self.end(above.error)
        elif self._times is None and not self._moved:
            self.end()  # for ever nothing
        elif self._times is None and self._dry == _DRY_PASSES:
            self.end(self._ran_dry())
        elif caches := keeping(nodes_above(self)):
            self.set_aside(lambda: self._keep(caches), self._turn)
        else:
            self._turn()
        return []

    def _keep(self, nodes: Sequence[StreamNode]) -> None:
        """Let caches keep what the pass made: on a disk, that takes its time."""
        self.kept.append((self._count, nodes))
        for node in nodes:
            node.commit()
        self._look()

    def _turn(self) -> None:
        """Begin the next pass."""
        self._past.append(_PastPass(self._built, self.upstream[0], self._begun, self._count))
        self._begun, self._built = self._count, self._pass
        self.epoch.replace(self, self._build(self._pass))

    def _ran_dry(self) -> ArgumentError:
        return ArgumentError(
            f"{self.runtime.address} for ever must have items to go on with, got none in "
            f"{_DRY_PASSES} passes; check that the source can be read again, or give repeat(n)"
        )
