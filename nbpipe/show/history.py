"""The history of a run: its rows, grouped by their time, and what they show about its knobs."""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..base.knobs import Knob, KnobChange
from ..engine.measures.counters import WINDOW_NS
from ..engine.measures.stats import Row, StageStats, Status
from ..engine.measures.step_time import STEP_EVENT
from ..ops.stage import CONSUMER, Stage
from .watch import RunView

WINDOW_S = WINDOW_NS / 1e9
SETTLING_S = 1.0  # rows so soon after a turn are part of what was before [s]
_AT_LEAST = 2  # rows of a stretch
_RAISE = 1.2  # smaller raises are lost in the noise
_OCCUPIED = 0.8  # the least share of its slots that a stage uses while it limits
_ALIKE = 0.85  # a latency that grows by this share of the concurrency's growth grew with it
_AGAIN_S = 3.0  # the history is read again after so long [s]
_LEAST_S, _MOST_S = 0.01, 2.0  # limits of the time that a row stands for
_GAP = 3.0  # rows so many times further apart than usual have a gap: between epochs, or paused
_SHORTEST_S = 0.2  # rates over so short a time are those of buffers being filled [s]
_LESS = 0.9  # a raise after which the rate falls below this made it slower
_HEADROOM, _ROUNDING = 0.95, 0.02  # share of its slots that a stage may need; of a call
_MORE = 1.05  # a raise after which the rate stays below this gave no more
_STEADY, _COMPARED = 4, 10  # least and most rates of a comparison
_SURE = 2.0  # two rates differ if they are so many standard errors apart
_WAITS = 0.05  # a loop that waits less gains nothing from any raise


# -- ticks: the rows that were taken at the same time ----------------------------------------------
Tick = list[Row]


def ticks_of(rows: Sequence[Row]) -> list[Tick]:
    """Group the rows that were taken at the same time, oldest first."""
    ticks: list[Tick] = []
    for row in rows:
        if ticks and ticks[-1][0]["time_s"] == row["time_s"]:
            ticks[-1].append(row)
        else:
            ticks.append([row])
    return ticks


def steady_ticks(rows: Sequence[Row]) -> list[Tick]:
    """Return the ticks without a first one at which buffers were still being filled."""
    ticks = ticks_of(rows)
    begins = len(ticks) > 1 and time_of(ticks[0]) < _SHORTEST_S
    return ticks[1:] if begins else ticks


def time_of(tick: Sequence[Row]) -> float:
    """Return the time of a tick since the run began [s]."""
    return float(tick[0]["time_s"])


def with_gaps(ticks: Sequence[Tick]) -> list[tuple[float, Tick]]:
    """Return ticks, each with its time [s]; where nothing ran, one more at both edges.

    Between epochs they are empty; in a pause their rates are 0. A row stands for the second
    before it, so the second edge lies a second before the next row.
    """
    times = [time_of(tick) for tick in ticks]
    found: list[tuple[float, Tick]] = []
    for place, tick in enumerate(ticks):
        time_s, last_s = times[place], times[max(0, place - 1)]
        near = times[max(0, place - 2) : place], times[place : place + 2]
        usual_s = min((two[1] - two[0] for two in near if len(two) > 1), default=1.0)
        starts = tick[0]["epoch"] != ticks[max(0, place - 1)][0]["epoch"]
        if (starts or tick[0]["paused"]) and time_s - last_s > _GAP * max(1.0, usual_s):
            edge_s = min(1.0, (time_s - last_s) / 3)
            edges = last_s + edge_s, time_s - edge_s
            found += [(at_s, [] if starts else _idle(tick, at_s)) for at_s in edges]
        found.append((time_s, tick))
    return found


def _idle(tick: Tick, time_s: float) -> Tick:
    """Return a tick as it was in the pause before it."""
    before_s = time_of(tick) - time_s
    when_s = float(tick[0]["when_s"]) - before_s
    still = {"items_per_s": 0.0, "busy": 0.0, "starved": 0.0, "blocked": 0.0, "running": 0}
    return [row | still | {"time_s": time_s, "when_s": when_s, "paused": 0} for row in tick]


