"""Fused stages: neighbours that run together in workers, and these workers."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Any, cast

from ...base.seeding import Entry, Path
from ...errors import ExecutorBrokenError, StageError, WorkerDiedError, WorkerStartError
from ...executors.interface import COUNTS, Executor, Request, Response
from ...ops.batch import Batch
from ...ops.call import Call, FailurePolicy
from ...ops.ranges import IndexRanges
from ...ops.stage import ExecutorSpec, Stage
from ..epoch import Epoch
from ..measures.counters import CHUNK_MAX, StageRuntime, most_at_once
from .expand import DrawRunner, ExpandNode
from .factories import ChildFactory, children
from .failures import Failed
from .map import CallRunner, MapNode
from .node import Node, NodeEpoch, Task, keep_result
from .program import ROUND_TRIP_NS, FusedPart, FusedProgram
from .step import Chunk, EpochContext, OpenIterator, Step, step_of

# -- FusedNode: stages that run together in workers outside the run's threads ----------------------
ROUND_TRIP_BYTES = 1 << 23  # nor should its results be larger: all are held at once,
ROUND_TRIPS_BYTES = 1 << 26  # unless those of all workers together are smaller than this;
_FEWEST = 2  # at least so many workers are assumed
DRAW_NS = 1_000_000  # a task that draws from a generator takes about this long
_SEVERAL = 2  # so many items have a first and a last one
_MANY = 4  # so many items at once are worth waiting for
_BROKEN = (ExecutorBrokenError, WorkerStartError)


def _is_over(task: Task) -> bool:
    """Return whether a task has ended with a failure that ends the epoch."""
    last = task.results[-1] if task.irregular else None
    return isinstance(last, Failed) and last.fatal


@dataclass(frozen=True, slots=True)
class FusedStage:
    """Stages that share their workers.

    Attributes:
        program: what they do.
        executor: runs it.
        steps: by address, for failures that are noticed in this process.
        timeout_s: longest time of one call [s], or None.
        singly: items are sent one at a time.
    """

    program: FusedProgram
    executor: Executor
    steps: dict[str, Step]
    timeout_s: float | None = None
    singly: bool = False

    def step_for(self, error: BaseException) -> Step:
        """Return the step that an error is about, or the first one if that is unknown."""
        stage = error.stage if isinstance(error, StageError) else ""
        return self.steps.get(stage) or next(iter(self.steps.values()))

    def failure(self, entry: Entry, error: BaseException, attempts: int) -> Failed:
        """Make the record of an item whose worker did not return."""
        if isinstance(error, WorkerDiedError) and attempts > 1:
            error.add_note(f"{attempts} workers died of this item, one after the other")
        return self.step_for(error).failure(entry, error, attempts)

    def wait_before_retry_s(self, attempts: int, error: BaseException) -> float | None:
        """Return the wait before one more try [s], or None; deaths of workers count apart."""
        if isinstance(error, _BROKEN):
            return None
        if isinstance(error, WorkerDiedError):
            return 0.0 if attempts <= self.executor.retries_of_deaths else None
        return next(iter(self.steps.values())).wait_before_retry_s(attempts, error)


class FusedRunner(CallRunner):
    """Sends each item, or each batch, to a worker, while a thread of the run waits.

    Args:
        fused_stage: the stages.
        gathers: the items are batches.

    Attributes:
        node: the node; set by it.
        busy_ns: estimated time of one item in the functions [ns].
    """

    __slots__ = ("_gathers", "busy_ns", "fused_stage", "node")
    node: FusedNode

    def __init__(self, epoch: NodeEpoch, fused_stage: FusedStage, *, gathers: bool) -> None:
        super().__init__(epoch, list(fused_stage.steps.values())[-1])
        self.fused_stage = fused_stage
        self._gathers = gathers
        self.busy_ns: float = ROUND_TRIP_NS

    def item_of(self, task: Task) -> str:
        """Return the paths of the items that were sent and did not come back."""
        left = task.sent[len(task.results) :]
        if self._gathers:
            left = [single for entry in left for single in entry[1]]
        if len(left) < _SEVERAL:
            return str(left[0][0]) if left else ""
        return f"{left[0][0]} to {left[-1][0]}"

    def run(self, task: Task) -> None:
        """Send all entries of a task to workers, and keep the results."""
        if not task.sent and (self.epoch.over or self._prepare(task) is None):
            task.inputs = 0  # the epoch is over, or all items were reclaimed
            return
        try:
            self._work_on(task)
        finally:
            rows = task.counts or []
            task.sent = ()
            task.inputs, task.counts = rows[-1][0], rows[:-1]
            if rows[0][-2]:
                with self.epoch.lock:
                    runtime = (*self.node.rest_runtimes, self.node.runtime)[0]
                    runtime.learn_cpu(rows[0][-2], rows[0][-1])
            spent_ns = perf_counter_ns() - task.started_ns
            busy_ns = sum(row[2] for row in rows)
            task.away_ns = spent_ns - busy_ns
            each_ns = busy_ns / max(1, len(task.results))
            self.busy_ns = max(each_ns, 0.8 * self.busy_ns + 0.2 * each_ns)

    def _prepare(self, task: Task) -> Request | None:
        """Return the request of all items of a task; None where there are none."""
        entries: list[Entry] = [*zip(task.paths, [*task.items], strict=False)]
        if entries:
            task.sent = entries
            task.counts = [
                [0] * COUNTS for _ in self.fused_stage.program.stages
            ]  # the last one belongs to this node's own stage
            following = None if self.fused_stage.singly else partial(self._follow, task)
            task.request = self._request(entries, following)
        return task.request

    def _request(
        self, entries: Sequence[Entry], following: Callable[[], Request | None] | None
    ) -> Request:
        fused_stage, number = self.fused_stage, self.first.context.epoch
        return Request(
            fused_stage.program, number, entries, fused_stage.timeout_s, following=following
        )

    def _follow(self, task: Task) -> Request | None:
        """Choose the next task of a worker, which begins it while its results are read here.

        That task takes over the call of this one; the same thread waits for it next.
        """
        epoch, node, now_ns = self.epoch, self.node, perf_counter_ns()
        runtime = node.runtime
        with epoch.lock:
            # A task that has not begun here is itself a following one, which was sent early.
            if not task.started_ns or epoch.held or not epoch.may_start:
                return None
            runtime.occupy(-1, now_ns)
            task.following = following = node.take(now_ns)
            if following is None:
                runtime.occupy(1, now_ns)
                return None
            following.cheap = False  # this thread waits for the worker: others do other work
            if epoch.memory is not None:
                epoch.memory.began(node)
        return self._prepare(following)

    def _work_on(self, task: Task) -> None:
        """Send entries; where a worker does not return, send each of them alone."""
        entries, request, task.request = task.sent, task.request, None
        singly = 0  # entries before this place are sent one by one
        while (done := len(task.results)) < len(entries):
            if request is None and (_is_over(task) or self.epoch.over):
                return
            until = done + 1 if done < singly else len(entries)
            error = self._called(task, request or self._request(entries[done:until], None))
            request = None
            if error is not None:
                if task.following is not None:  # its worker may be the only one
                    self._work_on(task.following)
                if until - done == 1 or isinstance(error, _BROKEN):
                    self._try_again(task, entries[done], error)
                    continue
                singly = until
                if isinstance(error, WorkerDiedError):
                    task.retried += (self.fused_stage.step_for(error).stage,)
                continue
            left = entries[len(task.results) : until]
            if left and until == len(entries) and not _is_over(task):
                with self.epoch.lock:
                    if not self.epoch.over:  # other workers take those that were not begun
                        self.node.put_back(task, [*left])
                task.sent = entries[: len(task.results)]  # `run` may be called once more
                return

    def _called(self, task: Task, request: Request) -> BaseException | None:
        """Send a request and keep its results; return the error, if any."""
        try:
            self._take_response(task, self.fused_stage.executor.call(request))
        except BaseException as error:
            return error
        return None

    def _try_again(self, task: Task, entry: Entry, error: BaseException) -> None:
        fused_stage, attempts = self.fused_stage, 1
        while (wait_s := fused_stage.wait_before_retry_s(attempts, error)) is not None:
            if self.epoch.over or not self.first.wait(wait_s):
                break
            attempts += 1
            task.retried += (fused_stage.step_for(error).stage,)
            request = Request(
                fused_stage.program,
                self.first.context.epoch,
                [entry],
                fused_stage.timeout_s,
                suspect=True,
            )
            again = self._called(task, request)
            if again is None:
                return
            error = again
        failure = fused_stage.failure(self._culprit(entry, error), error, attempts)
        self._count(
            entry, fused_stage.program.stages.index(failure.record.stage), task.counts or []
        )
        keep_result(task, failure)

    def _culprit(self, entry: Entry, error: BaseException) -> Entry:
        """Return the item that an error is about: of a batch, the one whose call raised it."""
        path = error.path if isinstance(error, StageError) else None
        singles: Sequence[Entry] = entry[1] if self._gathers else ()
        return next((single for single in singles if single[0] == path), entry)

    def _count(self, entry: Entry, place: int, tally: list[list[int]]) -> None:
        """Count an item whose worker did not return from the stage at `place`."""
        items = len(entry[1]) if self._gathers else 1
        for row in tally[: place + 1]:
            row[0] += items
        for row in tally[:place]:
            row[1] += items

    def _take_response(self, task: Task, response: Response) -> None:
        for row, more in zip(task.counts or [], response.tally, strict=True):
            for place, count in enumerate(more):
                row[place] += count
        task.retried += response.retried
        task.worker = response.worker
        for result in response.results:
            keep_result(task, result)


class FusedNode(MapNode):
    """A MapNode of stages that share workers outside the run's threads.

    The runtime is that of the last stage, whose results wait.

    Args:
        fused_stage: the stages.
        ordered: results keep input order.
        gather: items that one call takes together; then each keeps its own path.
        drop_last: leave out a last batch that is not full.
    """

    __slots__ = ("_worker",)
    own_first = False

    def __init__(
        self,
        runtime: StageRuntime,
        epoch: Epoch,
        fused_stage: FusedStage,
        *,
        ordered: bool = True,
        gather: int = 0,
        drop_last: bool = False,
    ) -> None:
        self._worker = FusedRunner(epoch, fused_stage, gathers=bool(gather))
        self._worker.node = self
        super().__init__(
            runtime, epoch, self._worker, ordered=ordered, gather=gather, drop_last=drop_last
        )
        self.chunked = False
        self.always_chunks = True
        self.counts_in = False  # the worker does

    def chunk(self, available: int) -> int:
        """Return the number of items to send at once.

        A round trip costs the same for one as for several.
        """
        if self._worker.fused_stage.singly:
            return 1
        runtime = self.runtime
        most = min(most_at_once(runtime.prefetch), available, CHUNK_MAX)
        if self.epoch.memory is not None:
            most = min(most, self.epoch.memory.affordable(self))
        in_time = ROUND_TRIP_NS / max(1.0, self._worker.busy_ns)
        share_bytes = ROUND_TRIPS_BYTES / max(_FEWEST, runtime.concurrency)
        in_size = max(ROUND_TRIP_BYTES, share_bytes) / max(1.0, runtime.item_bytes)
        return max(1, min(most, int(in_time), int(in_size)))

    def comes_in_chunks(self, slow_ns: int) -> bool:
        """Return whether several items are sent at once; then the loop takes several, too."""
        worker = self._worker
        return not worker.fused_stage.singly and worker.busy_ns < ROUND_TRIP_NS / _MANY

    def gathered(self, chunk: Chunk) -> Chunk:
        """Make one item of several, each with its own path."""
        return Chunk(chunk.paths[:1], [[*zip(chunk.paths, chunk.values, strict=True)]])


class FusedExpandNode(ExpandNode):
    """Draws from iterators in workers: `flat_map` outside the run's threads."""

    __slots__ = ()

    def chunk(self, available: int) -> int:
        """Return the number of items to draw: as many as there is place and time for."""
        places = max(1, self.runtime.prefetch + self.runtime.concurrency - self.held())
        return max(1, min(available, places, int(DRAW_NS / max(1.0, self.runtime.cost_ns))))


