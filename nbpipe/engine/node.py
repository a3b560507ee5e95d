"""Node: one stage in one epoch: its queues, its order, its place, its tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from itertools import compress, islice
from time import perf_counter_ns
from typing import Any, ClassVar, Protocol

from ..base.checks import holds_coroutine
from ..base.gil import lock_wait, switches
from ..base.seeding import Entry
from ..base.threads import ThreadSettings, core_times_ns
from ..base.tree import size_bytes
from ..errors import FailureBudgetError
from ..executors.interface import Request
from ..ops.ranges import IndexRanges
from .failures import Budget, Failed, Failure
from .stats import BLOCKED, READY, SLOW_NS, SOON_NS, STARVED, TIMING_NS, ItemCounts, StageRuntime
from .step import (
    DROPPED,
    EMPTY,
    SIZED,
    Chunk,
    Dropped,
    HeldBytes,
    OpenIterator,
    Queue,
    SizedEntries,
    StageCounters,
    Step,
    add_all,
    add_each,
    unbegun,
)

# -- Noting: what the stages of an epoch say of where they stand, put together ---------------------
StageStates = dict[str, dict[str, Any]]  # where stages stand, by address; JSON-ready


def record_state(stages: StageStates, address: str, node_state: dict[str, Any]) -> None:
    """Note where a stage stands; what is left out behind it counts what it leaves itself."""
    if not node_state:
        return
    known = stages.setdefault(address, {})
    if "drop" in known and "drop" in node_state:
        node_state["drop"] = (
            IndexRanges.read(node_state["drop"]).of_wanted(IndexRanges.read(known["drop"])).data
        )
    known.update(node_state)


# -- What a node needs of its epoch ----------------------------------------------------------------
class ByteBudget(HeldBytes, Protocol):
    """The rule for what may still start, by the bytes that are held in all queues."""

    def affordable(self, node: Node, /) -> int:
        """Return the number of results of `node` that there is place for, at least 1."""

    def reestimate(self, node: Node, /) -> None:
        """Called when the places which `node` has reserved may be others now."""

    def began(self, node: Node, /) -> None:
        """Called when a task of `node` was taken."""

    def ended(self, node: Node, /) -> None:
        """Called when a task of `node` was settled."""


class Closable(Protocol):
    """Something of the user's, or on disk, that is closed when its epoch is over."""

    def close(self) -> None:
        """Close it; user code may run."""


class NodeEpoch(Protocol):
    """What a node needs of its epoch; all of it is told at `Epoch`."""

    lock: AbstractContextManager[Any]
    pending_close: list[Closable]
    deferred_release: list[object]
    tended: bool
    over: bool
    held: bool
    changed: bool
    skipped: int
    now_ns: int

    @property
    def remember(self) -> Callable[[Failure], None]:
        """Keeps a failure."""

    @property
    def at_work(self) -> Callable[[], list[Task]]:
        """Gives the tasks in progress."""

    @property
    def settings(self) -> ThreadSettings:
        """What holds where its work is done."""

    @property
    def memory(self) -> ByteBudget | None:
        """The byte budget; None without one."""

    @property
    def may_start(self) -> bool:
        """Whether tasks may start."""

    def counts(self, runtime: StageRuntime, /) -> ItemCounts:
        """Return what counts the items of a stage."""

    def admits(self, node: Node, /) -> bool:
        """Tell whether the byte budget lets `node` start."""

    def drop(self, queue: Queue, /) -> None:
        """Let go of all that waits in a queue."""

    def open(self, inputs: Iterable[Node], /) -> None:
        """Let the inputs that end with these nodes begin."""

    def replace(self, node: Node, part: Sequence[Node], /) -> None:
        """Put a new part above `node`, for its next pass; `part` is most downstream first."""

    def halt(self, nodes: Iterable[Node], /) -> None:
        """Stop these nodes and all above them."""

    def drained(self, error: BaseException | None, /) -> None:
        """Called when the last node is done."""

    def fail_at_once(self, error: BaseException, /) -> None:
        """End the epoch with an error that does not wait for earlier items."""


