"""Lineage: which input of a node each of its results came from, as far back as anybody asks."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np

from ..base.seeding import Path
from ..ops.ranges import IndexRanges, Indices
from .failures import Failed
from .step import Dropped

# Inputs and results of a node are numbered from 0 in each epoch. A log reaches back to the first
# result that the loop may still want; what lies before is forgotten from time to time. Methods are
# called under the scheduler's lock.


def _dropped_in(first: int, results: Sequence[Any]) -> Iterator[int]:
    """Return the numbers of the inputs that gave no result, up to one that ended the epoch."""
    for number, result in enumerate(results, first):
        if type(result) is Dropped:
            yield number
        elif type(result) is Failed:
            if result.ends_epoch:
                return
            yield number


@final
class DropLog:
    """Of a node that keeps the order: the inputs that gave no result."""

    __slots__ = ("_dropped", "_steps", "count", "more")

    def __init__(self) -> None:
        self.count = 0  # inputs without results
        self.more = 0  # inputs without results that were forgotten
        self._dropped: list[int] = []
        self._steps: list[int] = []  # number of the result that follows each of them

    def record(self, first: int, results: Sequence[Any]) -> None:
        """Add the results of the inputs from number `first` on."""
        for number in _dropped_in(first, results):
            self.count += 1
            self._steps.append(number - self.more - len(self._dropped))
            self._dropped.append(number)

    def input_of(self, result: int) -> int:
        """Return the number of the input of a result, or of the next one behind what was seen."""
        return result + self.more + bisect_right(self._steps, result)

    def inputs(self, rest: IndexRanges) -> IndexRanges:
        """Tell which inputs are wanted, given which results are."""
        if not self._dropped:
            return rest.moved(self.more) if self.more else rest
        start = self.input_of(rest.start)
        steps, dropped = np.array(self._steps), np.array(self._dropped)
        firsts, ends = rest.arrays
        firsts = firsts + self.more + np.searchsorted(steps, firsts, side="right")
        ends = ends + self.more + np.searchsorted(steps, ends - 1, side="right")
        return IndexRanges.of_arrays(
            start, np.append(firsts, dropped), np.append(ends, dropped + 1)
        )

    def forget(self, start: int) -> None:
        """Forget what lies before result `start`."""
        past = bisect_right(self._steps, start)
        if past:
            self.more += past
            del self._dropped[:past], self._steps[:past]


@final
class ArrivalLog:
    """Of a node in completion order: the input of each result, and the inputs that gave none."""

    __slots__ = ("_base", "_inputs", "_past", "count")

    def __init__(self) -> None:
        self.count = 0  # inputs without results
        self._base = 0  # number of the first result whose input is known
        self._inputs = array("q")
        self._past = IndexRanges()  # inputs that are not among those forgotten, or dropped

    def record(self, first: int, results: Sequence[Any]) -> None:
        """Add the results of the inputs from number `first` on."""
        lost = Dropped, Failed
        kept = [n for n, result in enumerate(results, first) if type(result) not in lost]
        self._inputs.extend(kept)
        if len(kept) < len(results):
            dropped = np.fromiter(_dropped_in(first, results), np.int64)
            self.count += len(dropped)
            self._past = _without(self._past, dropped)

    def inputs(self, rest: IndexRanges) -> IndexRanges:
        """Tell which inputs are wanted, given which results are."""
        inputs = np.array(self._inputs)
        return _without(self._past, inputs[~rest.mask(self._base, len(inputs))])

    def forget(self, start: int) -> None:
        """Forget what lies before result `start`."""
        past = _taken(self._inputs, start - self._base)
        self._base = max(start, self._base)
        self._past = _without(self._past, past)


def _taken(log: array[int], count: int) -> Indices:
    """Take the oldest numbers out of a log."""
    past = np.array(log[: max(0, count)], np.int64)
    del log[: len(past)]
    return past


def _without(rest: IndexRanges, numbers: Indices) -> IndexRanges:
    if not len(numbers):
        return rest
    firsts, ends = rest.arrays
    return IndexRanges.of_arrays(
        rest.start, np.append(firsts, numbers), np.append(ends, numbers + 1)
    )


@final
class ChildLog:
    """Of a node that expands: whose children its results are.

    Args:
        known: for the path of an input, the children that are wanted of it; all of the others.
    """

    __slots__ = (
        "_base", "_given", "_known", "_limits", "_open", "_past", "_paths", "_results", "failed",
    )  # fmt: skip

    def __init__(self, known: dict[Path, IndexRanges]) -> None:
        self.failed: set[int] = set()  # inputs that did, of those that results are known of
        self._known = known
        self._base = 0
        self._results = array("q")  # for each, the number of its input
        self._paths: dict[int, Path] = {}  # of the inputs that results are known of, or may come
        self._limits: dict[int, IndexRanges] = {}  # of those, the children that are wanted at all
        self._given: dict[int, int] = {}  # of those, the children that were forgotten
        self._open: set[int] = set()  # those that may have more children
        self._past = IndexRanges()

    def begin(self, number: int, path: Path) -> IndexRanges | None:
        """Called when an input is expanded; give the children that are wanted, or None for all."""
        self._paths[number] = path
        self._open.add(number)
        known = self._known.get(path)
        if known is not None:
            self._limits[number] = known
        return known

    def record(self, number: int, count: int) -> None:
        """Add results that are handed on."""
        self._results.extend([number] * count)

    def end(self, number: int, *, failed: bool) -> None:
        """Called when an input has no more children."""
        self._open.discard(number)
        if failed:
            self.failed.add(number)

    def input_of(self, result: int) -> int | None:
        """Return the number of the input of a result; None behind what was noted."""
        at = result - self._base
        return self._results[at] if at < len(self._results) else None

    def inputs(self, rest: IndexRanges) -> tuple[IndexRanges, list[list[Any]]]:
        """Tell which inputs are wanted, and of which of them only some children."""
        wanted: dict[int, list[bool]] = {number: [] for number in self._paths}
        flags = rest.mask(self._base, len(self._results)).tolist()
        for number, is_wanted in zip(self._results, flags, strict=True):
            wanted[number].append(is_wanted)
        rests, over = dict(self._known), []
        for number, path in self._paths.items():
            mine, first = wanted[number], self._given.get(number, 0)
            limit = self._limits.get(number)
            if number not in self._open and not any(mine):
                over.append(number)
                rests.pop(path, None)
            elif first or limit is not None or not all(mine):
                gaps = [(n, n + 1) for n, is_wanted in enumerate(mine, first) if not is_wanted]
                rests[path] = (limit or IndexRanges()).of_wanted(IndexRanges.of(first, gaps))
        parts = [[_plain(path), left.data] for path, left in rests.items()]
        return _without(self._past, np.array(over, np.int64)), parts

    def forget(self, start: int) -> None:
        """Forget what lies before result `start`."""
        for number in _taken(self._results, start - self._base).tolist():
            self._given[number] = self._given.get(number, 0) + 1
        self._base = max(start, self._base)
        kept = {*self._results, *self._open}
        over = [number for number in self._paths if number not in kept]
        for number in over:
            self._known.pop(self._paths.pop(number), None)
            self.failed.discard(number)
            self._limits.pop(number, None)
            self._given.pop(number, None)
        self._past = _without(self._past, np.array(over, np.int64))


def _plain(path: Path) -> int | list[int]:
    """Return a path as JSON and others read it."""
    return [int(number) for number in path] if isinstance(path, tuple) else int(path)
