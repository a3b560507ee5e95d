"""MapNode: one call of a user's function for each item, or for each batch of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from ..base.seeding import Entry
from ..base.tree import size_bytes
from ..ops.remaining import Remaining
from .failures import Failed
from .node import Arrivals, Drops, Node, NodeEpoch, Stages, Task, keep_result
from .stats import BLOCKED, READY, STARVED, StageRuntime
from .step import (
    DROPPED,
    AsyncStep,
    Chunk,
    Dropped,
    Sized,
    Step,
    add_all,
    chunk_of,
    take_back,
)

_NEVER = 1 << 62


class MapNode(Node):
    """One task for each item, or for each chunk of cheap items; results in order or not.

    Items are numbered as they are taken. A result that comes early waits in `ready`; items
    that were taken back from a chunk wait in `returned` and go first. Both keep their place.

    Args:
        first: the stage's step.
        gather: items that one call takes together (a batch); 0 where it takes them singly.
        drop_last: leave out a last batch that is not full.

    Attributes:
        ends_at: number of the item that ends the epoch; none behind it is begun any more.
    """

    __slots__ = (
        "drop_last",
        "ends_at",
        "first",
        "gather",
        "log",
        "ready",
        "returned",
        "sends",
        "seq_in",
    )

    def __init__(
        self,
        runtime: StageRuntime,
        epoch: NodeEpoch,
        first: Step,
        *,
        ordered: bool = True,
        remote: bool = False,
        gather: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(runtime, epoch, ordered=ordered, remote=remote)
        self.first = first
        self.lots = True
        self.sends = False  # `chunk` decides, also where calls are slow
        if epoch.memory is not None:
            self.new_results = Sized
        self.gather = gather
        self.needs = gather or 1
        self.drop_last = drop_last
        self.seq_in = 0
        self.ready: dict[int, tuple[Chunk, bool]] = {}
        self.returned: list[tuple[int, Entry]] = []
        self.ends_at = _NEVER
        self.log: Drops | Arrivals = Drops() if ordered else Arrivals()

    def has_input(self) -> bool:
        """Tell whether a call could start, but for room and slots."""
        return bool(self.returned) or self.inbox.count >= self.needs

    def runnable(self) -> bool:
        """Tell whether `take` would give a task."""
        runtime = self.runtime
        if runtime.active >= runtime.concurrency or self.done or self.halted:
            return False
        if self.returned:
            return self.returned[0][0] < self.ends_at
        if self.ends_at < _NEVER or self.inbox.count < self.needs:
            return False
        return self.room() > 0 and (self.epoch.memory is None or self.epoch.admits(self))

    def take(self, now_ns: int) -> Task | None:
        """Choose the next task: items taken back first, then the queue."""
        runtime = self.runtime
        if runtime.active >= runtime.concurrency or self.halted:
            return None
        if self.returned and self.returned[0][0] < self.ends_at:
            return self._take_returned(now_ns)
        available, out, lot = self.inbox.count, self.out, runtime.lot
        under_way = self.reserved if lot > 1 else self.waiting + self.running
        places = runtime.prefetch + runtime.concurrency * lot + self.gathers
        places -= under_way + out.count + out.lent  # as `room` does, without a call
        if places < lot or available < self.needs or self.done or self.ends_at < _NEVER:
            return None
        if self.epoch.memory is not None and not self.epoch.admits(self):
            return None
        if self.gather:
            count = min(available, self.gather)
            task = Task(self, self.seq_in, now_ns, self.gathered(self.inbox.take(count)))
            task.inputs = count
        else:
            count = self.chunk(available) if lot > 1 or self.sends else 1
            task = Task(self, self.seq_in, now_ns, self.inbox.take(count))
        self.seq_in += task.count
        self.reserved += task.count
        for above in self.upstream:
            if above.runtime.state == BLOCKED and now_ns >= above.runtime.booking_ns:
                above.note_state(now_ns)
        if places < 2 * lot:
            state = BLOCKED
        else:
            state = READY if available - count >= self.needs else STARVED
        if state != runtime.state:
            if now_ns > runtime.booking_ns:
                runtime.account(now_ns)
            runtime.state = state
        runtime.active += 1  # as `occupy` does, without a call
        runtime.spent_ns -= now_ns
        self.running += 1
        return task

    def _take_returned(self, now_ns: int) -> Task:
        seq, entry = self.returned.pop(0)
        self.waiting -= 1
        self.active_without_input = bool(self.returned)
        return self.started(Task(self, seq, now_ns, Chunk.of([entry])), now_ns)

    def room(self) -> int:
        """Return the number of further tasks that there is place for."""
        runtime, out, lot = self.runtime, self.out, self.runtime.lot
        places = runtime.prefetch + runtime.concurrency * lot + self.gathers
        under_way = self.reserved if lot > 1 else self.waiting + self.running
        return (places - under_way - out.count - out.lent) // lot

    def gathered(self, chunk: Chunk) -> Chunk:
        """Make one item of several: their values, under the path of the first."""
        return Chunk(chunk.paths[:1], [chunk.values])

    def measure(self, task: Task) -> None:
        """Measure a result, for the bytes that a stage hands on; called without the lock."""
        results = task.results
        if isinstance(results, Sized):
            task.result_bytes = results.sizes[-1] if results.sizes else None
        elif results and type(results[-1]) not in (Dropped, Failed):
            task.result_bytes = size_bytes(results[-1])

    def work(self, task: Task) -> None:
        """Run the loop that fits; later tasks go there at once."""
        if self.rest or self.epoch.memory is not None or self.first.wants_rng:
            self.perform = run_steps
        else:
            self.perform = run_predicate if self.first.keeps else run_plain
        self.perform(task)

    async def work_elsewhere(self, task: Task) -> None:
        """Await the one call of a remote task."""
        step: AsyncStep = self.first  # type: ignore[assignment]
        value = task.chunk.values[0]
        plain = step.timeout_s is None and not step.wants_rng
        try:
            result = await (step.fn(value) if plain else step.awaitable(task.entry(0)))
            if step.keeps:
                result = value if result else DROPPED
        except BaseException as error:
            keep_result(task, await step.recover_async(task.entry(0), error, task))
            return
        task.irregular = result is DROPPED
        task.results.append(result)

    def made(self, task: Task) -> Iterator[Entry]:
        """Return the items that a task made."""
        pairs = zip(task.paths, task.results, strict=False)
        return (one for one in pairs if type(one[1]) not in (Dropped, Failed))

    def harvest(self, task: Task, now_ns: int) -> None:
        """Hand on what a long chunk has done, and take back what it has not begun.

        A call that waits for the event loop keeps its one item: it counts on it. What is done
        altogether comes with the task's end, which counts it: the epoch could be over before.
        """
        if len(task.results) >= task.count and self.error is None:
            return
        if not self.remote:
            values = take_back(task.items)
            first = task.count - len(values)
            rest = zip(task.paths[first : task.count], values, strict=True)
            self._return(task, [*rest])
        super().harvest(task, now_ns)

    def _return(self, task: Task, rest: list[Entry]) -> None:
        """Put the last items of a task, which it has not begun, back in front of the queue."""
        task.count -= len(rest)
        self.waiting += len(rest)
        first = task.seq + task.count
        self.returned.extend((first + n, entry) for n, entry in enumerate(rest))
        self.returned.sort(key=lambda pair: pair[0])
        self.active_without_input = bool(self.returned)

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on results, in input order where that is promised."""
        count, seq, irregular = len(results), task.seq + at, task.irregular
        if self.done or not count:
            return
        if irregular and type(results[-1]) is Failed and results[-1].fatal:
            self.ends_at = min(self.ends_at, seq + count - 1)
        paths, sizes = task.paths, None
        if count != len(paths):
            paths = paths[at : at + count]
        if isinstance(task.results, Sized):
            sizes = task.results.sizes[at : at + count]
        made = chunk_of((paths, results, sizes))
        if self.ordered and seq != self.seq_out:
            self.ready[seq] = (made, irregular)
            self.waiting += count
            return
        while True:
            self.reserved -= count
            self.seq_out += count
            self.emit(made, now_ns, irregular=irregular)
            if irregular or not self.ordered:  # only now it is known what ended the epoch
                self.log.note(seq, made.values)
            seq = self.seq_out
            if seq not in self.ready or self.done:
                return
            made, irregular = self.ready.pop(seq)
            count = len(made.values)
            self.waiting -= count
            if irregular:
                self.epoch.dropped.append(made)  # what is left out of it ends without the lock

    def rest_of_input(self, rest: Remaining, stages: Stages) -> Remaining:
        """Leave out what was dropped; a batch stands for all of its items."""
        inputs, size = self.log.inputs(rest), self.gather
        if not size:
            return inputs
        return Remaining(inputs.start * size, tuple((a * size, b * size) for a, b in inputs.gaps))

    def input_of(self, result: int) -> int:
        """Return the number of the input of a result; of a batch, that of its last item."""
        number = cast("Drops", self.log).input_of(result)  # in a branch, order is kept
        if not self.gather:
            return number
        return min((number + 1) * self.gather - 1, self.inbox.total)

    def done_with(self, below: Mapping[int, Remaining]) -> tuple[int, int]:
        """Return how many inputs are done with; what failed is not tried again."""
        return self.log.count + super().done_with(below)[0], 0

    def forget(self, below: Mapping[int, Remaining]) -> None:
        """Forget which inputs gave the results that nobody wants any more."""
        self.log.forget(min(rest.start for rest in below.values()))

    def let_go(self) -> None:
        """Hold no items any more, nor results that wait for others."""
        super().let_go()
        self.epoch.dropped += [self.ready, self.returned]
        self.ready, self.returned = {}, []

    def exhausted(self) -> bool:
        """Tell whether all input was handed on."""
        if self.inbox.count < self.gather and (self.drop_last or self.input_error is not None):
            self.epoch.drop(self.inbox)  # a batch that holds a failed item cannot be made either
        return not self.inbox.count and not self.reserved


