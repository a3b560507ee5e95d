"""Pumps: joins, `repeat` and `route` move items between queues, under the lock."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from ...base.checks import refuse_coroutine
from ...base.seeding import Entry
from ...errors import ArgumentError
from ...ops.join import ChoiceLog, Join
from ...ops.ranges import IndexRanges
from ...ops.route import Route
from ..measures.counters import CHEAP_NS, StageRuntime, most_at_once
from .node import Node, NodeEpoch, Runner, Task, cut_off
from .provenance import Provenance, StageStates, record_state
from .step import Chunk


# -- PumpNode: moves items between queues ----------------------------------------------------------
# Joins (`ops/join.py`), `repeat` and the two ends of `route` are pumps, which differ in what they
# move next. Every decision depends only on what the inputs hold and whether they are done, never on
# timing, so the order is deterministic. They call no user code under the lock.
class SlowRunner(Runner):
    """Does what a pump may not do under the lock.

    Attributes:
        work: the function to call, or None.
        then: called under the lock, once that is done.
        error: what `work` raised.
    """

    __slots__ = ("error", "then", "work")

    def __init__(self, epoch: NodeEpoch) -> None:
        super().__init__(epoch)
        self.work: Callable[[], None] | None = None
        self.then: Callable[[], None] | None = None
        self.error: BaseException | None = None

    def run(self, task: Task) -> None:
        """Call the function."""
        assert self.work is not None
        try:
            self.work()
        except BaseException as error:  # it ends the stream, in its place
            self.error = error


class PumpNode(Node):
    """A node without tasks, except for slow work that has to be done without the lock."""

    __slots__ = ("_slow",)

    def __init__(
        self, runtime: StageRuntime, epoch: NodeEpoch, provenance: Provenance | None = None
    ) -> None:
        self._slow = SlowRunner(epoch)
        super().__init__(runtime, epoch, self._slow, provenance=provenance or Provenance())

    @abstractmethod
    def move(self, room: int) -> list[Entry]:
        """Take at most `room` entries from the inputs; end the node where it is over."""

    def do_slowly(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Let a thread call `work` without the lock; nothing is moved meanwhile.

        Args:
            work: an exception of it ends the stream here.
            then: called under the lock, once that is done.
        """
        self._slow.work, self._slow.then = work, then
        self.active_without_input = self.epoch.changed = True

    def pump(self, now_ns: int) -> bool:
        """Move what can be moved; return whether anything changed."""
        if self.done or self.halted or self._slow.work is not None:
            return False
        room = self.room()
        if room > 0 and all(above.comes_in_chunks(CHEAP_NS) for above in self.upstream):
            room = most_at_once(self.runtime.prefetch)
        entries = self.move(room) if room > 0 else []
        if entries:
            self.counts.items_in += len(entries)
            self.emit(Chunk.of(entries), now_ns)
            self.freed(now_ns)
        return bool(entries) or self.done

    def take(self, now_ns: int) -> Task | None:
        """Return the task of slow work."""
        return self.started(Task(self, 0, now_ns), now_ns) if self.runnable() else None

    def runnable(self) -> bool:
        """Return whether slow work waits for a thread."""
        return self._slow.work is not None and not (self.running or self.done or self.halted)

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Continue after slow work."""
        slow = self._slow
        then, slow.work, slow.then = slow.then, None, None
        self.active_without_input = False
        if self.done or self.halted or then is None:
            return
        if slow.error is not None:
            self.end(slow.error)
        else:
            then()

    def comes_in_chunks(self, slow_ns: int) -> bool:
        """Return whether results of all nodes above are so cheap."""
        return all(above.comes_in_chunks(slow_ns) for above in self.upstream)

    def has_input(self) -> bool:
        """Return whether any input has something."""
        return any(above.out.count for above in self.upstream)

    def exhausted(self) -> bool:
        """Leave the end to `move`."""
        return False

    def end(self, error: BaseException | None = None) -> None:
        """End the stream here, and stop the inputs."""
        self.epoch.halt(self.upstream)
        self.error = error
        self.finish()


# -- JoinNode: hosts a join ------------------------------------------------------------------------
@final
class JoinNode(PumpNode):
    """Moves what a join takes from the nodes above, which are its inputs.

    Args:
        join: decides what is next.
        inputs: number of inputs.
    """

    __slots__ = ("_join",)

    def __init__(self, runtime: StageRuntime, epoch: NodeEpoch, join: Join, inputs: int) -> None:
        super().__init__(runtime, epoch, JoinLog(runtime.address, join, inputs))
        self._join = join

    def move(self, room: int) -> list[Entry]:
        """Move what is next; open inputs that the join needs, and end where it does."""
        join, above = self._join, self.upstream
        entries = join.take(above, room)
        if join.wanted:
            self.epoch.open([above[number] for number in join.wanted])
            join.wanted.clear()
        if join.over:
            for number in join.unread:
                cut_off(above[number])
            self.end(join.error)
        return entries


@final
class JoinLog(Provenance):
    """Provenance that a join keeps itself."""

    __slots__ = ("_address", "_inputs", "_join")

    def __init__(self, address: str, join: Join, inputs: int) -> None:
        self._address = address
        self._join = join
        self._inputs = inputs

    def rest_above(
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> Sequence[IndexRanges | None]:
        """Ask the join."""
        (rest,) = below.values()
        node_state: dict[str, Any] = {}
        rests = self._join.rest_of_inputs(rest, self._inputs, node_state)
        record_state(stages, self._address, node_state)
        return rests

    def forget_before(self, start: int) -> None:
        """Forget everything before result `start`, in the join."""
        self._join.forget(start)


# -- Route: items are divided by a key, and merged again in input order ----------------------------
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
        """Take nothing: the `Demux` puts items here."""
        return []

    def exhausted(self) -> bool:
        """Return True: it ends with the `Demux`."""
        return True


@final
class Demux(PumpNode):
    """Moves each item to the output that its key chose, and records the order.

    Args:
        outputs: the beginnings of the branches.

    Attributes:
        order: for each item between here and the `Mux`, the number of its branch.
    """

    __slots__ = ("_choices", "_outputs", "order")

    def __init__(self, runtime: StageRuntime, epoch: NodeEpoch, outputs: list[RouteOutput]) -> None:
        self._choices = ChoiceLog(len(outputs))
        super().__init__(runtime, epoch, DemuxLog(self._choices, outputs))
        self._outputs = outputs
        self.order: deque[int] = deque()

    def move(self, room: int) -> list[Entry]:
        """Fill the outputs while the next one has room."""
        (above,), epoch = self.upstream, self.epoch
        queue = above.out
        while queue.count:
            branch, value = queue.first_value
            output = self._outputs[branch]
            if output.room() <= 0:
                return []
            entry = queue.popleft()
            output.emit(Chunk.of([(entry[0], value, *entry[2:])]), epoch.now_ns)
            self.order.append(branch)
            self._choices.record(branch)
            epoch.changed = True
        if above.done:
            self.done = epoch.changed = True
            for output in self._outputs:
                output.end_of_input(above.error)
        return []


@final
class DemuxLog(Provenance):
    """The output that each item went to."""

    __slots__ = ("_choices", "_outputs")

    def __init__(self, choices: ChoiceLog, outputs: Sequence[RouteOutput]) -> None:
        self._choices = choices
        self._outputs = outputs

    def rest_above(
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> Sequence[IndexRanges | None]:
        """Want what any output wants."""
        return (self._choices.gathered([below[id(output)] for output in self._outputs]),)

    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Forget everything before the first item that an output still wants."""
        (rest,) = self.rest_above(below, {})
        assert rest is not None
        self._choices.forget(rest.start)


