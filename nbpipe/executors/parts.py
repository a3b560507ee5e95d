"""Parts: what a function, an object or a container takes along when it is pickled."""

from __future__ import annotations

import dataclasses
import dis
import functools
from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from .pickling import CACHED, PROTOCOL, by_reference

_MOST = 10_000  # items of one container that are looked at
_STATE = 2  # place of the state in what `__reduce_ex__` gives
_CONTAINERS = (list, tuple, set, frozenset)


class Part(NamedTuple):
    """One thing that another takes along.

    Attributes:
        kind: "global", "closure", "default", "attribute", "item", "argument", "object" (of a
            bound method) or "function" (inside another callable).
        name: the variable, attribute, key or parameter.
        value: the thing.
    """

    kind: str
    name: str
    value: Any


def parts_of(value: Any) -> Iterator[Part]:
    """Give the parts of a value; none where it is sent by its name alone, or is plain."""
    if isinstance(value, FunctionType | type):
        if not by_reference(value):
            yield from _parts_of_code(value)
    elif isinstance(value, MethodType):
        yield Part("object", value.__func__.__name__, value.__self__)
        yield Part("function", value.__func__.__name__, value.__func__)
    elif isinstance(value, functools.partial):
        yield Part("function", _name(value.func), value.func)
        yield from (Part("argument", str(at), part) for at, part in enumerate(value.args))
        yield from (Part("argument", name, part) for name, part in value.keywords.items())
    elif type(value) is CACHED:
        if not by_reference(value):
            yield Part("function", _name(value), value.__wrapped__)
    elif isinstance(value, ModuleType):
        yield from _attributes(vars(value))
    else:
        yield from _parts_of_data(value)


def _parts_of_code(value: FunctionType | type) -> Iterator[Part]:
    if isinstance(value, type):
        yield from _attributes(vars(value))
        return
    namespace = value.__globals__
    for name in sorted(globals_of(value.__code__)):
        if name in namespace:
            yield Part("global", name, namespace[name])
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        try:
            yield Part("closure", name, cell.cell_contents)
        except ValueError:  # not bound yet
            continue
    yield from _defaults(value)
    yield from _attributes(vars(value))
    yield from (Part("annotation", *pair) for pair in value.__annotations__.items())


def _defaults(function: FunctionType) -> Iterator[Part]:
    defaults = function.__defaults__ or ()
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    named = zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    for name, value in (*named, *(function.__kwdefaults__ or {}).items()):
        yield Part("default", name, value)


def globals_of(code: CodeType) -> set[str]:
    """Give the names of the global variables that code, or code inside it, refers to."""
    names = {
        str(step.argval) for step in dis.get_instructions(code) if step.opname.endswith("_GLOBAL")
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= globals_of(constant)
    return names


def _attributes(values: Any) -> Iterator[Part]:
    for name, value in list(values.items()):
        if name not in ("__dict__", "__weakref__", "__builtins__"):
            yield Part("attribute", str(name), value)


def _parts_of_data(value: Any) -> Iterator[Part]:
    if type(value) is dict:
        yield from _pairs(value.items())
    elif type(value) in _CONTAINERS:
        yield from _items(value)
    else:
        yield from _parts_of_object(value)


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> Iterator[Part]:
    for key, value in islice(pairs, _MOST):
        yield Part("item", _shown(key), value)
        yield Part("key", _shown(key), key)


def _items(values: Iterable[Any]) -> Iterator[Part]:
    yield from (Part("item", str(at), value) for at, value in enumerate(islice(values, _MOST)))


def _parts_of_object(value: Any) -> Iterator[Part]:
    """Give what the object itself hands to pickle: its state, its arguments, its items."""
    try:
        reduced = value.__reduce_ex__(PROTOCOL)
    except Exception:  # it cannot be pickled: that is where a search ends
        return
    if not isinstance(reduced, tuple):
        return
    state, items, pairs = (*reduced[_STATE:], None, None, None)[:3]
    if isinstance(state, list) and dataclasses.is_dataclass(value):  # one with slots
        state = dict(zip((field.name for field in dataclasses.fields(value)), state, strict=False))
    yield from _parts_of_state(state)
    yield from (Part("argument", str(at), part) for at, part in enumerate(reduced[1]))
    yield from _items(items or ())
    yield from _pairs(pairs or ())


def _parts_of_state(state: Any) -> Iterator[Part]:
    """Give attributes; those of slots stand in a second dict."""
    halves = state if isinstance(state, tuple) else (state,)
    for half in halves:
        if isinstance(half, dict):
            yield from _attributes(half)
        elif half is not None:
            yield Part("state", "", half)


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))


def _shown(key: object) -> str:
    simple = isinstance(key, str | int | float | bool | tuple | type(None))
    return repr(key)[:40] if simple else type(key).__name__
