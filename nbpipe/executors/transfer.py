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
import math
import operator
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from ..base.collate import BatchMemory
from ..base.tree import MAX_DEPTH, children, map_leaves, rebuild, size_bytes, words_of
from ..errors import ArgumentError, MissingExtraError, RunClosedError
from .workers.memory import copy_bytes

BACKENDS: dict[str, Backend] = {}  # by kind of device; torch's are made when first used
_HOST = ("cpu", "meta")  # always there, and without streams
_NUMERIC = frozenset("biufc")
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, np.ndarray})  # of the host


# -- Devices of a run ------------------------------------------------------------------------------
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
            return _moved(batch, self._moved_once)
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
        """Count what is held."""
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
        source = backend.pinned(_as_tensor(leaf, self.batch_memory))
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
        tensor = _as_tensor(leaf)
        there = str(getattr(tensor, "device", "")) == self.name
        return tensor if there else tensor.to(self.name)


# -- Batches in flight: their copy or computation may not be done yet ------------------------------
# They travel as values to another device, and to the loop. The reader opens one, in its own
# thread: the streams of that thread wait for what is under way, without a wait of the thread,
# and the memory of its tensors is kept from others until they, too, have passed.
@final
class InFlight:
    """A batch, and the events after which it may be read.

    Args:
        batch: nested tensors.
        marks: one for each device that still works on it; at least one.
        placed: what of it lies on these devices.
        holdings: count it.
    """

    __slots__ = ("__weakref__", "batch", "holdings", "marks", "placed")

    def __init__(
        self,
        batch: Any,
        marks: tuple[RecordedEvent, ...],
        placed: Sequence[Placed],
        holdings: CopyTracker,
    ) -> None:
        self.batch = batch
        self.marks = marks
        self.placed = placed
        self.holdings = holdings
        holdings.add(self)

    def open(self) -> Any:
        """Return the batch to this thread: what it does with it now comes after the events."""
        self.holdings.opened(self, self._join())
        return self.batch

    def _join(self) -> Event:
        """Let this thread's streams wait, and keep the memory from others until they passed.

        Returns:
            The event after which a stream has done what this thread gave it before.
        """
        streams = {mark.device: mark.backend.current_stream(mark.device) for mark in self.marks}
        first = self.marks[0]
        before = first.backend.record_event(streams[first.device])
        for mark in self.marks:
            mark.let_wait(streams[mark.device])
        for leaf, backend, device in self.placed:
            backend.record_stream(leaf, streams[device])
        return before

    def wait(self) -> None:
        """Wait in this thread until the batch is there."""
        for mark in self.marks:
            mark.event.synchronize()

    @property
    def nbytes(self) -> int:
        """Estimated size of the batch [bytes]."""
        return size_bytes(self.batch)


class RecordedEvent:
    """An event, and the stream it was recorded on."""

    __slots__ = ("backend", "device", "event", "stream")

    def __init__(self, backend: Backend, device: str, stream: Any) -> None:
        self.backend = backend
        self.device = device
        self.stream = stream
        self.event = backend.record_event(stream)

    def let_wait(self, stream: Any) -> None:
        """Let a stream wait for the event, unless it comes later anyhow."""
        if stream != self.stream and not self.event.query():
            self.backend.wait_event(stream, self.event)


def opened(value: Any) -> Any:
    """Return a batch in flight opened, and any other value as it is."""
    return value.open() if type(value) is InFlight else value


def await_stream(value: Any) -> None:
    """Wait in this thread, before it opens a batch, until its stream is not too late."""
    if type(value) is InFlight:
        value.holdings.await_stream()


def seen(value: Any) -> Any:
    """Return a value as it would be opened, to look at; nothing waits for it."""
    return value.batch if type(value) is InFlight else value


class Placed(NamedTuple):
    """What lies on a device with streams.

    Attributes:
        leaf: a tensor.
        backend: that of its device.
        device: the full name.
    """

    leaf: Any
    backend: Backend
    device: str


def placed(value: Any) -> list[Placed]:
    """List what of a nested batch lies on devices with streams, each tensor once.

    Opaque objects with a method `to` are looked into, too.
    """
    found: list[Placed] = []
    if not BACKENDS:
        return found
    backends, seen, left = tuple(BACKENDS.values()), {}, [value]
    while left:
        one = left.pop()
        kind = type(one)
        if kind in _PLAIN or id(one) in seen:
            continue
        seen[id(one)] = one  # its id must stay its own
        if kind is dict:
            left.extend(one.values())
        elif kind is list or kind is tuple:
            left.extend(one)
        else:
            device = None
            for backend in backends:
                device = backend.device_of(one)
                if device:
                    found.append(Placed(one, backend, device))
                    break
            if device is None:
                left.extend(_inside(one))
    return found


