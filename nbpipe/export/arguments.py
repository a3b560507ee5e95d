"""Arguments: what the calls of a chain were given: the words of the user, and expressions."""

from __future__ import annotations

import ast
import builtins
import collections
import functools
import inspect
import itertools
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import numpy as np

from ..errors import ExportError
from ..executors.pickling import by_reference
from ..ops.call import FailurePolicy
from ..ops.device import Target
from ..ops.index import LocalStore
from ..ops.stage import Chain, Stage, addresses, class_name
from .cells import Cells, Definition, Statement
from .collect import (
    Collector,
    HeldState,
    Scope,
    Use,
    definition_of,
    refusal,
    refuse_older,
    refuse_secret,
    unwritable,
)
from .fingerprint import fingerprint_of, loosened, same_value
from .literals import NoLiteral, quoted
from .module import Piece, Spelling, identifier
from .pieces import check_text, is_assignment, is_defined, unknown_text
from .reachable import captured_by, defaults_of, handle_in, is_changeable, kind_of
from .secrets import secret_in_text
from .source import defaults_in, last_name, lines_of, names_in, names_read, replaced, root_of


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

    def argument(self, keyword: str = "") -> ast.expr | None:
        """Return an argument: the first, unless it is unpacked, or one that was named."""
        if keyword:
            return next((one.value for one in self.node.keywords if one.arg == keyword), None)
        if not self.node.args or isinstance(self.node.args[0], ast.Starred):
            return None
        return self.node.args[0]

    @property
    def name(self) -> str:
        """The variable that it is assigned to; empty where it is not, or where there are more."""
        node = self.statement.node
        whole = isinstance(node, ast.Assign | ast.AnnAssign) and node.value is self.node
        return next(iter(self.statement.binds)) if whole and len(self.statement.binds) == 1 else ""

    @property
    def above(self) -> tuple[str, ...]:
        """The comments above its statement."""
        rows = self.statement.text.split("\n")
        above = itertools.takewhile(lambda row: row.startswith("#"), rows)
        return tuple(row for row in above if not secret_in_text(row))


class Comments(NamedTuple):
    """What stands above a call, and behind it."""

    above: list[str]
    behind: list[str]


def comments_of(calls: Iterable[Called]) -> dict[ast.Call, Comments]:
    """Return all comments in the statements that hold some calls, each at one of these.

    What stands within a call, as at an argument, counts as above it.

    Args:
        calls: those that made stages.
    """
    ends = {call.node: (call.node.end_lineno or 0, call.node.end_col_offset or 0) for call in calls}
    found = {node: Comments([], []) for node in ends}
    for statement in {call.statement: None for call in calls}:
        held = [call.node for call in calls if call.statement is statement]
        held.sort(key=ends.__getitem__)
        for token in statement.cell.lines.tokens:
            inside = statement.first_line <= token.start[0] <= statement.last_line
            told = token.type == tokenize.COMMENT and inside and token.string in statement.text
            if told and not secret_in_text(token.string):
                before = [one for one in held if ends[one] <= token.start]
                after = [one for one in held if ends[one] > token.start]
                if before and (not after or before[-1].end_lineno == token.start[0]):
                    found[before[-1]].behind.append(token.string)
                else:
                    found[after[0]].above.append(token.string)
    return found


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
            if isinstance(node, ast.Call) and last_name(node.func) == method:  # noqa: SIM102
                if (node.end_lineno, node.end_col_offset) == (end_line, end):
                    return Called(statement, node, code.co_name == "<module>")
    return None


def _places(code: CodeType, cells: Cells, line: int) -> Iterator[Statement]:
    """Return the statements that may hold a line of a code object, the likeliest first."""
    if code.co_name != "<module>":
        found = cells.definition(code)
        if found is not None:
            yield found.statement
        return
    for statement in cells.candidates(code):
        if statement.first_line <= line <= statement.last_line and _has(statement, code):
            yield statement


def _has(statement: Statement, code: CodeType) -> bool:
    """Tell whether a code object may have been compiled from a statement: it reads its names."""
    names = names_in(statement.node)
    outer = names & set(code.co_names)
    return bool(outer) or not names


