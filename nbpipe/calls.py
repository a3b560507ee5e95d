"""Append a stage that calls a user's function: where it runs, and with whom it shares workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ArgumentError, ArgumentTypeError
from .knobs import Knob
from .operations import (
    Batch,
    Call,
    FailurePolicy,
    Filter,
    FlatMap,
    Map,
    flag,
    function,
    seconds,
    whole,
)
from .placement import Placement, placed
from .region import joined
from .stage import (
    Chain,
    Stage,
    given,
    is_async_generator_function,
    is_coroutine_function,
    wants_rng,
)

_CALLS: dict[str, type[Call]] = {"map": Map, "filter": Filter, "flat_map": FlatMap}
_PROCESS_OPTIONS = {"worker_init": None, "max_items_per_worker": None, "copy": True, "region": True}
_CHOICES = (
    "'thread', 'inline', 'process', 'dask', a concurrent.futures.Executor or a Dask client (an "
    "async function runs on the event loop by itself)"
)


def call(
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
    """Give the limit of the workers above; refuse another value for it."""
    shared = above.knobs["concurrency"]
    if concurrency is not None and concurrency != shared.value:
        raise ArgumentError(
            f"{name} runs in the workers of {above.name}, so its concurrency must be that of "
            f"{above.name}, {shared.value} [calls], got {concurrency!r}; leave it out, or give "
            f"{name} workers of its own with region=False"
        )
    return {"concurrency": shared}
