"""Pieces: what the names of a notebook stand for: definitions, constants and set-up cells."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np

from ..base.tree import is_tensor
from ..errors import ExportError
from ..executors.pickling import CACHED, by_reference
from .cells import Cell, Definition, Statement, imports_in
from .collect import (
    Collector,
    HeldState,
    Scope,
    Use,
    code_of,
    definition_of,
    is_import,
    methods_of,
    refusal,
    refuse_older,
    refuse_secret,
    unwritable,
)
from .fingerprint import fingerprint_of
from .literals import MOST, in_quotes_of
from .module import Import, Piece, Spelling
from .reachable import (
    captured_by,
    handle_in,
    held_in,
    is_changeable,
    is_generator,
    is_local,
    kind_of,
    members_of,
    secret_in,
)
from .secrets import secret_in_text
from .source import changed_by, names_in, names_read, replaced

# -- Constants: values become pieces, by the text that made them or as literals --------------------
_REFLECTING = ("globals", "locals", "vars", "eval", "exec")  # they find what they do not name
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
    _refuse_living(known)
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


def _refuse_living(known: Known) -> None:
    """Refuse what lives in one process, if the exported code does not fill it by itself.

    Raises:
        ExportError: the value is something of that kind, or holds it.
    """
    handle = handle_in(known.name, known.value)
    if handle is None:
        return
    direct = f"variable {known.name!r}" if handle.value is known.value else handle.place
    error = refusal(handle._replace(place=direct).words, known.use)
    whole, scope = handle.value is known.value, known.scope
    filled = known.name in scope.rebound if whole else scope.is_changed_inside(known.name)
    if not handle.attribute and not filled:
        raise error
    known.collector.found.alive[known.name] = (handle.attribute, error)


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
    words = re.findall(r"[A-Za-z][\w-]*", secret.partition(" (")[0])
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
                self.collector.found.notes[
                    f"{self.name!r} starts from its seed again whenever the module is imported"
                ] = None
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
        spellings, errors = self._by_texts(statements)
        held = collect_held(
            self.collector,
            self.scope,
            self.name,
            self.value,
            self.use.then(self.described),
            statements=statements,
        )
        spellings = [replace(one, later=one.later | held) for one in spellings]
        spellings += self._by_another_name()
        alive = self.name in self.collector.found.alive
        last = None if alive else self._as_literal(newest) or self._as_asset()
        if last is not None:
            spellings.append(last)
        if not spellings:
            if alive:
                raise self.collector.found.alive.pop(self.name)[1]
            reason = self.collector.found.reasons.get(self.name, kind_of(self.value))
            raise next(filter(None, errors), unwritable(self.words, reason, self.use))
        names = {self.name} | (set(newest.binds) if newest else set())
        for name in names:
            self.collector.found.held[name] = HeldState.of(self.scope[name])
        self._add(
            spellings, newest, {name: fingerprint_of(self.scope[name]) for name in sorted(names)}
        )

    def _by_texts(
        self, statements: list[Statement]
    ) -> tuple[list[Spelling], list[ExportError | None]]:
        """Return the texts that may give it, and why others cannot be exported."""
        spellings, errors = [], []
        for statement in statements:
            if statement is statements[0] or not secret_in_text(statement.text):
                self._check_secret(statement)
                one = self.collector.attempt(functools.partial(self._as_written, statement))
                spellings += [] if one is None else [one]
                errors += [self.collector.failed] if one is None else []
        return spellings, errors

    def _check_secret(self, statement: Statement) -> None:
        refuse_secret(f"the text of {self.words}", self.use, text=statement.text)

    def _as_written(self, statement: Statement) -> Spelling:
        use = self.use.then(f"{self.name} = ... [{statement.cell.place}]")
        reads = self.collector.read(self.scope, statement.node, statement.cell, use)
        return Spelling(statement.text, *reads)

    def _by_another_name(self) -> list[Spelling]:
        """Return how to write it by a name of the same object that is in the module already."""
        if not is_changeable(self.value):
            return []
        pieces = self.collector.found.pieces.values()
        known = {name for piece in pieces if piece.kind == "constant" for name in piece.names}
        names = sorted({*self.scope.names_of(self.value)} & known - {self.name})
        return [Spelling(f"{self.name} = {names[0]}", frozenset(names[:1]))] if names else []

    def _as_literal(self, statement: Statement | None) -> Spelling | None:
        alike: dict[int, list[str]] = {}  # names of the same object stand together
        for name in sorted(statement.binds if statement else {self.name}):
            alike.setdefault(id(self.scope[name]), []).append(name)
        ways = [
            self.collector.as_literal(self.name, self.scope[names[0]], self.scope, self.use)
            for names in alike.values()
        ]
        found = [one for one in ways if one is not None]
        if len(found) < len(ways):
            return None
        rows = [
            " = ".join([*names, one.text]) for names, one in zip(alike.values(), found, strict=True)
        ]
        single = list(alike.values()) == [[self.name]]
        text = _assigned(self.name, found[0].text, statement) if single else "\n".join(rows)
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


# -- Definitions: functions and classes, whole and as they were written ---------------------------
_DEFS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def is_defined(statement: Statement | None, name: str) -> bool:
    """Tell whether a statement is the definition of a function or class of this name."""
    return statement is not None and _def_in(statement.node, name) is not None


def _def_in(node: ast.AST, name: str) -> _DEFS | None:
    """Return the last definition of a name in a statement, also below `if`, `try` or `with`."""
    if isinstance(node, _DEFS):
        return node if node.name == name else None
    inner = [_def_in(one, name) for one in ast.iter_child_nodes(node)]
    return next((one for one in reversed(inner) if one is not None), None)


def collect_definition(collector: Collector, scope: Scope, name: str, value: Any, use: Use) -> None:
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
    now, later = collector.read(scope, node, cell, reads)
    if isinstance(value, type):
        members = members_of(value)
        later |= collect_held(collector, scope, name, members, reads, statements=[statement])
    kind = "class" if isinstance(node, ast.ClassDef) else "function"
    piece = Piece(
        names=(name,),
        spellings=(Spelling(text, now - {name}, later - {name}),),
        expected={name: fingerprint_of(value)},
        first=scope.first(name),
        words=f"{kind} {name!r}, defined in {cell.place}",
    )
    collector.add(piece, scope)
    if cell.future:
        collector.found.future = True


def _written(scope: Scope, name: str, value: Any, use: Use) -> tuple[Statement, Cell, ast.AST, str]:
    """Return the statement, cell, tree and text of a definition."""
    statement = scope.newest(name)
    found = _found(scope, name, value)
    if found is not None and not (is_defined(statement, name) and _is_decorated(statement, name)):
        return found.statement, found.cell, found.node, found.text(name)
    if statement is None or not is_defined(statement, name):
        raise refusal(unknown_text(name), use)
    return statement, statement.cell, statement.node, statement.text


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


def unknown_text(name: str) -> str:
    """Tell that the text of a function or class is not known."""
    return (
        f"the text of {name!r} is not known: it was made neither in a cell nor in a file; define "
        "it in a cell, or import it"
    )


def described(name: str, node: ast.AST, place: str) -> str:
    """Tell who uses something, as "decode() [In[4]]"."""
    return f"class {name} [{place}]" if isinstance(node, ast.ClassDef) else f"{name}() [{place}]"


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
    refuse_secret(f"the text of {words}", use, text=text)


def _found(scope: Scope, name: str, value: Any) -> Definition | None:
    """Return the definition that a live function or class came from."""
    if not isinstance(value, type):
        code = code_of(value)
        return None if code is None else definition_of(scope, code)
    bodies = [found.statement for found in methods_of(scope, value).values()]
    for statement in scope.cells.bindings(name):
        node = _def_in(statement.node, name)
        if isinstance(node, ast.ClassDef) and (statement in bodies or not bodies):
            return Definition(statement.cell, statement, node, statement.after)
    return None


def _check_class(scope: Scope, name: str, kind: type, statement: Statement, use: Use) -> None:
    inside = [one for one in ast.walk(statement.node) if isinstance(one, _DEFS)]
    decorated = {one.name for one in inside if one.decorator_list}  # what by, the trial compares
    for attribute, found in methods_of(scope, kind).items():
        known = found.statement is statement or attribute in decorated
        if not (known or _is_named(statement, found)):
            raise refusal(
                f"class {name!r} was changed after its definition: attribute {attribute!r} comes "
                f"from {found.place}, not {statement.cell.place}; re-run or edit the class cell",
                use,
            )


def _changes_itself(node: ast.AST, name: str) -> bool:
    """Tell whether a class changes its own attributes, as `cls.known[name] = cls` does."""
    owners = (name, "cls", "type(self)", "self.__class__", "__class__")
    for target in map(changed_by, ast.walk(node)):
        one: ast.AST | None = target
        while isinstance(one, ast.Attribute | ast.Subscript) and _text(one) not in owners:
            one = one.value
        if one is not None and _text(one) in owners:
            return True
    return False


def _text(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.Call) else ""


def _is_named(statement: Statement, found: Definition) -> bool:
    """Tell whether the text of a class takes a function over by its name, as `run = helper`."""
    named = getattr(found.node, "name", None)
    return named in names_read(statement.node, future=True).now


def _is_decorated(statement: Statement | None, name: str) -> bool:
    node = None if statement is None else _def_in(statement.node, name)
    return node is not None and bool(node.decorator_list) and node is statement.node  # type: ignore[union-attr]


# -- The user's functions and classes that a value holds -------------------------------------------
_DEPTH = 20


def collect_held(
    collector: Collector,
    scope: Scope,
    name: str,
    value: Any,
    use: Use,
    *,
    statements: Sequence[Statement],
) -> frozenset[str]:
    """Collect the user's functions and classes that a value holds, as registries do.

    The place of the first that has no name by now, as "['crop']", becomes a part of what was found.

    Args:
        collector: takes them.
        scope: whose names count.
        name: that of the value.
        value: what holds them.
        use: who uses it.
        statements: those that may make a function of it without a name.

    Returns:
        Their names.
    """
    names: set[str] = set()
    for place, held in held_in(value):
        known = list(map(scope.name_of, _named_in(scope, held)))
        names |= {one for one in known if one is not None}
        if not known and _is_lost(scope, held, statements):
            collector.found.unnamed.setdefault(name, (place, use.by or use))
    collector.need_all(scope, names, use)
    return frozenset(names)


def _is_lost(scope: Scope, held: Any, statements: Sequence[Statement]) -> bool:
    """Tell whether a function without a name was made by none of some statements."""
    code = code_of(held)
    if by_reference(held) or "<locals>" in held.__qualname__ or code is None:
        return False  # of a library, or made by a call, perhaps of the pipeline
    found = definition_of(scope, code)
    return found is None or all(found.statement is not one for one in statements)


def _named_in(scope: Scope, value: Any) -> Iterator[Any]:
    """Return a function or class that has a name, or the functions with one that are inside."""
    for _ in range(_DEPTH):
        if by_reference(value):
            return
        if scope.name_of(value) is not None:
            yield value
            return
        for _, inner in captured_by(value) if isinstance(value, FunctionType) else ():
            if isinstance(inner, FunctionType | CACHED):
                yield from _named_in(scope, inner)
        value = getattr(value, "__wrapped__", None)
        if value is None:
            return


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
    spelling = Spelling(_without_mark(rest), now - bound, later - bound)
    piece = Piece((*names, f"<{cell.place}>"), (spelling,), {}, "setup", order, use.words)
    collector.add(piece, scope)


def _is_of_setup(newest: Statement | None) -> bool:
    """Tell whether a name still is what a set-up cell bound; else it is collected as others are."""
    return newest is not None and newest.cell.is_setup


def _imports(statement: Statement) -> bool:
    return isinstance(statement.node, ast.Import | ast.ImportFrom)


def _without_mark(statements: list[Statement]) -> str:
    """Return the text of statements as it stands, without the mark."""
    lines = [line for one in statements for line in one.text.split("\n")]
    return "\n".join(line for line in lines if not _MARK.fullmatch(line))
