"""Fitting: a value of a batch is what its sample held, or the batch is refused."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError

_WAY_OUT = "collate=fn gathers a list of samples your way (collate=list keeps it as it is)"
_ALIKE = f"convert them alike before, or {_WAY_OUT}"


# -- The pad value ---------------------------------------------------------------------------------
def pad_as(pad: Any, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Return the pad value as a `dtype`; a float may be rounded to the nearest value.

    Raises:
        ArgumentError: `dtype` does not hold it.
    """
    if dtype.names is not None:
        parts = np.zeros((), dtype)
        for name in dtype.names:
            parts[name] = pad_as(pad, dtype[name].base, f"{where}.{name}")
        return parts
    kept = _number_as(pad, dtype) if dtype.kind in "biufc" else _as_kind(pad, dtype)
    if kept is None:
        raise _pad_changes(pad, dtype, where)
    return kept


def pad_for_tensors(pad: Any, dtype: Any, where: str) -> Any:
    """Return the pad value as a number that `dtype`, one of torch, holds; raises as `pad_as`."""
    name = str(dtype).removeprefix("torch.")
    if hasattr(np, name):
        return pad_as(pad, np.dtype(name), where).item()
    plain = _plain(pad)  # bfloat16 and other dtypes that numpy does not have
    if plain is None or (plain.imag and not dtype.is_complex):
        raise _pad_changes(pad, name, where)
    torch: Any = sys.modules["torch"]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    given = plain if dtype.is_complex else plain.real
    try:
        kept = torch.tensor(given, dtype=wide).to(dtype).to(wide).item()
    except (OverflowError, RuntimeError):
        raise _pad_changes(pad, name, where) from None
    if not _is_kept(plain, kept):
        raise _pad_changes(pad, name, where)
    return given


def _pad_changes(pad: Any, dtype: object, where: str) -> ArgumentError:
    return ArgumentError(
        f"{where}: pad must be a value of {dtype}, the samples' dtype, got {pad!r}; convert the "
        "samples to a dtype that holds it"
    )


