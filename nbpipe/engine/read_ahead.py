"""NextEpoch: the epoch after the one in progress, which begins to fill while that one drains.

Methods are called under the scheduler's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, final

from .epoch import Epoch, Memory
from .measures.counters import Booked, ItemCounts, StageRuntime
from .nodes.expand import ExpandNode
from .nodes.failures import KEPT, Failure
from .nodes.map import MapNode
from .nodes.node import Task
from .nodes.step import EpochContext, OpenIterator

_ALL = 1 << 40  # more places than any stage has


@final
class NextEpoch(Epoch):
    """An epoch that the loop has yet to begin; it uses what the one in progress leaves free.

    Both share the limits of a stage and the count of its calls in progress. Before a task of this
    epoch is chosen, the places that the other one uses count as taken here as well: all of them
    while the other one may still begin something in that stage. The items and failures of this
    epoch are counted once the loop begins it.

    Args:
        before: the epoch in progress.
        context: seed and number of this one.
        limit_bytes: budget for what all buffers of both hold [bytes], or None.
        lock: the scheduler's.

    Attributes:
        before: the epoch in progress; None once it is over and all its iterators are closed.
        has_begun: a call of this epoch was started.
    """

    __slots__ = ("_booked", "_counts", "_failures", "_limit_bytes", "before", "has_begun")

    def __init__(
        self,
        before: Epoch,
        context: EpochContext,
        limit_bytes: int | None,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._failures: deque[Failure] = deque(maxlen=KEPT)
        self._counts: dict[StageRuntime, ItemCounts] | None = {}  # None once they are the run's
        self._booked: dict[StageRuntime, Booked] = {}
        self._limit_bytes = limit_bytes
        self.before: Epoch | None = before
        self.has_begun = False
        memory = None if limit_bytes is None else Memory(limit_bytes)
        super().__init__(context, memory=memory, remember=self._failures.append, lock=lock)

    def counts(self, runtime: StageRuntime) -> ItemCounts:
        """Return the counts of a stage: counts of its own until the loop begins this epoch."""
        if self._counts is None:
            return super().counts(runtime)
        return self._counts.setdefault(runtime, ItemCounts())

    def limit_memory(self, limit_bytes: int) -> None:
        """Set the budget for what all buffers of both epochs hold."""
        self._limit_bytes = limit_bytes
        super().limit_memory(limit_bytes)  # less what the other one holds, when it is needed

    @property
    def may_start(self) -> bool:
        """Whether tasks may start; if so, the places that the other epoch uses are taken."""
        before = self.before
        if self._counts is None or self.over or self.output.paused:
            return super().may_start
        if before is not None and not before.drains:
            return False
        if self.memory is not None and self._limit_bytes is not None:
            if before is not None and not before.output.exhausted:
                return False
            others = None if before is None else before.memory
            self.memory.limit_bytes = self._limit_bytes - (others.held_bytes if others else 0)
        used = {} if before is None else _places_used(before)
        for node in self.order:
            node.out.lent = used.get(node.runtime, 0)
        return True

    def take(self, now_ns: int, *, remote: bool = False) -> Task | None:
        """Choose the next task, if any may start."""
        return self._begun(super().take(now_ns, remote=remote)) if self.may_start else None

    def read_on(self, node: ExpandNode, iterator: OpenIterator, now_ns: int) -> Task | None:
        """Choose the next task of an open iterator, if any may start."""
        return self._begun(super().read_on(node, iterator, now_ns)) if self.may_start else None

    def _begun(self, task: Task | None) -> Task | None:
        self.has_begun = self.has_begun or task is not None
        return task

    def rest(self, runtimes: Iterable[StageRuntime]) -> None:
        """Note the booked time when the epoch in progress ends: no more counts until `promote`."""
        self._booked = {runtime: runtime.booked() for runtime in runtimes}

    def promote(self, remember: Callable[[Failure], None]) -> None:
        """Become the epoch in progress: use all places, and count what was made so far.

        Args:
            remember: called with its failed items.
        """
        for runtime, booked in self._booked.items():
            runtime.restore(booked)
        counts, self._counts = self._counts or {}, None
        for runtime, made in counts.items():
            runtime.counters.add(made)
        for node in self.order + [n for nodes in self.closed_inputs.values() for n in nodes]:
            node.counts = node.runtime.counters
            node.out.lent = 0
        if self.memory is not None and self._limit_bytes is not None:
            self.memory.limit_bytes = self._limit_bytes
        self.remember = remember
        while self._failures:
            remember(self._failures.popleft())


def _places_used(before: Epoch) -> dict[StageRuntime, int]:
    """Return how many places of each stage an epoch that drains uses.

    It uses all places of a stage in which it may still begin something, and of a source that was
    not read to its end.
    """
    used: dict[StageRuntime, int] = {}
    for node in before.order:
        through = node.done or bool(node.halted and node.upstream)
        if not through and isinstance(node, MapNode):
            through = node.input_over and not node.has_input()
        chunks = node.chunked and node.runtime.chunk_size > 1
        under_way = node.reserved if chunks else node.waiting + node.running
        used[node.runtime] = under_way + node.held() if through else _ALL
    return used
