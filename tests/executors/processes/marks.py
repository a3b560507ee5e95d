"""Marks that processes leave for one another: gates and bells in a folder of the test.

Each is known to a worker by its path alone; nobody polls.
"""

import contextlib
import os
import select
from time import monotonic

from tests.gates import HANG_S, HangError, stacks

with contextlib.suppress(ImportError):  # Windows has none, and no worker processes either
    import fcntl


class Gate:
    """Closed until the test opens it; workers wait at it, those that come late pass."""

    def __init__(self, path):
        self.path = path
        self._held = path.open("w")
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def __reduce__(self):
        return _there, (Gate, self.path)

    def open(self):
        """Let all pass; opening it again does nothing."""
        self._held.close()

    def wait(self):
        """Wait in a worker."""
        with self.path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)


class Bell:
    """Rung by workers; the test waits for it and hears who rang."""

    def __init__(self, path):
        self.path = path
        os.mkfifo(path)
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def __reduce__(self):
        return _there, (Bell, self.path)

    def ring(self, word=0):
        """Ring in a worker: say a number, and who rings."""
        with self.path.open("wb", buffering=0) as file:
            file.write(b"%d %d\n" % (word, os.getpid()))

    def wait(self, count=1):
        """Wait until it was rung so often; give the words and the pids of those who did."""
        ends_s = monotonic() + HANG_S
        while self._rest.count(b"\n") < count:
            ready, _, _ = select.select([self._file], [], [], max(0, ends_s - monotonic()))
            if not ready:
                raise HangError(f"a bell was not rung {count} times: {self._rest}\n{stacks()}")
            self._rest += os.read(self._file, 1 << 16)
        *rings, self._rest = self._rest.split(b"\n", count)
        return _words(rings)

    def rings(self):
        """Give the words and the pids that were not waited for so far."""
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self._file, 1 << 16)
        *rings, self._rest = self._rest.split(b"\n")
        return _words(rings)

    def close(self):
        """Put it away."""
        os.close(self._file)


def _words(rings):
    return [tuple(map(int, ring.split())) for ring in rings]


def _there(kind, path):
    """Make a mark in a worker: it opens its file when it is used."""
    mark = object.__new__(kind)
    mark.path = path
    return mark
