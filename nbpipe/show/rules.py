"""Rules: each looks at a case and gives a diagnosis, or None where it does not fit.

The most loaded stage above a loop that waits limits; where no stage is full, the order, the
buffers or the items themselves do.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..base.format import format_bytes, format_rate, format_seconds, format_share, shortened
from ..base.knobs import Knob
from ..engine.stats import StageStats
from ..ops.stage import CONSUMER
from .case import Case, Load
from .history import Growth

CONTENT = 0.05  # a loop that waits less gains nothing from a faster pipeline
FULL = 0.85  # a stage so loaded limits
MOST = 0.6  # so loaded it limits where nothing else explains the wait
HELD_UP = 0.2  # blocked and starved for longer than this is worth a cure
STRAGGLING = 4.0  # p95 over p50 of calls that differ much
ONE_CORE = (0.8, 1.25)  # what threads use that take turns at the interpreter lock [cores]
COMPUTES = 0.4  # of the time of its calls, or of the cores it could use: a stage computes
WAITS = 3.0  # busy slots for each core that is at work: its calls wait
TURNS = 1.5  # slots that are busy where threads take turns: at least so many
OWN_CORES = 0.5  # what only this stage can be using, to be sure that it computes [cores]
SLOW_S = 0.001  # calls so long do not wait for a thread, but for room [s]
NEARLY_ALL = 0.9  # of the cores at work: the machine is full
SHORT_S = 0.0001  # calls so short are not worth a way to a worker [s]
LARGE_BYTES = 1 << 18  # results so large take their time on the way [bytes]
LIMITS, KEEPS_UP, SLOWER = "limits", "keeps_up", "slower"
HANGS, STARTS, FAILED = "hangs", "starts", "failed"
_NAME = 60
CHEAPER = "make its function cheaper"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits a run, and what to try.

    Attributes:
        stage: address of the stage that limits; "consumer" is the training loop; None where
            no single stage does.
        text: why, in one sentence.
        advice: what to try; empty where there is nothing.
        suggestion: stage, knob and value that would carry it out, or None.
        kind: what is said of the stage: LIMITS; KEEPS_UP, nothing is wrong, the training loop
            sets the pace; SLOWER, a raise of its knob brought less, and the suggestion takes it
            back; HANGS, a call of it does not end; STARTS, its workers do; FAILED.
    """

    stage: str | None
    text: str
    advice: str = ""
    suggestion: tuple[str, str, int] | None = None
    kind: str = LIMITS

    @property
    def code(self) -> str:
        """The argument that the advice would have written in the code, as `executor="process"`."""
        words = () if self.suggestion else self.advice.split()
        named = (word.strip(",;:") for word in words)
        return next((word for word in named if "=" in word and not word.endswith("=")), "")

    def __str__(self) -> str:
        """Return text and advice as one sentence."""
        if not self.advice:
            return self.text
        return self.text + (", " if self.advice.startswith("try") else "; ") + self.advice

    def __repr__(self) -> str:
        return str(self)


# -- the decision -----------------------------------------------------------------------


def decide(case: Case) -> Diagnosis:
    """Return the first diagnosis that fits."""
    for rule in _RULES:
        found = rule(case)
        if found is not None:
            return found
    return Diagnosis(None, f"no stage limits for long: {case.wait}", "look again in a few seconds")


def _loop(case: Case) -> Diagnosis | None:
    if case.starved >= CONTENT:
        return None
    text = f"the data keeps up: {case.wait}"
    return Diagnosis(CONSUMER, text, "nothing to gain in the pipeline", kind=KEEPS_UP)


def _slower(case: Case) -> Diagnosis | None:
    """Find that the last turn of a knob was a raise that brought less."""
    last = case.past.trials[-1] if case.past is not None and case.past.trials else None
    if last is None or not last.made_it_slower:
        return None
    if case.stages[last.stage].knobs[last.knob].value != last.new:
        return None
    name = f"{short_name(last.stage)}.{last.knob}"
    unit = case.status.units.get(last.stage, "items")
    before, after = format_rate(last.before_per_s, unit), format_rate(last.after_per_s, unit)
    return Diagnosis(
        last.stage,
        f"{name} {last.old} → {last.new} made it slower: {before} before, {after} since",
        f"try {last.knob} {last.old} again",
        (last.stage, last.knob, last.old),
        SLOWER,
    )


def _full(case: Case) -> Diagnosis | None:
    return _loaded(case, FULL)