def _as_kind(pad: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return a date, a duration or a text as a dtype of its kind; None where it changes."""
    given = np.asarray(pad)
    if given.dtype.kind != dtype.kind or _lacks_unit(given, dtype):
        return None
    kept = given.astype(dtype)
    is_same = kept.astype(given.dtype) == given
    return kept if is_same or (dtype.kind in "mM" and np.isnat(given)) else None


def _number_as(pad: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return a number as a dtype of numbers; None where it changes."""
    plain = _plain(pad)
    if plain is None or (plain.imag and dtype.kind != "c"):
        return None
    real = plain if dtype.kind == "c" else plain.real
    try:
        with np.errstate(all="ignore"):
            kept = np.array(int(real) if dtype.kind in "biu" else real, dtype)
        return kept if _is_kept(plain, kept.item()) else None
    except (OverflowError, ValueError):  # out of range, or an integer that is not finite
        return None


def _plain(pad: Any) -> Any:
    """Return a number of Python; None for what is none, as a date."""
    plain = pad.item() if isinstance(pad, np.generic) else pad
    plain = float(plain) if isinstance(plain, np.floating) else plain
    plain = complex(plain) if isinstance(plain, np.complexfloating) else plain
    is_time = isinstance(pad, np.timedelta64 | np.datetime64)
    return plain if isinstance(plain, int | float | complex) and not is_time else None


def _is_kept(number: Any, kept: Any) -> bool:
    """Return whether a number is still there: integers exactly, others but for rounding."""
    if isinstance(number, int) or isinstance(kept, int):
        return bool(number == kept)
    parts = ((number.real, kept.real), (number.imag, kept.imag))
    return all(
        one == other
        or (math.isfinite(other) and other != 0)
        or (math.isnan(one) and math.isnan(other))
        for one, other in parts
    )


# -- Samples of several dtypes ---------------------------------------------------------------------
def refuse_changes(arrays: Iterable[NDArray[Any]], common: np.dtype[Any], where: str) -> None:
    """Refuse arrays with values that their common dtype does not hold.

    Raises:
        ArgumentError: dates out of its range, or integers that it rounds.
    """
    for array in arrays:
        if array.dtype == common:
            continue
        if common.kind in "mM":
            _refuse_other_times(array, common, where)
        elif common.kind in "fc" and array.dtype.kind in "iu":
            _refuse_rounded(array, common, where)


def _lacks_unit(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether times without a unit would get that of `dtype`."""
    if dtype.kind not in "mM" or array.dtype == dtype:
        return False
    return np.datetime_data(array.dtype)[0] == "generic" and not np.isnat(array).all()


def _refuse_other_times(array: NDArray[Any], common: np.dtype[Any], where: str) -> None:
    changed = array.astype(common).astype(array.dtype) != array
    changed &= ~np.isnat(array)
    if changed.any() or _lacks_unit(array, common):
        value = array[changed].flat[0] if changed.any() else array.flat[0]
        raise ArgumentError(
            f"{where}: dates and durations must have one unit that holds all of them to be "
            f"stacked, got {value!s} ({array.dtype}) beside {common}; {_ALIKE}"
        )


def _refuse_rounded(array: NDArray[Any], common: np.dtype[Any], where: str) -> None:
    exact = 1 << (np.finfo(common).nmant + 1)
    if np.iinfo(array.dtype).max <= exact:
        return
    large = array[(array > exact) | (array < -exact)]
    with np.errstate(all="ignore"):
        kept = large.astype(common).real.tolist()
    refuse_rounded(large.tolist(), kept, common, where)


def refuse_rounded(numbers: Sequence[Any], kept: Sequence[Any], common: object, where: str) -> None:
    """Refuse integers of which `kept` are not the same; other numbers are not looked at."""
    for number, one in zip(numbers, kept, strict=True):
        if isinstance(number, int | np.integer) and not _is_kept(int(number), one):
            raise ArgumentError(
                f"{where}: integers must be exact in {common} to be stacked with other numbers, "
                f"got {number}; {_ALIKE}"
            )


def tensor_as(tensor: Any, dtype: Any, where: str) -> Any:
    """Return a tensor as a dtype of torch that holds all its values.

    Raises:
        ArgumentError: it rounds integers, or is too narrow.
    """
    torch: Any = sys.modules["torch"]
    cast = tensor.to(dtype)
    floats = dtype.is_floating_point or dtype.is_complex
    if cast is not tensor and tensor.layout == torch.sparse_coo:
        tensor_as(tensor.coalesce().values(), dtype, where)
        return cast
    if cast is tensor or not floats or tensor.dtype == torch.bool or tensor.is_complex():
        return cast
    name = str(dtype).removeprefix("torch.")
    if not tensor.dtype.is_floating_point:
        wide = tensor.long()
        kept = (cast.real if dtype.is_complex else cast).double()
        changed = (kept != wide.double()) | (wide.double().long() != wide)
        if changed.any():
            refuse_rounded([int(wide[changed][0])], [math.nan], name, where)
    elif not dtype.is_complex and _may_overflow(tensor, dtype):
        over = torch.isinf(cast) & ~torch.isinf(tensor)
        if over.any():
            raise too_narrow(tensor[over].flatten()[0].item(), name, where)
    return cast


def _may_overflow(tensor: Any, dtype: Any) -> bool:
    """Return whether a float exceeds the range of `dtype`; six times as fast as a search for it."""
    torch: Any = sys.modules["torch"]
    most = torch.finfo(dtype).max
    if torch.finfo(tensor.dtype).max <= most or not tensor.numel():
        return False
    low, high = torch.aminmax(tensor)
    return not (-most <= low.item() and high.item() <= most)  # a NaN hides the others


# -- The dtype that was asked for ------------------------------------------------------------------
def floats_as(array: NDArray[Any], dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Return floats as another dtype of floats; values are rounded, but none is too large.

    Raises:
        ArgumentError: one is.
    """
    try:
        with np.errstate(all="ignore", over="raise"):
            return array.astype(dtype, copy=False)
    except FloatingPointError:
        raise overflow([array], dtype, where) from None


def overflow(arrays: Iterable[NDArray[Any]], dtype: np.dtype[Any], where: str) -> ArgumentError:
    """Return the error that names a value for which `dtype` is too narrow."""
    for array in arrays:
        with np.errstate(all="ignore"):
            over = np.isinf(array.astype(dtype)) & np.isfinite(array)
        if over.any():
            return too_narrow(array[over].flat[0], dtype, where)
    return too_narrow("a larger value", dtype, where)


def too_narrow(value: object, dtype: object, where: str) -> ArgumentError:
    """Return the error for a value that overflows."""
    return ArgumentError(
        f"{where}: every value must be in the range of {dtype}, the batch's dtype, got {value!s}; "
        "give a wider dtype, or scale the samples before"
    )
