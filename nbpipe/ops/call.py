"""Calls of a user's function: map, filter, flat_map; where they run, and what a failure does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ..base.checks import (
    Function,
    as_int,
    boolean,
    function,
    integer,
    is_async_generator_function,
    is_coroutine_function,
    plain_function,
    seconds,
)
from ..base.knobs import Knob
from ..base.names import methods_name_arguments
from ..errors import ArgumentError, ArgumentTypeError
from .chain import chain_unit, default_prefetch, new_name
from .device import Target, checked_device, place_on_device
from .stage import (
    WORDS_TEXT,
    Chain,
    ExecutorSpec,
    Operation,
    Runs,
    Stage,
    changed,
    given,
    placed,
    regions_of,
    wants_rng,
)


@methods_name_arguments
@dataclass(frozen=True, slots=True)
class Retry:
    """Call a stage's function again after it failed: `pipe.map(fn, on_error=Retry(2))`.

    Args:
        times: further calls for one item [calls], 1 to 1,000.
        backoff_s: wait before the first further call, doubled before each one after it [s].
        then: after the last failure, "raise" or "skip".

    Raises:
        ArgumentError: a value is out of range.

    Examples:
        >>> import nbpipe
        >>> calls = []
        >>> def fetch(name):
        ...     calls.append(name)
        ...     if len(calls) == 1:
        ...         raise OSError("connection reset")
        ...     return name.upper()
        >>> list(nbpipe.source(["a"]).map(fetch, on_error=nbpipe.Retry(2)))
        ['A']
    """

    digest_module: ClassVar[str] = "nbpipe.operations"  # in cache folders written before
    times: int
    backoff_s: float = field(default=0.0, kw_only=True)
    then: Literal["raise", "skip"] = field(default="raise", kw_only=True)

    def __post_init__(self) -> None:
        integer("Retry times", self.times, minimum=1, maximum=1000, unit="calls")
        seconds("Retry backoff_s", self.backoff_s, zero=True)
        if self.then not in ("raise", "skip"):
            raise ArgumentError(f"Retry then must be 'raise' or 'skip', got {self.then!r}")


OnError = Literal["raise", "skip"] | Retry


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What happens to an item whose call failed, and how many may fail in one epoch."""

    digest_module: ClassVar[str] = "nbpipe.operations"
    retry: Retry | None = None
    skips: bool = False
    max_failures: int | float | None = None

    @classmethod
    def of(cls, stage: str, on_error: OnError, max_failures: int | float | None) -> FailurePolicy:
        """Check the arguments `on_error` and `max_failures` of stage `stage`."""
        retry = on_error if isinstance(on_error, Retry) else None
        word = retry.then if retry else on_error
        if not isinstance(word, str) or word not in ("raise", "skip"):
            raise ArgumentError(
                f"{stage} on_error must be 'raise', 'skip' or nbpipe.Retry(times), got {on_error!r}"
            )
        skips = word == "skip"
        if max_failures is None:
            return cls(retry, skips)
        return cls(retry, skips, _budget(stage, max_failures, skips=skips))


