"""zip, concat, mix, interleave: several pipelines become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from .errors import ArgumentError, ArgumentTypeError
from .operations import Concat, Interleave, Mix, Operation, Zip, as_float, flag, whole
from .pipeline import Pipeline
from .stage import Stage

PREFETCH = 8


def zip(*pipes: Pipeline, strict: bool = True) -> Pipeline:  # noqa: A001  the field's word
    """Join pipelines item by item: tuples of one item from each.

    Args:
        pipes: at least one pipeline.
        strict: raise when one ends before the others; False stops at the shortest.

    Raises:
        ArgumentError: none given.
        ArgumentTypeError: something else than pipelines.
    """
    return _joined(Zip(strict=flag("zip strict", strict)), _checked("zip", pipes))


def concat(*pipes: Pipeline) -> Pipeline:
    """Give the items of one pipeline after those of the other.

    Where all of them are sources read by index, a full `shuffle()` may follow.
    """
    return _joined(Concat(), _checked("concat", pipes))


def mix(
    pipes: Sequence[Pipeline],
    weights: Sequence[float] | None = None,
    *,
    seed: int = 0,
    stop: Literal["longest", "shortest"] = "longest",
) -> Pipeline:
    """Draw each item from one of several pipelines, by weight; deterministic for a seed.

    Args:
        pipes: at least one pipeline.
        weights: one number above 0 for each; equal where not given.
        seed: seed of the draws.
        stop: "longest": pipelines that end drop out, until none is left; "shortest": end when
            a pipeline that is drawn has ended.

    Raises:
        ArgumentError: weights that do not fit, or another word for `stop`.
        ArgumentTypeError: something else than a sequence of pipelines.
    """
    given = _several("mix", pipes)
    if stop not in ("longest", "shortest"):
        raise ArgumentError(f"mix stop must be 'longest' or 'shortest', got {stop!r}")
    seed = whole("mix seed", seed, minimum=-(2**63), maximum=2**64)
    return _joined(Mix(weights=_weights_of(weights, len(given)), seed=seed, stop=stop), given)


def interleave(pipes: Sequence[Pipeline], cycle: int = 4, *, prefetch: int = PREFETCH) -> Pipeline:
    """Take turns between pipelines, `cycle` of them open at once.

    A pipeline that ends gives its turn to the next one that was not opened yet, as tf.data's
    interleave does with a block length of 1.

    Args:
        pipes: at least one pipeline.
        cycle: pipelines open at once, at least 1.
        prefetch: items held ready [items]; a live knob.

    Raises:
        ArgumentError: none given, or a `cycle` below 1.
        ArgumentTypeError: something else than a sequence of pipelines.
        KnobError: `prefetch` out of range.
    """
    cycle = whole("interleave cycle", cycle, minimum=1, unit="pipelines")
    return _joined(Interleave(cycle=cycle), _several("interleave", pipes), prefetch=prefetch)


def _joined(spec: Operation, pipes: Sequence[Pipeline], prefetch: int | None = None) -> Pipeline:
    inputs = tuple(pipe.chain for pipe in pipes)
    words = frozenset() if prefetch in (None, PREFETCH) else frozenset({"prefetch"})
    stage = Stage(spec, name=spec.label, prefetch=prefetch, inputs=inputs, given=words)
    return Pipeline((stage,))


def _several(word: str, pipes: object) -> Sequence[Pipeline]:
    """Check the sequence of pipelines that `mix` or `interleave` was given."""
    if isinstance(pipes, str) or not isinstance(pipes, Sequence):
        raise ArgumentTypeError(
            f"{word} must be given a sequence of pipelines, got {type(pipes).__name__}; "
            f"as {word}([one, other])"
        )
    return _checked(word, pipes)


def _checked(word: str, pipes: Sequence[Any]) -> Sequence[Pipeline]:
    if not pipes:
        raise ArgumentError(f"{word} must be given at least one pipeline, got none")
    for pipe in pipes:
        if isinstance(pipe, list | tuple):
            raise ArgumentTypeError(
                f"{word} must be given pipelines one by one, got a {type(pipe).__name__}; "
                f"write {word}(*pipes)"
            )
        if not isinstance(pipe, Pipeline):
            raise ArgumentTypeError(
                f"{word} must be given pipelines, got {type(pipe).__name__}; "
                "wrap it: nbpipe.source(...)"
            )
    return pipes


def _weights_of(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
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
