"""Arrays, tensors, images and tables in a portrait; their libraries are never loaded for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..tree import is_tensor
from .nodes import FIRST, MOST, Node, branch, digest_of, leaf
from .objects import kind_of, stored

Paint = Callable[..., Node]

_WHOLE_BYTES = 1 << 28  # of larger arrays the two ends and a sample of the rest are looked at
_END_BYTES = 1 << 26
_SAMPLE = 1_000_000  # elements
_EXACT_BYTES = 8  # of a number that Python holds as well


def painted(value: Any, paint: Paint) -> Node | None:
    """Paint what numpy, torch, pandas or Pillow made; None for other values."""
    if isinstance(value, np.ndarray):
        return _array(value, paint)
    if isinstance(value, np.generic):
        return leaf(
            f"numpy.{value.dtype}", repr(value), digest=digest_of(_bytes(np.asarray(value)))
        )
    if isinstance(value, np.dtype):
        return leaf("dtype", repr(value))
    if isinstance(value, np.random.Generator):
        return branch("Generator", "a generator", [("state", paint(value.bit_generator.state))])
    if isinstance(value, np.random.RandomState):
        return branch(
            "RandomState", "a generator", [("state", paint(value.get_state(legacy=False)))]
        )
    if isinstance(value, np.random.BitGenerator):
        return branch(kind_of(value), "a generator", [("state", paint(value.state))])
    if is_tensor(value):
        return _tensor(value, paint)
    return _torch(value, paint) or _pandas(value, paint) or _image(value, paint)


def _scalar(value: np.generic[Any]) -> Node:
    kind = f"numpy.{value.dtype}"
    if value.dtype.hasobject or value.dtype.names:
        return leaf(kind, repr(value))
    return leaf(kind, repr(value), digest=digest_of(_bytes(np.asarray(value))))


def _array(value: np.ndarray[Any, Any], paint: Paint) -> Node:
    kind, words = kind_of(value), f"an array of shape {value.shape}, {value.dtype}"
    if isinstance(value, np.ma.MaskedArray):
        parts = [("data", paint(value.filled())), ("mask", paint(np.ma.getmaskarray(value)))]
        return branch(kind, words, parts)
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind == "T":
        return branch(kind, words, [("elements", paint(array.tolist()))])
    if array.dtype.names:
        return branch(kind, words, [(f"[{n!r}]", paint(array[n])) for n in array.dtype.names])
    return _numbers(kind, words, array, paint)


def _numbers(kind: str, words: str, array: np.ndarray[Any, Any], paint: Paint) -> Node:
    kept = MOST if array.size <= MOST else FIRST
    parts = [
        (_label(at, array.shape), paint(_element(number)))
        for at, number in enumerate(array.flat[:kept])
    ]
    node = branch(kind, words, parts)
    return {**node, "count": array.size, "digest": digest_of(*_pieces(array))}


def _label(at: int, shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, np.unravel_index(at, shape)))}]"


def _element(number: Any) -> Any:
    """Give a number of an array as one of Python, or its text where Python has none like it."""
    exact = number.dtype.kind in "biufcSU" and number.dtype.itemsize <= _EXACT_BYTES
    return number.item() if exact or number.dtype.kind in "SU" else str(number)


def _pieces(array: np.ndarray[Any, Any]) -> list[Any]:
    if array.nbytes <= _WHOLE_BYTES:
        return [_bytes(array)]
    flat: Any = array.reshape(-1) if array.flags.c_contiguous else array.flat
    end, step = _END_BYTES // array.itemsize, -(-array.size // _SAMPLE)
    return [_bytes(part) for part in (flat[:end], flat[array.size - end :], flat[::step])]


def _bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Give the bytes of an array, with one bit pattern for all that is not a number."""
    if array.dtype.kind not in "fc":
        return array.tobytes()
    numbers = np.ascontiguousarray(array).view(array.real.dtype)
    wrong = np.isnan(numbers)
    if wrong.any():
        numbers = np.where(wrong, numbers.dtype.type(np.nan), numbers)
    return numbers.tobytes()


def _tensor(value: Any, paint: Paint) -> Node:
    words = f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    kept = value.detach().cpu()
    parts = [
        ("device", leaf("device", str(value.device))),
        ("requires_grad", paint(value.requires_grad)),
    ]
    if str(kept.layout) != "torch.strided" or kept.is_quantized:
        return branch(kind_of(value), words, [*parts, ("text", paint(kept.to_dense().tolist()))])
    torch = sys.modules["torch"]
    flat = kept.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if value.dtype.is_floating_point and value.dtype.itemsize > 1:
        flat = torch.where(flat.isnan(), torch.nan, flat).to(value.dtype)
    some = MOST if flat.numel() <= MOST else FIRST
    for at, number in enumerate(flat[:some].tolist()):
        parts.append((_label(at, tuple(value.shape)), paint(number)))
    node = branch(kind_of(value), words, parts)
    pieces = _pieces(flat.view(torch.uint8).numpy())
    return {**node, "count": flat.numel(), "digest": digest_of(*pieces)}


def _torch(value: Any, paint: Paint) -> Node | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return None
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return leaf(kind_of(value), str(value))
    if isinstance(value, torch.Generator):
        parts = [("state", paint(value.get_state())), ("device", paint(str(value.device)))]
        return branch(kind_of(value), "a generator", parts)
    if isinstance(value, torch.nn.Module):
        public = {n: v for n, v in stored(value).items() if not n.startswith("_")}
        parts = [("state_dict", paint(dict(value.state_dict())))]
        parts += [(f"attribute {n!r}", paint(v, n)) for n, v in sorted(public.items())]
        inner = [(f"module {n!r}", paint(part)) for n, part in value.named_children()]
        return branch(kind_of(value), type(value).__qualname__, [*parts, *inner])
    return None


def _pandas(value: Any, paint: Paint) -> Node | None:
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not hasattr(pandas, "DataFrame"):
        return None
    if isinstance(value, pandas.DataFrame):
        columns = [
            (f"column {n!r}", paint(value.iloc[:, at])) for at, n in enumerate(value.columns)
        ]
        words = f"a DataFrame of shape {value.shape}"
        return branch(kind_of(value), words, [("index", paint(value.index)), *columns])
    if isinstance(value, pandas.Series | pandas.Index | pandas.api.extensions.ExtensionArray):
        parts = [("dtype", leaf("dtype", str(value.dtype))), ("values", paint(list(value)))]
        index = [("index", paint(value.index))] if isinstance(value, pandas.Series) else []
        name = [("name", paint(value.name))] if hasattr(value, "name") else []
        return branch(kind_of(value), f"a {type(value).__name__}", [*parts, *index, *name])
    scalar = pandas.Timestamp | pandas.Timedelta | pandas.Interval | pandas.Period
    return leaf(kind_of(value), repr(value)) if isinstance(value, scalar) else None


def _image(value: Any, paint: Paint) -> Node | None:
    pillow: Any = sys.modules.get("PIL.Image")
    if pillow is None or not isinstance(value, pillow.Image):
        return None
    words = f"an image of {value.width}x{value.height}, {value.mode}"
    parts = [("palette", paint(value.getpalette())), ("pixels", paint(value.tobytes()))]
    return branch("image", words, parts)
