"""Terminal: the command's input and output; text from outside is made harmless."""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TextIO

from ..errors import ArgumentError, NbpipeError
from ..export.reachable import texts_named_as_secrets
from ..export.secrets import is_secret_name, redacted, secrets_held, secrets_in_text
from ..show.terminal import printable

DONE, FAILED, BAD_USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class BadUsageError(ArgumentError):
    """The command was given something that it cannot take."""


class FailedError(NbpipeError):
    """What was asked for did not work.

    Args:
        message: what, in a line or a few.
        details: what `--verbose` shows beside it, such as a traceback.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def printable_lines(text: str) -> str:
    """Return text of several lines, without colours and what else a terminal would obey."""
    plain = _COLOURS.sub("", text).expandtabs(4)
    return "\n".join(printable(line) for line in plain.splitlines())


def emit(text: str) -> None:
    """Write what was asked for, to stdout."""
    _write(sys.stdout, text)


def log(text: str) -> None:
    """Write how it goes and what went wrong, to stderr."""
    _write(sys.stderr, text)


def _write(out: TextIO | None, text: str) -> None:
    """Write a text without secrets."""
    if out is not None:  # there is none in a program without a console
        out.write(f"{redacted(text)}\n")
        out.flush()


def write_any_character() -> None:
    """Write characters that the terminal does not know as escapes, from now on."""
    for out in (sys.stdout, sys.stderr):
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="backslashreplace")


def is_live() -> bool:
    """Return whether lines on stderr can be drawn again: on a terminal, where rich is installed."""
    live = sys.stderr is not None and sys.stderr.isatty()
    return live and importlib.util.find_spec("rich") is not None


# -- Settings: what `--set name=value` asks for ----------------------------------------------------
def settings(given: Iterable[str]) -> dict[str, Any]:
    """Read `name=value` pairs; of a name that is given twice, the last one counts.

    A value is a Python literal, else the text as it is.

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
