"""Worker processes as their parent sees them: start them, wait for them, end them.

On Linux a fork server makes them; it is no copy of this process, so none of its locks, threads
or files reach a worker. Elsewhere each worker is a fresh interpreter. Nothing starts before the
first worker is asked for.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import current_process
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, final
from weakref import WeakSet

from ..errors import ArgumentError, WorkerStartError
from ..exit_call import ExitCall
from . import handles, surroundings
from .spawn import ForkServer, handle_of, hold_standard_descriptors, start_interpreter

METHOD_VARIABLE = "NBPIPE_START_METHOD"
# The exit code of a worker that outlived its fork server, which alone is told.
UNKNOWN_EXIT = 255


@final
class Worker:
    """A process that was started here.

    Attributes:
        pid: its process id.
        connection: our end of the connection, duplex.
    """

    def __init__(
        self,
        pid: int,
        connection: Connection,
        status: Connection,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.pid = pid
        self.connection = connection
        self._status = status  # brings the exit code, or closes when the worker ends
        self._process = process  # None: it is the fork server's child
        self._lock = threading.Lock()
        self._waiting = 0
        self._code: int | None = None
        self._killed = False
        _own.workers.add(self)

    def wait(self, timeout_s: float | None) -> int | None:
        """Wait for the end of the process, at most `timeout_s`; None: as long as it takes.

        Returns:
            Its exit code, negative for a signal, `UNKNOWN_EXIT` where the fork server was killed
            before; None: the process is still alive.
        """
        with self._lock:
            if self._code is not None:
                return self._code
            self._waiting += 1
        ended = False
        try:
            ended = bool(wait([self._sentinel()], timeout_s))
        finally:
            with self._lock:
                self._waiting -= 1
                if ended and self._code is None:
                    self._code = self._read_code()
                if self._code is not None and not self._waiting:
                    self._status.close()
        return self._code

    def _sentinel(self) -> Any:
        if sys.platform == "win32":
            assert self._process is not None
            return int(self._process._handle)
        return self._status

    def _read_code(self) -> int:
        if self._process is not None:
            return self._process.wait()
        try:
            return int(self._status.recv_bytes())
        except (EOFError, OSError):  # the server ended first
            return -signal.SIGKILL if self._killed else UNKNOWN_EXIT

    def kill(self) -> None:
        """End the process at once; nothing happens if it has ended."""
        if self._process is not None:
            self._process.kill()
        elif self.wait(0) is None:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close our end of the connection: the worker finds that out, and leaves."""
        self.connection.close()

    def disown(self) -> None:
        """Let go of it in a process that was forked from the one that started it."""
        self.connection.close()
        self._status.close()
        if self._process is not None:
            self._process.returncode = 0  # no warning that it still runs


