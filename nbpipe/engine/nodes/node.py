"""Node: one stage in one epoch. It queues items, chooses tasks and hands on their results.

The way of an item: the node above puts it in `inbox`; `take` makes a task of it; the `Runner` does
the task, in a thread or on the event loop; `complete` counts the task, and `accept` puts its
results in order; `emit` puts them in `out`, which is the inbox of the next node, or the loop's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from itertools import compress, islice
from time import perf_counter_ns
from typing import Any, ClassVar, Protocol

from ...base.checks import holds_coroutine
from ...base.gil import lock_wait, switches
from ...base.seeding import Entry
from ...base.threads import ThreadSettings, core_times_ns
from ...base.tree import size_bytes
from ...errors import FailureBudgetError
from ...executors.interface import Request
from ..measures.counters import (
    BLOCKED,
    READY,
    SLOW_NS,
    STARVED,
    TIMING_NS,
    ItemCounts,
    StageRuntime,
)
from .budgets import FailureCounter
from .failures import Failed, Failure
from .provenance import Provenance
from .step import (
    DROPPED,
    EMPTY,
    SIZED,
    Chunk,
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


# -- What a node needs of its epoch ----------------------------------------------------------------
class ByteBudget(HeldBytes, Protocol):
    """The rule for what may start, given the bytes that all queues hold."""

    def affordable(self, node: Node, /) -> int:
        """Return the number of results of `node` that there is memory for, at least 1."""

    def reestimate(self, node: Node, /) -> None:
        """Called when the number of places that `node` has reserved may have changed."""

    def began(self, node: Node, /) -> None:
        """Called when a task of `node` was taken."""

    def ended(self, node: Node, /) -> None:
        """Called when a task of `node` has completed."""


class Closable(Protocol):
    """Something of the user's, or on disk, that is closed when its epoch is over."""

    def close(self) -> None:
        """Close it; user code may run."""


class NodeEpoch(Protocol):
    """What a node needs of its epoch; `Epoch` documents it."""

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
        """Returns the tasks in progress."""

    @property
    def settings(self) -> ThreadSettings:
        """Settings of the thread that built the epoch; they hold where its work is done."""

    @property
    def memory(self) -> ByteBudget | None:
        """The byte budget; None without one."""

    @property
    def may_start(self) -> bool:
        """Whether tasks may start."""

    def counts(self, runtime: StageRuntime, /) -> ItemCounts:
        """Return what counts the items of a stage."""

    def admits(self, node: Node, /) -> bool:
        """Return whether the byte budget lets `node` start."""

    def drop(self, queue: Queue, /) -> None:
        """Drop all items of a queue."""

    def open(self, inputs: Iterable[Node], /) -> None:
        """Let the inputs that end with these nodes begin."""

    def replace(self, node: Node, part: Sequence[Node], /) -> None:
        """Put new nodes above `node` for its next pass; `part` is most downstream first."""

    def halt(self, nodes: Iterable[Node], /) -> None:
        """Stop these nodes and all above them."""

    def drained(self, error: BaseException | None, /) -> None:
        """Called when the last node is done."""

    def fail_at_once(self, error: BaseException, /) -> None:
        """End the epoch with an error that does not wait for earlier items."""


# -- Task: a piece of work for one stage -----------------------------------------------------------
NOTHING = unbegun([])
MEASURE_NS = 5_000_000  # the results of a stage are measured no more often than this


def title_of(runtime: StageRuntime, others: Iterable[StageRuntime], *, own_first: bool) -> str:
    """Return the addresses of stages that run together, in order.

    Args:
        runtime: the stage that owns the calls.
        others: further stages that the items pass.
        own_first: they pass that stage before those.
    """
    before, after = ((), others) if own_first else (others, ())
    return " + ".join(one.address for one in (*before, runtime, *after))


