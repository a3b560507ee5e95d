"""ExpandNode: sources, and operations that give any number of items for one."""

from __future__ import annotations

import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, final
from weakref import WeakKeyDictionary

from ..base.checks import (
    is_async_generator_function,
    is_coroutine_function,
    refuse_coroutine,
    refuse_table,
)
from ..base.seeding import Entry, Path
from ..base.threads import Latch
from ..base.tree import size_bytes
from ..errors import ArgumentTypeError, StateError
from ..executors.thread import WorkerThread
from ..ops.cache import Kept, with_passes
from ..ops.plan import ResolvedOrder
from ..ops.ranges import IndexRanges
from ..ops.source import Source
from .epoch import Epoch
from .external import Feed, GivenItems, is_plain
from .failures import Failed
from .node import Node, StageStates, Task, draw
from .provenance import ChildLog, DropLog
from .stats import StageRuntime
from .step import Chunk, EpochContext, OpenIterator, Step, child_paths

# -- Openers: how an iterator gets its iterator, and what a failure of it means -------------------
_ALL = IndexRanges()
_KEEP_THEIR_LAST = (zip, enumerate)  # so they are not kept
_read_out: WeakKeyDictionary[Any, object] = WeakKeyDictionary()  # by the function that gave it
_DEEPEST = 4  # samplers inside one another


class IteratorFactory(ABC):
    """Makes the iterator of an iterator; methods are called without the lock.

    Attributes:
        shared: what one run draws, the others do not get.
        own: the iterator may be the user's, which one thread and one context open, read and close.
    """

    shared = False
    own = False

    def __init__(self, step: Step) -> None:
        self._step = step

    @abstractmethod
    def open(self, iterator: OpenIterator) -> None:
        """Set `inner` (the user's iterator) and `entries` (an iterator over entries)."""

    async def open_async(self, iterator: OpenIterator) -> None:
        """Set `inner` and `entries`, an async iterator, on the event loop."""
        raise TypeError(f"{type(self).__name__} has no async form")

    def record_state(self, rest: IndexRanges, about: dict[str, Any]) -> None:
        """Say, of what has no input, which items are wanted."""
        raise TypeError(f"{type(self).__name__} has an input")

    def path_of(self, number: int) -> Path:
        """Return the path of an item that is being drawn, of which so many were drawn before it."""
        return number

    def recover(self, iterator: OpenIterator, error: BaseException, task: Task) -> Failed | None:
        """Return the failure, or None when the iterator is to be opened again.

        Unless said otherwise, what failed cannot be read on: the epoch ends.
        """
        path = self.path_of(task.drawn + len(task.results))
        return self._step.failure((path, None), error, 1)


class EpochItems(ABC):
    """The items of a source that is another one in each epoch."""

    @abstractmethod
    def of_epoch(self) -> Iterable[Any]:
        """Return the items of the epoch that begins: when they are read, another may begin."""


