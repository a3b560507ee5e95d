"""Threads: an elastic team that parks where it finds nothing to do.

`park`, `unpark` and `give_up` are called under the scheduler's lock; the rest is not.
"""

from __future__ import annotations

import itertools
import threading
from _thread import allocate_lock, get_ident
from contextlib import ExitStack, suppress
from contextvars import Context
from time import monotonic, perf_counter_ns
from typing import Protocol, final

from ..base.threads import ThreadSettings, uninterrupted
from .base import TaskSource, Work

_numbers = itertools.count()
SPARE = 32  # threads that stay parked when a limit is lowered: it may be raised again


class Seat:
    """One thread's place: the gate it waits at.

    Attributes:
        work: what the thread is doing, for `close` to name.
        dismissed: the thread is to leave.
        bound: the thread has an open iterator of the user's, and does nothing else.
        called: the thread was woken, and has not looked for work since.
        settings: what holds in the thread; None before its first work.
        context: its context variables.
    """

    __slots__ = (
        "_modes", "bound", "called", "context", "dismissed", "gate", "settings", "thread", "work",
    )  # fmt: skip

    def __init__(self) -> None:
        self.gate = allocate_lock()
        self.gate.acquire()
        self.work: Work | None = None
        self.dismissed = self.bound = self.called = False
        self.thread: threading.Thread | None = None
        self.settings: ThreadSettings | None = None
        self.context = Context()
        self._modes = ExitStack()

    @property
    def is_alive(self) -> bool:
        """Whether its thread can still do something."""
        return self.thread is not None and self.thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether its thread is the calling one."""
        return self.thread is threading.current_thread()

    def call(self) -> None:
        """Wake the thread; where it is awake, it looks again before it waits."""
        self.called = True
        with suppress(RuntimeError):  # another thread was quicker
            if self.gate.locked():
                self.gate.release()

    def enter(self, settings: ThreadSettings | None) -> None:
        """Let other settings hold in this thread; called in it. None: let none hold any more."""
        self._modes.close()
        self.settings = settings
        if settings is not None:
            self.context = settings.of_thread()
            self._modes = settings.enter()


class ThreadTaskSource(TaskSource, Protocol):
    """Hands out work to threads, too."""

    def advance(self, done: Work | None, seat: Seat) -> Work | None:
        """Hand in work, get the next piece; None: park, or leave if `seat.dismissed`."""

    def refused(self, seat: Seat, error: RuntimeError) -> None:
        """Called when the thread of a seat could not be started."""


@final
class ThreadTeam:
    """Threads that ask a source for work.

    Attributes:
        limit: the most threads there may be, without those that are bound to an iterator.
        coming: the seat whose thread was woken and is on its way; it wakes the next one itself.
    """

    def __init__(self, source: ThreadTaskSource) -> None:
        self._source = source
        self._seats: set[Seat] = set()
        self._parked: dict[Seat, None] = {}  # the last to come is the first to go
        self._apart: set[Seat] = set()  # they wait to read on in their iterators
        self._bound = 0
        self._unborn: set[Seat] = set()  # their threads are about to start
        self._starting = threading.Lock()
        self.limit = 1
        self.coming: Seat | None = None

    def park(self, seat: Seat) -> None:
        """Note that a thread is about to wait."""
        if seat.bound:
            self._apart.add(seat)
        elif len(self._seats) - self._bound > self.limit + SPARE:
            seat.dismissed = True
            self._seats.discard(seat)
        elif not seat.dismissed:
            self._parked[seat] = None

    def unpark(self) -> Seat | None:
        """Wake a parked thread; else return a seat for a new one, to be started outside the lock.

        Asked while none is coming: others may be back before that one, and a second would find
        nothing.

        Where an interrupt comes in between, the thread wakes all the same: it stays in the list
        until then.
        """
        if self._parked:
            seat = next(reversed(self._parked))
            if seat.gate.locked():
                seat.gate.release()
            self._parked.pop(seat, None)
            self.coming = seat
            return None
        if len(self._seats) - self._bound < self.limit:
            seat = Seat()
            self._unborn.add(seat)
            self._seats.add(seat)
            return seat
        return None

    def woken(self, seat: Seat) -> None:
        """Called when a thread no longer waits."""
        self._parked.pop(seat, None)
        self._apart.discard(seat)
        seat.called = False
        if seat is self.coming:
            self.coming = None

    def bind(self, seat: Seat, *, bound: bool) -> None:
        """Keep a thread for one iterator, or let it do other work again; under the lock."""
        self._bound += bound - seat.bound
        seat.bound = bound

    @property
    def rests(self) -> bool:
        """Whether every thread waits, and none was called."""
        waiting = len(self._parked) + len(self._apart)
        return waiting == len(self._seats) and not any(seat.called for seat in self._apart)

    def recover(self) -> None:
        """Give up the seats whose threads will not come: an interrupt hit who was to start them."""
        for seat in tuple(self._unborn):
            seat.dismissed = True
            self._seats.discard(seat)
        self._unborn.clear()

    def start(self, seat: Seat) -> None:
        """Start the thread of a new seat; where there can be none, the others go on without."""
        try:
            uninterrupted(lambda: self._start(seat))
        except RuntimeError as error:  # no more threads may be started
            self._source.refused(seat, error)

    def give_up(self, seat: Seat) -> bool:
        """Do without a thread that could not be started; tell whether there are others."""
        self._unborn.discard(seat)
        self._seats.discard(seat)
        self.limit = len(self._seats) - self._bound  # until the limits are read again
        return self.limit > 0

    def _start(self, seat: Seat) -> None:
        with self._starting:
            self._unborn.discard(seat)
            if seat.dismissed:
                return
            name = f"nbpipe-worker-{next(_numbers)}"
            seat.thread = threading.Thread(target=self._serve, name=name, args=(seat,), daemon=True)
            try:
                seat.thread.start()
            except RuntimeError:
                seat.thread = None
                raise

    def _serve(self, seat: Seat) -> None:
        advance, gate = self._source.advance, seat.gate
        work = None
        try:
            while True:
                work = advance(work, seat)
                if work is not None:
                    if work.settings is not seat.settings:
                        seat.enter(work.settings)
                    work.started_ns = perf_counter_ns()
                    seat.context.run(work.perform, work)
                    work.ended_ns = perf_counter_ns()
                elif seat.dismissed:
                    return
                else:
                    gate.acquire()
        except BaseException as error:  # not user code: that keeps its exceptions inside
            self._seats.discard(seat)
            self._source.crashed(error)
        finally:
            seat.enter(None)  # in this thread: another one would change its own modes

    def at_work(self) -> list[Work]:
        """Return the work in progress; called under the lock."""
        return [seat.work for seat in self._seats if seat.work is not None]

    def has(self, ident: int) -> bool:
        """Tell whether the thread with this id is one of the team."""
        threads = [seat.thread for seat in list(self._seats)]
        return any(t is not None and t.ident == ident and t.is_alive() for t in threads)

    def dismiss(self) -> list[Seat]:
        """Tell every thread to leave; called under the lock."""
        seats = list(self._seats)
        for seat in seats:
            seat.dismissed = True
            if seat.gate.locked():
                seat.gate.release()
        self._parked.clear()
        self._apart.clear()
        self.coming = None
        self._seats.clear()  # ids of threads that have ended are given to others
        return seats

    def close(self, timeout_s: float, seats: list[Seat] | None = None) -> list[Work]:
        """Wait for dismissed threads; return the work of those that do not end."""
        with self._starting:  # whoever was about to start a thread has done so, or will not
            deadline = monotonic() + timeout_s
        late: list[Work] = []
        for seat in seats or []:
            thread = seat.thread
            if thread is None or thread.ident == get_ident():
                continue
            thread.join(max(0.0, deadline - monotonic()))
            if thread.is_alive() and seat.work is not None:
                late.append(seat.work)
        return late
