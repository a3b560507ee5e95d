"""LoaderRun: all epochs of a `DataLoader` as one run, from the moment that the loader is made."""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import weakref
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from time import perf_counter_ns, time
from typing import TYPE_CHECKING, Any, NamedTuple, final

from ..base.knobs import Knob, KnobChange
from ..base.names import shown
from ..engine.failures import Failure, formatted, one_line
from ..engine.lifecycle import CANCELLED, FAILED, FINISHED, STOPPED
from ..engine.lifecycle import READY as UNBEGUN
from ..engine.record import EVENTS_KEPT, RunRecord, slowdown
from ..engine.stats import (
    BLOCKED,
    READY,
    SAMPLE_NS,
    Row,
    RunStats,
    StageRuntime,
    StageStats,
    Status,
)
from ..engine.step_time import StepTimes
from ..errors import RunClosedError, StageTimeoutError, near_match
from ..ops.chain import known_length
from ..ops.stage import CONSUMER, Chain, Stage, addresses, stage_at
from ..pipeline import Pipeline
from ..run.failed import Failures
from ..run.iterator import ATTEND_S, LOOK_UP_S
from ..run.live_stage import LiveStage
from ..run.run import Run
from ..run.shown import ShownRun
from ..show.watch import AttendedRun, Shown, loader_made, title_of
from .chain import READER, SAMPLES, EpochIndices, is_local
from .state import EpochProgress, Position, begun

if TYPE_CHECKING:
    from ..export.store import Exported

# -- an epoch that is made in the calling thread ---------------------------------------------------
_MADE_IN = "fetch"  # the stage whose calls the loop makes itself


