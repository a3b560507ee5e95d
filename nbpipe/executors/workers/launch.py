"""Launch: worker processes and the fork server that makes them: started, waited for, ended."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import current_process
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn, final
from weakref import WeakSet

from ...base.seeding import seed_item
from ...base.threads import THREAD_VARIABLES, ExitCall, hold_library_threads
from ...errors import ArgumentError, WorkerStartError
from .pickling import share_tracker, tracker, working_folder
from .settings import only_texts

METHOD_VARIABLE = "NBPIPE_START_METHOD"
# The exit code of a worker that outlived its fork server, which alone gets its exit code.
UNKNOWN_EXIT = 255
LEAVE_S = 2.0  # a worker that is asked to leave does so within this time, or is killed
# Loaded before the first fork, so that workers share their memory and need no time for them.
_PRELOADED = ("numpy.random", f"{__package__}.launch", f"{__package__}.worker")
_THREADS = Path("/proc/self/task")
_LAST_STANDARD = 2
# Where this nbpipe lies: `sys.path` may have led to it from another working directory.
_ROOT = str(Path(__file__).absolute().parents[2])
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MAPPED_FROM_BYTES = 1 << 25  # the most that it takes
_KEPT_BYTES = 1 << 26


# -- Worker processes as their parent sees them: start them, wait for them, end them ---------------
# On Linux a fork server makes them; it is no copy of this process, so none of its locks, threads or
# files reach a worker. Elsewhere each worker is a fresh interpreter. Nothing starts before the
# first worker is asked for.
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
    if sys.platform == "win32":
        raise WorkerStartError(
            "worker processes must run on Linux or macOS, got Windows, where they were never "
            "tried; use executor='thread' and no isolate=True, or work in WSL"
        )
    start = _start_method()
    key = bytes(current_process().authkey)
    order = pickle.dumps((entry, argument, capture_environment(), key, tracker()))
    try:
        _hold_standard_descriptors()
        worker = start()
    except OSError as error:
        raise not_started(error) from error
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


def not_started(error: OSError) -> WorkerStartError:
    """Return what to raise where files, memory or processes have run out."""
    return WorkerStartError(f"no worker process could be started: {error}")


@final
class Worker:
    """A process that was started here.

    Attributes:
        pid: its process id.
        connection: our end of the connection, duplex.
        status: brings the exit code, or closes when the worker ends.
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
        self.status = status
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
            ended = bool(wait([self.status], timeout_s))
        finally:
            with self._lock:
                self._waiting -= 1
                if ended and self._code is None:
                    self._code = self._read_code()
                if self._code is not None and not self._waiting:
                    self.status.close()
        return self._code

    def _read_code(self) -> int:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(LEAVE_S)
            self._process.kill()  # it closed what its end would have closed
            return self._process.wait()
        try:
            return int(self.status.recv_bytes())
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

    def end(self, timeout_s: float = LEAVE_S) -> str:
        """Wait until the process has left, kill it after `timeout_s`; return how it ended."""
        code = self.wait(timeout_s)
        if code is None:
            self.kill()
            code = self.wait(LEAVE_S)
        return _how_it_ended(code)

    def disown(self) -> None:
        """Let go of it in a process that was forked from the one that started it."""
        for end in (self.connection, self.status):
            with contextlib.suppress(OSError):  # another thread of that process was closing it
                end.close()
        if self._process is not None:
            self._process.returncode = 0  # no warning that it still runs


def _how_it_ended(code: int | None) -> str:
    """Tell in words how a process ended, from its exit code."""
    if code is None:
        return "in an unknown way"
    if code >= 0:
        return f"with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    memory = ", as when memory runs out" if name == "SIGKILL" else ""
    return f"by {name}{memory}"


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


def _start_forked() -> Worker:
    for _ in range(2):
        server = _own.server()
        with contextlib.suppress(EOFError, ConnectionError):  # it was killed since it was used
            return _fork(server)
    raise WorkerStartError(
        f"the fork server ended with exit code {server.wait()} before it made a worker; "
        f"what it wrote to the standard error says why; {METHOD_VARIABLE}=spawn does without it"
    )


def _fork(server: _ForkServer) -> Worker:
    with _pipes() as (connection, theirs, status, end):
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
    with _pipes() as (connection, theirs, status, end), _own.lock:
        process = _start_interpreter("work", theirs.fileno(), end.fileno(), _own.open_lifeline())
        return Worker(process.pid, connection, status, process)


