"""Checks of arguments: what they must be, and a refusal that names the value."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError

Function = Callable[..., Any]


def whole(
    what: str, value: object, *, minimum: int, maximum: int | None = None, unit: str = ""
) -> int:
    """Check that `value` is an integer in a range, and return it as an int.

    Raises:
        ArgumentError: it is not; the message starts with `what`.
    """
    number = as_int(value)
    if number is None or number < minimum or (maximum is not None and number > maximum):
        rule = f"in [{minimum}, {maximum}]" if maximum is not None else f"of at least {minimum}"
        raise ArgumentError(
            f"{what} must be an int {rule}{' ' + unit if unit else ''}, got {value!r}"
        )
    return number


def as_int(value: object) -> int | None:
    """Return any integer (`__index__`, not a bool) as an int; None for everything else."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def as_float(value: object) -> float:
    """Return any real number (not a bool) as a float; NaN for everything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def seconds(what: str, value: object, *, zero: bool = False) -> float:
    """Check that `value` is a finite, positive time [s]."""
    number = as_float(value)
    if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
        rule = "of at least 0" if zero else "above 0"
        raise ArgumentError(f"{what} must be a number {rule} [s], got {value!r}")
    return number


def flag(what: str, value: object) -> bool:
    """Check that `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(f"{what} must be True or False, got {value!r}")
    return bool(value)


def function(what: str, value: object) -> Function:
    """Check that `value` can be called."""
    if not callable(value):
        raise ArgumentTypeError(f"{what} must be a function, got {value!r}")
    return value
