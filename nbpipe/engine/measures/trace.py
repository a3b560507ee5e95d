"""TraceEvents: what a run did and when, in bounded memory, for a trace."""

from __future__ import annotations

import os
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple, final

from ...base.seeding import Path
from ..nodes.node import Task, title_of
from .counters import StageRuntime

EVENT_LOOP = -1  # in place of a thread


class TraceSlice(NamedTuple):
    """A call, or a chunk of short ones.

    Attributes:
        thread: number of the thread, or `EVENT_LOOP`.
        started_ns, ended_ns: when, on the clock of `perf_counter_ns`.
        stage: the stage.
        others: further stages that the items passed.
        stage_first: they passed that stage before those.
        path: of the first item; None if it is not known.
        items: how many were worked on.
        worker: process id of the worker that did it, and when it had; zeros without one [ns].
        away_ns: time of it in no function [ns].
    """

    thread: int
    started_ns: int
    ended_ns: int
    stage: StageRuntime
    others: tuple[StageRuntime, ...]
    stage_first: bool
    path: Path | None
    items: int
    worker: tuple[int, int]
    away_ns: int

    @property
    def name(self) -> str:
        """The addresses of all stages, in order."""
        return title_of(self.stage, self.others, own_first=self.stage_first)

    @property
    def busy_ns(self) -> int:
        """Time in functions [ns]."""
        return max(0, self.ended_ns - self.started_ns - self.away_ns)


# As `TraceSlice`, of a tuple of its fields; without a call of a Python function.
_slice_of: Callable[[tuple[Any, ...]], TraceSlice] = partial(tuple.__new__, TraceSlice)


class TracedCall(NamedTuple):
    """A call, or a chunk of short ones, in plain values: another process can send it.

    Attributes:
        thread: number of the thread, or `EVENT_LOOP`.
        started_ns, ended_ns: when, on the clock of `perf_counter_ns`, which processes share.
        name: the addresses of its stages.
        place: the path of the first item; empty if it is not known.
        items: how many were worked on.
        worker: process id of the worker that did it, and when it had; zeros without one [ns].
        busy_ns: time in functions [ns].
    """

    thread: int
    started_ns: int
    ended_ns: int
    name: str
    place: str
    items: int
    worker: tuple[int, int]
    busy_ns: int


class TracedCalls(NamedTuple):
    """The calls of one process.

    Attributes:
        pid: its process id.
        calls: the last ones, in the order of their starts.
        threads: the names of the threads, by number.
        left_out: how many earlier calls are missing.
    """

    pid: int
    calls: list[TracedCall]
    threads: dict[int, str]
    left_out: int


@final
class TraceEvents:
    """The last calls of a run and the last waits of its loop.

    Args:
        most: how many of each are kept.

    Attributes:
        most: how many of each are kept.
        begun_ns: when it began, on the clock of `perf_counter_ns`.
        begun_unix_ns: the same moment, since the Unix epoch.
        slices: the last calls.
        waits: when the loop began and ended to wait.
        threads: the names of the threads, by number.
        calls, waited: how many there were.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.begun_ns, self.begun_unix_ns = perf_counter_ns(), time_ns()
        self.slices: deque[TraceSlice] = deque(maxlen=most)
        self.waits: deque[tuple[int, int]] = deque(maxlen=most)
        self.threads: dict[int, str] = {}
        self.calls = self.waited = 0

    def add(self, task: Task) -> None:
        """Add a task that has ended; called by the thread that did it, under the lock."""
        started_ns = task.started_ns
        if not started_ns:  # its epoch was over before it began
            return
        node, thread, paths = task.node, get_ident(), task.paths
        if node.remote:
            thread = EVENT_LOOP
        elif thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        self.calls += 1
        self.slices.append(
            _slice_of(
                (
                    thread,
                    started_ns,
                    task.ended_ns,
                    node.runtime,
                    node.rest_runtimes,
                    node.own_first,
                    paths[0] if paths else None,
                    task.inputs or len(task.results),
                    task.worker,
                    task.away_ns,
                )
            )
        )

    def add_wait(self, begun_ns: int, ended_ns: int) -> None:
        """Add a wait of the loop; called by its thread."""
        self.waited += 1
        self.waits.append((begun_ns, ended_ns))

    def leave_out(self, address: str) -> None:
        """Forget the calls of a stage."""
        kept = [one for one in self.slices if one.name != address]
        self.calls -= len(self.slices) - len(kept)
        self.slices = deque(kept, self.most)

    def traced(self) -> TracedCalls:
        """Return the calls of this process, once no more come."""
        calls = [
            TracedCall(
                one.thread,
                one.started_ns,
                one.ended_ns,
                one.name,
                "" if one.path is None else str(one.path),
                one.items,
                one.worker,
                one.busy_ns,
            )
            for one in sorted(self.slices, key=attrgetter("started_ns"))
        ]
        return TracedCalls(os.getpid(), calls, self.threads, self.calls - len(calls))
