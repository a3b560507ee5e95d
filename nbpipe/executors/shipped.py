"""Shipped: programs in processes that somebody else started.

A program travels as bytes with its digest; a process that was given it keeps it for a while.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from .base import Answer, Job, Program
from .payload import Payload, packed
from .remote_errors import PackedError, pack_error
from .shipping import Shipped, load, ship

KEPT_PROGRAMS = 4


class Own(threading.local):
    """A program of its own for each thread: one run of a program keeps its state there."""

    def __init__(self) -> None:
        self._copies: weakref.WeakKeyDictionary[Program, Program] = weakref.WeakKeyDictionary()

    def of(self, program: Program) -> Program:
        """Give this thread's copy; it shares functions and data with the original."""
        own = self._copies.get(program)
        if own is None:
            own = self._copies[program] = copy.copy(program)
        return own


class Programs:
    """The programs that this process has done work for last; threads share them."""

    def __init__(self, kept: int = KEPT_PROGRAMS) -> None:
        self._kept = kept
        self._loaded: OrderedDict[str, Program] = OrderedDict()
        self._prepared: weakref.WeakSet[Program] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._preparing = threading.Lock()
        self._own = Own()

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

    def ready(self, program: Program) -> Program:
        """Give what this thread is to run; the first time here, `worker_init` is called."""
        with self._preparing:
            if program not in self._prepared:
                prepare = getattr(program, "prepare", None)
                if prepare is not None:
                    prepare()
                self._prepared.add(program)
        return self._own.of(program)


PROGRAMS = Programs()


class Children:
    """What a function made of one item: all of it, in order, and how it ended.

    Attributes:
        values: the children.
        error: what was raised after the last of them, or None.
    """

    def __init__(self, values: list[Any], error: PackedError | None) -> None:
        self.values = values
        self.error = error

    def draw(self) -> Iterator[Any]:
        """Give an iterator over the children; what was raised before the first is raised here."""
        if self.error is not None and not self.values:
            raise self.error.unpack()
        return self._drawn()

    def _drawn(self) -> Iterator[Any]:
        yield from self.values
        if self.error is not None:
            raise self.error.unpack()


def expand(program: Any, entry: Any, epoch: int) -> Children:
    """Call a program's function on one entry, and draw all of its children."""
    path, value = entry
    values: list[Any] = []
    try:
        values.extend(program.open(value, path, epoch))
    except BaseException as error:
        return Children(values, pack_error(error))
    return Children(values, None)


def run_here(job: Job, begun: Callable[[int], object], *, expands: bool) -> Answer | Children:
    """Do a job in the process it comes from."""
    program = PROGRAMS.ready(job.program)
    if expands:
        begun(0)
        return expand(program, job.entries[0], job.epoch)
    return program.run(job.entries, job.epoch, begun)


def run_shipped(
    digest: str,
    data: bytes | None,
    entries: Payload,
    epoch: int,
    *,
    expands: bool = False,
    begun: Callable[[int], object] | None = None,
) -> Payload | None:
    """Do the work of a shipped program in this process; called on workers.

    Args:
        digest: of the program.
        data: the program, as far as it has to be sent.
        entries: what it is to work on.
        epoch: number of the epoch.
        expands: the program's function gives many items for the one entry.
        begun: called before each call of a function.

    Returns:
        What `opened` takes; None where the program is not here and `data` was not given.

    Raises:
        UnpicklableError: a result cannot be sent back.
    """
    program = PROGRAMS.get(digest, data)
    if program is None:
        return None
    given = entries.open()
    program = PROGRAMS.ready(program)
    if expands:
        if begun is not None:
            begun(0)
        children = expand(program, given[0], epoch)
        pairs = [(given[0][0], child) for child in children.values]
        return packed((*pairs, children.error), program.label, "result")
    answer = program.run(given, epoch, begun)
    return packed((*answer.results, (answer.tally, answer.retried)), program.label, "result")


def opened(payload: Payload, *, expands: bool) -> Answer | Children:
    """Give what came of a job that was run by `run_shipped`."""
    *results, rest = payload.open()
    if expands:
        return Children([child for _, child in results], rest)
    return Answer(results, *rest)


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
                self._shipped = ship(program, stage=program.label, afar=True)
                self._program = program
            return self._shipped

    def renew(self) -> None:
        """Pickle the program again when it is needed next: its functions may have changed."""
        with self._lock:
            self._shipped = None
