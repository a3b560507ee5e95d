"""TraceEvents: what a run did and when, in bounded memory, for a trace."""

from __future__ import annotations

import threading
from _thread import get_ident
from collections import deque
from time import perf_counter_ns, time_ns
from typing import NamedTuple, final

from ..base.seeding import Path
from .nodes.node import Task
from .stats import StageRuntime

EVENT_LOOP, TRAINING = -1, -2  # in place of threads: coroutines, the training loop


class TraceSlice(NamedTuple):
    """A call, or a chunk of short ones.

    Attributes:
        thread: number of the thread, or `EVENT_LOOP`.
        started_ns, ended_ns: when, on the clock of `perf_counter_ns`.
        stages: of the stages that the items passed, in order.
        path: of the first item; None if it is not known.
        items: how many were worked on.
        worker: process id of the worker that did it, and when it had; zeros without one [ns].
        busy_ns: time in functions [ns].
    """

    thread: int
    started_ns: int
    ended_ns: int
    stages: tuple[StageRuntime, ...]
    path: Path | None
    items: int
    worker: tuple[int, int]
    busy_ns: int


@final
class TraceEvents:
    """The last calls of a run and the last waits of its loop.

    Args:
        most: how many of each are kept.

    Attributes:
        begun_ns: when it began, on the clock of `perf_counter_ns`.
        begun_unix_ns: the same moment, since the Unix epoch.
        slices: the last calls.
        waits: when the loop began and ended to wait.
        threads: the names of the threads, by number.
        calls, waited: how many there were.
    """

    def __init__(self, most: int) -> None:
        self.begun_ns, self.begun_unix_ns = perf_counter_ns(), time_ns()
        self.slices: deque[TraceSlice] = deque(maxlen=most)
        self.waits: deque[tuple[int, int]] = deque(maxlen=most)
        self.threads: dict[int, str] = {}
        self.calls = self.waited = 0

    def add(self, task: Task) -> None:
        """Add a task that has ended; called by the thread that did it, under the lock."""
        node, thread, started_ns = task.node, get_ident(), task.started_ns
        if not started_ns:  # its epoch was over before it began
            return
        if node.remote:
            thread = EVENT_LOOP
        elif thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        ended_ns, rest, runtime = task.ended_ns, node.rest_runtimes, node.runtime
        stages = (runtime, *rest) if node.own_first else (*rest, runtime)
        path = task.paths[0] if task.paths else None
        count = task.inputs or len(task.results)
        self.calls += 1
        self.slices.append(
            TraceSlice(
                thread,
                started_ns,
                ended_ns,
                stages,
                path,
                count,
                task.worker,
                ended_ns - started_ns - task.away_ns,
            )
        )

    def add_wait(self, begun_ns: int, ended_ns: int) -> None:
        """Add a wait of the loop; called by its thread."""
        self.waited += 1
        self.waits.append((begun_ns, ended_ns))
