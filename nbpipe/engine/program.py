"""RegionProgram: the steps of a region as one value that is sent to where it runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from ..errors import UnpicklableError
from ..executors.base import Answer
from ..executors.surroundings import seed_item
from ..operations import Batch, Call
from ..seeding import Path, seed_for
from ..worker import CALL
from .context import EpochContext
from .failures import Failed
from .steps import step_of
from .task import Entry

Begun = Callable[[int], object]
Hand = Callable[[list[Any]], object]
_PATIENCE_NS = 25_000_000  # results wait no longer for those that are sent with them


@dataclass(frozen=True, slots=True)
class Part:
    """One stage of a region: its address and its operation."""

    stage: str
    spec: Call | Batch


class RegionProgram:
    """What the stages of one region do to items.

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
        parts: Sequence[Part],
        *,
        seed: int,
        executor: str,
        inits: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.stages = tuple(part.stage for part in parts)
        self.label = " > ".join(self.stages)
        self.functions = [(p.stage, p.spec.fn) for p in parts if isinstance(p.spec, Call)]
        self._parts = tuple(parts)
        self._seed = seed
        self._executor = executor
        self._inits = tuple(inits)
        self._home = _here()
        self._ready: tuple[int, _Pass] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return self.__dict__ | {"_ready": None}

    def prepare(self) -> None:
        """Call `worker_init` of the stages; their exceptions pass."""
        for init in self._inits:
            init()

    def run(
        self,
        entries: Sequence[Entry],
        epoch: int,
        begun: Begun | None = None,
        hand: Hand | None = None,
    ) -> Answer:
        """Do the work of all stages; exceptions of user code become failures in the answer."""
        return self._pass(epoch).run(entries, begun, hand)

    def unsendable(self, entry: Entry, result: Any) -> Failed:
        """Make the failure for a result that cannot be pickled."""
        last = self._pass(self._ready[0] if self._ready else 0).steps[-1]
        value = result[1] if isinstance(result, tuple) else result
        return last.refuse(entry, value)

    def open(self, value: Any, path: Path, epoch: int) -> Any:
        """Call the function of a stage that gives many items for one."""
        return self._pass(epoch).steps[0].open((path, value))

    def _pass(self, epoch: int) -> _Pass:
        if self._ready is None or self._ready[0] != epoch:
            away = self._home != _here()
            context = EpochContext(self._seed, epoch)
            steps = [
                PlacedStep(part, number, context, self._executor, away=away)
                for number, part in enumerate(self._parts)
            ]
            self._ready = epoch, _Pass(steps)
        return self._ready[1]


def _here() -> tuple[str, int]:
    return platform.node(), os.getpid()


class PlacedStep:
    """A stage's step, and what belongs to each call of it in a worker.

    Args:
        number: its place in the region.
        away: this process is not the one that the run lives in.

    Attributes:
        batches: it takes a list of items.
        begun: told the number before each call, or None.
        tally: calls, results and time in the function [ns].
    """

    def __init__(
        self, part: Part, number: int, context: EpochContext, executor: str, *, away: bool
    ) -> None:
        self.batches = isinstance(part.spec, Batch)
        self.begun: Begun | None = None
        self.tally = [0, 0, 0]
        self.retried: tuple[str, ...] = ()
        self._number = number
        self._context = context
        self._away = away
        self._path: Path = 0
        self._step = step = step_of(part.stage, part.spec, context, executor)
        self._fn = step.fn
        step.fn = self._call

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """Say that a call begins, seed the global generators, call."""
        if self.begun is not None:
            self.begun(self._number)
        stage, epoch, seed, path = (
            self._step.stage,
            self._context.epoch,
            self._context.seed,
            self._path,
        )
        CALL.stage, CALL.epoch, CALL.run_seed, CALL.path = stage, epoch, seed, path
        if self._away:
            seed_item(seed_for(seed, epoch, stage, path))
        return self._fn(*args, **kwargs)

    def open(self, entry: Entry) -> Any:
        """Call the function on an entry; its exceptions pass."""
        self._path = entry[0]
        return self._step.fn(entry[1], **self._step.arguments(entry))

    def refuse(self, entry: Entry, result: Any) -> Failed:
        """Make the failure for a result that cannot leave this process."""
        step = self._step
        error = UnpicklableError(
            f"stage {step.stage!r} gave a {type(result).__name__}, which cannot be sent from its "
            "worker: it cannot be pickled; return arrays, tensors or plain values"
        )
        return step.failure(entry, error, 1)

    def apply(self, entry: Entry) -> Entry | Failed | None:
        """Call the function on an entry; a failure is retried or becomes a `Failed`."""
        step = self._step
        self._path = entry[0]
        begun_ns = perf_counter_ns()
        try:
            result: Entry | Failed | None = step.produce(entry)
        except BaseException as error:
            result = step.recover(entry, error, self)
        tally = self.tally
        tally[2] += perf_counter_ns() - begun_ns
        tally[0] += len(entry[1]) if self.batches else 1
        tally[1] += type(result) is tuple
        return result


class _Pass:
    """The steps of one epoch."""

    def __init__(self, steps: Sequence[PlacedStep]) -> None:
        self.steps = steps
        gathers = [number for number, step in enumerate(steps) if step.batches]
        place = gathers[0] if gathers else len(steps)
        self._singles, self._wholes = steps[:place], steps[place:]

    def run(self, entries: Sequence[Entry], begun: Begun | None, hand: Hand | None) -> Answer:
        """Send every entry through all steps; a failure that ends the epoch ends the work."""
        for step in self.steps:
            step.begun, step.tally, step.retried = begun, [0, 0, 0], ()
        results: list[Any] = []
        since_ns = perf_counter_ns()
        for entry in entries:
            if hand is not None and results and perf_counter_ns() - since_ns > _PATIENCE_NS:
                hand(results)
                results, since_ns = [], perf_counter_ns()
            result = self._gathered(entry) if self._wholes else _through(entry, self._singles)
            results.append(result)
            if isinstance(result, Failed) and result.fatal:
                break
        CALL.stage = ""
        retried = tuple(stage for step in self.steps for stage in step.retried)
        return Answer(results, [step.tally for step in self.steps], retried)

    def _gathered(self, entry: Entry) -> Entry | Failed | None:
        """Make one batch of an entry that holds the entries of a whole batch."""
        values = []
        for single in entry[1]:
            result = _through(single, self._singles)
            if not isinstance(result, tuple):
                return result
            values.append(result[1])
        return _through((entry[0], values), self._wholes)


def _through(entry: Entry, steps: Sequence[PlacedStep]) -> Entry | Failed | None:
    for step in steps:
        result = step.apply(entry)
        if not isinstance(result, tuple):
            return result
        entry = result
    return entry
