"""Flight: batches whose copy or computation may not be done yet, and their sources."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from ...base.tree import children, size_bytes
from .backend import BACKENDS, Backend, Event

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, np.ndarray})  # of the host


# -- Batches in flight: their copy or computation may not be done yet ------------------------------
# They travel as values to another device, and to the loop. The reader opens one, in its own
# thread: the streams of that thread wait for the work in progress, without a wait of the thread,
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
    """A tensor on a device with streams.

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


# -- Held memory: sources of copies in progress, batches that were not opened ----------------------
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
        """Count the held copies and batches."""
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
    """Numbers of held copies and batches.

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
