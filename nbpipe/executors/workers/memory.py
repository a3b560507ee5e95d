"""Memory that outlives a message: used again, shared without a name, mapped, or torch's own."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import pickle
import sys
import tempfile
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from os import getpid
from typing import Any, cast, final

import numpy as np

from ...errors import UnpicklableError
from . import pickling
from .pickling import PROTOCOL, HeldFile, Pickled, Pickler

_ALIGNED = 64  # bytes; a cache line, and what vector instructions ask for
HEADER_BYTES = _ALIGNED  # the flag, with a line of its own
LINUX = sys.platform == "linux"
_POSIX = os.name == "posix"
_KEPT_BYTES = 1 << 26

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_FROM_BYTES = 1 << 19  # smaller ones `malloc` keeps itself
_CLEARED_BYTES = 1 << 15  # so few are cleared before numpy has made an array
_SMALLEST_BYTES = 1 << 18
_STEPS = 3  # sizes between two powers of two, as a power of two
_ZEROS = bytes(1 << 20)
_COPIED_BYTES = 1 << 19  # so few are copied sooner than the GIL comes back
_FAILED = ctypes.c_void_p(-1).value
_FLAGS = 0 if not _POSIX else mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
_MAPPED_FROM_BYTES = 1 << 20  # smaller arrays go along with the rest
_CAN_MAP: bool = sys.platform == "linux" and hasattr(os, "memfd_create")


# -- Private memory that is used again: fresh pages cost more than the copy that fills them --------
@final
class Blocks:
    """Copies memory into blocks, each used again once nothing holds what was copied into it.

    Args:
        kept_bytes: most memory in blocks that wait to be used again [bytes].
    """

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._returned: deque[_Bytes] = deque()  # filled by the collection of garbage
        self._free: list[_Bytes] = []
        self._lock = threading.Lock()

    def copy(self, source: memoryview) -> memoryview:
        """Copy some bytes."""
        size = len(source)
        if size < _FROM_BYTES:
            target = empty(size)
        else:
            loan = _Loan(self._block(size), self._returned)
            target = memoryview(cast(Any, np.asarray(loan)))[:size]
        copy_bytes(target, source)
        return target

    def _block(self, size_bytes: int) -> _Bytes:
        size_bytes = size_class(size_bytes)
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            found = next((b for b in reversed(self._free) if len(b) == size_bytes), None)
            if found is not None:
                self._free = [block for block in self._free if block is not found]
            while sum(map(len, self._free)) > self._kept_bytes:
                self._free.pop(0)
        return np.empty(size_bytes, np.uint8) if found is None else found


@final
class _Loan:
    """Hands a block back when the last array over it is gone."""

    __slots__ = ("__array_interface__", "_block", "_returned")

    def __init__(self, block: _Bytes, returned: deque[_Bytes]) -> None:
        self._returned = returned
        self.__array_interface__: dict[str, Any] = block.__array_interface__
        self._block = block

    def __del__(self) -> None:
        self._returned.append(self._block)


def empty(size_bytes: int) -> memoryview:
    """Return fresh memory to write to."""
    if size_bytes < _CLEARED_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(cast(Any, np.empty(size_bytes, np.uint8)))


# -- Shared memory without a name ------------------------------------------------------------------
# A slab belongs to the process that made it. Its first byte says whether a message lies in it: the
# owner sets it, the other process clears it when the last view of the message is gone. No message
# is needed to give a slab back, and no lock: the garbage collector may do it anywhere.
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
        mapping = _Mapping(fd, size_bytes)
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
_SYSTEM = _system() if _POSIX else None


@final
class _Mapping:
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


def bytes_of(owner: _Mapping | Lease) -> memoryview:
    """Return the bytes of shared memory; `owner` lives as long as any view of them."""
    return memoryview(cast(Any, np.asarray(owner)))


def copy_bytes(target: memoryview, source: bytes | memoryview) -> None:
    """Copy `source` to a place of the same size; much of it without the GIL."""
    if len(source) < _COPIED_BYTES:
        target[:] = source
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def aligned(size_bytes: int) -> int:
    """Round a size up to whole cache lines."""
    return -(-size_bytes // _ALIGNED) * _ALIGNED


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
    """Return the descriptor of shared memory without a name, every page of it allocated.

    Raises:
        OSError: memory, a disk or a limit does not allow it; nothing is left of it.
    """
    fd = os.memfd_create("nbpipe", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else _open_file()
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size_bytes)  # a page that is missing later kills a process
        else:
            for start in range(0, size_bytes, len(_ZEROS)):
                os.write(fd, _ZEROS[: size_bytes - start])
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_file() -> int:
    fd, path = tempfile.mkstemp(prefix="nbpipe-")
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108  while it is open it needs no name
    return fd


# -- Storages: the memory of torch tensors that is shared stays shared in other processes ----------
# What `tensor.share_memory_()` or `torch.from_file(shared=True)` made goes to a worker as the place
# where it is found: the file that the memory belongs to, which has a name or is held open by this
# process. Nothing is counted and nothing is named for it, so nothing remains, however a
# worker ends. Where files cannot be found so (it is not Linux), torch's own names are used.
def is_shared(value: Any) -> bool:
    """Return whether a tensor, or a storage of torch, lies in memory that processes share."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    try:
        storage = value.untyped_storage() if isinstance(value, torch.Tensor) else value
        return storage.device.type == "cpu" and bool(storage.nbytes()) and storage.is_shared()
    except (AttributeError, NotImplementedError, RuntimeError):  # sparse, or without memory
        return False


