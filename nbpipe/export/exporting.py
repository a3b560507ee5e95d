"""Exporting: the whole way from a live pipeline to a file on disk."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal

import numpy as np

from ..base.checks import flag, whole
from ..base.format import shortened
from ..errors import ArgumentError, ExportError, NbpipeError
from ..executors.pickling import by_reference
from ..ops.chain import graph
from ..ops.stage import Chain, addresses
from ..show.watch import note_export
from .anew import error_words
from .arguments import is_repeated
from .cells import Statement
from .chain import as_built, chosen_text, drafted, is_late, variables_of
from .collect import Collector, Found, Scope, Use, is_import, unwritable
from .fresh import FreshProcess, specs_of
from .module import Import, Module, Piece, Spelling, import_lines, laid_out, ordered, rendered
from .pieces import collect_setup, collect_value, is_decision
from .proof import Report, archive_bytes, decided, refuse_secrets, verified
from .reachable import is_local, secret_in, texts_named_as_secrets
from .secrets import (
    advice,
    as_text,
    is_suspicious_name,
    knowing,
    masked,
    names_kept,
    scrubbed,
    told_in,
)
from .source import last_name, names_in, names_unbound, root_of, with_noqa
from .store import Exported, module_path, stored

# -- Gate: nothing leaves an export, as a file, a note or an error, but through here ---------------


@contextlib.contextmanager
def gate(scope: Scope) -> Iterator[None]:
    """Let nothing out that is a secret of a notebook: errors that leave are `cleared`.

    What is a secret is looked for once, in the environment, in variables with the name of a
    secret, in what cells say, and in what was computed from these; as long as this lasts, a
    text that holds one of them is a secret wherever it stands.

    Args:
        scope: the notebook.

    Raises:
        NbpipeError: those that leave, without secrets.
    """
    with knowing(_secrets_of(scope)):
        try:
            yield
        except NbpipeError as error:
            cleared(error)
            raise


def cleared(error: BaseException) -> None:
    """Take the secrets out of what an error says; a cause that tells one is forgotten."""
    error.args = tuple(scrubbed(one) if isinstance(one, str) else one for one in error.args)
    notes = getattr(error, "__notes__", None)
    if notes:
        error.__notes__ = [scrubbed(str(note)) for note in notes]
    told = "".join(traceback.format_exception(error, limit=0))
    if scrubbed(told) != told:
        error.__cause__ = error.__context__ = None


def _secrets_of(scope: Scope) -> Iterator[str]:
    """Return the secrets of a notebook, by name, by its text, and by where they come from."""
    for cell in scope.cells.cells:
        yield from told_in(cell.text)
    derived = _derived(scope)
    for name, value in tuple(scope.namespace.items()):
        if scope.is_foreign(name) or isinstance(value, type):
            continue
        if name in derived and isinstance(value, str | bytes | bytearray):
            yield as_text(value)
        elif isinstance(value, ModuleType):
            yield from _secrets_of_module(value)
        elif is_suspicious_name(name):
            yield from texts_named_as_secrets(name, value)


def _secrets_of_module(module: ModuleType) -> Iterator[str]:
    """Return the secrets in the variables of a module of the user's own."""
    if is_local(module.__name__):
        for name, value in tuple(vars(module).items()):
            if is_suspicious_name(name):
                yield from texts_named_as_secrets(name, value)


def _derived(scope: Scope) -> set[str]:
    """Return the variables that were looked up as secrets, or computed from such."""
    derived: set[str] = set()
    for cell in scope.cells.cells:
        for statement in cell.statements:
            if _is_derived(statement, derived):
                derived |= statement.binds
            else:
                derived -= statement.binds
    return derived


def _is_derived(statement: Statement, derived: set[str]) -> bool:
    node = statement.node
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) or node.value is None:
        return False
    if statement.reads_secret:
        return True
    if statement.reads_environment and any(map(is_suspicious_name, statement.binds)):
        return True
    return not derived.isdisjoint(names_kept(node.value))


# -- Effects: statements of the notebook that act on what the module uses, and are not in it -------
_LONGEST = 80
_RANDOM = frozenset(("random", "numpy", "torch"))
# Calls that change how a module behaves; others only show or compute something.
_ACTS = (
    "seed", "manual_seed", "set_", "filterwarnings", "simplefilter", "basicConfig", "register",
    "enable", "disable", "use_deterministic", "configure", "setup", "init", "load_dotenv",
    "setlocale", "insert", "append", "update", "putenv", "setdefault", "setNumThreads",
    "add_safe_globals", "patch", "apply", "seterr",
)  # fmt: skip
_SHOWS = ("set_printoptions", "set_option")
_ADDS = "register"


