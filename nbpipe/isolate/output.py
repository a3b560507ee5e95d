"""What the stages of another process print and log: sent to the run's process, which shows it."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from typing import final

from ..executors.channel import Channel


@final
class Lines(io.TextIOBase):
    """Standard output of the stages: whole lines are sent to the parent, which prints them.

    Several threads print here at once: each has a line of its own.
    """

    def __init__(self, control: Channel, name: str) -> None:
        self._control = control
        self._name = name
        self._lock = threading.RLock()  # garbage that is found below us may come here again
        self._rests: dict[int, str] = {}

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Send the lines that are complete."""
        me = threading.get_ident()
        with self._lock:
            lines, newline, rest = (self._rests.pop(me, "") + text).rpartition("\n")
            if rest:
                self._rests[me] = rest
        if newline:
            self._control.send(("text", self._name, lines + newline))
        return len(text)

    def flush(self) -> None:
        """Send what is there, also without the end of its line."""
        with self._lock:
            rests, self._rests = self._rests, {}
        for rest in rests.values():
            self._control.send(("text", self._name, rest))


@final
class Records(logging.Handler):
    """Has the parent log what is logged here."""

    def __init__(self, control: Channel) -> None:
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record's text."""
        with contextlib.suppress(OSError):
            self._control.send(("log", record.name, record.levelno, self.format(record)))
