"""Cells: what was executed in the notebook, and what text the live code came from."""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import linecache
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType
from typing import Any

from .module import Import, expression, indented
from .record import History
from .secrets import as_text, is_suspicious_name
from .source import (
    Lines,
    body_of,
    indent_of,
    last_name,
    line_of,
    lines_of,
    names_read,
    shell,
    shell_calls,
    tree_of,
)

# -- Cells that were executed, and their statements; parsed when they are first asked for ----------
# Flags of `__future__`; that of nested scopes says of a code object that it is nested.
_FUTURE = sum(
    getattr(__future__, name).compiler_flag
    for name in __future__.all_feature_names
    if name != "nested_scopes"
)
_SETUP = re.compile(r"^[ \t]*#\|[ \t]*nbpipe:[ \t]*setup[ \t]*\r?$", re.MULTILINE)
_STORES = frozenset(  # what gives secrets and nothing else
    ("getpass", "keyring", "userdata", "UserSecretsClient", "get_secret", "get_password")
)
_LOOKUPS = _STORES.union(
    ("environ", "environb", "getenv", "getenvb", "dotenv", "dotenv_values", "load_dotenv")
)
_AFTER = re.compile(r"(?:[ \t\f]*;)?(?P<comment>[ \t\f]*#.*)?[ \t\f]*\\?[ \t\f]*")


@dataclass(frozen=True, slots=True)
class Cell:
    """Python text that was executed.

    Attributes:
        place: where it stands: "In[4]", or the name of a file.
        order: of execution.
        text: what was compiled, its lines ended by line feeds; for `%%time` and its like the body.
        before: `__future__` flags in force when it began.
        binds: it was executed as a part of the module, and so binds names there.
    """

    place: str
    order: int
    text: str
    before: int = 0
    binds: bool = True

    def __post_init__(self) -> None:
        """End lines as Python reads them."""
        text = self.text.replace("\r\n", "\n").replace("\r", "\n")
        object.__setattr__(self, "text", text)

    @property
    def tree(self) -> ast.Module:
        """Its syntax tree; that of a text that is no Python is empty."""
        return _tree(self.text) or ast.Module([], [])

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

    def unwrapped(self) -> Cell:
        """Return the innermost body of a cell such as `%%time`; other cells are given back."""
        found = body_of(self.tree)
        if found is None:
            return self
        text, binds = found
        body = Cell(self.place, self.order, text, self.before, binds)
        return body.unwrapped() if body.compiles() else self

    def compiles(self) -> bool:
        """Tell whether its text is Python."""
        return _tree(self.text) is not None


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
    def order(self) -> tuple[int, int]:
        """When it was executed: cells in their order, and statements in theirs."""
        return self.cell.order, self.number

    @property
    def first_line(self) -> int:
        """Its first line: that of its first decorator, if it has any."""
        return first_line(self.node)

    @property
    def last_line(self) -> int:
        """Its last line."""
        return self.node.end_lineno or self.node.lineno

    @property
    def reads_environment(self) -> bool:
        """It looks something up in the environment, or in a store of secrets.

        Known: `os.environ`, `os.getenv`, getpass, dotenv, keyring, and those of Colab and Kaggle.
        """
        return any(last_name(part) in _LOOKUPS for part in ast.walk(self.node))

    @property
    def reads_secret(self) -> bool:
        """It looks up what is a secret, by where that is, or by the name that it has there."""
        parts = list(ast.walk(self.node))
        calls = [one.func for one in parts if isinstance(one, ast.Call)]
        if any(last_name(part) in _STORES for call in calls for part in ast.walk(call)):
            return True
        values = (one.value for one in parts if isinstance(one, ast.Constant))
        names = (as_text(one) for one in values if isinstance(one, str | bytes))
        return self.reads_environment and any(map(is_suspicious_name, names))

    @property
    def text(self) -> str:
        """Its source, with the comments directly above it and the one on its last line."""
        return "\n".join(_rows(self.cell.lines, self.node, self.after)[0])


