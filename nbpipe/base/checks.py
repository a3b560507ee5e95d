"""Checks of arguments: what they must be, and a refusal that names the value."""

from __future__ import annotations

import dis
import functools
import inspect
import math
import numbers
import operator
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError

Function = Callable[..., Any]


def integer(
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


def boolean(what: str, value: object) -> bool:
    """Check that `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(f"{what} must be True or False, got {value!r}")
    return bool(value)


def function(what: str, value: object) -> Function:
    """Check that `value` can be called."""
    if not callable(value):
        raise ArgumentTypeError(f"{what} must be a function, got {value!r}")
    return value


def plain_function(what: str, value: object) -> Function:
    """Check that `value` can be called, and is no async function."""
    if is_coroutine_function(function(what, value)) or is_async_generator_function(value):
        raise ArgumentTypeError(
            f"{what} must be a plain function, got an async one: nothing awaits what it gives; "
            "do the async part in a map with the `async def` before"
        )
    return function(what, value)


# -- Tables: Python iterates their columns, where items are rows -----------------------------------
_OF_TABLES = ("iloc", "iter_rows", "to_pandas", "compute")  # pandas, polars, pyarrow, dask


def refuse_table(what: str, items: Any, give: str = "{}") -> None:
    """Refuse a table where items are iterated.

    Args:
        what: where it was given and "must be"; the message starts with this.
        items: may be a table.
        give: how its rows are given instead, as "source({})".

    Raises:
        ArgumentTypeError: it is a table.
    """
    kind = type(items)  # the object itself may run code of its own
    if not hasattr(kind, "columns") or not any(hasattr(kind, name) for name in _OF_TABLES):
        return
    if hasattr(kind, "compute"):  # how many rows there are is known later
        ways: tuple[str, ...] = (give.format("df.compute().to_dict('records')"),)
    elif hasattr(kind, "to_pylist"):
        ways = give.format("table.to_pylist()"), give.format("range(table.num_rows)")
    else:
        rows = " or ".join(map(give.format, ("df.to_dict('records')", "df.to_dicts()")))
        ways = rows, give.format("range(len(df))")
    raise ArgumentTypeError(
        f"{what} a collection of items, got a {kind.__name__}; for its rows give "
        + ", for row numbers ".join(ways)
    )


# -- Async functions and what a call of one gives --------------------------------------------------
_NEVER_AWAITED = (Coroutine, AsyncGenerator)
# Known by their type alone, as asking an abstract class takes ten times as long.
_NUMBERS = {bool, int, float, complex, np.bool_, np.int64, np.float32, np.float64}
PLAIN = frozenset({*_NUMBERS, str, bytes, type(None), list, tuple, dict, set, np.ndarray})
_CALLS = frozenset(number for name, number in dis.opmap.items() if "CALL" in name)


def is_coroutine_function(fn: object) -> bool:
    """Return whether calling `fn` gives an awaitable: `async def`, also inside a partial."""
    return _kind_of_function(fn, inspect.iscoroutinefunction)


def is_async_generator_function(fn: object) -> bool:
    """Return whether calling `fn` gives an async generator."""
    return _kind_of_function(fn, inspect.isasyncgenfunction)


def _kind_of_function(fn: object, test: Callable[[Any], bool]) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    method = getattr(type(fn), "__call__", None)  # noqa: B004  the method itself is looked at
    return test(fn) or test(method)


def may_give_coroutine(fn: object) -> bool:
    """Return whether a call of `fn` may make a coroutine; code that calls nothing cannot."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    return code is None or not _CALLS.isdisjoint(code.co_code[::2])


def is_unawaited(value: object) -> bool:
    """Return whether a value is a coroutine or an async generator."""
    kind = type(value)
    return kind not in PLAIN and issubclass(kind, _NEVER_AWAITED)


def holds_coroutine(values: Iterable[object]) -> bool:
    """Return whether one of these values is a coroutine; takes some nanoseconds for each."""
    kinds = set(map(type, values))
    return not kinds <= PLAIN and any(issubclass(kind, _NEVER_AWAITED) for kind in kinds)


def refuse_coroutine(what: str, value: Any, *, takes_async: bool = False) -> None:
    """Refuse a coroutine that a plain function gave, and close it.

    Args:
        what: gave it; the message starts with this.
        value: what was given.
        takes_async: an `async def` may stand there.

    Raises:
        ArgumentTypeError: it is a coroutine, or an async generator.
    """
    if not is_unawaited(value):
        return
    kind = type(value)
    name, is_coroutine = getattr(value, "__name__", kind.__name__), isinstance(value, Coroutine)
    close_unawaited(value)
    word = "a coroutine" if is_coroutine else "an async generator"
    way = "do the async part in a map with the `async def` before"
    if takes_async:
        instead = "" if is_coroutine else " to flat_map"
        way = f"pass the `async def` itself{instead}, or await it in an `async def`"
    raise ArgumentTypeError(
        f"{what} must give a value, got {word} of {name!r} that nothing awaits; {way}"
    )


def close_unawaited(value: Any) -> None:
    """Close a coroutine that was never begun: Python would warn of it."""
    if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
        value.close()
