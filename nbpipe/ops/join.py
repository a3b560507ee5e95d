"""zip, concat, mix, interleave: several pipelines become one.

Each is a specification and, after it, the join that does it: what it gives depends only on what
its inputs hold and whether they have ended, never on timing. It knows nothing of threads or locks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, final

import numpy as np
from numpy.random import Generator

from ..base.checks import as_float
from ..base.seeding import Entry
from ..errors import ArgumentError, ArgumentTypeError, LengthUnknownError
from .plan import IndexPlan
from .ranges import IndexRanges
from .source import Source
from .stage import Chain, Operation, Runs, Stage


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Zip(Operation):
    """Tuples of one item from each pipeline."""

    label: ClassVar[str] = "zip"
    runs: ClassVar[Runs] = "join"
    strict: bool = True

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Return the length of the shortest input."""
        return min(map(length_of, stage.inputs))

    def join(self, goes_on: GoesOn) -> tuple[Join, Container[int]]:
        """Return what joins the inputs, and the numbers of those that are open at first."""
        return ZipJoin(strict=self.strict), range(goes_on.inputs)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Concat(Operation):
    """One pipeline after the other."""

    label: ClassVar[str] = "concat"
    deepens: ClassVar[bool] = True
    runs: ClassVar[Runs] = "join"

    def indexed(self, stage: Stage, plan_of: Callable[[Chain], IndexPlan | None]) -> Source | None:
        """Return the orders of all inputs as one, where all are read by index."""
        plans = [plan_of(part) for part in stage.inputs]
        known = [plan for plan in plans if plan is not None]
        if len(known) < len(plans):
            return None
        return Source(items=_Sources(stage), plan=IndexPlan.concat(known))

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Add the lengths of all inputs."""
        return sum(map(length_of, stage.inputs))

    def join(self, goes_on: GoesOn) -> tuple[Join, Container[int]]:
        """Return what joins the inputs, and the numbers of those that are open at first."""
        first = goes_on.node_state.get("first", 0)
        return ConcatJoin(first=first), range(first, first + 2)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mix(Operation):
    """Items drawn by weight."""

    label: ClassVar[str] = "mix"
    deepens: ClassVar[bool] = True
    runs: ClassVar[Runs] = "join"
    weights: tuple[float, ...]
    seed: int = 0
    stop: Literal["longest", "shortest"] = "longest"

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Add the lengths of all inputs, where all are read to their ends."""
        lengths = list(map(length_of, stage.inputs))
        if self.stop == "shortest" and len(lengths) > 1:
            raise LengthUnknownError(f"{stage.name!r} stops by chance: where the first input ends")
        return sum(lengths)

    @property
    def varies(self) -> bool:
        """Each epoch draws again."""
        return True

    def arguments(self, given: frozenset[str]) -> list[tuple[str, Any]]:
        """Leave out weights that do not differ."""
        found = Operation.arguments(self, given)
        return found[1:] if len(set(self.weights)) == 1 else found

    def join(self, goes_on: GoesOn) -> tuple[Join, Container[int]]:
        """Return what joins the inputs, and the numbers of those that are open at first."""
        rng, shortest = goes_on.generator(self.seed), self.stop == "shortest"
        return MixJoin(goes_on, self.weights, rng, shortest=shortest), range(goes_on.inputs)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Interleave(Operation):
    """Turns between `cycle` pipelines that are open at once."""

    label: ClassVar[str] = "interleave"
    deepens: ClassVar[bool] = True
    runs: ClassVar[Runs] = "join"
    cycle: int

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Add the lengths of all inputs."""
        return sum(map(length_of, stage.inputs))

    def join(self, goes_on: GoesOn) -> tuple[Join, Container[int]]:
        """Return what joins the inputs, and the numbers of those that are open at first."""
        turns = InterleaveJoin(goes_on, self.cycle)
        return turns, turns.at_first


class _Sources:
    """The sources of a concat that is read by index: they hear of every epoch."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def set_epoch(self, epoch: int) -> None:
        for chain in self._stage.inputs:
            spec: Any = chain[0].spec
            items = spec.items if spec.runs == "source" else _Sources(chain[0])
            set_epoch = getattr(items, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)


