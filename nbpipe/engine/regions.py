"""Regions: the workers of a run outside its own threads, region by region."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Sequence
from time import monotonic
from typing import cast

from ..executors.base import Caller
from ..executors.device import DeviceCaller
from ..operations import Batch, Call, FailurePolicy, FlatMap
from ..placement import Placement
from ..stage import Stage
from .context import EpochContext
from .device import Devices, part_of
from .program import Part, RegionProgram
from .regionnode import Region
from .steps import step_of

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
        """Give the region of some stages for one epoch; its workers are kept from the last."""
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
        timeout_s = next((s.spec.timeout_s for s in group if isinstance(s.spec, Call)), None)
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
        from ..executors.foreign import ForeignCaller

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
        """Give the caller that serves a stage, or None."""
        head = self._of.get(address)
        return None if head is None else self._callers[head]

    def head(self, address: str) -> str | None:
        """Give the first stage of the region that a stage belongs to, or None."""
        return self._of.get(address)

    def prepare(self) -> None:
        """Hear that an epoch begins: refuse now what cannot be sent.

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
        """Say whether the thread with this id is one of a device."""
        return any(caller.has(ident) for caller in self.devices)

    def close(self, timeout_s: float) -> list[str]:
        """End all workers; give the stages that were still inside user code."""
        deadline_s = monotonic() + timeout_s
        late: list[str] = []
        for caller in self._callers.values():
            late += caller.close(max(0.0, deadline_s - monotonic()))
        return late


def _spec(stage: Stage, caller: Caller, *, whole: bool = False) -> Call | Batch:
    """Give what a stage does; what happens to a failed `flat_map` is decided in the run."""
    spec = stage.spec
    if isinstance(caller, DeviceCaller):
        return part_of(spec, caller.device)
    if isinstance(spec, FlatMap) and not whole:
        return dataclasses.replace(spec, policy=FailurePolicy())
    assert isinstance(spec, Call | Batch)
    return spec
