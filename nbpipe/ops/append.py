"""Append a checked stage to a chain: the arguments of `Pipeline`'s methods become stages."""

from __future__ import annotations

import functools
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..base.collate import check_options
from ..base.knobs import Knob
from ..errors import ArgumentError, ArgumentTypeError, DuplicateNameError
from .cache import FolderStore, MemoryStore
from .index import Tail
from .operations import (
    Balance,
    Batch,
    Cache,
    Call,
    Claim,
    Enumerate,
    FailurePolicy,
    Filter,
    FlatMap,
    Map,
    Operation,
    Repeat,
    Route,
    Sample,
    Shard,
    Shuffle,
    Skip,
    Source,
    Take,
    Target,
    ToDevice,
    Unbatch,
    Window,
    as_float,
    flag,
    function,
    seconds,
    whole,
)
from .order import absorbed, index_plan
from .plan import IndexPlan, default_rank
from .sample import Store, WithoutReplacement, WithReplacement, checked_weights, class_weights
from .stage import (
    CONSUMER,
    DEPTH,
    LONGEST_NAME,
    Chain,
    Placement,
    Stage,
    auto_name,
    clean_name,
    depth_knob,
    fingerprint,
    given,
    is_async_generator_function,
    is_coroutine_function,
    joined,
    numbered,
    placed,
    taken_names,
    wants_rng,
)

# -- Append a stage that calls a user's function ---------------------------------------------------
_CALLS: dict[str, type[Call]] = {"map": Map, "filter": Filter, "flat_map": FlatMap}
_PROCESS_OPTIONS = {"worker_init": None, "max_items_per_worker": None, "copy": True, "region": True}
_CHOICES = (
    "'thread', 'inline', 'process', 'dask', a concurrent.futures.Executor or a Dask client (an "
    "async function runs on the event loop by itself)"
)


def append_call(
    chain: Chain,
    label: str,
    fn: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    name: str,
    named: bool,
    prefetch: int,
) -> Chain:
    """Append a map, filter or flat_map stage whose name and default prefetch are known."""
    executor = _executor(name, label, fn, options["executor"])
    placement = placement_of(name, executor, options)
    timeout_s = options["timeout_s"]
    if timeout_s is not None:
        timeout_s = seconds(f"{name} timeout_s", timeout_s)
        _check_timeout(name, label, executor, placement)
    spec = _CALLS[label](
        fn=fn,
        policy=FailurePolicy.of(name, options["on_error"], options["max_failures"]),
        ordered=flag(f"{name} ordered", options["ordered"]),
        timeout_s=timeout_s,
        wants_rng=wants_rng(fn),
    )
    knobs = options["concurrency"], options["prefetch"]
    if placement is not None:
        return place(chain, spec, placement, *knobs, name=name, named=named, prefetch_else=prefetch)
    if executor == "inline":
        _refuse_inline_knobs(name, *knobs)
        return (*chain, Stage(spec, name=name, named=named, executor=executor))
    stage = Stage(
        spec,
        name=name,
        named=named,
        executor=str(executor),
        concurrency=1 if knobs[0] is None else knobs[0],
        prefetch=prefetch if knobs[1] is None else knobs[1],
        given=given(concurrency=knobs[0], prefetch=knobs[1]),
    )
    return (*chain, stage)


def _executor(name: str, label: str, fn: object, executor: object) -> object:
    """Check where the calls are to run."""
    awaits = is_coroutine_function(fn)
    if is_async_generator_function(fn):
        if label != "flat_map":
            raise ArgumentTypeError(
                f"{name} must be a function of one result for {label}, got an async generator; "
                "use flat_map"
            )
        awaits = True
    known = executor in (None, "thread", "inline") or placed(name, executor) is not None
    if not known:
        raise ArgumentError(f"{name} executor must be {_CHOICES}, got {executor!r}")
    if awaits and executor is not None:
        raise ArgumentError(
            f"{name} executor must be left out for a coroutine function, got {executor!r}: an "
            "async function runs on the run's event loop; leave executor out, or make the "
            "function a plain one"
        )
    if awaits:
        return "coroutine"
    return "thread" if executor is None else executor