@final
class LocalRun(Iterator[Any]):
    """The batches of one epoch that is made in the calling thread; asked and told what a run is.

    Args:
        items: what the source gives, from the first of the epoch on.
        chain: the stages; those behind the source make the batches.
        before: batches of the epoch that the loop had before.
        total: batches of the epoch, or None.
        between_waits: called before a batch is made, and again and again during a pause, or None.

    Attributes:
        stages: by address.
        outcome: how it ended; CANCELLED while it has not.
        closed: it is over.
    """

    epoch = 0

    def __init__(
        self,
        items: Iterator[Any],
        chain: Chain,
        *,
        before: int,
        total: int | None,
        between_waits: Callable[[], object] | None,
    ) -> None:
        now_ns = perf_counter_ns()
        self.stages = addresses(chain)
        self.outcome = CANCELLED
        self.closed = False
        self._batches = self._made_of(items)
        self._at = next(iter(self.stages))  # the stage that is at work
        self._before = self._delivered = before
        self._total = total
        self._between = between_waits
        self._error: BaseException | None = None
        self._stopping = False
        self._held = False  # paused
        self._gate = allocate_lock()
        self._gate.acquire()
        self._reader = threading.current_thread()
        self._lock = threading.RLock()  # stats are read while batches are made
        self._begun_ns = self._last_ns = now_ns
        self._asked_ns = 0  # since when the loop waits for a batch [ns], or 0
        self._sample_ns = now_ns + SAMPLE_NS
        self._record = RunRecord()
        self._record.begin(now_ns)
        self._runtimes: dict[str, StageRuntime] = {}
        for address, stage in self.stages.items():
            self._runtimes[address] = one = StageRuntime(address, stage, prefetch=0, now_ns=now_ns)
            one.state = BLOCKED  # nothing is made before it is wanted
            one.counters.first_ns = now_ns

    # -- called by the iterating thread -----------------------------------------------------
    def __next__(self) -> Any:
        """Make the next batch; wait while it is paused.

        Raises:
            BaseException: what making it raised; the epoch is over then.
        """
        self._reader = threading.current_thread()
        try:
            self._ask()
            batch = next(self._batches)
        except StopIteration:
            self.end(FINISHED)
            raise
        except BaseException as error:
            self.end(FAILED, error)
            raise
        self._made()
        if self.closed:  # another thread did so meanwhile
            self._let_go()
        return batch

    def _ask(self) -> None:
        """Wait while it is paused; note that a batch is wanted.

        Raises:
            StopIteration: it was stopped.
        """
        if self._between is not None:
            self._between()
        round_s = ATTEND_S if self._between else LOOK_UP_S
        while self._held and not self.closed:
            self._gate.acquire(timeout=round_s)  # an interrupt leaves no lock held here
            if self._between is not None:
                self._between()
        if self.closed:
            self._let_go()
            raise StopIteration
        if self._stopping:
            self.end(STOPPED)
            raise StopIteration
        with self._lock:
            self._asked_ns = now_ns = perf_counter_ns()
            self._record.consumer.waits_since_ns = self._record.consumer.active_ns(now_ns)
            runtime = self._runtimes[_MADE_IN]
            runtime.account(now_ns)
            runtime.state = READY
            runtime.occupy(1 - runtime.active, now_ns)

    def _made_of(self, items: Iterator[Any]) -> Iterator[Any]:
        source, *behind = self.stages
        for batch in itertools.islice(items, self._before, None):
            for self._at in behind:
                batch = self.stages[self._at].fn(batch)  # noqa: PLW2901
            self._at = source
            yield batch

    def _made(self) -> None:
        with self._lock:
            spent_ns = self._back()
            now_ns = self._last_ns
            self._delivered += 1
            self._record.consumer.counted += 1
            for runtime in self._runtimes.values():
                runtime.counters.items_in += 1
                runtime.counters.items_out += 1
            self._runtimes[_MADE_IN].count(now_ns, 1, spent_ns)
            if now_ns >= self._sample_ns:
                self._sample(last=False)

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """Called when the epoch is over; again does nothing."""
        if self.closed:
            return
        self.closed = True
        self.outcome, self._error = outcome, error
        with self._lock:
            if isinstance(error, Exception):
                self._fail(error)
            self._back()
            self._sample(last=True)
            self._record.end(self._last_ns)

    def _back(self) -> int:
        """Note that the loop is its own again; return the time that it was not [ns]."""
        self._last_ns = now_ns = perf_counter_ns()
        consumer = self._record.consumer
        since_ns, consumer.waits_since_ns = consumer.waits_since_ns, 0
        consumer.waited_ns += consumer.active_ns(now_ns) - since_ns if since_ns else 0
        spent_ns, self._asked_ns = now_ns - self._asked_ns if self._asked_ns else 0, 0
        runtime = self._runtimes[_MADE_IN]
        runtime.account(now_ns)
        runtime.state = BLOCKED
        runtime.occupy(-runtime.active, now_ns)
        return spent_ns

    def _sample(self, *, last: bool) -> None:
        runtimes = [(runtime, 0, 0) for runtime in self._runtimes.values()]
        self._sample_ns = self._record.sample(self._last_ns, self.epoch, runtimes, last=last)

    def _fail(self, error: Exception) -> None:
        self._runtimes[self._at].counters.errors += 1
        self._record.failures.append(
            Failure(
                stage=self._at,
                path=self._delivered,
                epoch=self.epoch,
                error=one_line(error),
                traceback=formatted(error),
                input="",
                attempts=1,
                when_s=time(),
            )
        )

    # -- called by others -------------------------------------------------------------------
    @property
    def paused(self) -> bool:
        """Whether no further batch is to be made."""
        return self._held

    def pause(self) -> None:
        """Make no further batch."""
        self._held = True
        self._note_pause()

    def resume(self) -> None:
        """Continue."""
        self._wake()
        self._note_pause()

    def _wake(self) -> None:
        self._held = False
        with suppress(RuntimeError):  # nothing waits, or another thread was quicker
            self._gate.release()

    def _note_pause(self) -> None:
        with self._lock:
            if not self.closed:
                now_ns = perf_counter_ns()
                paused = self.paused
                changed = self._record.consumer.pause(now_ns, paused=paused)
                for runtime in self._runtimes.values() if changed else ():
                    runtime.account(now_ns)
                    runtime.counters.begin_window(now_ns, 0)
                if changed and not paused:
                    self._record.resume(now_ns, [(one, 0, 0) for one in self._runtimes.values()])

    def stop(self) -> None:
        """End it as if it were exhausted, before its next batch."""
        self._stopping = True
        self.resume()

    def close(self, timeout_s: float = 0) -> None:
        """End it, also in a pause; nothing is waited for.

        The sampler belongs to the thread that iterates. So another thread leaves it open, and that
        thread closes it when it asks for the next batch; one that has ended cannot.
        """
        self.end(CANCELLED)
        if self._reader is threading.current_thread() or not self._reader.is_alive():
            self._let_go()
        self._wake()

    def forget(self) -> None:
        """Called when nothing iterates it any more; it takes no lock: one may be held below us."""
        self.closed = True
        self._let_go()

    def _let_go(self) -> None:
        """Close what gives the batches, unless it is at work: then it closes when it is not."""
        self._batches = iter(())

    def __getitem__(self, address: str) -> Stage:
        """Return a stage.

        Raises:
            UnknownStageError: there is no such stage.
        """
        return stage_at(self.stages, address, "loader")

    @property
    def _now_ns(self) -> int:
        """The time that its stats are of [ns]."""
        return self._last_ns if self.closed else perf_counter_ns()

    def status(self) -> Status:
        """Tell where it is."""
        consumer = self._record.consumer
        now_ns = consumer.active_ns(self._now_ns)
        since_ns = consumer.waits_since_ns or now_ns
        return Status(
            state="paused" if self.paused else "running",
            epoch=self.epoch,
            delivered=self._delivered,
            total=self._total,
            elapsed_s=(now_ns - self._begun_ns) / 1e9,
            waited_s=(consumer.waited_ns + max(0, now_ns - since_ns)) / 1e9,
            cpu_cores=self._record.cpu_cores,
            idle_cores=self._record.idle_cores,
            error="" if self._error is None else one_line(self._error),
            outcome=self.outcome,
            resumed=self._before,
            by_loop=True,
            since_pause_s=consumer.since_pause_s(self._begun_ns, now_ns),
        )

    def stats(self) -> dict[str, StageStats]:
        """Return stats by address, and of the loop."""
        with self._lock:
            now_ns, consumer = self._now_ns, self._record.consumer
            running_ns = max(0, now_ns - (self._asked_ns or now_ns))
            rows = {
                address: runtime.stats(now_ns, 0, running_ns if address == _MADE_IN else 0)
                for address, runtime in self._runtimes.items()
            }
            return {**consumer.with_means(rows, now_ns), CONSUMER: consumer.stats(now_ns)}

    def history(self) -> list[Row]:
        """Return one row a second and stage."""
        return self._record.history(self._lock)

    def failures(self) -> tuple[Failure, ...]:
        """Return the batch that could not be made, where one could not."""
        with self._lock:
            return tuple(self._record.failures)


