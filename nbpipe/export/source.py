"""Source text: its lines as Python counts them, and what IPython makes of magic lines."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

# -- Lines of a source text as Python's tokenizer counts them; U+2028 and form feeds end no line ---
_NEWLINE = re.compile(r"\r\n|\r|\n")
# Comments for a program: of the shell, of the encoding, of cells.
_MARK = re.compile(r"#!|#\||# ?%%|#.*?coding[:=][ \t]*[-\w.]+")
_OPENS = frozenset({"FSTRING_START", "TSTRING_START"})  # from Python 3.12, and 3.14
_CLOSES = frozenset({"FSTRING_END", "TSTRING_END"})


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without their ends."""
    return _NEWLINE.split(text)


def column(line: str, offset: int) -> int:
    """Return the index of a character from its offset in UTF-8 [bytes], as trees count."""
    if line.isascii():
        return offset
    return len(line.encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "surrogatepass"))


def indent_of(line: str) -> str:
    """Return the white space that a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t\f"))]


class Lines:
    """A text, its lines, and what its tokens say of them. Lines are counted from 1.

    Args:
        text: source that Python can parse.
    """

    def __init__(self, text: str) -> None:
        self.lines = split_lines(text)
        self.tokens = tuple(_tokens(self.lines))
        self.comments = frozenset(self._comments())
        self.in_string = frozenset(self._in_string())

    def __getitem__(self, number: int) -> str:
        return self.lines[number - 1]

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, number: int, offset: int) -> int:
        """Return the index of a character in a line from its offset in UTF-8 [bytes]."""
        return column(self[number], offset)

    def block_above(self, number: int, indent: str) -> int:
        """Return the first line of the comments that stand directly above a line, or the line."""
        while number - 1 in self.comments and indent_of(self[number - 1]) == indent:
            number -= 1
        return number

    def tail(self, number: int, indent: str) -> int:
        """Return the last line of the comments after a block that are indented deeper than it."""
        last = number
        for below in range(number + 1, len(self) + 1):
            line = self[below]
            if below in self.comments and len(indent_of(line)) > len(indent):
                last = below
            elif line.strip():
                break
        return last

    def _comments(self) -> Iterator[int]:
        for token in self.tokens:
            row, start = token.start
            alone = token.type == tokenize.COMMENT and not self[row][:start].strip()
            if alone and not _MARK.match(token.string):
                yield row

    def _in_string(self) -> Iterator[int]:
        opened: list[int] = []
        for token in self.tokens:
            name = tokenize.tok_name[token.type]
            if name in _OPENS:
                opened.append(token.start[0])
            elif name in _CLOSES:
                yield from range(opened.pop() + 1, token.end[0] + 1)
            elif name == "STRING":
                yield from range(token.start[0] + 1, token.end[0] + 1)


@lru_cache(maxsize=256)
def lines_of(text: str) -> Lines:
    """Return the lines of a text; those of recent ones are kept."""
    return Lines(text)


def _tokens(lines: list[str]) -> Iterator[tokenize.TokenInfo]:
    source = io.StringIO("\n".join(lines) + "\n", newline="\n")
    try:
        yield from tokenize.generate_tokens(source.readline)
    except (tokenize.TokenError, SyntaxError):  # what came before is true all the same
        return


def span_of(data: bytes, node: ast.expr) -> tuple[int, int]:
    """Return where an expression begins and ends in a source text [bytes].

    Args:
        data: the text in UTF-8.
        node: a part of its tree.
    """
    starts = [0]
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    last = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    return starts[node.lineno - 1] + node.col_offset, last


# -- What IPython makes of magic and shell lines, and the Python that stands in them ---------------
# They execute their body in the user's namespace.
_EXECUTING = frozenset({"time", "capture", "prun"})
_CALLS = frozenset({"system", "getoutput", "run_line_magic", "run_cell_magic", "magic"})
_OPTIONS = ("--no-raise-error",)  # of `%time`


@dataclass(frozen=True, slots=True)
class Body:
    """What stands in a cell below a line such as `%%time`.

    Attributes:
        text: it, as IPython compiles it.
        binds: it is executed in the user's namespace.
    """

    text: str
    binds: bool


def body_of(tree: ast.Module) -> Body | None:
    """Return the body of a cell that is one cell magic; None for other cells."""
    if len(tree.body) != 1:
        return None
    found = _arguments(tree.body[0], "run_cell_magic")
    if found is None or len(found) != 3:  # noqa: PLR2004  name, line, body
        return None
    return Body(transformed(found[2]), found[0] in _EXECUTING)


def line_of(node: ast.stmt) -> str | None:
    """Return the statement that `%time statement` executes; None for other statements."""
    found = _arguments(node, "run_line_magic")
    if found is None or len(found) < 2 or found[0] not in _EXECUTING:  # noqa: PLR2004
        return None
    line = found[1].strip()
    for option in _OPTIONS:
        line = line.removeprefix(option).strip()
    return transformed(line)


def shell_calls(tree: ast.AST) -> frozenset[int]:
    """Return the lines that call IPython for a `!` or `%` line."""
    return frozenset(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _method(node) in _CALLS
    )


def shell() -> Any:
    """Return IPython's shell, or None where there is none; IPython is not imported."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get_ipython is None else get_ipython()


def transformed(text: str) -> str:
    """Return what IPython makes of a text."""
    ip = shell()
    if ip is None:
        return text
    try:
        return str(ip.transform_cell(text))
    except Exception:  # noqa: BLE001  transformers of the user's may raise anything
        return text


def _arguments(node: ast.stmt, method: str) -> list[str] | None:
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or _method(call) != method:
        return None
    values = [one.value for one in call.args if isinstance(one, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


def _method(call: ast.Call) -> str | None:
    """Return `m` of `get_ipython().m(...)`."""
    match call.func:
        case ast.Attribute(ast.Call(ast.Name("get_ipython")), attr):
            return attr
    return None
