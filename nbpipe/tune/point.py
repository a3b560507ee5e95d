"""Points: what is measured of one setting of the knobs, in a window of observations."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, final

from ..engine.stats import CHEAP_NS, StageStats
from ..ops.stage import CONSUMER, Stage, share_workers

SAME = 0.03  # rates that differ by less are equal
_PAUSE_S, _PAUSE_STEPS = 0.3, 8.0  # a step that is longer than both is a pause of the loop
_FEW_STEPS = 8  # with fewer, a pause is not told from a step
_PARTS = 6  # of a window, for the error of its rate
_LEAST_PARTS = 3
_END = 0.4  # of a batch: what a window may miss of it at both ends
_HELD, _FULL, _WAITS = 0.2, 0.7, 0.05  # shares: blocked, busy, of the loop's time
_CUT_S, _CUT = 0.5, 0.85  # after so long, a rate of so much of the floor ends a window,
_SURELY_S = 2.5  # or after so long, where late results hold back others
_LONGEST_S, _LEAST_BATCHES = 15.0, 5  # a window is longer until it has so many batches
_REGULAR = 0.1  # pauses come after so equally many batches
_KEEP = 0.015  # of the best rate: fewer calls may give so much less,
_MANY_FEWER, _MOST_LESS = 1.5, 0.04  # and more where they are so many times fewer


class Observation(NamedTuple):
    """A run at one moment.

    Attributes:
        time_s: time on a clock that never goes back [s].
        state: state of the run, "running" while an epoch is in progress.
        epoch: number of the epoch.
        stats: by address; the training loop is "consumer".
        resident_bytes: memory of the process and all below it; None if it is not known [bytes].
    """

    time_s: float
    state: str
    epoch: int
    stats: Mapping[str, StageStats]
    resident_bytes: int | None = None


class Slots(NamedTuple):
    """Neighbours that share call slots: a stage with the inline stages inside it, or a region.

    Attributes:
        address: the first of them; it has the knob.
        members: addresses of all.
        away: calls are made elsewhere, so that the way there takes slots as well.
    """

    address: str
    members: tuple[str, ...]
    away: bool

    def used_s(self, stats: Mapping[str, StageStats]) -> float:
        """Return the slot-time that calls have taken so far [s]."""
        if self.away:
            row = stats[self.members[-1]]
            return row.slot_s - row.starved_s - row.blocked_s
        return sum(stats[name].busy_s for name in self.members)


def slots_of(stages: Mapping[str, Stage]) -> tuple[Slots, ...]:
    """Return which stages share slots, in the order of the stages."""
    groups: list[list[str]] = []
    for name, stage in stages.items():
        above = stages[groups[-1][-1]] if groups else None
        inline = stage.executor == "inline" and stage.op in ("map", "filter")
        if above is not None and (inline or share_workers(above, stage)):
            groups[-1].append(name)
        else:
            groups.append([name])
    return tuple(Slots(one[0], tuple(one), _is_away(stages[one[0]])) for one in groups)


def _is_away(stage: Stage) -> bool:
    return stage.executor_spec is not None and stage.executor != "device"


@final
class Point(NamedTuple):
    """What one window measured.

    Attributes:
        time_s: when the window ended [s].
        batches: taken in it.
        rate: batches a second.
        error: standard error of the rate.
        wait: share of the time that the loop waited.
        step_s: the loop's own time per batch [s].
        slots_s: by stage, the slot-time of its calls per batch [s].
        busy: by stage, the share of its slots that calls took.
        blocked: by stage, the share of its slots that had no room for a result.
        starved: by stage, the share of its slots that had no input.
        calls: by stage, the limit in force.
        cores: by stage, the share of its calls' time in which they compute; 0 if not known.
        short: stages whose calls are so short that they run in chunks.
        burst: batches that could be made while a loop that pauses regularly does so once.
        worse: the window was cut off: this setting is surely slower than the floor.
    """

    time_s: float
    batches: float
    rate: float
    error: float
    wait: float
    step_s: float
    slots_s: Mapping[str, float]
    busy: Mapping[str, float]
    blocked: Mapping[str, float]
    starved: Mapping[str, float]
    calls: Mapping[str, int]
    cores: Mapping[str, float]
    short: frozenset[str] = frozenset()
    burst: float = 0.0
    worse: bool = False

    @property
    def held_back(self) -> str | None:
        """The stage that waits for room while the loop waits and no later stage is busy."""
        names = list(self.busy)
        for name in sorted(names, key=lambda one: (-self.blocked[one], -names.index(one))):
            below = names[names.index(name) + 1 :]
            if self.blocked[name] <= _HELD or self.wait <= _WAITS:
                return None
            waits = not below or self.starved[below[0]] > _HELD
            if waits and not any(self.busy[one] > _FULL for one in below):
                return name
        return None

    @property
    def swings(self) -> bool:
        """Whether the last buffer is empty and full in turn."""
        return min(self.wait, list(self.blocked.values())[-1]) > _HELD

    def averaged(self, other: Point) -> Point:
        """Return the point with the mean rate of two windows of one setting."""
        error = math.hypot(self.error, other.error) / 2
        return self._replace(rate=(self.rate + other.rate) / 2, error=error)

    def differs(self, other: Point) -> bool:
        """Return whether one window each shows which of two settings is faster."""
        doubt = 2.0 * math.hypot(self.error, other.error) / max(self.rate, other.rate)
        return abs(self.rate / other.rate - 1.0) >= max(doubt, SAME) or doubt <= SAME


class Measure(NamedTuple):
    """How to measure.

    Attributes:
        least_s, most_s: how long a window lasts [s].
        batches: and how many batches it has at least.
        within: it ends when the error of the rate is such a share of it.
        floor: it ends early when the rate is surely lower [batches/s].
        step_s: time of the loop's own step, for that comparison [s].
        settles: before it, the knobs that were turned come into force.
    """

    least_s: float = 1.0
    most_s: float = 4.0
    batches: int = 10
    within: float = 0.02
    floor: float = 0.0
    step_s: float = 0.0
    settles: bool = True


class LoopMark(NamedTuple):
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
        self._marks: list[LoopMark] = []
        self._now = LoopMark(0.0, 0, 0.0, {})
        self._looks = 0
        self._taken: int | None = None  # when the first observation came, in a pause perhaps
        self._worse = False

    def add(self, one: Observation) -> bool:
        """Add an observation; return whether the window is complete."""
        loop = one.stats[CONSUMER]
        if self._taken is None:
            self._taken = loop.items_out
        if self._cycle and self._taken == loop.items_out:
            return False  # whole cycles begin with a batch
        mark = LoopMark(one.time_s, loop.items_out, loop.starved_s, one.stats)
        self._taken = -1
        if not self._marks or mark.batches != self._marks[-1].batches:
            self._marks.append(mark)
        self._now = mark
        self._looks += 1
        return self._is_complete()

    def _is_complete(self) -> bool:
        measure, first = self._measure, self._marks[0]
        lasted_s = self._now.time_s - first.time_s
        made = self._marks[-1].batches - first.batches
        self._worse = self._is_worse(lasted_s)
        if self._worse:
            return True
        if lasted_s < measure.least_s:
            return False
        if self._cycle:
            self._cut_to_cycles(made)
            return made >= self._cycle or lasted_s >= _LONGEST_S
        most_s = _LONGEST_S if made < _LEAST_BATCHES else measure.most_s
        if lasted_s >= most_s or made < measure.batches:
            return lasted_s >= most_s
        rate = made / max(1e-9, self._marks[-1].time_s - first.time_s - self._pauses_s)
        return error_of(self._marks, self._look_s) <= measure.within * rate

    def _cut_to_cycles(self, made: int) -> None:
        """Leave out the marks after the last whole cycle."""
        whole = self._marks[0].batches + made // self._cycle * self._cycle
        if made >= self._cycle:
            end = next(n for n, mark in enumerate(self._marks) if mark.batches >= whole)
            del self._marks[end + 1 :]

    @property
    def _look_s(self) -> float:
        """Time between two observations [s]."""
        return (self._now.time_s - self._marks[0].time_s) / max(1, self._looks - 1)

    @property
    def _pauses_s(self) -> float:
        """Time in pauses of the loop: without a known cycle, a window is measured without them."""
        steps = [] if self._cycle else steps_of(self._marks)
        if len(steps) < _FEW_STEPS:
            return 0.0
        median_s = statistics.median(steps)
        longest_s = max(_PAUSE_S, _PAUSE_STEPS * median_s)
        return sum(step_s - median_s for step_s in steps if step_s > longest_s)

    def _is_worse(self, lasted_s: float) -> bool:
        """Return whether the rate is surely below the floor; a pause of the loop does not count.

        Where a late result holds back others, the next ones come soon.
        """
        first, now, floor = self._marks[0], self._now, self._measure.floor
        if not floor or lasted_s < _CUT_S:
            return False
        made, waited_s = now.batches - first.batches + 1, now.waited_s - first.waited_s
        own_s = min(lasted_s - waited_s, made * self._measure.step_s)
        if made / max(1e-9, waited_s + own_s) >= _CUT * floor:
            return False
        return lasted_s >= _SURELY_S or self._point_until(now).held_back is None

    def point(self) -> Point:
        """Return what was measured."""
        few = self._worse or len(self._marks) == 1
        return self._point_until(self._now if few else self._marks[-1])

    def _point_until(self, last: LoopMark) -> Point:
        first = self._marks[0]
        made = taken = max(last.batches - first.batches, 0.5)
        span_s = last.time_s - first.time_s - self._pauses_s
        if self._cycle and made > self._cycle:  # a mark may have some batches more
            more = made % self._cycle
            made, span_s = made - more, span_s - more * step_of(self._marks)
        span_s = max(1e-3, span_s)
        rate, wait = made / span_s, min(1.0, (last.waited_s - first.waited_s) / span_s)
        error = SAME / 2 * rate if self._cycle else error_of(self._marks, self._look_s)
        return Point(
            self._now.time_s,
            made,
            rate,
            min(error, rate),
            wait,
            (1.0 - wait) / rate,
            **self._of_stages(first.stats, last.stats, taken),
            calls={one.address: last.stats[one.address].concurrency for one in self._groups},
            short=frozenset(self._short_in(last.stats)),
            burst=self._pause_s * rate if self._cycle else 0.0,
            worse=self._worse,
        )

    def _short_in(self, stats: Mapping[str, StageStats]) -> Iterator[str]:
        for group in self._groups:
            p50_s = stats[group.members[-1]].latency_p50_s
            if not group.away and 0 < p50_s < CHEAP_NS / 1e9:
                yield group.address

    def _of_stages(
        self, old: Mapping[str, StageStats], new: Mapping[str, StageStats], made: float
    ) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {
            name: {} for name in ("slots_s", "busy", "blocked", "starved", "cores")
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
            found["cores"][name] = new[name].cpu_share or 0.0
        return found


# -- Arithmetic ------------------------------------------------------------------------------------
def steps_of(marks: Sequence[LoopMark]) -> list[float]:
    """Return the loop's own time from each mark to the next [s]."""
    return [
        (new.time_s - old.time_s) - (new.waited_s - old.waited_s) for old, new in pairwise(marks)
    ]


