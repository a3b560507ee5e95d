"""What those who show or turn a run know of it: protocols, open runs, and the note of an export."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from ..base.knobs import Knob, KnobChange
from ..base.threads import ExitCall
from ..engine.failures import Failure
from ..engine.stats import Row, StageStats, Status
from ..ops.stage import Stage


# -- A run, seen from outside ----------------------------------------------------------------------
class ExportReport(Protocol):
    """What an export says of the module that it wrote."""

    @property
    def path(self) -> Path:
        """The file, absolute."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the module should know."""


class Exportable(Protocol):
    """A run or a pipeline, as its export sees it."""

    def export(self, path: str, *, overwrite: bool = False) -> ExportReport:
        """Write the pipeline, as it is tuned now, to a module of plain Python.

        Raises:
            ExportError: it cannot be written; nothing was.
        """


class RunView(Exportable, Protocol):
    """Something that runs, seen from outside: it is looked at, and its knobs are turned."""

    @property
    def title(self) -> str:
        """Names of its stages."""

    @property
    def stages(self) -> Mapping[str, Stage]:
        """Its stages by address, in order."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    @property
    def events(self) -> tuple[KnobChange, ...]:
        """Every knob change, oldest first."""

    def status(self) -> Status:
        """Tell where it is."""

    def stats(self) -> Mapping[str, StageStats]:
        """Return stats by address, and of the training loop as "consumer"."""

    def history(self) -> list[Row]:
        """Return one row a second and stage."""

    def unnamed_failures(self) -> tuple[Failure, ...]:
        """Return the last failed items, oldest first, without asking what they were made of.

        That reads the source, which may take long: a look several times a second does without.
        """

    def pause(self) -> None:
        """Start no further call."""

    def resume(self) -> None:
        """Go on."""

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted."""

    def chain_code(self) -> str:
        """Return its pipeline, as it is tuned now, as code for a cell.

        Raises:
            ExportError: it cannot be written.
        """


# -- What the rules of a notebook look after; they hold none of it ---------------------------------
class Shown(Protocol):
    """What shows a run."""

    def rest(self) -> None:
        """Called when the run has come to rest."""


class NotebookRun(RunView, Protocol):
    """A run that the cells of a notebook look after.

    Attributes:
        between_waits: called by the training loop before it takes a batch, or None.
    """

    between_waits: Callable[[], object] | None

    @property
    def turn(self) -> tuple[int, int]:
        """How far it is: epochs begun, items delivered in all of them."""

    def close_epochs(self) -> object:
        """Cancel the epochs that this thread iterates: the code that did so is gone."""


class AttendedRun(NotebookRun, Protocol):
    """A run that belongs to the cell that started it."""

    def close(self, timeout_s: float = 5) -> None:
        """End it."""

    def renew_functions(self) -> None:
        """Called after each cell: workers get the functions that it changed."""


class AttendedLoader(NotebookRun, Protocol):
    """All epochs of a loader; its workers stay when the cell that trains is run again.

    Attributes:
        on_run: called with every run that makes batches for it, or None.
        shown: what shows it.
    """

    on_run: Callable[[AttendedRun], object] | None
    shown: weakref.WeakSet[Shown]

    def close_epochs(self, threads: Collection[int] = ()) -> bool:
        """Cancel the epochs that threads iterate, by their numbers; tell whether there were any."""


run_started: list[Callable[[AttendedRun], None]] = []  # called with every run that starts
run_closed: list[Callable[[RunView], None]] = []  # called with every run that was closed
loader_made: list[Callable[[AttendedLoader], None]] = []  # called as every loader is made


# -- Open runs: closed when the interpreter ends, disowned where it was forked ---------------------
_END_S = 1.0  # runs that are open as the interpreter ends have so long to close


class Open(Protocol):
    """Something that has to be closed."""

    def close(self, timeout_s: float = 5) -> None:
        """End it."""

    def disown(self) -> None:
        """Called where this process was forked: it stayed in the other one."""


_open: weakref.WeakValueDictionary[int, Open] = weakref.WeakValueDictionary()  # by id, as begun


def add(one: Open) -> None:
    """Close a run when the interpreter ends, before all that was there when it began."""
    _open[id(one)] = one
    _at_exit.register()


def discard(one: Open) -> None:
    """Forget a run: it was closed."""
    _open.pop(id(one), None)


def open_runs() -> tuple[Open, ...]:
    """Return what is open, in the order in which it was started."""
    return tuple(_open.values())


def _close_all(hurried: bool) -> None:  # noqa: FBT001
    run_closed.clear()  # what shows runs is about to end, too
    for one in open_runs():
        one.close(0 if hurried else _END_S)


_at_exit = ExitCall(_close_all)


def _after_fork() -> None:
    for one in open_runs():
        one.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# -- The note of an export: which values of knobs are in which file; it keeps no knob alive --------
class TurnedKnob(NamedTuple):
    """A knob that was turned since: the stage's address, its name, the value written, and now."""

    stage: str
    knob: str
    exported: int
    now: int


@dataclass(frozen=True, slots=True)
class ChangesSinceExport:
    """What became of a pipeline since it was exported.

    Attributes:
        path: the file.
        changes: the knobs whose values are not those in the file, in the order of the stages;
            one that stages share is the first's.
    """

    path: Path
    changes: tuple[TurnedKnob, ...]


class _Note(NamedTuple):
    number: int  # a later export has a larger one
    path: Path
    value: int


_notes: weakref.WeakKeyDictionary[Knob, _Note] = weakref.WeakKeyDictionary()
_numbers = itertools.count()
_lock = threading.Lock()


def record_export(knobs: Mapping[Knob, int], path: Path) -> None:
    """Note that knobs were written to a file; what was noted of them before is forgotten.

    Args:
        knobs: the value that was written of each.
        path: the file.
    """
    with _lock:
        number = next(_numbers)
        for knob, value in knobs.items():
            _notes[knob] = _Note(number, path, value)


def changes_since_export(stages: Mapping[str, Stage]) -> ChangesSinceExport | None:
    """Tell what was turned since the last export of some stages.

    Args:
        stages: the stages by address.

    Returns:
        The file and the knobs that differ from it; None where no knob was ever exported.
    """
    if not _notes:
        return None
    knobs: dict[Knob, tuple[str, str]] = {}
    for address, stage in stages.items():
        for name, knob in stage.knobs.items():
            knobs.setdefault(knob, (address, name))
    with _lock:
        found = {knob: note for knob in knobs if (note := _notes.get(knob)) is not None}
    if not found:
        return None
    last = max(found.values(), key=lambda note: note.number)
    turned = (
        TurnedKnob(*knobs[knob], note.value, knob.value)
        for knob, note in found.items()
        if note.number == last.number
    )
    return ChangesSinceExport(last.path, tuple(one for one in turned if one.exported != one.now))
