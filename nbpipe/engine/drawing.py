"""Joins that draw: `mix` by weight, `interleave` by turns."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..rest import Rest
from ..stands import check_below
from .join import Mover, PumpNode, cut_others, from_input
from .logs import Draws
from .node import Node
from .noting import Stages
from .task import Entry

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
        self, node: PumpNode, below: Mapping[int, Rest], stages: Stages
    ) -> Sequence[Rest | None]:
        """Part what is wanted by the inputs that were drawn."""
        (rest,) = below.values()
        rests, again = self.draws.parted(rest)
        stands = {"again": [*again, *self.again], **self.stands()}
        stages.setdefault(node.lane.address, {}).update(stands)
        return rests

    @abstractmethod
    def stands(self) -> dict[str, Any]:
        """Say from where the drawing goes on; JSON-ready."""

    def forget(self, below: Mapping[int, Rest]) -> None:
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
            if above.out:
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
        stands: what `stands()` gave.
    """

    def __init__(
        self,
        address: str,
        weights: Sequence[float],
        rng: np.random.Generator,
        *,
        shortest: bool,
        stands: Mapping[str, Any],
    ) -> None:
        super().__init__(address, len(weights), stands.get("again", ()))
        left = stands.get("open", range(len(weights)))
        check_below(address, "open", left or (len(weights),), len(weights))
        self._weights = {number: weights[number] for number in left}
        self._rng = rng
        self._draws: int = stands.get("draws", 0)
        self._shortest = shortest
        self._next: int | None = None
        for begun in range(0, self._draws, _AT_ONCE):
            rng.random(min(_AT_ONCE, self._draws - begun))

    def stands(self) -> dict[str, Any]:
        """Say how often was drawn, and from what."""
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
            if above.out:
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
        stands: what `stands()` gave.
    """

    def __init__(self, address: str, count: int, cycle: int, stands: Mapping[str, Any]) -> None:
        super().__init__(address, count, stands.get("again", ()))
        self._open: list[int] = list(stands.get("open", range(min(cycle, count))))
        self._following: int = stands.get("following", len(self._open))
        self._count = count
        self._turn: int = stands.get("turn", 0)
        check_below(address, "open", self._open, count)
        check_below(address, "turn", (self._turn,), len(self._open) or 1)

    @property
    def at_first(self) -> set[int]:
        """Inputs that are to be open when the epoch begins."""
        return {*self._open, *self.again}

    def stands(self) -> dict[str, Any]:
        """Say which inputs are open, and whose turn it is."""
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
            if above.out:
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
