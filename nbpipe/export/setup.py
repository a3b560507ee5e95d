"""Setup: cells that are marked `#| nbpipe: setup` are kept whole, above everything else."""

from __future__ import annotations

import ast
import re

from .cells import Cell, Statement
from .collect import Collector
from .definitions import read
from .model import Import, Piece, Spelling
from .scope import Scope, is_local
from .secrets import secret_in_text
from .uses import Use, refusal, secret_refusal

_MARK = re.compile(r"[ \t]*#\|[ \t]*nbpipe:.*")


def collect_setup(collector: Collector, scope: Scope) -> None:
    """Collect the set-up cells of a notebook, and what they use.

    Raises:
        ExportError: one of them holds a shell line or a secret, or uses what cannot be exported.
    """
    newest: dict[str, Cell] = {}
    for cell in scope.cells.cells:
        if cell.is_setup:
            newest[cell.text] = cell  # a cell that was run twice is one
    for cell in newest.values():
        _collect(collector, scope, cell)


def _collect(collector: Collector, scope: Scope, cell: Cell) -> None:
    use = Use(f"the set-up cell [{cell.place}]")
    if cell.shell_lines:
        raise refusal(
            "a shell/magic line (`!`, `%`) is inside a set-up cell; use subprocess or plain Python",
            use,
        )
    if secret_in_text(cell.text):
        raise secret_refusal("a set-up cell", use, text=cell.text)
    leading, rest = _parted(cell)
    for statement in leading:
        _import(collector, statement.node)
    if not rest:
        return
    names = sorted({name for one in rest for name in one.binds})
    for name in names:
        collector.found.owners[name] = scope
    now: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()
    for one in rest:
        reads = read(collector, scope, one.node, cell.flags, use)
        now, later = now | reads[0], later | reads[1]
    order = (cell.order, rest[0].number)
    spelling = Spelling(_text(rest), now - set(names), later - set(names))
    piece = Piece((*names, f"<{cell.place}>"), (spelling,), {}, "setup", order, use.words)
    collector.add(piece, scope)


def _parted(cell: Cell) -> tuple[list[Statement], list[Statement]]:
    """Part a cell into the imports that it begins with, and the rest."""
    statements = list(cell.statements)
    count = 0
    while count < len(statements) and isinstance(
        statements[count].node, ast.Import | ast.ImportFrom
    ):
        count += 1
    return statements[:count], statements[count:]


def _import(collector: Collector, node: ast.stmt) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            line = Import(alias.name, None, alias.asname, is_local(alias.name))
            collector.add_import(line)
    elif isinstance(node, ast.ImportFrom) and node.module not in (None, "__future__"):
        for alias in node.names:
            module = str(node.module)
            collector.add_import(Import(module, alias.name, alias.asname, is_local(module)))


def _text(statements: list[Statement]) -> str:
    """Give the text of statements as it stands, without the mark."""
    lines = [line for one in statements for line in one.text.split("\n")]
    return "\n".join(line for line in lines if not _MARK.fullmatch(line))
