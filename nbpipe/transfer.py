"""Transfer: copy nested batches to a device and back, on one stream, without a wait.

Host memory is pinned in the thread that copies. An event is recorded for each batch: until it
has come, the host memory stays alive; readers wait for it on their own streams.

Source: PyTorch "CUDA semantics", asynchronous copies; `torch.Tensor.record_stream`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, final

import numpy as np

from .errors import ArgumentError, MissingExtraError
from .executors.device import Device
from .executors.holdings import Counts, Event, Holdings
from .executors.inflight import Backend, InFlight, Mark, opened, replaced, sealed, tensors
from .executors.torch_streams import TorchBackend
from .tree import MAX_DEPTH, children, map_leaves, rebuild

if TYPE_CHECKING:
    from types import ModuleType

_NUMERIC = frozenset("biufc")
_HOST = ("cpu", "meta")  # always there, and without streams

BACKENDS: dict[str, Backend] = {}  # by kind of device; torch's are made when first used


def device_named(stage: str, wanted: str, stream: object = None) -> Device:
    """Give a device of this machine, ready for one run.

    Args:
        stage: name of the stage that wants it, for errors.
        wanted: as torch names it: "cuda", "cuda:1", "cpu".
        stream: what to use instead of a stream of its own.

    Raises:
        ArgumentError: there is no such device, or the stream is another device's.
        MissingExtraError: torch is not installed.
    """
    kind = wanted.partition(":")[0]
    backend = BACKENDS.get(kind)
    if backend is None:
        torch = _torch(stage)
        device = _checked(torch, stage, wanted)
        if device.type in _HOST or not hasattr(_module(torch, kind), "Stream"):
            if stream is not None:
                raise ArgumentError(
                    f"{stage} stream must be left out for device {wanted!r}, which has no "
                    f"streams, got {stream!r}"
                )
            return HostDevice(wanted) if device.type == "cpu" else DirectDevice(wanted)
        backend = BACKENDS[kind] = TorchBackend(torch, kind)
    try:
        name = backend.resolve(wanted)
    except ArgumentError as error:
        raise ArgumentError(f"{stage} {error}") from None
    where = str(getattr(stream, "device", name))
    if where != name:
        raise ArgumentError(
            f"{stage} stream must be one of {name}, got one of {where}; make it there"
        )
    return StreamDevice(backend, name, stream)


def _torch(stage: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError.of("torch", "torch", f"stage {stage!r}") from error
    return torch


def _checked(torch: Any, stage: str, wanted: str) -> Any:
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ArgumentError(
            f"{stage} device must be a torch device, got {wanted!r}: {error}"
        ) from None
    if device.type not in _HOST and not _is_there(torch, device.type):
        raise ArgumentError(
            f"{stage} device must be one of this machine, got {wanted!r}: torch finds no "
            f"{device.type.upper()} device here; use 'cpu', or a torch built for it"
        )
    return device


def _is_there(torch: Any, kind: str) -> bool:
    known = getattr(torch.backends, kind, None)  # it knows of devices without a module, as mps
    for one in (_module(torch, kind), known):
        is_available = getattr(one, "is_available", None)
        if is_available is not None:
            return bool(is_available())
    return False


def _module(torch: Any, kind: str) -> ModuleType | None:
    """Give torch's module for a kind of device: `torch.cuda`."""
    module: ModuleType | None = getattr(torch, kind, None)
    return module


# -- nested batches -----------------------------------------------------------------------
def _moved(batch: Any, move: Callable[[Any], Any], depth: int = 0) -> Any:
    """Build the same nesting with `move(leaf)` for each leaf that can be moved.

    What has a method `to` is one, whatever it holds: it knows best what of it goes where.
    """
    if _is_movable(batch):
        return move(batch)
    held = children(batch)
    if held is None:
        return batch
    if depth > MAX_DEPTH:
        return map_leaves(lambda leaf: leaf, batch)  # raises
    values = [_moved(value, move, depth + 1) for _, value in held]
    if all(new is old for new, (_, old) in zip(values, held, strict=True)):
        return batch
    return rebuild(batch, values)


def _is_movable(value: Any) -> bool:
    if callable(getattr(value, "to", None)):
        return not isinstance(value, type)
    return _is_numeric(value)


def _is_numeric(value: Any) -> bool:
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return False
    return value.dtype.kind in _NUMERIC and value.dtype.itemsize <= _most_bytes(value.dtype.kind)


def _most_bytes(kind: str) -> int:
    return 16 if kind == "c" else 8  # longdouble has no tensors