# -- an epoch that workers make --------------------------------------------------------------------
_MOST_OF_LIMIT = 0.25  # of the time to wait for a batch, one round of the wait counts at most this
GRACE_S = 0.5  # for calls in progress when an epoch is left: then their workers are killed


def close_run(run: Run | LocalRun, timeout_s: float) -> None:
    """Close a run, and let go of what its workers mapped."""
    run.close(timeout_s)
    for stage in run.stages.values():
        release = getattr(stage.fn, "release", None)
        if release is not None:
            release()


def load_into(run: Run, position: Position) -> None:
    """Have a run begin where an epoch goes on."""
    if not position.epoch and not position.delivered:
        return
    stages: Mapping[str, Any] = {}
    rest = [position.delivered, []]
    if position.delivered and position.parts is not None:
        *_, stages = position.parts
    elif position.delivered and READER in run.stages:
        stages = {SAMPLES: {"children": [[0, rest]]}}
    elif position.delivered:
        stages = {next(iter(run.stages)): {"rest": rest, "by": "skipping"}}
    place = {"epoch": position.epoch, "delivered": position.delivered, "stages": dict(stages)}
    run.load_state_dict(run.state_dict() | place | {"seal": None})


class BatchTimeout:
    """Bounds how long the training loop waits for one batch; pauses do not count.

    Time in which the process was stopped (`kill -STOP`, a laptop that sleeps) does not count,
    either: it shows as one long round of the wait, of which only a part counts.

    Args:
        limit_s: the bound [s].
        run: whose batches they are.
    """

    def __init__(self, limit_s: float, run: Run) -> None:
        self._limit_s = limit_s
        self._others = run._core.between_waits
        self._run = weakref.ref(run)  # which holds this
        self._waited_s = self._since_s = 0.0

    def begin(self) -> None:
        """Called when a wait may begin."""
        self._waited_s, self._since_s = 0.0, self._now_s()

    def _now_s(self) -> float:
        run = self._run()
        return self._since_s if run is None else run._core.active_s

    def __call__(self) -> None:
        """Called at the beginning of a wait, and after each round of it.

        Raises:
            StageTimeoutError: it has taken too long.
        """
        if self._others is not None:
            self._others()
        now_s = self._now_s()
        self._waited_s += min(now_s - self._since_s, self._limit_s * _MOST_OF_LIMIT)
        self._since_s = now_s
        if self._waited_s > self._limit_s:
            raise StageTimeoutError(
                f"no batch came within timeout={self._limit_s:g} s; raise timeout, or see what "
                "limits it: loader.run.diagnose()"
            )


