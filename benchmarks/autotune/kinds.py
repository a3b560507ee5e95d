"""The kinds of pipelines, as plain functions, so that each contender builds them its own way.

Waits are sleeps, and where it says so cores are simulated by sleeps, so that other work on the
machine matters little. Kinds that compute are marked.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BATCH = 4
MB = 1 << 20
MANY_MORE = 64  # batches: more than may be in progress
Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline.

    Attributes:
        name: of the stage.
        call: takes an item and returns one; the first number of an item is its index.
        in_process: calls are made in worker processes, where the contender has any.
    """

    name: str
    call: Function
    in_process: bool = False


@dataclass(frozen=True)
class Kind:
    """A pipeline with its loop.

    Attributes:
        stages: after the source of whole numbers; batches of `BATCH` items come last.
        step: the loop's own work for a batch.
        grid: by "stage.knob", the values that are tried for the best setting.
        phases: how many loads there are, one after the other.
        memory_mb: ceiling above what the process takes before its first epoch [MB], or None.
        computes: it uses real cores, so it runs alone.
    """

    stages: Sequence[Stage]
    step: Callable[[], object]
    grid: Mapping[str, Sequence[int]]
    phases: int = 1
    memory_mb: int | None = None
    computes: bool = False


class World:
    """What a pipeline runs in: the phase of its load."""

    phase = 0


def index_of(item: Any) -> int:
    """Return the number of an item: itself, or the first one in its array."""
    return int(np.asarray(item).flat[0])


# -- What calls do ---------------------------------------------------------------------------------
def jitter(number: int, spread: float = 0.2) -> float:
    """Return a factor around 1 that depends on a number alone."""
    return 1.0 + spread * (((number * 2654435761) % 1000) / 500.0 - 1.0)


def waiting(time_s: float, spread: float = 0.2) -> Function:
    """Return a function that waits about so long."""

    def wait(item: int) -> int:
        time.sleep(time_s * jitter(item, spread))
        return item

    return wait


def spin(loops: int) -> int:
    """Compute in Python."""
    total = 0
    for number in range(loops):
        total += number
    return total


def sleep_process(item: int) -> int:
    """Take as long as a call that computes on a core of its own."""
    time.sleep(0.04 * jitter(item, 0.1))
    return item


@dataclass
class Cores:
    """A few cores, simulated: who finds them taken waits.

    Attributes:
        count: how many there are.
    """

    count: int
    _busy: int = 0
    _free: threading.Condition = field(default_factory=threading.Condition)

    def computing(self, time_s: float) -> Function:
        """Return a function that takes so long on one core."""

        def compute(item: int) -> int:
            left_s = time_s * jitter(item, 0.1)
            while left_s > 1e-6:
                part_s = min(left_s, 0.01)
                with self._free:
                    while self._busy >= self.count:
                        self._free.wait()
                    self._busy += 1
                time.sleep(part_s)
                with self._free:
                    self._busy -= 1
                    self._free.notify()
                left_s -= part_s
            return item

        return compute


@dataclass
class Quota:
    """A quota of processor time in each 100 ms, simulated: who finds it spent waits."""

    cores: float
    _period: int = -1
    _left_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def computing(self, time_s: float) -> Function:
        """Return a function that spends so much of the quota."""

        def compute(item: int) -> int:
            left_s = time_s * jitter(item, 0.1)
            while left_s > 1e-6:
                now_s, part_s = time.monotonic(), min(left_s, 0.02)
                with self._lock:
                    if int(10 * now_s) != self._period:
                        self._period, self._left_s = int(10 * now_s), 0.1 * self.cores
                    goes = self._left_s > 0
                    self._left_s -= part_s if goes else 0.0
                if goes:
                    time.sleep(part_s)
                    left_s -= part_s
                else:
                    time.sleep((int(10 * now_s) + 1) / 10 - now_s + 0.0005)
            return item

        return compute


class Crowd:
    """Counts the calls in progress."""

    def __init__(self) -> None:
        self.inside = 0
        self._lock = threading.Lock()

    def __enter__(self) -> int:
        with self._lock:
            self.inside += 1
            return self.inside

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


# -- The kinds -------------------------------------------------------------------------------------
def io(_: World) -> Kind:
    """Calls wait for a disk; many may."""
    grid = {"read.concurrency": (8, 12, 14, 20)}
    return Kind([Stage("read", waiting(0.06))], lambda: time.sleep(0.02), grid)


def cpu(_: World) -> Kind:
    """Calls compute in C, without the interpreter's lock."""

    def digest(item: int) -> int:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y" * 16, 12_000)
        return item

    grid = {"digest.concurrency": (1, 2, 3, 4)}
    return Kind([Stage("digest", digest)], lambda: time.sleep(0.004), grid, computes=True)


def python_threads(_: World) -> Kind:
    """Calls compute in Python, in threads."""

    def parse(item: int) -> int:
        spin(120_000)
        return item

    grid = {"parse.concurrency": (1, 2, 4)}
    return Kind([Stage("parse", parse)], lambda: time.sleep(0.005), grid, computes=True)


def python_processes(_: World) -> Kind:
    """Calls take a core of a worker process each; simulated by sleeps."""
    grid = {"parse.concurrency": (3, 4, 5, 6)}
    return Kind([Stage("parse", sleep_process, in_process=True)], lambda: time.sleep(0.04), grid)


