"""MapNode calls a function on each item or batch; StreamNode pushes items into what remembers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from ..base.checks import PLAIN, close_unawaited, holds_coroutine, may_give_coroutine
from ..base.seeding import Entry
from ..base.tree import size_bytes
from ..ops.ranges import IndexRanges, StatefulOp
from .failures import Failed
from .node import Node, NodeEpoch, StageStates, Task, draw, keep_result, record_state
from .provenance import ArrivalLog, DropLog
from .stats import BLOCKED, CHUNK_MAX, READY, STARVED, StageRuntime
from .step import (
    DROPPED,
    AsyncStep,
    Chunk,
    Dropped,
    EpochContext,
    OpenIterator,
    Sized,
    Step,
    add_all,
    chunk_of,
    reclaim,
)

_NEVER = 1 << 62


class MapNode(Node):
    """One task for each item, or for each chunk of cheap items; results in order or not.

    Items are numbered as they are taken. A result that comes early waits in `ready`; items
    that were taken back from a chunk wait in `returned` and go first. Both keep their place.

    Args:
        first: the stage's step.
        gather: items that one call takes together (a batch); 0 where it takes them singly.
        drop_last: leave out a last batch that is not full.

    Attributes:
        checks: a call may make a coroutine, which is no result.
        known: types of results that are none.
        ends_at: number of the item that ends the epoch; none behind it is begun any more.
    """

    __slots__ = (
        "checks",
        "drop_last",
        "ends_at",
        "first",
        "gather",
        "known",
        "log",
        "ready",
        "returned",
        "sends",
        "seq_in",
    )

    def __init__(
        self,
        runtime: StageRuntime,
        epoch: NodeEpoch,
        first: Step,
        *,
        ordered: bool = True,
        remote: bool = False,
        gather: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(runtime, epoch, ordered=ordered, remote=remote)
        self.first = first
        self.chunked = True
        self.checks = True
        self.known: set[type] = {*PLAIN}
        self.sends = False  # `chunk` decides, also where calls are slow
        if epoch.memory is not None:
            self.new_results = Sized
        self.gather = gather
        self.needs = gather or 1
        self.drop_last = drop_last
        self.seq_in = 0
        self.ready: dict[int, tuple[Chunk, bool]] = {}
        self.returned: list[tuple[int, Entry]] = []
        self.ends_at = _NEVER
        self.log: DropLog | ArrivalLog = DropLog() if ordered else ArrivalLog()

    def has_input(self) -> bool:
        """Tell whether a call could start, but for room and slots."""
        return bool(self.returned) or self.inbox.count >= self.needs

    def runnable(self) -> bool:
        """Tell whether `take` would give a task."""
        runtime = self.runtime
        if runtime.active >= runtime.concurrency or self.done or self.halted:
            return False
        if self.returned:
            return self.returned[0][0] < self.ends_at
        if self.ends_at < _NEVER or self.inbox.count < self.needs:
            return False
        return self.room() > 0 and (self.epoch.memory is None or self.epoch.admits(self))

    def take(self, now_ns: int) -> Task | None:
        """Choose the next task: items taken back first, then the queue."""
        runtime = self.runtime
        if runtime.active >= runtime.concurrency or self.halted:
            return None
        if self.returned and self.returned[0][0] < self.ends_at:
            return self._take_returned(now_ns)
        available, out, chunk_size = self.inbox.count, self.out, runtime.chunk_size
        under_way = self.reserved if chunk_size > 1 else self.waiting + self.running
        places = runtime.prefetch + runtime.concurrency * chunk_size + self.gathers
        places -= under_way + out.count + out.lent  # as `room` does, without a call
        if available < self.needs or places < chunk_size or self.done or self.ends_at < _NEVER:
            return None
        if self.epoch.memory is not None and not self.epoch.admits(self):
            return None
        if self.gather:
            count = min(available, self.gather)
            task = Task(self, self.seq_in, now_ns, self.gathered(self.inbox.take(count)))
            task.inputs = count
        else:
            count = self.chunk(available) if chunk_size > 1 or self.sends else 1
            task = Task(self, self.seq_in, now_ns, self.inbox.take(count))
        self.seq_in += task.count
        self.reserved += task.count
        for above in self.upstream:
            if above.runtime.state == BLOCKED and now_ns >= above.runtime.booking_ns:
                above.note_state(now_ns)
        if places < 2 * chunk_size:
            state = BLOCKED
        else:
            state = READY if available - count >= self.needs else STARVED
        if state != runtime.state:
            if now_ns > runtime.booking_ns:
                runtime.account(now_ns)
            runtime.state = state
        runtime.active += 1  # as `occupy` does, without a call
        runtime.spent_ns -= now_ns
        self.running += 1
        return task

    def _take_returned(self, now_ns: int) -> Task:
        seq, entry = self.returned.pop(0)
        self.waiting -= 1
        self.active_without_input = bool(self.returned)
        return self.started(Task(self, seq, now_ns, Chunk.of([entry])), now_ns)

    def room(self) -> int:
        """Return the number of further tasks that there is place for."""
        runtime, out, chunk_size = self.runtime, self.out, self.runtime.chunk_size
        places = runtime.prefetch + runtime.concurrency * chunk_size + self.gathers
        under_way = self.reserved if chunk_size > 1 else self.waiting + self.running
        return (places - under_way - out.count - out.lent) // chunk_size

    def gathered(self, chunk: Chunk) -> Chunk:
        """Make one item of several: their values, under the path of the first."""
        return Chunk(chunk.paths[:1], [chunk.values])

    def measure(self, task: Task) -> None:
        """Measure a result, for the bytes that a stage hands on; called without the lock."""
        results = task.results
        if isinstance(results, Sized):
            task.result_bytes = results.sizes[-1] if results.sizes else None
        elif results and type(results[-1]) not in (Dropped, Failed):
            task.result_bytes = size_bytes(results[-1])

    def work(self, task: Task) -> None:
        """Run the loop that fits; later tasks go there at once."""
        if self.rest or self.epoch.memory is not None or self.first.wants_rng:
            self.perform = run_steps
        else:
            self.checks = may_give_coroutine(self.first.fn)
            self.perform = run_predicate if self.first.keeps else run_plain
        self.perform(task)

    async def work_elsewhere(self, task: Task) -> None:
        """Await the one call of a remote task."""
        step: AsyncStep = self.first  # type: ignore[assignment]
        value = task.chunk.values[0]
        plain = step.timeout_s is None and not step.wants_rng
        try:
            result = await (step.fn(value) if plain else step.awaitable(task.entry(0)))
            step.refuse_coroutine(result)
            if step.keeps:
                result = value if result else DROPPED
        except BaseException as error:
            keep_result(task, await step.recover_async(task.entry(0), error, task))
            return
        task.irregular = result is DROPPED
        task.results.append(result)

    def made(self, task: Task) -> Iterator[Entry]:
        """Return the items that a task made."""
        pairs = zip(task.paths, task.results, strict=False)
        return (one for one in pairs if type(one[1]) not in (Dropped, Failed))

    def publish_partial(self, task: Task, now_ns: int) -> None:
        """Hand on what a long chunk has done, and take back what it has not begun.

        A call that waits for the event loop keeps its one item: it counts on it. What is done
        altogether comes with the task's end, which counts it: the epoch could be over before.
        """
        if len(task.results) >= task.count and self.error is None:
            return
        if not self.remote:
            values = reclaim(task.items)
            first = task.count - len(values)
            rest = zip(task.paths[first : task.count], values, strict=True)
            self._return(task, [*rest])
        super().publish_partial(task, now_ns)

    def _return(self, task: Task, rest: list[Entry]) -> None:
        """Put the last items of a task, which it has not begun, back in front of the queue."""
        task.count -= len(rest)
        self.waiting += len(rest)
        first = task.seq + task.count
        self.returned.extend((first + n, entry) for n, entry in enumerate(rest))
        self.returned.sort(key=lambda pair: pair[0])
        self.active_without_input = bool(self.returned)

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on results, in input order where that is promised."""
        count, seq, irregular = len(results), task.seq + at, task.irregular
        if self.done or not count:
            return
        if irregular and type(results[-1]) is Failed and results[-1].fatal:
            self.ends_at = min(self.ends_at, seq + count - 1)
        paths, sizes = task.paths, None
        if count != len(paths):
            paths = paths[at : at + count]
        if isinstance(task.results, Sized):
            sizes = task.results.sizes[at : at + count]
        made = chunk_of((paths, results, sizes))
        if self.ordered and seq != self.seq_out:
            self.ready[seq] = (made, irregular)
            self.waiting += count
            return
        while True:
            count = len(made.values)
            self.reserved -= count
            self.seq_out += count
            self.emit(made, now_ns, irregular=irregular)
            if irregular or not self.ordered:  # only now it is known what ended the epoch
                self.log.record(seq, made.values)
            seq = self.seq_out
            if seq not in self.ready or self.done:
                return
            made, irregular = self._ready(seq)

    def _ready(self, seq: int) -> tuple[Chunk, bool]:
        """Take results whose turn has come."""
        made, irregular = self.ready.pop(seq)
        self.waiting -= len(made.values)
        if irregular:
            self.epoch.deferred_release.append(made)  # what is left out of it ends without the lock
        return made, irregular

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Leave out what was dropped; a batch stands for all of its items."""
        inputs, size = self.log.inputs(rest), self.gather
        if not size:
            return inputs
        return IndexRanges(inputs.start * size, tuple((a * size, b * size) for a, b in inputs.gaps))

    def input_of(self, result: int) -> int:
        """Return the number of the input of a result; of a batch, that of its last item."""
        number = cast("DropLog", self.log).input_of(result)  # in a branch, order is kept
        if not self.gather:
            return number
        return min((number + 1) * self.gather - 1, self.inbox.total)

    def done_with(self, below: Mapping[int, IndexRanges]) -> tuple[int, int]:
        """Return how many inputs are done with; what failed is not tried again."""
        return self.log.count + super().done_with(below)[0], 0

    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Forget which inputs gave the results that nobody wants any more."""
        self.log.forget(min(rest.start for rest in below.values()))

    def let_go(self) -> None:
        """Hold no items any more, nor results that wait for others."""
        super().let_go()
        self.epoch.deferred_release += [self.ready, self.returned]
        self.ready, self.returned = {}, []

    @property
    def needed_at_end(self) -> int:
        """All items of a batch where a smaller one is not wanted, or would miss a failed item."""
        return self.gather if self.drop_last or (self.gather and self.input_error) else 1

    def exhausted(self) -> bool:
        """Tell whether all input was handed on."""
        if self.inbox.count < self.needs:
            self.epoch.drop(self.inbox)
        return not self.inbox.count and not self.reserved


