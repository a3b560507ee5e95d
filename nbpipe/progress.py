"""progress(): iterate over a pipeline or a run, and show how it goes: a line, a bar, or lines."""

from __future__ import annotations

import html
import math
import shutil
import sys
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO, final

from .base.checks import integer
from .base.format import format_rate, format_seconds, format_share, shortened, unit_of
from .base.names import names_arguments, own_kind
from .engine.measures.stats import worker_count
from .errors import ArgumentTypeError, MissingExtraError
from .ops.stage import CONSUMER
from .pipeline import Pipeline
from .run.run import Run, single_epoch
from .run.shown import ShownRun
from .show.verdict.empty import nothing_came
from .show.verdict.hang import hang_of
from .show.watch import RunView

if TYPE_CHECKING:
    from .show.terminal import RunTable

_EVERY_S = 2.0  # a line of a log at most as often as this; what a rate is taken over [s]
_REWRITTEN_S = 0.2  # so often is the line of a terminal written again [s]
_DRAWN_S = 0.5  # and a notebook's bar
_KEPT_LINES = 5  # of epochs that have ended, above the bar


@names_arguments
def progress(
    pipe_or_run: Pipeline | ShownRun | Iterable[Any], *, epochs: int = 1, table: bool = False
) -> Progress:
    """Iterate, and show count, rate, time left, wait and the slowest stage.

    A notebook shows a bar, a terminal one line that changes, a log a line every 2 s. A line
    stays at the end of each epoch. All but the bar goes to stderr.

    Args:
        pipe_or_run: a pipeline, which starts with the first item and closes at the end, also
            after `break`, an error or an interrupt; or a run or a `DataLoader`, which stays open.
            The run's `stop()` ends the loop, not only its epoch.
        epochs: epochs to iterate [epochs].
        table: a terminal shows a table with a row for each stage in place of the line. It stays
            below what your loop prints.

    Returns:
        An iterator of the items.

    Raises:
        ArgumentError: `epochs` is not an int of at least 1.
        ArgumentTypeError: not a pipeline, a run or a `DataLoader`.
        MissingExtraError: `table` needs rich, which is not installed.

    Examples:
        >>> import nbpipe
        >>> sum(nbpipe.progress(nbpipe.source(range(5)), epochs=2))
        20
    """
    return Progress(pipe_or_run, epochs=epochs, table=table)


