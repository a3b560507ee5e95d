"""Step: a user's function in one epoch, and how items come to it: in queues of chunks."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, partial
from itertools import chain, count, islice, repeat
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol, final

from ...base.checks import PLAIN, is_unawaited, refuse_coroutine
from ...base.seeding import Entry, Path, generator_for
from ...base.threads import FREE_THREADED, Latch
from ...base.tree import size_bytes
from ...errors import StageTimeoutError
from ...executors.interface import COUNTS
from ...executors.thread import WorkerThread
from ...ops.batch import Collate
from ...ops.call import FailurePolicy
from ...ops.ranges import IndexRanges
from .failures import Failed, failed


# -- What every stage of an epoch may know about it ------------------------------------------------
@dataclass(eq=False, repr=False, slots=True)
class EpochContext:
    """Seed, number and end of one epoch.

    Attributes:
        seed: the run's seed.
        epoch: number of the epoch, from 0.
        ended: open when the epoch is over, so that waits end.
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
        step: number of the step that left it out, of those counted; -1 for the node's own.
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


def chunk_of_results(results: Sequence[Any], *, irregular: bool = False, sized: bool) -> Chunk:
    """Return a chunk of entries, of which there is at least one.

    Args:
        results: the entries.
        irregular: some may be a `Failed`, a `Dropped` or None, which is a dropped one, too.
        sized: rows have sizes.
    """
    if irregular:
        filler = (0, 0) if sized else (0,)
        results = [
            one if type(one) is tuple else (0, DROPPED if one is None else one, *filler[1:])
            for one in results
        ]
    return Chunk.of(results)


# As `Chunk`, of a tuple of its columns; without a call of a Python function, for the hot path.
chunk_of: Callable[[tuple[Paths, list[Any], Sizes]], Chunk] = partial(tuple.__new__, Chunk)


class HeldBytes(Protocol):
    """Counts the bytes in all queues of a run."""

    held_bytes: int


@final
class Queue:
    """Items that wait for the next stage; changed under the scheduler's lock.

    Args:
        memory: counts the bytes of waiting items; None without a budget.

    Attributes:
        count: how many items wait.
        total: how many were ever put.
        lent: places that are taken, though nothing waits there: by items that the loop has in its
            chunk and has yet to come to, or by the epoch in progress, in one that is read ahead.
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


# -- What a task does outside the lock -------------------------------------------------------------
# While a task runs, another thread may take back what it has not begun, and hand on what it has
# done. So a loop takes its items from one iterator over a list, which that thread can exhaust
# between two of them, and adds exactly one result for each to one list, which that thread can read.
# Where there is no interpreter lock, two threads could draw the same item from an iterator, and
# `extend` would keep others from reading the list until it has all results.
@final
class Unbegun:
    """Items that one thread draws from the front, while another may take back those at the end.

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

    def reclaim(self) -> list[Any]:
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
reclaim: Callable[[Any], list[Any]] = Unbegun.reclaim if FREE_THREADED else list
add_all: Callable[[list[Any], Iterable[Any]], object] = add_each if FREE_THREADED else list.extend


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


# -- Step: a user's function in one epoch: its call, its random generator, what a failure does -----
class StageCounters:
    """What is counted while items go through several steps, one after the other.

    Attributes:
        counts: for each step its row, as described at `COUNTS`; None until there were any.
        retried: for each call that was tried again, its stage.
        irregular: some result is not an item.
        step: which step is at work, from 1; 0 between them.
        recording_ns: time that records of failures took, without those of the steps [ns].
    """

    counts: list[list[int]] | None = None
    retried: tuple[str, ...] = ()
    irregular = False
    step = 0
    recording_ns = 0

    def through(self, entry: Any, steps: Sequence[Step], first: int = 0) -> Any:
        """Send an entry through steps, of which the first has the row `first`; time each."""
        rows = self.counts
        if rows is None:
            rows = self.counts = [[0] * COUNTS for _ in steps]
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


_RAISE = FailurePolicy()


