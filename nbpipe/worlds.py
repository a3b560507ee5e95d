"""Worlds: an epoch that some ranks began, gone on with by another number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .draws import Claim
from .errors import StateError
from .operations import Batch, Call, Filter, FlatMap, Shard, Unbatch, Window
from .order import absorbed, index_plan
from .rest import Rest, Run
from .stage import Chain, Stage, addresses
from .stands import are_inside

_BUFFER = {"again", "slots", "drawn", "over"}  # what a buffer held is read again like all else


def regrouped(chain: Chain, states: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Give where the stages go on, from the states of all ranks of another world.

    Each item that no rank has delivered is wanted once, of whichever rank; what a rank held in
    its buffers is among them.

    Args:
        chain: sharded for one rank of the new world.
        states: of all ranks, or of one where all ranks have done the same number of items.

    Raises:
        StateError: the states are not of all ranks of one world, or hold what only a rank of
            the same world can go on with.
    """
    address = _only_split(chain)
    parts = _by_rank(address, states)
    world = next(iter(parts.values()))["ranks"][address][1]
    _check_complete(chain, parts, world)
    source = next(iter(addresses(chain)))
    stands: dict[str, dict[str, Any]] = {}
    for state in parts.values():
        if not _is_fresh(state):
            _merge(stands, state["stages"], chain)
    epoch = min(state["epoch"] for state in states)
    sources = [state["stages"].get(source, {}) for state in states if state["epoch"] == epoch]
    base = Rest.read(sources[0].get("base", [0, []]))
    through = Rest(_rows(chain, base, world))  # of a rank that is already in the next epoch
    rests = {
        rank: _rest(state["stages"].get(source, {})) if state["epoch"] == epoch else through
        for rank, state in parts.items()
    }
    left = base.of_wanted(_together(rests, world))
    stands[source] = {"rest": [0, []], "base": left.data, "by": "index"}
    return stands


