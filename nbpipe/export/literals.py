"""Literals: a live value as source of an expression that is equal to it."""

from __future__ import annotations

import argparse
import builtins
import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import inspect
import math
import pathlib
import re
import sys
import tempfile
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse
from types import FunctionType
from typing import Any

import numpy as np

from ..base.names import parameters_of
from ..base.tree import is_tensor
from .reachable import IN_PYTHON, attributes_of
from .secrets import as_text, holds_value
from .source import run_ruff


def group(opening: str, items: Iterable[str], closing: str) -> str:
    """Write items in brackets."""
    return f"{opening}{', '.join(items)}{closing}"


# -- Arrays, tensors, their numbers and types as source --------------------------------------------
MOST = 64  # elements
_KINDS = "biufSU"  # of elements that have a text
_SAVE_LARGE = f"(at most {MOST} elements are written as source; save it and load it by path)"
_NO_TEXT = "(it cannot be written as source; save it and load it by path)"
Spell = Callable[[object], str]


class NoLiteral(Exception):  # noqa: N818 - an answer, not a failure
    """A value cannot be written as source.

    Attributes:
        reason: what it is, why it cannot be written, and what to do instead.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def written(value: Any, spell: Spell) -> str | None:
    """Write what numpy or torch made; None for other values.

    Raises:
        NoLiteral: it is too large, or of a kind that has no text.
    """
    if isinstance(value, np.ndarray):
        return _array(value, spell)
    if isinstance(value, np.generic):
        if value.dtype.kind not in _KINDS:
            raise NoLiteral(f"numpy scalar of {value.dtype} {_NO_TEXT}")
        numpy = spell(np)
        return f"{numpy}.{type(value).__name__}({_number(value, f'{numpy}.nan', f'{numpy}.inf')})"
    if is_tensor(value):
        return _tensor(value, spell)
    return None


def large_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array or tensor that is too large for source as an array; None for other values."""
    array = value.detach().cpu().numpy() if is_tensor(value) else value
    is_large = isinstance(array, np.ndarray) and array.size > MOST and array.dtype.kind in _KINDS
    return array if is_large else None


def _array(value: np.ndarray[Any, Any], spell: Spell) -> str:
    if value.size > MOST:
        raise NoLiteral(f"numpy array of shape {value.shape} {_SAVE_LARGE}")
    if type(value) is not np.ndarray or value.dtype.kind not in _KINDS or 0 in value.shape[:-1]:
        kind = "array" if type(value) is np.ndarray else type(value).__name__
        raise NoLiteral(f"numpy {kind} of dtype {value.dtype} {_NO_TEXT}")
    numpy = spell(np)
    named = value.dtype.isnative and value.dtype.kind in "iufb"
    element = f"{numpy}.{value.dtype.type.__name__}" if named else repr(value.dtype.str)
    numbers = _nested(value, f"{numpy}.nan", f"{numpy}.inf")
    return group(f"{numpy}.array(", [numbers, f"dtype={element}"], ")")


def _nested(value: np.ndarray[Any, Any], nan: str, inf: str) -> str:
    if value.ndim == 0:
        return _number(value[()], nan, inf)
    return group("[", [_nested(np.asarray(part), nan, inf) for part in value], "]")


def _number(value: Any, nan: str, inf: str) -> str:
    """Write one element, a float of 16 or 32 bits as short as its own precision allows."""
    if value.dtype.kind != "f":
        return repr(value.item())
    if not np.isfinite(value):
        return nan if np.isnan(value) else inf if value > 0 else f"-{inf}"
    short = str(value)
    if type(value)(float(short)) == value:
        return short
    raise NoLiteral(f"numpy number of {value.dtype} (it cannot be written as source)")


def _tensor(value: Any, spell: Spell) -> str:
    torch: Any = sys.modules["torch"]
    shape = tuple(value.shape)
    if value.numel() > MOST:
        raise NoLiteral(f"torch tensor of shape {shape} {_SAVE_LARGE}")
    if value.device.type != "cpu":
        raise NoLiteral(f"torch tensor on {value.device} (create it on the CPU, and move it later)")
    odd = type(value) is not torch.Tensor or value.layout is not torch.strided or not value.is_leaf
    try:
        array = value.detach().resolve_neg().numpy()
    except (RuntimeError, TypeError):  # of a type that numpy does not have
        odd = True
    if odd or array.dtype.kind not in _KINDS or 0 in shape[:-1]:
        raise NoLiteral(
            f"torch {type(value).__name__} of shape {shape} (save it and load it by path)"
        )
    name = spell(torch)
    more = [f"dtype={name}.{str(value.dtype).removeprefix('torch.')}"]
    more += ["requires_grad=True"] if value.requires_grad else []
    numbers = _nested(array, 'float("nan")', 'float("inf")')
    return group(f"{name}.tensor(", [numbers, *more], ")")


