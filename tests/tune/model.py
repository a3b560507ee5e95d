"""A queueing model of a run in virtual time, which a tuning session drives.

Stages are servers with finite buffers that hand on in input order, and a loop takes batches from
the last one. A minute takes tens of milliseconds. Cores, locks and load make a call longer, by the
number of calls when it begins.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import nbpipe
from nbpipe.engine.measures.stats import StageStats
from nbpipe.ops.stage import CONSUMER, addresses
from nbpipe.tune.board import Board
from nbpipe.tune.point import Observation
from nbpipe.tune.session import TuningSession

LOOK_S = 0.05
LOOP = -1
MANY = 1 << 60


@dataclass
class Serving:
    """One stage: what a call of it takes.

    Attributes:
        name: of the stage.
        time_s: gives the time of the call for an item [s]; it may ask the model for its load.
        calls, prefetch: first values of the knobs; `calls` None is a stage without that knob.
        cpu_share: share of a call in which it computes.
        size: gives the bytes of the result of an item.
        away: calls are made in worker processes, which take `start_s` to start [s].
    """

    name: str
    time_s: Callable[[Model, int], float]
    calls: int | None = 1
    prefetch: int = 8
    cpu_share: float = 0.0
    size: Callable[[Model, int], float] = lambda _model, _item: 0.0
    away: bool = False
    start_s: float = 0.0


@dataclass
class Loop:
    """The training loop.

    Attributes:
        step_s: gives the time of a step [s].
        every, pause_s: after so many steps it pauses for so long [steps, s]; 0 without pauses.
    """

    step_s: Callable[[Model, int], float]
    every: int = 0
    pause_s: float = 0.0


class Stage:
    """A stage at work."""

    def __init__(self, serving: Serving, stage: nbpipe.Stage) -> None:
        self.serving, self.stage = serving, stage
        self.started = self.done = self.running = 0
        self.busy_s = self.starved_s = self.blocked_s = self.slot_s = self.since_s = 0.0
        self.finished: set[int] = set()
        self.item_bytes = 0.0
        self.latencies: deque[float] = deque(maxlen=60)
        self.read_knobs()
        self.workers, self.starting = (self.concurrency if serving.away else 0), 0
        self.state = "starved"

    def read_knobs(self) -> None:
        """Put the values of the knobs in force."""
        knob = self.stage.knobs.get("concurrency")
        self.concurrency = 1 if knob is None else knob.value
        self.prefetch = self.stage.knobs["prefetch"].value

    def account(self, now_s: float) -> None:
        """Book the time since the last change."""
        passed_s = now_s - self.since_s
        if passed_s > 0:
            idle_s = max(0, self.concurrency - self.running) * passed_s
            self.slot_s += self.running * passed_s + idle_s
            if self.state == "starved":
                self.starved_s += idle_s
            elif self.state == "blocked":
                self.blocked_s += idle_s
            self.since_s = now_s


def chain_of(servings: list[Serving]) -> nbpipe.Pipeline:
    """Return a real pipeline with the stages' names, knobs and executors."""
    first, *rest = servings
    pipe = nbpipe.source(range(4), name=first.name, prefetch=first.prefetch)
    for one in rest:
        if one.calls is None:
            pipe = pipe.batch(1, name=one.name, prefetch=one.prefetch)
        else:
            executor = "process" if one.away else "thread"
            options = {"concurrency": one.calls, "prefetch": one.prefetch, "executor": executor}
            pipe = pipe.map(abs, name=one.name, **options)
    return pipe


@dataclass
class Kind:
    """A kind of pipeline, for one seed.

    Attributes:
        servings: the stages after the source.
        loop: the loop.
        grid: by "stage.knob", the values that an oracle tries.
        phases: how many loads there are; the next one begins after `turn_s`.
        memory_bytes: ceiling above what the process takes, or None.
        turn_s: when the load changes [s].
        cores: cores of the machine, as the tuner reads them.
        kept: what the allocator keeps of what is alive.
    """

    servings: list[Serving]
    loop: Loop
    grid: dict[str, list[int]]
    phases: int = 1
    memory_bytes: float | None = None
    turn_s: float = 30.0
    cores: float = 64.0
    kept: float = 1.1


