"""Rest: which items of a stream are still wanted, by their numbers alone."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from .errors import StateError
from .index_order import Rows

Run = tuple[int, int]  # numbers from the first one to below the second


@final
@dataclass(frozen=True, slots=True)
class Rest:
    """The items of a stream from number `start` on, but for those in `holes`.

    Attributes:
        start: number of the first item that is wanted.
        holes: runs of later items that are not, in ascending order and apart from one another.
    """

    start: int = 0
    holes: tuple[Run, ...] = ()

    @classmethod
    def of(cls, start: int, holes: Iterable[Run]) -> Rest:
        """Join runs that touch, in ascending order of their beginnings, and what `start` meets."""
        joined: list[Run] = []
        for first, end in holes:
            if first <= start:
                start = max(start, end)
            elif joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            elif first < end:
                joined.append((first, end))
        return cls(start, tuple(joined))

    @classmethod
    def only(cls, wanted: Iterable[int], frontier: int) -> Rest:
        """Want the numbers given, in ascending order, and all from `frontier` on."""
        holes: list[Run] = []
        following = 0
        for number in itertools.chain(wanted, (frontier,)):
            if number > following:
                holes.append((following, number))
            following = number + 1
        return cls.of(0, holes)

    @classmethod
    def read(cls, data: Any) -> Rest:
        """Read what `data` wrote.

        Raises:
            StateError: something else stands there.
        """
        try:
            start, holes = data
            runs = [(first, end) for first, end in holes]
            if not all(type(n) is int and n >= 0 for n in (start, *itertools.chain(*runs))):
                raise ValueError
        except (TypeError, ValueError):
            raise StateError(
                f"a position in a state must be [start, [[first, end], ...]], got {data!r}; give "
                "what run.state_dict() returned"
            ) from None
        return cls.of(start, sorted(runs))

    @property
    def data(self) -> list[Any]:
        """The numbers as JSON-ready lists."""
        return [self.start, [list(run) for run in self.holes]]

    @property
    def is_all(self) -> bool:
        """Whether every item is wanted."""
        return not self.start and not self.holes

    @property
    def left_out(self) -> int:
        """Items that are not wanted."""
        return self.start + sum(end - first for first, end in self.holes)

    def moved(self, by: int) -> Rest:
        """Count the stream from another beginning."""
        return Rest(self.start + by, tuple((first + by, end + by) for first, end in self.holes))

    def behind_start(self) -> Rest:
        """Count from the first item that is wanted."""
        return self.moved(-self.start)

    def since(self, begun: int) -> Rest:
        """Give what is wanted from number `begun` on, counted from there."""
        holes = [(max(0, first - begun), end - begun) for first, end in self.holes]
        return Rest.of(max(0, self.start - begun), [run for run in holes if run[1] > 0])

    def until(self, end: int) -> Rest:
        """Forget what is not wanted from number `end` on."""
        holes = [(first, min(after, end)) for first, after in self.holes if first < end]
        return Rest(self.start, tuple(holes))

    def first_from(self, number: int) -> int:
        """Give the first wanted number that is not below `number`."""
        number = max(number, self.start)
        place = bisect_right(self.holes, (number, 2**63)) - 1
        return number if place < 0 else max(number, self.holes[place][1])

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int) or number < self.start:
            return False
        place = bisect_right(self.holes, (number, 2**63)) - 1
        return place < 0 or number >= self.holes[place][1]

    def numbers(self, end: int) -> Iterator[int]:
        """Give the wanted numbers below `end`."""
        at = self.start
        for first, after in self.holes:
            yield from range(at, min(first, end))
            at = after
        yield from range(at, end)

    def runs(self) -> Iterator[tuple[int, int | None]]:
        """Give the runs of wanted numbers; the last one has no end."""
        at = self.start
        for first, end in self.holes:
            yield at, first
            at = end
        yield at, None

    def places(self) -> tuple[list[int], list[int]]:
        """Give for each run of wanted items its first number, and how many are wanted before."""
        firsts, counts, count = [], [], 0
        for first, end in self.runs():
            firsts.append(first)
            counts.append(count)
            count += 0 if end is None else end - first
        return firsts, counts

    def of_wanted(self, inner: Rest) -> Rest:
        """Want only part of this: `inner` counts the items that are wanted here."""
        if self.is_all or inner.is_all:
            return inner if self.is_all else self
        firsts, counts = self.places()

        def outer(number: int) -> int:
            run = bisect_right(counts, number) - 1
            return firsts[run] + number - counts[run]

        holes = [(outer(first), outer(end - 1) + 1) for first, end in inner.holes]
        return Rest.of(outer(inner.start), sorted((*holes, *self.holes)))

    def ranked(self, other: Rest) -> Rest:
        """Count what `other` wants among what is wanted here: `of_wanted` the other way."""
        firsts, counts = self.places()

        def inner(number: int) -> int:
            run = max(0, bisect_right(firsts, number) - 1)
            inside = max(0, number - firsts[run])
            most = counts[run + 1] - counts[run] if run + 1 < len(counts) else inside
            return counts[run] + min(inside, most)

        return Rest.of(inner(other.start), [(inner(a), inner(b)) for a, b in other.holes])

    def pick(self, rows: Rows) -> Rows:
        """Give the numbers of the wanted items `rows`, an array of shape (n,) int64."""
        firsts, counts = (np.array(one, np.int64) for one in self.places())
        run = np.searchsorted(counts, rows, side="right") - 1
        found: Rows = firsts[run] + rows - counts[run]
        return found
