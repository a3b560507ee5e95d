"""Notebook: the code cells of a file, and the names that each of them assigns and reads."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.format import shortened
from ..errors import MissingExtraError
from ..export.secrets import secret_in_text
from ..export.source import tree_of
from ..export.statements import Cell, body_of, statements_of
from ..show.terminal import printable
from .terminal import BadUsageError

# Tags of the cells that hold values to be set: the user's, and the one that papermill adds below.
PARAMETERS = frozenset(("parameters", "injected-parameters"))
_SKIPPED = "skip-execution"  # tag of a cell that is not run
_TEXTS = {".py", ".md", ".rmd", ".qmd"}  # jupytext makes notebooks of them
_LONGEST_LINE = 72
_LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A cell that is run.

    Attributes:
        number: its place among those that are run: `In[number]`, from top to bottom.
        text: its source.
        tags: its tags.
        assigns: the global names that it assigns; imports, functions and classes do not count.
        reads: the global names that it reads outside of functions.
    """

    number: int
    text: str
    tags: frozenset[str] = frozenset()
    assigns: frozenset[str] = field(default=frozenset(), compare=False)
    reads: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def first_line(self) -> str:
        """The first line with something in it, fit for a terminal; secrets are not shown."""
        line = self.text.strip().splitlines()[0]
        if secret_in_text(line) or (tree_of(line) is None and secret_in_text(self.text)):
            return "(a line that looks like a secret)"
        return printable(shortened(line, _LONGEST_LINE))


@dataclass(frozen=True, slots=True)
class Notebook:
    """A notebook that is to be run.

    Attributes:
        path: its file.
        kernel: name of the kernel that it asks for.
        cells: those that are run, in order.
    """

    path: Path
    kernel: str
    cells: tuple[CodeCell, ...]


def read_notebook(path: Path) -> Notebook:
    """Read a notebook; the file is not touched again.

    Raises:
        BadUsageError: it cannot be read, is no notebook or is not written in Python.
        MissingExtraError: nbformat or IPython is not installed.
    """
    try:
        import nbformat
    except ModuleNotFoundError as missing:
        raise MissingExtraError.of("nbformat", "export", "nbpipe export") from missing
    shown = printable(str(path))
    if path.suffix.lower() in _TEXTS and path.is_file():
        raise BadUsageError(
            f"{shown} is a text, and nbpipe export runs a notebook; make one of it: "
            f"jupytext --to ipynb {printable(shlex.quote(str(path)))}, then "
            f"nbpipe export {printable(shlex.quote(str(path.with_suffix('.ipynb'))))}"
        )
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of small faults, which Jupyter passes over, too
            return _notebook(path, nbformat.reads(text, as_version=4))
    except OSError as error:
        raise BadUsageError(f"cannot read {shown}: {error.strerror or error}") from error
    except (BadUsageError, MissingExtraError):
        raise
    except Exception as error:  # nbformat has no common class for what it raises
        words = printable(shortened(f"{type(error).__name__}: {error}", _LONGEST_ERROR))
        raise BadUsageError(f"{shown} is no notebook: {words}") from error


def _notebook(path: Path, content: Any) -> Notebook:
    metadata = content.metadata
    spec = metadata.get("kernelspec", {})
    language = spec.get("language") or metadata.get("language_info", {}).get("name", "python")
    if str(language).lower() not in ("python", "ipython"):
        raise BadUsageError(
            f"{printable(str(path))} is written in {printable(str(language))}; only notebooks in "
            "Python can be exported from"
        )
    return Notebook(path, str(spec.get("name") or "python3"), tuple(_code_cells(content)))


def _code_cells(content: Any) -> Iterator[CodeCell]:
    number = 0
    for cell in content.cells:
        tags = frozenset(map(str, cell.metadata.get("tags", ())))
        if cell.cell_type == "code" and cell.source.strip() and _SKIPPED not in tags:
            number += 1
            yield code_cell(number, cell.source, tags)


def code_cell(number: int, text: str, tags: frozenset[str] = frozenset()) -> CodeCell:
    """Make a cell of its text, and find the names in it."""
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ModuleNotFoundError as missing:
        raise MissingExtraError.of("ipykernel", "export", "nbpipe export") from missing
    transform = TransformerManager().transform_cell
    try:
        python = body_of(transform(text), transform)
    except SyntaxError:
        python = None
    every = statements_of(Cell(f"In[{number}]", python or ""), 0)
    assigning = (one for one in every if not (one.is_import or one.is_definition))
    return CodeCell(
        number,
        text,
        tags,
        assigns=frozenset(name for one in assigning for name in one.binds),
        reads=frozenset(name for one in every for name in one.reads),
    )
