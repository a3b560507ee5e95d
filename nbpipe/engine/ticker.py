"""Ticker: a thread that calls a function every 10 ms while there is something to look after."""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable

from ..base.threads import Latch, uninterrupted

_PERIOD_S = 0.01


class Ticker:
    """Calls `tick` every 10 ms, in a thread, while there is something to look after.

    Attributes:
        asleep: nothing is looked after; `attend` wakes the thread.

    `attend`, `recover`, `sleep` and `dismiss` are called under the scheduler's lock.
    """

    period_ns = int(_PERIOD_S * 1e9)

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._gate = allocate_lock()
        self._gate.acquire()
        self.asleep = False
        self._leave = Latch()
        self._entering = threading.Lock()
        self._thread: threading.Thread | None = None

    def attend(self) -> None:
        """Start ticking, unless it ticks already."""
        if self.asleep:
            self.asleep = False
            self._wake()

    def recover(self) -> None:
        """Wake a thread that an interrupt of `attend` left asleep."""
        if not self.asleep:
            self._wake()

    def _wake(self) -> None:
        if self._gate.locked():  # it is open if the thread has not noticed that it may sleep
            self._gate.release()

    def sleep(self) -> None:
        """Stop ticking when the tick in progress is over."""
        self.asleep = True

    def start(self) -> None:
        """Start the thread at the first epoch; called without the lock.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        if self._thread is None:
            uninterrupted(self._start)

    def _start(self) -> None:
        with self._entering:
            if self._thread is None:  # an interrupt may have ended an earlier call's wait
                thread = threading.Thread(target=self._serve, name="nbpipe-ticker", daemon=True)
                thread.start()
                self._thread = thread

    def _serve(self) -> None:
        while not self._leave.wait(_PERIOD_S):
            self._tick()
            while self.asleep and not self._leave.is_open:
                self._gate.acquire()

    def dismiss(self) -> None:
        """Tell the thread to leave."""
        self._leave.open()
        self.asleep = False
        self._wake()

    def close(self, timeout_s: float) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join(timeout_s)