# -- The loops over the items of a task, without the lock ------------------------------------------
def run_plain(task: Task) -> None:
    """Call a function of one argument on every item: the loop that must be fast."""
    node: MapNode = task.node  # type: ignore[assignment]
    out, step = task.results, node.first
    problem: BaseException | None = None
    try:
        add_all(out, map(step.fn, task.items))
    except BaseException as error:
        problem = error
    else:
        if len(out) < task.count and task.lacks(len(out)):
            problem = StopIteration()  # it ended the loop without a word
    if problem is not None:
        result = step.recover(task.entry(len(out)), problem, task)
        if keep_result(task, result):
            run_steps(task)


def run_predicate(task: Task) -> None:
    """Ask a predicate of one argument of every item, and keep those for which it holds."""
    node: MapNode = task.node  # type: ignore[assignment]
    step, paths, give = node.first, task.paths, task.results.append
    for number, value in enumerate(task.items):
        try:
            result = value if step.fn(value) else DROPPED
        except BaseException as error:
            if not keep_result(task, step.recover((paths[number], value), error, task)):
                return
            continue
        if result is DROPPED:
            task.irregular = True  # first: the ticker may take results at any moment
        give(result)


def run_steps(task: Task) -> None:
    """Send every item that is left through the steps of its node, one after the other."""
    node: MapNode = task.node  # type: ignore[assignment]
    first, rest, paths = node.first, node.rest, task.paths
    for number, value in enumerate(task.items, len(task.results)):
        result = first.apply((paths[number], value), task)
        if rest and type(result) is tuple:
            result = task.through(result, rest)
        if not keep_result(task, result):
            return
