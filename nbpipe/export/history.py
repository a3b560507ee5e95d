"""History of a notebook: the text of the cells that IPython has executed, in order.

It is heard while it happens, as IPython keeps neither the order of repeated cells nor how far a
failed one came; what happened before is taken from IPython's own history. Only texts are kept.
"""

from __future__ import annotations

import linecache
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .magics import shell

_MOST = 20_000  # executions
_NOWHERE = -1


@dataclass(slots=True)
class Execution:
    """One execution of a cell.

    Attributes:
        raw: the cell as the user wrote it; empty where it is not known.
        text: what IPython made of it; None where it does not say.
        count: the number of the cell, as in `In[4]`; None until it is known.
        flags: `__future__` flags in force when it began; None where they are not known.
        parent: order of the cell that ran it, as `%%capture` does.
        stopped: line that raised, None where none did.
        failed: nothing of it was executed.
    """

    raw: str
    text: str | None
    count: int | None = None
    flags: int | None = None
    parent: int | None = None
    stopped: int | None = None
    failed: bool = False


class History:
    """What one shell has executed.

    Of executions of the same text the first and the last are kept.

    Args:
        ip: IPython's shell.
    """

    def __init__(self, ip: Any) -> None:
        self._ip: Callable[[], Any] = weakref.ref(ip)
        self._executions: dict[int, Execution] = {}  # by order
        self._orders: dict[str, tuple[int, int]] = {}  # first and last execution of a text
        self._under_way: dict[int, list[tuple[str, int]]] = {}  # by thread: raw text, order
        self._next = 0
        self._seen = 0  # cells of IPython's own history
        self.listens = False

    @classmethod
    def of(cls, ip: Any) -> History:
        """Give the history of a shell."""
        if ip not in _histories:
            _histories[ip] = cls(ip)
        return _histories[ip]

    # -- listening ------------------------------------------------------------------------
    def listen(self, running: str | None) -> None:
        """Begin to hear of cells.

        Args:
            running: the cell that is under way; None where there is none.
        """
        ip = self._ip()
        self.fill()
        self.listens = True
        ip.events.register("pre_run_cell", self.begin)
        ip.events.register("post_run_cell", self.end)
        if running is not None:
            self._adopt(running)

    def rest(self) -> None:
        """Hear of cells no more; what was heard stays."""
        ip = self._ip()
        if ip is not None and self.listens:
            ip.events.unregister("pre_run_cell", self.begin)
            ip.events.unregister("post_run_cell", self.end)
        self.listens = False
        self._under_way.clear()
        self._seen = len(_inputs(ip))

    def begin(self, cell: Any) -> None:
        """Hear that a cell is about to run."""
        raw = cell.raw_cell
        ip = self._ip()
        under_way = self._under_way.setdefault(threading.get_ident(), [])
        parent = under_way[-1][1] if under_way else None
        stored = getattr(cell, "store_history", True)
        execution = Execution(raw, getattr(cell, "transformed_cell", None), parent=parent)
        execution.flags = _flags(ip)
        execution.count = None if stored else getattr(ip, "execution_count", None)
        under_way.append((raw, self._add(execution)))

    def end(self, result: Any) -> None:
        """Hear that a cell has run."""
        info = getattr(result, "info", None)
        under_way = self._under_way.get(threading.get_ident(), [])
        found = [n for n, (raw, _) in enumerate(under_way) if info is None or raw == info.raw_cell]
        if not found:  # an empty cell ends without having begun
            return
        execution = self._executions.get(under_way[found[-1]][1])
        del under_way[found[-1] :]
        if execution is not None and result is not None:
            count = getattr(result, "execution_count", None)
            execution.count = execution.count if count is None else count
            execution.failed = result.error_before_exec is not None
            execution.stopped = self._stopped(result.error_in_exec)

    # -- asking ---------------------------------------------------------------------------
    def executions(self) -> list[tuple[int, Execution]]:
        """List what was executed, oldest first, each with its order."""
        if not self.listens:
            self.fill()
        return list(self._executions.items())

    def count(self, order: int) -> int:
        """Give the number of a cell; of one that another cell ran, the number of that one."""
        execution = self._executions[order]
        if execution.parent in self._executions:
            return self.count(execution.parent)
        if execution.count is None:  # it is under way, and the last that IPython has noted
            return len(_inputs(self._ip())) - 1
        return execution.count

    def text(self, execution: Execution) -> str:
        """Give what IPython made of a cell, and remember it."""
        if execution.text is None:
            ip = self._ip()
            try:
                execution.text = str(ip.transform_cell(execution.raw))
            except Exception:  # noqa: BLE001  transformers of the user's may raise anything
                execution.text = execution.raw
        return execution.text

    def fill(self) -> None:
        """Take what IPython has noted since it was last asked."""
        inputs = _inputs(self._ip())
        for count in range(max(self._seen, 1), len(inputs)):
            if inputs[count].strip():
                self._add(Execution("", f"{inputs[count]}\n", count=count))
        self._seen = len(inputs)

    # -- details --------------------------------------------------------------------------
    def _add(self, execution: Execution) -> int:
        order = self._next
        self._next += 1
        self._executions[order] = execution
        key = execution.raw or execution.text or ""
        first, last = self._orders.get(key, (order, _NOWHERE))
        if last not in (_NOWHERE, first) and not self._is_running(last):
            self._executions.pop(last, None)
        self._orders[key] = (first, order)
        if len(self._executions) > _MOST:
            self._forget_oldest()
        return order

    def _forget_oldest(self) -> None:
        oldest = self._executions.pop(next(iter(self._executions)))
        self._orders.pop(oldest.raw or oldest.text or "", None)

    def _is_running(self, order: int) -> bool:
        return any(order == one for cells in self._under_way.values() for _, one in cells)

    def _adopt(self, running: str) -> None:
        """Take note of the cell that was under way before there was anyone to hear of it."""
        if not running.strip():
            return
        ip = self._ip()
        noted = _inputs(ip)
        last = max(self._executions, default=_NOWHERE)
        raw = noted_raw(ip)
        if last == _NOWHERE or not noted or raw.strip() != running.strip():
            last = self._add(Execution(running, None, count=getattr(ip, "execution_count", None)))
        self._under_way.setdefault(threading.get_ident(), []).append((running, last))

    def _stopped(self, error: BaseException | None) -> int | None:
        """Give the line of the cell that raised."""
        names = getattr(self._ip(), "user_ns", None)
        found = None
        trace = None if error is None else error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if code.co_name == "<module>" and trace.tb_frame.f_globals is names:
                found = trace.tb_lineno
            trace = trace.tb_next
        return found


def silent_text(filename: str) -> tuple[str, int] | None:
    """Give a text that IPython compiled without a word, and the number of the cell it had."""
    compiler = getattr(shell(), "compile", None)
    count = getattr(compiler, "_filename_map", {}).get(filename)
    entry = linecache.cache.get(filename)
    if count is None or entry is None or len(entry) < 3:  # noqa: PLR2004  not a lazy entry
        return None
    return "".join(entry[2]), count


def noted_raw(ip: Any) -> str:
    """Give the last cell that IPython has noted, as the user wrote it."""
    raw = getattr(getattr(ip, "history_manager", None), "input_hist_raw", None) or [""]
    return str(raw[-1])


def _inputs(ip: Any) -> list[str]:
    return getattr(getattr(ip, "history_manager", None), "input_hist_parsed", None) or []


def _flags(ip: Any) -> int | None:
    return getattr(getattr(ip, "compile", None), "flags", None)


_histories: weakref.WeakKeyDictionary[Any, History] = weakref.WeakKeyDictionary()
