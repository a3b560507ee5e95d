"""Statements: what each statement of a cell reads, binds and changes, and its source."""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import functools
import inspect
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from .secrets import redacted_source
from .source import Function, Lines, edited, indent_of, last_name, lines_of, tree_of

# -- Trees -----------------------------------------------------------------------------------------
Definition = Function | ast.ClassDef


def root_name(node: ast.AST) -> str | None:
    """Return the variable that an expression of dots, brackets and calls begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def executed_with(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what is executed with a statement: all of it but the bodies of functions."""
    yield node
    if isinstance(node, Function | ast.Lambda):
        parts: Iterable[ast.AST] = (*getattr(node, "decorator_list", ()), node.args)
    else:
        parts = ast.iter_child_nodes(node)
    for part in parts:
        yield from executed_with(part)


# -- Names: what code binds, what it reads now, and what its functions read when they are called ---
_READS = frozenset(("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"))
_OF_PYTHON = frozenset(("__annotations__", "__conditional_annotations__"))
_NO_TYPES = frozenset(("Annotated", "Literal"))  # a text in their brackets names no type


class _Names:
    """The global names that a statement uses: Python's own compiler tells them from local ones."""

    def __init__(self, node: ast.stmt, flags: int) -> None:
        self.binds: set[str] = set()
        self.reads: set[str] = set()
        self.reads_later: set[str] = set()
        self.sets_later: set[str] = set()  # by `global` in functions
        flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                code = compile(ast.Module([node], []), "<cell>", "exec", flags, dont_inherit=True)
        except (SyntaxError, ValueError):  # `return` outside a function, and the like
            return
        self._read(code, self.binds, is_later=False)
        self.reads -= _OF_PYTHON
        self.binds -= _OF_PYTHON

    def _read(self, code: CodeType, own: set[str], *, is_later: bool) -> None:
        for step in dis.get_instructions(code):
            kind, name = step.opname, step.argval
            if isinstance(name, CodeType) and kind == "LOAD_CONST":
                self._read(name, {"__name__"}, is_later=is_later or _waits(name))
            elif kind in ("STORE_NAME", "DELETE_NAME"):
                own.add(name)
            elif kind in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                (self.sets_later if is_later else self.binds).add(name)
            elif kind in _READS and not (name in own and kind != "LOAD_GLOBAL"):
                if is_later:
                    self.reads_later.add(name)
                elif name not in self.binds:
                    self.reads.add(name)


def _waits(code: CodeType) -> bool:
    """Return whether code is executed by calls: that of functions, not of classes and the like."""
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    return is_function and (code.co_name == "<lambda>" or not code.co_name.startswith("<"))


def _annotations(node: ast.AST) -> Iterator[str]:
    """Return the names in all annotations of a statement, those written as texts included."""
    for one in ast.walk(node):
        for note in (getattr(one, "annotation", None), getattr(one, "returns", None)):
            if isinstance(note, ast.expr):
                yield from _types(note)


def _types(note: ast.AST) -> Iterator[str]:
    match note:
        case ast.Name(name):
            yield name
        case ast.Constant(str(text)):
            yield from _types(tree_of(text.strip()) or ast.Pass())
        case ast.Subscript(value) if last_name(value) in _NO_TYPES:
            yield from (one.id for one in ast.walk(note) if isinstance(one, ast.Name))
        case _:
            for child in ast.iter_child_nodes(note):
                yield from _types(child)


# -- Changes: of which names a statement changes the objects, or may change them -------------------
CHANGING = frozenset(  # methods that change their object
    (
        *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend"),
        *("extendleft", "insert", "intersection_update", "move_to_end", "pop", "popitem"),
        *("popleft", "push", "put", "put_nowait", "remove", "reverse", "rotate", "setdefault"),
        *("sort", "subtract", "symmetric_difference_update", "update", "write"),
    )
)
_CHANGES_ARGUMENT = frozenset(("setattr", "delattr", "exec", "next"))  # of the built-in functions
_KNOBS = frozenset(("concurrency", "prefetch", "depth"))


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """Return what an assignment or `del` assigns to."""
    match node:
        case ast.Assign(targets) | ast.Delete(targets):
            todo = list(targets)
        case ast.AugAssign(target) | ast.AnnAssign(target) | ast.For(target):
            todo = [target]
        case _:
            return
    while todo:
        one = todo.pop()
        if isinstance(one, ast.Tuple | ast.List):
            todo += one.elts
        else:
            yield one


