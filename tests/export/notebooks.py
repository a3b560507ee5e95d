"""Notebooks: cells run in a real kernel, and what was exported, imported in a fresh process."""

import json
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tests.export.nursery import Nursery
from tests.kernel.client import CellError, Client, Launched, Message

ROOT = Path(__file__).resolve().parent.parent.parent
WITHIN = ROOT / "tests" / "export" / "within.py"
NEXT = "# ---- next cell\n"
_BORDER = re.compile(f"^[ ]*{NEXT}", re.MULTILINE)
RULES = "E4,E7,E9,F,I"
_NOQA = re.compile(r"  # noqa: [A-Z0-9, ]+$")  # added to lines that the linter dislikes


class Notebook:
    """Cells in a kernel of their own, with a working folder and a folder for caches.

    Attributes:
        folder: the working folder.
        cache: where what is remembered of exports is kept.
        elsewhere: a folder to import from.
    """

    def __init__(self, nursery: Nursery, base: Path, modules: tuple[str, ...] = ()) -> None:
        self._nursery, self.modules = nursery, modules
        self.folder, self.cache, self.elsewhere, self.temp = (
            base / name for name in ("work", "cache", "elsewhere", "temp")
        )
        for folder in (self.folder, self.cache, self.elsewhere, self.temp):
            folder.mkdir()
        self.env = {
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(self.cache),
            "NBPIPE_CACHE": str(self.cache),
            "TMPDIR": str(self.temp),
        }
        self._kernel: Client | None = None

    @property
    def kernel(self) -> Client:
        """The kernel; started at the first use."""
        if self._kernel is None:
            self._sockets = tempfile.TemporaryDirectory(prefix="k")  # a socket's path is short
            self._kernel = Client(Path(self._sockets.name), self._forked)
        return self._kernel

    def _forked(self, connection: Path) -> Launched:
        pid = self._nursery.kernel(connection, self.folder, self.modules, **self.env)
        return pid, partial(self._nursery.end, pid, self.modules)

    def close(self) -> None:
        """End the kernel, if there is one."""
        if self._kernel is not None:
            self._kernel.close()
            self._sockets.cleanup()
            self._kernel = None

    def run(self, text: str) -> None:
        """Run cells; the last of them may be one that failed before."""
        for number, cell in enumerate(cells_of(text), 1):
            self.kernel.run(cell, cell_id=f"cell-{number}")

    def exported(
        self,
        text: str,
        *,
        pipe: str = "pipe",
        name: str = "loader",
        spawn: bool = False,
        state: Sequence[str] = (),
    ) -> "Exported":
        """Run cells that export a pipeline; hold what came of it against the notebook."""
        self.run(text)
        return self.examined(pipe=pipe, name=name, spawn=spawn, state=state)

    def examined(
        self,
        *,
        pipe: str = "pipe",
        name: str = "loader",
        spawn: bool = False,
        state: Sequence[str] = (),
    ) -> "Exported":
        """Hold an exported module against the notebook's pipeline.

        It must be importable from an empty folder, and its pipeline must have the same stages,
        knobs and items, and the same arguments of each stage. A parameter must stand for each knob
        that was given or turned. Its text must pass the linter, and name no folder of this machine.

        Args:
            pipe: an expression for the notebook's pipeline.
            name: name of the module.
            spawn: the functions must give the same items in a spawned process, too.
            state: attributes that stages change: their values are not compared.
        """
        path = self.folder / f"{name}.py"
        text = path.read_bytes().decode()
        known = self._known(pipe, state)
        found = self.imported(name, spawn=spawn, state=state)
        exported = Exported(text, known, found)
        for what in ("items", "graph", "specs", "knobs"):
            assert found[what] == known[what], text
        assert set(known["given"]) <= set(exported.turns), text
        assert str(self.folder.parent) not in text  # no path of this machine
        assert linted(path) == "", text
        if spawn:
            assert found["spawned"] == known["items"], text
        return exported

    def _known(self, pipe: str, state: Sequence[str]) -> Message:
        path = self.temp / "known.json"
        self.kernel.run(
            "__import__('tests.export.within', fromlist=['note'])"
            f".note({str(path)!r}, {pipe}, globals().get('report'), {list(state)})"
        )
        known = json.loads(path.read_text())
        path.unlink()
        return known

    def imported(
        self, name: str = "loader", *, spawn: bool = False, state: Sequence[str] = ()
    ) -> Message:
        """Import a module in a fresh process, from an empty folder."""
        answer = self.elsewhere / "found.json"
        env = {**self.env, "PYTHONPATH": f"{ROOT}:{self.folder}"}
        request = {"name": name, "folder": str(self.folder), "spawn": spawn, "state": list(state)}
        self._nursery.script(
            WITHIN,
            str(answer),
            json.dumps(request),
            cwd=self.elsewhere,
            modules=self.modules,
            **env,
        )
        return json.loads(answer.read_text())

    def refused(self, text: str) -> str:
        """Run cells of which the last is refused; return the words, after a look for litter."""
        *before, last = cells_of(text)
        self.run(f"\n{NEXT}".join(before))
        held = contents(self.folder)
        error = self.failed(last)
        assert error.kind == "ExportError", error.shown
        assert error.shown.count("Traceback") == 1, error.shown  # no cause from within
        assert contents(self.folder) == held
        return error.text

    def failed(self, cell: str) -> CellError:
        """Run a cell that raises; return what it has raised."""
        try:
            self.kernel.run(cell)
        except CellError as error:
            return error
        raise AssertionError("the cell raised nothing")


