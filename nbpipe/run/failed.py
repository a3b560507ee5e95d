"""Failed items of a run: as a table, with the items of the source that they were made of."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import prod
from pathlib import PurePath
from time import time
from typing import Any, final

import numpy as np

from ..base.describe import summarize
from ..base.format import html_table, markdown_table, text_table
from ..engine.epoch import LOG
from ..engine.failures import Failure
from ..errors import ArgumentTypeError
from ..ops.cache import CacheStore, PassNumber, without_passes
from ..ops.chain import absorbed
from ..ops.index import Lengths
from ..ops.plan import IndexPlan, ResolvedOrder
from ..ops.source import source_of
from ..ops.stage import Chain, Operation, Stage, address_book, addresses, changed

# -- Failures: what a person sees of them ----------------------------------------------------------
_SHOWN = 20  # rows of a table
_WIDE = 40  # characters of a source item
_REMEMBERED = 1000  # failed items whose origin is known
_TRACE = 4000  # characters of a traceback, its end
_HEAD = ("stage", "source item", "error", "input", "epoch")


@final
class Failures(tuple[Failure, ...]):
    """The last failed items, oldest first; shown as a table, tracebacks folded."""

    __slots__ = ()

    def _caption(self) -> str:
        if not self:
            return "No failed items"
        shown = f", the last {_SHOWN} shown" if len(self) > _SHOWN else ""
        again = "; run.retry_failed() gives their source items as a pipeline"
        known = any(one.index is not None for one in self)
        return f"Failed items: {len(self)}{shown}{again if known else ''}"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (one.stage, _end_of(one.source), one.error, one.input, str(one.epoch))
            for one in self[-_SHOWN:]
        ]

    def __repr__(self) -> str:
        return f"{self._caption()}\n{text_table(_HEAD, self._rows())}" if self else self._caption()

    def _repr_html_(self) -> str:
        if not self:
            return f"<div>{self._caption()}</div>"
        folds = {_HEAD.index("error"): [one.traceback[-_TRACE:] for one in self[-_SHOWN:]]}
        return html_table(_HEAD, self._rows(), caption=self._caption(), folds=folds)

    def _repr_markdown_(self) -> str:
        table = markdown_table(_HEAD, self._rows())
        return f"{self._caption()}\n\n{table}" if self else self._caption()


def _end_of(text: str) -> str:
    """Shorten a path from its beginning: what tells files apart is the end."""
    return text if len(text) <= _WIDE else "…" + text[1 - _WIDE :]


# -- Where failed items came from ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SourceItem:
    """An item of a source.

    Attributes:
        items: the source.
        index: its place there.
        read: reads it as the epoch did, with what `enumerate` adds; None in a stream.
    """

    items: Any
    index: int
    read: Callable[[], Any] | None = None

    @property
    def text(self) -> str:
        """What it is, in one line: a path, another value, or its place; nothing slow is read."""
        known = type(self.items) in (list, tuple, range, np.ndarray)
        if not known or self.index >= len(self.items):
            kind = getattr(self.items, "__name__", type(self.items).__name__)
            return f"item {self.index} of {kind}"
        value = self.items[self.index]
        if isinstance(value, str | PurePath):
            return " ".join(os.fspath(value).split())[:1000]
        return summarize(value)


@dataclass(frozen=True, slots=True)
class _SourcesRead:
    """Sources of other lengths than before.

    Attributes:
        since_s: from when on [seconds since the Unix epoch].
        epoch: the first that read them so.
        lengths: theirs.
    """

    since_s: float
    epoch: int
    lengths: Lengths


_Known = tuple[tuple[SourceItem, ...], str]


class Origins:
    """Tells which items of the source failed items were made of.

    Args:
        chain: the pipeline.
        sees_caches: its caches are filled in this process.
    """

    def __init__(self, chain: Chain, *, sees_caches: bool) -> None:
        self._sees_caches = sees_caches
        self._chain = chain
        self._read: deque[_SourcesRead] = deque(maxlen=_REMEMBERED)
        self._full_names = {address: full for full, address in address_book(chain).items()}
        self._known: dict[tuple[Any, ...], _Known] = {}
        self._orders: dict[tuple[Any, ...], ResolvedOrder] = {}  # the last one that was asked for
        self.sources_read(0)

    def sources_read(self, epoch: int) -> None:
        """Called when sources are read as they are now, from this epoch on: they may grow."""
        lengths = Lengths()
        for stage in addresses(self._chain).values():
            with contextlib.suppress(Exception):  # it is the user's: the epoch tells what it raises
                if stage.spec.rows is not None:
                    lengths.of(_items_of(stage))
        if not self._read or self._read[-1].lengths.numbers != lengths.numbers:
            self._read.append(_SourcesRead(time(), epoch, lengths))

    def _lengths(self, failure: Failure, epoch: int) -> Lengths:
        """Return the lengths of the sources when what failed was made, in this epoch."""
        known = [one for one in self._read if one.since_s <= failure.when_s]
        if epoch != failure.epoch:  # a cache kept it
            known = [one for one in known if one.epoch <= epoch]
        return (known or self._read)[-1 if known else 0].lengths

    def named(self, failures: Iterable[Failure]) -> Failures:
        """Return the failures, each with its item of the source."""
        return Failures(map(self._named, failures))

    def _named(self, failure: Failure) -> Failure:
        found, text = self._known_of(failure)
        return replace(failure, source=text, index=found[0].index if found else None)

    def of(self, failure: Failure) -> tuple[SourceItem, ...]:
        """Return the items that a failed one was made of: of a batch the first, or all."""
        return self._known_of(failure)[0]

    def _known_of(self, failure: Failure) -> _Known:
        """Return them with what the table says of them, looked up once."""
        key = (failure.stage, failure.path, failure.epoch, failure.when_s)
        known = self._known.get(key)
        if known is None:
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._looked_up(failure)
        return known

    def _looked_up(self, failure: Failure) -> _Known:
        try:
            found = self._found(failure)
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            return found, found[0].text + more if found else ""
        except Exception:  # noqa: BLE001 - a source is the user's, and may have changed
            LOG.debug("the source of a failed item is not known", exc_info=True)
            return (), ""

    def _found(self, failure: Failure) -> tuple[SourceItem, ...]:
        *numbers, name = self._full_names[failure.stage].split("/")
        chain = self._chain
        for number in map(int, numbers):
            chain = chain[0].inputs[number]
        place = next(n for n, stage in enumerate(chain) if _holds(stage, name))
        path = failure.path if isinstance(failure.path, tuple) else (failure.path,)
        if failure.external and len(path) > 1:
            items, index = _items_of(chain[0]), path[1]
            return (SourceItem(items, index, partial(items.__getitem__, index)),)
        return self._in_chain(chain, place, path, failure, failure.epoch)

    def _in_chain(
        self,
        chain: Chain,
        place: int,
        path: tuple[int, ...],
        failure: Failure,
        epoch: int | None,
    ) -> tuple[SourceItem, ...]:
        """Return what a result of the stage at `place` with this path was made of.

        `epoch` is None where nobody knows in which one it was made.
        """
        source, used = absorbed(chain)
        head = chain[0]
        behind = [stage.spec for stage in chain[used : place + 1]]
        for spec in reversed(behind):
            if spec.kept_in is not None:
                epoch = self._made(spec.kept_in, epoch)
        if source is not None and source.plan is not None:
            if epoch is None and source.plan.shuffles:
                return ()
            lengths, many = self._lengths(failure, epoch or 0), _known_inputs(behind)
            order = partial(self._order, source.plan, head, epoch or 0, lengths)
            return _in_order(order, path, many, _passes_of(behind))
        if not head.inputs:
            return (_original(_items_of(head), path[0]),)
        number, *path_there = path if head.spec.deepens else (0, *path)
        inner = head.inputs[number]
        return self._in_chain(inner, len(inner), tuple(path_there), failure, epoch)

    def _made(self, store: CacheStore, epoch: int | None) -> int | None:
        """Return the epoch whose order the items of a cache have; None where nobody knows."""
        if (kept := store.kept) is None:
            return epoch if self._sees_caches else None
        made, passes = kept.made
        return None if passes or epoch is None or epoch < made else made

    def _order(
        self, plan: IndexPlan, head: Stage, epoch: int, lengths: Lengths, passes: tuple[int, ...]
    ) -> tuple[ResolvedOrder, ResolvedOrder]:
        """Return the order of a pass: of the indices of its items, and of the items."""
        if plan.claimed:
            plan = plan.arguments[0]
        key = (id(head), epoch, passes, lengths)
        if key not in self._orders:
            self._orders = {key: plan.of_indices(lengths).resolve(epoch, passes)}
        return self._orders[key], plan.resolve(epoch, passes, lengths)


def _in_order(
    order_of: Callable[[tuple[int, ...]], tuple[ResolvedOrder, ResolvedOrder]],
    path: tuple[int, ...],
    many: int,
    times: float,
) -> tuple[SourceItem, ...]:
    """Return the `many` items that begin at a path.

    Args:
        order_of: gives the order of a pass: of the indices of its items, and of the items.
        path: of the first item.
        many: how many, where there are so many.
        times: how many passes items that follow one another may be of.
    """
    passes = tuple(int(number) for number in path if isinstance(number, PassNumber))
    plain = without_passes(path)
    indices, order = order_of(passes)
    start = indices.find(plain if isinstance(plain, tuple) else (plain,))
    found: list[SourceItem] = []
    while start is not None:
        end = start + many if order.length is None else min(start + many, order.length)
        for row in range(start, end):
            items, index = indices.item(row)
            if index >= len(items):  # it has shrunk since
                return ()
            found.append(_original(items, index, partial(order.item, row)))
        many -= end - start
        if not many or end == start or not passes or passes[0] + 1 >= times:
            break
        passes, start = (passes[0] + 1,), 0
        indices, order = order_of(passes)
    return tuple(found)


def _original(items: Any, index: int, read: Callable[[], Any] | None = None) -> SourceItem:
    """Return an item of a source; what was chosen of another source is named as it was there."""
    if isinstance(items, FailedItems | FailedOfStream):
        return replace(items.found[index], read=read)
    return SourceItem(items, index, read)


def _holds(stage: Stage, name: str) -> bool:
    """Tell whether a stage, or one of its branches, has this name."""
    inner = stage.inputs if stage.spec.branches else ()
    return stage.name == name or any(_holds(one, name) for chain in inner for one in chain)


def _items_of(head: Stage) -> Any:
    return getattr(head.spec, "items", None)


def _known_inputs(specs: Sequence[Operation]) -> int:
    """Return how many neighbours of an order a result is made of, as far as that is known.

    Behind what parts the order a result may be made of several: the first of them is known, with
    all that it was made of.
    """
    parts = next((n for n, one in enumerate(specs[:-1]) if not one.keeps_neighbours), len(specs))
    return prod(spec.made_of for spec in specs[: parts + 1])


def _passes_of(specs: Sequence[Operation]) -> float:
    """Return how many passes of a `repeat` the items that a result is made of may be of."""
    places = [n for n, one in enumerate(specs) if one.times_given > 1]
    alone = len(places) == 1 and prod(one.made_of for one in specs[: places[0]]) == 1
    return specs[places[0]].times_given if alone else 1


# -- Once more: the chain for the items that failed ------------------------------------------------
@final
class FailedItems(Sequence[Any]):
    """Some items of a source; each is read when it is asked for.

    Args:
        found: the items.
    """

    def __init__(self, found: Sequence[SourceItem]) -> None:
        self.found = found

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: Any) -> Any:
        read = self.found[index].read
        return None if read is None else read()


@final
class FailedOfStream:
    """Some items of a source that can only be read from its beginning.

    Args:
        found: the items, at least one.
    """

    def __init__(self, found: Sequence[SourceItem]) -> None:
        self.found = sorted(found, key=lambda one: one.index)

    def __iter__(self) -> Iterator[Any]:
        items, places = self.found[0].items, {one.index for one in self.found}
        values = items if hasattr(items, "__iter__") else items()
        for place, value in enumerate(islice(values, max(places) + 1)):
            if place in places:
                yield value


def retried(chain: Chain, origins: Origins, failures: Iterable[Failure]) -> Chain:
    """Return the chain for the items of the source that failed ones were made of, each once.

    Raises:
        ArgumentTypeError: it does not begin with one source, or with an async one.
    """
    source, used = absorbed(chain)
    head = chain[0]
    stream = (
        head.spec.runs == "source" and not head.inputs and not hasattr(_items_of(head), "__aiter__")
    )
    if source is None and not stream:
        what = "is another pipeline" if head.spec.runs == "source" else "joins several"
        raise ArgumentTypeError(
            f"retry_failed needs a pipeline that begins with one source, got {head.name!r}, which "
            f"{what}; run.failures() names the items, nbpipe.source([...]) takes them"
        )
    several = [origins.of(failure) for failure in failures]
    unknown = several.count(())
    if unknown:
        LOG.warning("retry_failed leaves out %d failed items: their source is not known", unknown)
    found = list({(id(one.items), one.index): one for some in several for one in some}.values())
    spec = source_of(FailedOfStream(found) if found and source is None else FailedItems(found))
    behind = ((stage, stage.spec.of_chosen()) for stage in chain[max(1, used) :])
    kept = (changed(stage, spec=again) for stage, again in behind if again is not None)
    return changed(head, spec=spec, inputs=()), *kept