def _is_knob(target: ast.expr) -> bool:
    """Recognise `pipe["decode"].concurrency`: what is set there becomes a parameter."""
    return (
        isinstance(target, ast.Attribute)
        and target.attr in _KNOBS
        and isinstance(target.value, ast.Subscript)
    )


def _changes(node: ast.stmt) -> Iterator[str]:
    """Return the names whose objects a statement changes for certain."""
    for one in executed_with(node):
        for target in _targets(one):
            is_part = isinstance(target, ast.Attribute | ast.Subscript) and not _is_knob(target)
            if is_part or isinstance(one, ast.AugAssign):
                yield root_name(target) or ""
    for mark in getattr(node, "decorator_list", ()):  # `@show.register`
        function = mark.func if isinstance(mark, ast.Call) else mark
        if isinstance(function, ast.Attribute):
            yield root_name(function) or ""


def _may_change(node: ast.stmt) -> Iterator[str]:
    """Return the names whose objects a call may change: its own object, and its arguments."""
    for one in executed_with(node):
        if isinstance(one, ast.Call):
            if isinstance(one.func, ast.Attribute) and one.func.attr != "export":
                yield root_name(one.func) or ""
            name = last_name(one.func) if isinstance(one.func, ast.Name) else ""
            if not hasattr(builtins, name) or name in _CHANGES_ARGUMENT:
                given = (*one.args, *(keyword.value for keyword in one.keywords))
                yield from (part.id for part in given if isinstance(part, ast.Name))


def changed_by(node: ast.AST) -> ast.expr | None:
    """Return the expression whose object a part of some code changes in place."""
    match node:
        case ast.Attribute(value, _, ctx) | ast.Subscript(value, _, ctx):
            return None if isinstance(ctx, ast.Load) else value
        case ast.Call(ast.Attribute(value, name)):
            in_place = name.endswith("_") and not name.endswith("__")  # of torch
            return value if name in CHANGING or in_place else None
        case ast.Call(ast.Name("next"), [given, *_]):
            return given
    return None


def _state(node: ast.stmt) -> Iterator[str]:
    """Return the global names whose objects the functions in a statement change when called."""
    for function in ast.walk(node):
        if not isinstance(function, Function | ast.Lambda):
            continue
        parts = list(ast.walk(function))
        shared = {name for one in parts if isinstance(one, ast.Global) for name in one.names}
        own = {one.arg for one in parts if isinstance(one, ast.arg)}
        stored = [one for one in parts if isinstance(one, ast.Name)]
        own |= {one.id for one in stored if isinstance(one.ctx, ast.Store)} - shared
        for one in parts:
            changed = changed_by(one)
            name = None if changed is None else root_name(changed)
            if name is not None and name not in own:
                yield name


# -- Statements ------------------------------------------------------------------------------------
_AFTER = re.compile(r"(?:[ \t\f]*;)?(?P<comment>[ \t\f]*#.*)?[ \t\f]*\\?[ \t\f]*")
_SETUP = re.compile(r"^[ \t]*#\|[ \t]*nbpipe:[ \t]*setup[ \t]*\r?$", re.MULTILINE)
_FUTURE = sum(
    getattr(__future__, name).compiler_flag
    for name in __future__.all_feature_names
    if name != "nested_scopes"
)


