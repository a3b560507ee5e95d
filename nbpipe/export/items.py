"""Items: the source of a pipeline; the path that its files are found under is a parameter."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

from ..errors import ExportError
from ..executors.pickling import by_reference
from ..stage import Stage
from .calls import Called, call_of
from .cells import Statement
from .definitions import read
from .expressions import expression
from .handles import handle_in
from .lines import span_of
from .literals import NoLiteral, literal
from .living import kind_of
from .model import Parameter, Piece, Spelling
from .places import Place
from .portrait import difference, portrait
from .secrets import secret_in, secret_in_text
from .uses import refusal, secret_refusal

_METHODS = frozenset(("glob", "rglob", "iterdir", "walk"))
_FUNCTIONS = frozenset(("glob", "iglob", "listdir", "scandir", "walk"))
_MODULES = frozenset(("glob", "os"))
_LAST = 2**31  # it stands behind all cells
_ROOT, _PATTERN = "root", "pattern"
_CALLED = "(lambda *, "  # how the trial calls an expression with a parameter in it
_MAKE = "give the source a function that makes them: nbpipe.source(make_items)"


class Items(NamedTuple):
    """What a source is given.

    Attributes:
        text: the expression.
        parameter: the path under which files are found.
        check: where the trial decides how it is written: the ways, as a constant that bears
            the name `text`.
    """

    text: str
    parameter: Parameter | None = None
    check: Piece | None = None


class _Written(NamedTuple):
    """An expression of the user's text."""

    statement: Statement
    node: ast.expr


def items_of(stage: Stage, items: Any, place: Place, *, wanted: str, mark: str) -> Items:
    """Write what a source was given.

    Args:
        stage: the source.
        items: what it reads.
        place: where it stands.
        wanted: name for the parameter of a path.
        mark: what stands for an expression that the trial decides on.

    Raises:
        ExportError: it cannot be written.
    """
    handle = None if _is_named(items, place) else handle_in("items", items)
    if handle is not None:
        words = f"reads a live {kind_of(handle.value)}, {handle.place}; {handle.way_out}"
        raise refusal(f"{place.use.words} {words}", place.use)
    call = call_of(stage, place.scope.cells, "source")
    written = None if call is None or not call.is_global else _argument(call)
    written = _followed(written, items, place)
    if written is not None:
        found = _root(written.node, place)
        if found is not None and _is_placed(written, found[0]):
            return _searched(_Search(written, *found, wanted, mark), items, place)
    if _is_named(items, place):
        return Items(_named(items, place))
    return _checked(written, items, place, mark)


def _argument(call: Called) -> _Written | None:
    node = call.argument()
    return None if node is None else _Written(call.statement, node)


def _followed(written: _Written | None, items: Any, place: Place) -> _Written | None:
    """Go from a variable to the expression that it was assigned.

    Raises:
        ExportError: the variable has another value by now.
    """
    name = place.scope.name_of(items)
    if written is not None and isinstance(written.node, ast.Name):
        given = written.node.id
        live = place.scope.namespace.get(given)
        if live is not items and difference(portrait(items), portrait(live)) is not None:
            raise refusal(
                f"the pipeline still reads an older {given!r}; it was assigned anew since: rebuild "
                "the pipeline, then export",
                place.use,
            )
        name = given
    elif written is not None:
        return written
    statement = None if name is None else place.scope.newest(name)
    value = getattr(None if statement is None else statement.node, "value", None)
    simple = statement is not None and isinstance(statement.node, ast.Assign | ast.AnnAssign)
    if statement is None or not simple or not isinstance(value, ast.expr):
        return None
    return _Written(statement, value) if len(statement.binds) == 1 else None


def _is_named(items: Any, place: Place) -> bool:
    return place.scope.name_of(items) is not None or callable(items)


def _named(items: Any, place: Place) -> str:
    try:
        return expression(items, place)
    except ExportError as error:
        many = isinstance(items, list | tuple) and "at most" in str(error)
        if not many:
            raise
        first, _, rest = str(error).partition("\n")
        fix = "" if "write a function" in first else f"; {_MAKE}"
        raise ExportError(f"{first}{fix}\n{rest}") from None