@final
class Branch:
    """How far one branch of a route is.

    Args:
        output: where its items begin.
        last: its last node.

    Attributes:
        last: that node.
        taken: results that were taken from it.
        passed: items that give no further result.
    """

    __slots__ = ("_nodes", "last", "passed", "taken")

    def __init__(self, output: RouteOutput, last: Node) -> None:
        self.last = last
        self.taken = self.passed = 0
        nodes: list[Node] = []
        while last is not output:
            nodes.append(last)
            last = last.head if isinstance(last, Mux) else last.upstream[0]
        self._nodes = tuple(nodes)

    def reached(self) -> int:
        """Return the item that completed the next result, or may still complete it."""
        number = self.taken
        for node in self._nodes:
            number = node.provenance.input_of(number)
        return number


@final
class Mux(PumpNode):
    """Takes the results of branches in the order in which the items were divided.

    Each result takes the position of the item that completed it; a batch, that of its last item.
    What a branch gives at its end, such as a batch that is not full, comes after all of that,
    branch by branch.

    Args:
        demux: divides the items between the branches.
        branches: those.
    """

    __slots__ = ("_branches", "_demux", "_log")

    def __init__(
        self, runtime: StageRuntime, epoch: NodeEpoch, demux: Demux, branches: list[Branch]
    ) -> None:
        self._log = MuxLog(len(branches))
        super().__init__(runtime, epoch, self._log)
        self._demux = demux
        self._branches = branches

    @property
    def head(self) -> Node:
        """The node that chooses branches."""
        return self._demux.upstream[0]

    def move(self, room: int) -> list[Entry]:
        """Move from the branch whose turn it is."""
        moved: list[Entry] = []
        log, order = self._log, self._demux.order
        before = log.passed
        while order and len(moved) < room:
            branch = self._branches[order[0]]
            if branch.reached() > branch.passed:
                branch.passed += 1
                log.passed += 1
                order.popleft()
            elif branch.last.out.count:
                moved.append(self._next_of(order[0]))
            else:
                if branch.last.done and not moved:
                    self.end(branch.last.error)
                break
        if not order and self._demux.done:
            self._move_last(moved, room)
        if log.passed > before and not moved:
            self.epoch.changed = True
        return moved

    def _next_of(self, number: int) -> Entry:
        branch = self._branches[number]
        branch.taken += 1
        self._log.record(number)
        return branch.last.out.popleft()

    def _move_last(self, moved: list[Entry], room: int) -> None:
        """Move what each branch gives at its end; end with the first error, or after the last."""
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


@final
class MuxLog(Provenance):
    """The branch that each result came from, and the item that completed it.

    Args:
        branches: number of branches.

    Attributes:
        passed: items that give no further result.
    """

    __slots__ = ("_base", "_choices", "_inputs", "passed")

    def __init__(self, branches: int) -> None:
        self._choices = ChoiceLog(branches)
        self.passed = 0
        self._inputs = array("q")  # for each result from `_base` on, the number of its item
        self._base = 0

    def record(self, branch: int) -> None:
        """Add a result of a branch."""
        self._choices.record(branch)
        self._inputs.append(self.passed)

    def rest_above(
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> Sequence[IndexRanges | None]:
        """Divide the wanted results between the branches."""
        (rest,) = below.values()
        return self._choices.parted(rest)[0]

    def input_of(self, result: int) -> int:
        """Return the item, among all of the route, that completed a result."""
        at = result - self._base
        return self._inputs[at] if at < len(self._inputs) else self.passed

    def forget_before(self, start: int) -> None:
        """Forget everything before result `start`."""
        self._choices.forget(start)
        del self._inputs[: max(0, start - self._base)]
        self._base = max(start, self._base)
