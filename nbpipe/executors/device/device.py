"""Devices: batches copied to a device and worked on there, without a wait.

The threads of a run copy, one at a time for each device. Host memory is pinned in the thread that
copies. An event is recorded for each batch: until it has come, the host memory stays alive; readers
wait for it on their own streams. A thread whose stream is much later waits for that before it
gets more: else all memory would be in use at once.

Source: PyTorch "CUDA semantics", asynchronous copies; `torch.Tensor.record_stream`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, final

from ...base.collate import BatchMemory
from ...errors import ArgumentError, MissingExtraError, RunClosedError
from .backend import BACKENDS, Backend, PinnedMemory
from .flight import CopyTracker, Counts, InFlight, RecordedEvent, opened, placed
from .leaves import as_tensor, moved

_HOST = ("cpu", "meta")  # always there, and without streams


def device_named(
    stage: str, wanted: str, stream: object = None, *, ahead: Callable[[], int]
) -> Device:
    """Return a device of this machine, ready for one run.

    Args:
        stage: name of the stage that wants it, for errors.
        wanted: as torch names it: "cuda", "cuda:1", "cpu".
        stream: what to use instead of a stream of its own.
        ahead: returns how many batches the readers' threads may be ahead of their streams.

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
            return _DirectDevice("cpu" if device.type == "cpu" else wanted, ahead=ahead)
        backend = BACKENDS[kind] = Backend(torch, kind)
    try:
        name = backend.resolve(wanted)
    except ArgumentError as error:
        raise ArgumentError(f"{stage} {error}") from None
    where = str(getattr(stream, "device", name))
    if where != name:
        raise ArgumentError(
            f"{stage} stream must be one of {name}, got one of {where}; make it there"
        )
    return _StreamDevice(backend, name, stream, ahead=ahead)


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
    """Return torch's module for a kind of device: `torch.cuda`."""
    module: ModuleType | None = getattr(torch, kind, None)
    return module


