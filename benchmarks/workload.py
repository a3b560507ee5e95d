"""Workload: what is measured, how much of it, and in what unit it is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload.

    Attributes:
        key: short name.
        title: what goes through, in one line.
        shape: pipeline that the contenders build: "noop", "io", "decode" or "wait".
        measure: module that measures it: "stream", "restart", "live", "polling" or "idle".
        items: items of a full measurement.
        quick_items: items of a quick one.
        warmup: items before the clock starts.
        cycles: repetitions inside one process.
        window_s: seconds watched by "polling" and "idle" in one process [s].
        max_rounds: rounds it is worth; those that average inside need fewer.
        limit_s: a child that takes longer is ended [s].
    """

    key: str
    title: str
    shape: str
    measure: str = "stream"
    items: int = 0
    quick_items: int = 0
    warmup: int = 0
    cycles: int = 1
    window_s: float = 0.0
    max_rounds: int = 100
    limit_s: float = 60.0


WORKLOADS = (
    Workload(
        "W1",
        "3 no-op thread stages, concurrency 4, ordered, ints",
        "noop",
        items=100_000,
        quick_items=20_000,
        warmup=512,
    ),
    Workload(
        "W2",
        "5 ms sleep x 32, then 1 ms x 8, batch 32 to torch",
        "io",
        items=8_000,
        quick_items=2_560,
        warmup=64,
    ),
    Workload(
        "W2b",
        "W2 while the consumer burns 3 ms of pure Python per batch",
        "io",
        items=8_000,
        quick_items=2_560,
        warmup=64,
    ),
    Workload(
        "W3",
        "256x256 JPEG -> 224x224 -> numpy -> batch 32, threads",
        "decode",
        items=1_280,
        quick_items=320,
        warmup=64,
    ),
    Workload(
        "W5",
        "async 20 ms sleep x 256",
        "wait",
        items=19_200,
        quick_items=5_120,
        warmup=512,
    ),
    Workload(
        "W7",
        "W2: first batch after start, then stop after 5 batches",
        "io",
        "restart",
        items=9_600,
        quick_items=9_600,
        cycles=6,
        max_rounds=3,
    ),
    Workload(
        "live",
        "grow 1 -> 32, shrink 32 -> 1 while the epoch runs",
        "io",
        "live",
        items=10_000_000,
        quick_items=10_000_000,
        cycles=20,
        max_rounds=3,
    ),
    Workload(
        "metrics",
        "W2 with stats() and history() read at 4 Hz, against W2 with nobody reading",
        "io",
        "polling",
        items=10_000_000,
        quick_items=10_000_000,
        warmup=64,
        window_s=24.0,
        max_rounds=3,
    ),
    Workload(
        "idle",
        "W2 with a consumer that does not ask for the next batch; paused, and blocked",
        "io",
        "idle",
        items=10_000_000,
        quick_items=10_000_000,
        window_s=3.0,
        max_rounds=2,
    ),
)

BY_KEY = {workload.key: workload for workload in WORKLOADS}
