"""Pieces: values become pieces, by the text that made them, as literals, as the module's own."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, MethodWrapperType
from typing import Any, NamedTuple

import numpy as np

from ..base.tree import is_tensor
from ..executors.pickling import by_reference
from ..ops.stage import Stage, class_name
from .cells import Cell, Cells, Definition, Statement, imports_in
from .collect import (
    Collector,
    HeldState,
    Scope,
    Use,
    definition_of,
    is_import,
    is_local,
    refusal,
    refuse_older,
    refuse_secret,
    unwritable,
)
from .definitions import (
    check_text,
    collect_definition,
    collect_held,
    filled_defaults,
    followed,
    is_defined,
    unknown_text,
)
from .difference import fingerprint_of, loosened
from .held import defaults_of, handle_in, is_generator, kind_of, secret_in
from .literals import MOST, NoLiteral, in_quotes_of
from .module import Import, Piece, Spelling, identifier
from .secrets import secret_in_text
from .source import Lines, defaults_in, last_name, lines_of, names_in, names_read, replaced, root_of


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
    """What stands above a call or an argument, and behind it."""

    above: list[str]
    behind: list[str]


class _Noted(NamedTuple):
    """A call from its bracket on, or an argument; places are lines and columns."""

    first: tuple[int, int]
    last: tuple[int, int]
    call: ast.Call
    key: str
    comments: Comments


def comments_of(calls: Iterable[Called]) -> dict[ast.Call, dict[str, Comments]]:
    """Return all comments in the statements that hold some calls, each at one of these.

    Args:
        calls: those that made stages.

    Returns:
        By the call, and the name or the number of an argument, or "" for the call itself; what
        stands within an argument counts as above it.
    """
    found: dict[ast.Call, dict[str, Comments]] = {}
    nodes: dict[Statement, list[ast.Call]] = {}
    for call in calls:
        nodes.setdefault(call.statement, []).append(call.node)
    for statement, held in nodes.items():
        parts, text = list(_parts(statement.cell.lines, held)), statement.text
        for token in statement.cell.lines.tokens:
            inside = statement.first_line <= token.start[0] <= statement.last_line
            told = token.type == tokenize.COMMENT and inside and token.string in text
            if told and not secret_in_text(token.string):
                _place_comment(token, parts)
        for part in parts:
            found.setdefault(part.call, {})[part.key] = part.comments
    return found


def _parts(lines: Lines, calls: list[ast.Call]) -> Iterator[_Noted]:
    """Return calls that made stages, and their arguments without such calls in them."""
    known = set(map(id, calls))

    def part(start: tuple[int, int], node: Any, call: ast.Call, key: str = "") -> _Noted:
        ends = (start, (node.end_lineno, node.end_col_offset))
        first, last = ((row, lines.column(row, offset)) for row, offset in ends)
        return _Noted(first, last, call, key, Comments([], []))

    for call in calls:
        func: Any = call.func
        yield part((func.end_lineno, func.end_col_offset), call, call)
        given: list[tuple[Any, Any]] = [*enumerate(call.args)]
        given += [(one.arg, one) for one in call.keywords]
        for key, one in given:
            if known.isdisjoint(map(id, ast.walk(one))):
                yield part((one.lineno, one.col_offset), one, call, str(key))


def _place_comment(comment: tokenize.TokenInfo, parts: list[_Noted]) -> None:
    """Put a comment behind what ends on its line, or above what comes next in its brackets."""
    at = comment.start
    around = max((one for one in parts if one.first <= at < one.last), default=None)
    if around is not None:
        parts = [one for one in parts if around.first < one.first and one.last < around.last]
    before = max((one for one in parts if one.last <= at), key=lambda one: one.last, default=None)
    after = min((one for one in parts if one.first > at), default=around)
    if before is not None and (before.last[0] == at[0] or after is around):
        before.comments.behind.append(comment.string)
    elif after is not None:
        after.comments.above.append(comment.string)


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
        live = followed(node, place.scope.namespace)
    except (AttributeError, KeyError):
        return None
    # They are made anew by each look.
    bound = isinstance(value, BuiltinFunctionType | MethodType | MethodWrapperType)
    if live is not value and not (bound and live == value):
        return None
    if isinstance(owner, ast.Name):
        place.need(owner.id)
    return place.text


# -- Constants: values become pieces, by the text that made them or as literals --------------------
_REFLECTING = ("globals", "locals", "vars", "eval", "exec")  # they find what they do not name
_PLAIN_NODES = (
    *(ast.Constant, ast.Dict, ast.List, ast.Set, ast.Tuple, ast.Name, ast.Attribute),
    *(ast.expr_context, ast.UnaryOp, ast.unaryop, ast.keyword),
)
_CONTAINERS = (
    *("dict", "list", "set", "tuple", "defaultdict", "OrderedDict", "deque", "local"),
    *("WeakValueDictionary", "WeakKeyDictionary", "WeakSet"),
)
_TRIED = 3  # texts, the newest first


def collect_value(collector: Collector, scope: Scope, name: str, value: Any, use: Use) -> None:
    """Collect the function, class or value that a name stands for: a definition or a constant.

    Raises:
        ExportError: it cannot be exported.
    """
    if is_defined(scope.newest(name), name) or _is_known_code(scope, name, value):
        collect_definition(collector, scope, name, value, use)
    else:
        _collect_constant(collector, scope, name, value, use)


def _is_known_code(scope: Scope, name: str, value: Any) -> bool:
    """Tell whether a function is to be found by its code: no assignment gives it."""
    newest = scope.newest(name)
    if newest is not None and is_assignment(newest.node):
        return False
    if isinstance(value, FunctionType) and value.__closure__:
        return False
    return isinstance(value, FunctionType | type) and not by_reference(value)


def is_assignment(node: ast.AST) -> bool:
    """Tell whether a statement binds plain names to the value of an expression."""
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.value is not None
    return isinstance(node, ast.Assign) and all(map(_is_plain, node.targets))


def is_decision(node: ast.AST, name: str) -> bool:
    """Tell whether an `if` or `try` binds a name in several branches, and does nothing else."""
    leaves = list(_leaves(node)) if isinstance(node, ast.If | ast.Try) else []
    if not all(is_import(one) or is_assignment(one) or isinstance(one, ast.Pass) for one in leaves):
        return False
    return sum(name in names_read(one, future=True).bound for one in leaves) > 1


def _leaves(node: Any) -> Iterator[ast.stmt]:
    """Return the statements in the branches of an `if` or `try`."""
    inner = [one for part in ("body", "orelse", "finalbody") for one in getattr(node, part, [])]
    inner += [one for handler in getattr(node, "handlers", []) for one in handler.body]
    for one in inner:
        yield from _leaves(one) if isinstance(one, ast.If | ast.Try) else (one,)


def _is_plain(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(map(_is_plain, target.elts))
    return isinstance(target, ast.Name)


def _collect_constant(collector: Collector, scope: Scope, name: str, value: Any, use: Use) -> None:
    """Collect the value that a name stands for, and what the ways to write it use.

    Raises:
        ExportError: it is a secret, lives in one process, or cannot be written.
    """
    statement = scope.newest(name)
    place = "" if statement is None else f", assigned in {statement.cell.place}"
    known = Known(collector, scope, name, use=use, words=f"variable {name!r}{place}")
    statements = [one for one in scope.cells.bindings(name) if _is_usable(scope, one)][:_TRIED]
    _refuse_handle(known, statements)
    if statement is not None and _is_lookup(scope, statement):
        known.look_up(statement)
        return
    _refuse(known)
    if is_generator(value):
        known.keep_seeded(statements)
        return
    known.write(statements)


def _is_usable(scope: Scope, statement: Statement) -> bool:
    """Tell whether a text may stand for a value: what it binds was not bound anew since."""
    decided = any(is_decision(statement.node, name) for name in statement.binds)
    if not (decided or is_assignment(statement.node)):
        return False
    lines = range(statement.first_line, statement.last_line + 1)
    looks_around = not names_in(statement.node).isdisjoint(_REFLECTING)
    if looks_around or not statement.cell.shell_lines.isdisjoint(lines):
        return False
    if len(statement.binds) == 1:
        return True
    return all(scope.newest(name) is statement for name in statement.binds)


def _is_lookup(scope: Scope, statement: Statement) -> bool:
    """Tell whether a value comes from the environment, perhaps by way of other variables."""
    if not (is_assignment(statement.node) or isinstance(statement.node, ast.AugAssign)):
        return False
    if statement.reads_environment:
        return True
    names = sorted(names_read(statement.node, future=True).now)
    bound = (scope.cells.bindings(name) for name in names)
    earlier = (next((one for one in found if one.order < statement.order), None) for found in bound)
    return any(_is_lookup(scope, one) for one in earlier if one is not None)


def _refuse_handle(known: Known, statements: list[Statement]) -> None:
    """Refuse what lives in one process, if the exported code does not fill it by itself.

    Raises:
        ExportError: the value is something of that kind, or holds it.
    """
    handle = handle_in(known.name, known.value)
    if handle is None:
        return
    direct = f"variable {known.name!r}" if handle.value is known.value else handle.place
    error = refusal(handle._replace(place=direct).words, known.use)
    begins_plain = bool(statements) and _is_plain_value(statements[0].node)
    if not handle.attribute and not (begins_plain and known.scope.is_changed_inside(known.name)):
        raise error
    known.collector.found.alive[known.name] = (handle.attribute, error)


def _is_plain_value(node: ast.stmt) -> bool:
    """Tell whether an assignment gives a constant, or containers of them."""
    value = getattr(node, "value", None)
    return value is not None and all(
        isinstance(one, _PLAIN_NODES)
        or (isinstance(one, ast.Call) and last_name(one.func) in _CONTAINERS)
        for one in ast.walk(value)
    )


def _refuse(known: Known) -> None:
    """Refuse what must never be written."""
    secret = secret_in(known.name, known.value)
    if secret is not None:
        what = f"variable {known.name!r}"
        if secret != known.name:
            what += f" holds {secret}, which"
        raise refusal(
            f"{what} looks like a secret; it is never written to a file. Read it at run time, e.g. "
            f'os.environ["{_variable(secret)}"]',
            known.use,
        )
    refuse_older(known.scope, type(known.value), known.use.then(known.described))


def _variable(secret: str) -> str:
    """Return the name of an environment variable for a secret, as CONFIG['token'] has it."""
    words = re.findall(r"[A-Za-z][\w-]*", secret.removesuffix(" (a key)"))
    return words[-1].replace("-", "_").upper() if words else "TOKEN"


class Known:
    """One variable that is to be written.

    Args:
        collector: takes the piece.
        scope: where it lives.
        name: its name.
        use: who uses it.
        words: what it is called in a message.
    """

    def __init__(
        self, collector: Collector, scope: Scope, name: str, *, use: Use, words: str
    ) -> None:
        self.collector, self.scope = collector, scope
        self.name, self.value, self.use, self.words = name, scope[name], use, words

    @property
    def described(self) -> str:
        """What it is in a chain of use, as "aug = ... [In[4]]"."""
        statement = self.scope.newest(self.name)
        return f"{self.name} = ..." + (f" [{statement.cell.place}]" if statement else "")

    # -- ways to write it -----------------------------------------------------------------
    def look_up(self, statement: Statement) -> None:
        """Keep a look-up in the environment; its value is neither written nor compared."""
        if self.name in names_read(statement.node, future=True).now:
            raise refusal(
                f"{self.words}, is computed from what had this name before, which comes from the "
                "environment; its value is never written to a file: give one of the two another "
                "name",
                self.use,
            )
        self._check_secret(statement)
        self._add([self._as_written(statement)], statement)

    def keep_seeded(self, statements: list[Statement]) -> None:
        """Keep a generator of random numbers that has a seed."""
        for statement in statements[:1]:
            calls = [one for one in ast.walk(statement.node) if isinstance(one, ast.Call)]
            if any(call.args or call.keywords for call in calls):
                self.collector.note(
                    f"{self.name!r} starts from its seed again whenever the module is imported"
                )
                self._add([self._as_written(statement)], statement)
                return
        raise refusal(
            f"variable {self.name!r} is a random generator without a seed, so nobody could draw "
            "the same numbers; give it one, as np.random.default_rng(0), or give the stage's "
            "function a parameter named rng",
            self.use,
        )

    def write(self, statements: list[Statement]) -> None:
        """Write it as its text says, if that gives the live value; else as a literal."""
        newest = statements[0] if statements else None
        reads = names_read(newest.node, future=True).now if newest else frozenset()
        if self.name in reads and callable(self.value):
            raise refusal(
                f"{self.words}, wraps what had this name before; write the wrapper as a decorator "
                "above the definition, or give what it wraps a name of its own",
                self.use,
            )
        spellings: list[Spelling] = []
        errors = []
        for statement in statements:
            if statement is not statements[0] and secret_in_text(statement.text):
                continue
            self._check_secret(statement)
            one = self.collector.attempt(functools.partial(self._as_written, statement))
            if one is not None:
                spellings.append(one)
            elif self.collector.failed is not None:
                errors.append(self.collector.failed)
        held = collect_held(
            self.collector,
            self.scope,
            self.name,
            self.value,
            self.use.then(self.described),
            statements=statements,
        )
        spellings = [replace(one, later=one.later | held) for one in spellings]
        alive = self.name in self.collector.found.alive
        last = None if alive else self._as_literal(newest) or self._as_asset()
        if last is not None:
            spellings.append(last)
        if not spellings:
            if alive:
                raise self.collector.found.alive.pop(self.name)[1]
            reason = self.collector.found.reasons.get(self.name, kind_of(self.value))
            raise errors[0] if errors else unwritable(self.words, reason, self.use)
        names = {self.name} | (set(newest.binds) if newest else set())
        for name in names:
            self.collector.found.held[name] = HeldState.of(self.scope[name])
        self._add(
            spellings, newest, {name: fingerprint_of(self.scope[name]) for name in sorted(names)}
        )

    def _check_secret(self, statement: Statement) -> None:
        refuse_secret(f"the text of {self.words}", self.use, text=statement.text)

    def _as_written(self, statement: Statement) -> Spelling:
        use = self.use.then(f"{self.name} = ... [{statement.cell.place}]")
        reads = self.collector.read(self.scope, statement.node, statement.cell, use)
        return Spelling(statement.text, *reads)

    def _as_literal(self, statement: Statement | None) -> Spelling | None:
        several = statement is not None and len(statement.binds) > 1
        alike = _alike(self.scope, statement.binds) if statement and several else [[self.name]]
        ways = [
            self.collector.as_literal(self.name, self.scope[names[0]], self.scope, self.use)
            for names in alike
        ]
        found = [one for one in ways if one is not None]
        if len(found) < len(ways):
            return None
        rows = (
            f"{' = '.join(names)} = {one.text}" for names, one in zip(alike, found, strict=True)
        )
        text = "\n".join(rows) if several else _assigned(self.name, found[0].text, statement)
        now = frozenset().union(*(one.now for one in found))
        return Spelling(text, now, frozenset().union(*(one.later for one in found)))

    def _as_asset(self) -> Spelling | None:
        """Load a large array from a file beside the module, where that is wanted."""
        archive = self.collector.archive
        array = _as_array(self.value)
        if archive is None or array is None:
            return None
        numpy = self.collector.spelled(self.scope, np, self.use)
        self.collector.add_import(Import("pathlib", "Path"))
        text = f'{numpy}.load(Path(__file__).with_name("{archive}"))["{self.name}"]'
        if is_tensor(self.value):
            torch = self.collector.spelled(self.scope, sys.modules["torch"], self.use)
            text = f"{torch}.from_numpy({text})"
        self.collector.found.arrays[self.name] = array
        return Spelling(f"{self.name} = {text}", frozenset({"Path", text.partition(".")[0], numpy}))

    # -- what becomes of it ---------------------------------------------------------------
    def _add(
        self,
        spellings: list[Spelling],
        statement: Statement | None,
        expected: dict[str, Any] | None = None,
    ) -> None:
        names = (self.name, *sorted((statement.binds if statement else set()) - {self.name}))
        piece = Piece(
            names=names,
            spellings=tuple(spellings),
            expected=expected or {},
            kind="decision" if statement and is_import(statement.node) else "constant",
            first=self.scope.first(self.name),
            words=self.words,
        )
        self.collector.add(piece, self.scope)


def _alike(scope: Scope, names: Iterable[str]) -> list[list[str]]:
    """Put names of the same object together."""
    groups: dict[int, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(id(scope[name]), []).append(name)
    return list(groups.values())


def _as_array(value: Any) -> Any:
    if is_tensor(value):
        return value.detach().cpu().numpy() if value.numel() > MOST else None
    large = isinstance(value, np.ndarray) and value.size > MOST and value.dtype.kind != "O"
    return value if large else None


def _assigned(name: str, text: str, statement: Statement | None) -> str:
    """Put a literal in the place of the value in an assignment; comments and annotation stay."""
    if statement is None:
        return f"{name} = {text}"
    source = statement.text
    node = ast.parse(source).body[0]
    value = getattr(node, "value", None)
    if value is None:
        return f"{name} = {text}"
    return replaced(source, [(value, in_quotes_of(text, source))])


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
    found = definition_of(place.scope, value.__code__)
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
    expected = {name: _apart_from_code(value, name, node)}
    collector.add(Piece((name,), (spelling,), expected, "definition", first, words))
    return name


def _apart_from_code(value: FunctionType, name: str, node: ast.AST) -> dict[str, Any]:
    """Return the fingerprint of what a function has besides its code: defaults, attributes."""
    found = {**fingerprint_of(value), "shown": f"function {name!r}"}
    code = [label for label, _ in found["parts"] if label.startswith(("code", "closure"))]
    return loosened(found, [*code, *filled_defaults(node)])


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
_LOADER = f"{__package__.rpartition('.')[0]}.dataloader."


def new_object(value: Any, place: Place) -> str:
    """Write an object without a name as a constant of the module's own."""
    collector = place.collector
    for known, one in collector.found.objects.items():
        if one is value:
            return known
    words = f"the {type(value).__name__} of {place.use.words}"
    refuse_secret(words, place.use, name=place.name, value=value)
    if type(value).__module__.startswith(_LOADER):
        raise refusal(
            f"cannot write the {type(value).__name__} into the module: it is a part of a "
            "DataLoader; export the loader itself, loader.export(path), which writes the chain "
            "that it stands for",
            place.use,
        )
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


