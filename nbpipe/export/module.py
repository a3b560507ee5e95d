"""Module: what is to be written, as frozen values, and its text; no live object is looked at."""

from __future__ import annotations

import ast
import keyword
import re
import sys
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise, product
from typing import Any, Literal, NamedTuple

from ..errors import ExportError
from ..ops import stage as stages
from .literals import laid_out
from .source import indent_of, last_name, lines_of, replaced, root_of, span_of

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
class Line:
    """A statement of `build_pipeline`.

    Attributes:
        text: calls of nbpipe, and calls of the methods of what they give, as one expression; or
            statements of the user's.
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
        """The tree of the expression, or of the statements."""
        return ast.parse(self.text) if self.is_code else ast.parse(self.text, mode="eval").body

    def rooted(self, folders: Collection[str], name: str) -> Line:
        """Return it with a name in the place of an expression, which is given as Python shows it.

        Args:
            folders: the expression.
            name: what takes its place.
        """
        kinds = ast.Name | ast.Constant
        nodes = (one for one in ast.walk(self.tree) if isinstance(one, kinds))
        parts = [(one, name) for one in nodes if ast.unparse(one) in folders]
        return replace(self, text=replaced(self.text, parts))

    def changed(self, texts: Mapping[str, str]) -> Line:
        """Return it with others in the place of some names."""
        names = (one for one in ast.walk(self.tree) if isinstance(one, ast.Name))
        parts = [(one, texts[one.id]) for one in names if one.id in texts]
        return replace(self, text=replaced(self.text, parts))


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
            words[id(stage)] = _free(identifier(stage.name), words.values())
    return words


def _free(word: str, taken: Collection[str]) -> str:
    found, number = word, 2
    while found in taken:
        found, number = f"{word}_{number}", number + 1
    return found


# -- Chains as lines of code: as ruff lays them out -----------------------------------
# A line here may hold line feeds, where a string of the user's goes on over them: whatever indents
# lines leaves the inside of strings alone.
INDENT = "    "
_WIDTH = 88
_FLUENT = 3  # calls, from which on each has a line where one line is too short
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


def _argument(text: str, label: str, room: int) -> Lines:
    """Lay out an argument of the user's: in one line, or opened; one with comments is kept."""
    line = _one_line(text)
    if line is None:
        return expression(label + text)
    lines = laid_out(line, label, room, room + 1)
    return (
        lines
        if len(lines) > 1 or "\n" not in text or _fits(lines[0], room)
        else (expression(label + text))
    )


def _one_line(text: str) -> str | None:
    """Write an expression in one line; None where it says, or has to, that it takes several."""
    tokens = [one for one in lines_of(f"({text}\n)").tokens if one.type != tokenize.NL][1:-3]
    apart = any(one.type == tokenize.COMMENT or one.start[0] < one.end[0] for one in tokens)
    magic = any(a.string == "," and b.string in (")", "]", "}") for a, b in pairwise(tokens))
    if "\n" in text and (apart or magic or "\\\n" in text):
        return None
    if "\n" not in text:
        return None if magic else text
    return re.sub(
        r"([(\[{]?)\s*\n\s*([)\]}]?)",
        lambda found: found[1] + ("" if found[1] or found[2] else " ") + found[2],
        text,
    )


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


# A call in the text of a chain may carry the user's comments, as an argument that is not written.
_COMMENTS = "_comments"


class Comments(NamedTuple):
    """What stands above a call or an argument, and behind it."""

    above: Sequence[str] = ()
    behind: str = ""


def commented(comments: Mapping[str, Comments]) -> list[str]:
    """Return the argument by which a call carries comments; none where there are none.

    Args:
        comments: those of an argument by its name, or its number; those of the call by "".
    """
    found = {key: (list(one.above), one.behind) for key, one in comments.items() if any(one)}
    return [f"{_COMMENTS}={found!r}"] if found else []


