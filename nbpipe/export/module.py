"""Module: what is to be written, as frozen values, and its text; no live object is looked at."""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..errors import ExportError
from ..ops import stage as stages
from .source import indent_of, lines_of, replaced, run_ruff

Kind = Literal["setup", "decision", "constant", "definition"]


@dataclass(frozen=True, slots=True, order=True)
class Import:
    """One name that is imported: `import a.b as c`, or `from a import b as c`.

    Attributes:
        module: dotted name of the module.
        member: what is taken out of it; None imports the module itself.
        alias: name it is given; None keeps its own.
        local: the module is the user's own file, and stands in the last section.
    """

    module: str
    member: str | None = None
    alias: str | None = None
    local: bool = False

    @property
    def binds(self) -> str:
        """The name it binds in the module: the first part of `import a.b`."""
        if self.alias is not None:
            return self.alias
        return self.module.partition(".")[0] if self.member is None else self.member


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to write a piece: its text, and the names of the module that it reads.

    Attributes:
        text: whole lines without a newline at the end, comments included, not indented.
        now: names read while the module is imported.
        later: names read when its functions are called, and in annotations.
        ran: which cell, and which statement in it, ran this very text; None where none did.
    """

    text: str
    now: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()
    ran: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines of the module: a constant, a definition or a set-up cell.

    Attributes:
        names: the names it binds.
        spellings: ways to write it, the best first; there is one once it is decided.
        expected: what each name must be worth in a fresh process, as `fingerprint_of` gives it; a
            name that is missing here is not compared.
        kind: what it is.
        first: where the first of its names was first bound: the number of the cell, of the
            statement in it, and where a statement holds several, its line and column.
        words: what it is called in a message, as "variable 'TABLE', assigned in In[3]".
    """

    names: tuple[str, ...]
    spellings: tuple[Spelling, ...]
    expected: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "definition"
    first: tuple[int, ...] = (0, 0)
    words: str = ""

    @property
    def text(self) -> str:
        """The best way to write it."""
        return self.spellings[0].text

    @property
    def now(self) -> frozenset[str]:
        """Names that its best spelling reads while the module is imported."""
        return self.spellings[0].now

    @property
    def later(self) -> frozenset[str]:
        """Names that its best spelling reads afterwards."""
        return self.spellings[0].later


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of `build_pipeline`.

    Attributes:
        name: its name.
        annotation: its type, as source.
        default: its default, as source.
        positional: it may be given without its name; such parameters come first.
    """

    name: str
    annotation: str
    default: str
    positional: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A statement of `build_pipeline`.

    Attributes:
        text: calls of nbpipe, and calls of the methods of what they give, as one expression that
            will stand in brackets; or statements of the user's.
        name: the variable that it is assigned to; empty for what is returned.
        above: the comments above it.
        is_code: it is statements of the user's, which are kept as they are.
    """

    text: str
    name: str = ""
    above: tuple[str, ...] = ()
    is_code: bool = False

    @property
    def tree(self) -> Any:
        """The tree of the statements, or of the expression in its brackets."""
        return ast.parse(self._whole)

    @property
    def _whole(self) -> str:
        return self.text if self.is_code else f"({self.text}\n)"

    def changed(self, texts: Mapping[str, str]) -> Line:
        """Return it with others in the place of some expressions, given as Python shows them."""
        known = (one for one in outside_texts(self.tree) if isinstance(one, ast.expr))
        parts = [(one, texts[key]) for one in known if (key := ast.unparse(one)) in texts]
        text = replaced(self._whole, parts)
        return replace(self, text=text if self.is_code else text[1:-2])


@dataclass(frozen=True, slots=True)
class Module:
    """A whole module; before the trial it has no more than `build_pipeline`.

    Attributes:
        parameters: of `build_pipeline`, in the order of the stages.
        body: of `build_pipeline`.
        imports: what it imports, in any order.
        pieces: in any order, each with one spelling.
        title: first line of its docstring, without the full stop at its end.
        origin: where the values were tuned: "the notebook" or "the script".
        future: it begins with `from __future__ import annotations`.
    """

    parameters: tuple[Parameter, ...]
    body: tuple[Line, ...]
    imports: tuple[Import, ...] = ()
    pieces: tuple[Piece, ...] = ()
    title: str = ""
    origin: str = ""
    future: bool = False

    @property
    def used(self) -> frozenset[str]:
        """Names that it binds or reads, outside of `build_pipeline`."""
        pieces = (name for one in self.pieces for name in (*one.names, *one.now, *one.later))
        return frozenset((*pieces, *(line.binds for line in self.imports)))

    def changed(self, texts: Mapping[str, str]) -> Module:
        """Return it with others in the place of some names in its body."""
        return replace(self, body=tuple(line.changed(texts) for line in self.body))


