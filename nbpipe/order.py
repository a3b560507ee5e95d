"""Which stages at the head of a chain only order the indices of a source, and so need no node."""

from __future__ import annotations

from dataclasses import replace

from .draws import Balance, Claim, Sample
from .operations import Concat, Enumerate, Repeat, Shard, Shuffle, Skip, Source, Take
from .sampler import IndexPlan
from .stage import Chain, Stage


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
    """Say whether another order follows; else the inputs are joined as they come."""
    for stage in chain[1:]:
        if isinstance(stage.spec, Sample | Balance | Claim):
            return True
        if isinstance(stage.spec, Shuffle):
            return stage.spec.buffer_size is None
        if not isinstance(stage.spec, Take | Skip | Enumerate | Shard | Repeat):
            return False
    return False


def index_plan(chain: Chain) -> IndexPlan | None:
    """Give the index order of a chain that is nothing but one, else None."""
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
