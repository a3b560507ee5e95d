"""Append a checked stage that makes another order of indices: the rest is in `appending`."""

from __future__ import annotations

from typing import Any

from .appending import check_name
from .claims import Store
from .draws import Balance, Claim, Sample
from .errors import ArgumentError, ArgumentTypeError, DuplicateNameError
from .operations import Operation, Shard, Tail, flag, whole
from .order import absorbed, index_plan
from .sampler import IndexPlan, default_rank
from .stage import Chain, Stage, given, numbered, taken_names
from .weighted import WithoutReplacement, WithReplacement, checked_weights, class_weights

_SEEDS = (-(2**63), 2**64)
_MOST_ROWS = 2**62


def sample(chain: Chain, weights: Any, n: int | None, options: dict[str, Any]) -> Chain:
    """Append a sample stage."""
    plan = _indexed(chain, "sample")
    kind = WithReplacement if flag("sample replacement", options["replacement"]) else None
    draw = (kind or WithoutReplacement)(checked_weights(weights))
    count, seed = _count("sample", n), _seed("sample", options["seed"])
    plan.sample(draw, count, seed)  # refuses what never ends, and one rank's part
    draw.check(plan.length(), draw.rows if count is None else count)
    return _with(chain, Sample(weights, draw, count, kind is not None, seed))


def balance(chain: Chain, labels: Any, n: int | None, seed: int) -> Chain:
    """Append a balance stage."""
    plan = _indexed(chain, "balance")
    draw = WithReplacement(class_weights(labels))
    count, seed = _count("balance", n), _seed("balance", seed)
    plan.sample(draw, count, seed)
    draw.check(plan.length(), draw.rows if count is None else count)
    return _with(chain, Balance(labels, draw, count, seed))


def claim(chain: Chain, chunk: int, store: Store | None, name: str | None) -> Chain:
    """Append a claim stage."""
    plan = _indexed(chain, "claim")
    chunk = whole("claim chunk", chunk, minimum=1, maximum=_MOST_ROWS, unit="items")
    if store is not None and not callable(getattr(store, "add", None)):
        raise ArgumentTypeError(
            "claim store must be a torch.distributed.Store, or anything with add(key, amount), "
            f"got {type(store).__name__}"
        )
    taken = taken_names(chain)
    if name is not None and check_name("claim", name) in taken:
        raise DuplicateNameError(
            f"claim name must be new in its pipeline, got {name!r}, which is taken"
        )
    found = numbered("claim", taken) if name is None else name
    place = f"{chain[0].name}/{found}"
    plan.claim(chunk, store, place)  # refuses one rank's part
    return (*chain, Stage(Claim(chunk, store, place), name=found, named=name is not None))


def shard(chain: Chain, rank: int | None, world_size: int | None, tail: Tail) -> Chain:
    """Append a shard stage."""
    if any(isinstance(stage.spec, Claim) for stage in chain):
        raise ArgumentError(
            "shard cannot follow claim, which splits the order itself; leave one out"
        )
    words = given(rank=rank, world_size=world_size)
    if rank is None and world_size is None:
        known = default_rank()
        if known is None:
            raise ArgumentError(
                "shard needs rank and world_size, as shard(0, 2): torch.distributed is not "
                "initialised, so they are not known"
            )
        rank, world_size = known
    if rank is None or world_size is None:
        raise ArgumentError(
            f"shard needs both rank and world_size or none, got {rank!r} and {world_size!r}"
        )
    world = whole("shard world_size", world_size, minimum=1, unit="ranks")
    if tail not in ("pad", "drop", "uneven"):
        raise ArgumentError(f"shard tail must be 'pad', 'drop' or 'uneven', got {tail!r}")
    spec = Shard(whole("shard rank", rank, minimum=0, maximum=world - 1), world, tail)
    return _with(chain, spec, words)


def _indexed(chain: Chain, verb: str) -> IndexPlan:
    """Give the index order that a chain is.

    Raises:
        ArgumentError: it is more than that, or none.
    """
    plan = index_plan(chain)
    if plan is not None:
        return plan
    source, used = absorbed(chain)
    culprit = "a branch of route"
    if chain and source is None:
        culprit = f"{chain[0].name!r}, which has no length and index"
    elif chain:
        stage = chain[min(used, len(chain) - 1)]
        culprit = f"{stage.name!r} ({stage.op})"
    raise ArgumentError(
        f"{verb} must follow a source that is read by index, with nothing but take, skip, "
        f"enumerate, shuffle, repeat or concat between, got {culprit}; {verb} right after the "
        "source, as source(range(len(dataset)))"
    )


def _count(verb: str, n: int | None) -> int | None:
    return None if n is None else whole(f"{verb} n", n, minimum=0, maximum=_MOST_ROWS, unit="items")


def _seed(verb: str, seed: int) -> int:
    return whole(f"{verb} seed", seed, minimum=_SEEDS[0], maximum=_SEEDS[1])


def _with(chain: Chain, spec: Operation, words: frozenset[str] = frozenset()) -> Chain:
    return (*chain, Stage(spec, name=numbered(spec.label, taken_names(chain)), given=words))