def effects(scope: Scope, used: frozenset[str]) -> Iterator[Statement]:
    """Return the statements outside set-up cells that change a module the exported code uses.

    Args:
        scope: the notebook.
        used: names of the module that is written.
    """
    for cell in scope.cells.cells:
        if cell.is_setup:
            continue
        for statement in cell.statements:
            if not is_import(statement.node) and _acts(statement.node, scope, used):
                yield statement


def note_of(statement: Statement) -> str:
    """Tell what is not in the module, and how it would be."""
    text = shortened(masked(ast.unparse(statement.node)), _LONGEST)
    return (
        f"`{text}` in {statement.cell.place} acts by side effect and is not in the module; to keep "
        "it, begin its cell with the line `#| nbpipe: setup`"
    )


def _acts(node: ast.stmt, scope: Scope, used: frozenset[str]) -> bool:
    """Tell whether a statement changes a module, a class or a function that is used."""
    packages = {_package_of(scope.namespace.get(name)) for name in used}
    kind: type = type
    match node:
        case ast.Expr(ast.Call(ast.Name(name) as target)):  # as `seed_everything()`
            seeds = isinstance(scope.namespace.get(name), FunctionType) and "seed" in name.lower()
            return seeds and not _RANDOM.isdisjoint(packages)
        case ast.Expr(ast.Call(ast.Attribute(_, name) as target)) if (
            name.startswith(_ACTS) and name not in _SHOWS
        ):
            targets: list[ast.expr] = [target]
        case ast.Assign() | ast.AugAssign():
            every = node.targets if isinstance(node, ast.Assign) else [node.target]
            targets = [one for one in every if isinstance(one, ast.Attribute | ast.Subscript)]
        case _:
            targets, kind = _registering(node), FunctionType
    known = {"os", "sys", "random", "warnings", *packages} - {"matplotlib", "IPython", ""}
    names = [last_name(root_of(one)) for one in targets]
    held = [scope.namespace.get(name) for name in names]
    return any(
        name in used if isinstance(one, kind) else _package_of(one) in known
        for name, one in zip(names, held, strict=True)
    )


def _registering(node: ast.stmt) -> list[ast.expr]:
    """Return what registers an implementation with a function: `show.register`, called or not."""
    marks = [node.value] if isinstance(node, ast.Expr) else getattr(node, "decorator_list", [])
    functions = [getattr(mark, "func", mark) for mark in marks]
    return [one for one in (getattr(f, "func", f) for f in functions) if last_name(one) == _ADDS]


def _package_of(module: object) -> str:
    """Return the package of a module; empty for anything else."""
    return module.__name__.partition(".")[0] if isinstance(module, ModuleType) else ""


# -- The way ---------------------------------------------------------------------------------------
_one_at_a_time = threading.Lock()  # the button of a panel exports in a thread of its own


def export_chain(
    chain: Chain,
    path: str | os.PathLike[str],
    *,
    items: Callable[[], Iterator[object]],
    overwrite: bool = False,
    check_items: int = 4,
    assets: Literal["npz"] | None = None,
    counted: Mapping[str, Any] | None = None,
    templates: Collection[CodeType] = (),
    receiver: Any = None,
) -> Exported:
    """Write a module that builds a chain again.

    Args:
        chain: the stages.
        path: the file, as "loader.py".
        items: gives a new iterator of the chain's own items.
        overwrite: replace a file that was edited, or that export did not write.
        check_items: first items that are compared [items]; 0 compares none.
        assets: "npz" saves large arrays beside the module; None refuses them.
        counted: by the name of a source of numbers, what has as many items: `range(len(files))`.
        templates: code of functions of nbpipe that the module gets as its own.
        receiver: what is exported.

    Raises:
        ArgumentError: a path that no module can be imported from, or another wrong argument.
        ExportError: something cannot be exported, or the module would not do the same.
    """
    if os.environ.get("NBPIPE_EXPORT") == "slice":
        from .copying import export_copy

        return export_copy(
            receiver, chain, path, items=items, overwrite=overwrite, check_items=check_items,
            assets=assets,
        )  # fmt: skip
    try:
        file = module_path(path)
        count = whole("export check_items", check_items, minimum=0, unit="items")
        if assets not in (None, "npz"):
            raise ArgumentError(f"export assets must be 'npz' or None, got {assets!r}")
        archive = f"{file.stem}.npz" if assets else None
        collector = Collector(
            collect_value, is_decision, archive=archive, counted=counted, templates=templates
        )
        with _looking(chain, collector) as home, FreshProcess.here(str(file)) as fresh:
            return _export(
                chain,
                collector,
                home,
                fresh=fresh,
                file=file,
                items=items if count else None,
                count=count,
                overwrite=flag("overwrite", overwrite),
            )
    except NbpipeError as error:
        cleared(error)
        raise


