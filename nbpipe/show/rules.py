"""Rules: each looks at a case and gives a diagnosis, or None where it does not fit.

The most loaded stage above a loop that waits limits; where no stage is full, the order, the
buffers or the items themselves do.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..base.format import format_bytes, format_rate, format_seconds, format_share, shortened
from ..base.gil import is_locked
from ..base.knobs import Knob
from ..engine.stats import StageStats, Status
from ..executors.interface import MOST_PROCESSES
from ..ops.stage import CONSUMER, Stage, regions_of, share_workers
from .history import WINDOW_S, Growth, Past

# -- Case: the numbers that a diagnosis rests on ---------------------------------------------------
# Stages count items, batches or chunks: they are compared by load, the share of its call slots that
# a stage keeps busy, never by rate.
_INLINE_HOSTS = ("source", "map", "filter", "batch")
_SATURATED = 0.85  # an inline stage so busy may be busier than its own row can say


class Load(NamedTuple):
    """How much of its slots a stage keeps busy, with the inline stages that run inside it.

    Attributes:
        address: of the stage that takes most of the time.
        stage: the stage.
        host: address of the stage whose slots these are; inline stages have none of their own.
        share: busy share of the slots, 0 to 1.
        slots: slots that are busy on average.
        p50_s: median time of a call of `stage`, or the mean one of a `flat_map` [s].
        knob: `host`'s concurrency, where it has one.
        away: part of `share` in which calls are on the way to a worker and back.
        cpu_share: share of their time in which the calls compute, as was measured, or None.
        share_of_call: that of one call; where others use the machine, of the median one, if it is
            larger: some wait for one that holds a lock and waits for a core.
        lock_share: share of their time in which the calls wait for the interpreter lock, or None.
    """

    address: str
    stage: Stage
    host: str
    share: float
    slots: float
    p50_s: float
    knob: Knob | None
    away: float = 0.0
    cpu_share: float | None = None
    share_of_call: float | None = None
    lock_share: float | None = None

    @property
    def cpu_cores(self) -> float | None:
        """Processor time of its calls, where it was measured [cores]."""
        if self.cpu_share is None:
            return None
        computing = self.cpu_share * (1.0 - (self.lock_share or 0.0))
        return computing * self.slots * (1.0 - self.away / max(self.share, 1e-9))

    @property
    def takes_turns(self) -> bool:
        """Whether its calls wait for the interpreter lock for much of their time."""
        return self.lock_share is not None and self.lock_share >= TAKES_TURNS


class Case(NamedTuple):
    """What a diagnosis rests on.

    Attributes:
        stages: by address.
        rows: stats by address, in order, without the loop's.
        starved: share of the time that the loop waits for data.
        loads: load of every stage that has slots.
        status: of the run.
        cores: cores that this process may use.
        locked: the interpreter lets one thread run Python at a time.
        now_s: time of day [s].
        span_s: how far back the stats reach [s].
        past: what the history tells, or None.
    """

    stages: Mapping[str, Stage]
    rows: Mapping[str, StageStats]
    starved: float
    loads: Sequence[Load]
    status: Status
    cores: int
    locked: bool
    now_s: float
    span_s: float = WINDOW_S
    past: Past | None = None

    @classmethod
    def of(
        cls,
        stages: Mapping[str, Stage],
        stats: Mapping[str, StageStats],
        status: Status,
        span_s: float,
        past: Past,
    ) -> Case:
        """Gather what is known."""
        rows = {name: stats[name] for name in stages if name in stats}
        loop = stats.get(CONSUMER)
        starved = loop.starved if loop is not None else 0.0
        count = cores()
        loads = loads_of(stages, rows, crowded=is_crowded(status, count))
        machine = (count, is_locked(), time.time(), span_s, past)
        return cls(stages, rows, starved, loads, status, *machine)

    def just_turned(self, knob: Knob) -> bool:
        """Return whether the stats are still those of an earlier value."""
        change = knob.last_change
        since_s = math.inf if change is None else self.now_s - change.when_s
        return since_s < min(WINDOW_S, self.span_s)

    def own_cores(self, load: Load) -> float | None:
        """Return the processor time of a load, or what only this one can be using [cores]."""
        cpu = self.status.cpu_cores
        if load.cpu_cores is not None or cpu is None:
            return load.cpu_cores
        others = sum(self._most_cores(other) for other in self.loads if other is not load)
        return max(0.0, cpu - others - (1.0 - self.starved))

    def _most_cores(self, load: Load) -> float:
        """Return the processor time that a load may be using; an event loop is one thread."""
        host = self.stages[load.host]
        if host.executor == "device":
            return min(1.0, load.slots)
        if host.executor_spec is not None:
            return 0.0  # its calls compute in other processes
        if load.cpu_cores is not None:
            return load.cpu_cores
        return min(1.0, load.slots) if host.executor == "coroutine" else load.slots

    @property
    def at_work(self) -> float | None:
        """Cores of this machine that the pipeline and the loop use, workers' included."""
        if self.status.cpu_cores is None:
            return None
        workers = [
            load.cpu_cores or 0.0
            for load in self.loads
            if self.stages[load.host].executor == "process"
        ]
        return min(float(self.cores), self.status.cpu_cores + sum(workers))

    def fullness(self, load: Load) -> str:
        """Return who uses the cores that a load would compute on; empty where some are idle."""
        used, idle = self.at_work, self.status.idle_cores
        if used is None:
            return ""
        if used >= NEARLY_ALL * self.cores:
            return f"{used:.1f} of {self.cores} cores are at work"
        if idle is None or not is_crowded(self.status, self.cores):
            return ""
        if self.stages[load.host].executor == "dask":
            return ""  # its cores may be those of other machines
        return f"others use {self.cores - used - idle:.1f} of {self.cores} cores"

    @property
    def wait(self) -> str:
        """How long the loop waits, in words."""
        share, whole = format_share(self.starved), format_share(self.status.waited_share)
        text = f"the training loop waits for data {share} of the time"
        differs = self.status.is_over and share != whole
        return f"{text} ({whole} in the whole epoch)" if differs else text


