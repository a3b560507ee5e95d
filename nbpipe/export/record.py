"""Record: what a notebook or a script has executed, in order."""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import re
import sys
import threading
import tokenize
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from .statements import (
    Cell,
    Statement,
    body_of,
    is_plain,
    parsed,
    run_file,
    runs_cells,
    shell,
    statements_of,
)

# -- Record: the statements that were executed in one namespace ------------------------------------
END = 1 << 60  # the time at which functions read names: they are called after the export


class Record:
    """The statements that were executed in a namespace, oldest first.

    Args:
        namespace: of the notebook or script.
        cells: what was executed, with the statement numbers at which other cells were executed.
        until: the line of the last cell that exports, if any.
        is_notebook: it is a notebook, and no script.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        cells: Iterable[Cell],
        *,
        until: int | None = None,
        is_notebook: bool = False,
    ) -> None:
        self.namespace = namespace
        self.is_notebook = is_notebook
        self.cells = tuple(cells)
        self.statements: list[Statement] = []
        for cell in self.cells:
            stop = until if cell is self.cells[-1] else None
            self._add(cell, stop)
        self._spread_changes()
        self._drop_repeats()
        self.index()

    @classmethod
    def of(cls, namespace: dict[str, Any]) -> Record:
        """Return the record of a notebook, or of a script or module."""
        ip = shell()
        if ip is not None and ip.user_ns is namespace:
            cells = list(_executed(ip))
            until = _line_under_way(namespace, cells[-1].text if cells else "")
            return cls(namespace, cells, until=until, is_notebook=True)
        path = Path(str(namespace.get("__file__") or ""))
        if path.suffix != ".py" or not path.is_file():
            return cls(namespace, ())
        with tokenize.open(path) as file:
            text = file.read()
        is_script = namespace.get("__name__") == "__main__"
        until = _line_under_way(namespace, text) if is_script else None
        return cls(namespace, [Cell(path.name, text, _flags(text))], until=until)

    @property
    def has_future(self) -> bool:
        """Whether annotations are not evaluated in a cell."""
        flag = __future__.annotations.compiler_flag
        return any(cell.flags & flag for cell in self.cells)

    def binding(self, name: str, when: int) -> Statement | None:
        """Return the last statement before a time that binds a name."""
        times = self._times.get(name, ())
        number = bisect_left(times, when)
        return self._bindings[name][number - 1] if number else None

    def next_binding(self, name: str, at: int) -> int:
        """Return when a name is bound next; after all statements where it is not."""
        times = self._times.get(name, [])
        number = bisect_left(times, at + 1)
        return times[number] if number < len(times) else END

    def after(self, at: int, when: int) -> list[Statement]:
        """Return the statements between two times, both left out."""
        first = bisect_left(self._order, at + 1)
        return self.statements[first : bisect_left(self._order, when)]

    def index(self) -> None:
        """Called when statements were replaced or added."""
        self.statements.sort(key=lambda one: one.at)
        self._order = [one.at for one in self.statements]
        self._bindings: dict[str, list[Statement]] = {}
        for one in self.statements:
            for name in one.binds:
                self._bindings.setdefault(name, []).append(one)
        self._times = {name: [one.at for one in found] for name, found in self._bindings.items()}

    def _add(self, cell: Cell, until: int | None) -> None:
        for one in statements_of(cell, len(self.statements), until=until):
            path = run_file(one.node)
            if path is None:
                one.at = len(self.statements)
                self.statements.append(one)
            else:
                with tokenize.open(path) as file:
                    text = file.read()
                self._add(Cell(path.name, text, _flags(text)), len(text) + 1)

    def _spread_changes(self) -> None:
        """Let statements that call functions of the user change what these change."""
        defined: dict[str, Statement] = {}
        for one in self.statements:
            called: set[str] = set()
            todo = [name for name in one.calls if name in defined]
            while todo:
                name = todo.pop()
                if name not in called:
                    called.add(name)
                    todo += [n for n in defined[name].reads_later if n in defined]
            changed = frozenset(name for n in called for name in defined[n].state)
            if isinstance(one.node, ast.ClassDef):  # `__init_subclass__` of a base keeps it
                changed |= {n for n in called if "__init_subclass__" in defined[n].text}
            if one.is_definition:
                one.changes |= changed
                defined.update(dict.fromkeys(one.binds, one))
            else:
                one.may_change |= changed

    def _drop_repeats(self) -> None:
        """Leave out what was executed again with the same text, where nothing it uses changed."""
        kept: list[Statement] = []
        last: dict[str, Statement] = {}
        touched: dict[str, int] = {}
        for one in self.statements:
            before = {last.get(name) for name in one.binds}
            old = before.pop() if len(before) == 1 else None
            value = getattr(one.node, "value", None)
            plain = one.is_definition or one.is_import or (value is not None and is_plain(value))
            same = old is not None and old.text == one.text and plain and not one.cell.is_setup
            uses = one.reads | one.binds
            if same and old and all(touched.get(name, -1) <= old.at for name in uses):
                continue
            kept.append(one)
            last.update(dict.fromkeys(one.binds, one))
            others = one.changes | one.may_change | frozenset(_shared(value))
            touched.update(dict.fromkeys(one.binds | others, one.at))
        self.statements = kept


def _shared(value: ast.expr | None) -> Iterator[str]:
    """Return the names whose objects an assigned value holds itself."""
    match value:
        case ast.Name(name):
            yield name
        case ast.List(parts) | ast.Tuple(parts) | ast.Set(parts) | ast.Dict(_, parts):
            for part in parts:
                yield from _shared(part)


# -- Cells: those of a notebook, as IPython knows them ---------------------------------------------
_OF_CELL = re.compile(r"ipykernel_\d+|<ipython-input")  # the names of their files


def _executed(ip: Any) -> Iterator[Cell]:
    """Return what a notebook has executed; cells that a cell ran stand where it ran them."""
    flags = 0
    inputs: list[str] = getattr(ip.history_manager, "input_hist_parsed", [])
    inner = _inner_cells(inputs)
    for count, numbered in enumerate(inputs):
        place, rest = f"In[{count}]", ""
        for number, one in enumerate([numbered, *inner.get(numbered.rstrip("\n"), ())]):
            text = body_of(one.replace("\r\n", "\n").replace("\r", "\n"))
            if text is not None:
                flags = _flags(text, flags)
                if not number:
                    text, rest = _split_at_run(text)
                yield Cell(f"a cell run by {place}" if number else place, text, flags)
        if rest:
            yield Cell(place, rest, flags)


def _inner_cells(inputs: list[str]) -> dict[str, list[str]]:
    """Return the cells that IPython compiled and did not number, by the cell before them.

    They are those of `%run other.ipynb`, and silent ones.
    """
    known, last = {text.rstrip("\n") for text in inputs}, ""
    found: dict[str, list[str]] = {}
    for name, entry in list(linecache.cache.items()):
        if _OF_CELL.search(name) and len(entry) > 1:
            text = "".join(entry[2])
            if text.rstrip("\n") in known:
                last = text.rstrip("\n")
            else:
                found.setdefault(last, []).append(text)
    return found


def _split_at_run(text: str) -> tuple[str, str]:
    """Split a cell behind its last statement that executes other cells, lines staying in place."""
    ends = [
        node.end_lineno or 0
        for node in (parsed(text) or ast.Module([], [])).body
        if runs_cells(node)
    ]
    lines = text.split("\n")
    rest = lines[ends[-1] :] if ends else []
    if not "".join(rest).strip():
        return text, ""
    return "\n".join(lines[: ends[-1]]), "\n" * ends[-1] + "\n".join(rest)


@functools.lru_cache(maxsize=1024)
def _flags(text: str, before: int = 0) -> int:
    """Return the flags of `__future__` that hold behind a text."""
    flags = before
    for node in (parsed(text) or ast.Module([], [])).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            features = (getattr(__future__, alias.name, None) for alias in node.names)
            flags |= sum(one.compiler_flag for one in features if one is not None)
    return flags


def _line_under_way(namespace: dict[str, Any], text: str) -> int | None:
    """Return the line of a cell or script that is being executed, if one is."""
    main = threading.main_thread().ident
    frames = (sys._getframe(), sys._current_frames().get(main or 0))
    for start in frames:
        frame: FrameType | None = start
        while frame is not None:
            if frame.f_globals is namespace and frame.f_code.co_name == "<module>":
                source = "".join(linecache.getlines(frame.f_code.co_filename))
                return frame.f_lineno if source.strip() == text.strip() else None
            frame = frame.f_back
    return None
