"""Fresh: a Python process that has run nothing of the notebook, asked one question.

Its answers come over a pipe of their own, one JSON value a line: what user code prints goes
elsewhere. It has no threads here: the asking thread waits for all pipes at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self, final

import psutil

from ..errors import ExportError
from ..text import shortened
from .secrets import scrubbed

Ending = Literal["answered", "died", "late"]

_OUTPUT_BYTES = 1 << 11  # what is kept of what it printed
_READ_BYTES = 1 << 16
_SHOWN_LINES = 5
_SHOWN = 200  # characters of each
STARTS_S = 60.0  # to start, to import nbpipe and, where a module is asked for, to import it
_GRACE_S = 5.0  # for what libraries do at its exit
# Where this nbpipe lies: `sys.path` may have led to it from another working directory.
_ROOT = str(Path(__file__).absolute().parents[2])
MARK = "NBPIPE_CHECK"
_SEED = "PYTHONHASHSEED"
_QUIET = 2  # looks in a row that find nothing to end
_LOOK_S = 0.005  # between two looks [s]
_LOOKS_S = 3.0  # for all of them [s]
_IN, _OUT, _ANSWER = "request", "output", "answer"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the notebook runs.

    Attributes:
        cwd: its working folder.
        paths: its `sys.path`, the folders absolute.
    """

    cwd: str
    paths: tuple[str, ...]

    @classmethod
    def here(cls) -> Self:
        """Take those of this process.

        Raises:
            ExportError: the working folder was deleted.
        """
        try:
            cwd = str(Path.cwd())
        except OSError as error:
            raise ExportError(
                "the working folder of the notebook was deleted; change to one that exists with "
                "os.chdir(...)"
            ) from error
        entries: list[object] = list(sys.path)
        texts = [entry for entry in entries if isinstance(entry, str)]
        return cls(cwd, tuple(str(Path(cwd, entry)) for entry in texts))


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question.

    Attributes:
        lines: the JSON values that were answered, in order.
        ending: "answered" where the whole answer is there, "died" where the process ended
            before, "late" where it was ended at its time limit.
        words: how it ended, as "ended with exit code 3"; empty where it answered.
        output: the last of what user code printed.
    """

    lines: tuple[Any, ...]
    ending: Ending
    words: str
    output: str

    def explained(self) -> str:
        """Give `words`, and below the last lines that were printed, without secrets."""
        lines = [line for line in scrubbed(self.output).splitlines() if line.strip()]
        last = [shortened(line, _SHOWN) for line in lines[-_SHOWN_LINES:]]
        return "\n  ".join([self.words, *last])


def ask(
    task: str,
    request: Mapping[str, Any],
    where: Surroundings,
    *,
    limits_s: Mapping[str, float],
    files: Mapping[str, bytes] | None = None,
    seed: int = 0,
) -> Answer:
    """Have a fresh process do a task of `probe`; nothing is left of it afterwards.

    Args:
        task: name of the task.
        request: what it is given, as JSON.
        where: import path and working folder; the environment is this process's.
        limits_s: how long each step may take [s], by the name that the task announces; "" is
            the first.
        files: what to find in the folder that the task is given, by name.
        seed: of its hashes, which the order of a set depends on; the user's own goes first.

    Raises:
        ExportError: no Python can be started here.
    """
    executable = _executable()
    with temporary_folder() as folder:
        empty, module = Path(folder, "empty"), Path(folder, "module")
        empty.mkdir()
        module.mkdir()
        for name, data in (files or {}).items():
            (module / name).write_bytes(data)
        whole = {
            "task": task,
            "request": dict(request),
            "paths": [*where.paths, _ROOT],
            "cwd": where.cwd,
            "litter": folder,
            "folder": str(module),
        }
        request_line = json.dumps(whole).encode("ascii") + b"\n"
        with _Child(executable, str(empty), request_line, seed) as child:
            return child.listen(limits_s)


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Make a folder, and remove it whatever happens, with all that is in it.

    Raises:
        ExportError: none can be made.
    """
    try:
        folder = TemporaryDirectory(prefix="nbpipe-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ExportError(
            f"export needs a temporary folder for its check, and none can be made ({error}); set "
            "TMPDIR to a folder that can be written"
        ) from error
    try:
        yield folder.name
    finally:
        try:
            folder.cleanup()
        except BaseException:  # an interrupt came meanwhile, and it would not begin again
            shutil.rmtree(folder.name, ignore_errors=True)
            raise


