"""Openers: how an expansion gets its iterator, and what a failure of it means."""

from __future__ import annotations

import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..cache import Made, PassNumber, Store, with_passes
from ..errors import ArgumentTypeError, StateError
from ..operations import Source
from ..rest import Rest
from ..sampler import ResolvedOrder
from ..stage import is_async_generator_function, is_coroutine_function
from .given import GivenItems
from .indices import NothingReadyError
from .stream import StreamStep
from .task import Entry, Expansion, Task, child_path

if TYPE_CHECKING:
    from .context import EpochContext
    from .failures import Failed
    from .steps import Step


_ALL = Rest()
_DEEPEST = 4  # samplers inside one another


class Opener(ABC):
    """Makes the iterator of an expansion; methods are called without the lock."""

    @abstractmethod
    def open(self, expansion: Expansion) -> None:
        """Set `inner` (the user's iterator) and `entries` (an iterator over entries)."""

    async def open_async(self, expansion: Expansion) -> None:
        """Set `inner` and `entries`, an async iterator, on the event loop."""
        raise TypeError(f"{type(self).__name__} has no async form")

    def note(self, rest: Rest, about: dict[str, Any]) -> None:
        """Say, of what has no input, which items are wanted."""
        raise TypeError(f"{type(self).__name__} has an input")

    @abstractmethod
    def recover(self, expansion: Expansion, error: BaseException, task: Task) -> Failed | None:
        """Give the failure, or None when the expansion is to be opened again."""


class SourceOpener(Opener):
    """Opens a source for one epoch.

    Args:
        passes: numbers of the passes of `repeat` stages further down; they extend each path.
        stands: where the source goes on.
    """

    def __init__(
        self,
        stage: str,
        spec: Source,
        context: EpochContext,
        passes: tuple[int, ...],
        stands: dict[str, Any],
    ) -> None:
        self._step = StreamStep(stage, _NO_OPERATION, context)
        self._stage = stage
        self._spec = spec
        self._context = context
        self._passes = tuple(map(PassNumber, passes))
        self._rest = rest_in(stands)
        self._base = rest_in(stands, "base")
        self._order: ResolvedOrder | None = None
        self._count: int | None = None  # items of a stream that has come to its end

    def note(self, rest: Rest, about: dict[str, Any]) -> None:
        """Say which items are wanted, and how the source comes to them."""
        plan, base = self._spec.plan, self._base
        claims = plan is not None and plan.claimed
        if claims and self._order is not None:
            base, rest = base.of_wanted(self._order.unclaimed(rest)), _ALL
        left = self._rest.of_wanted(rest)  # a last batch that was not full counts as a full one
        about["rest"] = (left if self._count is None else left.within(self._count)).data
        about["by"] = "claim" if claims else "skipping" if plan is None else "index"
        if claims or not base.is_all:
            about["base"] = base.data

    def open(self, expansion: Expansion) -> None:
        """Read the source afresh."""
        items, plan = self._spec.items, self._spec.plan
        self._tell_epoch(items)
        if isinstance(items, GivenItems):
            expansion.entries, expansion.inner = items.entries(self._rest), items
            return
        if plan is not None:
            left = plan.rest_of_world(self._base).rest(self._rest)
            self._order = left.resolve(self._context.epoch, self._passes)
            expansion.entries = self._with_passes(self._order.rows())
            return
        made = self._checked(items()) if _is_maker(items) else items
        is_async = hasattr(made, "__aiter__") and not hasattr(made, "__iter__")
        expansion.inner = Drawn(made.__aiter__()) if is_async else self._fresh(iter(made))
        numbers = itertools.count()
        entries = itertools.chain(zip(numbers, expansion.inner, strict=False), self._end(numbers))
        expansion.entries = self._with_passes(_left(self._rest, entries))

    def _end(self, numbers: Iterator[int]) -> Iterator[Entry]:
        """Take note, behind the last item, of how many there were."""
        self._ended(next(numbers) - 1)  # `zip` had taken one more
        yield from ()

    def _ended(self, count: int) -> None:
        """Refuse an end before the place where the epoch was to go on: nothing would be left."""
        self._count = count
        reached = self._rest.holes[-1][1] if self._rest.holes else self._rest.start
        if count < reached:
            raise StateError(
                f"source {self._stage!r} must have at least the {reached} items that it had when "
                f"the state was taken, got {count}; go on with the same data, or begin the epoch "
                "again"
            )

    def _with_passes(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        passes = self._passes
        if not passes:
            return iter(entries)
        return ((_longer(entry[0], passes), entry[1]) for entry in entries)

    def _tell_epoch(self, items: Any) -> None:
        for part in (items, *_samplers_in(items)):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self._context.epoch)
                return

    def _checked(self, made: Any) -> Any:
        """Check what the source's function returned."""
        iterable = hasattr(made, "__iter__") or hasattr(made, "__getitem__")
        if isinstance(made, str | bytes | Mapping) or not (iterable or hasattr(made, "__aiter__")):
            raise ArgumentTypeError(
                f"the function of source {self._stage!r} must return an iterator of items, got "
                f"{type(made).__name__}; yield the items, or return a list of them"
            )
        return made

    def _fresh(self, values: Iterator[Any]) -> Iterator[Any]:
        """Refuse a generator that somebody read to its end before."""
        ended = inspect.isgenerator(values) and inspect.getgeneratorstate(values)
        if ended == inspect.GEN_CLOSED:
            raise ArgumentTypeError(
                f"source {self._stage!r} must give a fresh iterator for every epoch, got a "
                "generator that was read to its end before; make it inside the function"
            )
        return values

    async def open_async(self, expansion: Expansion) -> None:
        """Call the source's function for an async iterator."""
        made = self._spec.items
        self._tell_epoch(made)
        if _is_maker(made):
            made = made()
        if inspect.isawaitable(made):
            made = self._checked(await _ended_as_error(made))
        if not hasattr(made, "__aiter__"):
            made = _as_async(self._fresh(iter(made)))
        expansion.inner = made.__aiter__()
        expansion.entries = self._numbered_async(expansion.inner)

    async def _numbered_async(self, values: AsyncIterator[Any]) -> AsyncIterator[Entry]:
        number, passes = 0, self._passes
        async for value in values:
            if number in self._rest:
                yield ((number, *passes) if passes else number, value)
            number += 1
        self._ended(number)

    def recover(self, expansion: Expansion, error: BaseException, task: Task) -> Failed | None:
        """End the epoch: a source that failed cannot go on; one that has nothing now can."""
        if isinstance(error, NothingReadyError):
            return None
        if isinstance(self._spec.items, GivenItems):
            return self._step.failure(self._spec.items.path, None, error)
        return self._step.failure(task.drawn + len(task.results), None, error)