# -- Paths of this machine -------------------------------------------------------------------------
# At the beginning of a text or behind a blank, a bracket or `=`: "gs://data/x" and "host:/data/x"
# are elsewhere.
_PATH = re.compile(
    r"(?:(?<![\w.~/:])|(?<=file://)|(?<=sqlite:///))/[^\s/'\"<>|:;,]+[^\s'\"<>|:;,]*"
)
_OF_MACHINE = frozenset(("/home", "/root", "/tmp", "/Users", "/mnt", "/var", "/content"))  # noqa: S108
_REST = re.compile(r"[^\s'\"<>|:;,]*")
_DEEP = 2  # folders; names of one, as "/root", are in texts that mean something else


def paths_of_machine(text: str) -> Iterator[str]:
    """Return the absolute paths in a text that are of this machine.

    They are below the home folder, the working folder, that of temporary files or of Python, or in
    any folder that exists here.
    """
    for folder in _folders():
        at = text.find(folder)
        if at >= 0:
            yield folder + _REST.match(text, at + len(folder))[0]  # type: ignore[index]  # never None
    for match in _PATH.finditer(text):
        top = "/" + match[0].split("/")[1]
        with contextlib.suppress(OSError, ValueError):  # the name is too long, or odd
            if top in _OF_MACHINE or pathlib.Path(top).exists():
                yield match[0]


def _folders() -> list[str]:
    found: dict[str, None] = dict.fromkeys((sys.prefix, sys.base_prefix))
    for give in (pathlib.Path.home, pathlib.Path.cwd, tempfile.gettempdir):
        with contextlib.suppress(RuntimeError, OSError):  # there is none
            found[str(give())] = None
    return [one for one in found if len(pathlib.PurePath(one).parts) > _DEEP]


# -- Literals: a live value as source of an expression that is equal to it -------------------------
_LEAVES = 200
_CHARACTERS = 4_000
_MAKE = "write a function that returns it"
_SAVE = "save it and load it by path"
# Their own words evaluate to them, by the names of their classes.
_EVALUATED = (
    *(dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone, zoneinfo.ZoneInfo),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, slice, range, types.EllipsisType),
)
_CLASSES = re.compile(r"\b(?:datetime|zoneinfo)\.\w+|^(?:Decimal|Fraction|UUID)\b")
_NAMED = (type, types.ModuleType, FunctionType, types.BuiltinFunctionType)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, collections.defaultdict)
_PLAIN = (dict, list, set)
_WIDTH = 88  # of a line
_NAME = "_" * 13  # stands for a name that is not known
_DIGITS = 4_000  # Python refuses to write longer numbers


def literal(
    value: object,
    spell: Callable[[object], str],
    *,
    name: str = _NAME,
    typed: Callable[[str], bool] | None = None,
    withheld: frozenset[str] = frozenset(),
) -> str:
    """Write a value as source of an expression that evaluates to an equal one.

    Sets are sorted. At most 64 elements of an array, 200 values and 4,000 characters in all are
    written.

    Args:
        value: anything.
        spell: gives the expression that stands for a module, class or function; it raises
            `NoLiteral` where there is none.
        name: the variable that the expression is assigned to.
        typed: tells whether the user typed an absolute path: no other one of this machine is
            written. None: all are.
        withheld: texts that are not written, as the values of environment variables.

    Raises:
        NoLiteral: it cannot be written, or is too large; its reason says why, and what to do.
    """
    writer = _LiteralWriter(spell, _words(value), functools.partial(_refuse, typed, withheld))
    text = _laid_out(name, writer.item(value))
    if len(text) > _CHARACTERS:
        raise NoLiteral(
            f"{_words(value)}, which takes {len(text):,} characters "
            f"(at most {_CHARACTERS:,} are written as source); {_MAKE}"
        )
    return text


