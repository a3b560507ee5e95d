"""Classes that another process cannot import: each is sent whole, and built once.

cloudpickle alone sends a class with every object of it, builds it anew on arrival, and so sets
the methods and attributes of the very class that it came from: an object that comes back from a
worker would tear a notebook's class out of the notebook.
"""

from __future__ import annotations

import functools
import pickle
import sys
from typing import Any, cast, final
from weakref import WeakKeyDictionary

import cloudpickle
from cloudpickle import cloudpickle as names  # its names for classes in all processes

from . import pickling

Definition = tuple[str, bytes]

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a `class` statement, not in C


@final
class Classes:
    """What one end of a channel has sent and received of classes."""

    def __init__(self) -> None:
        self._sent: WeakKeyDictionary[type, tuple[tuple[Any, ...], bytes]] = WeakKeyDictionary()
        self._loaded: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()

    def renew(self) -> None:
        """Hear that cells were run: what methods read from the notebook may have changed."""
        self._sent.clear()

    def define(self, kind: type) -> Definition | None:
        """Give a class by its name in all processes and its pickle; None: it can be imported."""
        if not _is_sent_whole(kind):
            return None
        state = tuple((name, id(value)) for name, value in vars(kind).items())
        known = self._sent.get(kind)
        if known is None or known[0] != state:
            known = self._sent[kind] = (state, pickling.dumps(kind))
        return names._get_or_create_tracker_id(kind), known[1]

    def find(self, definition: Definition) -> type:
        """Give the class of a definition: the one of this process if it comes from here."""
        name, pickled = definition
        kind: type | None = names._DYNAMIC_CLASS_TRACKER_BY_ID.get(name)
        if kind is None or not (_stands_in_its_module(kind) or self._loaded.get(kind) == pickled):
            kind = cast(type, pickle.loads(pickled))  # noqa: S301  of a process that we know
            self._loaded[kind] = pickled
        return kind


def _is_sent_whole(kind: type) -> bool:
    if not kind.__flags__ & _HEAP_TYPE:
        return False
    by_value = cloudpickle.list_registry_pickle_by_value()
    return kind.__module__ in {"__main__", *by_value} or not _stands_in_its_module(kind)


def _stands_in_its_module(kind: type) -> bool:
    """Tell whether a class is found under its name."""
    try:
        found = functools.reduce(
            getattr, kind.__qualname__.split("."), cast(Any, sys.modules[kind.__module__])
        )
    except (AttributeError, KeyError):
        return False
    return found is kind
