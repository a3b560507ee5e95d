"""Training: the loop over a run, in a thread of its own."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Protocol, final

from ..base.checks import function, whole
from ..base.threads import Latch
from ..errors import ArgumentTypeError
from ..ops.stage import is_coroutine_function
from .iterator import ATTEND_S, EpochIterator

LOG = logging.getLogger("nbpipe")


class Iterate(Protocol):
    """Starts an epoch."""

    def __call__(self, *, last: bool) -> EpochIterator:
        """Start the next epoch; `last`: no other is wanted behind it."""


@final
class Training:
    """Calls `step` with every item of some epochs, in a thread.

    Args:
        iterate: starts an epoch.
        step: called with each item.
        epochs: how many epochs [epochs].

    Attributes:
        first: the first epoch, started by whoever asks for the loop, who is the one to be
            told why it cannot be.
        error: what ended the loop before its time, or None.
        total: epochs that are wanted [epochs].
        begun: epochs that have begun [epochs].
        stopping: no further epoch is wanted.
        thread: the thread; it becomes the owner of the epochs.
    """

    def __init__(self, iterate: Iterate, step: Callable[[Any], object], *, epochs: int) -> None:
        if is_coroutine_function(function("train step", step)):
            raise ArgumentTypeError(
                "train step must be a plain function, got an async one; call asyncio.run in it, "
                "or write the loop yourself: for batch in run"
            )
        self.total = whole("train epochs", epochs, minimum=1, unit="epochs")
        self.first: EpochIterator | None = None
        self.error: BaseException | None = None
        self.stopping = False
        self.begun = 0
        self._iterate = iterate
        self._step = step
        self._ended = Latch()
        context = contextvars.copy_context()  # what it prints belongs to the cell that started it
        self.thread = threading.Thread(
            target=context.run, args=(self._loop,), name="nbpipe-train", daemon=True
        )

    @property
    def ended(self) -> bool:
        """Whether the loop has ended, in whatever way."""
        return self._ended.is_open

    def wait(self, timeout_s: float | None, between: Callable[[], object] | None) -> bool:
        """Wait for the end of the loop; return whether it has come.

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

    def _epochs(self) -> Iterator[EpochIterator]:
        for number in range(self.total):
            if number and self.stopping:
                return
            first, self.first = self.first, None
            self.begun = number + 1
            yield first or self._iterate(last=self.begun == self.total)

    def _loop(self) -> None:
        epoch = None
        try:
            for epoch in self._epochs():
                for item in epoch:
                    self._step(item)
        except BaseException as error:  # noqa: BLE001  `wait` raises it, the panel shows it
            self.error = error
            if epoch is not None:
                epoch.fail(error)
            LOG.error("training ended: %s: %s", type(error).__name__, error)  # noqa: TRY400
        finally:
            self._ended.open()
