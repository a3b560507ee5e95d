"""Expressions: a live value as source, in the place where a chain uses it."""

from __future__ import annotations

import ast
import functools
import inspect
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from ..executors.pickling import by_reference
from ..stage import auto_name
from . import constants
from .definitions import is_defined, older
from .functions import new_function, same_function
from .handles import handle_in
from .instances import new_object
from .literals import NoLiteral, literal
from .living import kind_of
from .model import Piece, Spelling
from .places import Place, as_given, as_marked, older_error
from .scope import Scope
from .secrets import secret_in
from .uses import refusal, secret_refusal

_BUILTINS = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_PLAIN = bool | int | float | complex | str | bytes | None


def expression(value: Any, place: Place) -> str:
    """Write a value as an expression; what it needs is collected.

    Raises:
        ExportError: it cannot be written.
    """
    if isinstance(value, _PLAIN):
        return _literal(value, place)
    written = as_given(value, place)
    if written is not None:
        return written
    if isinstance(value, functools.partial):
        return _partial(value, place)
    if isinstance(value, MethodType):
        return f"{_object(value.__self__, place)}.{value.__func__.__name__}"
    if isinstance(value, FunctionType):
        return _function(value, place)
    named = _named(value, place)
    if named is not None:
        return named
    if isinstance(value, type):
        return _class(value, place)
    if isinstance(value, _BUILTINS) or by_reference(value):
        return _builtin(value, place)
    if isinstance(value, np.ufunc):
        return f"{place.collector.spelled(place.scope, np, place.use)}.{value.__name__}"
    return _object(value, place)


def name_in_module(value: Any, text: str, place: Place) -> str:
    """Give the name that a stage would take from an expression; empty for a lambda."""
    known = place.collector.found.called.get(text)
    return auto_name(value, "", 0).removesuffix("_0") if known is None else known


def _literal(value: Any, place: Place) -> str:
    if secret_in(place.name, value) is not None:
        raise secret_refusal(f"an argument of {place.use.words}", place.use)
    return _spelled(value, place)


def _spelled(value: Any, place: Place) -> str:
    try:
        return literal(value, place.collector.spell(place.scope, place.use))
    except NoLiteral as no:
        raise refusal(
            f"cannot write {place.name!r} into the module: {no.reason}", place.use
        ) from None


def _builtin(value: Any, place: Place) -> str:
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(value, type) and not inspect.ismodule(owner):
        return f"{_object(owner, place)}.{value.__name__}"  # "text".join, rng.random
    return _spelled(value, place)


def _class(value: type, place: Place) -> str:
    place_of = older(place.scope, value)
    if place_of is not None:
        raise older_error(value.__name__, place_of, place.use)
    return place.collector.spelled(place.scope, value, place.use)


# -- functions ----------------------------------------------------------------------------
def _function(value: FunctionType, place: Place) -> str:
    if by_reference(value):
        return place.collector.spelled(place.scope, value, place.use)
    named = place.scope.name_of(value)
    if value.__name__ == "<lambda>" and not value.__closure__:
        return new_function(value, place, place.name, [])
    if named is not None and (
        not value.__closure__ or is_defined(place.scope.newest(named), named)
    ):
        place.collector.need(place.scope, named, place.use)
        return named
    if named is None:
        same = _member(value, place) or same_function(value, place)
        if same is not None:
            return same
    if value.__closure__:
        return _captured(value, place, named)
    return new_function(value, place, value.__name__, [])


def _member(value: FunctionType, place: Place) -> str | None:
    """Spell a function that a class of the user holds, as a static method."""
    first, *rest = value.__qualname__.split(".")
    found = place.scope.namespace.get(first)
    if not rest or not isinstance(found, type):
        return None
    for part in rest:
        found = getattr(found, part, None)
    if found is not value:
        return None
    place.collector.need(place.scope, first, place.use)
    return ".".join((first, *rest))


