"""Terminal: what the command says, where, and how it ends; text from outside is made harmless."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from typing import TextIO

from ..errors import ArgumentError, NbpipeError
from ..export.secrets import scrubbed

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


def printable(text: str) -> str:
    r"""Return text from outside in one line, without what a terminal would obey.

    Examples:
        >>> printable("plain, é\x1b[2J\n")
        'plain, é\\x1b[2J\\n'
    """
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def printable_lines(text: str) -> str:
    """Return text of several lines, without colours and what else a terminal would obey."""
    plain = _COLOURS.sub("", text).expandtabs(4)
    return "\n".join(printable(line) for line in plain.splitlines())


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def say(text: str) -> None:
    """Write what was asked for, to stdout."""
    _write(sys.stdout, text)


def tell(text: str) -> None:
    """Write how it goes and what went wrong, to stderr."""
    _write(sys.stderr, text)


def _write(out: TextIO | None, text: str) -> None:
    """Write a text without secrets."""
    if out is not None:  # there is none in a program without a console
        out.write(f"{scrubbed(text)}\n")
        out.flush()


def write_any_character() -> None:
    """Write characters that the terminal does not know as escapes, from now on."""
    for out in (sys.stdout, sys.stderr):
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="backslashreplace")


def is_live() -> bool:
    """Tell whether lines on stderr can be drawn again: on a terminal, where rich is installed."""
    live = sys.stderr is not None and sys.stderr.isatty()
    return live and importlib.util.find_spec("rich") is not None