# -- files under a path -------------------------------------------------------------------
def _searches(node: ast.expr) -> Iterator[ast.expr]:
    """Give the paths that an expression looks for files under."""
    for one in ast.walk(node):
        if not isinstance(one, ast.Call) or not isinstance(one.func, ast.Attribute):
            continue
        owner, name = one.func.value, one.func.attr
        is_module = isinstance(owner, ast.Name) and owner.id in _MODULES
        if is_module and name in _FUNCTIONS and one.args:
            yield one.args[0]
        elif not is_module and name in _METHODS:
            yield owner


class _Search(NamedTuple):
    """An expression that looks for files."""

    written: _Written
    root: ast.expr
    base: ast.expr
    wanted: str
    mark: str


def _searched(search: _Search, items: Any, place: Place) -> Items:
    """Make a parameter of the path that files are looked for under."""
    statement, node = search.written
    root = search.root
    source = statement.cell.text
    whole = ast.get_source_segment(source, node) or ""
    default = ast.get_source_segment(source, root) or ""
    if secret_in_text(f"items = {whole}"):
        raise secret_refusal("the source", place.use)
    wanted = search.wanted.replace(_ROOT, _PATTERN) if "*" in default else search.wanted
    name = place.collector.free_name(wanted) if default != wanted else wanted
    parameter = Parameter(name, _annotation(root, search.base, place), default, positional=True)
    now, later = read(place.collector, place.scope, node, statement.cell.flags, place.use)
    text = _replaced(source, node, _same(node, root), name)
    if not isinstance(items, list | tuple | dict):
        return Items(text, parameter)
    found = Spelling(f"{search.mark} = {_CALLED}{name}={default}: ({text}))()", now | later)
    place.collector.found.reasons[search.mark] = _changed(items, statement, place)
    return Items(search.mark, parameter, _check(search.mark, (found,), items, place))


def _changed(items: Any, statement: Statement, place: Place) -> str:
    """Say what to do about items that are not what their text finds."""
    name = place.scope.name_of(items) or "files"
    return (
        f"{name!r} is not what its text in {statement.cell.place} finds by now: the list was "
        f"changed afterwards, or the files were; make it in one expression, as {name} = "
        "sorted(...), and rebuild the pipeline"
    )


def _root(node: ast.expr, place: Place) -> tuple[ast.expr, ast.expr] | None:
    """Give the folder that an expression looks for files under, and the path that names it.

    None where there are several folders, or the expression itself finds out where to look.
    """
    inner = {name for one in ast.walk(node) for name in _bound(one)}
    found = [(_folder(base, inner, place), base) for base in _searches(node)]
    outer = [(root, base) for root, base in found if inner.isdisjoint(_read(root))]
    return outer[0] if len({ast.dump(root) for root, _ in outer}) == 1 else None


def _bound(node: ast.AST) -> Iterator[str]:
    """Give the names that a part of an expression binds for others."""
    if isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id


