"""Literals: a live value as source of an expression that is equal to it."""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import inspect
import logging
import math
import pathlib
import re
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from . import numbers
from .layout import Group, Item, flat, group, labelled, laid_out
from .numbers import NoLiteral
from .objects import IN_PYTHON, stored
from .portrait import portrait

__all__ = ["NoLiteral", "literal"]

_LEAVES = 200
_CHARACTERS = 4_000
_MAKE = "write a function that makes it"
_SAVE = "save it and load it by path"
_PARTS_OF_TIME = ("hour", "minute", "second", "microsecond")
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_CALLABLES = (type, types.ModuleType, FunctionType, types.BuiltinFunctionType, *_METHODS)
_ORDERED = (int, float, str, bytes)
_PLAIN = (dict, list, set)
_DIGITS = 4_000  # Python refuses to write longer numbers


def literal(value: object, spell: Callable[[object], str]) -> str:
    """Write a value as source of an expression that evaluates to an equal one.

    What is long is laid out over lines, four spaces a level. Sets are sorted. At most 64 elements
    of an array, 200 values and 4,000 characters in all are written.

    Args:
        value: anything.
        spell: gives the expression that stands for a module, class or function; it raises
            `NoLiteral` where there is none.

    Raises:
        NoLiteral: it cannot be written, or is too large; its reason says why, and what to do.
    """
    writer = _Writer(spell, _words(value))
    text = laid_out(writer.item(value))
    if len(text) > _CHARACTERS:
        raise NoLiteral(
            f"{_words(value)}, which takes {len(text):,} characters "
            f"(at most {_CHARACTERS:,} are written as source); {_MAKE}"
        )
    if not writer.calls and portrait(ast.literal_eval(text)) != portrait(value):
        raise NoLiteral(f"{_words(value)} whose text gives another value; {_MAKE}")
    return text