class FusedDrawRunner(DrawRunner):
    """Draws from iterators in workers."""

    __slots__ = ()

    def run(self, task: Task) -> None:
        """Announce the quota, so that no more is made, and draw it."""
        iterator = task.iterator
        assert iterator is not None
        want = getattr(iterator.inner, "want", None)
        if want is not None:
            want(task.quota)
        before_ns = getattr(iterator.inner, "away_ns", 0)
        super().run(task)
        task.away_ns = max(0, getattr(iterator.inner, "away_ns", 0) - before_ns)


class FusedChildFactory(ChildFactory):
    """Opens the children of one item in a worker."""

    def __init__(self, step: Step, fused_stage: FusedStage) -> None:
        super().__init__(step)
        self._fused_stage = fused_stage

    def open(self, iterator: OpenIterator) -> None:
        """Call the function on the item in a worker."""
        entry = iterator.entry
        assert entry is not None
        self._step.wait(iterator.wait_s)
        path, value, *_ = entry  # without its size
        request = Request(self._fused_stage.program, self._step.context.epoch, [(path, value)])
        iterator.inner = self._fused_stage.executor.expand(request)
        iterator.entries = children(path, iterator.inner, iterator)

    def recover(self, iterator: OpenIterator, error: BaseException, task: Task) -> Failed | None:
        """Let it be opened again, also after a worker died, or return the failure."""
        attempts = iterator.attempts + 1
        died = isinstance(error, WorkerDiedError)
        if not died or attempts > self._fused_stage.executor.retries_of_deaths:
            return super().recover(iterator, error, task)
        iterator.attempts, iterator.entries, iterator.wait_s = attempts, None, 0.0
        task.retried += (self._step.stage,)
        return None