class Model:
    """A run of a kind in virtual time.

    Attributes:
        now_s: the time.
        phase: of the load.
        running: calls in progress that compute, in all stages.
        queues: by the name of a lock, when the calls that hold it or wait for it let it go.
    """

    def __init__(self, kind: Kind, seed: int, phase: int | None = None) -> None:
        self.kind, self.now_s, self.computing = kind, 0.0, 0
        self._fixed_phase = phase
        draw = random.Random(seed)
        self.noise = [draw.uniform(-1.0, 1.0) for _ in range(997)]
        self.queues: dict[str, deque[float]] = {}
        self.asked_s = 0.0  # when the loop began its step
        source = Serving("files", lambda _model, _item: 0.0, calls=None, prefetch=16)
        self.pipe = chain_of([source, *kind.servings])
        self.addresses = addresses(self.pipe.chain)
        named = dict(zip([one.name for one in kind.servings], kind.servings, strict=True))
        self.stages = [Stage(named[n], s) for n, s in self.addresses.items() if n in named]
        self.taken = 0
        self.times: list[float] = []
        self.waited_s = self.own_s = 0.0
        self.loop_since_s: float | None = 0.0  # waits since then
        self.resident = 0.0
        self.peak = 0.0
        self._events: list[tuple[float, int, int, int]] = []
        self._count = 0
        self._values: tuple[int, ...] = ()

    # -- what effects ask ---------------------------------------------------------------------
    @property
    def phase(self) -> int:
        if self._fixed_phase is not None:
            return self._fixed_phase
        return int(self.kind.phases > 1 and self.now_s >= self.kind.turn_s)

    def jitter(self, item: int, spread: float) -> float:
        """Return a factor around 1 that depends on the item alone."""
        return 1.0 + spread * self.noise[item % 997]

    def in_turn(self, name: str, after_s: float, hold_s: float, worse: float = 0.0) -> float:
        """Return the time of a call that holds a lock for a part of it, first come first served."""
        ends, at_s = self.queues.setdefault(name, deque()), self.now_s + after_s
        while ends and ends[0] <= at_s:
            ends.popleft()
        begins_s = max(at_s, ends[-1]) if ends else at_s
        ends.append(begins_s + hold_s * (1.0 + worse * max(0, len(ends) - 1)))
        return ends[-1] - self.now_s

    def on_cores(self, time_s: float, cores: float, over: float = 0.0) -> float:
        """Return the time of a call that computes, where cores are shared."""
        calls = self.computing + 1
        crowd = max(0.0, calls - cores)
        return time_s * max(1.0, calls / cores) * (1.0 + over * crowd)

    def set(self, values: dict[str, int]) -> None:
        for name, value in values.items():
            stage, knob = name.rsplit(".", 1)
            self.addresses[stage].knob(knob).set(value, by="autotune")

    # -- what happens -------------------------------------------------------------------------
    def advance(self, to_s: float) -> None:
        """Run until a time."""
        self._refresh()
        events = self._events
        if self.taken == 0 and not events:
            for place in range(len(self.stages)):
                self._start(place)
            self._take()
        while events and events[0][0] <= to_s:
            self.now_s, _, place, item = heapq.heappop(events)
            if place == LOOP:
                self.own_s += self.now_s - self.asked_s
                self.loop_since_s = self.now_s
                self._take()
            elif item < 0:
                self._worker_started(place)
            else:
                self._ended(place, item)
        self.now_s = to_s

    def _refresh(self) -> None:
        values = tuple(k.value for one in self.stages for k in one.stage.knobs.values())
        if values == self._values:
            return
        self._values = values
        for place, one in enumerate(self.stages):
            one.account(self.now_s)
            one.read_knobs()
            missing = one.concurrency - one.workers - one.starting
            if one.serving.away:
                for _ in range(max(0, missing)):
                    one.starting += 1
                    self._event(self.now_s + one.serving.start_s, place, -1)
                one.workers = min(one.workers, one.concurrency)
            self._start(place)

    def _worker_started(self, place: int) -> None:
        one = self.stages[place]
        one.account(self.now_s)
        one.starting -= 1
        one.workers = min(one.concurrency, one.workers + 1)
        self._start(place)

    def _event(self, when_s: float, place: int, item: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, place, item))

    def _start(self, place: int) -> None:
        """Start the calls of a stage that have input, a slot and room."""
        one = self.stages[place]
        above = self.stages[place - 1] if place else None
        taken = self.taken if place + 1 == len(self.stages) else self.stages[place + 1].started
        servers = min(one.concurrency, one.workers) if one.serving.away else one.concurrency
        until = taken + one.prefetch + one.concurrency  # there is room
        began = False
        while True:
            if one.started >= until:
                state = "blocked"
                break
            if above is not None and above.done <= one.started:
                state = "starved"
                break
            if one.running >= servers:
                state = "ready"
                break
            if not began:
                one.account(self.now_s)
            began = True
            item = one.started
            one.started += 1
            if above is not None:
                self._free(above, item)
            one.running += 1
            self._hold(one.serving.size(self, item))
            time_s = max(1e-6, one.serving.time_s(self, item))
            self.computing += one.serving.cpu_share > 0.4
            one.latencies.append(time_s)
            self._event(self.now_s + time_s, place, item)
            one.busy_s += time_s  # less the time still to come, when it is read
        if state != one.state:
            one.account(self.now_s)
            one.state = state
        if began and place:
            self._start(place - 1)

    def _hold(self, size: float) -> None:
        self.resident += size
        self.peak = max(self.peak, self.resident)

    def _free(self, above: Stage, item: int) -> None:
        self.resident -= above.serving.size(self, item)

    def _ended(self, place: int, item: int) -> None:
        one = self.stages[place]
        one.account(self.now_s)
        one.running -= 1
        self.computing -= one.serving.cpu_share > 0.4
        size = one.serving.size(self, item)
        one.item_bytes = 0.9 * one.item_bytes + 0.1 * size if one.item_bytes else size
        if item == one.done:
            one.done += 1
            while one.done in one.finished:
                one.finished.discard(one.done)
                one.done += 1
            if place + 1 == len(self.stages):
                self._take()
            else:
                self._start(place + 1)
        else:
            one.finished.add(item)
        self._start(place)

    def _take(self) -> None:
        """Give the loop a batch, if it waits for one."""
        last = self.stages[-1]
        if self.loop_since_s is None or last.done <= self.taken:
            return
        self.waited_s += self.now_s - self.loop_since_s
        self._free(last, self.taken)
        self.taken += 1
        self.times.append(self.now_s)
        self.loop_since_s, self.asked_s = None, self.now_s
        loop = self.kind.loop
        step_s = loop.step_s(self, self.taken)
        if loop.every and self.taken % loop.every == 0:
            step_s += loop.pause_s
        self._event(self.now_s + step_s, LOOP, 0)
        self._start(len(self.stages) - 1)

    # -- observations ------------------------------------------------------------------------
    def observe(self) -> Observation:
        """Return what a tuner sees now."""
        now_s = self.now_s
        left: dict[int, float] = {}
        for when_s, _, place, item in self._events:
            if place >= 0 and item >= 0:
                left[place] = left.get(place, 0.0) + when_s - now_s
        rows = {"files": StageStats(prefetch=16, queued=16, slot_s=now_s, blocked_s=now_s)}
        for place, one in enumerate(self.stages):
            one.account(now_s)
            below = self.stages[place + 1].started if place + 1 < len(self.stages) else self.taken
            times = sorted(one.latencies)
            rows[one.serving.name] = StageStats(
                items_out=one.done,
                busy_s=one.busy_s - left.get(place, 0.0),
                starved_s=one.starved_s,
                blocked_s=one.blocked_s,
                slot_s=one.slot_s,
                running=one.running,
                concurrency=one.concurrency,
                queued=one.done - below,
                prefetch=one.prefetch,
                latency_p95_s=times[int(0.95 * (len(times) - 1))] if times else 0.0,
                cpu_share=one.serving.cpu_share,
                item_bytes=round(one.item_bytes),
                starting=one.starting,
            )
        waits_s = 0.0 if self.loop_since_s is None else now_s - self.loop_since_s
        own_s = 0.0 if self.loop_since_s is not None else now_s - self.asked_s
        rows[CONSUMER] = StageStats(
            items_out=self.taken, starved_s=self.waited_s + waits_s, busy_s=self.own_s + own_s
        )
        resident = round(self.kind.kept * self.resident)
        return Observation(now_s, "running", 0, rows, resident)


