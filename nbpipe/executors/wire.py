"""Bytes and file descriptors over a connection of `multiprocessing`, as few calls as can be."""

from __future__ import annotations

import array
import contextlib
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, final

Piece = bytes | bytearray | memoryview

_JOINED_BYTES = 1 << 16  # up to here one buffer is faster than many
_MOST_PIECES = 512  # of one system call; the limit is 1024


class Wire(ABC):
    """A stream of bytes in both directions; one thread writes, one thread reads at a time.

    Attributes:
        shares: file descriptors can be sent too.
    """

    shares = False

    @abstractmethod
    def write(self, pieces: Sequence[Piece]) -> None:
        """Write all pieces.

        Raises:
            OSError: the other end is gone.
        """

    @abstractmethod
    def fill(self, views: Sequence[Any]) -> None:
        """Read until each of these writable buffers is full; the last one is not empty.

        Raises:
            EOFError: the other end is gone.
        """

    @abstractmethod
    def poll(self, timeout_s: float | None) -> bool:
        """Wait until something can be read, or the other end is gone."""

    def send_fd(self, fd: int) -> None:
        """Send a file descriptor; only where `shares`."""
        raise TypeError(f"{type(self).__name__} carries no file descriptors")

    def recv_fd(self) -> int | None:
        """Read a file descriptor, where `shares`; None where this process may open no more."""
        raise TypeError(f"{type(self).__name__} carries no file descriptors")

    @abstractmethod
    def hang_up(self) -> None:
        """End both directions; a socket wakes whoever waits on either end."""


@final
class SocketWire(Wire):
    """A Unix socket."""

    shares = True

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(self, pieces: Sequence[Piece]) -> None:
        """Write all pieces, in one call where they fit."""
        fd = self._connection.fileno()
        if sum(map(len, pieces)) <= _JOINED_BYTES:
            pieces = (b"".join(pieces),)
        count = os.writev(fd, pieces[:_MOST_PIECES])
        while rest := _rest(pieces, count):
            pieces, count = rest, os.writev(fd, rest[:_MOST_PIECES])

    def fill(self, views: Sequence[Any]) -> None:
        """Read until each buffer is full."""
        fd = self._connection.fileno()
        rest: Sequence[Any] = views
        while rest:
            count = os.readv(fd, rest[:_MOST_PIECES])
            if not count:
                raise EOFError("the other end of the channel is gone")
            rest = _rest(rest, count)

    def poll(self, timeout_s: float | None) -> bool:
        """Wait until something can be read."""
        return self._connection.poll(timeout_s)

    def send_fd(self, fd: int) -> None:
        """Send a file descriptor, with the one byte it needs."""
        with self._socket() as sock:
            sock.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])

    def recv_fd(self) -> int | None:
        """Read a file descriptor."""
        space = socket.CMSG_SPACE(array.array("i").itemsize)
        with self._socket() as sock:
            byte, extra, _, _ = sock.recvmsg(1, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        if not byte:
            raise EOFError("the other end of the channel is gone")
        fds = array.array("i", extra[0][2]) if extra and extra[0][2] else None
        return fds[0] if fds else None

    def hang_up(self) -> None:
        """End both directions."""
        with contextlib.suppress(OSError), self._socket() as sock:
            sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        """Give the connection as a socket, which does not own it."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self._connection.fileno())
        try:
            yield sock
        finally:
            sock.detach()


@final
class PipeWire(Wire):
    """Any other connection: a named pipe of Windows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rest = memoryview(b"")

    def write(self, pieces: Sequence[Piece]) -> None:
        """Write all pieces, each as a message."""
        if sum(map(len, pieces)) <= _JOINED_BYTES:
            pieces = (b"".join(pieces),)
        for piece in pieces:
            if len(piece):
                self._connection.send_bytes(piece)

    def fill(self, views: Sequence[Any]) -> None:
        """Read until each buffer is full; messages need not end with one."""
        for each in views:
            view = memoryview(each).cast("B")
            while view.nbytes:
                if not self._rest:
                    self._rest = memoryview(self._connection.recv_bytes())
                count = min(len(view), len(self._rest))
                view[:count] = self._rest[:count]
                view, self._rest = view[count:], self._rest[count:]

    def poll(self, timeout_s: float | None) -> bool:
        """Wait until something can be read."""
        return bool(self._rest) or self._connection.poll(timeout_s)

    def hang_up(self) -> None:
        """End both directions."""
        self._connection.close()


def wire_over(connection: Connection) -> Wire:
    """Choose what suits a connection."""
    return SocketWire(connection) if _is_unix_socket(connection) else PipeWire(connection)


def _is_unix_socket(connection: Connection) -> bool:
    if os.name != "posix" or not hasattr(socket, "SCM_RIGHTS"):
        return False
    try:
        sock = socket.socket(fileno=connection.fileno())
    except OSError:  # a pipe
        return False
    try:
        return sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM
    finally:
        sock.detach()


def _rest(pieces: Sequence[Piece], count: int) -> list[Piece]:
    """Leave out the first `count` bytes of some buffers."""
    for number, piece in enumerate(pieces):
        if count < len(piece):
            return [memoryview(piece)[count:], *pieces[number + 1 :]]
        count -= len(piece)
    return []
