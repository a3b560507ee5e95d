"""Machine: the stages of a run, wherever they run: what they did, and what they are told."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable

from ..checkpoint import caches
from ..executors.base import Caller
from ..failure import Failure
from ..knobs import KnobChange
from ..metrics import Row, StageStats
from ..rest import Rest
from ..stage import Chain
from .epoch import Epoch
from .indices import GivenOrder
from .look import stats
from .noting import Stages
from .record import Record, sampler
from .scheduler import Scheduler


class Machine(ABC):
    """What moves the items of a run and can be asked about it, from any thread.

    Attributes:
        scheduler: hands the items to the loop.
        limit_bytes: budget for what all buffers hold [bytes], or None.
    """

    scheduler: Scheduler
    limit_bytes: int | None

    # -- told -----------------------------------------------------------------------------
    @abstractmethod
    def begin(
        self, given: GivenOrder | None, stands: Stages
    ) -> tuple[int, GivenOrder | None, Stages]:
        """Hear that an epoch begins, and where its stages go on.

        Returns:
            A ticket, the order that is read here, and where the stages here go on.
        """

    @abstractmethod
    def stands(self, epoch: Epoch, delivered: int) -> Stages | None:
        """Say where the stages stand when the loop has had so many items of an epoch."""

    @abstractmethod
    def caches(self) -> Stages:
        """Say of each cache which epoch made its items."""

    @abstractmethod
    def cancel(self, ticket: int) -> None:
        """Hear that the epoch with this ticket is over: nothing of it is wanted any more."""

    @abstractmethod
    def refresh(self) -> None:
        """Take over the knobs' values."""

    @abstractmethod
    def pause(self, *, paused: bool) -> None:
        """Let nothing start, or let it go on."""

    @abstractmethod
    def renew(self) -> None:
        """Hear that functions may have changed."""

    @abstractmethod
    def close(self, timeout_s: float) -> list[str]:
        """End everything; give the stages still inside user code."""

    @abstractmethod
    def disown(self) -> None:
        """Take note that this process was forked: all of it stayed in the other one."""

    # -- asked ----------------------------------------------------------------------------
    @abstractmethod
    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Give the stats of every stage."""

    @abstractmethod
    def history(self) -> list[Row]:
        """Give the rows of all stages and of the consumer, oldest first."""

    @abstractmethod
    def failures(self) -> tuple[Failure, ...]:
        """Give the last failed items, oldest first."""

    @abstractmethod
    def caller(self, address: str) -> Caller | None:
        """Give what serves a stage from outside its run's threads, or None."""

    @property
    @abstractmethod
    def cpu_cores(self) -> float | None:
        """Processor time of the stages' process over the last seconds [cores]."""

    @property
    @abstractmethod
    def held_bytes(self) -> int | None:
        """Bytes in all buffers, where there is a budget for them [bytes]."""


class LocalMachine(Machine):
    """Stages in this process.

    Args:
        chain: the stages.
        record: what the run remembers.
        seed: the run's.
        memory_bytes: budget for what all buffers hold [bytes], or None.
    """

    def __init__(
        self, chain: Chain, record: Record, *, seed: int, memory_bytes: int | None
    ) -> None:
        self.scheduler = Scheduler(chain, seed=seed, memory_bytes=memory_bytes)
        self.limit_bytes = memory_bytes
        self._chain = chain
        self._record = record
        keep(self.scheduler, record)

    def begin(
        self, given: GivenOrder | None, stands: Stages
    ) -> tuple[int, GivenOrder | None, Stages]:
        """Let the scheduler begin."""
        return 0, given, stands

    def stands(self, epoch: Epoch, delivered: int) -> Stages:
        """Ask the stages."""
        with self.scheduler.lock:
            return epoch.stands(Rest(delivered))

    def caches(self) -> Stages:
        """Look at the stores."""
        return caches(self._chain)

    def cancel(self, ticket: int) -> None:
        """Leave the end to the scheduler."""

    def refresh(self) -> None:
        """Take over the knobs' values."""
        self.scheduler.refresh()

    def pause(self, *, paused: bool) -> None:
        """Let nothing start, or let it go on."""
        self.scheduler.pause(paused=paused)

    def renew(self) -> None:
        """Have workers given the functions that changed."""
        self.scheduler.regions.tell(lambda caller: caller.renew())

    def close(self, timeout_s: float) -> list[str]:
        """End everything; give the stages still inside user code."""
        return self.scheduler.close(timeout_s)

    def disown(self) -> None:
        """Let go of everything in a forked process."""
        self.scheduler.disown()

    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Give the stats of every stage."""
        return stats(self.scheduler, now_ns)

    def history(self) -> list[Row]:
        """Give the rows of all stages and of the consumer."""
        with self.scheduler.lock:
            return self._record.history()

    def failures(self) -> tuple[Failure, ...]:
        """Give the last failed items."""
        with self.scheduler.lock:
            return tuple(self._record.failures)

    def caller(self, address: str) -> Caller | None:
        """Give what serves a stage from outside the run's threads."""
        return self.scheduler.regions.caller(address)

    @property
    def cpu_cores(self) -> float | None:
        """Processor time of this process over the last seconds [cores]."""
        with self.scheduler.lock:
            return self._record.cpu_cores

    @property
    def held_bytes(self) -> int | None:
        """Bytes in all buffers [bytes]."""
        epoch = self.scheduler.epoch
        memory = None if epoch is None else epoch.memory
        return None if memory is None else memory.held_bytes


class CarriedError(Exception):
    """Carries an error of another process through a source of this one, which would wrap it.

    Args:
        error: what the loop is to see.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def surfaced(error: BaseException | None) -> BaseException | None:
    """Give the error that ended an epoch as the loop is to see it."""
    cause = None if error is None else error.__cause__
    return cause.error if isinstance(cause, CarriedError) else error


def keep(scheduler: Scheduler, record: Record) -> None:
    """Let a record keep what a scheduler counts, and the items that failed in it."""
    scheduler.remember = record.failures.append
    scheduler.sample = sampler(scheduler, record)


def knob_watcher(machine: Machine, record: Record) -> Callable[[KnobChange], None]:
    """Give what a knob calls when it was turned."""
    reference = weakref.ref(machine)  # knobs outlive runs

    def changed(change: KnobChange) -> None:
        one = reference()
        if one is not None:
            with one.scheduler.lock:
                record.events.append(change)
            one.refresh()

    return changed
