"""Gauge: how many calls of a stage are in progress."""

from __future__ import annotations

import threading
import time


class Gauge:
    """A stage function that sleeps and counts who is inside.

    Args:
        call_s: time of a call [s].
    """

    def __init__(self, call_s: float) -> None:
        self._call_s = call_s
        self._lock = threading.Condition()
        self._limit = 1
        self.active = 0
        self.surplus_starts = 0

    def __call__(self, item: int) -> int:
        """Sleep; a call that starts although as many as allowed are inside is surplus."""
        with self._lock:
            if self.active >= self._limit:
                self.surplus_starts += 1
            self.active += 1
            self._lock.notify_all()
        time.sleep(self._call_s)
        with self._lock:
            self.active -= 1
            self._lock.notify_all()
        return item

    def allow(self, limit: int) -> None:
        """Say how many calls are allowed from now on."""
        with self._lock:
            self._limit = limit

    def wait_active(self, count: int, timeout_s: float) -> None:
        """Wait until exactly `count` calls are inside.

        Raises:
            TimeoutError: that did not happen in time.
        """
        with self._lock:
            if not self._lock.wait_for(lambda: self.active == count, timeout_s):
                raise TimeoutError(f"{self.active} calls in progress, not {count}")
