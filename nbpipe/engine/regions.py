"""Regions: the workers of a run outside its own threads, and its devices."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import inspect
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from time import monotonic
from typing import TYPE_CHECKING, Any, cast, final

from ..errors import ArgumentError
from ..executors.base import Caller
from ..executors.device import (
    Device,
    DeviceCaller,
    InFlight,
    device_named,
    opened,
    replaced,
    seal_with,
)
from ..ops.batch import Batch, BatchByCost
from ..ops.cache import Recording
from ..ops.call import Call, FailurePolicy, Map
from ..ops.device import Target
from ..ops.stage import Operation, Placement, Stage
from .expand import CallOpener, ExpandNode
from .fold import StreamNode, StreamStep
from .map import AsyncStep, MapNode, Step, step_of
from .program import Part, Region, RegionNode, RegionProgram
from .task import EpochContext

if TYPE_CHECKING:
    from ..base.seeding import Entry
    from .epoch import Epoch
    from .failures import Failed
    from .node import Node
    from .runtime import StageRuntime
    from .task import Task

# -- Stages on a device: what they call there, and how the stages behind them read a batch ---------
Function = Callable[..., Any]


class Devices:
    """The devices of one run: for each one thread and one stream, for the life of the run."""

    def __init__(self) -> None:
        self._callers: dict[tuple[str, int], DeviceCaller] = {}

    def caller(self, stage: Stage) -> DeviceCaller:
        """Return the thread in which a stage runs.

        Raises:
            ArgumentError: this machine has no such device.
            MissingExtraError: torch is not installed.
        """
        device = device_of(stage)
        stream = target_of(stage).stream
        return self._callers.setdefault((device.name, id(stream)), DeviceCaller(device))

    def __iter__(self) -> Iterator[DeviceCaller]:
        return iter(tuple(self._callers.values()))


def target_of(stage: Stage) -> Target:
    """Return the device and the stream that a stage was given."""
    assert stage.placement is not None
    assert isinstance(stage.placement.given, Target)
    return stage.placement.given


def device_of(stage: Stage) -> Device:
    """Return the device of a stage, ready for use."""
    target = target_of(stage)
    return device_named(stage.name, target.device, target.stream)


def part_of(spec: Operation, device: Device) -> Map:
    """Return what a stage does as a map, run in the device's thread."""
    if spec.runs == "device":
        return Map(fn=device.copy)
    call = cast("Map", spec)
    return dataclasses.replace(call, fn=Reading(call.fn, device.read))


def direct_node(runtime: StageRuntime, epoch: Epoch, stage: Stage) -> MapNode:
    """Return the node of a stage that runs in the asking thread, and leaves nothing in flight."""
    device = device_of(stage)
    spec = part_of(stage.spec, device)
    spec = dataclasses.replace(spec, fn=functools.partial(device.run, spec.fn))
    return MapNode(runtime, epoch, step_of(runtime.address, spec, epoch.context, stage.executor))


# -- functions ----------------------------------------------------------------------------
@final
class Reading:
    """A function of opened batches."""

    def __init__(self, fn: Function, read: Function = opened) -> None:
        self._fn = fn
        self._read = read

    def __call__(self, value: Any, **options: Any) -> Any:
        """Open, then call."""
        return self._fn(self._read(value), **options)


@final
class Sealing:
    """A function of opened batches, whose work on a device may outlast the call."""

    def __init__(self, fn: Function) -> None:
        self._fn = fn

    def __call__(self, value: Any, **options: Any) -> Any:
        """Open, call, and note what is under way."""
        batch = opened(value)
        return seal_with(value, self._fn(batch, **options))


@final
class _AsyncSealing:
    """A coroutine function of opened batches."""

    def __init__(self, fn: Function) -> None:
        self._fn = fn

    async def __call__(self, value: Any, **options: Any) -> Any:
        """Open, call, and note what is under way."""
        batch = opened(value)
        return seal_with(value, await self._fn(batch, **options))


@final
class _SealingEach:
    """A function of opened batches that gives many items for one."""

    def __init__(self, fn: Function) -> None:
        self._fn = fn

    def __call__(self, value: Any, **options: Any) -> Any:
        """Open and call; each item is noted when it is drawn."""
        made = self._fn(opened(value), **options)
        if inspect.isawaitable(made):
            return _awaited(value, made)
        if hasattr(made, "__aiter__"):
            return _each_async(value, made)
        if isinstance(made, str | bytes | Mapping) or not hasattr(made, "__iter__"):
            return made  # refused by who draws from it
        return _each(value, made)