@dataclass(eq=False, repr=False, slots=True)
class Step:
    """A plain function called on values.

    Args:
        stage: address of the stage.
        fn: function of a value or, with `wants_rng`, of a value and `rng=`.
        context: seed, number and end of the epoch.
        keeps: the function is a predicate; entries pass unchanged or are dropped.
        gathers: one call takes several items.
    """

    stage: str
    fn: Callable[..., Any]
    context: EpochContext
    _: KW_ONLY
    policy: FailurePolicy = _RAISE
    keeps: bool = False
    wants_rng: bool = False
    executor: str = "thread"
    gathers: bool = False

    def call(self, entry: Entry) -> Any:
        """Call the function once; its exceptions pass."""
        if not self.wants_rng:
            return self.fn(entry[1])
        context = self.context
        rng = generator_for(context.seed, context.epoch, self.stage, entry[0])
        return self.fn(entry[1], rng=rng)

    def produce(self, entry: Entry) -> Entry | None:
        """Make the entry of one call; exceptions pass."""
        return self.wrap(entry, self.call(entry))

    def wrap(self, entry: Entry, value: Any) -> Entry | None:
        """Make the result's entry.

        Raises:
            ArgumentTypeError: the value is a coroutine.
        """
        if type(value) not in PLAIN:
            self.refuse_coroutine(value)
        if self.keeps:
            return entry if value else None
        return (entry[0], value)

    def refuse_coroutine(self, value: Any) -> None:
        """Refuse a coroutine as a result: nothing would await it."""
        if is_unawaited(value):  # only then words are needed
            refuse_coroutine(f"the function of {self.stage!r}", value, takes_async=True)

    def apply(self, entry: Entry, task: StageCounters) -> Entry | Failed | None:
        """Call the function; a failure is retried or becomes a `Failed`."""
        try:
            return self.produce(entry)
        except BaseException as error:
            return self.recover(entry, error, task)

    def recover(
        self, entry: Entry, error: BaseException, task: StageCounters
    ) -> Entry | Failed | None:
        """Try again as the policy says; give a result, or the failure."""
        attempts = 1
        while (wait_s := self.wait_before_retry_s(attempts, error)) is not None:
            if not self.wait(wait_s):
                break
            attempts += 1
            task.retried += (self.stage,)
            try:
                return self.produce(entry)
            except BaseException as again:
                error = again
        begun_ns = perf_counter_ns()
        failure = self.failure(entry, error, attempts)
        if not task.step:
            task.recording_ns += perf_counter_ns() - begun_ns
        return failure

    def wait_before_retry_s(self, attempts: int, error: BaseException) -> float | None:
        """Return the wait before one more call after `attempts` calls [s]; None: no more calls."""
        retry = self.policy.retry
        if retry is None or attempts > retry.times or not isinstance(error, Exception):
            return None
        return retry.backoff_s * float(2 ** (attempts - 1))

    def wait(self, wait_s: float) -> bool:
        """Wait in this thread, but not beyond the epoch's end; say whether the epoch continues."""
        return not (wait_s and self.context.ended.wait(wait_s))

    def failure(self, entry: Entry, error: BaseException, attempts: int) -> Failed:
        """Make the record of a failed item."""
        return failed(
            error,
            stage=self.stage,
            executor=self.executor,
            epoch=self.context.epoch,
            path=entry[0],
            value=entry[1],
            attempts=attempts,
            policy=self.policy,
        )


