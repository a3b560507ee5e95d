"""MapNode: one call of a user's function for each item, or for each batch of them."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..base.seeding import Entry, generator_for
from ..errors import StageTimeoutError
from ..ops.batch import Collate
from ..ops.call import FailurePolicy
from ..ops.remaining import Remaining
from .failures import Failed, failed
from .node import BOOKING_NS, Arrivals, Drops, Node, Stages
from .runtime import BLOCKED, STARVED, StageRuntime
from .task import Task, run_plain, run_steps

if TYPE_CHECKING:
    from .epoch import Epoch
    from .task import EpochContext

# -- Step: a user's function in one epoch: its call, its random generator, what a failure does -----
_RAISE = FailurePolicy()


class Counted(Protocol):
    """What counts the calls that are tried again."""

    retried: tuple[str, ...]


class Step:
    """A plain function called on values.

    Args:
        stage: address of the stage.
        fn: function of a value or, with `wants_rng`, of a value and `rng=`.
        context: seed, number and end of the epoch.
        keeps: the function is a predicate; entries pass unchanged or are dropped.
    """

    __slots__ = ("_context", "executor", "fn", "keeps", "policy", "stage", "wants_rng")

    def __init__(
        self,
        stage: str,
        fn: Callable[..., Any],
        context: EpochContext,
        *,
        policy: FailurePolicy = _RAISE,
        keeps: bool = False,
        wants_rng: bool = False,
        executor: str = "thread",
    ) -> None:
        self.stage = stage
        self.fn = fn
        self.policy = policy
        self.keeps = keeps
        self.wants_rng = wants_rng
        self.executor = executor
        self._context = context

    @property
    def epoch(self) -> int:
        """Number of the epoch whose items it makes."""
        return self._context.epoch

    @property
    def plain(self) -> bool:
        """Nothing but a call: the fast loop may run it."""
        return not self.keeps and not self.wants_rng

    def arguments(self, entry: Entry) -> dict[str, Any]:
        """Return the keyword arguments of the call."""
        if not self.wants_rng:
            return {}
        context = self._context
        return {"rng": generator_for(context.seed, context.epoch, self.stage, entry[0])}

    def produce(self, entry: Entry) -> Entry | None:
        """Call the function once; its exceptions pass."""
        value = self.fn(entry[1], **self.arguments(entry))
        return self.wrap(entry, value)

    def wrap(self, entry: Entry, value: Any) -> Entry | None:
        """Make the result's entry."""
        if self.keeps:
            return entry if value else None
        return (entry[0], value)

    def apply(self, entry: Entry, task: Task) -> Entry | Failed | None:
        """Call the function; a failure is retried or becomes a `Failed`."""
        try:
            return self.produce(entry)
        except BaseException as error:
            return self.recover(entry, error, task)

    def recover(self, entry: Entry, error: BaseException, task: Counted) -> Entry | Failed | None:
        """Try again as the policy says; give a result, or the failure."""
        attempts = 1
        while (wait_s := self.wait_before_retry_s(attempts, error)) is not None:
            if not self.wait(wait_s):
                break
            attempts += 1
            task.retried += (self.stage,)
            try:
                return self.produce(entry)
            except BaseException as again:
                error = again
        return self.failure(entry, error, attempts)

    def wait_before_retry_s(self, attempts: int, error: BaseException) -> float | None:
        """Return the wait before one more call after `attempts` calls [s]; None: no more calls."""
        retry = self.policy.retry
        if retry is None or attempts > retry.times or not isinstance(error, Exception):
            return None
        return retry.backoff_s * float(2 ** (attempts - 1))

    def wait(self, wait_s: float) -> bool:
        """Wait in this thread, but not beyond the epoch's end; say whether the epoch goes on."""
        return not (wait_s and self._context.ended.wait(wait_s))

    def failure(self, entry: Entry, error: BaseException, attempts: int) -> Failed:
        """Make the record of a failed item."""
        return failed(
            error,
            stage=self.stage,
            executor=self.executor,
            epoch=self._context.epoch,
            path=entry[0],
            value=entry[1],
            attempts=attempts,
            policy=self.policy,
        )


