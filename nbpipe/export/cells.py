"""Cells: what was executed in the notebook, and what text the live code came from."""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import linecache
import re
import threading
import tokenize
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenInfo
from types import CodeType
from typing import Any, TypeGuard

from .module import Import
from .source import (
    Lines,
    body_of,
    bound_names,
    indent_of,
    last_name,
    line_of,
    lines_of,
    shell,
    shell_calls,
    transformed,
    tree_of,
)

# -- History of a notebook: the text of the cells that IPython has executed, in order --------------
# It is heard while it happens, as IPython keeps neither the order of repeated cells nor how far a
# failed one came; what happened before is taken from IPython's own history. Only texts are kept.
_MOST = 20_000  # executions
_NOWHERE = -1


@dataclass(slots=True)
class Executed:
    """One execution of a cell.

    Attributes:
        raw: the cell as the user wrote it; empty where it is not known.
        text: what IPython made of it; None where it does not say.
        count: the number of the cell, as in `In[4]`; None until it is known.
        flags: `__future__` flags in force when it began; None where they are not known.
        parent: order of the cell that ran it, as `%%capture` does.
        stored: IPython notes it in its own history.
        stopped: lines that raised: of the cell, then of the body of `%%time` in it.
        failed: nothing of it was executed.
    """

    raw: str
    text: str | None
    count: int | None = None
    flags: int | None = None
    parent: int | None = None
    stored: bool = True
    stopped: tuple[int, ...] = ()
    failed: bool = False


