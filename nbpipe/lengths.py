"""How many items a chain gives, where that is known before they are made."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from .errors import LengthUnknownError
from .operations import (
    Batch,
    Concat,
    Filter,
    FlatMap,
    Interleave,
    Mix,
    Operation,
    Repeat,
    Route,
    Shard,
    Skip,
    Source,
    Take,
    Unbatch,
    Window,
    Zip,
)
from .order import absorbed
from .stage import Chain, Stage, address_book


def units(chain: Chain) -> dict[str, str]:
    """Say what each stage hands on, by address: "items" or "batches"."""
    found: dict[str, str] = {}
    _note_units(chain, "", "items", found, address_book(chain))
    return found


def _note_units(
    chain: Chain, place: str, unit: str, found: dict[str, str], book: Mapping[str, str]
) -> str:
    for stage in chain:
        for number, inner in enumerate(stage.inputs):
            if isinstance(stage.spec, Route):
                _note_units(inner, place, unit, found, book)
            else:
                unit = _note_units(inner, f"{place}{number}/", "items", found, book)
        if isinstance(stage.spec, Batch):
            unit = "batches"
        elif isinstance(stage.spec, Unbatch):
            unit = "items"
        found[book[place + stage.name]] = unit
    return unit


def length(chain: Chain) -> int:
    """Give the number of items of a chain; an upper bound where failed items are skipped.

    Raises:
        LengthUnknownError: a stage gives a number of items that is not known, or no end of them.
    """
    number = _length(chain)
    if number > sys.maxsize:
        raise LengthUnknownError("this pipeline repeats for ever; take(n) gives it an end")
    return int(number)


def _length(chain: Chain) -> float:
    number: float = 0
    spec, used = absorbed(chain)
    if spec is not None and spec.plan is not None:
        known = spec.plan.length()
        number = math.inf if known is None else known
    for stage in chain[used:]:
        number = _after(stage, number)
    return number


def _after(stage: Stage, number: float) -> float:
    spec = stage.spec
    match spec:
        case Source():
            return _length(stage.inputs[0]) if stage.inputs else _sized(stage, spec)
        case Filter() | FlatMap() | Unbatch():
            raise LengthUnknownError(f"{stage.name!r} ({stage.op}) may give any number of items")
        case Batch(cost=None, size=size, drop_last=drop_last):
            if number == math.inf:
                return number
            return number // size if drop_last else -(-number // size)
        case Batch():
            raise LengthUnknownError(f"{stage.name!r} gathers by cost: the batches are not known")
        case Window(size=size, stride=stride):
            return max(0, (number - size) // stride + 1) if number < math.inf else number
        case Take(count=count):
            return min(number, count)
        case Skip(count=count):
            return max(0, number - count)
        case Repeat(times=times):
            return (math.inf if number else 0) if times is None else number * times
        case Shard(rank=rank, world_size=world, tail=tail):
            return _sharded(number, rank, world, tail)
        case Zip() | Concat() | Mix() | Interleave():
            return _joined(stage, spec)
        case Route():
            for branch in stage.inputs:
                for inner in branch:
                    _after(inner, 1)
    return number


def _sized(stage: Stage, spec: Source) -> int:
    try:
        return len(spec.items)
    except TypeError:
        raise LengthUnknownError(
            f"source {stage.name!r} ({type(spec.items).__name__}) has no length"
        ) from None


def _sharded(number: float, rank: int, world: int, tail: str) -> float:
    if number in (0, math.inf):
        return number
    if tail == "drop":
        return number // world
    if tail == "pad":
        return -(-number // world)
    return max(0, -(-(number - rank) // world))


def _joined(stage: Stage, spec: Operation) -> float:
    lengths = [_length(chain) for chain in stage.inputs]
    if isinstance(spec, Zip):
        return min(lengths)
    if isinstance(spec, Mix) and spec.stop == "shortest" and len(lengths) > 1:
        raise LengthUnknownError(f"{stage.name!r} stops by chance: where the first input ends")
    return sum(lengths)