def node_of(
    group: Sequence[Stage],
    runtime: StageRuntime,
    epoch: Epoch,
    fused_stage: FusedStage,
    known: dict[Path, IndexRanges],
    *,
    held_in_order: bool,
) -> Node:
    """Make the node of stages that share their workers.

    Args:
        group: the stages.
        runtime: that of the last one.
        epoch: what it belongs to.
        fused_stage: does the work.
        known: of a `flat_map`, the children that are wanted, where not all are.
        held_in_order: keep input order despite `ordered=False`.
    """
    specs: list[Any] = [stage.spec for stage in group]
    if specs[-1].expands:
        (step,) = fused_stage.steps.values()
        factory = FusedChildFactory(step, fused_stage)
        ordered, runner = specs[-1].ordered or held_in_order, FusedDrawRunner(epoch, factory)
        node = FusedExpandNode(runtime, epoch, factory, runner=runner, ordered=ordered, known=known)
        node.chunked = False
        return node
    batch = next((spec for spec in specs if spec.runs == "batch"), None)
    if batch is not None:
        return FusedNode(
            runtime, epoch, fused_stage, gather=int(batch.size), drop_last=batch.drop_last
        )
    ordered = held_in_order or all(spec.ordered for spec in specs if spec.runs == "call")
    return FusedNode(runtime, epoch, fused_stage, ordered=ordered)


