"""Append a checked stage to a chain: the arguments of `Pipeline`'s methods become stages."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from . import calls, on_device
from .cache import FolderStore, MemoryStore
from .collate import check_options
from .errors import ArgumentError, ArgumentTypeError, DuplicateNameError
from .knobs import Knob
from .operations import (
    Batch,
    Cache,
    Call,
    Enumerate,
    Operation,
    Repeat,
    Route,
    Shuffle,
    Skip,
    Source,
    Take,
    Unbatch,
    Window,
    as_float,
    flag,
    function,
    whole,
)
from .order import absorbed, index_plan
from .placement import Placement
from .stage import (
    CONSUMER,
    LONGEST_NAME,
    Chain,
    Stage,
    auto_name,
    clean_name,
    fingerprint,
    given,
    numbered,
    taken_names,
)

SAMPLES, BATCHES = 8, 2  # prefetch of stages before, and from the first batch on


def check_name(what: str, name: object) -> str:
    """Check a name given by hand.

    Raises:
        ArgumentError: empty, too long, not printable, with a slash, or reserved.
    """
    usable = isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()
    if not usable or "/" in str(name):
        raise ArgumentError(
            f"{what} name must be a printable str of 1 to {LONGEST_NAME} characters without "
            f"'/', got {name!r}"
        )
    if name == CONSUMER:
        raise ArgumentError(
            f"{what} name must not be {CONSUMER!r}: that is the row of the training loop itself"
        )
    return str(name)


def _name(chain: Chain, label: str, fn: object, name: str | None) -> tuple[str, bool]:
    taken = taken_names(chain)
    if name is not None:
        check_name(label, name)
        _refuse_taken(label, name, taken)
        return name, True
    found = label if fn is None else auto_name(fn, label, len(chain))
    return numbered(clean_name(found), taken), False


def _refuse_taken(label: str, name: str, taken: set[str]) -> None:
    if name in taken:
        raise DuplicateNameError(
            f"{label} name must be new in its pipeline, got {name!r}, which is taken; "
            f"leave it out, or choose another (taken: {', '.join(sorted(taken))})"
        )


def _default_prefetch(chain: Chain) -> int:
    batched = False
    for stage in chain:
        batched = not isinstance(stage.spec, Unbatch) and (batched or isinstance(stage.spec, Batch))
        if stage.inputs and not isinstance(stage.spec, Route):
            batched = all(_default_prefetch(inner) == BATCHES for inner in stage.inputs)
    return BATCHES if batched else SAMPLES


def call(chain: Chain, label: str, fn: object, options: Mapping[str, Any]) -> Chain:
    """Append a map, filter or flat_map stage."""
    checked = function(f"{label} fn", fn)
    name, named = _name(chain, label, checked, options["name"])
    if on_device.is_wanted(name, options):
        return on_device.call(chain, checked, options, name=name, named=named)
    held = _default_prefetch(chain)
    return calls.call(chain, label, checked, options, name=name, named=named, prefetch=held)


def batch(
    chain: Chain, size: Any, options: Mapping[str, Any], name: str | None, prefetch: int | None
) -> Chain:
    """Append a batch stage."""
    stage_name, named = _name(chain, "batch", None, name)
    spec = _batch_spec(stage_name, size, options)
    placement = _batch_placement(stage_name, options, by_cost=spec.cost is not None)
    if placement is not None:
        knobs = (options["concurrency"], prefetch)
        return calls.place(
            chain, spec, placement, *knobs, name=stage_name, named=named, prefetch_else=BATCHES
        )
    held = BATCHES if prefetch is None else prefetch
    return (
        *chain,
        Stage(spec, name=stage_name, named=named, prefetch=held, given=given(prefetch=prefetch)),
    )


def _batch_spec(stage_name: str, size: Any, options: Mapping[str, Any]) -> Batch:
    cost, collate, names = options["cost"], options["collate"], options["names"]
    if cost is None:
        size = whole("batch size", size, minimum=1, maximum=2**31, unit="items")
    elif not 0 < as_float(size) < math.inf:
        raise ArgumentError(f"batch size must be a finite number above 0 with cost, got {size!r}")
    for word in ("cost", "collate"):
        if options[word] is not None:
            function(f"{stage_name} {word}", options[word])
    given = [word for word in ("names", "dtype", "pad") if options[word] is not None]
    if collate is not None and given:
        raise ArgumentError(
            f"{stage_name} collate replaces the stacking, so {', '.join(given)} would do "
            "nothing; leave one out"
        )
    check_options(names, options["dtype"], options["pad"])
    return Batch(
        size=size,
        drop_last=flag(f"{stage_name} drop_last", options["drop_last"]),
        collate=collate,
        names=None if names is None else tuple(names),
        dtype=options["dtype"],
        pad=options["pad"],
        cost=cost,
    )


def _batch_placement(
    stage_name: str, options: Mapping[str, Any], *, by_cost: bool
) -> Placement | None:
    executor = options["executor"]
    placement = calls.placement_of(stage_name, executor, {})
    if executor not in (None, "thread") and placement is None:
        raise ArgumentError(
            f"{stage_name} executor must be 'thread', 'process', 'dask', an Executor or a Dask "
            f"client, got {executor!r}"
        )
    if placement is not None and by_cost:
        raise ArgumentError(
            f"{stage_name} executor={executor!r} does not go with cost: batches of a budget are "
            "gathered one after the other; leave executor out, and collate in a stage behind it"
        )
    if placement is None and options["concurrency"] is not None:
        raise ArgumentError(
            f"{stage_name} concurrency needs workers: batches are gathered one after the other; "
            'leave it out, or use executor="process"'
        )
    return placement


def _plain(
    chain: Chain,
    spec: Operation,
    prefetch: int | None = None,
    words: frozenset[str] = frozenset(),
) -> Chain:
    name, named = _name(chain, spec.label, None, None)
    return (*chain, Stage(spec, name=name, named=named, prefetch=prefetch, given=words))


def to_device(chain: Chain, device: object, depth: int, stream: object) -> Chain:
    """Append a copy to a device."""
    name, named = _name(chain, "to_device", None, None)
    return on_device.to_device(chain, device, depth=depth, stream=stream, name=name, named=named)


def unbatch(chain: Chain) -> Chain:
    """Append an unbatch stage."""
    return _plain(chain, Unbatch())


def window(chain: Chain, size: int, stride: int) -> Chain:
    """Append a window stage."""
    size = whole("window size", size, minimum=1, unit="items")
    return _plain(chain, Window(size, whole("window stride", stride, minimum=1, unit="items")))


def shuffle(chain: Chain, seed: int, buffer_size: int | None, prefetch: int | None) -> Chain:
    """Append a shuffle stage."""
    seed = whole("shuffle seed", seed, minimum=-(2**63), maximum=2**64)
    if buffer_size is not None:
        buffer_size = whole("shuffle buffer_size", buffer_size, minimum=1, unit="items")
        held = _default_prefetch(chain) if prefetch is None else prefetch
        return _plain(chain, Shuffle(seed, buffer_size), held, given(prefetch=prefetch))
    plan = index_plan(chain)
    if plan is None:
        raise ArgumentError(
            "shuffle needs buffer_size here, as shuffle(buffer_size=1000): "
            f"{_not_indexed(chain)}; or shuffle right after the source"
        )
    if prefetch is not None:
        raise ArgumentError(
            "shuffle prefetch needs buffer_size: a permutation of indices holds no items; set "
            "the source's prefetch"
        )
    plan.shuffle(seed)  # refuses what never ends
    return _plain(chain, Shuffle(seed))


def _not_indexed(chain: Chain) -> str:
    spec, used = absorbed(chain)
    if spec is None:
        return f"source {chain[0].name!r} has no length and index" if chain else "no source"
    stage = chain[min(used, len(chain) - 1)]
    return f"the items of {stage.name!r} ({stage.op}) cannot be read by index"


def take(chain: Chain, n: int) -> Chain:
    """Append a take stage."""
    return _plain(chain, Take(whole("take n", n, minimum=0, unit="items")))


def skip(chain: Chain, n: int) -> Chain:
    """Append a skip stage."""
    return _plain(chain, Skip(whole("skip n", n, minimum=0, unit="items")))


def repeat(chain: Chain, n: int | None) -> Chain:
    """Append a repeat stage."""
    return _plain(
        chain, Repeat(None if n is None else whole("repeat n", n, minimum=1, unit="passes"))
    )


def enumerate_(chain: Chain) -> Chain:
    """Append an enumerate stage."""
    return _plain(chain, Enumerate())


def cache(chain: Chain, path: str | os.PathLike[str] | None) -> Chain:
    """Append a cache stage."""
    if path is None:
        return _plain(chain, Cache(MemoryStore()))
    given: object = path
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise ArgumentTypeError(
            f"cache path must be a folder, as a str or a Path, got {path!r}; leave it out to "
            "cache in memory"
        )
    return _plain(chain, Cache(FolderStore(path, {"chain": fingerprint(chain)})))


def grown_branches(branches: Any, begin: Callable[[Chain], Any]) -> dict[Any, Chain]:
    """Have the functions of a route add their stages, and check what they give.

    Args:
        branches: for each value a function of a pipeline.
        begin: gives a pipeline of a chain.

    Raises:
        ArgumentError: no dict, an empty one, or a branch with a stage it may not hold.
        ArgumentTypeError: a function returns something else than its pipeline.
    """
    if not isinstance(branches, Mapping) or not branches:
        raise ArgumentError(
            f"route branches must be a dict of at least one value, got {branches!r}; "
            'as {"jpg": lambda chain: chain.map(decode)}'
        )
    found = {}
    for value, grow in branches.items():
        empty = begin(())
        grown = function("route branch", grow)(empty)
        if type(grown) is not type(empty):
            raise ArgumentTypeError(
                "a branch of route must return the chain it was given, with stages added, got "
                f"{type(grown).__name__}"
            )
        found[value] = branch(value, grown.chain)
    return found


def branch(value: object, chain: Chain) -> Chain:
    """Check the chain of one branch of a route, and name its stages `name@value`."""
    named: list[Stage] = []
    limits: dict[int, Knob] = {}
    for stage in chain:
        spec = stage.spec
        if isinstance(spec, Source):
            raise ArgumentError(
                "a branch of route must add stages to the chain it is given, got a pipeline of "
                'its own; as {"jpg": lambda chain: chain.map(decode)}'
            )
        if not isinstance(spec, Call):
            raise ArgumentError(
                f"a branch of route may hold map, filter and flat_map, got {stage.op}; put "
                f"{stage.op} behind the route"
            )
        if not spec.ordered:
            raise ArgumentError(
                f"a branch of route must keep the input order, got ordered=False in "
                f"{stage.name!r}; leave it out"
            )
        named.append(_renamed(stage, f"{stage.name}@{_branch_word(value)}", limits))
    return tuple(named)


def _renamed(stage: Stage, name: str, limits: dict[int, Knob]) -> Stage:
    """Copy a stage with knobs of its own; stages that share a limit share the copy of it."""
    knobs = {word: knob.value for word, knob in stage.knobs.items()}
    word = "concurrency" if stage.placement is None else stage.placement.limit
    limit = stage.knobs.get(word)
    shared = {} if limit is None or id(limit) not in limits else {word: limits[id(limit)]}
    copy = Stage(
        stage.spec,
        name=name,
        named=stage.named,
        executor=stage.executor,
        placement=stage.placement,
        concurrency=knobs.get("concurrency"),
        prefetch=knobs.get("prefetch"),
        depth=knobs.get("depth"),
        shared=shared,
        given=stage.given,
        made_at=stage.made_at,
    )
    if limit is not None:
        limits[id(limit)] = copy.knobs[word]
    return copy


def _branch_word(value: object) -> str:
    text = str(value).replace("/", "_")
    return "".join(c if c.isprintable() else "_" for c in text)[:40]


def route(
    chain: Chain, key: Callable[[Any], Any], branches: Mapping[Any, Chain], name: str | None
) -> Chain:
    """Append a route stage."""
    spec = Route(key=function("route key", key), values=tuple(branches))
    stage_name, named = _name(chain, "route", None, name)
    taken = {*taken_names(chain), stage_name}
    inputs = tuple(_apart(branch, taken) for branch in branches.values())
    return (*chain, Stage(spec, name=stage_name, named=named, inputs=inputs))


def _apart(branch: Chain, taken: set[str]) -> Chain:
    """Rename the stages of a branch whose names are taken: a number for automatic names."""
    names: list[str] = []
    for stage in branch:
        if stage.named:
            _refuse_taken("route branch", stage.name, taken)
        names.append(numbered(stage.name, taken))
        taken.add(names[-1])
    if names == [stage.name for stage in branch]:
        return branch
    limits: dict[int, Knob] = {}
    return tuple(_renamed(stage, name, limits) for stage, name in zip(branch, names, strict=True))
