"""Open runs: closed when the interpreter ends, disowned where it was forked."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Open(Protocol):
    """Something that has to be closed."""

    def close(self, timeout_s: float = 5) -> None:
        """End it."""

    def disown(self) -> None:
        """Take note that this process was forked: it stayed in the other one."""


_open: weakref.WeakSet[Open] = weakref.WeakSet()
discard = _open.discard


def add(one: Open) -> None:
    """Have a run closed when the interpreter ends, before all that was there when it began."""
    _open.add(one)
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _close_all() -> None:
    timeout_s = 1.0
    for one in tuple(_open):
        try:
            one.close(timeout_s)
        except KeyboardInterrupt:  # the second one: they are in a hurry, and it was closed
            timeout_s = 0


def _after_fork() -> None:
    for one in tuple(_open):
        one.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
