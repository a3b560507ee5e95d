"""Arrays, tensors, their numbers and types as source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..tree import is_tensor
from .layout import Group, Item, group

MOST = 64  # elements
_SAVE = f"(at most {MOST} elements are written as source; save it and load it by path)"

Spell = Callable[[object], str]


class NoLiteral(Exception):  # noqa: N818 - an answer, not a failure
    """A value cannot be written as source.

    Attributes:
        reason: what it is, why it cannot be written, and what to do instead.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def written(value: Any, spell: Spell) -> Item | None:
    """Write what numpy or torch made; None for other values.

    Raises:
        NoLiteral: it is too large, or of a kind that has no text.
    """
    if isinstance(value, np.ndarray):
        return _array(value, spell)
    if isinstance(value, np.generic):
        return _scalar(value, spell)
    if isinstance(value, np.dtype):
        return f"{spell(np)}.dtype({_dtype(value, spell)})"
    if is_tensor(value):
        return _tensor(value, spell)
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "dtype"):
        return None
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return f"{spell(torch)}.{str(value).removeprefix('torch.')}"
    return f"{spell(torch)}.device({str(value)!r})" if isinstance(value, torch.device) else None


def _array(value: np.ndarray[Any, Any], spell: Spell) -> Item:
    if value.size > MOST:
        raise NoLiteral(f"numpy array of shape {value.shape} {_SAVE}")
    if type(value) is not np.ndarray or value.dtype.kind not in "biufcSUMm":
        kind = "array" if type(value) is np.ndarray else type(value).__name__
        raise NoLiteral(
            f"numpy {kind} of dtype {value.dtype} "
            "(it has no short text; save it and load it by path)"
        )
    numpy = spell(np)
    dtype = f"dtype={_dtype(value.dtype, spell)}"
    if value.size == 0 and value.shape != (0,):
        return group(f"{numpy}.zeros(", [repr(value.shape), dtype], ")")
    return group(f"{numpy}.array(", [_nested(value, numpy), dtype], ")")


def _nested(value: np.ndarray[Any, Any], numpy: str) -> Item:
    if value.ndim == 0:
        return _number(value[()], f"{numpy}.nan", f"{numpy}.inf")
    return group("[", [_nested(np.asarray(part), numpy) for part in value], "]")


def _dtype(dtype: np.dtype[Any], spell: Spell) -> str:
    """Write a type of elements: by its name where numpy has one, else by its code."""
    if dtype.kind == "b":
        return f"{spell(np)}.bool_"
    named = getattr(np, dtype.name, None)
    if dtype.isnative and dtype.kind in "iufc" and isinstance(named, type):
        return f"{spell(np)}.{dtype.name}"
    if dtype.names is not None or dtype.hasobject:
        raise NoLiteral(f"numpy dtype {dtype} (it has no short text; write it by hand)")
    return repr(dtype.str)


def _scalar(value: np.generic[Any], spell: Spell) -> Item:
    numpy, name = spell(np), value.dtype.name
    if value.dtype.kind == "b":
        return f"{numpy}.bool_({bool(value)})"
    if value.dtype.kind in "Mm":
        name, unit = name.partition("[")[0], np.datetime_data(np.dtype(value.dtype.str))
        count = repr(str(value)) if value.dtype.kind == "M" else str(value.astype("int64"))
        units = unit[0] if unit[1] == 1 else f"{unit[1]}{unit[0]}"
        return f"{numpy}.{name}({count}, {units!r})"
    if value.dtype.kind in "SU":
        return f"{numpy}.{type(value).__name__}({value.item()!r})"
    if value.dtype.kind not in "iufc":
        raise NoLiteral(f"numpy scalar of {value.dtype} (it has no short text)")
    return f"{numpy}.{name}({_number(value, f'{numpy}.nan', f'{numpy}.inf')})"


def _number(value: Any, nan: str, inf: str) -> str:
    """Write one element, a float of 16 or 32 bits as short as its own precision allows."""
    if value.dtype.kind == "M":
        return repr(str(value))
    if value.dtype.kind == "m":
        return str(value.astype("int64"))
    if value.dtype.kind == "c":
        parts = [_number(part, nan, inf) for part in (value.real, value.imag)]
        return f"complex({', '.join(parts)})"
    if value.dtype.kind != "f":
        return repr(value.item())
    if np.isnan(value):
        return nan
    if np.isinf(value):
        return inf if value > 0 else f"-{inf}"
    short = str(value)
    if type(value)(float(short)) == value:
        return short
    if value.dtype.itemsize > np.dtype(float).itemsize:
        raise NoLiteral(f"numpy number of {value.dtype} (it has no short text)")
    return repr(value.item())


def _tensor(value: Any, spell: Spell) -> Item:
    torch: Any = sys.modules["torch"]
    shape = tuple(value.shape)
    if value.numel() > MOST:
        raise NoLiteral(f"torch tensor of shape {shape} {_SAVE}")
    if value.device.type != "cpu":
        raise NoLiteral(f"torch tensor on {value.device} (make it on the CPU, and move it later)")
    odd = type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_quantized
    if odd or not value.is_leaf:
        kind = type(value).__name__ if value.is_leaf else "Tensor with a history of gradients"
        raise NoLiteral(f"torch {kind} of shape {shape} (save it and load it by path)")
    name = spell(torch)
    more = [f"dtype={name}.{str(value.dtype).removeprefix('torch.')}"]
    more += ["requires_grad=True"] if value.requires_grad else []
    if value.numel() == 0 and shape != (0,):
        return group(f"{name}.zeros(", [repr(shape), *more], ")")
    return group(f"{name}.tensor(", [_nested_tensor(value.detach()), *more], ")")


def _nested_tensor(value: Any) -> Item:
    if value.dim() > 0:
        return Group("[", tuple(map(_nested_tensor, value)), "]")
    wide = "bfloat16" in str(value.dtype) or "float8" in str(value.dtype)
    array = value.float() if wide else value
    number = array.resolve_conj().resolve_neg().numpy()[()]
    return _number(number, 'float("nan")', 'float("inf")')
