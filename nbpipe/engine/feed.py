"""Feed: indices that are pushed to an epoch while it runs, load by load."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, final

from ..errors import EpochClosedError
from .indices import GivenOrder, Index, NothingReadyError

MAX_DEPTH = 65_536  # loads
_END = object()
_ATTEND_S = 0.05  # a kernel that waits answers its front end at least this often [s]


@final
class Feed(GivenOrder):
    """Loads of indices on their way to the source of one epoch; any thread may push.

    Its lock is taken under the scheduler's, so nothing of the scheduler is called under it.

    Args:
        depth: loads that may wait for the source to begin them; None: any number [loads].

    Attributes:
        wake: called after there is more to draw, or nothing more comes.
        hear: called with the number of loads when the source begins some, with 0 when it wants
            no more.
        pass_on: takes each load, and None for the end, in place of the source of this process.
    """

    count = None
    inner = None

    def __init__(self, depth: int | None) -> None:
        self.wake: Callable[[], object] = _nothing
        self.hear: Callable[[int], object] = _nothing
        self.pass_on: Callable[[Sequence[Index] | None], object] | None = None
        self._depth = depth
        self._lock = threading.RLock()  # garbage may close it below us: reentrant
        self._changed = threading.Condition(self._lock)
        self._indices: deque[tuple[Index, int]] = deque()  # with the loads that it begins
        self._waiting = 0
        self._wanted = True
        self._ended = self._closed = False
        self._error: BaseException | None = None

    # -- pushing --------------------------------------------------------------------------
    def load(
        self,
        indices: Sequence[Index],
        timeout_s: float | None = None,
        between: Callable[[], object] | None = None,
        *,
        loads: int = 1,
    ) -> bool:
        """Push a load; wait until fewer than `depth` others wait.

        Args:
            indices: all of the load.
            timeout_s: how long to wait at most [s], or None.
            between: called again and again meanwhile, or None.
            loads: loads that it stands for [loads].

        Returns:
            Whether it was taken: False where the time was over.

        Raises:
            EpochClosedError: the epoch is over, or its end was announced.
        """
        until_s = None if timeout_s is None else monotonic() + timeout_s
        while not self._taken(indices, loads, _round_s(until_s, attends=between is not None)):
            if until_s is not None and monotonic() >= until_s:
                return False
            if between is not None:
                between()  # without the lock: it may do anything
        self.wake()
        return True

    def _taken(self, indices: Sequence[Index], loads: int, wait_s: float | None) -> bool:
        """Take a load, once there is room; say whether there was in time."""
        with self._lock:
            if indices and not self._changed.wait_for(self._admits, wait_s):
                return False
            self._check_open()
            if self._wanted and indices:
                self._put(indices, loads)
            return True

    def _admits(self) -> bool:
        """Say whether there is nothing to wait for."""
        full = self._depth is not None and self._waiting >= self._depth
        return not full or not self._wanted or self._ended or self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise EpochClosedError(
                "this epoch is over, so nothing can be loaded into it; begin another one with "
                "run.open_epoch()"
            ) from self._error
        if self._ended:
            raise EpochClosedError(
                "end() was called for this epoch, so nothing can be loaded into it; begin "
                "another one with run.open_epoch()"
            )

    def _put(self, indices: Sequence[Index], loads: int) -> None:
        if self.pass_on is None:
            self._indices.extend([(indices[0], loads), *((index, 0) for index in indices[1:])])
        else:
            self.pass_on(indices)
        self._waiting += loads

    def end(self) -> None:
        """Say that no more loads come; again does nothing."""
        with self._lock:
            if self._ended or self._closed:
                return
            self._ended = True
            if self.pass_on is not None:
                self.pass_on(None)
            self._changed.notify_all()
        self.wake()

    def close(self, error: BaseException | None) -> None:
        """Refuse whatever else is pushed: the epoch is over."""
        with self._lock:
            if not self._closed:
                self._closed, self._error = True, error
            self._indices.clear()
            self._changed.notify_all()

    # -- drawing --------------------------------------------------------------------------
    @property
    def ready(self) -> int:
        """Number of indices that can be drawn now."""
        return len(self._indices)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes than what is ready."""
        return self._ended or self._closed

    @property
    def wanted(self) -> bool:
        """Whether the source reads on: no stage failed, none has had enough."""
        return self._wanted

    def draw(self) -> Iterator[Index]:
        """Give what was pushed; `NothingReadyError` where nothing is, until the end."""
        return iter(self._draw, _END)

    def _draw(self) -> Any:
        over = self.ended or not self._wanted  # first: what was pushed before the end counts
        try:
            index, loads = self._indices.popleft()
        except IndexError:
            if over:
                return _END
            raise NothingReadyError from None
        if loads:
            self.began(loads)
        return index

    def began(self, loads: int) -> None:
        """Hear that the source has begun some loads: there is room for others."""
        with self._lock:
            self._waiting = max(0, self._waiting - loads)
            self._changed.notify_all()
        self.hear(loads)

    def cut(self) -> None:
        """Hear that the source wants no more: what is pushed from now on is dropped."""
        with self._lock:
            if not self._wanted:
                return
            self._wanted = False
            self._indices.clear()
            self._changed.notify_all()
            told = not self._ended
        if told:
            self.hear(0)


def _round_s(until_s: float | None, *, attends: bool) -> float | None:
    """Say how long to wait before one looks after other things [s]."""
    most_s = _ATTEND_S if attends else None
    if until_s is None:
        return most_s
    left_s = max(0.0, until_s - monotonic())
    return left_s if most_s is None else min(left_s, most_s)


def _nothing(*_: object) -> None:
    """Tell nobody."""