class _Writer:
    """Writes one value; `calls` tells whether its text is more than a literal of Python."""

    def __init__(self, spell: Callable[[object], str], whole: str) -> None:
        self.calls = False
        self._spell = spell
        self._whole = whole
        self._left = _LEAVES
        self._around: set[int] = set()

    def item(self, value: Any) -> Item:
        """Write a value as an item of a layout."""
        if value is None or type(value) in (bool, int, float, str, bytes):
            return self._leaf(value)
        if id(value) in self._around:
            raise NoLiteral(f"{_words(value)} that contains itself; {_MAKE}")
        self._around.add(id(value))
        try:
            found = self._container(value)
            if found is None:
                self.calls = True
                self._count()
                found = self._named(value)
            return self._object(value) if found is None else found
        finally:
            self._around.discard(id(value))

    def spelled(self, value: object) -> str:
        """Write a module, class or function."""
        self.calls = True
        return self._spell(value)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise NoLiteral(
                f"{self._whole} with more than {_LEAVES} values in all "
                f"(at most {_LEAVES} are written as source); {_MAKE}"
            )

    def _leaf(self, value: Any) -> str:
        self._count()
        if isinstance(value, str | bytes) and len(value) > _CHARACTERS:
            raise NoLiteral(
                f"a {type(value).__name__} of length {len(value):,} "
                f"(at most {_CHARACTERS:,} are written as source); {_SAVE}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            self.calls = True
            return f'float("{value}")'
        if type(value) is int and value.bit_length() > _DIGITS:
            return hex(value)
        return repr(value)

    def _container(self, value: Any) -> Item | None:
        kind = type(value)
        if kind in (list, tuple, set, frozenset, dict, collections.deque) and len(value) > _LEAVES:
            raise NoLiteral(f"{_words(value)} (at most {_LEAVES} are written as source); {_MAKE}")
        if kind is list:
            return group("[", self._items(value), "]")
        if kind is tuple:
            return Group("(", tuple(self._items(value)), ")", comma=True)
        if kind is dict:
            return group("{", [self._pair(*pair) for pair in value.items()], "}")
        if kind is set and value:
            return group("{", self._sorted(value), "}")
        return None

    def _items(self, values: Iterable[Any]) -> list[Item]:
        return [self.item(value) for value in values]

    def _sorted(self, values: Iterable[Any]) -> list[Item]:
        if len(set(map(type, values))) == 1 and isinstance(next(iter(values)), _ORDERED):
            return self._items(sorted(values))
        return sorted(self._items(values), key=flat)

    def _pair(self, key: Any, value: Any) -> Item:
        return labelled(f"{flat(self.item(key))}: ", self.item(value))

    def _call(self, function: object, *items: Item, **named: Any) -> Item:
        given = [labelled(f"{name}=", self.item(value)) for name, value in named.items()]
        return group(f"{self.spelled(function)}(", [*items, *given], ")")

    def _named(self, value: Any) -> Item | None:
        """Write what has a name, and collections with one."""
        if isinstance(value, _CALLABLES) or (callable(value) and hasattr(value, "__wrapped__")):
            return self._callable(value)
        if isinstance(value, enum.Enum):
            return self._enum(value)
        if isinstance(value, functools.partial):
            parts = self._items((value.func, *value.args))
            return self._call(type(value), *parts, **value.keywords)
        if isinstance(value, types.MethodType):
            return f"{flat(self.item(value.__self__))}.{value.__func__.__name__}"
        if isinstance(value, tuple) and hasattr(type(value), "_fields"):
            names: tuple[str, ...] = getattr(value, "_fields", ())
            return self._call(type(value), **dict(zip(names, value, strict=True)))
        return self._collection(value)

    def _callable(self, value: Any) -> str:
        if isinstance(value, _METHODS):
            return f"{self.spelled(value.__objclass__)}.{value.__name__}"
        owner = getattr(value, "__self__", None)
        if owner is None or isinstance(owner, types.ModuleType | type):
            return self.spelled(value)
        return f"{flat(self.item(owner))}.{value.__name__}"

    def _enum(self, value: enum.Enum) -> str:
        kind = self.spelled(type(value))
        if isinstance(value, enum.Flag):
            names = [str(member.name) for member in value]
            return " | ".join(f"{kind}.{name}" for name in names) or f"{kind}(0)"
        return f"{kind}.{value.name}"

    def _collection(self, value: Any) -> Item | None:
        kind = type(value)
        if kind in (set, bytearray) and not value:
            return f"{kind.__name__}()"
        if kind is frozenset:
            return group("frozenset(", [group("{", self._sorted(value), "}")] if value else [], ")")
        if kind is bytearray:
            return f"bytearray({self._leaf(bytes(value))})"
        if kind is collections.deque:
            more = {} if value.maxlen is None else {"maxlen": value.maxlen}
            return self._call(kind, self.item(list(value)), **more)
        if kind in (collections.Counter, collections.OrderedDict, types.MappingProxyType):
            return self._call(kind, *([self.item(dict(value))] if value else []))
        if kind is collections.defaultdict:
            return self._call(kind, *self._items([value.default_factory, dict(value)]))
        return None

    def _object(self, value: Any) -> Item:
        """Write a value of another type: by its numbers, its text, or its fields."""
        found = numbers.written(value, self.spelled)
        if found is None:
            found = self._texted(value)
        if found is None:
            found = self._timed(value)
        return self._fielded(value) if found is None else found

    def _texted(self, value: Any) -> Item | None:
        if isinstance(value, pathlib.PurePath):
            kind = pathlib.Path if isinstance(value, pathlib.Path) else type(value)
            return self._call(kind, repr(str(value)))
        if isinstance(value, re.Pattern):
            return self._pattern(value)
        if type(value) in (decimal.Decimal, uuid.UUID, zoneinfo.ZoneInfo):
            return self._call(type(value), repr(str(value)))
        if type(value) is fractions.Fraction:
            return self._call(type(value), str(value.numerator), str(value.denominator))
        if isinstance(value, logging.Logger):
            return self._call(logging.getLogger, repr(value.name))
        if isinstance(value, complex):
            return group("complex(", self._items([value.real, value.imag]), ")")
        if isinstance(value, slice):
            return group("slice(", self._items([value.start, value.stop, value.step]), ")")
        if isinstance(value, range) and value.start == 0 and value.step == 1:
            return f"range({value.stop})"
        return repr(value) if isinstance(value, range | types.EllipsisType) else None

    def _pattern(self, value: re.Pattern[Any]) -> Item:
        text = repr(value.pattern)
        raw = text.replace("\\\\", "\\")
        with contextlib.suppress(SyntaxError, ValueError):
            if raw != text and ast.literal_eval(f"r{raw}") == value.pattern:
                text = f"r{raw}"
        default = re.compile(value.pattern[:0]).flags
        flags = [flag.name for flag in re.RegexFlag(value.flags & ~default)]
        more = [" | ".join(f"{self.spelled(re)}.{flag}" for flag in flags)] if flags else []
        return self._call(re.compile, text, *more)

    def _timed(self, value: Any) -> Item | None:
        if type(value) is dt.timedelta:
            named = {n: getattr(value, n) for n in ("days", "seconds", "microseconds")}
            return self._call(dt.timedelta, **{n: v for n, v in named.items() if v})
        if value is dt.UTC:
            return f"{self.spelled(dt.timezone)}.utc"
        if type(value) is dt.timezone:
            return self._call(dt.timezone, self.item(value.utcoffset(None)))
        if type(value) not in (dt.date, dt.time, dt.datetime):
            return None
        day = [] if type(value) is dt.time else [value.year, value.month, value.day]
        clock = [] if type(value) is dt.date else [getattr(value, n) for n in _PARTS_OF_TIME]
        while clock and clock[-1] == 0:
            clock.pop()
        named = {"tzinfo": getattr(value, "tzinfo", None), "fold": getattr(value, "fold", 0)}
        return self._call(
            type(value), *map(str, day + clock), **{n: v for n, v in named.items() if v}
        )

    def _fielded(self, value: Any) -> Item:
        if type(value) in (types.SimpleNamespace, argparse.Namespace):
            return self._call(type(value), **vars(value))
        held = stored(value)
        plain = next((kind for kind in _PLAIN if isinstance(value, kind)), None)
        if plain is not None and (not held or value.__dict__ is value):
            return self._call(type(value), *([self.item(plain(value))] if value else []))
        names = _fields(value) if dataclasses.is_dataclass(value) else _parameters(value)
        if names is None or any(name not in held for name in names):
            raise NoLiteral(
                f"{_words(value)}, which its class cannot be asked to make again; "
                "assign it in one statement whose text can run anew"
            )
        return self._call(type(value), **{name: held[name] for name in names})


def _fields(value: Any) -> list[str] | None:
    """Give the fields that make a dataclass again; None where it holds more than they say."""
    kinds = [field._field_type.name for field in value.__dataclass_fields__.values()]
    fields = dataclasses.fields(value)
    others = [field for field in fields if not field.init]
    if "_FIELD_INITVAR" in kinds or set(stored(value)) - {field.name for field in fields}:
        return None
    if not all(_is_default(field, value) for field in others):
        return None
    moved = (field for field in fields if field.init and not _is_default(field, value))
    return [field.name for field in moved]


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    """Say whether a field has the value that it has where none is given."""
    if field.default_factory in _PLAIN:
        default: Any = field.default_factory()
    elif field.default is not dataclasses.MISSING:
        default = field.default
    else:
        return False
    return bool(portrait(getattr(value, field.name, None)) == portrait(default))


def _parameters(value: Any) -> list[str] | None:
    """Give the parameters of the `__init__` of a plain class; None for another class."""
    init: Any = type(value).__init__
    if init is object.__init__:
        kind: Any = type(value)
        plain = kind.__new__ is object.__new__ and kind.__flags__ & IN_PYTHON
        return [] if plain and not stored(value) else None
    if not isinstance(init, FunctionType):
        return None
    parameters = list(inspect.signature(init).parameters.values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters] if all(p.kind in kinds for p in parameters) else None


def _words(value: Any) -> str:
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    if isinstance(value, list | tuple | dict | set | frozenset | collections.deque):
        return f"{article} {kind} of {len(value):,} items"
    return f"{article} {kind}"
