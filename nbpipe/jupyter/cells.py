"""In a notebook, runs belong to the cells that started them, and are shown as live panels.

Registered by `import nbpipe` inside a kernel, and by `%load_ext nbpipe`, which in a terminal
brings the magic `%nbpipe` alone.

- A cell that is run again closes the runs that it started before.
- A cell that fails ends the epochs that it was iterating.
- A new run reports tuned values that its pipeline does not have, and functions that were edited
  since the pipeline was built.
- While a cell iterates a run, the kernel answers the run's controls.

Runs are held weakly.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..base.digest import value_digest
from ..base.format import shortened
from ..base.knobs import Knob
from ..errors import is_users_file
from ..ops.stage import CodeLocation, Stage
from ..show.watch import (
    AttendedLoader,
    AttendedRun,
    RunView,
    loader_made,
    open_runs,
    run_closed,
    run_started,
    title_of,
)
from .display import OUTSIDE, RunDisplay, listen, unlisten
from .execution import Execution, ExecutionInfo, Executions, NotebookCell
from .kernel import Pump, cure_contexts, cure_streams, execution_of_cell
from .magics import RunMagic
from .runs import KernelRuns

if TYPE_CHECKING:
    from .panel import Startable


class ExecutionResult(Protocol):
    """IPython's result of a cell that was executed."""

    @property
    def info(self) -> ExecutionInfo:
        """The cell."""

    @property
    def success(self) -> bool:
        """Whether it raised nothing."""


def load_ipython_extension(ip: Any) -> None:
    """Register `%nbpipe`, and in a kernel the rules for cells; do nothing the second time.

    Args:
        ip: IPython's shell.
    """
    if ip in _loaded:
        return
    executions = Executions(ip)
    display = RunDisplay(ip.display_pub, lambda: _place(executions.current))
    compiler = getattr(ip, "compile", None)  # another shell's names nothing
    place_name = getattr(compiler, "format_code_name", lambda _: None)
    magic = RunMagic(ip, KernelRuns(lambda: ip.user_ns))
    rules = _loaded[ip] = CellRules(
        executions,
        pump=Pump.of(ip),
        display=display,
        place_name=place_name,
        magic=magic,
    )
    run_started.append(rules.adopt)
    loader_made.append(rules.answer)
    for run in open_runs():
        magic.runs.note(cast("RunView", run), "")
    magic.register()
    if _is_kernel(ip):
        _load_in_kernel(ip, rules, display)


def _is_kernel(ip: Any) -> bool:
    return getattr(ip, "kernel", None) is not None


def _load_in_kernel(ip: Any, rules: CellRules, display: RunDisplay) -> None:
    cure_streams()
    cure_contexts(ip)
    rules.magic.runs.open(ip.kernel)
    ip.events.register("pre_run_cell", rules.begin)
    ip.events.register("post_run_cell", rules.end)
    display.show_pipeline = rules.show_pipeline
    display.variable_of = rules.magic.runs.variable_of
    listen(ip, display)
    run_closed.append(display.keep_closed)
    rules.begin_late()


def unload_ipython_extension(ip: Any) -> None:
    """Remove the magic and the rules for cells; runs continue."""
    rules = _loaded.pop(ip, None)
    if rules is None:
        return
    run_started.remove(rules.adopt)
    loader_made.remove(rules.answer)
    rules.magic.forget()
    if _is_kernel(ip):
        ip.events.unregister("pre_run_cell", rules.begin)
        ip.events.unregister("post_run_cell", rules.end)
        unlisten(ip, rules.display)
        run_closed.remove(rules.display.keep_closed)
        rules.magic.runs.close()


