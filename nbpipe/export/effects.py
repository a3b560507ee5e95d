"""Effects: statements of the notebook that act on what the module uses, and are not in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FunctionType, ModuleType

from ..text import shortened
from .cells import Statement
from .definitions import is_import
from .scope import Scope
from .secrets import masked

_LONGEST = 80
_RANDOM = ("random", "numpy", "torch")
# Calls that change how a module behaves; others only show or compute something.
_ACTS = (
    "seed", "manual_seed", "set_", "filterwarnings", "simplefilter", "basicConfig", "register",
    "enable", "disable", "use_deterministic", "configure", "setup", "init", "load_dotenv",
    "setlocale", "insert", "append", "update", "putenv", "setdefault", "setNumThreads",
    "add_safe_globals", "patch", "apply", "seterr",
)  # fmt: skip
_SHOWS = ("set_printoptions", "set_option")


def effects(scope: Scope, used: frozenset[str]) -> Iterator[Statement]:
    """Give the statements outside set-up cells that change a module the exported code uses.

    Args:
        scope: the notebook.
        used: names of the module that is written.
    """
    for cell in scope.cells.cells:
        if cell.is_setup:
            continue
        for statement in cell.statements:
            if not is_import(statement.node) and _acts(statement.node, scope, used):
                yield statement


def note_of(statement: Statement) -> str:
    """Say what is not in the module, and how it would be."""
    text = shortened(masked(ast.unparse(statement.node)), _LONGEST)
    return (
        f"`{text}` in {statement.cell.place} acts by side effect and is not in the module; to keep "
        "it, begin its cell with the line `#| nbpipe: setup`"
    )


def _acts(node: ast.stmt, scope: Scope, used: frozenset[str]) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        func = node.value.func
        if isinstance(func, ast.Name):
            return _seeds(scope.namespace.get(func.id), scope, used)
        if not isinstance(func, ast.Attribute):
            return False
        acts = func.attr.startswith(_ACTS) and func.attr not in _SHOWS
        return acts and _is_used_module(func, scope, used)
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(
            isinstance(target, ast.Attribute | ast.Subscript)
            and _is_used_module(target, scope, used)
            for target in targets
        )
    return False


def _seeds(function: object, scope: Scope, used: frozenset[str]) -> bool:
    """Say whether a function of the user seeds what the module draws from, as by its name."""
    if not isinstance(function, FunctionType) or "seed" not in function.__name__.lower():
        return False
    return any(_draws(scope.namespace.get(name)) for name in used)


def _draws(value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__.partition(".")[0] in _RANDOM


def _is_used_module(node: ast.expr, scope: Scope, used: frozenset[str]) -> bool:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Name):
        return False
    value = scope.namespace.get(node.id)
    shown = isinstance(value, ModuleType) and value.__name__.startswith(("matplotlib", "IPython"))
    return (
        (node.id in used or _reaches(node.id, scope, used))
        and not shown
        and isinstance(value, ModuleType | type)
    )


def _reaches(name: str, scope: Scope, used: frozenset[str]) -> bool:
    """Say whether a name stands for a package that the module uses under another name."""
    value = scope.namespace.get(name)
    if not isinstance(value, ModuleType):
        return False
    top = value.__name__.partition(".")[0]
    everywhere = top in ("os", "sys", "random", "warnings")
    return everywhere or any(
        isinstance(scope.namespace.get(one), ModuleType)
        and scope.namespace[one].__name__.partition(".")[0] == top
        for one in used
    )
