"""Definitions: functions and classes become pieces, and the user's own words for values."""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from ..executors.pickling import by_reference
from .cells import Cell, Definition, Statement, of_file
from .difference import difference, loosened, portrait
from .handles import handle_in
from .held import held_in, members_of, named_in, need_held, registered
from .model import Piece, Spelling
from .names import CHANGING, names_read
from .scope import Scope, is_installed
from .secrets import secret_in_text
from .uses import Called, Use, refusal, secret_refusal

if TYPE_CHECKING:
    from .collect import Collector

# -- Definitions: functions and classes become pieces, whole and as they were written --------------
_DEFS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_FUTURE = __future__.annotations.compiler_flag
_GENERATED = ("<string>", "<attrs", "<frozen", "<makefun", "<decorator")
# Where compilers and wrappers keep the function that they were given.
_WRAPPED = ("__wrapped__", "py_func", "__func__", "fget", "func")
_DEPTH = 20


def is_import(node: ast.AST) -> bool:
    """Tell whether a statement imports, perhaps in a `try` or `if`."""
    if isinstance(node, ast.If | ast.Try | ast.With):
        return any(isinstance(one, ast.Import | ast.ImportFrom) for one in ast.walk(node))
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_defined(statement: Statement | None, name: str) -> bool:
    """Tell whether a statement is the definition of a function or class of this name."""
    return statement is not None and _def_in(statement.node, name) is not None


def _def_in(node: ast.AST, name: str) -> _DEFS | None:
    """Return the last definition of a name in a statement, also below `if`, `try` or `with`."""
    if isinstance(node, _DEFS):
        return node if node.name == name else None
    inner = [_def_in(one, name) for one in ast.iter_child_nodes(node)]
    return next((one for one in reversed(inner) if one is not None), None)


def collect(collector: Collector, scope: Scope, name: str, value: Any, use: Use) -> None:
    """Collect the function or class that a name stands for, and what it uses.

    Raises:
        ExportError: its text is not known, or something that it uses cannot be exported.
    """
    statement, cell, node, text = _written(scope, name, value, use)
    words = described(name, node, cell.place)
    if isinstance(value, type):
        _check_class(scope, name, value, statement, use)
        collector.found.classes[name] = _def_in(node, name) or node
        if _changes_itself(node, name):
            collector.found.changed.setdefault(name, words)
    reads = use.then(words)
    _refuse_handle(collector, name, value, node, use)
    check_text(text, node, cell, words, use)
    added = registered(scope, name, value, statement)
    names = (name, *_names_of(collector, scope, added.texts))
    now, later = read(collector, scope, node, cell.flags, reads)
    if isinstance(value, type):
        later |= _read_members(collector, scope, name, [statement, *added.texts], reads)
    for one in added.texts:
        more = _read_added(collector, scope, one, reads)
        now, later = now | more[0], later | more[1]
    collector.need_all(scope, added.names, reads)
    later |= added.names
    if any(name in piece.names for piece in collector.found.pieces.values()):
        return  # it stands below what it registers with
    text = "\n\n\n".join([text, *(one.text for one in added.texts)])
    piece = Piece(
        names=names,
        spellings=(Spelling(text, now - set(names), later - set(names)),),
        expected={name: loosened(portrait(value), _filled_defaults(node))},
        first=scope.first(name),
        words=f"{_kind(node)} {name!r}, defined in {cell.place}",
    )
    collector.add(piece, scope)
    if cell.flags & _FUTURE:
        collector.found.future = True


def _written(scope: Scope, name: str, value: Any, use: Use) -> tuple[Statement, Cell, ast.AST, str]:
    """Return the statement, cell, tree and text of a definition."""
    statement = scope.newest(name)
    found = _found(scope, name, value)
    if found is not None and not (is_defined(statement, name) and _is_decorated(statement, name)):
        return found.statement, found.cell, found.node, found.text(name)
    if statement is None or not is_defined(statement, name):
        raise refusal(_unknown(name, value), use)
    return statement, statement.cell, statement.node, statement.text


def _read_members(
    collector: Collector, scope: Scope, name: str, statements: Sequence[Statement], use: Use
) -> frozenset[str]:
    """Collect the functions that the attributes of a class hold; give their names."""
    members = members_of(scope[name])
    place = unnamed_in(scope, members, statements)
    if place is not None:
        collector.found.unnamed[name] = (place, use)
    return need_held(collector, scope, members, use)


