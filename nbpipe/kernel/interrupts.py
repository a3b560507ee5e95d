"""Shield: interrupts wait while messages are in hand."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any, final

PATIENCE_S = 0.5  # what takes longer can be interrupted [s]


@final
class Shield:
    """Keeps interrupts back while messages are in hand; entered in the main thread.

    Attributes:
        pierced: an interrupt was let through to a handler that took too long.
    """

    def __init__(self) -> None:
        self.pierced = False
        self._kept: tuple[int, FrameType | None] | None = None
        self._patience_ends_s: float | None = None
        self._handler: Any = None

    def __enter__(self) -> None:
        # A handler that was not installed from Python cannot be put back.
        if signal.getsignal(signal.SIGINT) is not None:
            self._handler = signal.signal(signal.SIGINT, self._keep)

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self._kept = number, frame
        if self._patience_ends_s is not None and monotonic() > self._patience_ends_s:
            self.pierced = True
            raise KeyboardInterrupt

    @contextmanager
    def patience(self) -> Generator[None]:
        """Let an interrupt through to what runs for too long within."""
        self._patience_ends_s = monotonic() + PATIENCE_S
        try:
            yield
        finally:
            self._patience_ends_s = None

    def release(self) -> None:
        """Pass on the interrupt that was kept back, if there was one."""
        if self._kept is not None and callable(self._handler):
            self._handler(*self._kept)
