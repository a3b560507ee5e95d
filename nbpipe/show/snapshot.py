"""Snapshot: a run at one moment as JSON-ready values. Everything that shows a run reads it."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypedDict

from ..base.format import plain, shortened
from ..engine.measures.stats import StageStats, Status
from ..engine.nodes.failures import Failure
from ..ops.device import Target
from ..ops.stage import CONSUMER, Stage, regions_of
from .diagnose import diagnose_from
from .history import WINDOW_S, averaged, steady_ticks, unix_zero_s, with_gaps
from .verdict.diagnosis import HANGS, Diagnosis
from .watch import RunView, TunerView, changes_since_export, taken_back, title_of

VERSION: Final = 1
NAME, LINE = 200, 500  # most characters of a name, of a line
TRACE = 4000  # most characters of a traceback
CHANGES, FAILURES = 50, 5  # so many of the last are shown
_ENOUGH = 20  # items that make the rate of these seconds a steady one
_MOST = 1e300  # larger numbers, and those that are not finite, are sent as 0
_MOST_KNOBS = 50  # knobs
_LONGEST_LINK = 300  # characters
# The address of a page comes from outside. No user name before the host: a snapshot may be saved.
_PAGE = re.compile(r"https?://[A-Za-z0-9_.:\[\]-]+([/?#][!-~]*)?", re.IGNORECASE)


# -- The protocol: what each field may hold, at most; the front end reads all of it ----------------
class Limits(NamedTuple):
    """The least and the most of a number, or of the length of a text or list."""

    least: float
    most: float


Integer = Annotated[int, Limits(1 - 2**53, 2**53 - 1)]  # exact in JavaScript
Count = Annotated[int, Limits(0, 2**63)]
Seconds = Annotated[float, Limits(-_MOST, _MOST)]
Amount = Annotated[float, Limits(0, _MOST)]
Share = Annotated[float, Limits(0, 1)]
Name = Annotated[str, Limits(0, NAME)]
Line = Annotated[str, Limits(0, LINE)]
PageLink = Annotated[str, Limits(0, _LONGEST_LINK), _PAGE]
State = Annotated[
    str,
    Literal["ready", "running", "paused", "finished", "stopped", "cancelled", "failed", "closed"],
]
Action = Annotated[
    str,
    Literal[
        "pause", "resume", "stop", "undo", "autotune", "autotune_stop", "autotune_undo", "export"
    ],
]
Severity = Annotated[str, Literal["good", "info", "warning", "error"]]
Kind = Annotated[
    str,
    Literal["limits", "keeps_up", "slower", "slows", "hangs", "starts", "failed", "empty"],
]


class KnobPart(TypedDict):
    """A knob of a stage."""

    name: Name
    value: Integer
    minimum: Integer
    maximum: Integer
    default: Integer
    unit: Name


class WorkersPart(TypedDict):
    """Who does a stage's calls outside the run's threads; `link` is a page that shows them."""

    count: Count
    starting: Count
    memory_bytes: Count
    link: PageLink | None


class StageFrame(TypedDict):
    """A stage without its numbers.

    `place` is one word for where its calls run: the executor, a device, "isolated". Neighbours
    that share their workers are a region: the first of them has the workers, and `shares` of the
    others is its address.
    """

    address: Name
    op: Name
    executor: Name
    place: Name
    unit: Name
    workers: WorkersPart | None
    shares: Name | None
    knobs: Annotated[list[KnobPart], Limits(0, _MOST_KNOBS)]


class StagePart(StageFrame):
    """A stage.

    `held_bytes` is what it holds on its device, None elsewhere. `bound` is the most it holds,
    running and finished [items]; where it works in chunks, it may hold one more of them, and then
    what it holds is the bound. Of a region, the first stage has the calls in progress; the last
    one has the bound, and that of those before it is 0: their results do not leave the worker.
    """

    items_out: Count
    items_per_s: Amount
    mean_per_s: Amount
    busy: Share
    starved: Share
    blocked: Share
    waiting: Share
    running: Count
    concurrency: Count
    queued: Count
    prefetch: Count
    bound: Count
    errors: Count
    retries: Count
    latency_p50_s: Amount
    latency_p95_s: Amount
    bytes_per_s: Amount | None
    held_bytes: Count | None


class MemoryPart(TypedDict):
    """What the buffers hold, and the budget for it."""

    held_bytes: Count
    limit_bytes: Count


class KnobTarget(TypedDict):
    """A knob and a value for it."""

    stage: Name
    knob: Name
    value: Integer


class DiagnosisPart(TypedDict):
    """What limits, how it was seen, and what to try.

    A run may be over and still have an error.
    """

    kind: Kind
    severity: Severity
    stage: Name | None
    text: Line
    evidence: Line
    advice: Line
    code: Line
    suggestion: KnobTarget | None


class ChangePart(TypedDict):
    """A change of a knob; `taken_back` marks a tuner's trial that was taken back."""

    when_s: Seconds
    knob: Name
    old: Integer
    new: Integer
    by: Name
    why: Line
    taken_back: bool


