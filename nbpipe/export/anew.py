"""Fresh processes: they execute statements, or try a module, and report what came of it."""

from __future__ import annotations
import __future__

import ast
import atexit
import builtins
import contextlib
import ctypes
import dataclasses
import importlib
import importlib.util
import ipaddress
import json
import linecache
import os
import re
import shutil
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NoReturn, Self, final

import psutil

from ..base.format import shortened
from ..errors import ExportError, StageError, WorkerStartError
from ..executors.launch import Worker, launch_apart
from ..ops.cache import CacheStore
from ..ops.stage import Chain, Stage, addresses
from .fingerprint import difference, json_fingerprint
from .literals import NoLiteral, literal
from .secrets import scrubbed

# -- Exceptions in words ---------------------------------------------------------------------------
_LONGEST = 500  # characters of an error's text
_READ = 100_000  # of them that are read at all


def error_words(error: BaseException) -> str:
    """Return an exception as its traceback's last line does, in one line."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"no module named {error.name!r} can be found from a fresh process"
    if isinstance(error, StageError) and error.__cause__ is not None:
        return f"stage {error.stage!r} raised {error_words(error.__cause__)}"
    line = traceback.format_exception_only(error)[-1]
    text = shortened(scrubbed(line[:_READ]), _LONGEST)  # half a secret is not known as one
    return text or type(error).__name__


def error_line(error: BaseException, file: str) -> int | None:
    """Return the line of `file` that an exception came from: the innermost one."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    steps = traceback.walk_tb(error.__traceback__)
    return next((n for one, n in [*steps][::-1] if one.f_code.co_filename == file), None)


