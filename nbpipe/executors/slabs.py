"""Shared memory without a name: slabs that one process writes and another reads, again and again.

A slab belongs to the process that made it. Its first byte says whether a message lies in it: the
owner sets it, the other process clears it when the last view of the message is gone. No
message is needed to give a slab back, and no lock: the garbage collector may do it anywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from os import getpid
from typing import Any, cast, final

import numpy as np

ALIGNED = 64  # bytes; a cache line, and what vector instructions ask for
HEADER_BYTES = ALIGNED  # the flag, with a line of its own
LINUX = sys.platform == "linux"
POSIX = os.name == "posix"

_SMALLEST_BYTES = 1 << 18
_STEPS = 3  # sizes between two powers of two, as a power of two
_ZEROS = bytes(1 << 20)
_COPIED_BYTES = 1 << 19  # so few are copied sooner than the GIL comes back
_FAILED = ctypes.c_void_p(-1).value
_FLAGS = 0 if not POSIX else mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


def _system() -> Any:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    system.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return system


# Python's own `mmap` keeps a file descriptor open for each: too many with many workers.
_SYSTEM = _system() if POSIX else None


@final
class Mapping:
    """Shared memory in this process, until the last array over it is gone.

    Args:
        fd: file descriptor; the caller may close it afterwards.
        size_bytes: how much of it [bytes].

    Raises:
        OSError: there is no memory or no address space for it.
    """

    __slots__ = ("_address", "size_bytes")

    def __init__(self, fd: int, size_bytes: int) -> None:
        assert _SYSTEM is not None
        self.size_bytes = 0
        how = mmap.PROT_READ | mmap.PROT_WRITE
        address = _SYSTEM.mmap(None, size_bytes, how, _FLAGS, fd, 0)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._address = address
        self.size_bytes = size_bytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self._address, False),
            "shape": (self.size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self, system: Any = _SYSTEM) -> None:
        if self.size_bytes:  # modules may be empty by now, arguments are not
            system.munmap(self._address, self.size_bytes)


@final
class Slab:
    """Shared memory that holds one message at a time.

    Attributes:
        number: its name between the two processes.
        memory: all its bytes.
        interface: where they are, in numpy's words.
        flag: its first byte: 1 while a message lies in it.
        size_bytes: its size, flag included [bytes].
        used: when the owner last wrote it, counted in messages.
    """

    __slots__ = ("flag", "interface", "memory", "number", "size_bytes", "used")

    def __init__(self, number: int, fd: int, size_bytes: int) -> None:
        self.number = number
        mapping = Mapping(fd, size_bytes)
        self.interface = mapping.__array_interface__
        self.memory = bytes_of(mapping)
        self.flag = self.memory[:1]
        self.size_bytes = size_bytes
        self.used = 0


@final
class Lease:
    """Holds a message in its slab as long as any view of it lives.

    `bytes_of(lease)` gives the bytes of the slab; every array, memoryview and tensor made of
    them keeps the lease alive.
    """

    __slots__ = ("__array_interface__", "_flag", "_memory", "_pid")

    def __init__(self, slab: Slab) -> None:
        self._pid = getpid()
        self._memory = slab.memory
        self.__array_interface__ = slab.interface
        self._flag = slab.flag

    def __del__(self, getpid: Callable[[], int] = getpid) -> None:
        if self._pid == getpid():  # a forked copy of a view says nothing about the view
            self._flag[0] = 0


def bytes_of(owner: Mapping | Lease) -> memoryview:
    """Give the bytes of shared memory; `owner` lives as long as any view of them."""
    return memoryview(cast(Any, np.asarray(owner)))


def copy_bytes(target: memoryview, source: bytes | memoryview) -> None:
    """Copy `source` to a place of the same size; much of it without the GIL."""
    if len(source) < _COPIED_BYTES:
        target[:] = source
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def size_class(need_bytes: int) -> int:
    """Round a size up, so that items of nearly the same size fit into the same slabs.

    Examples:
        >>> size_class(4_000_100)
        4194304
    """
    need_bytes = max(need_bytes, _SMALLEST_BYTES)
    step = 1 << max(need_bytes.bit_length() - 1 - _STEPS, 12)
    return -(-need_bytes // step) * step


def open_memory(size_bytes: int) -> int:
    """Give the descriptor of shared memory without a name, every page of it allocated.

    Raises:
        OSError: memory, a disk or a limit does not allow it; nothing is left of it.
    """
    fd = os.memfd_create("nbpipe", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else _open_file()
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size_bytes)  # a page that is missing later kills a process
        else:
            _fill(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_file() -> int:
    fd, path = tempfile.mkstemp(prefix="nbpipe-")
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108  while it is open it needs no name
    return fd


def _fill(fd: int, size_bytes: int) -> None:
    for start in range(0, size_bytes, len(_ZEROS)):
        os.write(fd, _ZEROS[: size_bytes - start])