def reclaimed(chain: Chain, states: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Give where the stages go on in a pipeline that claims, from the states of all ranks.

    A row that any rank has delivered is wanted no more; all others are claimed anew.

    Args:
        chain: of one rank, of any world.
        states: of all ranks.

    Raises:
        StateError: the states are not of all ranks of one world, or hold what nobody can go on
            with who gets other rows than before.
    """
    _check_all(states, claims_in(chain)[0])
    stands: dict[str, dict[str, Any]] = {}
    for state in states:
        if not _is_fresh(state):
            _only_split(chain)
            _merge(stands, state["stages"], chain)
    done: dict[str, list[Run]] = {}
    for state in states:
        for address, about in state["stages"].items():
            if about.get("by") == "claim":
                base = Rest.read(about["base"])
                done.setdefault(address, []).extend(((0, base.start), *base.holes))
    for address, runs in done.items():
        base = Rest.of(0, sorted(runs))
        stands[address] = {"rest": [0, []], "base": base.data, "by": "claim"}
    return stands


def claims_in(chain: Chain) -> list[str]:
    """Give the addresses of all claims."""
    return [address for address, stage in addresses(chain).items() if isinstance(stage.spec, Claim)]


def _check_all(states: Sequence[Mapping[str, Any]], address: str) -> None:
    """Refuse states that are not of all ranks: the others' rows would come again."""
    told = [state["ranks"].get(address, [0, 1]) for state in states]
    worlds, epochs = {world for _, world in told}, {state["epoch"] for state in states}
    missing = sorted(set(range(max(worlds))) - {rank for rank, _ in told})
    if len(epochs) > 1 and not missing:
        raise StateError(
            f"the states of a pipeline that claims must be of one epoch, got {sorted(epochs)}: a "
            "rank is through, and its state does not tell what it had; go on from states of an "
            "earlier step, or begin the next epoch on all ranks"
        )
    if missing or len(worlds) > 1:
        raise StateError(
            f"the states of a pipeline that claims must be of all ranks at the same step, got "
            f"[rank, world size] {told} in epochs {sorted(epochs)}; gather them with "
            "nbpipe.ranks.gather_states(run) when you save, and load the list on every rank"
        )


def _only_split(chain: Chain) -> str:
    found = [
        address
        for address, stage in addresses(chain).items()
        if isinstance(stage.spec, Shard | Claim)
    ]
    spec, used = absorbed(chain)
    if len(found) != 1 or spec is None or not isinstance(chain[used - 1].spec, Shard | Claim):
        raise StateError(
            "a state of another world size can be gone on with only where the pipeline has one "
            "shard or claim, at the end of what is read by index, as "
            "source(...).shuffle().shard(); start as many ranks as before, or begin the epoch "
            "again"
        )
    return found[0]


def _by_rank(address: str, states: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    worlds, epochs, parts = set(), set(), {}
    for state in states:
        try:
            rank, world = state["ranks"][address]
        except (KeyError, TypeError, ValueError):
            raise StateError(
                f"a state for shard {address!r} must tell its rank and world size, got "
                f"{state.get('ranks')!r}; give the states that run.state_dict() returned"
            ) from None
        worlds.add(world)
        epochs.add(state["epoch"])
        parts[rank] = state
    late = [state for state in states if state["epoch"] > min(epochs)]
    if max(epochs) == min(epochs) + 1 and all(map(_is_fresh, late)):
        epochs = {min(epochs)}  # some ranks had fewer items, and are through
    if len(worlds) > 1 or len(epochs) > 1:
        raise StateError(
            f"the states must be of one world and epoch, got world sizes {sorted(worlds)} and "
            f"epochs {sorted(epochs)}; take them at the same step on all ranks"
        )
    return parts


def _check_complete(chain: Chain, parts: Mapping[int, Mapping[str, Any]], world: int) -> None:
    missing = sorted(set(range(world)) - set(parts))
    if not missing:
        return
    uneven = next((stage for stage in chain if _counts_by_itself(stage)), None)
    if len(parts) > 1 or uneven is not None:
        why = "" if uneven is None else f" ({uneven.name!r} may give any number of items)"
        raise StateError(
            f"the states must be of all {world} ranks, got those of {sorted(parts)}{why}; gather "
            "them with nbpipe.ranks.gather_states(run) when you save"
        )


def _counts_by_itself(stage: Stage) -> bool:
    spec = stage.spec
    if isinstance(spec, Filter | FlatMap | Unbatch):
        return True
    if isinstance(spec, Call):
        return spec.policy.skips or not spec.ordered
    return any(_counts_by_itself(inner) for chain in stage.inputs for inner in chain)


def _rows(chain: Chain, base: Rest, world: int) -> int:
    """Give the most rows that a rank had of what is left of the global order."""
    plan = index_plan(chain[: absorbed(chain)[1] - 1])
    length = None if plan is None else plan.rest(base).length()
    return -(-(length or 0) // world)


def _is_fresh(state: Mapping[str, Any]) -> bool:
    """Say whether a rank has had nothing of its epoch."""
    return not state["delivered"] and not are_inside(state["stages"])


def _rest(stands: Mapping[str, Any]) -> Rest:
    return Rest.read(stands.get("rest", [0, []]))


def _together(rests: Mapping[int, Rest], world: int) -> Rest:
    """Say which rows of the global order are wanted, given which of its own each rank wants."""
    of_rank = [rests.get(rank, rests[min(rests)]) for rank in range(world)]
    most = max(rest.holes[-1][1] if rest.holes else rest.start for rest in of_rank)
    return Rest.only(_wanted(of_rank, world, most), most * world)


def _wanted(of_rank: Sequence[Rest], world: int, most: int) -> Iterator[int]:
    for row in range(min(rest.start for rest in of_rank), most):
        for rank, rest in enumerate(of_rank):
            if row in rest:
                yield row * world + rank


def _merge(
    stands: dict[str, dict[str, Any]], stages: Mapping[str, Mapping[str, Any]], chain: Chain
) -> None:
    source, gathered = next(iter(addresses(chain))), _behind_batches(chain)
    for address, about in stages.items():
        if address == source or set(about) <= _BUFFER:
            continue
        if set(about) - {"children", "failed"} or ("children" in about and address in gathered):
            raise StateError(
                f"stage {address!r} goes on only where its rank gets the same items as before: it "
                "counts what it has had; start as many ranks as before (behind a claim that is not "
                "possible), or begin the epoch again"
            )
        known = stands.setdefault(address, {})
        if "children" in about:
            known["children"] = _common(known.get("children", []), about["children"])
        if "failed" in about:
            before = known.get("failed", [0, 0])
            known["failed"] = [one + two for one, two in zip(before, about["failed"], strict=True)]


def _common(known: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """Give the children that all ranks want: one that went on from a state may know of others."""
    rests: dict[Any, Rest] = {}
    for path, rest in (*known, *more):
        key = tuple(path) if isinstance(path, list | tuple) else path
        rests[key] = Rest.read(rest).both(rests.get(key, Rest()))
    return [[list(key) if isinstance(key, tuple) else key, r.data] for key, r in rests.items()]


def _behind_batches(chain: Chain) -> set[str]:
    """Give the stages whose items are made of several: other ranks make others."""
    found: set[str] = set()
    gathers = False
    for address, stage in addresses(chain).items():
        gathers = gathers or isinstance(stage.spec, Batch | Window)
        if gathers:
            found.add(address)
    return found