def is_crowded(status: Status, count: int) -> bool:
    """Return whether nearly all of so many cores are in use, be it by others."""
    return status.idle_cores is not None and status.idle_cores <= (1 - NEARLY_ALL) * count


def loads_of(
    stages: Mapping[str, Stage], rows: Mapping[str, StageStats], *, crowded: bool = False
) -> list[Load]:
    """Return the load of each stage; one that runs inside another counts with it.

    Args:
        stages: by address.
        rows: stats by address, in order.
        crowded: no core is free.
    """
    groups: list[list[str]] = []
    for name in rows:
        if groups and _runs_inside(stages[name], stages[groups[-1][0]]):
            groups[-1].append(name)
        else:
            groups.append([name])
    return [_load(group, stages, rows, crowded=crowded) for group in groups]


def _runs_inside(stage: Stage, host: Stage) -> bool:
    if share_workers(host, stage):
        return True
    fused = stage.executor == "inline" and stage.op in ("map", "filter")
    return fused and host.op in _INLINE_HOSTS and host.executor != "coroutine"


def _load(
    group: Sequence[str],
    stages: Mapping[str, Stage],
    rows: Mapping[str, StageStats],
    *,
    crowded: bool,
) -> Load:
    host = group[0]
    row = rows[host]
    slots = max(1, row.concurrency)
    parts = {host: row.busy * slots}
    for name in group[1:]:
        busy = rows[name].busy
        if stages[name].executor_spec is not None:  # the region's slots are its own, too
            parts[name] = busy * slots
            continue
        # its own row knows one slot; what is more shows as waiting above it
        parts[name] = max(busy, row.waiting * slots) if busy > _SATURATED else busy
    most = max(parts, key=lambda name: parts[name])
    away = 0.0
    # A slot is taken until the answer is back; while workers start, they are what it waits for.
    elsewhere = stages[host].executor_spec is not None and stages[host].executor != "device"
    if elsewhere and not rows[host].starting:
        last = rows[group[-1]]
        away = max(0.0, 1.0 - last.starved - last.blocked - sum(parts.values()) / slots)
    used = min(float(slots), sum(parts.values()) + away * slots)
    knob = stages[host].knobs.get("concurrency")
    p50_s, of_call = _time_of_call_s(stages[most], rows[most]), row.cpu_share
    if crowded and of_call is not None:
        of_call = max(of_call, row.cpu_share_p50 or 0.0)
    shares = (away, row.cpu_share, of_call, row.lock_share)
    return Load(most, stages[most], host, used / slots, used, p50_s, knob, *shares)


