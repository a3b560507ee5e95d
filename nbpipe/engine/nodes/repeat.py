"""RepeatNode: the passes of a `repeat` after stages that are built again for each pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from ...base.seeding import Entry
from ...errors import ArgumentError
from ...ops.index import LONGEST
from ...ops.ranges import IndexRanges
from ..measures.counters import StageRuntime
from .node import Node, NodeEpoch
from .provenance import Provenance, StageStates, record_state
from .pumps import PumpNode
from .stream import StreamNode, keeping
from .walk import leave, nodes_above, stages_of

_DRY_PASSES = 100  # a filter may drop all of a few passes by chance, not of so many


@final
class RepeatNode(PumpNode):
    """Repeats the part of the pipeline above, which is built again for each pass.

    Args:
        times: number of passes; None for ever.
        build: returns the nodes above for a pass, most downstream first; called under the lock.
        check_caches: checks which caches are complete, before that; called without the lock.
        node_state: number of the first pass, and whether there were items before.
        later: states of the stages above in later passes, by the number of the pass.

    Attributes:
        log: the provenance.
    """

    __slots__ = ("_build", "_check_caches", "_dry", "_pass", "_times", "log")

    def __init__(
        self,
        runtime: StageRuntime,
        epoch: NodeEpoch,
        *,
        times: int | None,
        build: Callable[[int], Sequence[Node]],
        check_caches: Callable[[], None],
        node_state: Mapping[str, Any],
        later: Mapping[int, StageStates],
    ) -> None:
        self.log = PassLog(self, epoch, node_state, later)
        super().__init__(runtime, epoch, self.log)
        self._times = times
        self._build = build
        self._check_caches = check_caches
        self._pass = self.log.number
        self._dry = 0  # passes without items since the last one that had some

    def move(self, room: int) -> list[Entry]:
        """Move the items that are there; begin the next pass at the end."""
        above = self.upstream[0]
        count = min(room, len(above.out))
        if count:
            self._dry = -1
            self.log.record(count)
            return [above.out.popleft() for _ in range(count)]
        if not above.done:
            return []
        self._pass += 1
        self._dry += 1
        if above.error is not None or self._pass == self._times:
            self.end(above.error)
        elif self._times is None and not self.log.moved:
            self.end()  # all further passes would be empty, too
        elif self._times is None and self._dry == _DRY_PASSES:
            self.end(self._ran_dry())
        elif caches := keeping(nodes_above(self)):
            self.do_slowly(lambda: self._commit(caches), self._turn)
        else:
            self._turn()
        return []

    def _commit(self, caches: Sequence[StreamNode]) -> None:
        """Let caches keep what the pass made; without the lock: a disk may be slow."""
        self.log.committed(caches)
        for node in caches:
            node.commit()
        self._check_caches()

    def _turn(self) -> None:
        """Begin the next pass."""
        self.log.turn(self._pass)
        self.epoch.replace(self, self._build(self._pass))

    def _ran_dry(self) -> ArgumentError:
        return ArgumentError(
            f"{self.runtime.address} for ever must have items to continue with, got none in "
            f"{_DRY_PASSES} passes; check that the source can be read again, or give repeat(n)"
        )


@dataclass(frozen=True, slots=True)
class _PastPass:
    """A pass that was moved to its end; its entries are those from `begun` to below `end`."""

    number: int
    last: Node
    begun: int
    end: int

    def part(self, rest: IndexRanges) -> IndexRanges:
        """Return the wanted results of this pass, given those of all passes."""
        return rest.within(self.end).since(self.begun)


@dataclass(frozen=True, slots=True)
class _UndoCommit:
    """Undoes what a cache has kept, when the epoch is cleared up."""

    node: StreamNode

    def close(self) -> None:
        self.node.undo_commit()


@final
class PassLog(Provenance):
    """The pass that each result came from.

    Args:
        node: the repeat.
        node_state: number of the first pass, and whether there were items before.
        later: states of the stages above in later passes, by the number of the pass.

    Attributes:
        number: of the present pass.
        moved: there were items in some pass.
    """

    __slots__ = (
        "_begun", "_committed", "_count", "_epoch", "_later", "_node", "_past", "moved", "number",
    )  # fmt: skip

    def __init__(
        self,
        node: RepeatNode,
        epoch: NodeEpoch,
        node_state: Mapping[str, Any],
        later: Mapping[int, StageStates],
    ) -> None:
        self._node = node
        self._epoch = epoch
        self._later = later
        self.number: int = node_state.get("pass", 0)
        self.moved: bool = node_state.get("moved", False)
        self._count = self._begun = 0  # results, and those before the present pass
        self._past: deque[_PastPass] = deque()
        # Until the loop has had that many: results by the end of a pass that caches have kept.
        self._committed: list[tuple[int, Sequence[StreamNode]]] = []

    def record(self, count: int) -> None:
        """Add results of the present pass."""
        self.moved = True
        self._count += count

    def committed(self, caches: Sequence[StreamNode]) -> None:
        """Add the caches that keep the present pass, which has ended."""
        self._committed.append((self._count, caches))

    def turn(self, number: int) -> None:
        """Begin the next pass."""
        self._past.append(_PastPass(self.number, self._node.upstream[0], self._begun, self._count))
        self._begun, self.number = self._count, number

    def rest_above(
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> Sequence[IndexRanges | None]:
        """Want the rest of the present pass; nothing where a past one is still wanted."""
        (rest,) = below.values()
        return (None if self._past_wanted(rest) else rest.since(self._begun),)

    def _past_wanted(self, rest: IndexRanges) -> list[_PastPass]:
        return [one for one in self._past if rest.start < one.end]

    def record_state(self, below: Mapping[int, IndexRanges], stages: StageStates) -> None:
        """Record the states of the stages above in each pass of which something is wanted."""
        (rest,) = below.values()
        passes = self._past_wanted(rest)
        node_state: dict[str, Any] = {"pass": self.number, "moved": self.moved}
        later: list[StageStates] = []
        if passes:
            first, *others = passes
            stages.update(stages_of(first.last, first.part(rest)))
            node_state = {"pass": first.number, "moved": True}
            others.append(_PastPass(self.number, self._node.upstream[0], self._begun, LONGEST))
            later += (self._states_in(one, rest) for one in others)
        to_come = range(self.number + 1, max(self._later, default=0) + 1)
        later += (self._later.get(number, {}) for number in to_come)
        while later and not later[-1]:
            later.pop()
        node_state |= {"later": later} if later else {}
        record_state(stages, self._node.runtime.address, node_state)

    def _states_in(self, one: _PastPass, rest: IndexRanges) -> StageStates:
        """Return the states of the stages in a later pass; none if it begins at its first item."""
        part = one.part(rest)
        stages = stages_of(one.last, part, with_earlier=False)
        return {} if part.is_all and one.number not in self._later else stages

    @property
    def has_committed(self) -> bool:
        """Whether a cache may have kept what the loop has not had."""
        return bool(self._committed or self._past)

    def forget_before(self, start: int) -> None:
        """Forget the passes before result `start`."""
        while self._past and self._past[0].end <= start:
            self._past.popleft()
        self._committed = [one for one in self._committed if one[0] > start]

    def leave(self, below: Mapping[int, IndexRanges]) -> None:
        """Undo the caches of passes that the loop did not have as a whole."""
        (rest,) = below.values()
        for count, caches in self._committed:
            if count > rest.start:
                self._epoch.pending_close += map(_UndoCommit, caches)
        for one in self._past:
            leave(one.last, rest.within(one.end).since(one.begun))