def _refuse_handle(collector: Collector, name: str, value: Any, node: ast.AST, use: Use) -> None:
    """Refuse what lives in one process among defaults, captured variables and attributes.

    Raises:
        ExportError: there is something of that kind.
    """
    handle = handle_in(name, value)
    if handle is None:
        return
    error = refusal(handle.words, use)
    if not isinstance(value, type) or not _changes_itself(node, name):
        raise error
    collector.found.alive[name] = ("", error)


def _names_of(collector: Collector, scope: Scope, texts: Sequence[Statement]) -> list[str]:
    """Return the names that statements bind for good; whoever needs them finds them there."""
    names = sorted(
        name for one in texts for name in one.binds if name in scope and scope.newest(name) is one
    )
    for name in names:
        collector.found.owners.setdefault(name, scope)
    return names


def _read_added(
    collector: Collector, scope: Scope, statement: Statement, use: Use
) -> tuple[frozenset[str], frozenset[str]]:
    """Collect what a statement below a definition reads, and refuse what must not be in it."""
    node, cell = statement.node, statement.cell
    name = getattr(node, "name", None)
    words = f"a line of {cell.place}" if name is None else described(name, node, cell.place)
    check_text(statement.text, node, cell, words, use)
    return read(collector, scope, node, cell.flags, use.then(words))


def unnamed_in(scope: Scope, value: Any, statements: Sequence[Statement]) -> str | None:
    """Tell where a value holds a function whose name stands for something else by now.

    Args:
        scope: whose names count.
        value: what holds it.
        statements: those that a function may be made in.

    Returns:
        Its place, as "['crop']"; None where there is no such function.
    """
    for held in held_in(value):
        code = code_of(held.value)
        inner = "<locals>" in held.value.__qualname__  # made by a call, perhaps of the pipeline
        if by_reference(held.value) or inner or code is None or any(named_in(scope, held.value)):
            continue
        found = definition_of(scope, code)
        if found is None or all(found.statement is not one for one in statements):
            return held.place
    return None


def _unknown(name: str, value: Any) -> str:
    module = sys.modules.get(str(getattr(value, "__module__", "")))
    if module is not None and getattr(module, name, value) is not value:
        return (
            f"{name!r} is not what module {module.__name__!r} has by now, which was loaded anew; "
            "import it again, and rebuild the pipeline"
        )
    return (
        f"the text of {name!r} is not known: it was made neither in a cell nor in a file; define "
        "it in a cell, or import it"
    )


def _kind(node: ast.AST) -> str:
    return "class" if isinstance(node, ast.ClassDef) else "function"


def described(name: str, node: ast.AST, place: str) -> str:
    """Tell who uses something, as "decode() [In[4]]"."""
    return f"class {name} [{place}]" if isinstance(node, ast.ClassDef) else f"{name}() [{place}]"


def read(
    collector: Collector,
    scope: Scope,
    node: ast.AST,
    flags: int,
    use: Use,
    *,
    local: Sequence[str] = (),
) -> tuple[frozenset[str], frozenset[str]]:
    """Collect what some code reads; give the names read now and later.

    Args:
        collector: takes it.
        scope: whose names are read.
        node: the code.
        flags: `__future__` flags of its cell.
        use: who reads.
        local: names that are parameters in the module.
    """
    now, later, rebound, mutated = names_read(node, future=bool(flags & _FUTURE))
    for name in (*rebound, *mutated):
        collector.found.changed.setdefault(name, use.words.partition(" [")[0])
    collector.need_all(scope, (now | later | rebound) - set(local), use)
    return now, later


def check_text(text: str, node: ast.AST, cell: Cell, words: str, use: Use) -> None:
    """Refuse text with shell lines or secrets in it.

    Raises:
        ExportError: it has them.
    """
    first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    lines = [line for line in sorted(cell.shell_lines) if first <= line <= last]
    if lines:
        raise refusal(
            "a shell/magic line (`!`, `%`) is inside exported code; use subprocess or plain Python",
            use.then(f"{words} line {lines[0]}"),
        )
    if secret_in_text(text):
        raise secret_refusal(f"the text of {words}", use, text=text)


# -- by code ------------------------------------------------------------------------------
def code_of(value: Any) -> CodeType | None:
    """Return the code of the function inside a callable: what decorators wrapped around it."""
    for _ in range(_DEPTH):
        if isinstance(value, FunctionType) and not hasattr(value, "__wrapped__"):
            return value.__code__
        inner = next(
            (getattr(value, name) for name in _WRAPPED if _has(value, name)),
            None,
        )
        if inner is None or inner is value:
            break
        value = inner
    return getattr(value, "__code__", None)