# -- Parameters: what the parameters of `build_pipeline` are called --------------------------------
def identifier(text: str) -> str:
    """Make a name of a variable out of any text, as a stage's name."""
    name = re.sub(r"\W+", "_", re.sub(r"^\W+|\W+$", "", text))
    if name.startswith("__") and name.endswith("__"):  # a method, as __getitem__
        name = name.strip("_")
    name = name or "stage"
    usable = name.isidentifier() and not keyword.iskeyword(name)
    return name if usable else f"stage_{name}"


def stage_words(chain: stages.Chain) -> dict[int, str]:
    """Return what the names of the parameters of each stage begin with, by the stage's id.

    Stages whose names give the same word are numbered, in the order of their addresses.
    """
    words: dict[int, str] = {}
    for stage in stages.addresses(chain).values():
        if id(stage) not in words:
            words[id(stage)] = stages.numbered(identifier(stage.name), words.values())
    return words


def outside_texts(node: ast.AST) -> Iterator[ast.AST]:
    """Return all parts of some code but those of f-strings, whose places Python 3.11 mistakes."""
    if not isinstance(node, ast.JoinedStr):
        yield node
        for one in ast.iter_child_nodes(node):
            yield from outside_texts(one)


# -- Lines of code: those in a string of the user's are left as they are ---------------------------
INDENT = "    "
BREAK = f"\n{INDENT * 2}"  # between the calls of a chain
Lines = list[str]


def indented(lines: Iterable[str]) -> Lines:
    """Indent lines by one step."""
    return [INDENT + line if line else line for line in lines]


def expression(text: str) -> Lines:
    """Lay out an expression of the user's that will stand in brackets: its lines are kept."""
    first, *rest = _code_lines(text.strip())
    rest = [line if line.strip() else "" for line in rest]
    margin = min((indent_of(line) for line in rest if line), key=len, default="")
    lines = [line.removeprefix(margin) for line in rest]
    closes = any(line[:1] in {")", "]", "}"} for line in lines)
    return [first, *(lines if closes else indented(lines))]


def _code_lines(text: str) -> Lines:
    """Split `text` at the line ends that are not inside a string."""
    inside = lines_of(f"({text}\n)").in_string
    lines: Lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        if number in inside:
            lines[-1] += f"\n{line}"
        else:
            lines.append(line)
    return lines


# -- Imports ---------------------------------------------------------------------------------------
def import_lines(imports: Iterable[Import], *, future: bool) -> str:
    """Write imports, a line for each.

    Args:
        imports: in any order; one that is given twice is written once.
        future: begin with `from __future__ import annotations`.
    """
    given = {*imports, *([Import("__future__", "annotations")] if future else [])}
    lines = sorted(given, key=lambda line: (line.module != "__future__", _import(line)))
    return "".join(f"{one}\n" for one in dict.fromkeys(map(_import, lines)))


def _import_sections(module: Module) -> str:
    """Write the imports of a module as isort sorts them, without a newline at the end."""
    text = import_lines({*module.imports, Import("nbpipe")}, future=module.future)
    local = sorted({line.module.partition(".")[0] for line in module.imports if line.local})
    settings = (f"lint.isort.known-first-party={json.dumps(local)}", "src=[]")
    options = [part for one in settings for part in ("--config", one)]
    found = run_ruff("check", text, "--select", "I", "--fix-only", "--quiet", *options)
    return (found or text).rstrip("\n")


def _import(line: Import) -> str:
    alias = f" as {line.alias}" if line.alias else ""
    if line.member is None:
        return f"import {line.module}{alias}"
    return f"from {line.module} import {line.member}{alias}"


