"""RegionNode: stages that run together in workers outside the run's threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ..errors import ExecutorBrokenError, StageError, WorkerDiedError, WorkerStartError
from ..executors.base import Answer, Caller, Job
from ..executors.inflight import opened
from ..operations import Batch, Call, FlatMap
from ..rest import Rest
from ..seeding import Path
from ..stage import Stage
from .expand import ExpandNode
from .lane import Lane
from .mapnode import MapNode
from .node import CHUNK_MAX, Node
from .opening import CallOpener, children
from .task import Entry, Expansion, Task

if TYPE_CHECKING:
    from .epoch import Epoch
    from .failures import Failed
    from .program import RegionProgram
    from .steps import Step

ROUND_TRIP_NS = 10_000_000  # a job of several items should take about this long
ROUND_TRIP_BYTES = 1 << 21  # nor should its results be larger: all are held at once
DRAW_NS = 1_000_000  # a task that draws from a generator takes about this long
_SEVERAL = 2  # items have a first and a last one
_LOT = 4  # so many items at once are worth waiting for
_BROKEN = (ExecutorBrokenError, WorkerStartError)


@dataclass(frozen=True, slots=True)
class Region:
    """Stages that share their workers.

    Attributes:
        program: what they do.
        caller: has it done.
        steps: by address, for the failures that are noticed here.
        timeout_s: longest time of one call [s], or None.
        singly: items are sent one at a time.
    """

    program: RegionProgram
    caller: Caller
    steps: dict[str, Step]
    timeout_s: float | None = None
    singly: bool = False

    def failure(self, entry: Entry, error: BaseException, attempts: int) -> Failed:
        """Make the record of an item that a worker did not come back from."""
        stage = error.stage if isinstance(error, StageError) else ""
        step = self.steps.get(stage) or next(iter(self.steps.values()))
        if isinstance(error, WorkerDiedError) and attempts > 1:
            error.add_note(f"{attempts} workers died of this item, one after the other")
        return step.failure(entry, error, attempts)

    def wait_before_retry_s(self, attempts: int, error: BaseException) -> float | None:
        """Give the wait before one more try [s], or None; a death has tries of its own."""
        if isinstance(error, _BROKEN):
            return None
        if isinstance(error, WorkerDiedError):
            return 0.0 if attempts <= self.caller.retries_of_deaths else None
        return next(iter(self.steps.values())).wait_before_retry_s(attempts, error)


class RegionNode(MapNode):
    """Has each item, or each batch, worked on elsewhere, while a thread of the run waits.

    The lane is that of the region's last stage, behind which results wait; the stages before
    it have rows of their own.

    Args:
        region: the stages.
        gather: items that one call takes together; then each keeps its own path.
    """

    __slots__ = ("busy_ns", "reads", "region")

    chunk_ns = 1 << 62  # `chunk` decides

    def __init__(
        self,
        lane: Lane,
        epoch: Epoch,
        region: Region,
        *,
        ordered: bool = True,
        gather: int = 0,
        drop_last: bool = False,
    ) -> None:
        last = list(region.steps.values())[-1]
        super().__init__(lane, epoch, last, ordered=ordered, gather=gather, drop_last=drop_last)
        self.region = region
        self.reads = False  # items are batches in flight
        self.busy_ns: float = ROUND_TRIP_NS  # one item's time in the functions

    @property
    def shares_workers(self) -> bool:
        """Whether its tasks go through several stages elsewhere."""
        return bool(self.rest_lanes)

    def chunk(self, room: int, available: int) -> int:
        """Give the number of items to send at once: a fair share of what may be held.

        The way there and back costs the same for one as for several.
        """
        if self.region.singly:
            return 1
        lane = self.lane
        share = -(-(lane.prefetch + lane.concurrency + self.gathers) // lane.concurrency)
        most = min(room, available, share)
        if self.epoch.memory is not None:
            most = min(most, self.epoch.affordable(self))
        in_time = ROUND_TRIP_NS / max(1.0, self.busy_ns)
        in_size = ROUND_TRIP_BYTES / max(1.0, lane.item_bytes)
        return max(1, min(most, CHUNK_MAX, int(in_time), int(in_size)))

    def comes_in_lots(self, slow_ns: int) -> bool:
        """Say whether several items are sent at once: then the consumer takes them so, too."""
        return not self.region.singly and self.busy_ns < ROUND_TRIP_NS / _LOT

    def _next_items(self, count: int) -> deque[Entry]:
        if not self.gather:
            return super()._next_items(count)
        entries = [self.inbox.popleft() for _ in range(count)]
        if self.epoch.memory is not None:
            self.epoch.release(entries)
        return deque(((entries[0][0], entries),))

    def item_of(self, task: Task) -> str:
        """Say which items a task works on: those it was sent, but for what came back."""
        left = task.sent[len(task.results) :]
        if self.gather:
            left = [single for entry in left for single in entry[1]]
        if len(left) < _SEVERAL:
            return str(left[0][0]) if left else ""
        return f"{left[0][0]} to {left[-1][0]}"

    def inputs(self, results: int) -> int:
        """Count the inputs of a task: the worker did."""
        return 0

    def work(self, task: Task) -> None:
        """Have all entries of a task worked on."""
        entries = _taken(task.items)
        if not entries:  # all was taken back
            return
        if self.reads:
            entries = [(path, opened(value)) for path, value, *_ in entries]
        task.sent = entries
        tally = [[0, 0, 0] for _ in self.region.program.stages]
        task.tally = tally[:-1]
        try:
            self._call(task, entries, tally)
        finally:
            task.sent = ()
            task.inputs = tally[-1][0]
            spent_ns = perf_counter_ns() - task.started_ns
            busy_ns = sum(row[2] for row in tally)
            task.away_ns = max(0, spent_ns - busy_ns)
            each_ns = busy_ns / len(entries)
            self.busy_ns = max(each_ns, 0.8 * self.busy_ns + 0.2 * each_ns)

    def _call(self, task: Task, entries: Sequence[Entry], tally: list[list[int]]) -> None:
        region, before = self.region, len(task.results)

        def hand(results: list[Any]) -> None:
            self._give(task, results)

        epoch = self.first.epoch
        job = Job(region.program, epoch, entries, region.timeout_s, hand=hand)
        try:
            answer = region.caller.call(job)
        except BaseException as error:
            rest = entries[len(task.results) - before :]
            if len(rest) > 1 and not isinstance(error, _BROKEN):
                self._one_by_one(task, rest, tally)
            else:
                self._try_again(task, rest[0], error, tally)
            return
        self._take_answer(task, answer, tally)

    def _one_by_one(self, task: Task, entries: Sequence[Entry], tally: list[list[int]]) -> None:
        """Find out which of several entries a worker does not come back from."""
        for entry in entries:
            if self.epoch.over:
                return
            self._call(task, [entry], tally)
            if task.irregular and getattr(task.results[-1], "fatal", False):
                return

    def _try_again(
        self, task: Task, entry: Entry, error: BaseException, tally: list[list[int]]
    ) -> None:
        region, attempts = self.region, 1
        while (wait_s := region.wait_before_retry_s(attempts, error)) is not None:
            if self.epoch.over or not self.first.wait(wait_s):
                break
            attempts += 1
            task.retried += (getattr(error, "stage", "") or region.program.stages[0],)
            job = Job(region.program, self.first.epoch, [entry], region.timeout_s, suspect=True)
            try:
                answer = region.caller.call(job)
            except BaseException as again:
                error = again
            else:
                self._take_answer(task, answer, tally)
                return
        failure = region.failure(entry, error, attempts)
        self._count(entry, region.program.stages.index(failure.record.stage), tally)
        self._give(task, [failure])

    def _count(self, entry: Entry, place: int, tally: list[list[int]]) -> None:
        """Count an item that did not come back from the stage at `place`."""
        items = len(entry[1]) if self.gather else 1
        for row in tally[: place + 1]:
            row[0] += items
        for row in tally[:place]:
            row[1] += items

    def _take_answer(self, task: Task, answer: Answer, tally: list[list[int]]) -> None:
        for row, more in zip(tally, answer.tally, strict=True):
            for place, count in enumerate(more):
                row[place] += count
        task.retried += answer.retried
        self._give(task, answer.results)

    def _give(self, task: Task, results: list[Any]) -> None:
        if not all(type(result) is tuple for result in results):
            task.irregular = True  # first: the ticker may take results at any moment
        task.results.extend(results)


class RegionExpandNode(ExpandNode):
    """Draws from iterators that live in workers: `flat_map` outside the run's threads."""

    __slots__ = ()

    chunk_ns = DRAW_NS

    def work(self, task: Task) -> None:
        """Draw up to the quota; say how many are wanted, so that no more are made."""
        expansion = task.expansion
        assert expansion is not None
        wanted = getattr(expansion.inner, "want", None)
        if wanted is not None:
            wanted(task.quota)
        before_ns = getattr(expansion.inner, "away_ns", 0)
        super().work(task)
        task.away_ns = max(0, getattr(expansion.inner, "away_ns", 0) - before_ns)