@dataclass(frozen=True)
class Exported:
    """An exported module.

    Attributes:
        text: the file.
        known: what the notebook said of its pipeline.
        found: what a fresh process found in the module.
    """

    text: str
    known: Message
    found: Message = field(repr=False)

    @property
    def notes(self) -> list[str]:
        """The notes of the report that the notebook kept as `report`."""
        return self.known["notes"]

    @cached_property
    def turns(self) -> dict[str, Any]:
        """The defaults of the parameters of `build_pipeline` by what they turn: "decode.prefetch".

        Stages that share a knob have one parameter.
        """
        return {
            knob: self.found["defaults"][name][1]
            for name, knobs in self.found["turned"].items()
            for knob in knobs
        }

    @property
    def tuned(self) -> dict[str, Any]:
        """The defaults of the parameters that turn a knob or a size of batches, by name."""
        turned, defaults = self.found["turned"], self.found["defaults"]
        return {name: defaults[name][1] for name in turned if turned[name]}

    def has(self, lines: str) -> bool:
        """Report whether lines of the user's stand in the module, one directly after another.

        They may be indented. A line `...` stands for any lines.
        """
        return _find(lines, self.text)

    def noted(self, *words: str) -> bool:
        """Report whether one of the notes has all the words."""
        return any(all(word in note for word in words) for note in self.notes)


# -- texts -----------------------------------------------------------------------------------------


def cells_of(text: str) -> list[str]:
    """Split a notebook's text into its cells."""
    return [textwrap.dedent(cell).strip("\n ") for cell in _BORDER.split(text)]


def _find(lines: str, text: str) -> bool:
    """Report whether lines stand in a text."""
    wanted = [line.strip() for line in lines.strip("\n").split("\n")]
    parts = "\n".join(wanted).split("\n...\n")
    held = "\n" + "\n".join(_NOQA.sub("", line).strip() for line in text.split("\n")) + "\n"
    at = 0
    for part in parts:
        at = held.find(f"\n{part}\n", at)
        if at < 0:
            return False
        at += len(part) + 1
    return True


def lacking(text: str, *words: str) -> list[str]:
    """List the words that a text lacks; a user needs all of them."""
    return [word for word in words if word not in text]


def linted(path: Path) -> str:
    """Return what the pinned lint says; nothing where all is well."""
    options = ["check", "--isolated", "--no-cache", "--quiet", "--select", RULES]
    done = subprocess.run(  # where `nbpipe` is no folder: else it counts as the user's own
        [sys.executable, "-m", "ruff", *options, path.name],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def holds(folders: Iterable[Path], word: str) -> list[str]:
    """Name the files below folders that hold a word."""
    return [
        name
        for folder in folders
        for name, content in contents(folder).items()
        if word.encode() in content or word in name
    ]