def _inside(one: Any) -> list[Any]:
    """List what a node holds, or an opaque object that moves itself."""
    held = children(one)
    if held is not None:
        return [value for _, value in held]
    if not callable(getattr(one, "to", None)):
        return []
    return [part for part in getattr(one, "__dict__", {}).values() if not callable(part)]


# -- What is held: sources of copies under way, batches that were not opened -----------------------
@final
class CopyTracker:
    """Sources of copies under way, and batches on their way to their readers; from any thread.

    Args:
        ahead: as `device_named` takes it.
    """

    def __init__(self, ahead: Callable[[], int]) -> None:
        self._ahead = ahead
        self._lock = threading.Lock()
        self._sources: deque[tuple[Event, list[Any]]] = deque()
        self._flights: dict[int, weakref.ref[Any]] = {}
        self._read: deque[Event] = deque()  # for each batch opened, that those before were read

    def hold(self, event: Event, sources: list[Any]) -> None:
        """Keep sources alive until their event has come."""
        with self._lock:
            self._sources.append((event, sources))

    def sweep(self) -> None:
        """Let go of the sources whose event has come."""
        done: list[list[Any]] = []  # what their end does is done outside the lock
        with self._lock:
            while self._sources and self._sources[0][0].query():
                done.append(self._sources.popleft()[1])

    def await_stream(self) -> None:
        """Wait in this thread until its stream is at most as many batches late as allowed.

        A thread that never waits for its device has soon taken all batches there are: the memory
        of none can be used again, until its stream has read it.
        """
        most = self._ahead()
        with contextlib.suppress(IndexError):  # the run was closed meanwhile
            while len(self._read) > most:
                self._read.popleft().synchronize()

    def drop(self) -> None:
        """Let go of everything, without a wait."""
        self._read.clear()
        with self._lock:
            dropped, self._sources = self._sources, deque()
        del dropped  # what its end does is done outside the lock

    def wait(self) -> None:
        """Wait in this thread until nothing is read any more, and let go of everything."""
        self._read.clear()
        while True:
            with self._lock:
                if not self._sources:
                    return
                event, sources = self._sources[0]
            try:
                event.synchronize()
            finally:  # after an error of the device nothing reads them any more
                with self._lock:
                    if self._sources and self._sources[0][1] is sources:
                        self._sources.popleft()

    def add(self, flight: Any) -> None:
        """Count a batch until it is opened, or lost."""
        key, flights = id(flight), self._flights  # no lock: a collection may run in the middle
        flights[key] = weakref.ref(flight, lambda _: flights.pop(key, None))

    def opened(self, flight: Any, before: Event) -> None:
        """Called when a batch has a reader; `before`: that has read those before."""
        self._read.append(before)
        self._flights.pop(id(flight), None)
        self.sweep()

    def counts(self) -> Counts:
        """Count what is held now."""
        self.sweep()
        with self._lock:
            held = [source for _, sources in self._sources for source in sources]
            events = [event for event, _ in self._sources]
        flights = [one for one in (ref() for ref in list(self._flights.values())) if one]
        events += [mark.event for one in flights for mark in one.marks]
        tensors = {id(one.leaf): one.leaf for flight in flights for one in flight.placed}
        return Counts(
            len(held),
            sum(int(getattr(source, "nbytes", 0)) for source in held),
            len({id(event) for event in events}),
            len(tensors),
            sum(map(size_bytes, tensors.values())),
        )


class Counts(NamedTuple):
    """What is held.

    Attributes:
        sources: tensors on the host that a copy may still read.
        source_bytes: their size [bytes].
        events: events that these copies, or batches that were not opened, wait for.
        tensors: of batches that are not opened yet, and still referenced.
        tensor_bytes: their size [bytes].
    """

    sources: int
    source_bytes: int
    events: int
    tensors: int
    tensor_bytes: int


# -- Nested batches: each leaf copied --------------------------------------------------------------
def _moved(batch: Any, move: Callable[[Any], Any], depth: int = 0) -> Any:
    """Build the same nesting with `move(leaf)` for each leaf that can be moved.

    What has a method `to` is one, whatever it holds: it knows best what of it goes where.
    """
    kind = type(batch)
    if kind is dict:
        held = [*batch.values()]
    elif kind is list or kind is tuple:
        held = batch
    elif _is_movable(batch):
        return move(batch)
    else:
        pairs = children(batch)
        if pairs is None:
            return batch
        held = [value for _, value in pairs]
    if depth > MAX_DEPTH:
        return map_leaves(lambda leaf: leaf, batch)  # raises
    values = [_moved(value, move, depth + 1) for value in held]
    if all(map(operator.is_, values, held)):
        return batch
    return dict(zip(batch, values, strict=True)) if kind is dict else rebuild(batch, values)