class History:
    """What one shell has executed.

    Of executions of the same text the first and the last are kept.

    Args:
        ip: IPython's shell.
    """

    def __init__(self, ip: Any) -> None:
        self._ip: Callable[[], Any] = weakref.ref(ip)
        self._executions: dict[int, Executed] = {}  # by order
        self._orders: dict[str, tuple[int, int]] = {}  # first and last execution of a text
        self._under_way: dict[int, list[tuple[str, int]]] = {}  # by thread: raw text, order
        self._next = 0
        self._seen = 0  # cells of IPython's own history
        self.listens = False

    @classmethod
    def of(cls, ip: Any) -> History:
        """Return the history of a shell."""
        if ip not in _histories:
            _histories[ip] = cls(ip)
        return _histories[ip]

    # -- listening ------------------------------------------------------------------------
    def listen(self, running: str | None) -> None:
        """Take what was before; from now on, `begin` and `end` are called.

        Args:
            running: the cell that is under way; None where there is none.
        """
        self.fill()
        self.listens = True
        if running is not None:
            self._adopt(running)

    def rest(self) -> None:
        """Take no more cells; what was taken stays."""
        self.listens = False
        self._under_way.clear()
        self._seen = len(_inputs(self._ip()))

    def begin(self, cell: Any) -> None:
        """Called when a cell is about to run."""
        raw = cell.raw_cell
        ip = self._ip()
        under_way = self._under_way.setdefault(threading.get_ident(), [])
        parent = under_way[-1][1] if under_way else None
        execution = Executed(raw, getattr(cell, "transformed_cell", None), parent=parent)
        execution.flags = _flags(ip)
        execution.stored = getattr(cell, "store_history", True)
        execution.count = None if execution.stored else getattr(ip, "execution_count", None)
        under_way.append((raw, self._add(execution)))

    def end(self, result: Any) -> None:
        """Called when a cell has run."""
        info = getattr(result, "info", None)
        under_way = self._under_way.get(threading.get_ident(), [])
        found = [n for n, (raw, _) in enumerate(under_way) if info is None or raw == info.raw_cell]
        if not found:  # an empty cell ends without having begun
            return
        execution = self._executions.get(under_way[found[-1]][1])
        del under_way[found[-1] :]
        if execution is not None and result is not None:
            count = getattr(result, "execution_count", None)
            execution.count = execution.count if count is None else count
            execution.failed = getattr(result, "error_before_exec", None) is not None
            execution.stopped = self._stopped(getattr(result, "error_in_exec", None))

    # -- asking ---------------------------------------------------------------------------
    def executions(self) -> list[tuple[int, Executed]]:
        """List what was executed, oldest first, each with its order."""
        if not self.listens:
            self.fill()
        return list(self._executions.items())

    def count(self, order: int) -> int:
        """Return the number of a cell; of one that another cell ran, the number of that one."""
        execution = self._executions[order]
        if execution.parent in self._executions:
            return self.count(execution.parent)
        return self._noted(execution) if execution.count is None else execution.count

    def text(self, execution: Executed) -> str:
        """Return what IPython made of a cell, and remember it."""
        if execution.text is None:
            noted = _inputs(self._ip())
            count = self._noted(execution) if execution.count is None else execution.count
            found = noted[count] if execution.stored and 0 < count < len(noted) else ""
            execution.text = f"{found}\n" if found else transformed(execution.raw)
        return execution.text

    def fill(self) -> None:
        """Take what IPython has noted since it was last asked."""
        inputs = _inputs(self._ip())
        for count in range(max(self._seen, 1), len(inputs)):
            if inputs[count].strip():
                self._add(Executed("", f"{inputs[count]}\n", count=count))
        self._seen = len(inputs)

    # -- details --------------------------------------------------------------------------
    def _noted(self, execution: Executed) -> int:
        """Return the number of a cell that is under way."""
        noted = _inputs(self._ip(), "input_hist_raw")
        raw = execution.raw.rstrip("\n")
        return next((n for n in reversed(range(len(noted))) if noted[n] == raw), len(noted) - 1)

    def _add(self, execution: Executed) -> int:
        order = self._next
        self._next += 1
        self._executions[order] = execution
        key = execution.raw or execution.text or ""
        first, last = self._orders.get(key, (order, _NOWHERE))
        if last not in (_NOWHERE, first) and not self._is_running(last):
            self._executions.pop(last, None)
        self._orders[key] = (first, order)
        if len(self._executions) > _MOST:
            self._forget_oldest()
        return order

    def _forget_oldest(self) -> None:
        oldest = self._executions.pop(next(iter(self._executions)))
        self._orders.pop(oldest.raw or oldest.text or "", None)

    def _is_running(self, order: int) -> bool:
        return any(order == one for cells in self._under_way.values() for _, one in cells)

    def _adopt(self, running: str) -> None:
        """Take note of the cell that was under way before there was anyone to hear of it."""
        if not running.strip():
            return
        ip = self._ip()
        noted = _inputs(ip, "input_hist_raw")
        last = max(self._executions, default=_NOWHERE)
        if last == _NOWHERE or not noted or noted[-1].rstrip("\n") != running.rstrip("\n"):
            count = getattr(ip, "execution_count", None)
            last = self._add(Executed(running, None, count=count, stored=False))
        self._under_way.setdefault(threading.get_ident(), []).append((running, last))

    def _stopped(self, error: BaseException | None) -> tuple[int, ...]:
        """Return the lines of the user's module that raised, the outermost first."""
        names = getattr(self._ip(), "user_ns", None)
        trace = None if error is None else error.__traceback__
        lines = []
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code.co_name == "<module>" and frame.f_globals is names:
                lines.append(trace.tb_lineno)
            trace = trace.tb_next
        return tuple(lines)


def _silent_text(filename: str) -> tuple[str, int] | None:
    """Return a text that IPython compiled without a word, and the number of the cell it had."""
    compiler = getattr(shell(), "compile", None)
    count = getattr(compiler, "_filename_map", {}).get(filename)
    entry = linecache.cache.get(filename)
    if count is None or entry is None or len(entry) < 3:  # noqa: PLR2004  not a lazy entry
        return None
    return "".join(entry[2]), count


def _inputs(ip: Any, name: str = "input_hist_parsed") -> list[str]:
    return getattr(getattr(ip, "history_manager", None), name, None) or []


def _flags(ip: Any) -> int | None:
    return getattr(getattr(ip, "compile", None), "flags", None)


_histories: weakref.WeakKeyDictionary[Any, History] = weakref.WeakKeyDictionary()


