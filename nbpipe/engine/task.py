"""Task: a piece of work for one stage, and the loops that do it outside the lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, islice, repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

from ..base.seeding import Entry, Path
from ..base.threads import FREE_THREADED, Latch, computing_ns
from ..base.tree import size_bytes
from ..executors.base import ROW
from .failures import Failed
from .stats import SLOW_NS, TIMING_NS

if TYPE_CHECKING:
    from ..ops.remaining import Remaining
    from .map import Step
    from .node import Node


# -- What every stage of an epoch may know about it ------------------------------------------------
@dataclass(eq=False, repr=False, slots=True)
class EpochContext:
    """Seed, number and end of one epoch.

    Attributes:
        seed: the run's seed.
        epoch: number of the epoch, from 0.
        ended: open when the epoch is over, so that whoever waits stops waiting.
    """

    seed: int
    epoch: int
    ended: Latch = field(default_factory=Latch)

    def as_of(self, epoch: int) -> EpochContext:
        """Return the context of stages that make the items of another epoch in this one."""
        return EpochContext(self.seed, epoch, self.ended)


# -- Queue: items between two stages, in chunks ----------------------------------------------------
# A chunk is columnar: paths and values side by side. What a stage makes of a chunk keeps its paths,
# so a cheap item costs no object of its own. An entry is one row: a path and a value, and the size
# [bytes] where there is a budget for memory.
SIZED = 3  # elements of an entry that carries its size
Paths = Sequence[Path]
Sizes = Sequence[int] | None


@final
@dataclass(frozen=True, slots=True)
class Dropped:
    """Takes the place of a result that is left out.

    Attributes:
        step: number of the step that left it out, among those of a `Tally`; -1 for the node's own.
    """

    step: int


DROPPED = Dropped(-1)
dropped_by = cache(Dropped)


class Chunk(NamedTuple):
    """Items side by side.

    Attributes:
        paths: of the items.
        values: the items.
        sizes: of the items [bytes]; None without a budget for memory.
    """

    paths: Paths
    values: list[Any]
    sizes: Sizes = None

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Chunk:
        """Return a chunk of some entries."""
        paths, values, *sizes = zip(*entries, strict=True)
        return cls(paths, list(values), sizes[0] if sizes else None)

    def entries(self) -> Iterator[Entry]:
        """Return the items one by one."""
        columns = self[:2] if self.sizes is None else self
        return zip(*columns, strict=False)


EMPTY = Chunk((), [])
# As `Chunk`, of a tuple of its columns; without a call of a Python function, for the hot path.
chunk_of: Callable[[tuple[Paths, list[Any], Sizes]], Chunk] = partial(tuple.__new__, Chunk)


class HeldBytes(Protocol):
    """Counts the bytes in all queues of a run."""

    held_bytes: int


@final
class Queue:
    """Items that wait for the next stage; changed under the scheduler's lock.

    Args:
        memory: counts the bytes of what waits; None without a budget.

    Attributes:
        count: how many items wait.
        total: how many were ever put.
        lent: items that the consumer has taken with their chunk, but not handed to the loop yet.
        chunks: what waits.
    """

    __slots__ = ("_at", "_memory", "chunks", "count", "lent", "total")

    def __init__(self, memory: HeldBytes | None = None) -> None:
        self.chunks: deque[Chunk] = deque()
        self.count = self.total = 0
        self.lent = 0
        self._at = 0  # of the first chunk, items that were taken
        self._memory = memory

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Entry]:
        """Return what waits, without taking it."""
        entries = chain.from_iterable(chunk.entries() for chunk in tuple(self.chunks))
        return islice(entries, self._at, None)

    @property
    def first_value(self) -> Any:
        """The next item."""
        return self.chunks[0].values[self._at]

    def put(self, chunk: Chunk) -> None:
        """Add items; none is no chunk."""
        self.chunks.append(chunk)
        count = len(chunk[1])
        self.count += count
        self.total += count
        if self._memory is not None and chunk.sizes is not None:
            self._memory.held_bytes += sum(chunk.sizes)

    def take(self, count: int) -> Chunk:
        """Take the next `count` items, of which there must be so many."""
        chunk, at = self.chunks[0], self._at
        paths, values, sizes = chunk
        end = at + count
        left = len(values) - end
        if left < 0:
            return self._take_several(count)
        self.count -= count
        if left:
            self._at = end
        else:
            self._at = 0
            self.chunks.popleft()
        if at or left:
            part, sizes = values[at:end], sizes and sizes[at:end]
            values[at:end] = repeat(None, count)  # they end where they were taken to
            chunk = chunk_of((paths[at:end], part, sizes))
        if sizes is not None and self._memory is not None:
            self._memory.held_bytes -= sum(sizes)
        return chunk

    def _take_several(self, count: int) -> Chunk:
        """Take items of several chunks, and put them in one."""
        parts, sizes = [], []
        while count:
            chunk = self.chunks[0]
            items = len(chunk.values) - self._at
            if self._at or items > count:
                chunk = self.take(min(items, count))
            else:  # as `take` does, without a call
                self.chunks.popleft()
                self.count -= items
                sizes.append(chunk.sizes)
            parts.append(chunk)
            count -= len(chunk.values)
        if self._memory is not None:
            self._memory.held_bytes -= sum(sum(one) for one in sizes if one is not None)
        return together(parts)

    def popleft(self) -> Entry:
        """Take the next item."""
        paths, values, sizes = self.chunks[0]
        at = self._at
        value, values[at] = values[at], None
        entry = (paths[at], value) if sizes is None else (paths[at], value, sizes[at])
        self.count -= 1
        self._at = at + 1
        if at + 1 == len(values):
            self.chunks.popleft()
            self._at = 0
        if self._memory is not None and sizes is not None:
            self._memory.held_bytes -= sizes[at]
        return entry

    def clear(self) -> object:
        """Let go of everything; what it was is dropped by the caller, without the lock."""
        dropped, self.chunks = self.chunks, deque()
        if self._memory is not None:
            sizes = [chunk.sizes for chunk in dropped if chunk.sizes is not None]
            taken = sizes[0][: self._at] if sizes else ()
            self._memory.held_bytes -= sum(map(sum, sizes)) - sum(taken)
        self.count = self._at = 0
        return dropped


def together(parts: Iterable[Chunk]) -> Chunk:
    """Return one chunk of several."""
    paths, values, sizes = zip(*parts, strict=True)
    joined = chain.from_iterable
    return Chunk(
        [*joined(paths)], [*joined(values)], None if sizes[0] is None else [*joined(sizes)]
    )


# -- Task: a piece of work for one stage, and the loops that do it outside the lock ----------------
# While a task runs, another thread may take back what it has not begun, and hand on what it has
# done. So a loop takes its items from one iterator over a list, which that thread can exhaust
# between two of them, and adds exactly one result for each to one list, which that thread can read.
# Where there is no interpreter lock, two threads could draw the same item from an iterator, and
# `extend` would keep others from reading the list until it has all results.
@final
class Unbegun:
    """Items that one thread draws from the front, while another may take back those behind.

    Args:
        values: the items.
    """

    __slots__ = ("_left",)

    def __init__(self, values: Iterable[Any]) -> None:
        self._left = deque(values)

    def __iter__(self) -> Iterator[Any]:
        """Draw the items, also where some were drawn before."""
        draw = self._left.popleft
        with suppress(IndexError):
            while True:
                yield draw()

    def take_back(self) -> list[Any]:
        """Take all that are left; what is drawn meanwhile comes before them."""
        taken, take = [], self._left.pop
        with suppress(IndexError):
            while True:
                taken.append(take())
        return taken[::-1]


def add_each(results: list[Any], made: Iterable[Any]) -> None:
    """Add results one by one, as they are made."""
    deque(map(results.append, made), 0)


unbegun: Callable[[list[Any]], Iterable[Any]] = Unbegun if FREE_THREADED else iter
take_back: Callable[[Any], list[Any]] = Unbegun.take_back if FREE_THREADED else list
add_all: Callable[[list[Any], Iterable[Any]], object] = add_each if FREE_THREADED else list.extend
NOTHING = unbegun([])
MEASURE_NS = 5_000_000  # a result of a stage is measured no more often than this


class Sized(list[Any]):
    """Results that are measured as they come, in the thread that made them.

    Attributes:
        sizes: of the results [bytes]; those of results that are no items say nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def append(self, result: Any) -> None:
        """Measure a result and keep it."""
        self.sizes.append(size_bytes(result))
        super().append(result)


