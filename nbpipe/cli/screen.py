"""Screen: a run as a table in the terminal, and what its keys do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, final

from ..base.format import format_rate, format_seconds, format_share, shortened
from ..errors import NbpipeError
from ..ops.stage import CONSUMER, LOOP
from ..run.run import Run
from ..show.controller import RunController
from ..show.picture import (
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
from ..show.snapshot import Snapshot, StagePart
from ..show.verdict.diagnosis import ERROR, GOOD
from .keys import is_ours, reading_keys
from .terminal import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

_FRAMES_PER_S = 4
_MIDDLE, _WIDE = 76, 116  # terminals of this width show more [columns]
_OTHER_LINES = 9  # beside the stages, at most
_TEXTS = ("stage", "state", "workers")  # columns of text; the others hold numbers
_LEAST_ROWS = 3  # stages that are shown however low the terminal is
_KEYS = "up/down stage, +/- concurrency, a autotune, p pause, q quit"
_NARROW_KEYS = "up/down, +/-, a autotune, p pause, q quit"
# So that columns do not move from one picture to the next [columns].
_LEAST_WIDTHS = {"rate": 14, "busy": 4, "calls": 5, "queue": 5, "p50": 7, "p50 / p95": 15}
_ENDED = ("stopped", "undone")  # states of a tuner


class _Line(NamedTuple):
    """A line of the table: its cells by their heads."""

    cells: dict[str, str]
    style: str


@final
class Screen:
    """Draws a run, and obeys keys.

    Args:
        run: the run.
        epochs: epochs that it is iterated for.
        title: stands before the state, or "".
        turns: whether keys turn knobs; otherwise only `q` does something.

    Attributes:
        quitting: `q` was pressed: start no further epoch.
        begun: epochs that have begun.
    """

    def __init__(self, run: Run, epochs: int = 1, *, title: str = "", turns: bool = True) -> None:
        self.quitting = False
        self.begun = 0
        self._run = run
        self._epochs = epochs
        self._title = title
        self._turns = turns
        self._reads = is_ours()
        self._controller = RunController(run, by="terminal")
        self._chosen = 0
        self._note = ""
        self._over = False

    @contextmanager
    def shown(self, *, stays: bool = True) -> Iterator[None]:
        """Draw it in the `with` block, and read keys.

        Args:
            stays: the last picture stays.
        """
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        live = Live(
            self,
            console=console,
            refresh_per_second=_FRAMES_PER_S,
            vertical_overflow="crop",
            transient=not stays,
        )

        def pressed(key: str) -> None:
            self.press(key)
            if not self._over:
                live.refresh()

        with reading_keys(pressed, console.show_cursor), live:
            try:
                yield
            finally:
                self._over = True

    # -- keys ---------------------------------------------------------------------------------
    def press(self, key: str) -> None:
        """Do what a key asks for; what cannot be done is written below the table."""
        actions = {
            "up": lambda: self._choose(-1),
            "down": lambda: self._choose(1),
            "+": lambda: self._turn(1),
            "=": lambda: self._turn(1),  # the same key without shift
            "-": lambda: self._turn(-1),
            "a": self._autotune,
            "p": self._pause,
        }
        self._note = ""
        try:
            if key == "q":
                self.quitting = True
                self._run.stop()
                self._run.resume()  # a paused run would still be called paused
            elif self._turns and key in actions:
                actions[key]()
        except NbpipeError as error:
            self._note = str(error)

    def _choose(self, step: int) -> None:
        last = len(self._controller.snapshot(lately=True)["stages"]) - 1
        self._chosen = max(0, min(last, self._chosen + step))

    def _turn(self, step: int) -> None:
        stage = self._controller.snapshot(lately=True)["stages"][self._chosen]["address"]
        value = self._controller.in_force(stage, "concurrency")
        if value is None:
            self._note = f"{stage} has no concurrency."
        else:
            self._controller.set(stage, "concurrency", value + step)

    def _autotune(self) -> None:
        tuner = self._run.tuner
        if tuner is None or tuner.state in _ENDED:
            self._run.autotune()
        else:
            tuner.stop()

    def _pause(self) -> None:
        if self._run.paused:
            self._run.resume()
        else:
            self._run.pause()

    # -- picture ------------------------------------------------------------------------------
    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the lines and the table: rich calls this."""
        from rich.text import Text

        snapshot: Snapshot = {
            **self._controller.snapshot(lately=not self._over),
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
        paused = snapshot["state"] == "paused" and self._reads and self._turns
        found = "Paused. Press p to continue." if paused else diagnosis_line(diagnosis)
        yield Text(printable(found), style=style)
        for line in self._lines(width):
            yield Text(printable(line), style="dim")

    def _lines(self, width: int) -> Iterator[str]:
        tuner = self._run.tuner
        if tuner is not None and not self._over:
            yield f"autotune: {tuner.state}"
        if self._note:
            yield shortened(self._note)
        if self._reads and not self._over:
            keys = _KEYS if width >= len(_KEYS) else _NARROW_KEYS
            yield keys if self._turns else "q quit"

    def _table(self, snapshot: Snapshot, width: int, height: int) -> Any:
        from rich.text import Text

        rows = [_row_of(stage, snapshot, width) for stage in snapshot["stages"]]
        chooses = self._reads and self._turns and not self._over
        place = min(self._chosen, len(rows) - 1) if chooses else -1
        room = len(rows) if self._over else max(_LEAST_ROWS, height - _OTHER_LINES)
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