def _each(like: Any, made: Iterable[Any]) -> Iterator[Any]:
    for item in made:
        yield seal_with(like, item)


async def _awaited(like: Any, made: Awaitable[Any]) -> Any:
    return _listed(like, await made)


def _listed(like: Any, made: Any) -> Any:
    refused = isinstance(made, str | bytes | Mapping) or not hasattr(made, "__iter__")
    return made if refused else list(_each(like, made))


async def _each_async(like: Any, made: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for item in made:
        yield seal_with(like, item)


# -- the stages behind --------------------------------------------------------------------
def let_read(nodes: Sequence[Node]) -> None:
    """Let the nodes behind a device open what they are given, where they look at it."""
    known: dict[int, bool] = {}
    for node in nodes:
        if _is_behind(node, known):
            _open_inputs(node)
        if _is_device(node):
            _empty_at_end(node.epoch)


def _is_behind(node: Node, known: dict[int, bool]) -> bool:
    if id(node) not in known:
        known[id(node)] = any(_is_device(one) or _is_behind(one, known) for one in node.upstream)
    return known[id(node)]


def _is_device(node: Node) -> bool:
    return isinstance(node, RegionNode) and isinstance(node.region.caller, DeviceCaller)


def _open_inputs(node: Node) -> None:
    if isinstance(node, RegionNode):
        node.reads = not _is_device(node)
    elif isinstance(node, MapNode):
        for step in (node.first, *node.rest):
            _open_step(step)
    elif isinstance(node, ExpandNode) and isinstance(node.opener, CallOpener):
        node.opener.let_read(_SealingEach)
    elif isinstance(node, StreamNode):
        operation = node.step.operation
        if isinstance(operation, Recording | BatchByCost):
            node.step = _OpeningStep(node.step, keeps=isinstance(operation, Recording))


def _open_step(step: Step) -> None:
    let = getattr(step.fn, "let_read", None)
    if let is not None:
        let()
    elif step.keeps:
        step.fn = Reading(step.fn)
    else:
        step.fn = (_AsyncSealing if isinstance(step, AsyncStep) else Sealing)(step.fn)


def _empty_at_end(epoch: Epoch) -> None:
    if not any(isinstance(one, _Leftovers) for one in epoch.litter):
        epoch.litter.append(_Leftovers(epoch))


@final
class _Leftovers:
    """Lets go of batches that nobody takes any more: an iterator may be kept for long."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch

    def close(self) -> None:
        """Empty what is left of an epoch that is over."""
        for node in self._epoch.order:
            node.out.clear()
            node.inbox.clear()
            if isinstance(node, MapNode):
                node.ready.clear()
                node.returned.clear()


@final
class _OpeningStep(StreamStep):
    """A step of a stream that looks at the items.

    Args:
        step: what it is.
        keeps: it keeps the items beyond the epoch.
    """

    def __init__(self, step: StreamStep, *, keeps: bool) -> None:
        self.stage = step.stage
        self.operation = step.operation
        self._step = step
        self._keeps = keeps

    def apply(self, entry: Entry, task: Task) -> Any:
        """Open and push one entry."""
        try:
            if self._keeps:
                replaced(entry[1], self._check)
            value = opened(entry[1])
        except BaseException as error:
            return self.failure(entry[0], entry[1], error)
        made = self._step.apply((entry[0], value), task)
        if type(made) is not tuple:
            return made
        return (made[0], seal_with(entry[1], made[1]))

    def _check(self, flight: InFlight) -> InFlight:
        if flight.arrives:
            return flight
        raise ArgumentError(
            f"{self.stage} keeps items of the host, got a batch on {flight.marks[0].device}; put "
            "cache() before to_device, or to_device('cpu') before the cache"
        )

    def failure(self, path: Any, value: object, error: BaseException) -> Failed:
        """Make the failure that ends the epoch."""
        return self._step.failure(path, value, error)


# -- Regions: the workers of a run outside its own threads, region by region -----------------------
_RING_SHARE = 4  # of the memory budget of a run, this part is for shared memory


class Regions:
    """Makes the callers of a run, and ends them with it.

    Args:
        seed: the run's seed.
        memory_bytes: the run's budget for all buffers [bytes], or None.
    """

    def __init__(self, seed: int, memory_bytes: int | None) -> None:
        self._seed = seed
        self._memory_bytes = memory_bytes
        self._programs: dict[str, RegionProgram] = {}
        self._callers: dict[str, Caller] = {}
        self._of: dict[str, str] = {}
        self.devices = Devices()

    def region(
        self, group: Sequence[Stage], addresses: Sequence[str], context: EpochContext
    ) -> Region:
        """Return the region of some stages for one epoch; its workers are kept from the last."""
        head = addresses[0]
        caller = self._callers.get(head)
        if caller is None:
            caller = self._callers[head] = self._caller(group)
            self._programs[head] = self._program(group, addresses, caller)
            if not isinstance(caller, DeviceCaller):
                self._of.update(dict.fromkeys(addresses, head))
        steps = {
            address: step_of(address, _spec(stage, caller, whole=True), context, stage.executor)
            for stage, address in zip(group, addresses, strict=True)
        }
        calls: list[Any] = [stage.spec for stage in group if stage.spec.runs == "call"]
        timeout_s = calls[0].timeout_s if calls else None
        wears = group[0].placement is not None and group[0].placement.max_items_per_worker
        singly = timeout_s is not None or bool(wears)
        return Region(self._programs[head], caller, steps, timeout_s, singly)

    def _program(
        self, group: Sequence[Stage], addresses: Sequence[str], caller: Caller
    ) -> RegionProgram:
        parts = [
            Part(address, _spec(stage, caller))
            for stage, address in zip(group, addresses, strict=True)
        ]
        placements = [stage.placement for stage in group if stage.placement is not None]
        inits = [one.worker_init for one in placements if one.worker_init is not None]
        return RegionProgram(
            parts, seed=self._seed, executor=group[0].executor, inits=list(dict.fromkeys(inits))
        )

    def _caller(self, group: Sequence[Stage]) -> Caller:
        placement = group[0].placement
        assert placement is not None
        if placement.executor == "device":
            return self.devices.caller(group[0])
        if placement.executor == "process":
            return self._process_caller(placement, group)
        if placement.executor == "dask":
            from ..executors.dask import DaskCaller, dask_executor_of

            spec = dask_executor_of(placement.given or "dask")
            assert spec is not None
            return DaskCaller(spec)
        from ..executors.futures import ForeignCaller

        return ForeignCaller(cast("concurrent.futures.Executor", placement.given))

    def _process_caller(self, placement: Placement, group: Sequence[Stage]) -> Caller:
        from ..executors.process import ProcessCaller

        limit = group[0].knob("concurrency")
        budget = {}
        if self._memory_bytes is not None:
            budget["budget_bytes"] = self._memory_bytes // _RING_SHARE
        copies = all(stage.placement.copy for stage in group if stage.placement is not None)
        return ProcessCaller(
            limit=lambda: limit.value,
            copy=copies,
            max_items=placement.max_items_per_worker,
            **budget,
        )

    def caller(self, address: str) -> Caller | None:
        """Return the caller that serves a stage, or None."""
        head = self._of.get(address)
        return None if head is None else self._callers[head]

    def head(self, address: str) -> str | None:
        """Return the first stage of the region that a stage belongs to, or None."""
        return self._of.get(address)

    def prepare(self) -> None:
        """Called when an epoch begins: refuse now what cannot be sent.

        Raises:
            UnpicklableError: a function cannot be sent to where it would run.
        """
        for head, caller in self._callers.items():
            caller.renew()
            caller.prepare(self._programs[head])

    def tell(self, hear: Callable[[Caller], object]) -> None:
        """Call a function with every caller."""
        for caller in tuple(self._callers.values()):
            hear(caller)

    def has(self, ident: int) -> bool:
        """Tell whether the thread with this id is one of a device."""
        return any(caller.has(ident) for caller in self.devices)

    def close(self, timeout_s: float) -> list[str]:
        """End all workers; give the stages that were still inside user code."""
        deadline_s = monotonic() + timeout_s
        late: list[str] = []
        for caller in self._callers.values():
            late += caller.close(max(0.0, deadline_s - monotonic()))
        return late


def _spec(stage: Stage, caller: Caller, *, whole: bool = False) -> Call | Batch:
    """Return what a stage does; what happens to a failed `flat_map` is decided in the run."""
    if isinstance(caller, DeviceCaller):
        return part_of(stage.spec, caller.device)
    if stage.spec.expands and not whole:
        return dataclasses.replace(cast("Call", stage.spec), policy=FailurePolicy())
    return cast("Call | Batch", stage.spec)
