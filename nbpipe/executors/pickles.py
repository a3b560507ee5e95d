"""Messages as bytes: pickle protocol 5 with the memory of arrays and tensors beside it."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any, cast

import cloudpickle
import numpy as np

from ..errors import ArgumentTypeError
from .classes import Classes, Definition

Parts = list[bytes | memoryview]

PROTOCOL = 5
SMALL_BYTES = 2048  # buffers below this are pickled with the rest

_MAIN = b"__main__"
_FRAME_BYTES = 1 << 16  # a pickler writes what is longer apart from its frames
_FRAME_STARTS = (b"\x80", b"\x95")
_Reduced = str | tuple[Any, ...]


class _Sink:
    """Collects what a pickler writes, large `bytes` without a copy."""

    def __init__(self) -> None:
        self.parts: Parts = []

    def write(self, part: Any) -> None:
        # A pickler owns the memory behind a memoryview of its own, not behind an object's bytes.
        self.parts.append(bytes(part) if isinstance(part, memoryview) else _raw(part))


def _raw(part: Any) -> bytes | memoryview:
    return part if isinstance(part, bytes) else memoryview(part).cast("B")


@dataclass(slots=True)
class Pickled:
    """A message as bytes.

    Attributes:
        parts: the pickle, in pieces.
        buffers: the memory that belongs beside it.
        defines: there are definitions of classes in it.
    """

    parts: Parts
    buffers: list[memoryview]
    defines: bool = False


class _ByName(pickle.Pickler):
    """Names functions and classes; the other process imports them."""

    @property
    def dispatch_table(self) -> dict[Any, Any]:  # type: ignore[override]  # read once, at the start
        return _reducers(copyreg.dispatch_table)


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no annotations
    """Sends functions and classes whole where the other process could not import them."""

    def __init__(self, sink: _Sink, classes: Classes, keep_inside: Any) -> None:
        super().__init__(sink, PROTOCOL, keep_inside)
        self.classes = classes
        self.defines = False

    def persistent_id(self, value: object) -> Definition | None:
        """Give the definition of a class that the other process cannot import."""
        definition = self.classes.define(value) if isinstance(value, type) else None
        self.defines = self.defines or definition is not None
        return definition

    @property
    def dispatch_table(self) -> dict[Any, Any]:
        first, *others = cloudpickle.Pickler.dispatch_table.maps  # its own, the registered ones
        return _reducers({**others[0], **first} if others else first)


class _Loader(pickle.Unpickler):
    """Finds the classes that a message defines."""

    def __init__(self, file: io.BytesIO, buffers: Iterable[memoryview], classes: Classes) -> None:
        super().__init__(file, buffers=buffers)
        self.persistent_load = classes.find  # type: ignore[method-assign]


def dumps(message: object, classes: Classes) -> Pickled:
    """Pickle a message.

    What C `pickle` refuses, or would look up in `__main__`, which another process does not
    have, is pickled by value with cloudpickle.

    Raises:
        Exception: whatever the pickling of an object raised.
    """
    sink, buffers = _Sink(), _Buffers()
    try:
        _ByName(sink, PROTOCOL, buffer_callback=buffers.keep_inside).dump(message)
    except ArgumentTypeError:
        raise
    except Exception:  # cloudpickle says what is wrong, if it is
        return _dumps_by_value(message, classes)
    if _names_what_is_only_here(sink.parts):
        return _dumps_by_value(message, classes)
    return Pickled(sink.parts, buffers.kept)


def loader(head: memoryview, buffers: Iterable[memoryview], classes: Classes) -> pickle.Unpickler:
    """Give what loads a message with definitions of classes in it."""
    return _Loader(io.BytesIO(head), buffers, classes)


def _dumps_by_value(message: object, classes: Classes) -> Pickled:
    sink, buffers = _Sink(), _Buffers()
    pickler = _ByValue(sink, classes, buffers.keep_inside)
    pickler.dump(message)
    return Pickled(sink.parts, buffers.kept, pickler.defines)


class _Buffers:
    """Collects the memory that is not pickled with the rest."""

    def __init__(self) -> None:
        self.kept: list[memoryview] = []

    def keep_inside(self, buffer: PickleBuffer) -> bool:
        """Take a buffer, unless it is small."""
        raw = buffer.raw()
        if raw.nbytes < SMALL_BYTES:
            return True
        self.kept.append(raw)
        return False


def _names_what_is_only_here(parts: Parts) -> bool:
    """Tell whether the parts name something that cannot be imported elsewhere."""
    by_value = cloudpickle.list_registry_pickle_by_value()
    names = (_MAIN, *(name.encode() for name in by_value)) if by_value else (_MAIN,)
    for part in parts:
        if isinstance(part, bytes) and _is_code(part):
            for name in names:
                if name in part:
                    return True
    return False


def _is_code(part: bytes) -> bool:
    """Tell instructions from a long text or `bytes` of the message, which are none."""
    return len(part) < _FRAME_BYTES or part.startswith(_FRAME_STARTS)


def _reducers(registered: Mapping[Any, Any]) -> dict[Any, Any]:
    """Give how objects are taken apart: our way for a few types, else as registered."""
    reducers = {**registered, np.ndarray: _reduce_array, memoryview: _reduce_memoryview}
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # not while it is being imported
    if tensor is not None:
        reducers[tensor] = _reduce_tensor
    return reducers


def _axes(strides: Iterable[int]) -> tuple[int, ...]:
    """Order axes as they lie in memory, outermost first."""
    steps = [-abs(stride) for stride in strides]
    return tuple(sorted(range(len(steps)), key=steps.__getitem__))


def _back(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _reduce_array(array: np.ndarray[Any, Any]) -> _Reduced:
    """Take an array apart; one with gaps is made dense first, its axes as they lie."""
    if array.flags.forc or array.dtype.hasobject:
        return array.__reduce_ex__(PROTOCOL)
    axes = _axes(array.strides)
    dense = np.ascontiguousarray(array.transpose(axes))
    if axes == tuple(range(array.ndim)):
        return dense.__reduce_ex__(PROTOCOL)
    return _transpose, (dense, _back(axes))


def _transpose(array: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return array.transpose(axes)


def _reduce_memoryview(view: memoryview) -> _Reduced:
    raw = view if view.c_contiguous else memoryview(view.tobytes())
    flat = raw.cast("B") if view.nbytes else memoryview(b"")
    return _restore_memoryview, (PickleBuffer(flat), view.format, view.shape)


def _restore_memoryview(raw: Any, kind: str, shape: tuple[int, ...]) -> memoryview:
    if 0 in shape:
        return memoryview(raw).cast(cast(Any, kind))
    return memoryview(raw).cast("B").cast(cast(Any, kind), shape)


def _reduce_tensor(tensor: Any) -> _Reduced:
    """Take a dense tensor on the CPU apart as its memory; others as torch does."""
    if tensor.device.type not in ("cpu", "meta"):
        raise ArgumentTypeError(
            f"a tensor that goes to or from another process must be on the cpu, got one on "
            f"{str(tensor.device)!r}; return tensor.cpu(), and let to_device() move batches"
        )
    if not _is_plain(tensor):
        reduced: _Reduced = tensor.__reduce_ex__(PROTOCOL)
        return reduced
    grad, tensor = [True] * tensor.requires_grad, tensor.detach()
    axes = None
    if not tensor.is_contiguous():
        axes = _axes(tensor.stride())
        tensor, axes = tensor.permute(axes).contiguous(), _back(axes)
    raw = _tensor_bytes(tensor)
    return _restore_tensor, (raw, tensor.dtype, tuple(tensor.shape), axes, *grad)


def _is_plain(tensor: Any) -> bool:
    torch: Any = sys.modules["torch"]
    return bool(
        tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type == "cpu"
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.is_leaf
        and not tensor.__dict__
        and not tensor._backward_hooks
    )


def _tensor_bytes(tensor: Any) -> PickleBuffer:
    torch: Any = sys.modules["torch"]
    if not tensor.numel():
        return PickleBuffer(b"")
    flat = tensor.view(-1).as_strided((tensor.numel(),), (1,))  # a length of 1 has any stride
    return PickleBuffer(flat.view(torch.uint8).numpy())


def _restore_tensor(
    raw: Any, dtype: Any, shape: tuple[int, ...], axes: tuple[int, ...] | None, *grad: bool
) -> Any:
    torch: Any = sys.modules["torch"]  # loaded: the pickle names its dtype
    flat = torch.frombuffer(raw, dtype=dtype) if len(raw) else torch.empty(0, dtype=dtype)
    tensor = flat.view(shape)
    if axes is not None:
        tensor = tensor.permute(axes)
    return tensor.requires_grad_() if grad else tensor