def averaged(ticks: Sequence[Tick]) -> list[Tick]:
    """Return ticks whose rates are means of the seconds before, as in the stats of that moment.

    After a pause they are means of the time since then.
    """
    found: list[Tick] = []
    recent: deque[tuple[float, float, dict[str, float]]] = deque()
    last_s = 0.0
    taken = set(map(id, ticks))
    for time_s, tick in with_gaps(ticks):
        starts_again = id(tick) not in taken or tick[0]["paused"]
        while recent and (starts_again or recent[0][0] <= time_s - WINDOW_S):
            recent.popleft()
        if tick:
            rates = {str(row["stage"]): float(row["items_per_s"]) for row in tick}
            recent.append((time_s, max(_LEAST_S, min(_MOST_S, time_s - last_s)), rates))
            found.append([row | {"items_per_s": _mean(recent, str(row["stage"]))} for row in tick])
        last_s = time_s
    return found


def _mean(recent: Iterable[tuple[float, float, Mapping[str, float]]], stage: str) -> float:
    known = [(lasted_s, rates[stage]) for _, lasted_s, rates in recent if stage in rates]
    return sum(lasted_s * rate for lasted_s, rate in known) / sum(lasted_s for lasted_s, _ in known)


def unix_zero_s(ticks: Sequence[Sequence[Row]]) -> float:
    """Return the Unix time at which the run began [s]; the present time without a row."""
    if not ticks:
        return time.time()
    last = ticks[-1][0]
    return float(last["when_s"]) - float(last["time_s"])


# -- the time that the stats cover -----------------------------------------------------------------


def span_s(watched: RunView, status: Status) -> float:
    """Return how far back the stats of an epoch in progress reach, earlier epochs included [s]."""
    if status.since_pause_s is not None and status.since_pause_s < WINDOW_S:
        return status.since_pause_s
    if status.elapsed_s >= WINDOW_S:
        return status.elapsed_s
    now_s = time.time()
    key = (status.epoch, round(now_s - status.elapsed_s, 1))
    known = _earlier.get(watched)
    if known is None or known[0] != key:  # read once in an epoch: earlier rows do not change
        known = _earlier[watched] = (key, _rows_before(watched, now_s - status.elapsed_s))
    recent = [when_s for when_s in known[1] if now_s - when_s < WINDOW_S]
    return max(status.elapsed_s, now_s - min(recent, default=now_s))


_earlier: weakref.WeakKeyDictionary[RunView, tuple[object, list[float]]] = (
    weakref.WeakKeyDictionary()
)


def _rows_before(watched: RunView, begun_s: float) -> list[float]:
    times = {float(row["when_s"]) for row in watched.history()}
    return [when_s for when_s in times if begun_s - WINDOW_S < when_s <= begun_s]


# -- the last seconds of an epoch that is over -----------------------------------------------------


def last_stretch(
    rows: Sequence[Row], status: Status, events: Iterable[KnobChange]
) -> tuple[list[Row], float]:
    """Return the last seconds of the last epoch, none of them before its last knob change.

    A change so late that no row is of its values alone does not count. Where the epoch left
    no row, there are none.

    Returns:
        The rows of all stages, oldest first, and when they begin, since the run began [s].
    """
    ticks = ticks_of(rows)
    if not ticks or ticks[-1][0]["epoch"] != status.epoch:
        return [], 0.0
    end_s = float(ticks[-1][0]["time_s"])
    zero_s = float(ticks[-1][0]["when_s"]) - end_s
    turns = [change.when_s - zero_s for change in events if change.knob != STEP_EVENT]
    begun_s = first_s = end_s - status.elapsed_s
    found: list[Tick] = []
    for place in range(len(ticks) - 1, -1, -1):
        until_s = float(ticks[place][0]["time_s"])
        since_s = max(begun_s, float(ticks[place - 1][0]["time_s"]) if place else begun_s)
        if until_s <= max(begun_s, end_s - WINDOW_S):
            break
        turned = any(since_s <= turn_s < until_s for turn_s in turns)
        if turned and found:
            break
        if not turned:
            found.insert(0, ticks[place])
            first_s = since_s
    chosen = found or ticks[-1:]
    starting = next((place for place, tick in enumerate(chosen) if not _starts(tick)), 0)
    if starting:  # the first results are in a row that is partly of the start
        starting = min(starting + 1, len(chosen) - 1)
        first_s = time_of(chosen[starting - 1])
    return [row for tick in chosen[starting:] for row in tick], first_s