def _comments_of(call: ast.Call) -> dict[str, Comments]:
    found = [one.value for one in call.keywords if one.arg == _COMMENTS]
    pairs = ast.literal_eval(found[0]) if found else {}
    return {key: Comments(*one) for key, one in pairs.items()}


def _calls(node: ast.expr) -> list[ast.Call]:
    """Return the calls of a chain, the first first; none of another expression."""
    found: list[ast.Call] = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        found.insert(0, node)
        node = node.func.value
    return found if isinstance(node, ast.Name) else []


def _is_chain(node: ast.expr) -> bool:
    """Tell whether an expression gives a pipeline: it begins with a call of nbpipe."""
    return bool(calls := _calls(node)) and last_name(root_of(calls[0].func)) == "nbpipe"


class _Layout:
    """Lays out the chain of a text.

    One line where that is long enough; else the arguments of a call, or of both of two, have a
    line each; of more calls each has a line.
    """

    def __init__(self, text: str) -> None:
        self._data = text.encode("utf-8")

    def statement(self, node: ast.expr, room: int, prefix: str, *, brackets: bool = True) -> Lines:
        """Write a chain that stands behind a prefix; brackets tell whether it needs some."""
        calls = _calls(node)
        if not calls:
            return [prefix + self._text(node)]
        if len(calls) < _FLUENT:
            return self._short(calls, room, prefix)
        parts = [self._call(call, room) for call in calls]
        whole = prefix + self._base(calls) + "".join("".join(part) for part in parts)
        bare = not any(map(_comments_of, calls))
        if bare and all(len(part) == 1 for part in parts) and _fits(whole, room):
            return [whole]
        if not brackets:
            return self._fluent(calls, room)
        return [f"{prefix}(", *indented(self._fluent(calls, room - len(INDENT))), ")"]

    def _fluent(self, calls: list[ast.Call], room: int) -> Lines:
        lines: Lines = []
        for number, call in enumerate(calls):
            above, behind = _comments_of(call).get("", Comments())
            own = self._call(call, room, "" if number else self._base(calls))
            lines += _behind(own, behind, room, above)
        return lines

    def _short(self, calls: list[ast.Call], room: int, prefix: str) -> Lines:
        """Write one or two calls; comments within go above them."""
        known = [_comments_of(call).get("", Comments()) for call in calls]
        above = [line for one in known for line in one.above]
        above += [one.behind for one in known[:-1] if one.behind]
        heads = [prefix + self._base(calls), ""]
        ways: list[tuple[bool, int, int, Lines]] = []
        for broken in product((False, True), repeat=len(calls)):
            lines, flat = [""], True
            for call, head, apart in zip(calls, heads, broken, strict=False):
                more = self._call(call, room, head, apart=apart)
                lines = [*lines[:-1], lines[-1] + more[0], *more[1:]]
                flat = flat and (apart or "\n" not in more[0])
            long = [line for line in lines if len(line.partition("\n")[0]) > room]
            ways.append((not flat, len(long), len(ways), lines))
        lines = min(ways)[-1]
        return _behind(lines, known[-1].behind, room, above)

    def _base(self, calls: list[ast.Call]) -> str:
        return self._text(calls[0].func.value)  # type: ignore[attr-defined]

    def _text(self, node: Any) -> str:
        first, last = span_of(self._data, node)
        return self._data[first:last].decode("utf-8")

    def _call(
        self, call: ast.Call, room: int, prefix: str = "", *, apart: bool | None = None
    ) -> Lines:
        """Write a call; `apart` gives each argument a line, None where they do not fit in one."""
        method: str = call.func.attr  # type: ignore[attr-defined]
        comments = _comments_of(call)
        items = [
            _Item(self._argument(one, _inside(room), method), comments.get(str(number)))
            for number, one in enumerate(call.args)
        ]
        items += [
            _Item(
                _argument(self._text(one.value), f"{one.arg}=", _inside(room)),
                comments.get(str(one.arg)),
            )
            for one in call.keywords
            if one.arg != _COMMENTS
        ]
        own = comments.keys() - {""} or any(
            _is_chain(one) and len(_calls(one)) > 1 for one in call.args
        )
        return _bracketed(f"{prefix}.{method}(", items, ")", room, apart=bool(own) or apart)

    def _argument(self, node: ast.expr, room: int, method: str) -> Lines:
        if _is_chain(node):
            return self.statement(node, room, "", brackets=False)
        if isinstance(node, ast.List) and node.elts and all(map(_is_chain, node.elts)):
            items = [
                _Item(self.statement(one, _inside(room), "", brackets=False)) for one in node.elts
            ]
            apart = any(len(_calls(one)) > 1 for one in node.elts)
            return _bracketed("[", items, "]", room, apart=apart or None)
        if method == "route" and isinstance(node, ast.Dict):
            items = [
                _Item(self._branch(key, value, _inside(room)))
                for key, value in zip(node.keys, node.values, strict=True)
            ]
            return _bracketed("{", items, "}", room, apart=len(items) > 1 or None)
        return _argument(self._text(node), "", room)

    def _branch(self, key: Any, value: Any, room: int) -> Lines:
        *above, last = expression(self._text(key))
        prefix = f"{last}: lambda {value.args.args[0].arg}: "
        return [*above, *self.statement(value.body, room, prefix)]