def _most(case: Case) -> Diagnosis | None:
    return _loaded(case, MOST)


def _loaded(case: Case, least: float) -> Diagnosis | None:
    top = max((load.share for load in case.loads), default=0.0)
    if top < least:
        return None
    # Of equals the upper one: were the lower one slower, the upper one would be blocked.
    load = next(load for load in case.loads if load.share >= top - 0.01)
    calls = f"a call takes {format_seconds(load.p50_s)}{_spent(load)}, " if load.p50_s else ""
    name = short_name(load.address)
    busy = f"busy {format_share(load.share - load.away)}"
    if load.away >= _FAR:
        busy = f"{busy}, {format_share(load.away)} on the way to its workers"
    text = f"{name} limits: {busy}, {calls}{case.wait}"
    if load.stage.executor == "device":
        return Diagnosis(load.address, text, _ON_DEVICE[load.stage.op == "to_device"])
    if load.away > load.share / 2:
        return Diagnosis(load.address, text, _nearer(case, load))
    if load.knob is None:
        return Diagnosis(load.address, text, _without_knob(case, load))
    return _with_knob(case, load, load.knob, text)


_ON_DEVICE = {  # by whether it is the copy to the device
    True: (
        "batches are copied one after the other: send fewer bytes, as uint8 that a map on the "
        "device converts"
    ),
    False: (
        "it is done for one batch after the other: do less on the device before the training loop"
    ),
}
_FAR = 0.1  # a way that takes less of the time is not worth a word


def _spent(load: Load) -> str:
    """Tell whether calls compute or wait, where that was measured of them alone."""
    if load.cpu_share is None or load.address != load.host:
        return ""
    computes = load.cpu_share >= 1 / 2
    share = load.cpu_share if computes else 1.0 - load.cpu_share
    return f" ({format_share(share)} of it {'computing' if computes else 'waiting'})"


def _nearer(case: Case, load: Load) -> str:
    """Tell what helps where calls are on the way to a worker for most of the time."""
    row, placement = case.rows[load.address], case.stages[load.host].placement
    own = case.stages[load.host].executor == "process"
    if load.p50_s < SHORT_S and own:
        return "its calls are short for the way: run it in threads, without executor="
    if not own and load.p50_s > SLOW_S:
        return "its calls wait for a free worker: give the cluster more workers"
    large = row.bytes_out > LARGE_BYTES * max(1, row.items_out)
    if own and large and placement is not None and placement.copy:
        return "its results are large for the way: let them stay where they are, copy=False"
    return "its calls are short for the way: let a call do more, a batch instead of a sample"


def _without_knob(case: Case, load: Load) -> str:
    """Tell what helps a stage that makes one call at a time."""
    stage = load.stage
    if case.status.by_loop:
        return (
            "the training loop makes its batches itself, one at a time: set num_workers=2, and "
            "they are made beside it from the next epoch on"
        )
    if stage.op == "source":
        return (
            "the source is read by one call at a time: let it give paths or indices, and load "
            "them in a map stage, which takes concurrency"
        )
    if stage.op == "batch":
        return (
            'batches are made one at a time: make them in workers, with executor="process", which '
            "takes concurrency"
        )
    if stage.executor == "inline":
        return (
            f"it runs inside {short_name(load.host)}, one call at a time: give it "
            "executor='thread' and concurrency=2"
        )
    return "it does one thing at a time: move slow work into a map stage, which takes concurrency"


def _with_knob(case: Case, load: Load, knob: Knob, text: str) -> Diagnosis:
    """Tell whether more calls at once would help, and how many."""
    address, at_work, computes = load.address, case.at_work, _computing(case, load)
    if computes and at_work is not None and at_work >= NEARLY_ALL * case.cores:
        text = f"{text}; the machine is full, {at_work:.1f} of {case.cores} cores are at work"
        return Diagnosis(address, text, f"more concurrency will not help: {CHEAPER}")
    if _is_held(case, load):
        why, cure = _HELD[case.stages[load.host].executor]
        return Diagnosis(address, f"{text}; {why}", cure)
    growth = case.past and case.past.growth(load.host)
    if growth:
        why = _in_turn(load, growth, computes=computes)
        target = load.host, "concurrency", growth.low
        return Diagnosis(address, f"{text}; {why}", f"try concurrency {growth.low}", target)
    value, useful = _wanted_concurrency(case, load, knob), _useful_concurrency(case, load)
    if value > useful and knob.value >= useful:
        enough = f"{knob.value} calls at once are enough for {case.cores} cores: {CHEAPER}"
        return Diagnosis(address, text, enough)
    value = min(value, useful)
    if value <= knob.value:
        most = f"concurrency {knob.value} is the most there is"
        return Diagnosis(address, text, f"{most}: {CHEAPER}")
    tried = _tried(case, load, knob)
    if tried is not None:
        return Diagnosis(address, text, f"concurrency {tried} gave no more: {CHEAPER}")
    advice = f"try concurrency {value}"
    if load.address != load.host:
        advice = f"it runs inside {short_name(load.host)}: {advice} there"
    return Diagnosis(address, text, advice, (load.host, "concurrency", value))


