"""Threads that an interrupt cannot half start.

An interrupt reaches the main thread between any two calls, those inside `threading.Thread.start`
included: it can leave a thread that nobody knows, or a lock that nobody opens.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


def uninterrupted(function: Callable[[], object]) -> None:
    """Call a function where no interrupt comes in, and wait; an interrupt ends only the wait.

    Args:
        function: it must not need a lock that the caller holds.

    Raises:
        RuntimeError: no more threads may be started; from the main thread only.
        BaseException: what the function raised.
    """
    if threading.current_thread() is not threading.main_thread():
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

    _thread.start_new_thread(call, ())
    ended.acquire()
    if errors:
        raise errors[0]


def in_new_thread(function: Callable[[], object]) -> None:
    """Call a function where no lock of this thread is in its way."""
    try:
        _thread.start_new_thread(function, ())
    except RuntimeError:  # the interpreter is shutting down
        return
