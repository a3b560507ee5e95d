"""FusedProgram: the steps of stages that share their workers, as one value that is sent to them."""

from __future__ import annotations

import copy
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, cast

from ...base.checks import refuse_coroutine
from ...base.gil import lock_wait, switches
from ...base.seeding import CALL, Entry, Path, seed_for, seed_item
from ...base.threads import core_times_ns
from ...errors import ArgumentTypeError, UnpicklableError
from ...executors.interface import COUNTS, Response
from ...ops.batch import Batch
from ...ops.call import Call
from ..measures.counters import TIMING_NS
from .factories import checked_children
from .failures import Failed
from .step import EpochContext, StageCounters, Step, step_of

Begun = Callable[[int, Path], object]
ROUND_TRIP_NS = 20_000_000  # a request of several items should take about this long
_PATIENCE_NS = 2 * ROUND_TRIP_NS  # items that a request has not begun by then go to others


@dataclass(frozen=True, slots=True)
class FusedPart:
    """One stage of a fused stage: its address and its operation."""

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
        self._timing_ns = 0  # when processor time is measured again

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return self.__dict__ | {"_ready": None, "_timing_ns": 0}

    def prepare(self) -> None:
        """Call `worker_init` of the stages; their exceptions pass."""
        for init in self._inits:
            refuse_coroutine("worker_init", init())

    def calls(self, entries: Sequence[Entry]) -> int:
        """Return how many calls of functions these entries take at most, without retries."""
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

        The work ends early after a failure that ends the epoch, and once it took long: results do
        not wait longer for those that are sent with them.
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
        """Send an entry through all steps, and measure the processor time."""
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
        if isinstance(error, ArgumentTypeError):  # its message says what to do
            why = str(error)
        failure = UnpicklableError(
            f"stage {last.stage!r} gave a {type(value).__name__}, which cannot be sent from its "
            f"worker: {why}"
        )
        return last.failure(entry, failure, 1)

    def open(self, value: Any, path: Path, epoch: int) -> Any:
        """Call the function of a stage that returns many items for one."""
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
    except Exception:  # it cannot be copied: it is handed on as in threads
        return value


def _here() -> tuple[str, int]:
    return platform.node(), os.getpid()


class PlacedStep(Step):
    """A stage's step in a worker.

    Args:
        number: its place in the fused stage.
        away: this process is not the one that the run lives in.

    Attributes:
        begun: called with the number and the item's path before each call, or None.
    """

    __slots__ = ("_away", "begun", "number")

    def __init__(self, number: int, *args: Any, away: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.number = number
        self.begun: Begun | None = None
        self._away = away

    def call(self, entry: Entry) -> Any:
        """Report that a call begins, seed the global generators, and call the function."""
        if self.begun is not None:
            self.begun(self.number, entry[0])
        context, path = self.context, entry[0]
        CALL.stage, CALL.epoch, CALL.run_seed = self.stage, context.epoch, context.seed
        CALL.path = path
        if self._away:
            seed_item(seed_for(context.seed, context.epoch, self.stage, path))
        return super().call(entry)