def _budget(stage: str, budget: object, *, skips: bool) -> int | float:
    count = as_int(budget)
    counts = count is not None and count >= 0
    rates = isinstance(budget, float) and 0 < budget < 1
    if not counts and not rates:
        raise ArgumentError(
            f"{stage} max_failures must be an int of at least 0 [items] or a float between "
            f"0 and 1 [share of items], got {budget!r}"
        )
    if not skips:
        raise ArgumentError(
            f"{stage} max_failures={budget!r} has no effect with on_error='raise': the first "
            "failure ends the epoch; use on_error='skip' or nbpipe.Retry(times, then='skip')"
        )
    return float(budget) if count is None else count  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Operation):
    """A user's function for each item: base of map, filter and flat_map."""

    label: ClassVar[str] = "call"
    runs: ClassVar[Runs] = "call"
    may_branch: ClassVar[bool] = True
    keeps: ClassVar[bool] = False  # its function is a predicate
    fn: Function
    policy: FailurePolicy = FailurePolicy()
    ordered: bool = True
    timeout_s: float | None = None
    wants_rng: bool = False

    @property
    def function(self) -> Function:
        """The user's function."""
        return self.fn

    @property
    def max_failures(self) -> int | float | None:
        """How many items may fail in one epoch, or what share of them."""
        return self.policy.max_failures

    @property
    def in_order(self) -> bool:
        """Whether results come in the order of its input."""
        return self.ordered

    @property
    def varies(self) -> bool:
        """Whether it draws, or the order is a matter of time."""
        return self.wants_rng or not self.ordered

    @property
    def may_lose(self) -> bool:
        """Whether failed items are left out, or the order is a matter of time."""
        return self.uncounted or self.policy.skips or not self.ordered

    def state_words(self) -> dict[str, Any]:
        """Return nothing: functions may differ where an epoch continues."""
        return {}

    def detail(self) -> str:
        """Name what differs from the defaults."""
        words = [] if self.ordered else ["completion order"]
        if self.policy.retry:
            words.append(f"retry {self.policy.retry.times}")
        if self.policy.skips:
            words.append("skip errors")
        if self.timeout_s is not None:
            words.append(f"timeout {self.timeout_s:g} s")
        return ", ".join(words)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Map(Call):
    """One result for each item; on a device, where there is one."""

    label: ClassVar[str] = "map"
    device: str | None = None

    def detail(self) -> str:
        """Name what differs from the defaults."""
        words = Call.detail(self)
        if self.device is None:
            return words
        return f"on {self.device}, {words}" if words else f"on {self.device}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Filter(Call):
    """Keep the items for which the function is true."""

    label: ClassVar[str] = "filter"
    uncounted: ClassVar[bool] = True
    keeps: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FlatMap(Call):
    """Any number of results for each item."""

    label: ClassVar[str] = "flat_map"
    uncounted: ClassVar[bool] = True
    expands: ClassVar[bool] = True


_CALLS: dict[str, type[Call]] = {"map": Map, "filter": Filter, "flat_map": FlatMap}

_PROCESS_OPTIONS = {"worker_init": None, "max_items_per_worker": None, "copy": True, "region": True}

_CHOICES = (
    f"'thread', 'inline', {WORDS_TEXT}, a concurrent.futures.Executor or a Dask client (an "
    "async function runs on the event loop by itself)"
)

_NOT_ON_DEVICE = (
    "worker_init",
    "max_items_per_worker",
    "timeout_s",
    "executor",
    "concurrency",
    "prefetch",
)


def append_call(chain: Chain, label: str, fn: object, options: Mapping[str, Any]) -> Chain:
    """Append a map, filter or flat_map stage."""
    checked = function(f"{label} fn", fn)
    name, named = new_name(chain, label, checked, options["name"])
    if is_wanted(name, options):
        return _append_on_device(chain, checked, options, name=name, named=named)
    held = default_prefetch(chain)
    return _append_here(chain, label, checked, options, name=name, named=named, prefetch=held)


