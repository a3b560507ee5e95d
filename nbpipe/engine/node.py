"""Node: one stage in one epoch: its queues, its order, the choice of its next task.

Unless said otherwise, methods are called under the scheduler's lock. A node never starts work
whose result has no place: a task reserves one place for each result it may give.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ..errors import FailureBudgetError
from .failures import Budget, parted
from .lane import BLOCKED, READY, STARVED, Lane
from .task import Entry, Task

if TYPE_CHECKING:
    from ..rest import Rest
    from .epoch import Epoch
    from .noting import Stages
    from .steps import Step

CHUNK_NS = 50_000  # a chunk of cheap items should take about this long
CHUNK_MAX = 64
BOOKING_NS = 100_000  # slot-time of cheap stages is booked no more often than this


class Node(ABC):
    """State of one stage in one epoch.

    Attributes:
        lane: limits and counters, kept from epoch to epoch.
        inbox: the input queue.
        active_without_input: `take` may give a task though the input queue is empty.
        out: results ready for the next node; its input queue is this very deque.
        reserved: places promised to results of tasks in progress, or out of order.
        gathers: items that the next node needs before it can start.
        remote: tasks run elsewhere (the event loop), not in the engine's threads.
        chunk_ns: time that a chunk of cheap items should take [ns].
        promised_bytes: estimated size of what places are reserved for [bytes].
        done: everything was handed on; `error` then says why, if not by the end of input.
        halted: nothing of this node is needed any more.
        cut: the stages below end whether or not this node has more; it was not seen whole.
    """

    __slots__ = (
        "active_without_input",
        "budget",
        "cut",
        "done",
        "downstream",
        "epoch",
        "error",
        "gathers",
        "guarded",
        "halted",
        "inbox",
        "input_error",
        "input_over",
        "lane",
        "ordered",
        "out",
        "promised_bytes",
        "remote",
        "reserved",
        "rest",
        "rest_budgets",
        "rest_lanes",
        "running",
        "seq_out",
        "upstream",
    )

    chunk_ns = CHUNK_NS

    @property
    def dropped(self) -> int:
        """Inputs that gave no result, in the epoch so far."""
        return 0

    @property
    def shares_workers(self) -> bool:
        """Whether its tasks go through several stages elsewhere: none is busy all that time."""
        return False

    def __init__(
        self, lane: Lane, epoch: Epoch, *, ordered: bool = True, remote: bool = False
    ) -> None:
        self.lane = lane
        self.epoch = epoch
        self.ordered = ordered
        self.remote = remote
        self.inbox: deque[Entry] = deque()
        self.active_without_input = False
        self.out: deque[Entry] = deque()
        self.upstream: tuple[Node, ...] = ()
        self.downstream: Node | None = None
        self.gathers = 0
        self.reserved = 0
        self.promised_bytes = 0.0
        self.running = 0
        self.seq_out = 0
        self.input_over = False
        self.input_error: BaseException | None = None
        self.error: BaseException | None = None
        self.done = False
        self.cut = False
        self.halted = False
        self.rest: tuple[Step, ...] = ()
        self.rest_lanes: tuple[Lane, ...] = ()
        self.rest_budgets: tuple[Budget, ...] = ()
        self.budget: Budget | None = None
        self.guarded = epoch.memory is not None  # results are counted one by one

    # -- choosing work ------------------------------------------------------------------
    @abstractmethod
    def take(self, now_ns: int) -> Task | None:
        """Choose the next task and reserve its places, or give None."""

    @abstractmethod
    def runnable(self) -> bool:
        """Say whether `take` would give a task."""

    @abstractmethod
    def work(self, task: Task) -> None:
        """Do the task; called without the lock."""

    async def work_elsewhere(self, task: Task) -> None:
        """Do the task of a remote node on the event loop; called without the lock."""
        raise TypeError(f"{type(self).__name__} works in threads")

    @abstractmethod
    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on results `at`, `at + 1`, ... of a task that goes on, or has ended (`final`)."""

    @abstractmethod
    def has_input(self) -> bool:
        """Say whether anything waits to be worked on."""

    def room(self) -> int:
        """Give the number of places for further results."""
        lane = self.lane
        return lane.prefetch + lane.concurrency + self.gathers - self.reserved - self.held()

    def held(self) -> int:
        """Give the number of results ready for the next node."""
        return len(self.out)

    def busy(self) -> bool:
        """Say whether anything is in this node, or on its way out."""
        return bool(self.inbox or self.reserved or self.held())

    def queued(self) -> int:
        """Give the results that wait, without those the next node is gathering."""
        return max(0, self.held() - self.gathers)

    def started(self, task: Task, now_ns: int) -> Task:
        """Book the start of a task."""
        lane = self.lane
        if self.books(now_ns):
            self.note_state(now_ns)
        lane.active += 1
        self.running += 1
        return task

    def chunk(self, room: int, available: int) -> int:
        """Give the number of items to do at once: more when they are cheap."""
        cost = self.lane.cost_ns
        most = min(room, available, CHUNK_MAX)
        if self.epoch.memory is not None:
            most = min(most, self.epoch.affordable(self))
        aim = self.chunk_ns
        return most if cost * most <= aim else max(1, int(aim / cost))

    def comes_in_lots(self, slow_ns: int) -> bool:
        """Say whether results are so cheap that several are made at once."""
        return self.lane.cost_ns < slow_ns

    def note_state(self, now_ns: int) -> None:
        """Note why the idle slots are idle."""
        self.lane.account(now_ns, self.state())

    def state(self) -> int:
        """Say why idle slots are idle now."""
        if self.done or self.halted:
            return STARVED
        if self.room() <= 0:
            return BLOCKED
        return READY if self.has_input() else STARVED

    def books(self, now_ns: int) -> bool:
        """Say whether slot-time is to be booked now: always for slow stages."""
        lane = self.lane
        return lane.cost_ns > BOOKING_NS or now_ns - lane.since_ns > BOOKING_NS

    # -- settling work ------------------------------------------------------------------
    def settle(self, task: Task) -> None:
        """Book the end of a task and hand on what was not yet handed on."""
        now_ns = task.ended_ns
        lane = self.lane
        if self.books(now_ns):
            lane.account(now_ns, lane.state)
        lane.active -= 1
        self.running -= 1
        results = task.results
        done = len(results)
        spent = now_ns - task.started_ns if task.started_ns else 0  # 0: it never began
        if task.tally is not None:
            spent -= self._settle_tally(task.tally, now_ns, spent if task.away_ns else 0)
        lane.learn(max(0, spent - task.away_ns), done, now_ns, task.away_ns)
        lane.counters.items_in += task.inputs or self.inputs(done)
        if task.retried:
            for one in (lane, *self.rest_lanes):
                one.counters.retries += task.retried.count(one.address)
        if task.result_bytes is not None:
            lane.measured(task.result_bytes, now_ns)
        if self.epoch.over:
            return
        at, task.published = task.published, done
        self.accept(task, at, results[at:] if at else results, now_ns, final=True)
        if self.books(now_ns):
            self.note_state(now_ns)
        if self.input_over:
            self.check_done()

    def harvest(self, task: Task, now_ns: int) -> None:
        """Hand on what a long task has done so far."""
        at = task.published
        fresh = task.results[at:]
        if fresh and not self.epoch.over:
            task.published += len(fresh)
            task.seen_ns = now_ns
            self.accept(task, at, fresh, now_ns, final=False)
        if task.started_ns:  # else it only waits to begin
            self.lane.cost_ns = max(self.lane.cost_ns, now_ns - task.started_ns)

    def item_of(self, task: Task) -> str:
        """Say which item a task works on, as its errors would; empty where that is not known."""
        return "" if task.path is None else str(task.path)

    def inputs(self, results: int) -> int:
        """Give the number of inputs that `results` results of a task stand for."""
        return results

    def _settle_tally(self, tally: list[list[int]], now_ns: int, away_ns: int = 0) -> int:
        """Book the calls of the other stages; `away_ns`: so long a worker was theirs [ns]."""
        spent = 0
        parts = zip(self.rest_lanes, self.rest_budgets, tally, strict=True)
        for lane, budget, (calls, results, busy_ns) in parts:
            if calls:
                lane.account(now_ns, STARVED)
                lane.learn(busy_ns, calls, now_ns)
                counters = lane.counters
                taken_ns = max(busy_ns, away_ns)
                counters.starved_ns = max(0, counters.starved_ns - taken_ns)
                counters.items_in += calls
                counters.items_out += results
                budget.seen += calls
            spent += busy_ns
        return spent

    def emit(self, results: Sequence[Any], now_ns: int, *, irregular: bool = False) -> None:
        """Put results into `out`, in the order given; drop what was dropped or failed."""
        entries: Sequence[Entry] = results
        error = None
        if irregular:
            entries, error = parted(self, results)
        elif self.budget is not None:
            error = self.budget.see(len(results))
        if entries:
            if self.epoch.memory is not None:
                self.epoch.memory.hold(entries)
            self.put_plain(entries, len(entries), now_ns)
        if error is not None:
            self.fail(error)

    def put_plain(self, entries: Sequence[Entry], count: int, now_ns: int) -> None:
        """Make entries ready for the next node, and count them."""
        lane = self.lane
        counters = lane.counters
        counters.items_out += count
        counters.bytes_out += lane.item_bytes * count
        self.out.extend(entries)
        following = self.downstream
        if following is not None and following.lane.state == STARVED:
            following.fed(now_ns)

    def fed(self, now_ns: int) -> None:
        """Hear that there is input again."""
        if self.books(now_ns):
            self.note_state(now_ns)

    def fail(self, error: BaseException) -> None:
        """End the stream here with an error.

        In order, it comes after every earlier item; in completion order, at once, but where it is
        that too many items failed: that is no item's own error, and the good ones come before it.
        """
        if self.done or self.error is not None:
            return
        self.epoch.halt(self.upstream)
        self.error = error
        if not self.ordered and isinstance(error, FailureBudgetError):
            now_ns = perf_counter_ns()
            for task in self.epoch.at_work():
                if task.node is self:
                    self.harvest(task, now_ns)
        elif not self.ordered:
            self.epoch.fail_at_once(error)
        self.finish()

    # -- the end ------------------------------------------------------------------------
    def end_of_input(self, error: BaseException | None) -> None:
        """Hear that nothing more will come from the node above."""
        self.input_over = True
        self.input_error = self.input_error or error
        self.epoch.changed = True
        self.check_done()

    def check_done(self) -> None:
        """Notice that everything was handed on."""
        if not self.done and self.input_over and self.exhausted():
            self.error = self.error or self.input_error or self._final_budget()
            self.finish()

    def _final_budget(self) -> BaseException | None:
        for budget in (self.budget, *self.rest_budgets):
            if budget is not None and (error := budget.exceeded(at_end=True)) is not None:
                return error
        return None

    @abstractmethod
    def exhausted(self) -> bool:
        """Say whether nothing is left to do, given that the input is over."""

    def finish(self) -> None:
        """Tell the next node that this one is done."""
        self.done = True
        self.epoch.changed = True
        if self.downstream is not None:
            self.downstream.end_of_input_from(self)
        else:
            self.epoch.drained(self.error)

    def end_of_input_from(self, node: Node) -> None:
        """Hear that `node`, one of those above, is done."""
        self.end_of_input(node.error)

    def freed(self, now_ns: int) -> None:
        """Tell the nodes above that they have room again."""
        for node in self.upstream:
            lane = node.lane
            if lane.state == BLOCKED and node.books(now_ns):
                node.note_state(now_ns)

    # -- where it stands ----------------------------------------------------------------
    def rest_above(self, below: Mapping[int, Rest], stages: Stages) -> Sequence[Rest | None]:
        """Say what is wanted of each node above, given what those below want of this one.

        Args:
            below: what they want, by their `id`.
            stages: takes what else there is to know, by address.
        """
        (rest,) = below.values()
        return (self.rest_of_input(rest, stages),)

    def rest_of_input(self, rest: Rest, stages: Stages) -> Rest:
        """Say what is wanted of the input; as many items go in as come out, if not said."""
        return rest

    @abstractmethod
    def forget(self, below: Mapping[int, Rest]) -> None:
        """Hear what may still be wanted; what is known of results before that is not needed."""

    def cut_off(self) -> None:
        """Hear that the stages below have ended and did not ask for this node's end."""
        self.cut = True
        for above in self.upstream:
            above.cut_off()

    def let_go(self) -> None:
        """Hold no items any more: whoever keeps the epoch must not keep them."""
        self.epoch.drop(self.out)

    def halt(self) -> None:
        """Stop: nothing of this node is needed any more; drop what waits."""
        self.halted = True
        self.epoch.changed = True
        self.epoch.release(self.inbox)
        self.epoch.drop(self.inbox)
