"""Origins: the source items that failed items were made of."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from time import time
from typing import Any

from ..engine.epoch import LOG
from ..engine.nodes.failures import Failure
from ..ops.cache import CacheStore, PassNumber, without_passes
from ..ops.chain import absorbed
from ..ops.index import Lengths
from ..ops.plan import IndexPlan, ResolvedOrder
from ..ops.stage import Chain, Operation, Stage, address_book, addresses
from .failed import Failures
from .retry import FailedItems, FailedOfStream, SourceItem, items_of

_REMEMBERED = 1000  # failed items whose origin is kept


@dataclass(frozen=True, slots=True)
class _SourcesRead:
    """The lengths of the sources, from one epoch on.

    Attributes:
        since_s: when they were read [seconds since the Unix epoch].
        epoch: the first epoch with these lengths.
        lengths: the lengths.
    """

    since_s: float
    epoch: int
    lengths: Lengths


_Known = tuple[tuple[SourceItem, ...], str]


class Origins:
    """Finds the source items that failed items were made of.

    Args:
        chain: the stages.
        sees_caches: the caches are filled in this process.
    """

    def __init__(self, chain: Chain, *, sees_caches: bool) -> None:
        self._sees_caches = sees_caches
        self._chain = chain
        self._read: deque[_SourcesRead] = deque(maxlen=_REMEMBERED)
        self._full_names = {address: full for full, address in address_book(chain).items()}
        self._known: dict[tuple[Any, ...], _Known] = {}
        self._orders: dict[tuple[Any, ...], ResolvedOrder] = {}  # the last one used
        self.sources_read(0)

    def sources_read(self, epoch: int) -> None:
        """Read the lengths of the sources, which may grow; they hold from this epoch on."""
        lengths = Lengths()
        for stage in addresses(self._chain).values():
            with contextlib.suppress(Exception):  # user code: the epoch raises the error
                if stage.spec.rows is not None:
                    lengths.of(items_of(stage))
        if not self._read or self._read[-1].lengths.numbers != lengths.numbers:
            self._read.append(_SourcesRead(time(), epoch, lengths))

    def _lengths(self, failure: Failure, epoch: int) -> Lengths:
        """Return the lengths of the sources when the failed item was made, in this epoch."""
        known = [one for one in self._read if one.since_s <= failure.when_s]
        if epoch != failure.epoch:  # the item came from a cache
            known = [one for one in known if one.epoch <= epoch]
        return (known or self._read)[-1 if known else 0].lengths

    def named(self, failures: Iterable[Failure]) -> Failures:
        """Return the failures, each with its source item."""
        return Failures(map(self._named, failures))

    def _named(self, failure: Failure) -> Failure:
        found, text = self._known_of(failure)
        return replace(failure, source=text, index=found[0].index if found else None)

    def of(self, failure: Failure) -> tuple[SourceItem, ...]:
        """Return the source items of a failed one: of a batch the first, or all."""
        return self._known_of(failure)[0]

    def _known_of(self, failure: Failure) -> _Known:
        """Return them with their text for the table; each failure is looked up once."""
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
        except Exception:  # noqa: BLE001  user code, which may have changed
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
            items, index = items_of(chain[0]), path[1]
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
        """Return the source items of a result of the stage at `place` with this path.

        `epoch` is None if the epoch that made the result is not known.
        """
        source, used = absorbed(chain)
        head = chain[0]
        later = [stage.spec for stage in chain[used : place + 1]]
        for spec in reversed(later):
            if spec.kept_in is not None:
                epoch = self._made(spec.kept_in, epoch)
        if source is not None and source.plan is not None:
            if epoch is None and source.plan.shuffles:
                return ()
            lengths, many = self._lengths(failure, epoch or 0), _known_inputs(later)
            order = partial(self._order, source.plan, head, epoch or 0, lengths)
            return _in_order(order, path, many, _passes_of(later))
        if not head.inputs:
            return (_original(items_of(head), path[0]),)
        number, *path_there = path if head.spec.deepens else (0, *path)
        inner = head.inputs[number]
        return self._in_chain(inner, len(inner), tuple(path_there), failure, epoch)

    def _made(self, store: CacheStore, epoch: int | None) -> int | None:
        """Return the epoch whose order the items of a cache have; None if it is not known."""
        if (kept := store.kept) is None:
            return epoch if self._sees_caches else None
        made, passes = kept.made
        return None if passes or epoch is None or epoch < made else made

    def _order(
        self, plan: IndexPlan, head: Stage, epoch: int, lengths: Lengths, passes: tuple[int, ...]
    ) -> tuple[ResolvedOrder, ResolvedOrder]:
        """Return the order of one pass: that of the indices, and that of the items."""
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
        order_of: returns the order of one pass: that of the indices, and that of the items.
        path: path of the first item.
        many: number of items; fewer are returned at the end of the data.
        times: number of passes that the items may come from.
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
            if index >= len(items):  # the source has shrunk
                return ()
            found.append(_original(items, index, partial(order.item, row)))
        many -= end - start
        if not many or end == start or not passes or passes[0] + 1 >= times:
            break
        passes, start = (passes[0] + 1,), 0
        indices, order = order_of(passes)
    return tuple(found)


def _original(items: Any, index: int, read: Callable[[], Any] | None = None) -> SourceItem:
    """Return an item of a source; an item of a retried pipeline is named as in the first one."""
    if isinstance(items, FailedItems | FailedOfStream):
        return replace(items.found[index], read=read)
    return SourceItem(items, index, read)


def _holds(stage: Stage, name: str) -> bool:
    """Return whether a stage, or one in its branches, has this name."""
    inner = stage.inputs if stage.spec.branches else ()
    return stage.name == name or any(_holds(one, name) for chain in inner for one in chain)


def _known_inputs(specs: Sequence[Operation]) -> int:
    """Return how many neighbours in the source's order a result is made of.

    After a stage that breaks up the order, only the first input of a result is known, with the
    neighbours that this input was made of.
    """
    parts = next((n for n, one in enumerate(specs[:-1]) if not one.keeps_neighbours), len(specs))
    return prod(spec.made_of for spec in specs[: parts + 1])


def _passes_of(specs: Sequence[Operation]) -> float:
    """Return from how many passes of a `repeat` the items of one result may come."""
    places = [n for n, one in enumerate(specs) if one.times_given > 1]
    alone = len(places) == 1 and prod(one.made_of for one in specs[: places[0]]) == 1
    return specs[places[0]].times_given if alone else 1
