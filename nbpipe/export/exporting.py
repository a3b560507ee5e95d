"""Exporting: the whole way from a live pipeline to a file on disk."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..base.checks import flag, whole
from ..errors import ArgumentError, ExportError, NbpipeError
from ..ops.chain import graph
from ..ops.stage import Chain, Stage, addresses
from ..show.exported import note_export
from .chain import drafted
from .collect import Collector, collect_setup, effects, note_of
from .fresh import Surroundings, error_words
from .held import lost
from .names import names_unbound
from .proof import Decided, Report, archive_bytes, as_module, decided, verified
from .render import Finding, linted, rendered, unknown_names, with_noqa
from .scope import Scope
from .secrets import check_arrays, check_text, cleared, gate, scrubbed
from .store import Moved, Written, module_path, stored
from .uses import Use

_one_at_a_time = threading.Lock()  # the button of a panel exports in a thread of its own


@dataclass(frozen=True, slots=True)
class Exported(os.PathLike[str]):
    """What became of an export; it may be opened as a path.

    Attributes:
        path: the file.
        compared: items of the module that were found equal to the notebook's [items].
        notes: what to know of it, each in one sentence.
        changed: the file was written; False where it held the same bytes.
        retuned: parameters whose defaults moved, where nothing else did.
    """

    path: Path
    compared: int
    notes: tuple[str, ...]
    changed: bool
    retuned: tuple[Moved, ...] = ()

    def __fspath__(self) -> str:
        """Return the path as text."""
        return str(self.path)

    def __str__(self) -> str:
        """Tell it in lines."""
        return "\n".join([self._headline(), *(f"  note: {note}" for note in self.notes)])

    def _headline(self) -> str:
        if not self.changed:
            return f"{self.path} is up to date"
        if self.retuned:
            moves = ", ".join(f"{one.name} {one.old} -> {one.new}" for one in self.retuned)
            return f"rewrote defaults in {self.path}: {moves}"
        checked = f"; the first {self.compared} items are the same there" if self.compared else ""
        return f"wrote {self.path}{checked}"

    __repr__ = __str__


def export_chain(
    chain: Chain,
    path: str | os.PathLike[str],
    *,
    items: Callable[[], Iterator[object]],
    overwrite: bool = False,
    check_items: int = 4,
    assets: Literal["npz"] | None = None,
) -> Exported:
    """Write a module that builds a chain again.

    Args:
        chain: the stages.
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
        count = whole("export check_items", check_items, minimum=0, unit="items")
        if assets not in (None, "npz"):
            raise ArgumentError(f"export assets must be 'npz' or None, got {assets!r}")
        with _one_at_a_time:
            return _gated(
                chain, file, items, count, overwrite=flag("overwrite", overwrite), assets=assets
            )
    except NbpipeError as error:
        cleared(error)
        raise


def _gated(
    chain: Chain,
    file: Path,
    items: Callable[[], Iterator[object]],
    count: int,
    *,
    overwrite: bool,
    assets: str | None,
) -> Exported:
    """Export with a gate around it, which no secret of the notebook passes."""
    collector = Collector(archive=f"{file.stem}.npz" if assets else None)
    home = collector.scope(_home(chain))
    with gate(home):
        try:
            return _export(
                chain,
                collector,
                home,
                file=file,
                items=items if count else None,
                count=count,
                overwrite=overwrite,
            )
        except NbpipeError:
            raise
        except Exception as error:  # what user objects may raise when they are looked at
            raise ExportError(
                f"the export met something that it cannot look at: {error_words(error)}; leave it "
                "out of what the stages use"
            ) from error


def _export(
    chain: Chain,
    collector: Collector,
    home: Scope,
    *,
    file: Path,
    items: Callable[[], Iterator[object]] | None,
    count: int,
    overwrite: bool,
) -> Exported:
    where = Surroundings.here()
    collect_setup(collector, home)
    whole = decided(collector, drafted(chain, collector, home), where, file.stem)
    text, findings = _text(whole, file, collector, home)
    _check_registers(whole, home)
    _note_effects(whole, collector, home)
    arrays = {name: array for name, array in collector.found.arrays.items() if _loads(whole, name)}
    check_arrays(arrays)
    files = {str(collector.archive): archive_bytes(arrays)} if arrays else {}
    report = _verified(
        text,
        file,
        where,
        chain,
        whole=whole,
        reads=_unbound(text, findings, whole, collector),
        items=items,
        count=count,
        files=files,
        hints=[n for n in collector.found.notes if "side effect" in n],
    )
    written = stored(file, text, files, overwrite=overwrite)
    _mark(chain, written)
    return _reported(written, report, tuple(collector.found.notes))


