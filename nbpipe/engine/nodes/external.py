"""Indices that come from outside the pipeline, at once or pushed load by load."""

from __future__ import annotations

import inspect
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from time import monotonic
from typing import Any, final

import numpy as np

from ...base.checks import as_int, refuse_table
from ...base.format import shortened
from ...base.seeding import Entry, Path
from ...errors import ArgumentError, ArgumentTypeError, EpochClosedError
from ...ops.chain import absorbed, index_plan
from ...ops.cut import Skip
from ...ops.ranges import IndexRanges
from ...ops.source import Source
from ...ops.stage import Chain, Stage, changed

# -- Indices that come from outside the pipeline, for one epoch ------------------------------------
_BLOCK = 4096  # numbers of an array that are taken out at once


@final
class Listed:
    """The indices of an iterable, drawn as the source comes to them.

    Args:
        indices: an iterable of ints.

    Attributes:
        inner: what is to be closed when the epoch is over and nothing draws any more: the
            iterator, where it was made here.

    Raises:
        ArgumentTypeError: it cannot be iterated, has no order, or is a generator that was read.
    """

    def __init__(self, indices: Iterable[Any]) -> None:
        self.indices = checked("iterate indices", indices)
        self.inner: object = None

    @property
    def own(self) -> bool:
        """Whether code of the user's may run while they are read."""
        return not (is_plain(self.indices) or is_array(self.indices))

    @property
    def count(self) -> int | None:
        """The length of the iterable; None where it has none."""
        try:
            return len(self.indices)
        except Exception:
            return None

    def draw(self) -> Iterator[Any]:
        """Return the indices one by one; called once, in the thread that reads the source."""
        indices = self.indices
        if is_array(indices):
            return _of_array(indices)
        numbers: Iterator[Any] = iter(indices)
        if numbers is not indices:  # else the user owns it, and may change it
            self.inner = numbers
        return numbers

    def close(self, error: BaseException | None) -> None:
        """Called when the epoch is over: the iterator is left to the thread that draws from it."""


def checked(what: str, indices: Any) -> Any:
    """Check that `indices` can be iterated, and in an order.

    Raises:
        ArgumentTypeError: it cannot; the message starts with `what`.
    """
    refuse_table(f"{what} must be", indices)
    orderly = hasattr(indices, "__iter__") or hasattr(indices, "__getitem__")
    if isinstance(indices, str | bytes | Mapping | AbstractSet) or not orderly:
        raise ArgumentTypeError(
            f"{what} must be an iterable of ints in an order, got {shortened(repr(indices))}; "
            "give a list, an array, or anything that yields ints"
        )
    if getattr(indices, "shape", None) == ():
        raise ArgumentTypeError(
            f"{what} must be an iterable of ints in an order, got the number {indices!r}; give "
            "a list of it"
        )
    if inspect.isgenerator(indices) and inspect.getgeneratorstate(indices) == inspect.GEN_CLOSED:
        raise ArgumentTypeError(
            f"{what} must be something that was not read yet, got a generator that was read to "
            "its end before; make a new one for each epoch"
        )
    return indices


_PLAIN = (list, tuple, range, dict, set, frozenset, deque, np.ndarray)


def is_plain(values: object) -> bool:
    """Return whether values can be iterated without any code of the user's."""
    return type(values) in _PLAIN


