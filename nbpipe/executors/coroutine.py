"""Coroutines: one event loop in a thread of its own, one task for each call."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from .base import Executor, Work


class Desk(Protocol):
    """Gives work to the loop."""

    def advance_loop(self, done: Work) -> Iterable[Work]:
        """Hand in work, get what may start now."""


class EventLoop(Executor):
    """Runs coroutine work; the thread starts with the first piece of it.

    A burst of work is handed over with one wake-up of the loop. When a call ends, the loop
    itself asks for the next ones, without a detour over another thread.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._inbox: deque[Work] = deque()
        self._called = False
        self._tasks: dict[asyncio.Task[None], Work] = {}

    def submit(self, work: Work) -> None:
        """Start work on the loop; called from any thread, without the scheduler's lock."""
        self._inbox.append(work)
        with self._lock:
            if self._called:
                return
            self._called = True
            loop = self._loop or self._started()
        loop.call_soon_threadsafe(self._start_all)

    def _started(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._serve, args=(self._loop,), name="nbpipe-event-loop", daemon=True
        )
        self._thread.start()
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _start_all(self) -> None:
        with self._lock:
            self._called = False
        while self._inbox:
            self._start(self._inbox.popleft())

    def _start(self, work: Work) -> None:
        assert self._loop is not None
        task = self._loop.create_task(work.run_async())
        self._tasks[task] = work
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        work = self._tasks.pop(task)
        for following in self._desk.advance_loop(work):
            self._start(following)

    def cancel_all(self) -> None:
        """Cancel every call in progress: its epoch is over."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._cancel_tasks)

    def _cancel_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def has(self, ident: int) -> bool:
        """Say whether the thread with this id is the loop's."""
        return self._thread is not None and self._thread.ident == ident

    def close(self, timeout_s: float) -> list[str]:
        """Cancel what runs and end the loop."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return []
        ended = asyncio.run_coroutine_threadsafe(self._drain(), loop)
        ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        thread.join(timeout_s)
        return [thread.name] if thread.is_alive() else []

    async def _drain(self) -> None:
        self._start_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