class GroupNode(MapNode):
    """Calls the functions of several stages on each item, one after the other, in one thread.

    The runtime is that of the last stage, behind which results wait; the stages before it have
    rows of their own.

    Args:
        steps: those of the stages, first to last.
    """

    __slots__ = ("steps",)
    own_first = False

    def __init__(self, runtime: StageRuntime, epoch: NodeEpoch, steps: Sequence[Step]) -> None:
        super().__init__(runtime, epoch, steps[-1])
        self.steps = steps
        self.counts_in = False  # `work` does

    @property
    def shares_workers(self) -> bool:
        """Its tasks go through several stages."""
        return True

    def work(self, task: Task) -> None:
        """Send every item through all steps."""
        for path, value in zip(task.paths, task.items, strict=False):
            if not keep_result(task, task.through((path, value), self.steps)):
                break
        if task.counts is not None:
            *task.counts, own = task.counts
            task.inputs = own[0]


# -- The loops over the items of a task, without the lock ------------------------------------------
def run_plain(task: Task) -> None:
    """Call a function of one argument on every item: the loop that must be fast."""
    node: MapNode = task.node  # type: ignore[assignment]
    out, step = task.results, node.first
    problem: BaseException | None = None
    try:
        add_all(out, map(step.fn, task.items))
    except BaseException as error:
        problem = error
    else:
        if len(out) < task.count and task.lacks(len(out)):
            problem = StopIteration()  # it ended the loop without a word
    if node.checks and not node.known.issuperset(map(type, out)):
        if not holds_coroutine(out):
            node.known.update(map(type, out))
        elif not _part_coroutines(task):
            return
    if problem is not None:
        result = step.recover(task.entry(len(out)), problem, task)
        if keep_result(task, result):
            run_steps(task)


