"""Fresh: a Python process that has run nothing of the notebook, and is asked."""

from __future__ import annotations
import __future__

import atexit
import builtins
import contextlib
import ctypes
import importlib
import importlib.util
import json
import linecache
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any, Literal, NoReturn, Self, final

from ..errors import ExportError, WorkerStartError
from ..executors.launch import Worker, launch_apart
from ..ops.stage import Chain, Stage, addresses
from .anew import (
    check_interpreter,
    error_line,
    error_words,
    has_own_seed,
    how_it_ended,
    temporary_folder,
)
from .fingerprint import difference, json_fingerprint
from .inside import end_children
from .reachable import changeable_in, handle_in


# -- Question --------------------------------------------------------------------------------------
@final
class _Question:
    """A request, and the pipe that its answer takes.

    Attributes:
        request: what was asked.
        cwd: the notebook's working folder.
        folder: folder of the module's file.
        file: where that will stand; empty where that is not known.
    """

    def __init__(self, given: dict[str, Any], connection: Connection) -> None:
        self.request: dict[str, Any] = given["request"]
        self.cwd: str = given["cwd"]
        self.folder: str = given["folder"]
        self.file: str = given["file"]
        self._connection = connection
        self._pid = os.getpid()

    def say(self, line: object) -> None:
        """Answer one JSON value; a process that user code forked off is none of ours."""
        if os.getpid() != self._pid:
            os._exit(0)
        self._connection.send_bytes(json.dumps(line).encode("ascii"))

    def place(self, module: ModuleType, text: str) -> None:
        """Have a module whose text asks where it stands find itself there, but for its assets."""
        alone = all(one.suffix == ".py" for one in Path(self.folder).iterdir())
        if self.file and alone and "__file__" in text:
            module.__file__ = self.file


def specs_of(chain: Chain) -> list[tuple[str, Any]]:
    """Return by address the fingerprint of all that each stage was given, its knobs left out."""
    return [
        (address, json_fingerprint((stage.spec, _placed(stage))))
        for address, stage in addresses(chain).items()
    ]


def _placed(stage: Stage) -> tuple[object, ...]:
    placement = stage.placement
    if placement is None:
        return ()
    device = getattr(placement.given, "device", None)
    return device, placement.worker_init, placement.max_items_per_worker, placement.copy


# -- Fresh: a Python process that has run nothing of the notebook, and is asked --------------------
# It forks for each question: one start serves a whole export, and no answer sees what another left.
# Answers come over a connection, one JSON value each: what user code prints goes nowhere.
_Ending = Literal["answered", "died", "late"]
STARTS_S = 60.0  # to start, to import nbpipe and, where a module is asked for, to import it
_GRACE_S = 5.0  # for what libraries do at its exit
_SEED = "PYTHONHASHSEED"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_SIGNALLED = 128  # and the number of the signal: the exit code of one whose fork was ended by it
_LOADED = re.compile(rb'(?:"|\\n)(?:import|from) torch\b')  # takes seconds, and stands a fork
_DONE, _ENDED = {"done": True}, {"ended": True}  # the answer is whole; its fork is no more


@dataclass(frozen=True, slots=True)
class FreshAnswer:
    """What came of a question.

    Attributes:
        lines: the JSON values that were answered, in order.
        ending: "answered" where the whole answer is there, "died" where the process ended
            before, "late" where it was ended at its time limit.
        words: how it ended, as "ended with exit code 3"; empty where it answered.
    """

    lines: tuple[Any, ...]
    ending: _Ending
    words: str