def _error(error: BaseException, file: Path) -> dict[str, Any]:
    """Return the line that an exception came from, and the name that was missing."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, NameError):
        cause = cause.__cause__
    missing = getattr(cause, "name", None) or ""
    return {"line": error_line(error, str(file)), "missing": missing}


# -- What the notebook asks, and the answers -------------------------------------------------------
@dataclass(frozen=True)
class ReplayStep:
    """One statement to replay.

    Attributes:
        text: the statement.
        literals: names that it binds whose value may be wanted as a literal.
    """

    text: str
    literals: tuple[str, ...] = ()


Step = ReplayStep


@dataclass
class StepResult:
    """What came of one statement.

    Attributes:
        error: what it raised, or how it ended the process, in words; empty where it ran.
        missing: the name of a `NameError`.
        line: the line of the statement that raised, from 1.
        connects: it wanted to connect to another host, which was refused.
        late: it took longer than `STATEMENT_S`.
        reads: files and folders that it looked into, without those of Python and of packages.
        literals: by name the source of the value, and the import lines that this takes.
        seconds: how long it took [s].
    """

    error: str = ""
    missing: str = ""
    line: int | None = None
    connects: bool = False
    late: bool = False
    reads: tuple[str, ...] = ()
    literals: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Replayed:
    """What came of a replay.

    Attributes:
        steps: of each statement, up to the first that failed.
        words: how the process ended, where it did not answer; else empty.
        prints: by name the fingerprints of the values after all statements.
        goal_error: what the expression of the pipeline raised, in words.
        chain: `chain_prints` of the pipeline.
        items: fingerprints of the first items.
        raised: what was raised after them, in words.
        items_late: they took longer than `ITEMS_S`.
    """

    steps: list[StepResult] = field(default_factory=list)
    words: str = ""
    prints: dict[str, Any] = field(default_factory=dict)
    goal_error: str = ""
    chain: list[dict[str, Any]] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    raised: str = ""
    items_late: bool = False


@dataclass
class Proved:
    """What came of a module.

    Attributes:
        words: how the process ended, where it did not answer; else empty.
        import_error: what its import raised, in words.
        build_error: what `build_pipeline()` raised, in words.
        line: the line of the module that raised, from 1.
        text: that line.
        missing: the name of a `NameError`.
        reads: files and folders that the import looked into.
        prints: by name the fingerprints of its variables.
        chain: `chain_prints` of the pipeline.
        items: fingerprints of the first items.
        raised: what was raised after them, in words.
        items_late: they took longer than `ITEMS_S`.
    """

    words: str = ""
    import_error: str = ""
    build_error: str = ""
    line: int | None = None
    text: str = ""
    missing: str = ""
    reads: tuple[str, ...] = ()
    prints: dict[str, Any] = field(default_factory=dict)
    chain: list[dict[str, Any]] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    raised: str = ""
    items_late: bool = False


def chain_prints(chain: Chain) -> list[dict[str, Any]]:
    """Return each stage with all that it was given, as fingerprints."""
    return [_stage_prints(address, stage) for address, stage in addresses(chain).items()]


def _stage_prints(address: str, stage: Stage) -> dict[str, Any]:
    spec: Any = stage.spec
    given = {one.name: getattr(spec, one.name) for one in dataclasses.fields(spec)}
    placed: dict[str, object] = {}
    if (placement := stage.placement) is not None:
        placed = {
            "device": getattr(placement.given, "device", None),
            "worker_init": placement.worker_init,
            "max_items_per_worker": placement.max_items_per_worker,
            "copy": placement.copy,
        }
    for name, value in given.items():
        if isinstance(value, CacheStore):  # what it holds is no part of the pipeline
            given[name] = value.place
    return {
        "name": address,
        "op": stage.op,
        "executor": stage.executor,
        "knobs": {word: knob.value for word, knob in stage.knobs.items()},
        "spec": {name: json_fingerprint(value) for name, value in given.items()},
        "placement": {name: json_fingerprint(value) for name, value in placed.items()},
    }


def first_items(
    items: Callable[[], Iterator[object]], count: int, opened: list[Any] | None = None
) -> tuple[list[Any], str]:
    """Return the fingerprints of the first items, and what was raised after them, in words.

    Args:
        items: gives the iterator.
        count: how many to take at most.
        opened: receives the iterator, so that another thread can close it.
    """
    taken: list[Any] = []
    opened = [] if opened is None else opened
    try:
        opened.append(iter(items()))
        taken.extend(map(json_fingerprint, islice(opened[-1], count)))
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        return taken, error_words(error)
    finally:
        for one in opened:
            with contextlib.suppress(Exception):  # another thread closes it, or it fails there
                getattr(one, "close", bool)()
    return taken, ""


# -- Processes as the notebook sees them -----------------------------------------------------------
# One answers one question. It takes seconds to start Python and to import torch, so that happens
# ahead. Answers come over a connection, as JSON: what user code prints goes nowhere.
STARTS_S = 60.0  # to start Python, and to import nbpipe and what was named
STATEMENT_S = 60.0  # for one statement, or to build a pipeline
ITEMS_S = 30.0  # for the first items
_GRACE_S = 5.0  # for what libraries do at the exit
_SEED = "PYTHONHASHSEED"
_DONE = {"done": True}
_SIGNALLED = 128  # and the number of a signal: the exit code where it ended the process
_KEPT = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP"),
        *("TMP", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "TORCH_HOME", "HF_HOME", "JAVA_HOME"),
        "MPLCONFIGDIR",
    )
)
_KEPT_FAMILIES = re.compile(
    r"(LC_|PYTHON|CONDA_|DYLD_|CUDA|NVIDIA|ROCR|HIP|OMP_|MKL_|OPENBLAS_|NUMEXPR_|XDG_|SSL_CERT_"
    r"|NBPIPE_|HSA_|GOMP_|KMP_|PYTORCH_).*|.*_proxy",
    re.IGNORECASE,
)


@final
class FreshProcesses:
    """Processes that have run nothing of the notebook; leaving the `with` block ends all.

    Args:
        variables: names of environment variables that the statements read; of others they get
            what programs need to run, as PATH.
        modules: top-level packages to import ahead.
        file: where the module will stand.
    """

    def __init__(self, *, variables: Iterable[str], modules: Iterable[str], file: str) -> None:
        self._variables = sorted(set(variables))
        self._modules = sorted(set(modules))
        self._file = file
        self._held = ExitStack()
        self._spares: list[tuple[Worker, Path]] = []
        self._took_s = 0.0

    def __enter__(self) -> Self:
        """Start two processes: one will replay, the other one prove.

        Raises:
            ExportError: no Python can be started here.
        """
        check_interpreter()
        self._cwd, self._paths = _here()
        with ExitStack() as stack:
            self._folder = stack.enter_context(temporary_folder())
            self._held = stack
            for _ in range(2):
                self._start()
            self._held = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for worker, _folder in self._spares:
            worker.close()
        self._held.close()

    def replay(
        self,
        steps: Sequence[ReplayStep],
        *,
        goal: str,
        below: Sequence[str],
        parameters: Mapping[str, int],
        names: Sequence[str],
        future: bool,
        script: str | None,
        count: int,
    ) -> Replayed:
        """Execute statements in the notebook's folder, then build the pipeline.

        Args:
            steps: the statements.
            goal: the expression that gives the pipeline, or something with a `pipeline`.
            below: what is executed behind the pipeline, as `["decode"].concurrency = 4`.
            parameters: variables that are there before the statements.
            names: variables whose fingerprints are wanted.
            future: annotations are not evaluated.
            script: the path of the script; None for a notebook.
            count: how many items to take.
        """
        asked = {
            "steps": [dataclasses.asdict(one) for one in steps],
            "goal": goal,
            "below": list(below),
            "parameters": dict(parameters),
            "names": list(names),
            "future": future,
            "script": script,
            "count": count,
        }
        result = Replayed()
        process = self._next()
        if not self._spares:
            self._start()
        self._ask(process, {"replay": asked}, result)
        self._took_s = max(self._took_s, sum(one.seconds for one in result.steps))
        return result

    def prove(
        self, text: str, stem: str, *, files: Mapping[str, bytes], names: Sequence[str], count: int
    ) -> Proved:
        """Import a module from an empty folder, then build its pipeline in the notebook's.

        Args:
            text: the module.
            stem: its name.
            files: what is to be beside it.
            names: variables whose fingerprints are wanted.
            count: how many items to take.
        """
        result = Proved()
        worker, folder = self._next()
        for name in ("empty", "module"):
            (folder / name).mkdir()
        for file, data in {f"{stem}.py": text.encode("utf-8"), **files}.items():
            (folder / "module" / file).write_bytes(data)
        alone = not files and "__file__" in text
        asked = {"stem": stem, "file": self._file if alone else "", "names": list(names)}
        self._ask((worker, folder), {"prove": {**asked, "count": count}}, result)
        return result

    def _start(self) -> None:
        """Start a process ahead.

        Raises:
            ExportError: that failed.
        """
        folder = Path(mkdtemp(dir=self._folder))
        try:
            worker = launch_apart(
                f"{__name__}:main",
                str(folder),
                *self._modules,
                folder=str(folder),
                environment=_environment(self._variables),
                output=subprocess.DEVNULL,
            )
        except WorkerStartError as error:
            raise ExportError(f"export cannot start its check: {error}") from error
        self._held.callback(_end, worker)
        self._spares.append((worker, folder))

    def _next(self) -> tuple[Worker, Path]:
        if not self._spares:
            self._start()
        return self._spares.pop(0)

    def _ask(
        self, process: tuple[Worker, Path], question: dict[str, Any], result: Replayed | Proved
    ) -> None:
        """Have a process answer a question; nothing of it is left afterwards."""
        worker, _ = process
        whole = {
            **question,
            "cwd": self._cwd,
            "paths": self._paths,
            "variables": self._variables,
        }
        try:
            with contextlib.suppress(OSError):  # it has ended: the listener hears how
                worker.connection.send_bytes(json.dumps(whole).encode("ascii"))
            self._listen(worker, result)
        finally:
            _end(worker)

    def _listen(self, worker: Worker, result: Replayed | Proved) -> None:
        build_s = max(STATEMENT_S, 3 * self._took_s)
        limits_s = {"start": STARTS_S, "step": STATEMENT_S, "build": build_s, "items": ITEMS_S}
        phase = "start"
        end_s = time.monotonic() + limits_s[phase]
        try:
            while (line := _next_line(worker, end_s)) != _DONE:
                if "phase" in line:
                    phase = line["phase"]
                    end_s = time.monotonic() + limits_s[phase]
                else:
                    _take(result, line)
            worker.wait(_GRACE_S)  # libraries may clear up
        except TimeoutError:
            words = f"took longer than {limits_s[phase]:g} s"
            if phase == "items":
                result.items_late = True
            elif phase == "step" and isinstance(result, Replayed):
                result.steps.append(StepResult(words, late=True))
            else:
                result.words = f"{words} to start" if phase == "start" else words
        except EOFError:
            result.words = how_it_ended(worker.wait(_GRACE_S) or 0)
            if phase == "step" and isinstance(result, Replayed):
                result.steps.append(StepResult(result.words))


def _take(result: Replayed | Proved, line: dict[str, Any]) -> None:
    """Take over one line of an answer."""
    step = line.pop("step", None)
    if step is not None and isinstance(result, Replayed):
        literals = {name: (text, tuple(more)) for name, (text, more) in step["literals"].items()}
        result.steps.append(
            StepResult(**{**step, "reads": tuple(step["reads"]), "literals": literals})
        )
    for name, value in line.items():
        setattr(result, name, tuple(value) if name == "reads" else value)


def _next_line(worker: Worker, end_s: float) -> dict[str, Any]:
    """Return the next line of an answer.

    Raises:
        EOFError: there is no more.
        TimeoutError: none came until `end_s`.
    """
    ready = wait([worker.connection, worker.status], max(0.0, end_s - time.monotonic()))
    if not ready:
        raise TimeoutError
    if worker.connection not in ready:
        raise EOFError
    try:
        line: dict[str, Any] = json.loads(worker.connection.recv_bytes())
    except (OSError, ValueError) as error:  # user code may write where it should not
        raise EOFError from error
    return line


def _end(worker: Worker) -> None:
    """End a process, and all that it has started."""
    worker.close()
    code = worker.wait(_GRACE_S)
    if sys.platform != "linux" or code is None or code < 0:  # it did not do that itself
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.end()


def _here() -> tuple[str, list[str]]:
    """Return the working folder and the import path, its folders absolute.

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
    return cwd, [str(Path(cwd, entry)) for entry in entries if isinstance(entry, str)]


