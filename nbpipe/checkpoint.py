"""Checkpoint: the state of a run as JSON-ready values, and the checks when it comes back.

A state holds numbers of items and places in orders, never items. `stages` says for each stage
where it goes on; the rest says which pipeline and data it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, final

from .draws import Balance, Sample
from .errors import StateError
from .operations import Batch, Cache, Call, Operation, Shard, Source
from .sampler import default_rank
from .stage import Chain, Stage, addresses
from .stands import are_inside, check_ranks, check_stands
from .text import shortened
from .worlds import claims_in, reclaimed, regrouped

FORMAT = 1
State = dict[str, Any]
Stands = dict[str, dict[str, Any]]
_PLAIN = (bool, int, float, str, type(None))
# They may differ when an epoch goes on.
_FREE = ("rank", "world_size", "chunk", "store", "device", "prefetch")
_KINDS = {"epoch": int, "delivered": int, "given": bool} | dict.fromkeys(
    ("stages", "lengths", "ranks"), dict
)
_WAY_OUT = "give what run.state_dict() returned for this pipeline"


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A place in a run's epochs.

    Attributes:
        epoch: number of the epoch.
        delivered: items of it that the loop has had, in this run or before.
        stands: where each stage goes on, by address; empty at the beginning of the epoch.
        given: the order of the epoch comes from outside.
    """

    epoch: int
    delivered: int = 0
    stands: Stands | None = None
    given: bool = False

    @property
    def is_inside(self) -> bool:
        """Whether the loop has had something of the epoch."""
        return self.delivered > 0 or are_inside(self.stands or {})


def caches(chain: Chain) -> Stands:
    """Say of each cache which epoch made its items, or is to make them."""
    found: Stands = {}
    for address, stage in addresses(chain).items():
        if not isinstance(stage.spec, Cache):
            continue
        store = stage.spec.store
        made = store.made if store.complete else store.as_of
        if made is not None:
            found[address] = {"rest": [0, []], "made": [made[0], list(made[1])]}
            found[address] |= {"by": "replay"} if store.complete else {}
    return found


def written(chain: Chain, seed: int, place: Place) -> State:
    """Give the state of a run at a place."""
    return {
        "nbpipe": FORMAT,
        "epoch": place.epoch,
        "delivered": place.delivered,
        "seed": seed,
        "given": place.given,
        "chain": [_outline(stage) for stage in chain],
        "lengths": _lengths(chain),
        "ranks": _ranks(chain),
        "stages": place.stands or {},
    }


def read(chain: Chain, seed: int, states: Any) -> Place:
    """Give the place that a state, or the states of all ranks, tell of.

    Raises:
        StateError: it belongs to another pipeline, seed or data, or is no state.
    """
    several = states if isinstance(states, list | tuple) else [states]
    if not several:
        raise StateError(f"load_state_dict needs at least one state, got {states!r}; {_WAY_OUT}")
    for state in several:
        _check(chain, seed, state)
    ours = _ranks(chain)
    same = next((state for state in several if state["ranks"] == ours), None)
    first = min(several, key=lambda state: state["epoch"])
    if claims_in(chain):
        stands = reclaimed(chain, several)
        goes_on = same is not None and same["epoch"] == first["epoch"]
        same, delivered = first, same["delivered"] if same is not None and goes_on else 0
    elif same is not None:
        stands, delivered = same["stages"], same["delivered"]
    else:
        same, delivered = first, 0
        stands = regrouped(chain, several)
    return Place(same["epoch"], delivered, stands, same["given"])


def unreadable(error: Exception) -> StateError:
    """Give the error for a state in which something else stands than was written."""
    if isinstance(error, StateError):
        return error
    return StateError(
        f"the state cannot be read ({type(error).__name__}: {shortened(str(error))}); {_WAY_OUT}"
    )