# -- Cells that were executed, and their statements; parsed when they are first asked for ----------
# Flags of `__future__`; that of nested scopes says of a code object that it is nested.
_FUTURE = sum(
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

    def body(self) -> Cell | None:
        """Return the body of a cell such as `%%time` as a cell; None for other cells."""
        found = body_of(self.tree)
        if found is None:
            return None
        stopped = self.stopped[1:]
        body = Cell(self.place, self.order, found.text, self.before, stopped, found.binds)
        return body if body.compiles() else None

    def unwrapped(self) -> Cell:
        """Return the innermost body of a cell; a cell that is no magic is given back."""
        body = self.body()
        return self if body is None else body.unwrapped()

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
        first = _start_line(lines, self.node)
        start = 0 if first < self.node.lineno else lines.column(first, self.node.col_offset)
        shares = bool(lines[first][:start].strip()) or first == self.after
        above = first if shares else max(lines.block_above(first, ""), self.after + 1)
        tail = self.last_line
        if hasattr(self.node, "body") or isinstance(self.node, ast.Match):
            tail = max(tail, lines.tail(tail, ""))
        whole = [lines[number] for number in range(above, self.last_line)]
        whole.append(_cut_end(lines, self.node))
        whole[first - above] = whole[first - above][start:].lstrip(" \t\f")
        return "\n".join(whole + [lines[n] for n in range(self.last_line + 1, tail + 1)])


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
    for node in (_tree(text) or ast.Module([], [])).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            features = (getattr(__future__, alias.name, None) for alias in node.names)
            flags |= sum(one.compiler_flag for one in features if one is not None)
    return flags


# -- Definitions: the text of a function or class, found by its code object ------------------------
Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
_FAR = 1 << 20  # a line that no text has


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

    def text(self, name: str | None = None) -> str:
        """Return its source, not indented, with its decorators and comments; a lambda as a def.

        Args:
            name: what it is to be called; a lambda needs one.
        """
        return self._text(name, ())

    def with_parameters(self, names: list[str], name: str) -> str:
        """Return its source with further parameters in front.

        Args:
            names: of the parameters.
            name: what the function is to be called.
        """
        return self._text(name, tuple(names))

    def _text(self, name: str | None, parameters: tuple[str, ...]) -> str:
        lines = self.cell.lines
        if isinstance(self.node, ast.Lambda):
            alone = self._is_alone(self.node)
            return _lambda_text(lines, self.node, name or "function", parameters, alone=alone)
        first = _start_line(lines, self.node)
        indent = indent_of(lines[first])
        above = max(lines.block_above(first, indent), self.after + 1)
        last = self.node.end_lineno or self.line
        whole = {n: lines[n] for n in range(above, max(last, lines.tail(last, indent)) + 1)}
        whole[last] = _cut_end(lines, self.node)
        for row, start, end, words in self._edits(self.node, name, parameters):
            whole[row] = whole[row][:start] + words + whole[row][end:]
        return "\n".join(dedented(lines, whole, indent))

    def _edits(
        self, node: ast.stmt, name: str | None, parameters: tuple[str, ...]
    ) -> list[tuple[int, int, int, str]]:
        """List what is to be changed, the last first: line, from, to, new words."""
        edits: list[tuple[int, int, int, str]] = []
        named, opened = _head(self.cell.lines, node)
        if parameters and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            row, at = opened
            edits.append((row, at, at, _leading(node.args, parameters, self.cell.lines[row][at:])))
        if name is not None:
            row, start, end = named
            edits.append((row, start, end, name))
        return edits

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
    for number, found in enumerate(_codes(unit, flags)):
        same = found == code and found.co_qualname == code.co_qualname
        if same and list(found.co_positions()) == list(code.co_positions()):
            is_lambda = code.co_name == "<lambda>"
            place = _place(unit, flags, number) if is_lambda else None
            return _definition(statement, code, place)
    return None


def dedented(lines: Lines, whole: dict[int, str], indent: str) -> Iterator[str]:
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
def _codes(unit: Statement | Cell, flags: int) -> tuple[CodeType, ...]:
    return _compiled(_nodes(unit), flags)


def _nodes(unit: Statement | Cell) -> list[ast.stmt]:
    return [unit.node] if isinstance(unit, Statement) else unit.tree.body


def _place(unit: Statement | Cell, flags: int, number: int) -> tuple[int, int] | None:
    """Return line and column of the lambda that a code object was compiled from.

    All lambdas of a line begin there, and the places inside their code differ between versions
    of Python: they are compiled again, each on a line of its own.
    """
    nodes = _nodes(unit)
    apart = copy.deepcopy(nodes)
    for line, one in enumerate(_lambdas(apart), _FAR):
        one.lineno = one.end_lineno = line
        one.col_offset = one.end_col_offset = 0
    codes, lambdas = _compiled(apart, flags), list(_lambdas(nodes))
    found = codes[number].co_firstlineno - _FAR if number < len(codes) else -1
    if not 0 <= found < len(lambdas):
        return None
    return lambdas[found].lineno, lambdas[found].col_offset


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


def _definition(
    statement: Statement, code: CodeType, place: tuple[int, int] | None
) -> Definition | None:
    found = [
        Definition(statement.cell, statement, node, after)
        for node, after in _defined(statement.node, statement.after)
        if first_line(node) == code.co_firstlineno
        and code.co_name == getattr(node, "name", "<lambda>")
    ]
    exact = [one for one in found if (one.node.lineno, one.node.col_offset) == place]
    return next(iter(exact or found), None)


def _lambdas(nodes: list[ast.stmt]) -> Iterator[ast.Lambda]:
    return (one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Lambda))