class _Item(NamedTuple):
    """What stands between brackets."""

    lines: Lines
    comments: Comments | None = None


def _bracketed(
    head: str, items: Sequence[_Item], close: str, room: int, *, apart: bool | None = None
) -> Lines:
    """Write `head`, items and `close` in one line where that fits, else each item on its own.

    Args:
        head: what opens the brackets.
        items: what stands in them.
        close: what closes them.
        room: columns of a line.
        apart: each item has a line of its own; None: where they do not fit in one.
    """
    one_line = head + ", ".join("\n".join(item.lines) for item in items) + close
    if not items or (not apart and (apart is not None or _fits(one_line, room))):
        return [one_line]
    inner: Lines = []
    for lines, comments in items:
        above, behind = comments or Comments()
        inner += _behind([*lines[:-1], f"{lines[-1]},"], behind, room - len(INDENT), above)
    return [head, *indented(inner), close]


def _behind(lines: Lines, comment: str, room: int, above: Sequence[str]) -> Lines:
    """Add a comment behind the last line where it fits, else with those above the first."""
    if not comment:
        return [*above, *lines]
    if len(lines[-1]) + 2 + len(comment) > room:
        return [*above, comment, *lines]
    return [*above, *lines[:-1], f"{lines[-1]}  {comment}"]


def _inside(room: int) -> int:
    """Return the columns of a line that is indented by one more step and ends in a comma."""
    return room - len(INDENT) - 1


def _fits(line: str, room: int) -> bool:
    return "\n" not in line and len(line) <= room


# -- Imports in sections, as isort sorts them ------------------------------------------------------
_NATURAL = re.compile(r"[0-9]+|[^0-9]")


def import_block(imports: Iterable[Import], *, future: bool) -> str:
    """Write imports, without a newline at the end.

    Args:
        imports: in any order; one that is given twice is written once.
        future: begin with `from __future__ import annotations`.

    Source: isort's "profile = black", as ruff's rule I001 has it.
    """
    given = {*imports, *([Import("__future__", "annotations")] if future else [])}
    local = {line.module for line in given if line.local}
    wanted = {replace(line, local=line.module in local) for line in given}
    by_name = sorted(
        wanted, key=lambda line: (_module_key(line), _member_key(line), _natural(line.alias or ""))
    )
    sections = groupby(sorted(by_name, key=_section), key=_section)
    return "\n\n".join("\n".join(_statements(list(lines))) for _, lines in sections)


def _section(line: Import) -> int:
    if line.module == "__future__":
        return 0
    if line.local:
        return 3
    return 1 if line.module.partition(".")[0] in sys.stdlib_module_names else 2


def _statements(section: list[Import]) -> Iterator[str]:
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
        yield _from(lines)