@final
class Progress(Iterator[Any]):
    """The items of some epochs; closing or dropping it ends what it started.

    Args:
        pipe_or_run: as for `progress`.
        epochs: as for `progress`.
        table: as for `progress`.
        clock: gives the time [s]; where not given, that of the run, without pauses.
        out: where lines are written; where not given, the notebook's outputs, or stderr.

    Examples:
        >>> import nbpipe
        >>> items = nbpipe.progress(nbpipe.source(range(3)), epochs=2)
        >>> len(items), list(items)
        (6, [0, 1, 2, 0, 1, 2])
    """

    def __init__(
        self,
        pipe_or_run: Pipeline | ShownRun | Iterable[Any],
        *,
        epochs: int = 1,
        table: bool = False,
        clock: Callable[[], float] | None = None,
        out: TextIO | None = None,
    ) -> None:
        is_loader = own_kind(type(pipe_or_run)) == "loader"
        if not is_loader and not isinstance(pipe_or_run, Pipeline | ShownRun):
            raise ArgumentTypeError(
                "progress must be given a pipeline, a run or a nbpipe.DataLoader, got a "
                f"{type(pipe_or_run).__name__}; for other items write "
                "nbpipe.progress(nbpipe.source(items))"
            )
        self._epochs = self._left = integer("progress epochs", epochs, minimum=1, unit="epochs")
        self._given: Any = pipe_or_run
        self._is_loader = is_loader
        self._clock = clock
        self._shown = display_for(out, table=table)
        self._run: Any = None  # once there is one: that of a pipeline, or of a loader
        self._epoch: Any = None
        self._tally = _Tally(0.0, 0, "items")
        self._next_s = 0.0
        self._done = False

    def __next__(self) -> Any:
        """Return the next item, from one epoch after the other."""
        while not self._done:
            epoch = self._epoch or self._start_epoch()
            begun_s = self._now_s()
            try:
                item = next(epoch)
            except StopIteration:
                self._end_epoch()
                continue
            except BaseException:
                self.close()
                raise
            now_s = self._now_s()
            self._tally.add(now_s - begun_s)
            if now_s >= self._next_s:
                self._report(now_s)
            return item
        raise StopIteration

    def _now_s(self) -> float:
        if self._clock is not None:
            return self._clock()
        return float(self._run._core.active_s)

    def _start_epoch(self) -> Iterator[Any]:
        given = self._given
        if self._run is None:
            started = given.start() if isinstance(given, Pipeline) else given
            self._run = given.run if self._is_loader else started
        self._left -= 1
        last = self._is_owned and not self._left
        items = given if self._is_loader else self._run
        try:
            self._epoch = single_epoch(self._run) if last else iter(items)
        except BaseException:
            self.close()
            raise
        self._shown.begin(self._run, self._epochs)
        now_s, status = self._now_s(), self._run.status()
        self._tally = _Tally(now_s, status.resumed, status.unit)
        self._next_s = now_s + self._shown.every_s
        return self._epoch  # type: ignore[no-any-return]

    @property
    def _is_owned(self) -> bool:
        """Whether the run was started here."""
        return isinstance(self._given, Pipeline)

    def _end_epoch(self) -> None:
        self._epoch = None
        line, skipped = self._tally.last_line(self._now_s()), self._run.status().skipped
        line += f", {skipped:,} {unit_of(skipped, 'items')} skipped" if skipped else ""
        nothing = self._nothing()
        self._shown.end(f"{self._named(line)}{nothing}", empty=bool(nothing))
        if not self._left or self._run.stopped:
            self.close()

    def _nothing(self) -> str:
        """Say why the epoch gave nothing; empty where it gave something."""
        run = self._run
        found = run and nothing_came(run.stages, run.status(), run.stats())
        return f". {found}" if found else ""

    def _report(self, now_s: float) -> None:
        self._next_s = now_s + self._shown.every_s
        hang = hang_of(self._run.stages, self._run.stats())
        length = self._length()
        line = self._tally.line(now_s, length, hangs=hang is not None)
        share = self._tally.done / length if length else None
        self._shown.show(self._named(f"{line}; {hang}" if hang else line), share)

    def _length(self) -> int | None:
        try:
            return len(self._given)
        except Exception:  # noqa: BLE001  of a loader, what the user's sampler raises
            return None

    def _named(self, line: str) -> str:
        """Name the epoch and its slowest stage, too."""
        return f"epoch {self._run.epoch}: {line}{_stages(self._run)}"

    def close(self) -> None:
        """End the epoch in progress, and the run if `progress` started it.

        Examples:
            >>> import nbpipe
            >>> items = nbpipe.progress(nbpipe.source(range(5)))
            >>> first = next(items)
            >>> items.close()
        """
        if self._done:
            return
        self._done = True
        epoch, run, self._epoch = self._epoch, self._run, None
        if epoch is not None:
            getattr(epoch, "close", bool)()  # of a loader's subclass it may be any iterator
            self._shown.leave()
        self._shown.close()
        if run is not None and self._is_owned:
            run.close()

    def __iter__(self) -> Progress:
        return self

    def __len__(self) -> int:
        """Return the number of items of all epochs.

        Raises:
            LengthUnknownError: it is not known before they are made.
        """
        return self._epochs * len(self._given)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Progress({self._epochs - self._left} of {self._epochs} epochs begun)"

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # the run was closed; modules may be empty by now, arguments are not
            return
        if not getattr(self, "_done", True) and isinstance(self._run, Run):
            self._run._core.close_dropped(self.close)