def is_array(indices: object) -> bool:
    """Return whether the numbers lie in an array or a tensor."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return isinstance(indices, np.ndarray) or (tensor is not None and isinstance(indices, tensor))


def lot_of(indices: Any) -> list[Any]:
    """Return all of some indices.

    Raises:
        ArgumentTypeError: they cannot be iterated, or have no order.
    """
    found = checked("load indices", indices)
    return list(_of_array(found) if is_array(found) else iter(found))  # its len() may fail


def _of_array(numbers: Any) -> Iterator[Any]:
    """Take the numbers out block by block: one by one costs ten times as much."""
    for start in range(0, len(numbers), _BLOCK):
        yield from numbers[start : start + _BLOCK].tolist()


# -- Feed: indices that are pushed to an epoch while it runs, load by load -------------------------
MAX_DEPTH = 65_536  # loads
_END = object()
_ATTEND_S = 0.05  # a kernel that waits answers its front end at least this often [s]


@final
class Feed:
    """Loads of indices on their way to the source of one epoch; any thread may push.

    Its lock is taken under the scheduler's, so nothing of the scheduler is called under it.

    Args:
        depth: loads that may wait for the source to begin them [loads].

    Attributes:
        wake: called after there is more to draw, or nothing more comes.
    """

    count = None
    inner = None
    own = False

    def __init__(self, depth: int) -> None:
        self.wake: Callable[[], object] = _nothing
        self._depth = depth
        self._lock = threading.RLock()  # garbage may close it below us: reentrant
        self._changed = threading.Condition(self._lock)
        self._indices: deque[tuple[Any, bool]] = deque()  # and whether a load begins with it
        self._waiting = 0
        self._wanted = True
        self._ended = self._closed = False
        self._error: BaseException | None = None

    # -- pushing --------------------------------------------------------------------------
    def load(
        self,
        indices: Sequence[Any],
        timeout_s: float | None = None,
        between: Callable[[], object] | None = None,
    ) -> bool:
        """Push a load; wait until fewer than `depth` others wait.

        Args:
            indices: all of the load.
            timeout_s: how long to wait at most [s], or None.
            between: called again and again meanwhile, or None.

        Returns:
            Whether it was taken: False where the time was over.

        Raises:
            EpochClosedError: the epoch is over, or its end was announced.
        """
        until_s = None if timeout_s is None else monotonic() + timeout_s
        while not self._taken(indices, _round_s(until_s, attends=between is not None)):
            if until_s is not None and monotonic() >= until_s:
                return False
            if between is not None:
                between()  # without the lock: it may do anything
        self.wake()
        return True

    def _taken(self, indices: Sequence[Any], wait_s: float | None) -> bool:
        """Take a load, once there is room; return whether there was in time."""
        with self._lock:
            if indices and not self._changed.wait_for(self._admits, wait_s):
                return False
            self._check_open()
            if self._wanted and indices:
                first, *others = indices
                self._indices.extend([(first, True), *((index, False) for index in others)])
                self._waiting += 1
                self._changed.notify_all()
            return True

    def _admits(self) -> bool:
        """Return whether there is nothing to wait for."""
        return self._waiting < self._depth or not self._wanted or self.ended

    def _check_open(self) -> None:
        if self._closed:
            raise EpochClosedError(
                "this epoch is over, so nothing can be loaded into it; begin another one with "
                "run.open_epoch()"
            ) from self._error
        if self._ended:
            raise EpochClosedError(
                "end() was called for this epoch, so nothing can be loaded into it; begin "
                "another one with run.open_epoch()"
            )

    def end(self) -> None:
        """Tell that no more loads come; again does nothing."""
        with self._lock:
            if self.ended:
                return
            self._ended = True
            self._changed.notify_all()
        self.wake()

    def close(self, error: BaseException | None) -> None:
        """Refuse whatever else is pushed: the epoch is over."""
        with self._lock:
            if not self._closed:
                self._closed, self._error = True, error
            self._indices.clear()
            self._changed.notify_all()

    # -- drawing --------------------------------------------------------------------------
    @property
    def ready(self) -> int:
        """Number of indices that can be drawn now."""
        return len(self._indices)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes than what is ready."""
        return self._ended or self._closed

    def draw(self) -> Iterator[Any]:
        """Return what was pushed; wait where there is nothing yet, until the end."""
        return iter(self._draw, _END)

    def _draw(self) -> Any:
        with self._lock:
            self._changed.wait_for(lambda: self._indices or self.ended or not self._wanted)
            if not self._indices:
                return _END
            index, begins = self._indices.popleft()
            if begins:
                self._waiting -= 1
                self._changed.notify_all()
        return index

    def cut(self) -> None:
        """Called when the source wants no more: what is pushed from now on is dropped."""
        with self._lock:
            self._wanted = False
            self._indices.clear()
            self._changed.notify_all()


def _round_s(until_s: float | None, *, attends: bool) -> float | None:
    """Return how long to wait before one looks after other things [s]."""
    most_s = _ATTEND_S if attends else None
    if until_s is None:
        return most_s
    left_s = max(0.0, until_s - monotonic())
    return left_s if most_s is None else min(left_s, most_s)


def _nothing(*_: object) -> None:
    """Do nothing."""


ExternalOrder = Listed | Feed  # the order of one epoch: the indices that the source is to read


