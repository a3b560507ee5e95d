"""Plan: the parts, what each needs of the machine, and the measurements in their order."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import gpu, machine
from ..job import ChildError
from ..plan import headline
from ..report import Column
from ..results import FAILED, MISSING, OK, Measurement, say
from . import work
from .chains import CHAINS
from .job import Job, Numbers, measure_in_process

BATCHES_PER_WORKER = 4  # a shorter epoch makes its batches in the process of the loop
LIMIT_S = 60.0  # a child that takes longer is ended
OURS = ("as written", "joined", "lists", "DataLoader", "isolated", "threads")
_LATER = ("joined", "apart", "DataLoader")  # where time is short they are measured last
SPDL = ("spdl threads", "spdl process", "spdl pool")
_WAYS = {  # to the device, as `benchmarks.gpu` has them
    "nbpipe": "`to_device(device, depth=2)`",
    "pump": "a bare thread that copies",
    "spdl": "SPDL's transfer in a thread",
    "torch": "`DataLoader` that pins, 2 workers",
    "side stream": "the loop begins the next copy",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One table.

    Attributes:
        key: name in results: that of the module that measures, and what tells it from others.
        title: what is measured, in one line.
        chains: who is measured.
        columns: the numbers of the table; the first is looked at first.
        sizes: fields of a job.
        quick: fields of a quick job, in place of these.
        cores: cores that it needs.
        on_gpu: whether it needs a CUDA device.
        spare: cores that get no worker; where it is negative there are as many as the job says.
    """

    key: str
    title: str
    chains: tuple[str, ...]
    columns: tuple[Column, ...]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    cores: int = 2
    on_gpu: bool = False
    spare: int = -1

    @property
    def name(self) -> str:
        """Name of the module that measures it, and of the part on the command line."""
        return self.key.split()[0]

    def hindrance(self, cores: int, device: str | None) -> str:
        """Return why it cannot be measured here, or an empty text."""
        if self.on_gpu and device is None:
            return "it needs a CUDA GPU, and there is none"
        if cores < self.cores:
            return f"it needs {self.cores} cores, and there are {cores}"
        if self.sizes.get("work") == "photographs" and find_spec("PIL") is None:
            return "it needs Pillow: pip install pillow"
        return ""

    def job(self, chain: str, photos: str, *, quick: bool) -> Job:
        """Return the job of a chain."""
        sizes = {**self.sizes, **(self.quick if quick else {})}
        if self.spare >= 0:
            sizes["workers"] = max(2, machine.cores() - self.spare)
        if chain in CHAINS and (most := CHAINS[chain].workers):
            sizes["workers"] = most
        job = Job(self.name, chain, photos=photos, **sizes)
        return replace(job, ahead=max(job.ahead, BATCHES_PER_WORKER * job.workers))


_TRAIN: tuple[Column, ...] = (
    ("share", "share", 1),
    ("items/s", "items_per_s", 1),
    ("waits", "wait", 1),
    ("own step ms", "own_s", 1e3),
    ("the same alone", "alone_own_s", 1e3),
    ("cores of its process", "cores", 1),
    ("the same alone", "alone_cores", 1),
    ("first batch ms", "first_s", 1e3),
)
_GPU = {"size": 128, "steps": 48, "skipped": 20, "device": "cuda"}
PARTS = (
    Part(
        "calls",
        "a batch's cost in the loop's process, beside a loop that sleeps",
        (*OURS, "apart"),
        (
            ("calls/batch", "calls", 1),
            ("switches/batch", "switches", 1),
            ("CPU ms/batch", "cpu_s", 1e3),
        ),
        {"steps": 60, "skipped": 12},
        {"steps": 20, "skipped": 10},
    ),
    Part(
        "loop",
        "a loop of short torch calls beside 8 workers that mostly wait",
        ("torch", *OURS, "apart", "slots 1", "slots 8", "spdl threads", "spdl process"),
        (
            ("whole rate", "whole", 1),
            ("own step", "own", 1),
            ("waits", "wait", 1),
            ("CPU ms/batch", "cpu_s", 1e3),
            ("switches/batch", "switches", 1),
            ("first batch ms", "first_s", 1e3),
        ),
        {"steps": 100, "skipped": 12},
        {"steps": 40, "skipped": 12},
    ),
    Part(
        "decode",
        "JPEGs decoded by as many workers as cores, and dropped",
        ("bare", "torch", *OURS, *SPDL),
        (("items/s", "items_per_s", 1), ("CPU µs/item of its process", "cpu_s", 1e6)),
        {"work": "photographs", "size": 128, "steps": 48, "skipped": 32},
        {"size": 32, "steps": 32, "skipped": 32},
        cores=4,
        spare=0,
    ),
    Part(
        "train resnet50",
        "ResNet-50 on batches of 128 decoded JPEGs",
        ("as written", "torch", "lists", "threads", *SPDL, *_LATER, "isolated", "4 threads"),
        _TRAIN,
        {**_GPU, "work": "photographs", "model": "resnet50"},
        {"steps": 20},
        cores=4,
        on_gpu=True,
        spare=2,
    ),
    Part(
        "overlap",
        "the share of a copy that costs no time beside a step twice as long",
        tuple(gpu.PEERS),
        (
            ("hidden, step waits", "hidden", 1),
            ("hidden, step runs ahead", "hidden_ahead", 1),
            ("waits", "wait", 1),
            ("the same, ahead", "wait_ahead", 1),
            ("copy ms", "copy_s", 1e3),
            ("step ms", "step_s", 1e3),
        ),
        {"steps": 200},
        {"steps": 60},
        on_gpu=True,
    ),
    Part(
        "train transformer",
        "a small transformer, bound by launches, on batches made in pure Python",
        ("as written", "torch", "lists", "threads", "spdl threads", *_LATER),
        _TRAIN,
        {**_GPU, "work": "tokens", "model": "transformer"},
        {"steps": 20},
        cores=4,
        on_gpu=True,
        spare=2,
    ),
)
BY_KEY = {part.key: part for part in PARTS}
NAMES = tuple(dict.fromkeys(part.name for part in PARTS))
Runner = Callable[[Job, float], Numbers]


