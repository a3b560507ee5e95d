"""Plan: which contender is measured on which workload in which round, and the taking of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from . import machine, photos
from .catalogue import Contender
from .job import ChildError, Job, measure_in_process
from .report import Column, columns_of, number
from .results import FAILED, MISSING, OK, REFUSED, Measurement, say
from .tasks import burn_loops
from .workload import LIMIT_S, Workload

T = TypeVar("T")
Runner = Callable[[Job, float], dict[str, float]]
BURN_S = 0.003


@dataclass(frozen=True, slots=True)
class Scene:
    """What is the same for every measurement.

    Attributes:
        quick: whether the small sizes are taken.
        cores: cores to use.
        loops_per_s: loops of Python in a second.
        photos: folder of the JPEG files (W3).
        no_photos: why there are none, or an empty text.
    """

    quick: bool
    cores: int
    loops_per_s: float
    photos: str
    no_photos: str = ""


@contextmanager
def scenery(*, quick: bool) -> Iterator[Scene]:
    """Write the photographs and time the interpreter; clear away after the last measurement."""
    with tempfile.TemporaryDirectory(prefix="nbpipe-photos-") as folder:
        missing = photos.missing()
        if not missing:
            photos.write_photos(Path(folder))
        yield Scene(quick, machine.cores(), burn_loops(BURN_S) / BURN_S, folder, missing)


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender on one workload, in one round, with the settings it is given."""

    workload: Workload
    contender: Contender
    round: int
    options: Mapping[str, Any]

    def job(self, scene: Scene) -> Job:
        """Return the job of this measurement."""
        workload, share = self.workload, self.contender.share.get(self.workload.key, 1.0)
        cycles = workload.cycles / 3 if scene.quick else workload.cycles
        return Job(
            workload=workload.key,
            contender=self.contender.name,
            items=max(1, int(workload.items[scene.quick] * share)),
            options=self.options,
            is_warm=workload.is_warm,
            warmup=workload.warmup,
            cycles=max(2, round(cycles * share)),
            window_s=workload.window_s / 4 if scene.quick else workload.window_s,
            burn_loops=round(scene.loops_per_s * workload.burn_s),
            floats=workload.floats,
            photos=scene.photos,
            cores=scene.cores,
        )

    def measure(self, scene: Scene, runner: Runner = measure_in_process) -> Measurement:
        """Measure it, or say why that is not possible."""
        key, contender = self.workload.key, self.contender
        status, note = self._hindrance(scene)
        values: dict[str, float] = {}
        if status == OK:
            try:
                values, note = runner(self.job(scene), LIMIT_S), contender.notes.get(key, "")
            except ChildError as error:
                status, note = FAILED, str(error)
        options = dict(self.options)
        return Measurement(key, contender.name, self.round, status, note, options, values)

    def _hindrance(self, scene: Scene) -> tuple[str, str]:
        if refusal := self.contender.refusals.get(self.workload.key, ""):
            return REFUSED, refusal
        if missing := self.contender.missing():
            return MISSING, missing
        if self.workload.shape == "decode" and scene.no_photos:
            return MISSING, scene.no_photos
        return OK, ""


def entries(
    workloads: Sequence[Workload],
    contenders: Sequence[Contender],
    rounds: int,
    more: Mapping[str, Any] | None = None,
) -> Iterator[Entry]:
    """Give all measurements, rounds interleaved: A B C, A B C, ... for each workload in turn.

    Args:
        workloads: those to be measured.
        contenders: those who are asked.
        rounds: how often each one is measured.
        more: settings in place of those of the catalogue.
    """
    for turn in range(rounds):
        for workload in workloads:
            if turn < workload.max_rounds:
                for contender in contenders:
                    if contender.takes_part(workload.key):
                        options = {**contender.settings(workload.key), **(more or {})}
                        yield Entry(workload, contender, turn, options)


def run(todo: Sequence[Entry], *, quick: bool) -> list[Measurement]:
    """Measure everything, and say what comes out."""
    found: list[Measurement] = []
    begun_s = time.perf_counter()
    with scenery(quick=quick) as scene:
        for entry in todo:
            one = entry.measure(scene)
            found.append(one)
            say(
                f"[{len(found):3d}/{len(todo)}] {time.perf_counter() - begun_s:5.0f} s  round "
                f"{one.round + 1}  {one.workload:8}{one.contender:24}"
                f"{headline(one, columns_of(one.workload)[0])}"
            )
    return found


def headline(measurement: Measurement, column: Column) -> str:
    """Return one number of a measurement, or why there is none."""
    if measurement.status != OK:
        return f"{measurement.status}: {measurement.note}"
    title, value, scale = column
    return f"{number(measurement.values[value] * scale)} {title}"


def chosen(things: Sequence[T], names: str, name: Callable[[T], str]) -> list[T]:
    """Return the things named in a comma-separated text; all of them where it is empty.

    Raises:
        SystemExit: a name is not known.
    """
    wanted = [part.strip() for part in names.split(",") if part.strip()]
    known = {name(thing): thing for thing in things}
    for word in wanted:
        if word not in known:
            raise SystemExit(f"no {word!r}; there are {', '.join(known)}")
    return [known[word] for word in wanted] if wanted else list(things)