def _environment(variables: Iterable[str]) -> dict[str, str]:
    """Return the variables that any program needs and those that were named; no windows open."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or _KEPT_FAMILIES.fullmatch(name) or name in variables
    }
    return kept | {"MPLBACKEND": "Agg"} | ({} if has_own_seed() else {_SEED: "0"})


def has_own_seed() -> bool:
    """Tell whether the user fixed the seed of hashes: all processes have the same then."""
    return os.environ.get(_SEED, "random") != "random"


def check_interpreter() -> None:
    """Refuse to continue where no Python can be started.

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


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Make a folder, and remove it with all that is in it.

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
    with folder:
        yield folder.name


def how_it_ended(code: int) -> str:
    """Return in words how a process ended, from its exit code."""
    number = -code if code < 0 else code - _SIGNALLED
    if number <= 0:
        return f"ended its process with exit code {code}"
    name = next((one.name for one in signal.Signals if one == number), f"signal {number}")
    return f"ended its process: {signal.strsignal(number)} ({name})"


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
    with contextlib.suppress(EOFError, OSError):  # nobody hears it any more
        while connection in wait([connection, ended]):
            ask.send_bytes(connection.recv_bytes())
    code = end_children(pid)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(code if code >= 0 else _SIGNALLED - code)


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
        question = json.loads(questions.recv_bytes())
        asked = _Asked(question, answers, Path(folder))
        sys.path[:] = question["paths"]
        importlib.invalidate_caches()
        if "replay" in question:
            _replay(asked, **question["replay"])
        else:
            _prove(asked, **question["prove"])
        asked.say(**_DONE)
        code = 0
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  of the answer, or of what libraries do at the exit
        traceback.print_exc()
    finally:
        os._exit(code)