def _executable() -> str:
    """Give the Python to start.

    Raises:
        ExportError: this interpreter does not know where it lies.
    """
    if sys.platform == "win32":
        raise ExportError("export cannot start its check on Windows yet; use it under WSL")
    if not sys.executable or not os.access(sys.executable, os.X_OK):
        raise ExportError(
            "export checks the module in a fresh Python process, and needs sys.executable to be "
            f"the path of a Python interpreter, got {sys.executable!r}; set it before exporting"
        )
    return sys.executable


def _command(executable: str, answers: int) -> list[str]:
    """Write the command line; what it is asked, paths included, comes over its input."""
    private: Any = subprocess
    program = (
        "import json, sys",
        "given = json.loads(sys.stdin.buffer.readline())",
        "sys.path[:] = given['paths']",
        f"from {__package__}.probe import main",
        f"main(given, {answers})",
    )
    return [executable, *private._args_from_interpreter_flags(), "-c", "; ".join(program)]


def _environment(mark: str, seed: int) -> dict[str, str]:
    """Give this process's environment, with no windows opened, and a mark that is inherited."""
    ours = {"MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1", MARK: mark}
    return os.environ | ours | ({} if has_own_seed() else {_SEED: str(seed)})


def has_own_seed() -> bool:
    """Say whether the user fixed the seed of hashes: all processes have the same then."""
    return os.environ.get(_SEED, "random") != "random"


def end_marked(mark: str, since_s: float) -> None:
    """End all other processes that inherited a mark.

    One that is ended, or ends, may just have started another: this looks until nothing of the
    kind is seen any more, for some seconds at most.

    Args:
        mark: value of the environment's `MARK`.
        since_s: when the first of them may have begun [s since 1970].
    """
    end_s = time.monotonic() + _LOOKS_S
    quiet = 0
    while quiet < _QUIET and time.monotonic() < end_s:
        quiet = quiet + 1 if _is_quiet(mark, since_s) else 0
        time.sleep(_LOOK_S)


def _is_quiet(mark: str, since_s: float) -> bool:
    """End the marked processes of now; tell whether there was none, nor any that slipped by."""
    quiet = True
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.create_time() < since_s - 1:
                continue
            environ = process.environ()
            if environ.get(MARK) == mark:
                process.kill()
                quiet = False
            elif not environ and process.exe():  # in the midst of an `exec`: the next look knows
                quiet = False
        except psutil.ZombieProcess:
            continue
        except psutil.NoSuchProcess:
            quiet = False
        except (psutil.Error, OSError):  # another user's
            continue
    return quiet