def _starts(tick: Tick) -> bool:
    """Return whether a stage has no result yet: its workers, or its imports, are starting."""
    return any(not row["items_out"] for row in tick if row["stage"] != CONSUMER)


def turned_since(stages: Mapping[str, Stage], rows: Sequence[Row], names: Iterable[str]) -> str:
    """Return the name of a knob of these stages that was turned after the last row, or ""."""
    last = {row["stage"]: row for row in rows}
    for name in names:
        if name not in stages or name not in last:
            continue
        for knob_name, knob in stages[name].knobs.items():
            if last[name].get(knob_name, knob.value) != knob.value:
                return f"{name}.{knob_name}"
    return ""


def averages_of(
    rows: Sequence[Row], stats: Mapping[str, StageStats], since_s: float
) -> dict[str, StageStats]:
    """Return stats with the shares of some rows of the history, which outlast an epoch.

    Args:
        rows: oldest first; each stands for the time since the one before.
        stats: of the stages, for the numbers that rows do not hold.
        since_s: time at which the first rows begin, since the run began [s].
    """
    sums: dict[str, list[float]] = {}
    last_s: dict[str, float] = {}
    for row in rows:
        name, time_s = str(row["stage"]), float(row["time_s"])
        weight = min(max(time_s - last_s.get(name, since_s), _LEAST_S), _MOST_S)
        last_s[name] = time_s
        parts = sums.setdefault(name, [0.0] * 5)
        for place, key in enumerate(("busy", "starved", "blocked", "items_per_s")):
            parts[place] += weight * float(row[key])
        parts[-1] += weight
    averages = {}
    for name, (*parts, whole) in sums.items():
        if name in stats:
            busy, starved, blocked, rate = (part / whole for part in parts)
            waiting = max(0.0, 1.0 - busy - starved - blocked)
            averages[name] = replace(
                stats[name],
                busy=busy,
                starved=starved,
                blocked=blocked,
                waiting=waiting,
                items_per_s=rate,
            )
    return averages


# -- whether calls wait for one another ------------------------------------------------------------


class Growth(NamedTuple):
    """How the time of a stage's calls grew with their number.

    Attributes:
        low: an earlier number of calls at once [calls].
        high: the concurrency in force [calls].
        times: latency at `high` over that at `low`.
        least_s: the shortest latency that is known [s].
    """

    low: int
    high: int
    times: float
    least_s: float

    def enough(self, items_per_s: float) -> int:
        """Return the calls that a rate needs at the latency that they had when they were few."""
        return enough_calls(self.least_s, items_per_s, self.low)


def enough_calls(least_s: float, items_per_s: float, most: int) -> int:
    """Return the calls that a rate needs, each of `least_s`; at least 1 and at most `most`."""
    return max(1, min(most, math.ceil(least_s * items_per_s / _HEADROOM - _ROUNDING)))