def _laid_out(name: str, text: str) -> str:
    """Write an expression with the quotes and the lines that ruff gives it."""
    head = f"{name} = "
    if len(head + text) <= _WIDTH and "'" not in text:
        return text
    return (run_ruff("format", head + text) or head + text).removeprefix(head).rstrip("\n")


def _refuse(typed: Callable[[str], bool] | None, withheld: frozenset[str], text: str) -> None:
    """Refuse a text that no literal may hold."""
    if withheld and holds_value(text, withheld):
        raise NoLiteral("a value of the environment; look it up in the statement that needs it")
    path = None if typed is None else next(filterfalse(typed, paths_of_machine(text)), None)
    if path is not None:
        raise NoLiteral(
            f"the absolute path {path!r}, which no cell has; write it in a cell, make it "
            "relative, or look it up where it is used"
        )


class _LiteralWriter:
    """Writes one value."""

    def __init__(
        self, spell: Callable[[object], str], whole: str, refuse: Callable[[str], None]
    ) -> None:
        self._spell = spell
        self._whole = whole
        self._refuse = refuse
        self._left = _LEAVES
        self._around: set[int] = set()

    def item(self, value: Any) -> str:
        """Write a value in one line."""
        if value is None or type(value) in (bool, int, float, str, bytes):
            return self._leaf(value)
        if id(value) in self._around:
            raise NoLiteral(f"{_words(value)} that contains itself; {_MAKE}")
        self._around.add(id(value))
        try:
            if type(value) in _CONTAINERS:
                return self._container(value)
            self._count()
            return self._made_by_numpy(value) or self._object(value)
        finally:
            self._around.discard(id(value))

    def _made_by_numpy(self, value: Any) -> str | None:
        """Write what numpy or torch made; None for other values."""
        texts = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else np.empty(0)
        if texts.dtype.kind in "SU" and texts.size <= MOST:
            for one in texts.ravel().tolist():
                self._refuse(as_text(one))
        return written(value, self._spell)

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
        if type(value) is int and value.bit_length() > _DIGITS:
            return hex(value)
        text = as_text(value) if isinstance(value, str | bytes) else str(value)
        if value is not None and type(value) is not bool and (len(text) > 1 or not self._around):
            self._refuse(text)
        infinite = isinstance(value, float) and not math.isfinite(value)
        return f'float("{value}")' if infinite else repr(value)

    def _container(self, value: Any) -> str:
        kind = type(value)
        if len(value) > _LEAVES:
            raise NoLiteral(f"{_words(value)} (at most {_LEAVES} are written as source); {_MAKE}")
        if kind is list:
            return group("[", self._items(value), "]")
        if kind is tuple:
            return group("(", self._items(value), ",)" if len(value) == 1 else ")")
        if kind is dict:
            return group("{", [": ".join(map(self.item, pair)) for pair in value.items()], "}")
        if kind is collections.deque:
            return self._call(kind, self.item(list(value)), self.item(value.maxlen))
        if kind is collections.defaultdict:
            return self._call(kind, *self._items([value.default_factory, dict(value)]))
        inner = group("{", self._sorted(value), "}") if value else ""
        return inner if inner and kind is set else f"{kind.__name__}({inner})"

    def _items(self, values: Iterable[Any]) -> list[str]:
        return [self.item(value) for value in values]

    def _sorted(self, values: Iterable[Any]) -> list[str]:
        with contextlib.suppress(TypeError):
            return self._items(sorted(values))
        return sorted(self._items(values))

    def _call(self, function: object, /, *items: str, **named: Any) -> str:
        given = [f"{name}={self.item(value)}" for name, value in named.items()]
        return group(f"{self._spell(function)}(", [*items, *given], ")")

    def _object(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, _NAMED):
            return self._spell(value)
        if isinstance(value, complex):
            return group("complex(", self._items([value.real, value.imag]), ")")
        if isinstance(value, enum.Enum):
            known = value.name in kind.__members__
            return f"{self._spell(kind)}" + (f".{value.name}" if known else f"({value.value!r})")
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return self._call(kind, **dict(zip(kind._fields, value, strict=True)))
        if isinstance(value, pathlib.PurePath):
            self._refuse(str(value))
            kind = pathlib.Path if isinstance(value, pathlib.Path) else kind
            return self._call(kind, repr(str(value)))
        if kind in _EVALUATED:
            return _CLASSES.sub(lambda name: self._spelled_class(name[0], value), repr(value))
        return self._fielded(value)

    def _spelled_class(self, name: str, value: object) -> str:
        module, _, own = name.rpartition(".")
        return self._spell(getattr(sys.modules[module or type(value).__module__], own))

    def _fielded(self, value: Any) -> str:
        """Write a value by its class, and by what this is given."""
        if type(value) in (types.SimpleNamespace, argparse.Namespace):
            return self._call(type(value), **vars(value))
        held = attributes_of(value)
        plain = next((kind for kind in _PLAIN if isinstance(value, kind)), None)
        if plain is not None and (not held or value.__dict__ is value):
            return self._call(type(value), *([self.item(plain(value))] if value else []))
        names = _parameters(value)
        more = dataclasses.is_dataclass(value) and not held.keys() <= set(names or ())
        if names is None or more or any(name not in held for name in names):
            raise NoLiteral(
                f"{_words(value)}, which its class cannot create from its attributes; "
                "assign it in one statement"
            )
        return self._call(type(value), **{name: held[name] for name in names})


