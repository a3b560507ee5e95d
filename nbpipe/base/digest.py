"""Digests of what the items of a chain depend on, functions, options, sources; and of states.

Two digests are equal in every process where the values are; a digest does not see what a
function reads from files, from objects that other modules hold, or over the network.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import json
from collections.abc import Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from ..errors import StateError
from .describe import summarize

_DEPTH = 8  # levels of functions, their values, and the values in those
_ITEMS = 8  # items of a source that are looked at
_MOST = 10_000  # values of one container that are looked at
_LONGEST_ARRAY_BYTES = 1 << 20
_OURS = f"{__name__.partition('.')[0]}."
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def value_digest(value: Any) -> str:
    """Digest a value.

    A function counts by its code, its defaults and the values it encloses or reads from its own
    module; an object by its class and attributes; a large array by its shape.
    """
    digest = hashlib.blake2b(digest_size=8)
    _Feeder(digest).feed(value, 0)
    return digest.hexdigest()


def source_digest(items: Any) -> str:
    """Digest a source: a function by its code, others by type, length and first items."""
    if callable(items) and not hasattr(type(items), "__iter__"):
        return value_digest(items)
    try:
        length = len(items)
    except (TypeError, NotImplementedError):
        length = None
    first = list(items[:_ITEMS]) if isinstance(items, list | tuple | range) else None
    return value_digest((type(items).__qualname__, length, first))


def seal(state: Mapping[str, Any]) -> str:
    """Digest a state of JSON-ready values, but for what it says of itself."""
    words = {name: value for name, value in state.items() if name != "seal"}
    text = json.dumps(words, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_seal(state: Mapping[str, Any], way_out: str) -> None:
    """Check that a state is as it was written; one without a seal is taken as it is.

    Raises:
        StateError: somebody changed it.
    """
    given = state.get("seal")
    if given is not None and given != seal(state):
        raise StateError(f"the state is not as it was written; {way_out}")


class _Feeder:
    """Feeds values into a digest, each object once."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest
        self._seen: dict[int, Any] = {}

    def _write(self, *words: object) -> None:
        self._digest.update(repr(words).encode("utf-8", "backslashreplace"))

    def feed(self, value: Any, depth: int) -> None:
        if isinstance(value, _PLAIN):
            self._write(type(value).__name__, value)
        elif depth > _DEPTH or id(value) in self._seen:
            self._write("again")
        else:
            self._seen[id(value)] = value  # kept alive: its id stays its own
            self._feed_object(value, depth + 1)

    def _feed_object(self, value: Any, depth: int) -> None:
        if isinstance(value, functools.partial):
            self._feed_all("partial", (value.func, value.args, value.keywords), depth)
        elif isinstance(value, FunctionType):
            self._feed_function(value, depth)
        elif isinstance(value, MethodType):
            self._feed_all("method", (value.__func__, value.__self__), depth)
        elif isinstance(value, type | BuiltinFunctionType):
            self._write(_module_of(value), value.__qualname__)
        elif isinstance(value, list | tuple):
            self._feed_all(type(value).__name__, value, depth)
        elif isinstance(value, dict):
            self._feed_all("dict", [part for pair in value.items() for part in pair], depth)
        elif isinstance(value, set | frozenset):
            self._write("set", sorted(map(value_digest, value)))
        elif isinstance(value, np.ndarray):
            self._feed_array(value)
        else:
            self._feed_instance(value, depth)

    def _feed_all(self, kind: str, values: Any, depth: int) -> None:
        self._write(kind, len(values))
        for value in values[:_MOST]:
            self.feed(value, depth)

    def _feed_array(self, array: np.ndarray[Any, Any]) -> None:
        self._write("array", array.shape, str(array.dtype))
        if array.nbytes <= _LONGEST_ARRAY_BYTES and not array.dtype.hasobject:
            self._digest.update(array.tobytes())

    def _feed_instance(self, value: Any, depth: int) -> None:
        kind = type(value)
        self._write(_module_of(kind), kind.__qualname__, summarize(value))
        if isinstance(getattr(kind, "__call__", None), FunctionType):  # noqa: B004  its code is read
            self.feed(kind.__call__, depth)
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            self._feed_all("fields", [getattr(value, name, None) for name in names], depth)
        else:
            self.feed(getattr(value, "__dict__", None), depth)

    def _feed_function(self, function: FunctionType, depth: int) -> None:
        self._feed_code(function.__code__)
        self._feed_all("defaults", (function.__defaults__, function.__kwdefaults__), depth)
        for cell in function.__closure__ or ():
            try:
                self.feed(cell.cell_contents, depth)
            except ValueError:  # not bound yet
                self._write("empty")
        for name in sorted(_names_read(function.__code__)):
            value = function.__globals__.get(name)
            own = isinstance(value, FunctionType) and value.__module__ == function.__module__
            if own or isinstance(value, _PLAIN):
                self.feed(value, depth)

    def _feed_code(self, code: CodeType) -> None:
        self._digest.update(code.co_code)
        self._write(code.co_names, code.co_varnames)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._feed_code(constant)
            elif isinstance(constant, frozenset):
                self._write(sorted(map(repr, constant)))
            else:
                self._write(constant)


def _module_of(value: Any) -> str | None:
    """Return the module of a class or function; of a class of ours, that which it began in."""
    module: str | None = value.__module__
    if module is None or not module.startswith(_OURS):
        return module
    return str(getattr(value, "digest_module", module))


def _names_read(code: CodeType) -> set[str]:
    """Return the global names that a function reads and does not set."""
    steps = list(dis.get_instructions(code))
    names = {str(step.argval) for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_read(constant)
    return names - {str(step.argval) for step in steps if step.opname == "STORE_GLOBAL"}
