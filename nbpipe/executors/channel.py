"""Channel: messages between two processes, what is large in them through shared memory."""

from __future__ import annotations

import os
import pickle
import struct
import threading
from collections.abc import Sequence
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import Any, cast, final

import numpy as np

from .blocks import Blocks
from .pickles import Parts, dumps
from .ring import Ring
from .slabs import ALIGNED, HEADER_BYTES, Lease, Slab, bytes_of, copy_bytes
from .wire import wire_over

BUDGET_BYTES = 1 << 29

_SHARED_FROM_BYTES = 1 << 15  # below, the pipe is as fast

# kind, number of buffers, number of a slab, size of the pickled head or of the slab [bytes]
_PREFIX = struct.Struct("<BxxxIqq")
_PIPED, _SHARED, _OPENED, _DROPPED = range(1, 5)  # a prefix begins with no zero
_ZEROED_BYTES = 1 << 15  # so few are cleared before numpy has made an array
_GONE = "the other end of the channel is gone, or this one broke off in a message"
_SIZE_BYTES = 8


@final
class Channel:
    """One end of a duplex connection between two processes.

    Buffers of arrays, tensors, `bytes` and whatever else pickles out of band lie in shared memory
    while a message is under way: in slabs, used again for later messages as soon as nobody at
    the other end holds a view of them. Nothing of it has a name, and all of it is gone with the
    two processes, however they end. Where there is no shared memory, messages go through the
    connection.

    Both ends may send at the same time only as long as each reads what it is sent.

    Args:
        connection: this end of the connection; closed with the channel.
        copy: give what is received memory of its own. Without, arrays are views of shared memory,
            which counts against the sender's budget as long as one of them lives.
        budget_bytes: most shared memory for what this end sends [bytes].
        blocks: private memory to copy to, perhaps shared with other channels.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        copy: bool = True,
        budget_bytes: int = BUDGET_BYTES,
        blocks: Blocks | None = None,
    ) -> None:
        self.copy = copy
        self._connection = connection
        self._wire = wire_over(connection)
        self._ring = Ring(budget_bytes if self._wire.shares else 0)
        self._blocks = Blocks() if blocks is None else blocks
        self._others: dict[int, Slab] = {}  # slabs that the other end writes
        self._sending = threading.RLock()  # a finalizer may close the channel anywhere
        self._receiving = threading.RLock()
        self._closed = self._broken_in = self._broken_out = False

    @property
    def held_bytes(self) -> int:
        """Shared memory that this end has mapped for messages to come [bytes]."""
        others = sum(slab.size_bytes for slab in list(self._others.values()))
        return self._ring.held_bytes + others

    def fileno(self) -> int:
        """Give the file descriptor of the connection, to wait for."""
        return self._connection.fileno()

    def poll(self, timeout_s: float | None) -> bool:
        """Wait until a message can be received, or the other end is gone.

        Args:
            timeout_s: how long at most [s]; None: for ever.
        """
        return self._wire.poll(timeout_s)

    def send(self, message: object) -> None:
        """Send a message; any thread may.

        Raises:
            ArgumentTypeError: a tensor in it is not on the CPU.
            OSError: the other end is gone, or the channel was closed.
            Exception: whatever the pickling raised; nothing was sent then.
        """
        parts, buffers = dumps(message)
        head_bytes = sum(map(len, parts))
        sizes = [buffer.nbytes for buffer in buffers]
        with self._sending:
            if self._broken_out:
                raise BrokenPipeError(_GONE)
            slab = self._share(parts, buffers, head_bytes, sizes)
            try:
                if self._ring.opened or self._ring.dropped:
                    self._tell()
                if slab is None:
                    prefix = _PREFIX.pack(_PIPED, len(sizes), 0, head_bytes)
                    table = struct.pack(f"<{len(sizes)}q", *sizes)
                    self._wire.write((prefix, table, *parts, *buffers))
                else:
                    self._wire.write((_PREFIX.pack(_SHARED, len(sizes), slab.number, head_bytes),))
            except BaseException:
                self._broken_out = True  # what comes next would be taken for the rest
                self._wire.hang_up()
                raise

    def recv(self, *, copy: bool | None = None) -> Any:
        """Receive the next message, waiting for it.

        Args:
            copy: as of the channel; None: the channel's own.

        Raises:
            EOFError: the other end is gone.
            OSError: the other end is gone, the channel was closed, or this process could not
                map the message, which is lost then.
            Exception: whatever the loading of this message raised; the next can be received.
        """
        head, buffers = self._receive(copy=self.copy if copy is None else copy)
        try:
            return pickle.loads(head, buffers=buffers)  # noqa: S301  of a process that we know
        finally:
            del head, buffers  # a traceback would keep them

    def close(self) -> None:
        """Close the connection and let go of all memory; views of it that live keep theirs."""
        if self._closed:
            return
        self._closed = True
        self._wire.hang_up()
        if self._wire.shares:  # nobody waits any more
            with self._sending, self._receiving:
                self._connection.close()
        self._ring.forget()
        self._others.clear()

    # -- sending --------------------------------------------------------------------------

    def _share(
        self, parts: Parts, buffers: list[memoryview], head_bytes: int, sizes: list[int]
    ) -> Slab | None:
        """Write a message to shared memory; None: it is small, or there is none for it."""
        if not self._ring.budget_bytes or head_bytes + sum(sizes) < _SHARED_FROM_BYTES:
            return None
        starts = _offsets(head_bytes, sizes)
        slab = self._ring.take(starts[-1])
        if slab is not None:
            try:
                struct.pack_into(f"<{len(sizes)}q", slab.memory, HEADER_BYTES, *sizes)
                _fill(slab.memory, starts, parts, buffers)
            except BaseException:
                slab.flag[0] = 0
                raise
        return slab

    def _tell(self) -> None:
        """Tell the other end which slabs are new, and which are gone."""
        for slab, fd in self._ring.opened:
            self._wire.write((_PREFIX.pack(_OPENED, 0, slab.number, slab.size_bytes),))
            self._wire.send_fd(fd)
        for number in self._ring.dropped:
            self._wire.write((_PREFIX.pack(_DROPPED, 0, number, 0),))
        self._ring.sent()

    # -- receiving ------------------------------------------------------------------------

    def _receive(self, *, copy: bool) -> tuple[memoryview, list[memoryview]]:
        with self._receiving:
            if self._broken_in:
                raise EOFError(_GONE)
            prefix = bytearray(_PREFIX.size)
            try:
                while True:
                    self._wire.fill((prefix,))
                    kind, count, number, size_bytes = _PREFIX.unpack(prefix)
                    if kind == _PIPED:
                        return self._read_piped(count, size_bytes)
                    if kind == _SHARED:
                        break
                    self._hear(kind, number, size_bytes)
                    prefix[0] = 0
            except BaseException:
                if prefix[0]:  # some of a message was read, the rest was not
                    self._broken_in = True
                    self._wire.hang_up()
                raise
            slab = self._others.get(number)
        if slab is None:
            raise OSError("a message in shared memory is lost: this process could not map it")
        return self._read_shared(slab, count, size_bytes, copy=copy)

    def _hear(self, kind: int, number: int, size_bytes: int) -> None:
        if kind == _OPENED:
            self._map(number, size_bytes)
        else:
            self._others.pop(number, None)

    def _read_piped(self, count: int, head_bytes: int) -> tuple[memoryview, list[memoryview]]:
        head = _empty(head_bytes)
        if not count:
            self._wire.fill((head,))
            return head, []
        table = bytearray(count * _SIZE_BYTES)
        self._wire.fill((table, head))
        buffers = [_empty(size) for size in struct.unpack(f"<{count}q", table)]
        self._wire.fill(buffers)
        return head, buffers

    def _map(self, number: int, size_bytes: int) -> None:
        fd = self._wire.recv_fd()
        if fd is None:
            return
        try:
            self._others[number] = Slab(number, fd, size_bytes)
        except OSError:  # no address space: the messages in it are lost, others are not
            pass
        finally:
            os.close(fd)

    def _read_shared(
        self, slab: Slab, count: int, head_bytes: int, *, copy: bool
    ) -> tuple[memoryview, list[memoryview]]:
        memory = bytes_of(Lease(slab))
        sizes = struct.unpack_from(f"<{count}q", memory, HEADER_BYTES)
        start, *starts, _ = _offsets(head_bytes, sizes)
        views = [memory[at : at + size] for at, size in zip(starts, sizes, strict=True)]
        buffers = list(map(self._blocks.copy, views)) if copy else views
        return memory[start : start + head_bytes], buffers


def _empty(size_bytes: int) -> memoryview:
    if size_bytes < _ZEROED_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(cast(Any, np.empty(size_bytes, np.uint8)))


def _offsets(head_bytes: int, sizes: Sequence[int]) -> list[int]:
    """Give where in a slab the head begins, each buffer, and where the last one ends."""
    lengths = (HEADER_BYTES + len(sizes) * _SIZE_BYTES, head_bytes, *sizes)
    return list(accumulate([-(-length // ALIGNED) * ALIGNED for length in lengths]))


def _fill(
    memory: memoryview, starts: Sequence[int], parts: Parts, buffers: list[memoryview]
) -> None:
    at = starts[0]
    for part in parts:
        copy_bytes(memory[at : at + len(part)], part)
        at += len(part)
    for start, buffer in zip(starts[1:], buffers, strict=False):
        copy_bytes(memory[start : start + len(buffer)], buffer)
