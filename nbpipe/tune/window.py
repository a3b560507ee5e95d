"""Windows: observations of one setting become a point."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, final

from ..engine.measures.counters import CHEAP_NS
from ..engine.measures.stats import StageStats
from ..ops.stage import CONSUMER
from .point import SAME, Measure, Observation, Point, Slots

_PAUSE_S, _PAUSE_STEPS = 0.3, 8.0  # a step that is longer than both is a pause of the loop
_FEW_STEPS = 8  # with fewer, a pause is not told from a step
_PARTS = 6  # of a window, for the error of its rate
_SPREAD = 12.0  # of the variance of their growth: that of all batches of a window, for a slope
_ERROR = 0.015  # of the rate, where the loop pauses regularly
_SOME = 0.5  # of a batch, where there is none
_LEAST_STEP_S = 1e-6  # a step takes so long, though it does nothing
_CUT_S, _CUT = 0.5, 0.85  # after so long, a rate of so much of the floor ends a window,
_CUT_CALLS = 2  # and so many times the length of a call: results may come in bursts,
_SURELY_S = 2.5  # or after so long, where late results hold back others
_LONGEST_S, _LEAST_BATCHES = 15.0, 5  # a window is longer until it has so many batches
_REGULAR = 0.1  # pauses come after so equally many batches


class _LoopMark(NamedTuple):
    """A moment at which the loop had taken another batch."""

    time_s: float
    batches: int
    waited_s: float
    stats: Mapping[str, StageStats]


@final
class Pauses:
    """Finds how many batches lie between the pauses of a loop that pauses regularly.

    Attributes:
        cycle: so many batches; 0 where it does not pause, or not regularly.
        count: pauses so far.
        pause_s: how long the last one took [s].
    """

    def __init__(self) -> None:
        self.cycle = 0
        self.count = 0
        self.pause_s = 0.0
        self._last: tuple[float, int, float] | None = None
        self._steps: deque[float] = deque(maxlen=64)
        self._at: deque[int] = deque(maxlen=3)  # batches taken before each pause

    def begin(self) -> None:
        """Note that the observations were interrupted."""
        self._last = None

    def add(self, one: Observation) -> bool:
        """Take an observation; return whether it shows that the loop pauses regularly."""
        loop = one.stats[CONSUMER]
        now, last = (one.time_s, loop.items_out, loop.starved_s), self._last
        if last is not None and now[1] == last[1]:
            return False
        self._last = now
        if last is None:
            return False
        step_s = (now[0] - last[0]) - (now[2] - last[2])
        if len(self._steps) >= _FEW_STEPS and step_s > max(
            _PAUSE_S, _PAUSE_STEPS * statistics.median(self._steps)
        ):
            self._at.append(last[1])
            self.count, self.pause_s = self.count + 1, step_s
            gaps = [new - old for old, new in pairwise(self._at)]
            if gaps and max(gaps) - min(gaps) <= max(4, _REGULAR * max(gaps)):
                known, self.cycle = self.cycle, gaps[-1]
                return abs(self.cycle - known) > max(4, _REGULAR * known)
        else:
            self._steps.append(step_s)
        return False


@final
class Measurement:
    """Observations of one setting.

    Args:
        measure: how to measure.
        groups: the stages that share slots.
        pauses: those of the loop. Where they are regular, a window has as many batches as lie
            between two of them, and so it has one pause.
    """

    def __init__(self, measure: Measure, groups: Sequence[Slots], pauses: Pauses) -> None:
        self._measure = measure
        self._groups = groups
        self._cycle, self._pause_s = pauses.cycle, pauses.pause_s
        self._marks: list[_LoopMark] = []  # where batches came
        self._looks: list[_LoopMark] = []  # all
        self._taken: int | None = None  # when the first observation came, in a pause perhaps
        self._worse = False

    def add(self, one: Observation) -> bool:
        """Add an observation; return whether the window is complete."""
        loop = one.stats[CONSUMER]
        if self._taken is None:
            self._taken = loop.items_out
        if self._cycle and self._taken == loop.items_out:
            return False  # whole cycles begin with a batch
        mark = _LoopMark(one.time_s, loop.items_out, loop.starved_s, one.stats)
        self._taken = -1
        if not self._marks or mark.batches != self._marks[-1].batches:
            self._marks.append(mark)
        self._looks.append(mark)
        return self._is_complete()

    def _is_complete(self) -> bool:
        measure, first = self._measure, self._marks[0]
        lasted_s = self._looks[-1].time_s - first.time_s
        made = self._marks[-1].batches - first.batches
        self._worse = self._is_worse(lasted_s)
        if self._worse:
            return True
        if lasted_s < measure.least_s or self._marks[-1] is not self._looks[-1]:
            return False  # it ends with a batch: the loop may be in a long pause
        if self._cycle:
            self._cut_to_cycles(made)
            return made >= self._cycle or lasted_s >= _LONGEST_S
        most_s = _LONGEST_S if made < _LEAST_BATCHES else measure.most_s
        if lasted_s >= most_s or made < measure.batches:
            return lasted_s >= most_s
        rate, error, _ = self._rate
        return error <= measure.within * rate

    def _cut_to_cycles(self, made: int) -> None:
        """Leave out the marks after the last whole cycle."""
        whole = self._marks[0].batches + made // self._cycle * self._cycle
        if made >= self._cycle:
            end = next(n for n, mark in enumerate(self._marks) if mark.batches >= whole)
            del self._marks[end + 1 :]

    @property
    def _working(self) -> list[_LoopMark]:
        """The observations without the pauses of the loop, as if it had made none."""
        steps = steps_of(self._marks)
        if len(steps) < _FEW_STEPS:
            return self._looks
        median_s = statistics.median(steps)
        longest_s = max(_PAUSE_S, _PAUSE_STEPS * median_s)
        looks = self._looks
        if max(steps) > longest_s:
            for step_s, (old, new) in zip(
                reversed(steps), reversed(list(pairwise(self._marks))), strict=True
            ):
                if step_s > longest_s:
                    before = [one for one in looks if one.time_s <= old.time_s]
                    after = [
                        one._replace(time_s=one.time_s - step_s + median_s)
                        for one in looks
                        if one.time_s >= new.time_s
                    ]
                    looks = before + after
        return looks

    def _is_worse(self, lasted_s: float) -> bool:
        """Return whether the rate is surely below the floor; a pause of the loop does not count.

        Where a late result holds back others, the next ones come soon.
        """
        first, now, floor = self._looks[0], self._looks[-1], self._measure.floor
        rows = [row for name, row in now.stats.items() if name != CONSUMER]
        call_s = max((row.latency_p95_s for row in rows), default=0.0)
        if not floor or lasted_s < max(_CUT_S, _CUT_CALLS * call_s):
            return False
        made, waited_s = now.batches - first.batches + 1, now.waited_s - first.waited_s
        own_s = min(lasted_s - waited_s, made * self._measure.step_s)
        if made / max(1e-9, waited_s + own_s) >= _CUT * floor:
            return False
        return lasted_s >= _SURELY_S or not self.point().held_back

    @property
    def _rate(self) -> tuple[float, float, float]:
        """The batches a second, the standard error of that, and the time without pauses [s]."""
        if not self._cycle:
            looks = self._working
            return *rate_of(looks), looks[-1].time_s - looks[0].time_s
        first, last = self._marks[0], self._marks[-1]
        made, span_s = last.batches - first.batches, last.time_s - first.time_s
        if made > self._cycle:  # a mark may have some batches more
            more = made % self._cycle
            made, span_s = made - more, span_s - more * step_of(self._marks)
        rate = max(made, _SOME) / max(1e-3, span_s)
        return rate, _ERROR * rate, span_s

    def point(self) -> Point:
        """Return what was measured."""
        first, last = self._looks[0], self._marks[-1] if self._cycle else self._looks[-1]
        rate, error, span_s = self._rate
        span_s = max(1e-3, span_s)
        wait = min(1.0, (last.waited_s - first.waited_s) / span_s)
        made = max(_SOME, last.batches - first.batches)
        return Point(
            last.time_s,
            made,
            rate,
            min(error, rate),
            wait,
            max(_LEAST_STEP_S, (1.0 - wait) * (1.0 / rate if self._cycle else span_s / made)),
            **self._of_stages(first.stats, last.stats, rate * span_s),
            calls={one.address: last.stats[one.address].concurrency for one in self._groups},
            short=frozenset(self._short_in(last.stats)),
            burst=self._pause_s * rate if self._cycle else 0.0,
            worse=self._worse,
            lasts=1.0 if self._cycle else self._lasts(),
        )

    def _held(self, stage: str) -> float:
        """Return the share of the time in which a stage had no room while the loop waited."""
        held_s = 0.0
        for old, new in pairwise(self._looks):
            before, after, passed_s = old.stats[stage], new.stats[stage], new.time_s - old.time_s
            blocked_s, slot_s = after.blocked_s - before.blocked_s, after.slot_s - before.slot_s
            blocked = blocked_s / slot_s if slot_s > 0 else 0.0
            held_s += min(passed_s * blocked, new.waited_s - old.waited_s)
        return held_s / max(1e-3, self._looks[-1].time_s - self._looks[0].time_s)

    def _lasts(self) -> float:
        """Return the share of the rate that lasts when no buffer becomes emptier.

        After a stage got more calls, the items that wait for it feed it for some seconds.
        """
        times_s, share, least = [one.time_s for one in self._looks], 1.0, 1.0
        for group in reversed(self._groups):
            rows = [one.stats[group.members[-1]] for one in self._looks]
            came = _slope(times_s, [row.items_out for row in rows])
            left = _slope(times_s, [row.items_out - row.queued for row in rows])
            share *= came / left if min(came, left) > 0 else 1.0
            least = min(least, share)
        return least if least < 1 - SAME else 1.0

    def _short_in(self, stats: Mapping[str, StageStats]) -> Iterator[str]:
        for group in self._groups:
            p50_s = stats[group.members[-1]].latency_p50_s
            if not group.away and 0 < p50_s < CHEAP_NS / 1e9:
                yield group.address

    def _of_stages(
        self, old: Mapping[str, StageStats], new: Mapping[str, StageStats], made: float
    ) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {
            name: {} for name in ("slots_s", "busy", "blocked", "starved", "held", "cores")
        }
        for group in self._groups:
            name, last = group.address, group.members[-1]
            used_s = max(0.0, group.used_s(new) - group.used_s(old))
            slot_s = max(1e-9, new[name].slot_s - old[name].slot_s, used_s)
            blocked_s = new[last].blocked_s - old[last].blocked_s
            found["slots_s"][name] = used_s / made
            found["busy"][name] = used_s / slot_s
            found["blocked"][name] = min(1.0, max(0.0, blocked_s / slot_s))
            starved_s = new[last].starved_s - old[last].starved_s
            found["starved"][name] = min(1.0, max(0.0, starved_s / slot_s))
            found["held"][name] = self._held(last)
            found["cores"][name] = new[name].cpu_share or 0.0
        return found


# -- Arithmetic ------------------------------------------------------------------------------------
def steps_of(marks: Sequence[_LoopMark]) -> list[float]:
    """Return the loop's own time from each mark to the next [s]."""
    return [
        (new.time_s - old.time_s) - (new.waited_s - old.waited_s) for old, new in pairwise(marks)
    ]


