"""What a value is, in bounded words, numbers and a small picture."""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import math
import pathlib
import re
import struct
import types
import zlib
from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import plain
from .tree import children, is_tensor, size_bytes

_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-fA-F]+")
_SHOWN = 8  # elements of a container
_NAME = 80  # characters of a name; a quarter of them is shown
_DEPTH = 3  # levels of nesting
_SHORT = (  # their text is quickly made and says what they are
    bool | int | float | complex | pathlib.PurePath | dt.date | dt.time | dt.timedelta
)
_LONG_INT = 10**30  # Python refuses to write very long ones
_LEAST_TEXT = 8  # characters of a text, however little room there is
_LEAST_SIDE = 8  # pixels; a smaller plane of numbers is a table
_FILL = 128  # grey of a picture without contrast


@dataclass(frozen=True, slots=True)
class Description:
    """What a table shows of a value.

    Attributes:
        type: name of its type.
        shape: of an array or tensor; None for others.
        dtype: of an array or tensor; empty for others.
        low: smallest element, NaN left out; None where there is none.
        high: largest element.
        size_bytes: memory held [bytes].
        text: the value in one line.
        parts: ranges of the arrays and tensors in a dict, tuple, list or dataclass: key, smallest
            and largest element. Of a tuple and a list the key is empty.
    """

    type: str
    shape: tuple[int, ...] | None
    dtype: str
    low: float | None
    high: float | None
    size_bytes: int
    text: str
    parts: tuple[tuple[str, float, float], ...] = ()


def summarize(value: object, limit: int = 200) -> str:
    """Tell in one line what `value` is; never raises, shows no memory address.

    Args:
        value: anything.
        limit: most characters of the result.

    Examples:
        >>> summarize({"image": np.zeros((2, 3), np.uint8), "label": 7})
        'dict image: ndarray (2, 3) uint8, label: int 7'
    """
    try:
        text = _summary(value, limit, 0)
    except Exception:  # noqa: BLE001 - a value that cannot be looked at still has a type
        text = type(value).__name__
    return _cut(" ".join(plain(text).split()), limit)


def describe(value: object) -> Description:
    """Describe `value` for a table; never raises."""
    try:
        array = _as_array(value)
        low, high = _range(value if array is None else array)
        parts = () if array is not None else _part_ranges(value)
    except Exception:  # noqa: BLE001 - as above
        array, low, high, parts = None, None, None, ()
    return Description(
        type=type(value).__name__,
        shape=None if array is None else tuple(array.shape),
        dtype="" if array is None else _dtype_name(value),
        low=low,
        high=high,
        size_bytes=size_bytes(value),
        text=summarize(value),
        parts=parts,
    )


def thumbnail_png(value: object, size: int = 64) -> bytes | None:
    """Draw an array, tensor or PIL image as a small PNG; None where it is no image.

    Taken for an image: (H, W), (H, W, 1 | 3 | 4) and (1 | 3, H, W), of uint8, bool or floating
    numbers; of a batch of them the first. Floating numbers are shown as they are where all lie
    in 0..1, else scaled from their smallest to their largest; NaN is black.

    Args:
        value: anything.
        size: longest side of the picture [pixels].

    Source: PNG specification, third edition, W3C 2025; the reduction averages areas.
    """
    try:
        image_HWC = _image(value)
        return None if image_HWC is None else _png(_to_bytes(_reduced(image_HWC, size)))
    except Exception:  # noqa: BLE001 - a picture is an extra, its absence an answer
        return None


# -- words -----------------------------------------------------------------------------------------


def _summary(value: Any, limit: int, depth: int) -> str:
    if value is None:
        return "None"
    words = _plain_words(value, limit)
    if words is None:
        words = _shape_words(value)
    if words is None:
        held = _parts(value)
        words = _sized_words(value) if held is None else _held_words(value, held, limit, depth)
    return f"{type(value).__name__}{words}"


def _plain_words(value: Any, limit: int) -> str | None:
    """Return the value itself, where it is short."""
    if isinstance(value, int) and abs(value) >= _LONG_INT:
        return f" of {value.bit_length()} bits"
    if isinstance(value, enum.Enum):
        return f" {value.name}"
    if isinstance(value, np.generic):
        return f" {_cut(str(value), limit)}"
    if isinstance(value, str | bytes | bytearray):
        most = max(_LEAST_TEXT, limit // 2)
        more = f" ... of {len(value)}" if len(value) > most else ""
        return f" {value[:most]!r}{more}"
    if isinstance(value, BaseException):
        return f": {_ADDRESS.sub('', str(value))}"
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return f" {value.__qualname__}"
    return f" {value}" if isinstance(value, _SHORT) else None


def _shape_words(value: Any) -> str | None:
    """Return shape and dtype of anything that has them, or size and mode of a PIL image."""
    if callable(getattr(value, "getbands", None)):
        return f" {value.width}x{value.height} {value.mode}"
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple):
        return None
    return f" {tuple(shape)} {_dtype_name(value)}".rstrip()


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """Return what is inside, but not of a mapping that may have to read it first."""
    held = isinstance(value, dict | UserDict | types.MappingProxyType)
    return None if isinstance(value, Mapping) and not held else children(value)


def _sized_words(value: Any) -> str:
    if isinstance(value, Mapping):
        names = [_key(name, _NAME) for name in itertools.islice(value, _SHOWN)]
        more = ["..."] * (len(value) > _SHOWN)
        return f" of {len(value)}: {', '.join(names + more)}"
    return f" of {len(value)}" if hasattr(type(value), "__len__") else ""