@final
class _Child:
    """The process and its three pipes; leaving the `with` block ends it and its children.

    Its input stays open while it is needed: it ends by itself once that closes.
    """

    def __init__(self, executable: str, folder: str, request: bytes, seed: int) -> None:
        self._request = memoryview(request)
        self._output = bytearray()
        self._answer = bytearray()
        self._lines: list[Any] = []
        self._mark = secrets.token_hex()
        self._since_s = time.time()
        self._killed = False
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            stdin, self._stdin = _pipe(theirs, ours)
            self._stdout, stdout = _pipe(ours, theirs)
            self._answers, answers = _pipe(ours, theirs)
            self._process = subprocess.Popen(  # noqa: S603  it runs nbpipe
                _command(executable, answers),
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_environment(self._mark, seed),
                pass_fds=(answers,),
                start_new_session=True,  # an interrupt is for the notebook: it ends this
            )
            ours.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._kill()
        finally:  # if an interrupt came meanwhile, the end of its input ends it
            for fd in (self._stdin, self._stdout, self._answers):
                os.close(fd)

    def listen(self, limits_s: Mapping[str, float]) -> Answer:
        """Hear it out, until the answer is whole, it ends, or a step takes too long."""
        with selectors.DefaultSelector() as selector:
            for fd, events, name in (
                (self._stdin, selectors.EVENT_WRITE, _IN),
                (self._stdout, selectors.EVENT_READ, _OUT),
                (self._answers, selectors.EVENT_READ, _ANSWER),
            ):
                os.set_blocking(fd, False)
                selector.register(fd, events, name)
            ending, step = self._hear(selector, limits_s)
            if ending == "answered":
                self._let_exit(selector)
        if ending == "died":
            self._await_end()
        self._kill()
        self._read_output()
        words = "" if ending == "answered" else self._words(ending, limits_s.get(step, 0.0))
        return Answer(tuple(self._lines), ending, words, self._printed())

    def _printed(self) -> str:
        """Give the last of the output; half a line could hold half a secret, not known as one."""
        whole = self._output
        if len(whole) >= _OUTPUT_BYTES:
            whole = whole.partition(b"\n")[2]
        return whole.decode("utf-8", errors="replace")

    def _hear(
        self, selector: selectors.BaseSelector, limits_s: Mapping[str, float]
    ) -> tuple[Ending, str]:
        """Serve the pipes; give how it ended, and the step it was in."""
        step, start = "", time.monotonic()
        while (left_s := start + limits_s[step] - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                if key.data == _ANSWER:
                    for line in self._read_answer(selector):
                        if line == {"done": True}:
                            return "answered", step
                        if isinstance(line, dict) and "step" in line:
                            step, start = line["step"], time.monotonic()
                        self._lines.append(line)
                    if not self._is_heard(selector, self._answers):
                        return "died", step
                else:
                    self._serve(selector, key.data)
        return "late", step

    @staticmethod
    def _is_heard(selector: selectors.BaseSelector, fd: int) -> bool:
        return fd in selector.get_map()

    def _serve(self, selector: selectors.BaseSelector, name: str) -> None:
        if name == _OUT:
            if not self._read_output():
                selector.unregister(self._stdout)
        elif not self._write_request():
            selector.unregister(self._stdin)

    def _write_request(self) -> bool:
        """Send some of the request; say whether there is more."""
        try:
            sent = os.write(self._stdin, self._request[:_READ_BYTES])
        except BlockingIOError:
            return True
        except OSError:  # it ended: the answer says so
            return False
        self._request = self._request[sent:]
        return len(self._request) > 0

    def _read_output(self) -> bool:
        """Read some output and keep the last of it; say whether there may be more."""
        chunk = _read(self._stdout)
        if chunk is None:
            return True
        self._output += chunk
        del self._output[:-_OUTPUT_BYTES]
        return bool(chunk)

    def _read_answer(self, selector: selectors.BaseSelector) -> Iterator[Any]:
        chunk = _read(self._answers)
        if chunk is None:
            return
        if not chunk:
            selector.unregister(self._answers)
            return
        self._answer += chunk
        *whole, rest = self._answer.split(b"\n")
        self._answer = bytearray(rest)
        yield from map(json.loads, whole)

    def _let_exit(self, selector: selectors.BaseSelector) -> None:
        """Give libraries the time to clear up; the pipe for answers closes with the process."""
        end = time.monotonic() + _GRACE_S
        while (left_s := end - time.monotonic()) > 0 and self._is_heard(selector, self._answers):
            for key, _ in selector.select(left_s):
                if key.data == _ANSWER:
                    list(self._read_answer(selector))
                else:
                    self._serve(selector, key.data)

    def _await_end(self) -> None:
        """Learn how it ended: its end closed the pipe, or its own code did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)

    def _kill(self) -> None:
        """End it, and whatever it started: some may have left its process group."""
        if self._killed:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        end_marked(self._mark, self._since_s)
        self._killed = True

    def _words(self, ending: Ending, limit_s: float) -> str:
        if ending == "late":
            return f"took longer than {limit_s:g} s"
        code = self._process.returncode
        if code is None or code >= 0:
            return f"ended its process with exit code {code}"
        return f"ended its process: {signal.strsignal(-code)} ({signal.Signals(-code).name})"


def _pipe(reads: contextlib.ExitStack, writes: contextlib.ExitStack) -> tuple[int, int]:
    """Open a pipe; each end is closed with whose it is."""
    ends = os.pipe()
    reads.callback(os.close, ends[0])
    writes.callback(os.close, ends[1])
    return ends


def _read(fd: int) -> bytes | None:
    """Read what is there: None where nothing is, b"" at the end."""
    try:
        return os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None
