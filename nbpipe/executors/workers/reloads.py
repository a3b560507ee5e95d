"""Reloads: which version of your own modules the functions of a program need.

A function of a module goes to a worker by its name, and the worker imports the module once. When
the module is reloaded here, by `importlib.reload` or `%autoreload`, that worker is out of date.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ...errors import is_users_file

Versions = tuple[tuple[str, int], ...]  # of modules, by name

_states: dict[str, tuple[Any, tuple[CodeType, ...], int]] = {}  # spec, code, version; by name
_lock = threading.Lock()


def versions_in(data: bytes) -> Versions:
    """Return the versions of the user's modules that pickled functions need.

    Args:
        data: the functions, pickled.
    """
    users = {name: module for name, module in tuple(sys.modules.items()) if is_of_user(module)}
    found = {name for name in users if name.encode() in data}
    waiting = list(found)
    while waiting:
        more = {name for name in _used_by(users[waiting.pop()]) if name in users} - found
        found |= more
        waiting += more
    return tuple((name, _version(users[name])) for name in sorted(found))


def reloaded(known: Versions, versions: Versions) -> list[str]:
    """Name the modules that are known in another version."""
    if known == versions:
        return []
    now = dict(versions)
    return [name for name, number in known if now.get(name, number) != number]


def are_current(versions: Versions) -> bool:
    """Return whether no module was reloaded since its version was read."""
    modules = ((sys.modules.get(name), version) for name, version in versions)
    return all(module is None or _version(module) == version for module, version in modules)


def _version(module: ModuleType) -> int:
    """Return a number that changes when a module is reloaded, or its functions are edited."""
    name, spec, codes = module.__name__, getattr(module, "__spec__", None), tuple(_codes(module))
    with _lock:
        known = _states.get(name)
        if known is None or known[0] is not spec or known[1] != codes:
            version = 0 if known is None else known[2] + 1
            known = _states[name] = spec, codes, version
        return known[2]


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Return the code of a module's functions: `%autoreload` may replace that alone."""
    for value in tuple(vars(module).values()):
        if getattr(value, "__module__", None) == module.__name__:
            parts = tuple(vars(value).values()) if isinstance(value, type) else (value,)
            for part in parts:
                function = _function(part)
                if function is not None:
                    yield function.__code__


def _function(value: Any) -> FunctionType | None:
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    found = inspect.unwrap(value) if callable(value) else value
    return found if isinstance(found, FunctionType) else None


def _used_by(module: ModuleType) -> set[str]:
    """Name the modules of the values that a module's variables hold.

    A package holds all of its modules that were imported by anyone; of these, those count that
    the code of the module names.
    """
    values = [value for value in tuple(vars(module).values()) if value is not module]
    modules = [value for value in values if isinstance(value, ModuleType)]
    inside = f"{module.__name__}."
    named = {one.__name__ for one in modules if not one.__name__.startswith(inside)}
    packages = [one.__name__ for one in (module, *modules) if hasattr(one, "__path__")]
    if packages:
        words = {word for code in _codes(module) for word in code.co_names}
        named.update(f"{package}.{word}" for package in packages for word in words)
    defined = (getattr(value, "__module__", None) for value in values)
    return named.union(name for name in defined if isinstance(name, str))


def is_of_user(module: Any) -> bool:
    """Return whether a module is one of the user's own, in a file."""
    file = getattr(module, "__file__", None)
    named = isinstance(module, ModuleType) and module.__name__ != "__main__"
    return named and isinstance(file, str) and _is_users_file(file)


_is_users_file = functools.lru_cache(maxsize=None)(is_users_file)