def launch_apart(
    entry: str, *arguments: str, folder: str, environment: dict[str, str], output: int
) -> Worker:
    """Start an interpreter that takes nothing over but the import path.

    It stands in a session of its own, and calls `entry` with its connection and `arguments`. What
    ends it when this process dies is the entry's: its connection closes then.

    Args:
        entry: "package.module:function".
        arguments: texts that are handed to the function.
        folder: its working folder.
        environment: its environment variables, all of them.
        output: file descriptor that its standard output and errors go to.

    Raises:
        WorkerStartError: the process could not be started.
    """
    try:
        _hold_standard_descriptors()
        with _pipes() as (connection, theirs, status, end):
            process = _start_interpreter(
                "work_apart",
                theirs.fileno(),
                end.fileno(),
                options=(entry, *arguments),
                environment=environment,
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            return Worker(process.pid, connection, status, process)
    except OSError as error:
        raise WorkerStartError(f"no Python process could be started: {error}") from error


@contextlib.contextmanager
def _pipes() -> Iterator[tuple[Connection, Connection, Connection, Connection]]:
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


@final
class _ForkServer:
    """The process that forks workers, as its parent sees it; Linux only.

    Attributes:
        with_torch: workers find torch loaded.
    """

    def __init__(self, lifeline: int, *, with_torch: bool) -> None:
        self.with_torch = with_torch
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as opened, theirs:
            opened.enter_context(self._control)
            self._process = _start_interpreter(
                "serve", theirs.fileno(), lifeline, options=(with_torch,)
            )
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
        """Wait for its end; return its exit code."""
        return self._process.wait()

    def retire(self) -> None:
        """Ask for no more workers; it ends with its last one."""
        self._control.close()

    def disown(self) -> None:
        """Forget it: it ends by itself, or belongs to another process."""
        self.retire()
        self._process.returncode = 0  # no warning that it still runs


@final
class _Own:
    """What this process has started.

    Attributes:
        lock: held while anything else here changes.
        lifeline: both ends of a pipe; workers leave when nothing holds its writing end.
        servers: fork servers; all but the last make no more workers.
        workers: those that are still in use.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lifeline: tuple[int, int] | None = None
        self.servers: list[_ForkServer] = []
        self.workers: WeakSet[Worker] = WeakSet()

    def open_lifeline(self) -> int:
        """Return the reading end of the lifeline."""
        if self.lifeline is None:
            self.lifeline = os.pipe()
        return self.lifeline[0]

    def close_lifeline(self) -> None:
        """Have every worker leave."""
        for fd in self.lifeline or ():
            os.close(fd)
        self.lifeline = None

    def server(self) -> _ForkServer:
        """Return the fork server; a new one where it was killed, or torch was loaded since.

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
            self.servers.append(_ForkServer(self.open_lifeline(), with_torch=with_torch))
            return self.servers[-1]

    def disown_servers(self) -> None:
        """Let go of the fork servers."""
        for server in self.servers:
            server.disown()
        self.servers.clear()

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
# As the interpreter ends nothing else is ended: what acts then may still wait for workers. The
# system closes the lifeline when this process is gone.
ExitCall(lambda _: _own.disown_servers()).register()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own.disown)


# -- Interpreters that run one function of this file: the fork server, or one worker ---------------
# They never run the user's script.
def _start_interpreter(
    function: str,
    *fds: int,
    options: tuple[bool | str, ...] = (),
    environment: dict[str, str] | None = None,
    **more: Any,
) -> subprocess.Popen[bytes]:
    """Start an interpreter that calls a function of this file; its standard input is empty.

    Interrupts wait until that function ignores them.

    Args:
        function: its name.
        fds: file descriptors that it gets, its first arguments.
        options: its other arguments.
        environment: its environment variables; None: those of this process, one thread a library.
        more: further arguments of `Popen`.

    Raises:
        OSError: it could not be started.
    """
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable or "python", *flags, "-c", _code(function, (*fds, *options))]
    usual = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    with _interrupts_held():
        return subprocess.Popen(  # noqa: S603  it runs nbpipe
            command,
            stdin=subprocess.DEVNULL,
            env=usual if environment is None else environment,
            pass_fds=fds,
            **more,
        )