@dataclass(frozen=True, eq=False)
class Cell:
    """Text that was executed.

    Attributes:
        place: where it stands: "In[4]", "a cell run by In[4]", or the name of a file.
        text: as Python, its lines ended by line feeds; of `%%time` and its like the body.
        flags: of `__future__` that hold in it.
    """

    place: str
    text: str
    flags: int = 0

    @property
    def is_setup(self) -> bool:
        """Whether it holds the line `#| nbpipe: setup`."""
        return _SETUP.search(self.text) is not None


_OF_SESSION = frozenset(("get_ipython", "parse_args", "parse_known_args"))


@dataclass(eq=False)
class Statement:
    """One statement that was executed at the top level of a cell or script.

    Attributes:
        at: how many were executed before it.
        cell: where it stands.
        node: its tree, with the positions in the text of its cell.
        text: its source, with the comment at its end and those after the last line of its body.
        comments: those above it; empty for none.
        first: its first line, with its decorators.
        last: its last line.
        binds: names that it binds.
        reads: names that it reads itself.
        reads_later: names that its functions read when they are called.
        annotated: names in its annotations.
        changes: names whose objects it changes for certain.
        may_change: names whose objects its calls may change.
        calls: functions that it calls, and what it decorates or inherits with.
        state: names whose objects its functions change when they are called.
        edits: parts of its text that the module has otherwise: first and last byte, and the text.
        cuts: parts that it leaves out, likewise.
        unread: names that only those parts read.
    """

    at: int
    cell: Cell
    node: ast.stmt
    text: str
    comments: str = ""
    first: int = 0
    last: int = 0
    binds: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    reads_later: frozenset[str] = frozenset()
    annotated: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    may_change: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    state: frozenset[str] = frozenset()
    edits: list[tuple[int, int, str]] = field(default_factory=list)
    cuts: list[tuple[int, int, str]] = field(default_factory=list)
    unread: frozenset[str] = frozenset()

    @classmethod
    def of(cls, at: int, cell: Cell, node: ast.stmt, text: str, **more: Any) -> Statement:
        """Read what a statement does off its tree."""
        names = _Names(node, cell.flags)
        calls = {
            one.func.id
            for one in executed_with(node)
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
        }
        around = (*getattr(node, "decorator_list", ()), *getattr(node, "bases", ()))
        calls.update(filter(None, map(root_name, around)))
        annotated = frozenset(_annotations(node)) - names.reads
        return cls(
            at,
            cell,
            node,
            text,
            binds=frozenset(names.binds),
            reads=frozenset(names.reads),
            reads_later=frozenset(names.reads_later),
            annotated=annotated,
            changes=frozenset(_changes(node)) - {""},
            may_change=frozenset(_may_change(node)) - {""},
            calls=frozenset(calls),
            state=frozenset(_state(node)) | names.sets_later,
            **more,
        )

    @property
    def is_definition(self) -> bool:
        """Whether it defines a function or a class."""
        return isinstance(self.node, Definition)

    @property
    def is_import(self) -> bool:
        """Whether it imports."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def is_shell(self) -> bool:
        """Whether it holds a `!` or `%` line, awaits, or reads the command line.

        A module cannot do that at its top, or would get something else there.
        """
        return any(
            isinstance(one, ast.Await | ast.AsyncFor | ast.AsyncWith)
            or (isinstance(one, ast.Call) and last_name(one.func) in _OF_SESSION)
            or (isinstance(one, ast.Attribute) and ast.unparse(one) == "sys.argv")
            for one in executed_with(self.node)
        )

    @property
    def needed(self) -> frozenset[str]:
        """Names that it reads at its own time."""
        return self.reads - self.unread

    @property
    def needed_later(self) -> frozenset[str]:
        """Names that it reads when its functions are called."""
        return self.reads_later - self.unread

    @property
    def words(self) -> str:
        """What a message calls it."""
        if isinstance(self.node, Definition):
            brackets = "" if isinstance(self.node, ast.ClassDef) else "()"
            return f"{self.node.name}{brackets} [{self.cell.place}]"
        name = min(self.binds, default="")
        return f"{name or self._shortened} = ... [{self.cell.place}]" if name else self._shortened

    @property
    def _shortened(self) -> str:
        line = redacted_source(self.text).strip().split("\n")[0]
        return f"`{line[:40]}{'...' * (len(line) > 40)}` [{self.cell.place}]"  # noqa: PLR2004

    @property
    def edited(self) -> str:
        """Its text, with its edits."""
        return edited(self.text.encode(), {*self.edits, *self.cuts}).decode()

    @functools.cached_property
    def own(self) -> ast.stmt:
        """Its tree, with the positions in its own text."""
        return ast.parse(self.text).body[0]

    def of_value(self, name: str, text: str) -> Statement:
        """Return an assignment of a value, which binds a name in the place of this statement."""
        (node,) = ast.parse(text).body
        place = {"comments": self.comments, "first": self.first, "last": self.last}
        self.comments = ""
        self.binds -= {name}
        return Statement.of(self.at, self.cell, node, text, **place)


def statements_of(cell: Cell, start: int, *, until: int | None = None) -> list[Statement]:
    """Split a cell into the statements that it executes.

    Args:
        cell: it.
        start: how many statements were executed before.
        until: the line that exports: it and what follows are left out. A block around that line,
            as under `if __name__ == "__main__":`, is unwrapped.
    """
    lines = lines_of(cell.text)
    found: list[Statement] = []
    before = 0
    for node in _unwrapped((parsed(cell.text) or ast.Module([], [])).body, until):
        if until is not None and (node.end_lineno or 0) >= until:
            break
        line = _timed(node)
        if line is not None:  # `%time x = 1`
            inner = Cell(cell.place, line, cell.flags)
            found += statements_of(inner, start + len(found))
        else:
            found += _imports(cell, node, start + len(found)) or [
                _cut(cell, lines, node, start + len(found), before)
            ]
        before = node.end_lineno or node.lineno
    return found


parsed = functools.lru_cache(maxsize=1024)(tree_of)


def _unwrapped(body: list[ast.stmt], until: int | None) -> Iterator[ast.stmt]:
    """Return statements; of the block that exports, `try` or `if`, those in it."""
    for node in body:
        around = until is not None and node.lineno < until <= (node.end_lineno or 0)
        if around and isinstance(node, ast.If | ast.Try | ast.With):
            yield from _unwrapped(node.body, until)
        elif not (isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)):
            yield node


def _imports(cell: Cell, node: ast.stmt, at: int) -> list[Statement]:
    """Return an import of several names as several imports."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    first, last, found = node.lineno, node.end_lineno or node.lineno, []
    for number, alias in enumerate(node.names):
        one: ast.stmt = (
            ast.Import([alias])
            if isinstance(node, ast.Import)
            else ast.ImportFrom(node.module, [alias], node.level)
        )
        name = alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name
        binds = frozenset({alias.asname or name})
        found.append(
            Statement(at + number, cell, one, ast.unparse(one), "", first, last, binds=binds)
        )
    return found


