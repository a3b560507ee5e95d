"""Notebook: a file's code cells, and what can be told of them without running them."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.format import shortened
from ..errors import MissingExtraError
from ..export.secrets import secret_in_text
from .terminal import BadUsageError, printable

PARAMETERS = "parameters"  # tag of the cell that holds values to be set
_FORMAT = 4  # of notebooks, since 2015
_SKIPPED = "skip-execution"  # tag of a cell that is not run
_PYTHON_BELOW = {"%%time", "%%capture", "%%prun"}  # magics that run the lines below them here
_LONGEST_LINE = 72
_DEFS = ast.FunctionDef | ast.AsyncFunctionDef
_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.MatchAs | ast.MatchStar
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A cell that is run.

    Attributes:
        number: its place among those that are run: `In[number]`, from top to bottom.
        text: what stands in it.
        tags: its tags.
        binds: the global names that it binds, as far as its text shows.
        assigns: those of them that it binds by an assignment.
        reads: the global names that it reads outside of functions.
        may_hide: it may bind names that its text does not show.
    """

    number: int
    text: str
    tags: frozenset[str] = frozenset()
    binds: frozenset[str] = field(default=frozenset(), compare=False)
    assigns: frozenset[str] = field(default=frozenset(), compare=False)
    reads: frozenset[str] = field(default=frozenset(), compare=False)
    may_hide: bool = False

    @property
    def first_line(self) -> str:
        """The first line with something in it, fit for a terminal; secrets are not shown."""
        line = self.text.strip().splitlines()[0]
        if secret_in_text(line) or (not _is_whole(line) and secret_in_text(self.text)):
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
        MissingExtraError: it is of an older format, and nbformat is not installed.
    """
    content = _content(path)
    try:
        return _notebook(path, content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadUsageError):
            raise
        raise BadUsageError(f"{printable(str(path))} is no notebook: {error!r}") from error


def _notebook(path: Path, content: Any) -> Notebook:
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
    try:
        text = path.read_text(encoding="utf-8")
        # The library for other formats takes a second to import.
        return content if _format(content := json.loads(text)) == _FORMAT else _converted(text)
    except OSError as error:
        raise BadUsageError(f"cannot read {shown}: {error.strerror or error}") from error
    except MissingExtraError:
        raise
    except Exception as error:
        raise BadUsageError(
            f"{shown} is no notebook: {printable(shortened(str(error), 200))}"
        ) from error


def _format(content: Any) -> Any:
    if not isinstance(content, dict) or "nbformat" not in content:
        raise ValueError("it does not say its format")
    return content["nbformat"]


def _converted(text: str) -> Any:
    try:
        import nbformat
    except ModuleNotFoundError as missing:
        raise MissingExtraError.of(
            "nbformat", "export", "nbpipe export of a notebook in an older format"
        ) from missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cells without ids are of no concern here
        return nbformat.reads(text, as_version=_FORMAT)


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
        return CodeCell(number, text, tags, may_hide=True)
    nodes = list(_at_top(tree))
    return CodeCell(
        number,
        text,
        tags,
        binds=frozenset(name for node in nodes for name in _bound(node)),
        assigns=frozenset(name for node in nodes for name in _assigned(node)),
        reads=frozenset(
            node.id
            for node in _run_at_once(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        ),
        may_hide=any(map(_hides, nodes)),
    )


def _is_whole(line: str) -> bool:
    try:
        ast.parse(line)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


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


def _bound(node: ast.AST) -> Iterator[str]:
    name: str | None = None
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        name = node.id
    elif isinstance(node, _NAMED):
        name = node.name
    elif isinstance(node, ast.MatchMapping):
        name = node.rest
    elif isinstance(node, ast.alias) and node.name != "*":
        name = node.asname or node.name.partition(".")[0]
    if name is not None:
        yield name


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


def _hides(node: ast.AST) -> bool:
    """Tell whether a node binds names that it does not show: `import *`, `%run`, `exec`."""
    if isinstance(node, ast.alias):
        return node.name == "*"
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    word = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return word in ("exec", "globals", "run_line_magic", "run_cell_magic")
