"""dedupe: items whose key was among the last ones are left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ..base.checks import Function, integer, plain_function, refuse_coroutine
from ..base.seeding import Entry
from ..base.tree import as_key
from ..errors import ArgumentTypeError
from .chain import append_plain
from .ranges import IndexRanges, NodeState, StatefulOp
from .stage import Chain, Operation

_MOST = 2**31


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dedupe(Operation):
    """Leave out an item whose key one of the `last` items before it had."""

    label: ClassVar[str] = "dedupe"
    uncounted: ClassVar[bool] = True
    chooses: ClassVar[bool] = True
    may_branch: ClassVar[bool] = True
    key: Function | None = None
    last: int = 10_000

    @property
    def remembers(self) -> bool:
        """It does: their keys."""
        return True

    def detail(self) -> str:
        """Return how far it looks back."""
        return f"last {self.last:,}"

    def stateful(self, epoch: int, passes: tuple[int, ...], node_state: NodeState) -> StatefulOp:
        """Remember keys."""
        return Deduping(self, node_state)


def append_dedupe(chain: Chain, key: Callable[..., Any] | None, last: int) -> Chain:
    """Append a dedupe stage."""
    checked = None if key is None else plain_function("dedupe key", key)
    last = integer("dedupe last", last, minimum=1, maximum=_MOST, unit="items")
    return append_plain(chain, Dedupe(checked, last))


class Deduping(StatefulOp):
    """The keys of the last items, dropped ones among them.

    Where an epoch continues in the middle, the first items are those of which only the keys count.
    """

    def __init__(self, spec: Dedupe, node_state: NodeState) -> None:
        self._key = spec.key
        self._last = spec.last
        self._skipped: int = node_state.get("skip", 0)  # items whose keys alone count
        self._pushed = 0
        self._numbers: dict[Any, int] = {}  # of the last item with each key
        self._keys: deque[Any] = deque()  # of the last items
        self._passed: list[int] = []  # inputs that were handed on, from result `_first` on
        self._first = 0

    def rest_of_input(self, rest: IndexRanges, node_state: NodeState) -> IndexRanges:
        """Begin with the items whose keys count for the first one that is wanted."""
        passed, pushed = self._passed[:], self._pushed  # at once: an item may be under way
        if not rest.start:
            wanted = start = 0
            node_state["skip"] = self._skipped
        else:
            place = rest.start - self._first
            wanted = passed[place] if place < len(passed) else max(pushed, self._skipped)
            start = max(0, min(wanted, pushed) - self._last)
            node_state["skip"] = wanted - start
        if rest.gaps:
            node_state["drop"] = rest.behind_start().data
        return IndexRanges(start)

    def process(self, entry: Entry) -> Entry | None:
        """Hand an item on, unless its key is known."""
        key = entry[1] if self._key is None else self._key(entry[1])
        refuse_coroutine("dedupe key", key)
        number = self._pushed
        try:
            known = (found := as_key(key)) in self._numbers
        except TypeError:
            raise ArgumentTypeError(
                f"dedupe key of an item must be hashable, got {type(key).__name__}; give a "
                "function that returns a text, a number or a tuple of them, for example "
                'dedupe(key=lambda item: item["id"])'
            ) from None
        self._remember(found, number)
        given = not known and number >= self._skipped
        if given:
            self._passed.append(number)
        self._pushed = number + 1
        return entry if given else None

    def _remember(self, key: Any, number: int) -> None:
        self._numbers[key] = number
        self._keys.append(key)
        if len(self._keys) > self._last:
            oldest = self._keys.popleft()
            if self._numbers[oldest] == number - self._last:
                del self._numbers[oldest]

    def forget(self, start: int) -> None:
        """Forget which inputs the results before number `start` were."""
        past = max(0, min(start - self._first, len(self._passed)))
        del self._passed[:past]
        self._first += past

    def close(self) -> None:
        """Hold no keys any more: the epoch is over."""
        self._numbers, self._keys = {}, deque()
