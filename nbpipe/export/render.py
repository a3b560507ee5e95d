"""Render: the text of a module, from its model."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ExportError
from .chains import INDENT, Lines, expression, indented, statement, unix
from .imports import import_block
from .model import Import, Module, Parameter, Piece
from .order import ordered

_BUILD = "build_pipeline"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A module's text, and where things stand in it; the first line is line 1.

    Attributes:
        text: ends in one newline; lines end in a line feed.
        lines: for each piece its first and its last line, from top to bottom.
        parameters: the line on which each parameter of `build_pipeline` begins.
    """

    text: str
    lines: tuple[tuple[int, int, Piece], ...]
    parameters: dict[str, int]


class _Page:
    """Lines that are written one below the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    @property
    def height(self) -> int:
        """How many lines there are."""
        return len(self._lines)

    @property
    def text(self) -> str:
        """All of it, with a newline at the end."""
        return "\n".join(self._lines) + "\n"

    def write(self, text: str, *, above: int = 0) -> tuple[int, int]:
        """Write `text` below `above` empty lines; give the numbers of its lines."""
        self._lines += [""] * above
        first = self.height + 1
        self._lines += text.split("\n")
        return first, self.height


def rendered(module: Module) -> Rendered:
    """Write a module: docstring, imports, pieces, `build_pipeline` and `main`.

    Raises:
        ExportError: a name that the module needs is taken, or pieces need each other.
    """
    pieces = ordered(module.pieces)
    _refuse_taken(module)
    page = _Page()
    page.write(_docstring(module))
    imports = {*module.imports, Import("nbpipe")}
    page.write(import_block(imports, future=module.future), above=1)
    lines = tuple(_written(page, pieces))
    parameters = _write_build(page, module)
    page.write(_main(_free_name(module)), above=2)
    return Rendered(page.text, lines, parameters)


def _refuse_taken(module: Module) -> None:
    for piece in module.pieces:
        for name in {_BUILD, "nbpipe"} & set(piece.names):
            raise ExportError(
                f"the name {name!r} must be free in a module that is exported, "
                f"got {piece.words or name}; give it another name"
            )
    for line in module.imports:
        if line.binds == _BUILD or (line.binds == "nbpipe" and not _is_nbpipe(line)):
            raise ExportError(
                f"the name {line.binds!r} must be free in a module that is exported, "
                f"got an import from {line.module!r}; import it under another name"
            )


def _is_nbpipe(line: Import) -> bool:
    return line.member is None and line.module.partition(".")[0] == "nbpipe"


def _free_name(module: Module) -> str:
    taken = {name for piece in module.pieces for name in piece.names}
    taken |= {line.binds for line in module.imports}
    name = "main"
    while name in taken:
        name = f"_{name}"
    return name


def _docstring(module: Module) -> str:
    return (
        f'"""{_in_docstring(module.title)}, exported by nbpipe.\n\n'
        "Tuned values are the defaults of build_pipeline(). "
        'Edit freely: nbpipe does not overwrite edits.\n"""'
    )


def _in_docstring(text: str) -> str:
    """Write `text` in one line of a docstring, so that it cannot end it."""
    line = " ".join(text.split()).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in line
    )


# -- pieces ---------------------------------------------------------------------------------
def _written(page: _Page, pieces: list[Piece]) -> Iterator[tuple[int, int, Piece]]:
    above: Piece | None = None
    for piece in pieces:
        gap = _gap(above, piece)
        first, last = page.write(unix(piece.text).strip("\n"), above=gap)
        yield first, last, piece
        above = piece


def _gap(above: Piece | None, piece: Piece) -> int:
    """Count the empty lines: two around definitions, none between lines of one kind."""
    if above is None:
        return 2 if _begins_with_definition(piece) else 1
    if _defines(above) or _defines(piece):
        return 2
    alike = above.kind == piece.kind == "constant"
    return 0 if alike and _is_short(above) and _is_short(piece) else 1


def _tree(piece: Piece) -> list[ast.stmt]:
    return ast.parse(unix(piece.text)).body


def _defines(piece: Piece) -> bool:
    return any(_is_definition(line) for line in _tree(piece))


def _begins_with_definition(piece: Piece) -> bool:
    return any(_is_definition(line) for line in _tree(piece)[:1])


def _is_definition(line: ast.stmt) -> bool:
    return isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _is_short(piece: Piece) -> bool:
    return all(line.lineno == line.end_lineno for line in _tree(piece))


# -- build_pipeline and main ----------------------------------------------------------------
def _write_build(page: _Page, module: Module) -> dict[str, int]:
    """Write `build_pipeline`; give the line of each of its parameters."""
    returns = ") -> nbpipe.Pipeline:"
    if not module.parameters:
        page.write(f"def {_BUILD}({returns}", above=2)
    else:
        page.write(f"def {_BUILD}(", above=2)
    places = dict(_write_parameters(page, module.parameters))
    if module.parameters:
        page.write(returns)
    page.write("\n".join(indented(_body(module))))
    return places


def _write_parameters(page: _Page, parameters: tuple[Parameter, ...]) -> Iterator[tuple[str, int]]:
    by_name = [parameter for parameter in parameters if not parameter.positional]
    for parameter in parameters:
        if parameter.positional:
            yield parameter.name, _write_parameter(page, parameter)
    if by_name:
        page.write(f"{INDENT}*,")
    for parameter in by_name:
        yield parameter.name, _write_parameter(page, parameter)


def _write_parameter(page: _Page, parameter: Parameter) -> int:
    lines = expression(parameter.default)
    lines[0] = f"{parameter.name}: {parameter.annotation} = {lines[0]}"
    lines[-1] += ","
    return page.write("\n".join(indented(lines)))[0]


def _body(module: Module) -> Lines:
    lines = [f'"""Build the pipeline with the values tuned in {_in_docstring(module.origin)}."""']
    for name, chain in module.locals:
        lines += statement(f"{name} =", chain)
    return lines + statement("return", module.chain)


def _main(name: str) -> str:
    return (
        f"def {name}() -> None:\n"
        f"    for _ in nbpipe.progress({_BUILD}()):\n"
        "        pass\n\n\n"
        'if __name__ == "__main__":\n'
        f"    {name}()"
    )