def _cut(cell: Cell, lines: Lines, node: ast.stmt, at: int, before: int) -> Statement:
    """Return a statement with its source; `before` is the last line of the one before it, or 0."""
    marks = getattr(node, "decorator_list", ())
    first = min([node.lineno, *(mark.lineno for mark in marks)])
    while marks and not lines[first].lstrip(" \t\f").startswith("@"):  # `@(`, and the rest below
        first -= 1
    start = 0 if marks else lines.column(first, node.col_offset)
    shares = bool(lines[first][:start].strip()) or first == before
    indent = "" if shares else indent_of(lines[first])
    above = first if shares else max(lines.block_above(first, indent), before + 1)
    last = node.end_lineno or node.lineno
    ends = lines.tail(last, indent) if hasattr(node, "body") else last
    rows = {number: lines[number] for number in range(above, ends + 1)}
    end = lines.column(last, node.end_col_offset or 0)
    after = _AFTER.fullmatch(lines[last], end)
    rows[last] = lines[last][:end] + ((after["comment"] or "").rstrip() if after else "")
    rows[first] = rows[first][start:].lstrip(" \t\f")
    for number, line in rows.items():
        if number not in lines.in_string and number != first:
            rows[number] = line.removeprefix(indent) if indent else line
    texts = list(rows.values())
    return Statement.of(
        at,
        cell,
        node,
        "\n".join(texts[first - above :]),
        comments="\n".join(texts[: first - above]),
        first=first,
        last=last,
    )