@dataclass
class Outcome:
    """What a run in virtual time gave.

    Attributes:
        times: when the loop took each batch [s].
        every: batches from one pause of the loop to the next.
        turns: time, knob, old and new value of each change [s].
        final: values at the end, by "stage.knob".
        peak: most memory [bytes].
    """

    times: list[float]
    turns: list[tuple[float, str, int, int, str]] = field(default_factory=list)
    final: dict[str, int] = field(default_factory=dict)
    peak: float = 0.0
    every: int = 1
    log: list[str] = field(default_factory=list)

    def rate(self, from_s: float, to_s: float) -> float:
        """Return the batches a second of a part of it, over whole cycles of a loop that pauses."""
        first, last = (bisect.bisect_left(self.times, one) for one in (from_s, to_s))
        if self.every > 1 and last - 1 - first >= self.every:
            last = first + (last - 1 - first) // self.every * self.every
            return (last - first) / (self.times[last] - self.times[first])
        return (last - first) / (to_s - from_s)


def tuned(make: Callable[[int], Kind], seed: int, *, whole_s: float = 60.0, **at: int) -> Outcome:
    """Run a kind with a tuner.

    Args:
        make: makes the kind for a seed.
        seed: of the noise.
        whole_s: how long [s].
        **at: first values of knobs, as `read__concurrency`.
    """
    kind = make(seed)
    started = {name.replace("__", "."): value for name, value in at.items()}
    for one in kind.servings:
        if one.calls is not None:
            one.calls = started.get(f"{one.name}.concurrency", one.calls)
        one.prefetch = started.get(f"{one.name}.prefetch", one.prefetch)
    model = Model(kind, seed)
    board = Board(model.addresses, cores=kind.cores)
    memory = None if kind.memory_bytes is None else round(kind.memory_bytes)
    session = TuningSession(board, memory_bytes=memory)
    outcome = Outcome(model.times, every=max(1, kind.loop.every))
    for stage in model.addresses.values():
        for knob in stage.knobs.values():
            knob.watch(
                lambda c: outcome.turns.append((round(model.now_s, 2), c.knob, c.old, c.new, c.why))
            )
    for look in range(1, round(whole_s / LOOK_S) + 1):
        model.advance(look * LOOK_S)
        session.look(model.observe())
    outcome.final = {
        f"{name}.{word}": knob.value
        for name, stage in model.addresses.items()
        for word, knob in stage.knobs.items()
    }
    outcome.peak, outcome.log = kind.kept * model.peak, [str(one) for one in session.log]
    return outcome


