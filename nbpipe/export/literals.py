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
import io
import math
import pathlib
import re
import sys
import tempfile
import types
import uuid
import zipfile
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import filterfalse
from types import FunctionType
from typing import Any, final

import numpy as np

from ..base.names import parameters_of
from ..base.tree import is_tensor
from ..errors import ExportError
from .reachable import IN_PYTHON, attributes_of, secret_in
from .secrets import advice, as_text, holds_value
from .source import run_ruff

# -- What is not written, and why ------------------------------------------------------------------
MOST = 64  # elements of an array
_KINDS = "biufSU"  # of elements that have a text
_SAVE_LARGE = f"(at most {MOST} elements are written as source; save it and load it by path)"
_NO_TEXT = "(it cannot be written as source; save it and load it by path)"
Spelled = tuple[str, tuple[str, ...]]  # the source of a value, and the imports that it takes


class NoLiteral(Exception):  # noqa: N818 - an answer, not a failure
    """A value cannot be written as source; `reason` says why, and what to do instead."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def large_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array or tensor that is too large for source as an array; None for other values."""
    array = value.detach().cpu().numpy() if is_tensor(value) else value
    is_large = isinstance(array, np.ndarray) and array.size > MOST and array.dtype.kind in _KINDS
    return array if is_large else None


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
    """Return the absolute paths in a text whose folder exists here, or is one of the user's."""
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
_ITEM = re.compile(r"[^()\[\]{}=#]{1,20},")  # a short one, of a list or a dict
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

    Args:
        value: anything; at most 64 elements of an array, 200 values and 4,000 characters in all.
        spell: gives the expression of a module, class or function, or raises `NoLiteral`.
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
    """Write an expression as ruff does; short items that it gives a line each share lines."""
    head = f"{name} = "
    if len(head + text) <= _WIDTH and "'" not in text:
        return text
    lines: list[str] = []
    packed, before = False, ""  # the indentation of the items in the last line
    for line in (run_ruff("format", head + text) or head + text).rstrip("\n").split("\n"):
        item = line.lstrip()
        indent = line.removesuffix(item) if _ITEM.fullmatch(item) else ""
        if indent and indent == before and len(lines[-1]) + len(item) < _WIDTH:
            lines[-1] += f" {item}"
            packed = True
        else:
            lines.append(line)
        before = indent
    return "\n".join(lines).removeprefix(head) + "  # fmt: skip" * packed


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
            if isinstance(value, np.ndarray | np.generic):
                return self._array(value)
            return self._tensor(value) if is_tensor(value) else self._object(value)
        finally:
            self._around.discard(id(value))

    def _array(self, value: np.ndarray[Any, Any] | np.generic) -> str:
        if value.size > MOST:
            raise NoLiteral(f"numpy array of shape {value.shape} {_SAVE_LARGE}")
        is_scalar, kind, dtype = isinstance(value, np.generic), type(value).__name__, value.dtype
        odd = not is_scalar and (type(value) is not np.ndarray or 0 in value.shape[:-1])
        if odd or dtype.kind not in _KINDS:
            what = "scalar" if is_scalar else kind.removeprefix("nd")
            raise NoLiteral(f"numpy {what} of dtype {dtype} {_NO_TEXT}")
        for text in value.ravel().tolist() if dtype.kind in "SU" else ():
            self._refuse(as_text(text))
        numpy = self._spell(np)
        numbers = _nested(np.asarray(value), f"{numpy}.nan", f"{numpy}.inf")
        if is_scalar:
            return f"{numpy}.{kind}({numbers})"
        named = dtype.isnative and dtype.kind in "iufb"
        element = f"{numpy}.{dtype.type.__name__}" if named else repr(dtype.str)
        return f"{numpy}.array({numbers}, dtype={element})"

    def _tensor(self, value: Any) -> str:
        torch: Any = sys.modules["torch"]
        shape = tuple(value.shape)
        if value.numel() > MOST:
            raise NoLiteral(f"torch tensor of shape {shape} {_SAVE_LARGE}")
        if value.device.type != "cpu":
            way_out = "create it on the CPU, and move it later"
            raise NoLiteral(f"torch tensor on {value.device} ({way_out})")
        odd = type(value) is not torch.Tensor or value.layout is not torch.strided
        try:
            array = value.detach().resolve_neg().numpy()
        except (RuntimeError, TypeError):  # of a type that numpy does not have
            odd = True
        if odd or not value.is_leaf or array.dtype.kind not in _KINDS or 0 in shape[:-1]:
            kind = type(value).__name__
            raise NoLiteral(f"torch {kind} of shape {shape} (save it and load it by path)")
        name, grad = self._spell(torch), ", requires_grad=True" * value.requires_grad
        numbers = _nested(array, 'float("nan")', 'float("inf")')
        element = f"{name}.{str(value.dtype).removeprefix('torch.')}"
        return f"{name}.tensor({numbers}, dtype={element}{grad})"

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
            return f"[{self._items(value)}]"
        if kind is tuple:
            return f"({self._items(value)}{',' * (len(value) == 1)})"
        if kind is dict:
            pairs = (": ".join(map(self.item, pair)) for pair in value.items())
            return f"{{{', '.join(pairs)}}}"
        if kind is collections.deque:
            return self._call(kind, self.item(list(value)), self.item(value.maxlen))
        if kind is collections.defaultdict:
            return self._call(kind, self._items([value.default_factory, dict(value)]))
        inner = f"{{{self._sorted(value)}}}" if value else ""
        return inner if inner and kind is set else f"{kind.__name__}({inner})"

    def _items(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self.item, values))

    def _sorted(self, values: Iterable[Any]) -> str:
        with contextlib.suppress(TypeError):
            return self._items(sorted(values))
        return ", ".join(sorted(map(self.item, values)))

    def _call(self, function: object, /, *items: str, **named: Any) -> str:
        given = [f"{name}={self.item(value)}" for name, value in named.items()]
        return f"{self._spell(function)}({', '.join([*items, *given])})"

    def _object(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, _NAMED):
            return self._spell(value)
        if isinstance(value, complex):
            return f"complex({self._items([value.real, value.imag])})"
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


