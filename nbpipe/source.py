"""source(): the beginning of every pipeline."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from .appending import check_name
from .errors import ArgumentTypeError
from .operations import Source
from .pipeline import Pipeline
from .sampler import IndexPlan
from .stage import Chain, Stage
from .text import shortened

PREFETCH = 16


def source(items: Any, *, name: str = "source", prefetch: int = PREFETCH) -> Pipeline:
    """Begin a pipeline.

    Args:
        items: a sequence or a map-style torch `Dataset` (read by index, one after the other; to
            read by index in parallel, give `range(len(dataset))` and map
            `dataset.__getitem__`), any object that can be iterated again and again, a torch
            `Sampler` or `IterableDataset`, a function without arguments that returns a fresh
            iterator, an async generator function, or another `Pipeline`. An object with a
            method `set_epoch` is told the number of every epoch.
        name: name of the stage.
        prefetch: items read ahead [items], 1 to 65,536; a live knob.

    Raises:
        ArgumentTypeError: a generator object, a str, a mapping, a DataFrame, a set, or an
            object that cannot be iterated; the message gives the way out.
    """
    check_name("source", name)
    inputs: tuple[Chain, ...] = ()
    if isinstance(items, Pipeline):
        spec, inputs = Source(items=None), (items.chain,)
    else:
        _refuse(items)
        plan = IndexPlan.of(items) if _is_indexed(items) else None
        spec = Source(items=items, plan=plan)
    words = frozenset() if prefetch == PREFETCH else frozenset({"prefetch"})
    stage = Stage(spec, name=name, named=True, prefetch=prefetch, inputs=inputs, given=words)
    return Pipeline((stage,))


def _refuse(items: Any) -> None:
    if inspect.isclass(items) and not hasattr(type(items), "__iter__"):
        raise ArgumentTypeError(
            f"source must be a collection or a function, got the class {items.__name__}; "
            "give an instance"
        )
    if isinstance(items, str | bytes | bytearray):
        raise ArgumentTypeError(
            f"source must be a collection of items, got the {type(items).__name__} "
            f"{_short(items)}; for one path write source([path]), for files "
            "source(sorted(Path(folder).glob('*.jpg')))"
        )
    if isinstance(items, Iterator | AsyncIterator) or inspect.isgenerator(items):
        raise ArgumentTypeError(
            "source must be something that can be read again for every epoch, got an "
            f"object of type {type(items).__name__}, which is empty the second time; give the "
            "function that makes it, source(make), or source(list(...))"
        )
    if inspect.iscoroutine(items):
        raise ArgumentTypeError(
            "source must be a collection or a function, got a coroutine object; give the async "
            "generator function itself, without calling it"
        )
    if isinstance(items, Mapping):
        raise ArgumentTypeError(
            f"source must be a collection of items, got a {type(items).__name__}; say which: "
            "source(list(d.items())), source(list(d)) or source(list(d.values()))"
        )
    _refuse_tables(items)
    if getattr(items, "ndim", 1) == 0:
        raise ArgumentTypeError(
            f"source must be a collection of items, got the {type(items).__name__} "
            f"{_short(items)} without dimensions; give source([...])"
        )
    if isinstance(items, set | frozenset):
        raise ArgumentTypeError(
            f"source must have an order that stays, got a {type(items).__name__}; "
            "give source(sorted(items))"
        )
    _refuse_what_cannot_be_read(items)


def _refuse_tables(items: Any) -> None:
    """Refuse what reads by column or by label where one expects rows."""
    if not any(hasattr(items, name) for name in ("iloc", "iter_rows", "to_pandas")):
        return
    if hasattr(items, "columns"):
        raise ArgumentTypeError(
            f"source must be a collection of items, got a {type(items).__name__}; for its rows "
            "give source(df.to_dict('records')) or source(df.to_dicts()), for row numbers "
            "source(range(len(df)))"
        )
    if hasattr(items, "iloc"):
        raise ArgumentTypeError(
            f"source must be a collection of items, got a {type(items).__name__}, which is read "
            "by label; give source(series.tolist())"
        )


def _refuse_what_cannot_be_read(items: Any) -> None:
    kind = type(items)
    if any(hasattr(kind, name) for name in ("__iter__", "__aiter__", "__getitem__")):
        return
    if not callable(items):
        raise ArgumentTypeError(
            f"source must be a collection, a dataset or a function that returns an iterator, "
            f"got {_short(items)}"
        )
    try:
        parameters = inspect.signature(items).parameters.values()
    except (TypeError, ValueError):
        return
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise ArgumentTypeError(
            f"source function must take no arguments, got one that needs {', '.join(needed)}; "
            "use functools.partial"
        )


def _is_indexed(items: Any) -> bool:
    kind = type(items)
    if not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
        return False
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is None or not isinstance(items, torch_data.IterableDataset)


def _short(value: object) -> str:
    return shortened(repr(value))
