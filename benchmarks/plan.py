"""Plan: which contender is measured on which workload in which round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .contender import Contender
from .job import Job
from .measurement import FAILED, MISSING, OK, REFUSED, Measurement
from .process import ChildError, measure_in_process
from .workload import Workload

Runner = Callable[[Job, float], dict[str, float]]
Watcher = Callable[[Measurement], None]


@dataclass(frozen=True, slots=True)
class Scene:
    """What is the same for every measurement.

    Attributes:
        rounds: how often each one is measured.
        quick: whether the small sizes are taken.
        cores: cores to use.
        loops_per_s: loops of pure Python in a second.
        photos: folder of the JPEG files (W3).
        no_photos: why there are none, or an empty text.
    """

    rounds: int
    quick: bool
    cores: int
    loops_per_s: float
    photos: str
    no_photos: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender on one workload, in one round, with the settings it is given."""

    workload: Workload
    contender: Contender
    round: int
    options: Mapping[str, Any]


def entries(
    workloads: Sequence[Workload], contenders: Sequence[Contender], rounds: int
) -> Iterator[Entry]:
    """Give all measurements, rounds interleaved: A B C, A B C, ... for each workload in turn."""
    for number in range(rounds):
        for workload in workloads:
            if number < workload.max_rounds:
                for contender in contenders:
                    if contender.takes_part(workload.key):
                        options = contender.options.get(workload.key, {})
                        yield Entry(workload, contender, number, options)


def job(entry: Entry, scene: Scene) -> Job:
    """Give the job of one measurement."""
    workload, quick = entry.workload, scene.quick
    items = workload.quick_items if quick else workload.items
    cycles = workload.cycles / 3 if quick else workload.cycles
    share = entry.contender.share.get(workload.key, 1.0)
    return Job(
        workload=workload.key,
        contender=entry.contender.name,
        items=max(1, int(items * share)),
        options=entry.options,
        warmup=workload.warmup,
        cycles=max(2, round(cycles * share)),
        window_s=workload.window_s / 4 if quick else workload.window_s,
        burn_loops=round(scene.loops_per_s * workload.burn_s),
        floats=workload.floats,
        photos=scene.photos,
        cores=scene.cores,
    )


def measure(entry: Entry, scene: Scene, runner: Runner = measure_in_process) -> Measurement:
    """Measure one entry, or say why that is not possible."""
    status, note = _hindrance(entry, scene)
    values: dict[str, float] = {}
    if status == OK:
        try:
            values = runner(job(entry, scene), entry.workload.limit_s)
            note = entry.contender.notes.get(entry.workload.key, "")
        except ChildError as error:
            status, note = FAILED, str(error)
    return Measurement(
        entry.workload.key,
        entry.contender.name,
        entry.round,
        status,
        note,
        dict(entry.options),
        values,
    )


def run(todo: Sequence[Entry], scene: Scene, watcher: Watcher) -> list[Measurement]:
    """Measure everything, telling `watcher` about each."""
    measurements = []
    for entry in todo:
        measurement = measure(entry, scene)
        watcher(measurement)
        measurements.append(measurement)
    return measurements


def _hindrance(entry: Entry, scene: Scene) -> tuple[str, str]:
    if refusal := entry.contender.refusals.get(entry.workload.key, ""):
        return REFUSED, refusal
    if missing := entry.contender.missing():
        return MISSING, missing
    if entry.workload.shape == "decode" and scene.no_photos:
        return MISSING, scene.no_photos
    return OK, ""
