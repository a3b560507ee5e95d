"""Definitions: functions, classes, and what builds a pipeline, whole and as they were written."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..executors.pickling import CACHED, by_reference
from ..ops.stage import Chain, Stage, addresses
from .cells import Cell, Definition, Statement
from .collect import (
    Collector,
    Scope,
    Use,
    code_of,
    definition_of,
    is_import,
    methods_of,
    refusal,
    refuse_secret,
)
from .difference import fingerprint_of, loosened
from .held import captured_by, handle_in, held_in, members_of
from .literals import quoted
from .module import Line, Module, Parameter, Piece, Spelling, stage_words
from .source import changed_by, last_name, names_in, names_read, root_of

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
    _refuse_added(scope, name, value, statement, use)
    now, later = collector.read(scope, node, cell, reads)
    if isinstance(value, type):
        members = members_of(value)
        later |= collect_held(collector, scope, name, members, reads, statements=[statement])
    kind = "class" if isinstance(node, ast.ClassDef) else "function"
    piece = Piece(
        names=(name,),
        spellings=(Spelling(text, now - {name}, later - {name}),),
        expected={name: loosened(fingerprint_of(value), filled_defaults(node))},
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
        raise refusal(_unknown(name, value), use)
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


def _unknown(name: str, value: Any) -> str:
    module = sys.modules.get(str(getattr(value, "__module__", "")))
    if module is not None and getattr(module, name, value) is not value:
        return (
            f"{name!r} is not what module {module.__name__!r} has by now, which was loaded anew; "
            "import it again, and rebuild the pipeline"
        )
    return unknown_text(name)


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


def filled_defaults(node: ast.AST) -> Iterator[str]:
    """Return the defaults that a function fills, as `def f(x, seen={})` may do on purpose."""
    for one in ast.walk(node):
        called = isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)
        changed = one.func.value if called else changed_by(one)  # type: ignore[attr-defined]
        if isinstance(changed, ast.Name):
            yield f"default {changed.id!r}"


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


# -- Implementations that are added to a function below it, as by `@show.register` -----------------
def _refuse_added(scope: Scope, name: str, value: Any, statement: Statement, use: Use) -> None:
    """Refuse a function or class with implementations that its own text does not hold.

    Raises:
        ExportError: there is one.
    """
    methods = vars(value).values() if isinstance(value, type) else ()
    kinds = functools.singledispatchmethod
    owners = [value, *(one.dispatcher for one in methods if isinstance(one, kinds))]
    for code in (code for owner in owners for code in _implementations(owner)):
        found = scope.cells.definition(code)
        if found is not None and found.statement is not statement:
            raise refusal(
                f"{found.place} registers an implementation with {name!r}, which is not in its "
                "own text; write one function that looks at the type, or define all of them in "
                "one cell that begins with the line `#| nbpipe: setup`",
                use,
            )


def _implementations(value: Any) -> list[CodeType]:
    """Return the code of all implementations of a `singledispatch` function; none of others."""
    registry = getattr(value, "registry", None)
    if not isinstance(registry, Mapping) or not callable(getattr(value, "dispatch", None)):
        return []
    found = (code_of(one) for one in registry.values() if callable(one))
    return [code for code in found if code is not None]


def lost(scope: Scope, used: frozenset[str]) -> Iterator[tuple[Statement, str]]:
    """Return the statements that add to a function of another module, which only imports it.

    Set-up cells are kept, and so are not among them.

    Args:
        scope: the notebook.
        used: names of the module that is written.

    Returns:
        Each with the words for the function in it.
    """
    for cell in scope.cells.cells:
        for statement in () if cell.is_setup else cell.statements:
            for call in _registrations(statement.node):
                root = last_name(root_of(call))
                if root not in used or root not in scope:
                    continue
                with contextlib.suppress(AttributeError, KeyError):
                    found = followed(call.value, scope.namespace)
                    if _implementations(found) and by_reference(found):
                        yield statement, ast.unparse(call.value)


def _registrations(node: ast.stmt) -> Iterator[ast.Attribute]:
    """Return each `x.register` that decorates a definition, or is called by an expression."""
    marks = [node.value] if isinstance(node, ast.Expr) else getattr(node, "decorator_list", [])
    for mark in marks:
        func = mark
        while isinstance(func, ast.Call):
            func = func.func
        if isinstance(func, ast.Attribute) and func.attr == "register":
            yield func


def followed(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
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
        owner = followed(node.value, namespace)
        if isinstance(owner, type | ModuleType | str | bytes):
            return getattr(owner, node.attr)
    raise AttributeError(ast.dump(node))


# -- As built: the statements that make a pipeline, and what its knobs are set to below them -------
_MOST = 50  # statements


def as_built(
    chain: Chain, draft: Module, collector: Collector, home: Scope, *, tried: bool
) -> Module | None:
    """Write the user's own statements that make a pipeline, and set its knobs to what they are.

    Args:
        chain: the stages.
        draft: what makes the same stages one by one; its parameters for knobs are kept.
        collector: takes what the statements use.
        home: the notebook.
        tried: a fresh process will tell whether they make these stages.

    Returns:
        The module; None where the statements are not known, use what cannot be exported, or may
        make other stages by now, and nobody would tell.
    """
    names = variables_of(chain, home)
    name, statements = next(((one, _statements(one, home)) for one in names), ("", []))
    use = Use(f"the variable {name!r}")
    local = {bound for one in statements for bound in one.binds}

    def collect() -> bool:
        for one in statements:
            check_text(one.text, one.node, one.cell, f"the making of {name!r}", use)
            collector.read(home, one.node, one.cell, use, local=sorted(local))
            collector.found.listed |= _listed(one.node)
        return True

    if not statements or collector.attempt(collect) is None:
        return None
    reads = ((one, names_read(one.node, future=True)) for one in statements)
    if not tried and any(is_late(found.now - local, one.order, home) for one, found in reads):
        return None
    knobs = _knobs(name, chain, draft)
    read = {one for statement in statements for one in names_in(statement.node)}
    if any(one.name in read for one in knobs):  # a parameter would stand before the variable
        return None
    *first, last = statements
    lines = [Line(one.text, is_code=True) for one in first]
    pattern = rf"(?m)^{name}(?:\s*:[^=]+)?\s*=\s*"
    if knobs or not isinstance(last.node, ast.Assign) or not re.search(pattern, last.text):
        lines += [
            Line(last.text, is_code=True),
            *(Line(one, is_code=True) for one in knobs.values()),
        ]
        return Module(tuple(knobs), (*lines, Line(name)))
    text = re.sub(pattern, "return ", last.text, count=1)
    return Module((), (*lines, Line(text, is_code=True)))


def is_late(names: Iterable[str], ran: tuple[int, int], scope: Scope) -> bool:
    """Tell whether a variable was bound anew since a statement ran, but for what is defined."""
    newest = ((name, scope.newest(name)) for name in names)
    return any(
        one.order > ran and not (is_import(one.node) or is_defined(one, name))
        for name, one in newest
        if one is not None
    )


def variables_of(chain: Chain, home: Scope) -> Iterator[str]:
    """Return the user's variables that are the pipeline of these stages."""
    for name in tuple(home.namespace):
        if home.newest(name) and _holds(home, name, chain):
            yield name


