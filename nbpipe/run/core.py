"""RunCore: the parts of a run, to which its public class delegates."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any, final

from ..base.checks import seconds
from ..base.format import parse_bytes
from ..base.knobs import Knob, KnobChange
from ..base.threads import in_new_thread, uninterrupted
from ..engine.engine import Engine
from ..engine.lifecycle import RunLifecycle
from ..engine.local_engine import LocalEngine
from ..engine.measures.lock_waits import LockedCalls
from ..engine.measures.record import RunRecord
from ..engine.measures.stats import RunStats, Status
from ..engine.measures.step_time import StepTimes
from ..engine.nodes.external import ExternalOrder, external_chain, whole_order
from ..engine.nodes.failures import Failure
from ..engine.nodes.provenance import StageStates
from ..errors import ArgumentError, RunError
from ..executors.device.device import Device
from ..executors.stack import Place
from ..ops.chain import units
from ..ops.checkpoint import EpochPlace
from ..ops.ranges import IndexRanges
from ..ops.stage import CONSUMER, Chain, addresses
from ..show import watch
from ..tune.limits import TunerLimits
from ..tune.tuner import Tuner
from .failed import Failures
from .iterator import EpochIterator, close_dropped
from .origins import Origins
from .pace import PaceExchange, exchange_of
from .retry import retried
from .status import StatusReader
from .trace import Trace, Traces
from .training import BackgroundLoop

BUDGET = "memory"  # name of the knob; those of stages have two parts
MOST_BYTES = (1 << 53) - 1  # exact in JavaScript
_FORGOTTEN_S = 5  # calls of a run that was collected may take this long to end [s]


@final
class RunCore:
    """The parts of a run: its stages, their engine, its epochs, its background loop.

    `Run` delegates to it. Panel, kernel, loader and progress display use what users do not need.

    Args:
        chain: the stages.
        seed: seed of every `rng`.
        memory_bytes: budget for all buffers, or None [bytes].
        engine: makes the engine.
        read_ahead: an epoch begins to fill when the one before it drains.
        pipeline: makes a pipeline of a chain, or None.
        times_steps: a training loop iterates, so its steps are timed.
        listed: users see the run: in `nbpipe.runs()`, in a notebook.

    Attributes:
        chain: the stages.
        stages: the stages by address.
        seed: seed of every `rng`.
        engine: runs the stages.
        life: starts and ends epochs.
        record: keeps history, failed items and knob changes.
        background: the loop of `run.train`.
        budget: the knob of the budget for all buffers; None without one.
        tuner: turns the knobs; None before `autotune` was called.
        traces: its traces.
        listed: users see the run.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        seed: int = 0,
        memory_bytes: int | None = None,
        engine: Callable[..., Engine] = LocalEngine,
        read_ahead: bool = False,
        pipeline: Callable[[Chain], Any] | None = None,
        times_steps: bool = True,
        listed: bool = True,
    ) -> None:
        self.chain = chain
        self.stages = addresses(chain)
        self.seed = seed
        self.record = RunRecord()
        self.engine = engine(chain, self.record, seed=seed, memory_bytes=memory_bytes)
        self.budget = None if memory_bytes is None else _budget(memory_bytes)
        self.life = life = RunLifecycle(self.engine, self.record)
        self.background = BackgroundLoop(life)
        self.tuner: Tuner | None = None
        self.traces = Traces()
        self._paces: PaceExchange | None = None
        self.listed = listed
        self._times_steps = times_steps
        self._run: Callable[[], Any] = _no_run
        self._reads_ahead = read_ahead
        self._pipeline = pipeline
        self._units = units(chain)
        self._status = StatusReader(chain, self._units, life, self.background)
        if times_steps:
            self.record.time_steps(life.scheduler.lock)
        self._origins = origins = Origins(chain, sees_caches=not self.engine.isolated_stages)
        self.engine.sources_read = lambda: origins.sources_read(life.position.number)
        self._newest: Callable[[], EpochIterator | None] = _no_run  # one is in progress at most
        watcher = _knob_watcher(self.engine, self.record)
        knobs = {id(k): k for stage in self.stages.values() for k in stage.knobs.values()}
        self._unwatch = [knob.watch(watcher) for knob in knobs.values()]
        if self.budget is not None:
            self._unwatch.append(self.budget.watch(watcher))

    def attach(self, run: Any) -> None:
        """Serve a public run: it closes when that is collected; iterators keep it."""
        self._run = weakref.ref(run)
        self._finalizer = weakref.finalize(run, _abandon, self.life, self._unwatch, self.traces)
        self._finalizer.atexit = False  # `watch` closes open runs then
        watch.add(run)
        for started in tuple(watch.run_started) if self.listed else ():
            started(run)

    def pipeline_of(self, chain: Chain) -> Any:
        """Return a pipeline of a chain.

        Raises:
            RunError: the run was not started by a pipeline.
        """
        if self._pipeline is None:
            raise RunError("this run was not started by a pipeline; start it with pipe.start()")
        return self._pipeline(chain)

    def chain_code(self) -> str:
        """Return the pipeline with the present values of the knobs, as code for a cell."""
        from ..export.exporting import chain_code

        return chain_code(self._run(), self.chain)

    def renew_functions(self) -> None:
        """Send functions to the workers again: a cell may have changed them."""
        self.engine.renew()

    # -- epochs -------------------------------------------------------------------------------
    def start_epoch(
        self,
        external: ExternalOrder | None = None,
        *,
        last: bool = False,
        at_end: Callable[[], None] | None = None,
    ) -> EpochIterator:
        """Start the next epoch.

        Args:
            external: an order that replaces the source's own.
            last: no epoch follows, so nothing is read ahead.
            at_end: called after the end of the epoch.
        """
        if external is not None and self.engine.isolated_stages:
            external = whole_order(external)
        chain = self.chain if external is None else external_chain(self.chain, external)
        if self.background.has_more:
            self.life.check_free()
        epoch = self.life.start_epoch(external, reads_ahead=self._reads_ahead and not last)
        if self._times_steps and self._paces is None:
            self._paces = exchange_of(self.chain, functools.partial(_pace, self.life))
            if self._paces is not None:
                self._unwatch.append(self._paces.close)
        iterator = EpochIterator(self.life, epoch, chain, keeps=self._run(), at_end=at_end)
        self._newest = weakref.ref(iterator)
        if self.life.loop_calls:  # one may have been added meanwhile
            iterator.renew_calls()
        return iterator

    def resume_epoch(
        self, external: ExternalOrder | None, node_state: StageStates | None
    ) -> EpochIterator:
        """Start the next epoch with its stages in these states, for the process of the loop."""
        if node_state:
            position = self.life.position
            from_outside = external is not None
            position.resume_at = EpochPlace(position.next_epoch, 0, node_state, from_outside)
        return self.start_epoch(external)

    def close_epochs(self) -> None:
        """Cancel the epoch that this thread iterates: its cell has failed."""
        if self.life.owner is threading.current_thread():
            newest = self._newest()
            if newest is not None:
                newest.close()

    @property
    def turn(self) -> tuple[int, int]:
        """Epochs begun, and items delivered in all of them."""
        return self.life.position.next_epoch, self.stats()[CONSUMER].items_out

    def node_state(self, epoch: int, rest: IndexRanges) -> StageStates | None:
        """Return the states of the stages in an epoch, for the process of the loop."""
        return self.life.position.node_state(epoch, rest)

    # -- the training loop --------------------------------------------------------------------
    @property
    def between_waits(self) -> Callable[[], object] | None:
        """A function that the loop calls before it takes an item, and while it waits for one."""
        return self.life.between_waits

    @between_waits.setter
    def between_waits(self, function: Callable[[], object] | None) -> None:
        self.life.between_waits = function

    def call_in_loop(self, call: Callable[[], object]) -> None:
        """Have the loop call a function before it takes an item, and while it waits for one."""
        self.life.loop_calls.append(call)
        self.renew_calls()

    def renew_calls(self) -> None:
        """Have the epoch in progress call what the loop is to call by now."""
        newest = self._newest()
        if newest is not None:
            newest.renew_calls()

    def no_call_in_loop(self, call: Callable[[], object]) -> None:
        """End the calls of a function, from the next epoch on."""
        if call in self.life.loop_calls:
            self.life.loop_calls.remove(call)

    @property
    def active_s(self) -> float:
        """Time on a clock that stops during pauses [s]."""
        return self.record.consumer.active_ns(perf_counter_ns()) / 1e9

    def time_steps(self, steps: StepTimes) -> None:
        """Continue to time the steps of a loop that iterated another run before."""
        self.record.consumer.steps = steps

    def limit_memory(self, size: int | str) -> None:
        """Set the budget for all buffers.

        Raises:
            ArgumentError: no size, or the run was started without a budget.
        """
        self.life.check_open()
        size_bytes = parse_bytes(size)
        if self.budget is None:
            raise ArgumentError(
                f"run.memory = {size!r} needs a run with a budget: give one to start, for example "
                'pipe.start(memory="4 GB")'
            )
        self.budget.set(size_bytes)

    # -- tuning -------------------------------------------------------------------------------
    def autotune(self, limits: TunerLimits) -> Tuner:
        """Begin to tune, or take new limits."""
        self.life.check_open()
        self.life.check_outside("autotune")
        if self.tuner is None:
            self.tuner = Tuner(self._run(), limits, budget=self.budget)
        else:
            self.tuner.renew(limits)
        return self.tuner

    # -- traces -------------------------------------------------------------------------------
    def trace_to(self, path: str | os.PathLike[str], events: int) -> Trace:
        """Begin a trace."""
        self.life.check_open()
        changes = self.record.events.copy
        return self.traces.begin(path, events, changes, (self.engine,))

    # -- measurements -------------------------------------------------------------------------
    def status(self) -> Status:
        """Return where the run is."""
        status = self._status.read()
        return status if self._paces is None else self._paces.added_to(status)

    def stats(self) -> RunStats:
        """Return the stats of every stage and of the loop."""
        now_ns = self.life.ended_ns or perf_counter_ns()
        known = self.engine.stats(now_ns)
        rows = {address: known[address] for address in self.stages if address in known}
        with self.life.scheduler.lock:
            rows[CONSUMER] = self.record.consumer.stats(now_ns)
        return RunStats(rows, self._units)

    def lock_wait(self, address: str) -> LockedCalls | None:
        """Return how much the calls of a stage wait for a lock; None where that is not known."""
        return self.engine.lock_wait(address)

    def place(self, address: str) -> Place | None:
        """Return where in user code the oldest call of a stage is; None if it is not known."""
        return self.engine.place(address)

    def events(self) -> tuple[KnobChange, ...]:
        """Return the last knob changes, oldest first."""
        with self.life.scheduler.lock:
            kept = self.record.events.copy()  # at once: garbage collection may turn a knob
        return tuple(kept)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that this run uses."""
        return tuple(self.life.engine.epochs.devices)

    # -- failed items -------------------------------------------------------------------------
    def failures(self) -> Failures:
        """Return the last failed items with their source items."""
        return self._origins.named(self.engine.failures())

    def unnamed_failures(self) -> tuple[Failure, ...]:
        """Return the last failed items; the source is not read."""
        return self.engine.failures()

    def failures_since(self, count: int) -> tuple[tuple[Failure, ...], int]:
        """Return the failed items after the first `count`, and the number of all."""
        return self.record.failures_since(count, self.life.scheduler.lock)

    def retried(self) -> Any:
        """Return a pipeline of the source items that failed."""
        failed = [self._origins.of(failure) for failure in self.engine.failures()]
        return self.pipeline_of(retried(self.chain, failed))

    # -- the end ------------------------------------------------------------------------------
    def close(self, timeout_s: float = 5) -> None:
        """End the run; a second call does nothing.

        Raises:
            ArgumentError: `timeout_s` is negative, or no number.
            ReentrantRunError: a stage of this run calls it.
        """
        life, run = self.life, self._run()
        if life.closed or life.forked:
            return
        timeout_s = seconds("close timeout_s", timeout_s, zero=True)
        life.check_outside("close")
        if self.tuner is not None:
            self.tuner.stop()
        try:
            uninterrupted(self._let_go)
            self.background.close(timeout_s)
            life.close(timeout_s)
            self.traces.close()
        except BaseException:  # an interrupt: close the rest without waiting
            uninterrupted(functools.partial(life.close, 0))
            raise
        for closed in tuple(watch.run_closed) if self.listed else ():
            closed(run)

    def _let_go(self) -> None:
        self._finalizer.detach()
        watch.discard(self._run())
        for unwatch in self._unwatch:
            unwatch()

    def close_dropped(self, close: Callable[[], object]) -> None:
        """Close an object that was collected while it iterated this run."""
        close_dropped(self.life, close)

    def disown(self) -> None:
        """Drop the run in a forked process: it stayed in the parent."""
        self._finalizer.detach()
        watch.discard(self._run())
        self.life.disown()


def _no_run() -> None:
    """Return nothing: no run is attached yet, or no epoch has begun."""


def _pace(life: RunLifecycle) -> tuple[float, float] | None:
    """Return the share of the time that a loop waits, and its batches a second."""
    with life.scheduler.lock:
        if not life.is_in_progress or life.scheduler.paused:
            return None
        row = life.record.consumer.stats(perf_counter_ns())
    return (row.starved, row.items_per_s) if row.items_per_s else None


def _budget(memory_bytes: int) -> Knob:
    """Return the knob of the budget for all buffers."""
    known = min(memory_bytes, MOST_BYTES)
    return Knob(BUDGET, known, minimum=0, maximum=MOST_BYTES, unit="bytes")


def _knob_watcher(engine: Engine, record: RunRecord) -> Callable[[KnobChange], None]:
    """Return the function that a knob calls after a change."""
    reference = weakref.ref(engine)  # knobs outlive runs

    def changed(change: KnobChange) -> None:
        live = reference()
        if live is not None:
            with live.scheduler.lock:
                record.events.append(change)
            if record.consumer.steps is not None:
                record.consumer.steps.turned()
            if change.knob == BUDGET:
                live.limit_memory(change.new)
            else:
                live.refresh()

    return changed


def _abandon(life: RunLifecycle, unwatch: Iterable[Callable[[], None]], traces: Traces) -> None:
    """Close the parts of a collected run in another thread: this one may hold its lock."""

    def close() -> None:
        for end in unwatch:
            end()
        life.close(_FORGOTTEN_S)
        traces.close()

    in_new_thread(close)
