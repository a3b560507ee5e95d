"""Checkpoint: the state of a run as JSON-ready values, and the checks when it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from ..base.digest import check_seal, seal
from ..base.format import shortened
from ..errors import StateError
from .chain import absorbed, index_plan
from .ranges import IndexRanges, Span, are_inside
from .stage import Chain, Stage, addresses

_BUFFER = {"again", "slots", "drawn", "over"}  # items of a buffer are read again like all others
_IGNORED = {"order"}  # earlier versions wrote the order of completion


def regrouped(chain: Chain, states: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the states of the stages, from the states of all ranks of another world size.

    Each item that no rank has delivered is wanted once, from any rank. Items that a rank held in
    its buffers are among them.

    Args:
        chain: sharded for one rank of the new world.
        states: of all ranks, or of one if all ranks have done the same number of items.

    Raises:
        StateError: the states are not of all ranks of one world, or only a rank of the same world
            can continue from them.
    """
    address = _only_split(chain)
    parts = _by_rank(address, states)
    world = next(iter(parts.values()))["ranks"][address][1]
    _check_complete(chain, parts, world)
    source = _head(chain)
    node_state: dict[str, dict[str, Any]] = {}
    for state in parts.values():
        if not _is_fresh(state):
            _merge(node_state, state["stages"], chain)
    epoch = min(state["epoch"] for state in states)
    sources = [state["stages"].get(source, {}) for state in states if state["epoch"] == epoch]
    base = IndexRanges.read(sources[0].get("base", [0, []]))
    through = IndexRanges(_rows(chain, base, world))  # of a rank that is already in the next epoch
    rests = {
        rank: _rest(state["stages"].get(source, {})) if state["epoch"] == epoch else through
        for rank, state in parts.items()
    }
    left = base.of_wanted(_together(rests, world))
    node_state[source] = {"rest": [0, []], "base": left.data, "by": "index"}
    return node_state


