"""Rest: which items of a stream are still wanted, by their numbers alone."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .errors import StateError
from .index_order import Rows
from .text import shortened

_MOST = 2**62

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
    def of_arrays(cls, start: int, firsts: Rows, ends: Rows) -> Rest:
        """Join runs as `of` does, in any order, as two arrays of shape (n,) int64."""
        order = np.argsort(firsts, kind="stable")
        firsts, ends = firsts[order], np.maximum.accumulate(ends[order])
        reach = np.maximum(start, np.append(start, ends[:-1]))  # how far those before it go
        beyond = firsts > reach
        met = int(beyond.argmax()) if beyond.any() else len(firsts)
        start = max(start, int(ends[met - 1])) if met else start
        firsts, ends = firsts[met:], ends[met:]
        apart = np.ones(len(firsts), bool)
        apart[1:] = firsts[1:] > ends[:-1]
        lasts = ends[np.append(apart[1:], True)] if len(ends) else ends
        return cls(start, tuple(zip(firsts[apart].tolist(), lasts.tolist(), strict=True)))

    @classmethod
    def only(cls, wanted: Iterable[int] | Rows, frontier: int) -> Rest:
        """Want the numbers given, in ascending order, and all from `frontier` on."""
        numbers = np.fromiter(wanted, np.int64) if not isinstance(wanted, np.ndarray) else wanted
        firsts, ends = np.append(-1, numbers) + 1, np.append(numbers, frontier)
        holes = firsts < ends
        return cls.of_arrays(0, firsts[holes], ends[holes])

    @classmethod
    def read(cls, data: Any) -> Rest:
        """Read what `data` wrote.

        Raises:
            StateError: something else stands there.
        """
        try:
            start, holes = data
            runs = [(first, end) for first, end in holes]
        except (TypeError, ValueError):
            start, runs = None, []
        numbers = (start, *itertools.chain(*runs))
        if not all(type(number) is int and 0 <= number < _MOST for number in numbers):
            raise StateError(
                "a position in a state must be [start, [[first, end], ...]], got "
                f"{shortened(repr(data))}; give what run.state_dict() returned"
            )
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

    def within(self, count: int) -> Rest:
        """Say the same of a stream that has `count` items."""
        holes = [(first, min(end, count)) for first, end in self.holes if first < count]
        return Rest(min(self.start, count), tuple(holes))

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

    @property
    def arrays(self) -> tuple[Rows, Rows]:
        """The beginnings and the ends of the holes, arrays of shape (n,) int64."""
        flat = np.fromiter(itertools.chain.from_iterable(self.holes), np.int64)
        return flat[::2], flat[1::2]

    def places(self) -> tuple[Rows, Rows]:
        """Give for each run of wanted items its first number, and how many are wanted before."""
        firsts, ends = self.arrays
        begins = np.append(self.start, ends)
        return begins, np.append(0, np.cumsum(firsts - begins[:-1]))

    def of_wanted(self, inner: Rest) -> Rest:
        """Want only part of this: `inner` counts the items that are wanted here."""
        if self.is_all or inner.is_all:
            return inner if self.is_all else self
        (start,) = self.pick(np.array([inner.start])).tolist()
        firsts, ends = inner.arrays
        mine = self.arrays
        holes = np.append(self.pick(firsts), mine[0]), np.append(self.pick(ends - 1) + 1, mine[1])
        return Rest.of_arrays(start, *holes)

    def mask(self, begin: int, count: int) -> NDArray[np.bool_]:
        """Say of `count` numbers from `begin` on whether they are wanted, as shape (count,)."""
        steps = np.zeros(count + 1, np.int64)
        firsts, ends = (np.clip(one - begin, 0, count) for one in self.arrays)
        np.add.at(steps, firsts, 1)
        np.add.at(steps, ends, -1)
        wanted: NDArray[np.bool_] = np.cumsum(steps[:-1]) == 0
        wanted[: max(0, self.start - begin)] = False
        return wanted

    def both(self, other: Rest) -> Rest:
        """Want what both want."""
        firsts, ends = (np.append(*pair) for pair in zip(self.arrays, other.arrays, strict=True))
        return Rest.of_arrays(max(self.start, other.start), firsts, ends)

    def ranked(self, other: Rest) -> Rest:
        """Count what `other` wants among what is wanted here: `of_wanted` the other way."""
        begins, counts = self.places()
        most = np.append(np.diff(counts), _MOST)

        def inner(numbers: Rows) -> Rows:
            run = np.maximum(0, np.searchsorted(begins, numbers, side="right") - 1)
            found: Rows = counts[run] + np.clip(numbers - begins[run], 0, most[run])
            return found

        (start,) = inner(np.array([other.start])).tolist()
        firsts, ends = map(inner, other.arrays)
        return Rest.of_arrays(start, firsts[firsts < ends], ends[firsts < ends])

    def pick(self, rows: Rows) -> Rows:
        """Give the numbers of the wanted items `rows`, an array of shape (n,) int64."""
        begins, counts = self.places()
        run = np.searchsorted(counts, rows, side="right") - 1
        found: Rows = begins[run] + rows - counts[run]
        return found
