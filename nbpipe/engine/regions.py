"""Regions: the workers of a run outside its own threads, and its devices."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from ..executors.base import Caller
from ..executors.device import Device, DeviceCaller
from ..ops.batch import Batch
from ..ops.call import Call, FailurePolicy, Map
from ..ops.device import device_of
from ..ops.stage import Operation, Placement, Stage
from .map import MapNode, step_of
from .program import Region, RegionPart, RegionProgram
from .task import EpochContext

if TYPE_CHECKING:
    from .epoch import Epoch
    from .stats import StageRuntime

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
        self._devices: dict[tuple[str, int], DeviceCaller] = {}

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
            address: step_of(
                address, _spec(stage, group, caller, whole=True), context, stage.executor
            )
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
            RegionPart(address, _spec(stage, group, caller))
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
            device = device_of(group[0])
            key = device.name, id(device.given)
            return self._devices.setdefault(key, DeviceCaller(device))
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

    @property
    def devices(self) -> tuple[DeviceCaller, ...]:
        """For each device, and each stream of the user's, its one thread."""
        return tuple(self._devices.values())

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


class Leftovers:
    """Lets go of batches on a device that nobody takes: an iterator may be kept for long."""

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


def direct_node(runtime: StageRuntime, epoch: Epoch, stage: Stage) -> MapNode:
    """Return the node of a stage that runs in the asking thread, and leaves nothing in flight."""
    device = device_of(stage)
    spec = _on_device(stage.spec, device, first=True, last=True)
    spec = dataclasses.replace(spec, fn=functools.partial(device.run, spec.fn))
    return MapNode(runtime, epoch, step_of(runtime.address, spec, epoch.context, stage.executor))


def _on_device(spec: Operation, device: Device, *, first: bool, last: bool) -> Map:
    """Return what a stage does as a map, run in the device's thread.

    Args:
        spec: the operation.
        device: where.
        first: its batches come from another thread.
        last: its batches go to another thread.
    """
    if spec.runs == "device":
        call = Map(fn=device.fetch if first else device.copy)
    else:
        call = cast("Map", spec)
        fn = functools.partial(device.call if first else device.go_on, call.fn)
        call = dataclasses.replace(call, fn=fn)
    if last:
        call = dataclasses.replace(call, fn=functools.partial(device.finish, call.fn))
    return call


def _spec(
    stage: Stage, group: Sequence[Stage], caller: Caller, *, whole: bool = False
) -> Call | Batch:
    """Return what a stage of a region does; the run decides on a `flat_map` that failed."""
    if isinstance(caller, DeviceCaller):
        first, last = stage is group[0], stage is group[-1]
        return _on_device(stage.spec, caller.device, first=first, last=last)
    if stage.spec.expands and not whole:
        return dataclasses.replace(cast("Call", stage.spec), policy=FailurePolicy())
    return cast("Call | Batch", stage.spec)