def _rows(lines: Lines, node: Any, after: int) -> tuple[list[str], int]:
    """Return the source of a statement in lines, not indented, with its decorators and comments.

    Args:
        lines: where it stands.
        node: it.
        after: last line of what stands before it in its block.

    Returns:
        Them, and how many stand above that of `def` or `class`.
    """
    first = _start_line(lines, node)
    start = 0 if first < node.lineno else lines.column(first, node.col_offset)
    shares = bool(lines[first][:start].strip()) or first == after
    indent = "" if shares else indent_of(lines[first])
    above = first if shares else max(lines.block_above(first, indent), after + 1)
    tail = last = node.end_lineno
    if hasattr(node, "body") or isinstance(node, ast.Match):
        tail = max(last, lines.tail(last, indent))
    whole = {number: lines[number] for number in range(above, tail + 1)}
    whole[last] = _cut_end(lines, node)
    whole[first] = whole[first][start:].lstrip(" \t\f")
    return list(_dedented(lines, whole, indent)), node.lineno - above


def first_line(node: ast.AST) -> int:
    """Return the line where a node begins, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    line: int = getattr(decorators[0] if decorators else node, "lineno", 0)
    return line


def _start_line(lines: Lines, node: ast.AST) -> int:
    """Return the line where a node begins, with the `@` of its first decorator."""
    line = first_line(node)
    if getattr(node, "decorator_list", None):
        while not lines[line].lstrip(" \t\f").startswith("@"):  # `@(`, and the rest below
            line -= 1
    return line


def _cut_end(lines: Lines, node: ast.stmt) -> str:
    """Return the last line of a statement without what follows it, but with its comment."""
    number, offset = node.end_lineno or 0, node.end_col_offset or 0
    line = lines[number]
    end = lines.column(number, offset)
    after = _AFTER.fullmatch(line, end)
    return line[:end] + ((after["comment"] or "").rstrip() if after else "")


_tree = functools.lru_cache(maxsize=512)(tree_of)


@functools.lru_cache(maxsize=512)
def _statements(cell: Cell) -> tuple[Statement, ...]:
    found: list[Statement] = []
    after = 0
    for node in cell.tree.body:
        found += _spliced(cell, node, len(found), after)
        after = node.end_lineno or node.lineno
    return tuple(found)


def _spliced(cell: Cell, node: ast.stmt, number: int, after: int) -> list[Statement]:
    line = line_of(node)
    inner = None if line is None else Cell(cell.place, cell.order, line, cell.before)
    if inner is None or not inner.compiles():
        return [Statement(cell, number, node, after, _binds(cell, node))]
    return [
        Statement(inner, number + one.number, one.node, one.after, one.binds)
        for one in inner.statements
    ]


def _binds(cell: Cell, node: ast.stmt) -> frozenset[str]:
    if not cell.binds or isinstance(node, ast.Delete):
        return frozenset()
    return names_read(node, future=True).bound


@functools.lru_cache(maxsize=512)
def _future(text: str) -> int:
    flags = 0
    for node in (_tree(text) or ast.Module([], [])).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            features = (getattr(__future__, alias.name, None) for alias in node.names)
            flags |= sum(one.compiler_flag for one in features if one is not None)
    return flags


# -- Definitions: the text of a function or class, found by its code object ------------------------
Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
_FAR = 1 << 20  # a line that no text has
_HEAD = re.compile(r"\b(?:def|class)[\s\\]+(?P<name>\w+)(?:\[[^(]*\])?(?:[\s\\]*\()?")


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or class in a cell, wherever in it.

    Attributes:
        cell: where it stands.
        statement: the top-level statement that holds it.
        node: its tree.
        after: last line of what stands before it in its block.
    """

    cell: Cell
    statement: Statement
    node: Node
    after: int

    @property
    def line(self) -> int:
        """The line where it begins, with its decorators."""
        return first_line(self.node)

    @property
    def place(self) -> str:
        """Where it stands: "In[4]", or the name of a file."""
        return self.cell.place

    def text(self, name: str | None = None, parameters: Sequence[str] = ()) -> str:
        """Return its source, not indented, with its decorators and comments; a lambda as a def.

        Args:
            name: what it is to be called; a lambda needs one.
            parameters: what is put before its own parameters.
        """
        lines, node = self.cell.lines, self.node
        if isinstance(node, ast.Lambda):
            return self._as_def(node, name or "function", parameters)
        text, above = _rows(lines, node, self.after)
        before, head = text[:above], "\n".join(text[above:])
        if name is not None:
            comma = not isinstance(node, ast.ClassDef) and bool(ast.unparse(node.args))
            head = _named(head, name, parameters, comma=comma)
        return "\n".join([*before, head])

    def _as_def(self, node: ast.Lambda, name: str, parameters: Sequence[str]) -> str:
        """Return a lambda as a `def` that returns its body."""
        body = ast.get_source_segment(self.cell.text, node.body) or ""
        tree = tree_of(body)
        first, *rest = expression(body if tree and len(tree.body) == 1 else f"({body})")
        above, after = _comments(self.cell.lines, node) if self._is_alone(node) else ([], "")
        words = ", ".join(filter(None, [*parameters, self._parameters(node)]))
        lines = [f"return {first}", *rest]
        return "\n".join([*above, f"def {name}({words}):", *indented(lines)]) + after

    def _parameters(self, node: ast.Lambda) -> str:
        """Return the parameters of a lambda, as they were written where that is in one line."""
        whole = ast.get_source_segment(self.cell.text, node) or ""
        head = whole.removesuffix(ast.get_source_segment(self.cell.text, node.body) or "")
        found = re.fullmatch(r"lambda\s*(.*?)\s*:\s*\(*\s*", head)
        return found[1] if found and tree_of(f"def f({found[1]}): 0") else ast.unparse(node.args)

    def _is_alone(self, node: ast.Lambda) -> bool:
        rows = {node.lineno, node.end_lineno}
        others = (one for one in ast.walk(self.statement.node) if isinstance(one, Node))
        return all(
            one is node or rows.isdisjoint({first_line(one), one.end_lineno}) for one in others
        )


