"""Provenance: which input of a node each of its results came from, so that an epoch can resume."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from ...base.seeding import Path
from ...ops.ranges import IndexRanges, Indices, NodeState, StatefulOp
from .failures import Failed
from .step import Dropped, Queue

StageStates = dict[str, NodeState]  # the states of stages, by address


def record_state(stages: StageStates, address: str, node_state: NodeState) -> None:
    """Add to the state of a stage; items to drop count among those that it does not drop yet."""
    if not node_state:
        return
    known = stages.setdefault(address, {})
    if "drop" in known and "drop" in node_state:
        node_state["drop"] = (
            IndexRanges.read(node_state["drop"]).of_wanted(IndexRanges.read(known["drop"])).data
        )
    known.update(node_state)


class Provenance:
    """Which input each result came from; here, result `n` comes from input `n`.

    Inputs and results of a node are numbered from 0 in each epoch. A log reaches back to the first
    result that the loop may still want; earlier entries are forgotten from time to time. Methods
    are called under the scheduler's lock. `below` maps the `id` of each node below to the results
    that it wants.
    """

    __slots__ = ()

    def rest_above(
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> Sequence[IndexRanges | None]:
        """Return the wanted results of each node above; add the node's state to `stages`."""
        (rest,) = below.values()
        return (self.rest_of_input(rest, stages),)

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Return which inputs are wanted, given which results are; add the state to `stages`."""
        return rest

    def record_state(self, below: Mapping[int, IndexRanges], stages: StageStates) -> None:
        """Add what takes time to find out; called only where a state is taken."""

    def inputs_done(self, below: Mapping[int, IndexRanges]) -> tuple[int, int]:
        """Return how many inputs are done, and how many failed ones will be tried again."""
        return sum(one.left_out for one in below.values()), 0

    def input_of(self, result: int) -> int:
        """Return the input that completed a result.

        For the result after the last one, return the first input that may still complete it. Used
        in branches of a route; the result was not forgotten.
        """
        return result

    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Forget everything before the first result that is still wanted."""
        self.forget_before(min(rest.start for rest in below.values()))

    def forget_before(self, start: int) -> None:
        """Forget everything before result `start`."""

    def leave(self, below: Mapping[int, IndexRanges]) -> None:
        """Called at the end of the epoch, with the results that are still wanted."""


# -- Nodes that give at most one result for each input ---------------------------------------------
def _dropped_in(first: int, results: Sequence[Any]) -> Iterator[int]:
    """Yield the numbers of the inputs that gave no result, up to one that ended the epoch."""
    for number, result in enumerate(results, first):
        if type(result) is Dropped:
            yield number
        elif type(result) is Failed:
            if result.ends_epoch:
                return
            yield number


class DropLog(Provenance):
    """The inputs that gave no result, where results keep input order."""

    __slots__ = ("_count", "_dropped", "_forgotten", "_steps")

    def __init__(self) -> None:
        self._count = self._forgotten = 0  # inputs without results: all, and those forgotten
        self._dropped: list[int] = []
        self._steps: list[int] = []  # number of the result that follows each of them

    def record(self, first: int, results: Sequence[Any]) -> None:
        """Add the results of the inputs from number `first` on."""
        for number in _dropped_in(first, results):
            self._count += 1
            self._steps.append(number - self._forgotten - len(self._dropped))
            self._dropped.append(number)

    def input_of(self, result: int) -> int:
        """Return the input of a result."""
        return result + self._forgotten + bisect_right(self._steps, result)

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Leave out the inputs that gave no result."""
        if not self._dropped:
            return rest.moved(self._forgotten) if self._forgotten else rest
        start = DropLog.input_of(self, rest.start)
        steps, dropped = np.array(self._steps), np.array(self._dropped)
        firsts, ends = rest.arrays
        firsts = firsts + self._forgotten + np.searchsorted(steps, firsts, side="right")
        ends = ends + self._forgotten + np.searchsorted(steps, ends - 1, side="right")
        return IndexRanges.of_arrays(
            start, np.append(firsts, dropped), np.append(ends, dropped + 1)
        )

    def inputs_done(self, below: Mapping[int, IndexRanges]) -> tuple[int, int]:
        """Count the inputs without results, too: what failed is not tried again."""
        return self._count + super().inputs_done(below)[0], 0

    def forget_before(self, start: int) -> None:
        """Forget everything before result `start`."""
        past = bisect_right(self._steps, start)
        if past:
            self._forgotten += past
            del self._dropped[:past], self._steps[:past]


@final
class BatchLog(DropLog):
    """Provenance of batches: each input of the log is a batch of `size` items.

    Args:
        size: items of a batch; the last one may have fewer.

    Attributes:
        inbox: the queue that the items come from.
    """

    __slots__ = ("_size", "inbox")

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self.inbox = Queue()

    def input_of(self, result: int) -> int:
        """Return the last item of a batch."""
        return min((super().input_of(result) + 1) * self._size - 1, self.inbox.total)

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Want all items of each batch that is wanted."""
        batches, size = super().rest_of_input(rest, stages), self._size
        gaps = tuple((first * size, end * size) for first, end in batches.gaps)
        return IndexRanges(batches.start * size, gaps)


