"""Contents: the user's functions and classes that a value holds, as registries do."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterator
from itertools import islice
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..executors.pickling import CACHED, by_reference
from .objects import IN_PYTHON, elements, stored
from .scope import Scope
from .uses import Use

if TYPE_CHECKING:
    from .collect import Collector

_DEPTH = 20
_NESTED = 3  # levels of containers
_MOST = 1000  # items of one


def need_held(collector: Collector, scope: Scope, value: Any, use: Use) -> frozenset[str]:
    """Collect the user's functions and classes that a value holds, as registries do.

    Returns:
        Their names.
    """
    names = {
        name
        for held in held_in(value)
        for one in named_in(scope, held.value)
        if (name := scope.name_of(one)) is not None
    }
    collector.need_all(scope, names, use)
    return frozenset(names)


def named_in(scope: Scope, value: Any) -> Iterator[Any]:
    """Give a function or class that has a name, or the functions with one that are inside."""
    for _ in range(_DEPTH):
        if by_reference(value):
            return
        if scope.name_of(value) is not None:
            yield value
            return
        for cell in getattr(value, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # not bound yet
                if isinstance(cell.cell_contents, FunctionType | CACHED):
                    yield from named_in(scope, cell.cell_contents)
        value = getattr(value, "__wrapped__", None)
        if value is None:
            return


class Held(NamedTuple):
    """A function or class that a container or an object holds.

    Attributes:
        place: where it is, as "['crop']" or ".known['crop']".
        value: it.
    """

    place: str
    value: Any


def held_in(value: Any, place: str = "", depth: int = 0) -> Iterator[Held]:
    """Give the functions and classes that a value holds."""
    if isinstance(value, FunctionType | type) or _is_cached(value):
        if depth:
            yield Held(place, value)
    elif depth >= _NESTED:
        return
    elif isinstance(value, functools.partial):
        yield from held_in(value.func, f"{place}.func", depth + 1)
    elif isinstance(value, dict):
        for key, one in islice(dict.items(value), _MOST):
            yield from held_in(one, f"{place}[{key!r}]", depth + 1)
    elif isinstance(value, list | tuple | set | deque):
        for at, one in enumerate(elements(value)[:_MOST]):
            yield from held_in(one, f"{place}[{at}]", depth + 1)
    elif type(value).__flags__ & IN_PYTHON and not by_reference(type(value)):
        for name, one in stored(value).items():
            yield from held_in(one, f"{place}.{name}", depth + 1)


def members_of(kind: type) -> dict[str, Any]:
    """Give the attributes of a class that are none of its own methods."""
    return {
        name: one
        for name, one in vars(kind).items()
        if not isinstance(one, FunctionType) or one.__name__ == one.__qualname__
    }


def _is_cached(value: Any) -> bool:
    return isinstance(value, CACHED) and hasattr(value, "__name__")
