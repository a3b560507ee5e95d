"""Storages: the memory of torch tensors that is shared stays shared in other processes.

What `tensor.share_memory_()` or `torch.from_file(shared=True)` made goes to a worker as the
place where it is found: the file that the memory belongs to, which has a name or is held open
by this process. Nothing is counted and nothing is named for it, so nothing is left behind,
however a worker ends. Where the system does not tell (it is not Linux), torch's own names are
used.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from ..errors import UnpicklableError
from . import handles
from .pickling import PROTOCOL, Pickler

_DELETED = " (deleted)"
_FIELDS = 6  # of a line of /proc/<pid>/maps: span, rights, offset, device, inode, path
_opened: WeakValueDictionary[int, np.ndarray[Any, Any]] = WeakValueDictionary()  # by address


class Place(NamedTuple):
    """Where shared memory is found on this machine.

    Attributes:
        path: of its file, which may be one that only an open descriptor leads to.
        inode: number of that file: another one may have taken its place.
        start_bytes: where in the file it begins [bytes].
        size_bytes: how long it is [bytes].
    """

    path: str
    inode: int
    start_bytes: int
    size_bytes: int


def is_shared(value: Any) -> bool:
    """Tell whether a tensor, or a storage of torch, lies in memory that processes share."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    try:
        storage = value.untyped_storage() if isinstance(value, torch.Tensor) else value
        if storage.device.type != "cpu" or not storage.nbytes():
            return False
        return bool(storage.is_shared()) or storage.data_ptr() in _opened
    except (AttributeError, NotImplementedError, RuntimeError):  # sparse, or without memory
        return False


class SharingPickler(Pickler):
    """Pickles programs: of shared memory only the place goes along.

    Args:
        by_place: without, shared memory is pickled as any other.

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
        self._by_place = by_place
        self._places = _Places()

    def dump(self, obj: object) -> None:
        """Pickle an object; with it what multiprocessing shares, as its own processes get it."""
        with handles.starting() if self._by_place else contextlib.nullcontext():
            super().dump(obj)

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled."""
        shared = handles.reduced(obj) if self._by_place else None
        if shared is not None:
            return shared
        storage = _storage_of(obj)
        if storage is None or not is_shared(storage):
            return super().reducer_override(obj)
        storage = self.storages.setdefault(storage.data_ptr(), storage)
        reduced = self._reduced(storage) if self._by_place else None
        if reduced is None:
            return super().reducer_override(obj)
        if type(storage) is type(obj):
            return reduced
        return _typed, (storage, obj.dtype)  # one object for all views: it is sent once

    def _reduced(self, storage: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        if sys.platform != "linux":
            return _named, (type(storage), *storage._share_filename_cpu_())
        place = self._places.of(storage)
        return None if place is None else (_at, (type(storage), *place))


def _storage_of(obj: Any) -> Any:
    """Return the memory of what is a storage of torch; None for all else."""
    torch: Any = sys.modules.get("torch")
    kinds: Any = (getattr(torch, "UntypedStorage", ()), getattr(torch, "TypedStorage", ()))
    return getattr(obj, "_untyped_storage", obj) if isinstance(obj, kinds) else None


class _Places:
    """What this process has mapped and opened, read once."""

    @functools.cached_property
    def _mapped(self) -> list[tuple[int, int, int, int, str]]:
        found = []
        for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
            fields = line.split(None, _FIELDS - 1)
            if len(fields) == _FIELDS and fields[1].endswith("s"):  # written for all to see
                first, last = (int(number, 16) for number in fields[0].split("-"))
                found.append((first, last, int(fields[2], 16), int(fields[4]), fields[5]))
        return found

    @functools.cached_property
    def _files(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in os.scandir("/proc/self/fd"):
            try:
                found[os.readlink(entry.path)] = int(entry.name)  # noqa: PTH115
            except OSError:  # closed meanwhile, as the one that lists them
                continue
        return found

    def of(self, storage: Any) -> Place | None:
        """Return where the memory of a storage is found; None: what is written to it stays here.

        Raises:
            UnpicklableError: no other process can open it.
        """
        address = storage.data_ptr()
        for first, last, offset, inode, path in self._mapped:
            if first <= address < last:
                start_bytes = address - first + offset
                return Place(self._path(path, inode), inode, start_bytes, storage.nbytes())
        return None

    def _path(self, path: str, inode: int) -> str:
        if not path.endswith(_DELETED):
            return path
        number = self._files.get(path)
        if number is None or os.fstat(number).st_ino != inode:
            raise UnpicklableError(f"a file of shared memory must be there, or open, got {path!r}")
        return f"/proc/{os.getpid()}/fd/{number}"


# -- in the other process -----------------------------------------------------------------


def _at(kind: Any, path: str, inode: int, start_bytes: int, size_bytes: int) -> Any:
    """Open a storage by its place."""
    torch: Any = sys.modules["torch"]  # loaded: the pickle names the kind of storage
    own = _open(path, inode)
    try:
        whole = kind._new_shared_fd_cpu(own, start_bytes + size_bytes)
    finally:
        os.close(own)
    if not start_bytes:
        return whole
    part = torch.empty(0, dtype=torch.uint8).set_(whole).numpy()[start_bytes:]
    _opened[part.ctypes.data] = part
    return torch.from_numpy(part).untyped_storage()


def _open(path: str, inode: int) -> int:
    try:
        own = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _gone(path, str(error)) from error
    if os.fstat(own).st_ino == inode:
        return own
    os.close(own)
    raise _gone(path, "another file has taken its place")


def _gone(path: str, reason: str) -> UnpicklableError:
    return UnpicklableError(
        f"a tensor in shared memory must stay where it was when it was sent, got nothing at "
        f"{path}: {reason}; keep it for as long as workers run"
    )


def _named(kind: Any, manager: bytes, name: bytes, size_bytes: int) -> Any:
    """Open a storage by the name that torch gave it."""
    return kind._new_shared_filename_cpu(manager, name, size_bytes)


def _typed(storage: Any, dtype: Any) -> Any:
    """Build what torch pickles in a tensor."""
    torch: Any = sys.modules["torch"]
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
