"""Module: what is to be written, as frozen values, and its text; no live object is looked at."""

from __future__ import annotations

import ast
import keyword
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

from ..errors import ExportError
from ..ops import stage as stages
from .source import indent_of, lines_of

Kind = Literal["setup", "constant", "definition"]


@dataclass(frozen=True, slots=True, order=True)
class Import:
    """One name that is imported: `import a.b as c`, or `from a import b as c`.

    Attributes:
        module: dotted name of the module.
        member: what is taken out of it; None imports the module itself.
        alias: name it is given; None keeps its own.
        local: the module is the user's own file, and stands in the last section.
        for_types: it is imported under `if TYPE_CHECKING:` only.
    """

    module: str
    member: str | None = None
    alias: str | None = None
    local: bool = False
    for_types: bool = False

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
    """

    text: str
    now: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()


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
class Step:
    """One method call of a chain, as `.map(decode, concurrency=decode_concurrency)`.

    Attributes:
        method: name of the method.
        arguments: its arguments as source, in order, the keyword with its value.
        branches: for `route`, source of each value and the steps of its chain.
    """

    method: str
    arguments: tuple[str, ...] = ()
    branches: tuple[tuple[str, tuple[Step, ...]], ...] = ()

    def texts(self) -> Iterator[str]:
        """Return all expressions in it."""
        yield from self.arguments
        for value, inner in self.branches:
            yield value
            yield from (text for step in inner for text in step.texts())

    def changed(self, texts: Mapping[str, str]) -> Step:
        """Return it with others in the place of some arguments."""
        return replace(
            self,
            arguments=tuple(texts.get(text, text) for text in self.arguments),
            branches=tuple(
                (value, tuple(step.changed(texts) for step in inner))
                for value, inner in self.branches
            ),
        )


@dataclass(frozen=True, slots=True)
class Chain:
    """An expression that gives a pipeline: a call of nbpipe, and steps that follow it.

    Attributes:
        head: what begins it, as "nbpipe.source", or the name of a local variable that holds a
            shared beginning; then it is no call, and has neither inputs nor arguments.
        inputs: chains that are its first arguments.
        listed: the inputs are one list, as for `mix`.
        arguments: its further arguments as source.
        steps: what follows.
    """

    head: str
    inputs: tuple[Chain, ...] = ()
    listed: bool = False
    arguments: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()

    def texts(self) -> Iterator[str]:
        """Return all expressions in it."""
        yield from self.arguments
        parts: tuple[Chain | Step, ...] = (*self.inputs, *self.steps)
        yield from (text for part in parts for text in part.texts())

    def changed(self, texts: Mapping[str, str]) -> Chain:
        """Return it with others in the place of some arguments."""
        return replace(
            self,
            inputs=tuple(one.changed(texts) for one in self.inputs),
            arguments=tuple(texts.get(text, text) for text in self.arguments),
            steps=tuple(step.changed(texts) for step in self.steps),
        )


@dataclass(frozen=True, slots=True)
class Module:
    """A whole module; before the trial it has no more than `build_pipeline`.

    Attributes:
        parameters: of `build_pipeline`, in the order of the stages.
        locals: shared beginnings of chains, by the name of the variable that holds each, in order.
        chain: what `build_pipeline` returns.
        imports: what it imports, in any order.
        pieces: in any order, each with one spelling.
        title: first line of its docstring, without the full stop at its end.
        origin: where the values were tuned: "the notebook" or "the script".
        future: it begins with `from __future__ import annotations`.
    """

    parameters: tuple[Parameter, ...]
    locals: tuple[tuple[str, Chain], ...]
    chain: Chain
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

    def texts(self) -> Iterator[str]:
        """Return all expressions of its chains."""
        for one in (self.chain, *(one for _, one in self.locals)):
            yield from one.texts()

    def changed(self, texts: Mapping[str, str]) -> Module:
        """Return it with others in the place of some arguments of its chains."""
        shared = tuple((name, one.changed(texts)) for name, one in self.locals)
        return replace(self, locals=shared, chain=self.chain.changed(texts))


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
            words[id(stage)] = _free(identifier(stage.name), words.values())
    return words


def _free(word: str, taken: Collection[str]) -> str:
    found, number = word, 2
    while found in taken:
        found, number = f"{word}_{number}", number + 1
    return found


# -- Chains as lines of code: one call on each line, an argument a line where that is too long -----
# A line here may hold line feeds, where a string of the user's goes on over them: whatever indents
# lines leaves the inside of strings alone.
INDENT = "    "
_WIDTH = 88
Lines = list[str]


def _unix(text: str) -> str:
    """End the lines of `text` as Python reads them: in a line feed."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def indented(lines: Iterable[str]) -> Lines:
    """Indent lines by one step."""
    return [INDENT + line if line else line for line in lines]