class TunedPart(TypedDict):
    """A decision of a tuner; `knob` is "" where it turned none.

    `before` is the rate that was measured last before it, `after` the next one after it
    [batches/s]; None where none was measured.
    """

    when_s: Seconds
    knob: Name
    old: Integer
    new: Integer
    why: Line
    before: Amount | None
    after: Amount | None
    taken_back: bool


class TunerPart(TypedDict):
    """What turns knobs by itself.

    It is `active` until it ends. `left_alone` are knobs that others turned, with their values.
    `done` are its last decisions, oldest first; None where they are as in the snapshot before.
    """

    active: bool
    state: Line
    left_alone: Annotated[list[KnobTarget], Limits(0, _MOST_KNOBS)]
    done: Annotated[list[TunedPart], Limits(0, CHANGES)] | None


class FailurePart(TypedDict):
    """An item that failed."""

    stage: Name
    path: Name
    epoch: Integer
    error: Line
    traceback: Annotated[str, Limits(0, TRACE)]
    input: Line
    attempts: Count
    when_s: Seconds


class TurnedPart(TypedDict):
    """A knob that was turned since the last export: its value in the file, and now."""

    stage: Name
    knob: Name
    old: Integer
    new: Integer


class ExportPart(TypedDict):
    """The last export: the name of the file, and what was turned since."""

    file: Name
    turned: Annotated[list[TurnedPart], Limits(0, _MOST_KNOBS)]


class Snapshot(TypedDict):
    """A run at one moment; `undo` and `actions` are for views that can control the run.

    `resumed` are those of `delivered` that came before the state from which the epoch resumed;
    `skipped` are items of the epoch that failed and were left out; `ahead`: the next epoch is
    being read already; `step_s` is the loop's median step, `step_at_rest_s` that beside resting
    workers, where these slow it; `process_bytes` is the memory of the stages' own process, None
    without one; `changes` and `failures` are None where they are as in the snapshot before.
    """

    version: Literal[1]
    title: Name
    time_s: Seconds
    state: State
    epoch: Integer
    epochs: Count | None
    epochs_begun: Count | None
    delivered: Count
    resumed: Count
    total: Count | None
    unit: Name
    skipped: Count
    ahead: bool
    items_per_s: Amount
    elapsed_s: Amount
    left_s: Amount | None
    waited_s: Amount
    waited_share: Share
    step_s: Amount | None
    step_at_rest_s: Amount | None
    cpu_cores: Amount | None
    memory: MemoryPart | None
    process_bytes: Count | None
    error: Line
    stages: list[StagePart]
    diagnosis: DiagnosisPart
    undo: KnobTarget | None
    actions: list[Action]
    tuner: TunerPart | None
    changes: Annotated[list[ChangePart], Limits(0, CHANGES)] | None
    failures: Annotated[list[FailurePart], Limits(0, FAILURES)] | None
    export: ExportPart | None


class _Row(NamedTuple):
    """A stage in a frame.

    Attributes:
        address: of the stage.
        part: all but its numbers.
        calls: address of the stage whose calls in progress it shows; "" where another shows them.
        is_last: whether results wait after it: it is the last of those that share their workers.
        on_device: whether they wait on a device.
    """

    address: str
    part: StageFrame
    calls: str
    is_last: bool
    on_device: bool


class Frame(NamedTuple):
    """The parts of a snapshot that change rarely; the numbers are set in it."""

    title: str
    rows: Sequence[_Row]
    diagnosis: DiagnosisPart
    tuner: TunerPart | None
    changes: list[ChangePart] | None
    failures: list[FailurePart] | None
    export: ExportPart | None


def snapshot(watched: RunView, *, changes: bool = True, failures: bool = True) -> Snapshot:
    """Return how a run is at this moment.

    Args:
        watched: the run.
        changes: with the last knob changes; without them the field is None.
        failures: with the last failed items; without them the field is None.
    """
    status, stats = watched.status(), dict(watched.stats())
    frame = frame_of(watched, status, stats)
    frame = frame if changes else frame._replace(changes=None)
    return in_frame(frame if failures else frame._replace(failures=None), status, stats)