def _from(lines: list[Import]) -> str:
    head = f"from {lines[0].module} import "
    members = [f"{line.member}{_as(line)}" for line in lines]
    one_line = head + ", ".join(members)
    if len(one_line) <= _WIDTH or members == ["*"]:
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
    by_rank = sorted(pieces, key=_rank)
    order = _Order(by_rank)
    while order.circle:
        by_rank = _without_circle(by_rank, order.circle)
        order = _Order(by_rank)
    return [by_rank[number] for number in order.whole()]


def _rank(piece: Piece) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    return _RANK[piece.kind], piece.first, piece.names


class _Order:
    """What must, should and may well stand above each of some pieces; `circle` allows no order."""

    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces
        self._hard = self._edges(lambda spelling: spelling.now)
        later = self._edges(lambda spelling: spelling.later)
        uses = {number: needs | later[number] for number, needs in self._hard.items()}
        self._must = {number: _reached(needs, self._hard) for number, needs in self._hard.items()}
        # A function that is called while the module is imported needs all that it uses.
        self._called = {number: _reached(needs, uses) for number, needs in self._hard.items()}
        self._used = {number: _reached(needs, uses) for number, needs in uses.items()}
        self._placed: list[int] = []
        self._under_way: set[int] = set()
        first = next((number for number in self._must if number in self._must[number]), None)
        around = [] if first is None else sorted(self._must[first])
        self.circle = [number for number in around if first in self._must[number]]

    def whole(self) -> list[int]:
        """Return the numbers of all pieces in order; constants that use no definition are early."""
        for number in sorted(self._hard, key=lambda one: (*self._early(one), one)):
            self._place(number)
        return self._placed

    def _early(self, number: int) -> tuple[int, bool]:
        kind = self._pieces[number].kind
        uses = any(self._pieces[one].kind == "definition" for one in self._used[number])
        return _RANK[kind], kind == "constant" and uses

    def _place(self, number: int) -> None:
        """Place a piece below what it needs; what needs it in turn, and need not wait, waits."""
        if number in self._under_way:
            return
        self._under_way.add(number)
        for one in sorted(self._hard[number]):
            self._place(one)
        for edges in (self._called, self._used):
            for one in sorted(edges[number]):
                waiting = self._under_way.difference(self._placed)
                if number not in edges[one] and waiting.isdisjoint(self._must[one]):
                    self._place(one)
        self._placed.append(number)

    def _edges(self, read: Callable[[Spelling], frozenset[str]]) -> _Edges:
        homes: dict[str, set[int]] = {}
        for number, piece in enumerate(self._pieces):
            for name in piece.names:
                homes.setdefault(name, set()).add(number)
        edges: _Edges = {}
        for number, piece in enumerate(self._pieces):
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
    if above is None:
        return 2 if _begins_with_definition(piece) else 1
    if _defines(above) or _defines(piece):
        return 2
    alike = above.kind == piece.kind == "constant"
    return 0 if alike and _is_short(above) and _is_short(piece) else 1


def _tree(piece: Piece) -> list[ast.stmt]:
    return ast.parse(piece.text).body


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
    doc = f'"""Build the pipeline with the values tuned in {module.origin}."""'
    return [doc, *chain_lines(module.body, "return ", _WIDTH - len(INDENT))]


def chain_lines(body: Iterable[Line], ends: str, room: int = _WIDTH) -> Lines:
    """Lay out statements that make a pipeline.

    Args:
        body: the statements.
        ends: what stands before the one that is assigned to nothing, as "return ".
        room: columns of a line.
    """
    lines: Lines = []
    for line in body:
        if line.is_code:
            lines += _code_lines(line.text.strip("\n"))
        else:
            prefix = f"{line.name} = " if line.name else ends
            lines += [*line.above, *_Layout(line.text).statement(line.tree, room, prefix)]
    return lines


def _main(name: str) -> str:
    return (
        f"def {name}() -> None:\n"
        f"    for _ in nbpipe.progress({_BUILD}()):\n"
        "        pass\n\n\n"
        'if __name__ == "__main__":\n'
        f"    {name}()"
    )
