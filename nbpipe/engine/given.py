"""A chain whose source reads the indices it is given, in the place of its own order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from ..errors import ArgumentError, ArgumentTypeError
from ..operations import Cache, Enumerate, Repeat, Skip, Source
from ..order import absorbed
from ..rest import Rest
from ..seeding import Path
from ..stage import Chain, Stage
from .indices import Broken, GivenOrder, Index, index_error
from .task import Entry


@final
class GivenItems:
    """The items of a source in a given order: what stands in the stage for one epoch.

    The path of an item is (its place in the order, its index).

    Args:
        source: name of the source.
        items: of the source; they have a length and take indices.
        order: the indices.
        numbers: for each `enumerate` at the head, whether it numbers the items of the source,
            not those of the order.

    Attributes:
        path: of the item being read.
    """

    def __init__(
        self, source: str, items: Any, order: GivenOrder, numbers: tuple[bool, ...]
    ) -> None:
        self.order = order
        self.path: Path = 0
        self._source = source
        self._items = items
        self._numbers = numbers

    def __len__(self) -> int:
        count = self.order.count
        if count is None:
            raise TypeError("the number of indices is not known before they are given")
        return count

    def set_epoch(self, number: int) -> None:
        """Tell the source the number of the epoch."""
        set_epoch = getattr(self._items, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(number)

    def close(self) -> None:
        """Close the iterator over the indices, where it is not the user's own."""
        close = getattr(self.order.inner, "close", None)
        if close is not None:
            close()

    def entries(self, rest: Rest) -> Iterator[Entry]:
        """Read the items one by one, those at the places in the order that are wanted.

        Raises:
            ArgumentError: an index is no int, or out of range.
            NothingReadyError: there is none now; the iterator can be asked again.
            BaseException: what gave the indices, or the source, raised.
        """
        return _Reading(self, len(self._items), rest)

    def read(self, ordinal: int, index: Index, length: int) -> Entry:
        """Read one item of a source with `length` items; raises as `entries` does."""
        if isinstance(index, Broken):
            raise index.error
        number = index if isinstance(index, int) else -1
        self.path = path = (ordinal, number)
        if not 0 <= number < length:
            raise index_error(ordinal, index, length, self._source)
        try:
            return path, self._numbered(ordinal, number, self._items[number])
        except StopIteration as error:  # it would look like the end of the order
            raise RuntimeError(f"source {self._source!r} raised StopIteration") from error

    def _numbered(self, ordinal: int, index: int, value: Any) -> Any:
        for of_source in self._numbers:
            value = (index if of_source else ordinal, value)
        return value


@final
class _Reading(Iterator[Entry]):
    """Reads on after an exception, which a generator would not."""

    def __init__(self, items: GivenItems, length: int, rest: Rest) -> None:
        self._items = items
        self._length = length
        self._rest = None if rest.is_all else rest
        self._indices = items.order.draw()
        self._ordinal = 0

    def __next__(self) -> Entry:
        items, rest = self._items, self._rest
        while True:
            items.path = ordinal = self._ordinal
            index = next(self._indices)
            self._ordinal = ordinal + 1
            if rest is None or ordinal in rest:
                return items.read(ordinal, index, self._length)


def given_chain(chain: Chain, order: GivenOrder) -> Chain:
    """Give the chain for an epoch in a given order; stages share their knobs with those of `chain`.

    Raises:
        ArgumentError, ArgumentTypeError: as `check_head` does.
    """
    source, used = check_head(chain)
    head = chain[0]
    ahead = [stage.spec for stage in chain[1:used]]
    ordered = [not isinstance(spec, Enumerate) for spec in ahead]
    numbers = tuple(not any(ordered[:place]) for place, orders in enumerate(ordered) if not orders)
    items = GivenItems(head.name, source.items, order, numbers)
    return _with(head, Source(items)), *map(_passed_by, chain[used:])


def _passed_by(stage: Stage) -> Stage:
    """Let a cache neither keep nor give items: it holds those of the chain's own order."""
    return _with(stage, Skip(0)) if isinstance(stage.spec, Cache) else stage


def _with(stage: Stage, spec: Source | Skip) -> Stage:
    return Stage(
        spec, name=stage.name, named=stage.named, shared=stage.knobs, made_at=stage.made_at
    )


def check_head(chain: Chain) -> tuple[Source, int]:
    """Give the source of a chain that can be read in a given order, and the stages of its head.

    Raises:
        ArgumentTypeError: the chain does not begin with items that have a length and an index.
        ArgumentError: a `repeat` behind the head passes over the source again.
    """
    head = chain[0]
    source = head.spec
    if not isinstance(source, Source) or source.plan is None:
        raise ArgumentTypeError(
            "an order can be given to a pipeline that begins with one source with __len__ and "
            f"__getitem__, got {_what_is(head)}; {_way_out(head)}"
        )
    used = absorbed(chain)[1]
    again = next((stage for stage in chain[used:] if isinstance(stage.spec, Repeat)), None)
    if again is not None:
        raise ArgumentError(
            f"an order can be given to a pipeline that reads its source once, got {again.name!r} "
            "(repeat); give the indices as often as they are wanted, and leave repeat out"
        )
    return source, used


def _what_is(head: Stage) -> str:
    if not isinstance(head.spec, Source):
        return f"{head.name!r}, which joins {len(head.inputs)} pipelines ({head.op})"
    if head.inputs:
        return f"source {head.name!r}, which is another pipeline"
    return f"source {head.name!r} ({type(head.spec.items).__name__})"


def _way_out(head: Stage) -> str:
    if not isinstance(head.spec, Source):
        return "join the datasets before, as one source, or start a run for each pipeline"
    if head.inputs:
        return "add the stages to that pipeline itself"
    return "give a list or a dataset"