def _held_words(value: Any, held: list[Any], limit: int, depth: int) -> str:
    if depth >= _DEPTH or not held:
        return f" of {len(held)}"
    counted = _is_counted(value)
    words = []
    for key, child in held[:_SHOWN]:
        text = _summary(child, limit, depth + 1)
        text = f"({text})" if "," in text and _parts(child) else text
        words.append(text if counted else f"{_key(key, limit)}: {text}")
    count = f" of {len(held)}:" if counted else ""
    return f"{count} {', '.join(words + ['...'] * (len(held) > _SHOWN))}"


def _is_counted(value: Any) -> bool:
    """Return whether the parts of a value have places instead of names."""
    return isinstance(value, list | tuple) and not hasattr(value, "_fields")


def _key(key: Any, limit: int) -> str:
    return _cut(key, limit // 4) if isinstance(key, str) else _summary(key, limit // 4, _DEPTH)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(0, limit - 3)] + "..."[:limit]


def _dtype_name(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return "" if dtype is None else str(dtype).removeprefix("torch.")


# -- numbers ---------------------------------------------------------------------------------------


def _as_array(value: Any) -> NDArray[Any] | None:
    """Return an array or tensor as a numpy array; None for other values."""
    if is_tensor(value):
        tensor = value.detach().cpu()
        wide = "float8" in str(tensor.dtype) or "bfloat16" in str(tensor.dtype)
        array: NDArray[Any] = (tensor.float() if wide else tensor).numpy()
        return array
    return value if isinstance(value, np.ndarray) else None


def _range(value: Any) -> tuple[float | None, float | None]:
    """Return the smallest and the largest element, leaving NaN out."""
    if not isinstance(value, np.ndarray):
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not number or (isinstance(value, int) and abs(value) > 2**1000):
            return None, None
        return (None, None) if math.isnan(value) else (_number(value), _number(value))
    if value.size == 0 or value.dtype.kind not in "biuf":
        return None, None
    low, high = np.fmin.reduce(value, axis=None), np.fmax.reduce(value, axis=None)
    return (None, None) if np.isnan(low) else (_number(low), _number(high))


def _part_ranges(value: Any) -> tuple[tuple[str, float, float], ...]:
    """Return key and range of each array in a value, among the first of its parts."""
    found = []
    for key, part in (_parts(value) or [])[:_SHOWN]:
        array = _as_array(part)
        low, high = (None, None) if array is None else _range(array)
        if low is not None and high is not None:
            found.append(("" if _is_counted(value) else _key(key, _NAME), low, high))
    return tuple(found)


def _number(value: Any) -> float:
    return int(value) if isinstance(value, int | np.integer | np.bool_) else float(value)


# -- pictures --------------------------------------------------------------------------------------


def _image(value: Any) -> NDArray[Any] | None:
    """Return the image in `value` as an array (H, W, 1 | 3 | 4)."""
    array: NDArray[Any] | None
    if callable(getattr(value, "getbands", None)):
        array = np.asarray(value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB"))
    elif is_tensor(value) and len(value.shape) > len("CHW"):
        array = _as_array(value[0])  # no more than one image leaves its device
    else:
        array = _as_array(value)
    if array is None or array.size == 0:
        return None
    shown = array.dtype.kind in "bf" or array.dtype == np.uint8
    return _channels_last(array) if shown else None


def _channels_last(array: NDArray[Any]) -> NDArray[Any] | None:
    match array.shape:
        case (_, _, 1 | 3 | 4):
            return array
        case (1 | 3, _, _):
            return np.moveaxis(array, 0, -1)
        case (_, _, _) | (_, _, _, _):
            return _channels_last(array[0])
        case (height, width) if min(height, width) >= _LEAST_SIDE:
            return array[..., None]
    return None


def _reduced(image_HWC: NDArray[Any], size: int) -> NDArray[Any]:
    """Average areas until the longest side is `size` at most."""
    height, width, _ = image_HWC.shape
    longest = max(height, width)
    if longest <= size:
        return image_HWC
    step = max(1, longest // (8 * size))  # a huge image is thinned before it is averaged
    reduced = image_HWC[::step, ::step].astype(np.float32)
    for axis, side in ((0, height), (1, width)):
        length = reduced.shape[axis]
        parts = min(length, max(1, round(side * size / longest)))
        edges = np.arange(parts + 1) * length // parts
        counts = np.diff(edges).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        reduced = np.add.reduceat(reduced, edges[:-1], axis=axis) / counts
    if image_HWC.dtype.kind == "f":
        return reduced
    return reduced if image_HWC.dtype.kind == "b" else np.rint(reduced).astype(np.uint8)


def _to_bytes(image_HWC: NDArray[Any]) -> NDArray[np.uint8]:
    if image_HWC.dtype == np.uint8:
        return image_HWC
    numbers = image_HWC.astype(np.float64)
    finite = np.isfinite(numbers)
    low, high = (numbers[finite].min(), numbers[finite].max()) if finite.any() else (0.0, 0.0)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    span = high / 2 - low / 2  # the halves of large numbers have a difference
    with np.errstate(invalid="ignore"):  # infinite numbers end in black or white
        scaled = (numbers / 2 - low / 2) / span * 255 if span else np.where(finite, _FILL, numbers)
    shown = np.clip(np.nan_to_num(scaled, nan=0, posinf=255, neginf=0), 0, 255)
    return np.rint(shown).astype(np.uint8)


def _png(image_HWC: NDArray[np.uint8]) -> bytes:
    height, width, channels = image_HWC.shape
    colour = {1: 0, 3: 2, 4: 6}[channels]  # grey, RGB, RGBA
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each starts with filter type 0
    rows[:, 1:] = image_HWC.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    data = zlib.compress(rows.tobytes(), 6)
    parts = (_chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