def step_of(marks: Sequence[_LoopMark]) -> float:
    """Return the median time of the loop's own step, without its pauses [s]."""
    counts = (new.batches - old.batches for old, new in pairwise(marks))
    return statistics.median(s / max(1, n) for s, n in zip(steps_of(marks), counts, strict=True))


def rate_of(looks: Sequence[_LoopMark]) -> tuple[float, float]:
    """Return the batches a second, and the standard error of that.

    The rate is the slope of the line through the counts, so that it does not depend on where
    between two batches, or between two bursts of them, a window begins and ends. The error comes
    from the mean counts of six parts, of which each has grown by `d`: where batches come at random,
    `d` has a variance of 1/9 of that of all batches of the window, and the slope one of 6/5 of it.
    """
    times_s, counts = [one.time_s for one in looks], [float(one.batches) for one in looks]
    whole_s, size = times_s[-1] - times_s[0], len(looks) // _PARTS
    if size == 0 or counts[-1] <= counts[0]:
        return max(_SOME, counts[-1] - counts[0]) / max(1e-3, whole_s), math.inf
    parts = [statistics.fmean(counts[n * size : (n + 1) * size]) for n in range(_PARTS)]
    variance = statistics.variance(new - old for old, new in pairwise(parts))
    return _slope(times_s, counts), math.sqrt(_SPREAD * variance) / whole_s


def _slope(times_s: Sequence[float], counts: Sequence[float]) -> float:
    return statistics.linear_regression(times_s, counts).slope if len(counts) > 1 else 0.0