def placement_of(name: str, executor: object, options: Mapping[str, Any]) -> Placement | None:
    """Check the options of workers outside the run's threads.

    Raises:
        ArgumentError: an option out of range, or one for processes only.
    """
    where = placed(name, executor)
    asked = {word: options.get(word, default) for word, default in _PROCESS_OPTIONS.items()}
    if where is None:
        _refuse_process_options(name, asked)
        return None
    most = asked["max_items_per_worker"]
    if asked["worker_init"] is not None:
        function(f"{name} worker_init", asked["worker_init"])
    if most is not None:
        asked["max_items_per_worker"] = whole(
            f"{name} max_items_per_worker", most, minimum=1, unit="items"
        )
    for word in ("copy", "region"):
        asked[word] = flag(f"{name} {word}", asked[word])
    if where[0] != "process":
        _refuse_process_options(name, asked | {"region": True, "worker_init": None})
    return Placement(*where, **asked)


def _refuse_process_options(name: str, asked: Mapping[str, Any]) -> None:
    for word, default in _PROCESS_OPTIONS.items():
        if asked[word] != default:
            raise ArgumentError(
                f"{name} {word} is an option of worker processes, got {asked[word]!r}; use "
                'executor="process", or leave it out'
            )


def _check_timeout(name: str, label: str, executor: object, placement: object) -> None:
    if executor != "coroutine" and placement is None:
        raise ArgumentError(
            f"{name} timeout_s needs a call that can be ended: a thread cannot be killed; make "
            'the function an async def, or run it in executor="process"'
        )
    if label == "flat_map":
        raise ArgumentError(
            f"{name} timeout_s is for one call with one result; "
            + ("watch the time" if placement else "put asyncio.timeout")
            + " into the generator"
        )


def _refuse_inline_knobs(name: str, concurrency: object, prefetch: object) -> None:
    if concurrency is not None or prefetch is not None:
        raise ArgumentError(
            f"{name} runs inline, fused with its neighbour, and has no concurrency or prefetch "
            "of its own; leave them out, or use executor='thread'"
        )


def place(
    chain: Chain,
    spec: Call | Batch,
    placement: Placement,
    concurrency: int | None,
    prefetch: int | None,
    *,
    name: str,
    named: bool,
    prefetch_else: int,
) -> Chain:
    """Append a stage outside the run's threads: with workers of its own, or those above it."""
    held = prefetch_else if prefetch is None else prefetch
    stage = functools.partial(
        Stage,
        spec,
        name=name,
        named=named,
        placement=placement,
        given=given(concurrency=concurrency, prefetch=prefetch),
    )
    above = joined(chain, spec, placement)
    if above is None:
        limit = 1 if concurrency is None else concurrency
        return (*chain, stage(concurrency=limit, prefetch=held))
    shared = _shared_limit(above, name, concurrency)
    if prefetch is None and isinstance(spec, Call) and not isinstance(above.spec, Batch):
        held = above.knobs["prefetch"].value
    inner = Stage(
        above.spec,
        name=above.name,
        named=above.named,
        placement=above.placement,
        shared=shared,
        given=above.given,
        made_at=above.made_at,
    )
    return (*chain[:-1], inner, stage(prefetch=held, shared=shared))


def _shared_limit(above: Stage, name: str, concurrency: int | None) -> dict[str, Knob]:
    """Return the limit of the workers above; refuse another value for it."""
    shared = above.knobs["concurrency"]
    if concurrency is not None and concurrency != shared.value:
        raise ArgumentError(
            f"{name} runs in the workers of {above.name}, so its concurrency must be that of "
            f"{above.name}, {shared.value} [calls], got {concurrency!r}; leave it out, or give "
            f"{name} workers of its own with region=False"
        )
    return {"concurrency": shared}


# -- Append a stage that runs on a device ----------------------------------------------------------
_NAME = re.compile(r"[a-z]+(?::\d+)?")
_ELSEWHERE = (
    "worker_init",
    "max_items_per_worker",
    "timeout_s",
    "executor",
    "concurrency",
    "prefetch",
)


def append_transfer(
    chain: Chain, device: object, *, depth: int, stream: object, name: str, named: bool
) -> Chain:
    """Append a copy to a device."""
    target = Target(_checked(name, device), _stream(name, stream))
    return _placed(chain, ToDevice(target.device), target, depth, name=name, named=named)


def append_device_call(
    chain: Chain, fn: Any, options: Mapping[str, Any], *, name: str, named: bool
) -> Chain:
    """Append a map on a device."""
    _refuse_options(name, fn, options)
    target = Target(_checked(name, options["device"]))
    spec = Map(
        fn=fn,
        policy=FailurePolicy.of(name, options["on_error"], options["max_failures"]),
        ordered=flag(f"{name} ordered", options["ordered"]),
        wants_rng=wants_rng(fn),
        device=target.device,
    )
    return _placed(chain, spec, target, options["depth"], name=name, named=named)