def _check(chain: Chain, seed: int, state: Any) -> None:
    if not isinstance(state, Mapping) or "nbpipe" not in state:
        raise StateError(
            f"a state must be a dict from run.state_dict(), got {shortened(repr(state))}; "
            "for several ranks give a list of their states"
        )
    if state["nbpipe"] != FORMAT:
        raise StateError(
            f"a state must be of format {FORMAT}, got {state['nbpipe']!r}; it was written by "
            "another version of nbpipe: begin the epoch again"
        )
    wrong = [name for name, kind in _KINDS.items() if type(state.get(name)) is not kind]
    wrong += [name for name in ("epoch", "delivered") if not wrong and state[name] < 0]
    if wrong:
        raise StateError(f"a state must hold {wrong[0]!r}, got {state.get(wrong[0])!r}; {_WAY_OUT}")
    _check_chain([_outline(stage) for stage in chain], state.get("chain"))
    unknown = sorted(set(map(str, state["stages"])) - set(addresses(chain)))
    if unknown:
        raise StateError(
            "a state must tell of stages that the pipeline has, got "
            f"{shortened(repr(unknown[0]))}; {_WAY_OUT}"
        )
    check_stands(state["stages"])
    check_ranks(state["ranks"])
    if state.get("seed") != seed:
        raise StateError(
            f"the state is of a run with seed {state.get('seed')!r}, this run has {seed!r}; "
            f"start it with pipe.start(seed={state.get('seed')!r})"
        )
    for address, length in _lengths(chain).items():
        before = state["lengths"].get(address)
        if before != length:
            raise StateError(
                f"source {address!r} had {before} items when the state was taken, it has "
                f"{length} now; go on with the same data, or begin the epoch again"
            )


def _check_chain(ours: list[Any], theirs: Any) -> None:
    if ours == theirs:
        return
    if not isinstance(theirs, list | tuple):
        raise StateError(f"a state must hold its chain, got {shortened(repr(theirs))}; {_WAY_OUT}")
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            _check_inside(one, other)
            raise StateError(
                f"the state is of a pipeline with {_words(other)}, this one has {_words(one)}; "
                f"{_WAY_OUT}, or begin the epoch again"
            )
    raise StateError(
        f"the state is of a pipeline of {_count(theirs)}, this one has {len(ours)}; "
        f"{_WAY_OUT}, or begin the epoch again"
    )


def _count(stages: Sequence[Any]) -> str:
    return f"{len(stages)} stage" + ("" if len(stages) == 1 else "s")


def _check_inside(ours: list[Any], theirs: Any) -> None:
    """Look for the difference in the pipelines that a stage joins, or in its branches."""
    if not isinstance(theirs, list | tuple) or list(ours[:3]) != list(theirs[:3]):
        return
    inputs = theirs[3] if len(theirs) == len(ours) else None
    if isinstance(inputs, list | tuple) and len(inputs) == len(ours[3]):
        for one, other in zip(ours[3], inputs, strict=True):
            _check_chain(one, other)
    count = len(inputs) if isinstance(inputs, list | tuple) else 0
    raise StateError(
        f"the state is of a pipeline whose stage {ours[0]!r} ({ours[1]}) has {count} inputs, "
        f"here it has {len(ours[3])}; {_WAY_OUT}, or begin the epoch again"
    )


def _words(outline: Any) -> str:
    try:
        name, op, about, _ = outline
        values = ", ".join(f"{key} {value!r}" for key, value in about.items())
    except (TypeError, ValueError, AttributeError):
        return shortened(repr(outline))
    return f"stage {name!r} ({op}{', ' + values if values else ''})"


def _outline(stage: Stage) -> list[Any]:
    """Give what must be the same when an epoch goes on: not functions, executors, knobs."""
    inner = [[_outline(one) for one in chain] for chain in stage.inputs]
    return [stage.name, stage.op, _about(stage.spec), inner]


def _about(spec: Operation) -> dict[str, Any]:
    if isinstance(spec, Call | Source):
        return {}
    values = {part.name: getattr(spec, part.name) for part in fields(spec)}  # type: ignore[arg-type]
    if isinstance(spec, Sample | Balance):
        values |= {"draw": spec.draw.digest, "weights": None, "labels": None}
    if isinstance(spec, Batch):
        return {"size": spec.size, "drop_last": spec.drop_last, "by_cost": spec.cost is not None}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if name not in _FREE and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return all(isinstance(part, _PLAIN) for part in parts)


def _lengths(chain: Chain) -> dict[str, int]:
    return {
        address: len(stage.spec.items)
        for address, stage in addresses(chain).items()
        if isinstance(stage.spec, Source) and stage.spec.plan is not None
    }


def _ranks(chain: Chain) -> dict[str, list[int]]:
    """Give for each shard and claim its rank and the size of the world."""
    rank, world = default_rank() or (0, 1)
    return {address: [rank, world] for address in claims_in(chain)} | {
        address: [stage.spec.rank, stage.spec.world_size]
        for address, stage in addresses(chain).items()
        if isinstance(stage.spec, Shard)
    }
