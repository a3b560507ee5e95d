"""Holdings: what a device of a run still needs or has not given away yet."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any, NamedTuple, Protocol, final


class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Say whether the stream has passed it."""

    def synchronize(self) -> None:
        """Wait in this thread until the stream has passed it."""


class Counts(NamedTuple):
    """What is held.

    Attributes:
        sources: tensors on the host that a copy may still read.
        source_bytes: their size [bytes].
        events: events that these copies, or batches that nobody opened, wait for.
        batches: batches that nobody opened yet, and that are not lost either.
    """

    sources: int
    source_bytes: int
    events: int
    batches: tuple[Any, ...]


@final
class Holdings:
    """Sources of copies under way, and batches on their way to their readers; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: deque[tuple[Event, list[Any]]] = deque()
        self._flights: dict[int, weakref.ref[Any]] = {}

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

    def wait(self) -> None:
        """Wait in this thread for all events, and let go of everything."""
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
        key, flights = id(flight), self._flights  # no lock: a collection may run in its middle
        flights[key] = weakref.ref(flight, lambda _: flights.pop(key, None))

    def opened(self, flight: Any) -> None:
        """Hear that a batch has a reader."""
        self._flights.pop(id(flight), None)
        self.sweep()

    def counts(self) -> Counts:
        """Count what is held now."""
        self.sweep()
        with self._lock:
            held = [source for _, sources in self._sources for source in sources]
            events = [event for event, _ in self._sources]
        batches = [one for one in (ref() for ref in list(self._flights.values())) if one]
        events += [mark.event for one in batches for mark in one.marks]
        sizes = (int(getattr(source, "nbytes", 0)) for source in held)
        return Counts(
            len(held),
            sum(sizes),
            len({id(event) for event in events}),
            tuple(one.batch for one in batches),
        )