class Task(StageCounters):
    """Work of one node.

    Attributes:
        node: the node.
        seq: number of its first item among those of the node.
        paths: of the items.
        chunk: the items; empty once the work is done.
        items: those of them that are not begun.
        count: number of items, less those that were reclaimed.
        results: one result for each item done: a value, a `Dropped`, or a `Failed`. Where items
            are drawn or pass several stages: entries in place of values, None in place of DROPPED.
        published: number of results already handed on.
        cheap: taken without waking another thread.
        watched: the ticker looks after it: it may hold results back, or no other thread is awake.
        started_ns, ended_ns: when the work began and ended; 0 before.
        inputs: number of items, where one value holds several of them.
        counts: of the fused steps.
        away_ns: time in progress, but in no user function, as on the way to a worker [ns];
            negative if the worker began before this task.
        iterator: the iterator to draw from, for nodes that expand.
        quota: how many results to draw.
        drawn: how many were drawn from it before this task.
        step: number of the fused step in progress, from 1; 0 for the node's own.
        sent: the entries, where the work is done elsewhere.
        request: the work on all of them, until it is waited for.
        following: the task that took over its call before its results arrived; the same thread
            does it next.
        seen_ns: when results were last handed on before the end, or its worker had started; or 0.
        settings: the epoch's thread settings.
        result_bytes: size of one result, where one was measured [bytes].
        worker: process id of the worker that did it, and when its last response came [ns]; zeros
            without one.
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
    worker = (0, 0)

    def __init__(
        self, node: Node, seq: int, now_ns: int, chunk: Chunk = EMPTY, *, quota: int = 0
    ) -> None:
        runtime, runner = node.runtime, node.runner
        self.node = node
        self.seq = seq
        self.paths = chunk.paths
        self.chunk = chunk
        self.items = unbegun(chunk.values)
        self.count = count = len(chunk.values)
        self.quota = quota
        self.results: list[Any] = runner.new_results()
        self.cheap = cheap = runtime.cost_ns <= SLOW_NS and not node.remote
        self.watched = cheap or quota > 1 or count > 1
        self.settings = node.epoch.settings
        self.perform: Callable[[Any], object] = runner.perform
        if now_ns >= runtime.timing_ns:
            runtime.timing_ns = now_ns + TIMING_NS
            self.perform = run_timed

    @property
    def title(self) -> str:
        """The addresses of its stages, in order."""
        node = self.node
        return title_of(node.runtime, node.rest_runtimes, own_first=node.own_first)

    def entry(self, number: int) -> Entry:
        """Return an item of the task."""
        return (self.paths[number], self.chunk.values[number])

    # -- without the lock ---------------------------------------------------------------
    def run(self) -> None:
        """Do the work in this thread."""
        self.started_ns = perf_counter_ns()
        self.perform(self)
        self.ended_ns = perf_counter_ns()
        self.let_go()

    def begin(self) -> Coroutine[Any, Any, None]:
        """Return the coroutine that does the work on the event loop."""
        self.started_ns = perf_counter_ns()
        node = self.node
        return _nothing() if node.epoch.over else node.runner.run_async(self)

    @property
    def reads(self) -> OpenIterator | None:
        """The async iterator that it draws from, or None."""
        return self.iterator if self.node.remote else None

    def lacks(self, done: int) -> bool:
        """Return whether it has more than `done` items, less those that were reclaimed."""
        with self.node.epoch.lock:
            return done < self.count

    def let_go(self) -> None:
        """Release the items, after measuring a result if it is time to.

        A thread that looks at the tasks in progress may be the last to hold this one.
        """
        self.chunk = EMPTY
        self.items = NOTHING
        if self.ended_ns - self.node.runtime.measured_ns > MEASURE_NS:
            self.measure()

    def measure(self) -> None:
        """Measure a result; tasks that end at the same time need not."""
        self.node.runtime.measured_ns = self.ended_ns
        self.node.runner.measure(self)

    # -- under the lock, once it has ended ----------------------------------------------
    def count_calls(self) -> None:
        """Count its calls, their time, and its items with its stages."""
        node, now_ns, away_ns = self.node, self.ended_ns, self.away_ns
        runtime, done = node.runtime, len(self.results)
        spent_ns = now_ns - self.started_ns if self.started_ns else 0  # 0: it never began
        if self.counts is not None:
            spent_ns -= self._count_steps(spent_ns if node.shares_workers else 0)
        if away_ns:
            spent_ns = max(0, spent_ns - away_ns)
            if done and not runtime.counters.histogram.until_ns:
                self._count_from_now()
        runtime.count(now_ns, done, spent_ns, max(0, away_ns) - self.recording_ns)
        if self.following is None:
            runtime.active -= 1
            runtime.spent_ns += now_ns
        runtime.ended_ns = now_ns
        if self.inputs or node.counts_in:
            node.counts.items_in += self.inputs or done - self.published
        if self.retried:
            for one in node.runtimes:
                node.epoch.counts(one).retries += self.retried.count(one.address)
        if self.result_bytes is not None:
            runtime.measured(self.result_bytes)

    def _count_steps(self, taken_ns: int) -> int:
        """Count the calls of the other stages, and return their time [ns].

        Args:
            taken_ns: time that a worker spent on the task [ns], if it is busy with all stages.
        """
        assert self.counts is not None
        node, now_ns, spent_ns = self.node, self.ended_ns, 0
        for runtime, row in zip(node.rest_runtimes, self.counts, strict=True):
            calls, results, busy_ns, *_ = row
            if calls:
                runtime.account(now_ns)
                runtime.count(now_ns, calls, busy_ns)
                runtime.state = STARVED
                counters, counts = runtime.counters, node.epoch.counts(runtime)
                counters.starved_ns = max(0, counters.starved_ns - max(busy_ns, taken_ns))
                counts.items_in += calls
                counts.items_out += results
            spent_ns += busy_ns
        if node.runner.rest:  # `emit` counts what the last of them gave
            node.counts.items_out += self.counts[0][0] - self.counts[-1][1]
        return spent_ns

    def _count_from_now(self) -> None:
        """Begin rates and shares at the first result of workers: they were starting before."""
        node, now_ns = self.node, self.ended_ns
        others = [one for one in node.epoch.at_work() if one.node is node and one is not self]
        begun_ns = [one.started_ns + self.away_ns for one in others if one.started_ns]
        running = [max(0, now_ns - one_ns) for one_ns in begun_ns]
        for one in others:  # they waited for a worker until now: none of them hangs
            one.seen_ns = now_ns
        for runtime in node.runtimes:
            runtime.account(now_ns)
            runtime.counters.begin_window(now_ns, 0 if node.shares_workers else sum(running))


async def _nothing() -> None:
    """Do nothing: the epoch ended before the call began."""


def run_timed(task: Task) -> None:
    """Do a task as its runner does, and measure how long this thread computes and waits."""
    begun_ns, before, (computed_ns, wanted_ns) = perf_counter_ns(), switches(), core_times_ns()
    task.node.runner.perform(task)
    (cpu_ns, lacked_ns), after, ended_ns = core_times_ns(), switches(), perf_counter_ns()
    cpu_ns, lacked_ns = cpu_ns - computed_ns, lacked_ns - wanted_ns
    timed_ns, node = ended_ns - begun_ns - lacked_ns, task.node
    wait = lock_wait(timed_ns - cpu_ns, lacked_ns, before, after)
    runtime = node.runtime if node.own_first else (*node.rest_runtimes, node.runtime)[0]
    with node.epoch.lock:
        runtime.learn_cpu(timed_ns, cpu_ns, wait)


# -- Runner: how the tasks of a node are done ------------------------------------------------------
class Runner(ABC):
    """Does the tasks of a node; called without the lock.

    Attributes:
        perform: does a task: `run`, or a loop that `run` chose.
        new_results: makes the list for the results of a task.
        rest: steps of inline stages that each result passes next.
    """

    __slots__ = ("epoch", "new_results", "perform", "rest")

    def __init__(self, epoch: NodeEpoch) -> None:
        self.epoch = epoch
        self.perform: Callable[[Task], object] = self.run
        self.new_results: type[list[Any]] = list if epoch.memory is None else SizedEntries
        self.rest: tuple[Step, ...] = ()

    @abstractmethod
    def run(self, task: Task) -> None:
        """Do a task in this thread."""

    async def run_async(self, task: Task) -> None:
        """Do a task on the event loop."""
        raise TypeError(f"{type(self).__name__} runs in threads")

    def measure(self, task: Task) -> None:
        """Measure a result, to estimate the bytes that the stage hands on."""
        result = task.results[-1] if task.results else None
        if type(result) is tuple:
            sized = len(result) == SIZED
            task.result_bytes = result[2] if sized else size_bytes(result[1])

    def made(self, task: Task) -> Iterator[Entry]:
        """Yield the items that a task made."""
        return (one for one in task.results if type(one) is tuple)

    def item_of(self, task: Task) -> str:
        """Return the path of the item in progress, or "" if it is unknown."""
        done = len(task.results)
        return str(task.paths[done]) if done < task.count else ""


def keep_result(task: Task, result: Entry | Failed | None) -> bool:
    """Keep the result of an item; return whether to continue."""
    if type(result) is tuple:
        task.results.append(result[1])
        return True
    task.irregular = True  # first: the ticker may take results at any moment
    task.results.append(DROPPED if result is None else result)
    return not (isinstance(result, Failed) and result.fatal)


def draw(task: Task, entries: Iterable[Any]) -> bool:
    """Draw results up to the quota; return whether there are no more."""
    add = add_all if type(task.results) is list else add_each
    add(task.results, islice(entries, task.quota))
    return len(task.results) < task.quota


# -- Node ------------------------------------------------------------------------------------------
@dataclass(eq=False, repr=False, slots=True)
class Node(ABC):
    """State of one stage in one epoch.

    A node starts only work whose results have a place: it holds at most `prefetch` results and
    `concurrency` tasks. A task is one item, or a chunk of them while calls take microseconds.
    Methods are called under the scheduler's lock.

    Attributes:
        runtime: limits and times, kept from epoch to epoch.
        counts: of the items of this stage.
        runner: does the tasks.
        provenance: knows which input each result came from.
        failures: counts failed items.
        rest_runtimes: of further stages that run with this one.
        own_first: items pass this stage before those; else after them.
        ordered: results keep input order.
        remote: tasks run elsewhere (the event loop), not in the engine's threads.
        chunked: while calls are cheap, a task has places for a chunk of results.
        shares_workers: a task passes several stages, so none of them is busy all that time.
        counts_in: an item comes in for each result; else the runner counts them.
        inbox: the queue of input.
        needs: items that must wait there before a task can start.
        active_without_input: `take` may return a task although `inbox` is empty.
        out: results ready for the next node; it is that node's `inbox`.
        gathers: items that the next node needs before it can start.
        reserved: results that tasks in progress may give, or that wait for earlier ones.
        waiting: those of them that are ready, or whose items were reclaimed.
        running: tasks in progress.
        promised_bytes: estimated size of the reserved results [bytes].
        seq_out: number of the next result.
        input_over: nothing more comes in; `input_error` is why, unless the input just ended.
        done: everything was handed on; `error` is why, unless the input just ended.
        halted: no result of this node is needed any more.
        cut: the stages below ended early, so the node did not see all its items.
    """

    own_first: ClassVar[bool] = True
    one_each: ClassVar[bool] = True
    runtime: StageRuntime
    epoch: NodeEpoch
    runner: Runner
    _: KW_ONLY
    provenance: Provenance = field(default_factory=Provenance)
    ordered: bool = True
    remote: bool = False
    chunked: bool = False
    shares_workers: bool = False
    counts_in: bool = True
    rest_runtimes: tuple[StageRuntime, ...] = ()
    counts: ItemCounts = field(init=False)
    failures: FailureCounter = field(init=False)
    inbox: Queue = field(default_factory=Queue)
    needs: int = 1
    active_without_input: bool = False
    out: Queue = field(init=False)
    upstream: tuple[Node, ...] = ()
    downstream: Node | None = None
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
    halted: bool = False
    cut: bool = False

    def __post_init__(self) -> None:
        self.counts = self.epoch.counts(self.runtime)
        self.out = Queue(self.epoch.memory)
        own = (self.runtime.address,) if self.own_first else ()
        self.failures = FailureCounter(self.epoch, own, one_each=self.one_each)

    @property
    def runtimes(self) -> tuple[StageRuntime, ...]:
        """The runtimes of all stages of the node, its own first."""
        return (self.runtime, *self.rest_runtimes)

    # -- choosing work ------------------------------------------------------------------
    @abstractmethod
    def has_input(self) -> bool:
        """Return whether a task could start, given a place and a free slot."""

    @abstractmethod
    def runnable(self) -> bool:
        """Return whether `take` would return a task."""

    @abstractmethod
    def take(self, now_ns: int) -> Task | None:
        """Choose the next task and reserve its places; None if none may start."""

    def held(self) -> int:
        """Return the number of results ready for the next node."""
        return self.out.count + self.out.lent

    def room(self) -> int:
        """Return the number of further tasks that there is place for; a chunk counts as one."""
        runtime = self.runtime
        places = runtime.prefetch + runtime.concurrency + self.gathers
        return places - self.waiting - self.running - self.held()

    def chunk(self, available: int) -> int:
        """Return the number of items for one task: several while they are cheap."""
        most = min(available, self.runtime.chunk_size)
        memory = self.epoch.memory
        return most if memory is None else min(most, memory.affordable(self))

    def comes_in_chunks(self, slow_ns: int) -> bool:
        """Return whether results are so cheap that several are made at once."""
        return self.runtime.cost_ns < slow_ns

    def started(self, task: Task, now_ns: int) -> Task:
        """Count a task that starts."""
        self.note_state(now_ns)
        self.runtime.occupy(1, now_ns)
        self.running += 1
        return task

    def freed(self, now_ns: int) -> None:
        """Update the nodes above: there is room again in `inbox`."""
        for node in self.upstream:
            if node.runtime.state == BLOCKED:
                node.note_state(now_ns)

    def note_state(self, now_ns: int) -> None:
        """Update why idle slots are idle; a cheap stage books time only now and then."""
        runtime = self.runtime
        if now_ns > runtime.booking_ns:
            runtime.account(now_ns)
        runtime.state = self.state()

    def state(self) -> int:
        """Return why idle slots are idle: STARVED, BLOCKED or READY."""
        if self.done or self.halted:
            return STARVED
        if self.room() <= 0:
            return BLOCKED
        return READY if self.inbox.count >= self.needs or self.has_input() else STARVED

    # -- handing on results -------------------------------------------------------------
    def complete(self, task: Task) -> None:
        """Count a task that has ended, and hand on the rest of its results."""
        task.count_calls()
        self.running -= 1
        if self.epoch.over:
            return
        results, at = task.results, task.published
        task.published = len(results)
        self.accept(task, at, results[at:] if at else results, task.ended_ns, final=True)
        if self.input_over:
            self.check_done()

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

    @abstractmethod
    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on results `at`, `at + 1`, ... of a task, when it is their turn.

        Args:
            task: the task.
            at: number of the first result among those of the task.
            results: the results.
            now_ns: when.
            final: the task has ended.
        """

    def emit(self, results: Chunk, now_ns: int, *, irregular: bool = False) -> None:
        """Put results in `out` for the next node, in the order given, and count them.

        With `irregular` some may be dropped or failed; those are left out.
        """
        error, failures = None, self.failures
        if irregular or (failures.judges and not failures.count_passed(len(results.values))):
            results, error = self._sift(results)
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

    def _sift(self, results: Chunk) -> tuple[Chunk, BaseException | None]:
        """Return the items up to the first failure that ends the epoch, and its error."""
        wanted, failures, error = self.failures.sift(results.values)
        for failed in failures:
            for runtime in self.runtimes:
                if runtime.address == failed.record.stage:
                    self.epoch.counts(runtime).errors += 1
        paths, values, sizes = results
        kept = None if sizes is None else list(compress(sizes, wanted))
        return Chunk(list(compress(paths, wanted)), list(compress(values, wanted)), kept), error

    # -- the end ------------------------------------------------------------------------
    def end_of_input(self, error: BaseException | None) -> None:
        """Called when nothing more comes in; an error says why."""
        self.input_over = True
        self.input_error = self.input_error or error
        self.epoch.changed = True
        self.check_done()

    def check_done(self) -> None:
        """Finish if everything was handed on."""
        if not self.done and self.input_over and self.exhausted():
            self.error = self.error or self.input_error or self.failures.error_at_end()
            self.finish()

    @abstractmethod
    def exhausted(self) -> bool:
        """Return whether nothing is left to do once the input is over."""

    def fail(self, error: BaseException) -> None:
        """End the stream here with an error.

        In input order, it follows every earlier item. In completion order it comes at once, unless
        too many items failed: then the items that are ready come before it.
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

    def finish(self) -> None:
        """Mark the node as done, and end the input of the next one."""
        self.done = True
        self.epoch.changed = True
        if self.downstream is not None:
            self.downstream.end_of_input(self.error)
        else:
            self.epoch.drained(self.error)

    def halt(self) -> None:
        """Stop: no result of this node is needed any more; drop what waits."""
        self.halted = True
        self.epoch.changed = True
        self.epoch.drop(self.inbox)

    def let_go(self) -> None:
        """Release all items: an epoch that a user keeps must not keep them."""
        self.epoch.drop(self.out)


def cut_off(node: Node) -> None:
    """Mark a node and all above it: the stages below ended before their input did."""
    node.cut = True
    for above in node.upstream:
        cut_off(above)
