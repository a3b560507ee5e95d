"""progress(): iterate over a pipeline or a run, and say in plain lines how it goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO, final

from .base.checks import whole
from .base.format import format_rate, format_seconds, format_share
from .base.names import names_arguments
from .engine.stats import worker_count
from .errors import ArgumentTypeError, LengthUnknownError
from .ops.stage import CONSUMER
from .pipeline import Pipeline
from .run.iterator import EpochIterator
from .run.run import Run
from .show.diagnose import hang_of

_EVERY_S = 2.0  # a line at most as often as this [s]


@names_arguments
def progress(pipe_or_run: Pipeline | Run, *, epochs: int = 1) -> Progress:
    """Iterate, with a line on stderr every 2 s and one at the end of each epoch.

    Args:
        pipe_or_run: a pipeline, which is started at the first item and closed at the end, also
            after `break`, an error or an interrupt; or a run, which stays open. `stop()` of
            the run ends the loop, not only its epoch.
        epochs: epochs to iterate one after the other [epochs].

    Raises:
        ArgumentError: `epochs` is not an int of at least 1.
        ArgumentTypeError: neither a pipeline nor a run.

    Examples:
        >>> import nbpipe
        >>> sum(nbpipe.progress(nbpipe.source(range(5)), epochs=2))
        20
    """
    return Progress(pipe_or_run, epochs=epochs)


@final
class Progress(Iterator[Any]):
    """The items of some epochs; closing or dropping it ends what it started.

    Args:
        pipe_or_run: as for `progress`.
        epochs: as for `progress`.
        clock: gives the time [s].
        out: where lines are written; stderr as it is then, where not given.
    """

    def __init__(
        self,
        pipe_or_run: Pipeline | Run,
        *,
        epochs: int = 1,
        clock: Callable[[], float] = time.monotonic,
        out: TextIO | None = None,
    ) -> None:
        if not isinstance(pipe_or_run, Pipeline | Run):
            raise ArgumentTypeError(
                f"progress must be given a pipeline or a run, got {type(pipe_or_run).__name__}; "
                "for other items write nbpipe.progress(nbpipe.source(items))"
            )
        self._epochs = self._left = whole("progress epochs", epochs, minimum=1, unit="epochs")
        self._given = pipe_or_run
        self._clock = clock
        self._out = out
        self._run: Run | None = None
        self._epoch: EpochIterator | None = None
        self._tally = _Tally(0.0)
        self._next_s = 0.0
        self._done = False

    def __next__(self) -> Any:
        """Return the next item, from one epoch after the other."""
        while not self._done:
            epoch = self._epoch or self._start_epoch()
            begun_s = self._clock()
            try:
                item = next(epoch)
            except StopIteration:
                self._end_epoch()
                continue
            except BaseException:
                self.close()
                raise
            now_s = self._clock()
            self._tally.add(now_s - begun_s)
            if now_s >= self._next_s:
                self._report(now_s)
            return item
        raise StopIteration

    def _start_epoch(self) -> EpochIterator:
        if self._run is None:
            given = self._given
            self._run = given if isinstance(given, Run) else given.start()
        self._left -= 1
        owned = self._run is not self._given
        last = owned and not self._left
        try:
            self._epoch = self._run.single_epoch() if last else iter(self._run)
        except BaseException:
            self.close()
            raise
        now_s = self._clock()
        self._tally, self._next_s = _Tally(now_s), now_s + _EVERY_S
        return self._epoch

    def _end_epoch(self) -> None:
        self._epoch = None
        self._write(self._tally.last_line(self._clock()))
        if not self._left or (self._run is not None and self._run.stopped):
            self.close()

    def _report(self, now_s: float) -> None:
        self._next_s = now_s + _EVERY_S
        assert self._run is not None
        hang = hang_of(self._run.stages, self._run.stats())
        line = self._tally.line(now_s, self._length(), hangs=hang is not None)
        self._write(f"{line}; {hang}" if hang else line)

    def _length(self) -> int | None:
        try:
            return len(self._given)
        except LengthUnknownError:
            return None

    def _write(self, line: str) -> None:
        assert self._run is not None
        out = self._out or sys.stderr
        if out is not None:  # there is none in a program without a console
            out.write(f"epoch {self._run.epoch}: {line}{_stages(self._run)}\n")
            out.flush()

    def close(self) -> None:
        """End the epoch in progress, and the run if it was started here."""
        if self._done:
            return
        self._done = True
        epoch, run, self._epoch = self._epoch, self._run, None
        if epoch is not None:
            epoch.close()
        if run is not None and run is not self._given:
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
        if not getattr(self, "_done", True) and self._run is not None:
            self._run.close_dropped(self.close)


class _Tally:
    """Counts one epoch.

    Args:
        begun_s: when it began [s].
    """

    def __init__(self, begun_s: float) -> None:
        self._begun_s = self._line_s = begun_s
        self._items = self._line_items = 0
        self._waited_s = self._line_waited_s = 0.0

    def add(self, waited_s: float) -> None:
        """Count an item, and how long it was waited for."""
        self._items += 1
        self._waited_s += waited_s

    def line(self, now_s: float, length: int | None, *, hangs: bool = False) -> str:
        """Tell how the epoch goes; rate and wait are those since the last line.

        Where a call hangs, nobody knows how much time is left.
        """
        items = self._items
        elapsed_s = now_s - self._line_s
        rate = (items - self._line_items) / elapsed_s if elapsed_s > 0 else 0.0
        waited_s = self._waited_s - self._line_waited_s
        self._line_s, self._line_items, self._line_waited_s = now_s, items, self._waited_s
        words = [f"{items:,} items"]
        if length:
            words = [f"{items:,}/{length:,} items ({format_share(items / length)})"]
        words.append(format_rate(rate))
        if length and rate > 0 and not hangs:
            words.append(f"{format_seconds(max(0, length - items) / rate)} left")
        return ", ".join([*words, _waits(waited_s, elapsed_s)])

    def last_line(self, now_s: float) -> str:
        """Tell how the epoch went, as a whole."""
        elapsed_s = now_s - self._begun_s
        words = [f"{self._items:,} items in {format_seconds(elapsed_s)}"]
        if self._items and elapsed_s > 0:
            words.append(format_rate(self._items / elapsed_s))
        return ", ".join([*words, _waits(self._waited_s, elapsed_s)])


def _waits(waited_s: float, elapsed_s: float) -> str:
    share = min(1.0, waited_s / elapsed_s) if elapsed_s > 0 else 0.0
    return f"waited for data {format_share(share)} of the time"


def _stages(run: Run) -> str:
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
