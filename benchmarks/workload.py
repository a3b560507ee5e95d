"""Workloads: what is measured, how much of it, and in what unit it is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload.

    Attributes:
        key: short name.
        title: what goes through, in one line.
        shape: pipeline that the contenders build: "noop", "io", "decode", "wait", "compute" or
            "transport".
        items: items of a full measurement, and of a quick one.
        measure: module that measures it: "stream", "restart", "live", "polling" or "idle".
        is_warm: its processes have started before the clock does.
        warmup: items before the clock starts.
        cycles: repetitions inside one process.
        burn_s: Python of the consumer for each batch, or of the stage for each item [s].
        floats: float32 numbers in each array.
        window_s: seconds watched by "polling" and "idle" in one process [s].
        max_rounds: rounds it is worth; those that average inside need fewer.
    """

    key: str
    title: str
    shape: str
    items: tuple[int, int]
    measure: str = "stream"
    is_warm: bool = False
    warmup: int = 0
    cycles: int = 1
    burn_s: float = 0.0
    floats: int = 0
    window_s: float = 0.0
    max_rounds: int = 100

    @property
    def is_rated(self) -> bool:
        """Whether it has items per second, and so ratios."""
        return self.measure == "stream"


LIMIT_S = 60.0  # a child that takes longer is ended
FLOATS_OF_4_MB = 1024 * 1024
FLOATS_OF_150_KB = 224 * 224 * 3 // 4  # as many bytes as a photograph of W3
_IO = (8_000, 2_560)
_ENDLESS = (10_000_000, 10_000_000)

# fmt: off
WORKLOADS = (
    Workload("W1", "3 no-op thread stages, concurrency 4, ordered, ints", "noop",
             (100_000, 20_000), warmup=512),
    Workload("W2", "5 ms sleep x 32, then 1 ms x 8, batch 32 to torch", "io", _IO, warmup=64),
    Workload("W2b", "W2 while the consumer computes 3 ms in Python per batch", "io", _IO,
             warmup=64, burn_s=0.003),
    Workload("W2i", "W2b with the pipeline in a process of its own", "io", _IO, is_warm=True,
             warmup=640, burn_s=0.003),
    Workload("W3", "256x256 JPEG -> 224x224 -> numpy -> batch 32, threads", "decode",
             (1_280, 320), warmup=64),
    Workload("W4", "2 ms of Python -> array of 150 KB, 2 processes", "compute",
             (4_000, 1_000), is_warm=True, warmup=200, burn_s=0.002, floats=FLOATS_OF_150_KB),
    Workload("W5", "async 20 ms sleep x 256", "wait", (19_200, 5_120), warmup=512),
    Workload("W6", "arrays of 4 MB out of a process stage", "transport", (2_000, 400), is_warm=True,
             warmup=200, floats=FLOATS_OF_4_MB),
    Workload("W6s", "arrays of 150 KB out of a process stage", "transport", (20_000, 4_000),
             is_warm=True, warmup=400, floats=FLOATS_OF_150_KB),
    Workload("W7", "W2: first batch after start, then stop after 5 batches", "io",
             (9_600, 9_600), "restart", cycles=6, max_rounds=3),
    Workload("live", "grow 1 -> 32, shrink 32 -> 1 while the epoch runs", "io", _ENDLESS, "live",
             cycles=20, max_rounds=3),
    Workload("metrics", "W2 with stats() and history() read at 4 Hz, against W2 with nobody "
             "reading", "io", _ENDLESS, "polling", warmup=64, window_s=24.0, max_rounds=3),
    Workload("idle", "W2 with a consumer that does not ask for the next batch; paused, and "
             "blocked", "io", _ENDLESS, "idle", window_s=3.0, max_rounds=2),
    Workload("idle4", "W4 with a consumer that does not ask for the next item, all processes; "
             "paused, blocked", "compute", _ENDLESS, "idle", burn_s=0.002,
             floats=FLOATS_OF_150_KB, window_s=20.0, max_rounds=1),
)
# fmt: on
BY_KEY = {workload.key: workload for workload in WORKLOADS}
