"""Channel: messages between two processes, what is large in them through shared memory."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, NamedTuple, final

from ...base.format import format_bytes
from .memory import (
    HEADER_BYTES,
    LINUX,
    Blocks,
    Lease,
    Slab,
    aligned,
    bytes_of,
    copy_bytes,
    empty,
    open_memory,
    size_class,
)
from .pickling import (
    Classes,
    MessageLoader,
    MessagePickler,
    Pickled,
    dumps_message,
    plain_array,
    restore_array,
)

LOG = logging.getLogger("nbpipe")
BUDGET_BYTES = 1 << 29
IDLE_MESSAGES = 256  # a slab unused for so long is dropped

_SHARED_FROM_BYTES = 1 << 16  # below, the pipe costs less
_GONE = "the other end of the channel is gone, or this one broke off in a message"
_LOOK_MESSAGES = 32  # how often that is looked at
_SPARED_BYTES = 1 << 26  # received messages keep their slabs up to here
_SPARED = 4  # slabs may be kept, however large they are
_FADING = 0.9  # share of the time of past values that is expected of the next one
_ROOMY = 4  # times what a message needs: beyond, a slab of its own serves it better
_RETRY_MESSAGES = 64  # after no memory was to be had
_NOT_MAPPED = (
    "a message in shared memory is lost: this process could not map it; its limit of open files or "
    "of memory is reached"
)
_UNCHANGING = frozenset((bool, int, float, complex, str, bytes, type(None)))
_warned: set[str] = set()

_Bytes = bytes | memoryview
_Body = tuple[_Bytes, list[memoryview]]  # a pickle, and its buffers
_JOINED_BYTES = 1 << 16  # up to here one buffer is faster than many

_PIPED, _SHARED, _OPENED, _DROPPED = range(1, 5)  # a block that was read begins with no zero
_BLOCK_BYTES = 1024
_PREFIX = struct.Struct("<B?xxIqqq")  # a `_Header`
_ROOM_BYTES = _BLOCK_BYTES - _PREFIX.size
_SIZE_BYTES = 8


@final
class Channel:
    """One end of a duplex connection between two processes.

    Buffers of arrays, tensors, `bytes` and whatever else pickles out of band lie in shared memory
    while a message is under way: in slabs, used again for later messages as soon as nothing at
    the other end holds a view of them. Nothing of it has a name, and all of it is gone with the
    two processes, however they end. Where there is no shared memory, messages go through the
    connection.

    Both ends may send at the same time only as long as each reads what it is sent.

    Args:
        connection: this end of the connection; closed with the channel.
        copy: give what is received memory of its own, once a part of the sender's budget is
            kept. Without, arrays are always views of shared memory, which counts against that
            budget as long as one of them lives.
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
        self._wire = Wire(connection)
        self._ring = Ring(budget_bytes)
        self._blocks = Blocks() if blocks is None else blocks
        self._classes = Classes()
        self._others: dict[int, Slab] = {}  # slabs that the other end writes
        self._block = bytearray(_BLOCK_BYTES)  # what the next message begins with; 0: not read yet
        self._sending = threading.RLock()  # a finalizer may close the channel anywhere
        self._receiving = threading.RLock()
        self._closed = self._broken_in = self._broken_out = False

    @property
    def held_bytes(self) -> int:
        """Shared memory that this end has mapped for messages to come [bytes]."""
        others = sum(slab.size_bytes for slab in list(self._others.values()))
        return self._ring.held_bytes + others

    def poll(self, timeout_s: float | None) -> bool:
        """Wait until a message can be received, or the other end is gone; a notice is neither.

        Args:
            timeout_s: how long at most [s]; None: for ever.
        """
        waiter = select.poll()
        waiter.register(self._connection.fileno(), select.POLLIN)
        with self._receiving:
            ends_s = None if timeout_s is None else monotonic() + timeout_s
            while not self._block[0]:
                left_ms = None if ends_s is None else max(0.0, 1000 * (ends_s - monotonic()))
                if not waiter.poll(None if left_ms is None else math.ceil(left_ms)):
                    return False
                try:
                    self._read_block()
                except (EOFError, OSError):  # the receiver gets the error
                    break
        return True

    def send(self, message: object) -> None:
        """Send a message; any thread may.

        Raises:
            ArgumentTypeError: a tensor in it is not on the CPU.
            OSError: the other end is gone, or the channel was closed.
            Exception: whatever the pickling raised; nothing was sent then.
        """
        pieces, header = _pieces_of(dumps_message(message, self._classes))
        with self._sending:
            if self._broken_out:
                raise BrokenPipeError(_GONE)
            slab = self._share(pieces, header.size_bytes)
            try:
                if self._ring.opened or self._ring.dropped:
                    self._tell()
                if slab is not None:
                    block = header._replace(kind=_SHARED, number=slab.number).block()
                    self._wire.write((block,))
                elif header.size_bytes <= _ROOM_BYTES:
                    self._wire.write((header.block(*pieces),))
                else:
                    self._wire.write((header.block(), *pieces))
            except BaseException:
                self._broken_out = True  # what comes next would be taken for the rest
                self._wire.hang_up()
                raise

    def carries(self, value: object) -> bool:
        """Return whether a value could be sent."""
        try:
            dumps_message(value, self._classes)
        except BaseException:
            return False
        return True

    def recv(self) -> Any:
        """Receive the next message, waiting for it.

        Raises:
            EOFError: the other end is gone.
            OSError: the other end is gone, the channel was closed, or this process could not
                map the message, which is lost then.
            Exception: whatever the loading of this message raised; the next can be received.
        """
        body, defines = self._receive()
        try:
            return _load(body, self._classes if defines else None)
        finally:
            del body  # a traceback would keep it

    # -- results of a job ------------------------------------------------------------------
    def writer(self) -> ResultWriter:
        """Return what pickles results for the other end, to be sent in a message."""
        return ResultWriter(self._ring, self._classes, self._sending)

    def reader(self, numbers: Iterable[int]) -> ResultReader:
        """Return what opens the results of a message, which lie in slabs of these numbers."""
        slabs = [slab for number in numbers if (slab := self._others.get(number)) is not None]
        memory = {slab.number: bytes_of(Lease(slab)) for slab in slabs}
        copied = [slab.number for slab in slabs if self.copy and not self._spares(slab)]
        return ResultReader(memory, self._classes, dict.fromkeys(copied, self._blocks.copy))

    def renew(self) -> None:
        """Called when cells were run: classes of the notebook are sent again with the next use."""
        self._classes.renew()

    def close(self) -> None:
        """Close the connection and let go of all memory; views of it that live keep theirs."""
        if self._closed:
            return
        self._closed = True
        self._wire.hang_up()
        with self._sending, self._receiving:  # nothing waits any more
            self._connection.close()
        self._ring.forget()
        self._others.clear()

    # -- sending --------------------------------------------------------------------------

    def _share(self, pieces: Sequence[_Bytes], size_bytes: int) -> Slab | None:
        """Write a message to shared memory; None: it is small, or there is none for it."""
        if not self._ring.budget_bytes or size_bytes < _SHARED_FROM_BYTES:
            return None
        slab = self._ring.take(HEADER_BYTES + size_bytes)
        if slab is not None:
            try:
                _write(slab, HEADER_BYTES, pieces)
            except BaseException:
                slab.flag[0] = 0
                raise
        return slab

    def _tell(self) -> None:
        """Tell the other end which slabs are new, and which are gone."""
        for slab, fd in self._ring.opened:
            notice = _Header(_OPENED, number=slab.number, size_bytes=slab.size_bytes)
            self._wire.write((notice.block(),))
            self._wire.send_fd(fd)
        for number in self._ring.dropped:
            self._wire.write((_Header(_DROPPED, number=number).block(),))
        self._ring.sent()

    # -- receiving ------------------------------------------------------------------------

    def _receive(self) -> tuple[_Body, bool]:
        with self._receiving:
            while not self._block[0]:
                self._read_block()
            block, self._block = self._block, bytearray(_BLOCK_BYTES)
            try:
                header = _Header(*_PREFIX.unpack_from(block))
                if header.kind == _PIPED:
                    return _read(self._piped(block, header), header), header.defines
                return self._read_shared(header), header.defines
            except _LostError:
                raise
            except BaseException:
                self._break_off()
                raise

    def _read_block(self) -> None:
        """Read what a message begins with; a notice is heard, and leaves nothing.

        Raises:
            EOFError: the other end is gone.
            OSError: the other end is gone, or the channel was closed.
        """
        if self._broken_in:
            raise EOFError(_GONE)
        try:
            self._wire.fill(self._block)
            header = _Header(*_PREFIX.unpack_from(self._block))
            if header.kind in (_OPENED, _DROPPED):
                self._hear(header)
                self._block[0] = 0
        except BaseException:
            if self._block[0]:
                self._break_off()
            raise

    def _break_off(self) -> None:
        """Called when some of a message was read, and the rest was not."""
        self._broken_in = True
        self._block = bytearray(_BLOCK_BYTES)
        self._wire.hang_up()

    def _piped(self, block: bytearray, header: _Header) -> memoryview:
        """Return a message in the pipe: it is in the block, or follows it."""
        if header.size_bytes <= _ROOM_BYTES:
            return memoryview(block)[_PREFIX.size :]
        message = empty(header.size_bytes)
        self._wire.fill(message)
        return message

    def _hear(self, header: _Header) -> None:
        """Note that the other end has a new slab, or one less."""
        if header.kind == _DROPPED:
            self._others.pop(header.number, None)
            return
        fd = self._wire.recv_fd()
        if fd is None:
            return
        try:
            self._others[header.number] = Slab(header.number, fd, header.size_bytes)
        except OSError:  # no address space: the messages in it are lost, others are not
            pass
        finally:
            os.close(fd)

    def _read_shared(self, header: _Header) -> _Body:
        slab = self._others.get(header.number)
        if slab is None:
            raise _LostError(_NOT_MAPPED)
        copies = self.copy and not self._spares(slab)
        head, buffers = _read(bytes_of(Lease(slab))[HEADER_BYTES:], header)
        return head, list(map(self._blocks.copy, buffers)) if copies else buffers

    def _spares(self, slab: Slab) -> bool:
        """Return whether a message may keep its slab: the sender has others."""
        kept_bytes = sum(one.size_bytes for one in list(self._others.values()) if one.flag[0])
        most_bytes = max(_SPARED_BYTES, _SPARED * slab.size_bytes)
        return kept_bytes <= min(most_bytes, self._ring.budget_bytes // 2)


class _LostError(OSError):
    """A message cannot be read; the next one can."""


# -- The slabs that one end writes -----------------------------------------------------------------
@final
class Ring:
    """Slabs of one writer, within a budget.

    Args:
        budget_bytes: how much they may take together [bytes].

    Attributes:
        opened: slabs that the other end has not heard of, with their file descriptors.
        dropped: numbers of slabs that the other end may forget.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.opened: list[tuple[Slab, int]] = []
        self.dropped: list[int] = []
        self._slabs: list[Slab] = []
        self._kept: dict[int, int] = {}
        self._number = 0
        self._messages = 0
        self._retry = 0

    @property
    def holds_any(self) -> bool:
        """Whether the budget is enough for a slab of the smallest size."""
        return self.budget_bytes >= size_class(1)

    @property
    def held_bytes(self) -> int:
        """What its slabs take together [bytes]."""
        return sum(slab.size_bytes for slab in self._slabs)

    def take(self, need_bytes: int) -> Slab | None:
        """Return a slab for a message, flagged as in use; None where there is no memory for it."""
        self._messages += 1
        if self._messages % _LOOK_MESSAGES == 0:
            since = self._messages - IDLE_MESSAGES
            for slab in [slab for slab in self._free() if slab.used < since]:
                self._drop(slab)
        free = [slab for slab in self._free() if slab.size_bytes >= need_bytes]
        best = min(free, key=lambda slab: (slab.size_bytes, -slab.used), default=None)
        fits = self.held_bytes + size_class(need_bytes) <= self.budget_bytes
        if best is None or (fits and best.size_bytes > _ROOMY * size_class(need_bytes)):
            best = self._open(need_bytes) or best
        if best is not None:
            best.used = self._messages
            best.flag[0] = 1
        return best

    def _free(self) -> list[Slab]:
        return [slab for slab in self._slabs if not slab.flag[0]]

    def forget(self) -> None:
        """Let go of everything."""
        for _, fd in self.opened:
            os.close(fd)
        for fd in self._kept.values():
            os.close(fd)
        self.opened.clear()
        self._kept.clear()
        self._slabs.clear()

    def sent(self) -> None:
        """Called when the other end has been told what was opened and dropped."""
        for slab, fd in self.opened:
            if LINUX:
                os.close(fd)
            else:  # elsewhere a descriptor under way may be lost when it is closed
                self._kept[slab.number] = fd
        self.opened.clear()
        self.dropped.clear()

    def _open(self, need_bytes: int) -> Slab | None:
        size_bytes = size_class(need_bytes)
        if self._messages < self._retry or not self._make_room(size_bytes):
            return None
        try:
            slab, fd = self._new(size_bytes)
        except OSError as error:
            self._retry = self._messages + _RETRY_MESSAGES
            _warn_once(
                "memory",
                f"no shared memory for a message of {format_bytes(need_bytes)} ({error}): it goes "
                "through a pipe, which is slower; give the machine or the container more memory, "
                "raise the limit that is named, or make items smaller",
            )
            return None
        self._slabs.append(slab)
        self.opened.append((slab, fd))
        return slab

    def _new(self, size_bytes: int) -> tuple[Slab, int]:
        fd = open_memory(size_bytes)
        try:
            slab = Slab(self._number, fd, size_bytes)
        except BaseException:
            os.close(fd)
            raise
        self._number += 1
        return slab, fd

    def _make_room(self, size_bytes: int) -> bool:
        """Drop free slabs, those unused for longest first, until another one fits."""
        busy_bytes = self.held_bytes - sum(slab.size_bytes for slab in self._free())
        if busy_bytes + size_bytes > self.budget_bytes:
            self._warn_of_budget(busy_bytes, size_bytes)
            return False
        for slab in sorted(self._free(), key=lambda slab: slab.used):
            if self.held_bytes + size_bytes <= self.budget_bytes:
                break
            self._drop(slab)
        return True

    def _warn_of_budget(self, busy_bytes: int, size_bytes: int) -> None:
        budget, size = format_bytes(self.budget_bytes), format_bytes(size_bytes)
        slower = "it goes through a pipe, which is slower"
        if size_bytes > self.budget_bytes:
            _warn_once(
                "budget of one",
                f"a message needs {size} of shared memory, and {budget} is the most that there "
                f"may be for messages in one direction of one worker, a part of memory= or of the "
                f"machine's: {slower}; raise memory=, or make items smaller",
            )
            return
        _warn_once(
            "budget",
            f"shared memory is used up: {format_bytes(busy_bytes)} of {budget} are held by arrays "
            f"that the other process still uses, and a message needs {size}: {slower}; drop "
            "results sooner, copy them out (copy=True), or make items smaller",
        )

    def _drop(self, slab: Slab) -> None:
        self._slabs.remove(slab)
        self.dropped.append(slab.number)
        with contextlib.suppress(KeyError):
            os.close(self._kept.pop(slab.number))


def _warn_once(kind: str, text: str) -> None:
    """Log a warning, once for each kind and process."""
    if kind not in _warned:
        _warned.add(kind)
        LOG.warning("%s", text)


# -- How a message lies on the wire and in a slab --------------------------------------------------
# A frame begins with a block of fixed size, which one call reads: a header, and a piped message as
# far as that fits; else it follows. A shared message lies in its slab, in the same way.
class _Header(NamedTuple):
    """What the first bytes of a block say.

    Attributes:
        kind: of a message, or of a notice about a slab.
        defines: classes are defined in the message.
        buffers: how many the message has.
        number: of the slab.
        head_bytes: size of the pickle [bytes].
        size_bytes: size of the message, or of the slab [bytes].
    """

    kind: int
    defines: bool = False
    buffers: int = 0
    number: int = 0
    head_bytes: int = 0
    size_bytes: int = 0

    def block(self, *pieces: _Bytes) -> bytes:
        """Return a block that says this, and holds these."""
        return b"".join((_PREFIX.pack(*self), *pieces)).ljust(_BLOCK_BYTES, b"\0")


def _pieces_of(pickled: Pickled) -> tuple[list[_Bytes], _Header]:
    """Return a message piece by piece, and its header as one that is piped.

    First come the sizes of its buffers, then its pickle, then each buffer at a cache line.
    """
    sizes = [len(buffer) for buffer in pickled.buffers]
    table = struct.pack(f"<{len(sizes)}q", *sizes)
    head_bytes = sum(map(len, pickled.parts))
    pieces: list[_Bytes] = [table, *pickled.parts]
    at = len(table) + head_bytes
    for buffer in pickled.buffers:
        pieces += (bytes(aligned(at) - at), buffer)
        at = aligned(at) + len(buffer)
    return pieces, _Header(_PIPED, pickled.defines, len(sizes), 0, head_bytes, at)


def _write(slab: Slab, at: int, pieces: Iterable[_Bytes]) -> None:
    """Write pieces one after the other."""
    for piece in pieces:
        copy_bytes(slab.memory[at : at + len(piece)], piece)
        at += len(piece)


def _read(message: memoryview, header: _Header) -> _Body:
    """Return views of the pickle and the buffers of a message."""
    begins = header.buffers * _SIZE_BYTES
    at = begins + header.head_bytes
    head, buffers = message[begins:at], []
    for size in struct.unpack_from(f"<{header.buffers}q", message):
        buffers.append(message[aligned(at) : aligned(at) + size])
        at = aligned(at) + size
    return head, buffers


def _load(body: _Body, classes: Classes | None) -> Any:
    """Load a pickle; with `classes` where it has definitions."""
    head, buffers = body
    try:
        if classes is not None:
            return MessageLoader(head, buffers, classes).load()
        return pickle.loads(head, buffers=buffers)  # noqa: S301  of a process that we know
    finally:
        del body, head, buffers  # a traceback would keep them


# -- Results: each pickled by itself, as soon as it is made ----------------------------------------
# A function may fill the same memory again with its next call. So a result is pickled at once, and
# its large buffers are copied to a slab. What stands twice in one result is one object there.
# It is sent as a tuple: its pickle, whether classes are defined in that, and its buffers. An array
# that is all of a result needs no pickle: it is sent as a list of what `restore_array` takes.
_Buffer = tuple[int, int, int] | bytes  # number of a slab, place in it, size [bytes]; or all bytes


@final
class ResultWriter:
    """Pickles the results of one job, one after the other.

    Args:
        ring: gives the slabs.
        classes: those that the other end knows.
        lock: held while the ring changes: another thread may send a message.
    """

    def __init__(self, ring: Ring, classes: Classes, lock: AbstractContextManager[object]) -> None:
        self._ring = ring
        self._lock = lock
        self._classes = classes
        self._pickler = MessagePickler(classes)
        self._slabs: list[Slab] = []
        self._most = self._at = 0
        self._each_bytes = 0.0  # what the buffers of one result take, as far as is known

    def begin(self, most: int) -> None:
        """Begin a job that gives at most so many results; take the memory that they will need."""
        self._slabs.clear()
        self._most = most
        self._pickler = MessagePickler(self._classes)
        if self._each_bytes >= 1:
            self._take(0)

    def end(self) -> tuple[int, ...]:
        """Return the numbers of the slabs that the results lie in."""
        if self._slabs and self._at == HEADER_BYTES:  # nothing was written to the last one
            self._slabs.pop().flag[0] = 0
        return tuple(slab.number for slab in self._slabs)

    def add(self, value: Any) -> Any:
        """Return what is sent in place of a value; one that cannot change is sent as it is.

        Raises:
            Exception: whatever the pickling raised.
        """
        if type(value) in _UNCHANGING:
            return value
        if (plain := plain_array(value)) is not None:
            memory, *how = plain
            self._each_bytes = max(float(aligned(len(memory))), _FADING * self._each_bytes)
            how.append(self._copied(memory))
            self._most -= 1
            return how
        pickled = self._pickler.dumps(value)
        sizes = [aligned(len(buffer)) for buffer in pickled.buffers]
        self._each_bytes = max(float(sum(sizes)), _FADING * self._each_bytes)
        buffers = [*map(self._copied, pickled.buffers)]
        self._most -= 1
        return (b"".join(pickled.parts), pickled.defines, buffers)

    def _copied(self, buffer: memoryview) -> _Buffer:
        size, slab = len(buffer), self._slabs[-1] if self._slabs else None
        if slab is None or self._at + size > slab.size_bytes:
            slab = self._take(aligned(size))
            if slab is None:
                return bytes(buffer)
        at, self._at = self._at, aligned(self._at + size)
        copy_bytes(slab.memory[at : at + size], buffer)
        return slab.number, at, size

    def _take(self, least_bytes: int) -> Slab | None:
        """Take a slab for the results to come; None where there is no memory for it."""
        rest_bytes = max(least_bytes, int(self._most * self._each_bytes))
        with self._lock:
            slab = self._ring.take(HEADER_BYTES + rest_bytes) if self._ring.holds_any else None
        if slab is not None:
            self._slabs.append(slab)
            self._at = HEADER_BYTES
        return slab

    def drop(self) -> None:
        """Release the pieces written: they are not sent."""
        for slab in self._slabs:
            slab.flag[0] = 0
        self._slabs.clear()


@final
class ResultReader:
    """Opens the results of one job; holds the slabs that they lie in.

    Args:
        slabs: what holds them, by their numbers.
        classes: those that the other end has defined.
        copy: gives a buffer memory of its own, by the number of its slab.
    """

    def __init__(
        self,
        slabs: Mapping[int, memoryview],
        classes: Classes,
        copies: Mapping[int, Callable[[memoryview], memoryview]],
    ) -> None:
        self._slabs = slabs
        self._classes = classes
        self._copies = copies

    def open(self, value: Any) -> Any:
        """Return the result that the other end has written.

        Raises:
            OSError: this process could not map the memory that it lies in.
            Exception: whatever the loading raised.
        """
        if type(value) is list:
            *how, place = value
            return restore_array(self._buffer(place), *how)
        if type(value) is not tuple:
            return value
        head, defines, buffers = value
        body = head, [*map(self._buffer, buffers)]
        try:
            return _load(body, self._classes if defines else None)
        finally:
            del body  # a traceback would keep it

    def _buffer(self, place: _Buffer) -> memoryview:
        if isinstance(place, bytes):
            return memoryview(bytearray(place))
        number, at, size = place
        if number not in self._slabs:
            raise _LostError(_NOT_MAPPED)
        view = self._slabs[number][at : at + size]
        copy = self._copies.get(number)
        return view if copy is None else copy(view)


# -- Bytes and file descriptors over a connection, in as few calls as can be -----------------------
@final
class Wire:
    """A Unix socket: bytes in both directions; one thread writes, one thread reads at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(self, pieces: Sequence[_Bytes]) -> None:
        """Write all pieces, few bytes in one call.

        Raises:
            OSError: the other end is gone.
        """
        fd = self._connection.fileno()
        if sum(map(len, pieces)) <= _JOINED_BYTES:
            pieces = (b"".join(pieces),)
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                with contextlib.suppress(BlockingIOError):  # see `_socket`
                    rest = rest[os.write(fd, rest) :]

    def fill(self, buffer: bytearray | memoryview) -> None:
        """Read until a writable buffer is full.

        Raises:
            EOFError: the other end is gone.
        """
        fd = self._connection.fileno()
        rest = memoryview(buffer)
        while rest:
            try:
                count = os.readv(fd, (rest,))
            except BlockingIOError:  # see `_socket`
                continue
            if not count:
                raise EOFError("the other end of the channel is gone")
            rest = rest[count:]

    def send_fd(self, fd: int) -> None:
        """Send a file descriptor, with the one byte it needs."""
        with self._socket() as sock:
            socket.send_fds(sock, [b"\0"], [fd])

    def recv_fd(self) -> int | None:
        """Read a file descriptor; None where this process may open no more."""
        with self._socket() as sock:
            flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            byte, fds, _, _ = socket.recv_fds(sock, 1, 1, flags)
        if not byte:
            raise EOFError("the other end of the channel is gone")
        return fds[0] if fds else None

    def hang_up(self) -> None:
        """End both directions; threads that wait on either end are woken."""
        with contextlib.suppress(OSError), self._socket() as sock:
            sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        """Return the connection as a socket, which does not own it.

        With a default timeout, a new socket never blocks, nor does the connection, until it is set.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self._connection.fileno())
        try:
            sock.settimeout(None)
            yield sock
        finally:
            sock.detach()