class RegionOpener(CallOpener):
    """Opens the children of one item in a worker."""

    def __init__(self, step: Step, region: Region, epoch: int) -> None:
        super().__init__(step)
        self._region = region
        self._epoch = epoch
        self._reads = False

    def let_read(self, each: Callable[[Any], Any]) -> None:
        """Hear that items are batches in flight: they are opened before they are sent."""
        self._reads = True

    def open(self, expansion: Expansion) -> None:
        """Have the function called on the item, somewhere else."""
        entry = expansion.entry
        assert entry is not None
        self._step.wait(expansion.wait_s)
        if self._reads:
            entry = (entry[0], opened(entry[1]))
        job = Job(self._region.program, self._epoch, [entry])
        expansion.inner = self._region.caller.expand(job)
        expansion.entries = children(entry[0], expansion.inner, expansion)

    def recover(self, expansion: Expansion, error: BaseException, task: Task) -> Failed | None:
        """Open again, also where a worker died, or give the failure."""
        attempts = expansion.attempts + 1
        died = isinstance(error, WorkerDiedError)
        if not died or attempts > self._region.caller.retries_of_deaths:
            return super().recover(expansion, error, task)
        expansion.attempts, expansion.entries, expansion.wait_s = attempts, None, 0.0
        task.retried += (self._step.stage,)
        return None