def mixed(_: World) -> Kind:
    """One stage waits and two compute on four cores, which are simulated."""
    cores = Cores(4)
    stages = [
        Stage("fetch", waiting(0.06)),
        Stage("decode", cores.computing(0.024)),
        Stage("augment", cores.computing(0.012)),
    ]
    grid = {
        "fetch.concurrency": (6, 8, 11),
        "decode.concurrency": (2, 3, 4),
        "augment.concurrency": (1, 2),
    }
    return Kind(stages, lambda: time.sleep(0.02), grid)


def lock(_: World) -> Kind:
    """Calls hold a lock for a part of their time, which is longer while others wait for it."""
    held, crowd = threading.Lock(), Crowd()

    def query(item: int) -> int:
        time.sleep(0.008 * jitter(item, 0.1))
        with crowd, held:
            time.sleep(0.006 * (1.0 + 0.3 * (crowd.inside - 1)))
        return item

    grid = {"query.concurrency": (1, 2, 3, 4, 6)}
    return Kind([Stage("query", query)], lambda: time.sleep(0.005), grid)


def bursty(_: World) -> Kind:
    """The loop pauses for a second after every 40 steps."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        time.sleep(1.0 if steps % 40 == 0 else 0.01)

    grid = {"read.concurrency": (4, 6, 10, 16), "batch.prefetch": (2, 32)}
    return Kind([Stage("read", waiting(0.04))], step, grid)


def consumer(_: World) -> Kind:
    """The loop sets the pace."""
    grid = {"read.concurrency": (1, 2)}
    return Kind([Stage("read", waiting(0.005))], lambda: time.sleep(0.06), grid)


def memory(_: World) -> Kind:
    """Results are large, and the ceiling leaves room for few of them."""

    def load(item: int) -> Any:
        time.sleep(0.05 * jitter(item, 0.1))
        return np.full(MB, item, np.uint32)

    grid = {"load.concurrency": (4, 6, 8, 10), "load.prefetch": (1, 8)}
    return Kind([Stage("load", load)], lambda: time.sleep(0.025), grid, memory_mb=160)


def quota(_: World) -> Kind:
    """Calls compute under a quota of three cores, which is simulated."""
    decode = Stage("decode", Quota(3).computing(0.02))
    return Kind([decode], lambda: time.sleep(0.01), {"decode.concurrency": (2, 3, 4, 5, 8)})


def eight(_: World) -> Kind:
    """One of eight stages is slow."""
    stages = [Stage(f"stage{n}", waiting(0.05 if n == 4 else 0.002)) for n in range(8)]
    grid = {"stage4.concurrency": (6, 8, 10, 14)}
    return Kind(stages, lambda: time.sleep(0.025), grid)


def remote(_: World) -> Kind:
    """A server answers later, the more calls it has."""
    crowd = Crowd()

    def get(item: int) -> int:
        with crowd as inside:
            time.sleep(0.05 * (1 + (inside / 9) ** 2) * jitter(item, 0.1))
        return item

    grid = {"get.concurrency": (4, 6, 7, 8, 9, 11, 14)}
    return Kind([Stage("get", get)], lambda: time.sleep(0.012), grid)


def changing(world: World) -> Kind:
    """In the second phase each call takes two and a half times as long."""

    def read(item: int) -> int:
        time.sleep((0.1 if world.phase else 0.04) * jitter(item))
        return item

    grid = {"read.concurrency": (8, 16, 20, 24, 32)}
    return Kind([Stage("read", read)], lambda: time.sleep(0.02), grid, phases=2)


def growing(world: World) -> Kind:
    """In the second phase results are ten times as large, and the ceiling stays."""
    large: list[int] = []  # the first item that is: all of a batch are

    def load(item: int) -> Any:
        time.sleep(0.05 * jitter(item, 0.1))
        if world.phase and not large:
            large.append((item // BATCH + MANY_MORE) * BATCH)
        grown = bool(large) and item >= large[0]
        return np.full(MB if grown else MB // 10, item, np.uint32)

    grid = {"load.concurrency": (4, 6, 8), "load.prefetch": (1, 4, 8)}
    stages = [Stage("load", load)]
    return Kind(stages, lambda: time.sleep(0.04), grid, phases=2, memory_mb=140)


def tail(_: World) -> Kind:
    """One call of 35 takes twenty times as long, and results are handed on in order."""

    def read(item: int) -> int:
        time.sleep(0.015 * jitter(item) * (20 if item % 35 == 34 else 1))
        return item

    grid = {"read.concurrency": (6, 8, 12), "read.prefetch": (8, 32, 128)}
    return Kind([Stage("read", read)], lambda: time.sleep(0.02), grid)


def stolen(world: World) -> Kind:
    """In the second phase others use half of the four cores, which are simulated."""
    cores = Cores(4)

    def decode(item: int) -> int:
        cores.count = 2 if world.phase else 4
        return compute(item)

    compute = cores.computing(0.02)
    grid = {"decode.concurrency": (1, 2, 3, 4)}
    return Kind([Stage("decode", decode)], lambda: time.sleep(0.015), grid, phases=2)


def slowed(_: World) -> Kind:
    """Calls compute in Python beside a loop that does so as well: they slow its steps."""

    def read(item: int) -> int:
        time.sleep(0.012 * jitter(item, 0.1))
        spin(30_000)
        return item

    grid = {"read.concurrency": (1, 2, 3, 4, 6)}
    return Kind([Stage("read", read)], lambda: spin(400_000), grid, computes=True)


KINDS: dict[str, Callable[[World], Kind]] = {
    one.__name__: one
    for one in (
        *(io, cpu, python_threads, python_processes, mixed, lock, bursty, consumer, memory, quota),
        *(eight, remote, changing, growing, tail, stolen, slowed),
    )
}
