"""Retune: new defaults of `build_pipeline` in a file that was edited, and nothing else of it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import accumulate

BUILD = "build_pipeline"

_MARK = "\ufeff"  # a byte order mark, which the parser does not take
_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # what the parser counts as lines


@dataclass(frozen=True, slots=True)
class Moved:
    """A parameter whose default moved.

    Attributes:
        name: name of the parameter.
        old: its default before, as source.
        new: its default after, as source.
    """

    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class _Default:
    """A default as it stands in a text: bytes `start` to `end`, and what they mean."""

    start: int
    end: int
    source: str
    meaning: str


def moved(old_text: str, new_text: str) -> tuple[Moved, ...] | None:
    """List the parameters whose defaults differ between two texts of a module.

    Returns:
        The parameters in their order, or None where the texts differ in more than that.
    """
    old, new = _defaults(old_text), _defaults(new_text)
    if old is None or new is None or list(old) != list(new):
        return None
    if _without(old_text, old) != _without(new_text, new):
        return None
    pairs = [(name, old[name].source, new[name].source) for name in new]
    return tuple(Moved(*pair) for pair in pairs if pair[1] != pair[2])


def retuned(old_text: str, new_text: str, disk_text: str) -> str | None:
    """Write the defaults that moved between two texts into a third, which the user edited.

    Args:
        old_text: what export wrote last.
        new_text: what it would write now.
        disk_text: the file as it is.

    Returns:
        The third text with those defaults in it, the same to the last byte elsewhere. None where
        the first two differ in more, a parameter that moved is gone, or the user moved it, too.
    """
    changes, found = moved(old_text, new_text), _defaults(disk_text)
    if changes is None or (found is None and changes):
        return None
    spans: list[tuple[_Default, str]] = []
    for change in changes:
        default = (found or {}).get(change.name)
        if default is None or default.meaning not in map(_meaning, (change.old, change.new)):
            return None
        if default.meaning != _meaning(change.new):
            spans.append((default, change.new))
    return _replaced(disk_text, spans)


def _without(text: str, defaults: dict[str, _Default]) -> str:
    """Give a text with its defaults blanked out."""
    return _replaced(text, [(default, "") for default in defaults.values()])


def _replaced(text: str, spans: list[tuple[_Default, str]]) -> str:
    data = text.encode("utf-8")
    for default, source in sorted(spans, key=lambda span: -span[0].start):
        data = data[: default.start] + source.encode("utf-8") + data[default.end :]
    return data.decode("utf-8")


def _meaning(source: str) -> str:
    return ast.dump(ast.parse(source, mode="eval").body)


def _defaults(text: str) -> dict[str, _Default] | None:
    """Find the defaults of the one function `build_pipeline`, by the names of its parameters."""
    arguments = _parameters(text.removeprefix(_MARK))
    if arguments is None:
        return None
    data = text.encode("utf-8")
    offset = len(_MARK.encode()) if text.startswith(_MARK) else 0
    lengths = (len(line) for line in _LINES.findall(data[offset:]))
    starts = list(accumulate(lengths, initial=offset))
    plain = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    pairs += [
        (argument, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is not None
    ]
    return {argument.arg: _default(default, data, starts) for argument, default in pairs}


def _default(node: ast.expr, data: bytes, starts: list[int]) -> _Default:
    last = node.lineno if node.end_lineno is None else node.end_lineno
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[last - 1] + (node.end_col_offset or 0)
    return _Default(start, end, data[start:end].decode("utf-8"), ast.dump(node))


def _parameters(text: str) -> ast.arguments | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the file is being edited
        return None
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == BUILD]
    return found[0].args if len(found) == 1 else None