def calls_of(chain: Chain, home: Scope) -> dict[int, Called]:
    """Return by the stages' ids the calls in the user's text that made them, one stage each."""
    found: dict[int, Called] = {}
    for stage in addresses(chain).values():
        call = call_of(stage, home.cells, stage.op)
        if call is not None and call.is_global:
            found[id(stage)] = call
    counts = collections.Counter(id(call.node) for call in found.values())
    return {key: call for key, call in found.items() if counts[id(call.node)] == 1}


def is_repeated(chain: Chain, home: Scope) -> bool:
    """Tell whether a loop or a function of the notebook made some of the stages."""
    known = calls_of(chain, home)
    stages = {id(one): one for one in _outside_branches(chain)}
    made = (one for key, one in stages.items() if one.made_at is not None and key not in known)
    return any(call_of(one, home.cells, one.op) is not None for one in made)


def _outside_branches(chain: Chain) -> Iterator[Stage]:
    """Return the stages of a chain, and of those that it joins; branches are functions anyway."""
    for stage in chain:
        yield stage
        for one in () if stage.op == "route" else stage.inputs:
            yield from _outside_branches(one)


# -- Places: where a chain uses a value, and the user's own words for it there ---------------------
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
        node = None if self.call is None else self.call.argument(self.keyword)
        if self.call is None or node is None:
            return ""
        return ast.get_source_segment(self.call.statement.cell.text, node) or ""

    def need(self, name: str) -> str:
        """Collect what a name stands for; return the name."""
        self.collector.need(self.scope, name, self.use)
        return name

    def written(self, text: str, node: ast.expr, statement: Statement) -> Spelling | None:
        """Return a text of the user's with what it reads; None where that cannot be exported."""
        read = functools.partial(self.collector.read, self.scope, node, statement.cell, self.use)
        return self.collector.attempt(lambda: Spelling(text, *read(), statement.order))


def _as_called(place: Place, name: str) -> Spelling | None:
    """Write what a call in the user's text gives as the value of a new name.

    None where the text is not known, does not stand at the top level, or uses what cannot be
    exported.
    """
    call, node = place.call, place.node
    if call is None or not isinstance(node, ast.Call):
        return None
    text = f"{name} = {place.text}"
    loops = not call.statement.binds.isdisjoint(names_in(node))  # by now it may be another value
    if loops or any(isinstance(one, ast.Lambda) for one in ast.walk(node)) or secret_in_text(text):
        return None
    return place.written(text, node, call.statement)


def as_marked(value: Any, text: str, reads: frozenset[str], place: Place) -> str:
    """Let the trial decide between the user's words for a value and `text`.

    Returns:
        What stands for the expression until then; `text` itself where there is no choice.
    """
    mark = place.collector.free_name("_given")
    written = _as_called(place, mark)
    if written is None:
        return text
    other = Spelling(f"{mark} = {text}", reads)
    on_trial(mark, (written, other), value, place, f"the function of {place.use.words}")
    called = place.collector.found.called
    if text in called:
        called[mark] = called[text]
    return mark


def on_trial(mark: str, ways: tuple[Spelling, ...], value: Any, place: Place, words: str) -> str:
    """Have the trial find the way to write an expression that gives a value; return the mark.

    Args:
        mark: a free name, which stands for the expression until then.
        ways: assignments to that name, the best first.
        value: what they must give.
        place: who uses it.
        words: what it is called in a message.
    """
    found, expected = place.collector.found, {mark: fingerprint_of(value)}
    found.checks[mark] = Piece((mark,), ways, expected, "constant", (_LAST, 0), words)
    found.owners[mark] = None
    found.uses[mark] = place.use
    return mark


def as_given(value: Any, place: Place) -> str | None:
    """Return a library's function as the user gave it, as `json.loads` or `" ".join`."""
    node = place.node
    if not isinstance(node, ast.Attribute):
        return None
    owner = root_of(node)
    try:
        live = _followed(node, place.scope.namespace)
    except (AttributeError, KeyError):
        return None
    # They are made anew by each look.
    bound = isinstance(value, BuiltinFunctionType | MethodType | MethodWrapperType)
    if live is not value and not (bound and live == value):
        return None
    if isinstance(owner, ast.Name):
        place.need(owner.id)
    return place.text