class SizedEntries(list[Any]):
    """The same for results that are entries; those that passed through a stage have their size."""

    def append(self, result: Any) -> None:
        """Measure a result and keep it."""
        if type(result) is tuple and len(result) < SIZED:
            result = (*result, size_bytes(result[1]))
        super().append(result)


class Tally:
    """What is counted while items go through several steps, one after the other.

    Attributes:
        rows: of a tally, for each step; None until there were any.
        retried: for each call that was tried again, its stage.
        irregular: some result is not an item.
        step: which step is at work, from 1; 0 between them.
    """

    rows: list[list[int]] | None = None
    retried: tuple[str, ...] = ()
    irregular = False
    step = 0

    def through(self, entry: Any, steps: Sequence[Step], first: int = 0) -> Any:
        """Send an entry through steps, of which the first has the row `first`; time each."""
        rows = self.rows
        if rows is None:
            rows = self.rows = [[0] * ROW for _ in steps]
        for number, step in enumerate(steps, first):
            row = rows[number]
            self.step = number + 1
            row[0] += len(entry[1]) if step.gathers else 1
            begun = perf_counter_ns()
            entry = step.apply(entry, self)
            row[2] += perf_counter_ns() - begun
            if type(entry) is not tuple:
                self.irregular = True
                entry = dropped_by(number) if entry is None else entry
                break
            row[1] += 1
        self.step = 0
        return entry


