"""zip, concat, mix, interleave: several pipelines become one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.checks import as_float
from ..errors import ArgumentError, ArgumentTypeError, LengthUnknownError
from .plan import IndexPlan
from .source import Source
from .stage import Chain, Operation, Runs, Stage


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Zip(Operation):
    """Tuples of one item from each pipeline."""

    label: ClassVar[str] = "zip"
    runs: ClassVar[Runs] = "join"
    strict: bool = True

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Return the length of the shortest input."""
        return min(map(length_of, stage.inputs))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Concat(Operation):
    """One pipeline after the other."""

    label: ClassVar[str] = "concat"
    runs: ClassVar[Runs] = "join"

    def indexed(self, stage: Stage, plan_of: Callable[[Chain], IndexPlan | None]) -> Source | None:
        """Return the orders of all inputs as one, where all are read by index."""
        plans = [plan_of(part) for part in stage.inputs]
        known = [plan for plan in plans if plan is not None]
        if len(known) < len(plans):
            return None
        return Source(items=_Sources(stage), plan=IndexPlan.concat(known))

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Add the lengths of all inputs."""
        return sum(map(length_of, stage.inputs))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mix(Operation):
    """Draws by weight."""

    label: ClassVar[str] = "mix"
    runs: ClassVar[Runs] = "join"
    weights: tuple[float, ...]
    seed: int = 0
    stop: Literal["longest", "shortest"] = "longest"

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Add the lengths of all inputs, where all are read to their ends."""
        lengths = list(map(length_of, stage.inputs))
        if self.stop == "shortest" and len(lengths) > 1:
            raise LengthUnknownError(f"{stage.name!r} stops by chance: where the first input ends")
        return sum(lengths)

    def arguments(self, given: frozenset[str]) -> list[tuple[str, Any]]:
        """Return weights that differ, the seed, which a reader should see, and when it stops."""
        weights = [] if len(set(self.weights)) == 1 else [("weights", self.weights)]
        stop = [] if self.stop == "longest" else [("stop", self.stop)]
        return [*weights, ("seed", self.seed), *stop]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Interleave(Operation):
    """Turns between `cycle` pipelines that are open at once."""

    label: ClassVar[str] = "interleave"
    runs: ClassVar[Runs] = "join"
    cycle: int

    def length(self, stage: Stage, number: float, length_of: Callable[[Chain], float]) -> float:
        """Add the lengths of all inputs."""
        return sum(map(length_of, stage.inputs))


class _Sources:
    """The sources of a concat that is read by index: they hear of every epoch."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def set_epoch(self, epoch: int) -> None:
        for chain in self._stage.inputs:
            spec: Any = chain[0].spec
            items = spec.items if spec.runs == "source" else _Sources(chain[0])
            set_epoch = getattr(items, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)


def mix_weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Check the weights of `mix`, and scale their sum to 1."""
    given = [1.0] * count if weights is None else weights
    if not isinstance(given, Sequence | np.ndarray):
        raise ArgumentTypeError(f"mix weights must be a sequence of numbers, got {weights!r}")
    if len(given) != count:
        raise ArgumentError(f"mix weights must be {count} numbers, one a pipeline, got {weights!r}")
    values = [as_float(weight) for weight in given]
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ArgumentError(f"mix weights must be finite numbers above 0, got {weights!r}")
    largest = max(values, default=1.0)
    values = [value / largest for value in values]
    return tuple(value / sum(values) for value in values)