@final
class _Asked:
    """A question, and the pipe that its answer takes.

    Attributes:
        cwd: the notebook's working folder.
        folder: of this process.
        secret: values of the environment that no literal may hold.
        watch: notes what code looks into.
    """

    def __init__(self, question: dict[str, Any], answers: Connection, folder: Path) -> None:
        self.cwd: str = question["cwd"]
        self.folder = folder
        found = (os.environ.get(name, "") for name in question["variables"])
        self.secret = [value for value in found if value]
        self.watch = _Watch(str(folder), self.cwd)
        self._answers = answers
        self._pid = os.getpid()

    def say(self, **line: object) -> None:
        """Answer a line; a process that user code forked off answers nothing."""
        if os.getpid() != self._pid:
            os._exit(0)
        self._answers.send_bytes(json.dumps(line).encode("ascii"))


def _build(asked: _Asked, build: Callable[[], Any], count: int) -> None:
    """Build a pipeline, and answer what it is and its first items."""
    pipe = build()
    asked.say(chain=chain_prints(pipe.chain))
    if count:
        asked.say(phase="items")
        items, raised = first_items(lambda: iter(pipe), count)
        asked.say(items=items, raised=raised)


# -- Replay ----------------------------------------------------------------------------------------
def _replay(asked: _Asked, *, steps: list[dict[str, Any]], **given: Any) -> None:
    """Execute statements in a module, and build the pipeline that they give."""
    os.chdir(asked.cwd)
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv[:] = [given["script"] or ""]
    if given["script"]:
        module.__file__ = given["script"]
    space = vars(module)
    space.update(given["parameters"])
    flags = __future__.annotations.compiler_flag if given["future"] else 0
    for number, step in enumerate(steps, start=1):
        asked.say(phase="step")
        result = _executed(asked, asked.folder / f"statement_{number}.py", step, space, flags)
        asked.say(step=result)
        if result["error"]:
            return
    asked.say(phase="build")
    names = given["names"]
    asked.say(prints={name: json_fingerprint(space[name]) for name in names if name in space})

    def build() -> Any:
        pipe = eval(given["goal"], space)  # noqa: S307  the user's own text
        pipe = pipe if hasattr(pipe, "chain") else pipe.pipeline
        for line in given["below"]:
            exec(f"pipe{line}", {**given["parameters"], "pipe": pipe})  # noqa: S102  as above
        return pipe

    try:
        _build(asked, build, given["count"])
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        asked.say(goal_error=error_words(error))