class Device(ABC):
    """A device as one run uses it: calls on it run one after the other, in any threads.

    This class has no streams: what a call returns is there.

    Args:
        name: its full name, as "cuda:0".
        given: the user's own stream, or None.
        ahead: as `device_named` takes it.

    Attributes:
        batch_memory: memory for batches that come here next; None where any will do.
    """

    def __init__(self, name: str, given: object = None, *, ahead: Callable[[], int]) -> None:
        self.name = name
        self.given = given
        self.batch_memory: BatchMemory | None = None
        self._holdings = CopyTracker(ahead)
        self._lock = threading.Lock()  # held during a call
        self._closed = False
        self._copies: dict[int, tuple[Any, Any]] = {}  # of one batch, by the id of a leaf

    def call(
        self,
        fn: Callable[..., Any],
        first: bool,  # noqa: FBT001
        last: bool,  # noqa: FBT001
        value: Any,
        /,
        **options: Any,
    ) -> Any:
        """Call a function in this thread, with the device and its stream active.

        Args:
            fn: the function of a stage.
            first: the batch comes from another device or the host.
            last: the result goes there; an event is recorded for each device that it lies on.
            value: the batch.
            **options: for the function.

        Raises:
            RunClosedError: the device was closed.
        """
        try:
            with self._lock:
                if self._closed:
                    raise RunClosedError(f"the run was closed: nothing goes to {self.name}")
                with self.active():
                    batch = self._received(value) if first else value
                    made = fn(batch, **options)
                    return self._in_flight(made) if last else made
        finally:
            if self._closed:
                self._release()

    def copy(self, batch: Any) -> Any:
        """Begin to copy a batch to the device; a leaf that occurs twice is copied once."""
        try:
            return moved(batch, self._moved_once)
        finally:  # where there was no room for all of it, the error must not keep the rest there
            self._copies.clear()

    def _moved_once(self, leaf: Any) -> Any:
        known = self._copies.get(id(leaf))
        if known is None:
            known = self._copies[id(leaf)] = leaf, self._copied(leaf)
        return known[1]

    @abstractmethod
    def _copied(self, leaf: Any) -> Any:
        """Begin to copy a leaf; one on the device already stays as it is."""

    def active(self) -> AbstractContextManager[Any]:
        """Make it this thread's device, and the run's stream the one its work goes to."""
        return contextlib.nullcontext()

    def _received(self, value: Any) -> Any:
        """Open what came from elsewhere, for work on the device."""
        if type(value) is not InFlight:
            return value
        value.holdings.await_stream()
        return value.open()

    def _in_flight(self, made: Any) -> Any:
        """Record an event on this thread's stream of each device that a result lies on."""
        found, marks = placed(made), {}
        for _, backend, device in found:
            if device not in marks:
                marks[device] = RecordedEvent(backend, device, backend.current_stream(device))
        self._settle(marks.get(self.name))
        return InFlight(made, (*marks.values(),), found, self._holdings) if marks else made

    def _settle(self, mark: RecordedEvent | None = None) -> None:
        """Keep the sources of copies that were begun until an event has come."""

    def run(self, call: Callable[..., Any], value: Any, /, **options: Any) -> Any:
        """Make a call on the device, wait until nothing is in flight, and let go of everything."""
        try:
            made = call(value, **options)
            if isinstance(made, InFlight):
                made.wait()
            return opened(made)
        finally:
            self._release()

    def held(self) -> Counts:
        """Count the held copies and batches."""
        return self._holdings.counts()

    def close(self) -> None:
        """Wait until nothing is in flight, and let go of everything; refuse further calls.

        A call that is in progress does so at its end.
        """
        self._closed = True
        self._release()

    def _release(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._lock.release()

    def _let_go(self) -> None:
        """Wait until nothing is in flight, and let go of everything."""


@final
class _StreamDevice(Device):
    """A device with streams: everything is begun on one of them, and nothing is waited for.

    Args:
        backend: what its kind of device does.
        name: its full name.
        stream: what to use; None takes one until it is closed.
        ahead: as `device_named` takes it.
    """

    def __init__(
        self, backend: Backend, name: str, stream: object = None, *, ahead: Callable[[], int]
    ) -> None:
        super().__init__(name, stream, ahead=ahead)
        self.batch_memory = PinnedMemory(backend, name)
        self._backend = backend
        self._begun: list[Any] = []  # what copies since the last event read

    @functools.cached_property
    def _stream(self) -> Any:
        return _free_stream(self._backend, self.name) if self.given is None else self.given

    def active(self) -> AbstractContextManager[Any]:
        """Make the stream this thread's."""
        return self._backend.active(self.name, self._stream)

    def _received(self, value: Any) -> Any:
        """Open a batch for the stream; what a stage made on a device by itself is waited for."""
        self._settle()  # where the batch before has failed
        batch = super()._received(value)
        self._holdings.sweep()
        if batch is value:
            for one in placed(batch):
                self._follow(*one)
        return batch

    def _follow(self, leaf: Any, backend: Backend, device: str) -> None:
        """Wait on the stream for the default one: it is unknown where else a leaf was made."""
        stream = backend.current_stream(device)
        backend.wait_event(stream, backend.record_event(backend.default_stream(device)))
        backend.record_stream(leaf, stream)

    def _copied(self, leaf: Any) -> Any:
        backend = self._backend
        if backend.device_of(leaf) == self.name:
            return leaf
        source = backend.pinned(as_tensor(leaf, self.batch_memory))
        self._begun.append(source)
        return backend.copy(source, self.name)

    def _settle(self, mark: RecordedEvent | None = None) -> None:
        """Keep the sources of copies that were begun until an event has come."""
        if self._begun:
            event = mark.event if mark else self._backend.record_event(self._stream)
            self._holdings.hold(event, self._begun)
            self._begun = []

    def _let_go(self) -> None:
        """Wait until nothing is in flight, and let go of everything; leave the stream to others."""
        try:
            self._settle()
            self._holdings.wait()
        except Exception:  # a device that is lost reads nothing; the batch that failed tells of it
            self._begun = []
            self._holdings.drop()
        stream = self.__dict__.pop("_stream", None)
        if stream is not None and self.given is None:
            self._backend.idle.setdefault(self.name, []).append(stream)


def _free_stream(backend: Backend, device: str) -> Any:
    """Take the stream of a run that was closed: torch caches memory for each; else a new one."""
    try:
        return backend.idle[device].pop()
    except (KeyError, IndexError):
        return backend.new_stream(device)


@final
class _DirectDevice(Device):
    """A device without streams: a batch is there when the call returns. The host is one.

    What comes from a device with streams is read on one that this takes there until it is closed:
    on the default one it would wait for the work of the loop, and the loop for it.
    """

    def __init__(self, name: str, given: object = None, *, ahead: Callable[[], int]) -> None:
        super().__init__(name, given, ahead=ahead)
        self._entered = contextlib.ExitStack()
        self._streams: dict[str, tuple[Backend, Any]] = {}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make the streams that were taken this thread's."""
        with contextlib.ExitStack() as self._entered:
            for device, (backend, stream) in self._streams.items():
                self._entered.enter_context(backend.active(device, stream))
            yield

    def _received(self, value: Any) -> Any:
        """Open what came from elsewhere, on streams of its own."""
        for mark in value.marks if type(value) is InFlight else ():
            if mark.device not in self._streams:
                stream = _free_stream(mark.backend, mark.device)
                self._streams[mark.device] = mark.backend, stream
                self._entered.enter_context(mark.backend.active(mark.device, stream))
        return super()._received(value)

    def _let_go(self) -> None:
        """Let go of everything; leave the streams to others."""
        while self._streams:
            device, (backend, stream) = self._streams.popitem()
            backend.idle.setdefault(device, []).append(stream)

    def _copied(self, leaf: Any) -> Any:
        tensor = as_tensor(leaf)
        there = str(getattr(tensor, "device", "")) == self.name
        return tensor if there else tensor.to(self.name)