def step_of(marks: Sequence[LoopMark]) -> float:
    """Return the median time of the loop's own step, without its pauses [s]."""
    counts = (new.batches - old.batches for old, new in pairwise(marks))
    return statistics.median(s / max(1, n) for s, n in zip(steps_of(marks), counts, strict=True))


def error_of(marks: Sequence[LoopMark], look_s: float) -> float:
    """Return the standard error of a rate, from up to six parts of a window.

    A batch is seen up to `look_s` after it came, and a window begins and ends between two batches.
    In the whole window that matters less than in its parts, so it is taken out of these.
    """
    cuts = marks[:: max(1, (len(marks) - 1) // _PARTS)]
    rates = [
        (new.batches - old.batches) / max(1e-3, new.time_s - old.time_s)
        for old, new in pairwise(cuts)
    ]
    if len(rates) < _LEAST_PARTS:
        return math.inf
    whole_s, count = cuts[-1].time_s - cuts[0].time_s, len(rates)
    seen_s = statistics.mean(rates) * look_s / whole_s / math.sqrt(6)  # of both ends
    ends = math.hypot(seen_s, _END / whole_s)
    variance = statistics.variance(rates) - (count * ends) ** 2
    return math.sqrt(max(0.0, variance) / count + ends**2)


def best_of(known: Mapping[int, Point]) -> int:
    """Return the fewest calls that are as fast as any; many fewer may be a little slower."""
    most = max(known, key=lambda calls: known[calls].rate)
    top = known[most]

    def is_equal(calls: int) -> bool:
        doubt = math.hypot(known[calls].error, top.error) / top.rate
        share = min(SAME, max(_KEEP, doubt))
        if most >= _MANY_FEWER * calls:
            share = min(_MOST_LESS, SAME + doubt)
        return known[calls].rate >= (1 - share) * top.rate

    return min(filter(is_equal, known))


def scalable(known: Mapping[int, Point]) -> int | None:
    """Return the best number of calls by the universal scalability law, from the nearest points.

    n / rate = a + b (n - 1) + c n (n - 1) has the highest rate at sqrt((a - b) / c).

    Source: Gunther, "A simple capacity model of massively parallel transaction systems" (1993).
    """
    best = best_of(known)
    near = sorted(sorted(known, key=lambda calls: abs(math.log(calls / best)))[:3])
    if len(near) < _LEAST_PARTS:
        return None
    (x, y, z), (p, q, r) = near, (calls / known[calls].rate for calls in near)
    rise, last = (q - p) / (y - x), (r - q) / (z - y)
    c = (last - rise) / (z - x)
    b = rise - c * (x + y - 1)
    a = p - b * (x - 1) - c * x * (x - 1)
    return max(1, round(math.sqrt((a - b) / c))) if c > 0 and a > b else None
