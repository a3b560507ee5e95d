"""Interpreters that run one function of `nursery`: the fork server, or one worker.

They never run the user's script. Handles are file descriptors; on Windows, where nothing here
could be tried yet, they are the system's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from .surroundings import THREAD_VARIABLES

_LAST_STANDARD = 2
# Where this nbpipe lies: `sys.path` may have led to it from another working directory.
_ROOT = str(Path(__file__).absolute().parents[2])


def hold_standard_descriptors() -> None:
    """Open what a daemon closed: a pipe under number 0, 1 or 2 would be taken for its stream."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        pass
    os.close(fd)


def start_interpreter(
    function: str, *arguments: int, handles: list[int]
) -> subprocess.Popen[bytes]:
    """Start an interpreter that calls a function of `nursery`; its standard input is empty.

    Interrupts wait until `nursery` ignores them.

    Raises:
        OSError: it could not be started.
    """
    command = [_executable(), *_flags(), "-c", _code(function, arguments)]
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    if sys.platform == "win32":
        environment["__PYVENV_LAUNCHER__"] = sys.executable  # it finds its venv by this
    with _interrupts_held():
        return subprocess.Popen(  # noqa: S603  it runs nbpipe
            command, stdin=subprocess.DEVNULL, env=environment, **_handing_over(handles)
        )


def _code(function: str, arguments: tuple[int, ...]) -> str:
    """Write the program; the path comes first, for it may be what leads to nbpipe."""
    path: list[object] = [*sys.path, _ROOT]
    lines = (
        "import sys",
        f"sys.path[:] = {[entry for entry in path if isinstance(entry, str)]!a}",
        f"from {__package__}.nursery import {function}",
        f"{function}{arguments}",
    )
    return "; ".join(lines)


def _executable() -> str:
    if sys.platform == "win32":  # a venv's python.exe only starts this one, as its child
        return str(getattr(sys, "_base_executable", sys.executable))
    return sys.executable or "python"  # an embedded interpreter does not know


def _flags() -> list[str]:
    """Give the options that this interpreter was started with, as multiprocessing does."""
    private: Any = subprocess
    return list(private._args_from_interpreter_flags())


def handle_of(fd: int) -> int:
    """Give what an interpreter can be handed for a file descriptor."""
    if sys.platform != "win32":
        return fd
    import msvcrt

    return msvcrt.get_osfhandle(fd)


def _handing_over(handles: list[int]) -> dict[str, Any]:
    if sys.platform != "win32":
        return {"pass_fds": handles}
    for handle in handles:
        os.set_handle_inheritable(handle, True)  # noqa: FBT003
    return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": handles})}


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Have a process start with interrupts blocked: the stop button must not end it."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@final
class ForkServer:
    """The process that forks workers, as its parent sees it; Linux only.

    Attributes:
        with_torch: workers find torch loaded.
    """

    def __init__(self, lifeline: int, *, with_torch: bool) -> None:
        self.with_torch = with_torch
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handles = [theirs.fileno(), lifeline]
        with contextlib.ExitStack() as opened, theirs:
            opened.enter_context(self._control)
            self._process = start_interpreter("serve", *handles, with_torch, handles=handles)
            opened.pop_all()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    @property
    def file(self) -> int:
        """Descriptor that is held for it."""
        return self._control.fileno()

    def ask(self, connection: int, end: int) -> None:
        """Ask for a worker; its pid comes over the pipe that `end` belongs to, then its exit code.

        Raises:
            ConnectionError: the server has ended, or was retired.
        """
        if self.file < 0:
            raise ConnectionError("the fork server was retired")
        socket.send_fds(self._control, [b"fork"], [connection, end])

    def wait(self) -> int:
        """Wait for its end and give its exit code."""
        return self._process.wait()

    def retire(self) -> None:
        """Ask for no more workers; it ends with its last one."""
        self._control.close()

    def disown(self) -> None:
        """Forget it: it ends by itself, or belongs to another process."""
        self.retire()
        self._process.returncode = 0  # no warning that it still runs