def _time_of_call_s(stage: Stage, row: StageStats) -> float:
    """Return how long a call takes; of a `flat_map` only the time of each item is measured."""
    if stage.op != "flat_map" or not (row.items_in and row.items_per_s):
        return row.latency_p50_s
    each_s = row.busy * row.concurrency / row.items_per_s
    return each_s * row.items_out / row.items_in


@functools.cache
def cores() -> int:
    """Return the cores that this process may use; a container's quota counts."""
    allowed = getattr(os, "sched_getaffinity", None)
    count = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    return max(1, min(count, quota_cores(Path("/sys/fs/cgroup/cpu.max"))))


def quota_cores(file: Path) -> int:
    """Read the quota of a control group, "max 100000" or "200000 100000"; none is a large one."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ArithmeticError):
        return sys.maxsize


# -- Rules -----------------------------------------------------------------------------------------
CONTENT = 0.05  # a loop that waits less gains nothing from a faster pipeline
FULL = 0.85  # a stage so loaded limits
MOST = 0.6  # so loaded it limits where nothing else explains the wait
HELD_UP = 0.2  # blocked and starved for longer than this is worth a cure
STRAGGLING = 4.0  # p95 over p50 of calls that differ much
CROWDED_CORE = 0.3  # of one, on a machine that others use, threads get so much [cores]
ONE_CORE = (0.8, 1.25)  # what threads use that take turns at the interpreter lock [cores]
COMPUTES = 0.4  # of the time of its calls, or of the cores it could use: a stage computes
WAITS = 3.0  # busy slots for each core that is at work: its calls wait
TURNS = 1.5  # slots that are busy where threads take turns: at least so many
TAKES_TURNS = 0.3  # of the time of its calls they wait for the interpreter lock
OWN_CORES = 0.5  # what only this stage can be using, to be sure that it computes [cores]
SLOW_S = 0.001  # calls so long wait for room and not for a thread, and are worth their way [s]
FEW = 16  # results so large that no more of them fit into the budget may be what waits for room
NEARLY_ALL = 0.9  # of the cores at work: the machine is full
SHORT_S = 0.0001  # calls so short are not worth a way to a worker [s]
LARGE_BYTES = 1 << 18  # results so large take their time on the way [bytes]
LIMITS, KEEPS_UP, SLOWER, SLOWS = "limits", "keeps_up", "slower", "slows"
HANGS, STARTS, FAILED, EMPTY = "hangs", "starts", "failed", "empty"
GOOD, INFO, WARNING, ERROR = "good", "info", "warning", "error"
_SEVERITIES = {KEEPS_UP: GOOD, SLOWS: WARNING, EMPTY: WARNING, HANGS: ERROR, FAILED: ERROR}
_NAME = 60
CHEAPER = "make its function cheaper"
QUICKER = "make what its calls wait for quicker"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits a run, and what to try.

    Attributes:
        stage: address of the stage that limits; "consumer" is the training loop; None where
            no single stage does.
        text: the finding, in one sentence.
        evidence: how it was seen, in a short phrase; empty where the finding says it all.
        advice: what to try; empty where there is nothing.
        suggestion: stage, knob and value that would carry it out, or None.
        kind: the verdict about the stage: LIMITS; KEEPS_UP, nothing is wrong, the training loop
            sets the pace; SLOWER, a raise of its knob brought less, and the suggestion takes it
            back; SLOWS, workers make the steps of the training loop longer; HANGS, a call of it
            does not end; STARTS, its workers do; FAILED; EMPTY, the
            loop was given nothing, because of this stage.
    """

    stage: str | None
    text: str
    evidence: str = field(default="", kw_only=True)
    advice: str = ""
    suggestion: tuple[str, str, int] | None = None
    kind: str = LIMITS

    @property
    def severity(self) -> str:
        """How bad it is: GOOD, INFO, WARNING or ERROR."""
        return _SEVERITIES.get(self.kind, INFO)

    @property
    def code(self) -> str:
        """The arguments that the advice would write in the code, as `executor="process"`."""
        words = () if self.suggestion else self.advice.split()
        named = (word.strip(",;:.") for word in words)
        return ", ".join(word for word in named if "=" in word and not word.endswith("="))

    def __str__(self) -> str:
        """Return all in one line: the finding, how it was seen in brackets, and the advice."""
        text = self.text
        if self.evidence:
            text = f"{text.removesuffix('.')} ({self.evidence}){'.' * text.endswith('.')}"
        if not self.advice:
            return text
        if text.endswith("."):
            return f"{text} {self.advice}"
        return text + (", " if self.advice.startswith("try") else "; ") + self.advice

    def __repr__(self) -> str:
        return str(self)