def _has(value: Any, name: str) -> bool:
    if isinstance(value, functools.partial):
        return name == "func"
    return name != "func" and callable(getattr(value, name, None))


def _found(scope: Scope, name: str, value: Any) -> Definition | None:
    """Return the definition that a live function or class came from."""
    if not isinstance(value, type):
        code = code_of(value)
        return None if code is None else definition_of(scope, code)
    for statement in scope.cells.bindings(name):
        node = _def_in(statement.node, name)
        if isinstance(node, ast.ClassDef) and _is_body(scope, statement, value):
            return Definition(statement.cell, statement, node, statement.after)
    return None


def definition_of(scope: Scope, code: CodeType) -> Definition | None:
    """Return the definition of some code: in the cells, or in a file that was run by its path."""
    found = scope.cells.definition(code)
    file = code.co_filename
    if found is not None or not file.endswith(".py") or is_installed(file):
        return found
    try:
        return of_file(code.co_filename).definition(code)
    except (OSError, SyntaxError):
        return None


def older(scope: Scope, kind: type) -> str | None:
    """Tell where a class was defined that was redefined since to another effect; else None."""
    live = scope.namespace.get(kind.__name__)
    if live is kind or not isinstance(live, type) or by_reference(kind):
        return None
    if kind.__qualname__ != kind.__name__ or difference(portrait(kind), portrait(live)) is None:
        return None
    return place_of(scope, kind)


def place_of(scope: Scope, value: Any) -> str:
    """Tell where a function or class was defined, as " (In[3])"; empty where that is not known."""
    if isinstance(value, type):
        found = list(_methods(scope, value).values())
    else:
        code = code_of(value)
        one = None if code is None else definition_of(scope, code)
        found = [] if one is None else [one]
    first = min(found, key=lambda one: one.cell.order, default=None)
    return "" if first is None else f" ({first.place})"


def _is_body(scope: Scope, statement: Statement, kind: type) -> bool:
    """Tell whether a statement may have made a class: some of its methods are there, if any."""
    places = [found.statement for found in _methods(scope, kind).values()]
    return not places or any(place is statement for place in places)


def _methods(scope: Scope, kind: type) -> dict[str, Definition]:
    """Return the definitions of a class's own methods; those that were generated have none."""
    found: dict[str, Definition] = {}
    for name, value in vars(kind).items():
        code = code_of(value)
        if code is None or code.co_filename.startswith(_GENERATED):
            continue
        definition = scope.cells.definition(code)
        if definition is not None:
            found[name] = definition
    return found


def _check_class(scope: Scope, name: str, kind: type, statement: Statement, use: Use) -> None:
    for attribute, found in _methods(scope, kind).items():
        if found.statement is not statement and not _is_named(statement, found):
            raise refusal(
                f"class {name!r} was changed after its definition: attribute {attribute!r} comes "
                f"from {found.place}, not {statement.cell.place}; re-run or edit the class cell",
                use,
            )


def _changes_itself(node: ast.AST, name: str) -> bool:
    """Tell whether a class changes its own attributes, as `cls.known[name] = cls` does."""
    owners = (name, "cls", "type(self)", "self.__class__", "__class__")
    for one in ast.walk(node):
        target: ast.AST | None = None
        if isinstance(one, ast.Attribute | ast.Subscript) and _is_changed(one):
            target = one.value
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
            changes = one.func.attr in CHANGING
            target = one.func.value if changes else None
        while isinstance(target, ast.Attribute | ast.Subscript) and _text(target) not in owners:
            target = target.value
        if target is not None and _text(target) in owners:
            return True
    return False


def _text(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.Call) else ""


def _is_changed(node: ast.AST) -> bool:
    """Tell whether an expression is assigned to, or changed in place."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute)
    return not isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _filled_defaults(node: ast.AST) -> Iterator[str]:
    """Return the defaults that a function fills, as `def f(x, seen={})` may do on purpose."""
    for one in ast.walk(node):
        changed: ast.AST | None = None
        if isinstance(one, ast.Subscript) and _is_changed(one):
            changed = one.value
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
            changed = one.func.value
        if isinstance(changed, ast.Name):
            yield f"default {changed.id!r}"


def _is_named(statement: Statement, found: Definition) -> bool:
    """Tell whether the text of a class takes a function over by its name, as `run = helper`."""
    named = getattr(found.node, "name", None)
    reads = names_read(statement.node, future=True)
    return named in reads[0]


def _is_decorated(statement: Statement | None, name: str) -> bool:
    node = None if statement is None else _def_in(statement.node, name)
    return node is not None and bool(node.decorator_list) and node is statement.node  # type: ignore[union-attr]


# -- Places: where a chain uses a value, and the user's own words for it there ---------------------
_NOTHING = object()
_LAST = 2**31  # a place behind all cells


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is used.

    Attributes:
        collector: takes what the expression needs.
        scope: whose names count.
        use: who uses it.
        name: what a function without a name is to be called.
        call: the call that it was given to, where that is known.
        keyword: which argument of the call it is; the first where it is empty.
    """

    collector: Collector
    scope: Scope
    use: Use
    name: str
    call: Called | None = None
    keyword: str = ""

    @property
    def node(self) -> ast.expr | None:
        """The argument in the text of the call, where its names are global."""
        if self.call is None or not self.call.is_global:
            return None
        return self.call.argument(self.keyword)

    @property
    def text(self) -> str:
        """Source of that argument."""
        return "" if self.call is None else self.call.text(self.keyword)


