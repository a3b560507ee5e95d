"""IndexRanges: the items of a stream that are left, by number; StatefulOp: its one pass."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..base.seeding import Entry

Indices: TypeAlias = NDArray[np.int64]
_MOST = 2**62

Span = tuple[int, int]  # numbers from the first one to below the second


@final
@dataclass(frozen=True, slots=True)
class IndexRanges:
    """The items of a stream from number `start` on, but for those in `gaps`.

    Attributes:
        start: number of the first item that is wanted.
        gaps: runs of later items that are not, in ascending order and apart from one another.
    """

    start: int = 0
    gaps: tuple[Span, ...] = ()

    @classmethod
    def of(cls, start: int, gaps: Iterable[Span]) -> IndexRanges:
        """Join runs that touch, in ascending order of their beginnings, and what `start` meets."""
        joined: list[Span] = []
        for first, end in gaps:
            if first <= start:
                start = max(start, end)
            elif joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            elif first < end:
                joined.append((first, end))
        return cls(start, tuple(joined))

    @classmethod
    def of_arrays(cls, start: int, firsts: Indices, ends: Indices) -> IndexRanges:
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
    def only(cls, wanted: Iterable[int] | Indices, frontier: int) -> IndexRanges:
        """Want the numbers given, in ascending order, and all from `frontier` on."""
        numbers = np.fromiter(wanted, np.int64) if not isinstance(wanted, np.ndarray) else wanted
        firsts, ends = np.append(-1, numbers) + 1, np.append(numbers, frontier)
        gaps = firsts < ends
        return cls.of_arrays(0, firsts[gaps], ends[gaps])

    @classmethod
    def read(cls, data: Any) -> IndexRanges:
        """Read what `data` wrote."""
        start, gaps = data
        return cls.of(start, sorted((first, end) for first, end in gaps))

    @property
    def data(self) -> list[Any]:
        """The numbers as JSON-ready lists."""
        return [self.start, [list(run) for run in self.gaps]]

    @property
    def is_all(self) -> bool:
        """Whether every item is wanted."""
        return not self.start and not self.gaps

    @property
    def left_out(self) -> int:
        """Items that are not wanted."""
        return self.start + sum(end - first for first, end in self.gaps)

    def moved(self, by: int) -> IndexRanges:
        """Count the stream from another beginning."""
        return IndexRanges(
            self.start + by, tuple((first + by, end + by) for first, end in self.gaps)
        )

    def behind_start(self) -> IndexRanges:
        """Count from the first item that is wanted."""
        return self.moved(-self.start)

    def since(self, begun: int) -> IndexRanges:
        """Return the needed numbers from `begun` on, counted from there."""
        gaps = [(max(0, first - begun), end - begun) for first, end in self.gaps]
        return IndexRanges.of(max(0, self.start - begun), [run for run in gaps if run[1] > 0])

    def within(self, count: int) -> IndexRanges:
        """Tell the same of a stream that has `count` items."""
        gaps = [(first, min(end, count)) for first, end in self.gaps if first < count]
        return IndexRanges(min(self.start, count), tuple(gaps))

    def first_from(self, number: int) -> int:
        """Return the first wanted number that is not below `number`."""
        number = max(number, self.start)
        place = bisect_right(self.gaps, (number, 2**63)) - 1
        return number if place < 0 else max(number, self.gaps[place][1])

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first_from(number) == number

    def numbers(self, end: int) -> Iterator[int]:
        """Return the wanted numbers below `end`."""
        at = self.start
        for first, after in self.gaps:
            yield from range(at, min(first, end))
            at = after
        yield from range(at, end)

    @property
    def arrays(self) -> tuple[Indices, Indices]:
        """The beginnings and the ends of the gaps, arrays of shape (n,) int64."""
        flat = np.fromiter(itertools.chain.from_iterable(self.gaps), np.int64)
        return flat[::2], flat[1::2]

    def places(self) -> tuple[Indices, Indices]:
        """Return for each run of wanted items its first number, and how many are wanted before."""
        firsts, ends = self.arrays
        begins = np.append(self.start, ends)
        return begins, np.append(0, np.cumsum(firsts - begins[:-1]))

    def of_wanted(self, inner: IndexRanges) -> IndexRanges:
        """Want only part of this: `inner` counts the items that are wanted here."""
        if self.is_all or inner.is_all:
            return inner if self.is_all else self
        (start,) = self.pick(np.array([inner.start])).tolist()
        firsts, ends = inner.arrays
        mine = self.arrays
        gaps = np.append(self.pick(firsts), mine[0]), np.append(self.pick(ends - 1) + 1, mine[1])
        return IndexRanges.of_arrays(start, *gaps)

    def mask(self, begin: int, count: int) -> NDArray[np.bool_]:
        """Tell of `count` numbers from `begin` on whether they are wanted, as shape (count,)."""
        steps = np.zeros(count + 1, np.int64)
        firsts, ends = (np.clip(one - begin, 0, count) for one in self.arrays)
        np.add.at(steps, firsts, 1)
        np.add.at(steps, ends, -1)
        wanted: NDArray[np.bool_] = np.cumsum(steps[:-1]) == 0
        wanted[: max(0, self.start - begin)] = False
        return wanted

    def both(self, other: IndexRanges) -> IndexRanges:
        """Want what both want."""
        firsts, ends = (np.append(*pair) for pair in zip(self.arrays, other.arrays, strict=True))
        return IndexRanges.of_arrays(max(self.start, other.start), firsts, ends)

    def ranked(self, other: IndexRanges) -> IndexRanges:
        """Count the numbers of `other` among those needed here: `of_wanted` the other way."""
        (start,) = self.ranks(np.array([other.start])).tolist()
        firsts, ends = map(self.ranks, other.arrays)
        return IndexRanges.of_arrays(start, firsts[firsts < ends], ends[firsts < ends])

    def ranks(self, numbers: Indices) -> Indices:
        """Return how many items below each of `numbers`, of shape (n,) int64, are wanted."""
        begins, counts = self.places()
        most = np.append(np.diff(counts), _MOST)
        run = np.maximum(0, np.searchsorted(begins, numbers, side="right") - 1)
        found: Indices = counts[run] + np.clip(numbers - begins[run], 0, most[run])
        return found

    def pick(self, rows: Indices) -> Indices:
        """Return the numbers of the wanted items `rows`, an array of shape (n,) int64."""
        begins, counts = self.places()
        run = np.searchsorted(counts, rows, side="right") - 1
        found: Indices = begins[run] + rows - counts[run]
        return found


NodeState = dict[str, Any]  # the state of a stage; JSON-ready


class StatefulOp(ABC):
    """One pass over a stream: gives at most one entry for each it is given.

    Attributes:
        finished: no further input is wanted.
        holds_items: what `finish` gives are items from before; they come also before an error.
        commits: it wants to know when all that it gave was consumed.
    """

    finished = False
    holds_items = False
    commits = False

    @abstractmethod
    def process(self, entry: Entry) -> Entry | None:
        """Take an entry; give the next one, or None."""

    def finish(self) -> Iterator[Entry]:
        """Return the results that remain at the end of the input."""
        return iter(())

    @abstractmethod
    def rest_of_input(self, rest: IndexRanges, node_state: NodeState) -> IndexRanges:
        """Return which inputs are wanted, given which results are; note what else is to know.

        A thread may be in `process` meanwhile: only what it changes in one step is to be read.
        """

    def forget(self, start: int) -> None:  # noqa: B027  most have nothing to forget
        """Forget what is known of results before number `start`; under the scheduler's lock."""

    def commit(self) -> None:  # noqa: B027  most keep nothing
        """Keep what was made: all of it was consumed, or moved on; without the lock."""

    def undo_commit(self) -> None:  # noqa: B027  most keep nothing
        """Undo `commit`: what was moved on was not consumed in the end; without the lock."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Release everything it holds: the epoch is over; from any thread, without the lock."""


@final
class Dropping(StatefulOp):
    """What is left of a stream whose stages begin again with items that the loop has had.

    Args:
        rest: the items that are left.
    """

    def __init__(self, rest: IndexRanges) -> None:
        self._rest = rest
        self._pushed = 0

    def rest_of_input(self, rest: IndexRanges, node_state: NodeState) -> IndexRanges:
        """Count among all items; what has not come yet is left out when it comes."""
        left, seen = self._rest.of_wanted(rest), self._pushed
        inputs = IndexRanges.of(min(left.start, seen), left.within(seen).gaps)
        later = inputs.ranked(left)
        if not later.is_all:
            node_state["drop"] = later.data
        return inputs

    def process(self, entry: Entry) -> Entry | None:
        """Let an item pass that is left."""
        self._pushed += 1
        return entry if self._pushed - 1 in self._rest else None


def are_inside(stages: Mapping[str, Any]) -> bool:
    """Return whether stages have begun an epoch.

    Entries about caches are no position, nor is "order", which earlier versions wrote.
    """
    about_none_had = {"rest", "by", "made", "whole", "order"}
    return any(set(about) - about_none_had for about in stages.values())
