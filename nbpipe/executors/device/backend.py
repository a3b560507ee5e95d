"""Backend: streams, events and pinned memory of one kind of device."""

from __future__ import annotations

import contextlib
import math
from contextlib import AbstractContextManager
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from ...base.collate import BatchMemory
from ...base.tree import children, rebuild, words_of
from ...errors import ArgumentError
from ..workers.memory import copy_bytes
from .leaves import has_tensors, moved

BACKENDS: dict[str, Backend] = {}  # by kind of device; torch's are made when first used


class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Return whether the stream has passed it."""

    def synchronize(self) -> None:
        """Wait in this thread until the stream has passed it."""


@final
class Backend:
    """Devices of one kind that torch gives streams: CUDA, ROCm, XPU, ...

    `stream`, below, is torch's object for one; `leaf` is a tensor, or what has a method `to`.

    Args:
        torch: the package.
        kind: as in "cuda:0".

    Attributes:
        idle: by the name of a device, the streams of runs that were closed.
    """

    def __init__(self, torch: Any, kind: str) -> None:
        self.idle: dict[str, list[Any]] = {}
        self._torch = torch
        self._kind = kind
        self._module: Any = getattr(torch, kind)
        # a wait for an event of CUDA keeps a core busy, unless the event is made otherwise
        self._event_options = {"blocking": True} if kind == "cuda" else {}

    def resolve(self, device: str) -> str:
        """Return the full name of a device; without a number, that of this thread's.

        Raises:
            ArgumentError: this machine has no such device.
        """
        try:
            index = self._torch.device(device).index
        except RuntimeError as error:
            raise ArgumentError(f"device must be a torch device, got {device!r}: {error}") from None
        count = self._module.device_count()
        if index is None:
            index = self._module.current_device()
        if not 0 <= index < count:  # torch takes a number too large for a negative one
            raise ArgumentError(
                f"device must be one of this machine, got {device!r}: this machine has {count} "
                f"{self._kind.upper()} device(s)"
            )
        return f"{self._kind}:{index}"

    def new_stream(self, device: str) -> Any:
        """Take a stream of torch's pool."""
        return self._module.Stream(device=device)

    def current_stream(self, device: str) -> Any:
        """Return the stream that this thread's work on a device goes to."""
        return self._module.current_stream(device)

    def default_stream(self, device: str) -> Any:
        """Return the stream for work that has no other stream."""
        default = getattr(self._module, "default_stream", self._module.current_stream)
        return default(device)

    def active(self, device: str, stream: Any) -> AbstractContextManager[Any]:
        """Let this thread's work on a device go to a stream, inside a `with` block."""
        stack = contextlib.ExitStack()
        stack.enter_context(self._module.device(device))
        stack.enter_context(self._module.stream(stream))
        return stack

    def record_event(self, stream: Any) -> Event:
        """Note the present end of a stream's work, without its time."""
        event = self._module.Event(**self._event_options)
        event.record(stream)
        found: Event = event
        return found

    def wait_event(self, stream: Any, event: Event) -> None:
        """Let what a stream does from now on wait for an event; this thread does not."""
        stream.wait_event(event)

    def device_of(self, leaf: Any) -> str | None:
        """Return the device of this kind that a tensor lies on, else ""; None for other objects."""
        if not isinstance(leaf, self._torch.Tensor):
            return None
        device = leaf.device
        return f"{device.type}:{device.index}" if device.type == self._kind else ""

    def record_stream(self, leaf: Any, stream: Any) -> None:
        """Keep the memory of a tensor, or its parts, until `stream` has passed what it does now."""
        for part in self._parts(leaf):
            part.record_stream(stream)

    def _parts(self, leaf: Any) -> tuple[Any, ...]:
        layout, torch = leaf.layout, self._torch
        if layout == torch.strided:
            if leaf.is_nested:
                return (leaf.values(),)
            if not (leaf.is_conj() or leaf.is_neg() or leaf.is_quantized):
                return (leaf,)
            # of these torch would keep a copy, or refuse: take their memory as it is
            block = torch.empty(0, dtype=torch.uint8, device=leaf.device)
            return (block.set_(leaf.untyped_storage()),)
        if layout == torch.sparse_coo:
            return (leaf._indices(), leaf._values())
        if layout in (torch.sparse_csr, torch.sparse_bsr):
            return (leaf.crow_indices(), leaf.col_indices(), leaf.values())
        if layout in (torch.sparse_csc, torch.sparse_bsc):
            return (leaf.ccol_indices(), leaf.row_indices(), leaf.values())
        return (leaf.values(), leaf.offsets())  # jagged

    def pinned(self, leaf: Any) -> Any:
        """Copy a leaf on the host to pinned memory: plain tensors, and others that can.

        A tensor keeps its order of dimensions. What is no tensor is asked to pin itself, or is
        copied with its parts pinned where those can be seen.
        """
        torch = self._torch
        if not isinstance(leaf, torch.Tensor):
            return self._pinned_object(leaf)
        if not self._is_plain(leaf) or leaf.device.type != "cpu" or leaf.is_pinned():
            return leaf
        made = torch.empty_like(leaf, pin_memory=True, requires_grad=False)
        if leaf.is_conj() or leaf.is_neg():  # its memory holds other values
            return made.copy_(leaf)
        if leaf.stride() == made.stride():
            copy_bytes(self._bytes_of(made), self._bytes_of(leaf))
        else:
            np.copyto(words_of(made), words_of(leaf))
        return made

    def _bytes_of(self, tensor: Any) -> memoryview:
        """Return the memory of a tensor that has no gaps in it."""
        flat = tensor.detach().as_strided((tensor.numel(),), (1,))
        return memoryview(flat.view(self._torch.uint8).numpy())

    def pinned_block(self, size_bytes: int, device: str) -> NDArray[np.uint8] | None:
        """Return fresh pinned memory that a device can read; None where there is none."""
        try:
            with self._module.device(device):
                block = self._torch.empty(
                    size_bytes, dtype=self._torch.uint8, device="cpu", pin_memory=True
                )
        except RuntimeError:  # the system pins no more
            return None
        memory: NDArray[np.uint8] = block.numpy()
        return memory

    def _pinned_object(self, value: Any) -> Any:
        pin = getattr(value, "pin_memory", None)
        if callable(pin):
            try:
                return pin()
            except RuntimeError:  # part of it lies on a device: it is copied from where it is
                return value
        held = children(value)
        if held is None:
            return value
        made = rebuild(value, [moved(part, self.pinned) for _, part in held])
        return made if type(made) is type(value) else value

    def _is_plain(self, leaf: Any) -> bool:
        """Return whether memory for a tensor is one block, and its class will not get lost."""
        torch = self._torch
        if type(leaf) is not torch.Tensor or leaf.layout != torch.strided:
            return False
        return not (leaf.is_nested or leaf.is_quantized)

    def copy(self, leaf: Any, device: str) -> Any:
        """Begin to copy a leaf to a device, on the current stream."""
        if isinstance(leaf, self._torch.Tensor):
            return leaf.to(device, non_blocking=True)
        try:
            return leaf.to(device, non_blocking=True)
        except TypeError:  # not every `to` knows it
            return leaf.to(device)


@final
class PinnedMemory(BatchMemory):
    """Allocates batches in pinned memory: a device copies them from there.

    Args:
        backend: that of the device.
        device: its full name.
    """

    def __init__(self, backend: Backend, device: str) -> None:
        self._backend = backend
        self._device = device

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return an array of numbers without values; None where there is no memory for one."""
        if not has_tensors(dtype) or not dtype.isnative:
            return None
        block = self._block(shape, dtype.itemsize)
        return None if block is None else block.view(dtype).reshape(shape)

    def tensor(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a tensor without values; None where there is no memory for one."""
        block = self._block(shape, dtype.itemsize)
        if block is None:
            return None
        import torch

        return torch.from_numpy(block).view(dtype).reshape(shape)

    def _block(self, shape: tuple[int, ...], item_bytes: int) -> NDArray[np.uint8] | None:
        size_bytes = math.prod(shape) * item_bytes
        return self._backend.pinned_block(size_bytes, self._device) if size_bytes else None