def _part_coroutines(task: Task) -> bool:
    """Put a failure in the place of each result that is a coroutine; tell if the work continues."""
    node: MapNode = task.node  # type: ignore[assignment]
    step, first = node.first, task.published
    made = task.results[first:]
    del task.results[first:]
    while made:
        value, entry = made.pop(0), task.entry(len(task.results))
        result: Any = (entry[0], value)
        try:
            step.refuse_coroutine(value)
        except BaseException as error:
            result = step.recover(entry, error, task)
        if not keep_result(task, result):
            any(map(close_unawaited, made))
            return False
    return True


def run_predicate(task: Task) -> None:
    """Ask a predicate of one argument of every item, and keep those for which it holds."""
    node: MapNode = task.node  # type: ignore[assignment]
    step, paths, give = node.first, task.paths, task.results.append
    for number, value in enumerate(task.items):
        try:
            verdict = step.fn(value)
            if type(verdict) not in PLAIN:
                step.refuse_coroutine(verdict)
            result = value if verdict else DROPPED
        except BaseException as error:
            if not keep_result(task, step.recover((paths[number], value), error, task)):
                return
            continue
        if result is DROPPED:
            task.irregular = True  # first: the ticker may take results at any moment
        give(result)


def run_steps(task: Task) -> None:
    """Send every item that is left through the steps of its node, one after the other."""
    node: MapNode = task.node  # type: ignore[assignment]
    first, rest, paths = node.first, node.rest, task.paths
    for number, value in enumerate(task.items, len(task.results)):
        result = first.apply((paths[number], value), task)
        if rest and type(result) is tuple:
            result = task.through(result, rest)
        if not keep_result(task, result):
            return


