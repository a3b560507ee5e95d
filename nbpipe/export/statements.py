"""Cells that were executed, and their statements; parsed when they are first asked for."""

from __future__ import annotations
import __future__

import ast
import functools
import re
import warnings
from dataclasses import dataclass

from .lines import Lines, lines_of
from .magics import body_of, line_of, shell_calls
from .names import bound_names

# Flags of `__future__`; that of nested scopes says of a code object that it is nested.
FUTURE = sum(
    getattr(__future__, name).compiler_flag
    for name in __future__.all_feature_names
    if name != "nested_scopes"
)
_SETUP = re.compile(r"^[ \t]*#\|[ \t]*nbpipe:[ \t]*setup[ \t]*\r?$", re.MULTILINE)
_AFTER = re.compile(r"(?:[ \t\f]*;)?(?P<comment>[ \t\f]*#.*)?[ \t\f]*\\?[ \t\f]*")
# A statement of these kinds has bound nothing if it failed.
_AT_THE_END = (
    ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef | ast.AsyncFunctionDef
) | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Cell:
    """Python text that was executed.

    Attributes:
        place: where it stands: "In[4]", or the name of a file.
        order: of execution.
        text: what was compiled; for `%%time` and its like the body.
        before: `__future__` flags in force when it began.
        stopped: the line that raised, after which nothing was executed; where that is `%%time`
            or its like, the line of its body follows.
        binds: it was executed as a part of the module, and so binds names there.
    """

    place: str
    order: int
    text: str
    before: int = 0
    stopped: tuple[int, ...] = ()
    binds: bool = True

    @property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return _parsed(self.text)

    @property
    def lines(self) -> Lines:
        """Its lines."""
        return lines_of(self.text)

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What it executed at the top level, in order; `%time x = 1` is there as `x = 1`."""
        return _statements(self)

    @property
    def flags(self) -> int:
        """`__future__` flags in force at its end."""
        return self.before | _future(self.text)

    @property
    def shell_lines(self) -> frozenset[int]:
        """Lines of `text` that were `!` or `%` lines."""
        return shell_calls(self.tree)

    @property
    def is_setup(self) -> bool:
        """It holds a line `#| nbpipe: setup`."""
        return _SETUP.search(self.text) is not None

    @property
    def future(self) -> bool:
        """Annotations are not evaluated in it."""
        return bool(self.flags & __future__.annotations.compiler_flag)

    def body(self) -> Cell | None:
        """Give the body of a cell such as `%%time` as a cell; None for other cells."""
        found = body_of(self.tree)
        if found is None:
            return None
        stopped = self.stopped[1:]
        body = Cell(self.place, self.order, found.text, self.before, stopped, found.binds)
        return body if body.compiles() else None

    def unwrapped(self) -> Cell:
        """Give the innermost body of a cell; a cell that is no magic is given back."""
        body = self.body()
        return self if body is None else body.unwrapped()

    def compiles(self) -> bool:
        """Tell whether its text is Python."""
        try:
            self.tree  # noqa: B018  it is what may fail
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """One top-level statement of a cell or of a source file.

    Attributes:
        cell: where it stands.
        number: which statement of its cell it is.
        node: its tree; positions are those of `cell.text`.
        after: last line of what stands before it in its cell; 0 at the beginning.
        binds: global names that it binds.
    """

    cell: Cell
    number: int
    node: ast.stmt
    after: int
    binds: frozenset[str]

    @property
    def first_line(self) -> int:
        """Its first line: that of its first decorator, if it has any."""
        return first_line(self.node)

    @property
    def last_line(self) -> int:
        """Its last line."""
        return self.node.end_lineno or self.node.lineno

    @property
    def text(self) -> str:
        """Its source, with the comments directly above it and the one on its last line."""
        lines = self.cell.lines
        first = start_line(lines, self.node)
        start = 0 if first < self.node.lineno else lines.column(first, self.node.col_offset)
        shares = bool(lines[first][:start].strip()) or first == self.after
        above = first if shares else max(lines.block_above(first, ""), self.after + 1)
        tail = self.last_line
        if hasattr(self.node, "body") or isinstance(self.node, ast.Match):
            tail = max(tail, lines.tail(tail, ""))
        whole = [lines[number] for number in range(above, self.last_line)]
        whole.append(cut_end(lines, self.node))
        whole[first - above] = whole[first - above][start:].lstrip(" \t\f")
        return "\n".join(whole + [lines[n] for n in range(self.last_line + 1, tail + 1)])


def first_line(node: ast.AST) -> int:
    """Give the line where a node begins, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    line: int = getattr(decorators[0] if decorators else node, "lineno", 0)
    return line


def start_line(lines: Lines, node: ast.AST) -> int:
    """Give the line where a node begins, with the `@` of its first decorator."""
    line = first_line(node)
    if getattr(node, "decorator_list", None):
        while not lines[line].lstrip(" \t\f").startswith("@"):  # `@(`, and the rest below
            line -= 1
    return line


def cut_end(lines: Lines, node: ast.stmt) -> str:
    """Give the last line of a statement without what follows it, but with its comment."""
    number, offset = node.end_lineno or 0, node.end_col_offset or 0
    line = lines[number]
    end = lines.column(number, offset)
    after = _AFTER.fullmatch(line, end)
    return line[:end] + ((after["comment"] or "").rstrip() if after else "")


def parsed(text: str) -> ast.Module:
    """Parse a text without warnings of what is in it.

    Raises:
        SyntaxError: it is no Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


_parsed = functools.lru_cache(maxsize=512)(parsed)


@functools.lru_cache(maxsize=512)
def _statements(cell: Cell) -> tuple[Statement, ...]:
    found: list[Statement] = []
    after = 0
    for node in cell.tree.body:
        if cell.stopped and first_line(node) > cell.stopped[0]:
            break
        found += _spliced(cell, node, len(found), after)
        after = node.end_lineno or node.lineno
    return tuple(found)


def _spliced(cell: Cell, node: ast.stmt, number: int, after: int) -> list[Statement]:
    line = line_of(node)
    inner = None if line is None else Cell(cell.place, cell.order, line, cell.before)
    if inner is None or not inner.compiles():
        return [Statement(cell, number, node, after, _binds(cell, node))]
    if cell.stopped and cell.stopped[0] == node.lineno:
        return []
    return [
        Statement(inner, number + one.number, one.node, one.after, one.binds)
        for one in inner.statements
    ]


def _binds(cell: Cell, node: ast.stmt) -> frozenset[str]:
    failed = bool(cell.stopped) and cell.stopped[0] <= (node.end_lineno or node.lineno)
    if not cell.binds or isinstance(node, ast.Delete) or (failed and isinstance(node, _AT_THE_END)):
        return frozenset()
    return frozenset(bound_names([node]))


@functools.lru_cache(maxsize=512)
def _future(text: str) -> int:
    flags = 0
    for node in _parsed(text).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            features = (getattr(__future__, alias.name, None) for alias in node.names)
            flags |= sum(one.compiler_flag for one in features if one is not None)
    return flags
