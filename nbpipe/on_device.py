"""Append a stage that runs on a device: in the device's own thread, one batch after the other."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from .devices import Target, ToDevice
from .errors import ArgumentError
from .knobs import Knob
from .operations import FailurePolicy, Map, Operation, flag
from .placement import Placement
from .stage import DEPTH, Chain, Stage, depth_knob, given, is_coroutine_function, wants_rng

_NAME = re.compile(r"[a-z]+(?::\d+)?")
_ELSEWHERE = (
    "worker_init",
    "max_items_per_worker",
    "timeout_s",
    "executor",
    "concurrency",
    "prefetch",
)


def to_device(
    chain: Chain, device: object, *, depth: int, stream: object, name: str, named: bool
) -> Chain:
    """Append a copy to a device."""
    target = Target(_checked(name, device), _stream(name, stream))
    return _placed(chain, ToDevice(target.device), target, depth, name=name, named=named)


def call(chain: Chain, fn: Any, options: Mapping[str, Any], *, name: str, named: bool) -> Chain:
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
    """Say whether a call is to run on a device; refuse a depth where there is none."""
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
    """Give the stage above, and its device, where that is the same."""
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
