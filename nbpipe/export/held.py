"""Held: code that a value holds, state that calls change, what is registered on functions."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..executors.pickling import CACHED, by_reference
from .cells import Statement
from .difference import IN_PYTHON, elements, stored
from .handles import is_generator
from .names import CHANGING
from .scope import Scope
from .uses import Use

if TYPE_CHECKING:
    from .collect import Collector

# -- Contents: the user's functions and classes that a value holds, as registries do ---------------
_DEPTH = 20
_NESTED = 3  # levels of containers
_MOST = 1000  # items of one


def need_held(collector: Collector, scope: Scope, value: Any, use: Use) -> frozenset[str]:
    """Collect the user's functions and classes that a value holds, as registries do.

    Returns:
        Their names.
    """
    names = {
        name
        for held in held_in(value)
        for one in named_in(scope, held.value)
        if (name := scope.name_of(one)) is not None
    }
    collector.need_all(scope, names, use)
    return frozenset(names)


def named_in(scope: Scope, value: Any) -> Iterator[Any]:
    """Return a function or class that has a name, or the functions with one that are inside."""
    for _ in range(_DEPTH):
        if by_reference(value):
            return
        if scope.name_of(value) is not None:
            yield value
            return
        for cell in getattr(value, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # not bound yet
                if isinstance(cell.cell_contents, FunctionType | CACHED):
                    yield from named_in(scope, cell.cell_contents)
        value = getattr(value, "__wrapped__", None)
        if value is None:
            return


class HeldCode(NamedTuple):
    """A function or class that a container or an object holds.

    Attributes:
        place: where it is, as "['crop']" or ".known['crop']".
        value: it.
    """

    place: str
    value: Any


def held_in(value: Any, place: str = "", depth: int = 0) -> Iterator[HeldCode]:
    """Return the functions and classes that a value holds."""
    if isinstance(value, FunctionType | type) or _is_cached(value):
        if depth:
            yield HeldCode(place, value)
    elif depth >= _NESTED:
        return
    elif isinstance(value, functools.partial):
        yield from held_in(value.func, f"{place}.func", depth + 1)
    elif isinstance(value, dict):
        for key, one in islice(dict.items(value), _MOST):
            yield from held_in(one, f"{place}[{key!r}]", depth + 1)
    elif isinstance(value, list | tuple | set | deque):
        for at, one in enumerate(elements(value)[:_MOST]):
            yield from held_in(one, f"{place}[{at}]", depth + 1)
    elif type(value).__flags__ & IN_PYTHON and not by_reference(type(value)):
        for name, one in stored(value).items():
            yield from held_in(one, f"{place}.{name}", depth + 1)


def members_of(kind: type) -> dict[str, Any]:
    """Return the attributes of a class that are none of its own methods."""
    return {
        name: one
        for name, one in vars(kind).items()
        if not isinstance(one, FunctionType) or one.__name__ == one.__qualname__
    }


def _is_cached(value: Any) -> bool:
    return isinstance(value, CACHED) and hasattr(value, "__name__")


# -- State: what the methods that a pipeline calls change in the objects that it uses --------------
_Method = ast.FunctionDef | ast.AsyncFunctionDef
_USING = (  # special methods that are called by whoever uses an object without changing it
    *("__call__", "__getitem__", "__iter__", "__next__", "__len__", "__contains__"),
    *("__aiter__", "__anext__", "__enter__", "__exit__", "__aenter__", "__aexit__"),
)


class HeldState(NamedTuple):
    """What an object holds.

    Attributes:
        kinds: names of its class and of the classes that this is made from.
        attributes: names of its attributes.
        moving: those of attributes that change when they are used, as random generators.
    """

    kinds: tuple[str, ...]
    attributes: frozenset[str]
    moving: frozenset[str]

    @classmethod
    def of(cls, value: Any) -> HeldState:
        """Look at an object; only its own attributes count."""
        held = getattr(value, "__dict__", None)
        attributes = dict(held) if type(held) is dict else {}
        moving = (name for name, one in attributes.items() if is_generator(one))
        kinds = tuple(kind.__name__ for kind in type(value).__mro__)
        return cls(kinds, frozenset(attributes), frozenset(moving))


def read_of(nodes: Iterable[ast.AST]) -> dict[str, frozenset[str]]:
    """Return by each name the attributes that some code reads of it: methods that it may call."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
                found.setdefault(one.value.id, set()).add(one.attr)
    return {name: frozenset(attributes) for name, attributes in found.items()}


def changed_attributes(
    node: ast.ClassDef, called: frozenset[str], moving: frozenset[str]
) -> frozenset[str]:
    """Return the attributes of instances that change while the pipeline runs.

    Args:
        node: the class.
        called: attributes that other code reads of the object: only what is certainly called
            may be overlooked.
        moving: attributes that change when they are used.
    """
    methods = {one.name: one for one in node.body if isinstance(one, _Method)}
    return frozenset(
        name
        for method in _running(methods, called)
        for one in ast.walk(method)
        for name in _changed(one, moving)
    )


def _running(methods: dict[str, Any], called: frozenset[str]) -> list[ast.AST]:
    """Return the methods that other code calls, and those that these call."""
    rest = sorted(called.union(_USING) & methods.keys())
    found: dict[str, ast.AST] = {}
    while rest:
        name = rest.pop()
        found[name] = methods[name]
        own = {one.attr for one in ast.walk(methods[name]) if _is_own(one)}  # type: ignore[attr-defined]
        rest += sorted((own & methods.keys()) - found.keys())
    return list(found.values())


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "self"


def _changed(node: ast.AST, moving: frozenset[str]) -> Iterator[str]:
    """Return the attribute of `self` that an expression changes, if it does."""
    target: ast.AST | None = None
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        target = node
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        target = node.func.value
        if node.func.attr not in CHANGING and getattr(target, "attr", None) not in moving:
            return
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Attribute) and _is_own(target):
        yield target.attr


# -- Registers: what statements add to functions and classes after these are defined ---------------
# `@show.register` adds an implementation to a function, `@Steps.register("crop")` one to a class.
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
    """Return the code of all implementations of a `singledispatch` function; None for others."""
    registry = getattr(value, "registry", None)
    if not isinstance(registry, Mapping) or not callable(getattr(value, "dispatch", None)):
        return None
    inner = (inspect.unwrap(one) for one in registry.values() if callable(one))
    return [one.__code__ for one in inner if hasattr(one, "__code__")]


def lost(scope: Scope, used: frozenset[str]) -> Iterator[tuple[Statement, str]]:
    """Return the statements that add to a function of another module, which only imports it.

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
    """Return each `x.register` that decorates a definition, or is called by an expression."""
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
    """Return the name before the first dot."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _followed(node: ast.expr, namespace: dict[str, Any]) -> Any:
    """Return the live value of names with dots, as far as modules lead."""
    if isinstance(node, ast.Attribute):
        owner = _followed(node.value, namespace)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    return namespace.get(node.id) if isinstance(node, ast.Name) else None


def _dispatching(value: Any) -> bool:
    """Tell whether a class has methods that implementations may be added to."""
    kinds = functools.singledispatchmethod
    return isinstance(value, type) and any(isinstance(one, kinds) for one in vars(value).values())