def as_called(place: Place, name: str) -> Spelling | None:
    """Write what a call in the user's text gives as the value of a new name.

    None where the text is not known, does not stand at the top level, or uses what cannot be
    exported.
    """
    call, node = place.call, place.node
    if call is None or not isinstance(node, ast.Call):
        return None
    text, flags = f"{name} = {place.text}", call.statement.cell.flags
    if any(isinstance(one, ast.Lambda) for one in ast.walk(node)) or secret_in_text(text):
        return None
    reads: list[tuple[frozenset[str], frozenset[str]]] = []

    def collect() -> None:
        reads.append(read(place.collector, place.scope, node, flags, place.use))

    if place.collector.attempt(collect) is not None:
        return None
    return Spelling(text, *reads[0])


def as_marked(value: Any, text: str, reads: frozenset[str], place: Place) -> str:
    """Let the trial decide between the user's words for a value and `text`.

    Returns:
        What stands for the expression until then; `text` itself where there is no choice.
    """
    mark = place.collector.free_name("_given")
    written = as_called(place, mark)
    if written is None:
        return text
    other = Spelling(f"{mark} = {text}", reads)
    words = f"the function of {place.use.words}"
    expected = {mark: portrait(value)}
    check = Piece((mark,), (written, other), expected, "constant", (_LAST, 0), words)
    place.collector.found.checks[mark] = check
    place.collector.found.owners[mark] = None
    called = place.collector.found.called
    if text in called:
        called[mark] = called[text]
    return mark


def as_given(value: Any, place: Place) -> str | None:
    """Return a library's function as the user gave it, as `json.loads` or `" ".join`."""
    node = place.node
    if not isinstance(node, ast.Attribute):
        return None
    owner: ast.expr = node
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    try:
        live = _followed(node, place.scope.namespace)
        if _is_dispatching(node, value, place.scope.namespace):
            live = value
    except (AttributeError, KeyError):
        return None
    if live is not value and not (_is_bound_builtin(value) and live == value):
        return None
    if isinstance(owner, ast.Name):
        place.collector.need(place.scope, owner.id, place.use)
    return place.text


def _followed(node: ast.expr, namespace: dict[str, Any]) -> Any:
    """Return the live value of names and constants with dots."""
    if isinstance(node, ast.Attribute):
        owner = _followed(node.value, namespace)
        plain = isinstance(owner, type | ModuleType | str | bytes)
        return getattr(owner, node.attr) if plain else _NOTHING
    if isinstance(node, ast.Constant):
        return node.value
    return _found_name(node.id, namespace) if isinstance(node, ast.Name) else _NOTHING


def _is_dispatching(node: ast.Attribute, value: Any, namespace: dict[str, Any]) -> bool:
    """Tell whether a value is a method that `functools.singledispatchmethod` gives on each look."""
    owner = namespace.get(node.value.id) if isinstance(node.value, ast.Name) else None
    found = inspect.getattr_static(owner, node.attr, None)
    kinds = functools.singledispatchmethod
    return isinstance(found, kinds) and getattr(value, "__wrapped__", None) is found.func


def _found_name(name: str, namespace: dict[str, Any]) -> Any:
    return namespace[name] if name in namespace else getattr(builtins, name)


def _is_bound_builtin(value: Any) -> bool:
    return isinstance(value, BuiltinFunctionType | MethodType)


def older_error(name: str, at: str, use: Use) -> Exception:
    """Make the error for a function or class that was redefined, at a place like " (In[3])"."""
    return refusal(
        f"the pipeline still uses an older {name!r}{at}; it was redefined since: rebuild the "
        "pipeline, then export",
        use,
    )