def _followed(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """Return the live value of names and constants with dots; nothing of the user's runs for it.

    Raises:
        AttributeError: there is none.
        KeyError: there is no such name.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        known = node.id in namespace or not hasattr(builtins, node.id)
        return namespace[node.id] if known else getattr(builtins, node.id)
    if isinstance(node, ast.Attribute):
        owner = _followed(node.value, namespace)
        if isinstance(owner, type | ModuleType | str | bytes):
            return getattr(owner, node.attr)
    raise AttributeError(ast.dump(node))


# -- Functions: those without a name in the notebook become definitions of the module's own --------
def new_function(value: FunctionType, place: Place, wanted: str, free: list[str]) -> str:
    """Write a function that has no name in the notebook as one of the module's own.

    Args:
        value: the function.
        place: where it is used.
        wanted: what it is to be called.
        free: the variables that it captured, which become its first parameters.

    Returns:
        Its name.

    Raises:
        ExportError: its text is not known, it rebinds what it captured, or it uses something
            that cannot be exported.
    """
    collector = place.collector
    code = (value.__code__, len(free), fingerprint_of(list(defaults_of(value))))
    for known, one in collector.found.written.items():
        if one == code:
            return known
    found = definition_of(place.scope, value.__code__, collector.templates)
    if found is None:
        raise refusal(unknown_text(value.__qualname__), place.use)
    name = collector.free_name(identifier(wanted))
    text = _with_defaults(value, found, _without_wraps(found.text(name, free), free), place)
    _check(value, found, text, place)
    handle = handle_in(name, value)
    if handle is not None:
        raise refusal(handle.words, place.use)
    collector.found.written[name] = code
    collector.found.owners[name] = None
    collector.found.called[name] = name
    collector.found.uses[name] = place.use
    use = place.use.then(f"{name}() [{found.place}]")
    node: ast.AST = found.node if not _made_inside(found) else ast.parse(text).body[0]
    now, later = collector.read(place.scope, node, found.cell, use, local=free)
    spelling = Spelling(text, now - {name}, later - {name} - set(free))
    words = f"function {name!r}, defined in {found.place}"
    first = (*found.statement.order, found.node.lineno, found.node.col_offset)
    expected = {name: _apart_from_code(value, name)}
    collector.add(Piece((name,), (spelling,), expected, "definition", first, words))
    return name


def _apart_from_code(value: FunctionType, name: str) -> dict[str, Any]:
    """Return the fingerprint of what a function has besides its code: defaults, attributes."""
    found = {**fingerprint_of(value), "shown": f"function {name!r}"}
    code = [label for label, _ in found["parts"] if label.startswith(("code", "closure"))]
    return loosened(found, code)


def _without_wraps(text: str, free: list[str]) -> str:
    """Leave out `@wraps(function)` of what a function captured: a partial bears no name of it."""
    node = ast.parse(text).body[0]
    marks = [one for one in node.decorator_list if names_in(one) & set(free)]  # type: ignore[attr-defined]
    wraps = [one for one in marks if isinstance(one, ast.Call) and last_name(one.func) == "wraps"]
    gone = {row for one in wraps for row in range(one.lineno, (one.end_lineno or 0) + 1)}
    tokens = (one for one in lines_of(text).tokens if one.type == tokenize.COMMENT)
    comments = {one.start[0]: one.string for one in tokens if one.start[0] in gone}
    kept = (
        (row, line)
        for row, line in enumerate(text.split("\n"), 1)
        if row not in gone or row in comments
    )
    return "\n".join(comments.get(row, line) for row, line in kept)


def _with_defaults(value: FunctionType, found: Definition, text: str, place: Place) -> str:
    """Write the defaults that are made of what a loop or a function around it binds as values."""
    inside, node = _made_inside(found), ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    values = dict(defaults_of(value))
    parts = []
    for name, default in defaults_in(node.args):
        if not inside.isdisjoint(names_in(default)):
            words = f"the default {name!r} of {place.use.words}"
            parts.append((default, literal_text(values[name], words, place)))
    return replaced(text, parts)


def literal_text(value: Any, words: str, place: Place) -> str:
    """Write a value as a literal.

    Raises:
        ExportError: it cannot be written; `words` tell what it is.
    """
    try:
        return place.collector.literal(value, place.scope, place.use).text
    except NoLiteral as no:
        raise unwritable(words, no.reason, place.use) from None


def _made_inside(found: Definition) -> frozenset[str]:
    """Return what is bound around a function in its statement: by loops, and in functions."""
    own = set(map(id, ast.walk(found.node)))
    around = [one for one in ast.walk(found.statement.node) if id(one) not in own]
    stored = [one for one in around if isinstance(getattr(one, "ctx", None), ast.Store)]
    names = {one.id for one in stored if isinstance(one, ast.Name)}
    return frozenset(names | {one.arg for one in around if isinstance(one, ast.arg)})


def _check(value: FunctionType, found: Definition, text: str, place: Place) -> None:
    words = f"{value.__name__}() [{found.place}]"
    check_text(text, found.node, found.cell, words, place.use)
    kept = [one for one in ast.walk(found.node) if isinstance(one, ast.Nonlocal)]
    if kept:
        raise refusal(
            f"{words} changes the variable {kept[0].names[0]!r} of the function around it "
            "(`nonlocal`), which no module can hold; keep that state in a class with __call__",
            place.use,
        )


# -- Instances: objects without a name become constants of the module's own ------------------------
def new_object(value: Any, place: Place) -> str:
    """Write an object without a name as a constant of the module's own."""
    collector = place.collector
    for known, one in collector.found.objects.items():
        if one is value:
            return known
    words = f"the {type(value).__name__} of {place.use.words}"
    refuse_secret(words, place.use, name=place.name, value=value)
    name = collector.free_name(identifier(class_name(value)))
    collector.failed = None
    called = _as_called(place, name)
    other = collector.as_literal(name, value, place.scope, place.use)
    spellings = [called] if called is not None else []
    spellings += [replace(other, text=f"{name} = {other.text}")] if other is not None else []
    if not spellings and collector.failed is not None:
        raise collector.failed
    if not spellings:
        reason = collector.found.reasons.get(name, kind_of(value))
        kind = type(value).__name__
        way_out = f"give it a name in a cell: {name} = {kind}(...)"
        raise unwritable(f"the {kind}", f"{reason}; {way_out}", place.use)
    collector.found.objects[name] = value
    collector.found.held[name] = HeldState.of(value)
    expected = {name: fingerprint_of(value)}
    collector.add(Piece((name,), tuple(spellings), expected, "constant", (_LAST, 0), words))
    return name


# -- Expressions: a live value as source, in the place where a chain uses it -----------------------
_BUILTINS = (BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType)
_PLAIN = bool | int | float | complex | str | bytes | None


def expression(value: Any, place: Place) -> str:
    """Write a value as an expression; what it needs is collected.

    Raises:
        ExportError: it cannot be written.
    """
    if isinstance(value, _PLAIN):
        return _literal(value, place)
    written = as_given(value, place)
    if written is not None:
        return written
    if isinstance(value, functools.partial):
        return _partial(value, place)
    if isinstance(value, MethodType):
        return f"{_object(value.__self__, place)}.{_method_name(value)}"
    if isinstance(value, FunctionType):
        return _function(value, place)
    named = _named(value, place)
    if named is not None:
        return named
    if isinstance(value, type):
        return _class(value, place)
    if isinstance(value, _BUILTINS) or by_reference(value):
        return _builtin(value, place)
    if isinstance(value, np.ufunc) and value is vars(np).get(name := value.__name__):
        return f"{place.collector.spelled(place.scope, np, place.use)}.{name}"
    return _object(value, place)


def _method_name(value: MethodType) -> str:
    """Return the attribute that a method is: a decorator may have called it something else."""
    kind = value.__self__ if isinstance(value.__self__, type) else type(value.__self__)
    names = [name for one in kind.__mro__ for name in vars(one)]
    own = value.__func__.__name__
    found = (name for name in [own, *names] if getattr(value.__self__, name, None) == value)
    return next(found, own)


def _literal(value: Any, place: Place) -> str:
    refuse_secret(f"an argument of {place.use.words}", place.use, name=place.name, value=value)
    return literal_text(value, repr(place.name), place)


def _builtin(value: Any, place: Place) -> str:
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(value, type) and not inspect.ismodule(owner):
        return f"{_object(owner, place)}.{value.__name__}"  # "text".join, rng.random
    return literal_text(value, repr(place.name), place)


def _class(value: type, place: Place) -> str:
    refuse_older(place.scope, value, place.use)
    return place.collector.spelled(place.scope, value, place.use)


# -- functions -------------------------------------------------------------------------------------
def _function(value: FunctionType, place: Place) -> str:
    if by_reference(value):
        return place.collector.spelled(place.scope, value, place.use)
    named = place.scope.name_of(value)
    if value.__name__ == "<lambda>" and not value.__closure__:
        return new_function(value, place, place.name, [])
    if named is not None and (
        not value.__closure__ or is_defined(place.scope.newest(named), named)
    ):
        return place.need(named)
    if named is None:
        same = _member(value, place)
        if same is not None:
            return same
        live = place.scope.namespace.get(value.__name__)
        alike = not value.__closure__ and getattr(live, "__code__", None) == value.__code__
        if alike and not same_value(value, live):
            return new_function(value, place, value.__name__, [])  # of a loop, with other defaults
        same = place.collector.same_name(place.scope, value, place.use)
        if same is not None:
            return place.need(same)
    if value.__closure__:
        return _captured(value, place, named)
    return new_function(value, place, value.__name__, [])


def _member(value: FunctionType, place: Place) -> str | None:
    """Spell a function that a class of the user holds, as a static method."""
    first, *rest = value.__qualname__.split(".")
    found = place.scope.namespace.get(first)
    if not rest or not isinstance(found, type):
        return None
    for part in rest:
        found = getattr(found, part, None)
    if found is not value:
        return None
    place.collector.need(place.scope, first, place.use)
    return ".".join((first, *rest))


def _captured(value: FunctionType, place: Place, named: str | None) -> str:
    """Write a closure as a function of more parameters; where that fails, as it was made."""
    text = place.collector.attempt(lambda: _closure(value, place, named))
    if text is not None:
        _refuse_shared(value, place, named)
        return text
    if named is None or not _is_bound(place.scope, named):
        assert place.collector.failed is not None
        raise place.collector.failed
    return place.need(named)


def _refuse_shared(value: FunctionType, place: Place, named: str | None) -> None:
    """Refuse closures that keep state in one object: in the module each would have its own.

    Raises:
        ExportError: another one has captured it, too, and one of them changes it.
    """
    found = definition_of(place.scope, value.__code__, place.collector.templates)
    changed = names_read(found.node, future=True).changed if found is not None else frozenset()
    for name, one in captured_by(value):
        if is_changeable(one) and place.scope.name_of(one) is None:
            known = place.collector.found.captured
            users = dict(known[id(one)][1]) if id(one) in known else {}
            users[named or f"{value.__name__} {len(users)}"] = name in changed
            known[id(one)] = one, users  # kept: its id stays its own
            if len(users) > 1 and any(users.values()):
                raise refusal(
                    f"{value.__name__}() shares {name!r}, which it captured, with another stage, "
                    "and one of them changes it; keep that state in a class with a method for each",
                    place.use,
                )


def _closure(value: FunctionType, place: Place, named: str | None) -> str:
    """Turn what a closure captured into leading parameters, and pass them by `partial`."""
    collector = place.collector
    free = list(value.__code__.co_freevars)
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    used = place.use.then(f"{value.__name__}()")
    inner = [
        expression(one, Place(collector, place.scope, used, name))
        for name, one in zip(free, cells, strict=True)
    ]
    own = value.__code__.co_name  # `wraps` may have given it that of another
    own = place.name if own == "<lambda>" else own
    function = new_function(value, place, f"_{own.lstrip('_')}", free)
    partial = collector.spelled(place.scope, functools.partial, place.use)
    text = f"{partial}({', '.join([function, *inner])})"
    collector.found.called[named or text] = function
    if named is None:
        return text
    reads = frozenset({partial.partition(".")[0], function, *names_in(", ".join(inner))})
    collector.found.owners[named] = place.scope
    first = place.scope.first(named)
    spelling = Spelling(f"{named} = {text}", reads)
    collector.add(Piece((named,), (spelling,), {}, "constant", first, f"variable {named!r}"))
    return named


def _partial(value: functools.partial[Any], place: Place) -> str:
    named = place.scope.name_of(value)
    if named is not None and _is_bound(place.scope, named):
        return place.need(named)
    refuse_secret(f"the partial of {place.use.words}", place.use, name=place.name, value=value)
    inner = Place(place.collector, place.scope, place.use, place.name)
    parts = [expression(value.func, inner)]
    parts += [expression(one, inner) for one in value.args]
    parts += [f"{key}={expression(one, inner)}" for key, one in value.keywords.items()]
    partial = place.collector.spelled(place.scope, functools.partial, place.use)
    text = f"{partial}({', '.join(parts)})"
    called = place.collector.found.called
    if parts[0] in called:
        called[text] = called[parts[0]]
    return as_marked(value, text, frozenset(names_in(text)), place)


def _is_bound(scope: Scope, name: str) -> bool:
    statement = scope.newest(name)
    return statement is not None and is_assignment(statement.node)


# -- objects ---------------------------------------------------------------------------------------
def _named(value: Any, place: Place) -> str | None:
    """Return the user's name for an object, and collect what it stands for."""
    named = place.scope.name_of(value)
    return None if named is None else place.need(named)


def _refuse_handle(value: Any, place: Place) -> None:
    plain = isinstance(value, dict | list | tuple | set)
    handle = handle_in(place.name if plain else type(value).__name__, value)
    if handle is not None:
        kind, where = kind_of(handle.value), "" if handle.value is value else f", {handle.place}"
        words = f"{place.use.words} uses a live {kind}{where}; {handle.way_out}"
        raise refusal(words, place.use)


def _object(value: Any, place: Place) -> str:
    """Name an object: by the user's name, or by a new one for the call that made it."""
    if isinstance(value, type):
        return expression(value, place)
    named = _named(value, place)
    if named is not None:
        return named
    _refuse_handle(value, place)
    kind = type(value)
    if isinstance(value, list | tuple | dict | set | range | str | bytes):
        return _literal(value, place)
    if not by_reference(kind) and place.scope.name_of(kind) is None:
        _class(kind, place)  # it was redefined since
    return new_object(value, place)


# -- Arguments: plain options of stages as source --------------------------------------------------
def store_of(stage: Stage, store: object, use: Use) -> str:
    """Write the store of a claim; one of this process is refused."""
    if isinstance(store, LocalStore):
        return "nbpipe.ranks.LocalStore()"
    way_out = "call torch.distributed.init_process_group before the first epoch"
    raise _live(stage, "store", store, way_out, use)


def target_of(stage: Stage, use: Use) -> Target:
    """Return the device of a stage; a stream of this process is refused."""
    assert stage.placement is not None
    target = stage.placement.given
    assert isinstance(target, Target)
    if target.stream is not None:
        raise _live(stage, "stream", target.stream, "the run makes its own", use)
    return target


def _live(stage: Stage, word: str, value: object, way_out: str, use: Use) -> ExportError:
    what = f"the {word} of {stage.name!r} is a live {type(value).__name__}"
    return refusal(f"{what}; leave {word} out, and {way_out}", use)


def policy_arguments(policy: FailurePolicy) -> list[str]:
    """Write what happens to items whose call failed."""
    retry, arguments = policy.retry, []
    if retry is not None:
        inner = [str(retry.times)]
        inner += [f"backoff_s={retry.backoff_s!r}"] if retry.backoff_s else []
        inner += [f"then={quoted(retry.then)}"] if retry.then != "raise" else []
        arguments.append(f"on_error=nbpipe.Retry({', '.join(inner)})")
    elif policy.skips:
        arguments.append('on_error="skip"')
    if policy.max_failures is not None:
        arguments.append(f"max_failures={policy.max_failures!r}")
    return arguments
