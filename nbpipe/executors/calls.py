"""Calls: jobs in progress elsewhere, and the threads that wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from ..errors import StageError, StageTimeoutError
from .base import Job


class Call:
    """One job in progress, and the thread that waits for its end.

    Args:
        job: what is to be done.
        executor: name of what does it, for messages.
    """

    def __init__(self, job: Job, executor: str) -> None:
        self.job = job
        self.executor = executor
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._deadline_s: float | None = None
        self._ended = False
        self._abandoned = False

    @property
    def path(self) -> Any:
        """Position of the item in the epoch's order, where there is but one."""
        entries = self.job.entries
        return entries[0][0] if len(entries) == 1 else None

    @property
    def items(self) -> str:
        """The items in words."""
        paths = [str(entry[0]) for entry in self.job.entries]
        return ("item " if len(paths) == 1 else "one of the items ") + ", ".join(paths)

    @property
    def functions(self) -> int:
        """Calls of functions that the job takes at most, as far as its program says."""
        count: int = getattr(self.job.program, "calls", len)(self.job.entries)
        return count

    def begin(self, calls: int = 1) -> None:
        """Hear that a call of a function begins: its time counts from now.

        Args:
            calls: how many follow one another without saying so.
        """
        if self.job.timeout_s is not None:
            with self._lock:
                self._deadline_s = time.monotonic() + calls * self.job.timeout_s
                self._changed.notify_all()

    def end(self, _: object = None) -> None:
        """Hear that the job is done."""
        with self._lock:
            self._ended = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Wait no longer: nobody wants the answer any more."""
        with self._lock:
            self._abandoned = True
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            StageTimeoutError: a call took too long.
            StageError: the call was abandoned.
        """
        with self._lock:
            while not self._ended:
                if self._abandoned:
                    raise self.error(StageError, "was abandoned: its epoch is over")
                left_s = self._left_s()
                if left_s is not None and left_s <= 0:
                    limit = f"took longer than timeout_s={self.job.timeout_s:g}"
                    raise self.error(StageTimeoutError, f"{limit}, and cannot be stopped there")
                self._changed.wait(left_s)

    def _left_s(self) -> float | None:
        return None if self._deadline_s is None else self._deadline_s - time.monotonic()

    def error(self, kind: type[StageError], what: str) -> StageError:
        """Make an error that says what happened to the call."""
        stage = self.job.program.label
        return kind(
            f"the call of stage {stage!r} on {self.items} ({self.executor}) {what}",
            stage=stage,
            path=self.path,
            executor=self.executor,
        )


class Calls:
    """The calls in progress of one caller."""

    def __init__(self, executor: str) -> None:
        self._executor = executor
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._calls: dict[Call, Future[Any] | None] = {}
        self._closed = False

    @contextmanager
    def open(self, job: Job) -> Iterator[Call]:
        """Give a call, and count it while it is in progress.

        Raises:
            StageError: the caller is closed.
        """
        call = Call(job, self._executor)
        with self._lock:
            if self._closed:
                raise call.error(StageError, "did not begin: its run is closed")
            self._calls[call] = None
        try:
            yield call
        finally:
            with self._lock:
                del self._calls[call]
                self._changed.notify_all()

    def follow(self, call: Call, future: Future[Any]) -> None:
        """Note the future of a call; the call ends with it."""
        with self._lock:
            self._calls[call] = future
        future.add_done_callback(call.end)

    def futures(self) -> list[Future[Any]]:
        """Give the futures of the calls in progress."""
        with self._lock:
            return [future for future in self._calls.values() if future is not None]

    def abandon(self) -> None:
        """Wake every thread that waits."""
        with self._lock:
            for call in self._calls:
                call.abandon()

    def close(self, timeout_s: float) -> list[str]:
        """Wait for the calls in progress, at most `timeout_s`; give the stages of the others."""
        with self._lock:
            self._closed = True
            self._changed.wait_for(lambda: not self._calls, timeout_s)
            late = {call.job.program.label for call in self._calls}
        self.abandon()
        return sorted(late)
