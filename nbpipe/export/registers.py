"""Registers: what statements add to functions and classes after these are defined.

`@show.register` adds an implementation to a function, `@Steps.register("crop")` one to a class.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from ..executors.pickling import by_reference
from .cells import Statement
from .scope import Scope

_DEFS = ast.FunctionDef | ast.AsyncFunctionDef
_REGISTER = "register"


class Registered(NamedTuple):
    """What is added to a function or class.

    Attributes:
        texts: statements that must stand below it, oldest first.
        names: functions that add themselves, each a definition of its own.
    """

    texts: tuple[Statement, ...]
    names: frozenset[str]


def registered(scope: Scope, name: str, value: Any, statement: Statement) -> Registered:
    """Find what is added to a function or class.

    Args:
        scope: where it lives.
        name: its name.
        value: the function or class.
        statement: its definition.
    """
    codes = implementations(value)
    dispatches = codes is not None or _dispatching(value)
    texts: dict[str, Statement] = {}
    names: set[str] = set()
    for one in _below(scope, statement):
        node = one.node
        if isinstance(node, _DEFS) and any(_adds(mark, name) for mark in node.decorator_list):
            if codes is not None and not _is_among(scope, one, codes):
                continue  # another one took its place
            if not dispatches and scope.newest(node.name) is one and node.name in scope:
                names.add(node.name)
            else:
                texts.setdefault(_overload(node), one)
                texts[_overload(node)] = one
        elif dispatches and isinstance(node, ast.Expr) and _is_registration(node.value, name):
            texts[ast.dump(node)] = one
    return Registered(tuple(texts.values()), frozenset(names))


def implementations(value: Any) -> list[CodeType] | None:
    """Give the code of all implementations of a `singledispatch` function; None for others."""
    registry = getattr(value, "registry", None)
    if not isinstance(registry, Mapping) or not callable(getattr(value, "dispatch", None)):
        return None
    inner = (inspect.unwrap(one) for one in registry.values() if callable(one))
    return [one.__code__ for one in inner if hasattr(one, "__code__")]


def lost(scope: Scope, used: frozenset[str]) -> Iterator[tuple[Statement, str]]:
    """Give the statements that add to a function of another module, which only imports it.

    Set-up cells are kept, and so are not among them.

    Args:
        scope: the notebook.
        used: names of the module that is written.

    Returns:
        Each with the words for the function in it.
    """
    for cell in scope.cells.cells:
        for statement in () if cell.is_setup else cell.statements:
            for call in _registrations(statement.node):
                root = _root(call)
                if root not in used or root not in scope:
                    continue
                found = _followed(call.value, scope.namespace)
                if implementations(found) is not None and by_reference(found):
                    yield statement, ast.unparse(call.value)


# -- statements ---------------------------------------------------------------------------
def _below(scope: Scope, statement: Statement) -> Iterator[Statement]:
    after = (statement.cell.order, statement.number)
    for cell in scope.cells.cells:
        for one in cell.statements:
            if (one.cell.order, one.number) > after:
                yield one


def _is_among(scope: Scope, statement: Statement, codes: list[CodeType]) -> bool:
    definitions = (scope.cells.definition(code) for code in codes)
    return any(one is not None and one.statement is statement for one in definitions)


def _overload(node: ast.stmt) -> str:
    """Tell registered functions apart: by their annotations, and what their decorators take."""
    assert isinstance(node, _DEFS)
    return ast.dump(node.args) + "".join(map(ast.dump, node.decorator_list))


# -- expressions --------------------------------------------------------------------------
def _adds(mark: ast.expr, name: str) -> bool:
    """Tell whether a decorator is `@name.x`, `@name.x(...)` or `@name.method.register`."""
    mark = mark.func if isinstance(mark, ast.Call) else mark
    if not isinstance(mark, ast.Attribute):
        return False
    if isinstance(mark.value, ast.Name):
        return mark.value.id == name
    return mark.attr == _REGISTER and _root(mark) == name


def _is_registration(node: ast.expr, name: str) -> bool:
    """Tell whether an expression is `name.register(kind, function)`, or with two calls."""
    func = node.func if isinstance(node, ast.Call) else None
    func = func.func if isinstance(func, ast.Call) else func
    return isinstance(func, ast.Attribute) and func.attr == _REGISTER and _root(func) == name


def _registrations(node: ast.stmt) -> Iterator[ast.Attribute]:
    """Give each `x.register` that decorates a definition, or is called by an expression."""
    marks: list[ast.expr] = []
    if isinstance(node, _DEFS):
        marks = node.decorator_list
    elif isinstance(node, ast.Expr):
        marks = [node.value]
    for mark in marks:
        func = mark
        while isinstance(func, ast.Call):
            func = func.func
        if isinstance(func, ast.Attribute) and func.attr == _REGISTER:
            yield func


def _root(node: ast.expr) -> str | None:
    """Give the name before the first dot."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _followed(node: ast.expr, namespace: dict[str, Any]) -> Any:
    """Give the live value of names with dots, as far as modules lead."""
    if isinstance(node, ast.Attribute):
        owner = _followed(node.value, namespace)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    return namespace.get(node.id) if isinstance(node, ast.Name) else None


def _dispatching(value: Any) -> bool:
    """Tell whether a class has methods that implementations may be added to."""
    kinds = functools.singledispatchmethod
    return isinstance(value, type) and any(isinstance(one, kinds) for one in vars(value).values())
