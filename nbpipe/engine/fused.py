"""Fused stages: neighbours that run together in workers, and these workers."""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Any, cast

from ..base.checks import refuse_coroutine
from ..base.gil import lock_wait, switches
from ..base.seeding import CALL, Entry, Path, seed_for, seed_item
from ..base.threads import core_times_ns
from ..errors import (
    ArgumentTypeError,
    ExecutorBrokenError,
    StageError,
    UnpicklableError,
    WorkerDiedError,
    WorkerStartError,
)
from ..executors.interface import COUNTS, Executor, Request, Response
from ..ops.batch import Batch
from ..ops.call import Call, FailurePolicy
from ..ops.ranges import IndexRanges
from ..ops.stage import ExecutorSpec, Stage
from .epoch import Epoch
from .expand import CallOpener, ExpandNode, checked_children, children
from .failures import Failed
from .map import MapNode
from .node import Node, Task, keep_result
from .stats import CHUNK_MAX, TIMING_NS, StageRuntime, most_at_once
from .step import Chunk, EpochContext, OpenIterator, StageCounters, Step, step_of

# -- FusedProgram: the steps of a fused stage as one value that is sent to where it runs -----------
Begun = Callable[[int, Path], object]
ROUND_TRIP_NS = 20_000_000  # a request of several items should take about this long
_PATIENCE_NS = 2 * ROUND_TRIP_NS  # what a request has not begun after so long goes to others


@dataclass(frozen=True, slots=True)
class FusedPart:
    """One stage of a fused_stage: its address and its operation."""

    stage: str
    spec: Call | Batch