def _read(node: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _folder(base: ast.expr, inner: set[str], place: Place) -> ast.expr:
    """Give the part of a path that names a folder: a variable, else all of it."""
    for node in ast.walk(base):
        if isinstance(node, ast.Name) and node.id not in inner:
            value = place.scope.namespace.get(node.id)
            if isinstance(value, PurePath | str):
                return node
    return base


def _annotation(root: ast.expr, base: ast.expr, place: Place) -> str:
    value = place.scope.namespace.get(root.id) if isinstance(root, ast.Name) else None
    if isinstance(value, str) or isinstance(root, ast.Constant | ast.JoinedStr):
        return "str"
    if root is base and value is None and _is_text(base):
        return "str"
    kind = type(value) if isinstance(value, PurePath) else None
    if kind is None or kind.__name__.endswith(("PosixPath", "WindowsPath")):
        from pathlib import Path

        kind = Path
    return place.collector.spelled(place.scope, kind, place.use)


def _is_text(base: ast.expr) -> bool:
    """Say whether a path is text: neither a path nor something that is joined to one."""
    if isinstance(base, ast.BinOp):
        return not isinstance(base.op, ast.Div)
    return not (isinstance(base, ast.Call) and ast.unparse(base.func).endswith("Path"))


def _same(whole: ast.expr, part: ast.expr) -> list[ast.expr]:
    """Give all places of an expression where the same variable stands; only one of another part."""
    if not isinstance(part, ast.Name):
        return [part]
    found = [one for one in ast.walk(whole) if isinstance(one, ast.Name) and one.id == part.id]
    return sorted(found, key=lambda one: (one.lineno, one.col_offset))


def _is_placed(written: _Written, part: ast.expr) -> bool:
    """Say whether a variable stands where its tree says; in f-strings, Python 3.11 may be wrong."""
    source = written.statement.cell.text
    names = [one for one in _same(written.node, part) if isinstance(one, ast.Name)]
    return all(ast.get_source_segment(source, one) == one.id for one in names)


def _replaced(source: str, whole: ast.expr, parts: list[ast.expr], name: str) -> str:
    """Give an expression with parts of it, from first to last, replaced by a name."""
    data = source.encode("utf-8")
    at, end = span_of(data, whole)
    text = b""
    for begin, last in (span_of(data, part) for part in parts):
        text += data[at:begin] + name.encode("utf-8")
        at = last
    return (text + data[at:end]).decode("utf-8")


# -- what has no name ---------------------------------------------------------------------
def _checked(written: _Written | None, items: Any, place: Place, mark: str) -> Items:
    """Write items that have no name: as they were given, or as a literal."""
    if secret_in("items", items) is not None:
        raise secret_refusal(place.use.words, place.use)
    spellings = [] if written is None else _as_written(written, place, mark)
    plain = isinstance(items, list | tuple | range | dict) or not by_reference(type(items))
    if not spellings and not plain:
        return Items(expression(items, place))
    reason = "its text is not known"
    try:
        text = literal(items, place.collector.spell(place.scope, place.use))
    except NoLiteral as no:
        reason = no.reason
    else:
        spellings.append(Spelling(f"{mark} = {text}"))
    if not spellings:
        if not plain or not isinstance(items, list | tuple | range | dict):
            return Items(expression(items, place))
        fix = "" if "function" in reason else f"; {_MAKE}"
        raise refusal(
            f"cannot write the items of {place.use.words} into the module: {reason}{fix}", place.use
        )
    place.collector.found.reasons[mark] = f"{reason}; {_MAKE}"
    return Items(mark, check=_check(mark, tuple(spellings), items, place))


def _check(mark: str, spellings: tuple[Spelling, ...], items: Any, place: Place) -> Piece:
    """Have the trial find the way to write items that gives those of the notebook."""
    place.collector.found.uses[mark] = place.use
    words = f"what {place.use.words} reads"
    return Piece((mark,), spellings, {mark: portrait(items)}, "constant", (_LAST, 0), words)


def _as_written(written: _Written, place: Place, mark: str) -> list[Spelling]:
    source, flags = written.statement.cell.text, written.statement.cell.flags
    text = ast.get_source_segment(source, written.node) or ""
    if secret_in_text(f"items = {text}"):
        raise secret_refusal("the source", place.use)
    reads: list[frozenset[str]] = []

    def collect() -> None:
        now, later = read(place.collector, place.scope, written.node, flags, place.use)
        reads.append(now | later)

    if place.collector.attempt(collect) is not None:
        return []
    return [Spelling(f"{mark} = ({text})", reads[0])]


def chosen_text(spelling: Spelling) -> str:
    """Give the expression of a way that the trial chose."""
    value = ast.parse(spelling.text).body[0].value  # type: ignore[attr-defined]
    if spelling.text.partition(" = ")[2].startswith(_CALLED):
        value = value.func.body
    return ast.get_source_segment(spelling.text, value) or ""