class Trial(NamedTuple):
    """The effect of one turn of a knob, with no other turn for some seconds, in a loop that waits.

    Attributes:
        stage: its address.
        knob: name of the knob.
        old, new: its values.
        before_per_s: items a second of the stage before [items/s].
        after_per_s: the same since then [items/s].
        sure: they differ by more than they vary from second to second.
        others: values of all other knobs, by stage and name.
    """

    stage: str
    knob: str
    old: int
    new: int
    before_per_s: float
    after_per_s: float
    sure: bool
    others: Mapping[tuple[str, str], int]

    @property
    def made_it_slower(self) -> bool:
        """Whether a raise brought less than there was before."""
        return self.new > self.old and self.sure and self.after_per_s < _LESS * self.before_per_s

    def gave_no_more(self, value: int) -> bool:
        """Return whether the higher one of its values gave no more than the lower, `value`."""
        low, high = sorted(((self.old, self.before_per_s), (self.new, self.after_per_s)))
        return low[0] == value and high[1] < _MORE * low[1]


class Past:
    """The effects of knobs that were turned, from the history of a run, which is read when needed.

    Args:
        watched: the run.
        rows: gives its history.
    """

    def __init__(self, watched: RunView, rows: Callable[[], Sequence[Row]]) -> None:
        self._stages = watched.stages
        self._turned = {change.knob for change in watched.events}
        self._rows = functools.cache(rows)

    def growth(self, stage: str) -> Growth | None:
        """Return how the time of a stage's calls grew with their number.

        If it grew in proportion, they wait for one another, and more of them make nothing faster.
        None where it did not, or where as many calls were in progress all the time, in this run
        and those before it.
        """
        knob = self._stages[stage].knobs.get("concurrency")
        return None if knob is None else proportional(self._latencies(stage), knob.value)

    def least_s(self, stage: str) -> float | None:
        """Return the shortest latency of a stage's calls that is known [s]."""
        return min(self._latencies(stage).values(), default=None)

    def _latencies(self, stage: str) -> dict[int, float]:
        """Return the time of a call by the number of calls at once, be it by a knob or not [s]."""
        found = remembered(self._rows(), self._stages, stage, "concurrency")
        known = {value: one.latency_s for value, one in found.items() if one.latency_s}
        return light_latencies(self._rows(), stage) | known

    def gave_no_more(self, stage: str, name: str, now: Settings) -> int | None:
        """Return the lowest value of a knob above its own that gave no more in an earlier run.

        Args:
            stage: address of the stage.
            name: of the knob.
            now: the values of all knobs, by stage and name.
        """
        value, others = now[stage, name], _others(now, stage, name)
        known = remembered(self._rows(), self._stages, stage, name)
        alike = {one: m for one, m in known.items() if m.others == others}
        here = alike.get(value)
        if here is None:
            return None
        return min(
            (one for one in alike if one > value and alike[one].is_no_more(here)), default=None
        )

    @functools.cached_property
    def trials(self) -> Sequence[Trial]:
        """The effects of the turns of knobs, oldest first."""
        return trials_in(self._rows(), self._stages) if self._turned else ()


def past_of(watched: RunView) -> Past:
    """Return the past of a run in progress; its history is read again after some seconds."""
    knobs = tuple(k.value for stage in watched.stages.values() for k in stage.knobs.values())
    known = _pasts.get(watched)
    now_s = time.time()
    if known is None or known[0] != knobs or now_s - known[1] >= _AGAIN_S:
        past = Past(watched, _history_of(watched))
        known = _pasts[watched] = (knobs, now_s, past)
    return known[2]


_pasts: weakref.WeakKeyDictionary[RunView, tuple[object, float, Past]] = weakref.WeakKeyDictionary()


def _history_of(watched: RunView) -> Callable[[], Sequence[Row]]:
    """Return a function that reads the history of a run, and does not hold the run."""
    reference = weakref.ref(watched)

    def rows() -> Sequence[Row]:
        run = reference()
        return [] if run is None else run.history()

    return rows


