"""Fresh processes: they execute statements, or try a module, and report what came of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Self, final

from ..base.format import shortened
from ..errors import ExportError, StageError, WorkerStartError
from ..executors.workers.launch import Worker, launch_apart
from ..ops.cache import CacheStore
from ..ops.stage import Chain, Stage, addresses
from .fingerprint import json_fingerprint
from .secrets import redacted

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
    text = shortened(redacted(line[:_READ]), _LONGEST)  # half a secret is not known as one
    return text or type(error).__name__


def error_line(error: BaseException, file: str) -> int | None:
    """Return the line of a file that an exception came from: that of its outermost call."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    steps = traceback.walk_tb(error.__traceback__)
    return next((line for one, line in steps if one.f_code.co_filename == file), None)


# -- What the notebook asks, and the answers -------------------------------------------------------
@dataclass(frozen=True)
class ReplayStep:
    """One statement to replay."""

    text: str
    watch: tuple[str, ...] = ()


@dataclass
class StepResult:
    """What came of one statement.

    Attributes:
        error: what it raised, or how it ended the process, in words; empty where it ran.
        missing: the name of a `NameError`.
        line: the line that raised, from 1.
        text: that line.
        connects: it wanted to connect to another host, which was refused.
        late: it took too long.
        reads: files and folders that it looked into, without those of Python and of packages.
        seconds: how long it took [s].
        idle: it may change some names, and has changed none.
    """

    error: str = ""
    missing: str = ""
    line: int | None = None
    text: str = ""
    connects: bool = False
    late: bool = False
    reads: tuple[str, ...] = ()
    seconds: float = 0.0
    idle: bool = False


@dataclass
class FreshResult:
    """What came of statements, or of a module, and of the pipeline that they build.

    Attributes:
        steps: of each statement, up to the first that failed; a module is one.
        goal: what came of the expression of the pipeline.
        words: how the process ended, where it did not answer; else empty.
        absent: modules that no statement imports, and the statements need.
        prints: by name the fingerprints of variables.
        chain: `chain_prints` of the pipeline.
        items: fingerprints of the first items.
        raised: what was raised after them, in words.
        items_late: they took longer than `ITEMS_S`.
        moved: by the names of variables, and "stage word" of arguments, the fingerprints of those
            that the first items have changed.
    """

    steps: list[StepResult] = field(default_factory=list)
    goal: StepResult = field(default_factory=StepResult)
    words: str = ""
    absent: list[str] = field(default_factory=list)
    prints: dict[str, Any] = field(default_factory=dict)
    chain: list[dict[str, Any]] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    raised: str = ""
    items_late: bool = False
    moved: dict[str, Any] = field(default_factory=dict)


def chain_prints(chain: Chain) -> list[dict[str, Any]]:
    """Return each stage with all that it was given, as fingerprints."""
    return [_stage_prints(address, stage) for address, stage in addresses(chain).items()]


def _stage_prints(address: str, stage: Stage) -> dict[str, Any]:
    spec: Any = stage.spec
    given = {one.name: getattr(spec, one.name) for one in dataclasses.fields(spec)}
    placed: dict[str, object] = {}
    if (executor_spec := stage.executor_spec) is not None:
        placed = {
            "device": getattr(executor_spec.given, "device", None),
            "worker_init": executor_spec.worker_init,
            "max_items_per_worker": executor_spec.max_items_per_worker,
            "copy": executor_spec.copy,
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
        "executor_spec": {name: json_fingerprint(value) for name, value in placed.items()},
    }