@final
class _Own:
    """What this process has started.

    Attributes:
        lock: held while anything else here changes.
        lifeline: both ends of a pipe; workers leave when nobody holds its writing end.
        servers: fork servers; all but the last make no more workers.
        workers: those that somebody still holds.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lifeline: tuple[int, int] | None = None
        self.servers: list[ForkServer] = []
        self.workers: WeakSet[Worker] = WeakSet()

    def open_lifeline(self) -> int:
        """Give the reading end of the lifeline."""
        if self.lifeline is None:
            self.lifeline = os.pipe()
        return self.lifeline[0]

    def close_lifeline(self) -> None:
        """Have every worker leave."""
        for fd in self.lifeline or ():
            os.close(fd)
        self.lifeline = None

    def server(self) -> ForkServer:
        """Give the fork server; a new one where it was killed, or torch was loaded since.

        Each worker would load torch by itself otherwise: seconds, and 150 MB.
        """
        with self.lock:
            with_torch = "torch" in sys.modules
            if self.servers:
                latest = self.servers[-1]
                if latest.alive and latest.with_torch >= with_torch:
                    return latest
                latest.retire()
            self.servers = [server for server in self.servers if server.alive]
            self.servers.append(ForkServer(self.open_lifeline(), with_torch=with_torch))
            return self.servers[-1]

    def disown_servers(self) -> None:
        """Let go of the fork servers."""
        for server in self.servers:
            server.disown()
        self.servers.clear()

    def end(self) -> None:
        """Hear that the interpreter ends.

        Nothing is ended here: what else acts then may still wait for workers. The system closes
        the lifeline when this process is gone.
        """
        self.disown_servers()

    def disown(self) -> None:
        """Let go of everything in a forked process: it is the parent's.

        What stayed open here would hide from workers that the parent has closed it, or died.
        """
        self.lock = threading.Lock()  # a thread that is not here may hold the other one
        self.disown_servers()
        for worker in tuple(self.workers):
            worker.disown()
        self.workers.clear()
        self.close_lifeline()


_own = _Own()
ExitCall(lambda _: _own.end()).register()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own.disown)


def launch(entry: str, argument: bytes) -> Worker:
    """Start a worker process that calls `entry` with its connection and `argument`.

    It takes over the folder, import path and environment that are this process's now, never the
    user's script. It ignores interrupts, and it leaves at once when this process dies.

    Args:
        entry: "package.module:function".
        argument: handed to the function.

    Raises:
        WorkerStartError: the process could not be started.
        ArgumentError: NBPIPE_START_METHOD names no way to start one.
    """
    start = _start_method()
    key = bytes(current_process().authkey)
    order = pickle.dumps((entry, argument, surroundings.capture(), key, handles.tracker()))
    try:
        hold_standard_descriptors()
        worker = start()
    except OSError as error:  # files, memory or processes have run out
        raise WorkerStartError(f"no worker process could be started: {error}") from error
    try:
        worker.connection.send_bytes(order)
    except OSError as error:
        worker.close()
        raise WorkerStartError(
            f"a worker process ended with exit code {worker.wait(None)} before it began; "
            "what it wrote to the standard error says why"
        ) from error
    except BaseException:  # interrupted
        worker.close()
        raise
    return worker


def _start_method() -> Callable[[], Worker]:
    methods = {"spawn": _start_fresh}
    if sys.platform == "linux":
        methods = {"forkserver": _start_forked, **methods}
    usual = next(iter(methods))
    name = os.environ.get(METHOD_VARIABLE) or usual
    if name not in methods:
        raise ArgumentError(
            f"{METHOD_VARIABLE} must be {' or '.join(map(repr, methods))} on this system, "
            f"got {name!r}; without it, {usual!r} is used"
        )
    return methods[name]


@contextlib.contextmanager
def _opened() -> Iterator[tuple[Connection, Connection, Connection, Connection]]:
    """Open a connection and a status pipe, as ours, theirs, ours, theirs.

    Their ends close in any case, ours when the worker could not be started.
    """
    with contextlib.ExitStack() as stack:
        ends = (*Pipe(), *Pipe(duplex=False))
        for end in ends:
            stack.enter_context(end)
        yield ends
        stack.pop_all()
        ends[1].close()
        ends[3].close()


def _start_forked() -> Worker:
    for _ in range(2):
        server = _own.server()
        with contextlib.suppress(EOFError, ConnectionError):  # it was killed since it was used
            return _fork(server)
    raise WorkerStartError(
        f"the fork server ended with exit code {server.wait()} before it made a worker; "
        f"what it wrote to the standard error says why; {METHOD_VARIABLE}=spawn does without it"
    )


def _fork(server: ForkServer) -> Worker:
    with _opened() as (connection, theirs, status, end):
        server.ask(theirs.fileno(), end.fileno())
        end.close()
        pid = int(status.recv_bytes())
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        if pid:
            return Worker(pid, connection, status)
        connection.close()
        status.close()
    return _start_fresh()  # a module that the server loaded has started a thread


def _start_fresh() -> Worker:
    with _opened() as (connection, theirs, status, end), _own.lock:
        handles = [theirs.fileno(), end.fileno(), handle_of(_own.open_lifeline())]
        process = start_interpreter("work", *handles, handles=handles)
        return Worker(process.pid, connection, status, process)


def stop_server() -> None:
    """End the fork server and every worker that is still alive; both start again when needed."""
    with _own.lock:
        _own.close_lifeline()
        for server in _own.servers:
            server.retire()
            server.wait()
        _own.servers.clear()


def held_files() -> tuple[int, ...]:
    """Give the descriptors that this process holds until `stop_server`, workers or none."""
    with _own.lock:
        return (*(_own.lifeline or ()), *(server.file for server in _own.servers))