def stretches_of(
    rows: Sequence[Row], stages: Mapping[str, Stage]
) -> list[tuple[dict[tuple[str, str], int], list[Tick]]]:
    """Split rows where a knob was turned; return the values of all knobs with each part."""
    stretches: list[tuple[dict[tuple[str, str], int], list[Tick]]] = []
    for tick in ticks_of(rows):
        values = {
            (str(row["stage"]), knob): int(row[knob])
            for row in tick
            if row["stage"] in stages
            for knob in stages[str(row["stage"])].knobs
            if knob in row
        }
        if not stretches or stretches[-1][0] != values:
            stretches.append((values, []))
        stretches[-1][1].append(tick)
    return stretches


def trials_in(rows: Sequence[Row], stages: Mapping[str, Stage]) -> list[Trial]:
    """Find the turns of one knob with steady seconds before and after, in which the loop waited."""
    found = []
    for (old, before), (new, after) in pairwise(stretches_of(rows, stages)):
        turned = [key for key in new if old.get(key, new[key]) != new[key]]
        if len(turned) == 1 and old.keys() == new.keys():
            ((stage, knob),) = turned
            rates = _steady_rates(before, stage), _steady_rates(after, stage)
            if min(map(len, rates)) >= _STEADY:
                error = math.sqrt(sum(np.var(some, ddof=1) / len(some) for some in rates))
                was, now = (float(np.mean(some)) for some in rates)
                others = {key: value for key, value in old.items() if key != (stage, knob)}
                found.append(
                    Trial(
                        stage,
                        knob,
                        old=old[stage, knob],
                        new=new[stage, knob],
                        before_per_s=was,
                        after_per_s=now,
                        sure=abs(now - was) > _SURE * error,
                        others=others,
                    )
                )
    return found


def _steady_rates(ticks: Sequence[Tick], stage: str) -> list[float]:
    """Return the last rates of a stage in some ticks, without the seconds right after a turn."""
    begun_s = time_of(ticks[0])
    return [
        float(row["items_per_s"])
        for tick in ticks
        if time_of(tick) - begun_s >= SETTLING_S and _loop_waits(tick)
        for row in tick
        if row["stage"] == stage
    ][-_COMPARED:]


def _loop_waits(tick: Tick) -> bool:
    return any(one["stage"] == CONSUMER and float(one["starved"]) >= _WAITS for one in tick)


def proportional(found: Mapping[int, float], high: int) -> Growth | None:
    """Compare the latency at a concurrency, `high`, with that at the nearest lower one.

    Args:
        found: latencies by concurrency [s].
        high: the concurrency in force.
    """
    low = max((value for value in found if _RAISE * value <= high), default=0)
    if not low or high not in found:
        return None
    times, least_s = found[high] / found[low], min(found.values())
    return Growth(low, high, times, least_s) if times >= _ALIKE * high / low else None


def light_latencies(rows: Sequence[Row], stage: str) -> dict[int, float]:
    """Return the mean time of a call [s] while fewer of them were in progress than allowed.

    The keys are numbers of calls in progress. They were few because the stage had no input, or no
    room for a result. Only seconds that are alike count: in others the number changed.
    """
    found: dict[int, list[float]] = {}
    before: int | None = None
    for tick in ticks_of(rows):
        row = next((one for one in tick if one["stage"] == stage), None)
        rate = 0.0 if row is None else float(row["items_per_s"])
        if row is None or not rate or row["paused"]:
            before = None
            continue
        calls = float(row["busy"]) * int(row["concurrency"])
        value = max(1, round(calls))
        if before == value < int(row["concurrency"]):
            found.setdefault(value, []).append(calls / rate)
        before = value
    return {
        value: float(np.mean(parts)) for value, parts in found.items() if len(parts) >= _AT_LEAST
    }


