"""MapNode: calls a function on each item, or on each batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...base.checks import PLAIN, close_unawaited, holds_coroutine, may_give_coroutine
from ...base.seeding import Entry
from ...base.tree import size_bytes
from ..measures.counters import BLOCKED, READY, STARVED, StageRuntime
from .failures import Failed
from .node import Node, NodeEpoch, Runner, Task, keep_result
from .provenance import ArrivalLog, BatchLog, DropLog
from .step import DROPPED, AsyncStep, Chunk, Dropped, Sized, Step, add_all, chunk_of, reclaim

_NEVER = 1 << 62


# -- Runners: loops over the items of a task, without the lock -------------------------------------
class CallRunner(Runner):
    """Calls a stage's function on each item, then those of the inline stages that follow.

    Args:
        first: the stage's step.

    Attributes:
        checks: a call may return a coroutine, which is no result.
        known: types of results that are none.
    """

    __slots__ = ("checks", "first", "known")

    def __init__(self, epoch: NodeEpoch, first: Step) -> None:
        super().__init__(epoch)
        self.first = first
        self.checks = True
        self.known: set[type] = {*PLAIN}
        if epoch.memory is not None:
            self.new_results = Sized

    def run(self, task: Task) -> None:
        """Choose the loop that fits, for later tasks, too."""
        if self.rest or self.epoch.memory is not None or self.first.wants_rng:
            self.perform = run_steps
        else:
            self.checks = may_give_coroutine(self.first.fn)
            self.perform = run_predicate if self.first.keeps else run_plain
        self.perform(task)

    async def run_async(self, task: Task) -> None:
        """Await the one call of a task."""
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

    def measure(self, task: Task) -> None:
        """Measure a result, to estimate the bytes that the stage hands on."""
        results = task.results
        if isinstance(results, Sized):
            task.result_bytes = results.sizes[-1] if results.sizes else None
        elif results and type(results[-1]) not in (Dropped, Failed):
            task.result_bytes = size_bytes(results[-1])

    def made(self, task: Task) -> Iterator[Entry]:
        """Yield the items that a task made."""
        pairs = zip(task.paths, task.results, strict=False)
        return (one for one in pairs if type(one[1]) not in (Dropped, Failed))


def run_plain(task: Task) -> None:
    """Call a function of one argument on every item: the loop that must be fast."""
    runner: CallRunner = task.node.runner  # type: ignore[assignment]
    out, step = task.results, runner.first
    problem: BaseException | None = None
    try:
        add_all(out, map(step.fn, task.items))
    except BaseException as error:
        problem = error
    else:
        if len(out) < task.count and task.lacks(len(out)):
            problem = StopIteration()  # it ended the loop silently
    if runner.checks and not runner.known.issuperset(map(type, out)):
        if not holds_coroutine(out):
            runner.known.update(map(type, out))
        elif not _refuse_coroutines(task):
            return
    if problem is not None:
        result = step.recover(task.entry(len(out)), problem, task)
        if keep_result(task, result):
            run_steps(task)


def _refuse_coroutines(task: Task) -> bool:
    """Replace each result that is a coroutine by a failure; return whether to continue."""
    runner: CallRunner = task.node.runner  # type: ignore[assignment]
    step, first = runner.first, task.published
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
    """Call a predicate of one argument on every item, and keep those for which it holds."""
    runner: CallRunner = task.node.runner  # type: ignore[assignment]
    step, paths, give = runner.first, task.paths, task.results.append
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
    """Send every item that is left through all steps, one after the other."""
    runner: CallRunner = task.node.runner  # type: ignore[assignment]
    first, rest, paths = runner.first, runner.rest, task.paths
    for number, value in enumerate(task.items, len(task.results)):
        result = first.apply((paths[number], value), task)
        if rest and type(result) is tuple:
            result = task.through(result, rest)
        if not keep_result(task, result):
            return


class GroupRunner(CallRunner):
    """Sends each item through the steps of several stages, one after the other.

    Args:
        steps: of the stages, first to last.
    """

    __slots__ = ("_steps",)

    def __init__(self, epoch: NodeEpoch, steps: Sequence[Step]) -> None:
        super().__init__(epoch, steps[-1])
        self._steps = steps

    def run(self, task: Task) -> None:
        """Send every item through all steps."""
        for path, value in zip(task.paths, task.items, strict=False):
            if not keep_result(task, task.through((path, value), self._steps)):
                break
        if task.counts is not None:
            *task.counts, own = task.counts
            task.inputs = own[0]


# -- MapNode ---------------------------------------------------------------------------------------
class MapNode(Node):
    """One task for each item, or for each chunk of cheap items; results in input order or not.

    Items are numbered as they are taken.

    Args:
        runner: does the tasks.
        ordered: results keep input order.
        remote: tasks run on the event loop.
        gather: items that one call takes together (a batch); 0 where it takes them singly.
        drop_last: leave out a last batch that is not full.

    Attributes:
        seq_in: number of the next item.
        ready: results that wait for earlier ones, by number; with whether some are irregular.
        reclaimed: items that a task had not begun, with their numbers; they go first.
        ends_at: number of the item that ends the epoch; no later one begins.
        always_chunks: `chunk` decides also where calls are slow.
        log: the provenance.
    """

    __slots__ = (
        "always_chunks", "drop_last", "ends_at", "gather", "log", "ready", "reclaimed", "seq_in",
    )  # fmt: skip

    def __init__(
        self,
        runtime: StageRuntime,
        epoch: NodeEpoch,
        runner: Runner,
        *,
        ordered: bool = True,
        remote: bool = False,
        gather: int = 0,
        drop_last: bool = False,
    ) -> None:
        log: DropLog | ArrivalLog = DropLog() if ordered else ArrivalLog()
        log = BatchLog(gather) if gather else log
        super().__init__(runtime, epoch, runner, provenance=log, ordered=ordered, remote=remote)
        self.log = log
        self.chunked = True
        self.always_chunks = False
        self.gather = gather
        self.needs = gather or 1
        self.drop_last = drop_last
        self.seq_in = 0
        self.ready: dict[int, tuple[Chunk, bool]] = {}
        self.reclaimed: list[tuple[int, Entry]] = []
        self.ends_at = _NEVER

    # -- choosing work ------------------------------------------------------------------
    def has_input(self) -> bool:
        """Return whether a task could start, given a place and a free slot."""
        return bool(self.reclaimed) or self.inbox.count >= self.needs

    def runnable(self) -> bool:
        """Return whether `take` would return a task."""
        runtime = self.runtime
        if runtime.active >= runtime.concurrency or self.done or self.halted:
            return False
        if self.reclaimed:
            return self.reclaimed[0][0] < self.ends_at
        if self.ends_at < _NEVER or self.inbox.count < self.needs:
            return False
        return self.room() > 0 and (self.epoch.memory is None or self.epoch.admits(self))

    def take(self, now_ns: int) -> Task | None:
        """Choose the next task: reclaimed items first, then the queue."""
        runtime = self.runtime
        if runtime.active >= runtime.concurrency or self.halted:
            return None
        if self.reclaimed and self.reclaimed[0][0] < self.ends_at:
            return self._take_reclaimed(now_ns)
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
            count = self.chunk(available) if chunk_size > 1 or self.always_chunks else 1
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

    def _take_reclaimed(self, now_ns: int) -> Task:
        seq, entry = self.reclaimed.pop(0)
        self.waiting -= 1
        self.active_without_input = bool(self.reclaimed)
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

    # -- handing on results -------------------------------------------------------------
    def publish_partial(self, task: Task, now_ns: int) -> None:
        """Hand on what a long chunk has done, and reclaim what it has not begun.

        A call on the event loop keeps its one item. A chunk that is done is left to its end, which
        counts it: the epoch could be over before.
        """
        if len(task.results) >= task.count and self.error is None:
            return
        if not self.remote:
            values = reclaim(task.items)
            first = task.count - len(values)
            rest = zip(task.paths[first : task.count], values, strict=True)
            self.put_back(task, [*rest])
        super().publish_partial(task, now_ns)

    def put_back(self, task: Task, rest: list[Entry]) -> None:
        """Put the last items of a task, which it has not begun, in front of the queue."""
        task.count -= len(rest)
        self.waiting += len(rest)
        first = task.seq + task.count
        self.reclaimed.extend((first + n, entry) for n, entry in enumerate(rest))
        self.reclaimed.sort(key=lambda pair: pair[0])
        self.active_without_input = bool(self.reclaimed)

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
            if irregular or not self.ordered:  # after `emit`, which finds what ends the epoch
                self.log.record(seq, made.values)
            seq = self.seq_out
            if seq not in self.ready or self.done:
                return
            made, irregular = self._pop_ready(seq)

    def _pop_ready(self, seq: int) -> tuple[Chunk, bool]:
        made, irregular = self.ready.pop(seq)
        self.waiting -= len(made.values)
        if irregular:  # what `emit` leaves out of it is released without the lock
            self.epoch.deferred_release.append(made)
        return made, irregular

    # -- the end ------------------------------------------------------------------------
    def end_of_input(self, error: BaseException | None) -> None:
        """Called when nothing more comes in: take a last, smaller batch, if that is wanted."""
        failed = self.input_error or error  # with a failed item missing, it would not be the last
        if not (self.drop_last or (self.gather and failed)):
            self.needs = 1
        super().end_of_input(error)

    def exhausted(self) -> bool:
        """Return whether everything was handed on."""
        if self.inbox.count < self.needs:
            self.epoch.drop(self.inbox)
        return not self.inbox.count and not self.reserved

    def let_go(self) -> None:
        """Release all items, and results that wait for earlier ones."""
        super().let_go()
        self.epoch.deferred_release += [self.ready, self.reclaimed]
        self.ready, self.reclaimed = {}, []


class GroupNode(MapNode):
    """Calls the functions of several stages on each item, one after the other, in one thread.

    The runtime is that of the last stage, whose results wait.
    """

    __slots__ = ()
    own_first = False

    def __init__(self, runtime: StageRuntime, epoch: NodeEpoch, steps: Sequence[Step]) -> None:
        super().__init__(runtime, epoch, GroupRunner(epoch, steps))
        self.counts_in = False  # the runner does
