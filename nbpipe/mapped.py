"""Mapped: objects whose large arrays worker processes map into their memory, and do not copy.

A dataset that lies in memory would otherwise be pickled and sent to each worker anew. Its large
arrays are written once to memory without a name, which workers on this machine open through
their parent; nothing is left of it when the parent is gone, however it ends. Each worker may
write to its arrays: it then has that page for itself.
"""

from __future__ import annotations

import io
import itertools
import mmap
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pickle import PickleBuffer
from typing import Any, final

import numpy as np

from .executors.storages import SharingPickler, is_shared

LARGE_BYTES = 1 << 20  # smaller arrays go along with the rest
_ALIGNED = 64
_tokens = itertools.count()  # a number of a file is used again, a token is not


class _Pickler(SharingPickler):
    """Offers the memory of tensors, as numpy does that of arrays; of a view only what it shows."""

    def reducer_override(self, obj: Any) -> Any:
        """Say how an object is pickled."""
        torch: Any = sys.modules.get("torch")
        if (
            torch is not None
            and type(obj) is torch.Tensor
            and _is_plain(torch, obj)
            and not is_shared(obj)
        ):
            flat = obj.detach().contiguous().view(-1).view(torch.uint8).numpy()
            return _tensor, (PickleBuffer(flat), obj.dtype, tuple(obj.shape), obj.requires_grad)
        return super().reducer_override(obj)


def _is_plain(torch: Any, tensor: Any) -> bool:
    return bool(
        tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type == "cpu"
        and tensor.numel()
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.is_leaf
        and not tensor.__dict__
    )


def _tensor(raw: Any, dtype: Any, shape: tuple[int, ...], wants_grad: bool) -> Any:  # noqa: FBT001
    torch: Any = sys.modules["torch"]  # loaded: the pickle names its dtype
    return torch.frombuffer(raw, dtype=dtype).view(shape).requires_grad_(wants_grad)


@final
class Memory:
    """Memory without a name that holds some buffers; closed when it is collected.

    Args:
        buffers: what is copied to it.
    """

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._fd = -1
        lengths = [-(-len(buffer) // _ALIGNED) * _ALIGNED for buffer in buffers]
        starts = [0, *itertools.accumulate(lengths)]
        self._spans = [(at, len(buffer)) for at, buffer in zip(starts, buffers, strict=False)]
        self._size_bytes = starts[-1]
        self._token = next(_tokens)
        self._fd = os.memfd_create("nbpipe", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, self._size_bytes)
        for (at, _), buffer in zip(self._spans, buffers, strict=True):
            _write(self._fd, buffer, at)

    @property
    def where(self) -> tuple[Any, ...]:
        """What `_opened` takes."""
        return os.getpid(), self._fd, self._token, self._size_bytes, self._spans

    def __del__(self, close: Callable[[int], object] = os.close) -> None:
        if self._fd >= 0:  # modules may be empty by now, arguments are not
            close(self._fd)


def _write(fd: int, buffer: memoryview, at: int) -> None:
    while buffer:
        count = os.pwrite(fd, buffer, at)
        buffer, at = buffer[count:], at + count


def _opened(pid: int, fd: int, _: int, size_bytes: int, spans: Any) -> list[memoryview]:
    """Map the memory of another process; what is written to it here stays here."""
    own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        how = mmap.PROT_READ | mmap.PROT_WRITE
        mapped = memoryview(mmap.mmap(own, size_bytes, mmap.MAP_PRIVATE, how))
    finally:
        os.close(own)
    return [mapped[at : at + length] for at, length in spans]


@final
class Packer:
    """Packs one object again and again; its large arrays are copied when others take their place.

    What is written into an array that stays where it is goes unnoticed until `release`.
    """

    def __init__(self) -> None:
        self._buffers: list[memoryview] = []  # kept: another array must not get their address
        self._kept: list[Memory] = []  # the one before, too: a worker may be opening it
        self._storages: list[Any] = []  # shared with the workers, who look for them here

    def pack(self, value: object) -> tuple[Any, ...]:
        """Give what `unpack` takes."""
        sink, buffers = io.BytesIO(), _Buffers()
        pickler = _Pickler(sink, buffer_callback=buffers.keep_inside if _CAN_MAP else None)
        pickler.dump(value)
        self._storages = list(pickler.storages.values())
        if not buffers.kept:
            return (sink.getvalue(), None)
        if not self._kept or _places(buffers.kept) != _places(self._buffers):
            self._kept = [*self._kept[-1:], Memory(buffers.kept)]
            self._buffers = buffers.kept
        return (sink.getvalue(), self._kept[-1].where)

    def release(self) -> None:
        """Let go of the memory: no worker is left that could want it."""
        self._buffers, self._kept, self._storages = [], [], []


class _Buffers:
    def __init__(self) -> None:
        self.kept: list[memoryview] = []

    def keep_inside(self, buffer: PickleBuffer) -> bool:
        """Take a large buffer; leave a small one to the pickler."""
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        self.kept.append(raw)
        return False


def _places(buffers: Sequence[memoryview]) -> list[tuple[int, int]]:
    return [(np.frombuffer(buffer, np.uint8).ctypes.data, len(buffer)) for buffer in buffers]


def unpack(head: bytes, where: tuple[Any, ...] | None) -> Any:
    """Build an object again in a worker."""
    buffers = None if where is None else _opened(*where)
    return pickle.loads(head, buffers=buffers)  # noqa: S301  of the process that started this one


_CAN_MAP: bool = sys.platform == "linux" and hasattr(os, "memfd_create")