def _knobs(name: str, chain: Chain, draft: Module) -> dict[Parameter, str]:
    """Return what sets the knobs of a pipeline, by the parameters that they are set to."""
    words = stage_words(chain)
    parameters = {one.name: one for one in draft.parameters}
    return {
        parameters[parameter]: f"{name}[{quoted(address)}].{word} = {parameter}"
        for address, stage in addresses(chain).items()
        for word in stage.knobs
        if (parameter := f"{words[id(stage)]}_{word}") in parameters
    }


def _holds(scope: Scope, name: str, chain: Chain | None) -> bool:
    """Tell whether a variable is a pipeline: of these stages, where they are given."""
    stages = getattr(scope.namespace[name], "chain", None)
    if not isinstance(stages, tuple) or not all(isinstance(one, Stage) for one in stages):
        return False
    return chain is None or [*map(id, stages)] == [*map(id, chain)]


def _statements(name: str, home: Scope) -> list[Statement]:
    """Return the statements that make a pipeline, from the first; none where one is not known."""
    found: list[Statement] = []
    wanted: list[tuple[str, Statement | None]] = [(name, None)]
    while wanted:
        one, reader = wanted.pop()
        bound = home.cells.bindings(one)
        earlier = [made for made in bound if reader is None or made.order < reader.order]
        if not earlier or len(found) > _MOST or not _is_making(earlier[0].node, home):
            return []
        if earlier[0] not in found:
            found.append(earlier[0])
            reads = names_read(earlier[0].node, future=True).now
            pipes = (
                other for other in sorted(reads) if other in home and _holds(home, other, None)
            )
            wanted += [(other, earlier[0]) for other in pipes]
    return sorted(found, key=lambda one: one.order)


def _is_making(node: ast.AST, home: Scope) -> bool:
    """Tell whether a statement makes pipelines, or what they are made of, and nothing else."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return True
    if not isinstance(node, ast.For | ast.If):
        return False
    inside = [*node.body, *node.orelse]
    blocks = [one for one in inside if isinstance(one, ast.For | ast.If)]
    plain = [one for one in inside if isinstance(one, ast.Assign | ast.AnnAssign)]
    others = [one for one in inside if one not in blocks and one not in plain]
    if not all(isinstance(one, ast.FunctionDef | ast.Pass) for one in others):
        return False  # it may train, or show something
    names = {name for one in plain for name in names_read(one, future=True).bound}
    read = names_in(node, ast.Load)
    made = all(name in read or _holds(home, name, None) for name in names if name in home)
    return made and all(_is_making(one, home) for one in blocks)


def _listed(node: ast.AST) -> set[str]:
    """Return the variables by which sources in some code read their items."""
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call) and one.args)
    sources = (one.args[0] for one in calls if last_name(one.func) == "source")
    return {name for one in sources for name in names_in(one)}
