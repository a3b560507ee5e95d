"""InFlight: a batch whose copy to a device, or whose computation there, may not be done yet.

Between the stages of a run it travels as a value. Whoever reads it opens it, in the thread that
reads: the streams of that thread wait for what is under way, without a wait of the thread, and
the memory of its tensors is kept from others until they, too, have passed.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, final

from ..tree import leaves, size_bytes
from .holdings import Event, Holdings

_DEEPEST = 8  # levels of rows and windows around a batch


class Backend(ABC):
    """What one kind of device does: streams, events, memory.

    `stream`, below, is whatever object this kind of device has for one.
    """

    @abstractmethod
    def resolve(self, device: str) -> str:
        """Give the full name of a device, as "cuda:0" for "cuda".

        Raises:
            ArgumentError: this machine has no such device.
        """

    @abstractmethod
    def new_stream(self, device: str) -> Any:
        """Make a stream."""

    @abstractmethod
    def current_stream(self, device: str) -> Any:
        """Give the stream that this thread's work on a device goes to."""

    @abstractmethod
    def default_stream(self, device: str) -> Any:
        """Give the stream that work goes to where nobody chose another."""

    @abstractmethod
    def active(self, device: str, stream: Any) -> AbstractContextManager[Any]:
        """Let this thread's work on a device go to a stream, inside a `with` block."""

    @abstractmethod
    def record_event(self, stream: Any) -> Event:
        """Note the present end of a stream's work."""

    @abstractmethod
    def wait_event(self, stream: Any, event: Event) -> None:
        """Let what a stream does from now on wait for an event; this thread does not."""

    @abstractmethod
    def device_of(self, leaf: Any) -> str | None:
        """Give the device of this kind that a leaf lies on, or None."""

    @abstractmethod
    def record_stream(self, leaf: Any, stream: Any) -> None:
        """Keep the memory of a leaf from others until `stream` has passed what it does now."""

    @abstractmethod
    def pinned(self, leaf: Any) -> Any:
        """Give a copy of a leaf in pinned memory; the leaf itself where it is, or cannot be."""

    @abstractmethod
    def copy(self, leaf: Any, device: str) -> Any:
        """Begin to copy a leaf to a device, on the current stream."""

    @abstractmethod
    def copy_back(self, leaf: Any) -> Any:
        """Begin to copy a leaf to pinned memory, on the current stream."""


class Mark:
    """An event, and the stream it was recorded on."""

    __slots__ = ("backend", "device", "event", "stream")

    def __init__(self, backend: Backend, device: str, stream: Any) -> None:
        self.backend = backend
        self.device = device
        self.stream = stream
        self.event = backend.record_event(stream)

    def let_wait(self, stream: Any) -> None:
        """Let a stream wait for the event, unless it is behind it anyhow."""
        if stream != self.stream and not self.event.query():
            self.backend.wait_event(stream, self.event)


@final
class InFlight:
    """A batch, and the events after which it may be read.

    Args:
        batch: nested tensors.
        marks: one for each device that still works on it; at least one.
        holdings: count it.
        arrives: it is on its way to the host, where nobody but the thread can wait for it.
    """

    __slots__ = ("__weakref__", "arrives", "batch", "holdings", "marks")

    def __init__(
        self,
        batch: Any,
        marks: tuple[Mark, ...],
        holdings: Holdings,
        *,
        arrives: bool = False,
    ) -> None:
        self.batch = batch
        self.marks = marks
        self.holdings = holdings
        self.arrives = arrives
        holdings.add(self)

    def open(self) -> Any:
        """Give the batch to this thread: what it does with it now comes after the events."""
        if self.arrives:
            self.wait()
        else:
            self._join()
        self.holdings.opened(self)
        return self.batch

    def _join(self) -> None:
        """Let this thread's streams wait, and keep the memory from others until they passed."""
        streams = {}
        for mark in self.marks:
            streams[mark.device] = stream = mark.backend.current_stream(mark.device)
            mark.let_wait(stream)
        backend = self.marks[0].backend
        for tensor in tensors(self.batch):
            device = backend.device_of(tensor)
            if device is not None:
                stream = streams.get(device) or backend.current_stream(device)
                backend.record_stream(tensor, stream)

    def wait(self) -> None:
        """Wait in this thread until the batch is there."""
        for mark in self.marks:
            mark.event.synchronize()

    @property
    def nbytes(self) -> int:
        """Estimated size of the batch [bytes]."""
        return size_bytes(self.batch)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave as the plain batch."""
        self.wait()
        return _same, (self.batch,)


def opened(value: Any) -> Any:
    """Give a value with all batches in it opened, those in rows and windows, too."""
    return _replaced(value, InFlight.open, 0)


def seen(value: Any) -> Any:
    """Give a value as it would be opened, to look at; nothing waits for it."""
    return _replaced(value, _batch, 0)


def replaced(value: Any, fn: Callable[[InFlight], Any]) -> Any:
    """Give a value with `fn(flight)` in place of each batch in flight."""
    return _replaced(value, fn, 0)


def _replaced(value: Any, fn: Callable[[InFlight], Any], depth: int) -> Any:
    kind = type(value)
    if kind is InFlight:
        return fn(value)
    if (kind is not tuple and kind is not list) or depth == _DEEPEST:
        return value
    if kind is list and _first(value, depth) is None:  # a window holds nothing else
        return value
    parts = [_replaced(part, fn, depth + 1) for part in value]
    same = all(new is old for new, old in zip(parts, value, strict=True))
    return value if same else kind(parts)


def _first(value: Any, depth: int) -> InFlight | None:
    kind = type(value)
    if kind is InFlight:
        found: InFlight = value
        return found
    if (kind is not tuple and kind is not list) or depth == _DEEPEST:
        return None
    parts = value[:1] if kind is list else value
    return next(filter(None, (_first(part, depth + 1) for part in parts)), None)


def seal_with(like: Any, value: Any) -> Any:
    """Give a value that this thread has made of `like` as one that others may open."""
    flight = _first(like, 0)
    if flight is None:
        return value
    return sealed(value, flight.marks[0].backend, flight.holdings)


def sealed(value: Any, backend: Backend, holdings: Holdings) -> Any:
    """Give a value that this thread has made, as one that others may open.

    What lies on no device of this kind is given as it is.
    """
    devices = dict.fromkeys(filter(None, map(backend.device_of, tensors(value))))
    if not devices:
        return value
    marks = (Mark(backend, one, backend.current_stream(one)) for one in devices)
    return InFlight(value, tuple(marks), holdings)


def tensors(value: Any) -> Iterator[Any]:
    """Give what may hold memory of a device: the leaves, and what is inside opaque objects."""
    for leaf in leaves(value):
        yield from _inside(leaf)


def _inside(leaf: Any) -> Iterable[Any]:
    held = getattr(leaf, "__dict__", None)
    if not held or hasattr(leaf, "record_stream") or not callable(getattr(leaf, "to", None)):
        return (leaf,)
    parts = (part for part in held.values() if not callable(part))
    return itertools.chain((leaf,), itertools.chain.from_iterable(map(leaves, parts)))


def _batch(flight: InFlight) -> Any:
    return flight.batch


def _same(batch: Any) -> Any:
    return batch