class SharingPickler(Pickler):
    """Pickles programs: of shared memory, and of mapped files, only the place goes along.

    Args:
        by_place: without, shared memory and mapped files are pickled as any other memory.

    Attributes:
        storages: the shared storages that it met; the places hold as long as they live.
    """

    def __init__(
        self,
        file: object,
        protocol: int = PROTOCOL,
        buffer_callback: Any = None,
        *,
        by_place: bool = True,
    ) -> None:
        super().__init__(file, protocol, buffer_callback)
        self.storages: dict[int, Any] = {}
        self._files: _Files = []  # that are mapped; looked up where there is such an array
        self._by_place = by_place

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled."""
        if self._by_place and (mapped := _place_of_map(obj, self._files)) is not None:
            return mapped
        storage = _storage_of(obj) if self._by_place else None
        if storage is None or not is_shared(storage):
            return super().reducer_override(obj)
        storage = self.storages.setdefault(storage.data_ptr(), storage)
        place = _place_of(storage)
        if place is None:
            return super().reducer_override(obj)
        if type(storage) is type(obj):
            return place
        return _typed, (storage, obj.dtype)  # one object for all views: it is sent once


def _storage_of(obj: Any) -> Any:
    """Return the memory of a storage of torch; None for other values."""
    torch: Any = sys.modules.get("torch")
    kinds: Any = (getattr(torch, "UntypedStorage", ()), getattr(torch, "TypedStorage", ()))
    return getattr(obj, "_untyped_storage", obj) if isinstance(obj, kinds) else None


def _place_of(storage: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Return how a shared storage is opened elsewhere; None: what is written to it stays here.

    Raises:
        UnpicklableError: no other process can open it.
    """
    if sys.platform != "linux":
        return _named, (type(storage), *storage._share_filename_cpu_())
    path = storage.filename
    if path is not None:
        try:
            return _at, (type(storage), HeldFile.of(path), storage.nbytes())
        except OSError as error:
            raise UnpicklableError(f"a file of shared memory must be there: {error}") from error
    number, size_bytes = storage._share_fd_cpu_()
    if number < 0:
        return None
    return _at, (type(storage), HeldFile.of_descriptor(number), size_bytes)


# -- Mapped files: an array that numpy maps is mapped by the workers, too --------------------------
# numpy pickles what the file holds, however large it is. What a worker writes to its array stays
# there; what is written to the file is there for all.
_Files = list[tuple[int, int, str | None]]  # where each begins and ends in memory, and its path


def is_mapped(value: Any) -> bool:
    """Return whether an array is of a file that other processes can map."""
    return _place_of_map(value, []) is not None


