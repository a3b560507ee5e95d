"""Threads: an elastic pool whose threads park while there is nothing to do.

`park`, `unpark` and `give_up` are called under the scheduler's lock; the rest is not.
"""

from __future__ import annotations

import itertools
import sys
import threading
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from contextlib import ExitStack, suppress
from contextvars import Context
from time import monotonic, perf_counter_ns
from typing import Protocol, final

from ..base.threads import ThreadSettings, uninterrupted
from .interface import TaskSource, Work
from .stack import Place, place_in_thread
from .torch_ranges import PROFILER, perform_in_range, profiler_at_work

_numbers = itertools.count()
SPARE = 32  # threads that stay parked when a limit is lowered: it may be raised again


class WorkerThread:
    """One thread of the pool.

    Attributes:
        gate: the thread waits here while it is parked.
        work: what the thread is doing, for `close` to name.
        dismissed: the thread has to end.
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
        """Wake the thread; if it is awake, it looks for work again before it waits."""
        self.called = True
        with suppress(RuntimeError):  # another thread was quicker
            if self.gate.locked():
                self.gate.release()

    def enter(self, settings: ThreadSettings | None) -> None:
        """Apply settings in this thread, and leave the former ones; None applies none."""
        self._modes.close()
        self.settings = settings
        if settings is not None:
            self.context = settings.of_thread()
            self._modes = settings.enter()


class ThreadTaskSource(TaskSource, Protocol):
    """Hands out work to threads, too."""

    def advance(self, done: Work | None, worker: WorkerThread) -> Work | None:
        """Hand in work and return the next piece; None: park, or end if `worker.dismissed`."""

    def refused(self, worker: WorkerThread, error: RuntimeError) -> None:
        """Continue without the thread of a worker, which could not be started."""


@final
class ThreadPool:
    """Threads that ask a source for work.

    Attributes:
        limit: the most threads there may be, without those that are bound to an iterator.
        coming: the worker whose thread was woken and has yet to look for work; it wakes the next.
    """

    def __init__(self, source: ThreadTaskSource) -> None:
        self._source = source
        self._workers: set[WorkerThread] = set()
        self._parked: dict[WorkerThread, None] = {}  # the last one to park is the first one to wake
        self._apart: set[WorkerThread] = set()  # they wait to continue their iterators
        self._bound = 0
        self._unborn: set[WorkerThread] = set()  # their threads have yet to start
        self._starting = threading.Lock()
        self.limit = 1
        self.coming: WorkerThread | None = None

    def park(self, worker: WorkerThread) -> None:
        """Note that a thread is about to wait; dismiss it if there are many."""
        if worker.bound:
            self._apart.add(worker)
        elif len(self._workers) - self._bound > self.limit + SPARE:
            worker.dismissed = True
            self._workers.discard(worker)
        elif not worker.dismissed:
            self._parked[worker] = None

    def unpark(self) -> WorkerThread | None:
        """Wake a parked thread; else return a worker whose thread has yet to be started.

        Called while no thread is coming: others may be back before that one, and a second thread
        would find nothing to do.

        The thread stays in the list until its gate is open, so an interrupt in between leaves no
        thread asleep.
        """
        if self._parked:
            worker = next(reversed(self._parked))
            if worker.gate.locked():
                worker.gate.release()
            self._parked.pop(worker, None)
            self.coming = worker
            return None
        if len(self._workers) - self._bound < self.limit:
            worker = WorkerThread()
            self._unborn.add(worker)
            self._workers.add(worker)
            return worker
        return None

    def woken(self, worker: WorkerThread) -> None:
        """Note that a thread is awake."""
        self._parked.pop(worker, None)
        self._apart.discard(worker)
        worker.called = False
        if worker is self.coming:
            self.coming = None

    def bind(self, worker: WorkerThread, *, bound: bool) -> None:
        """Keep a thread for one iterator, or let it do other work again; under the lock."""
        self._bound += bound - worker.bound
        worker.bound = bound

    @property
    def rests(self) -> bool:
        """Whether every thread waits, and none was called."""
        waiting = len(self._parked) + len(self._apart)
        return waiting == len(self._workers) and not any(worker.called for worker in self._apart)

    def recover(self) -> None:
        """Drop the workers whose threads an interrupt kept from starting."""
        for worker in tuple(self._unborn):
            worker.dismissed = True
            self._workers.discard(worker)
        self._unborn.clear()

    def start(self, worker: WorkerThread) -> None:
        """Start the thread of a new worker; if the system gives none, continue without it."""
        try:
            uninterrupted(lambda: self._start(worker))
        except RuntimeError as error:  # no more threads may be started
            self._source.refused(worker, error)

    def give_up(self, worker: WorkerThread) -> bool:
        """Drop a worker whose thread could not be started; return whether there are others."""
        self._unborn.discard(worker)
        self._workers.discard(worker)
        self.limit = len(self._workers) - self._bound  # until the limits are read again
        return self.limit > 0

    def _start(self, worker: WorkerThread) -> None:
        with self._starting:
            self._unborn.discard(worker)
            if worker.dismissed:
                return
            name = f"nbpipe-worker-{next(_numbers)}"
            worker.thread = threading.Thread(
                target=self._serve, name=name, args=(worker,), daemon=True
            )
            try:
                worker.thread.start()
            except RuntimeError:
                worker.thread = None
                raise

    def _serve(self, worker: WorkerThread) -> None:
        advance, gate, modules = self._source.advance, worker.gate, sys.modules
        work = None
        try:
            while True:
                work = advance(work, worker)
                if work is not None:
                    if work.settings is not worker.settings:
                        worker.enter(work.settings)
                    work.started_ns = perf_counter_ns()
                    if PROFILER in modules and (profiler := profiler_at_work()) is not None:
                        worker.context.run(perform_in_range, work, profiler)
                    else:
                        worker.context.run(work.perform, work)
                    work.ended_ns = perf_counter_ns()
                elif worker.dismissed:
                    return
                else:
                    gate.acquire()
        except BaseException as error:  # not of user code, whose exceptions are caught
            self._workers.discard(worker)
            self._source.crashed(error)
        finally:
            worker.enter(None)  # in this thread: another one would change its own modes

    def at_work(self) -> list[Work]:
        """Return the work in progress; called under the lock."""
        return [worker.work for worker in self._workers if worker.work is not None]

    def idents(self, counts: Callable[[Work], bool]) -> list[int]:
        """Return the threads at work on what counts."""
        found = [(one.work, one.thread) for one in list(self._workers)]
        return [
            thread.ident
            for work, thread in found
            if work is not None and thread is not None and thread.ident and counts(work)
        ]

    def place(self, work: Work) -> Place | None:
        """Return where in user code the thread of some work is."""
        threads = (worker.thread for worker in list(self._workers) if worker.work is work)
        thread = next(threads, None)
        return None if thread is None else place_in_thread(thread.ident)

    def has(self, ident: int) -> bool:
        """Return whether the thread with this id is one of the pool."""
        threads = [worker.thread for worker in list(self._workers)]
        return any(t is not None and t.ident == ident and t.is_alive() for t in threads)

    def dismiss(self) -> list[WorkerThread]:
        """Let every thread end; called under the lock."""
        workers = list(self._workers)
        for worker in workers:
            worker.dismissed = True
            if worker.gate.locked():
                worker.gate.release()
        self._parked.clear()
        self._apart.clear()
        self.coming = None
        self._workers.clear()  # the system gives ids of ended threads to others
        return workers

    def close(self, timeout_s: float, workers: list[WorkerThread] | None = None) -> list[Work]:
        """Wait for dismissed threads; return the work of those that do not end."""
        with self._starting:  # a thread that was about to start has started, or will not
            deadline = monotonic() + timeout_s
        late: list[Work] = []
        for worker in workers or []:
            thread = worker.thread
            if thread is None or thread.ident == get_ident():
                continue
            thread.join(max(0.0, deadline - monotonic()))
            if thread.is_alive() and worker.work is not None:
                late.append(worker.work)
        return late