@contextlib.contextmanager
def _looking(chain: Chain, collector: Collector) -> Iterator[Scope]:
    """Return where a pipeline was made; meanwhile no secret of it passes, and nobody else looks."""
    with _one_at_a_time:
        home = collector.scope(_home(chain))
        with gate(home):
            try:
                yield home
            except NbpipeError:
                raise
            except Exception as error:  # what user objects may raise when they are looked at
                raise ExportError(
                    "the export met something that it cannot look at: "
                    f"{error_words(error)}; leave it out of what the stages use"
                ) from error


def _export(
    chain: Chain,
    collector: Collector,
    home: Scope,
    *,
    fresh: FreshProcess,
    file: Path,
    items: Callable[[], Iterator[object]] | None,
    count: int,
    overwrite: bool,
) -> Exported:
    collect_setup(collector, home)
    before = collector.found.copied()
    draft = drafted(chain, collector, home)
    prove = functools.partial(
        _tried, chain, collector, home, fresh=fresh, file=file, items=items, count=count
    )
    proved = None
    if is_repeated(chain, home):
        found, collector.found = collector.found, before
        built = as_built(chain, draft, collector, home, tried=True)
        with contextlib.suppress(ExportError):
            proved = None if built is None else prove(built, copied=True)
        if proved is None:
            collector.found = found
    text, files, report = proved or prove(draft)
    written = stored(file, text, files, overwrite=overwrite)
    knobs = [knob for one in addresses(chain).values() for knob in one.knobs.values()]
    note_export({knob: collector.value_of(knob) for knob in knobs}, written.path)
    words = [report.reason] if report.reason else []
    told = tuple(map(scrubbed, (*collector.found.notes, *words)))
    path = Path(os.path.abspath(written.path))  # noqa: PTH100  a link keeps its name
    return replace(written, path=path, compared=report.compared, notes=told)


def chain_code(
    chain: Chain,
    *,
    counted: Mapping[str, Any] | None = None,
    templates: Collection[CodeType] = (),
) -> str:
    """Write a chain, with the knobs' present values, as code for a cell of its notebook.

    It is assigned to the variable that the pipeline has there. What the notebook has is read by
    its name, and what it does not have stands above; nothing is tried.

    Args:
        chain: the stages.
        counted: as for `export_chain`.
        templates: as for `export_chain`.

    Raises:
        ExportError: something cannot be written.
    """
    collector = Collector(collect_value, is_decision, counted=counted, templates=templates)
    with _looking(chain, collector) as home:
        return _code(chain, collector, home)


def _code(chain: Chain, collector: Collector, home: Scope) -> str:
    draft = drafted(chain, collector, home)
    repeated = is_repeated(chain, home)
    built = as_built(chain, draft, collector, home, tried=False) if repeated else None
    body = built or draft
    found = collector.found
    texts = {one.name: one.default for one in draft.parameters}
    marks = {
        name: chosen_text(_still_true(piece, found, home)) for name, piece in found.checks.items()
    }
    lines = [line.changed(marks).changed(texts) for line in body.body]
    name = next(variables_of(chain, home), "pipe")
    if lines[-1].text == name:
        del lines[-1]
    text = laid_out(lines, f"{name} = ")
    pieces, imports = _missing(text, found, home)
    refuse_secrets(text, pieces)
    above = [import_lines(imports, future=False)] if imports else []
    parts = [*above, *(piece.text for piece in pieces), text]
    return "\n\n".join(part.strip("\n") for part in parts)


def _still_true(piece: Piece, found: Found, home: Scope) -> Spelling:
    """Return the best way to write a piece that reads no variable which was bound anew since.

    Raises:
        ExportError: there is none.
    """
    name = piece.names[0]
    for way in piece.spellings:
        if way.ran is None or not is_late(way.now, way.ran, home):
            return way
    raise unwritable(piece.words, found.reasons[name], found.uses.get(name, Use("the pipeline")))


def _missing(text: str, found: Found, home: Scope) -> tuple[list[Piece], set[Import]]:
    """Return what some code reads that its notebook does not have."""
    pieces: dict[str, Piece] = {}
    imports: set[Import] = set()
    wanted, seen = sorted(names_in(ast.parse(text))), set(home.namespace)
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        imports |= {line for line in (*found.imports, Import("nbpipe")) if line.binds == name}
        piece = found.pieces.get(name)
        if piece is not None:
            piece = replace(piece, spellings=(_still_true(piece, found, home),))
            pieces[piece.names[0]] = piece
            wanted += [*piece.now, *piece.later]
    return ordered(list(pieces.values())), imports


