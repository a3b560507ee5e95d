"""Settings: what `--set name=value` asks for."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from .terminal import BadUsageError


def settings(given: Iterable[str]) -> dict[str, Any]:
    """Read `name=value` pairs; of a name that is given twice, the last one counts.

    A value is a Python literal, else the text as it stands.

    Raises:
        BadUsageError: no name, or no `=`.

    Examples:
        >>> settings(["size=64", "root=data/train", "crop=(8, 8)", "label='3'"])
        {'size': 64, 'root': 'data/train', 'crop': (8, 8), 'label': '3'}
    """
    return dict(_setting(text) for text in given)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadUsageError(f"--set must be name=value, got {text!r}")
    return name.strip(), _value(value.strip())


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
