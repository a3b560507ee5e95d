"""Expressions: a live value as source, in the place where a chain uses it."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import numpy as np

from ..executors.pickling import by_reference
from ..stage import auto_name, class_name
from . import constants
from .calls import Called
from .definitions import code_of, definition_of, is_defined, older, read
from .literals import NoLiteral, literal
from .living import kind_of, way_out_of
from .model import Piece, Spelling
from .portrait import difference, portrait
from .scope import Scope
from .secrets import secret_in
from .uses import Use, refusal

if TYPE_CHECKING:
    from .collect import Collector

_BUILTINS = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_NOTHING = object()
_PLAIN = bool | int | float | complex | str | bytes | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is used.

    Attributes:
        collector: takes what the expression needs.
        scope: whose names count.
        use: who uses it.
        name: what a function without a name is to be called.
        call: the call that it was given to, as its first argument, where that is known.
    """

    collector: Collector
    scope: Scope
    use: Use
    name: str
    call: Called | None = None


def expression(value: Any, place: Place) -> str:
    """Write a value as an expression; what it needs is collected.

    Raises:
        ExportError: it cannot be written.
    """
    if isinstance(value, _PLAIN):
        return _literal(value, place)
    written = _as_given(value, place)
    if written is not None:
        return written
    if isinstance(value, functools.partial):
        return _partial(value, place)
    if isinstance(value, MethodType):
        return f"{_object(value.__self__, place)}.{value.__func__.__name__}"
    if isinstance(value, FunctionType):
        return _function(value, place)
    named = place.scope.name_of(value)
    if named is not None:
        place.collector.need(place.scope, named, place.use)
        return named
    if isinstance(value, type):
        return _class(value, place)
    if isinstance(value, _BUILTINS) or by_reference(value):
        return _builtin(value, place)
    if isinstance(value, np.ufunc):
        return f"{place.collector.spelled(place.scope, np, place.use)}.{value.__name__}"
    return _object(value, place)


def _as_given(value: Any, place: Place) -> str | None:
    """Give a library's function as the user gave it, as `json.loads` or `" ".join`."""
    call = place.call
    if call is None or not call.is_global or not isinstance(call.first, ast.Attribute):
        return None
    owner: ast.expr = call.first
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    try:
        live = _followed(call.first, place.scope.namespace)
    except (AttributeError, KeyError):
        return None
    if live is not value and not (_is_bound_builtin(value) and live == value):
        return None
    if isinstance(owner, ast.Name):
        place.collector.need(place.scope, owner.id, place.use)
    return call.text


def _followed(node: ast.expr, namespace: dict[str, Any]) -> Any:
    """Give the live value of names and constants with dots."""
    if isinstance(node, ast.Attribute):
        owner = _followed(node.value, namespace)
        plain = isinstance(owner, type | ModuleType | str | bytes)
        return getattr(owner, node.attr) if plain else _NOTHING
    if isinstance(node, ast.Constant):
        return node.value
    return _found(node.id, namespace) if isinstance(node, ast.Name) else _NOTHING


def _found(name: str, namespace: dict[str, Any]) -> Any:
    return namespace[name] if name in namespace else getattr(builtins, name)


def _is_bound_builtin(value: Any) -> bool:
    return isinstance(value, BuiltinFunctionType | MethodType)


def name_in_module(value: Any, text: str, place: Place) -> str:
    """Give the name that a stage would take from an expression; empty for a lambda."""
    known = place.collector.found.called.get(text)
    return auto_name(value, "", 0).removesuffix("_0") if known is None else known


def _literal(value: Any, place: Place) -> str:
    secret = secret_in(place.name, value)
    if secret is not None:
        raise refusal(
            f"an argument of {place.use.words} looks like a secret; it is never written to a file. "
            'Read it at run time, e.g. os.environ["TOKEN"]',
            place.use,
        )
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
    try:
        return literal(value, place.collector.spell(place.scope, place.use))
    except NoLiteral as no:
        raise refusal(
            f"cannot write {place.name!r} into the module: {no.reason}", place.use
        ) from None


def _class(value: type, place: Place) -> str:
    place_of = older(place.scope, value)
    if place_of is not None:
        raise _older(value.__name__, place_of, place.use)
    return place.collector.spelled(place.scope, value, place.use)


def _older(name: str, at: str, use: Use) -> Exception:
    return refusal(
        f"the pipeline still uses an older {name!r}{at}; it was redefined since: rebuild the "
        "pipeline, then export",
        use,
    )


# -- functions ----------------------------------------------------------------------------
def _function(value: FunctionType, place: Place) -> str:
    if by_reference(value):
        return place.collector.spelled(place.scope, value, place.use)
    named = place.scope.name_of(value)
    if value.__name__ == "<lambda>" and not value.__closure__:
        return _written(value, place, place.name)
    if named is not None and (not value.__closure__ or _is_def(place.scope, named)):
        place.collector.need(place.scope, named, place.use)
        return named
    if named is None:
        same = _same(value, place)
        if same is not None:
            return same
    if value.__closure__:
        return _closure(value, place, named)
    return _written(value, place, value.__name__)


def _is_def(scope: Scope, name: str) -> bool:
    return is_defined(scope.newest(name), name)


def _same(value: FunctionType, place: Place) -> str | None:
    """Give the name of a function that was defined anew since, but to the same effect.

    Raises:
        ExportError: it was redefined to another effect.
    """
    name = value.__name__
    live = place.scope.namespace.get(name)
    if live is None or "<locals>" in value.__qualname__:
        return None
    if isinstance(live, FunctionType) and difference(portrait(value), portrait(live)) is None:
        place.collector.need(place.scope, name, place.use)
        return name
    code = code_of(value)
    found = None if code is None else definition_of(place.scope, code)
    raise _older(name, f" ({found.place})" if found else "", place.use)


