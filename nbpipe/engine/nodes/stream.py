"""StreamNode: hosts operations that see the items in order and remember something of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...base.seeding import Entry
from ...ops.ranges import StatefulOp
from ..measures.counters import CHUNK_MAX, StageRuntime
from .failures import Failed
from .node import Node, NodeEpoch, Runner, Task, cut_off, draw
from .provenance import DropLog, StreamLog
from .step import DROPPED, EpochContext, OpenIterator, Step, chunk_of_results


class StatefulStep(Step):
    """Pushes entries into a stateful operation."""

    __slots__ = ("operation",)

    def __init__(self, stage: str, operation: StatefulOp, context: EpochContext) -> None:
        super().__init__(stage, operation.process, context)
        self.operation = operation

    def produce(self, entry: Entry) -> Any:
        """Push one entry, while the operation wants any."""
        return None if self.operation.finished else self.fn(entry)


class StatefulRunner(Runner):
    """Processes items, or draws the remaining ones after the last.

    Args:
        step: pushes into the operation.

    Attributes:
        input_failed: the input ended with an error.
    """

    __slots__ = ("_step", "input_failed")

    def __init__(self, epoch: NodeEpoch, step: StatefulStep) -> None:
        super().__init__(epoch)
        self._step = step
        self.input_failed = False

    def run(self, task: Task) -> None:
        """Process the items, or draw from the remaining ones."""
        if task.iterator is None:
            self._push(task)
        else:
            self._draw(task, task.iterator)

    def _push(self, task: Task) -> None:
        for entry in task.chunk.entries():
            result: Any = self._step.apply(entry, task)
            if type(result) is not tuple:
                task.irregular = True
            task.results.append(result)
            if isinstance(result, Failed) and result.fatal:
                return

    def _draw(self, task: Task, left: OpenIterator) -> None:
        try:
            if left.entries is None:
                left.entries = self._left()
            left.over = draw(task, left.entries)
        except BaseException as error:
            task.irregular = left.over = True
            task.results.append(self._step.failure((-1, None), error, 1))

    def _left(self) -> Iterator[Entry]:
        operation = self._step.operation
        return iter(()) if self.input_failed and not operation.holds_items else operation.finish()


class StreamNode(Node):
    """One task at a time, in order; after the input, what the operation kept.

    Args:
        step: pushes into the operation.
        drops: in a branch of a route, records which items gave nothing.

    Attributes:
        operation: the operation.
        left: what the operation kept, once that is drawn; `flushed` after its last item.
    """

    __slots__ = ("drops", "flushed", "left", "operation", "stateful")

    def __init__(
        self,
        runtime: StageRuntime,
        epoch: NodeEpoch,
        step: StatefulStep,
        drops: DropLog | None = None,
    ) -> None:
        self.stateful = StatefulRunner(epoch, step)
        provenance = StreamLog(runtime.address, step.operation, drops)
        super().__init__(runtime, epoch, self.stateful, provenance=provenance)
        self.active_without_input = True
        self.operation = step.operation
        self.drops = drops
        self.left: OpenIterator | None = None
        self.flushed = False

    # -- choosing work ------------------------------------------------------------------
    def has_input(self) -> bool:
        """Return whether there is something to push or to flush."""
        over = self.input_over or self.operation.finished
        return bool(self.inbox.count) or (over and not self.flushed)

    def runnable(self) -> bool:
        """Return whether `take` would return a task."""
        runtime = self.runtime
        return (
            not (self.done or self.halted or self.running or runtime.active >= runtime.concurrency)
            and self.has_input()
            and self.room() > 0
            and self.epoch.admits(self)
        )

    def take(self, now_ns: int) -> Task | None:
        """Choose the next chunk of the queue, or of the remaining items at the end."""
        if not self.runnable():
            return None
        if self.operation.finished:
            self._close_input()
        available = self.inbox.count
        if available:
            task = Task(self, 0, now_ns, self.inbox.take(self.chunk(available)))
            self.freed(now_ns)
        else:
            self.counts_in = False  # the remaining items came in before
            if self.left is None:
                self.left = OpenIterator(0)
                self.stateful.input_failed = self.input_error is not None
            task = Task(self, 0, now_ns, quota=self.chunk(CHUNK_MAX))
            task.iterator = self.left
        self.reserved += task.count or task.quota
        return self.started(task, now_ns)

    # -- handing on results -------------------------------------------------------------
    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on results as they come: there is one task at a time."""
        if self.done:
            return
        if final:
            self.reserved = 0
        else:
            self.reserved -= len(results)
        if results:
            sized, irregular = self.epoch.memory is not None, task.irregular
            chunk = chunk_of_results(results, irregular=irregular, sized=sized)
            self.emit(chunk, now_ns, irregular=irregular)
            if self.drops is not None:
                self.drops.record(
                    self.seq_out, [DROPPED if one is None else one for one in results]
                )
                self.seq_out += len(results)
        if not final:
            return
        if task.iterator is not None:
            self.flushed = task.iterator.over
        elif self.operation.finished:
            self._close_input()
        self.note_state(now_ns)

    # -- the end ------------------------------------------------------------------------
    def end_of_input(self, error: BaseException | None) -> None:
        """Called when nothing more comes in; an error does not matter if nothing is wanted."""
        super().end_of_input(None if self.operation.finished else error)

    def _close_input(self) -> None:
        """Stop the stages above: the operation wants nothing more of them."""
        self.input_error = None
        for above in self.upstream:
            cut_off(above)
        if not self.input_over and not self.done:
            self.epoch.halt(self.upstream)
            self.epoch.drop(self.inbox)
            self.input_over = self.epoch.changed = True

    def exhausted(self) -> bool:
        """Return whether everything was pushed and flushed."""
        return not self.inbox.count and not self.running and self.flushed

    def halt(self) -> None:
        """Stop, and have the operation closed."""
        super().halt()
        self.epoch.pending_close.append(self)

    # -- what an operation keeps, as a cache does; called without the lock --------------
    @property
    def keeps(self) -> bool:
        """Whether the operation can keep what it made, and saw all of it."""
        return not self.cut and self.operation.commits

    def commit(self) -> None:
        """Let the operation keep what it made: all of it was consumed."""
        self.operation.commit()

    def undo_commit(self) -> None:
        """Let the operation undo that: the loop did not get all of it."""
        self.operation.undo_commit()

    def close(self) -> None:
        """Let the operation release what it holds outside this process."""
        self.operation.close()


def keeping(nodes: Iterable[Node]) -> list[StreamNode]:
    """Return those of these nodes that can keep what they made, as a cache does."""
    return [node for node in nodes if isinstance(node, StreamNode) and node.keeps]