# -- Magics: the Python that stands in them --------------------------------------------------------
_EXECUTING = frozenset(("time", "capture", "prun"))  # they execute their body where the cell is


def _magic(node: ast.stmt, method: str) -> list[str]:
    """Return the texts given to `get_ipython().method(...)`; empty for any other statement."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(ast.Call(ast.Name("get_ipython")), name), args)):
            values = [one.value for one in args if isinstance(one, ast.Constant)]
            return [one for one in values if isinstance(one, str)] if name == method else []
    return []


def _timed(node: ast.stmt) -> str | None:
    """Return the statement that `%time statement` executes; None for other statements."""
    match _magic(node, "run_line_magic"):
        case [name, line] if name in _EXECUTING:
            text = transformed(line.strip().removeprefix("--no-raise-error").strip())
            return text if tree_of(text) is not None else None
    return None


def body_of(text: str, transform: Callable[[str], str] | None = None) -> str | None:
    """Return what a cell executes in the notebook: of `%%time` the body, of `%%bash` nothing.

    Args:
        text: the cell, as Python.
        transform: gives the Python that IPython makes of a text; None: the shell's.
    """
    transform = transform or transformed
    tree = parsed(text)
    if tree is None:
        return None
    if len(tree.body) != 1:
        return text
    match _magic(tree.body[0], "run_cell_magic"):
        case [name, _, body]:
            return body_of(transform(body), transform) if name in _EXECUTING else None
    return text


def run_file(node: ast.stmt) -> Path | None:
    """Return the script that `%run script.py` executes, where it is still there."""
    match _magic(node, "run_line_magic"):
        case ["run", line]:
            words = [one for one in shlex.split(line) if not one.startswith("-")]
            path = Path(words[0]) if words else Path()
            return path if path.suffix == ".py" and path.is_file() else None
    return None


def runs_cells(node: ast.stmt) -> bool:
    """Return whether a statement executes other cells, as `%run other.ipynb` does."""
    calls = (last_name(one.func) for one in ast.walk(node) if isinstance(one, ast.Call))
    return bool({"run_line_magic", "run_cell", "run_cell_magic"}.intersection(calls))


def shell() -> Any:
    """Return IPython's shell, or None where there is none; IPython is not imported."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get_ipython is None else get_ipython()


def transformed(text: str) -> str:
    """Return the Python that IPython makes of a text."""
    ip = shell()
    try:
        return text if ip is None else str(ip.transform_cell(text))
    except Exception:  # noqa: BLE001  a transformer of the user's may raise anything
        return text


# -- Plain expressions -----------------------------------------------------------------------------
_PLAIN_CALLS = frozenset(
    (
        *("Path", "re.compile", "dict", "list", "tuple", "set", "frozenset", "range", "slice"),
        *("str.maketrans", "timedelta", "datetime", "ZoneInfo", "logging.getLogger"),
    )
)
_PLAIN_PARTS = (
    *(ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.Starred, ast.Attribute),
    *(ast.keyword, ast.Constant, ast.Name, ast.operator, ast.unaryop, ast.expr_context),
    *(ast.JoinedStr, ast.FormattedValue),
)


def is_plain(node: ast.AST) -> bool:
    """Return whether an expression only spells a constant, or puts some together."""
    if isinstance(node, ast.Call):
        parts = [*node.args, *node.keywords]
        return ast.unparse(node.func) in _PLAIN_CALLS and all(map(is_plain, parts))
    return isinstance(node, _PLAIN_PARTS) and all(map(is_plain, ast.iter_child_nodes(node)))
