"""Coroutines: one event loop in a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import TYPE_CHECKING, final

from ..base.threads import ThreadSettings
from .interface import AsyncReading, TaskSource, Work
from .stack import Place, place_in_coroutine, place_in_thread

if TYPE_CHECKING:
    import asyncio

LOG = logging.getLogger("nbpipe")


class _Call:
    """What one asyncio task does: one call, or all that is drawn from one iterator.

    Attributes:
        work: the work in progress, or the last one.
        busy: that work was not handed in yet.
        turn: the task waits for this between two pieces of work.
        cancelled: the task was cancelled; not again, as it may be cleaning up.
    """

    __slots__ = ("busy", "cancelled", "turn", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.busy = True
        self.turn: asyncio.Future[None] | None = None
        self.cancelled = False


@final
class EventLoop:
    """Runs coroutine work; the thread starts with the first piece of it.

    A burst of work is handed over with one wake-up of the loop. What ends in one turn of the loop
    is handed in together, and what may start then begins at once: one exchange for all of them,
    and no detour over another thread. Each call has a task and a context of its own, as in
    asyncio; an iterator has one for as long as it is open.
    """

    def __init__(self, source: TaskSource) -> None:
        self._source = source
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._inbox: deque[Work] = deque()
        self._called = False
        self._done: list[Work] = []  # what ended in this turn
        self._calls: dict[asyncio.Task[None], _Call] = {}
        self._readers: dict[AsyncReading, _Call] = {}
        self._last: asyncio.Task[None] | None = None  # a loop does not keep its tasks alive
        self._settings: ThreadSettings | None = None  # those in force in the thread
        self._modes = contextlib.ExitStack()

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
        with contextlib.suppress(RuntimeError):  # closed meanwhile: the work is not wanted
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
            self._modes.close()

    def _start_all(self) -> None:
        with self._lock:
            self._called = False
        while self._inbox:
            self._start(self._inbox.popleft())

    def _start(self, work: Work) -> None:
        assert self._loop is not None
        reader = None if work.reads is None else self._readers.get(work.reads)
        if reader is not None:
            reader.work, reader.busy = work, True
            if reader.turn is not None and not reader.turn.done():
                reader.turn.set_result(None)
            return
        settings, call = work.settings, _Call(work)
        if settings is not self._settings:
            self._modes.close()
            self._modes, self._settings = settings.enter(), settings
        task = self._loop.create_task(self._run(call), context=settings.of_call())
        self._calls[task] = call
        if (iterator := work.reads) is not None:
            self._readers[iterator] = call
            iterator.end = lambda: self.cancel(lambda other: other.reads is iterator)
        task.add_done_callback(self._ended)

    async def _run(self, call: _Call) -> None:
        iterator = call.work.reads
        try:
            await call.work.begin()
            self._hand_in(call)
            while iterator is not None and iterator.is_open:
                await self._next(call)
                await call.work.begin()
                self._hand_in(call)
        finally:
            if iterator is not None:
                await _close(iterator)

    async def _next(self, call: _Call) -> None:
        """Wait for more work; only the end of the epoch ends the wait."""
        import asyncio

        assert self._loop is not None
        while not call.busy:
            call.turn = self._loop.create_future()
            try:
                await call.turn
            except asyncio.CancelledError:
                if call.cancelled:
                    raise
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()  # user code cancelled all tasks that it found

    def _ended(self, task: asyncio.Task[None]) -> None:
        call = self._calls.pop(task)
        if (iterator := call.work.reads) is not None:
            self._readers.pop(iterator, None)
            iterator.end = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._source.crashed(error)
        if call.busy:  # cancelled, perhaps before it began
            self._hand_in(call)

    def _hand_in(self, call: _Call) -> None:
        call.work.ended_ns = perf_counter_ns()
        call.busy = False
        if not self._done:
            assert self._loop is not None
            self._loop.call_soon(self._exchange)
        self._done.append(call.work)

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

    def cancel(self, unwanted: Callable[[Work], bool]) -> None:
        """Cancel the calls in progress for which `unwanted` is true, and close their iterators."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(self._cancel, unwanted)

    def _cancel(self, unwanted: Callable[[Work], bool]) -> None:
        for task, call in list(self._calls.items()):
            in_progress = call.busy or call.work.reads is not None
            if in_progress and not call.cancelled and unwanted(call.work):
                call.cancelled = True
                task.cancel()

    def place(self, work: Work) -> Place | None:
        """Return where in user code the coroutine of some work is."""
        calls = self._calls.copy().items()
        task = next((task for task, call in calls if call.work is work), None)
        coroutine = None if task is None else task.get_coro()
        if getattr(coroutine, "cr_running", False):  # it computes, and holds up the loop
            return None if self._thread is None else place_in_thread(self._thread.ident)
        return place_in_coroutine(coroutine)

    def has(self, ident: int) -> bool:
        """Return whether the thread with this id is the loop's."""
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
        return [call.work for call in list(self._calls.values()) if call.busy]

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._last is None:  # an interrupted close is called again
            self._last = loop.create_task(self._drain())
            self._last.add_done_callback(lambda _: loop.stop())

    async def _drain(self) -> None:
        """Cancel the calls, then the tasks that they started; wait for all of them."""
        import asyncio  # it takes tens of milliseconds, and only some pipelines need it

        self._start_all()
        self._cancel(lambda _: True)
        while self._calls:
            await asyncio.wait(list(self._calls))
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        for task in left:
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                LOG.warning("a task that a coroutine started failed", exc_info=error)


async def _close(iterator: AsyncReading) -> None:
    try:
        await iterator.close_async()
    except Exception:
        LOG.warning("closing an iterator of an abandoned epoch failed", exc_info=True)