class AsyncStep(Step):
    """A coroutine function, awaited on the run's event loop."""

    __slots__ = ("timeout_s",)

    def __init__(self, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_s = timeout_s

    def awaitable(self, entry: Entry) -> Awaitable[Any]:
        """Call the function once; what it gives takes at most `timeout_s`."""
        return self.call(entry) if self.timeout_s is None else self._limited(entry, self.timeout_s)

    async def _limited(self, entry: Entry, timeout_s: float) -> Any:
        import asyncio  # it takes tens of milliseconds, and only some pipelines need it

        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await self.call(entry)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StageTimeoutError(
                f"a call of stage {self.stage!r} took longer than timeout_s={timeout_s:g}",
                stage=self.stage,
                path=entry[0],
                executor=self.executor,
            ) from error

    async def recover_async(
        self, entry: Entry, error: BaseException, task: StageCounters
    ) -> Entry | Failed | None:
        """Await the function again as the policy says; give a result, or the failure.

        Raises:
            CancelledError: the epoch is over.
        """
        import asyncio

        attempts = 0
        while True:
            if isinstance(error, asyncio.CancelledError) and self.context.ended.is_open:
                raise error
            attempts += 1
            wait_s = self.wait_before_retry_s(attempts, error)
            if wait_s is None:
                return self.failure(entry, error, attempts)
            await asyncio.sleep(wait_s)
            task.retried += (self.stage,)
            try:
                return self.wrap(entry, await self.awaitable(entry))
            except BaseException as again:
                error = again


def step_of(
    stage: str,
    spec: Any,
    context: EpochContext,
    executor: str,
    make: Callable[..., Step] = Step,
) -> Step:
    """Make the step of a map, filter, flat_map or batch stage."""
    if spec.runs == "batch":
        return make(stage, Collate(spec), context, executor=executor, gathers=True)
    if executor == "coroutine" and not inspect.isasyncgenfunction(spec.fn):
        make = partial(AsyncStep, timeout_s=spec.timeout_s)
    return make(
        stage,
        spec.fn,
        context,
        policy=spec.policy,
        keeps=spec.keeps,
        wants_rng=spec.wants_rng,
        executor=executor,
    )


# -- OpenIterator: an iterator that items are drawn from -------------------------------------------
_LOOK_S = 1.0  # a wait for a thread checks this often that it is still there,
_LOOKS = 5  # and so many times


@dataclass(eq=False, repr=False, slots=True)
class OpenIterator:
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
        own: the iterator is the user's: one thread and one context open, read and close it.
        context: that context; None before it is opened.
        owner: the worker of that thread, between its first task and its end; else None.
        unwanted: its thread is to close it.
        end: has an asyncio task close it; None where none reads it.
        closed: open when that thread has nothing more to do with it; None before it has.
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
    wanted: IndexRanges | None = None
    own: bool = False
    context: Context | None = None
    owner: WorkerThread | None = None
    unwanted: bool = False
    end: Callable[[], object] | None = None
    closed: Latch | None = None

    def pair(self) -> None:
        """Have `entries` give the paths, too."""
        if self.paths is not None:
            self.entries, self.paths = zip(self.paths, self.entries, strict=False), None

    @property
    def is_open(self) -> bool:
        """Whether there is an iterator that has not come to its end."""
        return self.entries is not None and not self.over

    @property
    def stays(self) -> bool:
        """Whether it stays in the thread that has read it."""
        return self.own and self.is_open

    def close(self) -> None:
        """Have the user's iterator closed in its thread; wait for that, but not for ever.

        Garbage may be closed below us, with locks in this thread that the other one needs.
        """
        owner, closed = self.owner, self.closed
        if owner is None or closed is None or owner.is_current:
            self.close_here()
            return
        self.unwanted = True
        owner.call()
        for _ in range(_LOOKS):
            if closed.wait(_LOOK_S):
                return
            if not owner.is_alive or sys.is_finalizing():
                self.close_here()
                return

    def close_here(self) -> None:
        """Close the user's iterator in this thread; again does nothing.

        One that an asyncio task reads is left to it: the end of the epoch cancels that task.
        """
        if self.end is not None:
            return
        inner, self.inner = self.inner, None
        close = getattr(inner, "close", None)
        if close is not None:
            self.run(close)

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in the context of the iterator."""
        if self.context is None:
            function(*arguments)
        else:
            self.context.run(function, *arguments)

    async def close_async(self) -> None:
        """Close an async iterator, unless it has come to its end; user code may run."""
        if self.is_open:
            self.over = True
            for one in (self.entries, self.inner):
                if (close := getattr(one, "aclose", None)) is not None:
                    await close()


def child_paths(path: Path) -> Iterator[Path]:
    """Yield the paths of all children that the item at `path` may have."""
    if isinstance(path, tuple):
        return map(path.__add__, zip(count()))
    return zip(repeat(path), count())
