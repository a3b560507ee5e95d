"""Calls: what a batch costs the loop's process beside workers that wait and a loop that sleeps.

nbpipe's Python calls are counted one by one, which slows them. So one epoch is counted, and another
one is timed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import nbpipe

from ..meter import Meter
from .chains import opened
from .job import Job, Numbers

_OURS = str(Path(nbpipe.__file__).parent)
WINDOWS = 5
WINDOW = 20  # batches
SLEEP_S = 0.02


class Counter:
    """Counts the calls of nbpipe's functions in this thread and in those that start meanwhile."""

    def __init__(self) -> None:
        self._counts: list[list[int]] = []  # of each thread, so that none is lost
        self._own = threading.local()
        self._is_ours: dict[str, bool] = {}

    @property
    def calls(self) -> int:
        """Calls so far."""
        return sum(count[0] for count in self._counts)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count while this is entered."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        name = frame.f_code.co_filename
        is_ours = self._is_ours.get(name)
        if is_ours is None:
            is_ours = self._is_ours[name] = name.startswith(_OURS)
        if is_ours:
            try:
                self._own.count[0] += 1
            except AttributeError:
                self._own.count = [1]
                self._counts.append(self._own.count)


def measure(job: Job) -> Numbers:
    """Count one epoch, then time another one."""
    return {"calls": counted(replace(job, workers=1)), **timed(job)}


def counted(job: Job) -> float:
    """Return nbpipe's calls for a batch that the loop waits for: the smallest of some windows.

    There should be one worker, so that one thing happens after another. A busy machine changes the
    order now and then, which adds calls.
    """
    counter, found = Counter(), []
    epoch = replace(job, steps=WINDOWS * WINDOW)
    with counter.counting(), opened(epoch) as batches:
        deque(islice(batches, job.skipped), 0)
        for _ in range(WINDOWS):
            before = counter.calls
            deque(islice(batches, WINDOW), 0)
            found.append(counter.calls - before)
    return min(found) / WINDOW


def timed(job: Job) -> Numbers:
    """Return switches and processor time for each batch of a loop that sleeps."""
    with opened(job) as batches:
        for step in range(job.skipped + job.steps):
            if step == job.skipped:
                cpu_s, meter = time.process_time(), Meter()
            next(batches)
            time.sleep(SLEEP_S)
        cpu_s = time.process_time() - cpu_s
        return {"switches": meter.switches() / job.steps, "cpu_s": cpu_s / job.steps}