# -- Task: a piece of work for one stage -----------------------------------------------------------
NOTHING = unbegun([])
MEASURE_NS = 5_000_000  # a result of a stage is measured no more often than this


class Task(StageCounters):
    """Work of one node.

    Attributes:
        node: the node it belongs to.
        seq: place of its first item in the node's order.
        paths: of the items.
        chunk: the items; none are left once the work is done.
        items: those of them that are not begun.
        count: number of items, without those taken back.
        results: one result for each item done: a value, a `Dropped`, or a `Failed`; of nodes that
            do not take item by item, entries in place of values, and None in place of DROPPED.
        published: number of results already handed on.
        cheap: taken without waking another thread.
        watched: the ticker looks after it: it may hold results back, or nobody else is awake.
        started_ns, ended_ns: when the work began and ended; 0 before.
        inputs: number of items, where one value holds several of them.
        rows: of the fused steps.
        away_ns: time in progress, but in no user's function: on the way to a worker [ns]; below 0
            where the worker was at work before this task was seen to.
        iterator: the iterator to draw from, for nodes that expand.
        quota: how many results to draw.
        drawn: how many were drawn from it before this task.
        step: which fused step is at work; 0 for the node's own.
        sent: the entries, where the work is done elsewhere.
        request: the work on all of them, until it is waited for.
        following: the task that took over its call before its results were here; the same thread
            does it next, come what may.
        seen_ns: when results were last handed on before the end, or its worker had started; or 0.
        settings: what holds where the work is done: the epoch's.
        result_bytes: size of one result, where one was measured [bytes].
    """

    published = 0
    started_ns = 0
    ended_ns = 0
    inputs = 0
    away_ns = 0
    result_bytes: int | None = None
    iterator: OpenIterator | None = None
    drawn = 0
    sent: Sequence[Entry] = ()
    request: Request | None = None
    following: Task | None = None
    seen_ns = 0

    def __init__(
        self, node: Node, seq: int, now_ns: int, chunk: Chunk = EMPTY, *, quota: int = 0
    ) -> None:
        runtime = node.runtime
        self.node = node
        self.seq = seq
        self.paths = chunk.paths
        self.chunk = chunk
        self.items = unbegun(chunk.values)
        self.count = count = len(chunk.values)
        self.quota = quota
        self.results: list[Any] = node.new_results()
        self.cheap = cheap = runtime.cost_ns <= SLOW_NS and not node.remote
        self.watched = cheap or quota > 1 or count > 1
        self.settings = node.epoch.settings
        self.perform: Callable[[Any], object] = node.perform
        if now_ns >= runtime.timing_ns:
            runtime.timing_ns = now_ns + TIMING_NS
            self.perform = run_timed

    def entry(self, number: int) -> Entry:
        """Return an item that is being worked on."""
        return (self.paths[number], self.chunk.values[number])

    def let_go(self) -> None:
        """Measure a result if it is time; hold no items any more.

        Whoever looks at what is in progress may be the last to hold the task.
        """
        self.chunk = EMPTY
        self.items = NOTHING
        if self.ended_ns - self.node.runtime.measured_ns > MEASURE_NS:
            self.measure()

    def measure(self) -> None:
        """Measure a result; tasks that end at the same time need not."""
        self.node.runtime.measured_ns = self.ended_ns
        self.node.measure(self)

    def run(self) -> None:
        """Do the work in this thread."""
        self.started_ns = perf_counter_ns()
        self.perform(self)
        self.ended_ns = perf_counter_ns()
        self.let_go()

    def begin(self) -> Coroutine[Any, Any, None]:
        """Return the coroutine that does the work on the event loop."""
        self.started_ns = perf_counter_ns()
        return _nothing() if self.node.epoch.over else self.node.work_elsewhere(self)

    @property
    def reads(self) -> OpenIterator | None:
        """The async iterator that it draws from, or None."""
        return self.iterator if self.node.remote else None

    def lacks(self, done: int) -> bool:
        """Tell whether it has more than `done` items, none of which was taken back."""
        with self.node.epoch.lock:
            return done < self.count


