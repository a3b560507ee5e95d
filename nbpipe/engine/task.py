"""Task: a piece of work for one stage, and the loops that do it outside the lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ..base.seeding import Entry, Path
from ..base.threads import Latch
from ..base.tree import size_bytes

if TYPE_CHECKING:
    from ..ops.remaining import Remaining
    from .map import Step
    from .node import Node


# -- What every stage of an epoch may know about it ------------------------------------------------
class EpochContext:
    """Seed, number and end of one epoch.

    Attributes:
        seed: the run's seed.
        epoch: number of the epoch, from 0.
        ended: open when the epoch is over, so that whoever waits stops waiting.
    """

    __slots__ = ("ended", "epoch", "seed")

    def __init__(self, seed: int, epoch: int, ended: Latch | None = None) -> None:
        self.seed = seed
        self.epoch = epoch
        self.ended = Latch() if ended is None else ended

    def as_of(self, epoch: int) -> EpochContext:
        """Return the context of stages that make the items of another epoch in this one."""
        return EpochContext(self.seed, epoch, self.ended)


# -- Task: a piece of work for one stage, and the loops that do it outside the lock ----------------
# A task's `items` may be taken back from the right while it runs, and its `results` may be handed
# on before it ends; so the loops take items one by one from the left, and append exactly one result
# for each: an entry, None for an item that is dropped, or a `Failed`.
SIZED = 3  # elements of an entry that carries its size
MEASURE_NS = 100_000  # a result of a stage is measured no more often than this


class Sized(list[Any]):
    """Results that are measured as they come, in the thread that made them."""

    def append(self, result: Any) -> None:
        """Measure a result and keep it."""
        super().append(_sized(result))

    def extend(self, results: Iterable[Any]) -> None:
        """Measure results and keep them."""
        super().extend([_sized(result) for result in results])


def _sized(result: Any) -> Any:
    """Return an entry with its size; one that passed through a stage unchanged has it."""
    if type(result) is not tuple or len(result) == SIZED:
        return result
    return (*result, size_bytes(result[1]))


class Task:
    """Work of one node.

    Attributes:
        node: the node it belongs to.
        seq: place of its first item in the node's order.
        items: entries still to do.
        count: number of entries, without those taken back.
        results: one result for each entry done.
        published: number of results already handed on.
        irregular: some result is not an entry.
        cheap: taken without waking another thread.
        watched: the ticker looks after it.
        started_ns, ended_ns: when the work began and ended; 0 before.
        inputs: number of items, where one entry holds several of them.
        retried: for each call that was tried again, its stage.
        tally: for each fused step, calls, results and time [ns].
        away_ns: time in progress, but in no user's function: on the way to a worker [ns].
        expansion: the iterator to draw from, for nodes that expand.
        quota: how many results to draw.
        drawn: how many were drawn from it before this task.
        path: of the entry that is worked on, where the work is done here.
        step: place of the fused step that it is in; 0 for the node's own.
        sent: the entries, where the work is done elsewhere.
        seen_ns: when results were last handed on before the end; 0 where none were.
        result_bytes: size of one result, where one was measured [bytes].
    """

    published = 0
    irregular = False
    started_ns = 0
    ended_ns = 0
    inputs = 0
    retried: tuple[str, ...] = ()
    away_ns = 0
    cheap = False
    watched = False
    tally: list[list[int]] | None = None
    result_bytes: int | None = None
    expansion: Expansion | None = None
    drawn = 0
    path: Path | None = None
    step = 0
    sent: Sequence[Entry] = ()
    seen_ns = 0

    def __init__(self, node: Node, seq: int, items: deque[Entry], quota: int = 0) -> None:
        self.node = node
        self.seq = seq
        self.items = items
        self.count = len(items)
        self.quota = quota
        self.results: list[Any] = [] if node.epoch.memory is None else Sized()

    @property
    def several(self) -> bool:
        """Whether it may give more than one result, so that some could be held back."""
        return self.quota > 1 or self.count > 1

    def run(self) -> None:
        """Do the work in this thread."""
        self.started_ns = perf_counter_ns()
        self.node.work(self)
        self.ended_ns = now_ns = perf_counter_ns()
        if now_ns - self.node.runtime.measured_ns > MEASURE_NS:
            self.measure()

    def begin(self) -> Coroutine[Any, Any, None]:
        """Return the coroutine that does the work on the event loop."""
        self.started_ns = perf_counter_ns()
        return _nothing() if self.node.epoch.over else self.node.work_elsewhere(self)

    def measure(self) -> None:
        """Measure a result, for the bytes that a stage hands on; called without the lock."""
        result = self.results[-1] if self.results else None
        if type(result) is tuple:
            sized = len(result) == SIZED
            self.result_bytes = result[2] if sized else size_bytes(result[1])

    def through(self, entry: Any, steps: Sequence[Step]) -> Any:
        """Send an entry through fused steps, timing each."""
        if self.tally is None:
            self.tally = [[0, 0, 0] for _ in steps]
        for row, step in zip(self.tally, steps, strict=True):
            self.step += 1
            begun = perf_counter_ns()
            entry = step.apply(entry, self)
            row[2] += perf_counter_ns() - begun
            row[0] += 1
            if type(entry) is not tuple:
                self.irregular = True
                break
            row[1] += 1
        self.step = 0
        return entry


class Expansion:
    """One iterator being drawn from: a source, or the children of one item.

    Attributes:
        seq: place in the node's order.
        entry: the item whose children these are; None for a source.
        entries: iterator over entries; None until it is opened.
        inner: the user's own iterator, to be closed.
        drawn: children drawn so far.
        buffer: results that wait for earlier expansions to end.
        over: no more is to come.
        held: a task is drawing from it now.
        owed: the most results that this task may still give.
        attempts: calls of the function so far; wait_s: wait before the next one [s].
        wanted: numbers of the children that are wanted; None for all.
    """

    __slots__ = (
        "attempts",
        "buffer",
        "drawn",
        "entries",
        "entry",
        "held",
        "inner",
        "irregular",
        "over",
        "owed",
        "seq",
        "wait_s",
        "wanted",
    )

    def __init__(self, seq: int, entry: Entry | None = None) -> None:
        self.seq = seq
        self.entry = entry
        self.entries: Any = None
        self.inner: Any = None
        self.drawn = 0
        self.buffer: list[Any] = []
        self.irregular = False
        self.over = False
        self.held = False
        self.owed = 0
        self.attempts = 0
        self.wait_s = 0.0
        self.wanted: Remaining | None = None

    def close(self) -> None:
        """Close the user's iterator; user code may run."""
        close = getattr(self.inner, "close", None)
        if close is not None:
            close()


