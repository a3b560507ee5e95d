"""Pickling for other processes: cloudpickle, and what it leaves to be decided.

Functions and classes go by name where a fresh process would find the same module, and by value
where it would not: in a notebook's cells, in a script, in a file that was loaded by its path.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import sys
import threading
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakSet

import cloudpickle

PROTOCOL = 5
_EVERYWHERE = sys.stdlib_module_names | {__name__.partition(".")[0]}
_FINDERS = (BuiltinImporter, FrozenImporter, PathFinder)
_REGISTRY = threading.RLock()  # cloudpickle's list of modules is the process's
_NAMED = (FunctionType, type)
_importable: set[tuple[object, ...]] = set()  # modules found so far, and what was true then
_AT_HOME: WeakSet[type] = WeakSet()  # classes of this process that others know
_RECEIVED: WeakSet[type] = WeakSet()  # classes of other processes
_FULL = 6  # parts of what a reducer may give
CACHED: Any = type(functools.lru_cache(len))


class TooLargeError(Exception):
    """More bytes than allowed; it never leaves this package."""


def dumps(
    value: object, limit_bytes: int | None = None, pickler: Callable[..., Pickler] | None = None
) -> bytes:
    """Pickle `value`, with all its data in it.

    Args:
        value: anything.
        limit_bytes: the most that it may take.
        pickler: how; `Pickler` if it is None.

    Raises:
        TooLargeError: it takes more than `limit_bytes`.
        Exception: whatever the pickling of one of its parts raises.
    """
    sink = _Sink(limit_bytes, io.BytesIO())
    (pickler or Pickler)(sink).dump(value)
    assert sink.kept is not None
    return sink.kept.getvalue()


def pickled_bytes(
    value: object, limit_bytes: int | None = None, pickler: Callable[..., Pickler] | None = None
) -> int:
    """Count the bytes of `value` pickled, without keeping them; raises as `dumps` does."""
    sink = _Sink(limit_bytes)
    (pickler or Pickler)(sink).dump(value)
    return sink.size_bytes


class _Sink:
    """Takes pickled bytes, counts them, and refuses more than allowed."""

    __slots__ = ("_limit_bytes", "kept", "size_bytes")

    def __init__(self, limit_bytes: int | None, kept: io.BytesIO | None = None) -> None:
        self._limit_bytes = limit_bytes
        self.kept = kept
        self.size_bytes = 0

    def write(self, data: Any, /) -> None:
        """Take the next bytes."""
        self.size_bytes += memoryview(data).nbytes
        if self._limit_bytes is not None and self.size_bytes > self._limit_bytes:
            raise TooLargeError
        if self.kept is not None:
            self.kept.write(data)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no annotations
    """cloudpickle, with modules that another process cannot import sent by value.

    A class that is sent by value and comes back is the class that it was, and is left as it is.
    """

    def __init__(self, file: object, protocol: int = PROTOCOL, buffer_callback: Any = None) -> None:
        super().__init__(file, protocol=protocol, buffer_callback=buffer_callback)
        self._seen: set[str] = set()
        self._registered: list[ModuleType] = []

    def dump(self, obj: object) -> None:
        """Pickle an object, one at a time in this process."""
        with _REGISTRY:
            try:
                super().dump(obj)
            finally:
                for module in self._registered:
                    cloudpickle.unregister_pickle_by_value(module)
                self._registered.clear()
                self._seen.clear()

    def reducer_override(self, obj: Any) -> Any:
        """Say how an object is pickled; called for all but the plainest ones."""
        if isinstance(obj, _NAMED):
            self._note(getattr(obj, "__module__", None))
        elif isinstance(obj, ModuleType):
            self._note(obj.__name__)
        elif type(obj) is CACHED and not by_reference(obj):
            return _cached, (obj.__wrapped__, *obj.cache_parameters().values())
        elif type(obj) is functools.cached_property:
            return _cached_property, (obj.func, obj.attrname)
        elif isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdin, sys.stdout, sys.stderr):
            raise pickle.PicklingError("cannot pickle an open file")  # cloudpickle would read it
        elif _on_gpu(obj):
            raise pickle.PicklingError(f"cannot pickle a tensor on {obj.device}")
        reduced = super().reducer_override(obj)
        by_value = isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == _FULL
        return _with_our_setter(obj, reduced) if by_value else reduced

    def _note(self, name: object) -> None:
        if not isinstance(name, str) or name in self._seen:
            return
        self._seen.add(name)
        module = sys.modules.get(name)
        if module is None or name == "__main__" or importable(name) or _is_registered(name):
            return
        with contextlib.suppress(ValueError):  # registered under another name
            cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)


def _with_our_setter(kind: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    if kind not in _RECEIVED:
        _AT_HOME.add(kind)
    *others, state, _, _, setter = reduced
    return (*others, (setter, state), None, None, _set_class)


def _set_class(kind: type, how: tuple[Callable[[type, Any], object], Any]) -> None:
    """Fill a class that arrived; cloudpickle would also put copies into one that came home."""
    setter, state = how
    if kind not in _AT_HOME:
        _RECEIVED.add(kind)
        setter(kind, state)


def _on_gpu(obj: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor) and bool(obj.is_cuda)


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:  # noqa: FBT001
    """Give `function` an empty cache: pickle would look for the cached one by its name."""
    return functools.lru_cache(maxsize, typed)(function)


def _cached_property(function: Callable[[Any], Any], name: str) -> Any:
    """Build a cached property again: in Python 3.11 it holds a lock."""
    cached = functools.cached_property(function)
    cached.__set_name__(object, name)
    return cached


def by_reference(obj: object) -> bool:
    """Say whether a function or class is sent by its name alone."""
    name = getattr(obj, "__module__", None)
    if not isinstance(name, str) or name == "__main__" or name not in sys.modules:
        return False
    found: object = sys.modules[name]
    for part in str(getattr(obj, "__qualname__", "")).split("."):
        found = getattr(found, part, None)
    return found is obj and importable(name) and not _is_registered(name)


def _is_registered(name: str) -> bool:
    """Say whether the user told cloudpickle to send this module by value."""
    known = cloudpickle.list_registry_pickle_by_value()
    return any(f"{name}.".startswith(f"{other}.") for other in known)


def importable(name: str) -> bool:
    """Say whether a fresh process with this import path would load the same module by `name`."""
    if name.partition(".")[0] in _EVERYWHERE:
        return True
    origin = getattr(sys.modules.get(name), "__file__", None)
    key = (name, origin, _folder(), *sys.path)
    if key not in _importable:
        if not _is_importable(name, origin):
            return False
        _importable.add(key)
    return True


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109  as text, and often
    except OSError:  # it was deleted
        return ""


def _is_importable(name: str, origin: str | None) -> bool:
    parent = name.rpartition(".")[0]
    if parent and not importable(parent):
        return False
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    found = _find(name, path)
    if found is None:
        return bool(parent) and origin is None  # its package makes it
    return _same_file(origin, found.origin)


def _find(name: str, path: Any) -> ModuleSpec | None:
    """Look for a module as a fresh process would, without the ones that this process loaded."""
    for finder in sys.meta_path:
        if finder in _FINDERS or "editable" in getattr(_kind(finder), "__module__", ""):
            with contextlib.suppress(Exception):  # a finder of somebody else
                found = finder.find_spec(name, path)
                if found is not None:
                    return found
    return None


def _kind(finder: object) -> type:
    """Give the class of a finder: some are classes themselves."""
    return finder if isinstance(finder, type) else type(finder)


def _same_file(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or os.path.realpath(one) == os.path.realpath(other)