# -- Order: pieces in the order that importing the module needs ------------------------------------
_RANK = {"setup": 0, "decision": 1, "constant": 2, "definition": 3}
_Edges = dict[int, set[int]]  # for each piece, by its number, the numbers of those it needs


def ordered(pieces: Iterable[Piece]) -> list[Piece]:
    """Order pieces so that each stands below what it needs; else by where they were first bound.

    Set-up comes first, below what it uses itself; then constants, then definitions. A function
    stands below the functions it calls, unless they call each other. Where constants need each
    other, one of them loses the spellings that say so.

    Raises:
        ExportError: pieces need each other, and have no other spelling.
    """
    by_rank = sorted(pieces, key=lambda one: (_RANK[one.kind], one.first, one.names))
    hard = _edges(by_rank, lambda spelling: spelling.now)
    must = {number: _reached(needs, hard) for number, needs in hard.items()}
    first = next((number for number in must if number in must[number]), None)
    if first is not None:
        circle = [number for number in sorted(must[first]) if first in must[number]]
        return ordered(_without_circle(by_rank, circle))
    uses = _edges(by_rank, lambda spelling: spelling.now | spelling.later)
    # A function that is called while the module is imported needs all that it uses.
    called = {number: _reached(needs, uses) for number, needs in hard.items()}
    used = {number: _reached(needs, uses) for number, needs in uses.items()}
    placed: list[int] = []
    under_way: set[int] = set()

    def place(number: int) -> None:
        """Place a piece below what it needs; what needs it in turn, and need not wait, waits."""
        if number in under_way:
            return
        under_way.add(number)
        for one in sorted(hard[number]):
            place(one)
        for edges in (called, used):
            for one in sorted(edges[number]):
                waiting = under_way.difference(placed)
                if number not in edges[one] and waiting.isdisjoint(must[one]):
                    place(one)
        placed.append(number)

    def early(number: int) -> tuple[int, bool, int]:
        """Constants that use no definition are early."""
        kind = by_rank[number].kind
        defined = any(by_rank[one].kind == "definition" for one in used[number])
        return _RANK[kind], kind == "constant" and defined, number

    for number in sorted(hard, key=early):
        place(number)
    return [by_rank[number] for number in placed]


def _edges(pieces: list[Piece], read: Callable[[Spelling], frozenset[str]]) -> _Edges:
    """Return which pieces bind the names that each reads, in any of its spellings."""
    homes: dict[str, set[int]] = {}
    for number, piece in enumerate(pieces):
        for name in piece.names:
            homes.setdefault(name, set()).add(number)
    names = ({name for way in one.spellings for name in read(way)} for one in pieces)
    return {
        number: {home for name in every for home in homes.get(name, ())} - {number}
        for number, every in enumerate(names)
    }


def _reached(starts: Iterable[int], edges: _Edges) -> set[int]:
    found: set[int] = set()
    ahead = set(starts)
    while ahead:
        piece = ahead.pop()
        found.add(piece)
        ahead |= edges[piece] - found
    return found


def _without_circle(pieces: list[Piece], circle: list[int]) -> list[Piece]:
    """Take from one piece of a circle the spellings that close it."""
    names = {name for number in circle for name in pieces[number].names}
    for number in circle:
        piece = pieces[number]
        spellings = tuple(way for way in piece.spellings if not way.now & names)
        if spellings:
            return [*pieces[:number], replace(piece, spellings=spellings), *pieces[number + 1 :]]
    culprits = " and ".join(_words(pieces[number]) for number in circle)
    raise ExportError(
        f"cannot put {culprits} in an order: while a module is imported, what is read must stand "
        "above what reads it, and these read each other; "
        "look one of the names up inside a function"
    )


def _words(piece: Piece) -> str:
    return piece.words or ", ".join(map(repr, piece.names))


# -- The text of a module --------------------------------------------------------------------------
_BUILD = "build_pipeline"
_RETURNS = ") -> nbpipe.Pipeline:"
_DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_KEEPING = ("--config", "format.quote-style='preserve'")  # of the user's texts