def latencies(rows: Sequence[Row], stage: str) -> dict[int, float]:
    """Return the mean time of a call [s] at each concurrency at which the stage limited.

    It is the time that its slots were in use for each item. Of several stretches at one
    concurrency the last one counts.
    """
    sums: dict[int, list[float]] = {}
    before: Row | None = None
    since_s = 0.0
    for tick in ticks_of(rows):
        row = next((one for one in tick if one["stage"] == stage), None)
        if row is None:
            continue
        value, time_s = int(row["concurrency"]), float(row["time_s"])
        if before is None or before["concurrency"] != value:
            since_s = time_s
            sums.pop(value, None)
        waits = _loop_waits(tick)
        taken = 1.0 - float(row["starved"]) - float(row["blocked"])
        if before is not None and time_s - since_s >= SETTLING_S and waits and taken >= _OCCUPIED:
            lasted_s = min(_MOST_S, time_s - float(before["time_s"]))
            parts = sums.setdefault(value, [0.0, 0.0, 0.0])
            parts[0] += lasted_s * taken * value
            parts[1] += lasted_s * float(row["items_per_s"])
            parts[2] += 1
        before = row
    return {
        value: slot_s / items
        for value, (slot_s, items, count) in sums.items()
        if items > 0 and count >= _AT_LEAST
    }


# -- measurements of earlier runs: kept with the knob, which all runs of a stage share -------------
Settings = Mapping[tuple[str, str], int]  # values of knobs, by stage and name
_KEPT = 16  # values of a knob that are remembered
_RATES = 2  # rates that are worth remembering, at least


class Measured(NamedTuple):
    """The rates of a stage at one value of a knob, while the loop waited.

    Attributes:
        rates: its last items a second [items/s].
        latency_s: mean time of a call while the stage limited [s]; 0 where it did not.
        others: values of all other knobs, by stage and name.
        about: the functions of the stage and of those before it.
    """

    rates: tuple[float, ...]
    latency_s: float
    others: frozenset[tuple[tuple[str, str], int]]
    about: object
    value: int

    @property
    def per_s(self) -> float:
        """Mean of the rates [items/s]."""
        return float(np.mean(self.rates))

    def is_no_more(self, lower: Measured) -> bool:
        """Return whether a lower value gave as much, or its calls waited for one another."""
        known = {one.value: one.latency_s for one in (lower, self) if one.latency_s}
        in_turn = proportional(known, self.value) is not None
        return in_turn or self.per_s < _MORE * lower.per_s


_measured: weakref.WeakKeyDictionary[Knob, dict[int, Measured]] = weakref.WeakKeyDictionary()


def remembered(
    rows: Sequence[Row], stages: Mapping[str, Stage], stage: str, name: str
) -> dict[int, Measured]:
    """Return the measurements of a stage at each value of a knob, in this run and earlier ones.

    What is known of another function, or behind other stages, is forgotten. Of several times at one
    value the best counts: others may have used the machine in the others.
    """
    knob = stages[stage].knobs.get(name) if stage in stages else None
    if knob is None:
        return {}
    about = _about(stages, stage)
    known = {value: one for value, one in _measured.get(knob, {}).items() if one.about == about}
    times_s = latencies(rows, stage) if name == "concurrency" else {}
    for values, ticks in stretches_of(rows, stages):
        rates, value = tuple(_steady_rates(ticks, stage)), values.get((stage, name))
        if value is not None and len(rates) >= _RATES:
            others = _others(values, stage, name)
            new = Measured(rates, times_s.get(value, 0.0), others, about, value)
            old = known.pop(value, new)  # the newest come last
            known[value] = old if old.others == others and old.per_s >= new.per_s else new
    _measured[knob] = dict(list(known.items())[-_KEPT:])
    return _measured[knob]


def _others(values: Settings, stage: str, name: str) -> frozenset[tuple[tuple[str, str], int]]:
    return frozenset(item for item in values.items() if item[0] != (stage, name))


def _about(stages: Mapping[str, Stage], stage: str) -> tuple[object, ...]:
    """Return what a measurement depends on: the functions, and their code."""
    names = list(stages)
    before = [stages[name] for name in names[: names.index(stage) + 1]]
    return tuple(
        (one.name, one.op, one.executor, id(one.fn), hash(getattr(one.fn, "__code__", None)))
        for one in before
    )
