"""MapNode: one call for each item, or for each batch of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..rest import Rest
from .lane import BLOCKED, STARVED, Lane
from .logs import Arrivals, Drops
from .node import BOOKING_NS, Node
from .noting import Stages
from .task import Entry, Task, run_plain, run_steps

if TYPE_CHECKING:
    from .epoch import Epoch
    from .steps import AsyncStep, Step


class MapNode(Node):
    """One task for each item, or for each chunk of cheap items; results in order or not.

    Items are numbered as they are taken. A result that comes early waits in `ready`; items
    that were taken back from a chunk wait in `returned` and go first. Both keep their place.

    Args:
        first: the stage's step.
        gather: items that one call takes together (a batch); 0 where it takes them singly.
        drop_last: leave out a last batch that is not full.
    """

    __slots__ = (
        "drop_last",
        "fatal",
        "first",
        "gather",
        "log",
        "plain",
        "ready",
        "returned",
        "seq_in",
    )

    def __init__(
        self,
        lane: Lane,
        epoch: Epoch,
        first: Step,
        *,
        ordered: bool = True,
        remote: bool = False,
        gather: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(lane, epoch, ordered=ordered, remote=remote)
        self.first = first
        self.plain = first.plain
        self.gather = gather
        self.drop_last = drop_last
        self.seq_in = 0
        self.ready: dict[int, tuple[list[Any], bool]] = {}
        self.returned: list[tuple[int, Entry]] = []
        self.fatal = False
        self.log: Drops | Arrivals = Drops() if ordered else Arrivals()

    def has_input(self) -> bool:
        """Say whether a call could start, but for room and slots."""
        return bool(self.returned) or len(self.inbox) >= (
            1 if self.input_over else self.gather or 1
        )

    def runnable(self) -> bool:
        """Say whether `take` would give a task."""
        lane = self.lane
        if lane.active >= lane.concurrency or self.done or self.halted:
            return False
        if self.returned:
            return True
        available = len(self.inbox)
        if not available or self.fatal or (available < self.gather and not self.input_over):
            return False
        room = lane.prefetch + lane.concurrency + self.gathers - self.reserved - len(self.out)
        return room > 0 and (self.epoch.memory is None or self.epoch.admits(self))

    def take(self, now_ns: int) -> Task | None:
        """Choose the next task: items taken back first, then the queue."""
        lane = self.lane
        if lane.active >= lane.concurrency or self.halted:
            return None
        if self.returned:
            seq, entry = self.returned.pop(0)
            self.active_without_input = bool(self.returned)
            return self.started(Task(self, seq, deque((entry,))), now_ns)
        available = len(self.inbox)
        if not available or self.fatal or self.done:
            return None
        room = lane.prefetch + lane.concurrency + self.gathers - self.reserved - len(self.out)
        if room <= 0:
            return None
        if self.gather:
            if available < self.gather and not self.input_over:
                return None
            count = min(available, self.gather)
        elif available == 1 or self.remote or lane.cost_ns >= self.chunk_ns:
            count = 1
        else:
            count = self.chunk(room, available)
        if self.epoch.memory is not None and not self.epoch.admits(self):
            return None
        task = Task(self, self.seq_in, self._next_items(count))
        if self.gather:
            task.inputs = count
        self.seq_in += task.count
        self.reserved += task.count
        for above in self.upstream:
            if above.lane.state == BLOCKED:
                self.freed(now_ns)
        if lane.cost_ns > BOOKING_NS or now_ns - lane.since_ns > BOOKING_NS:
            self.note_state(now_ns)
        lane.active += 1
        self.running += 1
        return task

    def _next_items(self, count: int) -> deque[Entry]:
        inbox = self.inbox
        if count == len(inbox):
            items = inbox.copy()
            inbox.clear()
        else:
            pop = inbox.popleft
            items = deque([pop() for _ in range(count)])
        if self.epoch.memory is not None:
            self.epoch.release(items)
        if self.gather:
            return deque(((items[0][0], [entry[1] for entry in items]),))
        return items

    def settle(self, task: Task) -> None:
        """Book the end of a task and hand on its results; the common case without detours."""
        results = task.results
        lane = self.lane
        now_ns = task.ended_ns
        if (
            not results
            or not self.ordered
            or task.seq != self.seq_out
            or (task.irregular or task.published or task.retried or task.tally is not None)
            or (self.guarded or self.ready or self.done or self.epoch.over)
        ):
            super().settle(task)
            return
        slow = lane.cost_ns > BOOKING_NS
        if slow or now_ns - lane.since_ns > BOOKING_NS:
            lane.account(now_ns, lane.state)
        if task.result_bytes is not None:
            lane.measured(task.result_bytes, now_ns)
        count = len(results)
        lane.active -= 1
        self.running -= 1
        lane.learn(now_ns - task.started_ns, count, now_ns)
        counters = lane.counters
        counters.items_in += task.inputs or count
        counters.items_out += count
        counters.bytes_out += lane.item_bytes * count
        self.reserved -= count
        self.seq_out += count
        self.out.extend(results)
        following = self.downstream
        if following is not None and following.lane.state == STARVED:
            following.fed(now_ns)
        if slow:
            self.note_state(now_ns)
        if self.input_over:
            self.check_done()

    def work(self, task: Task) -> None:
        """Run the loop that fits."""
        if self.plain and not self.rest:
            run_plain(task, self.first)
        else:
            run_steps(task, self.first, self.rest)

    async def work_elsewhere(self, task: Task) -> None:
        """Await the one call of a remote task."""
        step: AsyncStep = self.first  # type: ignore[assignment]
        entry = task.items.popleft()
        task.path = entry[0]
        if not step.plain:
            result = await step.attempt(entry, task)
        else:
            try:
                result = (entry[0], await step.fn(entry[1]))
            except BaseException as error:
                result = await step.recover_async(entry, error, task)
        task.irregular = type(result) is not tuple
        task.results.append(result)

    def harvest(self, task: Task, now_ns: int) -> None:
        """Hand on what a long chunk has done, and take back what it has not begun.

        A call that waits for the event loop keeps its one item: it counts on it.
        """
        rest: list[Entry] = []
        while task.items and not self.remote:
            try:
                rest.append(task.items.pop())
            except IndexError:  # the running thread was faster
                break
        task.count -= len(rest)
        first = task.seq + task.count
        self.returned.extend((first + n, entry) for n, entry in enumerate(reversed(rest)))
        self.returned.sort(key=lambda pair: pair[0])
        self.active_without_input = bool(self.returned)
        super().harvest(task, now_ns)

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on results, in input order where that is promised."""
        if self.done or not results:
            return
        irregular, last = task.irregular, results[-1]
        if irregular and type(last) is not tuple and last is not None:
            self.fatal = self.fatal or last.fatal
        seq = task.seq + at
        if not self.ordered:
            self._emit(seq, results, now_ns, irregular=irregular)
        elif seq != self.seq_out:
            self.ready[seq] = (results, irregular)
        elif self.ready or irregular or self.guarded:
            self._emit_in_order(results, now_ns, irregular=irregular)
        else:
            count = len(results)
            self.reserved -= count
            self.seq_out += count
            self.put_plain(results, count, now_ns)

    def _emit_in_order(self, results: list[Any], now_ns: int, *, irregular: bool) -> None:
        while True:
            self._emit(self.seq_out, results, now_ns, irregular=irregular)
            if self.done or self.seq_out not in self.ready:
                return
            results, irregular = self.ready.pop(self.seq_out)
            self.epoch.dropped.append(results)  # what is taken from `out` meanwhile ends with it

    def _emit(self, seq: int, results: list[Any], now_ns: int, *, irregular: bool) -> None:
        self.reserved -= len(results)
        self.seq_out += len(results)
        self.emit(results, now_ns, irregular=irregular)
        if irregular or not self.ordered:  # only now it is known what ended the epoch
            self.log.note(seq, results)

    def rest_of_input(self, rest: Rest, stages: Stages) -> Rest:
        """Leave out what was dropped; a batch stands for all of its items."""
        inputs, size = self.log.inputs(rest), self.gather
        if not size:
            return inputs
        return Rest(inputs.start * size, tuple((a * size, b * size) for a, b in inputs.holes))

    @property
    def dropped(self) -> int:
        """Inputs that gave no result."""
        return self.log.count

    def forget(self, below: Mapping[int, Rest]) -> None:
        """Forget which inputs gave the results that nobody wants any more."""
        self.log.forget(min(rest.start for rest in below.values()))

    def let_go(self) -> None:
        """Hold no items any more, nor results that wait for others."""
        super().let_go()
        self.epoch.dropped += [self.ready, self.returned]
        self.ready, self.returned = {}, []

    def exhausted(self) -> bool:
        """Say whether all input was handed on."""
        if len(self.inbox) < self.gather and (self.drop_last or self.input_error is not None):
            self.epoch.release(self.inbox)
            self.epoch.drop(self.inbox)  # a batch that holds a failed item cannot be made either
        return not self.inbox and not self.reserved