def untuned(
    make: Callable[[int], Kind],
    seed: int,
    values: dict[str, int],
    *,
    whole_s: float = 60.0,
    phase: int | None = None,
) -> Outcome:
    """Run a kind with fixed knobs."""
    model = Model(make(seed), seed, phase)
    model.set(values)
    model.advance(whole_s)
    peak = model.kind.kept * model.peak
    return Outcome(model.times, peak=peak, every=max(1, model.kind.loop.every))


@dataclass
class Best:
    """The best fixed setting of one load.

    Attributes:
        rate: its batches a second.
        values: by "stage.knob".
        least: the fewest calls of all stages within 3% of its rate.
    """

    rate: float
    values: dict[str, int]
    least: int


def oracle(
    make: Callable[[int], Kind], seed: int, phase: int = 0, *, whole_s: float = 14.0
) -> Best:
    """Try all values of the grid, each on the same items."""
    kind = make(seed)
    settings: list[dict[str, int]] = [{}]
    for name, values in kind.grid.items():
        settings = [{**one, name: value} for one in settings for value in values]
    found = []
    for values in settings:
        outcome = untuned(make, seed, values, whole_s=whole_s, phase=phase)
        if kind.memory_bytes is None or outcome.peak <= kind.memory_bytes:
            found.append((outcome.rate(2.0, whole_s), values))
    rate, values = max(found, key=lambda one: one[0])
    others = sum(
        one.calls
        for one in kind.servings
        if one.calls is not None and f"{one.name}.concurrency" not in kind.grid
    )
    least = min(calls_of(one) for speed, one in found if speed >= 0.97 * rate) + others
    return Best(rate, values, least)


def calls_of(values: dict[str, int]) -> int:
    """Return the calls of all stages together."""
    return sum(value for name, value in values.items() if name.endswith(".concurrency"))


def grown(least: int, most: int) -> list[int]:
    """Return calls for a grid: each at least 8% more than the one before."""
    found = [least]
    while found[-1] < most:
        found.append(max(found[-1] + 1, math.ceil(1.08 * found[-1])))
    return found
