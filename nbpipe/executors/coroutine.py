"""Coroutines: one event loop in a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import TYPE_CHECKING, final

from .base import TaskSource, Work

if TYPE_CHECKING:
    import asyncio


class _Runner:
    """An asyncio task that makes one call after the other.

    Attributes:
        work: the call in progress, or not begun yet; None between two of them.
        turn: what it waits for between two of them.
        cancelled: it is to end after this call.
    """

    __slots__ = ("cancelled", "turn", "work")

    def __init__(self, work: Work, turn: asyncio.Future[None]) -> None:
        self.work: Work | None = work
        self.turn = turn
        self.cancelled = False


@final
class EventLoop:
    """Runs coroutine work; the thread starts with the first piece of it.

    A burst of work is handed over with one wake-up of the loop. What ends in one turn of the loop
    is handed in together, and what may start then begins in the tasks that have become free: one
    exchange for all of them, no detour over another thread, and no new task for a call.
    """

    def __init__(self, source: TaskSource) -> None:
        self._source = source
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._inbox: deque[Work] = deque()
        self._called = False
        self._done: list[Work] = []  # what ended in this turn
        self._idle: list[_Runner] = []
        self._runners: dict[asyncio.Task[None], _Runner] = {}
        self._last: asyncio.Task[None] | None = None  # a loop does not keep its tasks alive

    def submit(self, work: Iterable[Work]) -> None:
        """Start work on the loop; called from any thread, without the scheduler's lock.

        Raises:
            RuntimeError: there is no loop yet, and no thread could be started for it.
        """
        with self._lock:
            loop = self._loop or self._started()
            self._inbox.extend(work)
            if self._called:
                return
            self._called = True
        with contextlib.suppress(RuntimeError):  # closed meanwhile: nobody wants it any more
            loop.call_soon_threadsafe(self._start_all)

    def _started(self) -> asyncio.AbstractEventLoop:
        import asyncio  # it takes tens of milliseconds, and only some pipelines need it

        loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=self._serve, args=(loop,), name="nbpipe-event-loop", daemon=True
        )
        self._loop = loop  # calls look for it
        try:
            thread.start()
        except RuntimeError:  # no more threads may be started
            self._loop = None
            loop.close()
            raise
        self._thread = thread
        return loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio  # it takes tens of milliseconds, and only some pipelines need it

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
        while self._idle:
            runner = self._idle.pop()
            if not runner.turn.done():  # else somebody else has cancelled its task
                runner.work = work
                runner.turn.set_result(None)
                return
        runner = _Runner(work, self._loop.create_future())
        task = self._loop.create_task(self._run(runner))
        self._runners[task] = runner
        task.add_done_callback(self._ended)

    async def _run(self, runner: _Runner) -> None:
        assert self._loop is not None
        while (work := runner.work) is not None:
            await work.begin()
            self._hand_in(runner, work)
            if runner.cancelled:
                break
            runner.turn = self._loop.create_future()
            self._idle.append(runner)
            await runner.turn

    def _ended(self, task: asyncio.Task[None]) -> None:
        runner = self._runners.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._source.crashed(error)
        if runner.work is not None:  # cancelled, perhaps before it began
            self._hand_in(runner, runner.work)

    def _hand_in(self, runner: _Runner, work: Work) -> None:
        work.ended_ns = perf_counter_ns()
        runner.work = None
        if not self._done:
            assert self._loop is not None
            self._loop.call_soon(self._exchange)
        self._done.append(work)

    def _exchange(self) -> None:
        """Hand in what ended in this turn, and begin what may start now."""
        done, self._done = self._done, []
        try:
            following = self._source.exchange(done)
        except BaseException as error:
            self._source.crashed(error)
            following = ()
        for work in following:
            self._start(work)
        if len(self._idle) == len(self._runners):
            self._release()

    def _release(self) -> None:
        """Let the tasks end that have nothing to do."""
        idle, self._idle = self._idle, []
        for runner in idle:
            if not runner.turn.done():
                runner.turn.set_result(None)

    def cancel(self, unwanted: Callable[[Work], bool]) -> None:
        """Cancel the calls in progress for which `unwanted` is true."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(self._cancel, unwanted)

    def _cancel(self, unwanted: Callable[[Work], bool]) -> None:
        for task, runner in list(self._runners.items()):
            if runner.work is not None and unwanted(runner.work):
                runner.cancelled = True
                task.cancel()

    def has(self, ident: int) -> bool:
        """Tell whether the thread with this id is the loop's."""
        thread = self._thread
        return thread is not None and thread.ident == ident and thread.is_alive()

    def close(self, timeout_s: float) -> list[Work]:
        """Cancel what runs and end the loop; return the work that does not end."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return []
        with contextlib.suppress(RuntimeError):  # closed before
            loop.call_soon_threadsafe(self._end, loop)
        thread.join(timeout_s)
        if not thread.is_alive():
            return []
        return [runner.work for runner in list(self._runners.values()) if runner.work is not None]

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._last is None:  # an interrupted close is called again
            self._last = loop.create_task(self._drain())
            self._last.add_done_callback(lambda _: loop.stop())

    async def _drain(self) -> None:
        import asyncio  # it takes tens of milliseconds, and only some pipelines need it

        self._start_all()
        self._cancel(lambda _: True)
        while self._runners:
            self._release()
            await asyncio.wait(list(self._runners))