def expression(text: str) -> Lines:
    """Lay out an expression of the user's that will stand in brackets: its lines are kept."""
    first, *rest = _code_lines(_unix(text).strip())
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


def _argument(text: str) -> Lines:
    """Lay out an argument; a generator gets parentheses, which it needs beside others."""
    call = ast.parse(f"f({_unix(text).strip()}\n)", mode="eval").body
    given = call.args if isinstance(call, ast.Call) else []
    bare = any(isinstance(node, ast.GeneratorExp) and node.col_offset == 1 for node in given)
    return expression(f"({text.strip()})" if bare else text)


def statement(keyword: str, chain: Chain) -> Lines:
    """Write `return <chain>` or `<name> = <chain>`, as a line of a function's body."""
    if len(chain.steps) + _is_call(chain) <= 1:
        return _calls(chain, _WIDTH - len(INDENT), prefix=f"{keyword} ")
    return [f"{keyword} (", *indented(_calls(chain, _WIDTH - 2 * len(INDENT))), ")"]


def _calls(chain: Chain, room: int, prefix: str = "") -> Lines:
    """Write each call of a chain on a line, or over several; a name stands before the first."""
    if _is_call(chain):
        lines = _head(chain, room, prefix)
    elif not chain.steps:
        return [f"{prefix}{chain.head}"]
    else:
        lines = _step(chain.steps[0], room, f"{prefix}{chain.head}")
    rest = chain.steps if _is_call(chain) else chain.steps[1:]
    return lines + [line for step in rest for line in _step(step, room)]


def _is_call(chain: Chain) -> bool:
    return "." in chain.head or bool(chain.inputs or chain.arguments)


def _head(chain: Chain, room: int, prefix: str) -> Lines:
    apart = any(inner.steps for inner in chain.inputs)
    inside = _inside(_inside(room)) if chain.listed else _inside(room)
    inputs = [_nested(inner, inside) for inner in chain.inputs]
    if chain.listed:
        inputs = [_bracketed("[", inputs, "]", _inside(room), apart=apart)]
    arguments = [_argument(text) for text in chain.arguments]
    return _bracketed(f"{prefix}{chain.head}(", inputs + arguments, ")", room, apart=apart)


def _nested(chain: Chain, room: int, prefix: str = "") -> Lines:
    """Write a chain in brackets: in one line where it fits."""
    lines = _calls(chain, room, prefix)
    one_line = "".join(lines)
    whole = len(lines) <= len(chain.steps) + _is_call(chain)
    return [one_line] if whole and _fits(one_line, room) else lines


def _step(step: Step, room: int, prefix: str = "") -> Lines:
    items = [_argument(text) for text in step.arguments]
    if step.branches:
        items.insert(1, _branches(step, _inside(room)))
    return _bracketed(f"{prefix}.{step.method}(", items, ")", room)


def _branches(step: Step, room: int) -> Lines:
    name = _free_step_name(step)
    entries = [
        _branch(expression(value), Chain(name, steps=steps), _inside(room))
        for value, steps in step.branches
    ]
    return _bracketed("{", entries, "}", room, apart=len(entries) > 1)


def _branch(value: Lines, chain: Chain, room: int) -> Lines:
    *above, last = value
    prefix = f"{last}: lambda {chain.head}: "
    lines = _nested(chain, room, prefix)
    if len(lines) > 1 and len(chain.steps) > 1:
        lines = [f"{prefix}(", *indented(_calls(chain, _inside(room))), ")"]
    return [*above, *lines]


