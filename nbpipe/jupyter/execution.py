"""Executions of cells, and which of them the running code belongs to.

Code belongs to the execution whose context it runs in: the cell itself, and the tasks that it
leaves behind. A plain thread has no such context: it belongs to the cell during which it was first
seen. A callback of a widget belongs to the cell that defined it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple, Protocol, final

from ..show.watch import AttendedRun, RunView
from .kernel import Pump, execution_of_cell

Turn = tuple[int, int]  # epochs started, items handed out
_TRAINS = "nbpipe-train"  # the thread of `run.train`: it calls the user's step
# Their threads do one job after another, of one execution of a cell and of the next.
_POOLS = ("concurrent.futures.thread", "multiprocessing.pool")
_NOT_USERS = ("ipykernel.", "IPython.")  # modules whose threads no cell starts


class NotebookCell(NamedTuple):
    """A cell of a notebook.

    Attributes:
        kind: "id", or "text" where the front end gives no ids.
        text: its id, or its code.
        page: the session of the front end. A copied notebook has the ids of the original.
    """

    kind: str
    text: str
    page: str

    @property
    def id(self) -> str:
        """Its id in the notebook, or an empty text."""
        return self.text if self.kind == "id" else ""


class ExecutionInfo(Protocol):
    """What IPython says of a cell that is executed."""

    @property
    def raw_cell(self) -> str:
        """Its code."""

    @property
    def cell_id(self) -> str | None:
        """Its id in the notebook, where the front end gives one."""


@final
class Execution:
    """One execution of a cell.

    Args:
        cell: the cell.
        earlier: the last execution of this cell, or None.
        threads: the numbers of the threads that the last one started.

    Attributes:
        cell: the cell.
        earlier_runs: the open runs of its last execution.
        earlier_threads: the numbers of its threads.
        runs: the runs that this one started.
        is_told: another page has a message about its runs.
    """

    def __init__(
        self, cell: NotebookCell, earlier: Execution | None = None, threads: Collection[int] = ()
    ) -> None:
        self.cell = cell
        self.earlier_threads = threads
        self.earlier_runs = [] if earlier is None else earlier.open_runs
        self.runs: weakref.WeakSet[AttendedRun] = weakref.WeakSet()
        self.is_told = False

    @property
    def open_runs(self) -> list[AttendedRun]:
        """The runs that it started and that are open."""
        return [run for run in tuple(self.runs) if not run.closed]


class _UnderWay(NamedTuple):
    """A cell in progress.

    Attributes:
        cell: the cell.
        execution: the execution that it is a part of: a cell without an id that another cell runs
            is a part of that one.
        before: how far each run was when it began.
    """

    cell: NotebookCell
    execution: Execution
    before: Mapping[RunView, Turn]


@final
class Executions:
    """The executions of the cells of one kernel.

    Args:
        shell: IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._newest: dict[NotebookCell, Execution] = {}
        self._under_way: dict[int, list[_UnderWay]] = {}  # by thread; cells may run cells
        self._threads: weakref.WeakKeyDictionary[threading.Thread, Execution | None]
        self._threads = weakref.WeakKeyDictionary()
        self._defined_in: dict[str, NotebookCell] = {}  # by the file name of their code

    # -- cells ----------------------------------------------------------------------------
    def begin(self, info: ExecutionInfo, runs: Iterable[RunView]) -> Execution | None:
        """Note that a cell begins.

        Args:
            info: the cell.
            runs: all that a cell may iterate.

        Returns:
            Its execution; None where it is a part of the cell that runs it.
        """
        self._note_threads()
        cell, outer = self._cell(info), self._innermost()
        if outer is not None and not cell.id:  # a magic that runs the rest of its cell, for example
            self._enter(cell, outer.execution, runs, info.raw_cell)
            return None
        earlier = self._newest.get(cell)
        execution = Execution(cell, earlier, self._threads_of(earlier))
        self._enter(cell, execution, runs, info.raw_cell)
        return execution

    def begin_late(self, runs: Iterable[RunView]) -> None:
        """Note the cell that is running now, if there is one: it began before the rules.

        Args:
            runs: all that a cell may iterate.
        """
        self._note_threads()
        request = self._request()
        try:
            if request["header"]["msg_type"] != "execute_request":
                return
            code = str(request["content"]["code"])
        except (KeyError, TypeError):  # no kernel of ipykernel's
            return
        cell = self._cell_of(request.get("metadata", {}).get("cellId"), code)
        self._enter(cell, Execution(cell), runs, code)

    def _enter(
        self, cell: NotebookCell, execution: Execution, runs: Iterable[RunView], code: str
    ) -> None:
        before = weakref.WeakKeyDictionary({run: run._core.turn for run in runs})
        self._newest[execution.cell] = execution
        self._under_way.setdefault(threading.get_ident(), []).append(
            _UnderWay(cell, execution, before)
        )
        file = self._file(code)
        if file is not None:
            self._defined_in[file] = execution.cell
        execution_of_cell.set(execution)

    def end(self, info: ExecutionInfo | None) -> Mapping[RunView, Turn] | None:
        """Note that a cell has ended.

        Args:
            info: the cell; None for the innermost.

        Returns:
            How far each run was when it began; None for a cell that did not begin: an empty one.
        """
        ident = threading.get_ident()
        under_way = self._under_way.get(ident, [])
        cell = None if info is None else self._cell(info)
        found = [n for n, one in enumerate(under_way) if cell in (None, one.cell)]
        if not found:
            return None
        self._note_threads()
        entry = under_way[found[-1]]
        del under_way[found[-1] :]
        execution_of_cell.set(under_way[-1].execution if under_way else None)
        if not under_way:
            del self._under_way[ident]
        return entry.before

    # -- the same cell in other pages -----------------------------------------------------
    def elsewhere(self, cell: NotebookCell) -> list[Execution]:
        """Return the last executions of a cell in other pages, and of its copies."""
        found = tuple(self._newest.items())
        return [one for other, one in found if other[:2] == cell[:2] and other != cell]

    def forget(self, execution: Execution) -> None:
        """Forget the cell of an execution that has no open run."""
        self._newest.pop(execution.cell, None)

    # -- what the running code belongs to -------------------------------------------------
    @property
    def current(self) -> Execution | None:
        """The execution of the cell whose code is running, or None."""
        found = execution_of_cell.get()
        return found if isinstance(found, Execution) else None

    @property
    def owner(self) -> Execution | None:
        """The execution to which a run belongs that starts here, or None."""
        thread = threading.current_thread()
        if thread.name.startswith("nbpipe-") and thread.name != _TRAINS:
            return None  # of a stage that has a run of its own
        return self.current or self._owner_of(thread) or self._owner_of_callback()

    def is_over(self, execution: Execution) -> bool:
        """Return whether the cell of an execution has run again since."""
        return self._newest.get(execution.cell) is not execution

    def release(self, run: AttendedRun) -> None:
        """Have a run belong to no cell."""
        for execution in (*self._newest.values(), self.owner):
            if execution is not None:
                execution.runs.discard(run)

    def _owner_of(self, thread: threading.Thread) -> Execution | None:
        if thread in self._threads:
            found = self._threads[thread]
            pooled = found is not None and any(
                frame.f_globals.get("__name__") in _POOLS for frame in _running()
            )
            return self._newest.get(found.cell) if found is not None and pooled else found
        entry = self._innermost()  # else the thread would have been seen when the cell ended
        return entry.execution if entry is not None and _is_users(thread) else None

    def _owner_of_callback(self) -> Execution | None:
        """Return the last execution of the cell that defined the outermost function here."""
        cell = None
        for frame in _running():
            cell = self._defined_in.get(frame.f_code.co_filename, cell)
        return None if cell is None else self._newest.get(cell)

    def _note_threads(self) -> None:
        """Give the threads that are new to the cell in progress."""
        entry = self._innermost()
        owner = None if entry is None else entry.execution
        for thread in threading.enumerate():
            self._threads.setdefault(thread, owner if _is_users(thread) else None)

    def _threads_of(self, execution: Execution | None) -> list[int]:
        """Return the numbers of the threads that an execution started and that still run."""
        known = [] if execution is None else threading.enumerate()
        found = [one.ident for one in known if self._threads.get(one) is execution]
        return [number for number in found if number is not None]

    def _innermost(self) -> _UnderWay | None:
        """Return the cell in progress: that of this thread, or else the one that began last."""
        mine = self._under_way.get(threading.get_ident())
        others = tuple(self._under_way.values())
        found = mine or (others[-1] if others else [])
        return found[-1] if found else None

    # -- what IPython says ----------------------------------------------------------------
    def _cell(self, info: ExecutionInfo) -> NotebookCell:
        return self._cell_of(getattr(info, "cell_id", None), info.raw_cell)

    def _cell_of(self, cell_id: object, code: str) -> NotebookCell:
        page = self._request().get("header", {}).get("session", "")
        return (
            NotebookCell("id", str(cell_id), page) if cell_id else NotebookCell("text", code, page)
        )

    def _request(self) -> Mapping[str, Any]:
        """Return the request that the kernel is working on."""
        try:
            request: Mapping[str, Any] = self._shell.get_parent()
        except (AttributeError, LookupError):  # no kernel of ipykernel's
            return {}
        return request or {}

    def _file(self, code: str) -> str | None:
        """Return the file name that IPython gives to the code of a cell."""
        name = getattr(getattr(self._shell, "compile", None), "get_code_name", None)
        return None if name is None else str(name(code, code, 0))


def _is_users(thread: threading.Thread) -> bool:
    return not (
        thread is threading.main_thread()
        or thread.name.startswith("nbpipe-")
        or type(thread).__module__.startswith(_NOT_USERS)
    )


def _running() -> Iterator[FrameType]:
    """Return the frames of the running code, from the innermost to the message that it answers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not Pump.ANSWER:
        yield frame
        frame = frame.f_back