class CellRules:
    """The rules for the cells of one kernel.

    Args:
        executions: the cells that ran, with their runs.
        pump: answers the front end while a cell iterates a run; None where it cannot.
        display: shows runs.
        place_name: returns the cell that a file of code stands for.
        magic: acts on all runs.
    """

    def __init__(
        self,
        executions: Executions,
        *,
        pump: Pump | None,
        display: RunDisplay,
        place_name: PlaceName,
        magic: RunMagic,
    ) -> None:
        self.magic = magic
        self._executions = executions
        self._pump = pump
        self.display = display
        self._place_name = place_name
        self._runs: weakref.WeakSet[AttendedRun] = weakref.WeakSet()
        self._loaders: weakref.WeakSet[AttendedLoader] = weakref.WeakSet()
        self._knobs: dict[str, Knob] = {}  # of the last run that had a stage of this address

    # -- cells ----------------------------------------------------------------------------
    def begin(self, cell: ExecutionInfo) -> None:
        """Called when a cell is about to run; close the runs that it started before."""
        execution = self._executions.begin(cell, self._attended())
        if execution is None:
            return
        for run in execution.earlier_runs:
            run.close()
        if execution.earlier_runs:
            found = _runs_that(execution.earlier_runs, "this cell started before")
            _print(f"nbpipe: closed {found}")
        execution.earlier_runs.clear()
        threads = execution.earlier_threads
        for loader in tuple(self._loaders) if threads else ():
            if loader.close_epochs(threads):
                found = title_of(loader)
                _print(f"nbpipe: ended the epoch that a thread of this cell iterated ({found})")
        self.display.begin(_place(execution))
        for other in self._executions.elsewhere(execution.cell):
            self._look_at_page(other)

    def _look_at_page(self, other: Execution) -> None:
        """Report the runs that a cell with the same id has open in another page.

        This page may be that one, loaded again, or show a copy of its notebook.
        """
        runs = other.open_runs
        if not runs:
            self.display.begin(_place(other))
            self._executions.forget(other)
        elif not other.is_told:
            other.is_told = True
            found = _runs_that(runs, "this cell started in another page or notebook")
            _print(f"nbpipe: left open {found}; nbpipe.close_all() closes all runs")

    def begin_late(self) -> None:
        """Record the cell that is running, if there is one."""
        self._executions.begin_late(self._attended())

    def end(self, result: ExecutionResult | None) -> None:
        """Called when a cell has run; if it failed, cancel the epochs that it was iterating."""
        before = self._executions.end(None if result is None else result.info)
        if before is not None and (result is None or not result.success):
            for run in self._attended():
                if before.get(run) != run._core.turn:
                    run._core.close_epochs()
        for run in self._open_runs():
            run._core.renew_functions()
        self.display.keep_all()

    # -- runs -----------------------------------------------------------------------------
    def adopt(self, run: AttendedRun) -> None:
        """Called when a run started; it belongs to the cell whose code started it."""
        execution = self._executions.owner
        self._runs.add(run)
        self.magic.runs.note(run, "" if execution is None else execution.cell.id)
        if self._pump is not None:
            run._core.between_waits = self._pump.poll
        lost = self._lost_values(run)
        if execution is None:  # there is no cell to print it in
            return
        execution.runs.add(run)
        for line in (*lost, *edited_lines(run.stages.values(), self._place_name)):
            _print(line)
        if self._executions.is_over(execution):
            run.close()
            found = _runs_that([run], "a loop started whose cell has run again since")
            _print(f"nbpipe: closed {found}")

    def answer(self, run: AttendedLoader) -> None:
        """Called when a loader was made; its controls are answered between two of its batches.

        Workers that it keeps stay when the cell that trains is run again.
        """
        self._loaders.add(run)
        execution = self._executions.owner
        self.magic.runs.note(run, "" if execution is None else execution.cell.id)
        run.on_run = self._leave_to_loader
        if self._pump is not None:
            run._core.between_waits = self._pump.poll

    def _leave_to_loader(self, run: AttendedRun) -> None:
        self.magic.runs.leave_out(run)
        self._executions.release(run)

    # -- pipelines ------------------------------------------------------------------------
    def show_pipeline(self, pipe: Any) -> None:
        """Show the buttons of a pipeline above its table."""
        execution = self._executions.current
        self.display.show_bar(
            pipe, lambda pipe: copy_context().run(self._start_in, execution, pipe)
        )

    def _start_in(self, execution: Execution | None, pipe: Startable) -> tuple[AttendedRun, str]:
        """Start a pipeline for the cell that shows it; return the run and its variable."""
        execution_of_cell.set(execution)
        run = pipe.start()
        return run, self.magic.runs.name(run, pipe)

    def _lost_values(self, run: AttendedRun) -> list[str]:
        lines = []
        chain = " > ".join(run.stages)
        for address, stage in run.stages.items():
            for name, knob in stage.knobs.items():
                place = (
                    f"{chain}: {address}.{name}"  # another pipeline may have a stage of this name
                )
                before = self._knobs.get(place)
                self._knobs[place] = knob
                if before is None or before is knob:
                    continue
                if before.value not in (before.default, knob.value):
                    lines.append(
                        f"nbpipe: {address}.{name} was tuned to {before.value}; this pipeline "
                        f"says {knob.value}"
                    )
        return lines

    def _open_runs(self) -> list[AttendedRun]:
        return [run for run in tuple(self._runs) if not run.closed]

    def _attended(self) -> list[RunView]:
        return [*self._open_runs(), *self._loaders]