def run_plain(task: Task, step: Step) -> None:
    """Call a function of one argument on every item: the loop that must be fast."""
    take, give, call = task.items.popleft, task.results.append, step.fn
    while True:
        try:
            entry = take()
        except IndexError:  # done, or the rest was taken back
            return
        task.path = path = entry[0]
        try:
            give((path, call(entry[1])))
        except BaseException as error:
            task.irregular = True
            failed = step.recover(entry, error, task)
            give(failed)
            if failed is not None and not isinstance(failed, tuple) and failed.fatal:
                return


def run_steps(task: Task, first: Any, rest: Sequence[Step]) -> None:
    """Send every item through `first.apply` and the fused steps after it."""
    take, give, apply = task.items.popleft, task.results.append, first.apply
    while True:
        try:
            entry = take()
        except IndexError:
            return
        task.path = entry[0]
        result = apply(entry, task)
        if rest and type(result) is tuple:
            result = task.through(result, rest)
        if type(result) is tuple:
            give(result)
            continue
        task.irregular = True  # first: the ticker may take results at any moment
        give(result)
        if result is not None and result.fatal:
            return


async def _nothing() -> None:
    """Do nothing: the epoch ended before the call began."""


def child_path(path: Path, child: int) -> Path:
    """Return the path of the `child`-th child of the item at `path`."""
    return (*path, child) if isinstance(path, tuple) else (path, child)