class ReplayOpener(Opener):
    """Reads the items of a cache.

    Args:
        made: the epoch that made them.
        passes: numbers of the passes of `repeat` stages further down; they extend each path.
        rest: the items that are wanted.
    """

    def __init__(
        self,
        stage: str,
        store: Store,
        made: Made,
        context: EpochContext,
        *,
        passes: tuple[int, ...] = (),
        rest: Rest = _ALL,
    ) -> None:
        self._step = StreamStep(stage, _NO_OPERATION, context)
        self._store = store
        self._made = made
        self._passes = passes
        self._rest = rest

    def note(self, rest: Rest, about: dict[str, Any]) -> None:
        """Say which items are wanted; the stages that made them do not stand anywhere."""
        about["rest"] = self._rest.of_wanted(rest).data
        about["by"] = "replay"
        epoch, passes = self._made
        about["made"] = [epoch, list(passes)]

    def open(self, expansion: Expansion) -> None:
        """Read from the beginning."""
        passes = self._passes
        expansion.inner = self._store.entries()
        entries = _left(self._rest, expansion.inner)
        expansion.entries = (
            ((with_passes(path, passes), value) for path, value in entries) if passes else entries
        )

    def recover(self, expansion: Expansion, error: BaseException, task: Task) -> Failed | None:
        """End the epoch: a cache that fails cannot be read on."""
        return self._step.failure(task.drawn + len(task.results), None, error)


