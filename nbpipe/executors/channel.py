"""Channel: messages between two processes, what is large in them through shared memory."""

from __future__ import annotations

import os
import pickle
import threading
from multiprocessing.connection import Connection
from typing import Any, final

from .blocks import Blocks
from .classes import Classes
from .frames import (
    BLOCK_BYTES,
    DROPPED,
    OPENED,
    PIPED,
    SHARED,
    Body,
    Frame,
    fill_slab,
    notice,
    piped,
    read_block,
    read_piped,
    read_slab,
    shared,
    starts_in_slab,
)
from .pickles import Pickled, dumps, loader
from .ring import Ring
from .slabs import Lease, Slab, bytes_of
from .wire import wire_over

BUDGET_BYTES = 1 << 29

_SHARED_FROM_BYTES = 1 << 16  # below, the pipe costs less
_GONE = "the other end of the channel is gone, or this one broke off in a message"


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
        self._classes = Classes()
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
        pickled = dumps(message, self._classes)
        with self._sending:
            if self._broken_out:
                raise BrokenPipeError(_GONE)
            slab = self._share(pickled)
            try:
                if self._ring.opened or self._ring.dropped:
                    self._tell()
                self._wire.write(piped(pickled) if slab is None else (shared(pickled, slab),))
            except BaseException:
                self._broken_out = True  # what comes next would be taken for the rest
                self._wire.hang_up()
                raise

    def carries(self, value: object) -> bool:
        """Tell whether a value could be sent."""
        try:
            dumps(value, self._classes)
        except BaseException:
            return False
        return True

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
        (head, buffers), defines = self._receive(copy=self.copy if copy is None else copy)
        try:
            if defines:
                return loader(head, buffers, self._classes).load()
            return pickle.loads(head, buffers=buffers)  # noqa: S301  of a process that we know
        finally:
            del head, buffers  # a traceback would keep them

    def renew(self) -> None:
        """Hear that cells were run: classes of the notebook are sent anew where they are used."""
        self._classes.renew()

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

    def _share(self, pickled: Pickled) -> Slab | None:
        """Write a message to shared memory; None: it is small, or there is none for it."""
        head_bytes = sum(map(len, pickled.parts))
        sizes = [len(buffer) for buffer in pickled.buffers]
        if not self._ring.budget_bytes or head_bytes + sum(sizes) < _SHARED_FROM_BYTES:
            return None
        starts = starts_in_slab(head_bytes, sizes)
        slab = self._ring.take(starts[-1])
        if slab is not None:
            try:
                fill_slab(slab.memory, pickled, starts)
            except BaseException:
                slab.flag[0] = 0
                raise
        return slab

    def _tell(self) -> None:
        """Tell the other end which slabs are new, and which are gone."""
        for slab, fd in self._ring.opened:
            self._wire.write((notice(OPENED, slab.number, slab.size_bytes),))
            self._wire.send_fd(fd)
        for number in self._ring.dropped:
            self._wire.write((notice(DROPPED, number),))
        self._ring.sent()

    # -- receiving ------------------------------------------------------------------------

    def _receive(self, *, copy: bool) -> tuple[Body, bool]:
        with self._receiving:
            if self._broken_in:
                raise EOFError(_GONE)
            block = bytearray(BLOCK_BYTES)
            try:
                while True:
                    self._wire.fill((block,))
                    frame = read_block(block)
                    if frame.kind == PIPED:
                        return read_piped(block, frame, self._wire.fill), frame.defines
                    if frame.kind == SHARED:
                        return self._read_shared(frame, copy=copy), frame.defines
                    self._hear(frame)
                    block[0] = 0
            except _LostError:
                raise
            except BaseException:
                if block[0]:  # some of a message was read, the rest was not
                    self._broken_in = True
                    self._wire.hang_up()
                raise

    def _hear(self, frame: Frame) -> None:
        """Note that the other end has a new slab, or one less."""
        if frame.kind == DROPPED:
            self._others.pop(frame.number, None)
            return
        fd = self._wire.recv_fd()
        if fd is None:
            return
        try:
            self._others[frame.number] = Slab(frame.number, fd, frame.size_bytes)
        except OSError:  # no address space: the messages in it are lost, others are not
            pass
        finally:
            os.close(fd)

    def _read_shared(self, frame: Frame, *, copy: bool) -> Body:
        slab = self._others.get(frame.number)
        if slab is None:
            raise _LostError(
                "a message in shared memory is lost: this process could not map it; "
                "its limit of open files or of memory is reached"
            )
        head, buffers = read_slab(bytes_of(Lease(slab)), frame)
        return Body(head, list(map(self._blocks.copy, buffers)) if copy else buffers)


class _LostError(OSError):
    """A message cannot be read; the next one can."""
