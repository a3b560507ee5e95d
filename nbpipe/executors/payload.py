"""Payload: items and answers as they travel through an executor that somebody else wrote.

They are pickled here, and not by the executor, so that what cannot be pickled is named.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pickle import PickleBuffer
from typing import Any

from ..errors import UnpicklableError
from .classes import Classes
from .pickles import PROTOCOL, dumps
from .pickling import dumps as dumps_by_value


class Payload:
    """A pickled value; large buffers stand apart, where whoever sends it can send them as such."""

    __slots__ = ("_buffers", "_head")

    def __init__(self, head: bytes, buffers: tuple[Any, ...] = ()) -> None:
        self._head = head
        self._buffers = buffers

    @classmethod
    def of(cls, value: object) -> Payload:
        """Pickle a value; what only a notebook has is pickled by value."""
        pickled = dumps(value, Classes())
        if pickled.defines:  # classes of a notebook go along, whole
            return cls(dumps_by_value(value))
        return cls(b"".join(pickled.parts), tuple(pickled.buffers))

    def open(self) -> Any:
        """Give the value; its arrays use the memory of the buffers."""
        return pickle.loads(self._head, buffers=self._buffers)  # noqa: S301  our own workers'

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Offer the buffers as such; older protocols know no such thing."""
        wrap = PickleBuffer if protocol >= PROTOCOL else bytearray
        return type(self), (self._head, tuple(map(wrap, self._buffers)))


def packed(values: Sequence[Any], stage: str, what: str) -> Payload:
    """Pickle entries or results; where that fails, say which one it is.

    Args:
        values: pairs of path and value, or what stands for one.
        stage: what they belong to.
        what: "item" or "result".

    Raises:
        UnpicklableError: one of them cannot be pickled.
    """
    try:
        return Payload.of(values)
    except Exception as error:
        culprit = next((value for value in values if not _is_picklable(value)), None)
        raise _unpicklable(culprit, stage, what, error) from error


def _is_picklable(value: object) -> bool:
    try:
        Payload.of(value)
    except Exception:
        return False
    return True


def _unpicklable(culprit: Any, stage: str, what: str, error: Exception) -> UnpicklableError:
    pair = culprit if isinstance(culprit, tuple) and len(culprit) > 1 else ("?", culprit)
    kind = type(pair[1])
    return UnpicklableError(
        f"the {what} of stage {stage!r} must be picklable to cross to another process, got for "
        f"item {pair[0]} a {kind.__module__}.{kind.__qualname__} "
        f"({type(error).__name__}: {error}); "
        "pass what it is made from (a path, bytes, an array), or use executor='thread'"
    )
