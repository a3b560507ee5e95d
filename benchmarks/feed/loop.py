"""Loop: what a loader takes from the loop that it feeds. It needs two cores and no GPU.

A step is what a training step is to the interpreter: short torch calls, each of which lets go of
the interpreter lock and asks for it again. The workers mostly wait. The loop runs alone, on one
batch, before the chain is opened in the same process and after it is closed: a machine whose load
changes is compared with both.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from statistics import median
from typing import Any

from ..meter import Meter
from . import work
from .chains import opened
from .job import Job, Numbers


@dataclass
class Steps:
    """What a number of steps took, each with the wait for its batch.

    Attributes:
        waits_s: of each step for its batch [s].
        own_s: of each step, from its batch to its end [s].
        cpu_s: processor time of this process [s].
        switches: voluntary switches of this process.
    """

    waits_s: list[float] = field(default_factory=list)
    own_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    switches: int = 0

    def __add__(self, other: Steps) -> Steps:
        """Return the steps of both."""
        return Steps(
            self.waits_s + other.waits_s,
            self.own_s + other.own_s,
            self.cpu_s + other.cpu_s,
            self.switches + other.switches,
        )

    @property
    def whole_s(self) -> float:
        """Mean time of a step, wait included [s]."""
        return (sum(self.waits_s) + sum(self.own_s)) / len(self.own_s)


class Loop:
    """Steps of many short torch calls in this thread."""

    def __init__(self, job: Job) -> None:
        import torch

        torch.set_num_threads(1)
        self._weights, self._job = torch.zeros(64), job

    def step(self) -> None:
        """Make one step."""
        add = self._weights.add_
        for _ in repeat(None, self._job.ops):
            add(1.0)

    def run(self, batches: Iterator[Any]) -> Steps:
        """Take the batches that are skipped, then time the steps of the others."""
        for _ in range(self._job.skipped):
            next(batches)
            self.step()
        found, cpu_s, meter = Steps(), time.process_time(), Meter()
        for _ in range(self._job.steps):
            asked_s = time.perf_counter()
            next(batches)
            got_s = time.perf_counter()
            self.step()
            found.waits_s.append(got_s - asked_s)
            found.own_s.append(time.perf_counter() - got_s)
        found.cpu_s, found.switches = time.process_time() - cpu_s, meter.switches()
        return found


def measure(job: Job) -> Numbers:
    """Measure the loop alone, fed by the chain, and alone again."""
    loop, resident = Loop(job), repeat(work.AllOf(work.waits)(range(job.size)))
    gc.collect()
    gc.freeze()
    alone = loop.run(resident)
    begun_s = time.perf_counter()
    with opened(job) as batches:
        first = next(batches)
        first_s = time.perf_counter() - begun_s
        del first
        fed = loop.run(batches)
    alone = alone + loop.run(resident)
    return {
        "whole": alone.whole_s / fed.whole_s,
        "own": median(alone.own_s) / median(fed.own_s),
        "wait": sum(fed.waits_s) / (fed.whole_s * job.steps),
        "cpu_s": fed.cpu_s / job.steps - alone.cpu_s / len(alone.own_s),
        "switches": fed.switches / job.steps - alone.switches / len(alone.own_s),
        "first_s": first_s,
        "alone_step_s": median(alone.own_s),
        "step_s": median(fed.own_s),
    }