class AsyncStep(Step):
    """A coroutine function, awaited on the run's event loop."""

    __slots__ = ("timeout_s",)

    def __init__(self, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_s = timeout_s

    async def call(self, entry: Entry) -> Entry | None:
        """Await the function once, at most `timeout_s`."""
        import asyncio

        if self.timeout_s is None:
            value = await self.fn(entry[1], **self.arguments(entry))
        else:
            try:
                async with asyncio.timeout(self.timeout_s) as limit:
                    value = await self.fn(entry[1], **self.arguments(entry))
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise StageTimeoutError(
                    f"a call of stage {self.stage!r} took longer than timeout_s={self.timeout_s:g}",
                    stage=self.stage,
                    path=entry[0],
                    executor=self.executor,
                ) from error
        return self.wrap(entry, value)

    @property
    def plain(self) -> bool:
        """Nothing but a call without a time limit."""
        return super().plain and self.timeout_s is None

    async def attempt(self, entry: Entry, task: Task) -> Entry | Failed | None:
        """Await the function; a failure is retried or becomes a `Failed`."""
        try:
            return await self.call(entry)
        except BaseException as error:
            return await self.recover_async(entry, error, task)

    async def recover_async(
        self, entry: Entry, error: BaseException, task: Task
    ) -> Entry | Failed | None:
        """Try again as the policy says; give a result, or the failure.

        Raises:
            CancelledError: the epoch is over.
        """
        import asyncio

        attempts = 1
        while True:
            if isinstance(error, asyncio.CancelledError) and self._context.ended.is_open:
                raise error
            wait_s = self.wait_before_retry_s(attempts, error)
            if wait_s is None:
                return self.failure(entry, error, attempts)
            await asyncio.sleep(wait_s)
            attempts += 1
            task.retried += (self.stage,)
            try:
                return await self.call(entry)
            except BaseException as again:
                error = again


def step_of(stage: str, spec: Any, context: EpochContext, executor: str) -> Step:
    """Make the step of a map, filter, flat_map or batch stage."""
    if spec.runs == "batch":
        return Step(stage, Collate(spec), context, executor=executor)
    if executor == "coroutine" and not inspect.isasyncgenfunction(spec.fn):
        return AsyncStep(
            stage,
            spec.fn,
            context,
            policy=spec.policy,
            keeps=spec.keeps,
            wants_rng=spec.wants_rng,
            executor=executor,
            timeout_s=spec.timeout_s,
        )
    return Step(
        stage,
        spec.fn,
        context,
        policy=spec.policy,
        keeps=spec.keeps,
        wants_rng=spec.wants_rng,
        executor=executor,
    )


# -- MapNode: one call for each item, or for each batch of them ------------------------------------
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
        runtime: StageRuntime,
        epoch: Epoch,
        first: Step,
        *,
        ordered: bool = True,
        remote: bool = False,
        gather: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(runtime, epoch, ordered=ordered, remote=remote)
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
        """Tell whether a call could start, but for room and slots."""
        return bool(self.returned) or len(self.inbox) >= (
            1 if self.input_over else self.gather or 1
        )

    def runnable(self) -> bool:
        """Tell whether `take` would give a task."""
        runtime = self.runtime
        if runtime.active >= runtime.concurrency or self.done or self.halted:
            return False
        if self.returned:
            return True
        available = len(self.inbox)
        if not available or self.fatal or (available < self.gather and not self.input_over):
            return False
        return self.room() > 0 and (self.epoch.memory is None or self.epoch.admits(self))

    def take(self, now_ns: int) -> Task | None:
        """Choose the next task: items taken back first, then the queue."""
        runtime = self.runtime
        if runtime.active >= runtime.concurrency or self.halted:
            return None
        if self.returned:
            seq, entry = self.returned.pop(0)
            self.waiting -= 1
            self.active_without_input = bool(self.returned)
            return self.started(Task(self, seq, deque((entry,))), now_ns)
        available = len(self.inbox)
        if not available or self.fatal or self.done:
            return None
        if self.room() <= 0:
            return None
        if self.gather:
            if available < self.gather and not self.input_over:
                return None
            count = min(available, self.gather)
        else:
            count = 1 if available == 1 or self.remote else self.chunk(available)
        if self.epoch.memory is not None and not self.epoch.admits(self):
            return None
        task = Task(self, self.seq_in, self._next_items(count))
        if self.gather:
            task.inputs = count
        self.seq_in += task.count
        self.reserved += task.count
        for above in self.upstream:
            if above.runtime.state == BLOCKED:
                self.freed(now_ns)
        if runtime.cost_ns > BOOKING_NS or now_ns - runtime.since_ns > BOOKING_NS:
            self.note_state(now_ns)
        runtime.active += 1
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
        runtime = self.runtime
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
        slow = runtime.cost_ns > BOOKING_NS
        if slow or now_ns - runtime.since_ns > BOOKING_NS:
            runtime.account(now_ns, runtime.state)
        if task.result_bytes is not None:
            runtime.measured(task.result_bytes, now_ns)
        count = len(results)
        runtime.active -= 1
        self.running -= 1
        runtime.learn(now_ns - task.started_ns, count, now_ns)
        counters = runtime.counters
        counters.items_in += task.inputs or count
        counters.items_out += count
        counters.bytes_out += runtime.item_bytes * count
        self.reserved -= count
        self.seq_out += count
        self.out.extend(results)
        following = self.downstream
        if following is not None and following.runtime.state == STARVED:
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
        self.waiting += len(rest)
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
            self.waiting += len(results)
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
            self.waiting -= len(results)
            self.epoch.dropped.append(results)  # what is taken from `out` meanwhile ends with it

    def _emit(self, seq: int, results: list[Any], now_ns: int, *, irregular: bool) -> None:
        self.reserved -= len(results)
        self.seq_out += len(results)
        self.emit(results, now_ns, irregular=irregular)
        if irregular or not self.ordered:  # only now it is known what ended the epoch
            self.log.note(seq, results)

    def rest_of_input(self, rest: Remaining, stages: Stages) -> Remaining:
        """Leave out what was dropped; a batch stands for all of its items."""
        inputs, size = self.log.inputs(rest), self.gather
        if not size:
            return inputs
        return Remaining(inputs.start * size, tuple((a * size, b * size) for a, b in inputs.gaps))

    @property
    def dropped(self) -> int:
        """Inputs that gave no result."""
        return self.log.count

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
        if len(self.inbox) < self.gather and (self.drop_last or self.input_error is not None):
            self.epoch.release(self.inbox)
            self.epoch.drop(self.inbox)  # a batch that holds a failed item cannot be made either
        return not self.inbox and not self.reserved
