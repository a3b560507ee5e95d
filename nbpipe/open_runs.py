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
add = _open.add
discard = _open.discard


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


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