def _home(chain: Chain) -> dict[str, Any]:
    """Return the namespace that the pipeline was made in."""
    for stage in reversed(chain):
        if stage.made_at is not None:
            return stage.made_at.namespace
    return vars(sys.modules["__main__"])


def _text(
    whole: Decided, file: Path, collector: Collector, home: Scope
) -> tuple[str, list[Finding]]:
    """Write the module, and give what lint finds in it."""
    title = file.stem.replace("_", " ").strip().capitalize() or file.stem
    origin = "the notebook" if home.is_notebook else "the script"
    module = as_module(whole, title=title, origin=origin, future=collector.found.future)
    text = rendered(module).text
    check_text(text, whole.pieces)
    findings = linted(text, file.name, folder=str(file.parent))
    return with_noqa(text, findings), findings


def _note_effects(whole: Decided, collector: Collector, home: Scope) -> None:
    for statement in effects(home, _used(whole)):
        collector.note(note_of(statement))


def _used(whole: Decided) -> frozenset[str]:
    """Return the names that the module binds or reads."""
    used = {name for piece in whole.pieces for name in (*piece.names, *piece.now, *piece.later)}
    return frozenset(used.union(line.binds for line in whole.imports))


def _check_registers(whole: Decided, home: Scope) -> None:
    """Refuse what the notebook adds to a function that the module only imports.

    Raises:
        ExportError: there is such a statement.
    """
    for statement, function in lost(home, _used(whole)):
        raise ExportError(
            f"{statement.cell.place} registers an implementation with {function!r}, which the "
            "module imports without it; register it where that function is defined, or begin the "
            "cell with the line `#| nbpipe: setup`"
        )


def _unbound(
    text: str, findings: list[Finding], whole: Decided, collector: Collector
) -> dict[str, Use]:
    """Return the names that nothing in the module binds, builtins among them, by who reads them."""
    future = collector.found.future
    names = names_unbound(text, future=future) | unknown_names(findings)
    found = {name: Use("the pipeline") for name in names}
    for piece in whole.pieces:
        use = collector.found.uses.get(piece.names[0], Use("the pipeline"))
        for name in names & names_unbound(piece.text, future=future):
            found[name] = use.then(piece.words)
    return found


def _loads(whole: Decided, name: str) -> bool:
    """Tell whether a piece loads its array from the file beside the module."""
    texts = [piece.text for piece in whole.pieces if name in piece.names]
    return any("Path(__file__).with_name(" in text for text in texts)


def _verified(
    text: str,
    file: Path,
    where: Surroundings,
    chain: Chain,
    *,
    whole: Decided,
    reads: dict[str, Use],
    items: Callable[[], Iterator[object]] | None,
    count: int,
    files: dict[str, bytes],
    hints: list[str],
) -> Report:
    stages = addresses(chain)
    expected = {name: one for piece in whole.pieces for name, one in piece.expected.items()}
    in_order = all(getattr(stage.spec, "ordered", True) for stage in stages.values())
    return verified(
        text,
        file.name,
        where,
        reads=reads,
        expected={name: one for name, one in expected.items() if _is_kept(whole, name)},
        expected_graph=graph(chain),
        process_stages=[name for name, stage in stages.items() if _is_elsewhere(stage)],
        items=items if in_order else None,
        check_items=count,
        files=files,
        hint="\n".join(f"  it may come from this: {hint}" for hint in hints),
    )


def _is_kept(whole: Decided, name: str) -> bool:
    return any(name in piece.names for piece in whole.pieces)


def _is_elsewhere(stage: Stage) -> bool:
    return stage.fn is not None and stage.placement is not None


def _mark(chain: Chain, written: Written) -> None:
    knobs = {
        knob: knob.value for stage in addresses(chain).values() for knob in stage.knobs.values()
    }
    note_export(knobs, written.path)


def _reported(written: Written, report: Report, notes: tuple[str, ...]) -> Exported:
    words = [report.reason] if report.reason else []
    if report.reads_files:
        words.append("importing it reads files relative to the working folder")
    path = Path(os.path.abspath(written.path))  # noqa: PTH100  a link keeps its name
    told = tuple(map(scrubbed, (*notes, *words)))
    return Exported(path, report.compared, told, written.changed, written.retuned)