def text_of(chain: str) -> str:
    """Return a chain in code or words."""
    return CHAINS[chain].text if chain in CHAINS else _WAYS[chain]


@contextmanager
def photographs(parts: Sequence[Part]) -> Iterator[str]:
    """Give a folder of JPEG files while they are needed."""
    with tempfile.TemporaryDirectory(prefix="nbpipe-feed-") as folder:
        if any(part.sizes.get("work") == "photographs" for part in parts):
            work.write_photos(Path(folder))
        yield folder


def possible(parts: Sequence[Part], device: str | None) -> list[Part]:
    """Return the parts that can be measured here; write a line for each other one."""
    found = []
    for part in parts:
        if reason := part.hindrance(machine.cores(), device):
            say(f"{part.key} skipped: {reason}")
        else:
            found.append(part)
    return found


def measured(
    part: Part, chain: str, turn: int, job: Job, runner: Runner = measure_in_process
) -> Measurement:
    """Measure a chain, or say why that is not possible."""
    status, note, values = OK, "", Numbers()
    if missing := CHAINS[chain].missing() if chain in CHAINS else "":
        status, note = MISSING, missing
    else:
        try:
            values = runner(job, LIMIT_S)
        except ChildError as error:
            status, note = FAILED, str(error)
    options = {"workers": job.workers, "size": job.size}
    return Measurement(part.key, chain, turn, status, note, options, values)


def run(
    parts: Sequence[Part],
    rounds: int,
    *,
    quick: bool,
    chains: Sequence[str] = (),
    limit_s: float = float("inf"),
    runner: Runner = measure_in_process,
) -> Iterator[Measurement]:
    """Measure all chains of all parts, round by round; give each and write a line.

    Args:
        parts: parts that can be measured here.
        rounds: how often each chain is measured.
        quick: whether the small sizes are taken.
        chains: keys of chains; all of a part where there are none.
        limit_s: no measurement begins after so long [s].
        runner: takes a measurement.
    """
    todo = [
        (part, chain, turn)
        for turn in range(rounds)
        for part in parts
        for chain in part.chains
        if not chains or chain in chains
    ]
    begun_s = time.perf_counter()
    with photographs(parts) as folder:
        for place, (part, chain, turn) in enumerate(todo):
            if time.perf_counter() - begun_s > limit_s:
                say(f"stopped after {limit_s:g} s: {len(todo) - place} measurements are left")
                break
            one = measured(part, chain, turn, part.job(chain, folder, quick=quick), runner)
            say(
                f"[{place + 1:3d}/{len(todo)}] {time.perf_counter() - begun_s:4.0f} s  round "
                f"{turn + 1}  {part.key:18}{chain:14}{headline(one, part.columns[0])}"
            )
            yield one


def load() -> float:
    """Return how many processes wanted a core, on average over the last minute."""
    return round(os.getloadavg()[0], 2)