def _in_turn(load: Load, growth: Growth, *, computes: bool | None) -> str:
    shared = {True: "a core", False: "a lock or a disk", None: "a lock, a disk or a core"}
    return (
        f"calls of {short_name(load.host)} take {growth.times:.1f} times as long at concurrency "
        f"{growth.high} as at {growth.low}, so they wait for one another, as at {shared[computes]}"
    )


def _tried(case: Case, load: Load, knob: Knob) -> int | None:
    """Return the lowest concurrency above the one in force that gave no more when it was tried.

    Trials count while all other knobs have the values that they had then.
    """
    now = {
        (name, one): k.value for name in case.stages for one, k in case.stages[name].knobs.items()
    }
    last = {
        frozenset((one.old, one.new)): one
        for one in (() if case.past is None else case.past.trials)
        if (one.stage, one.knob) == (load.host, "concurrency")
        if all(now.get(key) == value for key, value in one.others.items())
    }
    found = [max(pair) for pair, one in last.items() if one.gave_no_more(knob.value)]
    return min(found, default=None)


def _useful_concurrency(case: Case, load: Load) -> int:
    """Return how many calls at once the cores can serve: many, where calls mostly wait."""
    if case.stages[load.host].executor not in ("thread", "process"):
        return sys.maxsize  # one event loop, or the machines of others
    if load.cpu_share is None:
        return case.cores if _computing(case, load) else sys.maxsize
    return max(case.cores, int(case.cores / max(load.cpu_share, 1e-3)))


def _wanted_concurrency(case: Case, load: Load, knob: Knob) -> int:
    """Return the concurrency that would bring a stage level with what limits next.

    One more at least, twice as much at most.
    """
    others = [other.share for other in case.loads if other is not load]
    next_load = max([1.0 - case.starved, *others, 0.01])
    value = math.ceil(knob.value * load.share / next_load - 0.01)
    return min(max(value, knob.value + 1), 2 * knob.value, knob.maximum)


def _computing(case: Case, load: Load) -> bool | None:
    """Tell whether the calls of a stage compute, or wait; None where both may be.

    Where it was not measured, the processor time is known of the whole process alone: calls surely
    compute where nobody else can be using it, and evidently wait where they are many more than the
    cores at work.
    """
    cpu, own = case.status.cpu_cores, case.own_cores(load)
    if load.stage.executor == "coroutine":
        return False
    if load.cpu_share is not None:
        return load.cpu_share >= COMPUTES
    if load.stage.placement is not None or cpu is None or own is None:
        return None
    if own >= COMPUTES * min(load.slots, case.cores):
        return True
    return False if load.slots >= WAITS * cpu else None


# -- the interpreter lock ---------------------------------------------------------------

_HELD = {  # by executor: why, and what helps
    "thread": (
        "its threads share one core, held by Python's interpreter lock",
        'more threads will not help: run it in processes, executor="process"',
    ),
    "coroutine": (
        "its calls compute on the one thread of the event loop",
        "more calls will not help: compute in a plain function behind it, which runs in threads",
    ),
}


def _is_held(case: Case, load: Load) -> bool:
    """Tell whether calls of a stage take turns on one core that nothing else explains."""
    executor = case.stages[load.host].executor
    cpu = case.status.cpu_cores
    if not case.locked or executor not in _HELD or case.cores == 1 or load.slots < TURNS:
        return False
    own = case.own_cores(load)
    return own is not None and _in_one_core(cpu) and own >= OWN_CORES


def _in_one_core(cpu_cores: float | None) -> bool:
    return cpu_cores is not None and ONE_CORE[0] <= cpu_cores <= ONE_CORE[1]


