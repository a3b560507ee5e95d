"""Exporting: the whole way from a live pipeline to a file on disk."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import sys
import threading
import traceback
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self, final

from ..base.checks import boolean, integer
from ..base.format import shortened
from ..errors import ArgumentError, ExportError, NbpipeError
from ..ops.stage import Chain, addresses
from ..show.watch import record_export
from .fingerprint import difference
from .fresh import FreshProcesses, FreshResult, error_words, first_items
from .layout import Parameter, module_text, parameters_of, placed, set_arguments, tidied, undefined
from .literals import Values, large_array
from .matching import Match, state_of
from .reachable import holds_pipeline, is_library, is_local, texts_named_as_secrets
from .record import END, Record
from .secrets import (
    advice,
    as_text,
    environment_values,
    is_suspicious_name,
    knowing,
    names_kept,
    redacted,
    redacted_source,
    secret_in_text,
    secrets_in_source,
    secrets_in_text,
)
from .slicing import Slice, goal_of, suffix_of
from .source import last_name, tree_of
from .statements import Cell, Statement, root_name, shell
from .store import Exported, module_path, stored

# -- Gate: nothing leaves an export, as a file, a note or an error, but through here ---------------


@contextlib.contextmanager
def redacting(record: Record) -> Iterator[None]:
    """Let no secret of a notebook out in an error, and have each of them be one in any text.

    They are looked for once: in the environment, in variables with the name of a secret, in the
    text of cells, and in what was computed from these.
    """
    with knowing(_secrets_of(record), live=record.namespace):
        try:
            yield
        except NbpipeError as error:
            cleared(error)
            raise


def cleared(error: BaseException) -> None:
    """Take the secrets out of an error; a cause that holds one is left out."""
    error.args = tuple(redacted(one) if isinstance(one, str) else one for one in error.args)
    notes = getattr(error, "__notes__", None)
    if notes:
        error.__notes__ = [redacted(str(note)) for note in notes]
    text = "".join(traceback.format_exception(error, limit=0))
    if redacted(text) != text:
        error.__cause__ = error.__context__ = None


def _secrets_of(record: Record) -> Iterator[str]:
    for cell in record.cells:
        yield from secrets_in_source(cell.text)
    derived = _derived(record)
    for name, value in tuple(record.namespace.items()):
        if name.startswith("_") or isinstance(value, type):
            continue
        if name in derived and isinstance(value, str | bytes | bytearray):
            yield as_text(value)
        elif isinstance(value, ModuleType):
            if is_local(value.__name__):
                for inner, one in tuple(vars(value).items()):
                    if is_suspicious_name(inner):
                        yield from texts_named_as_secrets(inner, one)
        elif is_suspicious_name(name):
            yield from texts_named_as_secrets(name, value)


_STORES = frozenset(  # what gives secrets and nothing else
    ("getpass", "keyring", "userdata", "UserSecretsClient", "get_secret", "get_password")
)
_ENVIRONMENT = frozenset(
    ("environ", "environb", "getenv", "getenvb", "dotenv", "dotenv_values", "load_dotenv")
)


def _derived(record: Record) -> set[str]:
    """Return the variables that were looked up as secrets, or computed from such."""
    derived: set[str] = set()
    for one in record.statements:
        value = getattr(one.node, "value", None)
        is_assigned = isinstance(one.node, ast.Assign | ast.AnnAssign | ast.AugAssign) and value
        kept = names_kept(value) if is_assigned and value is not None else set()
        if is_assigned and (_looks_up_secret(one) or not derived.isdisjoint(kept)):
            derived |= one.binds
        else:
            derived -= one.binds
    return derived


def _looks_up_secret(one: Statement) -> bool:
    """Return whether a statement looks up a secret, by where that is or what it is called there."""
    parts = list(ast.walk(one.node))
    if any(last_name(part) in _STORES for part in parts):
        return True
    if not any(last_name(part) in _ENVIRONMENT for part in parts):
        return False
    values = (part.value for part in parts if isinstance(part, ast.Constant))
    texts = (as_text(value) for value in values if isinstance(value, str | bytes))
    return any(map(is_suspicious_name, (*texts, *one.binds)))


# -- Steps: what is under way is shown where an export takes longer --------------------------------
SILENT_S = 3.0  # before then nothing is shown


@final
class ShownSteps:
    """A line in the notebook's output, or in a terminal, that goes away in the end."""

    def __init__(self) -> None:
        self._words, self._place = "export: reading the cells...", ""
        self._lock = threading.Lock()
        self._is_late = self._is_written = False
        begin = functools.partial(copy_context().run, self._begin)  # below the cell that exports
        self._timer = threading.Timer(SILENT_S, begin)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # the panel shows its own words
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_late = False
            if self._is_written:
                self._write("")

    def at(self, words: str) -> None:
        """Note the step that begins."""
        with self._lock:
            self._words = f"export: {words}..."
            if self._is_late:
                self._write(self._words)

    def _begin(self) -> None:
        with self._lock:
            self._is_late = True
            self._write(self._words)

    def _write(self, words: str) -> None:
        ip = shell()
        with contextlib.suppress(Exception):  # an output that is gone stops no export
            if getattr(ip, "kernel", None) is not None:
                from IPython.display import display

                is_first, self._place = not self._place, self._place or uuid.uuid4().hex
                data = {"text/plain": words}
                display(data, raw=True, display_id=self._place, update=not is_first)
            elif sys.stderr.isatty():
                sys.stderr.write(f"\r\x1b[K{words}")
                sys.stderr.flush()
        self._is_written = True