def first_items(
    items: Callable[[], Iterator[object]], count: int, opened: list[Any] | None = None
) -> tuple[list[Any], str]:
    """Return the fingerprints of the first items, and what was raised after them, in words."""
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
SIGNALLED = 128  # and the number of a signal: the exit code where it ended the process
_KEPT = re.compile(  # names of environment variables
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|LANG|LANGUAGE|TZ|TMPDIR|TEMP|TMP|VIRTUAL_ENV"
    r"|(TORCH|HF|JAVA|KERAS)_HOME|HF_(HUB|DATASETS)_CACHE|MPLCONFIGDIR|NLTK_DATA|PROJ_(LIB|DATA)"
    r"|GDAL_DATA|(LC_|LD_|DYLD_|PYTHON|CONDA_|XDG_|SSL_CERT_|NBPIPE_|MALLOC_).*"
    r"|(CUDA|NVIDIA|ROCR|HIP|HSA_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|NUMEXPR_|PYTORCH_).*"
    r"|(?i:.*_proxy)"
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
        """Make a folder for the processes; they start with the first question."""
        check_interpreter()
        self._cwd, self._paths = _here()
        self._folder = self._held.enter_context(temporary_folder())
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
        modules: Mapping[str, str],
        future: bool,
        script: str | None,
        files: Mapping[str, bytes],
        count: int,
    ) -> FreshResult:
        """Execute statements in the notebook's folder, then build the pipeline.

        Args:
            steps: the statements.
            goal: the expression that gives the pipeline, or something with a `pipeline`.
            below: what is executed behind the pipeline, as `["decode"].concurrency = 4`.
            parameters: variables that are there before the statements.
            names: variables whose fingerprints are wanted.
            modules: expressions that must give something, by the module that makes them do it.
            future: annotations are not evaluated.
            script: the path of the script; None for a notebook.
            files: what `__file__` has beside it; none for a script that stays where it is.
            count: how many items to take.
        """
        worker, folder = self._next()
        if not self._spares:
            self._start()
        asked = {
            "name": "__main__",
            "file": str(_beside(folder, "module.py", files)) if files else script or "",
            "steps": list(steps),
            "goal": goal,
            "below": list(below),
            "parameters": dict(parameters),
            "names": list(names),
            "modules": dict(modules),
            "future": future,
            "count": count,
        }
        result = self._asked(worker, asked, STATEMENT_S)
        self._took_s = max(self._took_s, sum(one.seconds for one in result.steps))
        return result

    def prove(
        self, text: str, stem: str, *, files: Mapping[str, bytes], names: Sequence[str], count: int
    ) -> FreshResult:
        """Import a module from an empty folder, then build its pipeline in the notebook's."""
        worker, folder = self._next()
        path = _beside(folder, f"{stem}.py", files)
        asked = {
            "name": stem,
            "file": str(path) if files or "__file__" not in text else self._file,
            "steps": [ReplayStep(text)],
            "goal": "build_pipeline()",
            "below": [],
            "parameters": {},
            "names": list(names),
            "modules": {},
            "future": False,
            "count": count,
        }
        return self._asked(worker, asked, self._build_s)

    @property
    def _build_s(self) -> float:
        return max(STATEMENT_S, 3 * self._took_s)

    def _start(self) -> None:
        """Start a process ahead."""
        folder = Path(mkdtemp(dir=self._folder))
        try:
            worker = launch_apart(
                f"{__package__}.inside:main",
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

    def _asked(self, worker: Worker, question: dict[str, Any], step_s: float) -> FreshResult:
        """Have a process answer a question; nothing of it is left afterwards."""
        result = FreshResult()
        asked = {**question, "cwd": self._cwd, "paths": self._paths}
        data = json.dumps(asked, default=vars).encode("ascii")
        limits_s = {"step": step_s, "build": self._build_s, "items": ITEMS_S}
        phase, limit_s = "start", STARTS_S
        end_s = time.monotonic() + limit_s
        try:
            while phase != "done":
                line = _next_line(worker, end_s)
                if "phase" not in line:
                    _take(result, line)
                    continue
                phase = line["phase"]
                limit_s = limits_s.get(phase, STARTS_S)
                end_s = time.monotonic() + limit_s
                if phase == "ready":
                    worker.connection.send_bytes(data)
            worker.wait(_GRACE_S)  # libraries may clear up
        except TimeoutError:
            _note_end(result, phase, f"took longer than {limit_s:g} s", is_late=True)
        except (EOFError, OSError):
            _note_end(result, phase, how_it_ended(worker.wait(_GRACE_S) or 0), is_late=False)
        finally:
            _end(worker)
        return result


def _beside(folder: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """Return the path of a module in a folder of its own, where some files are beside it."""
    (folder / "module").mkdir()
    for file, data in files.items():
        (folder / "module" / file).write_bytes(data)
    return folder / "module" / name


def _note_end(result: FreshResult, phase: str, words: str, *, is_late: bool) -> None:
    """Note that a process has not answered, or not in time."""
    if phase == "step":
        result.steps.append(StepResult(words, late=is_late))
    if phase == "items" and is_late:
        result.items_late = True
    elif phase != "step" or not is_late:
        result.words = f"{words} to start" if is_late and phase != "build" else words


def _take(result: FreshResult, line: dict[str, Any]) -> None:
    """Take over one line of an answer."""
    for name, value in line.items():
        if name in ("step", "goal"):
            made = StepResult(**{**value, "reads": tuple(value.get("reads", ()))})
            if name == "goal":
                result.goal = made
            else:
                result.steps.append(made)
        else:
            setattr(result, name, value)


def _next_line(worker: Worker, end_s: float) -> dict[str, Any]:
    """Return the next line of an answer."""
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
    """Return the working folder and the import path, its folders absolute."""
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
        if name in variables or _KEPT.fullmatch(name)
    }
    return kept | {"MPLBACKEND": "Agg"} | ({} if has_own_seed() else {_SEED: "0"})


def has_own_seed() -> bool:
    """Return whether the user fixed the seed of hashes: all processes have the same then."""
    return os.environ.get(_SEED, "random") != "random"


def check_interpreter() -> None:
    """Refuse to continue where no Python can be started."""
    if sys.platform == "win32":
        raise ExportError("export cannot start its check on Windows yet; use it under WSL")
    if not sys.executable or not os.access(sys.executable, os.X_OK):
        raise ExportError(
            "export checks the module in a fresh Python process, and needs sys.executable to be "
            f"the path of a Python interpreter, got {sys.executable!r}; set it before exporting"
        )


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Make a folder, and remove it with all that is in it."""
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
    number = -code if code < 0 else code - SIGNALLED
    if number <= 0:
        return f"ended its process with exit code {code}"
    name = next((one.name for one in signal.Signals if one == number), f"signal {number}")
    return f"ended its process: {signal.strsignal(number)} ({name})"