async def _nothing() -> None:
    """Do nothing: the epoch ended before the call began."""


def run_timed(task: Task) -> None:
    """Do a task as its node does, and measure how long this thread computes and waits."""
    begun_ns, before, (computed_ns, wanted_ns) = perf_counter_ns(), switches(), core_times_ns()
    task.node.perform(task)
    (cpu_ns, lacked_ns), after, ended_ns = core_times_ns(), switches(), perf_counter_ns()
    cpu_ns, lacked_ns = cpu_ns - computed_ns, lacked_ns - wanted_ns
    timed_ns, node = ended_ns - begun_ns - lacked_ns, task.node
    wait = lock_wait(timed_ns - cpu_ns, lacked_ns, before, after)
    runtime = node.runtime if node.own_first else (*node.rest_runtimes, node.runtime)[0]
    with node.epoch.lock:
        runtime.learn_cpu(timed_ns, cpu_ns, wait)


def keep_result(task: Task, result: Entry | Failed | None) -> bool:
    """Keep the result of an item; tell whether the work goes on."""
    if type(result) is tuple:
        task.results.append(result[1])
        return True
    task.irregular = True  # first: the ticker may take results at any moment
    task.results.append(DROPPED if result is None else result)
    return not (isinstance(result, Failed) and result.fatal)


def draw(task: Task, entries: Iterable[Any]) -> bool:
    """Draw results up to the quota; tell whether that was all there is."""
    add = add_all if type(task.results) is list else add_each
    add(task.results, islice(entries, task.quota))
    return len(task.results) < task.quota


# -- Node: one stage in one epoch: its queues, its order, the choice of its next task --------------
# Unless said otherwise, methods are called under the scheduler's lock. A node never starts work
# whose results have no place: a stage holds at most `prefetch` results and `concurrency` tasks.
# A task is one item, or a chunk of them while calls take microseconds.


