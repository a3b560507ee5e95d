"""Payload: how programs, items and answers travel through an executor that somebody else wrote.

A program travels as bytes with its digest; a process that was given it keeps it for a while.
Items and answers are pickled here, in the open, so that what cannot be pickled is named.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pickle import PickleBuffer
from typing import Any

from ..errors import UnpicklableError
from .base import Answer, Program
from .pickles import PROTOCOL, dumps
from .shipping import Shipped, load, ship

KEPT_PROGRAMS = 8


class Payload:
    """A pickled value; large buffers stand apart, where whoever sends it can send them as such."""

    __slots__ = ("_buffers", "_head")

    def __init__(self, head: bytes, buffers: tuple[Any, ...] = ()) -> None:
        self._head = head
        self._buffers = buffers

    @classmethod
    def of(cls, value: object) -> Payload:
        """Pickle a value; what only a notebook has is pickled by value."""
        parts, buffers = dumps(value)
        return cls(b"".join(parts), tuple(buffers))

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
        dumps(value)
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


class Programs:
    """The programs that this process was given last, by digest; threads share them."""

    def __init__(self, kept: int = KEPT_PROGRAMS) -> None:
        self._kept = kept
        self._loaded: OrderedDict[str, Program] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str, data: bytes | None) -> Program | None:
        """Give the program; None: it is not here, and `data` was not given."""
        with self._lock:  # two threads that need the same large program load it once
            program = self._loaded.get(digest)
            if program is None and data is not None:
                program = self._loaded[digest] = load(data)
            if program is not None:
                self._loaded.move_to_end(digest)
            while len(self._loaded) > self._kept:
                self._loaded.popitem(last=False)
            return program


_programs = Programs()


def run_shipped(
    digest: str,
    data: bytes | None,
    entries: Payload,
    epoch: int,
    begun: Callable[[int], object] | None = None,
) -> Payload | None:
    """Do the work of a shipped program in this process; called on workers.

    Returns:
        The answer; None where the program is not here and `data` was not given.

    Raises:
        UnpicklableError: a result cannot be sent back.
    """
    program = _programs.get(digest, data)
    if program is None:
        return None
    answer = program.run(entries.open(), epoch, begun)
    rest = (answer.tally, answer.retried)
    return packed((*answer.results, rest), program.label, "result")


def answer_of(payload: Payload) -> Answer:
    """Give the answer that `run_shipped` packed."""
    *results, (tally, retried) = payload.open()
    return Answer(results, tally, retried)


class Cargo:
    """The program of a caller, pickled once, and again when it may have changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._program: Program | None = None
        self._shipped: Shipped | None = None

    def of(self, program: Program) -> Shipped:
        """Give the shipped program.

        Raises:
            UnpicklableError: something that it captures cannot be pickled.
        """
        with self._lock:
            if self._shipped is None or self._program is not program:
                self._shipped = ship(program, stage=program.label)
                self._program = program
            return self._shipped

    def renew(self) -> None:
        """Pickle the program again when it is needed next: its functions may have changed."""
        with self._lock:
            self._shipped = None