def _captured(value: FunctionType, place: Place, named: str | None) -> str:
    """Write a closure as a function of more parameters; where that fails, as it was made."""
    texts: list[str] = []
    error = place.collector.attempt(lambda: texts.append(_closure(value, place, named)))
    if error is None:
        return texts[0]
    if named is None or not _is_bound(place.scope, named):
        raise error
    place.collector.need(place.scope, named, place.use)
    return named


def _closure(value: FunctionType, place: Place, named: str | None) -> str:
    """Turn what a closure captured into leading parameters, and give them by `partial`."""
    collector = place.collector
    free = list(value.__code__.co_freevars)
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    used = place.use.then(f"{value.__name__}()")
    inner = [
        expression(one, Place(collector, place.scope, used, name))
        for name, one in zip(free, cells, strict=True)
    ]
    own = place.name if value.__name__ == "<lambda>" else value.__name__
    function = new_function(value, place, f"_{own.lstrip('_')}", free)
    partial = collector.spelled(place.scope, functools.partial, place.use)
    text = f"{partial}({', '.join([function, *inner])})"
    collector.found.called[named or text] = function
    if named is None:
        return text
    reads = frozenset({partial.partition(".")[0], function, *_names(inner)})
    collector.found.owners[named] = place.scope
    first = place.scope.first(named)
    spelling = Spelling(f"{named} = {text}", reads)
    collector.add(Piece((named,), (spelling,), {}, "constant", first, f"variable {named!r}"))
    return named


def _names(texts: list[str]) -> set[str]:
    nodes = [node for text in texts for node in ast.walk(ast.parse(text, mode="eval"))]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _partial(value: functools.partial[Any], place: Place) -> str:
    named = place.scope.name_of(value)
    if named is not None and _is_bound(place.scope, named):
        place.collector.need(place.scope, named, place.use)
        return named
    if secret_in(place.name, value) is not None:
        raise secret_refusal(f"the partial of {place.use.words}", place.use)
    inner = Place(place.collector, place.scope, place.use, place.name)
    parts = [expression(value.func, inner)]
    parts += [expression(one, inner) for one in value.args]
    parts += [f"{key}={expression(one, inner)}" for key, one in value.keywords.items()]
    partial = place.collector.spelled(place.scope, functools.partial, place.use)
    text = f"{partial}({', '.join(parts)})"
    called = place.collector.found.called
    if parts[0] in called:
        called[text] = called[parts[0]]
    return as_marked(value, text, frozenset(_names([text])), place)


def _is_bound(scope: Scope, name: str) -> bool:
    statement = scope.newest(name)
    return statement is not None and constants.is_assignment(statement.node)


# -- objects ------------------------------------------------------------------------------
def _named(value: Any, place: Place) -> str | None:
    """Give the user's name for an object, and collect what it stands for."""
    named = place.scope.name_of(value)
    if named is not None:
        place.collector.need(place.scope, named, place.use)
    return named


def _refuse_handle(value: Any, place: Place) -> None:
    plain = isinstance(value, dict | list | tuple | set)
    handle = handle_in(place.name if plain else type(value).__name__, value)
    if handle is not None:
        kind, where = kind_of(handle.value), "" if handle.value is value else f", {handle.place}"
        words = f"{place.use.words} uses a live {kind}{where}; {handle.way_out}"
        raise refusal(words, place.use)


def _object(value: Any, place: Place) -> str:
    """Name an object: by the user's name, or by a new one for the call that made it."""
    if isinstance(value, type):
        return expression(value, place)
    named = _named(value, place)
    if named is not None:
        return named
    _refuse_handle(value, place)
    kind = type(value)
    if isinstance(value, list | tuple | dict | set | range | str | bytes):
        return _literal(value, place)
    if not by_reference(kind) and place.scope.name_of(kind) is None:
        _class(kind, place)  # it was redefined since
    return new_object(value, place)