@final
@dataclass
class FreshProcess:
    """A process that has run nothing of the notebook; it starts with the first question.

    Leaving the `with` block ends it, and all that its answers started. It ends by itself once
    nobody holds our end of its connection.

    Attributes:
        cwd: the notebook's working folder.
        paths: its `sys.path`, the folders absolute.
        file: where the module will stand, that is tried somewhere else.
    """

    cwd: str
    paths: tuple[str, ...]
    file: str = ""
    _worker: Worker | None = field(default=None, init=False)
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @classmethod
    def here(cls, file: str = "") -> Self:
        """Take the folder and the import path of this process; its environment is this one's.

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
        return cls(cwd, tuple(str(Path(cwd, entry)) for entry in texts), file)

    def ask(
        self,
        task: str,
        request: Mapping[str, Any],
        *,
        limits_s: Mapping[str, float],
        files: Mapping[str, bytes] | None = None,
    ) -> FreshAnswer:
        """Have a fork of it do a task; no process is left of that afterwards.

        Args:
            task: name of the task.
            request: what it is given, as JSON.
            limits_s: how long each step may take [s], by the name that the task announces; "" is
                the first.
            files: what to find in the folder that the task is given, by name.

        Raises:
            ExportError: no Python can be started here.
        """
        check_interpreter()
        if self._worker is None or self._worker.wait(0) is not None:
            self._worker = self._started()
        question = self._written({"task": task, "request": request}, files or {})
        with contextlib.suppress(OSError):  # it has ended: the listener hears how
            self._worker.connection.send_bytes(os.fsencode(question))
        return _listened(self._worker, limits_s)

    def _written(self, asked: dict[str, Any], files: Mapping[str, bytes]) -> Path:
        """Write a question, and what goes with it, into a folder of its own."""
        folder = Path(mkdtemp(dir=self._folder))
        for name in ("empty", "module"):
            (folder / name).mkdir()
        for name, data in files.items():
            (folder / "module" / name).write_bytes(data)
        whole = {
            **asked,
            "paths": list(self.paths),
            "cwd": self.cwd,
            "file": self.file,
            "empty": str(folder / "empty"),
            "folder": str(folder / "module"),
        }
        question = folder / "question.json"
        question.write_text(json.dumps(whole), encoding="ascii")
        return question

    def _started(self) -> Worker:
        self._folder = Path(self._held.enter_context(temporary_folder()))
        try:
            worker = launch_apart(
                f"{__name__}:main",
                str(self._folder),
                folder=str(self._folder),
                environment=_variables(),
                output=subprocess.DEVNULL,
            )
        except WorkerStartError as error:
            raise ExportError(f"export cannot start its check: {error}") from error
        self._held.callback(worker.end, _GRACE_S)
        self._held.callback(worker.close)
        return worker


def _variables() -> dict[str, str]:
    """Return this process's environment, with no windows opened."""
    ours = {"MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}
    return os.environ | ours | ({} if has_own_seed() else {_SEED: "0"})


def _listened(worker: Worker, limits_s: Mapping[str, float]) -> FreshAnswer:
    """Read an answer, until it is whole, its process ends, or a step takes too long.

    Args:
        worker: the fresh process, whose fork answers; it ends with a fork that did not end well.
        limits_s: of each step [s].
    """
    lines: list[Any] = []
    step, words, line = "", "", None
    ending: _Ending = "answered"
    end_s = time.monotonic() + limits_s[step]
    try:
        while (line := _next_line(worker, end_s)) != _DONE:
            if line == _ENDED:
                raise EOFError  # noqa: TRY301  user code ended it, with exit code 0
            if isinstance(line, dict) and "step" in line:
                step = line["step"]
                end_s = time.monotonic() + limits_s[step]
            lines.append(line)
        with contextlib.suppress(EOFError, TimeoutError):  # libraries may clear up
            line = _next_line(worker, time.monotonic() + _GRACE_S)
    except TimeoutError:
        ending, words = "late", f"took longer than {limits_s[step]:g} s"
    except EOFError:
        worker.close()
        ending, words = "died", how_it_ended(worker.wait(_GRACE_S) or 0)
    if ending != "answered" or line != _ENDED:
        worker.close()
        worker.end(_GRACE_S)
    return FreshAnswer(tuple(lines), ending, words)


def _next_line(worker: Worker, end_s: float) -> Any:
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
        return json.loads(worker.connection.recv_bytes())
    except ConnectionError as error:
        raise EOFError from error


# -- Inspection: in a fresh process, import a module that was written and see what it is worth -----
def inspect(question: _Question) -> None:
    """Import the module, build its pipeline and run its first items; answer what is found."""
    request = question.request
    module = _checked(question, lambda: _imported(question, request["name"]))
    if module is None:
        return
    os.chdir(question.cwd)
    known = {*vars(module), *dir(builtins)}
    unknown = [name for name in request["reads"] if name not in known]
    if unknown:
        question.say({"unknown": unknown})
        return
    words = differences(vars(module), request["expected"], named=True)
    if words is not None:
        question.say({"differs": words})
        return
    pipe = _checked(question, module.build_pipeline)
    if pipe is None:
        return
    question.say({"graph": pipe.graph()})
    if request["specs"]:
        question.say({"specs": specs_of(pipe.chain)})
    for address in request["process_stages"]:
        failed = _unsent(pipe[address], request["name"])
        if failed:
            question.say({"stage": address, "failed": failed})
    if request["check_items"]:
        question.say({"step": "items"})  # its time begins
        _say_items(question, pipe)


def _file(question: _Question) -> str:
    return str(Path(question.folder, f"{question.request['name']}.py"))


def _imported(question: _Question, name: str) -> ModuleType:
    """Import it in another folder; where it fails or differs there, it may read the notebook's."""
    sys.path.insert(0, question.folder)
    importlib.invalidate_caches()
    with contextlib.suppress(Exception):
        module = _loaded(question, name)
        if differences(vars(module), question.request["expected"], named=True) is None:
            return module
    os.chdir(question.cwd)
    return _loaded(question, name)


def _loaded(question: _Question, name: str) -> ModuleType:
    """Import it anew; it may ask for the file that it will be."""
    module, text = _bare_module(name, _file(question)), Path(_file(question)).read_bytes()
    question.place(module, text.decode("utf-8"))
    exec(compile(text, _file(question), "exec", dont_inherit=True), vars(module))  # noqa: S102
    return module


def _bare_module(name: str, file: str) -> ModuleType:
    """Return a new module in the place of one that is imported; nothing of it has run."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    return module


def _checked(question: _Question, make: Callable[[], Any]) -> Any:
    """Call user code; where it raises answer that, with the line of the module; return None."""
    try:
        return make()
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        line = error_line(error, _file(question))
        text = linecache.getline(_file(question), line or 0).strip()
        question.say({"failed": error_words(error), "line": line, "text": text})
        return None


def _unsent(stage: Any, name: str) -> str:
    """Tell why plain pickle, which goes by names, cannot send what workers of a stage are given.

    It is loaded where nobody has imported the module yet.
    """
    functions = [getattr(stage.spec, word, None) for word in ("collate", "cost")]
    functions += [stage.fn, getattr(stage.placement, "worker_init", None)]
    try:
        data = pickle.dumps(functions)
        module = sys.modules.pop(name)
        try:
            pickle.loads(data)  # noqa: S301  it was made here
        finally:
            sys.modules[name] = module
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        return error_words(error)
    return ""


def _say_items(question: _Question, pipe: Any) -> None:
    try:
        with contextlib.closing(iter(pipe)) as items:
            for item in islice(items, question.request["check_items"]):
                question.say({"item": json_fingerprint(item)})
    except BaseException as error:  # noqa: BLE001  whatever user code raises
        question.say({"raised": error_words(error)})


# -- Data: files that are no part of Python, of packages, or of the module itself ------------------
_LOOKS = frozenset(("open", "os.listdir", "os.scandir", "sqlite3.connect"))  # of `sys.audit`
_NO_DATA = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", sys.prefix, sys.base_prefix)
_CODE = (".py", ".pyc", ".so", ".pyi", ".pth")


@final
class _DataWatch:
    """Notes whether code looks for files or opens them; imports do not count.

    Args:
        own: folder of the module's file.
    """

    def __init__(self, own: str) -> None:
        self.seen = False
        self._none = (*_NO_DATA, own)
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _LOOKS and isinstance(path := arguments[0], str | bytes | os.PathLike | None):
            place = os.path.abspath(os.fsdecode(path or "."))  # noqa: PTH100  it may be no path
            importing = sys._getframe(1).f_code.co_filename.startswith("<frozen importlib")
            known = place.startswith(self._none) or place.endswith(_CODE)
            self.seen = self.seen or not (importing or known)


# -- Trial: in a fresh process, the pieces of a module run, one spelling after another -------------
# The pieces grow into a file, and run as the module that it would be: `inspect`, dataclasses,
# pickle and compilers that read a function's source find what they look for.
def try_pieces(question: _Question) -> None:
    """Run the imports and the pieces of a request; answer how each went."""
    os.chdir(question.cwd)
    module = _GrowingModule(question)
    question.say({"step": "pieces"})
    imports, *pieces = question.request["pieces"]
    question.say(module.play(0, imports))
    for path in question.request["modules"]:
        module.need(path)
    for number, piece in enumerate(pieces, start=1):
        question.say(module.play(number, piece))


@final
class _GrowingModule:
    """The module as far as it has come."""

    def __init__(self, question: _Question) -> None:
        name: str = question.request["name"]
        self._question = question
        self._file = _file(question)
        flag = __future__.annotations.compiler_flag if question.request["future"] else 0
        self._flags = flag
        self._text = ""
        self._missing: dict[str, None] = {}  # names of pieces that failed
        self._shared: list[tuple[str, str, list[list[str]]]] = question.request["shared"]
        self._read: set[str] = set()  # names of those that come from data
        self._data = _DataWatch(question.folder)
        self._module = _bare_module(name, self._file)

    def need(self, path: str) -> None:
        """Import a submodule where nothing has done it; answer that."""
        try:
            eval(path, vars(self._module))  # noqa: S307  names with dots
        except (NameError, AttributeError):
            self._question.say({"lacks": path})
            with contextlib.suppress(Exception):  # what reads it fails, and says why
                importlib.import_module(path)

    def play(self, at: int, piece: dict[str, Any]) -> dict[str, Any]:
        """Try the spellings of a piece in order; return the choice, or why there is none.

        Where that is wanted, one that reads no data comes before those that do.
        """
        failed: dict[str, Any] = {}  # the first
        chosen: tuple[int, dict[str, Any], str] | None = None
        before = dict(vars(self._module)), self._text
        for number, spelling in enumerate(piece["spellings"]):
            self._question.say({"at": at, "spelling": number})
            names = piece["names"] if piece["closed"] else []
            self._data.seen = False
            reason = self._attempt(spelling, piece["expected"], names) or self._apart(
                piece["names"]
            )
            if reason is not None:
                failed = failed or reason
            elif not self._data.seen and self._read.isdisjoint(spelling["now"]):
                return {"choice": number}
            else:
                chosen = chosen or (number, dict(vars(self._module)), self._text)
                if not piece["settled"]:
                    break
            self._rewind(*before)  # nothing of it is left bound
        if chosen is None:
            self._missing |= dict.fromkeys(piece["names"])
            return {"failed": failed}
        self._rewind(*chosen[1:])
        self._read.update(piece["names"])
        return {"choice": chosen[0], "data": True}

    def _attempt(
        self, spelling: dict[str, Any], expected: dict[str, Any], names: list[str]
    ) -> dict[str, Any] | None:
        """Run one spelling; return why it is not true, or None."""
        needed = [name for name in self._missing if name in spelling["now"]]
        if needed:
            return {"reason": f"needs {needed[0]!r}", "line": None}
        return self._run(spelling["text"]) or self._compared(expected) or self._living(names)

    def _run(self, text: str) -> dict[str, Any] | None:
        above = self._text.count("\n")
        self._write(f"{self._text}{text}\n\n\n")
        try:
            code = compile(
                "\n" * above + text, self._file, "exec", flags=self._flags, dont_inherit=True
            )
            self._question.place(self._module, text)
            exec(code, vars(self._module))  # noqa: S102  that is what it is for
        except BaseException as error:  # noqa: BLE001  whatever user code raises
            line = error_line(error, self._file)
            return {"reason": error_words(error), "line": line and line - above}
        finally:
            self._module.__file__ = self._file
        return None

    def _compared(self, expected: dict[str, Any]) -> dict[str, Any] | None:
        words = differences(vars(self._module), expected, named=len(expected) > 1)
        return None if words is None else {"reason": words, "line": None}

    def _living(self, names: list[str]) -> dict[str, Any] | None:
        """Tell which names live in one process: whoever imports the module would share them."""
        namespace = vars(self._module)
        found = (handle_in(name, namespace[name]) for name in names if name in namespace)
        handle = next((one for one in found if one is not None), None)
        return None if handle is None else {"reason": handle.words, "line": None, "alive": True}

    def _apart(self, names: list[str]) -> dict[str, Any] | None:
        """Tell which names, of those that code changes, do not share what they share elsewhere."""
        bound = vars(self._module)
        for one, other, places in self._shared:
            if names.count(one) + names.count(other) and one in bound and other in bound:
                words = apart(bound[one], bound[other], places)
                if words is not None:
                    return {"reason": f"{one!r} and {other!r} {words}", "apart": True}
        return None

    def _rewind(self, bound: dict[str, Any], text: str) -> None:
        namespace = vars(self._module)
        namespace.clear()
        namespace.update(bound)
        self._write(text)

    def _write(self, text: str) -> None:
        self._text = text
        Path(self._file).write_text(text, encoding="utf-8", newline="\n")
        linecache.cache.pop(self._file, None)


def shared_places(one: object, other: object) -> list[list[str]]:
    """Return by its places in two values each object that both hold and code may change."""
    theirs = {id(held): place for place, held in changeable_in(other).items()}
    mine = changeable_in(one).items()
    return [[place, theirs[id(held)]] for place, held in mine if id(held) in theirs]


def apart(one: object, other: object, places: list[list[str]]) -> str | None:
    """Tell whether two values do not share what they share in the notebook; None where they do.

    Args:
        one: a value.
        other: another one.
        places: what the notebook's own share. A place that there is not, has yet to be filled.
    """
    mine, theirs = changeable_in(one), changeable_in(other)
    if one is other and ["", ""] not in places and theirs:
        return "are two objects in the notebook, one when its text runs anew"
    for here, there in places:
        begun = (here in mine or not here) and (there in theirs or not there)
        if begun and mine.get(here) is not theirs.get(there, places):
            return "share an object in the notebook, and none when its text runs anew"
    return None


def differences(namespace: dict[str, Any], expected: dict[str, Any], *, named: bool) -> str | None:
    """Tell which name of a module is not worth what is expected; None where all are.

    Args:
        namespace: the module's names.
        expected: fingerprints of some of them.
        named: the words begin with the name.
    """
    for name, wanted in expected.items():
        if name not in namespace:
            return f"{name!r} is not bound"
        try:
            words = difference(wanted, json_fingerprint(namespace[name]))
        except Exception as error:  # noqa: BLE001  a class of the user's may refuse to be read
            words = f"cannot be compared: {error_words(error)}"
        if words is not None:
            return f"{name}: {words}" if named else words
    return None


# -- Probe: what a fresh process does with its question. Nothing here runs in the notebook ---------
_TASKS: dict[str, Callable[[_Question], None]] = {"try_pieces": try_pieces, "inspect": inspect}


def main(connection: Connection, litter: str) -> NoReturn:
    """Answer each question in a fork, as long as somebody asks and forks end well.

    Only on Linux a fork is safe once libraries are loaded; elsewhere it ends with its first answer.
    """
    code, answers = 0, os.dup(connection.fileno())  # a fork closes the connection itself
    if sys.platform == "linux":  # what a fork starts is ours when its parent ends
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with contextlib.suppress(EOFError, OSError):
        while code == 0:
            question = Path(os.fsdecode(connection.recv_bytes())).read_bytes()
            if _LOADED.search(question):
                with contextlib.suppress(Exception):  # the module's own import says why
                    importlib.import_module("torch")
            ended, alive = Pipe(duplex=False)
            pid = _forked() if sys.platform == "linux" else 0
            if pid == 0:
                _answer(json.loads(question), Connection(answers), alive)
            alive.close()
            wait([connection, ended])  # the fork has ended, or nobody hears it any more
            ended.close()
            code = end_children(pid)
            if code == 0:
                connection.send_bytes(json.dumps(_ENDED).encode("ascii"))
    shutil.rmtree(litter, ignore_errors=True)
    os._exit(code if code >= 0 else _SIGNALLED - code)


def _forked() -> int:
    with warnings.catch_warnings():  # of threads: those of numpy's library stand a fork
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _answer(given: dict[str, Any], connection: Connection, alive: Connection) -> NoReturn:
    """Do a task, and end the process, whatever threads still run."""
    code = 1
    try:
        for one in (connection, alive):
            os.register_at_fork(after_in_child=one.close)
        os.chdir(given["empty"])
        sys.path[:] = given["paths"]
        importlib.invalidate_caches()
        question = _Question(given, connection)
        _TASKS[given["task"]](question)
        question.say(_DONE)
        code = 0
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  of the task, or of what libraries do at the exit
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):  # user code closed it, or put something else there
            sys.stdout.flush()
        os._exit(code)