# -- no stage is full -------------------------------------------------------------------


def _event_loop(case: Case) -> Diagnosis | None:
    """Find calls that wait for the event loop, because others compute on it."""
    if not _in_one_core(case.status.cpu_cores):
        return None
    for load in case.loads:
        remote = case.stages[load.host].executor == "coroutine"
        if remote and load.p50_s > SLOW_S and _waiting(case, load) >= 2 * HELD_UP:
            why, cure = _HELD["coroutine"]
            return Diagnosis(load.host, f"{short_name(load.host)} limits: {why}, {case.wait}", cure)
    return None


def _waiting(case: Case, load: Load) -> float:
    """Return the share of a stage's slots that could run and do not."""
    row = case.rows[load.host]
    return 1.0 - load.share - row.starved - row.blocked


def _memory(case: Case) -> Diagnosis | None:
    """Find a stage whose calls could run, and wait for room in the memory budget."""
    limit = case.status.limit_bytes
    if not limit:
        return None
    waits = {load.host: _waiting(case, load) for load in case.loads if load.p50_s > SLOW_S}
    name = max(waits, key=lambda name: waits[name], default="")
    if waits.get(name, 0.0) < HELD_UP:
        return None
    text = (
        f"the memory budget of {format_bytes(limit)} limits: calls of {short_name(name)} wait for "
        "room"
    )
    room = format_bytes(2 * limit).replace(" ", "")  # as one writes it
    return Diagnosis(name, f"{text}, {case.wait}", f'start with memory="{room}"')


def _stragglers(case: Case) -> Diagnosis | None:
    """Find results that wait for an earlier one: blocked, while the next stage has no input."""
    names = list(case.rows)
    for name, below in zip(names, [*names[1:], CONSUMER], strict=True):
        row = case.rows[name]
        starved = case.starved if below == CONSUMER else case.rows[below].starved
        spec: Any = case.stages[name].spec
        if spec.runs != "call" or not spec.ordered or row.concurrency == 1:
            continue
        uneven = row.latency_p50_s > 0 and row.latency_p95_s >= STRAGGLING * row.latency_p50_s
        apart = row.blocked + starved > 1 + HELD_UP / 2 or uneven
        if apart and min(row.blocked, starved) >= HELD_UP:
            return _straggler(case, name, row)
    return None


def _straggler(case: Case, name: str, row: StageStats) -> Diagnosis:
    ratio = row.latency_p95_s / row.latency_p50_s if row.latency_p50_s else 1.0
    slow = f"p95 {format_seconds(row.latency_p95_s)}, p50 {format_seconds(row.latency_p50_s)}"
    text = f"{short_name(name)} limits: slow calls hold back the order ({slow}), {case.wait}"
    knob = case.stages[name].knobs.get("prefetch")
    enough = math.ceil(row.concurrency * min(ratio, 1e6))
    return _deeper(name, text, knob, enough, "ordered=False hands results on as they come")


def _bursts(case: Case) -> Diagnosis | None:
    """Find stages that are blocked at one time and starve the loop at another."""
    held = [name for name, row in case.rows.items() if row.blocked >= HELD_UP]
    deep = [name for name in case.rows if "prefetch" in case.stages[name].knobs]
    if not held or not deep:
        return None
    name = deep[-1]
    blocked = max(case.rows[one].blocked for one in held)
    text = (
        f"no stage limits, work comes in bursts: stages are blocked up to {format_share(blocked)} "
        f"of the time, and {case.wait}"
    )
    knob = case.stages[name].knobs["prefetch"]
    return replace(_deeper(name, text, knob, 4 * knob.value, ""), stage=None)


def _deeper(name: str, text: str, knob: Knob | None, enough: int, other: str) -> Diagnosis:
    """Advise a deeper buffer: twice as deep at least, four times at most."""
    value = 0 if knob is None else min(max(enough, 2 * knob.value), 4 * knob.value, knob.maximum)
    if knob is None or value <= knob.value:
        return Diagnosis(name, text, other or "make the training loop's pauses shorter")
    advice = f"try {short_name(name)}.prefetch {value}"
    return Diagnosis(name, text, advice, (name, "prefetch", value))


_RULES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    _loop,
    _slower,
    _full,
    _event_loop,
    _memory,
    _stragglers,
    _most,
    _bursts,
)


def short_name(address: str) -> str:
    """Return an address as it stands in a sentence."""
    return shortened(address, _NAME)