# -- The way ---------------------------------------------------------------------------------------
_one_at_a_time = threading.Lock()  # the button of a panel exports in a thread of its own
_OWN_LIMIT_S = 60.0  # for two runs of the notebook's own first items
_GRACE_S = 5.0
_STARTS_AFRESH = (
    "the stages change state, which has its first value in the module; the items were compared "
    "with those of the same statements in a fresh process"
)
_SHORTEST_INSIDE = 6  # characters of a secret that is one inside a longer text, too


def export_chain(
    receiver: Any,
    chain: Chain,
    path: str | os.PathLike[str],
    *,
    items: Callable[[], Iterator[object]],
    overwrite: bool = False,
    check_items: int = 4,
    assets: Literal["npz"] | None = None,
) -> Exported:
    """Write a module that holds what the user wrote for a pipeline.

    Args:
        receiver: the exported pipeline, run or loader.
        chain: its stages.
        path: the file, as "loader.py".
        items: gives a new iterator of the chain's own items.
        overwrite: replace a file that was edited, or that export did not write.
        check_items: first items that are compared [items]; 0 compares none.
        assets: "npz" saves large arrays beside the module; None refuses them.

    Raises:
        ArgumentError: a path that no module can be imported from, or another wrong argument.
        ExportError: something cannot be exported, or the module would not do the same.
    """
    try:
        file = module_path(path)
        count = integer("export check_items", check_items, minimum=0, unit="items")
        if assets not in (None, "npz"):
            raise ArgumentError(f"export assets must be 'npz' or None, got {assets!r}")
        overwrite = boolean("overwrite", overwrite)
        with _one_at_a_time:
            record, goal = goal_of(receiver, chain)
            with redacting(record), ShownSteps() as shown:
                copy = _Copy(goal, chain, record, shown, file=file, archive=bool(assets))
                try:
                    return copy.export(items, count=count, overwrite=overwrite)
                except NbpipeError:
                    raise
                except Exception as error:  # what user objects may raise when they are looked at
                    raise ExportError(
                        "the export cannot inspect a value that the stages use: "
                        f"{error_words(error)}; leave that value out"
                    ) from error
    except NbpipeError as error:
        cleared(error)
        raise


def _as_statement(goal: str) -> Statement:
    """Return the expression of a pipeline as the last statement of all."""
    return Statement.of(END - 1, Cell("the export", goal), ast.parse(goal).body[0], goal)


def chain_code(receiver: Any, chain: Chain, *, arguments: Mapping[str, int] | None = None) -> str:
    """Return the statements that make a pipeline, with the knobs' present values, for a cell.

    Args:
        receiver: the pipeline, run or loader.
        chain: its stages.
        arguments: what a loader is given now: these stand in its call in place of knobs.

    Raises:
        ExportError: the pipeline has no name, holds a secret, or was made of variables that have
            other values by now.
    """
    with _one_at_a_time:
        record, goal = goal_of(receiver, chain)
        with redacting(record):
            if arguments is None:
                settings = parameters_of(chain, record, as_values=True)
            else:
                settings = []
                set_arguments(chain, record, arguments)
            return _code(goal.removesuffix(suffix_of(receiver)), settings, record)


