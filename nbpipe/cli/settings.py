"""Settings: what `--set name=value` asks for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from ..export.held import texts_named_as_secrets
from ..export.secrets import is_secret_name, secrets_held, secrets_in_text
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


def secrets_of(arguments: Sequence[str]) -> Iterator[str]:
    """Return the values on a command line that are secrets by their names.

    Examples:
        >>> list(secrets_of(["run", "l.py", "--set", "password=swordfish", "--token", "abc"]))
        ['swordfish']
    """
    for text in arguments:
        yield from (*secrets_held(text), *(secret for _, secret in secrets_in_text(text)))
        name, equals, value = text.partition("=")
        if equals:
            yield from texts_named_as_secrets(name.strip().lstrip("-"), _value(value.strip()))
    for name, value in pairwise(arguments):
        if "=" not in name and is_secret_name(name.lstrip("-")):
            yield value


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