class _Tally:
    """Counts one epoch.

    Args:
        begun_s: when it began [s].
        resumed: items of it that came before the state that it continues from [items].
        unit: "items" or "batches".
    """

    def __init__(self, begun_s: float, resumed: int, unit: str) -> None:
        self._items = 0
        self._unit = unit
        self._resumed = resumed
        self._begun_s = begun_s
        self._waited_s = 0.0
        self._marks = deque([(begun_s, 0, 0.0)])  # time, items and wait as lines were written

    @property
    def done(self) -> int:
        """Items of the epoch that have come, those before the state included [items]."""
        return self._resumed + self._items

    def add(self, waited_s: float) -> None:
        """Count an item, and how long it was waited for."""
        self._items += 1
        self._waited_s += waited_s

    def line(self, now_s: float, length: int | None, *, hangs: bool = False) -> str:
        """Return the progress of the epoch; rate and wait are those since the last line, or of 2 s.

        Where a call hangs, the time left is unknown.
        """
        done, items, marks = self.done, self._items, self._marks
        while len(marks) > 1 and now_s - marks[1][0] >= _EVERY_S:
            marks.popleft()
        since_s, items_then, waited_then_s = marks[0]
        marks.append((now_s, items, self._waited_s))
        elapsed_s = now_s - since_s
        rate = (items - items_then) / elapsed_s if elapsed_s > 0 else 0.0
        words = [f"{done:,} {unit_of(done, self._unit)}"]
        if length:
            unit = unit_of(length, self._unit)
            words = [f"{done:,}/{length:,} {unit} ({format_share(done / length)})"]
        words.append(format_rate(rate, self._unit))
        if length and rate > 0 and not hangs:
            words.append(f"{format_seconds(max(0, length - done) / rate)} left")
        return ", ".join([*words, _waits(self._waited_s - waited_then_s, elapsed_s)])

    def last_line(self, now_s: float) -> str:
        """Return how the epoch went, as a whole."""
        elapsed_s = now_s - self._begun_s
        unit = unit_of(self._items, self._unit)
        words = [f"{self._items:,} {unit} in {format_seconds(elapsed_s)}"]
        if self._items and elapsed_s > 0:
            words.append(format_rate(self._items / elapsed_s, self._unit))
        return ", ".join([*words, _waits(self._waited_s, elapsed_s)])


def _waits(waited_s: float, elapsed_s: float) -> str:
    share = min(1.0, waited_s / elapsed_s) if elapsed_s > 0 else 0.0
    return f"waited for data {format_share(share)} of the time"


def _stages(run: RunView) -> str:
    """Name the stage that was busiest in the last seconds, and those whose workers only start."""
    rows = {name: row for name, row in run.stats().items() if name != CONSUMER}
    phrases = [
        f"{name} is {worker_count(row.workers, row.starting, 0)}"
        for name, row in rows.items()
        if row.starting and row.starting >= row.workers
    ]
    name = max(rows, key=lambda row: rows[row].busy, default="")
    if name and rows[name].busy > 0:
        phrases.insert(0, f"slowest: {name} (busy {format_share(rows[name].busy)})")
    return "".join(f"; {phrase}" for phrase in phrases)


