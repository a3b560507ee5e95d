"""Functions of stages that were edited, and their cells run, since the pipeline was built."""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable
from types import FunctionType, MethodType
from typing import Any

from ..base.digest import value_digest
from ..base.format import shortened
from ..ops.stage import CodeLocation, Stage

PlaceName = Callable[[str], tuple[str, str] | None]  # of a file of code: ("Cell", "In[4]")


def edited_lines(stages: Iterable[Stage], place_name: PlaceName) -> list[str]:
    """Return one line for each function that the notebook has another of by now.

    Args:
        stages: of a run that starts.
        place_name: tells which cell code came from.
    """
    lines: dict[str, str] = {}
    for stage in stages:
        name = _edited(stage.fn)
        if name is not None and name not in lines:
            lines[name] = (
                f"nbpipe: {name} was edited since this pipeline was built, which calls it as it "
                f"was; {_way_out(stage.made_at, place_name)}"
            )
    return list(lines.values())


def _edited(fn: Any) -> str | None:
    """Return the name of a stage's function, or its class, where the notebook has a newer one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, MethodType):
        fn = fn.__self__
    found = fn if isinstance(fn, FunctionType | type) else type(fn)
    if found.__module__ != "__main__" or "." in found.__qualname__:
        return None
    now = getattr(sys.modules["__main__"], found.__qualname__, None)
    same_kind = isinstance(now, FunctionType if isinstance(found, FunctionType) else type)
    if not same_kind or now is found or _digests(now) == _digests(found):
        return None
    return str(found.__qualname__)


def _digests(found: Any) -> list[str]:
    """Return what the code of a function or class is known by, wherever it stands."""
    parts = [found] if isinstance(found, FunctionType) else vars(found).values()
    return [value_digest(inspect.unwrap(part)) for part in parts if isinstance(part, FunctionType)]


def _way_out(made_at: CodeLocation | None, place_name: PlaceName) -> str:
    """Tell which cell makes the stage again."""
    if made_at is None:
        return "build it again"
    code, offset = made_at.code, made_at.offset
    line = next((n for start, end, n in code.co_lines() if start <= offset < end), None)
    place = place_name(code.co_filename)
    if line is None or place is None:
        return "build it again"
    text = shortened(linecache.getline(code.co_filename, line))
    return f"run {place[1]} again (line {line}: {text}), and what builds on it"
