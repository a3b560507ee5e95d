"""Inside a fresh process: statements are executed, or a module is imported, under watch."""

from __future__ import annotations
import __future__

import atexit
import contextlib
import ctypes
import importlib
import importlib.util
import ipaddress
import json
import linecache
import os
import shutil
import signal
import site
import socket
import sys
import sysconfig
import threading
import time
import traceback
import types
import warnings
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, final

import psutil

from .fingerprint import json_fingerprint
from .fresh import SIGNALLED, chain_prints, error_line, error_words, first_items

# -- The process: on Linux a child answers, and its parent ends all that the child has started -----
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


def main(connection: Connection, folder: str, *modules: str) -> NoReturn:
    """Answer one question, and end.

    On Linux the answer is made in a fork, which is made before anything else was imported. What
    that starts is ours when its parent ends. All of it ends with the answer, and when the notebook
    closes its end of the connection.

    Args:
        connection: brings the question, takes the answer.
        folder: of this process; it is removed.
        modules: to import ahead.
    """
    if sys.platform != "linux":
        _answer(connection, connection, folder, modules)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    asked, ask = Pipe(duplex=False)
    ended, alive = Pipe(duplex=False)
    answers = os.dup(connection.fileno())  # a fork closes the connection itself
    with warnings.catch_warnings():  # of threads: those of numpy's library stand a fork
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        for one in (ask, ended):
            one.close()
        os.register_at_fork(after_in_child=alive.close)
        _answer(asked, Connection(answers), folder, modules)
    for one in (asked, alive):
        one.close()
    with contextlib.suppress(EOFError, OSError):  # the other side is gone
        while connection in wait([connection, ended]):
            ask.send_bytes(connection.recv_bytes())
    code = end_children(pid)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(code if code >= 0 else SIGNALLED - code)


def end_children(pid: int) -> int:
    """End all children, and what becomes one as its parent ends; return the exit code of one."""
    code = 0
    with contextlib.suppress(ChildProcessError):  # there are no more
        while True:
            for child in psutil.Process().children():
                child.kill()
            ended, status = os.waitpid(-1, 0)
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
    return code