def _free_step_name(step: Step) -> str:
    """Name the parameter of a branch as nothing that the branch reads."""
    read = {name for _, steps in step.branches for inner in steps for name in _names(inner)}
    name = "chain"
    while name in read:
        name = f"{name}_"
    return name


def _names(step: Step) -> set[str]:
    found = set(re.findall(r"\w+", " ".join(step.arguments)))
    return found.union(*(_names(inner) for _, steps in step.branches for inner in steps))


def _bracketed(
    head: str, items: Sequence[Lines], close: str, room: int, *, apart: bool = False
) -> Lines:
    """Write `head`, items and `close` in one line where that fits, else each item on its own."""
    one_line = head + ", ".join("\n".join(item) for item in items) + close
    if not items or (_fits(one_line, room) and not apart):
        return [one_line]
    inner = [line for item in items for line in (*item[:-1], f"{item[-1]},")]
    return [head, *indented(inner), close]


def _inside(room: int) -> int:
    """Return the columns of a line that is indented by one more step and ends in a comma."""
    return room - len(INDENT) - 1


def _fits(line: str, room: int) -> bool:
    return "\n" not in line and len(line) <= room


# -- Imports in sections, as isort sorts them ------------------------------------------------------
_NATURAL = re.compile(r"[0-9]+|[^0-9]")


def import_block(imports: Iterable[Import], *, future: bool) -> str:
    """Write imports, without a newline at the end; what is only for types stands last.

    Args:
        imports: in any order; one that is given twice is written once.
        future: begin with `from __future__ import annotations`.

    Source: isort's "profile = black", as ruff's rule I001 has it.
    """
    wanted = _settled(imports)
    for_types = [line for line in wanted if line.for_types]
    real = [line for line in wanted if not line.for_types]
    if future:
        real.append(Import("__future__", "annotations"))
    if for_types:
        real = list({*real, Import("typing", "TYPE_CHECKING")})
    blocks = [_sorted_block(real, _WIDTH)]
    if for_types:
        block = _sorted_block(for_types, _WIDTH - len(INDENT))
        blocks.append("if TYPE_CHECKING:\n" + re.sub(r"(?m)^(?=.)", INDENT, block))
    return "\n\n".join(block for block in blocks if block)


def _settled(imports: Iterable[Import]) -> list[Import]:
    """Return each import once: for the program rather than for types, local where one says so."""
    given = set(imports)
    local = {line.module for line in given if line.local}
    real = {_what(line) for line in given if not line.for_types}
    return sorted(
        {
            Import(*_what(line), local=line.module in local, for_types=line.for_types)
            for line in given
            if not (line.for_types and _what(line) in real)
        },
        key=lambda line: (_module_key(line), _member_key(line), _natural(line.alias or "")),
    )


def _what(line: Import) -> tuple[str, str | None, str | None]:
    return line.module, line.member, line.alias


def _sorted_block(imports: list[Import], width: int) -> str:
    by_section = sorted(imports, key=_section)
    sections = [list(lines) for _, lines in groupby(by_section, key=_section)]
    return "\n\n".join("\n".join(_statements(lines, width)) for lines in sections)


def _section(line: Import) -> int:
    if line.module == "__future__":
        return 0
    if line.local:
        return 3
    return 1 if line.module.partition(".")[0] in sys.stdlib_module_names else 2


def _statements(section: list[Import], width: int) -> Iterator[str]:
    """Write a section: `import a` first; members of one module together, each alias alone."""
    whole = [line for line in section if line.member is None]
    for line in sorted(whole, key=lambda line: (_module_key(line), _alias_key(line))):
        yield f"import {line.module}{_as(line)}"
    together: dict[tuple[str, str | None, str | None], list[Import]] = {}
    for line in section:
        if line.member is not None:
            apart = (line.member, line.alias) if line.alias else (None, None)
            together.setdefault((line.module, *apart), []).append(line)
    groups = [sorted(lines, key=_member_key) for lines in together.values()]
    for lines in sorted(groups, key=lambda lines: (_module_key(lines[0]), _member_key(lines[0]))):
        yield _from(lines, width)