def frame_of(watched: RunView, status: Status, stats: Mapping[str, StageStats]) -> Frame:
    """Return the frame of a run, of which a status and stats were read."""
    stages = watched.stages
    return Frame(
        title=shortened(label(title_of(watched)), NAME),
        rows=[
            _row(address, stages[address], region, status, stats)
            for region in regions(stages)
            for address in region
            if address in stats
        ],
        diagnosis=_diagnosis(diagnose_from(watched, status, stats)),
        tuner=_tuner_part(watched.tuner),
        changes=_change_parts(watched),
        failures=_failures(watched._core.unnamed_failures()[-FAILURES:]),
        export=_export(stages),
    )


def in_frame(frame: Frame, status: Status, stats: Mapping[str, StageStats]) -> Snapshot:
    """Return a snapshot: the numbers of a status and stats in a frame of the same stages."""
    loop = stats.get(CONSUMER) or StageStats()
    hangs = frame.diagnosis["kind"] == HANGS
    return {
        "version": VERSION,
        "title": frame.title,
        "time_s": round(time.time(), 3),
        "state": status.state,
        "epoch": status.epoch,
        "epochs": status.epochs,
        "epochs_begun": status.epochs_begun,
        "delivered": status.delivered,
        "resumed": status.resumed,
        "total": status.total,
        "unit": status.unit,
        "skipped": status.skipped,
        "ahead": status.ahead,
        "items_per_s": rounded(loop.items_per_s),
        "elapsed_s": _rounded_s(status.elapsed_s),
        "left_s": None if hangs else _left_s(status, loop.items_per_s),
        "waited_s": _rounded_s(status.waited_s),
        "waited_share": _rounded_share(status.waited_share if status.is_over else loop.starved),
        "step_s": None if status.step_s is None else rounded(status.step_s),
        "step_at_rest_s": None if status.step_at_rest_s is None else rounded(status.step_at_rest_s),
        "cpu_cores": None if status.cpu_cores is None else rounded(status.cpu_cores),
        "memory": _memory(status),
        "process_bytes": status.process_bytes if status.isolated else None,
        "error": line(status.error),
        "stages": [_with_numbers(row, status, stats) for row in frame.rows],
        "diagnosis": frame.diagnosis,
        "undo": None,
        "actions": [],
        "tuner": frame.tuner,
        "changes": frame.changes,
        "failures": frame.failures,
        "export": frame.export,
    }


def snapshot_key(snapshot: Snapshot) -> object:
    """Return a value that two snapshots share where they differ in their time alone."""
    return {**snapshot, "time_s": None}


def regions(stages: Mapping[str, Stage]) -> list[list[str]]:
    """Split stages into regions, by address; a stage that shares no workers is alone."""
    addresses = iter(stages)
    return [[next(addresses) for _ in region] for region in regions_of(tuple(stages.values()))]


def _change_parts(watched: RunView) -> list[ChangePart]:
    """Return the last knob changes as JSON-ready values."""
    trials = taken_back(watched)
    return [
        {
            "when_s": round(event.when_s, 3),
            "knob": label(event.knob),
            "old": event.old,
            "new": event.new,
            "by": label(event.by),
            "why": line(event.why),
            "taken_back": (event.when_s, event.knob) in trials,
        }
        for event in watched.events[-CHANGES:]
    ]


def _tuner_part(tuner: TunerView | None) -> TunerPart | None:
    """Return a tuner as JSON-ready values."""
    if tuner is None:
        return None
    return {
        "active": tuner.active,
        "state": line(tuner.state),
        "left_alone": [
            {"stage": label(stage), "knob": knob, "value": value}
            for stage, knob, value in tuner.left_alone[:_MOST_KNOBS]
        ],
        "done": [
            {
                "when_s": round(one.when_s, 3),
                "knob": label(one.knob),
                "old": one.old,
                "new": one.new,
                "why": line(one.text),
                "before": rounded(one.rate) if one.rate > 0 else None,
                "after": rounded(one.after) if one.after > 0 else None,
                "taken_back": one.taken_back,
            }
            for one in tuner.log[-CHANGES:]
        ],
    }