def find(statement: Statement, code: CodeType, *, alone: bool = True) -> Definition | None:
    """Return the definition in a statement that a function's code was compiled from.

    Args:
        statement: where it may stand.
        code: of the function.
        alone: the statement was compiled alone, as IPython does, else with all of its cell, as
            files and `%%time` are: imports beside a function change its code.
    """
    if not statement.first_line <= code.co_firstlineno <= statement.last_line:
        return None
    if code.co_name.strip("<>") not in statement.cell.text:
        return None
    unit, flags = statement if alone else statement.cell, code.co_flags & _FUTURE
    inside = set(map(id, ast.walk(statement.node)))
    for found, node, after in _codes(unit, flags):
        same = found == code and found.co_qualname == code.co_qualname and id(node) in inside
        if same and list(found.co_positions()) == list(code.co_positions()):
            return Definition(statement.cell, statement, node, after)
    return None


def _dedented(lines: Lines, whole: dict[int, str], indent: str) -> Iterator[str]:
    """Take an indent off some lines of a text, but not off those that begin in a string.

    Args:
        lines: the text.
        whole: the lines, by number, as they are to be.
        indent: what is taken off.
    """
    for number, line in whole.items():
        if number in lines.in_string:
            yield line
        else:
            here = indent_of(line)
            yield line[len(indent) :] if line.startswith(indent) else line[len(here) :]


@functools.lru_cache(maxsize=1024)
def _codes(unit: Statement | Cell, flags: int) -> tuple[tuple[CodeType, Node, int], ...]:
    """Return the code of each definition, its tree, and what stands before it.

    All lambdas of a line begin there, and the places inside their code differ between versions
    of Python: they are compiled again, each on a line of its own.
    """
    nodes = [unit.node] if isinstance(unit, Statement) else unit.tree.body
    after = unit.after if isinstance(unit, Statement) else 0
    apart = copy.deepcopy(nodes)
    for line, (one, _) in enumerate(_defined(apart, after), _FAR):
        if isinstance(one, ast.Lambda):
            one.lineno = one.end_lineno = line
            one.col_offset = one.end_col_offset = 0
    known: dict[Any, tuple[Node, int]] = {
        line if isinstance(one[0], ast.Lambda) else (first_line(one[0]), one[0].name): one
        for line, one in enumerate(_defined(nodes, after), _FAR)
    }
    codes = zip(_compiled(nodes, flags), _compiled(apart, flags), strict=False)
    keys = (
        (code, far.co_firstlineno)
        if code.co_name == "<lambda>"
        else (code, (code.co_firstlineno, code.co_name))
        for code, far in codes
    )
    return tuple((code, *known[key]) for code, key in keys if key in known)