def _from(lines: list[Import], width: int) -> str:
    head = f"from {lines[0].module} import "
    members = [f"{line.member}{_as(line)}" for line in lines]
    one_line = head + ", ".join(members)
    if len(one_line) <= width or members == ["*"]:
        return one_line
    return "\n".join([f"{head}(", *(f"{INDENT}{member}," for member in members), ")"])


def _as(line: Import) -> str:
    return f" as {line.alias}" if line.alias else ""


def _module_key(line: Import) -> Any:
    return _natural(line.module.lower()), _natural(line.module)


def _member_key(line: Import) -> Any:
    """Sort constants first, then classes, then the rest, each by name."""
    member = line.member or ""
    constant = len(member.encode()) > 1 and member.isupper()  # ruff counts bytes
    rank = 0 if constant else 1 if member[:1].isupper() else 2
    return (
        member != "*",
        rank,
        _natural(member.lower()),
        _natural(member),
        _alias_key(line),
    )


def _alias_key(line: Import) -> Any:
    return line.alias is not None, _natural(line.alias or "")


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts `x9` before `x10`: a run of digits counts as a number."""
    return tuple(_natural_part(part) for part in _NATURAL.findall(text))


def _natural_part(part: str) -> tuple[int, int, str]:
    if not "0" <= part[0] <= "9":
        return ord(part), 0, ""
    # A run that begins with 0 is read as decimals: it sorts before the others, as text.
    return ord("0"), 0 if part[0] == "0" else len(part), part


# -- Order: pieces in the order that importing the module needs ------------------------------------
_RANK = {"setup": 0, "constant": 1, "definition": 2}
# For each piece that is not placed yet, by its number, the numbers of those it must follow.
_Edges = dict[int, set[int]]
_Graph = tuple[_Edges, _Edges, _Edges]  # hard, calls, soft: see `_graph`


def ordered(pieces: Iterable[Piece]) -> list[Piece]:
    """Order pieces so that each stands below what it needs; else by where they were first bound.

    Set-up comes first, below what it uses itself; then constants, then definitions. A function
    stands below the functions it calls, unless they call each other. Where constants need each
    other, one of them loses the spellings that say so.

    Raises:
        ExportError: pieces need each other, and have no other spelling.
    """
    by_rank = sorted(pieces, key=_rank)
    graph = _graph(by_rank)
    placed: list[int] = []
    while len(placed) < len(by_rank):
        hard, calls, soft = (_left(edges, placed) for edges in graph)
        left = (hard, calls, soft)
        number = _next(left)
        if number is None:
            by_rank = _without_circle(by_rank, left)
            graph = _graph(by_rank)
        else:
            placed.append(number)
    return [by_rank[number] for number in placed]


def _rank(piece: Piece) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    return _RANK[piece.kind], piece.first, piece.names


def _left(edges: _Edges, placed: list[int]) -> _Edges:
    return {one: needs.difference(placed) for one, needs in edges.items() if one not in placed}


def _united(*edges: _Edges) -> _Edges:
    return {piece: set().union(*(one[piece] for one in edges)) for piece in edges[0]}


def _graph(pieces: list[Piece]) -> _Graph:
    """Return who follows whom.

    Returns:
        Those whose names are read while the module is imported; what those read in turn, as a
        function that is called needs all that it uses, and set-up, for all that set-up itself
        does not use; those whose names are read later, and what those read: callees read best
        above callers.
    """
    homes: dict[str, set[int]] = {}
    for number, piece in enumerate(pieces):
        for name in piece.names:
            homes.setdefault(name, set()).add(number)
    hard = _edges(pieces, homes, lambda spelling: spelling.now)
    soft = _edges(pieces, homes, lambda spelling: spelling.later)
    uses = _united(hard, soft)
    calls = {piece: _reached(needs, uses) - {piece} for piece, needs in hard.items()}
    later = {piece: _reached(needs, uses) - {piece} for piece, needs in soft.items()}
    setups = {number for number, piece in enumerate(pieces) if piece.kind == "setup"}
    for number in calls.keys() - _reached(setups, uses):
        calls[number] |= setups
    return hard, calls, later


def _edges(
    pieces: list[Piece],
    homes: dict[str, set[int]],
    read: Callable[[Spelling], frozenset[str]],
) -> _Edges:
    edges: _Edges = {}
    for number, piece in enumerate(pieces):
        names = {name for spelling in piece.spellings for name in read(spelling)}
        edges[number] = {home for name in names for home in homes.get(name, ())} - {number}
    return edges


def _reached(starts: Iterable[int], edges: _Edges) -> set[int]:
    found: set[int] = set()
    ahead = set(starts)
    while ahead:
        piece = ahead.pop()
        found.add(piece)
        ahead |= edges[piece] - found
    return found


def _next(graph: _Graph) -> int | None:
    """Return the best piece that can stand next, or None where circles leave none."""
    hard, calls, _ = graph
    edges = _united(*graph)
    free = next((piece for piece, needs in edges.items() if not needs), None)
    if free is not None:
        return free
    circling = _circling(edges)
    blocks = (_united(hard, calls), hard)
    return next((piece for needs in blocks for piece in circling if not needs[piece]), None)


def _circling(edges: _Edges) -> list[int]:
    """List pieces that follow each other and no others."""
    below: _Edges = {piece: set() for piece in edges}
    for piece, needs in edges.items():
        for need in needs:
            below[need].add(piece)
    piece = next(iter(edges))
    while others := _reached([piece], edges) - _reached([piece], below):
        piece = min(others)
    return sorted(_reached([piece], edges))


def _without_circle(pieces: list[Piece], graph: _Graph) -> list[Piece]:
    """Take from one piece of a circle the spellings that close it."""
    circle = _circling({piece: graph[0][piece] for piece in _circling(_united(*graph))})
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


def rendered(module: Module) -> str:
    """Write a module: docstring, imports, pieces, `build_pipeline` and `main`.

    Returns:
        Its text, which ends in one newline; lines end in a line feed.

    Raises:
        ExportError: a name that the module needs is taken, or pieces need each other.
    """
    pieces = ordered(module.pieces)
    _refuse_taken(module)
    imports = {*module.imports, Import("nbpipe")}
    head = f"{_docstring(module)}\n\n{import_block(imports, future=module.future)}"
    top = "".join([head, *_written(pieces)])
    return "\n\n\n".join([top, _build(module), _main(_free_name(module))]) + "\n"


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


def _written(pieces: list[Piece]) -> Iterator[str]:
    """Write pieces, each with the empty lines that stand above it."""
    for above, piece in zip([None, *pieces], pieces, strict=False):
        yield "\n" * (1 + _gap(above, piece)) + _unix(piece.text).strip("\n")


def _gap(above: Piece | None, piece: Piece) -> int:
    """Count the empty lines: two around definitions, none between lines of one kind."""
    if above is None:
        return 2 if _begins_with_definition(piece) else 1
    if _defines(above) or _defines(piece):
        return 2
    alike = above.kind == piece.kind == "constant"
    return 0 if alike and _is_short(above) and _is_short(piece) else 1


def _tree(piece: Piece) -> list[ast.stmt]:
    return ast.parse(_unix(piece.text)).body


def _defines(piece: Piece) -> bool:
    return any(_is_definition(line) for line in _tree(piece))


def _begins_with_definition(piece: Piece) -> bool:
    return any(_is_definition(line) for line in _tree(piece)[:1])


def _is_definition(line: ast.stmt) -> bool:
    return isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _is_short(piece: Piece) -> bool:
    return all(line.lineno == line.end_lineno for line in _tree(piece))


def _build(module: Module) -> str:
    """Write `build_pipeline`."""
    parameters = [one for one in module.parameters if one.positional]
    by_name = [one for one in module.parameters if not one.positional]
    lines = [line for one in parameters for line in _parameter(one)]
    lines += [f"{INDENT}*,"] if by_name else []
    lines += [line for one in by_name for line in _parameter(one)]
    head = [f"def {_BUILD}(", *lines, _RETURNS] if lines else [f"def {_BUILD}({_RETURNS}"]
    return "\n".join([*head, *indented(_body(module))])


def _parameter(parameter: Parameter) -> Lines:
    lines = expression(parameter.default)
    lines[0] = f"{parameter.name}: {parameter.annotation} = {lines[0]}"
    lines[-1] += ","
    return indented(lines)


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