def _place_of_map(array: Any, files: _Files) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Return how a mapped array is made elsewhere; None: it is none, or must be copied.

    Args:
        array: whatever it is.
        files: that are mapped; filled where it is empty.
    """
    if type(array) is not np.memmap or sys.platform != "linux":
        return None
    known: Any = array  # what numpy keeps of the file, in views as well
    mapping, own = known._mmap, known.mode == "c"  # what is written to that is not in the file
    if mapping is None or own or not (array.flags.forc and array.nbytes and array.ndim):
        return None
    begins = np.frombuffer(mapping, np.uint8).ctypes.data
    if not files:
        files.extend(_mapped_files())
    _, ends, path = files[bisect_right(files, begins, key=lambda one: one[0]) - 1]
    if path is None or begins >= ends:
        return None
    at = known.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    order = "F" if array.flags.fnc else "C"
    mode = "c" if array.flags.writeable else "r"
    where = (array.dtype, mode, at + array.ctypes.data - begins, array.shape, order)
    try:
        return _map_again, (HeldFile.of(path), known.filename, where)
    except OSError:
        return None


def _mapped_files() -> Iterator[tuple[int, int, str | None]]:
    """Yield from where to where in memory which file is mapped; None: it has no name any more."""
    with open("/proc/self/maps", "rb") as lines:  # noqa: PTH123
        for line in lines:
            path = line.rstrip(b"\n").split(None, 5)[-1]
            gone = path.endswith(b" (deleted)") or not path.startswith(b"/")
            name = None if gone else os.fsdecode(path.replace(rb"\012", b"\n"))
            begins, ends = line.split(None, 1)[0].split(b"-")
            yield int(begins, 16), int(ends, 16), name


def _map_again(file: HeldFile, name: Any, where: tuple[Any, ...]) -> Any:
    """Map a file as another process does; `where` is what `np.memmap` takes after the file."""
    with os.fdopen(file.open("a file that is mapped", os.O_RDONLY), "rb") as opened:
        array: Any = np.memmap(opened, *where)
    array.filename = name
    return array


# -- in the other process --------------------------------------------------------------------------
def _at(kind: Any, file: HeldFile, size_bytes: int) -> Any:
    """Open a storage by its place."""
    own = file.open("a tensor in shared memory")
    try:
        return kind._new_shared_fd_cpu(own, size_bytes)
    finally:
        os.close(own)


def _named(kind: Any, manager: bytes, name: bytes, size_bytes: int) -> Any:
    """Open a storage by the name that torch gave it."""
    return kind._new_shared_filename_cpu(manager, name, size_bytes)


def _typed(storage: Any, dtype: Any) -> Any:
    """Build what torch pickles in a tensor."""
    torch: Any = sys.modules["torch"]
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


# -- Mapped: objects whose large arrays worker processes map into their memory, and do not copy ----
# A dataset that lies in memory would otherwise be pickled and sent to each worker again. Its large
# arrays are written once to memory without a name, which workers on this machine open through their
# parent; nothing is left of it when the parent is gone, however it ends. Each worker may write to
# its arrays: it then has that page for itself.
@final
class Packer:
    """Packs one object again and again; its large arrays are copied when others take their place.

    What is written into an array that stays where it is goes unnoticed until `release`.
    """

    def __init__(self) -> None:
        self._buffers: list[memoryview] = []  # kept: another array must not get their address
        self._kept: list[_MappedFile] = []  # the one before, too: a worker may be opening it
        self._storages: list[Any] = []  # shared with the workers, which look for them here

    def pack(self, value: object) -> tuple[Any, ...]:
        """Return what `unpack` takes."""
        pickled = Pickled(_MAPPED_FROM_BYTES)
        pickler = _MappingPickler(
            pickled, buffer_callback=pickled.keep_inside if _CAN_MAP else None
        )
        pickler.dump(value)
        self._storages = list(pickler.storages.values())
        head, buffers = b"".join(pickled.parts), pickled.buffers
        if not buffers:
            return (head, None)
        if not self._kept or _spans(buffers) != _spans(self._buffers):
            self._kept = [*self._kept[-1:], _MappedFile(buffers)]
            self._buffers = buffers
        return (head, self._kept[-1].where)

    def release(self) -> None:
        """Let go of the memory: no worker is left that could want it."""
        self._buffers, self._kept, self._storages = [], [], []


def unpack(head: bytes, where: tuple[Any, ...] | None) -> Any:
    """Build an object again in a worker."""
    buffers = None if where is None else _mapped(*where)
    return pickle.loads(head, buffers=buffers)  # noqa: S301  of the process that started this one


class _MappingPickler(SharingPickler):
    """Offers the memory of tensors, as numpy does that of arrays; of a view only what it shows."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled."""
        torch: Any = sys.modules.get("torch")
        is_tensor = torch is not None and type(obj) is torch.Tensor
        if is_tensor and pickling.is_plain(obj) and obj.numel() and not is_shared(obj):
            return pickling.reduce_tensor(obj)
        return super().reducer_override(obj)


@final
class _MappedFile:
    """Memory without a name that holds some buffers; closed when it is collected.

    Args:
        buffers: what is copied to it.

    Attributes:
        where: what `_mapped` takes.
    """

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._fd = -1
        starts = [0, *itertools.accumulate(aligned(len(buffer)) for buffer in buffers)]
        spans = [(at, len(buffer)) for at, buffer in zip(starts, buffers, strict=False)]
        self._fd = open_memory(starts[-1])
        memory = bytes_of(_Mapping(self._fd, starts[-1]))
        for (at, length), buffer in zip(spans, buffers, strict=True):
            copy_bytes(memory[at : at + length], buffer)
        self.where = HeldFile.of_descriptor(self._fd), starts[-1], spans

    def __del__(self, close: Callable[[int], object] = os.close) -> None:
        if self._fd >= 0:  # modules may be empty by now, arguments are not
            close(self._fd)


def _mapped(file: HeldFile, size_bytes: int, spans: Any) -> list[memoryview]:
    """Map the memory of another process; what is written to it here stays here."""
    own = file.open("an array that is mapped")
    try:
        how = mmap.PROT_READ | mmap.PROT_WRITE
        mapped = memoryview(mmap.mmap(own, size_bytes, mmap.MAP_PRIVATE, how))
    finally:
        os.close(own)
    return [mapped[at : at + length] for at, length in spans]


def _spans(buffers: Sequence[memoryview]) -> list[tuple[int, int]]:
    return [(np.frombuffer(buffer, np.uint8).ctypes.data, len(buffer)) for buffer in buffers]
