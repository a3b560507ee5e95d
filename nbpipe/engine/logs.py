"""Logs: which input each recent result of a node came from, so that a place can be found again.

Inputs and results of a node are numbered from 0 in each epoch. A log reaches back to the first
result that the loop may still want; what lies before is forgotten from time to time. Methods
are called under the scheduler's lock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..index_order import Rows
from ..rest import Rest
from ..seeding import Path


def _dropped_in(first: int, results: Sequence[Any]) -> Iterator[int]:
    """Give the numbers of the inputs that gave no result, up to one that ended the epoch."""
    for number, result in enumerate(results, first):
        if type(result) is not tuple:
            if result is not None and result.ends_epoch:
                return
            yield number


@final
class Drops:
    """Of a node that keeps the order: the inputs that gave no result."""

    __slots__ = ("_dropped", "_steps", "count", "more")

    def __init__(self) -> None:
        self.count = 0  # inputs without results
        self.more = 0  # inputs without results that were forgotten
        self._dropped: list[int] = []
        self._steps: list[int] = []  # number of the result that follows each of them

    def note(self, first: int, results: Sequence[Any]) -> None:
        """Hear of the results of the inputs from number `first` on."""
        for number in _dropped_in(first, results):
            self.count += 1
            self._steps.append(number - self.more - len(self._dropped))
            self._dropped.append(number)

    def input_of(self, result: int) -> int:
        """Give the number of the input of a result, or of the next one behind what was seen."""
        return result + self.more + bisect_right(self._steps, result)

    def inputs(self, rest: Rest) -> Rest:
        """Say which inputs are wanted, given which results are."""
        if not self._dropped:
            return rest.moved(self.more) if self.more else rest
        start = self.input_of(rest.start)
        steps, dropped = np.array(self._steps), np.array(self._dropped)
        firsts, ends = rest.arrays
        firsts = firsts + self.more + np.searchsorted(steps, firsts, side="right")
        ends = ends + self.more + np.searchsorted(steps, ends - 1, side="right")
        return Rest.of_arrays(start, np.append(firsts, dropped), np.append(ends, dropped + 1))

    def forget(self, start: int) -> None:
        """Forget what lies before result `start`."""
        past = bisect_right(self._steps, start)
        if past:
            self.more += past
            del self._dropped[:past], self._steps[:past]


@final
class Arrivals:
    """Of a node in completion order: the input of each result, and the inputs that gave none."""

    __slots__ = ("_base", "_inputs", "_past", "count")

    def __init__(self) -> None:
        self.count = 0  # inputs without results
        self._base = 0  # number of the first result whose input is known
        self._inputs = array("q")
        self._past = Rest()  # inputs that are not among those forgotten, or dropped

    def note(self, first: int, results: Sequence[Any]) -> None:
        """Hear of the results of the inputs from number `first` on."""
        kept = [n for n, result in enumerate(results, first) if type(result) is tuple]
        self._inputs.extend(kept)
        if len(kept) < len(results):
            dropped = np.fromiter(_dropped_in(first, results), np.int64)
            self.count += len(dropped)
            self._past = _without(self._past, dropped)

    def inputs(self, rest: Rest) -> Rest:
        """Say which inputs are wanted, given which results are."""
        inputs = np.array(self._inputs)
        return _without(self._past, inputs[~rest.mask(self._base, len(inputs))])

    def forget(self, start: int) -> None:
        """Forget what lies before result `start`."""
        past = _taken(self._inputs, start - self._base)
        self._base = max(start, self._base)
        self._past = _without(self._past, past)


def _taken(log: array[int], count: int) -> Rows:
    """Take the oldest numbers out of a log."""
    past = np.array(log[: max(0, count)], np.int64)
    del log[: len(past)]
    return past


def _without(rest: Rest, numbers: Rows) -> Rest:
    if not len(numbers):
        return rest
    firsts, ends = rest.arrays
    return Rest.of_arrays(rest.start, np.append(firsts, numbers), np.append(ends, numbers + 1))


@final
class Children:
    """Of a node that expands: whose children its results are.

    Args:
        known: for the path of an input, the children that are wanted of it; all of the others.
    """

    __slots__ = ("_base", "_given", "_known", "_limits", "_open", "_past", "_paths", "_results")

    def __init__(self, known: dict[Path, Rest]) -> None:
        self._known = known
        self._base = 0
        self._results = array("q")  # for each, the number of its input
        self._paths: dict[int, Path] = {}  # of the inputs that results are known of, or may come
        self._limits: dict[int, Rest] = {}  # of those, the children that are wanted at all
        self._given: dict[int, int] = {}  # of those, the children that were forgotten
        self._open: set[int] = set()  # those that may have more children
        self._past = Rest()

    def begin(self, number: int, path: Path) -> Rest | None:
        """Hear that an input is expanded; give the children that are wanted, or None for all."""
        self._paths[number] = path
        self._open.add(number)
        known = self._known.get(path)
        if known is not None:
            self._limits[number] = known
        return known

    def note(self, number: int, count: int) -> None:
        """Hear of results that are handed on."""
        self._results.extend([number] * count)

    def end(self, number: int) -> None:
        """Hear that an input has no more children."""
        self._open.discard(number)

    def inputs(self, rest: Rest) -> tuple[Rest, list[list[Any]]]:
        """Say which inputs are wanted, and of which of them only some children."""
        if not self._paths:
            return self._past, self._written({})
        low = min(self._paths)
        size = max(self._paths) - low + 1
        results = np.array(self._results, np.int64) - low
        wanted = rest.mask(self._base, len(results))
        counts = np.bincount(results, minlength=size)
        gone = np.bincount(results[~wanted], minlength=size)
        given = np.zeros(size, np.int64)
        for number, count in self._given.items():
            given[number - low] = count
        states = _marked(self._paths, low, size), _marked(self._open, low, size)
        whole = states[0] & ~states[1] & (gone == counts)
        part = states[0] & ~whole & ((gone + given > 0) | _marked(self._limits, low, size))
        gone_in_turn = (~wanted)[np.argsort(results, kind="stable")].tolist()
        ends = np.cumsum(counts)
        parts: dict[int, Rest] = {}
        for place in np.flatnonzero(part).tolist():
            mine = gone_in_turn[ends[place] - counts[place] : ends[place]]
            first = int(given[place])
            holes = [(n, n + 1) for n, is_gone in enumerate(mine, first) if is_gone]
            parts[low + place] = Rest.of(first, holes)
        numbers = np.flatnonzero(whole) + low
        return _without(self._past, numbers), self._written(parts, set(numbers.tolist()))

    def _written(self, parts: Mapping[int, Rest], whole: Container[int] = ()) -> list[list[Any]]:
        rests = dict(self._known)
        for number in self._limits:
            if number in whole:
                rests.pop(self._paths[number], None)
        for number, left in parts.items():
            rests[self._paths[number]] = self._limits.get(number, Rest()).of_wanted(left)
        return [[_plain(path), rest.data] for path, rest in rests.items()]

    def forget(self, start: int) -> None:
        """Forget what lies before result `start`."""
        for number in _taken(self._results, start - self._base).tolist():
            self._given[number] = self._given.get(number, 0) + 1
        self._base = max(start, self._base)
        kept = {*self._results, *self._open}
        over = [number for number in self._paths if number not in kept]
        for number in over:
            self._known.pop(self._paths.pop(number), None)
            self._limits.pop(number, None)
            self._given.pop(number, None)
        self._past = _without(self._past, np.array(over, np.int64))


def _marked(numbers: Iterable[int], low: int, size: int) -> NDArray[np.bool_]:
    found = np.zeros(size, bool)
    found[np.fromiter(numbers, np.int64) - low] = True
    return found


def _plain(path: Path) -> int | list[int]:
    """Give a path as JSON and others read it."""
    return [int(number) for number in path] if isinstance(path, tuple) else int(path)


@final
class Draws:
    """Of a node that joins or parts: the input, or the output, that each of its items took.

    Args:
        count: inputs or outputs.
    """

    __slots__ = ("_base", "_draws", "_past")

    def __init__(self, count: int) -> None:
        self._base = 0
        self._draws = array("q")
        self._past = np.zeros(count, np.int64)  # items of each one that were forgotten

    def note(self, one: int) -> None:
        """Hear which one was next."""
        self._draws.append(one)

    def parted(self, rest: Rest) -> tuple[list[Rest], list[int]]:
        """Say what is wanted of each one, and in which order what was drawn is wanted again."""
        draws = np.array(self._draws, np.int64)
        wanted = rest.mask(self._base, len(draws))
        rests = []
        for one, past in enumerate(self._past.tolist()):
            holes = np.flatnonzero(~wanted[draws == one]) + past
            rests.append(Rest.of_arrays(past, holes, holes + 1))
        return rests, draws[wanted].tolist()

    def gathered(self, rests: Sequence[Rest]) -> Rest:
        """Say which items are wanted, given what is wanted of each one."""
        draws = np.array(self._draws, np.int64)
        wanted = np.zeros(len(draws), bool)
        for one, past in enumerate(self._past.tolist()):
            mine = draws == one
            wanted[mine] = rests[one].mask(past, int(mine.sum()))
        return Rest.only(np.flatnonzero(wanted) + self._base, self._base + len(draws))

    def forget(self, start: int) -> None:
        """Forget what lies before item `start`."""
        past = _taken(self._draws, start - self._base)
        self._past += np.bincount(past, minlength=len(self._past))
        self._base = max(start, self._base)