class CallOpener(Opener):
    """Opens the children of one item: `flat_map`, `unbatch`."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def let_read(self, each: Callable[[Any], Any]) -> None:
        """Hear that items are batches in flight; `each` makes a function open them."""
        self._step.fn = each(self._step.fn)

    def open(self, expansion: Expansion) -> None:
        """Call the function on the item."""
        entry, step = expansion.entry, self._step
        assert entry is not None
        step.wait(expansion.wait_s)
        made = step.fn(entry[1], **step.arguments(entry))
        expansion.inner = iter(_checked(step.stage, made))
        expansion.entries = children(entry[0], expansion.inner, expansion)

    async def open_async(self, expansion: Expansion) -> None:
        """Call the async function on the item: a generator, or a coroutine that gives many."""
        entry, step = expansion.entry, self._step
        assert entry is not None
        if expansion.wait_s:
            import asyncio

            await asyncio.sleep(expansion.wait_s)
        made = step.fn(entry[1], **step.arguments(entry))
        if inspect.isawaitable(made):
            made = _as_async(_checked(step.stage, await _ended_as_error(made)))
        expansion.inner = made.__aiter__()
        expansion.entries = _children_async(entry[0], expansion.inner, expansion)

    def recover(self, expansion: Expansion, error: BaseException, task: Task) -> Failed | None:
        """Open again as the policy says, or give the failure."""
        step, entry = self._step, expansion.entry
        assert entry is not None
        expansion.attempts += 1
        wait_s = step.wait_before_retry_s(expansion.attempts, error)
        if wait_s is None:
            return step.failure(entry, error, expansion.attempts)
        expansion.entries, expansion.wait_s = None, wait_s
        task.retried += (step.stage,)
        return None


class _NoOperation:
    finished = False
    holds_items = False

    def push(self, entry: Entry) -> Entry | None:
        return entry

    def flush(self) -> Iterator[Entry]:
        return iter(())

    def rest_of_input(self, rest: Rest, stands: dict[str, Any]) -> Rest:
        return rest


_NO_OPERATION = _NoOperation()


class Drawn(Iterator[Any]):
    """Draws from an async iterator in a thread, with an event loop of its own.

    A plain function may return one: nobody can know before it is called.
    """

    def __init__(self, values: AsyncIterator[Any]) -> None:
        import asyncio

        self._values = values
        self._loop = asyncio.new_event_loop()

    def __next__(self) -> Any:
        """Wait for the next item."""
        if self._loop.is_closed():
            raise StopIteration
        try:
            return self._loop.run_until_complete(anext(self._values))
        except StopAsyncIteration:
            self.close()
            raise StopIteration from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the iterator and the loop; again does nothing."""
        loop, aclose = self._loop, getattr(self._values, "aclose", None)
        if loop.is_closed():
            return
        try:
            if aclose is not None:
                loop.run_until_complete(aclose())
        finally:
            loop.close()


def _samplers_in(items: Any) -> Iterator[Any]:
    """Give the sampler that a batch sampler draws from, and the one inside that."""
    for _ in range(_DEEPEST):
        inner = getattr(items, "batch_sampler", None)
        items = getattr(items, "sampler", None) if inner is None else inner
        if items is None:
            return
        yield items


def rest_in(stands: dict[str, Any], word: str = "rest") -> Rest:
    """Give what is left of a source or a cache."""
    return Rest.read(stands[word]) if word in stands else _ALL


def _is_maker(items: Any) -> bool:
    return callable(items) and not hasattr(items, "__iter__") and not hasattr(items, "__aiter__")


def _longer(path: Any, passes: tuple[int, ...]) -> tuple[int, ...]:
    return (*path, *passes) if isinstance(path, tuple) else (path, *passes)


def children(path: Any, values: Iterator[Any], expansion: Expansion) -> Iterator[Entry]:
    """Give the entries of an item's children, but for those drawn before, or not wanted."""
    wants = _wants(expansion)
    for child, value in enumerate(values):
        if wants(child):
            yield (child_path(path, child), value)


async def _children_async(
    path: Any, values: AsyncIterator[Any], expansion: Expansion
) -> AsyncIterator[Entry]:
    child, wants = -1, _wants(expansion)
    async for value in values:
        child += 1
        if wants(child):
            yield (child_path(path, child), value)


def _wants(expansion: Expansion) -> Callable[[int], bool]:
    left = Rest(expansion.drawn)
    if expansion.wanted is not None:
        left = expansion.wanted.of_wanted(left)
    return left.__contains__


def _left(rest: Rest, entries: Iterator[Entry]) -> Iterator[Entry]:
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


def _checked(stage: str, made: Any) -> Iterable[Any]:
    if isinstance(made, str | bytes | Mapping) or not hasattr(made, "__iter__"):
        raise ArgumentTypeError(
            f"the function of {stage!r} must give an iterable of items, got "
            f"{type(made).__name__}; return a list of items, or yield them"
        )
    return made  # type: ignore[no-any-return]


def is_async_source(items: Any) -> bool:
    """Say whether a source is read on the event loop."""
    if hasattr(items, "__iter__") or hasattr(items, "__aiter__"):
        return not hasattr(items, "__iter__")
    return is_async_generator_function(items) or is_coroutine_function(items)