def whole_order(order: ExternalOrder) -> Listed:
    """Return an order with all its indices at hand, to be sent to another process.

    Raises:
        ArgumentError: their number is unknown.
    """
    if order.count is None:
        raise ArgumentError(
            "with isolate=True the order of an epoch must have a length, as a list of indices has, "
            "got one that is only known while it is read; give a list, or start the run without "
            "isolate"
        )
    return Listed(list(order.draw()))


# -- A chain whose source reads the indices it is given, in the place of its own order -------------
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
        drawn: indices that were read, or passed over.
    """

    def __init__(
        self, source: str, items: Any, order: ExternalOrder, numbers: tuple[bool, ...]
    ) -> None:
        self.order = order
        self.path: Path = 0
        self.drawn = 0
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

    def entries(self, rest: IndexRanges) -> Iterator[Entry]:
        """Read the items one by one, those at the places in the order that are wanted.

        Raises:
            ArgumentError: an index is no int, or out of range.
            BaseException: what gave the indices, or the source, raised.
        """
        length, whole = len(self._items), rest.is_all
        self.path = self.drawn = 0
        for ordinal, index in enumerate(self.order.draw()):
            if whole or ordinal in rest:
                yield self.read(ordinal, index, length)
            self.path = self.drawn = ordinal + 1

    def read(self, ordinal: int, index: Any, length: int) -> Entry:
        """Read one item of a source with `length` items; raises as `entries` does."""
        found = as_int(index)
        number = -1 if found is None else found
        self.path = path = (ordinal, number)
        if not 0 <= number < length:
            rule = f"an int in [0, {length - 1}]" if length else "absent"
            raise ArgumentError(
                f"index number {ordinal} of the epoch must be {rule}, got "
                f"{shortened(repr(index))}: source {self._source!r} has {length} items, counted "
                "from 0"
            )
        try:
            return path, self._numbered(ordinal, number, self._items[number])
        except StopIteration as error:  # it would look like the end of the order
            raise RuntimeError(f"source {self._source!r} raised StopIteration") from error

    def _numbered(self, ordinal: int, index: int, value: Any) -> Any:
        for of_source in self._numbers:
            value = (index if of_source else ordinal, value)
        return value


def external_chain(chain: Chain, order: ExternalOrder) -> Chain:
    """Return the chain for an epoch in a given order; its stages share the knobs of `chain`.

    Raises:
        ArgumentError, ArgumentTypeError: as `check_head` does.
    """
    source, used = check_head(chain)
    head = chain[0]
    ahead = [stage.spec for stage in chain[1:used]]
    ordered = [not spec.numbers for spec in ahead]
    numbers = tuple(not any(ordered[:place]) for place, orders in enumerate(ordered) if not orders)
    items = GivenItems(head.name, source.items, order, numbers)
    return changed(head, spec=Source(items)), *map(_passed_by, chain[used:])


def _passed_by(stage: Stage) -> Stage:
    """Let a cache neither keep nor give items: it holds those of the chain's own order."""
    return changed(stage, spec=Skip(0)) if stage.spec.kept_in is not None else stage


def check_head(chain: Chain) -> tuple[Source, int]:
    """Return the source of a chain that can be read in a given order, and the stages of its head.

    Raises:
        ArgumentTypeError: the chain does not begin with items that have a length and an index.
        ArgumentError: a `repeat` after the head passes over the source again.
    """
    head = chain[0]
    source = head.spec.indexed(head, index_plan)
    if source is None or head.inputs:
        raise ArgumentTypeError(
            "an order can be given to a pipeline that begins with one source with __len__ and "
            f"__getitem__, got {_what_is(head)}; {_way_out(head)}"
        )
    used = absorbed(chain)[1]
    again = next((stage for stage in chain[used:] if stage.spec.runs == "repeat"), None)
    if again is not None:
        raise ArgumentError(
            f"an order can be given to a pipeline that reads its source once, got {again.name!r} "
            "(repeat); give the indices as often as they are wanted, and leave repeat out"
        )
    return source, used


def _what_is(head: Stage) -> str:
    if head.spec.runs != "source":
        return f"{head.name!r}, which joins {len(head.inputs)} pipelines ({head.op})"
    if head.inputs:
        return f"source {head.name!r}, which is another pipeline"
    return f"source {head.name!r} ({type(getattr(head.spec, 'items', None)).__name__})"


def _way_out(head: Stage) -> str:
    if head.spec.runs != "source":
        return "join the datasets before, as one source, or start a run for each pipeline"
    if head.inputs:
        return "add the stages to that pipeline itself"
    return "give a list or a dataset"
