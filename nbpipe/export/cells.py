"""Cells: what text the live code came from."""

from __future__ import annotations

import ast
import functools
import linecache
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from .history import History, silent_text
from .magics import shell
from .statements import FUTURE, Cell, Statement
from .texts import Definition, find

__all__ = ["Cell", "Cells", "Imported", "Statement", "of_file", "recorded"]


@dataclass(frozen=True, slots=True)
class Imported:
    """One name of an import that was executed.

    Attributes:
        statement: where it stands.
        alias: as written; its name is "*" for a star import.
        module: what is imported from, or the module that is imported.
        member: what is taken out of it; None imports the module itself.
        level: dots of a relative import.
        for_types: it stands under `if TYPE_CHECKING:`.
    """

    statement: Statement
    alias: ast.alias
    module: str
    member: str | None
    level: int
    for_types: bool

    @property
    def binds(self) -> str:
        """The name that it binds: `a` for `import a.b`; "*" for a star import."""
        name = self.alias.asname or self.alias.name
        return name if self.member is not None else name.partition(".")[0]


class Cells:
    """Cells that were executed.

    Args:
        cells: oldest first; those that are no Python are left out.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells = tuple(cell for cell in cells if cell.compiles())

    def bindings(self, name: str) -> list[Statement]:
        """List the statements that bind a global name, newest first."""
        return list(self._bindings.get(name, ()))

    def definition(self, code: CodeType) -> Definition | None:
        """Give the newest definition that a code object was compiled from, or None."""
        text = "".join(linecache.getlines(code.co_filename))
        same = [one for one in self._newest if one.cell.text == text]
        return _found(same, code) or _found(self._newest, code) or _silent(code)

    def imports(self) -> list[Imported]:
        """List the imports of modules and members, newest first."""
        return [
            one
            for statement in self._newest
            if statement.cell.binds
            for one in reversed(list(_imports(statement, [statement.node], for_types=False)))
        ]

    @functools.cached_property
    def _newest(self) -> tuple[Statement, ...]:
        return tuple(one for cell in reversed(self.cells) for one in reversed(cell.statements))

    @functools.cached_property
    def _bindings(self) -> dict[str, list[Statement]]:
        found: dict[str, list[Statement]] = {}
        for statement in self._newest:
            for name in statement.binds:
                found.setdefault(name, []).append(statement)
        return found


def recorded() -> Cells:
    """Give the cells of the notebook that is running; there are none outside of IPython."""
    ip = shell()
    return Cells(()) if ip is None else Cells(_recorded(History.of(ip)))


def of_file(path: str | Path) -> Cells:
    """Give a script or module as one cell.

    Raises:
        OSError: it cannot be read.
        SyntaxError: its encoding is unknown.
    """
    path = Path(path)
    with tokenize.open(path) as file:
        return Cells([Cell(path.name, 0, file.read())])


def _recorded(history: History) -> Iterator[Cell]:
    executions = history.executions()
    heard = {(one.parent, history.text(one)) for _, one in executions if one.parent is not None}
    flags = 0
    for order, one in executions:
        if one.failed:
            continue
        before = flags if one.flags is None else one.flags & FUTURE
        place = f"In[{history.count(order)}]"
        cell = Cell(place, order, history.text(one), before, one.stopped)
        if cell.compiles():
            flags = cell.flags
            yield from _unwrapped(cell, heard)


def _unwrapped(cell: Cell, heard: Collection[tuple[int | None, str]]) -> Iterator[Cell]:
    """Give the innermost body of a cell, or nothing where a body was heard as a cell itself."""
    body = cell.body()
    if body is None:
        yield cell
    elif (cell.order, body.text) not in heard:
        yield from _unwrapped(body, heard)


def _silent(code: CodeType) -> Definition | None:
    """Look for a code object in the cells that IPython executes and does not speak of."""
    found = silent_text(code.co_filename)
    if found is None:
        return None
    cells = [Cell(f"In[{found[1]}]", -1, found[0])]
    bodies = (cell.unwrapped() for cell in cells if cell.compiles())
    return _found([one for cell in bodies for one in cell.statements], code)


def _found(statements: Sequence[Statement], code: CodeType) -> Definition | None:
    tried = (find(one, code, alone=alone) for alone in (True, False) for one in statements)
    return next((one for one in tried if one is not None), None)


def _imports(
    statement: Statement, nodes: Iterable[ast.AST], *, for_types: bool
) -> Iterator[Imported]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(statement, alias, alias.name, None, 0, for_types)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = node.module or ""
                yield Imported(statement, alias, module, alias.name, node.level, for_types)
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _imports(statement, node.body, for_types=True)
            yield from _imports(statement, node.orelse, for_types=for_types)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _imports(statement, ast.iter_child_nodes(node), for_types=for_types)


def _is_type_checking(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", None)) == "TYPE_CHECKING"
