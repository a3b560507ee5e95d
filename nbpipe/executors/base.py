"""What does work for a run: its contract, and jobs in progress elsewhere."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import ArgumentError, StageError, StageTimeoutError


# -- The contract of everything that does work for a run -------------------------------------------
class Work(Protocol):
    """A piece of work: what an executor sees of a task."""

    def run(self) -> None:
        """Do the work in the calling thread; exceptions of user code stay inside."""

    def begin(self) -> Coroutine[Any, Any, None]:
        """Return the coroutine that does the work; exceptions of user code stay inside."""


class Executor(ABC):
    """Does work for one run, from its first epoch until it is closed."""

    @abstractmethod
    def close(self, timeout_s: float) -> list[Work]:
        """End; give the work still inside user code after `timeout_s`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of the entries of one job.

    Attributes:
        results: one for each entry, in order: an entry, None (dropped) or a failure; for a
            stage that expands, the children of its one entry.
        tally: for each stage of the program its calls, its results and the time inside the
            user's function [ns].
        retried: for each call that was tried again, the address of its stage.
    """

    results: list[Any]
    tally: list[list[int]]
    retried: tuple[str, ...] = ()


class Program(Protocol):
    """What the stages of one region do to items; pickled by value where it is run elsewhere.

    Attributes:
        label: addresses of its stages, in one line.
    """

    label: str

    @property
    def functions(self) -> Sequence[tuple[str, object]]:
        """For each stage that calls a function its address, and the function."""

    def run(
        self,
        entries: Sequence[Any],
        epoch: int,
        begun: Callable[[int], object] | None = None,
        hand: Callable[[list[Any]], object] | None = None,
    ) -> Answer:
        """Do the work of all stages; exceptions of user code become failures in the answer.

        Args:
            entries: pairs of path and value.
            epoch: number of the epoch.
            begun: called with the number of a stage before each call of its function.
            hand: called with results that are ready long before the others; the answer is
                without them.
        """


@dataclass(frozen=True, slots=True)
class Job:
    """Entries that a program is to work on.

    Attributes:
        program: the work; the same object for every job of a region.
        epoch: number of the epoch.
        entries: pairs of path and value.
        timeout_s: longest time of one call of one function [s], or None.
        suspect: the only entry did not come back before: note in which stage it is.
        hand: may be called with results that are ready long before the others; the answer
            is without them.
    """

    program: Program
    epoch: int
    entries: Sequence[Any]
    timeout_s: float | None = None
    suspect: bool = False
    hand: Callable[[list[Any]], object] | None = None


class Caller(ABC):
    """Has jobs of one region done elsewhere; at most `concurrency` threads call it at once.

    Attributes:
        link: address of a page that shows the workers, or None.
        retries_of_deaths: how often an item whose worker died is tried again.
    """

    link: str | None = None
    retries_of_deaths = 0

    @abstractmethod
    def call(self, job: Job) -> Answer:
        """Have a job done, and wait for it in this thread.

        Raises:
            StageError: what ended the job was no exception of the user's function: a worker
                died, a call took too long, something cannot be pickled.
        """

    def expand(self, job: Job) -> Iterator[Any]:
        """Have the function called on the job's one entry; give an iterator over its children."""
        (result,) = self.call(job).results
        if isinstance(result, tuple):
            return iter(result[1])
        raise result.exception.__cause__ or result.exception

    def trim(self) -> None:
        """Called when the limit was changed."""

    def prepare(self, program: Program) -> None:
        """Called when an epoch begins with this program: refuse now what cannot be sent.

        Raises:
            UnpicklableError: it cannot be sent to where it would run.
        """

    def renew(self) -> None:
        """Called when functions may have changed: an epoch begins, or a cell was run."""

    def cancel(self) -> None:
        """Called when an epoch is over: nothing of it is wanted any more."""

    def scale(self, workers: int) -> None:
        """Ask for this many workers, where that can be asked.

        Raises:
            ArgumentError: these workers follow the stage's concurrency.
        """
        raise ArgumentError(
            f"these workers follow the stage's concurrency: set that, not workers = {workers}"
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers on this machine."""
        return ()

    @property
    def workers(self) -> int:
        """Workers there are."""
        return len(self.pids)

    @property
    def starting(self) -> int:
        """Workers that have not done anything yet."""
        return 0

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the workers [bytes]; 0 where it is not known."""
        return 0

    @abstractmethod
    def close(self, timeout_s: float) -> list[str]:
        """End what this caller started; give the stages still inside user code, if any.

        Work in progress has `timeout_s` to end; a process is killed then.
        """


# -- Calls: jobs in progress elsewhere, and the threads that wait for them -------------------------
class Call:
    """One job in progress, and the thread that waits for its end.

    Args:
        job: what is to be done.
        executor: name of what does it, for messages.
    """

    def __init__(self, job: Job, executor: str) -> None:
        self.job = job
        self.executor = executor
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._deadline_s: float | None = None
        self._ended = False
        self._abandoned = False

    @property
    def path(self) -> Any:
        """Position of the item in the epoch's order, where there is but one."""
        entries = self.job.entries
        return entries[0][0] if len(entries) == 1 else None

    @property
    def items(self) -> str:
        """The items in words."""
        paths = [str(entry[0]) for entry in self.job.entries]
        return ("item " if len(paths) == 1 else "one of the items ") + ", ".join(paths)

    @property
    def functions(self) -> int:
        """Calls of functions that the job takes at most, as far as its program says."""
        count: int = getattr(self.job.program, "calls", len)(self.job.entries)
        return count

    def begin(self, calls: int = 1) -> None:
        """Called when a call of a function begins: its time counts from now.

        Args:
            calls: how many follow one another without saying so.
        """
        if self.job.timeout_s is not None:
            with self._lock:
                self._deadline_s = time.monotonic() + calls * self.job.timeout_s
                self._changed.notify_all()

    def end(self, _: object = None) -> None:
        """Called when the job is done."""
        with self._lock:
            self._ended = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Wait no longer: nobody wants the answer any more."""
        with self._lock:
            self._abandoned = True
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            StageTimeoutError: a call took too long.
            StageError: the call was abandoned.
        """
        with self._lock:
            while not self._ended:
                if self._abandoned:
                    raise self.error(StageError, "was abandoned: its epoch is over")
                left_s = self._left_s()
                if left_s is not None and left_s <= 0:
                    limit = f"took longer than timeout_s={self.job.timeout_s:g}"
                    raise self.error(StageTimeoutError, f"{limit}, and cannot be stopped there")
                self._changed.wait(left_s)

    def _left_s(self) -> float | None:
        return None if self._deadline_s is None else self._deadline_s - time.monotonic()

    def error(self, kind: type[StageError], what: str) -> StageError:
        """Make an error that says what happened to the call."""
        stage = self.job.program.label
        return kind(
            f"the call of stage {stage!r} on {self.items} ({self.executor}) {what}",
            stage=stage,
            path=self.path,
            executor=self.executor,
        )


class Calls:
    """The calls in progress of one caller."""

    def __init__(self, executor: str) -> None:
        self._executor = executor
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._calls: dict[Call, Future[Any] | None] = {}
        self._closed = False

    @contextmanager
    def open(self, job: Job) -> Iterator[Call]:
        """Return a call, and count it while it is in progress.

        Raises:
            StageError: the caller is closed.
        """
        call = Call(job, self._executor)
        with self._lock:
            if self._closed:
                raise call.error(StageError, "did not begin: its run is closed")
            self._calls[call] = None
        try:
            yield call
        finally:
            with self._lock:
                del self._calls[call]
                self._changed.notify_all()

    def follow(self, call: Call, future: Future[Any]) -> None:
        """Note the future of a call; the call ends with it."""
        with self._lock:
            self._calls[call] = future
        future.add_done_callback(call.end)

    def futures(self) -> list[Future[Any]]:
        """Return the futures of the calls in progress."""
        with self._lock:
            return [future for future in self._calls.values() if future is not None]

    def abandon(self) -> None:
        """Wake every thread that waits."""
        with self._lock:
            for call in self._calls:
                call.abandon()

    def close(self, timeout_s: float) -> list[str]:
        """Wait for the calls in progress, at most `timeout_s`; give the stages of the others."""
        with self._lock:
            self._closed = True
            self._changed.wait_for(lambda: not self._calls, timeout_s)
            late = {call.job.program.label for call in self._calls}
        self.abandon()
        return sorted(late)
