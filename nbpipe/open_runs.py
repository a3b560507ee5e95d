"""Open runs: closed when the interpreter ends, disowned where it was forked."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from .exit_call import ExitCall

_END_S = 1.0  # runs that are open as the interpreter ends have so long to close


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
    _at_exit.register()


def _close_all(hurried: bool) -> None:  # noqa: FBT001
    for one in tuple(_open):
        one.close(0 if hurried else _END_S)


_at_exit = ExitCall(_close_all)


def _after_fork() -> None:
    for one in tuple(_open):
        one.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
