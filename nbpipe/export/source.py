"""Source: text as Python reads it: its lines, its trees, the places in it; and ruff."""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

# -- Lines as Python's tokenizer counts them; U+2028 and form feeds end no line --------------------
# Comments for a program: of the shell, of the encoding, of cells.
_MARK = re.compile(r"#!|#\||# ?%%|#.*?coding[:=][ \t]*[-\w.]+")
_OPENS = frozenset({"FSTRING_START", "TSTRING_START"})  # from Python 3.12, and 3.14
_CLOSES = frozenset({"FSTRING_END", "TSTRING_END"})


def indent_of(line: str) -> str:
    """Return the white space that a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t\f"))]


class Lines:
    """A text, its lines, and what its tokens say of them. Lines are counted from 1."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.tokens = tuple(_tokens(self.lines))
        self.comments = frozenset(self._comments())
        self.in_string = frozenset(self._in_string())

    def __getitem__(self, number: int) -> str:
        return self.lines[number - 1]

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, number: int, offset: int) -> int:
        """Return the index of a character in a line from its offset in UTF-8 [bytes]."""
        data = self[number].encode("utf-8", "surrogatepass")
        return len(data[:offset].decode("utf-8", "surrogatepass"))

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
    except (tokenize.TokenError, SyntaxError):  # what came before is still true
        return


# -- Trees, and the places of expressions in a text ------------------------------------------------
Function = ast.FunctionDef | ast.AsyncFunctionDef


def tree_of(text: str) -> ast.Module | None:
    """Return the tree of a text, without warnings of what is in it; None where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def last_name(node: ast.AST | None) -> str:
    """Return the name of a variable, or the one behind the last dot; empty for anything else."""
    return str(getattr(node, "id", getattr(node, "attr", "")))


def defaults_in(node: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    """Return the parameters of a function that have a default, each with it."""
    plain = [*node.posonlyargs, *node.args]
    pairs = zip(plain[len(plain) - len(node.defaults) :], node.defaults, strict=True)
    named = zip(node.kwonlyargs, node.kw_defaults, strict=True)
    return ((one.arg, value) for one, value in (*pairs, *named) if value is not None)


def span_of(data: bytes, node: ast.expr | ast.keyword | ast.stmt) -> tuple[int, int]:
    """Return where an expression, or an argument, begins and ends in a source text [bytes]."""
    starts = list(accumulate(map(len, data.splitlines(keepends=True)), initial=0))
    last = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    return starts[node.lineno - 1] + node.col_offset, last


def edited(data: bytes, edits: Iterable[tuple[int, int, str]]) -> bytes:
    """Return a text in which others take the place of some spans, none of them inside another."""
    for first, last, new in sorted(edits, reverse=True):
        data = data[:first] + new.encode() + data[last:]
    return data


def replaced(text: str, parts: Iterable[tuple[ast.expr, str]]) -> str:
    """Return a source text in which others take the place of some expressions."""
    data = text.encode()
    return edited(data, ((*span_of(data, node), new) for node, new in parts)).decode()


# -- ruff: no configuration of the user's changes what it does -------------------------------------
_LIMIT_S = 30.0


def run_ruff(command: str, text: str, *options: str, file: str = "-") -> str | None:
    """Return what a command of ruff writes; None where ruff is not installed, or fails."""
    ruff = _find_ruff()
    if ruff is None:
        return None
    line = [ruff, command, "--isolated", "--no-cache", "--target-version", "py311", *options, file]
    try:
        done = subprocess.run(  # noqa: S603  ruff, with options that stand here
            line, input=text.encode("utf-8"), capture_output=True, timeout=_LIMIT_S, check=False
        )
        return done.stdout.decode("utf-8") or None
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):  # it does not work here
        return None


def _find_ruff() -> str | None:
    """Return ruff's program: that of its package, one beside Python, or any."""
    beside = str(Path(sys.executable).parent) if sys.executable else ""
    return shutil.which("ruff", path=beside) or shutil.which("ruff")
