"""Gauge: how many calls of a stage are in progress, and when that number was reached."""

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
        self._lock = threading.Lock()
        self._reached = threading.Event()
        self._reached_s = 0.0
        self._target = -1
        self._limit = 1
        self._active = 0
        self.surplus_starts = 0

    def __call__(self, item: int) -> int:
        """Sleep; a call that starts although as many as allowed are inside is surplus."""
        with self._lock:
            self.surplus_starts += self._active >= self._limit
            self._active += 1
            self._note()
        time.sleep(self._call_s)
        with self._lock:
            self._active -= 1
            self._note()
        return item

    def allow(self, limit: int) -> None:
        """Say how many calls are allowed from now on."""
        with self._lock:
            self._limit = limit

    def watch(self, target: int) -> None:
        """Watch for the moment at which exactly `target` calls are inside."""
        with self._lock:
            self._target = target
            self._reached.clear()
            self._note()

    def wait_reached(self, timeout_s: float) -> float:
        """Wait for what is watched for and give its time on the `perf_counter` [s].

        Raises:
            TimeoutError: it did not happen in time.
        """
        if not self._reached.wait(timeout_s):
            raise TimeoutError(f"{self._active} calls in progress, not {self._target}")
        return self._reached_s

    def _note(self) -> None:
        if self._active == self._target:
            self._target = -1
            self._reached_s = time.perf_counter()
            self._reached.set()