def _tried(
    chain: Chain,
    collector: Collector,
    home: Scope,
    draft: Module,
    *,
    fresh: FreshProcess,
    file: Path,
    items: Callable[[], Iterator[object]] | None,
    count: int,
    copied: bool = False,
) -> tuple[str, dict[str, bytes], Report]:
    """Decide how a draft is written, and prove it; return the text and what lies beside it.

    Statements that are `copied` may read variables that have other values by now: all that they
    give to each stage is compared.
    """
    whole = decided(collector, draft, fresh, file.stem)
    plain = _text(whole, file, home)
    text = with_noqa(plain)
    _note_effects(whole, collector, home)
    _note_paths(whole, collector)
    files = _assets(whole, collector)
    stages = addresses(chain)
    in_order = all(getattr(stage.spec, "ordered", True) for stage in stages.values())
    hints = [hint for hint in collector.found.notes.values() if hint is not None]
    report = verified(
        text,
        file.name,
        fresh,
        reads=_unbound(plain, whole, collector),
        expected={name: one for piece in whole.pieces for name, one in piece.expected.items()},
        expected_graph=_graph(chain, collector),
        expected_specs=specs_of(chain) if copied else (),
        process_stages=[name for name, one in stages.items() if one.placement is not None],
        items=items if in_order else None,
        check_items=count,
        files=files,
        hint="\n".join(f"  it may come from this: {hint}" for hint in hints),
    )
    return text, files, report


def _note_effects(whole: Module, collector: Collector, home: Scope) -> None:
    """Note the statements that act by side effect and are not in the module.

    Raises:
        ExportError: one adds to a function of a library, which the module would use without it.
    """
    for statement in effects(home, whole.used):
        note = note_of(statement)
        roots = [last_name(root_of(one)) for one in _registering(statement.node)]
        if any(by_reference(home.namespace.get(name)) for name in roots):
            raise ExportError(
                f"the module would use a function without what is added to it: {note}"
            )
        collector.found.notes[note] = note


def _note_paths(whole: Module, collector: Collector) -> None:
    """Note the absolute paths in values that were computed here: no cell spells them."""
    typed = "\n".join(cell.text for scope in collector.scopes for cell in scope.cells.cells)
    for piece in whole.pieces:
        if piece.kind != "constant":
            continue
        nodes = [one for one in ast.walk(ast.parse(piece.text)) if isinstance(one, ast.Constant)]
        texts = [one.value for one in nodes if isinstance(one.value, str)]
        found = [one for one in texts if _is_of_machine(one) and one not in typed]
        if found:
            collector.found.notes[
                f"{piece.words}, holds {found[0]!r}, a path of this machine that no cell spells; "
                "make it by an expression that is true elsewhere, too, or change it in the module"
            ] = None


def _is_of_machine(text: str) -> bool:
    """Report whether a text is the absolute path of a file or folder that is here."""
    try:
        path = Path(text)
        return path.is_absolute() and len(path.parts) > 1 and os.path.lexists(path)
    except (OSError, ValueError):  # no text that could be a path
        return False


def _assets(whole: Module, collector: Collector) -> dict[str, bytes]:
    """Return the files that a module loads, by name.

    Raises:
        ExportError: one would hold a secret.
    """
    loading = [piece for piece in whole.pieces if "Path(__file__).with_name(" in piece.text]
    loaded = {name for piece in loading for name in piece.names}
    arrays = {name: one for name, one in collector.found.arrays.items() if name in loaded}
    for name, array in arrays.items():
        if secret_in(name, np.asarray(array)) is not None:
            raise ExportError(f"variable {name!r} {advice(name)}")
    return {str(collector.archive): archive_bytes(arrays)} if arrays else {}


def _graph(chain: Chain, collector: Collector) -> list[dict[str, Any]]:
    """Return the graph of a chain, with the knobs that are written."""
    return [
        {**row, "knobs": {word: collector.value_of(knob) for word, knob in stage.knobs.items()}}
        for row, stage in zip(graph(chain), addresses(chain).values(), strict=True)
    ]


def _home(chain: Chain) -> dict[str, Any]:
    """Return the namespace that the pipeline was made in."""
    for stage in reversed(chain):
        if stage.made_at is not None:
            return stage.made_at.namespace
    return vars(sys.modules["__main__"])


def _text(whole: Module, file: Path, home: Scope) -> str:
    """Write the module."""
    title = file.stem.replace("_", " ").strip().capitalize() or file.stem
    origin = "the notebook" if home.is_notebook else "the script"
    text = rendered(replace(whole, title=title, origin=origin))
    refuse_secrets(text, whole.pieces)
    return text


def _unbound(text: str, whole: Module, collector: Collector) -> dict[str, Use]:
    """Return the names that nothing in the module binds, builtins among them, by who reads them."""
    names = names_unbound(text, future=whole.future) - collector.found.unknown
    found = {name: Use("the pipeline") for name in names}
    for piece in whole.pieces:
        use = collector.found.uses.get(piece.names[0], Use("the pipeline"))
        for name in names & names_unbound(piece.text, future=whole.future):
            found[name] = use.then(piece.words)
    return found