@final
class SourceLog(DropLog):
    """Provenance of a source: its rows, less those that inline stages dropped.

    Args:
        address: of the source.
        record_rows: adds which rows are wanted to a state.
    """

    __slots__ = ("_address", "_record_rows")

    def __init__(self, address: str, record_rows: Callable[[IndexRanges, NodeState], None]) -> None:
        super().__init__()
        self._address = address
        self._record_rows = record_rows

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Record which rows are wanted."""
        wanted = super().rest_of_input(rest, stages)
        self._record_rows(wanted, stages.setdefault(self._address, {}))
        return wanted


@final
class ArrivalLog(Provenance):
    """The input of each result, and the inputs without one, where results come as they finish."""

    __slots__ = ("_base", "_count", "_inputs", "_past")

    def __init__(self) -> None:
        self._count = 0  # inputs without results
        self._base = 0  # number of the first result whose input is known
        self._inputs = array("q")
        self._past = IndexRanges()  # inputs that are neither forgotten nor dropped

    def record(self, first: int, results: Sequence[Any]) -> None:
        """Add the results of the inputs from number `first` on."""
        lost = Dropped, Failed
        kept = [n for n, result in enumerate(results, first) if type(result) not in lost]
        self._inputs.extend(kept)
        if len(kept) < len(results):
            dropped = np.fromiter(_dropped_in(first, results), np.int64)
            self._count += len(dropped)
            self._past = _without(self._past, dropped)

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Return the inputs of wanted results, and those that gave none yet."""
        inputs = np.array(self._inputs)
        return _without(self._past, inputs[~rest.mask(self._base, len(inputs))])

    def inputs_done(self, below: Mapping[int, IndexRanges]) -> tuple[int, int]:
        """Count the inputs without results, too: what failed is not tried again."""
        return self._count + super().inputs_done(below)[0], 0

    def forget_before(self, start: int) -> None:
        """Forget everything before result `start`."""
        past = _pop_oldest(self._inputs, start - self._base)
        self._base = max(start, self._base)
        self._past = _without(self._past, past)


def _pop_oldest(log: array[int], count: int) -> Indices:
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


