"""shuffle: a permutation of an index order, or a buffer from which items are drawn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.random import Generator

from ..base.checks import integer
from ..base.seeding import Entry, Path, order_generator
from ..errors import ArgumentError
from .chain import append_plain, default_prefetch, index_plan, not_indexed
from .plan import IndexPlan
from .ranges import IndexRanges, NodeState, StatefulOp
from .stage import Chain, Operation, given

_AT_ONCE = 2**20  # draws


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shuffle(Operation):
    """A permutation of the index order, or a buffer from which items are drawn."""

    label: ClassVar[str] = "shuffle"
    seed: int = 0
    buffer_size: int | None = None

    def detail(self) -> str:
        """Return seed and buffer."""
        buffer = "" if self.buffer_size is None else f", buffer {self.buffer_size}"
        return f"seed {self.seed}{buffer}"

    @property
    def permutes(self) -> bool | None:
        """Whether it permutes indices; else items are drawn from a buffer."""
        return True if self.buffer_size is None else None

    @property
    def keeps_neighbours(self) -> bool:
        """They are parted, with a buffer, too."""
        return False

    @property
    def varies(self) -> bool:
        """The order is another one in each epoch."""
        return True

    def reorder(self, plan: IndexPlan) -> IndexPlan | None:
        """Permute the order, where there is no buffer."""
        return plan.shuffle(self.seed) if self.buffer_size is None else None

    def stateful(self, epoch: int, passes: tuple[int, ...], node_state: NodeState) -> StatefulOp:
        """Draw from a buffer."""
        return Shuffling(self, epoch, passes or 0, node_state)


def append_shuffle(chain: Chain, seed: int, buffer_size: int | None, prefetch: int | None) -> Chain:
    """Append a shuffle stage."""
    seed = integer("shuffle seed", seed, minimum=-(2**63), maximum=2**64)
    if buffer_size is not None:
        buffer_size = integer("shuffle buffer_size", buffer_size, minimum=1, unit="items")
        held = default_prefetch(chain) if prefetch is None else prefetch
        return append_plain(chain, Shuffle(seed, buffer_size), held, given(prefetch=prefetch))
    plan = index_plan(chain)
    if plan is None:
        raise ArgumentError(
            "shuffle needs buffer_size here, for example shuffle(buffer_size=1000): "
            f"{not_indexed(chain)}; or shuffle right after the source"
        )
    if prefetch is not None:
        raise ArgumentError(
            "shuffle prefetch needs buffer_size: a permutation of indices holds no items; set "
            "the source's prefetch"
        )
    plan.shuffle(seed)  # refuses what never ends
    return append_plain(chain, Shuffle(seed))


class Shuffling(StatefulOp):
    """A buffer from which each new item pushes out a random one.

    Where an epoch continues in the middle, the first items are those that the buffer held and,
    before them, those it had given that the loop had not got.

    Args:
        spec: size and seed.
        epoch: number of the epoch.
        passes: numbers of the passes of repeats around it.
        node_state: what `rest_of_input` noted.

    Source: the buffered shuffle that tf.data and WebDataset describe.
    """

    holds_items = True

    def __init__(self, spec: Shuffle, epoch: int, passes: Path, node_state: dict[str, Any]) -> None:
        size = spec.buffer_size
        assert size is not None
        self._node_state = node_state
        self._rng = order_generator(spec.seed, epoch, passes)
        self._drawn: int = node_state.get("drawn", 0)
        self._over: bool = node_state.get("over", False)
        _advance(self._rng, size, self._drawn)
        self._size = size
        again = node_state.get("again", [])
        self._fresh = "slots" not in node_state  # the first inputs fill it, however many there are
        self._slots: list[int] = list(node_state.get("slots", ()))  # numbers of the inputs
        self._known: deque[int] = deque(again)  # those of the results, from number `_first` on
        self._first = self._pushed = 0
        self._needed = size if self._fresh else len({*again, *self._slots})  # before the first draw
        self._counted = self._needed  # inputs that are in a slot, or were
        self._lock = threading.Lock()  # another thread may ask during a push
        self._early: list[Entry] = []
        self._entries: list[Entry] = []
        self._late = deque(again)  # numbers of those that are given before all others
        self._given: deque[Entry] = deque()  # that wait, since one push gives one item

    def process(self, entry: Entry) -> Entry | None:
        """Keep an item; give another one once the buffer is full."""
        self._pushed += 1
        if self._pushed <= self._needed:
            self._early.append(entry)
            if self._pushed == self._needed:
                self._fill()
            return self._next_late()
        if len(self._slots) < self._size:  # an error emptied the buffer before its time
            self._keep(entry)
            return self._next_late()
        place = int(self._rng.integers(len(self._slots)))
        with self._lock:
            self._known.append(self._slots[place])
            self._slots[place] = self._counted
            self._counted += 1
            self._drawn += 1
        out, self._entries[place] = self._entries[place], entry
        if not self._late and not self._given:
            return out
        self._given.append(out)
        return self._next_late()

    def _keep(self, entry: Entry) -> None:
        self._entries.append(entry)
        with self._lock:
            self._slots.append(self._counted)
            self._counted += 1
            self._over = False

    def _fill(self) -> None:
        early = self._early
        if self._fresh:
            with self._lock:
                self._slots, self._fresh = list(range(len(early))), False
        self._entries = [early[number] for number in self._slots if number < len(early)]

    def _next_late(self) -> Entry | None:
        """Return what comes before all that is drawn, once it is there."""
        late = self._late
        if late:
            return self._early[late.popleft()] if late[0] < len(self._early) else None
        if self._pushed >= self._needed:
            self._early = []
        return self._given.popleft() if self._given else None

    def finish(self) -> Iterator[Entry]:
        """Return the remaining items, in random order."""
        if self._pushed < self._needed:
            with self._lock:
                self._slots = [number for number in self._slots if number < self._pushed]
                self._counted = self._pushed
            self._fill()
            self._late = deque(number for number in self._late if number < self._pushed)
        order = [] if self._over else self._rng.permutation(len(self._entries)).tolist()
        with self._lock:
            self._known.extend(self._slots[place] for place in order)
            self._slots, self._over = [], True
        while (entry := self._next_late()) is not None:
            yield entry
        for place in order:
            yield self._entries[place]

    def rest_of_input(self, rest: IndexRanges, node_state: dict[str, Any]) -> IndexRanges:
        """Return which items are wanted: in the buffer, given again, and all to come."""
        if rest.is_all:
            node_state.update(self._node_state)
            return rest
        with self._lock:
            known, slots = list(self._known), list(self._slots)
            frontier = self._counted
            node_state["drawn"], node_state["over"] = self._drawn, self._over
        again = [known[number - self._first] for number in rest.numbers(self._first + len(known))]
        numbers = sorted({*again, *slots})
        rank = {number: place for place, number in enumerate(numbers)}
        node_state["again"] = [rank[number] for number in again]
        node_state["slots"] = [rank[number] for number in slots]
        return IndexRanges.only(numbers, frontier)

    def close(self) -> None:
        """Hold no items any more: the epoch is over."""
        self._entries, self._early = [], []
        self._given.clear()

    def forget(self, start: int) -> None:
        """Forget what was given before item `start`; under the scheduler's lock."""
        for _ in range(min(start - self._first, len(self._known))):
            self._known.popleft()
            self._first += 1


def _advance(rng: Generator, size: int, draws: int) -> None:
    """Draw as often as was drawn before; as many numbers at once are the same numbers."""
    while draws > 0:
        rng.integers(size, size=min(draws, _AT_ONCE))
        draws -= _AT_ONCE