def _answer(
    questions: Connection, answers: Connection, folder: str, modules: Sequence[str]
) -> NoReturn:
    """Answer a question, and end the process, whatever threads still run."""
    code = 1
    try:
        os.register_at_fork(after_in_child=answers.close)
        for name in modules:
            with contextlib.suppress(Exception):  # the statement that imports it says why
                importlib.import_module(name)
        answers.send_bytes(b'{"phase": "ready"}')
        question = json.loads(questions.recv_bytes())
        if sys.platform != "linux":
            threading.Thread(target=_end_with, args=(questions,), daemon=True).start()
        asked = _Asked(question, answers, Path(folder))
        asked.answer()
        asked.send(phase="done")
        code = 0
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  of the answer, or of what libraries do at the exit
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_with(connection: Connection) -> None:
    """End this process and its group when the notebook closes its end of the connection."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv_bytes()
    os.killpg(0, signal.SIGKILL)


@final
class _Asked:
    """A question, and the pipe that its answer takes."""

    def __init__(self, question: dict[str, Any], answers: Connection, folder: Path) -> None:
        self._question, self._answers = question, answers
        self._folder = folder
        self._watch = _Watch(folder, question["cwd"])
        self._pid = os.getpid()

    def send(self, **line: object) -> None:
        """Answer a line; a process that user code forked off answers nothing."""
        if os.getpid() != self._pid:
            os._exit(0)
        self._answers.send_bytes(json.dumps(line).encode("ascii"))

    def answer(self) -> None:
        """Execute the statements in a module, and build the pipeline that they give."""
        asked = self._question
        sys.path[:] = asked["paths"]
        importlib.invalidate_caches()
        module = self._module(asked["name"], asked["file"])
        space = vars(module)
        space.update(asked["parameters"])
        failed = False
        for number, step in enumerate(asked["steps"], start=1):
            self.send(phase="step")
            file = self._folder / f"statement_{number}.py"
            result = self._executed(self._path or file, step, space)
            self.send(step=result)
            failed = bool(result["error"])
            if failed:
                break
        if self._path:
            os.chdir(asked["cwd"])
        absent = [name for name, text in asked["modules"].items() if _lacks(text, space)]
        self.send(absent=absent)
        if absent or failed:
            return
        self.send(phase="build")
        prints = _prints(asked["names"], space)
        self.send(prints=prints)
        try:
            moved = self._build(space)
        except BaseException as error:  # noqa: BLE001  whatever user code raises
            self.send(goal=_failed(error, self._path))
            return
        if asked["count"]:
            after = {name: json_fingerprint(space.get(name)) for name in prints}
            moved.update({name: one for name, one in after.items() if one != prints[name]})
            self.send(moved=moved)

    def _module(self, name: str, file: str) -> types.ModuleType:
        """Make the module: one that is imported is in an empty folder, any other is the program."""
        self._path: Path | None = None
        if name == "__main__":
            os.chdir(self._question["cwd"])
            module = types.ModuleType(name)
        else:
            self._path = self._folder / "module" / f"{name}.py"
            sys.path.insert(0, str(self._path.parent))
            empty = self._folder / "empty"
            empty.mkdir()
            os.chdir(empty)
            spec = importlib.util.spec_from_file_location(name, self._path)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.argv[:] = [file]
        if file:
            module.__file__ = file
        return module

    def _executed(self, file: Path, step: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
        """Execute one statement; return its result."""
        text: str = step["text"]
        flags = __future__.annotations.compiler_flag if self._question["future"] else 0
        error: BaseException | None = None
        before = _prints(step["watch"], space)
        began_s = time.perf_counter()
        try:
            file.write_bytes(text.encode("utf-8"))  # for `inspect`, and for compilers that read it
            code = compile(text, str(file), "exec", flags, dont_inherit=True)
            with self._watch.watching():
                exec(code, space)  # noqa: S102  that is what it is for
        except BaseException as raised:  # noqa: BLE001  whatever user code raises
            error = raised
        return {
            **_failed(error, file),
            "connects": self._watch.connects,
            "reads": sorted(self._watch.reads),
            "seconds": time.perf_counter() - began_s,
            "idle": bool(before) and before == _prints(step["watch"], space),
        }

    def _build(self, space: dict[str, Any]) -> dict[str, Any]:
        """Build the pipeline, and answer what it is and its first items.

        Returns:
            By "stage word" the fingerprints of the arguments that these items have changed.
        """
        asked = self._question
        pipe = eval(asked["goal"], space)  # noqa: S307  the user's own text
        pipe = pipe if hasattr(pipe, "chain") else pipe.pipeline
        for line in asked["below"]:
            exec(f"pipe{line}", {**asked["parameters"], "pipe": pipe})  # noqa: S102  as above
        before = chain_prints(pipe.chain)
        self.send(chain=before)
        if not asked["count"]:
            return {}
        self.send(phase="items")
        items, raised = first_items(lambda: iter(pipe), asked["count"])
        self.send(items=items, raised=raised)
        pairs = zip(before, chain_prints(pipe.chain), strict=True)
        return {
            f"{row['name']} {word}": value
            for row, after in pairs
            for word, value in after["spec"].items()
            if value != row["spec"][word]
        }


def _failed(error: BaseException | None, file: Path | None) -> dict[str, Any]:
    """Return what was raised, the line of a file that it came from, and a name that was missing."""
    if error is None:
        return {"error": ""}
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, NameError):
        cause = cause.__cause__
    line = error_line(error, str(file))
    return {
        "error": error_words(error),
        "line": line,
        "text": linecache.getline(str(file), line or 0).strip(),
        "missing": getattr(cause, "name", None) or "",
    }


def _lacks(text: str, space: dict[str, Any]) -> bool:
    """Return whether a package has no such module yet."""
    root, _, names = text.partition(".")
    with contextlib.suppress(AttributeError):
        return root in space and attrgetter(names)(space[root]) is None
    return True


def _prints(names: Iterable[str], space: dict[str, Any]) -> dict[str, Any]:
    """Return the fingerprints of variables that are there."""
    return {name: json_fingerprint(space[name]) for name in names if name in space}


# -- Watch: what statements look into, and where they connect to -----------------------------------
_LISTINGS = frozenset(("os.listdir", "os.scandir", "glob.glob"))
_LOOKS = _LISTINGS | {"open", "sqlite3.connect"}  # of `sys.audit`
_CONNECTIONS = frozenset(("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"))
_CODE = (".py", ".pyc", ".pyi", ".so", ".dylib", ".pth", "__pycache__")


@final
class _Watch:
    """Notes the files and folders that code looks into; imports do not count.

    Args:
        folder: of this process.
        cwd: the notebook's working folder.

    Attributes:
        reads: what it looked into since it was last watched.
        connects: it wanted to connect to another host.
    """

    def __init__(self, folder: Path, cwd: str) -> None:
        self.reads: set[str] = set()
        self.connects = False
        self._cwd = cwd
        self._none = _no_data(str(folder))
        self._on = False
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note what happens in a `with` block, and refuse connections."""
        self.reads, self.connects, self._on = set(), False, True
        try:
            yield
        finally:
            self._on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event in _CONNECTIONS and _leaves(event, arguments):
            self.connects = True
            raise ConnectionRefusedError("export refuses connections to other hosts")
        if event in _LOOKS:
            with contextlib.suppress(Exception):  # it is no path
                self._note(event, arguments[0])

    def _note(self, event: str, given: Any) -> None:
        if not isinstance(given, str | bytes | os.PathLike | None):
            return
        path = os.path.abspath(os.fsdecode(given or "."))  # noqa: PTH100  no link is followed
        if f"{path}/".startswith(self._none) or path.endswith(_CODE):
            return
        searched = event in _LISTINGS and path in sys.path and path != self._cwd
        if not searched and not _is_import():
            self.reads.add(path)


def _no_data(own: str) -> tuple[str, ...]:
    """Return the folders that hold no data of the user's, with a slash at their ends."""
    paths = [*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()]
    paths += [sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(__file__).parents[1]), own]
    caches = ("~/.cache", "~/.config", "~/Library/Caches", "$XDG_CACHE_HOME", "$XDG_CONFIG_HOME")
    paths += [os.path.expanduser(os.path.expandvars(name)) for name in caches]  # noqa: PTH111
    paths += ["/proc", "/sys", "/dev", "/etc", "/usr"]
    return tuple({f"{path.rstrip('/')}/" for path in paths} - {"/"})


def _is_import() -> bool:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _leaves(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether code is about to connect to another host, or to ask for its address."""
    host = arguments[0]
    if event == "socket.connect":
        families = (socket.AF_INET, socket.AF_INET6)
        if host.family not in families or host.type != socket.SOCK_STREAM:
            return False
        host = arguments[1][0]
    host = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if not host or host in ("localhost", socket.gethostname()):
        return False
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return True
    own = {one.address for found in psutil.net_if_addrs().values() for one in found}
    return not (address.is_loopback or address.is_unspecified or str(address) in own)
