"""Rates: how fast a segment is alone, or the loop's step, in windows of whole waves of calls."""

from __future__ import annotations

import math
import statistics
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice, pairwise
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple, final

from ..base.checks import refuse_coroutine
from ..errors import ArgumentError
from ..run.run import Run
from .replay import Segment, fresh

ROUNDS = 3
WITHIN = 0.03  # a window ends when the error of its rate is such a share of it
NOISY = 0.15  # rounds that differ by so much are noisy
_LEAST_S = 0.1
_FEW_MARKS = 6
_PARTS = 6  # of a window, for the error of its rate
_LOOK_S = 0.02  # a wave is at least so long: to look at the clock takes time
_STARTS_S = 30.0  # workers that take longer to start are not waited for
_SETTLES_S, _SETTLES_EACH_S = 5.0, 0.02  # calls of the window before end within so long


class RateWindow(NamedTuple):
    """One window.

    Attributes:
        rate: results a second.
        slots_s: slot-time of the calls for each result [s]; 0 if there are none.
        cores: share of that time in which they computed; 0 if it is not known.
    """

    rate: float
    slots_s: float = 0.0
    cores: float = 0.0


@final
@dataclass
class Rate:
    """What was measured of one setting, in some rounds.

    Attributes:
        windows: one for each round.
    """

    windows: list[RateWindow] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        """The median rate of the rounds [results/s]."""
        return statistics.median(one.rate for one in self.windows)

    @property
    def spread(self) -> float:
        """How far the rounds lie from their middle: half their range, as a share of the median."""
        rates = [one.rate for one in self.windows]
        return (max(rates) - min(rates)) / 2 / self.per_s if len(rates) > 1 else 0.0

    @property
    def is_noisy(self) -> bool:
        """Whether the rounds differ by 15% or more."""
        return 2 * self.spread >= NOISY

    @property
    def slot_s(self) -> float:
        """Time in calls for each result [s]."""
        return statistics.median(one.slots_s for one in self.windows)

    @property
    def cpu_s(self) -> float:
        """Time on a core for each result [s]."""
        return statistics.median(one.slots_s * one.cores for one in self.windows)


def rate_of(take: Callable[[int], object], wave: int, most_s: float) -> float:
    """Return how many results a second `take(count)` takes.

    A window has whole waves of as many results as there are calls: they come at once where calls
    take equally long.

    Args:
        take: takes so many results.
        wave: calls in progress.
        most_s: how long a window lasts; one wave may take longer [s].
    """
    marks = [(perf_counter(), 0)]
    count, least_s = 0, min(_LEAST_S, most_s)
    while True:
        take(wave)
        count += wave
        marks.append((perf_counter(), count))
        lasted_s = marks[-1][0] - marks[0][0]
        if lasted_s >= most_s:
            return count / lasted_s
        if lasted_s >= least_s and len(marks) > _FEW_MARKS:
            rate = count / lasted_s
            if error_of(marks) <= WITHIN * rate:
                return rate
        if marks[-1][0] - marks[-2][0] < _LOOK_S:
            wave *= 2


def error_of(marks: Sequence[tuple[float, int]]) -> float:
    """Return the standard error of a rate, from parts of a window.

    Args:
        marks: times and counts, at least four [s].
    """
    cuts = marks[:: max(1, (len(marks) - 1) // _PARTS)]
    rates = [(new[1] - old[1]) / max(1e-9, new[0] - old[0]) for old, new in pairwise(cuts)]
    return statistics.stdev(rates) / math.sqrt(len(rates))


def synchronize() -> None:
    """Wait until the GPU has done what it was given, where torch uses one."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


@final
class WindowRunner:
    """Measures a run, whose epochs it begins again when they end.

    Args:
        run: the run.
        step: called with each item; None drops it.
    """

    def __init__(self, run: Run, step: Callable[[Any], object] | None = None) -> None:
        self.run = run
        self._step = step

    def window(self, segment: Segment | None, calls: int, most_s: float) -> RateWindow:
        """Measure once, after a wave of calls that does not count.

        Args:
            segment: whose run it is; None for a whole pipeline.
            calls: calls in progress.
            most_s: how long [s].
        """
        self._settle()
        if segment is not None and segment.knob is not None:
            segment.knob.set(calls)
        items = self._endless()
        take = partial(self._take, items)
        try:
            take(calls)
            until_s = perf_counter() + _STARTS_S
            while perf_counter() < until_s and self._is_starting():
                take(calls)
            before = self.run.stats()
            rate = rate_of(take, calls, most_s)
            after = self.run.stats()
        finally:
            items.close()
        if segment is None or segment.inputs is None:
            return RateWindow(rate)
        first, last = segment.chain[0].name, segment.chain[-1].name
        made = max(1, after[last].items_out - before[last].items_out)
        slots_s = (segment.used(after) - segment.used(before)) / made
        return RateWindow(rate, slots_s, after[first].cpu_share or 0.0)

    def _is_starting(self) -> bool:
        return any(row.starting for row in self.run.stats().values())

    def _settle(self) -> None:
        """Wait until the calls that an earlier window left in progress have ended."""
        pause, until_s = Event(), perf_counter() + _SETTLES_S
        while perf_counter() < until_s and any(row.running for row in self.run.stats().values()):
            pause.wait(_SETTLES_EACH_S)

    def _endless(self) -> Generator[Any]:
        """Yield the items of one epoch after the other."""
        while True:
            items, count = iter(self.run), 0
            try:
                for count, item in enumerate(items, 1):  # noqa: B007
                    yield item
            finally:
                items.close()
            if not count:
                raise ArgumentError("profile needs a pipeline that gives something in each epoch")

    def _take(self, items: Iterator[Any], count: int) -> None:
        step = self._step
        if step is None:
            deque(islice(items, count), maxlen=0)
        else:
            for item in islice(items, count):
                refuse_coroutine("profile step", step(item))
        synchronize()


def step_window(step: Callable[[Any], object], items: Sequence[Any], most_s: float) -> RateWindow:
    """Measure the loop's step on items that are there already."""
    replayed = map(fresh, cycle(items))

    def take(count: int) -> None:
        for item in islice(replayed, count):
            refuse_coroutine("profile step", step(item))
        synchronize()

    take(1)
    return RateWindow(rate_of(take, 1, most_s))