def _taken(items: deque[Entry]) -> list[Entry]:
    """Take the items of a task one by one: others may take some back meanwhile."""
    taken: list[Entry] = []
    while items:
        try:
            taken.append(items.popleft())
        except IndexError:  # the other one was faster
            break
    return taken


def node_of(
    group: Sequence[Stage],
    lane: Lane,
    epoch: Epoch,
    region: Region,
    known: dict[Path, Rest],
) -> Node:
    """Make the node of stages that share their workers.

    Args:
        group: the stages.
        lane: that of the last one.
        epoch: what it belongs to.
        region: does the work.
        known: of a `flat_map`, the children that are wanted, where those are not all.
    """
    spec = group[-1].spec
    if isinstance(spec, FlatMap):
        (step,) = region.steps.values()
        opener = RegionOpener(step, region, step.epoch)
        return RegionExpandNode(lane, epoch, opener, ordered=spec.ordered, known=known)
    batch = next((stage.spec for stage in group if isinstance(stage.spec, Batch)), None)
    if batch is not None:
        return RegionNode(lane, epoch, region, gather=int(batch.size), drop_last=batch.drop_last)
    ordered = all(stage.spec.ordered for stage in group if isinstance(stage.spec, Call))
    return RegionNode(lane, epoch, region, ordered=ordered)