def reclaimed(chain: Chain, states: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the states of the stages of a pipeline that claims, from the states of all ranks.

    Rows that no rank has delivered are claimed again.

    Args:
        chain: of one rank, of any world.
        states: of all ranks.

    Raises:
        StateError: the states are not of all ranks of one world, or a rank can continue from them
            only with the same rows.
    """
    _check_all(states, claims_in(chain)[0])
    node_state: dict[str, dict[str, Any]] = {}
    for state in states:
        if not _is_fresh(state):
            _only_split(chain)
            _merge(node_state, state["stages"], chain)
    done: dict[str, list[Span]] = {}
    for state in states:
        for address, about in state["stages"].items():
            if about.get("by") == "claim":
                base = IndexRanges.read(about["base"])
                done.setdefault(address, []).extend(((0, base.start), *base.gaps))
    for address, runs in done.items():
        base = IndexRanges.of(0, sorted(runs))
        node_state[address] = {"rest": [0, []], "base": base.data, "by": "claim"}
    return node_state


def claims_in(chain: Chain) -> list[str]:
    """Return the addresses of all claims."""
    return [address for address, stage in addresses(chain).items() if stage.spec.claims]


def _check_all(states: Sequence[Mapping[str, Any]], address: str) -> None:
    """Refuse states that are not of all ranks: the others' rows would come again."""
    told = [state["ranks"].get(address, [0, 1]) for state in states]
    worlds, epochs = {world for _, world in told}, {state["epoch"] for state in states}
    missing = sorted(set(range(max(worlds))) - {rank for rank, _ in told})
    if len(epochs) > 1 and not missing:
        raise StateError(
            f"the states of a pipeline that claims must be of one epoch, got {sorted(epochs)}: a "
            "rank is through, and its state does not tell what it had; continue from states of an "
            "earlier step, or begin the next epoch on all ranks"
        )
    if missing or len(worlds) > 1:
        raise StateError(
            f"the states of a pipeline that claims must be of all ranks at the same step, got "
            f"[rank, world size] {told} in epochs {sorted(epochs)}; gather them with "
            "nbpipe.ranks.gather_states(run) when you save, and load the list on every rank"
        )


def _head(chain: Chain) -> str:
    """Return the address of the first stage of a chain; a join follows its inputs."""
    return next(address for address, stage in addresses(chain).items() if stage is chain[0])


def _only_split(chain: Chain) -> str:
    found = list(_ranks(chain))
    spec, used = absorbed(chain)
    if len(found) != 1 or spec is None or chain[used - 1].spec.part is None:
        raise StateError(
            "a state of another world size can be resumed only if the pipeline has one "
            "shard or claim, at the end of the stages that are read by index, for example "
            "source(...).shuffle().shard(); start as many ranks as before, or begin the epoch "
            "again"
        )
    return found[0]


def _by_rank(address: str, states: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    worlds, epochs, parts = set(), set(), {}
    for state in states:
        rank, world = state["ranks"][address]
        worlds.add(world)
        epochs.add(state["epoch"])
        parts[rank] = state
    late = [state for state in states if state["epoch"] > min(epochs)]
    if max(epochs) == min(epochs) + 1 and all(map(_is_fresh, late)):
        epochs = {min(epochs)}  # some ranks had fewer items, and have ended the epoch
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
    inner = (one for chain in stage.inputs for one in chain)
    return stage.spec.may_lose or any(map(_counts_by_itself, inner))


def _rows(chain: Chain, base: IndexRanges, world: int) -> int:
    """Return the most rows that a rank had of the rest of the global order."""
    plan = index_plan(chain[: absorbed(chain)[1] - 1])
    length = None if plan is None else plan.rest(base).length()
    return -(-(length or 0) // world)


def _is_fresh(state: Mapping[str, Any]) -> bool:
    """Return whether a rank has had no item of its epoch."""
    return not state["delivered"] and not are_inside(state["stages"])


def _rest(node_state: Mapping[str, Any]) -> IndexRanges:
    return IndexRanges.read(node_state.get("rest", [0, []]))


def _together(rests: Mapping[int, IndexRanges], world: int) -> IndexRanges:
    """Return which rows of the global order are wanted, given which rows each rank wants."""
    of_rank = [rests.get(rank, rests[min(rests)]) for rank in range(world)]
    most = max(rest.gaps[-1][1] if rest.gaps else rest.start for rest in of_rank)
    return IndexRanges.only(_wanted(of_rank, world, most), most * world)


def _wanted(of_rank: Sequence[IndexRanges], world: int, most: int) -> Iterator[int]:
    for row in range(min(rest.start for rest in of_rank), most):
        for rank, rest in enumerate(of_rank):
            if row in rest:
                yield row * world + rank


def _merge(
    node_state: dict[str, dict[str, Any]], stages: Mapping[str, Mapping[str, Any]], chain: Chain
) -> None:
    source, gathered = _head(chain), _behind_batches(chain)
    for address, about in stages.items():
        if address == source or set(about) <= _BUFFER | _IGNORED:
            continue
        counts = set(about) - {"children", "failed"} - _IGNORED
        if counts or ("children" in about and address in gathered):
            raise StateError(
                f"stage {address!r} continues only if its rank gets the same items as before: it "
                "counts what it has had; start as many ranks as before (after a claim that is not "
                "possible), or begin the epoch again"
            )
        known = node_state.setdefault(address, {})
        if "children" in about:
            known["children"] = _common(known.get("children", []), about["children"])
        if "failed" in about:
            before = known.get("failed", [0, 0])
            known["failed"] = [one + two for one, two in zip(before, about["failed"], strict=True)]


def _common(known: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """Return the children that all ranks want; a rank that was resumed may know of others."""
    rests: dict[Any, IndexRanges] = {}
    for path, rest in (*known, *more):
        key = tuple(path) if isinstance(path, list | tuple) else path
        rests[key] = IndexRanges.read(rest).both(rests.get(key, IndexRanges()))
    return [[list(key) if isinstance(key, tuple) else key, r.data] for key, r in rests.items()]


def _behind_batches(chain: Chain) -> set[str]:
    """Return the stages whose items are made of several, which differ with the ranks."""
    found: set[str] = set()
    gathers = False
    for address, stage in addresses(chain).items():
        gathers = gathers or stage.spec.gathers
        if gathers:
            found.add(address)
    return found


FORMAT = 2
_READ = (1, FORMAT)

State = dict[str, Any]

NodeStates = dict[str, dict[str, Any]]


_WAY_OUT = "give what run.state_dict() returned for this pipeline"


@final
@dataclass(frozen=True, slots=True)
class EpochPlace:
    """A position in a run's epochs.

    Attributes:
        epoch: number of the epoch.
        delivered: items of it that the loop has had, in this run or before.
        node_state: states of the stages, by address; empty at the beginning of the epoch.
        external: the order of the epoch comes from outside.
    """

    epoch: int
    delivered: int = 0
    node_state: NodeStates | None = None
    external: bool = False

    @property
    def is_inside(self) -> bool:
        """Whether the loop has had something of the epoch."""
        return self.delivered > 0 or are_inside(self.node_state or {})


def caches(chain: Chain) -> NodeStates:
    """Return for each cache which epoch made its items, or will make them."""
    found: NodeStates = {}
    for address, stage in addresses(chain).items():
        store = stage.spec.kept_in
        if store is None:
            continue
        kept = store.kept
        made = store.as_of if kept is None else kept.made
        if made is not None:
            found[address] = {"rest": [0, []], "made": [made[0], list(made[1])]}
            found[address] |= {} if kept is None else {"by": "replay"}
    return found


def written(chain: Chain, seed: int, place: EpochPlace) -> State:
    """Return the state of a run at a position."""
    state = {
        "nbpipe": FORMAT,
        "epoch": place.epoch,
        "delivered": place.delivered,
        "seed": seed,
        "given": place.external,
        "chain": [_outline(stage) for stage in chain],
        "lengths": _lengths(chain),
        "ranks": _ranks(chain),
        "stages": place.node_state or {},
    }
    return state | {"seal": seal(state)}


def read(chain: Chain, seed: int, states: Any) -> EpochPlace:
    """Return the position that a state, or the states of all ranks, hold.

    Raises:
        StateError: it belongs to another pipeline, seed or data, or is no state.
    """
    several = states if isinstance(states, list | tuple) else [states]
    if not several:
        raise StateError(f"load_state_dict needs at least one state, got {states!r}; {_WAY_OUT}")
    for state in several:
        try:
            _check(chain, seed, state)
        except (TypeError, LookupError, AttributeError) as error:
            text = f"{type(error).__name__}: {shortened(str(error))}"
            raise StateError(f"the state cannot be read ({text}); {_WAY_OUT}") from error
    ours = _ranks(chain)
    same = next((state for state in several if state["ranks"] == ours), None)
    first = min(several, key=lambda state: state["epoch"])
    if any(state["given"] for state in several):
        same = _of_given_order(ours, same)
        node_state, delivered = same["stages"], same["delivered"]
    elif claims_in(chain):
        node_state = reclaimed(chain, several)
        goes_on = same is not None and same["epoch"] == first["epoch"]
        same, delivered = first, same["delivered"] if same is not None and goes_on else 0
    elif same is not None:
        node_state, delivered = same["stages"], same["delivered"]
    else:
        same, delivered = first, 0
        node_state = regrouped(chain, several)
    return EpochPlace(same["epoch"], delivered, node_state, same["given"])


def _of_given_order(ours: Mapping[str, Any], same: State | None) -> State:
    """Return the rank's own state: an order from outside belongs to one rank.

    Raises:
        StateError: there is none.
    """
    if same is not None:
        return same
    told = ", ".join(f"{address!r} (rank {rank} of {w})" for address, (rank, w) in ours.items())
    raise StateError(
        "the state of an epoch in an order given from outside belongs to the rank that was given "
        f"it, got none of this rank: {told}; load the state of the same rank of as many, or begin "
        "the epoch again"
    )


def _check(chain: Chain, seed: int, state: Any) -> None:
    if not isinstance(state, Mapping) or "nbpipe" not in state:
        raise StateError(
            f"a state must be a dict from run.state_dict(), got {shortened(repr(state))}; "
            "for several ranks give a list of their states"
        )
    if state["nbpipe"] not in _READ:
        raise StateError(
            f"a state must be of format {FORMAT}, got {state['nbpipe']!r}; it was written by "
            "another version of nbpipe: begin the epoch again"
        )
    check_seal(state, _WAY_OUT)
    _check_chain([_outline(stage) for stage in chain], state["chain"])
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
                f"{length} now; continue with the same data, or begin the epoch again"
            )


def check_caches(chain: Chain, place: EpochPlace, kept: NodeStates) -> None:
    """Refuse to resume with a cache that another epoch has filled in another order.

    Args:
        chain: of the run.
        place: the position to resume at.
        kept: what `caches` returned.

    Raises:
        StateError: there is such a cache.
    """
    for address, stage in addresses(chain).items():
        about, now = (place.node_state or {}).get(address, {}), kept.get(address, {})
        if "made" not in about or now.get("by") != "replay" or _rest(about).is_all:
            continue
        if about["made"] != now["made"] and _varies_before(chain, stage):
            raise StateError(
                f"cache {address!r} holds what epoch {now['made'][0]} made, the state is of an "
                f"epoch that had what epoch {about['made'][0]} made, in another order; begin the "
                "epoch again, or continue where the cache is empty, or as it was"
            )


def _varies_before(chain: Chain, cache: Stage) -> bool:
    """Return whether the items of a cache, or their order, differ from epoch to epoch."""
    for place, stage in enumerate(chain):
        if stage is cache:
            return any(one.spec.varies for one in addresses(chain[:place]).values())
        if any(_varies_before(inner, cache) for inner in stage.inputs):
            return True
    return False


def _check_chain(ours: list[Any], theirs: Any) -> None:
    if ours == theirs:
        return
    lines = zip(_summary(ours), _summary(theirs), strict=False)
    here, there = next(pair for pair in lines if pair[0][0] != pair[1][0])
    which = 0 if here[0] and there[0] else 1  # if one has ended, compare the sizes
    raise StateError(
        f"the state is of a pipeline with {there[which]}, this one has {here[which]}; {_WAY_OUT}, "
        "or begin the epoch again"
    )


def _summary(outlines: Any) -> Iterator[tuple[str, str]]:
    """Describe a chain stage by stage, with the size of its chain; a stage's inputs follow it.

    The end is an empty description.
    """
    size = f"{len(outlines)} stage" + ("" if len(outlines) == 1 else "s")
    for name, op, about, inputs in outlines:
        words = [op, *(f"{key} {value!r}" for key, value in about.items())]
        words += [f"{len(inputs)} inputs"] * bool(inputs)
        yield f"stage {name!r} ({', '.join(words)})", size
        for inner in inputs:
            yield from _summary(inner)
    yield "", size


def _outline(stage: Stage) -> list[Any]:
    """Return what must be the same to resume: not functions, executors or knobs."""
    inner = [[_outline(one) for one in chain] for chain in stage.inputs]
    return [stage.name, stage.op, stage.spec.state_words(), inner]


def _lengths(chain: Chain) -> dict[str, int]:
    rows = {address: stage.spec.rows for address, stage in addresses(chain).items()}
    return {address: count for address, count in rows.items() if count is not None}


def _ranks(chain: Chain) -> dict[str, list[int]]:
    """Return for each shard and claim its rank and the size of the world."""
    parts = {address: stage.spec.part for address, stage in addresses(chain).items()}
    return {address: list(part) for address, part in parts.items() if part is not None}