def _nested(value: np.ndarray[Any, Any], nan: str, inf: str) -> str:
    """Write the elements of an array; floats of 16 or 32 bits as short as that allows."""
    if value.ndim:
        return f"[{', '.join(_nested(np.asarray(part), nan, inf) for part in value)}]"
    number: Any = value[()]
    if value.dtype.kind != "f":
        return repr(number.item())
    if not np.isfinite(number):
        return nan if np.isnan(number) else inf if number > 0 else f"-{inf}"
    if type(number)(float(str(number))) == number:
        return str(number)
    raise NoLiteral(f"numpy number of {value.dtype} (it cannot be written as source)")


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


# -- Values: literals with the names that a module has, and arrays in a file beside it -------------
@final
class Values:
    """Writes live values for a module.

    Args:
        space: the variables of the module: what one of them holds is called by its name.
        hidden: values of the environment that no literal may hold.
        typed: absolute paths that the user typed, which literals may hold.
        archive: the name of the file for large arrays; empty: they are refused.
    """

    def __init__(
        self,
        space: Mapping[str, object],
        *,
        hidden: frozenset[str] = frozenset(),
        typed: Iterable[str] = (),
        archive: str = "",
    ) -> None:
        self._space, self._hidden, self._typed = space, hidden, tuple(typed)
        self._archive = archive
        self._arrays: dict[str, Any] = {}

    def spelled(self, name: str, value: object) -> Spelled:
        """Write the value of a variable as source; return that, and the import lines it takes.

        Raises:
            NoLiteral: it cannot be written, or holds a path of this machine or what is hidden.
        """
        array = large_array(value) if self._archive else None
        if array is None:
            return self._literal(name, value)
        if secret_in(name, array) is not None:
            raise ExportError(f"variable {name!r} {advice(name)}")
        self._arrays[name] = array
        numpy, imports = self._literal(name, np)
        path, more = self._literal(name, pathlib.Path)
        text = f'{numpy}.load({path}(__file__).with_name("{self._archive}"))["{name}"]'
        if is_tensor(value):
            torch, own = self._literal(name, sys.modules["torch"])
            text, more = f"{torch}.from_numpy({text})", (*more, *own)
        return text, (*imports, *more)

    def files(self, texts: Mapping[str, str]) -> dict[str, bytes]:
        """Return the files that a module loads, by name, from the statements of its variables."""
        loaded = {n: one for n, one in self._arrays.items() if self._archive in texts.get(n, "")}
        if not loaded:
            return {}
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w") as file:  # `numpy.savez` would write the time into it
            for name in sorted(loaded):
                data = io.BytesIO()
                np.lib.format.write_array(data, np.asarray(loaded[name]), allow_pickle=False)
                file.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue())
        return {self._archive: sink.getvalue()}

    def _literal(self, name: str, value: object) -> Spelled:
        pairs = self._space.items()
        names = {id(held): n for n, held in pairs if n != name and not n.startswith("_")}
        imports: dict[str, None] = {}

        def spell(one: object) -> str:
            line, text = import_of(one, names, self._space)
            imports.update(dict.fromkeys([line] if line else []))
            return text

        text = literal(
            value,
            spell,
            name=name or _NAME,
            typed=lambda path: any(path in one for one in self._typed),
            withheld=self._hidden,
        )
        return text, tuple(imports)


def import_of(one: Any, names: Mapping[int, str], space: Mapping[str, object]) -> tuple[str, str]:
    """Return the import of a module, class or function, or "", and what it is called then."""
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
