"""EpochRunner: builds the epochs of a run, lets them begin, pauses and ends them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from ..base.threads import holds, in_new_thread, no_thread
from ..ops.device import Devices
from ..ops.stage import Chain, Stage
from .build import Builder
from .epoch import Epoch, Memory
from .measures.counters import StageRuntime
from .measures.rows import StageRows
from .nodes.external import ExternalOrder, Feed, external_chain
from .nodes.failures import Failure, changed_failure
from .nodes.fused import FusedStages
from .nodes.node import Task
from .nodes.provenance import StageStates
from .nodes.step import EpochContext
from .read_ahead import NextEpoch
from .scheduler import Scheduler

_LAST_CALLS_S = 1.0  # so long ends a call whose worker was killed


class EpochRunner:
    """The epochs of one run, from its first one until it is closed.

    Args:
        chain: the stages.
        seed: the run's.
        memory_bytes: budget for what all buffers hold [bytes], or None.

    Attributes:
        scheduler: does the work of the epochs.
        rows: the stats of the stages.
        fused_stages: those with workers outside the run's threads.
        devices: those that the stages use.
        remember: called with each failed item.
    """

    def __init__(self, chain: Chain, *, seed: int, memory_bytes: int | None) -> None:
        self._chain = chain
        self._seed = seed
        self._memory_bytes = memory_bytes
        self.scheduler = Scheduler()
        self.fused_stages = FusedStages(seed, memory_bytes)
        self.rows = StageRows(self.scheduler, self.fused_stages)
        self.devices = Devices()
        self.remember: Callable[[Failure], None] = lambda _: None
        # So every runtime is there, and a cache of another chain is refused.
        self._build(self._new(0))

    # -- building -------------------------------------------------------------------------
    def _new(self, number: int, *, external: bool = False) -> Epoch:
        memory = Memory(self._memory_bytes) if self._memory_bytes is not None else None
        remember = self._remember_external if external else self.remember
        context = EpochContext(self._seed, number)
        return Epoch(context, memory=memory, remember=remember, lock=self.scheduler.lock)

    def _next_epoch(self, before: Epoch) -> NextEpoch | None:
        """Build the epoch after this one; None if a cache must be complete before it."""
        context = EpochContext(self._seed, before.context.epoch + 1)
        epoch = NextEpoch(before, context, self._memory_bytes, self.scheduler.lock)
        return epoch if self._build(epoch).replays else None

    def _build(
        self,
        epoch: Epoch,
        external: ExternalOrder | None = None,
        node_state: StageStates | None = None,
    ) -> Builder:
        """Make the nodes of an epoch."""
        epoch.at_work = self.scheduler.at_work
        chain = self._chain if external is None else external_chain(self._chain, external)
        builder = Builder(
            chain, epoch, self._runtime, self.fused_stages, node_state, devices=self.devices
        )
        builder.build()
        return builder

    def _runtime(self, address: str, stage: Stage, prefetch: int) -> StageRuntime:
        runtimes = self.scheduler.runtimes
        if address not in runtimes:
            now_ns = perf_counter_ns()
            runtimes[address] = StageRuntime(address, stage, prefetch=prefetch, now_ns=now_ns)
        elif not {"prefetch", "depth"} & stage.knobs.keys():
            runtimes[address].prefetch = prefetch
        return runtimes[address]

    def _remember_external(self, failure: Failure) -> None:
        """Remember a failed item of an epoch in an order from outside."""
        self.remember(changed_failure(failure, external=True))

    # -- from its beginning to its end ----------------------------------------------------
    def start(
        self,
        number: int,
        external: ExternalOrder | None = None,
        node_state: StageStates | None = None,
        *,
        reads_ahead: bool = False,
    ) -> Epoch:
        """Let an epoch begin: the one that was read ahead, or one that is built here.

        Args:
            number: of the epoch.
            external: takes the place of the source's own order.
            node_state: where the stages stand, for an epoch that continues in the middle.
            reads_ahead: the epoch after it begins to fill when this one drains.
        """
        scheduler = self.scheduler
        if scheduler.epoch is not None:  # an interrupt hit its start or its end
            self.end(scheduler.epoch)
        self.drop_ahead(unless=None if external is not None or node_state else number)
        self.fused_stages.prepare()
        with scheduler.lock:  # what others drop from here on is not the epoch that begins
            ready = scheduler.ahead
            scheduler.work_on(None, None)
        try:
            epoch: Epoch | None = ready
            if epoch is None:
                epoch = self._new(number, external=external is not None)
                self._build(epoch, external, node_state)
            following = self._next_epoch(epoch) if reads_ahead else None
            if isinstance(external, Feed):
                external.wake = lambda: scheduler.change(scheduler.note_states)
            try:
                scheduler.ticker.start()
            except RuntimeError as error:
                raise no_thread("this run", error) from error
            self._begin(epoch, following)
        except BaseException:
            if scheduler.epoch is None:
                scheduler.work_on(None, ready)
            raise
        return epoch

    def _begin(self, epoch: Epoch, following: NextEpoch | None) -> None:
        """Let an epoch begin; the one after it fills once this one drains."""

        def begin(now_ns: int) -> None:
            self.scheduler.work_on(epoch, following)
            runtimes = self.scheduler.runtimes.values()
            for counters in [runtime.counters for runtime in runtimes]:
                counters.before = counters.items_in, counters.items_out
            if isinstance(epoch, NextEpoch):
                epoch.promote(self.remember)
            for runtime in runtimes:
                runtime.skip_time(now_ns)
                runtime.counters.first_ns = runtime.counters.first_ns or now_ns
            self.rows.begin()
            self.scheduler.hold(0)
            self.scheduler.limit_threads()
            self._hold_back()

        self.scheduler.change(begin)

    def end(self, epoch: Epoch) -> None:
        """Let nothing of this epoch start any more, and close the iterators it left open.

        To end it again does what an interrupt left undone; not while the next one is in progress.
        """
        scheduler = self.scheduler
        now_ns, starting = perf_counter_ns(), self._starting()
        with scheduler.lock:
            if not epoch.over:
                for runtime in scheduler.runtimes.values():
                    runtime.account(now_ns)
                if scheduler.epoch is epoch:
                    scheduler.sample(now_ns, last=True)
                    self.rows.end(now_ns, starting)
            epoch.end()
            if scheduler.epoch is epoch:
                scheduler.hold(0)
                scheduler.work_on(None, scheduler.ahead)
                if scheduler.ahead is not None:
                    scheduler.ahead.rest(scheduler.runtimes.values())
            epoch.output.wake()
            dropped = epoch.take_deferred()
        self._clear_up(epoch)
        del dropped
        if scheduler.ahead is not None:
            scheduler.ahead.before = None
        scheduler.change(scheduler.note_states)

    def _starting(self) -> set[str]:
        """Return the stages whose workers only start; without the lock: a pool has its own."""
        if not self.fused_stages.serves:
            return set()
        executors = {one: self.fused_stages.executor(one) for one in self.scheduler.runtimes}
        return {
            address for address, executor in executors.items() if executor and executor.starting
        }

    def drop_ahead(self, *, unless: int | None = None) -> None:
        """Let nothing of the epoch that is read ahead start any more, and forget it.

        Args:
            unless: it stays if this is its number.
        """
        scheduler, ahead = self.scheduler, self.scheduler.ahead
        if ahead is None or (ahead.context.epoch == unless and not ahead.over):
            return
        with scheduler.lock:
            ahead.end()
            dropped = ahead.take_deferred()
        self._clear_up(ahead)
        with scheduler.lock:
            if scheduler.ahead is ahead:  # else an interrupt came in between, and it is another one
                scheduler.work_on(scheduler.epoch, None)
        del dropped

    def _clear_up(self, epoch: Epoch) -> None:
        """Take back the calls of an epoch that is over, and close the iterators it left open."""
        self.scheduler.loop.cancel(lambda work: isinstance(work, Task) and work.node.epoch is epoch)
        self.fused_stages.each(lambda executor: executor.cancel(epoch.context.epoch))
        epoch.clear_up()

    # -- live changes, from any thread ----------------------------------------------------
    def limit_memory(self, limit_bytes: int) -> None:
        """Set the budget for what all buffers hold, of this epoch and of later ones."""
        self._memory_bytes = limit_bytes
        for epoch in self.scheduler.epochs:
            epoch.limit_memory(limit_bytes)
        self.refresh()

    def refresh(self) -> None:
        """Take over the knobs' values."""
        if holds(self.scheduler.lock):  # garbage has turned a knob, in the midst of something
            in_new_thread(self.refresh)
            return
        self.scheduler.change(self._read_knobs)
        self.fused_stages.each(lambda executor: executor.trim())

    def _read_knobs(self, now_ns: int) -> None:
        for runtime in self.scheduler.runtimes.values():
            if self.scheduler.epoch is None:
                runtime.skip_time(now_ns)
            else:
                runtime.account(now_ns)
            runtime.read_knobs()
        self.scheduler.limit_threads()
        self.scheduler.note_states(now_ns)

    def pause(self, *, paused: bool) -> None:
        """Let nothing start, or let it continue."""
        scheduler = self.scheduler
        scheduler.paused = paused
        if holds(scheduler.lock):
            in_new_thread(lambda: scheduler.change(self._pause))
        else:
            scheduler.change(self._pause)

    def _pause(self, now_ns: int) -> None:
        """Do what was asked last: of two threads, either may come first."""
        scheduler, epoch = self.scheduler, self.scheduler.epoch
        scheduler.hold(0)
        if epoch is not None and epoch.output.paused != scheduler.paused:
            self.rows.pause(now_ns, paused=scheduler.paused)
        self._hold_back()
        scheduler.note_states(now_ns)

    def _hold_back(self) -> None:
        """Let nothing start in a pause, and let the loop have nothing."""
        for epoch in self.scheduler.epochs:
            epoch.output.pause(paused=self.scheduler.paused)

    def close(self, timeout_s: float) -> list[str]:
        """End everything; return the addresses of stages still inside user code."""
        self.drop_ahead()
        scheduler, epoch = self.scheduler, self.scheduler.epoch
        if epoch is not None:
            self.end(epoch)
        late = scheduler.close(timeout_s)
        inside = [task for task in late if task.started_ns and not task.ended_ns]
        killed = self.fused_stages.close(0 if late else timeout_s)  # it ends calls of its workers
        if killed:
            scheduler.close(_LAST_CALLS_S)
        for device in self.devices:
            device.close()
        return sorted({task.node.runtime.address for task in inside})