def _parameters(value: Any) -> list[str] | None:
    """Return the parameters of the `__init__` of a plain class; None for another class."""
    init: Any = type(value).__init__
    if init is object.__init__:
        kind: Any = type(value)
        plain = kind.__new__ is object.__new__ and kind.__flags__ & IN_PYTHON
        return [] if plain and not attributes_of(value) else None
    if not isinstance(init, FunctionType):
        return None
    parameters = list(parameters_of(init).values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters] if all(p.kind in kinds for p in parameters) else None


def _words(value: Any) -> str:
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    if isinstance(value, list | tuple | dict | set | frozenset | collections.deque):
        return f"{article} {kind} of {len(value):,} items"
    return f"{article} {kind}"


# -- Spelling: a literal with the names that a module has, and without what is this machine's ------
def spelled(
    value: object,
    space: Mapping[str, object],
    *,
    own: Sequence[str] = (),
    hidden: frozenset[str] = frozenset(),
    typed: Iterable[str] = (),
) -> tuple[str, tuple[str, ...]]:
    """Write a value as source; return that, and the import lines that it takes.

    Args:
        value: anything.
        space: the variables of the module: what one of them holds is called by its name.
        own: names of those that the source is for, which it does not use.
        hidden: values of the environment that it must not hold.
        typed: absolute paths that the user typed, which it may hold.

    Raises:
        NoLiteral: it cannot be written, or holds a path of this machine or what is hidden.
    """
    paths = tuple(typed)
    names = {id(held): n for n, held in space.items() if n not in own and not n.startswith("_")}
    imports: dict[str, None] = {}

    def spell(one: object) -> str:
        line, text = _import_of(one, names, space)
        imports.update(dict.fromkeys([line] if line else []))
        return text

    text = literal(
        value,
        spell,
        name=own[0] if own else _NAME,
        typed=lambda path: any(path in one for one in paths),
        withheld=hidden,
    )
    return text, tuple(imports)


def _import_of(one: Any, names: Mapping[int, str], space: Mapping[str, object]) -> tuple[str, str]:
    """Return the import of a module, class or function, or "", and what it is called then.

    Args:
        one: the module, class or function.
        names: the names that may be used, by the ids of what they hold.
        space: all variables.

    Raises:
        NoLiteral: it cannot be imported, or its name means something else.
    """
    if id(one) in names:
        return "", names[id(one)]
    is_module = isinstance(one, types.ModuleType)
    path = "" if is_module else str(getattr(one, "__qualname__", ""))
    if path and getattr(builtins, path, None) is one and path not in space:
        return "", path
    private = str(one.__name__ if is_module else getattr(one, "__module__", ""))
    for module in dict.fromkeys((private.removeprefix("_"), private)):
        found: Any = sys.modules.get(module)
        bound = names.get(id(found))
        for part in path.split(".") if path else ():
            found = getattr(found, part, None)
        if found is not one or module == "__main__" or not (path or is_module):
            continue
        if path and bound is not None:
            return "", f"{bound}.{path}"
        first, top = path.partition(".")[0], module.partition(".")[0]
        if path and first not in space:
            return f"from {module} import {first}", path
        if space.get(top, sys.modules[top]) is sys.modules[top]:
            return f"import {module}", f"{module}.{path}".removesuffix(".")
    raise NoLiteral(f"{path or private!r}, which cannot be imported")