def _left_s(status: Status, items_per_s: float) -> float | None:
    """Estimate the time to the end of the epoch; None where nothing supports an estimate."""
    if status.state != "running" or status.total is None or not status.delivered:
        return None
    recent = items_per_s * min(WINDOW_S, status.elapsed_s)
    done = status.delivered - status.resumed
    mean_per_s = done / status.elapsed_s if status.elapsed_s > 0 else 0.0
    per_s = items_per_s if recent >= _ENOUGH else mean_per_s
    if not per_s > 0:
        return None
    return _rounded_s(max(0, status.total - status.delivered) / per_s)


def _memory(status: Status) -> MemoryPart | None:
    if status.held_bytes is None or status.limit_bytes is None:
        return None
    return {"held_bytes": status.held_bytes, "limit_bytes": status.limit_bytes}


def _row(
    address: str,
    stage: Stage,
    region: Sequence[str],
    status: Status,
    stats: Mapping[str, StageStats],
) -> _Row:
    row, is_first, is_last = stats[address], address == region[0], address == region[-1]
    part: StageFrame = {
        "address": label(address),
        "op": label(stage.op),
        "executor": label("inline" if status.by_loop else stage.executor),
        "place": _place(address, stage, status),
        "unit": status.units.get(address, "items"),
        "workers": _workers(stage, row, status.links.get(address)) if is_first else None,
        "shares": None if is_first else label(region[0]),
        "knobs": [] if status.by_loop else _knobs(stage, is_last=is_last),
    }
    calls = region[-1] if region[-1] in stats else address
    return _Row(address, part, calls if is_first else "", is_last, stage.executor == "device")


def _with_numbers(row: _Row, status: Status, stats: Mapping[str, StageStats]) -> StagePart:
    now = stats[row.address]
    busy, starved, blocked = map(_rounded_share, (now.busy, now.starved, now.blocked))
    known = now.bytes_out > 0 and now.items_out > 0
    bound = max(now.prefetch + now.concurrency, now.queued)
    held_bytes = now.queued * now.bytes_out // max(1, now.items_out)
    before = not status.has_begun  # no time has passed that could go anywhere
    return {
        **row.part,
        "items_out": now.items_out,
        "items_per_s": rounded(now.items_per_s),
        "mean_per_s": rounded(now.mean_per_s),
        "busy": busy,
        "starved": starved,
        "blocked": blocked,
        "waiting": 0.0 if before else round(max(0.0, 1.0 - busy - starved - blocked), 3),
        "running": stats[row.calls].running if row.calls else 0,
        "concurrency": now.concurrency,
        "queued": now.queued,
        "prefetch": now.prefetch,
        "bound": bound if row.is_last and not status.by_loop else 0,
        "errors": now.errors,
        "retries": now.retries,
        "latency_p50_s": rounded(now.latency_p50_s),
        "latency_p95_s": rounded(now.latency_p95_s),
        "bytes_per_s": rounded(now.bytes_out / now.items_out * now.items_per_s) if known else None,
        "held_bytes": held_bytes if row.on_device else None,
    }


def _place(address: str, stage: Stage, status: Status) -> str:
    """Return a word for where the calls of a stage run."""
    if status.by_loop:
        return "inline"
    if stage.executor_spec is not None and isinstance(stage.executor_spec.given, Target):
        return label(stage.executor_spec.given.device)
    outside = stage.executor_spec is not None  # its calls are in workers wherever the run is
    if address in status.isolated and not outside:
        return "isolated"
    return label(f"{stage.executor}: {stage.why}" if stage.why else stage.executor)


def _workers(stage: Stage, row: StageStats, link: str | None) -> WorkersPart | None:
    unknown = stage.executor == "executor" and not row.workers
    if stage.executor_spec is None or stage.executor == "device" or unknown:
        return None
    return {
        "count": row.workers,
        "starting": row.starting,
        "memory_bytes": row.memory_bytes,
        "link": page_link(link),
    }


def _knobs(stage: Stage, *, is_last: bool) -> list[KnobPart]:
    return [
        {
            "name": name,
            "value": knob.value,
            "minimum": knob.minimum,
            "maximum": knob.maximum,
            "default": knob.default,
            "unit": knob.unit,
        }
        for name, knob in stage.knobs.items()
        if is_last or name != "prefetch"  # nothing waits after the others
    ]


def _diagnosis(found: Diagnosis) -> DiagnosisPart:
    target: KnobTarget | None = None
    if found.suggestion is not None:
        stage, knob, value = found.suggestion
        target = {"stage": label(stage), "knob": knob, "value": value}
    return {
        "kind": found.kind,
        "severity": found.severity,
        "stage": None if found.stage is None else label(found.stage),
        "text": line(found.text),
        "evidence": line(found.evidence),
        "advice": line(found.advice),
        "code": line(found.code),
        "suggestion": target,
    }