def _place(execution: Execution | None) -> NotebookCell | str | None:
    """Return the cell that runs; None where it has no id to tell it from others."""
    if execution is None:
        return OUTSIDE
    return execution.cell if execution.cell.id else None


def _runs_that(runs: Sequence[RunView], end: str) -> str:
    """Write "the run that `end` (its stages)", or "2 runs that `end`"."""
    if len(runs) == 1:
        return f"the run that {end} ({shortened(title_of(runs[0]))})"
    return f"{len(runs)} runs that {end}"


def _print(line: str) -> None:
    print(line)  # noqa: T201  the reader looks at the cell


_loaded: weakref.WeakKeyDictionary[Any, CellRules] = weakref.WeakKeyDictionary()


# -- Functions of stages that were edited, and their cells run, since the pipeline was built -------
PlaceName = Callable[[str], tuple[str, str] | None]  # of a file of code: ("Cell", "In[4]")


def edited_lines(stages: Iterable[Stage], place_name: PlaceName) -> list[str]:
    """Return one line for each function of which the notebook, or its module, has a newer version.

    Args:
        stages: of a run that starts.
        place_name: returns the cell that code came from.
    """
    lines: dict[str, str] = {}
    for stage in stages:
        name = _edited(stage.fn)
        if name is not None and name not in lines:
            lines[name] = (
                f"nbpipe: {name} was edited since this pipeline was built, which calls it as it "
                f"was; {_way_out(stage.made_at, place_name)}"
            )
    return list(lines.values())


def _edited(fn: Any) -> str | None:
    """Return the name of a stage's function, or of its class, if the notebook has a newer one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, MethodType):
        fn = fn.__self__
    found = fn if isinstance(fn, FunctionType | type) else type(fn)
    module = sys.modules.get(found.__module__)
    if "." in found.__qualname__ or not _is_edited_by_hand(module):
        return None
    now = getattr(module, found.__qualname__, None)
    same_kind = isinstance(now, FunctionType if isinstance(found, FunctionType) else type)
    if not same_kind or now is found or _digests(now) == _digests(found):
        return None
    return str(found.__qualname__)


def _is_edited_by_hand(module: object) -> bool:
    """Return whether a module is the notebook, or a file of the user's."""
    file = getattr(module, "__file__", None)
    return module is sys.modules["__main__"] or (isinstance(file, str) and is_users_file(file))


def _digests(found: Any) -> list[str]:
    """Return digests of the code of a function or class, whatever its place."""
    parts = [found] if isinstance(found, FunctionType) else vars(found).values()
    return [value_digest(inspect.unwrap(part)) for part in parts if isinstance(part, FunctionType)]


def _way_out(made_at: CodeLocation | None, place_name: PlaceName) -> str:
    """Return how to make the stage again: which cell to run."""
    if made_at is None:
        return "build it again"
    code, offset = made_at.code, made_at.offset
    line = next((n for start, end, n in code.co_lines() if start <= offset < end), None)
    place = place_name(code.co_filename)
    if line is None or place is None:
        return "build it again"
    text = shortened(linecache.getline(code.co_filename, line))
    return f"run {place[1]} again (line {line}: {text}), and what builds on it"
