"""TorchBackend: streams, events and pinned memory as torch has them; torch itself is given."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, final

from ..errors import ArgumentError
from .holdings import Event
from .inflight import Backend


@final
class TorchBackend(Backend):
    """Devices of one kind that torch gives streams: CUDA, ROCm, XPU, ...

    Args:
        torch: the package.
        kind: as in "cuda:0".
    """

    def __init__(self, torch: Any, kind: str) -> None:
        self._torch = torch
        self._kind = kind
        self._module: Any = getattr(torch, kind)

    def resolve(self, device: str) -> str:
        """Give the full name; without a number, that of this thread's device."""
        index = self._torch.device(device).index
        count = self._module.device_count()
        if index is None:
            index = self._module.current_device()
        if index >= count:
            raise ArgumentError(
                f"device must be one of this machine, got {device!r}: this machine has {count} "
                f"{self._kind.upper()} device(s)"
            )
        return f"{self._kind}:{index}"

    def new_stream(self, device: str) -> Any:
        """Take a stream of torch's pool."""
        return self._module.Stream(device=device)

    def current_stream(self, device: str) -> Any:
        """Give this thread's stream."""
        return self._module.current_stream(device)

    def default_stream(self, device: str) -> Any:
        """Give the device's default stream."""
        default = getattr(self._module, "default_stream", self._module.current_stream)
        return default(device)

    def active(self, device: str, stream: Any) -> AbstractContextManager[Any]:
        """Set device and stream of this thread."""
        stack = contextlib.ExitStack()
        stack.enter_context(self._module.device(device))
        stack.enter_context(self._module.stream(stream))
        return stack

    def record_event(self, stream: Any) -> Event:
        """Record an event, without its time."""
        event = self._module.Event()
        event.record(stream)
        found: Event = event
        return found

    def wait_event(self, stream: Any, event: Event) -> None:
        """Let the stream wait."""
        stream.wait_event(event)

    def device_of(self, leaf: Any) -> str | None:
        """Give the device of a tensor."""
        if not isinstance(leaf, self._torch.Tensor):
            return None
        device = leaf.device
        return f"{device.type}:{device.index}" if device.type == self._kind else None

    def record_stream(self, leaf: Any, stream: Any) -> None:
        """Tell torch's allocator that a stream reads the tensor, or its parts."""
        for part in self._parts(leaf):
            part.record_stream(stream)

    def _parts(self, leaf: Any) -> tuple[Any, ...]:
        layout, torch = leaf.layout, self._torch
        if layout == torch.strided:
            return (leaf.values(),) if leaf.is_nested else (leaf,)
        if layout == torch.sparse_coo:
            return (leaf._indices(), leaf._values())
        if layout in (torch.sparse_csr, torch.sparse_bsr):
            return (leaf.crow_indices(), leaf.col_indices(), leaf.values())
        if layout in (torch.sparse_csc, torch.sparse_bsc):
            return (leaf.ccol_indices(), leaf.row_indices(), leaf.values())
        return (leaf.values(), leaf.offsets())  # jagged

    def pinned(self, leaf: Any) -> Any:
        """Copy a plain tensor on the host to pinned memory, keeping its order of dimensions."""
        torch = self._torch
        if not self._is_plain(leaf) or leaf.device.type != "cpu" or leaf.is_pinned():
            return leaf
        return torch.empty_like(leaf, pin_memory=True, requires_grad=False).copy_(leaf)

    def _is_plain(self, leaf: Any) -> bool:
        """Say whether memory for a tensor is one block, and its class will not get lost."""
        torch = self._torch
        if type(leaf) is not torch.Tensor or leaf.layout != torch.strided:
            return False
        return not (leaf.is_nested or leaf.is_quantized)

    def copy(self, leaf: Any, device: str) -> Any:
        """Begin to copy."""
        if isinstance(leaf, self._torch.Tensor):
            return leaf.to(device, non_blocking=True)
        try:
            return leaf.to(device, non_blocking=True)
        except TypeError:  # not every `to` knows it
            return leaf.to(device)

    def copy_back(self, leaf: Any) -> Any:
        """Begin to copy to pinned memory; a tensor of a class of its own is waited for."""
        torch = self._torch
        if not self._is_plain(leaf):
            return leaf.to("cpu")
        target = torch.empty_like(leaf, device="cpu", pin_memory=True, requires_grad=False)
        return target.copy_(leaf, non_blocking=True)
