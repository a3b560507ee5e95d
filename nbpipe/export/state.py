"""State: what the methods that a pipeline calls change in the objects that it uses."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .living import is_generator
from .reads import CHANGING

_Method = ast.FunctionDef | ast.AsyncFunctionDef
_USING = (  # special methods that are called by whoever uses an object without changing it
    *("__call__", "__getitem__", "__iter__", "__next__", "__len__", "__contains__"),
    *("__aiter__", "__anext__", "__enter__", "__exit__", "__aenter__", "__aexit__"),
)


class Held(NamedTuple):
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
    def of(cls, value: Any) -> Held:
        """Look at an object; only its own attributes count."""
        held = getattr(value, "__dict__", None)
        attributes = dict(held) if type(held) is dict else {}
        moving = (name for name, one in attributes.items() if is_generator(one))
        kinds = tuple(kind.__name__ for kind in type(value).__mro__)
        return cls(kinds, frozenset(attributes), frozenset(moving))


def read_of(nodes: Iterable[ast.AST]) -> dict[str, frozenset[str]]:
    """Give by each name the attributes that some code reads of it: methods that it may call."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
                found.setdefault(one.value.id, set()).add(one.attr)
    return {name: frozenset(attributes) for name, attributes in found.items()}


def changed_attributes(
    node: ast.ClassDef, called: frozenset[str], moving: frozenset[str]
) -> frozenset[str]:
    """Give the attributes of instances that change while the pipeline runs.

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
    """Give the methods that other code calls, and those that these call."""
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
    """Give the attribute of `self` that an expression changes, if it does."""
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