# -- Nodes that give any number of results for one input -------------------------------------------
@final
class ChildLog(Provenance):
    """Which input each result is a child of.

    Args:
        address: of the stage.
        known: for the path of an input, the children that are wanted; all of the others.
    """

    __slots__ = (
        "_address", "_base", "_begun", "_failed", "_given", "_known", "_limits", "_open", "_past",
        "_paths", "_results",
    )  # fmt: skip

    def __init__(self, address: str, known: dict[Path, IndexRanges]) -> None:
        self._address = address
        self._known = known
        self._begun = 0  # inputs whose iterator was opened
        self._failed: set[int] = set()  # inputs that failed, of those with known results
        self._base = 0
        self._results = array("q")  # for each, the number of its input
        self._paths: dict[int, Path] = {}  # of inputs that have known results, or may get some
        self._limits: dict[int, IndexRanges] = {}  # of those, the children that are wanted at all
        self._given: dict[int, int] = {}  # of those, the children that were forgotten
        self._open: set[int] = set()  # those that may have more children
        self._past = IndexRanges()

    def begin(self, number: int, path: Path) -> IndexRanges | None:
        """Add an input that is expanded; return the children that are wanted, or None for all."""
        self._begun = number + 1
        self._paths[number] = path
        self._open.add(number)
        known = self._known.get(path)
        if known is not None:
            self._limits[number] = known
        return known

    def record(self, number: int, count: int) -> None:
        """Add results of an input."""
        self._results.extend([number] * count)

    def end(self, number: int, *, failed: bool) -> None:
        """Called when an input has no more children."""
        self._open.discard(number)
        if failed:
            self._failed.add(number)

    def input_of(self, result: int) -> int:
        """Return the input of a result, or the first one that may have more children."""
        at = result - self._base
        if at < len(self._results):
            return self._results[at]
        return min(self._open, default=self._begun)

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Record of which inputs only some children are wanted."""
        inputs, parts = self._wanted(rest)
        if parts:
            stages.setdefault(self._address, {})["children"] = parts
        return inputs

    def _wanted(self, rest: IndexRanges) -> tuple[IndexRanges, list[list[Any]]]:
        """Return which inputs are wanted, and of which of them only some children."""
        wanted: dict[int, list[bool]] = {number: [] for number in self._paths}
        flags = rest.mask(self._base, len(self._results)).tolist()
        for number, is_wanted in zip(self._results, flags, strict=True):
            wanted[number].append(is_wanted)
        rests, done = dict(self._known), []
        for number, path in self._paths.items():
            mine, first = wanted[number], self._given.get(number, 0)
            limit = self._limits.get(number)
            if number not in self._open and not any(mine):
                done.append(number)
                rests.pop(path, None)
            elif first or limit is not None or not all(mine):
                gaps = [(n, n + 1) for n, is_wanted in enumerate(mine, first) if not is_wanted]
                rests[path] = (limit or IndexRanges()).of_wanted(IndexRanges.of(first, gaps))
        parts = [[_plain(path), left.data] for path, left in rests.items()]
        return _without(self._past, np.array(done, np.int64)), parts

    def inputs_done(self, below: Mapping[int, IndexRanges]) -> tuple[int, int]:
        """Return how many inputs are done, and how many failed ones will be tried again."""
        (rest,) = below.values()
        inputs, _ = self._wanted(rest)
        return inputs.left_out, sum(number in inputs for number in self._failed)

    def forget_before(self, start: int) -> None:
        """Forget everything before result `start`."""
        for number in _pop_oldest(self._results, start - self._base).tolist():
            self._given[number] = self._given.get(number, 0) + 1
        self._base = max(start, self._base)
        kept = {*self._results, *self._open}
        done = [number for number in self._paths if number not in kept]
        for number in done:
            self._known.pop(self._paths.pop(number), None)
            self._failed.discard(number)
            self._limits.pop(number, None)
            self._given.pop(number, None)
        self._past = _without(self._past, np.array(done, np.int64))


def _plain(path: Path) -> int | list[int]:
    """Return a path of plain numbers, for JSON."""
    return [int(number) for number in path] if isinstance(path, tuple) else int(path)


# -- Nodes that host a stateful operation ----------------------------------------------------------
@final
class StreamLog(Provenance):
    """Provenance that a stateful operation keeps itself.

    Args:
        address: of the stage.
        operation: the operation.
        drops: in a branch of a route, records which items gave nothing.
    """

    __slots__ = ("_address", "_operation", "drops")

    def __init__(self, address: str, operation: StatefulOp, drops: DropLog | None) -> None:
        self._address = address
        self._operation = operation
        self.drops = drops

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Ask the operation."""
        node_state: NodeState = {}
        inputs = self._operation.rest_of_input(rest, node_state)
        record_state(stages, self._address, node_state)
        return inputs

    def input_of(self, result: int) -> int:
        """Return the item at which a result came."""
        return result if self.drops is None else self.drops.input_of(result)

    def forget_before(self, start: int) -> None:
        """Forget everything before result `start`, in the operation, too."""
        self._operation.forget(start)
        if self.drops is not None:
            self.drops.forget_before(start)