def _is_movable(value: Any) -> bool:
    if callable(getattr(value, "to", None)):
        return not isinstance(value, type)
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return False
    return _has_tensors(value.dtype)


def _has_tensors(dtype: np.dtype[Any]) -> bool:
    """Return whether torch can hold arrays of a dtype: numbers except longdouble."""
    return dtype.kind in _NUMERIC and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _as_tensor(leaf: Any, memory: BatchMemory | None = None) -> Any:
    """Make a tensor of a numpy array, sharing its memory where that may be; else copy it.

    Args:
        leaf: an array, or what is returned as it is.
        memory: where to copy it to.
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    import torch

    array = np.asarray(leaf)
    native = array.dtype.newbyteorder("=")
    plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    if not plain or array.dtype != native:
        copy = None if memory is None else memory.array(array.shape, native)
        if copy is None:
            copy = np.empty(array.shape, native)
        np.copyto(copy, array)
        array = copy
    return torch.from_numpy(array)


@final
class PinnedMemory(BatchMemory):
    """Allocates batches in pinned memory: a device copies them from there.

    Args:
        backend: that of the device.
        device: its full name.
    """

    def __init__(self, backend: Backend, device: str) -> None:
        self._backend = backend
        self._device = device

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return an array of numbers without values; None where there is no memory for one."""
        if not _has_tensors(dtype) or not dtype.isnative:
            return None
        block = self._block(shape, dtype.itemsize)
        return None if block is None else block.view(dtype).reshape(shape)

    def tensor(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a tensor without values; None where there is no memory for one."""
        block = self._block(shape, dtype.itemsize)
        if block is None:
            return None
        import torch

        return torch.from_numpy(block).view(dtype).reshape(shape)

    def _block(self, shape: tuple[int, ...], item_bytes: int) -> NDArray[np.uint8] | None:
        size_bytes = math.prod(shape) * item_bytes
        return self._backend.pinned_block(size_bytes, self._device) if size_bytes else None


# -- Streams, events and pinned memory of one kind of device ---------------------------------------
class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Return whether the stream has passed it."""

    def synchronize(self) -> None:
        """Wait in this thread until the stream has passed it."""


@final
class Backend:
    """Devices of one kind that torch gives streams: CUDA, ROCm, XPU, ...

    `stream`, below, is torch's object for one; `leaf` is a tensor, or what has a method `to`.

    Args:
        torch: the package.
        kind: as in "cuda:0".

    Attributes:
        idle: by the name of a device, the streams of runs that were closed.
    """

    def __init__(self, torch: Any, kind: str) -> None:
        self.idle: dict[str, list[Any]] = {}
        self._torch = torch
        self._kind = kind
        self._module: Any = getattr(torch, kind)
        # a wait for an event of CUDA keeps a core busy, unless the event is made otherwise
        self._event_options = {"blocking": True} if kind == "cuda" else {}

    def resolve(self, device: str) -> str:
        """Return the full name of a device; without a number, that of this thread's.

        Raises:
            ArgumentError: this machine has no such device.
        """
        try:
            index = self._torch.device(device).index
        except RuntimeError as error:
            raise ArgumentError(f"device must be a torch device, got {device!r}: {error}") from None
        count = self._module.device_count()
        if index is None:
            index = self._module.current_device()
        if not 0 <= index < count:  # torch takes a number too large for a negative one
            raise ArgumentError(
                f"device must be one of this machine, got {device!r}: this machine has {count} "
                f"{self._kind.upper()} device(s)"
            )
        return f"{self._kind}:{index}"

    def new_stream(self, device: str) -> Any:
        """Take a stream of torch's pool."""
        return self._module.Stream(device=device)

    def current_stream(self, device: str) -> Any:
        """Return the stream that this thread's work on a device goes to."""
        return self._module.current_stream(device)

    def default_stream(self, device: str) -> Any:
        """Return the stream for work that has no other stream."""
        default = getattr(self._module, "default_stream", self._module.current_stream)
        return default(device)

    def active(self, device: str, stream: Any) -> AbstractContextManager[Any]:
        """Let this thread's work on a device go to a stream, inside a `with` block."""
        stack = contextlib.ExitStack()
        stack.enter_context(self._module.device(device))
        stack.enter_context(self._module.stream(stream))
        return stack

    def record_event(self, stream: Any) -> Event:
        """Note the present end of a stream's work, without its time."""
        event = self._module.Event(**self._event_options)
        event.record(stream)
        found: Event = event
        return found

    def wait_event(self, stream: Any, event: Event) -> None:
        """Let what a stream does from now on wait for an event; this thread does not."""
        stream.wait_event(event)

    def device_of(self, leaf: Any) -> str | None:
        """Return the device of this kind that a tensor lies on, else ""; None for other objects."""
        if not isinstance(leaf, self._torch.Tensor):
            return None
        device = leaf.device
        return f"{device.type}:{device.index}" if device.type == self._kind else ""

    def record_stream(self, leaf: Any, stream: Any) -> None:
        """Keep the memory of a tensor, or its parts, until `stream` has passed what it does now."""
        for part in self._parts(leaf):
            part.record_stream(stream)

    def _parts(self, leaf: Any) -> tuple[Any, ...]:
        layout, torch = leaf.layout, self._torch
        if layout == torch.strided:
            if leaf.is_nested:
                return (leaf.values(),)
            if not (leaf.is_conj() or leaf.is_neg() or leaf.is_quantized):
                return (leaf,)
            # of these torch would keep a copy, or refuse: take their memory as it is
            block = torch.empty(0, dtype=torch.uint8, device=leaf.device)
            return (block.set_(leaf.untyped_storage()),)
        if layout == torch.sparse_coo:
            return (leaf._indices(), leaf._values())
        if layout in (torch.sparse_csr, torch.sparse_bsr):
            return (leaf.crow_indices(), leaf.col_indices(), leaf.values())
        if layout in (torch.sparse_csc, torch.sparse_bsc):
            return (leaf.ccol_indices(), leaf.row_indices(), leaf.values())
        return (leaf.values(), leaf.offsets())  # jagged

    def pinned(self, leaf: Any) -> Any:
        """Copy what lies on the host to pinned memory: plain tensors, and others that can.

        A tensor keeps its order of dimensions. What is no tensor is asked to pin itself, or is
        copied with its parts pinned where those can be seen.
        """
        torch = self._torch
        if not isinstance(leaf, torch.Tensor):
            return self._pinned_object(leaf)
        if not self._is_plain(leaf) or leaf.device.type != "cpu" or leaf.is_pinned():
            return leaf
        made = torch.empty_like(leaf, pin_memory=True, requires_grad=False)
        if leaf.is_conj() or leaf.is_neg():  # its memory holds other values
            return made.copy_(leaf)
        if leaf.stride() == made.stride():
            copy_bytes(self._bytes_of(made), self._bytes_of(leaf))
        else:
            np.copyto(words_of(made), words_of(leaf))
        return made

    def _bytes_of(self, tensor: Any) -> memoryview:
        """Return the memory of a tensor that has no gaps in it."""
        flat = tensor.detach().as_strided((tensor.numel(),), (1,))
        return memoryview(flat.view(self._torch.uint8).numpy())

    def pinned_block(self, size_bytes: int, device: str) -> NDArray[np.uint8] | None:
        """Return fresh pinned memory that a device can read; None where there is none."""
        try:
            with self._module.device(device):
                block = self._torch.empty(
                    size_bytes, dtype=self._torch.uint8, device="cpu", pin_memory=True
                )
        except RuntimeError:  # the system pins no more
            return None
        memory: NDArray[np.uint8] = block.numpy()
        return memory

    def _pinned_object(self, value: Any) -> Any:
        pin = getattr(value, "pin_memory", None)
        if callable(pin):
            try:
                return pin()
            except RuntimeError:  # part of it lies on a device: it is copied from where it is
                return value
        held = children(value)
        if held is None:
            return value
        made = rebuild(value, [_moved(part, self.pinned) for _, part in held])
        return made if type(made) is type(value) else value

    def _is_plain(self, leaf: Any) -> bool:
        """Return whether memory for a tensor is one block, and its class will not get lost."""
        torch = self._torch
        if type(leaf) is not torch.Tensor or leaf.layout != torch.strided:
            return False
        return not (leaf.is_nested or leaf.is_quantized)

    def copy(self, leaf: Any, device: str) -> Any:
        """Begin to copy a leaf to a device, on the current stream."""
        if isinstance(leaf, self._torch.Tensor):
            return leaf.to(device, non_blocking=True)
        try:
            return leaf.to(device, non_blocking=True)
        except TypeError:  # not every `to` knows it
            return leaf.to(device)