def _written(value: FunctionType, place: Place, wanted: str) -> str:
    """Write a function that has no name in the notebook as one of the module's own."""
    return _new_function(value, place, wanted, [])


def _new_function(value: FunctionType, place: Place, wanted: str, free: list[str]) -> str:
    collector, scope = place.collector, place.scope
    known = next(
        (
            name
            for name, code in collector.found.written.items()
            if code == (value.__code__, len(free))
        ),
        None,
    )
    if known is not None and portrait(value.__defaults__) == collector.found.defaults[known]:
        return known
    found = definition_of(scope, value.__code__)
    if found is None:
        raise refusal(
            f"the text of {value.__qualname__!r} is not known: it was made neither in a cell nor "
            "in a file; define it in a cell, or import it",
            place.use,
        )
    name = collector.free_name(_identifier(wanted))
    words = f"{name}() [{found.place}]"
    kept = [
        name for one in ast.walk(found.node) if isinstance(one, ast.Nonlocal) for name in one.names
    ]
    if kept:
        raise refusal(
            f"{value.__name__}() [{found.place}] changes the variable {kept[0]!r} of the function "
            "around it (`nonlocal`), which no module can hold; keep that state in a class with "
            "__call__",
            place.use,
        )
    text = found.with_parameters(free, name) if free else found.text(name)
    collector.found.written[name] = (value.__code__, len(free))
    collector.found.defaults[name] = portrait(value.__defaults__)
    collector.found.owners[name] = None
    collector.found.called[name] = name
    now, later = read(collector, scope, found.node, found.cell.flags, place.use.then(words), free)
    node = found.node
    first = (found.cell.order, found.statement.number, node.lineno, node.col_offset)
    spelling = Spelling(text, now - {name}, later - {name} - set(free))
    collector.add(Piece((name,), (spelling,), {}, "definition", first, f"function {name!r}"))
    return name


def _identifier(wanted: str) -> str:
    name = "".join(c if c.isidentifier() or c.isdigit() else "_" for c in wanted)
    return name if name.isidentifier() else f"stage_{name}"


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
    function = _new_function(value, place, f"_{own.lstrip('_')}", free)
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
    parts = [expression(value.func, place)]
    inner = Place(place.collector, place.scope, place.use, place.name)
    parts += [expression(one, inner) for one in value.args]
    parts += [f"{key}={expression(one, inner)}" for key, one in value.keywords.items()]
    partial = place.collector.spelled(place.scope, functools.partial, place.use)
    text = f"{partial}({', '.join(parts)})"
    called = place.collector.found.called
    if parts[0] in called:
        called[text] = called[parts[0]]
    return text


def _is_bound(scope: Scope, name: str) -> bool:
    statement = scope.newest(name)
    return statement is not None and constants.is_assignment(statement.node)


# -- objects ------------------------------------------------------------------------------
def _object(value: Any, place: Place) -> str:
    """Name an object: by the user's name, or by a new one for the call that made it."""
    if isinstance(value, type):
        return expression(value, place)
    named = place.scope.name_of(value)
    if named is not None:
        place.collector.need(place.scope, named, place.use)
        return named
    way_out = way_out_of(value)
    if way_out is not None:
        raise refusal(f"{place.use.words} uses a live {kind_of(value)}; {way_out}", place.use)
    kind = type(value)
    if isinstance(value, list | tuple | dict | set | range | str | bytes):
        return _literal(value, place)
    if not by_reference(kind) and place.scope.name_of(kind) is None:
        _class(kind, place)  # it was redefined since
    return _new_object(value, place)


def _new_object(value: Any, place: Place) -> str:
    """Write an object without a name as a constant of the module's own."""
    collector = place.collector
    for known, one in collector.found.objects.items():
        if one is value:
            return known
    secret = secret_in(place.name, value)
    if secret is not None:
        raise refusal(
            f"{place.use.words} holds {secret}, which looks like a secret; it is never written to "
            'a file. Read it at run time, e.g. os.environ["TOKEN"]',
            place.use,
        )
    name = collector.free_name(_identifier(class_name(value)))
    ways = (_as_called(name, place), _as_literal(value, name, place))
    spellings = [way for way in ways if way is not None]
    if not spellings:
        reason = collector.found.reasons.get(name, kind_of(value))
        raise refusal(
            f"cannot write the {type(value).__name__} into the module: {reason}; give it a name in "
            f"a cell: {name} = {type(value).__name__}(...)",
            place.use,
        )
    collector.found.objects[name] = value
    words = f"the {type(value).__name__} of {place.use.words}"
    expected = {name: portrait(value)}
    collector.add(Piece((name,), tuple(spellings), expected, "constant", (2**31, 0), words))
    return name


def _as_called(name: str, place: Place) -> Spelling | None:
    """Write it as the user made it in the argument of the call."""
    call = place.call
    if call is None or not call.is_global or not isinstance(call.first, ast.Call):
        return None
    node, reads = call.first, []
    use = place.use.then(f"{name} = ...")

    def collect() -> None:
        reads.append(read(place.collector, place.scope, node, call.statement.cell.flags, use))

    if place.collector.attempt(collect) is not None:
        return None
    return Spelling(f"{name} = {call.text}", reads[0][0], reads[0][1])


def _as_literal(value: Any, name: str, place: Place) -> Spelling | None:
    spelled: set[str] = set()
    spell = place.collector.spell(place.scope, place.use)

    def noted(one: object) -> str:
        text = spell(one)
        spelled.add(text.partition(".")[0])
        return text

    try:
        text = literal(value, noted)
    except NoLiteral as no:
        place.collector.found.reasons[name] = no.reason
        return None
    return Spelling(f"{name} = {text}", frozenset(spelled))