# -- the decision ----------------------------------------------------------------------------------


def decide(case: Case) -> Diagnosis:
    """Return the first diagnosis that fits; to a `DataLoader` in words of its arguments."""
    for rule in _RULES:
        found = rule(case)
        if found is not None and case.status.called != "run":
            advice = _OF_LOADER.get(found.advice, found.advice)
            return replace(
                found, text=_of_loader(found.text, case), advice=_of_loader(advice, case)
            )
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


def _loaded(case: Case, least: float) -> Diagnosis | None:
    top = max((load.share for load in case.loads), default=0.0)
    if top < least:
        return None
    # Of equals the upper one: were the lower one slower, the upper one would be blocked.
    load = next(load for load in case.loads if load.share >= top - 0.01)
    mean = " on average" if load.stage.op == "flat_map" else ""
    calls = (
        f"a call takes {format_seconds(load.p50_s)}{mean}{_spent(case, load)}, "
        if load.p50_s
        else ""
    )
    name = short_name(load.address)
    busy = f"busy {format_share(load.share - load.away)}"
    if load.away >= _FAR:
        busy = f"{busy}, {format_share(load.away)} on the way to its workers"
    text = f"{name} limits: {busy}, {calls}{case.wait}"
    if load.stage.executor == "device":
        return Diagnosis(load.address, text, _ON_DEVICE[load.stage.op == "to_device"])
    nearer = _nearer(case, load) if load.away > load.share / 2 else ""
    if nearer and not _finds_workers(case, load):
        return Diagnosis(load.address, text, nearer)
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


def _spent(case: Case, load: Load) -> str:
    """Return whether calls compute or wait, and for what, where that was measured of them alone."""
    if load.address != load.host:
        return ""
    if _is_held(case, load) and load.lock_share is not None:
        return f" ({format_share(load.lock_share)} of it waiting for the interpreter lock)"
    if load.share_of_call is None:
        return ""
    computes = load.share_of_call >= 1 / 2
    share = load.share_of_call if computes else 1.0 - load.share_of_call
    return f" ({format_share(share)} of it {'computing' if computes else 'waiting'})"


def _at_work(load: Load) -> float:
    """Return how many of its calls are not on the way."""
    return load.slots * (1.0 - load.away / load.share)


def _finds_workers(case: Case, load: Load) -> bool:
    """Return whether calls on the way to a cluster are so few that workers of it wait for them."""
    threads = case.rows[load.host].worker_threads
    far = case.stages[load.host].executor != "process" and load.p50_s > SLOW_S
    return far and load.slots <= 1.5 * threads and _at_work(load) < MOST * threads


_NO_PROCESS = "its calls wait, which many more may do in threads, without executor="
_TOO_SHORT = "its calls are short for the way: run it in threads, without executor="
_SHORT = "its calls are short for the way: let a call do more, a batch instead of a sample"
_SMALLER = (
    "its results are large for the way: give smaller ones, or run it in threads, without executor="
)
_NO_BATCH_PROCESS = (
    "its calls wait, which many more may do in threads: write collate=list, and collate in a map "
    "stage behind it"
)
_FAR_AWAY = "the way takes longer than its calls: let a call do more, a batch instead of a sample"
_LARGE = "its results are large for the way: let them stay where they are, copy=False"


def _nearer(case: Case, load: Load) -> str:
    """Return what helps where calls are on the way to a worker for most of the time, or nothing."""
    own = case.stages[load.host].executor == "process"
    if load.p50_s < SHORT_S and own:
        return _TOO_SHORT
    threads = case.rows[load.host].worker_threads
    if not own and load.p50_s > SLOW_S and _at_work(load) >= MOST * threads:
        return "its calls wait for a free worker: give the cluster more workers"
    group = _sharing(case, load.host)
    row, copied = case.rows[group[-1]], [case.stages[name].executor_spec for name in group]
    large = _item_bytes(row) > LARGE_BYTES
    if own and large:
        copies = all(place is None or place.copy for place in copied)
        return _large(case, load, group) if copies else _SMALLER
    if load.p50_s <= SLOW_S:
        return _SHORT
    return "" if own else _FAR_AWAY


