"""The beginnings of pipelines: source, zip, concat, mix, interleave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from .base.checks import flag, whole
from .base.names import names_arguments
from .errors import ArgumentError, ArgumentTypeError
from .ops.chain import check_name
from .ops.join import Concat, Interleave, Mix, Zip, mix_weights
from .ops.source import Source, source_of
from .ops.stage import Chain, Operation, Stage
from .pipeline import Pipeline

# -- source(): the beginning of every pipeline -----------------------------------------------------
SOURCE_PREFETCH = 16


@names_arguments
def source(items: Any, *, name: str = "source", prefetch: int = SOURCE_PREFETCH) -> Pipeline:
    """Begin a pipeline.

    Args:
        items: a sequence or a map-style torch `Dataset` (read by index, one after the other; to
            read by index in parallel, give `range(len(dataset))` and map
            `dataset.__getitem__`), any object that can be iterated again and again, a torch
            `Sampler` or `IterableDataset`, a function without arguments that returns a fresh
            iterator, an async generator function, or another `Pipeline`. An object with a
            method `set_epoch` is told the number of every epoch.
        name: name of the stage.
        prefetch: items read ahead [items], 1 to 65,536; a live knob.

    Raises:
        ArgumentTypeError: a generator object, a str, a mapping, a DataFrame, a set, or an
            object that cannot be iterated; the message gives the way out.
    """
    check_name("source", name)
    inputs: tuple[Chain, ...] = ()
    if isinstance(items, Pipeline):
        spec, inputs = Source(items=None), (items.chain,)
    else:
        spec = source_of(items)
    words = frozenset() if prefetch == SOURCE_PREFETCH else frozenset({"prefetch"})
    stage = Stage(spec, name=name, named=True, prefetch=prefetch, inputs=inputs, given=words)
    return Pipeline((stage,))


# -- zip, concat, mix, interleave: several pipelines become one ------------------------------------
PREFETCH = 8


@names_arguments
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


@names_arguments
def concat(*pipes: Pipeline) -> Pipeline:
    """Return the items of one pipeline after those of the other.

    Where all of them are sources read by index, a full `shuffle()` may follow.

    Args:
        pipes: at least one pipeline.

    Raises:
        ArgumentError: none given.
        ArgumentTypeError: something else than pipelines.
    """
    return _joined(Concat(), _checked("concat", pipes))


@names_arguments
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
    return _joined(Mix(weights=mix_weights(weights, len(given)), seed=seed, stop=stop), given)


@names_arguments
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