def _executed(
    asked: _Asked, file: Path, step: dict[str, Any], space: dict[str, Any], flags: int
) -> dict[str, Any]:
    """Execute one statement; return its result."""
    text: str = step["text"]
    error: BaseException | None = None
    began_s = time.perf_counter()
    try:
        file.write_bytes(text.encode("utf-8"))  # for `inspect`, and for compilers that read it
        code = compile(text, str(file), "exec", flags, dont_inherit=True)
        with asked.watch.watching(offline=True):
            exec(code, space)  # noqa: S102  that is what it is for
    except BaseException as raised:  # noqa: BLE001  whatever user code raises
        error = raised
    seconds = time.perf_counter() - began_s
    names = () if error else step["literals"]
    literals = {name: _spelled(asked, name, step["literals"], space) for name in names}
    return {
        "error": "" if error is None else error_words(error),
        **({} if error is None else _error(error, file)),
        "connects": asked.watch.connects,
        "reads": sorted(asked.watch.reads),
        "literals": {name: found for name, found in literals.items() if found is not None},
        "seconds": seconds,
    }


# -- Proof -----------------------------------------------------------------------------------------
def _prove(asked: _Asked, *, stem: str, file: str, names: list[str], count: int) -> None:
    """Import a module, and build its pipeline."""
    path = asked.folder / "module" / f"{stem}.py"
    sys.argv[:] = [str(path)]
    sys.path.insert(0, str(path.parent))
    os.chdir(asked.folder / "empty")
    asked.say(phase="build")

    def failed(word: str, error: BaseException) -> None:
        found = _error(error, path)
        text = linecache.getline(str(path), found["line"] or 0).strip()
        asked.say(**{word: error_words(error), **found, "text": text})

    try:
        module = _imported(asked, path, file)
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        asked.say(reads=sorted(asked.watch.reads))
        failed("import_error", error)
        return
    os.chdir(asked.cwd)
    asked.say(reads=sorted(asked.watch.reads))
    space = vars(module)
    asked.say(prints={name: json_fingerprint(space[name]) for name in names if name in space})
    try:
        _build(asked, module.build_pipeline, count)
    except BaseException as error:  # noqa: BLE001  as above
        failed("build_error", error)


