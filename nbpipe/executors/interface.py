"""The contract of everything that does work for a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.threads import ThreadSettings
from .stack import Place

MOST_PROCESSES = 4  # for each core; more take memory and wait for one another


class AsyncReading(Protocol):
    """An async iterator that work is drawn from, piece by piece; one task reads and closes it.

    Attributes:
        end: has that task close it; set by the event loop, called from any thread.
    """

    end: Callable[[], object] | None

    @property
    def is_open(self) -> bool:
        """Whether it was opened and has not come to its end."""

    async def close_async(self) -> None:
        """Close it, if it is open."""


class Work(Protocol):
    """A piece of work: what an executor sees of a task.

    Attributes:
        started_ns, ended_ns: when the work began and ended; set by the worker.
        perform: does a piece of work in the calling thread; exceptions of user code stay inside.
        settings: what holds where the work is done.
    """

    started_ns: int
    ended_ns: int
    perform: Callable[[Any], object]
    settings: ThreadSettings

    @property
    def title(self) -> str:
        """The addresses of its stages, in order."""

    @property
    def reads(self) -> AsyncReading | None:
        """The async iterator that it draws from, or None."""

    def begin(self) -> Coroutine[Any, Any, None]:
        """Return the coroutine that does the work; exceptions of user code stay inside."""


class TaskSource(Protocol):
    """Hands out work, and takes it back when it is done."""

    def exchange(self, done: Sequence[Work]) -> Sequence[Work]:
        """Hand in what ended in one turn of the event loop, get what may start now."""

    def crashed(self, error: BaseException) -> None:
        """Called when the machine itself failed."""


# A row of a tally: of one stage its calls, its results and the time inside the user's function; in
# the first row also, of the entries that were measured, the time of all stages, and the processor
# time that they took [ns].
COUNTS = 5  # numbers


@dataclass(frozen=True, slots=True)
class Response:
    """What came of the entries of one request.

    Attributes:
        results: one for each entry, in order: an entry, or what takes its place where it was
            dropped or failed; for a stage that expands, the children of its one entry. Where they
            took long, the last entries may be missing: nothing was done with them.
        tally: a row for each stage of the program.
        retried: for each call that was tried again, the address of its stage.
        worker: process id of the worker, and when it had done the work [ns]; zeros if not known.
    """

    results: list[Any]
    tally: list[list[int]]
    retried: tuple[str, ...] = ()
    worker: tuple[int, int] = (0, 0)


class Program(Protocol):
    """What the stages of one region do to items; pickled by value where it is run elsewhere.

    Attributes:
        label: addresses of its stages, in one line.
    """

    label: str

    @property
    def stages(self) -> Sequence[str]:
        """Addresses of its stages."""

    @property
    def functions(self) -> Sequence[tuple[str, object]]:
        """For each stage that calls a function its address, and the function."""

    def prepare(self) -> None:
        """Called once in each process, before the first item; exceptions of user code pass."""

    def calls(self, entries: Sequence[Any]) -> int:
        """Return how many calls of functions these entries take at most, tries again left out."""

    def work(
        self,
        entries: Sequence[Any],
        epoch: int,
        begun: Callable[[int, Any], object] | None = None,
        kept: Callable[[Any, Any], Any] | None = None,
    ) -> Response:
        """Do the work of all stages; exceptions of user code become failures in the response.

        Args:
            entries: pairs of path and value.
            epoch: number of the epoch.
            begun: called before each call of a function, with the number of its stage and the path
                of the item.
            kept: called with each entry and what results, before the next call begins; what it
                returns takes the result's place.
        """

    def open(self, value: Any, path: Any, epoch: int) -> Iterable[Any]:
        """Call the function of a stage that gives many items for one."""

    def unsendable(self, entry: Any, result: Any, error: BaseException) -> object:
        """Return the failure that stands for a result that cannot be pickled."""


@dataclass(frozen=True, slots=True)
class Request:
    """Entries that a program is to work on.

    Attributes:
        program: the work; the same object for every request of a region.
        epoch: number of the epoch.
        entries: pairs of path and value.
        timeout_s: longest time of one call of one function [s], or None.
        suspect: the only entry did not come back before: note in which stage it is.
        following: may be called when a worker has done the request, before its results are read;
            returns the request that is called for next, in the same thread, if there is one.
    """

    program: Program
    epoch: int
    entries: Sequence[Any]
    timeout_s: float | None = None
    suspect: bool = False
    following: Callable[[], Request | None] | None = None


class Served(Protocol):
    """The workers of a stage."""

    @property
    def workers(self) -> int:
        """Workers there are."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers on this machine."""

    @property
    def link(self) -> str | None:
        """Address of a page that shows the workers, or None."""

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the workers [bytes]; 0 where it is not known."""


class Executor(ABC):
    """Has requests of one region done elsewhere; at most `concurrency` threads call it at once.

    Attributes:
        link: address of a page that shows the workers, or None.
        retries_of_deaths: how often an item whose worker died is tried again.
    """

    link: str | None = None
    retries_of_deaths = 0

    @abstractmethod
    def call(self, request: Request) -> Response:
        """Have a request done, and wait for it in this thread.

        Raises:
            StageError: what ended the request was no exception of the user's function: a worker
                died, a call took too long, something cannot be pickled. Its `path` is that of
                the entry that was worked on, where it is known.
        """

    def expand(self, request: Request) -> Iterator[Any]:
        """Call the function on the request's one entry; return an iterator over its children."""
        raise TypeError(f"{type(self).__name__} makes no children of an item")

    def trim(self) -> None:
        """Called when the limit was changed."""

    def prepare(self, program: Program) -> None:
        """Called when an epoch begins with this program: refuse now what cannot be sent.

        Raises:
            UnpicklableError: it cannot be sent to where it would run.
        """

    def renew(self) -> None:
        """Called when functions may have changed: an epoch begins, or a cell was run."""

    def cancel(self, epoch: int | None = None) -> None:
        """Called when an epoch is over: nothing of it, or with None of any, is wanted any more."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers on this machine."""
        return ()

    @property
    def workers(self) -> int:
        """Workers there are."""
        return len(self.pids)

    @property
    def worker_threads(self) -> int:
        """Calls that the workers can make at once; 0 where that is not known."""
        return self.workers

    @property
    def starting(self) -> int:
        """Workers that have not done anything yet."""
        return 0

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the workers [bytes]; 0 where it is not known."""
        return 0

    def place(self) -> Place | None:
        """Return where in user code the oldest call in progress is; None where it is not known."""
        return None

    @abstractmethod
    def close(self, timeout_s: float) -> list[str]:
        """End what this executor started; return the stages still inside user code, if any.

        Work in progress has `timeout_s` to end; a process is killed then.
        """