def _defined(node: ast.AST, after: int) -> Iterator[tuple[Node, int]]:
    """Return what is defined in a node, the outer before the inner, and what stands before it."""
    if _is_node(node):
        yield node, after
    line = getattr(node, "lineno", after)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _defined(child, line)
            line = child.end_lineno or line
        else:
            yield from _defined(child, line)


def _is_node(node: ast.AST) -> TypeGuard[Node]:
    return isinstance(node, Node)


def _head(lines: Lines, node: ast.stmt) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return where the name of a definition stands, and where its parameters begin."""
    start = (node.lineno, lines.column(node.lineno, node.col_offset))
    tokens = iter([one for one in lines.tokens if one.start >= start])
    next(one for one in tokens if one.string in {"def", "class"})
    named = next(tokens)
    depth = 0  # in `def f[T](x)` the parameters of types come first
    for one in tokens:
        depth += (one.string == "[") - (one.string == "]")
        if not depth and one.string in {"(", ":"}:
            break
    return (named.start[0], named.start[1], named.end[1]), one.end


def _leading(args: ast.arguments, names: tuple[str, ...], rest: str) -> str:
    """Return parameters as they are put before those of a function."""
    words = ", ".join(names)
    if not any((args.posonlyargs, args.args, args.vararg, args.kwonlyargs, args.kwarg)):
        return words
    return words + ("," if not rest or rest[0].isspace() else ", ")


# -- Lambdas, written as functions with a name -----------------------------------------------------
_STEP = "    "


def _lambda_text(
    lines: Lines, node: ast.Lambda, name: str, parameters: tuple[str, ...], *, alone: bool
) -> str:
    """Return a lambda as a `def` that returns its body.

    Args:
        lines: the text that it stands in.
        node: the lambda.
        name: of the function.
        parameters: what is put before its own.
        alone: it has its lines to itself, and with them their comments.
    """
    start = (node.lineno, lines.column(node.lineno, node.col_offset))
    last = node.end_lineno or node.lineno
    end = (last, lines.column(last, node.end_col_offset or 0))
    tokens = [one for one in lines.tokens if start <= one.start and one.end <= end]
    colon = _colon(tokens)
    own = _joined(_cut(lines, tokens[0].end, colon.start)).strip()
    head = ", ".join([*parameters, *([own] if own else [])])
    body = _body(lines, colon.end, end)
    above, after = _comments(lines, node) if alone else ([], "")
    return "\n".join([*above, f"def {name}({head}):", f"{_STEP}return {body}{after}"])


def _colon(tokens: list[TokenInfo]) -> TokenInfo:
    """Return the colon that ends the parameters; defaults may hold lambdas and brackets."""
    depth = waiting = 0
    for one in tokens:
        depth += (one.string in {"(", "[", "{"}) - (one.string in {")", "]", "}"})
        waiting += one.string == "lambda" and not depth
        if one.string == ":" and not depth:
            waiting -= 1
            if not waiting:
                return one
    raise ValueError("a lambda has a colon")


def _cut(lines: Lines, start: tuple[int, int], end: tuple[int, int]) -> dict[int, str]:
    whole = {number: lines[number] for number in range(start[0], end[0] + 1)}
    whole[end[0]] = whole[end[0]][: end[1]]
    whole[start[0]] = whole[start[0]][start[1] :]
    return whole


def _joined(whole: dict[int, str]) -> str:
    return "\n".join(whole.values())


def _body(lines: Lines, start: tuple[int, int], end: tuple[int, int]) -> str:
    whole = _cut(lines, start, end)
    first = next(number for number, line in whole.items() if line.strip(" \t\f\\"))
    whole = {number: line for number, line in whole.items() if number >= first}
    whole[first] = whole[first].strip(" \t\f") if len(whole) == 1 else whole[first].lstrip(" \t\f")
    wraps = len(whole) > 1 and not _stands_alone(_joined(whole))
    movable = [n for n in whole if n > first and n not in lines.in_string and whole[n].strip()]
    least = min((len(indent_of(whole[n])) for n in movable), default=0)
    step = _STEP * 2 if wraps else _STEP
    for number in movable:
        whole[number] = step + whole[number][least:]
    return f"({_joined(whole)})" if wraps else _joined(whole)


def _stands_alone(text: str) -> bool:
    """Tell whether `return text` returns all of it."""
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


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
        text = "".join(linecache.getlines(code.co_filename))
        same = [one for one in self._newest if one.cell.text == text]
        return _found(same, code) or _found(self._newest, code) or _silent(code)

    def imports(self) -> list[Import]:
        """List the imports of modules and members, newest first; relative ones are left out."""
        return [
            one
            for statement in self._newest
            if statement.cell.binds
            for one in reversed(list(imports_in([statement.node])))
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
    executions = history.executions()
    heard = {(one.parent, history.text(one)) for _, one in executions if one.parent is not None}
    flags = 0
    for order, one in executions:
        if one.failed:
            continue
        before = flags if one.flags is None else one.flags & _FUTURE
        place = f"In[{history.count(order)}]"
        cell = Cell(place, order, history.text(one), before, one.stopped)
        if cell.compiles():
            flags = cell.flags
            yield from _unwrapped(cell, heard)


def _unwrapped(cell: Cell, heard: Collection[tuple[int | None, str]]) -> Iterator[Cell]:
    """Return the innermost body of a cell, or nothing where a body was heard as a cell itself."""
    body = cell.body()
    if body is None:
        yield cell
    elif (cell.order, body.text) not in heard:
        yield from _unwrapped(body, heard)


def _silent(code: CodeType) -> Definition | None:
    """Look for a code object in the cells that IPython executes and does not speak of."""
    found = _silent_text(code.co_filename)
    if found is None:
        return None
    cells = [Cell(f"In[{found[1]}]", -1, found[0])]
    bodies = (cell.unwrapped() for cell in cells if cell.compiles())
    return _found([one for cell in bodies for one in cell.statements], code)


def _found(statements: Sequence[Statement], code: CodeType) -> Definition | None:
    tried = (find(one, code, alone=alone) for alone in (True, False) for one in statements)
    return next((one for one in tried if one is not None), None)


def imports_in(nodes: Iterable[ast.AST], *, for_types: bool = False) -> Iterator[Import]:
    """Return the imports in code, outside of functions and classes, without relative ones."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                yield Import(one.name, None, one.asname, for_types=for_types)
        elif isinstance(node, ast.ImportFrom):
            for one in () if node.level else node.names:
                yield Import(str(node.module), one.name, one.asname, for_types=for_types)
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from imports_in(node.body, for_types=True)
            yield from imports_in(node.orelse, for_types=for_types)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from imports_in(ast.iter_child_nodes(node), for_types=for_types)


def _is_type_checking(test: ast.expr) -> bool:
    return last_name(test) == "TYPE_CHECKING"
