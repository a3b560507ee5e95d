"""Factories: how a node that expands gets an iterator, and what a failure of it means."""

from __future__ import annotations

import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from ...base.checks import (
    is_async_generator_function,
    is_coroutine_function,
    refuse_coroutine,
    refuse_table,
)
from ...base.seeding import Entry, Path
from ...errors import ArgumentTypeError, StateError
from ...ops.cache import Kept, with_passes
from ...ops.plan import ResolvedOrder
from ...ops.ranges import IndexRanges, NodeState
from ...ops.source import Source
from .external import GivenItems, is_plain
from .failures import Failed
from .node import Task
from .step import EpochContext, OpenIterator, Step, child_paths

_ALL = IndexRanges()
_KEEP_THEIR_LAST = (zip, enumerate)  # they hold their last item, so they are not remembered
_read_out: WeakKeyDictionary[Any, object] = WeakKeyDictionary()  # by the function that made it
_DEEPEST = 4  # samplers inside one another


# -- IteratorFactory -------------------------------------------------------------------------------


class IteratorFactory(ABC):
    """Opens an `OpenIterator`; methods are called without the lock.

    Attributes:
        shared: other runs do not get what this one draws.
        own: the iterator may be the user's; then one thread and one context open, read and close
            it.
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

    def record_state(self, rest: IndexRanges, about: NodeState) -> None:
        """Add which items of a source are wanted to its state."""
        raise TypeError(f"{type(self).__name__} has an input")

    def path_of(self, number: int) -> Path:
        """Return the path of the item that is drawn after `number` others."""
        return number

    def recover(self, iterator: OpenIterator, error: BaseException, task: Task) -> Failed | None:
        """Return the failure, or None when the iterator is to be opened again.

        Here the epoch ends: an iterator that failed cannot continue.
        """
        path = self.path_of(task.drawn + len(task.results))
        return self._step.failure((path, None), error, 1)


class EpochItems(ABC):
    """A source whose items differ from epoch to epoch."""

    @abstractmethod
    def of_epoch(self) -> Iterable[Any]:
        """Return the items of the epoch that begins; another may begin while they are read."""


# -- Sources ---------------------------------------------------------------------------------------
class SourceFactory(IteratorFactory):
    """Opens a source for one epoch.

    Args:
        passes: numbers of the passes of `repeat` stages further down; they extend each path.
        node_state: where the source continues.
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
        if issubclass(type(spec.items), EpochItems):  # `isinstance` may call user code: locked
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

    def record_state(self, rest: IndexRanges, about: NodeState) -> None:
        """Record which items are wanted, and how the source gets to them."""
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
        """Read the source from its beginning, or from the first wanted row."""
        items, plan = self._items, self._plan
        self._set_epoch(items)
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
        """Check the number of indices after the last one."""
        self._ended(items.drawn, f"the order of source {self._step.stage!r}", "indices")
        yield from ()

    def _end(self, numbers: Iterator[int], values: object) -> Iterator[Entry]:
        """Check the number of items after the last one, and remember the iterator."""
        self._ended(next(numbers) - 1, f"source {self._step.stage!r}")  # `zip` had taken one more
        self._note_read_out(values)
        yield from ()

    def _note_read_out(self, values: object) -> None:
        """Remember an iterator that stays at its end, by the function that made it."""
        stays = type(values).__module__ == "builtins" and type(values) not in _KEEP_THEIR_LAST
        if stays and _is_maker(self._items):
            with suppress(TypeError):  # it cannot be referred to weakly
                _read_out[self._items] = values

    def _ended(self, count: int, what: str, unit: str = "items") -> None:
        """Refuse an end before the position that the epoch resumes at."""
        self._count = count
        reached = self._rest.gaps[-1][1] if self._rest.gaps else self._rest.start
        if count < reached:
            same = "data" if unit == "items" else unit
            raise StateError(
                f"{what} must have at least the {reached} {unit} that it had when the state was "
                f"taken, got {count}; continue with the same {same}, or begin the epoch again"
            )

    def _set_epoch(self, items: Any) -> None:
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
        """Refuse an iterator that was read to its end before, where that can be detected."""
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
        self._set_epoch(made)
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
        """Return the path of an item."""
        if isinstance(self._items, GivenItems):
            return self._items.path
        if self._order is not None:
            return with_passes(self._order.path_at(number), self._passes)
        return with_passes(self._rest.of_wanted(IndexRanges(number)).start, self._passes)


class ReplayFactory(IteratorFactory):
    """Reads the items of a complete cache.

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

    def record_state(self, rest: IndexRanges, about: NodeState) -> None:
        """Record which items are wanted, and which epoch made them."""
        about["rest"] = self._rest.of_wanted(rest).data
        about["by"] = "replay"
        epoch, passes = self._kept.made
        about["made"] = [epoch, list(passes)]

    def open(self, iterator: OpenIterator) -> None:
        """Read from the beginning."""
        iterator.inner = self._kept.entries()
        iterator.entries = _in_passes(_left(self._rest, iterator.inner), self._passes)


# -- Children --------------------------------------------------------------------------------------
class ChildFactory(IteratorFactory):
    """Opens the children of one item: `flat_map`, `unbatch`.

    Args:
        step: calls the function.
        own: the function and what it returns are the user's.
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
        """Call the async function on the item: a generator, or a coroutine that returns many."""
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
        """Let it be opened again as the policy says, or return the failure."""
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

    Some plain functions return one, which is known only once they are called.
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
    """Yield the sampler that a batch sampler draws from, and those inside it."""
    for _ in range(_DEEPEST):
        inner = getattr(items, "batch_sampler", None)
        items = getattr(items, "sampler", None) if inner is None else inner
        if items is None:
            return
        yield items


def remaining_in(node_state: dict[str, Any], word: str = "rest") -> IndexRanges:
    """Return the items of a source or a cache that are left."""
    return IndexRanges.read(node_state[word]) if word in node_state else _ALL


def _is_maker(items: Any) -> bool:
    return callable(items) and not hasattr(items, "__iter__") and not hasattr(items, "__aiter__")


def _in_passes(entries: Iterable[Entry], passes: tuple[int, ...]) -> Iterator[Entry]:
    if not passes:
        return iter(entries)
    return ((with_passes(entry[0], passes), entry[1]) for entry in entries)


def children(path: Any, values: Iterator[Any], iterator: OpenIterator) -> Iterator[Entry]:
    """Yield the entries of an item's children that were not drawn before and are wanted."""
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
    """Check what the function of a stage returned for one item.

    Raises:
        ArgumentTypeError: it is no iterable of items.
    """
    if type(made) in (list, tuple):  # the common case
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
    """Return whether a source is read on the event loop."""
    if hasattr(items, "__iter__") or hasattr(items, "__aiter__"):
        return not hasattr(items, "__iter__")
    return is_async_generator_function(items) or is_coroutine_function(items)
