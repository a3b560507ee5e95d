"""Training: the loop over a run, in a thread of its own."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, final

from .iterator import ATTEND_S, EpochIterator

LOG = logging.getLogger("nbpipe")


@final
class Training:
    """Calls `step` with every item of some epochs, in a thread.

    Args:
        epochs: gives an iterator for each epoch.
        step: called with each item.
        total: epochs asked for [epochs].

    Attributes:
        error: what ended the loop before its time, or None.
        thread: the thread; it becomes the owner of the epochs.
    """

    def __init__(
        self, epochs: Iterator[EpochIterator], step: Callable[[Any], object], *, total: int
    ) -> None:
        self.total = total
        self.error: BaseException | None = None
        self._epochs = epochs
        self._step = step
        self._ended = threading.Event()
        context = contextvars.copy_context()  # what it prints belongs to the cell that started it
        self.thread = threading.Thread(
            target=context.run, args=(self._loop,), name="nbpipe-train", daemon=True
        )

    @property
    def ended(self) -> bool:
        """Whether the loop has ended, in whatever way."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None, between: Callable[[], object] | None) -> bool:
        """Wait for the end of the loop, and say whether it has come.

        Args:
            timeout_s: how long at most [s], or None.
            between: called again and again meanwhile, or None.
        """
        if between is None:
            return self._ended.wait(timeout_s)
        until_s = None if timeout_s is None else monotonic() + timeout_s
        while not self._ended.wait(ATTEND_S):
            between()
            if until_s is not None and monotonic() >= until_s:
                return False
        return True

    def _loop(self) -> None:
        epoch = None
        try:
            for epoch in self._epochs:
                for item in epoch:
                    self._step(item)
        except BaseException as error:  # noqa: BLE001  `wait` raises it, the panel shows it
            self.error = error
            if epoch is not None:
                epoch.fail(error)
            LOG.error("training ended: %s: %s", type(error).__name__, error)  # noqa: TRY400
        finally:
            self._ended.set()