def mix_weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Check the weights of `mix`, and scale their sum to 1."""
    given = [1.0] * count if weights is None else weights
    if not isinstance(given, Sequence | np.ndarray):
        raise ArgumentTypeError(f"mix weights must be a sequence of numbers, got {weights!r}")
    if len(given) != count:
        raise ArgumentError(f"mix weights must be {count} numbers, one a pipeline, got {weights!r}")
    values = [as_float(weight) for weight in given]
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ArgumentError(f"mix weights must be finite numbers above 0, got {weights!r}")
    largest = max(values, default=1.0)
    values = [value / largest for value in values]
    return tuple(value / sum(values) for value in values)


# -- Joins: what of their inputs comes next --------------------------------------------------------
class Waiting(Protocol):
    """What waits in an input."""

    @property
    def count(self) -> int:
        """Number of items."""

    def popleft(self) -> Entry:
        """Take the next item: its path, the item and, where sizes are known, its size [bytes]."""


class Input(Protocol):
    """One of the streams that are joined.

    Attributes:
        out: what waits to be taken.
        done: nothing more comes.
        error: why, where that is not because it has ended.
    """

    @property
    def out(self) -> Waiting:
        """Return what waits."""

    done: bool
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class GoesOn:
    """Where a join begins, or continues.

    Attributes:
        address: of its stage.
        inputs: how many streams it joins.
        node_state: where it continues; empty at the beginning.
        generator: returns the generator of a seed, for this epoch.
    """

    address: str
    inputs: int
    node_state: Mapping[str, Any]
    generator: Callable[[int], Generator]


class Join(ABC):
    """Decides which items of its inputs come next.

    Attributes:
        over: nothing more comes.
        error: why, where that is not because the inputs have ended.
        wanted: numbers of inputs that are to be opened now.
        unread: numbers of inputs that were not asked for their end.
    """

    def __init__(self) -> None:
        self.over = False
        self.error: BaseException | None = None
        self.wanted: list[int] = []
        self.unread: list[int] = []

    @abstractmethod
    def take(self, inputs: Sequence[Input], most: int) -> list[Entry]:
        """Take at most so many items; set `over` where there is none and none will come."""

    @abstractmethod
    def rest_of_inputs(
        self, rest: IndexRanges, inputs: int, node_state: dict[str, Any]
    ) -> Sequence[IndexRanges]:
        """Return the wanted items of each input, given the wanted results of the join.

        Args:
            rest: the outputs that are still needed.
            inputs: how many there are.
            node_state: takes what else there is to know.

        Returns:
            For each input the items that are still needed.
        """

    def forget(self, start: int) -> None:  # noqa: B027  most have nothing to forget
        """Forget what is known of items before number `start`."""

    def end(self, error: BaseException | None = None) -> None:
        """End here."""
        self.over, self.error = True, error


def from_input(entry: Entry, number: int) -> Entry:
    """Put the input's number in front of the path: no path then begins with another's."""
    path = entry[0]
    return ((number, *path) if isinstance(path, tuple) else (number, path), *entry[1:])


@final
class ZipJoin(Join):
    """One item from each input."""

    def __init__(self, *, strict: bool) -> None:
        super().__init__()
        self._strict = strict
        self._count = 0

    def take(self, inputs: Sequence[Input], most: int) -> list[Entry]:
        """Take whole rows; the size of one is the sum of its items', where they have one."""
        queues = [one.out for one in inputs]
        count = min(most, *(queue.count for queue in queues))
        if not count:
            self._end(inputs)
        self._count += count
        rows = []
        for _ in range(count):
            paths, values, *sizes = zip(*[queue.popleft() for queue in queues], strict=True)
            rows.append((paths[0], values, *map(sum, sizes)))
        return rows

    def rest_of_inputs(
        self, rest: IndexRanges, inputs: int, node_state: dict[str, Any]
    ) -> Sequence[IndexRanges]:
        """Want the same of each input."""
        return (rest,) * inputs

    def _end(self, inputs: Sequence[Input]) -> None:
        """End as Python's own zip would: the inputs are asked for an item in their order."""
        ended: int | None = None
        longer: int | None = None
        for number, one in enumerate(inputs):
            if one.out.count:
                longer = number if longer is None else longer
            elif not one.done:
                return
            elif one.error is not None:
                self.end(one.error)
                return
            else:
                ended = number if ended is None else ended
            if ended is not None and (longer is not None or not self._strict):
                break
        if ended is None:
            return
        if not self._strict:
            self.unread = [number for number in range(len(inputs)) if number != ended]
        self.end(self._unequal(ended, longer) if self._strict and longer is not None else None)

    def _unequal(self, ended: int, longer: int) -> ArgumentError:
        return ArgumentError(
            f"zip needs pipelines of equal length: pipeline {ended} ended after {self._count} "
            f"items, pipeline {longer} has more; use strict=False to stop at the shortest"
        )