def _code(function: str, arguments: tuple[int | str, ...]) -> str:
    """Write the program; the path comes first, for it may be what leads to nbpipe."""
    lines = (
        "import sys",
        f"sys.path[:] = {only_texts([*sys.path, _ROOT])!a}",
        f"from {__package__}.launch import {function}",
        f"{function}{arguments!a}",
    )
    return "; ".join(lines)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Have a process start with interrupts blocked: the stop button must not end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hold_standard_descriptors() -> None:
    """Open what a daemon closed: a pipe under number 0, 1 or 2 would be taken for its stream."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        pass
    os.close(fd)


# -- What a worker process takes over from its parent ----------------------------------------------
# The folder, the import path, the environment, the command line and the levels of loggers are the
# parent's at the moment the worker starts. A worker's libraries get one thread each: the workers
# are the parallelism.
def capture_environment() -> bytes:
    """Return this process's folder, import path, environment, command line and log levels."""
    noted = {
        "folder": working_folder() or None,
        "path": only_texts(sys.path),
        "environment": dict(os.environ),
        "arguments": only_texts(sys.argv),
        "levels": _log_levels(),
        "disabled_level": logging.root.manager.disable,
    }
    return json.dumps(noted).encode("ascii")


def apply_environment(data: bytes) -> None:
    """Take over what the parent has captured; a folder that is gone is left out."""
    noted = json.loads(data)
    if noted["folder"] is not None:
        with contextlib.suppress(OSError):
            os.chdir(noted["folder"])
    sys.path[:] = noted["path"]
    importlib.invalidate_caches()  # modules may have been written since this process looked
    sys.argv[:] = noted["arguments"]
    for name, level in noted["levels"].items():
        logging.getLogger(name).setLevel(level)
    logging.disable(noted["disabled_level"])
    _keep_freed_memory()
    _set_environment(noted["environment"] | dict.fromkeys(THREAD_VARIABLES, "1"))


def _log_levels() -> dict[str, int]:
    """Return the levels of the loggers that have one, that of the root among them."""
    loggers = (logging.root, *list(logging.root.manager.loggerDict.values()))
    return {one.name: one.level for one in loggers if isinstance(one, logging.Logger) and one.level}


def _set_environment(wanted: dict[str, str]) -> None:
    """Change what differs: setting a variable is a call into the C library."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _keep_freed_memory() -> None:
    """Have the C library keep what an item frees for the next one.

    By default it gives large arrays back to the system, and fresh pages cost more than filling
    them: for 4 MB about twice as much.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library than GNU's
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


# -- The fork server, in its own process -----------------------------------------------------------
# It has one thread for all its life: a fork copies no lock that another thread holds.
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
    for name in (*_PRELOADED, *["torch"] * with_torch):
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
        """Return the pid of a new worker, 0 where a fork is unsafe, or minus the error's number."""
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
        """Release, in a worker, the objects of the server."""
        signal.set_wakeup_fd(-1)
        self._control.close()
        os.close(self._wakeup)
        os.close(self._wake)
        for end in self._ends.values():
            end.close()


def _tell(end: Connection, number: int) -> None:
    with contextlib.suppress(OSError):  # the parent does not want to know
        end.send_bytes(b"%d" % number)


# -- A worker process before its work begins -------------------------------------------------------
def work(connection: int, end: int, lifeline: int) -> NoReturn:
    """Be a worker in an interpreter of its own."""
    for fd in (connection, end, lifeline):
        os.set_inheritable(fd, False)  # noqa: FBT003
    _work(connection, end, lifeline)


def work_apart(connection: int, end: int, entry: str, *arguments: str) -> NoReturn:
    """Be an interpreter that `launch_apart` started; the entry ends it, or returns."""
    for fd in (connection, end):
        os.set_inheritable(fd, False)  # noqa: FBT003
    _hear_no_interrupts()
    call: Callable[..., object] = _function(entry)
    call(_connection(connection, end), *arguments)
    sys.exit()


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
        code = _run(_connection(connection, end))
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)  # nothing else would print it
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
    entry, argument, captured, key, held = order
    apply_environment(captured)
    current_process().authkey = key  # what a manager of multiprocessing shares is open to us
    share_tracker(held)
    hold_library_threads()
    seed_item(int.from_bytes(os.urandom(8)))  # a fork would draw as its siblings
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


def _connection(handle: int, end: int) -> Any:
    """Open the connection; a process that user code forks here lets go of both."""
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
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or never there
            stream.flush()