def _code(goal: str, settings: Sequence[Parameter], record: Record) -> str:
    part = Slice(record, _as_statement(goal), lambda *_: None)
    made = [
        one
        for one in part.build()[:-1]
        if one.edits or any(holds_pipeline(record.namespace.get(name)) for name in one.binds)
    ]
    made = [one for one in made if not one.is_import and not one.is_definition]
    for one in made:
        for name in sorted(_read_by(one, record)):
            for other in record.after(one.at, END):
                if name in other.binds | other.changes and other not in made:
                    raise ExportError(
                        f"variable {name!r} was changed in {other.cell.place} after the pipeline "
                        "used it; run the pipeline's cell again"
                    )
    lines = [f"{one.comments}\n{one.edited}".strip("\n") for one in made]
    if not any(goal in one.binds for one in made):
        lines.append(f"pipe = {goal}")
        goal = "pipe"
    if hasattr(record.namespace.get(goal), "state_dict"):  # a run, which stays what it is
        lines = [line.replace(f"{goal} = ", "pipe = ", 1) for line in lines]
        goal = "pipe"
    text = "\n".join([*lines, *(f"{goal}{one.below}" for one in settings if one.below)])
    if secret_in_text(text):
        raise ExportError(f"the pipeline's cell {advice('')}")
    return text


def _read_by(one: Statement, record: Record) -> set[str]:
    """Return the names that a statement reads itself, and by the functions that it calls."""
    found, todo = set(one.needed), list(one.calls)
    while todo:
        function = record.binding(todo.pop(), one.at)
        if function is not None and function.is_definition:
            todo += function.needed_later - found
            found |= function.needed_later
    return found