def _checked(name: str, device: object) -> str:
    """Check a device's name; whether there is one shows when a run starts."""
    torch: Any = sys.modules.get("torch")
    kind = () if torch is None else (getattr(torch, "device", ()),)
    word = str(device) if isinstance(device, kind) else device
    if not isinstance(word, str) or not _NAME.fullmatch(word):
        raise ArgumentError(
            f"{name} device must be a torch device such as 'cuda', 'cuda:1' or 'cpu', got "
            f"{device!r}"
        )
    return word


def _stream(name: str, stream: object) -> object:
    if stream is not None and not callable(getattr(stream, "wait_event", None)):
        raise ArgumentError(
            f"{name} stream must be a stream of its device, as torch.cuda.Stream(), got "
            f"{stream!r}; leave it out for the run's own"
        )
    return stream


def _refuse_options(name: str, fn: object, options: Mapping[str, Any]) -> None:
    if is_coroutine_function(fn):
        raise ArgumentError(
            f"{name} must be a plain function on a device, got a coroutine function: calls run "
            "one after the other in the device's thread"
        )
    for word in _ELSEWHERE:
        if options[word] is not None:
            raise ArgumentError(
                f"{name} {word} does not go with device, got {options[word]!r}: calls on a device "
                "run one after the other in its own thread; leave it out"
                + (", or give depth" if word == "prefetch" else "")
            )


def is_wanted(name: str, options: Mapping[str, Any]) -> bool:
    """Tell whether a call is to run on a device; refuse a depth where there is none."""
    if options.get("device") is not None:
        return True
    if options.get("depth") is not None:
        raise ArgumentError(
            f"{name} depth goes with device, got {options['depth']!r}; give prefetch here"
        )
    return False


def _placed(
    chain: Chain,
    spec: Operation,
    target: Target,
    depth: int | None,
    *,
    name: str,
    named: bool,
) -> Chain:
    """Append a stage; neighbours on one device share their thread's turn, and the depth."""
    shared: dict[str, Knob] = {}
    above = _neighbour(chain, target)
    if above is not None:
        stage_above, target = above
        shared = {"depth": _shared_depth(stage_above, name, depth)}
    stage = Stage(
        spec,
        name=name,
        named=named,
        placement=Placement("device", target),
        depth=DEPTH if depth is None else depth,
        shared=shared,
        given=given(depth=None if shared else depth),
    )
    return (*chain, stage)


def _neighbour(chain: Chain, target: Target) -> tuple[Stage, Target] | None:
    """Return the stage above, and its device, where that is the same."""
    above = chain[-1] if chain else None
    other = None if above is None or above.placement is None else above.placement.given
    if above is None or not isinstance(other, Target) or other.device != target.device:
        return None
    return (above, other) if target.stream in (None, other.stream) else None


def _shared_depth(above: Stage, name: str, depth: int | None) -> Knob:
    knob = above.knobs["depth"]
    if depth is not None:
        depth_knob(name, depth)  # refuses what is none
    if depth not in (None, DEPTH, knob.value):
        raise ArgumentError(
            f"{name} runs with {above.name} on one device, so its depth must be that of "
            f"{above.name}, {knob.value} [batches], got {depth!r}; leave it out"
        )
    return knob


# -- Append a checked stage to a chain: the arguments of `Pipeline`'s methods become stages --------
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
    if is_wanted(name, options):
        return append_device_call(chain, checked, options, name=name, named=named)
    held = _default_prefetch(chain)
    return append_call(chain, label, checked, options, name=name, named=named, prefetch=held)


def batch(
    chain: Chain, size: Any, options: Mapping[str, Any], name: str | None, prefetch: int | None
) -> Chain:
    """Append a batch stage."""
    stage_name, named = _name(chain, "batch", None, name)
    spec = _batch_spec(stage_name, size, options)
    placement = _batch_placement(stage_name, options, by_cost=spec.cost is not None)
    if placement is not None:
        knobs = (options["concurrency"], prefetch)
        return place(
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
    placement = placement_of(stage_name, executor, {})
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
    return append_transfer(chain, device, depth=depth, stream=stream, name=name, named=named)


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


# -- Append a checked stage that makes another order of indices: the rest is in `appending` --------
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
    """Return the index order that a chain is.

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
