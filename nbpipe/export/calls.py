"""Calls: the call in the user's text that made a stage."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

from ..stage import Stage
from .cells import Cells, Statement


class Called(NamedTuple):
    """The call that made a stage.

    Attributes:
        statement: where it stands.
        node: the call.
        is_global: it stands outside of functions, so its names are global.
    """

    statement: Statement
    node: ast.Call
    is_global: bool

    def text(self, keyword: str = "") -> str:
        """Give the source of an argument: the first, or one that was named."""
        node = self.argument(keyword)
        found = None if node is None else ast.get_source_segment(self.statement.cell.text, node)
        return found or ""

    def argument(self, keyword: str = "") -> ast.expr | None:
        """Give an argument: the first, unless it is unpacked, or one that was named."""
        if keyword:
            return next((one.value for one in self.node.keywords if one.arg == keyword), None)
        if not self.node.args or isinstance(self.node.args[0], ast.Starred):
            return None
        return self.node.args[0]


def call_of(stage: Stage, cells: Cells, method: str) -> Called | None:
    """Find the call that made a stage; None where it is not to be found, or may be another.

    The start of a chained call is not known to the compiler: its end is.

    Args:
        stage: the stage.
        cells: the text.
        method: name of the function or method that was called.
    """
    if stage.made_at is None:
        return None
    code, at = stage.made_at.code, stage.made_at.offset
    line, end_line, _, end = list(code.co_positions())[at // 2]
    if line is None or end_line is None:
        return None
    for statement in _places(code, cells, end_line):
        for node in ast.walk(statement.node):
            if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == (
                end_line,
                end,
            ):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                if name == method:
                    return Called(statement, node, code.co_name == "<module>")
    return None


def _places(code: CodeType, cells: Cells, line: int) -> Iterator[Statement]:
    """Give the statements that may hold a line of a code object, newest first."""
    if code.co_name != "<module>":
        found = cells.definition(code)
        if found is not None:
            yield found.statement
        return
    for cell in reversed(cells.cells):
        for statement in cell.statements:
            if statement.first_line <= line <= statement.last_line and _has(statement, code):
                yield statement


def _has(statement: Statement, code: CodeType) -> bool:
    """Say whether a code object may have been compiled from a statement: it reads its names."""
    names = {node.id for node in ast.walk(statement.node) if isinstance(node, ast.Name)}
    outer = names & set(code.co_names)
    return bool(outer) or not names
