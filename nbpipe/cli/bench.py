"""`nbpipe bench`: how fast the pipeline of an exported module is alone, with several knobs."""

from __future__ import annotations

import contextlib
import itertools
import json
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from ..base.format import format_rate, format_share, shortened, text_table
from ..errors import NbpipeError
from ..pipeline import Pipeline
from ..run.run import Run
from ..show.terminal import printable
from .run import failed, pipeline_in, telling_hangs
from .terminal import (
    DONE,
    BadUsageError,
    FailedError,
    emit,
    is_live,
    log,
    settings,
)

Knobs = Mapping[str, int]


class _Figure(NamedTuple):
    """What was measured with some knobs.

    Attributes:
        knobs: their values, by address.
        items: items, or batches, that came [items].
        seconds: time that they took [s].
        unit: "items" or "batches".
        limits: address of the stage that limits, or "".
        finding: the diagnosis, in one line.
    """

    knobs: Knobs
    items: int
    seconds: float
    unit: str
    limits: str
    finding: str

    @property
    def per_s(self) -> float:
        """The rate [items/s]."""
        return self.items / self.seconds if self.seconds > 0 else 0.0

    def for_machines(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "knobs": dict(self.knobs),
            "items_per_s": round(self.per_s, 4),
            "items": self.items,
            "seconds": round(self.seconds, 4),
            "unit": self.unit,
            "limits": self.limits,
            "finding": self.finding,
        }


def bench(options: Namespace) -> int:
    """Do what the command line asks for."""
    pipe = pipeline_in(options.module, settings(options.set))
    trials = _trials(pipe, options.vary)
    figures = []
    try:
        for figure in _measured(pipe, trials, options):
            figures.append(figure)
            if len(trials) > 1 and not options.json:
                log(f"{_words(figure.knobs)}: {format_rate(figure.per_s, figure.unit)}")
    except NbpipeError:
        raise
    except Exception as error:
        raise failed(error) from error
    if figures:
        emit(_as_json(figures) if options.json else _as_text(figures))
    return DONE


def _trials(pipe: Pipeline, given: Iterable[str]) -> list[Knobs]:
    """Return the values to measure with: all combinations of those given for each knob.

    Raises:
        BadUsageError: a value that a knob does not take, or no such knob.
    """
    named = dict(map(_varied, given))
    trials: list[Knobs] = [
        dict(zip(named, values, strict=True)) for values in itertools.product(*named.values())
    ]
    before = {place: knob.value for place in named for knob in [_knob_of(pipe, place)]}
    try:
        for knobs in [*trials, before]:
            _set(pipe, knobs)
    except NbpipeError as error:
        raise BadUsageError(str(error)) from error
    return trials


def _varied(text: str) -> tuple[str, list[int]]:
    name, _, values = text.partition("=")
    address, _, knob = name.strip().rpartition(".")
    numbers = [value.strip() for value in values.split(",")]
    if not (address and knob) or not all(value.isdecimal() for value in numbers):
        raise BadUsageError(
            f"--vary must be stage.knob=numbers, for example decode.concurrency=2,4,8, got {text!r}"
        )
    return name.strip(), [int(value) for value in numbers]


def _knob_of(pipe: Pipeline, place: str) -> Any:
    address, _, name = place.rpartition(".")
    try:
        return pipe[address].knob(name)
    except NbpipeError as error:
        raise BadUsageError(str(error)) from error


def _set(pipe: Pipeline, knobs: Knobs) -> None:
    for place, value in knobs.items():
        _knob_of(pipe, place).set(value, by="bench")


def _words(knobs: Knobs) -> str:
    return printable(", ".join(f"{place}={value}" for place, value in knobs.items()))


def _measured(pipe: Pipeline, trials: Sequence[Knobs], options: Namespace) -> Iterator[_Figure]:
    live = is_live() and not options.json
    for number, knobs in enumerate(trials, 1):
        _set(pipe, knobs)
        of_all = f"{number} of {len(trials)}: " if len(trials) > 1 else ""
        with pipe.start() as run, _shown(run, f"{of_all}{_words(knobs)}", live=live) as quits:
            figure = _measure(run, knobs, options.seconds, quits)
        if figure is not None:
            yield figure
        if quits():
            return


@contextlib.contextmanager
def _shown(run: Run, title: str, *, live: bool) -> Iterator[Callable[[], bool]]:
    """Show a run; yield a function that returns whether `q` was pressed."""
    if not live:
        with telling_hangs(run):
            yield bool
        return
    from .screen import Screen

    screen = Screen(run, title=title, turns=False)
    with screen.shown(stays=False):
        yield lambda: screen.quitting


def _measure(run: Run, knobs: Knobs, limit_s: float, quits: Callable[[], bool]) -> _Figure | None:
    """Take items for some seconds, from the first item on; None if `q` was pressed before that.

    Raises:
        FailedError: an epoch gave nothing.
    """
    begun_s = now_s = 0.0
    items = -1  # the time begins with the first one
    while not quits():
        before, epoch = items, iter(run)
        for _ in epoch:
            items, now_s = items + 1, perf_counter()
            begun_s = begun_s or now_s
            if quits() or (items > 0 and now_s - begun_s >= limit_s):
                return _figure(run, knobs, items, now_s - begun_s)
        if items == before and not quits():
            raise FailedError("the pipeline gave no items, so there is nothing to measure")
    return _figure(run, knobs, items, now_s - begun_s) if items > 0 else None


def _figure(run: Run, knobs: Knobs, items: int, seconds: float) -> _Figure:
    found = run.diagnose()
    stage, finding = printable(found.stage or ""), shortened(printable(str(found)), 400)
    return _Figure(knobs, items, seconds, run.status().unit, stage, finding)


def _as_json(figures: Sequence[_Figure]) -> str:
    best = max(figures, key=lambda one: one.per_s)
    shown = {"results": [one.for_machines() for one in figures], "fastest": dict(best.knobs)}
    return json.dumps(shown, allow_nan=False)


def _as_text(figures: Sequence[_Figure]) -> str:
    best = max(figures, key=lambda one: one.per_s)
    places = list(best.knobs)
    head = [*map(printable, places), "rate", "of the fastest", "limits"]
    rows = [
        [
            *(str(one.knobs[place]) for place in places),
            format_rate(one.per_s, one.unit),
            format_share(one.per_s / best.per_s) if best.per_s else "",
            one.limits,
        ]
        for one in figures
    ]
    if len(figures) == 1:
        return f"{format_rate(best.per_s, best.unit)} over {best.seconds:.1f} s\n{best.finding}"
    chosen = " ".join(f"--set {printable(place)}={best.knobs[place]}" for place in places)
    return f"{text_table(head, rows)}\nfastest: {chosen}"
