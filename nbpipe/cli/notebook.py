"""Notebook: a file's code cells, and what can be told of them without running them."""

from __future__ import annotations

import ast
import json
import shlex
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.format import shortened
from ..errors import MissingExtraError
from ..export.secrets import secret_in_text
from ..export.source import tree_of
from .terminal import BadUsageError, printable

# Tags of the cells that hold values to be set: the user's, and the one that papermill adds below.
PARAMETERS = frozenset(("parameters", "injected-parameters"))
_FORMAT = 4  # of notebooks, since 2015
_SKIPPED = "skip-execution"  # tag of a cell that is not run
_PYTHON_BELOW = {"%%time", "%%capture", "%%prun"}  # magics that run the lines below them here
_TEXTS = {".py", ".md", ".rmd", ".qmd"}  # jupytext makes notebooks of them
_LONGEST_LINE = 72
_DEFS = ast.FunctionDef | ast.AsyncFunctionDef
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A cell that is run.

    Attributes:
        number: its place among those that are run: `In[number]`, from top to bottom.
        text: what stands in it.
        tags: its tags.
        assigns: the global names that it assigns, as far as its text shows.
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
    """
    content = _content(path)
    try:
        return _notebook(path, content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadUsageError):
            raise
        raise BadUsageError(f"{printable(str(path))} is no notebook: {error!r}") from error


def _notebook(path: Path, content: Any) -> Notebook:
    if content["nbformat"] != _FORMAT:
        raise BadUsageError(
            f"{printable(str(path))} is no notebook: it must be of format {_FORMAT}, got "
            f"{content['nbformat']!r}; open it in Jupyter and save it"
        )
    metadata = content["metadata"]
    spec = metadata.get("kernelspec", {})
    language = spec.get("language") or metadata.get("language_info", {}).get("name", "python")
    if str(language).lower() not in ("python", "ipython"):
        raise BadUsageError(
            f"{printable(str(path))} is written in {printable(str(language))}; only notebooks in "
            "Python can be exported from"
        )
    return Notebook(path, str(spec.get("name") or "python3"), tuple(_code_cells(content)))


def _content(path: Path) -> Any:
    shown = printable(str(path))
    if path.suffix.lower() in _TEXTS and path.is_file():
        raise BadUsageError(
            f"{shown} is a text, and nbpipe export runs a notebook; make one of it: "
            f"jupytext --to ipynb {printable(shlex.quote(str(path)))}, then "
            f"nbpipe export {printable(shlex.quote(str(path.with_suffix('.ipynb'))))}"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadUsageError(f"cannot read {shown}: {error.strerror or error}") from error
    except ValueError as error:
        raise BadUsageError(
            f"{shown} is no notebook: {printable(shortened(str(error), 200))}"
        ) from error


def _code_cells(content: Any) -> Iterator[CodeCell]:
    number = 0
    for cell in content["cells"]:
        tags = frozenset(map(str, cell["metadata"].get("tags", ())))
        text = "".join(cell["source"])  # a text, or its lines
        if cell["cell_type"] == "code" and text.strip() and _SKIPPED not in tags:
            number += 1
            yield code_cell(number, text, tags)


def code_cell(number: int, text: str, tags: frozenset[str] = frozenset()) -> CodeCell:
    """Make a cell of its text, and look into it."""
    tree = _tree(text)
    if tree is None:
        return CodeCell(number, text, tags)
    return CodeCell(
        number,
        text,
        tags,
        assigns=frozenset(name for node in _at_top(tree) for name in _assigned(node)),
        reads=frozenset(
            node.id
            for node in _run_at_once(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        ),
    )


def _tree(text: str) -> ast.Module | None:
    """Parse a cell as IPython would; None where it is no Python, or not correct."""
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ModuleNotFoundError as missing:
        raise MissingExtraError.of("ipykernel", "export", "nbpipe export") from missing
    lines = text.lstrip().splitlines(keepends=True)
    while lines and lines[0].split()[:1] and lines[0].split()[0] in _PYTHON_BELOW:
        lines = "".join(lines[1:]).lstrip().splitlines(keepends=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the cell's own text deserves
            python: str = TransformerManager().transform_cell("".join(lines))
            return ast.parse(python)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _at_top(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what binds global names: not into functions, classes and comprehensions."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _DEFS | ast.Lambda | ast.ClassDef | _COMPREHENSIONS):
            yield from _at_top(child)


def _run_at_once(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs when the cell does: of functions only decorators and defaults."""
    yield node
    parts: Iterable[ast.AST | None] = ast.iter_child_nodes(node)
    if isinstance(node, _DEFS):
        parts = (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults)
    elif isinstance(node, ast.Lambda):
        parts = (*node.args.defaults, *node.args.kw_defaults)
    for part in parts:
        if part is not None:
            yield from _run_at_once(part)


def _assigned(node: ast.AST) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