def rendered(module: Module) -> str:
    """Write a module: docstring, imports, pieces, `build_pipeline` and `main`.

    Returns:
        Its text, which ends in one newline; lines end in a line feed.

    Raises:
        ExportError: a name that the module needs is taken, or pieces need each other.
    """
    pieces = ordered(module.pieces)
    _refuse_taken(module)
    head = f"{_docstring(module)}\n\n{_import_sections(module)}"
    top = "".join([head, *_written(pieces)])
    return "\n\n\n".join([top, _build(module), _main(_free_name(module))]) + "\n"


def _refuse_taken(module: Module) -> None:
    taken = {name: one.words or name for one in module.pieces for name in one.names}
    for line in module.imports:
        if line.member is not None or line.module.partition(".")[0] != "nbpipe":
            taken[line.binds] = f"an import from {line.module!r}"
    for name in taken.keys() & {_BUILD, "nbpipe"}:
        raise ExportError(
            f"the name {name!r} must be free in a module that is exported, got {taken[name]}; "
            "give it another name"
        )


def _free_name(module: Module) -> str:
    taken = {name for piece in module.pieces for name in piece.names}
    taken |= {line.binds for line in module.imports}
    name = "main"
    while name in taken:
        name = f"_{name}"
    return name


def _docstring(module: Module) -> str:
    return (
        f'"""{module.title}, exported by nbpipe.\n\n'
        "Tuned values are the defaults of build_pipeline(). "
        'Edit freely: nbpipe does not overwrite edits.\n"""'
    )


def _written(pieces: list[Piece]) -> Iterator[str]:
    """Write pieces, each with the empty lines that stand above it."""
    for above, piece in zip([None, *pieces], pieces, strict=False):
        yield "\n" * (1 + _gap(above, piece)) + piece.text.strip("\n")


def _gap(above: Piece | None, piece: Piece) -> int:
    """Count the empty lines: two around definitions, none between lines of one kind."""
    lines = ast.parse(piece.text).body
    if above is None:
        return 2 if any(isinstance(line, _DEFINITION) for line in lines[:1]) else 1
    lines += ast.parse(above.text).body
    if any(isinstance(line, _DEFINITION) for line in lines):
        return 2
    alike = above.kind == piece.kind == "constant"
    return 0 if alike and all(line.lineno == line.end_lineno for line in lines) else 1


def _build(module: Module) -> str:
    """Write `build_pipeline`."""
    parameters = [_parameter(one) for one in module.parameters if one.positional]
    by_name = [_parameter(one) for one in module.parameters if not one.positional]
    given = "".join([*parameters, *([f"{INDENT}*,\n"] if by_name else []), *by_name])
    doc = f'"""Build the pipeline with the values tuned in {module.origin}."""'
    head = f"def {_BUILD}(\n{given}" if given else f"def {_BUILD}("
    return laid_out(module.body, "return ", head=(f"{head}{_RETURNS}", INDENT + doc))


def _parameter(parameter: Parameter) -> str:
    default = "\n".join(expression(parameter.default))
    return f"{INDENT}{parameter.name}: {parameter.annotation} = {default},\n"


def laid_out(body: Iterable[Line], ends: str, *, head: Sequence[str] = ()) -> str:
    """Lay out statements that make a pipeline, by ruff but for those of the user's.

    Args:
        body: the statements.
        ends: what stands before the one that is assigned to nothing, as "return ".
        head: how the function begins that they stand in, if there is one.
    """
    margin = INDENT if head else ""
    lines, codes = list(head), {}
    for number, line in enumerate(body):
        if line.is_code:
            lines.append(f"{margin}__code_{number}__")
            code = _code_lines(line.text.strip("\n"))
            codes[lines[-1]] = "\n".join(indented(code) if head else code)
        else:
            prefix = f"{line.name} = " if line.name else ends
            text = f"{prefix}({BREAK}{line.text.strip()}\n{margin})"
            lines += [margin + one for one in (*line.above, text)]
    text = "\n".join(lines)
    text = (run_ruff("format", text, *_KEEPING) or text).rstrip("\n")
    for mark, kept in codes.items():
        text = text.replace(mark, kept, 1)
    return text


def _main(name: str) -> str:
    return (
        f"def {name}() -> None:\n"
        f"    for _ in nbpipe.progress({_BUILD}()):\n"
        "        pass\n\n\n"
        'if __name__ == "__main__":\n'
        f"    {name}()"
    )
