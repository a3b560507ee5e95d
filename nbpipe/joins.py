"""zip, concat, mix, interleave: several pipelines become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .errors import ArgumentError, ArgumentTypeError
from .operations import Concat, Interleave, Mix, Operation, Zip, weights_of, whole
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
    return _joined(Zip(strict=bool(strict)), pipes)


def concat(*pipes: Pipeline) -> Pipeline:
    """Give the items of one pipeline after those of the other.

    Where all of them are sources read by index, a full `shuffle()` may follow.
    """
    return _joined(Concat(), pipes)


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
    """
    if stop not in ("longest", "shortest"):
        raise ArgumentError(f"mix stop must be 'longest' or 'shortest', got {stop!r}")
    spec = Mix(weights=weights_of(weights, len(pipes)), seed=seed, stop=stop)
    return _joined(spec, pipes)


def interleave(
    pipes: Sequence[Pipeline], cycle: int = 4, *, prefetch: int = PREFETCH
) -> Pipeline:
    """Take turns between pipelines, `cycle` of them open at once.

    A pipeline that ends gives its turn to the next one that was not opened yet, as tf.data's
    interleave does with a block length of 1.

    Args:
        pipes: at least one pipeline.
        cycle: pipelines open at once, at least 1.
        prefetch: items held ready [items]; a live knob.
    """
    cycle = whole("interleave cycle", cycle, minimum=1, unit="pipelines")
    return _joined(Interleave(cycle=cycle), pipes, prefetch=prefetch)


def _joined(
    spec: Operation, pipes: Sequence[Pipeline], prefetch: int | None = None
) -> Pipeline:
    if not pipes:
        raise ArgumentError(f"{spec.label} must be given at least one pipeline, got none")
    for pipe in pipes:
        if not isinstance(pipe, Pipeline):
            raise ArgumentTypeError(
                f"{spec.label} must be given pipelines, got {type(pipe).__name__}; "
                "wrap it: nbpipe.source(...)"
            )
    inputs = tuple(pipe.chain for pipe in pipes)
    return Pipeline((Stage(spec, name=spec.label, prefetch=prefetch, inputs=inputs),))
