"""Terminal: a run as a table of rich, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, final

from ..base.format import format_rate, format_seconds, format_share, shortened
from ..ops.stage import CONSUMER, LOOP
from .controller import RunController
from .picture import (
    call_words,
    diagnosis_line,
    failure_words,
    headline,
    latency_words,
    loop_shares,
    loop_words,
    queue_words,
    shares_of,
    state_words,
    step_words,
    worker_words,
)
from .snapshot import Snapshot, StagePart
from .verdict.diagnosis import ERROR, GOOD

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.live import Live

_FRAMES_PER_S = 4
_MIDDLE, _WIDE = 76, 116  # terminals of this width show more [columns]
_OTHER_LINES = 9  # beside the stages, at most
_TEXTS = ("stage", "state", "workers")  # columns of text; the others hold numbers
_LEAST_ROWS = 3  # stages that are shown however low the terminal is
# So that columns do not move from one picture to the next [columns].
_LEAST_WIDTHS = {"rate": 14, "busy": 4, "calls": 5, "queue": 5, "p50": 7, "p50 / p95": 15}


def printable(text: str) -> str:
    r"""Return text from outside in one line, without what a terminal would obey.

    Examples:
        >>> printable("plain, é\x1b[2J\n")
        'plain, é\\x1b[2J\\n'
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


def no_lines(_: int) -> Iterable[str]:
    """Return no lines."""
    return ()


class _Line(NamedTuple):
    """A line of the table: its cells by their heads."""

    cells: dict[str, str]
    style: str


@final
class RunTable:
    """Draws a run: rich calls it for each picture.

    Args:
        controller: gives the snapshots.
        epochs: epochs that the run is iterated for.
        title: stands before the state, or "".
        more: gives further lines for a width [columns].

    Attributes:
        begun: epochs that have begun.
        chosen: number of the stage with the cursor; None without one.
        paused: stands below a paused run in place of the diagnosis, or "".
        over: the run has ended: no further picture follows.
    """

    def __init__(
        self,
        controller: RunController,
        epochs: int = 1,
        *,
        title: str = "",
        more: Callable[[int], Iterable[str]] = no_lines,
    ) -> None:
        self.begun = 0
        self.chosen: int | None = None
        self.paused = ""
        self.over = False
        self._controller = controller
        self._epochs = epochs
        self._title = title
        self._more = more

    def live(self, console: Console, *, stays: bool = True) -> Live:
        """Return what draws it again and again in its `with` block.

        Args:
            console: the terminal.
            stays: the last picture stays.
        """
        from rich.live import Live

        return Live(
            self,
            console=console,
            refresh_per_second=_FRAMES_PER_S,
            vertical_overflow="crop",
            transient=not stays,
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the lines and the table: rich calls this."""
        from rich.text import Text

        snapshot: Snapshot = {
            **self._controller.snapshot(lately=not self.over),
            "epochs": self._epochs if self._epochs > 1 else None,
            "epochs_begun": self.begun,
        }
        width = options.max_width
        phrases = [*filter(None, [self._title]), *headline(snapshot)]
        for line in _in_lines(map(printable, phrases), width):
            yield Text(line, style="bold")
        yield self._table(snapshot, width, console.height)
        diagnosis = snapshot["diagnosis"]
        style = {GOOD: "green", ERROR: "red"}.get(diagnosis["severity"], "yellow")
        paused = self.paused if snapshot["state"] == "paused" else ""
        yield Text(printable(paused or diagnosis_line(diagnosis)), style=style)
        for line in self._more(width):
            yield Text(printable(line), style="dim")

    def _table(self, snapshot: Snapshot, width: int, height: int) -> Any:
        from rich.text import Text

        rows = [_row_of(stage, snapshot, width) for stage in snapshot["stages"]]
        chooses = self.chosen is not None and not self.over
        place = min(self.chosen or 0, len(rows) - 1) if chooses else -1
        room = len(rows) if self.over else max(_LEAST_ROWS, height - _OTHER_LINES)
        first, last = _visible(len(rows), max(0, place), room)
        loop = _loop_row(snapshot, width)
        heads = [
            head
            for head in (rows[0] if rows else loop).cells
            if any(row.cells.get(head, "") for row in (*rows, loop))
        ]
        some = f" {first + 1}-{last} of {len(rows)}" if last - first < len(rows) else ""
        table = _empty_table(heads, f"{'  ' * chooses}stage{some}")
        for number, row in [*[*enumerate(rows)][first:last], (-2, loop)]:
            cells = [printable(row.cells.get(head, "")) for head in heads]
            if chooses:
                cells[0] = f"{'>' if number == place else ' '} {cells[0]}"
            style = f"{row.style} reverse" if number == place else row.style
            table.add_row(*(Text(cell, overflow="ellipsis") for cell in cells), style=style)
        return table


def _empty_table(heads: Iterable[str], first: str) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(
            first if head == "stage" else head,
            justify="left" if head in _TEXTS else "right",
            no_wrap=True,
            overflow="ellipsis",
            min_width=_LEAST_WIDTHS.get(head),
        )
    return table


def _row_of(stage: StagePart, snapshot: Snapshot, width: int) -> _Line:
    address, shares = stage["address"], shares_of(stage)
    cells = {
        "stage": shortened(address, 16 if width < _MIDDLE else 24),
        "rate": format_rate(stage["items_per_s"], stage["unit"]),
    }
    if width >= _WIDE:
        cells["state"] = state_words(shares)
    else:
        cells["busy"] = format_share(stage["busy"])
    cells |= {"calls": call_words(stage), "queue": queue_words(stage)}
    if width >= _WIDE:
        cells |= {
            "p50 / p95": latency_words(stage),
            "errors": failure_words(stage) if stage["errors"] or stage["retries"] else "",
            "workers": worker_words(stage),
        }
    elif width >= _MIDDLE:
        latency = stage["latency_p50_s"]
        cells["p50"] = format_seconds(latency) if latency else ""
        cells["errors"] = str(stage["errors"] or "")
    return _Line(cells, _style(address, snapshot))


def _loop_row(snapshot: Snapshot, width: int) -> _Line:
    cells = {"stage": LOOP, "rate": format_rate(snapshot["items_per_s"], snapshot["unit"])}
    if width >= _WIDE:
        cells |= {"state": loop_words(snapshot), "p50 / p95": step_words(snapshot)}
    else:
        cells["busy"] = format_share(loop_shares(snapshot).get("busy", 0.0))
    return _Line(cells, _style(CONSUMER, snapshot))


def _style(address: str, snapshot: Snapshot) -> str:
    diagnosis = snapshot["diagnosis"]
    if diagnosis["stage"] != address or diagnosis["severity"] == GOOD:
        return ""
    return "bold red" if diagnosis["severity"] == ERROR else "bold yellow"


def _in_lines(phrases: Iterable[str], width: int) -> list[str]:
    """Join phrases with commas; a line breaks between two of them."""
    lines = [""]
    for phrase in phrases:
        joined = f"{lines[-1]}, {phrase}" if lines[-1] else phrase
        if len(joined) < width or not lines[-1]:
            lines[-1] = joined
        else:
            lines[-1] += ","
            lines.append(phrase)
    return lines


def _visible(count: int, chosen: int, most: int) -> tuple[int, int]:
    """Return which of the rows are shown: as many as there is room for, around the chosen one."""
    first = max(0, min(chosen - most // 2, count - most))
    return first, min(count, first + most)
