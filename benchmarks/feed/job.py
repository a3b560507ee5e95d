"""Job: one measurement of a chain, taken in a fresh process.

`python -m benchmarks.feed.job` is that process: it reads a job from stdin and writes its numbers to
stdout.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module

import psutil

from ..job import answer_of

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class Job:
    """What a child process is asked to measure; travels as JSON.

    Attributes:
        part: "calls", "loop", "decode", "train" or "overlap".
        chain: key of a chain, as "joined"; of a way to the device in `overlap`.
        work: what makes an item: "waits", "tokens" or "photographs".
        size: items of a batch.
        workers: worker processes or threads.
        steps: batches that are measured.
        skipped: batches before the first that is measured.
        ahead: batches after the last that is measured.
        ops: short torch calls of a step (`loop`).
        model: "resnet50" or "transformer" (`train`).
        device: device of the batches, as "cuda"; none where it is empty.
        photos: folder of the JPEG files.
    """

    part: str
    chain: str
    work: str = "waits"
    size: int = 32
    workers: int = 8
    steps: int = 100
    skipped: int = 24
    ahead: int = 40
    ops: int = 2_500
    model: str = ""
    device: str = ""
    photos: str = ""

    @property
    def batches(self) -> int:
        """Batches of the epoch: workers are at work until the last one that is measured."""
        return self.skipped + self.steps + self.ahead


def measure_in_process(job: Job, limit_s: float) -> Numbers:
    """Measure a job in a process of its own.

    Raises:
        ChildError: it failed, or took longer than `limit_s`; it and its children are ended.
    """
    numbers: Numbers = answer_of(__name__, asdict(job), limit_s)
    return numbers


def main() -> None:
    """Take the job from stdin, keep stdout for the answer; end without waiting for workers."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = Job(**json.load(sys.stdin))
    numbers = import_module(f"{__package__}.{job.part}").measure(job)
    for child in psutil.Process().children(recursive=True):  # a fork of us keeps our pipes open
        with suppress(psutil.NoSuchProcess):
            child.kill()
    with answer:
        json.dump(numbers, answer)
    os._exit(0)  # nothing of a peer is worth waiting for


if __name__ == "__main__":
    main()