class SourceOpener(IteratorFactory):
    """Opens a source for one epoch.

    Args:
        passes: numbers of the passes of `repeat` stages further down; they extend each path.
        node_state: where the source goes on.
    """

    def __init__(
        self,
        stage: str,
        spec: Source,
        context: EpochContext,
        passes: tuple[int, ...],
        node_state: dict[str, Any],
    ) -> None:
        super().__init__(Step(stage, iter, context))
        self._plan = spec.plan
        self._items = spec.items
        self.own = spec.plan is None
        if issubclass(type(spec.items), EpochItems):  # asked of the type: the lock is held
            self._items, self.own = spec.items.of_epoch(), False
        elif type(spec.items) is GivenItems:
            self.own = spec.items.order.own
        self.shared = spec.plan is not None and spec.plan.claimed
        self._context = context
        self._passes = passes
        self._rest = remaining_in(node_state)
        self._base = remaining_in(node_state, "base")
        self._order: ResolvedOrder | None = None
        self._count: int | None = None  # items of a stream that has come to its end

    def record_state(self, rest: IndexRanges, about: dict[str, Any]) -> None:
        """Tell which items are wanted, and how the source comes to them."""
        plan, base = self._plan, self._base
        claims = plan is not None and plan.claimed
        if claims and self._order is not None:
            base, rest = base.of_wanted(self._order.unclaimed(rest)), _ALL
        left = self._rest.of_wanted(rest)  # a last batch that was not full counts as a full one
        about["rest"] = (left if self._count is None else left.within(self._count)).data
        about["by"] = "claim" if claims else "skipping" if plan is None else "index"
        if claims or not base.is_all:
            about["base"] = base.data

    def open(self, iterator: OpenIterator) -> None:
        """Read the source afresh."""
        items, plan = self._items, self._plan
        self._tell_epoch(items)
        iterator.own = self.own
        if isinstance(items, GivenItems):
            iterator.entries = itertools.chain(items.entries(self._rest), self._end_of(items))
            iterator.inner = items
            return
        if plan is not None:
            left = plan.rest_of_world(self._base).rest(self._rest)
            self._order = left.resolve(self._context.epoch, self._passes)
            columns = None if self._passes else self._order.columns()
            if columns is None:
                iterator.entries = _in_passes(self._order.rows(), self._passes)
            else:
                iterator.paths, iterator.entries = columns
            return
        made = self._checked(items()) if _is_maker(items) else items
        iterator.own = self.own and not is_plain(made)
        is_async = hasattr(made, "__aiter__") and not hasattr(made, "__iter__")
        values = self._fresh(made.__aiter__() if is_async else iter(made))
        iterator.inner = _drawn(values) if is_async else values
        numbers = itertools.count()
        end = self._end(numbers, values)
        entries = itertools.chain(zip(numbers, iterator.inner, strict=False), end)
        iterator.entries = _in_passes(_left(self._rest, entries), self._passes)

    def _end_of(self, items: GivenItems) -> Iterator[Entry]:
        """Take note, behind the last index, of how many there were."""
        self._ended(items.drawn, f"the order of source {self._step.stage!r}", "indices")
        yield from ()

    def _end(self, numbers: Iterator[int], values: object) -> Iterator[Entry]:
        """Take note, behind the last item, of how many there were, and of what gave them."""
        self._ended(next(numbers) - 1, f"source {self._step.stage!r}")  # `zip` had taken one more
        self._note_read_out(values)
        yield from ()

    def _note_read_out(self, values: object) -> None:
        """Remember an iterator that stays at its end, by the function that gave it."""
        stays = type(values).__module__ == "builtins" and type(values) not in _KEEP_THEIR_LAST
        if stays and _is_maker(self._items):
            with suppress(TypeError):  # it cannot be referred to weakly
                _read_out[self._items] = values

    def _ended(self, count: int, what: str, unit: str = "items") -> None:
        """Refuse an end before the place where the epoch was to go on: nothing would be left."""
        self._count = count
        reached = self._rest.gaps[-1][1] if self._rest.gaps else self._rest.start
        if count < reached:
            same = "data" if unit == "items" else unit
            raise StateError(
                f"{what} must have at least the {reached} {unit} that it had when the state was "
                f"taken, got {count}; go on with the same {same}, or begin the epoch again"
            )

    def _tell_epoch(self, items: Any) -> None:
        for part in (items, *_samplers_in(items)):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self._context.epoch)
                return

    def _checked(self, made: Any) -> Any:
        """Check what the source's function returned."""
        what = f"the function of source {self._step.stage!r}"
        if not hasattr(made, "__aiter__"):
            refuse_coroutine(what, made, takes_async=True)
        refuse_table(f"{what} must give", made)
        iterable = hasattr(made, "__iter__") or hasattr(made, "__getitem__")
        if isinstance(made, str | bytes | Mapping) or not (iterable or hasattr(made, "__aiter__")):
            raise ArgumentTypeError(
                f"{what} must return an iterator of items, got {type(made).__name__}; yield the "
                "items, or return a list of them"
            )
        return made

    def _fresh(self, values: Any) -> Any:
        """Refuse an iterator that somebody read to its end before, as far as that can be told."""
        ended = inspect.isgenerator(values) and values.gi_frame is None
        ended |= inspect.isasyncgen(values) and values.ag_frame is None
        kind = "generator" if ended else type(values).__name__
        with suppress(TypeError):  # it cannot be referred to weakly
            ended |= _is_maker(self._items) and _read_out.get(self._items) is values
        if ended:
            raise ArgumentTypeError(
                f"source {self._step.stage!r} must give a fresh iterator for every epoch, got a "
                f"{kind} that was read to its end before; make it inside the function"
            )
        return values

    async def open_async(self, iterator: OpenIterator) -> None:
        """Call the source's function for an async iterator."""
        made = self._items
        self._tell_epoch(made)
        if _is_maker(made):
            made = made()
        if inspect.isawaitable(made):
            made = self._checked(await _ended_as_error(made))
        is_async = hasattr(made, "__aiter__")
        values = self._fresh(made.__aiter__() if is_async else iter(made))
        iterator.inner = values if is_async else _as_async(values)
        iterator.entries = self._numbered_async(iterator.inner, values)

    async def _numbered_async(
        self, drawn: AsyncIterator[Any], values: object
    ) -> AsyncIterator[Entry]:
        number = 0
        async for value in drawn:
            if number in self._rest:
                yield (with_passes(number, self._passes), value)
            number += 1
        self._ended(number, f"source {self._step.stage!r}")
        self._note_read_out(values)

    def path_of(self, number: int) -> Path:
        """Return the path of the item; of a given order, it is known to who reads it."""
        if isinstance(self._items, GivenItems):
            return self._items.path
        if self._order is not None:
            return with_passes(self._order.path_at(number), self._passes)
        return with_passes(self._rest.of_wanted(IndexRanges(number)).start, self._passes)