def _append_here(
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
    workers = executor_spec_of(name, executor, options)
    timeout_s = options["timeout_s"]
    if timeout_s is not None:
        timeout_s = seconds(f"{name} timeout_s", timeout_s)
        _check_timeout(name, label, executor, workers)
    spec = _CALLS[label](
        fn=fn,
        policy=FailurePolicy.of(name, options["on_error"], options["max_failures"]),
        ordered=boolean(f"{name} ordered", options["ordered"]),
        timeout_s=timeout_s,
        wants_rng=wants_rng(fn),
    )
    knobs = options["concurrency"], options["prefetch"]
    if workers is not None:
        return place(chain, spec, workers, *knobs, name=name, named=named, prefetch_else=prefetch)
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
        unit=chain_unit(chain),
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


def executor_spec_of(
    name: str, executor: object, options: Mapping[str, Any]
) -> ExecutorSpec | None:
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
        plain_function(f"{name} worker_init", asked["worker_init"])
    if most is not None:
        asked["max_items_per_worker"] = integer(
            f"{name} max_items_per_worker", most, minimum=1, unit="items"
        )
    for word in ("copy", "region"):
        asked[word] = boolean(f"{name} {word}", asked[word])
    if where[0] != "process":
        _refuse_process_options(name, asked | {"region": True, "worker_init": None})
    return ExecutorSpec(*where, **asked)


def _refuse_process_options(name: str, asked: Mapping[str, Any]) -> None:
    for word, default in _PROCESS_OPTIONS.items():
        if asked[word] != default:
            raise ArgumentError(
                f"{name} {word} is an option of worker processes, got {asked[word]!r}; use "
                'executor="process", or leave it out'
            )


def _check_timeout(name: str, label: str, executor: object, executor_spec: object) -> None:
    if executor != "coroutine" and executor_spec is None:
        raise ArgumentError(
            f"{name} timeout_s needs a call that can be ended: a thread cannot be killed; make "
            'the function an async def, or run it in executor="process"'
        )
    if label == "flat_map":
        raise ArgumentError(
            f"{name} timeout_s is for one call with one result; "
            + ("watch the time" if executor_spec else "put asyncio.timeout")
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
    spec: Operation,
    executor_spec: ExecutorSpec,
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
        executor_spec=executor_spec,
        given=given(concurrency=concurrency, prefetch=prefetch),
        unit=chain_unit(chain),
    )
    above = joined(chain, spec, executor_spec)
    if above is None:
        limit = 1 if concurrency is None else concurrency
        why = _why_apart(chain, executor_spec) if spec.gathers else ""
        return (*chain, stage(concurrency=limit, prefetch=held, why=why))
    shared = _shared_limit(above, name, concurrency)
    if prefetch is None and spec.runs == "call" and above.spec.runs != "batch":
        held = above.knobs["prefetch"].value
    if not executor_spec.follows:  # after an inner stage of a region nothing waits
        above = changed(above, shared=shared)
    return (*chain[:-1], above, stage(prefetch=held, shared=shared))


def _why_apart(chain: Chain, executor_spec: ExecutorSpec) -> str:
    """Say what it costs that batches are not made in the worker processes of their items."""
    above = chain[-1] if chain else None
    if above is None or {above.executor, executor_spec.executor} != {"process"}:
        return ""
    return f"apart from {above.name}, items are sent twice"


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


def _append_on_device(
    chain: Chain, fn: Any, options: Mapping[str, Any], *, name: str, named: bool
) -> Chain:
    """Append a map on a device."""
    _refuse_options(name, fn, options)
    target = Target(checked_device(name, options["device"]))
    spec = Map(
        fn=fn,
        policy=FailurePolicy.of(name, options["on_error"], options["max_failures"]),
        wants_rng=wants_rng(fn),
        device=target.device,
    )
    return place_on_device(chain, spec, target, options["depth"], name=name, named=named)


def _refuse_options(name: str, fn: object, options: Mapping[str, Any]) -> None:
    if is_coroutine_function(fn):
        raise ArgumentError(
            f"{name} must be a plain function on a device, got a coroutine function: calls run "
            "one after the other in threads of the run"
        )
    for word in _NOT_ON_DEVICE:
        if options[word] is not None:
            raise ArgumentError(
                f"{name} {word} does not go with device, got {options[word]!r}: calls on a device "
                "run one after the other in threads of the run; leave it out"
                + (", or give depth" if word == "prefetch" else "")
            )
    if not boolean(f"{name} ordered", options["ordered"]):
        raise ArgumentError(
            f"{name} ordered does not go with device, got {options['ordered']!r}: calls on a "
            "device run one after the other, and so in order; leave it out"
        )


def is_wanted(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether a call is to run on a device; refuse a depth where there is none."""
    if options.get("device") is not None:
        return True
    if options.get("depth") is not None:
        raise ArgumentError(
            f"{name} depth goes with device, got {options['depth']!r}; give prefetch here"
        )
    return False


def joined(chain: Chain, spec: Operation, executor_spec: ExecutorSpec) -> Stage | None:
    """Return the stage whose workers a new stage shares, or None where it gets its own.

    A batch needs every input of its own, so it shares no workers with stages that may drop
    items. A `flat_map` holds its worker from its first child to its last, so it stays alone.
    """
    above = chain[-1] if chain else None
    if above is None or above.executor_spec is None or not executor_spec.joins(above.executor_spec):
        return None
    if spec.expands or above.spec.expands:
        return None
    region: list[Any] = [stage.spec for stage in regions_of(chain)[-1]]
    calls = [one for one in region if one.runs == "call"]
    if spec.runs == "batch":
        whole = all(call.label == "map" and not call.policy.skips for call in calls)
        return above if whole and len(calls) == len(region) else None
    return above if all(_agree(call, spec) for call in calls) else None


def _agree(one: Any, other: Any) -> bool:
    return (one.policy, one.timeout_s, one.ordered) == (
        other.policy,
        other.timeout_s,
        other.ordered,
    )