class FusedProgram:
    """What the stages of one fused stage do to items.

    Where it runs in another process than the one that made it, the global generators of
    `random`, numpy and torch are seeded before each call, by the item alone.

    Args:
        parts: the stages, first to last; at most one of them is a batch.
        seed: the run's seed.
        executor: word for the executor, for errors.
        inits: functions to call once in each process, before the first item.

    Attributes:
        label: addresses of its stages, in one line.
        stages: addresses of its stages.
        functions: for each stage that calls a function its address, and the function.
    """

    def __init__(
        self,
        parts: Sequence[FusedPart],
        *,
        seed: int,
        executor: str,
        inits: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.stages = tuple(part.stage for part in parts)
        self.label = " > ".join(self.stages)
        self.functions = [(p.stage, p.spec.function) for p in parts if p.spec.runs == "call"]
        self._parts = tuple(parts)
        self._seed = seed
        self._executor = executor
        self._inits = tuple(inits)
        self._home = _here()
        self._ready: tuple[int, Sequence[PlacedStep]] | None = None
        self._timing_ns = 0  # from when on processor time is measured again

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return self.__dict__ | {"_ready": None, "_timing_ns": 0}

    def prepare(self) -> None:
        """Call `worker_init` of the stages; their exceptions pass."""
        for init in self._inits:
            refuse_coroutine("worker_init", init())

    def calls(self, entries: Sequence[Entry]) -> int:
        """Return how many calls of functions these entries take at most, tries again left out."""
        gathers = any(part.spec.runs == "batch" for part in self._parts)
        items = sum(len(entry[1]) for entry in entries) if gathers else len(entries)
        return items * len(self.functions)

    def work(
        self,
        entries: Sequence[Entry],
        epoch: int,
        begun: Begun | None = None,
        kept: Callable[[Entry, Any], Any] | None = None,
    ) -> Response:
        """Do the work of all stages; exceptions of user code become failures in the response.

        A failure that ends the epoch ends the work, and so does time: results wait no longer for
        those that are sent with them.
        """
        steps = self._steps(epoch)
        for step in steps:
            step.begun = begun
        tally = StageCounters()
        tally.counts = [[0] * COUNTS for _ in steps]
        began_ns = now_ns = perf_counter_ns()
        results: list[Any] = []
        for entry in entries:
            if now_ns < self._timing_ns:
                result = self._made_of(entry, steps, tally)
            else:
                result = self._measured(entry, steps, tally)
            if kept is not None:
                result = kept(entry, result)
            results.append(result)
            now_ns = perf_counter_ns()
            if now_ns - began_ns > _PATIENCE_NS or (isinstance(result, Failed) and result.fatal):
                break
        CALL.stage = ""
        return Response(results, tally.counts, tally.retried)

    def _measured(self, entry: Entry, steps: Sequence[PlacedStep], tally: StageCounters) -> Any:
        """Do so, and measure what processor time it takes."""
        begun_ns, before, (computed_ns, wanted_ns) = perf_counter_ns(), switches(), core_times_ns()
        result = self._made_of(entry, steps, tally)
        (cpu_ns, lacked_ns), after, ended_ns = core_times_ns(), switches(), perf_counter_ns()
        self._timing_ns = ended_ns + TIMING_NS
        cpu_ns, lacked_ns = cpu_ns - computed_ns, lacked_ns - wanted_ns
        timed_ns = ended_ns - begun_ns - lacked_ns
        wait = lock_wait(timed_ns - cpu_ns, lacked_ns, before, after)  # in threads of a pool
        assert tally.counts is not None
        tally.counts[0][-2] += timed_ns - (0 if wait is None else wait.most_ns)
        tally.counts[0][-1] += cpu_ns
        return result

    def _made_of(self, entry: Entry, steps: Sequence[PlacedStep], tally: StageCounters) -> Any:
        """Send an entry through all steps; one for a batch holds the entries of its items."""
        gathering = next((step.number for step in steps if step.gathers), None)
        if gathering is None:
            return tally.through(entry, steps)
        values = []
        for single in entry[1]:
            result = tally.through(single, steps[:gathering])
            if type(result) is not tuple:
                return result
            values.append(result[1] if single is entry[1][-1] else _copied(result[1]))
        return tally.through((entry[0], values), steps[gathering:], gathering)

    def unsendable(self, entry: Entry, result: Any, error: BaseException) -> Failed:
        """Make the failure for a result that cannot be pickled."""
        last = self._steps(self._ready[0] if self._ready else 0)[-1]
        value = result[1] if isinstance(result, tuple) else result
        why = "it cannot be pickled; return arrays, tensors or plain values"
        if isinstance(error, ArgumentTypeError):  # our own refusal says what to do
            why = str(error)
        failure = UnpicklableError(
            f"stage {last.stage!r} gave a {type(value).__name__}, which cannot be sent from its "
            f"worker: {why}"
        )
        return last.failure(entry, failure, 1)

    def open(self, value: Any, path: Path, epoch: int) -> Any:
        """Call the function of a stage that gives many items for one."""
        step = self._steps(epoch)[0]
        return checked_children(step.stage, step.call((path, value)))

    def _steps(self, epoch: int) -> Sequence[PlacedStep]:
        ready = self._ready
        if ready is None or ready[0] != epoch:
            make = partial(PlacedStep, away=self._home != _here())
            context = EpochContext(self._seed, epoch)
            steps = [
                step_of(part.stage, part.spec, context, self._executor, partial(make, number))
                for number, part in enumerate(self._parts)
            ]
            self._ready = ready = epoch, cast("list[PlacedStep]", steps)
        return ready[1]


def _copied(value: Any) -> Any:
    """Copy an item that waits for its batch: the next call may fill the same memory again."""
    try:
        return copy.deepcopy(value)
    except Exception:  # no copy of it can be made: it is handed on as in threads
        return value


def _here() -> tuple[str, int]:
    return platform.node(), os.getpid()


class PlacedStep(Step):
    """A stage's step in a worker.

    Args:
        number: its place in the fused stage.
        away: this process is not the one that the run lives in.

    Attributes:
        begun: told the number and the item's path before each call, or None.
    """

    __slots__ = ("_away", "begun", "number")

    def __init__(self, number: int, *args: Any, away: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.number = number
        self.begun: Begun | None = None
        self._away = away

    def call(self, entry: Entry) -> Any:
        """Tell that a call begins, seed the global generators, call."""
        if self.begun is not None:
            self.begun(self.number, entry[0])
        context, path = self.context, entry[0]
        CALL.stage, CALL.epoch, CALL.run_seed = self.stage, context.epoch, context.seed
        CALL.path = path
        if self._away:
            seed_item(seed_for(context.seed, context.epoch, self.stage, path))
        return super().call(entry)


# -- FusedNode: stages that run together in workers outside the run's threads ---------------------
ROUND_TRIP_BYTES = 1 << 23  # nor should its results be larger: all are held at once
ROUND_TRIPS_BYTES = 1 << 26  # unless those of all workers together are not,
_FEWEST = 2  # taken to be so many at least
DRAW_NS = 1_000_000  # a task that draws from a generator takes about this long
_SEVERAL = 2  # items have a first and a last one
_LOT = 4  # so many items at once are worth waiting for
_BROKEN = (ExecutorBrokenError, WorkerStartError)


def _is_over(task: Task) -> bool:
    """Tell whether a task has ended with a failure that ends the epoch."""
    last = task.results[-1] if task.irregular else None
    return isinstance(last, Failed) and last.fatal


@dataclass(frozen=True, slots=True)
class FusedStage:
    """StageStates that share their workers.

    Attributes:
        program: what they do.
        executor: has it done.
        steps: by address, for the failures that are noticed here.
        timeout_s: longest time of one call [s], or None.
        singly: items are sent one at a time.
    """

    program: FusedProgram
    executor: Executor
    steps: dict[str, Step]
    timeout_s: float | None = None
    singly: bool = False

    def step_for(self, error: BaseException) -> Step:
        """Return the step that an error is about; the first, where that is not known."""
        stage = error.stage if isinstance(error, StageError) else ""
        return self.steps.get(stage) or next(iter(self.steps.values()))

    def failure(self, entry: Entry, error: BaseException, attempts: int) -> Failed:
        """Make the record of an item that a worker did not come back from."""
        if isinstance(error, WorkerDiedError) and attempts > 1:
            error.add_note(f"{attempts} workers died of this item, one after the other")
        return self.step_for(error).failure(entry, error, attempts)

    def wait_before_retry_s(self, attempts: int, error: BaseException) -> float | None:
        """Return the wait before one more try [s], or None; a death has tries of its own."""
        if isinstance(error, _BROKEN):
            return None
        if isinstance(error, WorkerDiedError):
            return 0.0 if attempts <= self.executor.retries_of_deaths else None
        return next(iter(self.steps.values())).wait_before_retry_s(attempts, error)


class FusedNode(MapNode):
    """Has each item, or each batch, worked on elsewhere, while a thread of the run waits.

    The runtime is that of its last stage, after which results wait; the stages before it have
    rows of their own.

    Args:
        fused_stage: the stages.
        gather: items that one call takes together; then each keeps its own path.
    """

    __slots__ = ("busy_ns", "fused_stage")
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
        last = list(fused_stage.steps.values())[-1]
        super().__init__(runtime, epoch, last, ordered=ordered, gather=gather, drop_last=drop_last)
        self.fused_stage = fused_stage
        self.chunked = False
        self.sends = True
        self.counts_in = False  # the worker does
        self.busy_ns: float = ROUND_TRIP_NS  # one item's time in the functions

    @property
    def shares_workers(self) -> bool:
        """Whether its tasks go through several stages elsewhere."""
        return bool(self.rest_runtimes)

    def chunk(self, available: int) -> int:
        """Return the number of items to send at once.

        The way there and back costs the same for one as for several.
        """
        if self.fused_stage.singly:
            return 1
        runtime = self.runtime
        most = min(most_at_once(runtime.prefetch), available, CHUNK_MAX)
        if self.epoch.memory is not None:
            most = min(most, self.epoch.memory.affordable(self))
        in_time = ROUND_TRIP_NS / max(1.0, self.busy_ns)
        share_bytes = ROUND_TRIPS_BYTES / max(_FEWEST, runtime.concurrency)
        in_size = max(ROUND_TRIP_BYTES, share_bytes) / max(1.0, runtime.item_bytes)
        return max(1, min(most, int(in_time), int(in_size)))

    def comes_in_chunks(self, slow_ns: int) -> bool:
        """Tell whether several items are sent at once: then the consumer takes them so, too."""
        return not self.fused_stage.singly and self.busy_ns < ROUND_TRIP_NS / _LOT

    def gathered(self, chunk: Chunk) -> Chunk:
        """Make one item of several, each with its own path."""
        return Chunk(chunk.paths[:1], [[*zip(chunk.paths, chunk.values, strict=True)]])

    def item_of(self, task: Task) -> str:
        """Tell which items a task works on: those it was sent, but for what came back."""
        left = task.sent[len(task.results) :]
        if self.gather:
            left = [single for entry in left for single in entry[1]]
        if len(left) < _SEVERAL:
            return str(left[0][0]) if left else ""
        return f"{left[0][0]} to {left[-1][0]}"

    def work(self, task: Task) -> None:
        """Have all entries of a task worked on."""
        if not task.sent and (self.epoch.over or self._prepared(task) is None):
            task.inputs = 0  # nobody wants it any more, or all was taken back
            return
        try:
            self._work_on(task)
        finally:
            rows = task.counts or []
            task.sent = ()
            task.inputs, task.counts = rows[-1][0], rows[:-1]
            if rows[0][-2]:
                with self.epoch.lock:
                    (*self.rest_runtimes, self.runtime)[0].learn_cpu(rows[0][-2], rows[0][-1])
            spent_ns = perf_counter_ns() - task.started_ns
            busy_ns = sum(row[2] for row in rows)
            task.away_ns = spent_ns - busy_ns
            each_ns = busy_ns / max(1, len(task.results))
            self.busy_ns = max(each_ns, 0.8 * self.busy_ns + 0.2 * each_ns)

    def _prepared(self, task: Task) -> Request | None:
        """Return the request of all items of a task; None where there are none."""
        entries: list[Entry] = [*zip(task.paths, [*task.items], strict=False)]
        if entries:
            task.sent = entries
            task.counts = [
                [0] * COUNTS for _ in self.fused_stage.program.stages
            ]  # the last one is its own
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
        """Choose what the worker of a task does next, while its results are read here.

        Its call goes over to that task, which the same thread sees to when this one is settled.
        """
        epoch, runtime, now_ns = self.epoch, self.runtime, perf_counter_ns()
        with epoch.lock:
            # One that is not begun here was sent itself, and is only seen to before its turn.
            if not task.started_ns or epoch.held or not epoch.may_start:
                return None
            runtime.occupy(-1, now_ns)
            task.following = following = self.take(now_ns)
            if following is None:
                runtime.occupy(1, now_ns)
                return None
            following.cheap = False  # this thread waits for the worker: others do what is next
            if epoch.memory is not None:
                epoch.memory.began(self)
        return self._prepared(following)

    def _work_on(self, task: Task) -> None:
        """Have entries worked on; where a worker does not come back, each of them alone."""
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
                    if not self.epoch.over:  # let others have those that were not begun
                        self._return(task, [*left])
                task.sent = entries[: len(task.results)]  # it may be seen to once more
                return

    def _called(self, task: Task, request: Request) -> BaseException | None:
        """Have a request done and take its response; return what went wrong."""
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
        """Return the item that an error is about: of a batch, the one in whose call it came."""
        path = error.path if isinstance(error, StageError) else None
        singles: Sequence[Entry] = entry[1] if self.gather else ()
        return next((single for single in singles if single[0] == path), entry)

    def _count(self, entry: Entry, place: int, tally: list[list[int]]) -> None:
        """Count an item that did not come back from the stage at `place`."""
        items = len(entry[1]) if self.gather else 1
        for row in tally[: place + 1]:
            row[0] += items
        for row in tally[:place]:
            row[1] += items

    def _take_response(self, task: Task, response: Response) -> None:
        for row, more in zip(task.counts or [], response.tally, strict=True):
            for place, count in enumerate(more):
                row[place] += count
        task.retried += response.retried
        for result in response.results:
            keep_result(task, result)


class RegionExpandNode(ExpandNode):
    """Draws from iterators that live in workers: `flat_map` outside the run's threads."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.chunked = False

    def chunk(self, available: int) -> int:
        """Return the number of items to draw at once: what there is place for, and for a while."""
        places = max(1, self.runtime.prefetch + self.runtime.concurrency - self.held())
        return max(1, min(available, places, int(DRAW_NS / max(1.0, self.runtime.cost_ns))))

    def work(self, task: Task) -> None:
        """Draw up to the quota; say how many are wanted, so that no more are made."""
        iterator = task.iterator
        assert iterator is not None
        wanted = getattr(iterator.inner, "want", None)
        if wanted is not None:
            wanted(task.quota)
        before_ns = getattr(iterator.inner, "away_ns", 0)
        super().work(task)
        task.away_ns = max(0, getattr(iterator.inner, "away_ns", 0) - before_ns)


class RegionOpener(CallOpener):
    """Opens the children of one item in a worker."""

    def __init__(self, step: Step, fused_stage: FusedStage) -> None:
        super().__init__(step)
        self._fused_stage = fused_stage

    def open(self, iterator: OpenIterator) -> None:
        """Have the function called on the item, somewhere else."""
        entry = iterator.entry
        assert entry is not None
        self._step.wait(iterator.wait_s)
        path, value, *_ = entry  # its size is of no interest there
        request = Request(self._fused_stage.program, self._step.context.epoch, [(path, value)])
        iterator.inner = self._fused_stage.executor.expand(request)
        iterator.entries = children(path, iterator.inner, iterator)

    def recover(self, iterator: OpenIterator, error: BaseException, task: Task) -> Failed | None:
        """Open again, also where a worker died, or give the failure."""
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
        known: of a `flat_map`, the children that are wanted, where those are not all.
        held_in_order: keep input order despite `ordered=False`.
    """
    specs: list[Any] = [stage.spec for stage in group]
    if specs[-1].expands:
        (step,) = fused_stage.steps.values()
        factory = RegionOpener(step, fused_stage)
        ordered = specs[-1].ordered or held_in_order
        return RegionExpandNode(runtime, epoch, factory, ordered=ordered, known=known)
    batch = next((spec for spec in specs if spec.runs == "batch"), None)
    if batch is not None:
        return FusedNode(
            runtime, epoch, fused_stage, gather=int(batch.size), drop_last=batch.drop_last
        )
    ordered = held_in_order or all(spec.ordered for spec in specs if spec.runs == "call")
    return FusedNode(runtime, epoch, fused_stage, ordered=ordered)


# -- FusedStages: the workers of a run outside its own threads -------------------------------------
_RING_SHARE = 4  # of the memory budget of a run, this part is for shared memory


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
        placements = [stage.executor_spec for stage in group if stage.executor_spec is not None]
        inits = [one.worker_init for one in placements if one.worker_init is not None]
        return FusedProgram(
            parts, seed=self._seed, executor=group[0].executor, inits=list(dict.fromkeys(inits))
        )

    def _executor(self, group: Sequence[Stage]) -> Executor:
        executor_spec = group[0].executor_spec
        assert executor_spec is not None
        if executor_spec.executor == "process":
            return self._process_executor(executor_spec, group)
        if executor_spec.executor == "dask":
            from ..executors.dask import ClusterExecutor, dask_executor_of

            spec = dask_executor_of(executor_spec.given or "dask")
            assert spec is not None
            return ClusterExecutor(spec)
        from ..executors.futures import ForeignExecutor

        return ForeignExecutor(cast("concurrent.futures.Executor", executor_spec.given))

    def _process_executor(self, executor_spec: ExecutorSpec, group: Sequence[Stage]) -> Executor:
        from ..executors.process import ProcessExecutor

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
        """Whether any stage is served from outside the run's threads."""
        return bool(self._of)

    def executor(self, address: str) -> Executor | None:
        """Return the caller that serves a stage, or None."""
        head = self._of.get(address)
        return None if head is None else self._executors[head]

    def head(self, address: str) -> str | None:
        """Return the first stage of the fused stage that a stage belongs to, or None."""
        return self._of.get(address)

    def prepare(self) -> None:
        """Called when an epoch begins: refuse now what cannot be sent.

        Raises:
            UnpicklableError: a function cannot be sent to where it would run.
        """
        for head, executor in self._executors.items():
            executor.renew()
            executor.prepare(self._programs[head])

    def each(self, action: Callable[[Executor], object]) -> None:
        """Call a function with every executor."""
        for executor in list(self._executors.values()):
            action(executor)

    def close(self, timeout_s: float) -> list[str]:
        """End all workers; give the stages that were still inside user code."""
        deadline_s = monotonic() + timeout_s
        late: list[str] = []
        for executor in self._executors.values():
            late += executor.close(max(0.0, deadline_s - monotonic()))
        return late


def _spec(stage: Stage) -> Call | Batch:
    """Return what a stage of a fused stage does; the run decides on a `flat_map` that failed."""
    if stage.spec.expands:
        return dataclasses.replace(cast("Call", stage.spec), policy=FailurePolicy())
    return cast("Call | Batch", stage.spec)