class _Copy:
    """One export."""

    def __init__(
        self,
        goal: str,
        chain: Chain,
        record: Record,
        shown: ShownSteps,
        *,
        file: Path,
        archive: bool,
    ) -> None:
        self._chain, self._record, self._shown, self._file = chain, record, shown, file
        self._notes: list[str] = []
        self._secrets: dict[tuple[str, int], tuple[str, ...]] = {}
        self._goal, self._archive = goal, archive
        values = Values(
            record.namespace,
            hidden=environment_values(_variables(record)),
            typed=_paths(record),
            archive=f"{file.stem}.npz" if archive else "",
        )
        self._match = Match(chain, record, _as_statement(goal), values)
        self._part = self._match.part

    def export(
        self, items: Callable[[], Iterator[object]], *, count: int, overwrite: bool
    ) -> Exported:
        """Go all the way; return what became of it."""
        shown, match = self._shown, self._match
        with FreshProcesses(
            variables=_variables(self._record),
            modules=_preloaded(self._record.namespace),
            file=str(self._file),
        ) as fresh:
            statements = match.settle(fresh, count, self._begin_replay)
            shown.at("writing the module")
            text, names = self._text()
            self._refuse_secrets(statements, text)
            files = match.files()
            shown.at("importing the module in a fresh process")
            proved = fresh.prove(text, self._file.stem, files=files, names=names, count=count)
            self._refuse_failed(proved)
            match.compare_chain(proved.chain, statements, "in the module")
            self._compare_values(proved)
            shown.at("comparing the first items")
            compared = self._compare_items(items, count, proved, statements) if count else 0
        written = stored(self._file, text, files, overwrite=overwrite)
        knobs = (knob for one in addresses(self._chain).values() for knob in one.knobs.values())
        record_export({knob: knob.value for knob in knobs}, written.path)
        self._note(statements)
        notes = tuple(redacted(note) for note in dict.fromkeys(self._notes))
        path = Path(os.path.abspath(written.path))  # noqa: PTH100  a link keeps its name
        return replace(written, path=path, compared=compared, notes=notes)

    def _begin_replay(self, statements: Sequence[Statement]) -> None:
        self._shown.at(f"running {len(statements)} statements in a fresh process")
        self._refuse_secrets(statements)

    # -- text ------------------------------------------------------------------------------
    def _text(self) -> tuple[str, list[str]]:
        """Write the module; return it, and the names of its top that functions read."""
        top, below = placed(self._part, self._record)
        self._top, self._below = top, below
        stem = self._file.stem
        text = module_text(
            top,
            below,
            self._goal,
            title=stem.replace("_", " ").strip().capitalize() or stem,
            origin="notebook" if self._record.is_notebook else "script",
            parameters=self._match.parameters,
            has_future=self._record.has_future,
        )
        later = {name for one in self._part.taken for name in one.needed_later}
        read = later.union(*(one.needed for one in self._part.taken))
        annotated = {name for one in self._part.taken for name in one.annotated}
        for row, name in undefined(text):
            if name in read or name not in annotated:  # a text as an annotation is not executed
                line = text.split("\n")[row - 1].strip()
                raise ExportError(
                    f"undefined name `{name}`: `{shortened(line, 80)}`; define it in a cell, "
                    "or import it"
                )
        bound = {name for one in top if not one.is_import for name in one.binds}
        return tidied(text, [*top, *below]), sorted(bound & later)

    # -- checks ----------------------------------------------------------------------------
    def _refuse_secrets(self, statements: Sequence[Statement], text: str = "") -> None:
        whole = text or "\n".join(f"{one.comments}\n{one.edited}" for one in statements)
        if secret_in_text(whole):
            names = [name for name, _ in secrets_in_text(whole) if name]
            holds = advice(names[0] if names else "")
            for one in statements:
                if secret_in_text(f"{one.comments}\n{one.edited}"):
                    name = min(one.binds, default="?")
                    what = one.words if one.is_definition else f"variable {name!r}"
                    raise self._part.refused(f"{what} {holds}", one)
            raise ExportError(f"the module {holds}")
        self._refuse_secret_values(statements, whole)

    def _refuse_secret_values(self, statements: Sequence[Statement], whole: str) -> None:
        """Refuse texts in the module that are secrets by where the live values hold them.

        The text may give them no name, as `Login("me", "...")` or `held["password"].append("...")`.
        """
        tree = tree_of(whole)
        nodes = () if tree is None else ast.walk(tree)
        constants = [one.value for one in nodes if isinstance(one, ast.Constant)]
        texts = [as_text(one) for one in constants if isinstance(one, str | bytes)]

        def is_typed(secret: str) -> bool:
            inside = len(secret) >= _SHORTEST_INSIDE
            return any(secret == one or (inside and secret in one) for one in texts)

        for one in statements:
            for name in () if one.is_import else sorted(one.binds):
                if name not in self._record.namespace or self._record.binding(name, END) is not one:
                    continue
                value = self._record.namespace[name]
                if holds_pipeline(value):  # its stages are looked at below
                    continue
                if any(map(is_typed, self._secret_texts(name, value))):
                    raise self._part.refused(f"variable {name!r} {advice(name)}", one)
        for address, stage in addresses(self._chain).items():
            for field in fields(stage.spec):  # type: ignore[arg-type]
                value = getattr(stage.spec, field.name)
                if any(map(is_typed, self._secret_texts(field.name, value))):
                    raise ExportError(f"stage {address!r}: {field.name} {advice('')}")

    def _secret_texts(self, name: str, value: object) -> tuple[str, ...]:
        key = name, id(value)
        if key not in self._secrets:
            self._secrets[key] = tuple(texts_named_as_secrets(name, value))
        return self._secrets[key]

    def _refuse_failed(self, proved: FreshResult) -> None:
        """Refuse a module that cannot be imported elsewhere, or builds nothing."""
        failed = next((one for one in proved.steps if one.error), None)
        if failed is not None:
            culprit = next((o for o in self._top if failed.text and failed.text in o.edited), None)
            name = min(culprit.binds, default="") if culprit is not None else ""
            if culprit and name and not culprit.is_definition and not culprit.is_import:
                value = self._record.namespace.get(name)
                saved = large_array(value) is not None and not self._archive
                raise self._part.refused(
                    f"variable {name!r} needs files when the module is imported "
                    f"({failed.error}); create it in a function under @functools.cache, "
                    "or in worker_init" + ', or export with assets="npz"' * saved,
                    culprit,
                )
        what = "the module cannot be imported"
        if failed is None:
            failed, what = proved.goal, "build_pipeline() of the module fails"
        if failed.error:
            at = f", line {failed.line}: `{failed.text}`" if failed.line else ""
            raise ExportError(f"{what} in a fresh process: {self._file.name}{at}: {failed.error}")
        if proved.words and not proved.chain:
            raise ExportError(f"the module {proved.words} in a fresh process")

    def _compare_values(self, proved: FreshResult) -> None:
        """Refuse a module whose import gives other values than the statements did."""
        for name, theirs in proved.prints.items():
            one = self._record.binding(name, END)
            mine = self._match.replayed.prints.get(name)
            if mine is None or one is None or one.is_definition:
                continue
            words = difference(mine, theirs, "in the module")
            if words and not self._part.is_of_machine(one):
                raise self._part.refused(
                    f"variable {name!r} differs in the module: {words}; assign it in one statement",
                    one,
                )

    def _compare_items(
        self,
        items: Callable[[], Iterator[object]],
        count: int,
        proved: FreshResult,
        statements: Sequence[Statement],
    ) -> int:
        """Compare the first items; return how many are the same."""
        if not all(stage.spec.in_order for stage in addresses(self._chain).values()):
            return 0
        if proved.items_late:
            self._notes.append("not compared: the first items took longer than 30 s")
            return 0
        own = _own_items(items, count)
        if own is None:
            self._notes.append(f"not compared: two runs took longer than {_OWN_LIMIT_S:g} s")
            return 0
        (mine, raised), second = own
        has_state = self._has_state(statements)
        if (mine, raised) != second and not has_state:
            self._notes.append("not compared: two runs of the notebook's own pipeline differ")
            if proved.raised and not (raised or second[1]):
                raise _not_made(proved)
            return 0
        starts_afresh = has_state and _mismatch(mine, raised, proved) is not None
        if starts_afresh:
            mine, raised = self._match.replayed.items, self._match.replayed.raised
        words = _mismatch(mine, raised, proved)
        if words and own[0] != second and not self._match.gives_again(statements):
            self._notes.append("not compared: two runs of the same statements differ")
            return 0
        if words:
            raise ExportError(redacted(words))
        self._notes += [_STARTS_AFRESH] if starts_afresh else []
        if raised:
            self._notes.append(f"not compared further: the notebook's own pipeline raises {raised}")
        return len(mine)

    def _has_state(self, statements: Sequence[Statement]) -> bool:
        """Return whether the stages change what they use."""
        found = state_of(statements, self._record) or self._match.replayed.moved
        return bool(found) or self._match.is_loose

    # -- notes -----------------------------------------------------------------------------
    def _note(self, statements: Sequence[Statement]) -> None:
        note = self._notes.append
        for one in self._top:
            if one.is_import:
                module = getattr(one.node, "module", None) or one.node.names[0].name  # type: ignore[attr-defined]
                if is_local(module):
                    note(f"module {module!r} is a local file; the exported module imports it")
        for name in sorted(self._match.moved & {n for one in self._top for n in one.binds}):
            note(f"the stages change variable {name!r}; the module has its first value")
        stages = (name.rpartition(" ")[0] for name in self._match.replayed.moved)
        for address in dict.fromkeys(filter(None, stages)):
            note(f"stage {address!r} changes its arguments; the module has their first values")
        taken = set(statements)
        for name in sorted({n for one in taken for n in one.binds if one.is_definition}):
            newest = self._record.binding(name, END)
            if newest is not None and newest not in taken and newest.is_definition:
                note(
                    f"the module has the {name!r} that the pipeline was built with; "
                    f"{newest.cell.place} redefines it"
                )
        for one, files in self._match.reads.items():
            if one not in taken:  # a value stands in its place
                continue
            reader = "build_pipeline()" if one in self._below else "the import of the module"
            shown = _outermost(files)
            names = ", ".join(shown[:3])
            more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""  # noqa: PLR2004
            note(f"{reader} reads {names}{more}: {one.words}")
        self._notes += _side_effects(self._record, taken)


