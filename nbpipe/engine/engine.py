"""Engine: the stages of a run, in this process or in one of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from ..executors.interface import Executor
from .epoch import Epoch
from .epoch_runner import EpochRunner
from .nodes.external import ExternalOrder
from .nodes.failures import Failure
from .nodes.provenance import StageStates
from .scheduler import Scheduler
from .stats import Row, StageStats


class Engine(ABC):
    """The stages of a run; any thread may call it.

    Attributes:
        epochs: starts and ends the epochs, in this process.
        scheduler: moves their items to the training loop.
        limit_bytes: budget for all buffers, or None [bytes].
        sources_read: called when the lengths of the sources are read again.
    """

    epochs: EpochRunner
    scheduler: Scheduler
    limit_bytes: int | None
    sources_read: Callable[[], object]

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
    def pause(self, *, paused: bool) -> None:
        """Start no further call, or start them again."""

    @abstractmethod
    def hold(self, most_ns: int) -> bool:
        """Start no call for `most_ns` at most; return False if too few items are ready."""

    @abstractmethod
    def rested_ns(self) -> int | None:
        """Return when the last call ended; 0 while one runs, None after the rest."""

    @abstractmethod
    def release(self) -> None:
        """End the rest that `hold` started."""

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
    def executor(self, address: str) -> Executor | None:
        """Return the executor of a stage; None if the run's own threads do the work."""

    @abstractmethod
    def reads_ahead_of(self, number: int) -> bool:
        """Return whether the epoch after this one is being read."""

    @property
    @abstractmethod
    def cpu_cores(self) -> float | None:
        """Processor time of the stages' process over the last seconds [cores]."""

    @property
    @abstractmethod
    def idle_cores(self) -> float | None:
        """Idle cores over the last seconds [cores]; None if the system does not report them."""

    @property
    @abstractmethod
    def held_bytes(self) -> int | None:
        """Bytes in all buffers [bytes]; None without a budget."""

    # -- a process of their own ---------------------------------------------------------------
    @property
    def isolated_stages(self) -> tuple[str, ...]:
        """Addresses of the stages that run in a process of their own."""
        return ()

    @property
    def process_bytes(self) -> int:
        """Resident memory of that process [bytes]."""
        return 0

    @property
    def skipped(self) -> int:
        """Items of this epoch that failed in that process and were left out [items]."""
        return 0


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
