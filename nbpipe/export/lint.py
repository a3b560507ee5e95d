"""Lint: what ruff says of a module, under rules that no configuration changes.

User text is not rewritten: what ruff does not like there is excused where it stands.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# ruff's own default selection grew more than once; a module is not to fail by it.
COMMAND = ("check", "--isolated", "--select", "E4,E7,E9,F,I")
_LIMIT_S = 30.0
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # as ruff and Python count them
_NOQA = re.compile(r"#\s*noqa\s*:\s*[A-Z]+\d+(?:[\s,]+[A-Z]+\d+)*", flags=re.IGNORECASE)
_UNKNOWN = re.compile(r"Undefined name `(\w+)`")
_OURS = re.compile(r"I\d+")  # the order of imports, which export itself writes


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that ruff found.

    Attributes:
        code: its rule, as "E731"; empty for a syntax error.
        line: where it is, from 1.
        message: ruff's words.
        fixable: ruff knows a fix that keeps the meaning.
        comment_line: the line on which a comment excuses it: the last one of its statement
            where that spans lines.
    """

    code: str
    line: int
    message: str
    fixable: bool = False
    comment_line: int = 0

    @property
    def excusable(self) -> bool:
        """It lies in the user's text; another one is an error of export."""
        return bool(self.code) and not _OURS.fullmatch(self.code)


def linted(text: str, filename: str, *, folder: str | None = None) -> list[Finding]:
    """Have ruff check a module.

    Args:
        text: the module.
        filename: its name.
        folder: where it will stand: modules that lie there are the user's own.

    Returns:
        What ruff found, in order; nothing where ruff is not installed.
    """
    ruff = _find_ruff()
    if ruff is None:
        return []
    options = ("--no-cache", "--output-format", "json", "--stdin-filename", filename, "-")
    try:
        done = subprocess.run(  # noqa: S603  ruff, with options that stand here
            [ruff, *COMMAND, *options],
            input=text.encode("utf-8"),
            capture_output=True,
            cwd=folder,
            timeout=_LIMIT_S,
            check=False,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):  # it does not work here
        return []
    return [_finding(entry) for entry in found]


def unknown_names(findings: Iterable[Finding]) -> frozenset[str]:
    """Give the names that ruff knows no binding of."""
    matches = (_UNKNOWN.match(one.message) for one in findings if one.code == "F821")
    return frozenset(match[1] for match in matches if match is not None)


def with_noqa(text: str, findings: Iterable[Finding]) -> str:
    """Excuse findings with comments, and change nothing else; the order of imports is not excused.

    Source: ruff's "Error suppression": a comment belongs on the last line of a string or of
    lines that are continued.
    """
    wanted: dict[int, dict[str, None]] = {}
    for finding in findings:
        if finding.excusable:
            row = finding.comment_line or finding.line
            wanted.setdefault(row, {})[finding.code] = None
    lines = _LINE.findall(text)
    columns = _comment_columns(lines)
    for row, codes in wanted.items():
        lines[row - 1] = _excused(lines[row - 1], columns.get(row), sorted(codes))
    return "".join(lines)


def _excused(line: str, column: int | None, codes: Sequence[str]) -> str:
    """Add codes to a line, whose comment begins at a column."""
    body = line.rstrip("\r\n")
    ending, listed = line[len(body) :], ", ".join(codes)
    known = None if column is None else _NOQA.search(body, column)
    if known is not None:
        return f"{body[: known.end()]}, {listed}{body[known.end() :]}{ending}"
    return f"{body.rstrip()}  # noqa: {listed}{ending}"


def _comment_columns(lines: list[str]) -> dict[int, int]:
    """Give where the comment of each line begins."""
    columns: dict[int, int] = {}
    with contextlib.suppress(tokenize.TokenError, SyntaxError):  # what was read so far counts
        for token in tokenize.generate_tokens(iter(lines).__next__):
            if token.type == tokenize.COMMENT:
                columns[token.start[0]] = token.start[1]
    return columns


def _finding(entry: dict[str, Any]) -> Finding:
    line = entry["location"]["row"]
    code = entry["code"] or ""
    return Finding(
        code=code if re.fullmatch(r"[A-Z]+\d+", code) else "",
        line=line,
        message=entry["message"],
        fixable=(entry.get("fix") or {}).get("applicability") == "safe",
        comment_line=entry.get("noqa_row") or line,
    )


def _find_ruff() -> str | None:
    """Give ruff's program: that of its package, one beside Python, or any."""
    for module in ("ruff", "ruff.__main__"):
        with contextlib.suppress(Exception):  # not installed, another version, no program in it
            return str(importlib.import_module(module).find_ruff_bin())
    beside = str(Path(sys.executable).parent) if sys.executable else ""
    return shutil.which("ruff", path=beside) or shutil.which("ruff")
