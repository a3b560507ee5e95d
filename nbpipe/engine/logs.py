"""Logs: which input each recent result of a node came from, so that a place can be found again.

Inputs and results of a node are numbered from 0 in each epoch. A log reaches back to the first
result that the loop may still want; what lies before is forgotten from time to time. Methods
are called under the scheduler's lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

from ..rest import Rest, Run
from ..seeding import Path


def _before_the_end(results: Sequence[Any]) -> Sequence[Any]:
    """Leave out an item that ended the epoch, and what came behind it."""
    for place, result in enumerate(results):
        if result is not None and type(result) is not tuple and result.ends_epoch:
            return results[:place]
    return results


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
        for number, result in enumerate(_before_the_end(results), first):
            if type(result) is not tuple:
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
        self._inputs: deque[int] = deque()
        self._past = Rest()  # inputs that are not among those forgotten, or dropped

    def note(self, first: int, results: Sequence[Any]) -> None:
        """Hear of the results of the inputs from number `first` on."""
        for number, result in enumerate(_before_the_end(results), first):
            if type(result) is tuple:
                self._inputs.append(number)
            else:
                self.count += 1
                self._past = _without(self._past, (number,))

    def inputs(self, rest: Rest) -> Rest:
        """Say which inputs are wanted, given which results are."""
        done = [n for place, n in enumerate(self._inputs, self._base) if place not in rest]
        return _without(self._past, done)

    def forget(self, start: int) -> None:
        """Forget what lies before result `start`."""
        count = min(start - self._base, len(self._inputs))
        past = [self._inputs.popleft() for _ in range(count)]
        self._base = max(start, self._base)
        self._past = _without(self._past, past)


def _without(rest: Rest, numbers: Iterable[int]) -> Rest:
    return Rest.of(rest.start, sorted((*rest.holes, *((n, n + 1) for n in numbers))))


class _Family:
    """The children of one input.

    Attributes:
        path: of the input.
        known: numbers of the children that are wanted at all.
        past: children that were forgotten.
        whole: all children were given.
    """

    __slots__ = ("known", "past", "path", "whole")

    def __init__(self, path: Path, known: Rest) -> None:
        self.path = path
        self.known = known
        self.past = 0
        self.whole = False


@final
class Children:
    """Of a node that expands: whose children its results are.

    Args:
        known: for the path of an input, the children that are wanted of it; all of the others.
    """

    __slots__ = ("_base", "_families", "_known", "_past", "_results")

    def __init__(self, known: dict[Path, Rest]) -> None:
        self._known = known
        self._base = 0
        self._results: deque[int] = deque()  # for each, the number of its input
        self._families: dict[int, _Family] = {}
        self._past = Rest()

    def begin(self, number: int, path: Path) -> Rest | None:
        """Hear that an input is expanded; give the children that are wanted, or None for all."""
        known = self._known.get(path)
        self._families[number] = _Family(path, known or Rest())
        return known

    def note(self, number: int, results: Sequence[Any]) -> None:
        """Hear of results that are handed on."""
        self._results.extend(number for result in results if type(result) is tuple)

    def end(self, number: int) -> None:
        """Hear that an input has no more children."""
        if number in self._families:  # a source has no inputs
            self._families[number].whole = True

    def inputs(self, rest: Rest) -> tuple[Rest, list[list[Any]]]:
        """Say which inputs are wanted, and of which of them only some children."""
        done: dict[int, list[int]] = {}
        counts = {number: family.past for number, family in self._families.items()}
        for place, number in enumerate(self._results, self._base):
            if place not in rest:
                done.setdefault(number, []).append(counts[number])
            counts[number] += 1
        whole, parts = [], dict(self._known)
        for number, family in sorted(self._families.items()):
            gone = family.past + len(done.get(number, ()))
            if family.whole and gone == counts[number]:
                whole.append(number)
                parts.pop(family.path, None)
            elif gone or not family.known.is_all:
                left = Rest.of(family.past, [(n, n + 1) for n in done.get(number, ())])
                parts[family.path] = family.known.of_wanted(left)
        return _without(self._past, whole), [[_plain(path), r.data] for path, r in parts.items()]

    def forget(self, start: int) -> None:
        """Forget what lies before result `start`."""
        for _ in range(min(start - self._base, len(self._results))):
            self._families[self._results.popleft()].past += 1
        self._base = max(start, self._base)
        named = set(self._results)
        over = [n for n, family in self._families.items() if family.whole and n not in named]
        for number in over:
            self._known.pop(self._families.pop(number).path, None)
        self._past = _without(self._past, over)


def _plain(path: Path) -> int | list[int]:
    """Give a path as JSON and others read it."""
    return [int(number) for number in path] if isinstance(path, tuple) else int(path)


@final
class Draws:
    """Of a node that joins or parts: the input, or the output, that each of its items took.

    Args:
        count: inputs or outputs.
    """

    __slots__ = ("_base", "_count", "_draws", "_past")

    def __init__(self, count: int) -> None:
        self._count = count
        self._base = 0
        self._draws: deque[int] = deque()
        self._past: dict[int, int] = {}

    def note(self, one: int) -> None:
        """Hear which one was next."""
        self._draws.append(one)

    def parted(self, rest: Rest) -> tuple[list[Rest], list[int]]:
        """Say what is wanted of each one, and in which order what was drawn is wanted again."""
        counts = [self._past.get(one, 0) for one in range(self._count)]
        starts, again = tuple(counts), []
        holes: list[list[Run]] = [[] for _ in counts]
        for number, one in enumerate(self._draws, self._base):
            if number in rest:
                again.append(one)
            else:
                holes[one].append((counts[one], counts[one] + 1))
            counts[one] += 1
        return [Rest.of(start, runs) for start, runs in zip(starts, holes, strict=True)], again

    def gathered(self, rests: Sequence[Rest]) -> Rest:
        """Say which items are wanted, given what is wanted of each one."""
        counts = [self._past.get(one, 0) for one in range(self._count)]
        number, wanted = self._base, []
        for number, one in enumerate(self._draws, self._base):
            if counts[one] in rests[one]:
                wanted.append(number)
            counts[one] += 1
        return Rest.only(wanted, self._base + len(self._draws))

    def forget(self, start: int) -> None:
        """Forget what lies before item `start`."""
        for _ in range(min(start - self._base, len(self._draws))):
            one = self._draws.popleft()
            self._past[one] = self._past.get(one, 0) + 1
        self._base = max(start, self._base)
