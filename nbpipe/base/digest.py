"""Digests of functions, options and sources, on which the items of a chain depend; and of states.

Two digests are equal in every process where the values are; a digest does not see what a
function reads from files, from objects that other modules hold, or over the network, nor lists,
dicts and objects in global variables, which an epoch may change.
"""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import dis
import functools
import hashlib
import json
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ..errors import StateError
from .describe import summarize
from .tree import is_tensor

_DEPTH = 8  # levels of functions, their values, and the values in those
_ITEMS = 8  # items of a source that are looked at
_MOST = 10_000  # values of one container that are looked at
_LONGEST_ARRAY_BYTES = 1 << 20
_OURS = f"{__name__.partition('.')[0]}."
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# What has no dict of attributes tells its values as for a pickle: what has slots, and these.
_TELLING = frozenset(("builtins", "datetime", "decimal", "numpy.dtypes", "operator", "re"))
_PROTOCOL = 2  # the first one that knows slots


def value_digest(value: Any) -> str:
    """Digest a value.

    A function counts by its code, its defaults and the values it encloses or reads from its own
    module, a method also by what it uses of its class; an object by its class and attributes; a
    large array by its shape.
    """
    digest = hashlib.blake2b(digest_size=8)
    _Feeder(digest).feed(value, 0)
    return digest.hexdigest()


def source_digest(items: Any) -> str:
    """Digest a source: a function by its code, others by type, length and first items.

    A dataset is not read: its attributes count, but for those that its `set_epoch` changes.
    """
    if callable(items) and not hasattr(type(items), "__iter__"):
        return value_digest(items)
    try:
        length = len(items)
    except Exception:  # noqa: BLE001  a length that is not known, whatever is raised
        length = None
    about = [type(items).__qualname__, length, _first(items)]
    attributes = _attributes(items)
    return value_digest((*about, attributes) if attributes else tuple(about))


def _first(items: Any) -> Any:
    """Return the first items, where they can be had without reading what may be slow."""
    if isinstance(items, list | tuple | range | deque):
        return list(islice(items, _ITEMS))
    in_memory = isinstance(items, np.ndarray) or is_tensor(items)
    return items[:_ITEMS] if in_memory else None