class ReplayOpener(IteratorFactory):
    """Reads the items of a cache.

    Args:
        kept: the items.
        passes: numbers of the passes of `repeat` stages further down; they extend each path.
        rest: the items that are wanted.
    """

    def __init__(
        self,
        stage: str,
        kept: Kept,
        context: EpochContext,
        *,
        passes: tuple[int, ...] = (),
        rest: IndexRanges = _ALL,
    ) -> None:
        super().__init__(Step(stage, kept.entries, context))
        self._kept = kept
        self._passes = passes
        self._rest = rest

    def record_state(self, rest: IndexRanges, about: dict[str, Any]) -> None:
        """Tell which items are wanted; the stages that made them do not stand anywhere."""
        about["rest"] = self._rest.of_wanted(rest).data
        about["by"] = "replay"
        epoch, passes = self._kept.made
        about["made"] = [epoch, list(passes)]

    def open(self, iterator: OpenIterator) -> None:
        """Read from the beginning."""
        iterator.inner = self._kept.entries()
        iterator.entries = _in_passes(_left(self._rest, iterator.inner), self._passes)


class CallOpener(IteratorFactory):
    """Opens the children of one item: `flat_map`, `unbatch`.

    Args:
        step: calls the function.
        own: the function, and what it gives, are the user's.
    """

    def __init__(self, step: Step, *, own: bool = False) -> None:
        super().__init__(step)
        self.own = own

    def open(self, iterator: OpenIterator) -> None:
        """Call the function on the item."""
        entry, step = iterator.entry, self._step
        assert entry is not None
        step.wait(iterator.wait_s)
        made = step.call(entry)
        iterator.own = self.own and not is_plain(made)
        iterator.inner = iter(checked_children(step.stage, made))
        iterator.entries = children(entry[0], iterator.inner, iterator)

    async def open_async(self, iterator: OpenIterator) -> None:
        """Call the async function on the item: a generator, or a coroutine that gives many."""
        entry, step = iterator.entry, self._step
        assert entry is not None
        if iterator.wait_s:
            import asyncio

            await asyncio.sleep(iterator.wait_s)
        made = step.call(entry)
        if inspect.isawaitable(made):
            made = _as_async(checked_children(step.stage, await _ended_as_error(made)))
        iterator.inner = made.__aiter__()
        iterator.entries = _children_async(entry[0], iterator.inner, iterator)

    def recover(self, iterator: OpenIterator, error: BaseException, task: Task) -> Failed | None:
        """Open again as the policy says, or give the failure."""
        step, entry = self._step, iterator.entry
        assert entry is not None
        iterator.attempts += 1
        wait_s = step.wait_before_retry_s(iterator.attempts, error)
        if wait_s is None:
            return step.failure(entry, error, iterator.attempts)
        iterator.entries, iterator.wait_s = None, wait_s
        task.retried += (step.stage,)
        return None