def _compiled(nodes: list[ast.stmt], flags: int) -> tuple[CodeType, ...]:
    """Return the code objects of statements in the order of the compiler."""
    flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = compile(ast.Module(nodes, []), "<cell>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):  # `return` outside a function, and so on
        return ()
    return tuple(_inner(whole))


def _inner(code: CodeType) -> Iterator[CodeType]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield value
            yield from _inner(value)


def _defined(nodes: Iterable[ast.AST], after: int) -> Iterator[tuple[Node, int]]:
    """Return what is defined in nodes, the outer before the inner, and what stands before it."""
    for node in nodes:
        if isinstance(node, Node):
            yield node, after
        yield from _defined(ast.iter_child_nodes(node), getattr(node, "lineno", after))
        if isinstance(node, ast.stmt):
            after = node.end_lineno or after


def _named(head: str, name: str, parameters: Sequence[str], *, comma: bool) -> str:
    """Return the text of a definition with another name, and parameters before its own."""
    found = _HEAD.search(head)
    assert found is not None
    first, last = found.span("name")
    at, words = found.end(), ", ".join(parameters)
    if parameters and comma:
        words += "," if head[at : at + 1].isspace() else ", "
    return head[:first] + name + head[last:at] + words + head[at:]


def _comments(lines: Lines, node: ast.Lambda) -> tuple[list[str], str]:
    """Return the comments above a lambda's first line, and the one at the end of its last."""
    indent = indent_of(lines[node.lineno])
    above = lines.block_above(node.lineno, indent)
    found = [lines[number][len(indent) :] for number in range(above, node.lineno)]
    last = [one for one in lines.tokens if one.start[0] == node.end_lineno]
    ends = [one.string for one in last if one.string.startswith("#")]
    return found, "".join(f"  {text}" for text in ends)


# -- All cells -------------------------------------------------------------------------------------
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
        """Return the newest definition that a code object was compiled from, or None."""
        return _found(self._own(code), code) or _found(self._newest, code)

    def candidates(self, code: CodeType) -> list[Statement]:
        """List the statements that a code object may come from, the likeliest first."""
        return [*self._own(code), *self._newest]

    def _own(self, code: CodeType) -> list[Statement]:
        """List the statements of the cells with the text that a code object was compiled from."""
        text = "".join(linecache.getlines(code.co_filename))
        return [one for one in self._newest if one.cell.text == text]

    def imports(self, package: str = "") -> list[Import]:
        """List the imports of modules and members, newest first.

        Args:
            package: what relative ones begin at; without one they are left out.
        """
        return [
            one
            for statement in self._newest
            if statement.cell.binds
            for one in reversed(list(imports_in([statement.node], package)))
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
    """Return the cells of the notebook that is running; there are none outside of IPython."""
    ip = shell()
    return Cells(()) if ip is None else Cells(_recorded(History.of(ip)))


def of_file(path: str | Path) -> Cells:
    """Return a script or module as one cell.

    Raises:
        OSError: it cannot be read.
        SyntaxError: its encoding is unknown.
    """
    path = Path(path)
    with tokenize.open(path) as file:
        return Cells([Cell(path.name, 0, file.read())])


def _recorded(history: History) -> Iterator[Cell]:
    flags = 0
    for one in history.executions():
        cell = Cell(f"In[{one.count}]", one.order, one.text or "", flags)
        flags = cell.flags
        yield cell.unwrapped()


def _found(statements: Sequence[Statement], code: CodeType) -> Definition | None:
    tried = (find(one, code, alone=alone) for alone in (True, False) for one in statements)
    return next((one for one in tried if one is not None), None)


def imports_in(nodes: Iterable[ast.AST], package: str = "") -> Iterator[Import]:
    """Return the imports in code, outside of functions and classes, as those of a package."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                yield Import(one.name, None, one.asname)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            for one in node.names if package or not node.level else ():
                yield Import(resolve_name(name, package), one.name, one.asname)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from imports_in(ast.iter_child_nodes(node), package)
