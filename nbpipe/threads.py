"""Threads that an interrupt cannot half start.

An interrupt reaches the main thread between any two calls, those inside `threading.Thread.start`
included: it can leave a thread that nobody knows, or a lock that nobody opens.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable

from .errors import WorkerStartError


def uninterrupted(function: Callable[[], object]) -> None:
    """Call a function where no interrupt comes in, and wait; an interrupt ends only the wait.

    Args:
        function: it must not need a lock that the caller holds.

    Raises:
        BaseException: what the function raised.
    """
    if _thread.get_ident() != threading.main_thread().ident:
        function()
        return
    ended = _thread.allocate_lock()
    ended.acquire()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001  it is raised where it was asked for
            errors.append(error)
        finally:
            ended.release()

    try:
        _thread.start_new_thread(call, ())
    except RuntimeError:  # no more threads may be started: the interpreter is shutting down
        call()
    ended.acquire()
    if errors:
        raise errors[0]


def in_new_thread(function: Callable[[], object]) -> None:
    """Call a function where no lock of this thread is in its way.

    `threading` starts the thread, so that it knows when it ends: of another one it would keep an
    object for ever, once the function, or a line of a log, asks for the thread's name. But to start
    it takes locks that may be held below us, so that is done in a thread of its own.
    """

    def begin() -> None:
        thread = threading.Thread(target=function, name="nbpipe-aside", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads may be started
            function()

    try:
        _thread.start_new_thread(begin, ())
    except RuntimeError:  # the interpreter is shutting down
        return


def holds(lock: threading.RLock) -> bool:
    """Tell whether this very thread is inside a lock: what garbage runs may be there, below us."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]


def no_thread(what: str, error: RuntimeError) -> WorkerStartError:
    """Give the error to raise, from `error`, where the system gives no more threads."""
    return WorkerStartError(
        f"no thread could be started for {what}: {error}; end other threads and processes, or "
        "raise the limit on them (`ulimit -u`)"
    )


class Latch:
    """Opens once, for all who wait.

    Unlike a `threading.Event` it bears an interrupt at any moment of a wait: an event would keep
    its lock, and whoever sets it then waits for ever.
    """

    def __init__(self) -> None:
        self._gate = _thread.allocate_lock()
        self._gate.acquire()
        self.is_open = False

    def open(self) -> None:
        """Let all go on who wait, now and later."""
        self.is_open = True
        self._pass_on()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is open, at most so long [s]; say whether it is."""
        if not self.is_open:
            try:
                self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s)
            finally:
                if self.is_open:
                    self._pass_on()
        return self.is_open

    def _pass_on(self) -> None:
        with contextlib.suppress(RuntimeError):  # another one was quicker
            self._gate.release()