def _sharing(case: Case, host: str) -> list[str]:
    """Return the stages that share their workers with a stage, from that on."""
    names = iter(case.stages)
    groups = ([next(names) for _ in one] for one in regions_of(tuple(case.stages.values())))
    return next(one for one in groups if host in one)


def _large(case: Case, load: Load, group: Sequence[str]) -> str:
    """Return what helps where results are copied out of shared memory."""
    calls = [name for name in group if case.stages[name].spec.runs == "call"]
    if not calls:
        return _SMALLER
    return _LARGE if load.address in calls else f"{_LARGE} in {short_name(calls[-1])}"


_SOURCE = (
    "the source is read by one call at a time: let it give paths or indices, and load them in a "
    "map stage, which takes concurrency"
)


def _without_knob(case: Case, load: Load) -> str:
    """Return what helps a stage that makes one call at a time."""
    stage = load.stage
    if case.status.by_loop:
        return (
            "the training loop makes its batches itself, one at a time: set num_workers=2, and "
            "they are made beside it from the next epoch on"
        )
    if stage.op == "source":
        return _SOURCE
    if stage.op == "batch" and getattr(stage.spec, "cost", None) is not None:
        return (
            "batches of a budget are made one at a time: find the cost in a map stage before it, "
            "and collate in one behind it, which take concurrency"
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
    """Return whether more calls at once would help, and how many."""
    address, computes, full = load.address, _computing(case, load), case.fullness(load)
    held = _is_held(case, load)
    if computes and full and not (held and load.takes_turns):
        text = f"{text}; the machine is full, {full}"
        return Diagnosis(address, text, f"more concurrency will not help: {CHEAPER}")
    if held:
        why, cure = _HELD[case.stages[load.host].executor]
        if load.takes_turns and (case.status.cpu_cores or 0.0) > ONE_CORE[1]:
            why = _WAITS_FOR_LOCK
        return Diagnosis(address, f"{text}; {why}", cure)
    growth = case.past and case.past.growth(load.host)
    if growth:
        crowded = is_crowded(case.status, case.cores)
        why = _in_turn(load, growth, computes=None if crowded and not computes else computes)
        target = load.host, "concurrency", growth.low
        return Diagnosis(address, f"{text}; {why}", f"try concurrency {growth.low}", target)
    value, useful = _wanted_concurrency(case, load, knob), _useful_concurrency(case, load)
    if value > useful and knob.value >= useful:
        if _needs_no_process(case, load):
            text = f"{text}; {knob.value} processes are many for {case.cores} cores"
            in_threads = _NO_BATCH_PROCESS if load.stage.op == "batch" else _NO_PROCESS
            return Diagnosis(address, text, in_threads)
        enough = f"{knob.value} calls at once are enough for {case.cores} cores: {CHEAPER}"
        return Diagnosis(address, text, enough)
    value, less = min(value, useful), QUICKER if computes is False else CHEAPER
    if value <= knob.value:
        most = f"concurrency {knob.value} is the most there is"
        return Diagnosis(address, text, f"{most}: {less}")
    tried = _tried(case, load.host, "concurrency", knob.value)
    if tried is not None:
        return Diagnosis(address, text, f"concurrency {tried} gave no more: {less}")
    advice = f"try concurrency {value}"
    if load.address != load.host:
        advice = f"it runs inside {short_name(load.host)}: {advice} there"
    return Diagnosis(address, text, advice, (load.host, "concurrency", value))


def _needs_no_process(case: Case, load: Load) -> bool:
    """Return whether calls in processes wait so long that twice as many would leave cores idle."""
    own = case.stages[load.host].executor == "process" and load.share_of_call is not None
    return own and 2 * MOST_PROCESSES * (load.share_of_call or 0.0) < 1


def _in_turn(load: Load, growth: Growth, *, computes: bool | None) -> str:
    shared = {True: "a core", False: "a lock or a disk", None: "a lock, a disk or a core"}
    return (
        f"calls of {short_name(load.host)} take {growth.times:.1f} times as long at concurrency "
        f"{growth.high} as at {growth.low}, so they wait for one another, as at {shared[computes]}"
    )


def _tried(case: Case, address: str, name: str, value: int) -> int | None:
    """Return the lowest value of a knob above its own that gave no more when it was tried.

    Trials count while all other knobs have the values that they had then.
    """
    now = {
        (name, one): k.value for name in case.stages for one, k in case.stages[name].knobs.items()
    }
    last = {
        frozenset((one.old, one.new)): one
        for one in (() if case.past is None else case.past.trials)
        if (one.stage, one.knob) == (address, name)
        if all(now.get(key) == value for key, value in one.others.items())
    }
    found = [max(pair) for pair, one in last.items() if one.gave_no_more(value)]
    if not found and case.past is not None:
        return case.past.gave_no_more(address, name, now)
    return min(found, default=None)


def _useful_concurrency(case: Case, load: Load) -> int:
    """Return how many calls at once the cores can serve: many, where calls mostly wait."""
    if case.stages[load.host].executor not in ("thread", "process"):
        return sys.maxsize  # one event loop, or the machines of others
    process = case.stages[load.host].executor == "process"
    most = MOST_PROCESSES * case.cores if process else sys.maxsize
    if load.share_of_call is None:
        return case.cores if _computing(case, load) else most
    return min(most, max(case.cores, int(case.cores / max(load.share_of_call, 1e-3))))


def _wanted_concurrency(case: Case, load: Load, knob: Knob) -> int:
    """Return the concurrency that would bring a stage level with what limits next.

    One more at least, twice as much at most.
    """
    others = [other.share for other in case.loads if other is not load]
    next_load = max([1.0 - case.starved, *others, 0.01])
    value = math.ceil(knob.value * load.share / next_load - 0.01)
    return min(max(value, knob.value + 1), 2 * knob.value, knob.maximum)


def _computing(case: Case, load: Load) -> bool | None:
    """Return whether the calls of a stage compute, or wait; None where both may be.

    Where it was not measured, the processor time is known of the whole process alone: calls surely
    compute where nothing else can be using it, and evidently wait where they are many more than the
    cores at work.
    """
    cpu, own = case.status.cpu_cores, case.own_cores(load)
    if load.stage.executor == "coroutine":
        return False
    if load.share_of_call is not None:
        return load.share_of_call >= COMPUTES
    if load.stage.executor_spec is not None or cpu is None or own is None:
        return None
    if own >= COMPUTES * min(load.slots, case.cores):
        return True
    return False if load.slots >= WAITS * cpu else None


# -- the interpreter lock --------------------------------------------------------------------------

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

_WAITS_FOR_LOCK = "its threads wait for Python's interpreter lock"  # and use more than one core


def _is_held(case: Case, load: Load) -> bool:
    """Return whether calls of a stage take turns on one core that nothing else explains.

    Where others use the machine, threads that take turns get less than a core: then it must have
    been measured that they wait for the lock.
    """
    executor = case.stages[load.host].executor
    cpu, own = case.status.cpu_cores, case.own_cores(load)
    if not case.locked or executor not in _HELD or case.cores == 1 or load.slots < TURNS:
        return False
    if cpu is None or own is None:
        return False
    if load.lock_share is None:
        return _in_one_core(cpu) and own >= OWN_CORES
    least = CROWDED_CORE if is_crowded(case.status, case.cores) else ONE_CORE[0]
    return load.takes_turns and cpu >= least and own >= OWN_CORES * min(1.0, cpu)


def _in_one_core(cpu_cores: float | None, least: float = ONE_CORE[0]) -> bool:
    return cpu_cores is not None and least <= cpu_cores <= ONE_CORE[1]


# -- no stage is full ------------------------------------------------------------------------------


def _event_loop(case: Case) -> Diagnosis | None:
    """Find calls that wait for the event loop, because others compute on it."""
    least = CROWDED_CORE if is_crowded(case.status, case.cores) else ONE_CORE[0]
    if not _in_one_core(case.status.cpu_cores, least):
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
    waits = {
        load.host: _waiting(case, load)
        for load in case.loads
        if load.p50_s > SLOW_S or _item_bytes(case.rows[load.host]) >= limit / FEW
    }
    name = max(waits, key=lambda name: waits[name], default="")
    if waits.get(name, 0.0) < HELD_UP:
        return None
    text = (
        f"the memory budget of {format_bytes(limit)} limits: calls of {short_name(name)} wait for "
        "room"
    )
    room = format_bytes(2 * limit).replace(" ", "")  # as one writes it
    return Diagnosis(name, f"{text}, {case.wait}", f'start with memory="{room}"')


def _item_bytes(row: StageStats) -> float:
    return row.bytes_out / max(1, row.items_out)


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
    other = "ordered=False hands results on as they come"
    return _deeper(case, Diagnosis(name, text, other), name, knob, enough)


def _bursts(case: Case) -> Diagnosis | None:
    """Find that the last buffer is full at one time and starves the loop at another.

    It cannot be both at once: where the shares say so, stages above it wait for something else.
    """
    deep = [name for name in case.rows if "prefetch" in case.stages[name].knobs]
    name = deep[-1] if deep else ""
    blocked = case.rows[name].blocked if deep else 0.0
    if blocked < HELD_UP or blocked + case.starved > 1 + HELD_UP / 2:
        return None
    text = (
        f"no stage limits, work comes in bursts: stages are blocked up to {format_share(blocked)} "
        f"of the time, and {case.wait}"
    )
    knob = case.stages[name].knobs["prefetch"]
    otherwise = Diagnosis(None, text, "make the training loop's pauses shorter")
    return _deeper(case, otherwise, name, knob, 4 * knob.value)


def _crowded(case: Case) -> Diagnosis | None:
    """Find calls that could run and wait for a core, because others use the machine."""
    if not is_crowded(case.status, case.cores):
        return None
    waits = {load.host: _waiting(case, load) for load in case.loads if load.p50_s > SLOW_S}
    name = max(waits, key=lambda name: waits[name], default="")
    full = next((case.fullness(load) for load in case.loads if load.host == name), "")
    if waits.get(name, 0.0) < HELD_UP or not full:
        return None
    text = f"calls of {short_name(name)} wait for a core, {full}: {case.wait}."
    return Diagnosis(name, text, "Look again when less runs on this machine.")


def _deeper(
    case: Case, otherwise: Diagnosis, name: str, knob: Knob | None, enough: int
) -> Diagnosis:
    """Advise a deeper buffer: twice as deep at least, four times at most; else as it is there."""
    value = 0 if knob is None else min(max(enough, 2 * knob.value), 4 * knob.value, knob.maximum)
    if knob is None or value <= knob.value:
        return otherwise
    tried = _tried(case, name, "prefetch", knob.value)
    if tried is not None:
        advice = f"prefetch {tried} gave no more: {otherwise.advice}"
        return replace(otherwise, advice=advice)
    advice = f"try {short_name(name)}.prefetch {value}"
    return replace(otherwise, advice=advice, suggestion=(name, "prefetch", value))


def _of_loader(text: str, case: Case) -> str:
    """Put the arguments of a `DataLoader` in the place of the knobs of the stage that they set."""

    def factor(found: re.Match[str]) -> str:
        return f"prefetch_factor {math.ceil(int(found[1]) / max(1, _loader_workers(case)))}"

    text = re.sub(r"\b(?:fetch\.)?prefetch (\d+)\b", factor, text)
    text = re.sub(r"\b(?:fetch\.)?concurrency\b", "num_workers", text)
    return re.sub(r"\btry (num_workers|prefetch_factor) (\d+)", r"set \1=\2", text)


def _loader_workers(case: Case) -> int:
    rows = (row.concurrency for name, row in case.rows.items() if name == "fetch")
    return next(rows, 1)


_OF_LOADER = {  # what helps a `DataLoader`, by what helps a pipeline
    _HELD["thread"][1]: 'more threads will not help: run it in processes, workers="process"',
    _TOO_SHORT: 'its calls are short for the way: run it in threads, workers="thread"',
    _SMALLER: (
        "its results are large for the way: give smaller ones, or run it in threads, "
        'workers="thread"'
    ),
    _NO_PROCESS: 'its calls wait, which many more may do in threads, workers="thread"',
    _SHORT: "its calls are short for the way: let a call do more, with a larger batch_size",
    _LARGE: (
        "its results are large for the way: give smaller ones, or run it in threads, "
        'workers="thread"'
    ),
    _SOURCE: (
        "the source is read by one call at a time: make the sampler cheaper, or have each worker "
        "process read its part of an IterableDataset, by get_worker_info()"
    ),
}

_RULES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    _loop,
    _slower,
    lambda case: _loaded(case, FULL),
    _event_loop,
    _memory,
    _stragglers,
    lambda case: _loaded(case, MOST),
    _bursts,
    _crowded,
)


def short_name(address: str) -> str:
    """Return an address for a sentence."""
    return shortened(address, _NAME)
