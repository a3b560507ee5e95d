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

from .magics import shell, transformed

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
        stored: IPython notes it in its own history.
        stopped: lines that raised: of the cell, then of the body of `%%time` in it.
        failed: nothing of it was executed.
    """

    raw: str
    text: str | None
    count: int | None = None
    flags: int | None = None
    parent: int | None = None
    stored: bool = True
    stopped: tuple[int, ...] = ()
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
        """Take what was before; from now on, `begin` and `end` are called.

        Args:
            running: the cell that is under way; None where there is none.
        """
        self.fill()
        self.listens = True
        if running is not None:
            self._adopt(running)

    def rest(self) -> None:
        """Hear of cells no more; what was heard stays."""
        self.listens = False
        self._under_way.clear()
        self._seen = len(_inputs(self._ip()))

    def begin(self, cell: Any) -> None:
        """Hear that a cell is about to run."""
        raw = cell.raw_cell
        ip = self._ip()
        under_way = self._under_way.setdefault(threading.get_ident(), [])
        parent = under_way[-1][1] if under_way else None
        execution = Execution(raw, getattr(cell, "transformed_cell", None), parent=parent)
        execution.flags = _flags(ip)
        execution.stored = getattr(cell, "store_history", True)
        execution.count = None if execution.stored else getattr(ip, "execution_count", None)
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
            execution.failed = getattr(result, "error_before_exec", None) is not None
            execution.stopped = self._stopped(getattr(result, "error_in_exec", None))

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
        return self._noted(execution) if execution.count is None else execution.count

    def text(self, execution: Execution) -> str:
        """Give what IPython made of a cell, and remember it."""
        if execution.text is None:
            noted = _inputs(self._ip())
            count = self._noted(execution) if execution.count is None else execution.count
            found = noted[count] if execution.stored and 0 < count < len(noted) else ""
            execution.text = f"{found}\n" if found else transformed(execution.raw)
        return execution.text

    def fill(self) -> None:
        """Take what IPython has noted since it was last asked."""
        inputs = _inputs(self._ip())
        for count in range(max(self._seen, 1), len(inputs)):
            if inputs[count].strip():
                self._add(Execution("", f"{inputs[count]}\n", count=count))
        self._seen = len(inputs)

    # -- details --------------------------------------------------------------------------
    def _noted(self, execution: Execution) -> int:
        """Give the number of a cell that is under way."""
        noted = _inputs(self._ip(), "input_hist_raw")
        raw = execution.raw.rstrip("\n")
        return next((n for n in reversed(range(len(noted))) if noted[n] == raw), len(noted) - 1)

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
        noted = _inputs(ip, "input_hist_raw")
        last = max(self._executions, default=_NOWHERE)
        if last == _NOWHERE or not noted or noted[-1].rstrip("\n") != running.rstrip("\n"):
            count = getattr(ip, "execution_count", None)
            last = self._add(Execution(running, None, count=count, stored=False))
        self._under_way.setdefault(threading.get_ident(), []).append((running, last))

    def _stopped(self, error: BaseException | None) -> tuple[int, ...]:
        """Give the lines of the user's module that raised, the outermost first."""
        names = getattr(self._ip(), "user_ns", None)
        trace = None if error is None else error.__traceback__
        lines = []
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code.co_name == "<module>" and frame.f_globals is names:
                lines.append(trace.tb_lineno)
            trace = trace.tb_next
        return tuple(lines)


def silent_text(filename: str) -> tuple[str, int] | None:
    """Give a text that IPython compiled without a word, and the number of the cell it had."""
    compiler = getattr(shell(), "compile", None)
    count = getattr(compiler, "_filename_map", {}).get(filename)
    entry = linecache.cache.get(filename)
    if count is None or entry is None or len(entry) < 3:  # noqa: PLR2004  not a lazy entry
        return None
    return "".join(entry[2]), count


def _inputs(ip: Any, name: str = "input_hist_parsed") -> list[str]:
    return getattr(getattr(ip, "history_manager", None), name, None) or []


def _flags(ip: Any) -> int | None:
    return getattr(getattr(ip, "compile", None), "flags", None)


_histories: weakref.WeakKeyDictionary[Any, History] = weakref.WeakKeyDictionary()