@final
class ConcatJoin(Join):
    """One input after the other; the one after the current one is warming up.

    Args:
        deepen: put the input's number in front of each path.
        first: number of the input that is read first.
    """

    def __init__(self, *, deepen: bool = True, first: int = 0) -> None:
        super().__init__()
        self._first = self._current = first
        self._deepen = deepen
        self._moved = [0]  # for each input from the first one on, entries

    def rest_of_inputs(
        self, rest: IndexRanges, inputs: int, node_state: dict[str, Any]
    ) -> Sequence[IndexRanges]:
        """Split the needed outputs by the numbers of entries that the inputs gave."""
        rests = [IndexRanges()] * inputs
        first, begun = self._current, 0
        for number, count in enumerate(self._moved, self._first):
            end = begun + count
            if number == self._current:
                rests[number] = rest.since(begun)
            else:
                rests[number] = rest.within(end).since(begun)
                if rest.first_from(begun) < end:
                    first = min(first, number)
            begun = end
        if self._deepen:
            node_state["first"] = first
        return rests

    def take(self, inputs: Sequence[Input], most: int) -> list[Entry]:
        """Take from the current input."""
        moved: list[Entry] = []
        while len(moved) < most:
            one = inputs[self._current]
            count = min(most - len(moved), one.out.count)
            taken = [one.out.popleft() for _ in range(count)]
            moved += [from_input(each, self._current) for each in taken] if self._deepen else taken
            self._moved[-1] += count
            if one.out.count or not one.done:
                break
            if one.error is not None or self._current + 1 == len(inputs):
                if not moved:
                    self.end(one.error)
                break
            self._current += 1
            self._moved.append(0)
            if self._current + 1 < len(inputs):
                self.wanted.append(self._current + 1)
        return moved


# -- Joins that draw: `mix` by weight, `interleave` by turns ---------------------------------------
_AT_ONCE = 2**16  # draws


@final
class ChoiceLog:
    """Of what joins or parts: the input, or the output, that each of its items took.

    Args:
        count: inputs or outputs.
    """

    __slots__ = ("_base", "_draws", "_past")

    def __init__(self, count: int) -> None:
        self._base = 0
        self._draws = array("q")
        self._past = np.zeros(count, np.int64)  # items of each one that were forgotten

    def record(self, one: int) -> None:
        """Add which one was next."""
        self._draws.append(one)

    def parted(self, rest: IndexRanges) -> tuple[list[IndexRanges], list[int]]:
        """Return the wanted items of each input, and the order of those to draw again."""
        draws = np.array(self._draws, np.int64)
        wanted = rest.mask(self._base, len(draws))
        rests = []
        for one, past in enumerate(self._past.tolist()):
            gaps = np.flatnonzero(~wanted[draws == one]) + past
            rests.append(IndexRanges.of_arrays(past, gaps, gaps + 1))
        return rests, draws[wanted].tolist()

    def gathered(self, rests: Sequence[IndexRanges]) -> IndexRanges:
        """Return the wanted results, given the wanted items of each input."""
        draws = np.array(self._draws, np.int64)
        wanted = np.zeros(len(draws), bool)
        for one, past in enumerate(self._past.tolist()):
            mine = draws == one
            wanted[mine] = rests[one].mask(past, int(mine.sum()))
        return IndexRanges.only(np.flatnonzero(wanted) + self._base, self._base + len(draws))

    def forget(self, start: int) -> None:
        """Forget what lies before item `start`."""
        count = max(0, start - self._base)
        past = np.array(self._draws[:count], np.int64)
        del self._draws[:count]
        self._past += np.bincount(past, minlength=len(self._past))
        self._base = max(start, self._base)


class DrawingJoin(Join):
    """Takes each item from the input that is next.

    Where an epoch continues in the middle, the inputs of the items that were taken, but that the
    loop had not got, are known: they come first.
    """

    def __init__(self, goes_on: GoesOn) -> None:
        super().__init__()
        again = goes_on.node_state.get("again", ())
        self.draws = ChoiceLog(goes_on.inputs)
        self.again = deque(again)
        self._taken_again = frozenset(again)

    def rest_of_inputs(
        self, rest: IndexRanges, inputs: int, node_state: dict[str, Any]
    ) -> Sequence[IndexRanges]:
        """Split the needed outputs by the inputs that were drawn."""
        rests, again = self.draws.parted(rest)
        node_state["again"] = [*again, *self.again]
        node_state.update(self.node_state())
        return rests

    @abstractmethod
    def node_state(self) -> dict[str, Any]:
        """Tell from where the drawing continues; JSON-ready."""

    def forget(self, start: int) -> None:
        """Forget the inputs of items that are no longer wanted."""
        self.draws.forget(start)

    def take_from(self, one: Input, number: int) -> Entry:
        """Take an item of an input."""
        self.draws.record(number)
        return from_input(one.out.popleft(), number)

    def take_again(self, inputs: Sequence[Input], most: int) -> list[Entry]:
        """Take what comes first; an input that has not so much any more is passed over."""
        moved: list[Entry] = []
        while self.again and len(moved) < most:
            number = self.again[0]
            one = inputs[number]
            if one.out.count:
                moved.append(self.take_from(one, number))
            elif not one.done:
                break
            elif one.error is not None:
                if not moved:
                    self.end(one.error)
                break
            self.again.popleft()
        return moved

    def end_behind(self, inputs: Sequence[Input]) -> None:
        """End once each input that was taken from again is seen to have ended: caches note it."""
        if all(inputs[n].done or inputs[n].out.count for n in self._taken_again):
            self.end()


