"""Objects in a portrait: instances of any class by their state, and those with a text."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import fractions
import functools
import io
import logging
import pathlib
import random
import re
import sys
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .nodes import Node, branch, leaf
from .shapes import scrubbed

Paint = Callable[..., Node]

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_TEXTS = (  # their repr says all
    *(dt.timedelta, dt.timezone, dt.date, dt.time, decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(pathlib.PurePath, range, type(Ellipsis), type(NotImplemented)),
)
_OPAQUE = (  # only their type counts
    *(type(threading.Lock()), type(threading.RLock()), threading.local, threading.Thread),
    *(threading.Condition, threading.Event, threading.Semaphore, threading.Barrier),
    *(io.IOBase, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType),
    *(types.FrameType, types.TracebackType, memoryview),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet),  # caches
)
_INSTALLED = ("site-packages", "dist-packages")
_OWN = __name__.partition(".")[0]
_UNDRESSED: dict[type, Callable[[Any], object]] = {  # a value of a subclass as one of its base
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: lambda text: str.__getitem__(text, slice(None)),
    bytes: lambda text: bytes.__getitem__(text, slice(None)),
}
_STATE = 2  # place of the state in what `__reduce_ex__` gives
_PROTOCOL = 4
IN_PYTHON = 1 << 9  # flag of a class that a class statement made


def is_library(module: object) -> bool:
    """Say whether a module belongs to Python or is installed; no other is known by its name.

    It depends on the place of its file alone, so that the notebook and a fresh process agree.
    """
    if not isinstance(module, str) or module == "__main__":
        return False
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in (_OWN, "builtins"):
        return True
    found = sys.modules.get(top)
    places = [getattr(found, "__file__", None), *(getattr(found, "__path__", None) or ())]
    return any(mark in str(place) for place in places for mark in _INSTALLED)


def name_of(value: Any) -> str:
    """Give the name of a class or function: with its module, if that is a library."""
    name = str(getattr(value, "__qualname__", type(value).__qualname__))
    module = getattr(value, "__module__", None)
    return f"{module}.{name}" if is_library(module) and module != "builtins" else name


def kind_of(value: Any) -> str:
    """Give the name of the class of a value."""
    return name_of(type(value))


def painted(value: Any, paint: Paint) -> Node:
    """Paint an object."""
    kind, shown = kind_of(value), type(value).__qualname__
    if isinstance(value, _OPAQUE):
        return leaf(kind, shown)
    if isinstance(value, _TEXTS) or type(value).__module__ == "itertools":
        return leaf(kind, scrubbed(_ADDRESS.sub("", repr(value)), known=False))
    if isinstance(value, re.Pattern):
        parts = [("pattern", paint(value.pattern)), ("flags", paint(int(value.flags)))]
        return branch(kind, "a pattern", parts)
    if isinstance(value, logging.Logger):
        return leaf(kind, f"logger {value.name!r}")
    if isinstance(value, slice):
        return branch(
            kind,
            repr(value),
            zip(
                ("start", "stop", "step"),
                map(paint, (value.start, value.stop, value.step)),
                strict=True,
            ),
        )
    if isinstance(value, types.MappingProxyType):
        return branch(kind, shown, [("dict", paint(dict(value)))])
    if isinstance(value, bytearray):
        return branch(kind, shown, [("bytes", paint(bytes(value)))])
    if isinstance(value, random.Random):
        return branch(kind, shown, [("state", paint(value.getstate()))])
    return branch(kind, shown, list(_parts(value, paint)))


def _parts(value: Any, paint: Paint) -> Iterator[tuple[str, Node]]:
    """Give what an object is made of: attributes as they are stored, or what pickle would get."""
    plain = next((base for base in _UNDRESSED if isinstance(value, base)), None)
    if plain is not None:
        yield "value", paint(_UNDRESSED[plain](value))
    if _is_plain_class(type(value)):
        yield from _attributes(stored(value), paint)
        return
    reduced = value.__reduce_ex__(_PROTOCOL)
    if isinstance(reduced, str):
        yield "name", leaf("str", reduced)
        return
    how, arguments = reduced[:_STATE]
    state, items, pairs = (*reduced[_STATE:], None, None, None)[:3]
    yield "maker", leaf("callable", name_of(how))
    for at, part in enumerate(arguments):
        if part is not type(value):
            yield f"argument {at}", paint(part)
    yield from _attributes(_flat(state), paint)
    yield from ((f"[{at}]", paint(part)) for at, part in enumerate(items or ()))
    if pairs is not None:
        yield "items", paint(dict(pairs))


def _is_plain_class(kind: type) -> bool:
    """Say whether instances of a class are what their attributes are."""
    hooks = ("__reduce__", "__reduce_ex__", "__getstate__")
    python = all(base is object or base.__flags__ & IN_PYTHON for base in kind.__mro__)
    if issubclass(kind, (list, tuple, dict, set, frozenset)):
        return False
    if dataclasses.is_dataclass(kind):
        return True
    return python and all(
        getattr(kind, hook, None) is getattr(object, hook, None) for hook in hooks
    )


def stored(value: Any) -> dict[str, Any]:
    """Give the attributes of an object as they are stored; values of cached properties left out."""
    found: dict[str, Any] = {}
    with contextlib.suppress(AttributeError):  # it may have slots only
        found.update(object.__getattribute__(value, "__dict__"))
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, functools.cached_property):
                found.pop(name, None)
            elif isinstance(member, types.MemberDescriptorType):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:  # not set
                    continue
    return found


def elements(value: Any) -> list[Any]:
    """Give the elements of a sequence or set as they are stored, whatever its class says."""
    kinds: tuple[Any, ...] = (list, tuple, collections.deque, set, frozenset)
    kind = next(kind for kind in kinds if isinstance(value, kind))
    return list(kind.__iter__(value))


def _flat(state: Any) -> dict[Any, Any]:
    halves = state if isinstance(state, tuple) and len(state) == _STATE else (state,)
    if all(half is None or isinstance(half, dict) for half in halves):
        return {name: part for half in halves for name, part in (half or {}).items()}
    return {"": state}


def _attributes(values: dict[Any, Any], paint: Paint) -> Iterator[tuple[str, Node]]:
    for name in sorted(values, key=str):
        yield f"attribute {str(name)!r}", paint(values[name], str(name))