def _drawn(values: AsyncIterator[Any]) -> Iterator[Any]:
    """Draw from an async iterator in a thread, with an event loop and a task of its own.

    A plain function may return one: nobody can know before it is called.
    """
    import asyncio

    drawn: list[Any] = []
    turn: asyncio.Future[None]

    async def read() -> None:
        nonlocal turn
        try:
            async for value in values:
                drawn.append(value)
                turn = loop.create_future()
                loop.stop()
                await turn
        finally:
            aclose = getattr(values, "aclose", None)
            if aclose is not None:
                await aclose()

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(read())

        def stop(_: object) -> None:
            loop.stop()

        task.add_done_callback(stop)
        try:
            while not task.done():
                loop.run_forever()
                if drawn:
                    yield drawn.pop()
                    turn.set_result(None)
        finally:
            task.remove_done_callback(stop)  # the runner cancels the task, and has more to do then
        task.result()


def _samplers_in(items: Any) -> Iterator[Any]:
    """Return the sampler that a batch sampler draws from, and the one inside that."""
    for _ in range(_DEEPEST):
        inner = getattr(items, "batch_sampler", None)
        items = getattr(items, "sampler", None) if inner is None else inner
        if items is None:
            return
        yield items


def remaining_in(node_state: dict[str, Any], word: str = "rest") -> IndexRanges:
    """Return what is left of a source or a cache."""
    return IndexRanges.read(node_state[word]) if word in node_state else _ALL


def _is_maker(items: Any) -> bool:
    return callable(items) and not hasattr(items, "__iter__") and not hasattr(items, "__aiter__")


def _in_passes(entries: Iterable[Entry], passes: tuple[int, ...]) -> Iterator[Entry]:
    if not passes:
        return iter(entries)
    return ((with_passes(entry[0], passes), entry[1]) for entry in entries)


def children(path: Any, values: Iterator[Any], iterator: OpenIterator) -> Iterator[Entry]:
    """Return the entries of an item's children, but for those drawn before, or not wanted."""
    entries = zip(child_paths(path), values)  # noqa: B905  the paths have no end
    if iterator.wanted is None and not iterator.drawn:
        return entries
    return itertools.compress(entries, map(_wants(iterator), itertools.count()))


async def _children_async(
    path: Any, values: AsyncIterator[Any], iterator: OpenIterator
) -> AsyncIterator[Entry]:
    paths, wants = enumerate(child_paths(path)), _wants(iterator)
    async for value in values:
        child, child_path = next(paths)
        if wants(child):
            yield (child_path, value)


def _wants(iterator: OpenIterator) -> Callable[[int], bool]:
    left = IndexRanges(iterator.drawn)
    if iterator.wanted is not None:
        left = iterator.wanted.of_wanted(left)
    return left.__contains__


def _left(rest: IndexRanges, entries: Iterator[Entry]) -> Iterator[Entry]:
    if rest.is_all:
        return entries
    return (entry for number, entry in enumerate(entries) if number in rest)


async def _ended_as_error(made: Awaitable[Any]) -> Any:
    """Await a coroutine; StopAsyncIteration out of it would look like the end of the items."""
    try:
        return await made
    except StopAsyncIteration as error:
        raise RuntimeError("coroutine raised StopAsyncIteration") from error


async def _as_async(values: Iterable[Any]) -> AsyncIterator[Any]:
    for value in values:
        yield value


def checked_children(stage: str, made: Any) -> Iterable[Any]:
    """Check what the function of a stage gave for one item.

    Raises:
        ArgumentTypeError: no iterable of items.
    """
    if type(made) in (list, tuple):  # as most are
        return made  # type: ignore[no-any-return]
    what = f"the function of {stage!r}"
    refuse_coroutine(what, made, takes_async=True)
    refuse_table(f"{what} must give", made)
    if isinstance(made, str | bytes | Mapping) or not hasattr(made, "__iter__"):
        raise ArgumentTypeError(
            f"{what} must give an iterable of items, got "
            f"{type(made).__name__}; return a list of items, or yield them"
        )
    return made  # type: ignore[no-any-return]


