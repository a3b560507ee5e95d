"""What is known of a chain before it runs: its order of indices, and how many items it gives."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace

from ..errors import LengthUnknownError
from .operations import (
    Balance,
    Batch,
    Claim,
    Concat,
    Enumerate,
    Filter,
    FlatMap,
    Interleave,
    Mix,
    Operation,
    Repeat,
    Route,
    Sample,
    Shard,
    Shuffle,
    Skip,
    Source,
    Take,
    Unbatch,
    Window,
    Zip,
)
from .plan import IndexPlan
from .stage import Chain, Stage, address_book


# -- Which stages at the head of a chain only order the indices of a source, and so need no node ---
def absorbed(chain: Chain) -> tuple[Source | None, int]:
    """Fold the stages that act on an index order into the source.

    Returns:
        The source with its folded plan, and the number of stages it stands for; (None, 0)
        where the chain does not begin with something that has a length and an index.
    """
    if not chain:
        return None, 0
    first = chain[0].spec
    if isinstance(first, Source) and first.plan is not None:
        source, plan = first, first.plan
    elif isinstance(first, Concat) and _is_shuffled_later(chain):
        plans = [index_plan(part) for part in chain[0].inputs]
        known = [plan for plan in plans if plan is not None]
        if len(known) < len(plans):
            return None, 0
        plan = IndexPlan.concat(known)
        source = Source(items=_Parts(chain[0]), plan=plan)
    else:
        return None, 0
    used = 1
    for stage in chain[1:]:
        following = _apply(plan, stage.spec)
        if following is None:
            break
        plan, used = following, used + 1
    return replace(source, plan=plan), used


class _Parts:
    """The sources of a concat that is read by index: they hear of every epoch."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def set_epoch(self, epoch: int) -> None:
        for chain in self._stage.inputs:
            spec = chain[0].spec
            items = spec.items if isinstance(spec, Source) else _Parts(chain[0])
            set_epoch = getattr(items, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)


def _is_shuffled_later(chain: Chain) -> bool:
    """Tell whether another order follows; else the inputs are joined as they come."""
    for stage in chain[1:]:
        if isinstance(stage.spec, Sample | Balance | Claim):
            return True
        if isinstance(stage.spec, Shuffle):
            return stage.spec.buffer_size is None
        if not isinstance(stage.spec, Take | Skip | Enumerate | Shard | Repeat):
            return False
    return False


def index_plan(chain: Chain) -> IndexPlan | None:
    """Return the index order of a chain that is nothing but one, else None."""
    if chain and isinstance(chain[0].spec, Concat):
        plans = [index_plan(part) for part in chain[0].inputs]
        known = [plan for plan in plans if plan is not None]
        plan = IndexPlan.concat(known) if len(known) == len(plans) else None
    else:
        spec = chain[0].spec if chain else None
        plan = spec.plan if isinstance(spec, Source) else None
    for stage in chain[1:]:
        if plan is None or isinstance(stage.spec, Claim):
            return None
        plan = _apply(plan, stage.spec)
    return plan


def _apply(plan: IndexPlan, spec: object) -> IndexPlan | None:
    if plan.claimed:
        return None
    match spec:
        case Shuffle(seed=seed, buffer_size=None):
            return plan.shuffle(seed)
        case Sample(draw=draw, n=n, seed=seed) | Balance(draw=draw, n=n, seed=seed):
            return plan.sample(draw, n, seed)
        case Claim(chunk=chunk, store=store, place=place):
            return plan.claim(chunk, store, place)
        case Shard(rank=rank, world_size=world_size, tail=tail):
            return plan.shard(rank, world_size, tail) if plan.length() is not None else None
        case Take(count=count):
            return plan.take(count)
        case Skip(count=count):
            return plan.skip(count)
        case Repeat(times=times):
            return plan.repeat(times)
        case Enumerate():
            return plan.enumerate()
    return None


# -- How many items a chain gives, where that is known before they are made ------------------------
def units(chain: Chain) -> dict[str, str]:
    """Tell what each stage hands on, by address: "items" or "batches"."""
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
    """Return the number of items of a chain; an upper bound where failed items are skipped.

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
