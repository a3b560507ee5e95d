"""Steps: what an export is doing is shown once it takes longer than a few seconds."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import uuid
from contextvars import copy_context
from typing import Self, final

from .statements import shell

SILENT_S = 3.0  # an export that is done by then shows nothing


@final
class ShownSteps:
    """A line in the notebook's output, or in a terminal, that goes away in the end.

    An export that a panel's button has begun shows nothing: the panel tells that it is under way.
    """

    def __init__(self) -> None:
        self._words, self._place = "export: reading the cells...", ""
        self._lock = threading.Lock()
        self._is_late = self._is_written = False
        begin = functools.partial(copy_context().run, self._begin)  # below the cell that exports
        self._timer = threading.Timer(SILENT_S, begin)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_late = False
            if self._is_written:
                self._write("")

    def at(self, words: str) -> None:
        """Note the step that begins."""
        with self._lock:
            self._words = f"export: {words}..."
            if self._is_late:
                self._write(self._words)

    def _begin(self) -> None:
        with self._lock:
            self._is_late = True
            self._write(self._words)

    def _write(self, words: str) -> None:
        ip = shell()
        with contextlib.suppress(Exception):  # an output that is gone stops no export
            if getattr(ip, "kernel", None) is not None:
                from IPython.display import display

                is_first, self._place = not self._place, self._place or uuid.uuid4().hex
                data = {"text/plain": words}
                display(data, raw=True, display_id=self._place, update=not is_first)
            elif sys.stderr.isatty():
                sys.stderr.write(f"\r\x1b[K{words}")
                sys.stderr.flush()
        self._is_written = True
