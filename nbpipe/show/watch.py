"""A run as others see it: protocols, the open runs, and what was exported."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from ..base.knobs import Knob, KnobChange
from ..base.threads import ExitCall
from ..engine.measures.lock_waits import LockedCalls
from ..engine.measures.stats import Row, StageStats, Status
from ..engine.nodes.failures import Failure
from ..executors.stack import Place
from ..ops.stage import Stage


# -- A run, seen from outside ----------------------------------------------------------------------
class ExportReport(Protocol):
    """The report of an export."""

    @property
    def path(self) -> Path:
        """The file, absolute."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for a reader of the module."""


class Exportable(Protocol):
    """A run or a pipeline that can be exported."""

    def export(self, path: str, *, overwrite: bool = False) -> ExportReport:
        """Write the pipeline with its present knob values to a module of plain Python.

        Raises:
            ExportError: it cannot be written; no file was changed.
        """


class ViewCore(Protocol):
    """What panel and kernel use of a run, and users do not need.

    Attributes:
        between_waits: the training loop calls it before it takes a batch, and while it waits.
    """

    between_waits: Callable[[], object] | None

    @property
    def turn(self) -> tuple[int, int]:
        """Epochs begun, and items delivered in all of them."""

    def unnamed_failures(self) -> tuple[Failure, ...]:
        """Return the last failed items, oldest first, without their source items.

        To find those reads the source, which is too slow for several times a second.
        """

    def lock_wait(self, address: str) -> LockedCalls | None:
        """Return how much the calls of a stage wait for a lock; None where that is not known."""

    def place(self, address: str) -> Place | None:
        """Return where in user code the oldest call of a stage is; None if it is not known."""

    def chain_code(self) -> str:
        """Return the pipeline with its present knob values, as code for a cell.

        Raises:
            ExportError: it cannot be written.
        """

    def close_epochs(self) -> object:
        """Cancel the epochs that this thread iterates: its cell has failed."""


class DecisionView(Protocol):
    """One decision of what turns knobs by itself; `tune/session.py` describes its fields."""

    @property
    def when_s(self) -> float:
        """Time of the decision [seconds since the Unix epoch]."""

    @property
    def text(self) -> str:
        """What was decided, and why."""

    @property
    def knob(self) -> str:
        """Full name of the knob that was turned; empty without one."""

    @property
    def old(self) -> int:
        """Value before."""

    @property
    def new(self) -> int:
        """Value after."""

    @property
    def rate(self) -> float:
        """Batches a second before; 0 if not known."""

    @property
    def after(self) -> float:
        """Batches a second after; 0 if not known."""

    @property
    def taken_back(self) -> bool:
        """Whether the turn was a trial that was taken back."""


class TunerView(Protocol):
    """What turns the knobs of a run by itself."""

    @property
    def state(self) -> str:
        """What it does now, in a few words."""

    @property
    def log(self) -> Sequence[DecisionView]:
        """Its last decisions, oldest first."""

    @property
    def active(self) -> bool:
        """Whether it has not ended."""

    @property
    def can_undo(self) -> bool:
        """Whether there is something to undo."""

    @property
    def left_alone(self) -> list[tuple[str, str, int]]:
        """The knobs that others turned: stage, name and value of each."""

    def turns(self, stage: str, knob: str) -> bool:
        """Return whether it turns a knob now: it has not ended, and does not leave it alone."""

    def renew(self) -> None:
        """Begin again with the limits that it has."""

    def stop(self) -> None:
        """End; the knobs stay as they are."""

    def undo(self) -> None:
        """End, and restore the knobs that it turned."""

    def give_back(self, knob: Knob) -> None:
        """Turn a knob again that others turned."""


