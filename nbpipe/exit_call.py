"""Exit calls: what is done as the interpreter ends, whoever interrupts it.

An interrupt that came in just before comes up as an exit handler begins, where nothing in it
can catch it: Python tells of it, and the handler is not called at all. So the hook that would
tell is ours for that moment, and calls it. Nothing written in Python could do this in time:
the hook is kept and set by calls that run none.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable
from typing import Any, final


@final
class ExitCall:
    """A function that is called as the interpreter ends, and again if it was interrupted.

    Args:
        function: called with whether somebody interrupted, and is in a hurry.
    """

    def __init__(self, function: Callable[[bool], object]) -> None:
        self._function = function
        self._kept: dict[str, Any] = {}  # what stood in `sys`, the hook among it
        self._calls = (
            self._run,
            functools.partial(setattr, sys, "unraisablehook", self._told),
            functools.partial(self._kept.update, vars(sys)),
        )

    def register(self) -> None:
        """Have it called before all that was registered up to now."""
        for call in self._calls:  # the last one is the first to be called
            atexit.unregister(call)
            atexit.register(call)

    def _run(self) -> None:
        try:
            self._function(False)  # noqa: FBT003
        except KeyboardInterrupt:
            self._run_again()
        self._reset_hook()

    def _run_again(self) -> None:
        while True:
            try:
                self._function(True)  # noqa: FBT003
            except KeyboardInterrupt:
                continue
            return

    def _reset_hook(self) -> None:
        sys.unraisablehook = self._before()
        self._kept.clear()

    def _before(self) -> Callable[[Any], object]:
        hook: Callable[[Any], object] = self._kept.get("unraisablehook", sys.__unraisablehook__)
        return hook

    def _told(self, told: Any) -> None:
        """Take the place of the hook that tells of exceptions that nobody can catch."""
        ours = told.object == self._run or repr(self._run) in str(told.err_msg)
        if ours and issubclass(told.exc_type, KeyboardInterrupt):
            self._run_again()
            self._reset_hook()
        else:
            self._before()(told)
