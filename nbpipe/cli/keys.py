"""Keys: single key presses from the terminal, whose settings are put back at every exit."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self, final

from ..base.threads import uninterrupted
from .terminal import TERMINATED

_LOOK_S = 0.5  # a process in the background looks this often whether it may read again [s]
_NAMES = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}
_KEY = re.compile(rb"\x1b\[[0-9;?]*[@-~]|\x1bO[@-~]|\x1b(?=[^\[O])|[^\x1b]", re.DOTALL)
_LONGEST = 16  # a beginning that is longer is no key [bytes]


def keys_in(typed: bytes) -> tuple[list[str], bytes]:
    r"""Return the keys in what was typed, and the beginning of one that has not come whole.

    Examples:
        >>> keys_in(b"+\x1b[Aq\x1b[")
        (['+', 'up', 'q'], b'\x1b[')
    """
    found, end = [], 0
    while match := _KEY.match(typed, end):
        end = match.end()
        key = _NAMES.get(match[0]) or match[0].decode("ascii", "replace")
        is_key = match[0] in _NAMES or (len(match[0]) == 1 and key.isprintable())
        found += [key] if is_key else []
    rest = typed[end:]
    return found, rest if len(rest) <= _LONGEST else b""


def is_ours() -> bool:
    """Return whether keys can be read: from a terminal, by a process in its foreground."""
    try:
        import termios  # noqa: F401  Windows has none

        descriptor = sys.stdin.fileno()
        return os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
    except (ImportError, AttributeError, OSError, ValueError):  # no stdin, or a closed one
        return False


@contextlib.contextmanager
def reading_keys(
    pressed: Callable[[str], object], show_cursor: Callable[[bool], object] = bool
) -> Iterator[None]:
    """Call a function with each key in the `with` block, from a thread of its own.

    Without a terminal to read from, nothing is read. The terminal is put back when the block ends,
    whatever ends it, when the process is stopped with Ctrl-Z, and when it is asked to terminate.

    Args:
        pressed: called with a character, or with "up" or "down".
        show_cursor: called with True before Ctrl-Z stops the process, with False after it.
    """
    if not is_ours() or threading.current_thread() is not threading.main_thread():
        yield
        return
    with _KeyTerminal(sys.stdin.fileno()) as terminal, _signals(terminal, show_cursor):
        reader = _Reader(terminal, pressed)
        try:
            reader.start()
            yield
        finally:
            uninterrupted(reader.end)


@final
class _KeyTerminal:
    """A terminal that gives each key at once, and does not show it.

    Args:
        descriptor: of its file.
    """

    def __init__(self, descriptor: int) -> None:
        import termios

        self.descriptor = descriptor
        self._termios = termios
        self._before: list[Any] = termios.tcgetattr(descriptor)
        self._lock = threading.RLock()  # a signal may interrupt its holder
        self._changed = self.held = False

    def take(self) -> bool:
        """Change its settings if this process may; return whether they are changed."""
        with self._lock:
            if self.held or not is_ours():
                return False
            if not self._changed:
                termios = self._termios
                settings = [*self._before]
                settings[3] &= ~(termios.ECHO | termios.ICANON)
                settings[6] = [*settings[6]]
                settings[6][termios.VMIN], settings[6][termios.VTIME] = 1, 0
                self._changed = True
                termios.tcsetattr(self.descriptor, termios.TCSANOW, settings)
            return True

    def put_back(self) -> None:
        """Put its settings back, and drop keys that were not read; harmless if it is gone."""
        with self._lock:
            changed, self._changed = self._changed, False
            if changed and is_ours():
                with contextlib.suppress(self._termios.error):
                    self._termios.tcflush(self.descriptor, self._termios.TCIFLUSH)
                    self._termios.tcsetattr(self.descriptor, self._termios.TCSANOW, self._before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.held = True
        uninterrupted(self.put_back)


@final
class _Reader:
    """A thread that reads keys until `end`."""

    def __init__(self, terminal: _KeyTerminal, pressed: Callable[[str], object]) -> None:
        self._terminal = terminal
        self._pressed = pressed
        self._woken, self._wake = os.pipe()
        self._over = False
        self._thread = threading.Thread(target=self._read, name="nbpipe-keys", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._terminal.take()
        self._thread.start()

    def _read(self) -> None:
        descriptor, typed = self._terminal.descriptor, b""
        while not self._over:
            files = [descriptor] if self._terminal.take() else []
            ready, _, _ = select.select([self._woken, *files], [], [], _LOOK_S)
            if descriptor not in ready or self._over:
                continue
            try:
                more = os.read(descriptor, 1024)
            except OSError:  # the terminal is gone
                return
            if not more:
                return
            keys, typed = keys_in(typed + more)
            for key in keys:
                self._pressed(key)

    def end(self) -> None:
        """Stop reading, and wait for the key in progress."""
        self._over = True
        os.write(self._wake, b"x")
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake)
        os.close(self._woken)


@contextlib.contextmanager
def _signals(terminal: _KeyTerminal, show_cursor: Callable[[bool], object]) -> Iterator[None]:
    """Put the terminal back before Ctrl-Z stops the process, and where it is asked to terminate."""

    def stop(number: int, _: FrameType | None) -> None:
        terminal.held = True
        show_cursor(True)  # noqa: FBT003
        terminal.put_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # it continues here, once a shell says so
        signal.signal(number, stop)
        show_cursor(False)  # noqa: FBT003
        terminal.held = False  # the thread that reads takes it again

    def terminate(_: int, __: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    handlers = {signal.SIGTSTP: stop, signal.SIGTERM: terminate}
    before = {number: signal.getsignal(number) for number in handlers}
    usual = [number for number, known in before.items() if known is signal.SIG_DFL]
    try:
        for number in usual:
            signal.signal(number, handlers[number])
        yield
    finally:
        for number in usual:
            signal.signal(number, signal.SIG_DFL)
