"""A run that never ran: fixed numbers behind the protocol that lookers know."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import nbpipe
from nbpipe import Failure, KnobChange, StageStats
from tests.show.inner import Status, addresses, record_export

NOW_S = 1_763_700_000.0
BEGUN_S = NOW_S - 40
HOSTILE = "<img src=x onerror=alert(1)>"

STATUS = Status(
    state="running",
    epoch=1,
    epochs=3,
    epochs_begun=2,
    delivered=412,
    total=1563,
    units={},
    elapsed_s=33.25,
    waited_s=20.5,
    step_s=0.0291,
    cpu_cores=1.47,
    error="",
    held_bytes=310_000_000,
    limit_bytes=2_000_000_000,
)


class Report(NamedTuple):
    """What an export says of the module that it wrote."""

    path: Path
    notes: tuple = ()


def written(path, *, overwrite):
    """Stand for an export that did its work."""
    return Report(Path("/home/ada") / path, ("a note",) if overwrite else ())


@dataclass(eq=False)
class FakeWatched:
    """Stands for a run; every field is what it will say."""

    stages: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    now: Status = STATUS
    events: tuple = ()
    lost: tuple = ()
    past: list = field(default_factory=list)
    closed: bool = False
    exporting: Callable = written
    tuner: object = None
    locks: object = None

    @property
    def _core(self):
        return self

    def status(self):
        return self.now

    def stats(self):
        return self.rows

    def history(self):
        return [dict(row) for row in self.past]

    def unnamed_failures(self):
        return self.lost

    def place(self, address):
        return None

    def lock_wait(self, address):
        return self.locks

    def pause(self):
        self.now = replace(self.now, state="paused")

    def resume(self):
        self.now = replace(self.now, state="running")

    def stop(self):
        self.now = replace(self.now, state="stopped")

    def export(self, path, *, overwrite=False):
        return self.exporting(path, overwrite=overwrite)


@dataclass
class FakeTuner:
    """Stands for a tuner that turns the concurrency of decode; every field is what it will say."""

    state: str = "searching decode"
    log: tuple = ()
    active: bool = True
    can_undo: bool = False
    left_alone: tuple = ()
    undo: Callable = None

    def turns(self, stage, knob):
        return (stage, knob) == ("decode", "concurrency")


async def read(path):
    """Stand for a stage on the event loop."""


def row(busy, starved, blocked, rate, **changes):
    """Give stats of a stage that ran for 33 s."""
    plain = {
        "items_in": int(rate * 33),
        "items_out": int(rate * 33),
        "items_per_s": rate,
        "mean_per_s": 0.97 * rate,
        "busy": busy,
        "starved": starved,
        "blocked": blocked,
        "waiting": 1 - busy - starved - blocked,
        "latency_p50_s": 0.004,
        "latency_p95_s": 0.0075,
        "latency_p99_s": 0.012,
    }
    return StageStats(**{**plain, **changes})


def photographs(**changes):
    """Give a run of six stages: decode limits, one name is hostile, one item failed.

    The last two share their worker processes, of which one only starts. Two knobs were turned
    since it was exported. `changes` are of its status.
    """
    pipe = (
        nbpipe.source(range(100_000), name="files")
        .map(read, concurrency=16, prefetch=16)
        .map(abs, name="decode", concurrency=2, prefetch=8, on_error="skip")
        .map(abs, name=HOSTILE, executor="inline")
        .batch(64, executor="process")
        .map(abs, name="normalise", executor="process")
    )
    stages = addresses(pipe.chain)
    knob = stages["decode"].knobs["concurrency"]
    knob.set(5)
    knob._last = EVENTS[-1]
    stages["batch"].knobs["concurrency"].set(2)
    knobs = {knob: knob.value for stage in stages.values() for knob in stage.knobs.values()}
    shared = stages["normalise"].knobs["concurrency"]
    record_export({**knobs, knob: 4, shared: 1}, Path("/home/ada/loader <b>.py"))
    rows = {
        "files": row(0.01, 0, 0.97, 845.2, queued=16, prefetch=16, latency_p50_s=2.1e-6),
        "read": row(
            0.31, 0, 0.69, 843.0, queued=31, prefetch=16, concurrency=16, bytes_out=3_400_000_000
        ),
        "decode": row(
            0.97, 0.02, 0, 839.6, running=5, concurrency=5, prefetch=8, errors=1, retries=2
        ),
        HOSTILE: row(0.08, 0.92, 0, 839.6, latency_p50_s=9.4e-5, prefetch=8),
        "batch": row(
            *(0.05, 0.95, 0, 13.12),
            concurrency=2,
            bytes_out=17_000_000_000,
            workers=2,
            starting=1,
            memory_bytes=310_000_000,
        ),
        "normalise": row(0.11, 0.88, 0, 13.12, running=1, concurrency=2, prefetch=2),
        "consumer": row(0.38, 0.62, 0, 13.12, latency_p50_s=0, latency_p95_s=0),
    }
    units = {name: "batches" if name in ("batch", "normalise") else "items" for name in stages}
    now = replace(STATUS, units=units, **changes)
    return FakeWatched(stages, rows, now, EVENTS, (FAILURE,), past_of(rows))


EVENTS = (
    KnobChange(BEGUN_S + 12.5, "decode.concurrency", 2, 4, "code", ""),
    KnobChange(BEGUN_S + 21.75, "decode.concurrency", 4, 5, "panel", "decode limits"),
)
FAILURE = Failure(
    stage="decode",
    path=(1204, 3),
    epoch=1,
    error="ValueError: bad header <b>JPEG</b>",
    traceback="Traceback (most recent call last):\n"
    '  File "loader.py", line 12, in decode\n'
    "    return imread(path)\n"
    "ValueError: bad header <b>JPEG</b>\n",
    input="PosixPath photographs/1204.jpg",
    attempts=3,
    when_s=BEGUN_S + 17.0,
)


def past_of(rows, seconds=40):
    """Give a history that ends in the rates of `rows`, slower before each of the changes."""
    return [
        {
            "time_s": second + 0.25,
            "paused": 0,
            "when_s": BEGUN_S + second + 0.25,
            "epoch": 0 if second < 6 else 1,
            "stage": name,
            "items_out": int(now.items_per_s * second * 0.7),
            "items_per_s": now.items_per_s * (0.4 if second < 12 else 0.8 if second < 21 else 1)
            + (second * 7919 % 13 - 6) * now.items_per_s / 120,
            "busy": now.busy,
            "starved": now.starved,
            "blocked": now.blocked,
            "queued": max(0, now.queued - second * 7 % 5),
            "running": now.running,
            "concurrency": now.concurrency,
            "prefetch": now.prefetch,
        }
        for second in range(seconds)
        for name, now in rows.items()
    ]
