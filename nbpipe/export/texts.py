"""Definitions: the text of a function or class, found by its code object."""

from __future__ import annotations

import ast
import copy
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import TypeGuard

from .lambdas import lambda_text
from .lines import Lines, indent_of
from .statements import FUTURE, Cell, Statement, cut_end, first_line, start_line

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
        """Give its source, not indented, with its decorators and comments; a lambda as a def.

        Args:
            name: what it is to be called; a lambda needs one.
        """
        return self._text(name, ())

    def with_parameters(self, names: list[str], name: str) -> str:
        """Give its source with further parameters in front.

        Args:
            names: of the parameters.
            name: what the function is to be called.
        """
        return self._text(name, tuple(names))

    def _text(self, name: str | None, parameters: tuple[str, ...]) -> str:
        lines = self.cell.lines
        if isinstance(self.node, ast.Lambda):
            alone = self._is_alone(self.node)
            return lambda_text(lines, self.node, name or "function", parameters, alone=alone)
        first = start_line(lines, self.node)
        indent = indent_of(lines[first])
        above = max(lines.block_above(first, indent), self.after + 1)
        last = self.node.end_lineno or self.line
        whole = {n: lines[n] for n in range(above, max(last, lines.tail(last, indent)) + 1)}
        whole[last] = cut_end(lines, self.node)
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
    """Give the definition in a statement that a function's code was compiled from.

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
    unit, flags = statement if alone else statement.cell, code.co_flags & FUTURE
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
    """Give line and column of the lambda that a code object was compiled from.

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
    """Give the code objects of statements in the order of the compiler."""
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
    """Give what is defined in a node, the outer before the inner, and what stands before it."""
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
    """Give where the name of a definition stands, and where its parameters begin."""
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
    """Give parameters as they are put before those of a function."""
    words = ", ".join(names)
    if not any((args.posonlyargs, args.args, args.vararg, args.kwonlyargs, args.kwarg)):
        return words
    return words + ("," if not rest or rest[0].isspace() else ", ")
