"""A worker process before its work begins, and the fork server that makes workers on Linux.

The server has one thread for all its life: a fork copies no lock that another thread holds.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from multiprocessing import current_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn, final

from . import handles, surroundings

# Loaded before the first fork, so that workers share their memory and need no time for them.
PRELOADED = ("numpy.random", f"{__package__}.launch", f"{__package__}.worker")
_THREADS = Path("/proc/self/task")


def serve(control: int, lifeline: int, with_torch: int) -> NoReturn:
    """Be the fork server: make a worker whenever the parent asks for one.

    Args:
        control: socket on which the parent asks; each request brings a worker's connection and
            the pipe for its exit code. Closed: the server ends with its last worker.
        lifeline: pipe that the parent never writes to. Closed: the server and its workers end.
        with_torch: whether workers are to find torch loaded.
    """
    _hear_no_interrupts()
    for fd in (control, lifeline):
        os.set_inheritable(fd, False)  # noqa: FBT003
    for name in (*PRELOADED, *["torch"] * with_torch):
        with contextlib.suppress(ImportError):  # then it is of no use to a worker either
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page it looks at
    _forget_cleaning()
    server = _Server(socket.socket(fileno=control), lifeline)
    server.serve()
    os._exit(0)


def _forget_cleaning() -> None:
    """Keep workers from clearing away at their exit what libraries made when they were loaded."""
    registry: Any = weakref.finalize
    for finalizer in tuple(registry._registry):
        finalizer.atexit = False


@final
class _Server:
    """Forks workers and tells the parent how they end."""

    def __init__(self, control: socket.socket, lifeline: int) -> None:
        self._control = control
        self._lifeline = lifeline
        self._wakeup, self._wake = os.pipe()
        self._ends: dict[int, Connection] = {}
        self._retired = False

    def serve(self) -> None:
        """Answer until there is no parent, or nothing more to do."""
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the handler itself has nothing to do
        while self._ends or not self._retired:
            asked = [] if self._retired else [self._control]
            ready = wait([self._lifeline, self._wakeup, *asked])
            if self._lifeline in ready:
                self._kill_all()
                return
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                self._reap()
            if self._control in ready:
                self._answer()

    def _kill_all(self) -> None:
        """End the workers; one whose thread for it cannot run does not hear it by itself."""
        for pid in self._ends:
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._ends:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            end = self._ends.pop(pid, None)
            if end is not None:  # no process that a library has started
                with end:
                    _tell(end, os.waitstatus_to_exitcode(status))

    def _answer(self) -> None:
        message, fds, _, _ = socket.recv_fds(self._control, 16, 2)
        if not message:
            self._retired = True
            return
        connection, end = fds
        for fd in fds:
            os.set_inheritable(fd, False)  # noqa: FBT003
        pid = self._fork(connection, end)
        os.close(connection)
        self._ends[pid] = Connection(end, readable=False)
        _tell(self._ends[pid], pid)
        if pid <= 0:
            self._ends.pop(pid).close()

    def _fork(self, connection: int, end: int) -> int:
        """Make a worker; give its pid, 0 where forking is not safe, or minus the error's number."""
        if sum(1 for _ in _THREADS.iterdir()) > 1:
            return 0
        try:
            pid = os.fork()
        except OSError as error:
            return -(error.errno or 1)
        if pid == 0:
            try:
                self._leave()
                _work(connection, end, self._lifeline)
            finally:
                os._exit(1)  # whatever happens: there must be no second server
        return pid

    def _leave(self) -> None:
        """Let go, in a worker, of what is the server's."""
        signal.set_wakeup_fd(-1)
        self._control.close()
        os.close(self._wakeup)
        os.close(self._wake)
        for end in self._ends.values():
            end.close()


def _tell(end: Connection, number: int) -> None:
    with contextlib.suppress(OSError):  # the parent does not want to know
        end.send_bytes(b"%d" % number)


def work(connection: int, end: int, lifeline: int) -> NoReturn:
    """Be a worker in an interpreter of its own; on Windows the numbers are system handles."""
    if sys.platform == "win32":
        import msvcrt

        lifeline = msvcrt.open_osfhandle(lifeline, os.O_RDONLY)
    else:
        for fd in (connection, end, lifeline):
            os.set_inheritable(fd, False)  # noqa: FBT003
    _work(connection, end, lifeline)


def _work(connection: int, end: int, lifeline: int) -> NoReturn:
    """Run what the parent names over the connection, then leave.

    Args:
        connection: handle of the duplex connection to the parent.
        end: what the parent finds closed once this process has ended.
        lifeline: pipe that closes when the parent dies.
    """
    code = 1
    try:
        _hear_no_interrupts()
        threading.Thread(
            target=_leave_with_parent, args=(lifeline,), name="nbpipe-lifeline", daemon=True
        ).start()
        code = _run(_opened(connection, end))
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)  # nobody else would tell
    finally:
        try:
            _flush()
        finally:
            os._exit(code)


def _run(connection: Any) -> int:
    try:
        order = pickle.loads(connection.recv_bytes())  # noqa: S301  it is our parent's
    except (EOFError, OSError):  # it does not want this worker any more
        return 0
    entry, argument, captured, key, tracker = order
    surroundings.apply(captured)
    current_process().authkey = key  # what a manager of multiprocessing shares is open to us
    handles.share_tracker(tracker)
    surroundings.hold_threads()
    surroundings.seed_item(int.from_bytes(os.urandom(8)))  # a fork would draw as its siblings
    code: object = None
    try:
        _function(entry)(connection, argument)
    except SystemExit as leaving:
        code = leaving.code
    atexit._run_exitfuncs()  # what was registered here: the parent's are in the parent
    return code if isinstance(code, int) else int(code is not None)


def _function(entry: str) -> Callable[[Any, bytes], object]:
    module, _, name = entry.partition(":")
    function: Callable[[Any, bytes], object] = getattr(importlib.import_module(module), name)
    return function


def _opened(handle: int, end: int) -> Any:
    """Open the connection; a process that user code forks here lets go of both."""
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        return PipeConnection(handle)
    connection, ending = Connection(handle), Connection(end, readable=False)
    os.register_at_fork(after_in_child=connection.close)
    os.register_at_fork(after_in_child=ending.close)
    return connection


def _leave_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(1)


def _hear_no_interrupts() -> None:
    """Leave the stop button to the parent; other signals act as in any new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform != "win32":
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or never there
            stream.flush()