class Task(Tally):
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
        away_ns: time in progress, but in no user's function: on the way to a worker [ns].
        expansion: the iterator to draw from, for nodes that expand.
        quota: how many results to draw.
        drawn: how many were drawn from it before this task.
        step: which fused step is at work; 0 for the node's own.
        sent: the entries, where the work is done elsewhere.
        seen_ns: when results were last handed on before the end; 0 where none were.
        result_bytes: size of one result, where one was measured [bytes].
    """

    published = 0
    started_ns = 0
    ended_ns = 0
    inputs = 0
    away_ns = 0
    result_bytes: int | None = None
    expansion: Expansion | None = None
    drawn = 0
    sent: Sequence[Entry] = ()
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

    def lacks(self, done: int) -> bool:
        """Tell whether it has more than `done` items, none of which was taken back."""
        with self.node.epoch.lock:
            return done < self.count


@dataclass(eq=False, repr=False, slots=True)
class Expansion:
    """One iterator being drawn from: a source, or the children of one item.

    Attributes:
        seq: place in the node's order.
        entry: the item whose children these are; None for a source.
        entries: iterator over entries; None until it is opened.
        paths: of all that `entries` gives, where it gives only values; else None.
        inner: the user's own iterator, to be closed.
        drawn: children drawn so far.
        buffer: results that wait for earlier expansions to end.
        over: no more is to come; `failed`: as it failed for good.
        held: a task is drawing from it now.
        owed: the most results that this task may still give.
        attempts: calls of the function so far; wait_s: wait before the next one [s].
        wanted: numbers of the children that are wanted; None for all.
    """

    seq: int
    entry: Entry | None = None
    entries: Any = None
    paths: Sequence[Path] | None = None
    inner: Any = None
    drawn: int = 0
    buffer: list[Any] = field(default_factory=list)
    irregular: bool = False
    over: bool = False
    failed: bool = False
    held: bool = False
    owed: int = 0
    attempts: int = 0
    wait_s: float = 0.0
    wanted: Remaining | None = None

    def pair(self) -> None:
        """Have `entries` give the paths, too."""
        if self.paths is not None:
            self.entries, self.paths = zip(self.paths, self.entries, strict=False), None

    def close(self) -> None:
        """Close the user's iterator; user code may run."""
        close = getattr(self.inner, "close", None)
        if close is not None:
            close()


def run_timed(task: Task) -> None:
    """Do a task as its node does, and measure how long this thread computes."""
    begun_ns, cpu_ns = perf_counter_ns(), computing_ns()
    task.node.perform(task)
    cpu_ns, ended_ns = computing_ns() - cpu_ns, perf_counter_ns()
    with task.node.epoch.lock:
        task.node.runtime.learn_cpu(ended_ns - begun_ns, cpu_ns)


def run_plain(task: Task) -> None:
    """Call a function of one argument on every item: the loop that must be fast."""
    node: Any = task.node
    out, step = task.results, node.first
    problem: BaseException | None = None
    try:
        add_all(out, map(step.fn, task.items))
    except BaseException as error:
        problem = error
    else:
        if len(out) < task.count and task.lacks(len(out)):
            problem = StopIteration()  # it ended the loop without a word
    if problem is not None:
        result = step.recover(task.entry(len(out)), problem, task)
        if keep_result(task, result):
            run_steps(task)


def run_predicate(task: Task) -> None:
    """Ask a predicate of one argument of every item, and keep those for which it holds."""
    node: Any = task.node
    step, paths, give = node.first, task.paths, task.results.append
    for number, value in enumerate(task.items):
        try:
            result = value if step.fn(value) else DROPPED
        except BaseException as error:
            if not keep_result(task, step.recover((paths[number], value), error, task)):
                return
            continue
        if result is DROPPED:
            task.irregular = True  # first: the ticker may take results at any moment
        give(result)


def run_steps(task: Task) -> None:
    """Send every item that is left through the steps of its node, one after the other."""
    node: Any = task.node
    first, rest, paths = node.first, node.rest, task.paths
    for number, value in enumerate(task.items, len(task.results)):
        result = first.apply((paths[number], value), task)
        if rest and type(result) is tuple:
            result = task.through(result, rest)
        if not keep_result(task, result):
            return


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


async def _nothing() -> None:
    """Do nothing: the epoch ended before the call began."""


def child_path(path: Path, child: int) -> Path:
    """Return the path of the `child`-th child of the item at `path`."""
    return (*path, child) if isinstance(path, tuple) else (path, child)
