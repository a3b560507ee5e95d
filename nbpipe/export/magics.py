"""What IPython makes of magic and shell lines, and the Python that stands in them."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from typing import Any

# They execute their body in the user's namespace.
_EXECUTING = frozenset({"time", "capture", "prun"})
_CALLS = frozenset({"system", "getoutput", "run_line_magic", "run_cell_magic", "magic"})
_OPTIONS = ("--no-raise-error",)  # of `%time`


@dataclass(frozen=True, slots=True)
class Body:
    """What stands in a cell below a line such as `%%time`.

    Attributes:
        text: it, as IPython compiles it.
        binds: it is executed in the user's namespace.
    """

    text: str
    binds: bool


def body_of(tree: ast.Module) -> Body | None:
    """Give the body of a cell that is one cell magic; None for other cells."""
    if len(tree.body) != 1:
        return None
    found = _arguments(tree.body[0], "run_cell_magic")
    if found is None or len(found) != 3:  # noqa: PLR2004  name, line, body
        return None
    return Body(transformed(found[2]), found[0] in _EXECUTING)


def line_of(node: ast.stmt) -> str | None:
    """Give the statement that `%time statement` executes; None for other statements."""
    found = _arguments(node, "run_line_magic")
    if found is None or len(found) < 2 or found[0] not in _EXECUTING:  # noqa: PLR2004
        return None
    line = found[1].strip()
    for option in _OPTIONS:
        line = line.removeprefix(option).strip()
    return transformed(line)


def shell_calls(tree: ast.AST) -> frozenset[int]:
    """Give the lines that call IPython for a `!` or `%` line."""
    return frozenset(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _method(node) in _CALLS
    )


def shell() -> Any:
    """Give IPython's shell, or None where there is none; IPython is not imported."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get_ipython is None else get_ipython()


def transformed(text: str) -> str:
    """Give what IPython makes of a text."""
    ip = shell()
    if ip is None:
        return text
    try:
        return str(ip.transform_cell(text))
    except Exception:  # noqa: BLE001  transformers of the user's may raise anything
        return text


def _arguments(node: ast.stmt, method: str) -> list[str] | None:
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or _method(call) != method:
        return None
    values = [one.value for one in call.args if isinstance(one, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


def _method(call: ast.Call) -> str | None:
    """Give `m` of `get_ipython().m(...)`."""
    match call.func:
        case ast.Attribute(ast.Call(ast.Name("get_ipython")), attr):
            return attr
    return None