def _outermost(files: Iterable[str]) -> list[str]:
    """Return paths as seen from the notebook's folder, without those in a folder of the others."""
    kept: list[str] = []
    for file in sorted(files):
        if not any(file.startswith(f"{one}{os.sep}") for one in kept):
            kept.append(file)
    return [_shown_path(file) for file in kept]


def _shown_path(file: str) -> str:
    """Return a path as seen from the notebook's folder."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(file).relative_to(Path.cwd())) or "."
    return file


_ACTS = (
    *("seed", "manual_seed", "set_", "filterwarnings", "simplefilter", "basicConfig", "enable"),
    *("use_deterministic", "configure", "setNumThreads", "setlocale", "seterr", "patch"),
)
_SHOWS = ("set_printoptions", "set_option")


def _side_effects(record: Record, taken: set[Statement]) -> Iterator[str]:
    """Note the calls that change how a module behaves which the exported code uses."""
    used = {name for one in taken for name in one.reads | one.reads_later | one.binds}
    packages = {_package(record.namespace.get(name)) for name in used} | {"random", "warnings"}
    for one in record.statements:
        call = one.node.value if isinstance(one.node, ast.Expr) else None
        if one in taken or not isinstance(call, ast.Call):
            continue
        name = last_name(call.func)
        owner = record.namespace.get(root_name(call.func) or "")
        if name.startswith(_ACTS) and name not in _SHOWS and _package(owner) in packages - {""}:
            yield (
                f"`{shortened(redacted_source(ast.unparse(one.node)), 80)}` in {one.cell.place} "
                "changes global settings and is not in the module; to keep it, start its cell with "
                "the line `#| nbpipe: setup`"
            )


def _package(module: object) -> str:
    """Return the package of a module; empty for anything else."""
    return module.__name__.partition(".")[0] if isinstance(module, ModuleType) else ""


def _mismatch(mine: list[Any], raised: str, proved: FreshResult) -> str | None:
    """Return which item of the module differs first; None where none does."""
    for number, (one, other) in enumerate(zip(mine, proved.items, strict=False)):
        words = difference(one, other, "in the module")
        if words is not None:
            return f"item {number} differs: {words}; run the notebook from the top, then export"
    if raised:
        return None
    if proved.raised and len(proved.items) < len(mine):
        return str(_not_made(proved))
    if len(mine) != len(proved.items):
        return (
            f"the module yields {len(proved.items)} items, and the notebook's pipeline {len(mine)}"
        )
    return None


def _own_items(
    items: Callable[[], Iterator[object]], count: int
) -> list[tuple[list[Any], str]] | None:
    """Take the first items of the notebook's own pipeline, twice; None where that takes long."""
    samples: list[tuple[list[Any], str]] = []
    opened: list[Any] = []
    ended = threading.Event()

    def take() -> None:
        while len(samples) < 2 and not ended.is_set():  # noqa: PLR2004  to compare them
            samples.append(first_items(items, count, opened))
        ended.set()

    run = copy_context().run  # it has settings, as the precision of decimals
    thread = threading.Thread(target=run, args=(take,), name="nbpipe-export-items", daemon=True)
    in_time = False
    try:
        thread.start()
        in_time = ended.wait(_OWN_LIMIT_S)
    finally:
        ended.set()
        for one in opened:  # wakes the thread where it waits for an item
            with contextlib.suppress(Exception):  # it is at work in the thread, or fails there
                getattr(one, "close", bool)()
        with contextlib.suppress(RuntimeError):  # an interrupt came before it began
            thread.join(_GRACE_S)
    return samples if in_time else None


def _not_made(proved: FreshResult) -> ExportError:
    return ExportError(
        f"item {len(proved.items)} of the module failed: {proved.raised or proved.words}"
    )


# -- What fresh processes get ----------------------------------------------------------------------
def _variables(record: Record) -> set[str]:
    """Return the environment variables that the statements of a notebook name."""
    return os.environ.keys() & set(_texts(record, "env"))


def _paths(record: Record) -> set[str]:
    """Return the absolute paths in the cells of a notebook."""
    return {text for text in _texts(record, "/") if text.startswith("/")}


def _texts(record: Record, word: str) -> Iterator[str]:
    """Return the literals of the cells whose text has a word in it."""
    for cell in record.cells:
        nodes = ast.walk(tree_of(cell.text) or ast.Module([], [])) if word in cell.text else ()
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _preloaded(space: dict[str, Any]) -> list[str]:
    """Return the packages that a notebook uses, for a fresh process to import ahead."""
    modules = {_package(value) for value in space.values()}
    modules |= {
        str(getattr(value, "__module__", "")).partition(".")[0]
        for value in space.values()
        if isinstance(value, type | types.FunctionType)
    }
    return sorted(one for one in modules if one in sys.modules and is_library(one))
