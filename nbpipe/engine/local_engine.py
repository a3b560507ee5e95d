"""LocalEngine: the stages of a run in this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple

from ..executors.interface import Served
from ..executors.stack import Place
from ..ops.checkpoint import caches
from ..ops.ranges import IndexRanges
from ..ops.stage import Chain
from .engine import Engine, ProcessNumbers
from .epoch import Epoch
from .epoch_runner import EpochRunner
from .measures.lock_waits import LockedCalls, LockWaits
from .measures.record import RunRecord
from .measures.stats import Row, StageStats
from .measures.trace import TracedCalls, TraceEvents
from .nodes.external import ExternalOrder
from .nodes.failures import Failure
from .nodes.provenance import StageStates
from .rest import WorkerRest


class _AskedCall(NamedTuple):
    """A call that was asked for its line of code.

    Attributes:
        call: tells it from others.
        age_ns: how long it had been running [ns].
        place: the answer, or None.
    """

    call: tuple[int, int]
    age_ns: int
    place: Place | None


class LocalEngine(Engine):
    """The stages of a run, in the threads and workers of this process.

    Args:
        chain: the stages.
        record: keeps history, failed items and the waits of the loop.
        seed: seed of the run.
        memory_bytes: budget for all buffers, or None [bytes].

    Raises:
        CacheError: another chain wrote a cache folder.
    """

    def __init__(
        self, chain: Chain, record: RunRecord, *, seed: int, memory_bytes: int | None
    ) -> None:
        self.epochs = EpochRunner(chain, seed=seed, memory_bytes=memory_bytes)
        self.scheduler = self.epochs.scheduler
        self.rest = WorkerRest(self.scheduler)
        self.limit_bytes = memory_bytes
        self.sources_read: Callable[[], object] = lambda: None
        self._chain = chain
        self._record = record
        self._locks = LockWaits(self.scheduler)
        self._places: dict[str, _AskedCall] = {}  # by address
        self.epochs.remember = record.remember
        self.scheduler.sample = _sampler(self.epochs, record)

    def begin(
        self, external: ExternalOrder | None, node_state: StageStates
    ) -> tuple[int, ExternalOrder | None, StageStates]:
        """Read the lengths of the sources; the scheduler gets order and states as they are."""
        self.sources_read()
        return 0, external, node_state

    def node_state(self, epoch: Epoch, delivered: int) -> StageStates | None:
        """Return the states of the stages after `delivered` items."""
        with self.scheduler.lock:
            return epoch.node_state(IndexRanges(delivered))

    def caches(self) -> StageStates:
        """Return for each cache which epoch made its items."""
        return caches(self._chain)

    def finish(self, epoch: Epoch) -> None:
        """Write the caches that the epoch filled.

        Raises:
            CacheError: a cache cannot be written.
        """
        epoch.commit()

    def cancel(self, ticket: int, epoch: Epoch) -> None:
        """Do nothing: the scheduler ends the epoch."""

    def refresh(self) -> None:
        """Apply the values of the knobs."""
        self.epochs.refresh()

    def limit_memory(self, limit_bytes: int) -> None:
        """Set the budget for all buffers."""
        self.limit_bytes = limit_bytes
        self.epochs.limit_memory(limit_bytes)

    def pause(self, *, paused: bool) -> None:
        """Start no further call, or start them again."""
        self.epochs.pause(paused=paused)
        with self.scheduler.lock:  # if two threads race, the clock follows the last one as well
            now_ns = perf_counter_ns()
            paused = self.scheduler.paused
            if self._record.consumer.pause(now_ns, paused=paused) and not paused:
                self._record.resume(now_ns, self.epochs.rows.snapshot(now_ns))

    def renew(self) -> None:
        """Send functions to the workers again: a cell may have changed them."""
        self.epochs.fused_stages.each(lambda executor: executor.renew())

    def close(self, timeout_s: float) -> list[str]:
        """End everything; return the addresses of stages that are still in user code."""
        return self.epochs.close(timeout_s)

    def disown(self) -> None:
        """Drop everything in a forked process."""
        self.scheduler.disown()

    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Return the stats of every stage by address."""
        rows = self.epochs.rows.stats(now_ns)
        with self.scheduler.lock:
            return self._record.consumer.with_means(rows, now_ns)

    def history(self) -> list[Row]:
        """Return the rows of all stages and of the training loop, oldest first."""
        return self._record.history(self.scheduler.lock)

    def failures(self) -> tuple[Failure, ...]:
        """Return the last failed items, oldest first."""
        with self.scheduler.lock:
            return tuple(self._record.failures)

    def workers(self, address: str) -> Callable[[], Served] | None:
        """Return what tells of the workers of a stage; None if threads do the work."""
        executor = self.epochs.fused_stages.executor(address)
        return None if executor is None else lambda: executor

    def place(self, address: str) -> Place | None:
        """Return where in user code the oldest call of a stage is; each call is asked once.

        A call that does not answer is asked again when it has run for twice as long.
        """
        with self.scheduler.lock:
            now_ns = perf_counter_ns()
            since_ns, task = self.epochs.rows.oldest(now_ns).get(address, (0, None))
        known = self._places.get(address)
        if task is None:
            return known and known.place  # the call has ended since
        call, age_ns = (id(task), since_ns), now_ns - since_ns
        again = known is not None and known.place is None and age_ns >= 2 * known.age_ns
        if known is None or known.call != call or again:
            executor = self.epochs.fused_stages.executor(address)
            place = self.scheduler.place(task) if executor is None else executor.place()
            self._places[address] = known = _AskedCall(call, age_ns, place)
        return known.place

    def lock_wait(self, address: str) -> LockedCalls | None:
        """Return how much the calls of a stage wait for a lock; None where threads make none."""
        executor = self.epochs.fused_stages.executor(address)
        return self._locks.of(address) if executor is None else None

    def numbers(self) -> ProcessNumbers:
        """Return the numbers of this process."""
        with self.scheduler.lock:
            record = self._record
            return ProcessNumbers(record.cpu_cores, record.idle_cores, self._held_bytes())

    def _held_bytes(self) -> int | None:
        memories = [epoch.memory for epoch in self.scheduler.epochs]
        held = [memory.held_bytes for memory in memories if memory is not None]
        return sum(held) if held and self.limit_bytes is not None else None

    def begin_trace(self, trace: TraceEvents) -> None:
        """Give a trace the calls of the stages and the waits of the loop."""
        self._trace_to(trace)

    def end_trace(self) -> list[TracedCalls]:
        """Give it no more; its calls are all of this process."""
        self._trace_to(None)
        return []

    def _trace_to(self, trace: TraceEvents | None) -> None:
        self._record.consumer.trace = trace
        self.scheduler.trace_to(trace)

    def reads_ahead_of(self, number: int) -> bool:
        """Return whether the epoch after this one is being read."""
        ahead = self.scheduler.ahead
        return ahead is not None and ahead.context.epoch == number + 1 and ahead.has_begun


def _sampler(epochs: EpochRunner, record: RunRecord) -> Callable[..., int]:
    """Return the function that samples the counters of the epoch in progress."""
    reference = weakref.ref(epochs)  # its scheduler holds this function

    def sample(now_ns: int, last: bool = False) -> int:  # noqa: FBT001, FBT002
        running = reference()
        if running is None or running.scheduler.epoch is None:
            return now_ns
        epoch = running.scheduler.epoch.context.epoch
        return record.sample(now_ns, epoch, running.rows.snapshot(now_ns), last=last)

    return sample
