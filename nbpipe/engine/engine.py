"""Engine: the stages of a run, in this process or in one of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from ..executors.interface import Served
from ..executors.stack import Place
from .epoch import Epoch
from .epoch_runner import EpochRunner
from .measures.lock_waits import LockedCalls
from .measures.stats import Row, StageStats
from .measures.step_time import Rests
from .measures.trace import TracedCalls, TraceEvents
from .nodes.external import ExternalOrder
from .nodes.failures import Failure
from .nodes.provenance import StageStates
from .scheduler import Scheduler


class ProcessNumbers(NamedTuple):
    """Numbers of the stages' process at one moment.

    Attributes:
        cpu_cores: processor time over the last seconds [cores].
        idle_cores: idle cores; None if the system does not report them [cores].
        held_bytes: bytes in all buffers; None without a budget [bytes].
        process_bytes: resident memory of a process of their own [bytes].
        skipped: items of this epoch that failed in that process and were left out [items].
    """

    cpu_cores: float | None = None
    idle_cores: float | None = None
    held_bytes: int | None = None
    process_bytes: int = 0
    skipped: int = 0


class Engine(ABC):
    """The stages of a run; any thread may call it.

    Attributes:
        epochs: starts and ends the epochs, in this process.
        scheduler: moves their items to the training loop.
        limit_bytes: budget for all buffers, or None [bytes].
        sources_read: called when the lengths of the sources are read again.
        rest: lets the stages rest for a moment.
        isolated_stages: addresses of the stages that run in a process of their own.
    """

    epochs: EpochRunner
    scheduler: Scheduler
    limit_bytes: int | None
    sources_read: Callable[[], object]
    rest: Rests
    isolated_stages: tuple[str, ...] = ()

    # -- an epoch, from start to end ----------------------------------------------------------
    @abstractmethod
    def begin(
        self, external: ExternalOrder | None, node_state: StageStates
    ) -> tuple[int, ExternalOrder | None, StageStates]:
        """Prepare an epoch.

        Args:
            external: its order, if that comes from outside.
            node_state: the states in which its stages begin.

        Returns:
            A ticket for `cancel`, and the order and the states for `scheduler`.
        """

    @abstractmethod
    def node_state(self, epoch: Epoch, delivered: int) -> StageStates | None:
        """Return the states of the stages after `delivered` items; None if they are not known."""

    @abstractmethod
    def caches(self) -> StageStates:
        """Return for each cache which epoch made its items."""

    @abstractmethod
    def finish(self, epoch: Epoch) -> None:
        """Finish an epoch whose items the loop has taken; this may be slow.

        Raises:
            CacheError: a cache cannot be written.
        """

    @abstractmethod
    def cancel(self, ticket: int, epoch: Epoch) -> None:
        """Prepare the end of an epoch: its remaining items are not needed."""

    # -- control ------------------------------------------------------------------------------
    @abstractmethod
    def refresh(self) -> None:
        """Apply the values of the knobs."""

    @abstractmethod
    def limit_memory(self, limit_bytes: int) -> None:
        """Set the budget for all buffers, of a run that has one [bytes]."""

    @abstractmethod
    def pause(self, *, paused: bool) -> None:
        """Start no further call, or start them again."""

    @abstractmethod
    def renew(self) -> None:
        """Send functions to the workers again: a cell may have changed them."""

    @abstractmethod
    def close(self, timeout_s: float) -> list[str]:
        """End everything; return the addresses of stages that are still in user code."""

    @abstractmethod
    def disown(self) -> None:
        """Drop everything in a forked process: threads and locks stayed in the parent."""

    # -- measurements -------------------------------------------------------------------------
    @abstractmethod
    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Return the stats of every stage by address."""

    @abstractmethod
    def history(self) -> list[Row]:
        """Return the rows of all stages and of the training loop, oldest first."""

    @abstractmethod
    def failures(self) -> tuple[Failure, ...]:
        """Return the last failed items, oldest first."""

    @abstractmethod
    def workers(self, address: str) -> Callable[[], Served] | None:
        """Return what tells of the workers of a stage; None if the run has none for it."""

    @abstractmethod
    def place(self, address: str) -> Place | None:
        """Return where in user code the oldest call of a stage is; None if it is not known."""

    @abstractmethod
    def lock_wait(self, address: str) -> LockedCalls | None:
        """Return how much the calls of a stage wait for a lock; None where that is not known."""

    @abstractmethod
    def numbers(self) -> ProcessNumbers:
        """Return the numbers of the stages' process now."""

    # -- a trace ------------------------------------------------------------------------------
    @abstractmethod
    def begin_trace(self, trace: TraceEvents) -> None:
        """Give a trace the calls of the stages and the waits of the loop."""

    @abstractmethod
    def end_trace(self) -> list[TracedCalls]:
        """Give it no more; return the calls of other processes that run stages."""

    def reads_ahead_of(self, number: int) -> bool:
        """Return whether the epoch after this one is being read."""
        return False


class CarriedError(Exception):
    """Carries an error from the stages' process through the source that reads from it.

    Args:
        error: the error that the training loop gets.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def surfaced(error: BaseException | None) -> BaseException | None:
    """Return the error that ended an epoch as the training loop gets it."""
    cause = None if error is None else error.__cause__
    return cause.error if isinstance(cause, CarriedError) else error