def _as_tensor(leaf: Any) -> Any:
    """Make a tensor of a numpy array, sharing its memory where that may be."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    import torch

    array = np.asarray(leaf)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if plain else array.copy())


# -- devices ------------------------------------------------------------------------------
@final
class StreamDevice(Device):
    """A device with streams: everything is begun on one of them, and nothing is waited for.

    Args:
        backend: what its kind of device does.
        name: its full name.
        stream: what to use; None makes one, for the life of this object.
    """

    def __init__(self, backend: Backend, name: str, stream: object = None) -> None:
        self.name = name
        self._backend = backend
        self._given = stream
        self._holdings = Holdings()
        self._begun: list[Any] = []  # what copies since the last event read
        self._event: Event | None = None
        self._fresh = True  # the next value was not made on the stream itself

    @functools.cached_property
    def _stream(self) -> Any:
        return self._backend.new_stream(self.name) if self._given is None else self._given

    def active(self) -> AbstractContextManager[Any]:
        """Make the stream this thread's."""
        return self._backend.active(self.name, self._stream)

    def copy(self, value: Any) -> Any:
        """Begin to copy a batch; its sources are kept until the next event has come."""
        self._holdings.sweep()
        known: dict[int, tuple[Any, Any]] = {}  # a tensor that occurs twice is copied once

        def move(leaf: Any) -> Any:
            if id(leaf) not in known:
                known[id(leaf)] = leaf, self._copied(leaf)
            return known[id(leaf)][1]

        return _moved(self.read(value), move)

    def read(self, value: Any) -> Any:
        """Open a batch for the stream; what a stage made on a device by itself is waited for."""
        batch = opened(value)
        if batch is value and self._fresh:
            for leaf in {id(leaf): leaf for leaf in tensors(batch)}.values():
                device = self._backend.device_of(leaf)
                if device is not None:
                    self._follow(leaf, device)
        self._fresh = False
        return batch

    def _follow(self, leaf: Any, device: str) -> None:
        """Wait on the stream for the default one: nobody knows where else a leaf was made."""
        backend, stream = self._backend, self._backend.current_stream(device)
        backend.wait_event(stream, backend.record_event(backend.default_stream(device)))
        backend.record_stream(leaf, stream)

    def _copied(self, leaf: Any) -> Any:
        backend = self._backend
        if backend.device_of(leaf) == self.name:
            return leaf
        source = backend.pinned(_as_tensor(leaf))
        self._begun.append(source)
        return backend.copy(source, self.name)

    def finish(self, value: Any) -> Any:
        """Record the event of a batch."""
        flight = sealed(value, self._backend, self._holdings)
        if isinstance(flight, InFlight):
            mine = (mark.event for mark in flight.marks if mark.device == self.name)
            self._event = next(mine, None)
        return flight

    def settle(self) -> None:
        """Keep the sources of what was begun until it is done."""
        begun, self._begun = self._begun, []
        event, self._event = self._event, None
        self._fresh = True
        if begun:
            self._holdings.hold(event or self._backend.record_event(self._stream), begun)

    def held(self) -> Counts:
        """Count what is held."""
        return self._holdings.counts()

    def close(self) -> None:
        """Wait for the copies under way."""
        self._holdings.wait()


@final
class DirectDevice(Device):
    """A device without streams: a batch is there when the call returns."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._holdings = Holdings()

    def active(self) -> AbstractContextManager[Any]:
        """Do nothing."""
        return contextlib.nullcontext()

    def copy(self, value: Any) -> Any:
        """Copy a batch."""
        return _moved(opened(value), lambda leaf: _as_tensor(leaf).to(self.name))

    def read(self, value: Any) -> Any:
        """Open a batch."""
        return opened(value)

    def finish(self, value: Any) -> Any:
        """Give the value as it is."""
        return value

    def settle(self) -> None:
        """Do nothing."""

    def held(self) -> Counts:
        """Count nothing."""
        return self._holdings.counts()

    def close(self) -> None:
        """Do nothing."""


@final
class HostDevice(Device):
    """The host: what lies there passes; what lies on a device is copied back to pinned memory.

    A copy back goes to the stream on which the batch was made, and the reader waits for it.
    """

    def __init__(self, name: str = "cpu") -> None:
        self.name = name
        self._holdings = Holdings()

    def active(self) -> AbstractContextManager[Any]:
        """Do nothing."""
        return contextlib.nullcontext()

    def copy(self, value: Any) -> Any:
        """Begin to copy a batch back."""
        self._holdings.sweep()
        return _moved(replaced(value, self._returned), _on_host)

    def read(self, value: Any) -> Any:
        """Open a batch."""
        return opened(value)

    def _returned(self, flight: InFlight) -> InFlight:
        marks = {mark.device: mark for mark in flight.marks}
        sources: list[Any] = []
        after: list[Mark] = []

        def move(leaf: Any) -> Any:
            for device, mark in marks.items():
                if mark.backend.device_of(leaf) == device:
                    sources.append(leaf)
                    with mark.backend.active(device, mark.stream):
                        return mark.backend.copy_back(leaf)
            return _on_host(leaf)

        try:
            batch = _moved(flight.batch, move)
        finally:
            after += [Mark(mark.backend, name, mark.stream) for name, mark in marks.items()]
            for mark in after:
                self._holdings.hold(mark.event, sources)
            flight.holdings.opened(flight)
        return InFlight(batch, tuple(after), self._holdings, arrives=True)

    def finish(self, value: Any) -> Any:
        """Give the value as it is."""
        return value

    def settle(self) -> None:
        """Do nothing: each copy back looks after itself."""

    def held(self) -> Counts:
        """Count what is held."""
        return self._holdings.counts()

    def close(self) -> None:
        """Wait for the copies under way."""
        self._holdings.wait()


def _on_host(leaf: Any) -> Any:
    tensor = _as_tensor(leaf)
    device = getattr(tensor, "device", None)
    return tensor if getattr(device, "type", "") == "cpu" else tensor.to("cpu")
