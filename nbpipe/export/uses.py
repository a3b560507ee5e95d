"""Uses: who uses what, from the stage down, by which call, under which parameter's name."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import NamedTuple

from ..errors import ExportError
from ..ops.stage import Chain, Stage, addresses
from .cells import Cells, Statement
from .secrets import advice, scrubbed, secrets_in_text


# -- Parameters: what the parameters of `build_pipeline` are called --------------------------------
def identifier(text: str) -> str:
    """Make a name of a variable out of any text, as a stage's name."""
    name = re.sub(r"\W+", "_", re.sub(r"^\W+|\W+$", "", text))
    if name.startswith("__") and name.endswith("__"):  # a method, as __getitem__
        name = name.strip("_")
    name = name or "stage"
    usable = name.isidentifier() and not keyword.iskeyword(name)
    return name if usable else f"stage_{name}"


def stage_words(chain: Chain) -> dict[int, str]:
    """Return what the names of the parameters of each stage begin with, by the stage's id.

    Stages whose names give the same word are numbered, in the order of their addresses.
    """
    words: dict[int, str] = {}
    for stage in addresses(chain).values():
        if id(stage) not in words:
            words[id(stage)] = _free(identifier(stage.name), words.values())
    return words


def _free(word: str, taken: Collection[str]) -> str:
    found, number = word, 2
    while found in taken:
        found, number = f"{word}_{number}", number + 1
    return found


# -- Uses: who uses what, from the stage down, and refusals that tell it ---------------------------
@dataclass(frozen=True, slots=True)
class Use:
    """A link in the chain of use.

    Attributes:
        words: who uses something, as "decode() [In[4]]" or "stage 'decode'".
        by: who uses that, in turn; None at the stage.
    """

    words: str
    by: Use | None = None

    def then(self, words: str) -> Use:
        """Go on to what this one uses."""
        return Use(words, self)

    @property
    def chain(self) -> str:
        """All links, from here up to the stage."""
        return self.words if self.by is None else f"{self.words} <- {self.by.chain}"


def refusal(what: str, use: Use) -> ExportError:
    """Make the error for something that cannot be exported.

    Args:
        what: the culprit and the way out.
        use: who uses it.
    """
    return ExportError(scrubbed(f"{what}\n  used by: {use.chain}"))


def secret_refusal(what: str, use: Use, *, text: str = "", name: str = "") -> ExportError:
    """Make the error for something that holds a secret.

    Args:
        what: what holds it; never the secret.
        use: who uses it.
        text: source in which it stands.
        name: what it is called there, where that is known already.
    """
    names = (one for one, _ in secrets_in_text(text) if one)
    return refusal(f"{what} {advice(name or next(names, ''))}", use)


# -- Calls: the call in the user's text that made a stage ------------------------------------------
class Called(NamedTuple):
    """The call that made a stage.

    Attributes:
        statement: where it stands.
        node: the call.
        is_global: it stands outside of functions, so its names are global.
    """

    statement: Statement
    node: ast.Call
    is_global: bool

    def text(self, keyword: str = "") -> str:
        """Return the source of an argument: the first, or one that was named."""
        node = self.argument(keyword)
        found = None if node is None else ast.get_source_segment(self.statement.cell.text, node)
        return found or ""

    def argument(self, keyword: str = "") -> ast.expr | None:
        """Return an argument: the first, unless it is unpacked, or one that was named."""
        if keyword:
            return next((one.value for one in self.node.keywords if one.arg == keyword), None)
        if not self.node.args or isinstance(self.node.args[0], ast.Starred):
            return None
        return self.node.args[0]


def call_of(stage: Stage, cells: Cells, method: str) -> Called | None:
    """Find the call that made a stage; None where it is not to be found, or may be another.

    The start of a chained call is not known to the compiler: its end is.

    Args:
        stage: the stage.
        cells: the text.
        method: name of the function or method that was called.
    """
    if stage.made_at is None:
        return None
    code, at = stage.made_at.code, stage.made_at.offset
    line, end_line, _, end = list(code.co_positions())[at // 2]
    if line is None or end_line is None:
        return None
    for statement in _places(code, cells, end_line):
        for node in ast.walk(statement.node):
            if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == (
                end_line,
                end,
            ):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                if name == method:
                    return Called(statement, node, code.co_name == "<module>")
    return None


def _places(code: CodeType, cells: Cells, line: int) -> Iterator[Statement]:
    """Return the statements that may hold a line of a code object, newest first."""
    if code.co_name != "<module>":
        found = cells.definition(code)
        if found is not None:
            yield found.statement
        return
    for cell in reversed(cells.cells):
        for statement in cell.statements:
            if statement.first_line <= line <= statement.last_line and _has(statement, code):
                yield statement


def _has(statement: Statement, code: CodeType) -> bool:
    """Tell whether a code object may have been compiled from a statement: it reads its names."""
    names = {node.id for node in ast.walk(statement.node) if isinstance(node, ast.Name)}
    outer = names & set(code.co_names)
    return bool(outer) or not names
