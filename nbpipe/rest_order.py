"""RestOrder: what is left of an index order, from a place in its middle on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .index_order import Order, Picked, Rows
from .index_steps import Epoch, OneInner
from .rest import Rest
from .seeding import Path


class RestOrder(Order):
    """The rows of another order that are still wanted, with the paths they had."""

    __slots__ = ("_child", "_rest")

    def __init__(self, child: Order, rest: Rest) -> None:
        self._follow(child)
        self.straight = False
        self._child = child
        self._rest = rest
        if child.length is not None:
            self.length = _count(rest, child.length)

    def run(self, row: int) -> Iterator[tuple[Path, Any]] | None:
        """Iterate in C where nothing but the beginning is left out."""
        return None if self._rest.holes else self._child.run(self._rest.start + row)

    def pick(self, rows: Rows) -> Picked:
        """Give the child's rows that are wanted."""
        return self._child.pick(self._rest.pick(rows))


def _count(rest: Rest, length: int) -> int:
    holes = sum(min(end, length) - first for first, end in rest.holes if first < length)
    return max(0, length - rest.start - holes)


@dataclass(frozen=True, slots=True, eq=False)
class Left(OneInner):
    """What is left of the rows of the step before."""

    rest: Rest

    def open(self, epoch: Epoch) -> Order:
        """Leave out what is not wanted."""
        return RestOrder(self.step.open(epoch), self.rest)

    def words(self) -> str:
        """Say where it begins."""
        return f"{self.step.words()}, from row {self.rest.start}"