# -- StreamNode: hosts operations that see the items in order and remember something ---------------
class FoldStep(Step):
    """Pushes entries into a stream operation."""

    __slots__ = ("operation",)

    def __init__(self, stage: str, operation: StatefulOp, context: EpochContext) -> None:
        super().__init__(stage, operation.process, context)
        self.operation = operation

    def produce(self, entry: Entry) -> Any:
        """Push one entry, while the operation wants any."""
        return None if self.operation.finished else self.fn(entry)


class StreamNode(Node):
    """One task at a time, in order; at the end of the input, what the operation kept back.

    Args:
        step: pushes into the operation.
        drops: in a branch of a route, notes which items gave nothing.
    """

    __slots__ = ("drops", "flushed", "rest_of_stream", "step")

    def __init__(
        self, runtime: StageRuntime, epoch: NodeEpoch, step: FoldStep, drops: DropLog | None = None
    ) -> None:
        super().__init__(runtime, epoch)
        self.active_without_input = True
        self.drops = drops
        self.step = step
        self.rest_of_stream: OpenIterator | None = None
        self.flushed = False

    def has_input(self) -> bool:
        """Tell whether there is something to push or to flush."""
        over = self.input_over or self.step.operation.finished
        return bool(self.inbox.count) or (over and not self.flushed)

    def runnable(self) -> bool:
        """Tell whether `take` would give a task."""
        runtime = self.runtime
        return (
            not (self.done or self.halted or self.running or runtime.active >= runtime.concurrency)
            and self.has_input()
            and self.room() > 0
            and self.epoch.admits(self)
        )

    def take(self, now_ns: int) -> Task | None:
        """Choose the next chunk of the queue, or of what is left at the end."""
        if not self.runnable():
            return None
        if self.step.operation.finished:
            self._close_input()
        available = self.inbox.count
        if available:
            task = Task(self, 0, now_ns, self.inbox.take(self.chunk(available)))
            self.freed(now_ns)
        else:
            self.counts_in = False  # what is left came in before
            task = Task(self, 0, now_ns, quota=self.chunk(CHUNK_MAX))
            task.iterator = self.rest_of_stream = self.rest_of_stream or OpenIterator(0)
        self.reserved += task.count or task.quota
        return self.started(task, now_ns)

    def work(self, task: Task) -> None:
        """Push the items, or draw from what is left."""
        if task.iterator is None:
            for entry in task.chunk.entries():
                result: Any = self.step.apply(entry, task)
                if type(result) is not tuple:
                    task.irregular = True
                task.results.append(result)
                if isinstance(result, Failed) and result.fatal:
                    return
            return
        rest = task.iterator
        try:
            if rest.entries is None:
                rest.entries = self._left()
            rest.over = draw(task, rest.entries)
        except BaseException as error:
            task.irregular = rest.over = True
            task.results.append(self.step.failure((-1, None), error, 1))

    def _left(self) -> Iterator[Entry]:
        operation = self.step.operation
        if self.input_error is not None and not operation.holds_items:
            return iter(())
        return operation.finish()

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Have the operation say what it wants."""
        node_state: dict[str, Any] = {}
        inputs = self.step.operation.rest_of_input(rest, node_state)
        record_state(stages, self.runtime.address, node_state)
        return inputs

    def input_of(self, result: int) -> int:
        """Return the number of the item that was pushed when a result came."""
        return result if self.drops is None else self.drops.input_of(result)

    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Let the operation forget what nobody wants any more."""
        start = min(rest.start for rest in below.values())
        self.step.operation.forget(start)
        if self.drops is not None:
            self.drops.forget(start)

    @property
    def keeps(self) -> bool:
        """Whether the operation can keep what it made, and saw all of it."""
        return not self.cut and self.step.operation.commits

    def commit(self) -> None:
        """Let the operation keep what it made: all was consumed; called without the lock."""
        self.step.operation.commit()

    def undo_commit(self) -> None:
        """Let the operation undo that: the loop had not all of it; called without the lock."""
        self.step.operation.undo_commit()

    def close(self) -> None:
        """Let the operation drop what it keeps outside this process; called without the lock."""
        self.step.operation.close()

    def halt(self) -> None:
        """Stop, and have the operation closed."""
        super().halt()
        self.epoch.pending_close.append(self)

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on results as they come: there is one task at a time."""
        if self.done:
            return
        if final:
            self.reserved = 0
        else:
            self.reserved -= len(results)
        if results:
            self.emit_entries(results, now_ns, irregular=task.irregular)
            if self.drops is not None:
                self.drops.record(
                    self.seq_out, [DROPPED if one is None else one for one in results]
                )
                self.seq_out += len(results)
        if not final:
            return
        if task.iterator is not None:
            self.flushed = task.iterator.over
        elif self.step.operation.finished:
            self._close_input()
        self.note_state(now_ns)

    def _close_input(self) -> None:
        self.input_error = None  # whatever comes, or went wrong, behind what is wanted
        for above in self.upstream:
            above.cut_off()
        if not self.input_over and not self.done:
            self.epoch.halt(self.upstream)
            self.epoch.drop(self.inbox)
            self.input_over = self.epoch.changed = True

    def end_of_input(self, error: BaseException | None) -> None:
        """Called when nothing more will come; it is of no interest once nothing is wanted."""
        super().end_of_input(None if self.step.operation.finished else error)

    def exhausted(self) -> bool:
        """Tell whether everything was pushed and flushed."""
        return not self.inbox.count and not self.running and self.flushed


def keeping(nodes: Iterable[Node]) -> list[StreamNode]:
    """Return those of these nodes that can keep what they made, as a cache does."""
    return [node for node in nodes if isinstance(node, StreamNode) and node.keeps]