def _imported(asked: _Asked, path: Path, file: str) -> types.ModuleType:
    """Import the module; it finds that it stands at `file`, if that is given."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    if file:
        module.__file__ = file
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    with asked.watch.watching(offline=False):
        exec(code, vars(module))  # noqa: S102  that is what it is for
    return module


# -- Watch: what statements look into, and where they connect to -----------------------------------
_LISTINGS = frozenset(("os.listdir", "os.scandir", "glob.glob"))
_LOOKS = _LISTINGS | {"open", "sqlite3.connect"}  # of `sys.audit`
_CONNECTIONS = frozenset(("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"))
_CODE = (".py", ".pyc", ".pyi", ".so", ".dylib", ".pth", "__pycache__")


@final
class _Watch:
    """Notes the files and folders that code looks into; imports do not count.

    Args:
        own: folder of this process.
        cwd: the notebook's working folder.

    Attributes:
        reads: what it looked into since it was last watched.
        connects: it wanted to connect to another host.
    """

    def __init__(self, own: str, cwd: str) -> None:
        self.reads: set[str] = set()
        self.connects = False
        self._cwd = cwd
        self._none = _no_data(own)
        self._on = self._offline = False
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def watching(self, *, offline: bool) -> Iterator[None]:
        """Note what happens in a `with` block.

        Args:
            offline: refuse connections.
        """
        self.reads, self.connects = set(), False
        self._on, self._offline = True, offline
        try:
            yield
        finally:
            self._on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event in _CONNECTIONS and self._offline and _leaves(event, arguments):
            self.connects = True
            raise ConnectionRefusedError("an export connects to no other host")
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
    homes = [os.environ.get(name) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME")]
    paths += [str(Path.home() / name) for name in (".cache", ".config", "Library/Caches")]
    paths += ["/proc", "/sys", "/dev", "/etc", "/usr", *filter(None, homes)]
    return tuple({f"{path.rstrip('/')}/" for path in paths} - {"/"})


def _is_import() -> bool:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _leaves(event: str, arguments: tuple[Any, ...]) -> bool:
    """Tell whether code is about to connect to another host, or to ask for its address."""
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


# -- Literals --------------------------------------------------------------------------------------
_PATH = re.compile(r"(?<![\w.])/[^/\s]+")
_OF_MACHINE = frozenset(("/home", "/root", "/tmp", "/Users", "/mnt", "/var", "/content"))  # noqa: S108
_SHORT = 3  # a value of the environment that is shorter may be in anything


def _spelled(
    asked: _Asked, name: str, own: Sequence[str], space: dict[str, Any]
) -> tuple[str, list[str]] | None:
    """Return the value of a variable as source, and the imports that it takes; None: it has none.

    Args:
        asked: the question.
        name: the variable.
        own: names that its statement binds, which the source does not use.
        space: the variables.
    """
    if name not in space:
        return None
    taken = {word: held for word, held in space.items() if word not in own and word[:1] != "_"}
    imports: dict[str, None] = {}

    def spell(one: object) -> str:
        bound = next((word for word, held in taken.items() if held is one), None)
        if bound is not None:
            return bound
        line, text = _import_of(one, taken)
        imports.update(dict.fromkeys([line] if line else []))
        return text

    with contextlib.suppress(Exception):  # a class of the user's may refuse to be read
        text = literal(space[name], spell)
        if not _is_of_machine(text, asked):
            trial = dict(space)
            exec("\n".join(imports), trial)  # noqa: S102  it stands here
            again = eval(text, trial)  # noqa: S307  as above
            if difference(json_fingerprint(space[name]), json_fingerprint(again)) is None:
                return text, list(imports)
    return None


def _import_of(one: Any, taken: Mapping[str, object]) -> tuple[str, str]:
    """Return an import that gives a module, class or function, and its name then.

    Raises:
        NoLiteral: there is none, or its name means something else.
    """
    if isinstance(one, types.ModuleType):
        top = one.__name__.partition(".")[0]
        if taken.get(top, sys.modules.get(top)) is sys.modules.get(top):
            return f"import {one.__name__}", one.__name__
        raise NoLiteral(f"module {one.__name__!r}, whose name means something else")
    path: str = one.__qualname__
    top = path.partition(".")[0]
    if getattr(builtins, path, None) is one and path not in taken:
        return "", path
    for module in dict.fromkeys((one.__module__.removeprefix("_"), one.__module__)):
        found: Any = sys.modules.get(module)
        holder = getattr(found, top, None)
        for part in path.split("."):
            found = getattr(found, part, None)
        if found is one and module != "__main__" and taken.get(top, holder) is holder:
            return f"from {module} import {top}", path
    raise NoLiteral(f"{path!r}, which cannot be imported")


def _is_of_machine(text: str, asked: _Asked) -> bool:
    """Tell whether source holds a path of this machine, or a value of the environment."""
    for value in asked.secret:
        whole = text.strip("\"'") == value
        part = len(value) >= _SHORT and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text)
        if whole or part:
            return True
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    values = (os.fsdecode(one.value) for one in nodes if isinstance(one.value, str | bytes))
    return any(_is_path(value, asked.cwd) for value in values)


def _is_path(value: str, cwd: str) -> bool:
    if cwd in value or str(Path.home()) in value:
        return True
    tops = {match[0] for match in _PATH.finditer(value)}
    return any(top in _OF_MACHINE or Path(top).is_dir() for top in tops)
