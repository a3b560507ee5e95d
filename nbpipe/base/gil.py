"""The interpreter lock: how long a thread waits for it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

with contextlib.suppress(ImportError):  # not on Windows
    import resource

COUNTS_SLEEPS = hasattr(globals().get("resource"), "RUSAGE_THREAD")  # on Linux
_LATE_NS = 100_000  # what a wait takes longer than was asked for: the timer's slack, the way back
_SHORT_NS = 1_000_000  # longer intervals say nothing: calls wait as long for a disk


def is_locked() -> bool:
    """Tell whether this interpreter lets one thread run Python at a time."""
    enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return enabled()


def sleeps() -> int:
    """Return how often this thread has left its core to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if COUNTS_SLEEPS else 0


def lock_wait_ns(waited_ns: int, slept: int) -> int | None:
    """Return how long a thread waited for the interpreter lock, at most [ns].

    A thread that waits for it wakes up after each switch interval to ask for it, so it sleeps
    often. One that waits for a disk or a server sleeps once.

    Args:
        waited_ns: time in which it neither computed nor waited for a core [ns].
        slept: how often it slept in that time.

    Returns:
        None where that cannot be told: sleeps are not counted, or the interval is long.
    """
    if not is_locked():
        return 0
    interval_ns = round(1e9 * sys.getswitchinterval())
    if not COUNTS_SLEEPS or interval_ns > _SHORT_NS:
        return None
    return max(0, min(waited_ns, slept * (interval_ns + _LATE_NS)))