# -- Where it is shown: a log, a terminal, a notebook ----------------------------------------------
def display_for(out: TextIO | None, *, table: bool = False) -> _Log | _Bar:
    """Choose what shows the progress.

    Raises:
        MissingExtraError: the table needs rich, which is not installed.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if out is None and getattr(shell, "kernel", None) is not None:
        return _Bar()
    written = sys.stderr if out is None else out
    if written is None or not written.isatty():
        return _Log(written)
    return _StageTable(written) if table else _Terminal(written)


class _Log:
    """Writes a line now and then.

    Args:
        out: where lines are written; None in a program without a console.
    """

    every_s = _EVERY_S

    def __init__(self, out: TextIO | None) -> None:
        self._out = out

    def begin(self, run: RunView, epochs: int) -> None:
        """Called when an epoch begins, with the run and the number of all epochs."""

    def show(self, line: str, share: float | None) -> None:
        """Show how the epoch goes."""
        self._write(f"{line}\n")

    def end(self, line: str, *, empty: bool) -> None:
        """Show how the epoch went."""
        self._write(f"{line}\n")

    def leave(self) -> None:
        """Called where the epoch was left before its end."""

    def close(self) -> None:
        """Called when no further epoch comes."""

    def _write(self, text: str) -> None:
        if self._out is not None:
            self._out.write(text)
            self._out.flush()


@final
class _Terminal(_Log):
    """Writes one line again, in the width of the terminal; the last one of an epoch stays."""

    every_s = _REWRITTEN_S

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._length = 0  # characters that are to be covered

    def show(self, line: str, share: float | None) -> None:
        """Write the line over the one before."""
        shown = shortened(line, shutil.get_terminal_size().columns - 1)
        self._write(f"\r{shown.ljust(self._length)}")
        self._length = len(shown)

    def end(self, line: str, *, empty: bool) -> None:
        """Write how the epoch went, whole."""
        self._write(f"\r{line.ljust(self._length)}\n")
        self._length = 0

    def leave(self) -> None:
        """Leave the line, and continue below it."""
        self._write("\n" if self._length else "")
        self._length = 0


@final
class _StageTable(_Log):
    """Draws a table of the stages below the output of the loop; lines of epochs stay above it."""

    every_s = math.inf  # rich draws it by a thread of its own

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        try:
            from rich.console import Console
        except ImportError as error:
            raise MissingExtraError.of("rich", "cli", "progress with table=True") from error
        self._console = Console(file=out)
        self._table: RunTable | None = None
        self._stop: Callable[[], object] = bool

    def begin(self, run: RunView, epochs: int) -> None:
        """Begin to draw, or count the epoch."""
        from .show.controller import RunController
        from .show.terminal import RunTable

        if self._table is None:
            self._table = RunTable(RunController(run, by="terminal"), epochs)
            live = self._table.live(self._console)
            self._stop = weakref.finalize(self, live.stop)  # at exit, too: the cursor is hidden
            live.start()
        self._table.begun += 1

    def end(self, line: str, *, empty: bool) -> None:
        """Write how the epoch went, above the table."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the last picture, and continue below it."""
        if self._table is not None:
            self._table.over = True
        self._stop()


@final
class _Bar:
    """Draws a bar in the outputs of the running cell, and the last lines of epochs above it."""

    every_s = _DRAWN_S

    def __init__(self) -> None:
        self._place = uuid.uuid4().hex
        self._there = False
        self._ended: deque[str] = deque(maxlen=_KEPT_LINES)
        self._last: tuple[str, float | None] | None = None

    def begin(self, run: RunView, epochs: int) -> None:
        """Called when an epoch begins."""

    def close(self) -> None:
        """Called when no further epoch comes."""

    def show(self, line: str, share: float | None) -> None:
        """Draw how the epoch goes."""
        self._last = line, share
        self._draw(_bar(share, "var(--jp-brand-color1,#1976d2)"), line)

    def end(self, line: str, *, empty: bool) -> None:
        """Keep how the epoch went."""
        self._last = None
        self._ended.append(line)
        colour = "var(--jp-warn-color1,#f57c00)" if empty else "var(--jp-success-color1,#388e3c)"
        self._draw(_bar(1.0, colour))

    def leave(self) -> None:
        """Tell that the bar goes no further."""
        if self._last is not None:
            line, share = self._last
            self._draw(_bar(share, "var(--jp-border-color1,#9e9e9e)"), f"{line}; left here")

    def _draw(self, bar: str, line: str | None = None) -> None:
        from IPython.display import display

        lines = [*self._ended, *([] if line is None else [line])]
        rows = "".join(f"<div>{html.escape(one)}</div>" for one in lines)
        style = "max-width:80em;font-variant-numeric:tabular-nums;overflow-wrap:anywhere"
        data = {
            "text/plain": "\n".join(lines),
            "text/html": f'<div class="nbpipe-progress" style="{style}">{rows}{bar}</div>',
        }
        display(data, raw=True, display_id=self._place, update=self._there)
        self._there = True


def _bar(share: float | None, colour: str) -> str:
    """Draw the share of an epoch that is done; nothing where that is not known."""
    if share is None:
        return ""
    percent = round(100 * min(1.0, share), 1)
    return (
        f'<div role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{percent}"'
        ' style="height:8px;margin:4px 0;border-radius:4px;overflow:hidden;'
        'background:var(--jp-border-color2,#8884)">'
        f'<div style="height:100%;width:{percent}%;background:{colour}"></div></div>'
    )
