"""RepeatMover: the passes of a `repeat` behind stages that are built anew for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from ..rest import Rest
from .join import Mover, PumpNode
from .node import Node
from .noting import Stages, note
from .standing import stages_of
from .stream import StreamNode
from .task import Entry

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
        stands: number of the first pass, and whether there were items before.
    """

    def __init__(
        self,
        times: int | None,
        build: Callable[[int], Sequence[Node]],
        look: Callable[[], None],
        stands: Mapping[str, Any],
    ) -> None:
        self._times = times
        self._build = build
        self._look = look
        self._pass = self._built = stands.get("pass", 0)
        self._dry = 0  # passes without items since the last one that had some
        self._moved: bool = stands.get("moved", False)
        self._count = self._begun = 0  # entries, and those before the present pass
        self._past: deque[_Pass] = deque()

    def rest_above(
        self, node: PumpNode, below: Mapping[int, Rest], stages: Stages
    ) -> Sequence[Rest | None]:
        """Begin in the pass of the first entry that is wanted."""
        (rest,) = below.values()
        address = node.lane.address
        found = next((one for one in self._past if rest.start < one.end), None)
        if found is None:
            note(stages, address, {"pass": self._built, "moved": self._moved})
            return (rest.since(self._begun),)
        stands: dict[str, Any] = {"pass": found.number, "moved": True}
        stages.update(stages_of(found.last, rest.until(found.end).since(found.begun)))
        later = [(a, b) for a, b in rest.holes if b > found.end]
        if later:
            left_out = rest.until(found.end).left_out
            runs = [(max(a, found.end) - left_out, b - left_out) for a, b in later]
            stands["drop"] = Rest.of(0, runs).data
        note(stages, address, stands)
        return (None,)

    def forget(self, below: Mapping[int, Rest]) -> None:
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
            f"{node.lane.address} for ever must have items to go on with, got none in "
            f"{_DRY_PASSES} passes; check that the source can be read again, or give repeat(n)"
        )