@final
class MixJoin(DrawingJoin):
    """Draws an input by weight for each item.

    Args:
        goes_on: where it begins.
        weights: of the inputs.
        rng: for the draws.
        shortest: end with the first input that ends.
    """

    def __init__(
        self, goes_on: GoesOn, weights: Sequence[float], rng: Generator, *, shortest: bool
    ) -> None:
        super().__init__(goes_on)
        node_state = goes_on.node_state
        left = node_state.get("open", range(len(weights)))
        self._weights = {number: weights[number] for number in left}
        self._rng = rng
        self._drawn: int = node_state.get("draws", 0)
        self._shortest = shortest
        self._next: int | None = None
        for begun in range(0, self._drawn, _AT_ONCE):
            rng.random(min(_AT_ONCE, self._drawn - begun))

    def node_state(self) -> dict[str, Any]:
        """Return how often was drawn, and from what."""
        drawn = self._drawn - (self._next is not None)
        return {"draws": drawn, "open": list(self._weights)}

    def _draw(self) -> int:
        if self._next is None:
            self._drawn += 1
            point = self._rng.random() * sum(self._weights.values())
            drawn = 0
            for drawn, weight in self._weights.items():  # noqa: B007  the last one stays
                point -= weight
                if point < 0:
                    break
            self._next = drawn
        return self._next

    def take(self, inputs: Sequence[Input], most: int) -> list[Entry]:
        """Take while the input drawn has something."""
        moved = self.take_again(inputs, most)
        while len(moved) < most and not self.again:
            drawn = self._draw()
            one = inputs[drawn]
            if one.out.count:
                moved.append(self.take_from(one, drawn))
                self._next = None
                continue
            if moved or not one.done or not self._drop(inputs, drawn):
                break
        return moved

    def _drop(self, inputs: Sequence[Input], drawn: int) -> bool:
        """Leave out an input that has ended; or end, and tell that nothing more is drawn."""
        error = inputs[drawn].error
        if error is not None or self._shortest:
            if self._shortest:
                self.unread = [number for number in range(len(inputs)) if number != drawn]
            self.end(error)
            return False
        if len(self._weights) == 1:
            self.end_behind(inputs)
            return False
        del self._weights[drawn]
        self._next = None
        return True


@final
class InterleaveJoin(DrawingJoin):
    """Takes turns between the inputs that are open.

    Args:
        goes_on: where it begins.
        cycle: inputs that are open at once.
    """

    def __init__(self, goes_on: GoesOn, cycle: int) -> None:
        super().__init__(goes_on)
        count, node_state = goes_on.inputs, goes_on.node_state
        self._open: list[int] = list(node_state.get("open", range(min(cycle, count))))
        self._following: int = node_state.get("following", len(self._open))
        self._count = count
        self._turn: int = node_state.get("turn", 0)

    @property
    def at_first(self) -> set[int]:
        """Inputs that are to be open when the epoch begins."""
        return {*self._open, *self.again}

    def node_state(self) -> dict[str, Any]:
        """Return which inputs are open, and whose turn it is."""
        return {"open": list(self._open), "turn": self._turn, "following": self._following}

    def take(self, inputs: Sequence[Input], most: int) -> list[Entry]:
        """Take one item from each open input in turn."""
        moved = self.take_again(inputs, most)
        while len(moved) < most and not self.again:
            if not self._open:
                if not moved:
                    self.end_behind(inputs)
                break
            number = self._open[self._turn]
            one = inputs[number]
            if one.out.count:
                moved.append(self.take_from(one, number))
                self._turn = (self._turn + 1) % len(self._open)
                continue
            if not one.done:
                break
            if one.error is not None:
                if not moved:
                    self.end(one.error)
                break
            self._replace()
        return moved

    def _replace(self) -> None:
        if self._following < self._count:
            self._open[self._turn] = self._following
            self.wanted.append(self._following)
            self._following += 1
        else:
            del self._open[self._turn]
            self._turn = self._turn % len(self._open) if self._open else 0
