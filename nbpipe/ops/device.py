"""Copies to a device, and other stages on it: one call at a time. Device stages end a chain."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

from ..base.knobs import Knob
from ..errors import ArgumentError
from ..executors.device.device import Device, device_named
from .chain import new_name
from .stage import DEPTH, Chain, ExecutorSpec, Operation, Runs, Stage, given, has_device, new_knob


@dataclass(frozen=True, slots=True)
class Target:
    """A device, and the stream to use on it.

    Attributes:
        device: as torch names it, "cuda:0".
        stream: a stream of the user's, or None: the run's own.
    """

    device: str
    stream: object = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToDevice(Operation):
    """Copy batches to a device, or back."""

    label: ClassVar[str] = "to_device"
    runs: ClassVar[Runs] = "device"
    device: str

    def detail(self) -> str:
        """Name the device."""
        return self.device


_NAME = re.compile(r"[a-z]+(?::\d+)?")


def append_to_device(chain: Chain, device: object, depth: int, stream: object) -> Chain:
    """Append a copy to a device."""
    name, named = new_name(chain, "to_device", None, None)
    target = Target(checked_device(name, device), _stream(name, stream))
    return place_on_device(chain, ToDevice(target.device), target, depth, name=name, named=named)


def device_of(stage: Stage) -> Device:
    """Return the device of a stage, ready for use.

    Raises:
        ArgumentError: this machine has no such device.
        MissingExtraError: torch is not installed.
    """
    assert stage.executor_spec is not None
    target = stage.executor_spec.given
    assert isinstance(target, Target)
    depth = stage.knob("depth")
    return device_named(stage.name, target.device, target.stream, ahead=lambda: depth.value)


@final
class Devices:
    """The devices of one run: it keeps each, with its stream, for all its epochs."""

    def __init__(self) -> None:
        self._of: dict[str, Device] = {}  # by the address of the first stage of neighbours

    def of(self, address: str, stage: Stage) -> Device:
        """Return the device of a stage; stages on the same device and stream share it.

        Raises:
            ArgumentError: this machine has no such device.
            MissingExtraError: torch is not installed.
        """
        device = self._of.get(address)
        if device is None:
            made = device_of(stage)
            same = (one for one in self if (one.name, one.given) == (made.name, made.given))
            device = self._of[address] = next(same, made)
        return device

    def __iter__(self) -> Iterator[Device]:
        return iter({id(one): one for one in self._of.values()}.values())


def check_end(chain: Chain) -> None:
    """Check that the last stage of a chain may stand there: stages on a device end a chain.

    Raises:
        ArgumentError: it stands after a device, or joins pipelines that end on one.
    """
    if not chain:
        return
    *above, stage = chain
    first = next((one.name for one in above if one.executor == "device"), None)
    if first is not None and stage.executor != "device":
        raise ArgumentError(
            f"{stage.name} must stand before the stages on a device, got it after {first!r}: what "
            "follows to_device is a map with device=, or the training loop; move "
            f"{stage.op} before {first}"
        )
    inside = next((inner[-1].name for inner in stage.inputs if has_device(inner)), None)
    if inside is not None:
        raise ArgumentError(
            f"{stage.name} must be given stages of the host, got {inside!r}, which runs on a "
            f"device: that is where a pipeline ends; move {inside} after {stage.op}"
        )


def checked_device(name: str, device: object) -> str:
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
            f"{name} stream must be a stream of its device, for example torch.cuda.Stream(), got "
            f"{stream!r}; leave it out for the run's own"
        )
    return stream


def place_on_device(
    chain: Chain, spec: Operation, target: Target, depth: int | None, *, name: str, named: bool
) -> Chain:
    """Append a stage; neighbours on one device share the depth: a call goes through all of them."""
    shared: dict[str, Knob] = {}
    above = _neighbour(chain, target)
    if above is not None:
        stage_above, target = above
        shared = {"depth": _shared_depth(stage_above, name, depth)}
    stage = Stage(
        spec,
        name=name,
        named=named,
        executor_spec=ExecutorSpec("device", target),
        depth=DEPTH if depth is None else depth,
        shared=shared,
        given=given(depth=None if shared or depth == DEPTH else depth),
    )
    return (*chain, stage)


def _neighbour(chain: Chain, target: Target) -> tuple[Stage, Target] | None:
    """Return the stage above, and its device, where that is the same."""
    above = chain[-1] if chain else None
    other = None if above is None or above.executor_spec is None else above.executor_spec.given
    if above is None or not isinstance(other, Target) or other.device != target.device:
        return None
    return (above, other) if target.stream in (None, other.stream) else None


def _shared_depth(above: Stage, name: str, depth: int | None) -> Knob:
    knob = above.knobs["depth"]
    if depth is not None:
        new_knob(name, "depth", depth, "device")  # refuses what is none
    if depth not in (None, DEPTH, knob.value):
        raise ArgumentError(
            f"{name} runs with {above.name} on one device, so its depth must be that of "
            f"{above.name}, {knob.value} [batches], got {depth!r}; leave it out"
        )
    return knob