# -- FusedStages: the workers of a run outside its own threads -------------------------------------
_RING_SHARE = 4  # shared memory gets a quarter of a run's memory budget


class FusedStages:
    """Makes the executors of a run, and ends them with it.

    Args:
        seed: the run's seed.
        memory_bytes: the run's budget for all buffers [bytes], or None.
    """

    def __init__(self, seed: int, memory_bytes: int | None) -> None:
        self._seed = seed
        self._memory_bytes = memory_bytes
        self._programs: dict[str, FusedProgram] = {}
        self._executors: dict[str, Executor] = {}
        self._of: dict[str, str] = {}

    def fused_stage(
        self, group: Sequence[Stage], addresses: Sequence[str], context: EpochContext
    ) -> FusedStage:
        """Fuse some stages for one epoch; the workers of the last epoch are kept."""
        head = addresses[0]
        executor = self._executors.get(head)
        if executor is None:
            executor = self._executors[head] = self._executor(group)
            self._programs[head] = self._program(group, addresses)
            self._of.update(dict.fromkeys(addresses, head))
        steps = {
            address: step_of(address, stage.spec, context, stage.executor)
            for stage, address in zip(group, addresses, strict=True)
        }
        calls: list[Any] = [stage.spec for stage in group if stage.spec.runs == "call"]
        timeout_s = calls[0].timeout_s if calls else None
        wears = group[0].executor_spec is not None and group[0].executor_spec.max_items_per_worker
        singly = timeout_s is not None or bool(wears)
        return FusedStage(self._programs[head], executor, steps, timeout_s, singly)

    def _program(self, group: Sequence[Stage], addresses: Sequence[str]) -> FusedProgram:
        parts = [
            FusedPart(address, _spec(stage))
            for stage, address in zip(group, addresses, strict=True)
        ]
        specs = [stage.executor_spec for stage in group if stage.executor_spec is not None]
        inits = [one.worker_init for one in specs if one.worker_init is not None]
        return FusedProgram(
            parts, seed=self._seed, executor=group[0].executor, inits=list(dict.fromkeys(inits))
        )

    def _executor(self, group: Sequence[Stage]) -> Executor:
        executor_spec = group[0].executor_spec
        assert executor_spec is not None
        if executor_spec.executor == "process":
            return self._process_executor(executor_spec, group)
        if executor_spec.executor == "dask":
            from ...executors.dask import ClusterExecutor, dask_executor_of

            spec = dask_executor_of(executor_spec.given or "dask")
            assert spec is not None
            return ClusterExecutor(spec)
        from ...executors.futures import ForeignExecutor

        return ForeignExecutor(cast("concurrent.futures.Executor", executor_spec.given))

    def _process_executor(self, executor_spec: ExecutorSpec, group: Sequence[Stage]) -> Executor:
        from ...executors.process import ProcessExecutor

        limit = group[0].knob("concurrency")
        budget = {}
        if self._memory_bytes is not None:
            budget["budget_bytes"] = self._memory_bytes // _RING_SHARE
        copies = all(stage.executor_spec.copy for stage in group if stage.executor_spec is not None)
        return ProcessExecutor(
            limit=lambda: limit.value,
            copy=copies,
            max_items=executor_spec.max_items_per_worker,
            **budget,
        )

    @property
    def serves(self) -> bool:
        """Whether any stage runs outside the run's threads."""
        return bool(self._of)

    def executor(self, address: str) -> Executor | None:
        """Return the executor of a stage, or None."""
        head = self._of.get(address)
        return None if head is None else self._executors[head]

    def head(self, address: str) -> str | None:
        """Return the first stage of the fused stage that a stage belongs to, or None."""
        return self._of.get(address)

    def prepare(self) -> None:
        """Prepare the executors for an epoch that begins.

        Raises:
            UnpicklableError: a function cannot be sent to its worker.
        """
        for head, executor in self._executors.items():
            executor.renew()
            executor.prepare(self._programs[head])

    def each(self, action: Callable[[Executor], object]) -> None:
        """Call a function with every executor."""
        for executor in list(self._executors.values()):
            action(executor)

    def close(self, timeout_s: float) -> list[str]:
        """End all workers; return the stages that were still inside user code."""
        deadline_s = monotonic() + timeout_s
        late: list[str] = []
        for executor in self._executors.values():
            late += executor.close(max(0.0, deadline_s - monotonic()))
        return late


def _spec(stage: Stage) -> Call | Batch:
    """Return the spec for the worker; a failed `flat_map` is left to the run."""
    if stage.spec.expands:
        return dataclasses.replace(cast("Call", stage.spec), policy=FailurePolicy())
    return cast("Call | Batch", stage.spec)
