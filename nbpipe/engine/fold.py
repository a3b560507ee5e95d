"""StreamNode: hosts operations that see the items in order and remember something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..base.seeding import Entry
from ..ops.remaining import Fold, Remaining
from .failures import Failed
from .node import Drops, Node, NodeEpoch, Stages, Task, draw, note
from .stats import CHUNK_MAX, StageRuntime
from .step import DROPPED, EpochContext, Expansion, Step


class FoldStep(Step):
    """Pushes entries into a stream operation."""

    __slots__ = ("operation",)

    def __init__(self, stage: str, operation: Fold, context: EpochContext) -> None:
        super().__init__(stage, operation.push, context)
        self.operation = operation

    def produce(self, entry: Entry) -> Any:
        """Push one entry, while the operation wants any."""
        return None if self.operation.finished else self.fn(entry)


class StreamNode(Node):
    """One task at a time, in order; at the end of the input, what the operation kept back.

    Args:
        step: pushes into the operation.
        drops: in a branch of a route, notes which items gave nothing.
    """

    __slots__ = ("drops", "flushed", "rest_of_stream", "step")

    def __init__(
        self, runtime: StageRuntime, epoch: NodeEpoch, step: FoldStep, drops: Drops | None = None
    ) -> None:
        super().__init__(runtime, epoch)
        self.active_without_input = True
        self.drops = drops
        self.step = step
        self.rest_of_stream: Expansion | None = None
        self.flushed = False

    def has_input(self) -> bool:
        """Tell whether there is something to push or to flush."""
        over = self.input_over or self.step.operation.finished
        return bool(self.inbox.count) or (over and not self.flushed)

    def runnable(self) -> bool:
        """Tell whether `take` would give a task."""
        runtime = self.runtime
        return (
            not (self.done or self.halted or self.running or runtime.active >= runtime.concurrency)
            and self.has_input()
            and self.room() > 0
            and self.epoch.admits(self)
        )

    def take(self, now_ns: int) -> Task | None:
        """Choose the next chunk of the queue, or of what is left at the end."""
        if not self.runnable():
            return None
        if self.step.operation.finished:
            self._close_input()
        available = self.inbox.count
        if available:
            task = Task(self, 0, now_ns, self.inbox.take(self.chunk(available)))
            self.freed(now_ns)
        else:
            self.counts_in = False  # what is left came in before
            task = Task(self, 0, now_ns, quota=self.chunk(CHUNK_MAX))
            task.expansion = self.rest_of_stream = self.rest_of_stream or Expansion(0)
        self.reserved += task.count or task.quota
        return self.started(task, now_ns)

    def work(self, task: Task) -> None:
        """Push the items, or draw from what is left."""
        if task.expansion is None:
            for entry in task.chunk.entries():
                result: Any = self.step.apply(entry, task)
                if type(result) is not tuple:
                    task.irregular = True
                task.results.append(result)
                if isinstance(result, Failed) and result.fatal:
                    return
            return
        rest = task.expansion
        try:
            if rest.entries is None:
                rest.entries = self._left()
            rest.over = draw(task, rest.entries)
        except BaseException as error:
            task.irregular = rest.over = True
            task.results.append(self.step.failure((-1, None), error, 1))

    def _left(self) -> Iterator[Entry]:
        operation = self.step.operation
        if self.input_error is not None and not operation.holds_items:
            return iter(())
        return operation.flush()

    def rest_of_input(self, rest: Remaining, stages: Stages) -> Remaining:
        """Have the operation say what it wants."""
        node_state: dict[str, Any] = {}
        inputs = self.step.operation.rest_of_input(rest, node_state)
        note(stages, self.runtime.address, node_state)
        return inputs

    def input_of(self, result: int) -> int:
        """Return the number of the item that was pushed when a result came."""
        return result if self.drops is None else self.drops.input_of(result)

    def forget(self, below: Mapping[int, Remaining]) -> None:
        """Let the operation forget what nobody wants any more."""
        start = min(rest.start for rest in below.values())
        self.step.operation.forget(start)
        if self.drops is not None:
            self.drops.forget(start)

    @property
    def keeps(self) -> bool:
        """Whether the operation can keep what it made, and saw all of it."""
        return not self.cut and self.step.operation.commits

    def commit(self) -> None:
        """Let the operation keep what it made: all was consumed; called without the lock."""
        self.step.operation.commit()

    def take_back(self) -> None:
        """Let the operation undo that: the loop had not all of it; called without the lock."""
        self.step.operation.take_back()

    def close(self) -> None:
        """Let the operation drop what it keeps outside this process; called without the lock."""
        self.step.operation.close()

    def halt(self) -> None:
        """Stop, and have the operation closed."""
        super().halt()
        self.epoch.litter.append(self)

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on results as they come: there is one task at a time."""
        if self.done:
            return
        if final:
            self.reserved = 0
        else:
            self.reserved -= len(results)
        if results:
            self.emit_entries(results, now_ns, irregular=task.irregular)
            if self.drops is not None:
                self.drops.note(self.seq_out, [DROPPED if one is None else one for one in results])
                self.seq_out += len(results)
        if not final:
            return
        if task.expansion is not None:
            self.flushed = task.expansion.over
        elif self.step.operation.finished:
            self._close_input()
        self.note_state(now_ns)

    def _close_input(self) -> None:
        self.input_error = None  # whatever comes, or went wrong, behind what is wanted
        for above in self.upstream:
            above.cut_off()
        if not self.input_over and not self.done:
            self.epoch.halt(self.upstream)
            self.epoch.drop(self.inbox)
            self.input_over = self.epoch.changed = True

    def end_of_input(self, error: BaseException | None) -> None:
        """Called when nothing more will come; it is of no interest once nothing is wanted."""
        super().end_of_input(None if self.step.operation.finished else error)

    def exhausted(self) -> bool:
        """Tell whether everything was pushed and flushed."""
        return not self.inbox.count and not self.running and self.flushed


def keeping(nodes: Iterable[Node]) -> list[StreamNode]:
    """Return those of these nodes that can keep what they made, as a cache does."""
    return [node for node in nodes if isinstance(node, StreamNode) and node.keeps]