@dataclass(eq=False, repr=False, slots=True)
class Node(ABC):
    """State of one stage in one epoch.

    Attributes:
        runtime: limits and times, kept from epoch to epoch.
        counts: of the items of this stage.
        inbox: the queue of input.
        active_without_input: `take` may give a task though the queue of input is empty.
        out: results ready for the next node, whose queue of input is this one.
        reserved: results that tasks in progress may give, or that wait for their turn.
        waiting: those of them that were made, or whose items wait to be taken again.
        needs: items that must wait in the queue of input before a task can start.
        gathers: items that the next node needs before it can start.
        chunked: while calls are cheap, a call has places for a chunk of results.
        remote: tasks run elsewhere (the event loop), not in the engine's threads.
        perform: does a task; `work`, or the loop that it chose.
        counts_in: an item comes in for each of its results; else they are counted elsewhere.
        judged: budgets that are limited, each with its stage's place among those that run here.
        own_first: items come to this stage first, then to those that run with it; else last.
        gives_one: each of its results, those that are left out too, is that of one input.
        new_results: makes the list for the results of a task.
        promised_bytes: estimated size of what places are reserved for [bytes].
        done: everything was handed on; `error` then says why, if not by the end of input.
        halted: nothing of this node is needed any more.
        cut: the stages below end whether or not this node has more; it was not seen whole.
    """

    own_first: ClassVar[bool] = True
    runtime: StageRuntime
    epoch: NodeEpoch
    _: KW_ONLY
    counts: ItemCounts = field(init=False)
    ordered: bool = True
    remote: bool = False
    chunked: bool = False
    inbox: Queue = field(default_factory=Queue)
    active_without_input: bool = False
    out: Queue = field(init=False)
    upstream: tuple[Node, ...] = ()
    downstream: Node | None = None
    needs: int = 1
    gathers: int = 0
    reserved: int = 0
    waiting: int = 0
    running: int = 0
    promised_bytes: float = 0.0
    seq_out: int = 0
    input_over: bool = False
    input_error: BaseException | None = None
    error: BaseException | None = None
    done: bool = False
    cut: bool = False
    halted: bool = False
    rest: tuple[Step, ...] = ()
    rest_runtimes: tuple[StageRuntime, ...] = ()
    rest_budgets: tuple[Budget, ...] = ()
    budget: Budget | None = None
    judged: tuple[tuple[int, Budget], ...] = ()
    counts_in: bool = True
    gives_one: bool = True
    perform: Callable[[Task], object] = field(init=False)
    new_results: type[list[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = self.epoch.counts(self.runtime)
        memory = self.epoch.memory
        self.out = Queue(memory)
        self.perform = self.work
        self.new_results = list if memory is None else SizedEntries

    @property
    def shares_workers(self) -> bool:
        """Whether its tasks go through several stages elsewhere: none is busy all that time."""
        return False

    # -- choosing work ------------------------------------------------------------------
    @abstractmethod
    def take(self, now_ns: int) -> Task | None:
        """Choose the next task and reserve its places, or give None."""

    @abstractmethod
    def runnable(self) -> bool:
        """Tell whether `take` would give a task."""

    @abstractmethod
    def work(self, task: Task) -> None:
        """Do the task; called without the lock."""

    async def work_elsewhere(self, task: Task) -> None:
        """Do the task of a remote node on the event loop; called without the lock."""
        raise TypeError(f"{type(self).__name__} works in threads")

    @abstractmethod
    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on results `at`, `at + 1`, ... of a task that goes on, or has ended (`final`)."""

    def measure(self, task: Task) -> None:
        """Measure a result, for the bytes that a stage hands on; called without the lock."""
        result = task.results[-1] if task.results else None
        if type(result) is tuple:
            sized = len(result) == SIZED
            task.result_bytes = result[2] if sized else size_bytes(result[1])

    @abstractmethod
    def has_input(self) -> bool:
        """Tell whether anything waits to be worked on."""

    def room(self) -> int:
        """Return the number of further tasks that there is place for; a chunk counts as one."""
        runtime = self.runtime
        places = runtime.prefetch + runtime.concurrency + self.gathers
        return places - self.waiting - self.running - self.held()

    def is_attended(self, now_ns: int) -> bool:
        """Tell whether a thread that is at work here comes back soon enough for what may start.

        The last one came a moment ago, and either the next node has enough of what was made, or
        little waits: not where it is cheap to make, as there may be more at any moment.
        """
        runtime, active = self.runtime, self.runtime.active
        soon = SLOW_NS < runtime.cost_ns <= SOON_NS * active and not self.remote
        if not soon or now_ns - runtime.ended_ns > SOON_NS:
            return False
        if 2 * (self.out.count - self.gathers) > runtime.prefetch:
            return True
        if self.active_without_input or self.inbox.count > active:
            return False
        return bool(self.upstream) and self.upstream[0].runtime.cost_ns > SLOW_NS

    def take_again(self, now_ns: int) -> Task | None:
        """Choose another task for a thread that was at work here, where it need not go on.

        Threads at work in the next node are about to come back for what it made there. Were it to
        go on with that itself, another one would have to be woken for its place here.
        """
        following, count = self.downstream, self.out.count
        if not count or following is None or count > following.runtime.active:
            return None
        if self.epoch.memory is not None or not following.is_attended(now_ns):
            return None
        task = self.take(now_ns)
        if task is not None:
            task.watched = True  # a call there may hang
        return task

    def held(self) -> int:
        """Return the number of results ready for the next node."""
        return self.out.count + self.out.lent

    def queued(self) -> int:
        """Return the results that wait, without those the next node is gathering."""
        return max(0, self.held() - self.gathers)

    def started(self, task: Task, now_ns: int) -> Task:
        """Book the start of a task."""
        self.note_state(now_ns)
        self.runtime.occupy(1, now_ns)
        self.running += 1
        return task

    def chunk(self, available: int) -> int:
        """Return the number of items to do at once: more when they are cheap."""
        most = min(available, self.runtime.chunk_size)
        memory = self.epoch.memory
        return most if memory is None else min(most, memory.affordable(self))

    def comes_in_chunks(self, slow_ns: int) -> bool:
        """Tell whether results are so cheap that several are made at once."""
        return self.runtime.cost_ns < slow_ns

    def note_state(self, now_ns: int) -> None:
        """Note why the idle slots are idle; of cheap stages time is booked only now and then."""
        runtime = self.runtime
        if now_ns > runtime.booking_ns:
            runtime.account(now_ns)
        runtime.state = self.state()

    def state(self) -> int:
        """Tell why idle slots are idle now."""
        if self.done or self.halted:
            return STARVED
        if self.room() <= 0:
            return BLOCKED
        return READY if self.inbox.count >= self.needs or self.has_input() else STARVED

    def read_on(self, iterator: OpenIterator, now_ns: int) -> Task | None:
        """Choose the next task of an open iterator, for the thread that it belongs to."""
        return None

    # -- settling work ------------------------------------------------------------------
    def complete(self, task: Task) -> None:
        """Book the end of a task and hand on what was not yet handed on."""
        now_ns, away_ns, runtime = task.ended_ns, task.away_ns, self.runtime
        results, at = task.results, task.published
        done = len(results)
        spent_ns = now_ns - task.started_ns if task.started_ns else 0  # 0: it never began
        if task.counts is not None:
            taken_ns = spent_ns if self.shares_workers else 0
            spent_ns -= self._settle_tally(task.counts, now_ns, taken_ns)
            if self.rest:  # `emit` counts what is left behind the last of them
                self.counts.items_out += task.counts[0][0] - task.counts[-1][1]
        if away_ns:
            spent_ns = max(0, spent_ns - away_ns)
            if done and not runtime.counters.histogram.until_ns:
                self._workers_are_there(task, now_ns)
        runtime.count(now_ns, done, spent_ns, max(0, away_ns) - task.recording_ns)
        if task.following is None:
            runtime.active -= 1
            runtime.spent_ns += now_ns
        runtime.ended_ns = now_ns
        self.running -= 1
        if task.inputs or self.counts_in:
            self.counts.items_in += task.inputs or done - at
        if task.retried:
            for one in (runtime, *self.rest_runtimes):
                self.epoch.counts(one).retries += task.retried.count(one.address)
        if task.result_bytes is not None:
            runtime.measured(task.result_bytes)
        if self.epoch.over:
            return
        task.published = done
        self.accept(task, at, results[at:] if at else results, now_ns, final=True)
        if self.input_over:
            self.check_done()

    def _workers_are_there(self, first: Task, now_ns: int) -> None:
        """Begin the shares at the first result of workers: the time before was their start."""
        others = [one for one in self.epoch.at_work() if one.node is self and one is not first]
        begun_ns = [one.started_ns + first.away_ns for one in others if one.started_ns]
        running = [max(0, now_ns - one_ns) for one_ns in begun_ns]
        for one in others:  # what they waited for until now was a worker: none of them hangs
            one.seen_ns = now_ns
        for runtime in (self.runtime, *self.rest_runtimes):
            runtime.account(now_ns)
            runtime.counters.begin_window(now_ns, 0 if self.shares_workers else sum(running))

    def publish_partial(self, task: Task, now_ns: int) -> None:
        """Hand on what a long task has done so far."""
        at = task.published
        fresh = task.results[at:]
        if fresh and not self.epoch.over and not holds_coroutine(fresh):  # those become failures
            task.published += len(fresh)
            task.seen_ns = now_ns
            if self.counts_in and not task.inputs:
                self.counts.items_in += len(fresh)
            self.accept(task, at, fresh, now_ns, final=False)
        if task.started_ns:  # else it only waits to begin
            self.runtime.learn_least(now_ns - task.started_ns)

    def made(self, task: Task) -> Iterator[Entry]:
        """Return the items that a task made."""
        return (one for one in task.results if type(one) is tuple)

    def item_of(self, task: Task) -> str:
        """Tell which item a task works on, as its errors would; empty where that is not known."""
        done = len(task.results)
        return str(task.paths[done]) if done < task.count else ""

    def _settle_tally(self, tally: list[list[int]], now_ns: int, taken_ns: int) -> int:
        """Book the calls of the other stages; `taken_ns`: so long a worker was theirs [ns]."""
        spent = 0
        parts = zip(self.rest_runtimes, tally, strict=True)
        for runtime, (calls, results, busy_ns, *_) in parts:
            if calls:
                runtime.account(now_ns)
                runtime.count(now_ns, calls, busy_ns)
                runtime.state = STARVED
                counters, counts = runtime.counters, self.epoch.counts(runtime)
                counters.starved_ns = max(0, counters.starved_ns - max(busy_ns, taken_ns))
                counts.items_in += calls
                counts.items_out += results
            spent += busy_ns
        return spent

    def emit(self, results: Chunk, now_ns: int, *, irregular: bool = False) -> None:
        """Make results ready for the next node, in the order given, and count them.

        Those that were dropped or failed are left out.
        """
        error = None
        judges = self.judged and self.gives_one
        if irregular or (judges and not self._counted_at_once(len(results.values))):
            results, error = self._parted(results)
        count = len(results[1])
        if count:
            out, following = self.out, self.downstream
            self.counts.items_out += count
            if results[2] is None:  # as `Queue.put` does, without a call
                out.chunks.append(results)
                out.count += count
                out.total += count
            else:
                out.put(results)
            if following and following.runtime.state == STARVED and out.count >= following.needs:
                following.note_state(now_ns)
        if error is not None:
            self.fail(error)

    def _parted(self, results: Chunk) -> tuple[Chunk, BaseException | None]:
        """Return the items up to the first failure that ends the epoch, and its error."""
        wanted = [False] * len(results.values)
        error: BaseException | None = None
        for number, result in enumerate(results.values):
            fails = type(result) is Failed
            if self.judged and (self.gives_one or fails):
                error = self._count_seen(result)
            if fails:
                error = self._count_failure(result) or error
            else:
                wanted[number] = type(result) is not Dropped
            if error is not None:
                break
        paths, values, sizes = results
        kept = None if sizes is None else list(compress(sizes, wanted))
        return Chunk(list(compress(paths, wanted)), list(compress(values, wanted)), kept), error

    def watch(self, budget: Budget, place: int) -> None:
        """Have a budget judge what comes; `place` is that of its stage among those here."""
        if budget.is_limited:
            self.judged += ((place, budget),)

    def _counted_at_once(self, count: int) -> bool:
        """Count so many items that passed all stages, unless a share is to be judged among them."""
        if any(budget.judges_within(count) for _, budget in self.judged):
            return False
        for _, budget in self.judged:
            budget.seen += count
        return True

    def _count_seen(self, result: Any) -> BaseException | None:
        """Count an item with the stages that it came to; return the error if it ends the epoch."""
        error: BaseException | None = None
        last = self._last_place(result)
        for place, budget in self.judged:
            if place <= last:
                found = budget.see()
                error = error or found
            else:
                budget.missed += 1
        return error

    def _last_place(self, result: Any) -> int:
        """Return the place of the last stage, among those here, that an item came to."""
        if type(result) is Dropped:
            return result.step + self.own_first
        if type(result) is not Failed:
            return len(self.rest_runtimes)
        rest, own = self.rest_runtimes, self.runtime
        passed = (own, *rest) if self.own_first else (*rest, own)
        return [one.address for one in passed].index(result.record.stage)

    def _count_failure(self, failed: Failed) -> BaseException | None:
        """Count a failed item; return the error if it ends the epoch."""
        self.epoch.remember(failed.record)
        self.epoch.skipped += not failed.fatal
        runtimes, budgets = (self.runtime, *self.rest_runtimes), (self.budget, *self.rest_budgets)
        error = None
        for runtime, budget in zip(runtimes, budgets, strict=True):
            if runtime.address == failed.record.stage:
                self.epoch.counts(runtime).errors += 1
                error = budget.fail() if budget is not None else None
        failed.ends_epoch = failed.fatal or error is not None
        return failed.exception if failed.fatal else error

    def emit_entries(self, results: Sequence[Any], now_ns: int, *, irregular: bool = False) -> None:
        """Do so with entries; None stands for one that was dropped."""
        if not results:
            return
        if irregular:
            sized = self.epoch.memory is not None
            self.emit(Chunk.of([_row(one, sized=sized) for one in results]), now_ns, irregular=True)
        else:
            self.emit(Chunk.of(results), now_ns)

    def fail(self, error: BaseException) -> None:
        """End the stream here with an error.

        In order, it comes after every earlier item; in completion order, at once, but where it is
        that too many items failed: that is no item's own error, and the good ones come before it.
        """
        if self.done or self.error is not None:
            return
        self.epoch.halt(self.upstream)
        self.error = error
        if not self.ordered and isinstance(error, FailureBudgetError):
            now_ns = perf_counter_ns()
            for task in self.epoch.at_work():
                if task.node is self:
                    self.publish_partial(task, now_ns)
        elif not self.ordered:
            self.epoch.fail_at_once(error)
        self.finish()

    # -- the end ------------------------------------------------------------------------
    def end_of_input(self, error: BaseException | None) -> None:
        """Called when nothing more will come from a node above."""
        self.input_over = True
        self.input_error = self.input_error or error
        self.needs = self.needed_at_end
        self.epoch.changed = True
        self.check_done()

    @property
    def needed_at_end(self) -> int:
        """The items that a task takes at least when no more come."""
        return 1

    def check_done(self) -> None:
        """Notice that everything was handed on."""
        if not self.done and self.input_over and self.exhausted():
            self.error = self.error or self.input_error or self._final_budget()
            self.finish()

    def _final_budget(self) -> BaseException | None:
        errors = (budget.exceeded(at_end=True) for _, budget in self.judged)
        return next(filter(None, errors), None)

    @abstractmethod
    def exhausted(self) -> bool:
        """Tell whether nothing is left to do, given that the input is over."""

    def finish(self) -> None:
        """Tell the next node that this one is done."""
        self.done = True
        self.epoch.changed = True
        if self.downstream is not None:
            self.downstream.end_of_input(self.error)
        else:
            self.epoch.drained(self.error)

    def freed(self, now_ns: int) -> None:
        """Tell the nodes above that they have room again."""
        for node in self.upstream:
            if node.runtime.state == BLOCKED:
                node.note_state(now_ns)

    # -- where it stands ----------------------------------------------------------------
    def rest_above(
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> Sequence[IndexRanges | None]:
        """Tell what is wanted of each node above, given what those below want of this one.

        Args:
            below: what they want, by their `id`.
            stages: takes what else there is to know, by address.
        """
        (rest,) = below.values()
        return (self.rest_of_input(rest, stages),)

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Tell what is wanted of the input; as many items go in as come out, if not said."""
        return rest

    def input_of(self, result: int) -> int:
        """Return the number of the input at which a result came.

        Of the result after the last one: that of the first input that may still give any. In a
        branch of a route alone; `forget` was not called with the results asked for.
        """
        return result

    def record_state(  # noqa: B027  most have nothing more to record
        self, below: Mapping[int, IndexRanges], stages: StageStates
    ) -> None:
        """Record what is slow to find out; called only where a state is taken."""

    @abstractmethod
    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Called with what may still be wanted; what lies before that is not needed."""

    def leave(self, below: Mapping[int, IndexRanges]) -> None:  # noqa: B027  most need not know
        """Called at the end of the epoch, with what is still wanted."""

    def done_with(self, below: Mapping[int, IndexRanges]) -> tuple[int, int]:
        """Return how many inputs are done with, and how many that failed are to be tried again."""
        return sum(one.left_out for one in below.values()), 0

    def cut_off(self) -> None:
        """Called when the stages below have ended and did not ask for this node's end."""
        self.cut = True
        for above in self.upstream:
            above.cut_off()

    def let_go(self) -> None:
        """Hold no items any more: whoever keeps the epoch must not keep them."""
        self.epoch.drop(self.out)

    def halt(self) -> None:
        """Stop: nothing of this node is needed any more; drop what waits."""
        self.halted = True
        self.epoch.changed = True
        self.epoch.drop(self.inbox)


def _row(result: Any, *, sized: bool) -> tuple[Any, ...]:
    """Return what stands in a chunk for a result that may be no item."""
    if type(result) is tuple:
        return result
    row = (0, DROPPED if result is None else result)
    return (*row, 0) if sized else row


# -- Where the stages of an epoch stand: from what the loop has had, upwards to the sources --------
def stages_of(last: Node, rest: IndexRanges, *, alone: bool = False) -> StageStates:
    """Tell where all stages stand, given what is wanted of the last one.

    Args:
        last: the last node.
        rest: what is wanted of it.
        alone: failures of earlier passes are told elsewhere.
    """
    stages: StageStates = {}
    for node, below in _walked(last, rest, stages):
        _note_failures(node, *node.done_with(below), stages, alone=alone)
        node.record_state(below, stages)
    return stages


def forget(last: Node, rest: IndexRanges) -> None:
    """Let all nodes forget what is not needed in order to go on with `rest`."""
    for node, below in list(_walked(last, rest, {})):
        node.forget(below)


def leave(last: Node, rest: IndexRanges) -> None:
    """Tell all nodes that the epoch ends, and what of them is still wanted."""
    for node, below in list(_walked(last, rest, {})):
        node.leave(below)


def _walked(
    last: Node, rest: IndexRanges, stages: StageStates
) -> Iterator[tuple[Node, Mapping[int, IndexRanges]]]:
    wanted: dict[int, dict[int, IndexRanges]] = {id(last): {0: rest}}
    for node in reversed(_upstream_first(last, [], set())):
        below = wanted.get(id(node))
        if below is None:
            continue
        for above, one in zip(node.upstream, node.rest_above(below, stages), strict=False):
            if one is not None:
                wanted.setdefault(id(above), {})[id(node)] = one
        yield node, below


def nodes_above(node: Node) -> list[Node]:
    """Return all nodes above this one, most downstream first."""
    return _upstream_first(node, [], set())[-2::-1]


def _upstream_first(node: Node, found: list[Node], seen: set[int]) -> list[Node]:
    if id(node) not in seen:
        seen.add(id(node))
        for above in node.upstream:
            _upstream_first(above, found, seen)
        found.append(node)
    return found


def _note_failures(node: Node, seen: int, again: int, stages: StageStates, *, alone: bool) -> None:
    """Note how many items failed of those that are not wanted again, and how many those are."""
    runtimes, budgets = (node.runtime, *node.rest_runtimes), (node.budget, *node.rest_budgets)
    for runtime, budget in zip(runtimes, budgets, strict=True):
        if budget is None:
            continue
        earlier = budget.earlier if alone else (0, 0)
        failures = max(0, budget.failures - earlier[0] - budget.broken - again)
        done = budget.before - earlier[1] + seen - budget.missed
        if failures or (done and budget.is_share):
            stages.setdefault(runtime.address, {})["failed"] = [failures, done]