def seal(state: Mapping[str, Any]) -> str:
    """Digest a state of JSON-ready values, but for what it says of itself."""
    words = {name: value for name, value in state.items() if name != "seal"}
    text = json.dumps(words, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_seal(state: Mapping[str, Any], way_out: str) -> None:
    """Check that a state is as it was written; one without a seal is taken as it is.

    Raises:
        StateError: it was changed.
    """
    given = state.get("seal")
    if given is not None and given != seal(state):
        raise StateError(f"the state is not as it was written; {way_out}")


class _Feeder:
    """Feeds values into a digest, each object once."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest
        self._seen: dict[int, Any] = {}
        self._used: set[tuple[FunctionType, type]] = set()  # methods, and the classes they are of

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
            self._feed_used(value.__func__, _class_of(value.__self__), depth)
        elif isinstance(value, type | BuiltinFunctionType):
            self._write(_module_of(value), value.__qualname__)
            self._feed_owner(getattr(value, "__self__", None), depth)
        elif isinstance(value, ModuleType):
            self._write("module", value.__name__)
        elif isinstance(value, list | tuple | deque):
            self._feed_all(type(value).__name__, value, depth)
        elif isinstance(value, dict):
            self._feed_all("dict", [part for pair in value.items() for part in pair], depth)
        elif isinstance(value, set | frozenset):
            self._write("set", sorted(map(value_digest, value)))
        elif isinstance(value, np.ndarray):
            self._feed_array(value, depth)
        elif is_tensor(value):
            self._feed_tensor(value)
        else:
            self._feed_instance(value, depth)

    def _feed_all(self, kind: str, values: Any, depth: int) -> None:
        self._write(kind, len(values))
        for value in islice(values, _MOST):
            self.feed(value, depth)

    def _feed_array(self, array: np.ndarray[Any, Any], depth: int) -> None:
        self._write("array", array.shape, str(array.dtype))
        if array.dtype.hasobject:
            self._feed_all("objects", array.tolist() if array.size <= _MOST else (), depth)
        elif array.nbytes <= _LONGEST_ARRAY_BYTES:
            self._digest.update(array.tobytes())

    def _feed_tensor(self, tensor: Any) -> None:
        self._write("tensor", summarize(tensor))
        if tensor.numel() * tensor.element_size() <= _LONGEST_ARRAY_BYTES:
            with contextlib.suppress(Exception):  # of a sparse one no more than its shape is seen
                words = tensor.detach().cpu().tolist()
                self._write(words)

    def _feed_owner(self, owner: Any, depth: int) -> None:
        """Feed what a method written in C belongs to, as `[1, 2].__getitem__`."""
        if owner is not None and not isinstance(owner, ModuleType):
            self.feed(owner, depth)

    def _feed_instance(self, value: Any, depth: int) -> None:
        kind = type(value)
        self._write(_module_of(kind), kind.__qualname__, summarize(value))
        call = getattr(kind, "__call__", None)  # noqa: B004  its code is read
        if isinstance(call, FunctionType):
            self.feed(call, depth)
            self._feed_used(call, kind, depth)
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            self._feed_all("fields", [getattr(value, name, None) for name in names], depth)
        elif hasattr(value, "__dict__"):
            self.feed(_attributes(value), depth)
        else:
            self._feed_pickled(value, depth)

    def _feed_pickled(self, value: Any, depth: int) -> None:
        """Feed an object without a dict of attributes by what its pickle is made of."""
        kind = type(value)
        if kind.__module__ in _TELLING or any("__slots__" in vars(base) for base in kind.__mro__):
            with contextlib.suppress(Exception):  # some cannot be pickled
                reduce = copyreg.dispatch_table.get(kind)
                told = value.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(value)
                self.feed(told[1:3], depth)

    def _feed_used(self, method: Any, owner: type, depth: int) -> None:
        """Feed what a method uses of its class: other methods, and values that stay."""
        if depth > _DEPTH or not isinstance(method, FunctionType) or _is_ours(owner):
            return
        if (method, owner) in self._used:
            return
        self._used.add((method, owner))
        for name in sorted(_attributes_read(method.__code__)):
            for part in _parts_of(owner, name):
                if isinstance(part, FunctionType):
                    self.feed(part, depth)
                    self._feed_used(part, owner, depth + 1)
                elif _stays(part):
                    self._write(name)
                    self.feed(part, depth)

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
            if own or _stays(value):
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


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, without those that every epoch changes."""
    found: dict[str, Any] = getattr(value, "__dict__", {})
    set_epoch = getattr(type(value), "set_epoch", None)
    if not isinstance(set_epoch, FunctionType):
        return found
    changed = set_epoch.__code__.co_names
    return {name: one for name, one in found.items() if name not in changed}


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith(_OURS)


def _class_of(owner: Any) -> type:
    """Return the class to which a bound method belongs."""
    return owner if isinstance(owner, type) else type(owner)


def _stays(value: Any) -> bool:
    """Return whether a value cannot be changed in place."""
    if isinstance(value, tuple | frozenset):
        return all(map(_stays, value))
    return isinstance(value, _PLAIN)


def _parts_of(owner: type, name: str) -> Iterator[Any]:
    """Return what a class and those above it hold by a name: of a property its function."""
    for base in owner.__mro__:
        if name in vars(base):
            part = vars(base)[name]
            if isinstance(part, staticmethod | classmethod):
                yield part.__func__
            else:
                getter = part.fget if isinstance(part, property) else None
                yield part.func if isinstance(part, functools.cached_property) else getter or part


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


def _attributes_read(code: CodeType) -> set[str]:
    """Return the names of attributes that a function reads and does not set."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _attributes_read(constant)
    steps = dis.get_instructions(code)
    return names - {str(step.argval) for step in steps if step.opname == "STORE_ATTR"}