class WorkerRun(NamedTuple):
    """A run that makes batches, for one epoch or for all.

    Attributes:
        run: the run.
        indices: gives it the indices of each epoch, or None.
        seed: that of its items.
        readers: how many workers read a part of an iterable dataset each; 0: none does.
        stays: it stays when an epoch ends.
    """

    run: Run
    indices: EpochIndices | None
    seed: int
    readers: int
    stays: bool

    def begin(self, indices: Iterator[Any] | None, progress: EpochProgress) -> Iterator[Any]:
        """Begin an epoch, with these indices: samplers draw what is random before the first."""
        if self.indices is not None and indices is not None:
            self.indices.prepared = begun(indices)
        self.run.set_epoch(progress.position.epoch)  # others may have made those between
        try:
            items = iter(self.run)
        except BaseException:  # what cannot be sent to a process is found now
            close_run(self.run, GRACE_S)
            raise
        progress.run, progress.readers = self.run, self.readers
        return items


# -- all epochs of a loader ------------------------------------------------------------------------
class _Begun(NamedTuple):
    """One epoch.

    Attributes:
        number: its number.
        maker: makes the batches.
        epoch: its iterator, unless that was dropped.
        thread: the thread that began it, by its number.
        later: what is added to the numbers of the maker's epochs.
    """

    number: int
    maker: Run | LocalRun
    epoch: weakref.ref[Any]
    thread: int
    later: int

    @property
    def is_at_hand(self) -> bool:
        """Whether its maker has begun it, and no other behind it."""
        maker = self.maker
        begun = isinstance(maker, LocalRun) or maker._core.life.outcome != UNBEGUN
        return begun and maker.epoch + self.later == self.number

    def renumbered(self, failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
        """Return failures of the maker with the loader's numbers of epochs."""
        later = self.later
        if not later:
            return failures
        return tuple(dataclasses.replace(one, epoch=one.epoch + later) for one in failures)

    @property
    def going(self) -> bool:
        """Whether more batches may come."""
        epoch = self.epoch()
        return epoch is not None and not epoch.over


# What the loader and the rooms of nbpipe ask of its run; completion does not offer it.
_OURS = (
    "active_s",
    *("begins", "between_waits", "chain_code", "close_epochs", "ended"),
    *("follow", "is_busy"),
    *("knobs", "local_run", "moved", "not_begun", "on_run", "shown", "turn"),
    "unnamed_failures",
)


@final
class LoaderRun(ShownRun):
    """The run of a loader: one for all of its epochs, whoever makes their batches.

    There before the first epoch, and with other workers in each one. Of two iterators side by
    side it shows the newest that is under way. A loader's `run` is displayed, and asked, as the
    run of a pipeline is.

    Args:
        loader: whose run it is; it is held weakly.
        in_batches: the loader gives batches, not samples.

    Attributes:
        on_run: called with every run that makes batches for this one, or None.
        between_waits: called before a batch is made in the calling thread, or None; each epoch
            has that of its beginning.
        shown: what shows this run; its `rest` is called at the end of each epoch.
    """

    def __init__(self, loader: Any, *, in_batches: bool) -> None:
        self.on_run: Callable[[AttendedRun], object] | None = None
        self.between_waits: Callable[[], object] | None = None
        self.shown: weakref.WeakSet[Shown] = weakref.WeakSet()
        self._loader = weakref.ref(loader)
        self._in_batches = in_batches
        self._pipeline = Pipeline(())
        self._begun: list[_Begun] = []
        self._number = -1
        self._lock = threading.RLock()
        self._makers: list[Run | LocalRun] = []  # those that are not closed
        self._events: deque[KnobChange] = deque(maxlen=EVENTS_KEPT)
        events = self._events
        self._steps = StepTimes(lambda found: events.append(slowdown(found)))
        self._knobs: dict[str, dict[str, Knob]] = {}
        self._watched: weakref.WeakSet[Knob] = weakref.WeakSet()
        for made in tuple(loader_made):
            made(self)

    # -- called by the loader ----------------------------------------------------------------
    def follow(self, pipeline: Pipeline) -> None:
        """Called when a chain was built; the changes of its knobs are events of this run."""
        self._pipeline = pipeline
        for address, stage in addresses(pipeline.chain).items():
            self._knobs.setdefault(address, {}).update(stage.knobs)
            for knob in stage.knobs.values():
                if knob not in self._watched:
                    self._watched.add(knob)
                    knob.watch(self._events.append)  # knobs may outlive this run

    @property
    def knobs(self) -> Mapping[str, Mapping[str, Knob]]:
        """The knobs of all chains that there were, by address: tuned values stay."""
        return self._knobs

    def local_run(self, items: Iterator[Any], *, before: int) -> LocalRun:
        """Return what makes an epoch in the calling thread.

        Args:
            items: take the place of those of the chain's source.
            before: those that the loop had before.
        """
        chain = self._pipeline.chain
        total = known_length(chain)
        return LocalRun(items, chain, before=before, total=total, between_waits=self.between_waits)

    def begins(self, epoch: Any, maker: Run | LocalRun, number: int = 0) -> None:
        """Called when an epoch is about to begin; it counts as soon as the maker has begun it.

        Args:
            epoch: its iterator; it is held weakly.
            maker: makes the batches.
            number: of the epoch there.
        """
        with self._lock:
            self._number += 1
            self._note(maker)
            later = self._number - number
            begun = _Begun(self._number, maker, weakref.ref(epoch), get_ident(), later)
            last = self._current
            self._begun = [*(one for one in self._begun if one.going or one is last), begun]

    def not_begun(self, epoch: Any) -> None:
        """Called when it could not begin: then it is none."""
        with self._lock:
            self._begun = [one for one in self._begun if one.epoch() is not epoch]
            self._number -= 1

    def is_busy(self, run: Run) -> bool:
        """Tell whether an epoch of a run is under way."""
        return any(one.going and one.maker is run for one in tuple(self._begun))

    def ended(self) -> None:
        """Called when an epoch is over."""
        for one in tuple(self.shown):
            one.rest()

    def moved(self, run: Run, other: Run) -> None:
        """Called when another run makes the batches of an epoch that has begun."""
        with self._lock:
            self._begun = [
                one._replace(maker=other) if one.maker is run else one for one in self._begun
            ]
            self._note(other)

    def _note(self, maker: Run | LocalRun) -> None:
        """Keep a run that makes batches until it is closed."""
        if not any(one is maker for one in self._makers):
            self._makers = [*(one for one in self._makers if not one.closed), maker]
            if isinstance(maker, Run):
                maker._core.time_steps(self._steps)
            if self.on_run is not None and isinstance(maker, Run):
                self.on_run(maker)

    # -- looking in --------------------------------------------------------------------------
    @property
    def _core(self) -> LoaderRun:
        """What panel and kernel use: methods of its own."""
        return self

    @property
    def _current(self) -> _Begun | None:
        """The newest epoch that is under way, else the newest."""
        begun = [one for one in self._begun if one.is_at_hand]
        return next((one for one in reversed(begun) if one.going), begun[-1] if begun else None)

    @property
    def _run(self) -> Run | LocalRun | None:
        """What makes, or made, the batches of the newest epoch."""
        current = self._current
        return None if current is None else current.maker

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages by address."""
        run = self._run
        return addresses(self._pipeline.chain) if run is None else run.stages

    @property
    def epoch(self) -> int:
        """Number of the epoch in progress, or of the last one; before the first, 0."""
        current = self._current
        return 0 if current is None else current.number

    @property
    def active_s(self) -> float:
        """Time that passes from one batch to the next [s]; what makes them changes meanwhile."""
        return perf_counter_ns() / 1e9

    @property
    def paused(self) -> bool:
        """Whether the run is paused."""
        run = self._run
        return run is not None and run.paused

    @property
    def stopped(self) -> bool:
        """Whether `stop()` ended the last epoch."""
        return self.status().state == "stopped"

    @property
    def closed(self) -> bool:
        """Whether the loader is gone: until then, another epoch may always come."""
        return self._loader() is None

    @property
    def events(self) -> tuple[KnobChange, ...]:
        """Every knob change since the loader was made: when, who, from, to, why."""
        return tuple(self._events.copy())

    def status(self) -> Status:
        """Tell where the loader is: state, epoch, batches delivered, time, why an epoch failed."""
        current = self._current
        if current is None:
            total = known_length(self._pipeline.chain)
            status = Status("ready", 0, total=total, by_loop=is_local(self._pipeline))
        else:
            going, status = current.going, current.maker.status()
            if status.epoch + current.later != current.number:  # the next one has begun meanwhile
                return self.status()
            state = status.state if going else status.outcome
            status = dataclasses.replace(status, state=state, epoch=current.number)
        if self.closed:
            status = dataclasses.replace(status, state="closed")
        return dataclasses.replace(status, units=self._units(), called="loader.run")

    def _units(self) -> dict[str, str]:
        return dict.fromkeys(self.stages, "batches" if self._in_batches else "items")

    def stats(self) -> RunStats:
        """Return frozen stats by stage address; the training loop's own row is "consumer".

        Counts are those of the newest epoch, and where its workers stayed, of those before it.
        Between epochs, "the last seconds" are those of the last epoch.
        """
        shown = self._run
        rows = {name: _idle(stage) for name, stage in self.stages.items()}
        rows[CONSUMER] = StageStats()
        known = rows if shown is None else rows | dict(shown.stats())
        return RunStats(known, self._units())

    def history(self) -> list[Row]:
        """Return one row a second and stage, of the epochs of `stats`; old times are thinned."""
        current = self._current
        if current is None:
            return []
        rows = current.maker.history()
        return [{**row, "epoch": int(row["epoch"]) + current.later} for row in rows]

    def failures(self) -> Failures:
        """Return the items that failed in the epochs of `stats`, oldest first."""
        current = self._current
        return Failures(() if current is None else current.renumbered(current.maker.failures()))

    def unnamed_failures(self) -> tuple[Failure, ...]:
        """Return `failures()` without the items of the source."""
        current = self._current
        if current is None:
            return ()
        maker = current.maker
        if isinstance(maker, LocalRun):
            return current.renumbered(maker.failures())
        return current.renumbered(maker._core.unnamed_failures())

    def __getitem__(self, address: str) -> Stage | LiveStage:
        """Return a stage; one with workers also tells how many, and their process ids.

        Raises:
            UnknownStageError: there is no such stage.
        """
        run = self._run
        return stage_at(self.stages, address, "loader") if run is None else run[address]

    def __len__(self) -> int:
        """Return the number of batches of an epoch, as the loader says it."""
        return len(self._open_loader())

    def __repr__(self) -> str:
        current = self._current
        state = "closed" if self.closed else "paused" if self.paused else "open"
        if current is not None and current.going:
            state += f", epoch {current.number} in progress"
        return f"LoaderRun({title_of(self)}; {state})"

    # -- reaching in -------------------------------------------------------------------------
    def _open_loader(self) -> Any:
        loader = self._loader()
        if loader is None:
            raise RunClosedError("this run's loader is gone; make another one")
        return loader

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that the loader runs.

        Raises:
            RunClosedError: the loader is gone.
        """
        pipeline: Pipeline = self._open_loader().pipeline
        return pipeline

    def __iter__(self) -> Iterator[Any]:
        """Begin the loader's next epoch.

        Raises:
            RunClosedError: the loader is gone.
        """
        return iter(self._open_loader())

    def pause(self) -> None:
        """Begin no further batch until `resume()`, in this epoch."""
        run = self._run
        if run is not None and not run.closed:
            run.pause()

    def resume(self) -> None:
        """Go on after `pause()`."""
        run = self._run
        if run is not None and not run.closed:
            run.resume()

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted."""
        current = self._current
        if current is not None and current.going:
            current.maker.stop()

    @property
    def turn(self) -> tuple[int, int]:
        """How far it is: epochs begun, batches delivered in all of them."""
        return self._number, self.stats()[CONSUMER].items_out

    def close_epochs(self, threads: Collection[int] = ()) -> bool:
        """Leave the epochs that a thread began: the code that iterated them is gone.

        Args:
            threads: the numbers of the threads; without any, this thread's.

        Returns:
            Whether there were any.
        """
        threads, left = threads or (get_ident(),), False
        for one in tuple(self._begun):
            epoch = one.epoch()
            if epoch is not None and one.thread in threads:
                left = left or one.going
                epoch.close()
        return left

    def close(self, timeout_s: float = 5) -> None:
        """End the epochs in progress and all workers; the loader's next epoch starts others.

        Args:
            timeout_s: how long to wait for calls in progress [s].
        """
        for maker in self._makers:
            close_run(maker, timeout_s)
        for one in tuple(self._begun):
            epoch = one.epoch()
            if epoch is not None:
                epoch.close()

    def __enter__(self) -> LoaderRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __dir__(self) -> list[str]:
        return shown(self, _OURS)

    def __getattr__(self, name: str) -> Any:
        """Tell where something is that this run has not.

        Raises:
            AttributeError: always; with the way out.
        """
        way = ""
        if name[0] != "_":
            there = hasattr(self._loader(), name)
            way = f"; that is the loader's: loader.{name}" if there else near_match(name, dir(self))
        raise AttributeError(f"a loader's run has no {name!r}{way}", name=name, obj=self)

    def __setattr__(self, name: str, value: object) -> None:
        if name[0] != "_" and name not in ("on_run", "between_waits", "shown"):
            self.__getattr__(name)  # what else can be set is the loader's
        object.__setattr__(self, name, value)

    # -- what others make of it --------------------------------------------------------------
    def export(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Exported:
        """Write the chain that the loader stands for as a module: `DataLoader.export`."""
        done: Exported = self._open_loader().export(path, overwrite=overwrite)
        return done

    def chain_code(self) -> str:
        """Return the chain that the loader stands for, as code for a cell."""
        code: str = self._open_loader().chain_code()
        return code


def _idle(stage: Stage) -> StageStats:
    knobs = {name: knob.value for name, knob in stage.knobs.items()}
    return StageStats(concurrency=knobs.get("concurrency", 1), prefetch=knobs.get("prefetch", 0))