# -- Setup: cells that are marked `#| nbpipe: setup` are kept whole, above everything else ---------
_MARK = re.compile(r"[ \t]*#\|[ \t]*nbpipe:.*")


def collect_setup(collector: Collector, scope: Scope) -> None:
    """Collect the set-up cells of a notebook, and what they use.

    Raises:
        ExportError: one of them holds a shell line or a secret, or uses what cannot be exported.
    """
    newest: dict[str, Cell] = {}
    for cell in scope.cells.cells:
        if cell.is_setup:
            newest[cell.text] = cell  # a cell that was run twice is one
    for cell in newest.values():
        _collect_setup_cell(collector, scope, cell)


def _collect_setup_cell(collector: Collector, scope: Scope, cell: Cell) -> None:
    use = Use(f"the set-up cell [{cell.place}]")
    if cell.shell_lines:
        raise refusal(
            "a shell/magic line (`!`, `%`) is inside a set-up cell; use subprocess or plain Python",
            use,
        )
    refuse_secret("a set-up cell", use, text=cell.text)
    statements = list(cell.statements)
    leading = list(itertools.takewhile(_imports, statements))
    rest = statements[len(leading) :]
    for line in imports_in([one.node for one in leading]):
        if line.module != "__future__":
            collector.add_import(replace(line, local=is_local(line.module)))
    if not rest:
        return
    bound = {name for one in rest for name in one.binds}
    names = sorted(name for name in bound if _is_of_setup(scope.newest(name)))
    for name in names:
        collector.found.owners[name] = scope
    reads = [collector.read(scope, one.node, cell, use) for one in rest]
    now, later = (frozenset().union(*side) for side in zip(*reads, strict=True))
    order = rest[0].order
    spelling = Spelling(_text(rest), now - bound, later - bound)
    piece = Piece((*names, f"<{cell.place}>"), (spelling,), {}, "setup", order, use.words)
    collector.add(piece, scope)


def _is_of_setup(newest: Statement | None) -> bool:
    """Tell whether a name still is what a set-up cell bound; else it is collected as others are."""
    return newest is not None and newest.cell.is_setup


def _imports(statement: Statement) -> bool:
    return isinstance(statement.node, ast.Import | ast.ImportFrom)


def _text(statements: list[Statement]) -> str:
    """Return the text of statements as it stands, without the mark."""
    lines = [line for one in statements for line in one.text.split("\n")]
    return "\n".join(line for line in lines if not _MARK.fullmatch(line))