def _failures(failures: Sequence[Failure]) -> list[FailurePart]:
    return [
        {
            "stage": label(failure.stage),
            "path": label(str(failure.path)),
            "epoch": failure.epoch,
            "error": line(failure.error),
            "traceback": plain(failure.traceback)[-TRACE:],
            "input": line(failure.input),
            "attempts": failure.attempts,
            "when_s": round(failure.when_s, 3),
        }
        for failure in failures
    ]


def _export(stages: Mapping[str, Stage]) -> ExportPart | None:
    since = changes_since_export(stages)
    if since is None:
        return None
    return {
        "file": shortened(since.path.name, NAME),
        "turned": [
            {
                "stage": label(one.stage),
                "knob": label(one.knob),
                "old": one.exported,
                "new": one.now,
            }
            for one in since.changes[:_MOST_KNOBS]
        ],
    }


# -- History: rates over time ----------------------------------------------------------------------
POINTS = 600


class HistoryPart(TypedDict):
    """Rates of each stage, and of the loop as "consumer" [items/s], at `time_s` (Unix) [s].

    They are None where nothing ran, between two epochs; `epoch` is the number of the last one.
    `time_s` ascends, and each column is as long.
    """

    time_s: Annotated[list[Seconds], Limits(0, POINTS)]
    stages: dict[Name, list[Amount | None]]
    changes: Annotated[list[ChangePart], Limits(0, CHANGES)]
    epoch: Integer | None


def history(watched: RunView, points: int = POINTS) -> HistoryPart:
    """Return the rates of all stages over time.

    Args:
        watched: the run.
        points: most times; of more, some are left out evenly.
    """
    ticks = averaged(steady_ticks(watched.history()))
    timed = with_gaps(ticks)
    if len(timed) > points:  # a gap takes two
        most = max(points // 3, points - len(timed) + len(ticks))
        timed = with_gaps([ticks[place] for place in spread(len(ticks), most)])
    names = {str(row["stage"]): None for _, tick in timed for row in tick}
    columns: dict[str, list[float | None]] = {name: [] for name in names}
    for place, (_, tick) in enumerate(timed):
        if not tick and place and not timed[place - 1][1]:
            tick = timed[place + 1][1]  # noqa: PLW2901  an epoch begins: as its first row says
        rates = {str(row["stage"]): rounded(float(row["items_per_s"])) for row in tick}
        for name, column in columns.items():
            column.append(rates.get(name, 0.0) if tick else None)
    zero_s = unix_zero_s(ticks)
    return {
        "time_s": [round(zero_s + time_s, 3) for time_s, _ in timed],
        "stages": {label(name): column for name, column in columns.items()},
        "changes": _change_parts(watched),
        "epoch": int(ticks[-1][0]["epoch"]) if ticks else None,
    }


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` places out of `count`, evenly spread, the last one among them."""
    if count <= most:
        return list(range(count))
    return [(number + 1) * count // most - 1 for number in range(most)]


# -- Text and numbers as a message may hold them: short, finite, in UTF-8 --------------------------
def rounded(number: float) -> float:
    """Return a finite number with four digits: messages are to be small."""
    return float(f"{number:.4g}") if -_MOST < number < _MOST else 0.0


def _rounded_s(time_s: float) -> float:
    """Return a finite time in hundredths of a second."""
    return round(time_s, 2) if math.isfinite(time_s) else 0.0


def _rounded_share(number: float) -> float:
    """Return a share of 1 with three digits, which gives the same percent as it does itself."""
    if not math.isfinite(number):
        return 0.0
    share = min(1.0, max(0.0, number))
    rounded_share = round(share, 3)
    rises = math.floor(100 * rounded_share + 0.5) > math.floor(100 * share + 0.5)
    return round(rounded_share - 0.001 * rises, 3)  # 64.47% is 64%, not 64.5%


def line(text: str) -> str:
    """Return text in one bounded line that can be written as UTF-8."""
    return shortened(text, LINE)


@functools.lru_cache(maxsize=256)
def label(text: str) -> str:
    """Return a bounded name, its spaces kept: it is what the front end asks for."""
    return plain(text)[:NAME]


def page_link(address: object) -> str | None:
    """Return the address of a web page; None for any other link."""
    if not isinstance(address, str) or len(address) > _LONGEST_LINK:
        return None
    return address if _PAGE.fullmatch(address) else None
