"""What those who show or turn a run know of it: protocols, and the register of open runs."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ..base.knobs import KnobChange
from ..base.threads import ExitCall
from ..engine.failures import Failure
from ..engine.stats import Row, StageStats, Status
from ..ops.stage import Stage


# -- A run, seen from outside -------------------------------------------------------------
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


class Watched(Exportable, Protocol):
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

    def failures(self) -> tuple[Failure, ...]:
        """Return the last failed items, oldest first."""

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


# -- What the rules of a notebook look after; they hold none of it ------------------------
class Shown(Protocol):
    """What shows a run."""

    def rest(self) -> None:
        """Called when the run has come to rest."""


class Attended(Watched, Protocol):
    """A run that the cells of a notebook look after.

    Attributes:
        between_waits: called by the training loop before it takes a batch, or None.
    """

    between_waits: Callable[[], object] | None

    @property
    def turn(self) -> tuple[int, int]:
        """How far it is: epochs begun, items delivered in all of them."""

    def close_epochs(self) -> None:
        """Cancel the epochs that this thread iterates: the code that did so is gone."""


class AttendedRun(Attended, Protocol):
    """A run that belongs to the cell that started it."""

    def close(self, timeout_s: float = 5) -> None:
        """End it."""

    def renew_functions(self) -> None:
        """Called after each cell: workers get the functions that it changed."""


class AttendedLoader(Attended, Protocol):
    """All epochs of a loader; its workers stay when the cell that trains is run again.

    Attributes:
        on_run: called with every run that makes batches for it, or None.
        shown: what shows it.
    """

    on_run: Callable[[AttendedRun], object] | None
    shown: weakref.WeakSet[Shown]


run_started: list[Callable[[AttendedRun], None]] = []  # called with every run that starts
loader_made: list[Callable[[AttendedLoader], None]] = []  # called as every loader is made


# -- Open runs: closed when the interpreter ends, disowned where it was forked ------------
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
    for one in open_runs():
        one.close(0 if hurried else _END_S)


_at_exit = ExitCall(_close_all)


def _after_fork() -> None:
    for one in open_runs():
        one.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