class RunView(Exportable, Protocol):
    """A run: it is shown, and its knobs are turned."""

    @property
    def _core(self) -> ViewCore:
        """What users do not need."""

    @property
    def stages(self) -> Mapping[str, Stage]:
        """Its stages by address, in order."""

    @property
    def closed(self) -> bool:
        """Whether it is closed."""

    @property
    def events(self) -> tuple[KnobChange, ...]:
        """Every knob change, oldest first."""

    @property
    def tuner(self) -> TunerView | None:
        """What turns its knobs by itself, or None."""

    def autotune(self) -> TunerView:
        """Begin to turn its knobs by measured gain."""

    def status(self) -> Status:
        """Return where it is."""

    def stats(self) -> Mapping[str, StageStats]:
        """Return stats by address; "consumer" is the training loop."""

    def history(self) -> list[Row]:
        """Return one row for each second and stage."""

    def pause(self) -> None:
        """Start no further call."""

    def resume(self) -> None:
        """Continue after `pause()`."""

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted."""


def taken_back(run: RunView) -> frozenset[tuple[float, str]]:
    """Return the time and the knob of each trial that the tuner of a run has taken back."""
    log = () if run.tuner is None else run.tuner.log
    return frozenset((one.when_s, one.knob) for one in log if one.taken_back)


def title_of(run: RunView) -> str:
    """Return the addresses of the stages, in one line."""
    return " > ".join(run.stages)


# -- Runs that the cells of a notebook own; the rules for cells hold them weakly -------------------
class Shown(Protocol):
    """A display of a run."""

    def rest(self) -> None:
        """Called when an epoch has ended."""


class AttendedCore(ViewCore, Protocol):
    """What a kernel uses of a run that belongs to a cell."""

    def renew_functions(self) -> None:
        """Send functions to the workers again: a cell may have changed them."""


class AttendedRun(RunView, Protocol):
    """A run that belongs to the cell that started it."""

    @property
    def _core(self) -> AttendedCore:
        """What users do not need."""

    def close(self, timeout_s: float = 5) -> None:
        """End it."""


class AttendedLoader(RunView, Protocol):
    """All epochs of a loader; its workers stay when the training cell runs again.

    Attributes:
        on_run: called with every run that makes batches for it, or None.
        shown: the displays of it.
    """

    on_run: Callable[[AttendedRun], object] | None
    shown: weakref.WeakSet[Shown]

    def close_epochs(self, threads: Collection[int] = ()) -> bool:
        """Cancel the epochs that these threads iterate; return whether there were any."""


run_started: list[Callable[[AttendedRun], None]] = []  # called with every run that starts
run_closed: list[Callable[[RunView], None]] = []  # called with every run that closed
loader_made: list[Callable[[AttendedLoader], None]] = []  # called with every new loader


# -- Open runs: closed when the interpreter ends, dropped in a fork --------------------------------
_END_S = 1.0  # when the interpreter ends, open runs may take this long to close


class OpenCore(Protocol):
    """What a fork needs of an open run."""

    def disown(self) -> None:
        """Drop it in a forked process: it stayed in the parent."""


class Open(Protocol):
    """A run to be closed."""

    @property
    def _core(self) -> OpenCore:
        """What users do not need."""

    def close(self, timeout_s: float = 5) -> None:
        """End it."""


_open: weakref.WeakValueDictionary[int, Open] = weakref.WeakValueDictionary()  # by id, oldest first


def add(one: Open) -> None:
    """Close a run when the interpreter ends, before everything that existed when it started."""
    _open[id(one)] = one
    _at_exit.register()


def discard(one: Open) -> None:
    """Forget a closed run."""
    _open.pop(id(one), None)


def open_runs() -> tuple[Open, ...]:
    """Return the open runs, oldest first."""
    return tuple(_open.values())


def _close_all(hurried: bool) -> None:  # noqa: FBT001
    run_closed.clear()  # their displays end as well
    for one in open_runs():
        one.close(0 if hurried else _END_S)


_at_exit = ExitCall(_close_all)


def _after_fork() -> None:
    for one in open_runs():
        one._core.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# -- Exports: which values of knobs are in which file; no knob is kept alive -----------------------
class TurnedKnob(NamedTuple):
    """A knob that was turned since the export: its value in the file, and now."""

    stage: str
    knob: str
    exported: int
    now: int


@dataclass(frozen=True, slots=True)
class ChangesSinceExport:
    """The changes of a pipeline since its export.

    Attributes:
        path: the file.
        changes: the knobs whose values differ from the file, in the order of the stages; a
            shared knob is listed with its first stage.
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
    """Record that knobs were written to a file; this replaces earlier records of them.

    Args:
        knobs: the value written for each.
        path: the file.
    """
    with _lock:
        number = next(_numbers)
        for knob, value in knobs.items():
            _notes[knob] = _Note(number, path, value)


def changes_since_export(stages: Mapping[str, Stage]) -> ChangesSinceExport | None:
    """Return which knobs were turned since the last export of some stages.

    Args:
        stages: the stages by address.

    Returns:
        The file and the knobs that differ from it; None if no knob was exported.
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