def is_async_source(items: Any) -> bool:
    """Tell whether a source is read on the event loop."""
    if hasattr(items, "__iter__") or hasattr(items, "__aiter__"):
        return not hasattr(items, "__iter__")
    return is_async_generator_function(items) or is_coroutine_function(items)


# -- ExpandNode: sources, and operations that give any number of items for one ---------------------
class ExpandNode(Node):
    """Draws from one iterator for each item, `concurrency` of them side by side.

    In order, the first iterator hands on at once; later ones work ahead into buffers that
    count against the same bound, which always leaves one place to the first.

    Args:
        factory: makes the iterator of an iterator and says what a failure does.
        source: there is no input; one iterator is there from the beginning.
        known: for the path of an input its children that are wanted, where not all are.
    """

    __slots__ = (
        "buffered",
        "children",
        "drops",
        "factory",
        "live",
        "seq_in",
        "source",
    )

    def __init__(
        self,
        runtime: StageRuntime,
        epoch: Epoch,
        factory: IteratorFactory,
        *,
        ordered: bool = True,
        remote: bool = False,
        source: bool = False,
        known: dict[Path, IndexRanges] | None = None,
    ) -> None:
        super().__init__(runtime, epoch, ordered=ordered, remote=remote)
        self.active_without_input = True
        self.factory = factory
        self.chunked = not factory.shared  # of a shared order no more is drawn than is needed
        self.source = self.gives_one = source
        self.counts_in = source  # an item is counted when its call begins
        self.live: list[OpenIterator] = []
        self.seq_in = 0
        self.buffered = 0
        self.drops = DropLog()  # of a source, by the inline stages that run with it
        self.children = ChildLog(known or {})
        if source:
            self.live.append(OpenIterator(0))
            self.input_over = True

    def held(self) -> int:
        """Return the number of results ready, those that wait for their turn included."""
        return self.out.count + self.out.lent + self.buffered

    def room(self) -> int:
        """Return the number of further items that may be drawn.

        While they are cheap a call has places for a chunk. It begins when half of them are free, so
        that iterators of few items do not hand on each for itself; a source, when all are.
        """
        runtime, chunk_size = self.runtime, self.runtime.chunk_size
        if chunk_size == 1 or not self.chunked:
            return super().room()
        places, out = runtime.prefetch + runtime.concurrency * chunk_size + self.gathers, self.out
        places -= self.reserved + out.count + out.lent + self.buffered
        return places if places >= (chunk_size if self.source else chunk_size / 2) else 0

    def item_of(self, task: Task) -> str:
        """Tell which item is drawn from or, of a source, drawn."""
        iterator = task.iterator
        if iterator is None:
            return ""
        if iterator.entry is not None:
            return str(iterator.entry[0])
        return str(self.factory.path_of(task.drawn + len(task.results)))

    def has_input(self) -> bool:
        """Tell whether anything could be drawn."""
        return bool(self.inbox.count) or any(not x.over and not x.held for x in self.live)

    def runnable(self) -> bool:
        """Tell whether `take` would give a task."""
        return self._choose() is not None

    @property
    def _may_start(self) -> bool:
        """Whether a task may start, if it finds room."""
        if self.done or self.halted or self.runtime.active >= self.runtime.concurrency:
            return False
        return self.epoch.memory is None or self.epoch.admits(self)

    def _choose(self) -> tuple[OpenIterator | None, int] | None:
        """Return the iterator to draw from (None: a new one) and the most it may give.

        Those that belong to a thread are left to it.
        """
        if not self._may_start:
            return None
        runtime, room = self.runtime, self.room()
        calls = runtime.active - self.running
        for place, iterator in enumerate(self.live):
            calls += not iterator.over
            if iterator.held or iterator.over or iterator.owner is not None:
                continue
            allowed = self._allowed(place, room)
            if allowed > 0:
                return iterator, allowed
        if not self.inbox.count or calls >= runtime.concurrency:
            return None
        allowed = min(room, self._room_ahead()) if self.live and self.ordered else room
        if allowed > 0 and len(self.live) < runtime.prefetch + runtime.concurrency:
            return None, allowed
        return None

    def _allowed(self, place: int, room: int) -> int:
        """Return the most that the iterator at a place among the live ones may give."""
        if not self.ordered:
            return room
        if place == 0:  # it continues though later ones, or a lowered knob, leave no room
            needed = not self.reserved and super().held() < (self.gathers or 1)
            return max(room, 1) if needed else room
        return min(room, self._room_ahead())

    def _to_read_on(self) -> Iterator[tuple[OpenIterator, int]]:
        """Yield those that belong to a thread and may be read on, with the most they may give."""
        if not self._may_start:
            return
        room = self.room()
        for place, iterator in enumerate(self.live):
            if iterator.owner is not None and not (iterator.held or iterator.over):
                allowed = self._allowed(place, room)
                if allowed > 0:
                    yield iterator, allowed

    def call_reader(self) -> None:
        """Wake the first thread that may read on in its iterator; when it does, it wakes more."""
        for iterator, _ in self._to_read_on():
            assert iterator.owner is not None
            iterator.owner.call()
            return

    def read_on(self, iterator: OpenIterator, now_ns: int) -> Task | None:
        """Choose the next task of an iterator, for the thread that it belongs to."""
        for other, allowed in self._to_read_on():
            if other is iterator:
                task = self._begun(iterator, allowed, now_ns)
                task.cheap = False  # this thread does nothing else: others are woken for the rest
                return task
        return None

    def _room_ahead(self) -> int:
        """Return the places for results of expansions that work ahead: all but one for the first.

        What they give waits until the first ends, so here a chunk counts with all its items.
        """
        runtime, first = self.runtime, self.live[0]
        ahead = self.reserved - first.owed
        return runtime.prefetch + runtime.concurrency - ahead - self.held() - 1

    def take(self, now_ns: int) -> Task | None:
        """Choose an iterator to draw from, or begin a new one."""
        choice = self._choose()
        return None if choice is None else self._begun(*choice, now_ns)

    def _begun(self, iterator: OpenIterator | None, allowed: int, now_ns: int) -> Task:
        if iterator is None:
            entry = self.inbox.popleft()
            iterator = OpenIterator(self.seq_in, entry)
            iterator.wanted = self.children.begin(self.seq_in, entry[0])
            self.seq_in += 1
            self.live.append(iterator)
            self.counts.items_in += 1
            self.freed(now_ns)
        iterator.held = True
        task = Task(self, iterator.seq, now_ns, quota=self.chunk(allowed))
        task.iterator = iterator
        task.drawn = iterator.drawn
        self.reserved += task.quota
        iterator.owed = task.quota
        return self.started(task, now_ns)

    def made(self, task: Task) -> Iterator[Entry]:
        """Return the items that a task made."""
        iterator = task.iterator
        if iterator is None or iterator.paths is None:
            return super().made(task)
        pairs = zip(iterator.paths[task.drawn :], task.results, strict=False)
        return (one for one in pairs if type(one[1]) is not Failed)

    def measure(self, task: Task) -> None:
        """Measure a result, for the bytes that a stage hands on; called without the lock."""
        iterator, results = task.iterator, task.results
        if iterator is None or iterator.paths is None:
            super().measure(task)
        elif results and type(results[-1]) is not Failed:
            task.result_bytes = size_bytes(results[-1])

    def work(self, task: Task) -> None:
        """Draw up to the quota; what was drawn before a failure stays."""
        iterator = task.iterator
        assert iterator is not None
        if self.factory.own and iterator.context is None:
            iterator.context = self.epoch.settings.of_thread()
        iterator.run(self._draw, task, iterator)

    def _draw(self, task: Task, iterator: OpenIterator) -> None:
        rest = self.rest
        try:
            if iterator.entries is None:
                self.factory.open(iterator)
                if rest or self.epoch.memory is not None:
                    iterator.pair()
            entries = iterator.entries
            if rest:
                entries = (task.through(entry, rest) for entry in entries)
            iterator.over = draw(task, entries)
        except BaseException as error:
            self._failed(task, iterator, error)

    async def work_elsewhere(self, task: Task) -> None:
        """Draw up to the quota from an async iterator."""
        iterator = task.iterator
        assert iterator is not None
        try:
            if iterator.entries is None:
                await self.factory.open_async(iterator)
            for _ in range(task.quota):
                task.results.append(await iterator.entries.__anext__())
        except StopAsyncIteration:
            iterator.over = True
        except BaseException as error:
            self._failed(task, iterator, error)

    def _failed(self, task: Task, iterator: OpenIterator, error: BaseException) -> None:
        failure = self.factory.recover(iterator, error, task)
        if failure is None:  # to be opened again, past the children already given
            return
        iterator.over = iterator.failed = task.irregular = True
        task.results.append(failure)

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on what was drawn, or keep it until its turn."""
        iterator = task.iterator
        assert iterator is not None
        if final and self.halted and iterator.end is not None:
            iterator.end()
        if self.done:
            return
        settled = iterator.owed if final else len(results)
        self.reserved -= settled
        iterator.owed -= settled
        iterator.held = iterator.held and not final
        iterator.drawn += len(results)
        if not self.ordered or self.live[0] is iterator:
            self._hand_on(iterator, results, now_ns, irregular=task.irregular)
        else:
            iterator.buffer.extend(results)
            iterator.irregular = iterator.irregular or task.irregular
            self.buffered += len(results)
        self._next_in_order(now_ns)
        if final:
            self.note_state(now_ns)

    def _next_in_order(self, now_ns: int) -> None:
        if not self.ordered:
            for x in [x for x in self.live if x.over and not x.held]:
                self.live.remove(x)
                self._ended(x)
            return
        while self.live and not self.done and self.live[0].over and not self.live[0].held:
            self._ended(self.live.pop(0))
            if self.live and self.live[0].buffer and not self.done:
                self._hand_on_waiting(self.live[0], now_ns)

    def _hand_on_waiting(self, iterator: OpenIterator, now_ns: int) -> None:
        """Hand on the results that wait in a buffer."""
        results, iterator.buffer = iterator.buffer, []
        self.buffered -= len(results)
        self.epoch.deferred_release.append(results)
        self._hand_on(iterator, results, now_ns, irregular=iterator.irregular)

    def _ended(self, iterator: OpenIterator) -> None:
        """Note that nothing more comes of an iterator; one that failed was counted then."""
        self.epoch.deferred_release.append(iterator)
        self.children.end(iterator.seq, failed=iterator.failed)
        if self.budget is not None and not iterator.failed:
            error = self.budget.see()
            if error is not None:
                self.fail(error)

    def _hand_on(
        self, iterator: OpenIterator, results: list[Any], now_ns: int, *, irregular: bool
    ) -> None:
        first = self.seq_out
        self.seq_out += len(results)
        if iterator.paths is None:
            self.emit_entries(results, now_ns, irregular=irregular)
        elif results:
            paths = iterator.paths[iterator.drawn - len(results) : iterator.drawn]
            self.emit(Chunk(paths, results), now_ns, irregular=irregular)
        if not self.source:
            kept = sum(type(one) is tuple for one in results) if irregular else len(results)
            self.children.record(iterator.seq, kept)
        elif irregular:
            self.drops.record(first, results)

    def rest_of_input(self, rest: IndexRanges, stages: StageStates) -> IndexRanges:
        """Tell which inputs, and which children of those in work, are wanted."""
        address = self.runtime.address
        if self.source:
            self.factory.record_state(self.drops.inputs(rest), stages.setdefault(address, {}))
            return rest
        inputs, parts = self.children.inputs(rest)
        if parts:
            stages.setdefault(address, {})["children"] = parts
        return inputs

    def input_of(self, result: int) -> int:
        """Return the number of the input whose child a result is."""
        found = self.children.input_of(result)
        if found is not None:
            return found
        return self.live[0].seq if self.live else self.seq_in

    def done_with(self, below: Mapping[int, IndexRanges]) -> tuple[int, int]:
        """Return how many inputs are done with, and how many that failed are to be tried again."""
        if self.source:
            return self.drops.count + super().done_with(below)[0], 0
        (rest,) = below.values()
        inputs, _ = self.children.inputs(rest)
        return inputs.left_out, sum(number in inputs for number in self.children.failed)

    def forget(self, below: Mapping[int, IndexRanges]) -> None:
        """Forget whose children the results are that nobody wants any more."""
        start = min(rest.start for rest in below.values())
        (self.drops if self.source else self.children).forget(start)

    def exhausted(self) -> bool:
        """Tell whether every iterator came to its end."""
        return not self.inbox.count and not self.live

    def let_go(self) -> None:
        """Hold no items any more, nor results that wait for others."""
        super().let_go()
        for x in self.live:
            self.epoch.deferred_release.append(x.buffer)
            x.buffer = []

    def halt(self) -> None:
        """Stop, and have the open iterators closed: by their threads, where they have such."""
        super().halt()
        self.epoch.pending_close.extend(x for x in self.live if not x.held)
        for x in self.live:
            x.unwanted = True
            if x.owner is not None:
                x.owner.call()
            elif x.end is not None and not x.held:
                x.end()


# -- Readers: threads that have an open iterator of the user's -------------------------------------
@final
class Readers:
    """Threads that read an iterator of the user's, and do nothing else while it is open.

    What the user sets inside holds for a thread, as `torch.no_grad` does, or is refused in another,
    as a connection of sqlite is. A thread that finds an iterator still open after a task is bound
    to it, until it has come to its end or was closed. One that ends within a task binds no thread.
    Called under the scheduler's lock.

    Attributes:
        of: for each of them its node and its iterator.
    """

    def __init__(self, bind: Callable[..., object]) -> None:
        self._bind = bind
        self.of: dict[WorkerThread, tuple[ExpandNode, OpenIterator]] = {}

    def complete(self, node: Node, iterator: OpenIterator, worker: WorkerThread) -> None:
        """Called when a thread has drawn from an iterator: bind it, or let it go."""
        if not iterator.stays:
            self.release(worker)
        elif iterator.owner is None and isinstance(node, ExpandNode):
            iterator.owner, iterator.closed = worker, Latch()
            self.of[worker] = node, iterator
            self._bind(worker, bound=True)
            iterator.unwanted |= node.halted

    def release(self, worker: WorkerThread) -> None:
        """Called when a thread has nothing more to do with its iterator."""
        if worker in self.of:
            _, iterator = self.of.pop(worker)
            self._bind(worker, bound=False)
            iterator.owner = None
            assert iterator.closed is not None
            iterator.closed.open()

    def call(self) -> None:
        """Wake threads that may read on."""
        for node in {node: None for node, _ in self.of.values()}:
            node.call_reader()


# -- FedNode: a source that reads what is pushed to it, and rests while there is nothing -----------
class FedNode(ExpandNode):
    """Draws only what is there, so that no thread waits for indices.

    Args:
        factory: makes the iterator over the items.
        feed: where the indices come from.
    """

    __slots__ = ("feed",)

    def __init__(
        self, runtime: StageRuntime, epoch: Epoch, factory: IteratorFactory, feed: Feed
    ) -> None:
        super().__init__(runtime, epoch, factory, source=True)
        self.feed = feed

    def has_input(self) -> bool:
        """Tell whether there is an index to draw, or the end to be noticed."""
        return bool(self.feed.ready or self.feed.ended) and super().has_input()

    def _choose(self) -> tuple[OpenIterator | None, int] | None:
        return super()._choose() if self.has_input() else None

    def chunk(self, available: int) -> int:
        """Return the number of items to read: as many as there are indices, or one for the end."""
        return super().chunk(min(available, max(1, self.feed.ready)))

    def finish(self) -> None:
        """Take no more indices: everything was read, or one failed."""
        super().finish()
        self.feed.cut()

    def halt(self) -> None:
        """Stop, and let nobody wait who pushes indices."""
        super().halt()
        self.feed.cut()
