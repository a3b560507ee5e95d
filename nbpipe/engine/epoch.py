"""Epoch: the nodes of one pass over a pipeline, and how it ends.

Methods are called under the scheduler's lock unless said otherwise.
"""

from __future__ import annotations

import itertools
import logging
from _thread import RLock
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from ..base.threads import ThreadSettings
from ..ops.ranges import IndexRanges
from .measures.counters import ItemCounts, StageRuntime
from .nodes.expand import ExpandNode
from .nodes.failures import Failure
from .nodes.node import Closable, Node, Task
from .nodes.provenance import StageStates
from .nodes.pumps import PumpNode
from .nodes.repeat import RepeatNode
from .nodes.step import EpochContext, OpenIterator, Queue
from .nodes.stream import keeping
from .nodes.walk import forget, leave, nodes_above, stages_of
from .output import OutputBuffer

LOG = logging.getLogger("nbpipe")
KEPT = 256  # items that the loop has had whose origin is still known


# -- Memory: a budget for the bytes held in all buffers of a run -----------------------------------
# Items that wait carry their sizes, measured by the thread that made them; the queues count them.
_SHRINKS = 1.1  # results at most this much larger than the input free memory, or keep it as it is


class Memory:
    """Bytes held in buffers, and the rule for what may still start.

    Args:
        limit_bytes: the budget [bytes].

    Attributes:
        held_bytes: bytes of everything that waits in a queue [bytes].
    """

    __slots__ = ("_making_bytes", "_running", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._making_bytes = 0.0  # estimate for the results that have a reserved place
        self._running = 0  # tasks

    def began(self, node: Node) -> None:
        """Count a task of `node` that was taken."""
        self._running += 1
        self.reestimate(node)

    def ended(self, node: Node) -> None:
        """Count a task of `node` that has ended."""
        self._running -= 1
        self.reestimate(node)

    def reestimate(self, node: Node) -> None:
        """Estimate again the results of `node` that have a reserved place."""
        promised_bytes = 0.0 if node.done else node.reserved * node.runtime.item_bytes
        self._making_bytes += promised_bytes - node.promised_bytes
        node.promised_bytes = promised_bytes

    def affordable(self, node: Node) -> int:
        """Return how many results of `node` fit in the budget, at least 1."""
        if not node.runtime.item_bytes:
            return 1
        left = self.limit_bytes - self.held_bytes - self._making_bytes
        return max(1, int(left / node.runtime.item_bytes))

    def admits(self, node: Node, *, waits: bool) -> bool:
        """Return whether a call of `node` may start.

        A stage that does not make items larger may always start: it empties a buffer. Others
        start only if their results fit beside those that are held or being made. If nothing is
        running and the loop waits for an item (`waits`), one call may start in any case: so a batch
        larger than the budget is still made, item by item.
        """
        runtime = node.runtime
        grows = not node.upstream or runtime.item_bytes > _SHRINKS * input_bytes(node)
        if not grows:
            return True
        if not runtime.item_bytes and runtime.active:
            return False  # measure one item first
        wanted_bytes = self.held_bytes + self._making_bytes + runtime.item_bytes
        return wanted_bytes <= self.limit_bytes or (waits and not self._running)


def input_bytes(node: Node) -> float:
    """Estimate the bytes that one call of `node` takes from its queues."""
    return (getattr(node, "gather", 0) or 1) * sum(
        above.runtime.item_bytes for above in node.upstream
    )


@dataclass(eq=False, repr=False, slots=True)
class Epoch:
    """State of one epoch.

    Attributes:
        context: seed, number and end, for the steps.
        memory: the byte budget; None without one.
        remember: called with each failed item.
        lock: the scheduler's.
        settings: what holds in the thread that builds the epoch, and so in the threads that work.
        order: nodes in the order in which they are asked for work, most downstream first.
        offered: the nodes that may start tasks: while workers rest, only copies to a device.
        remote: the nodes whose tasks run on the event loop.
        pumps: the nodes that move items without tasks.
        sources: the nodes that end only when nothing more comes into the epoch.
        tended: the scheduler has something to do each time a task ends.
        closed_inputs: nodes of inputs that a join has yet to open, by the id of the last one.
        output: hands the results to the training loop.
        over: nothing may start any more: it is exhausted, failed, stopped or abandoned.
        ended_by: file and line of a second loop over the run, which ended this one; or None.
        skipped: items that failed and were left out [items].
        changed: a node was opened, fed or ended, so `take` has to look again.
        pending_close: iterators and files left open, to be closed without the lock.
        deferred_release: the user's objects that nothing needs any more. Dropping the last
            reference may run the user's code, so that happens without the lock.
        now_ns: time of the last pumping.
        held: workers rest: no call of a function may start.
        at_work: returns the tasks in progress.
    """

    context: EpochContext
    _: KW_ONLY
    memory: Memory | None
    remember: Callable[[Failure], None]
    lock: AbstractContextManager[Any] = field(default_factory=RLock)
    settings: ThreadSettings = field(default_factory=ThreadSettings)
    order: list[Node] = field(default_factory=list)
    offered: list[Node] = field(default_factory=list)
    remote: list[Node] = field(default_factory=list)
    pumps: list[PumpNode] = field(default_factory=list)
    sources: list[Node] = field(default_factory=list)
    tended: bool = False
    closed_inputs: dict[int, list[Node]] = field(default_factory=dict)
    output: OutputBuffer = field(init=False)
    over: bool = False
    ended_by: tuple[str, int] | None = None
    skipped: int = 0
    changed: bool = False
    pending_close: list[Closable] = field(default_factory=list)
    deferred_release: list[object] = field(default_factory=list)
    now_ns: int = 0
    held: bool = False
    at_work: Callable[[], list[Task]] = list

    def limit_memory(self, limit_bytes: int) -> None:
        """Set the budget, where there is one."""
        if self.memory is not None:
            self.memory.limit_bytes = limit_bytes

    def __post_init__(self) -> None:
        self.output = OutputBuffer(self.memory)

    # -- structure ------------------------------------------------------------------------
    def begin(self, last: Node, order: Sequence[Node]) -> None:
        """Install the nodes, given most downstream first."""
        self.output.attach(last)
        self._install(order)

    def _install(self, order: Sequence[Node]) -> None:
        self.order = list(order)
        self.offered = self._copying() if self.held else self.order
        self.remote = [node for node in order if node.remote]
        self.pumps = [node for node in order if isinstance(node, PumpNode)]
        self.sources = [n for n in order if not n.upstream or isinstance(n, RepeatNode)]
        self.tended = bool(self.pumps) or self.memory is not None

    def hold(self, *, held: bool) -> None:
        """Let no call of a function begin, or let them begin; copies to a device continue."""
        self.held = held
        self.offered = self._copying() if held else self.order

    def _copying(self) -> list[Node]:
        return [node for node in self.order if node.runtime.stage.executor == "device"]

    def keep_closed(self, last: Node, nodes: Sequence[Node]) -> None:
        """Leave the input that ends with `last` unopened until a join asks for it."""
        self.closed_inputs[id(last)] = list(nodes)

    def open(self, inputs: Iterable[Node]) -> None:
        """Let the inputs that end with these nodes begin."""
        for last in inputs:
            nodes = self.closed_inputs.pop(id(last), None)
            if nodes is not None:
                self._install([*self.order, *nodes])
                self.changed = True

    def replace(self, node: Node, part: Sequence[Node]) -> None:
        """Put a new part above `node`, for its next pass; `part` is most downstream first."""
        old = set(map(id, nodes_above(node)))
        place = self.order.index(node) + 1
        kept = [n for n in self.order if id(n) not in old]
        self._install([*kept[:place], *part, *kept[place:]])
        node.upstream = (part[0],)
        part[0].downstream = node
        node.inbox = part[0].out
        self.changed = True

    def commit(self) -> None:
        """Let caches keep what they made, as the loop had all items; slow, so without the lock."""
        closed = itertools.chain.from_iterable(self.closed_inputs.values())
        for node in keeping([*self.order, *closed]):
            node.commit()

    @property
    def delivered(self) -> int:
        """How many items the loop has had."""
        return self.output.at

    @property
    def may_start(self) -> bool:
        """Whether tasks may start."""
        return not (self.over or self.output.paused)

    def counts(self, runtime: StageRuntime) -> ItemCounts:
        """Return what counts the items of a stage."""
        return runtime.counters

    # -- work -----------------------------------------------------------------------------
    def pump(self, now_ns: int) -> None:
        """Let the pumps move all items they can."""
        self.now_ns = now_ns
        moved = True
        while moved and not self.over:
            moved = False
            for pump in self.pumps:
                moved = pump.pump(now_ns) or moved

    def take(self, now_ns: int, *, remote: bool = False) -> Task | None:
        """Choose the next task: that of the most downstream node that can start one."""
        if self.over:
            return None
        while True:
            self.changed = False
            if self.pumps:
                self.pump(now_ns)
            for node in self.remote if remote else self.offered:
                if node.inbox.count < node.needs and not node.active_without_input:
                    continue
                runtime = node.runtime
                if runtime.active < runtime.concurrency:
                    task = node.take(now_ns)
                    if task is not None:
                        if self.memory is not None:
                            self.memory.began(node)
                        return task
            if not self.changed and not self.output.recount():
                return None

    def read_on(self, node: ExpandNode, iterator: OpenIterator, now_ns: int) -> Task | None:
        """Choose the next task of an open iterator, for the thread that has it open."""
        if self.over:
            return None
        if self.pumps:
            self.pump(now_ns)
        self.output.recount()
        task = node.read_on(iterator, now_ns)
        if task is not None and self.memory is not None:
            self.memory.began(node)
        return task

    def admits(self, node: Node) -> bool:
        """Return whether the byte budget lets `node` start."""
        memory = self.memory
        if memory is None:
            return True
        return memory.admits(node, waits=self.output.waiting and not self.output.queue.count)

    def drop(self, queue: Queue) -> None:
        """Drop all items of a queue, once the lock is free."""
        if queue.count:
            self.deferred_release.append(queue.clear())

    def take_deferred(self) -> list[object]:
        """Return what was dropped; the caller releases it without the lock."""
        dropped, self.deferred_release = self.deferred_release, []
        return dropped

    # -- where it stands ------------------------------------------------------------------
    def node_state(self, rest: IndexRanges) -> StageStates:
        """Return where all stages stand, given which items the loop still wants."""
        assert self.output.last is not None
        return stages_of(self.output.last, rest)

    def forget(self) -> None:
        """Forget where the items came from that the loop has had, except for the last few.

        A loop in another process may be a few items late.
        """
        assert self.output.last is not None
        forget(self.output.last, IndexRanges(max(0, self.output.at - KEPT)))

    # -- the end --------------------------------------------------------------------------
    def halt(self, nodes: Iterable[Node]) -> None:
        """Stop these nodes and all above them: nothing below needs their items."""
        for node in nodes:
            if not node.halted:
                node.halt()
                self.halt(node.upstream)

    def drained(self, error: BaseException | None) -> None:
        """Note that the last node is done."""
        self.output.close(error)

    def fail_at_once(self, error: BaseException) -> None:
        """End the epoch with an error that does not wait for earlier items."""
        self.output.fail(error)
        self.changed = True

    def end(self) -> None:
        """Let nothing start any more; the caller then calls `clear_up` without the lock."""
        if not self.over:
            if any(isinstance(node, RepeatNode) and node.log.has_committed for node in self.pumps):
                assert self.output.last is not None
                leave(self.output.last, IndexRanges(self.output.at))
            self.deferred_release.append(self.output.clear())
            for node in self.order:
                node.halt()
                node.let_go()
            self.over = True
        self.context.ended.open()

    def clear_up(self, what: str = "an abandoned epoch") -> None:
        """Close what was left open, without the lock; errors are logged."""
        while self.pending_close:
            discard(self.pending_close.pop(0).close, what)

    @property
    def drains(self) -> bool:
        """Whether no more items come in: the sources are through, and nothing has failed."""
        through = all(node.done or node.halted for node in self.sources)
        return through and not (self.closed_inputs or any(node.error for node in self.order))


def discard(close: Callable[[], None], what: str = "an abandoned epoch") -> None:
    """Close a user's iterator of `what`; log an error."""
    try:
        close()
    except Exception:
        LOG.warning("closing an iterator of %s failed", what, exc_info=True)
