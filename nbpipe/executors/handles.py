"""Handles: how a `Value`, a `Lock` or a `Queue` of multiprocessing goes to a worker.

It goes as to a process that multiprocessing itself starts afresh. A semaphore, and shared memory,
is found by its name. A file or a pipe is found through this process, which holds it open for as
long as the object lives: nothing is sent beside the pickle, so that any number of workers can
read it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import stat
import sys
from collections.abc import Callable, Iterator
from multiprocessing import context, resource_tracker
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, final

from ..errors import UnpicklableError

_MODULES = tuple(f"multiprocessing.{name}" for name in ("connection", "heap", "sharedctypes"))


class Handle(NamedTuple):
    """A file, or an end of a pipe, that a process of this machine holds open.

    Attributes:
        pid: that process.
        number: its descriptor there.
        access: for reading, writing or both, as `os.open` takes it.
        device: where the file lies.
        inode: number of the file there: another one may have taken its place.
    """

    pid: int
    number: int
    access: int
    device: int
    inode: int

    @classmethod
    def of(cls, number: int) -> Handle:
        """Return where others find a descriptor of this process.

        Raises:
            PicklingError: others cannot open it: it is a socket, or this system shows no files.
        """
        found = os.fstat(number)
        if sys.platform != "linux" or stat.S_ISSOCK(found.st_mode):
            raise pickle.PicklingError("no other process can open what it holds")
        import fcntl

        access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        return cls(os.getpid(), number, access, found.st_dev, found.st_ino)

    def detach(self) -> int:
        """Open it in this process; multiprocessing calls this where it builds the object again.

        Raises:
            UnpicklableError: it was closed where it came from.
        """
        try:
            own = os.open(f"/proc/{self.pid}/fd/{self.number}", self.access | os.O_CLOEXEC)
        except OSError as error:
            raise self._gone() from error
        found = os.fstat(own)
        if (found.st_dev, found.st_ino) == (self.device, self.inode):
            return own
        os.close(own)
        raise self._gone()

    def _gone(self) -> UnpicklableError:
        return UnpicklableError(
            "an object of multiprocessing must stay open where it was made, got one that was "
            "closed since it was sent; keep it for as long as workers run"
        )


@final
class _Started:
    """Stands for the process that is being started, as multiprocessing asks for it."""

    def duplicate_for_child(self, number: int) -> int:
        """Return the handle that the process will know."""
        if sys.platform == "win32":
            raise pickle.PicklingError("no other process can open what it holds")
        return number

    def DupFd(self, number: int) -> Handle:  # noqa: N802  multiprocessing's name
        """Return what is sent for a descriptor."""
        return Handle.of(number)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Let the objects of multiprocessing be pickled in this thread, for a worker."""
    known: Any = context
    before = known.get_spawning_popen()
    known.set_spawning_popen(_Started())
    try:
        yield
    finally:
        known.set_spawning_popen(before)


def reduced(value: Any) -> tuple[Any, ...] | None:
    """Return how multiprocessing pickles a part of its objects; None for all else."""
    known: Any = ForkingPickler
    reduce: Callable[[Any], tuple[Any, ...]] | None = known._extra_reducers.get(type(value))
    if reduce is None or reduce.__module__ not in _MODULES:
        return None
    if reduce.__module__.endswith("sharedctypes") and not hasattr(value, "_wrapper"):
        return None  # it lies in no shared memory
    return reduce(value)


def tracker() -> Handle | None:
    """Return where the process is told of shared memory that takes it away in the end.

    None: there is none yet, or others cannot reach it.
    """
    known: Any = resource_tracker
    number = known._resource_tracker._fd
    if number is None:
        return None
    try:
        return Handle.of(number)
    except (OSError, pickle.PicklingError):
        return None


def share_tracker(handle: Handle | None) -> None:
    """Have this worker tell its parent's tracker; one of its own would end with the worker.

    And take away what the worker had only opened.
    """
    known: Any = resource_tracker
    if handle is not None and known._resource_tracker._fd is None:
        with contextlib.suppress(UnpicklableError):  # it has ended meanwhile
            known._resource_tracker._fd = handle.detach()
