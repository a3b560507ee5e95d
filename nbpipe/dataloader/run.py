"""LoaderRun: all epochs of a `DataLoader` as one run, from the moment that the loader is made."""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter_ns, time
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

from ..base.knobs import Knob, KnobChange
from ..engine.failures import KEPT, Failure, formatted, one_line
from ..engine.machine import CANCELLED, EVENTS_KEPT, STOPPED, TICKS_KEPT, Record
from ..engine.runtime import BLOCKED, READY, StageRuntime
from ..engine.stats import Row, RunStats, StageStats, Status
from ..errors import LengthUnknownError, RunClosedError
from ..ops.chain import length
from ..ops.stage import CONSUMER, Chain, Stage, addresses, stage_at
from ..pipeline import Pipeline
from ..run.iterator import ATTEND_S
from ..run.run import LiveStage, Run
from ..show.watch import AttendedRun, Shown, loader_made
from .chain import is_local

if TYPE_CHECKING:
    from ipywidgets import VBox
    from plotly.graph_objects import Figure

    from ..export.exporting import Exported
    from ..show.rules import Diagnosis

_SETTABLE = ("on_run", "between_waits", "shown")
_ORDERED = "the loader's sampler gives the order: DataLoader(..., sampler=indices)"
_ELSEWHERE = {  # what a pipeline's run has
    "train": "write the loop over the loader, in a thread of your own where it is not to wait",
    "wait": "nothing runs in the background: an epoch is over when the loop over the loader is",
    "iterate": _ORDERED,
    "open_epoch": _ORDERED,
    "set_epoch": "a sampler that wants the number is told it: loader.sampler.set_epoch(number)",
    "seed": "torch's generator decides: torch.manual_seed(0), or DataLoader(..., generator=...)",
    "panel": "the loader as the last line of a cell shows the panel",
    "outcome": "status().state says how the last epoch ended",
}
_SUMS = ("items_in", "items_out", "errors", "retries", "bytes_out")  # since the run began


# -- the epochs that are made in the calling thread ------------------------------------------------
_MADE_IN = "fetch"  # the stage whose calls the loop makes itself


@final
class LocalEpoch:
    """Counts one epoch that is made in the calling thread.

    Args:
        epochs: all of the loader that are made so.
        number: of the epoch.
        before: batches of the epoch that the loop had before.
        total: batches of the epoch, or None.

    Attributes:
        outcome: how it ended; CANCELLED while it has not.
    """

    def __init__(self, epochs: LocalEpochs, number: int, before: int, total: int | None) -> None:
        self.number = number
        self.outcome = CANCELLED
        self.over = False
        self._epochs = epochs
        self._before = before
        self._total = total
        self._error: BaseException | None = None
        self._stopping = False
        self._delivered = before
        self._waited_ns = self._asked_ns = 0  # not 0: a batch is being made since then
        self._begun_ns = self._last_ns = perf_counter_ns()

    # -- called by the iterating thread -----------------------------------------------------
    def ask(self) -> None:
        """Called when a batch is wanted; wait while it is paused.

        Raises:
            StopIteration: it was stopped.
        """
        epochs = self._epochs
        between = epochs.between_waits
        if between is not None:
            between()
        epochs.wait_while_paused()
        if self._stopping:
            self.end(STOPPED)
            raise StopIteration
        self._asked_ns = perf_counter_ns()
        epochs.begin_call(self._asked_ns)

    def made(self) -> None:
        """Called when the batch is there."""
        self._delivered += 1
        self._note(self._epochs.end_call(perf_counter_ns(), self.number))

    def _note(self, now_ns: int) -> None:
        asked_ns, self._asked_ns = self._asked_ns, 0
        self._waited_ns += max(0, now_ns - asked_ns) if asked_ns else 0
        self._last_ns = now_ns

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """Called when the epoch is over; again does nothing."""
        if self.over:
            return
        self.over = True
        self.outcome, self._error = outcome, error
        if isinstance(error, Exception):
            self._epochs.fail(error, self.number, self._delivered)
        self._note(self._epochs.end(perf_counter_ns(), self.number))

    # -- called by others -------------------------------------------------------------------
    def stop(self) -> None:
        """End it as if it were exhausted, before its next batch."""
        self._stopping = True
        self._epochs.resume()

    def now_ns(self, *, going: bool) -> int:
        """Return the time that its stats are of [ns].

        Args:
            going: it may go on: its iterator is there.
        """
        return perf_counter_ns() if going else self._last_ns

    def status(self, *, going: bool) -> Status:
        """Tell where it is.

        Args:
            going: it may go on: its iterator is there.
        """
        now_ns = self.now_ns(going=going)
        asked_ns = self._asked_ns
        waited_ns = self._waited_ns + (max(0, now_ns - asked_ns) if asked_ns else 0)
        state = ("paused" if self._epochs.paused else "running") if going else self.outcome
        return Status(
            state=state,
            epoch=self.number,
            epochs=None,
            epochs_begun=None,
            delivered=self._delivered,
            total=self._total,
            units={},
            elapsed_s=(now_ns - self._begun_ns) / 1e9,
            waited_s=waited_ns / 1e9,
            cpu_cores=self._epochs.record.cpu_cores,
            error="" if self._error is None else one_line(self._error),
            held_bytes=None,
            limit_bytes=None,
            resumed=self._before,
            by_loop=True,
        )


@final
class LocalEpochs:
    """Counts what a loader makes in the calling thread, over all of its epochs.

    Attributes:
        record: how long the loop waited, and the history.
        between_waits: called before a batch is made, and again and again during a pause, or None.
    """

    def __init__(self) -> None:
        self.record = Record()
        self.between_waits: Callable[[], object] | None = None
        self._runtimes: dict[str, StageRuntime] = {}
        self._lock = threading.RLock()  # stats are read while batches are made
        self._sample_ns = 0
        self._going = threading.Event()
        self._going.set()

    def begin(self, chain: Chain, number: int, before: int, total: int | None) -> LocalEpoch:
        """Begin an epoch.

        Args:
            chain: the stages that it is shown as.
            number: of the epoch.
            before: batches of it that the loop had before.
            total: batches of it, or None.
        """
        with self._lock:
            now_ns = perf_counter_ns()
            self.record.end(now_ns)  # the one before may have been dropped
            self.record.begin(now_ns)
            for address, stage in addresses(chain).items():
                runtime = self._runtimes.get(address)
                if runtime is None or runtime.stage is not stage:
                    runtime = self._runtimes[address] = StageRuntime(
                        address, stage, prefetch=0, now_ns=now_ns
                    )
                runtime.active = 0
                runtime.skip_time(now_ns)
                runtime.state = BLOCKED  # nothing is made before it is wanted
                if not runtime.counters.first_ns:
                    runtime.counters.first_ns = now_ns
            self.record.consumer.waits_since_ns = 0
            return LocalEpoch(self, number, before, total)

    def begin_call(self, now_ns: int) -> None:
        """Called when a batch is being made."""
        with self._lock:
            self.record.consumer.waits_since_ns = now_ns
            runtime = self._runtimes.get(_MADE_IN)
            if runtime is not None:
                runtime.account(now_ns, READY)
                runtime.active = 1

    def end_call(self, now_ns: int, epoch: int) -> int:
        """Called when a batch was made; return the time [ns]."""
        with self._lock:
            spent_ns = self._back(now_ns)
            consumer = self.record.consumer
            consumer.items += 1
            for address, runtime in self._runtimes.items():
                runtime.counters.items_in += 1
                runtime.counters.items_out += 1
                if address == _MADE_IN:
                    runtime.learn(spent_ns, 1, now_ns)
            if now_ns >= self._sample_ns:
                self._sample(now_ns, epoch, last=False)
        return now_ns

    def fail(self, error: Exception, epoch: int, place: int) -> None:
        """Called when a batch could not be made.

        Args:
            error: why.
            epoch: its number.
            place: of the batch in the epoch.
        """
        with self._lock:
            address = self._stage_of(error)
            runtime = self._runtimes.get(address)
            if runtime is not None:
                runtime.counters.errors += 1
            self.record.failures.append(
                Failure(
                    stage=address,
                    path=place,
                    epoch=epoch,
                    error=one_line(error),
                    traceback=formatted(error),
                    input="",
                    attempts=1,
                    when_s=time(),
                )
            )

    def _stage_of(self, error: Exception) -> str:
        """Return the stage whose function an error came through; else it is the first one's."""
        ran = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
        for address, runtime in self._runtimes.items():
            call = vars(type(getattr(runtime.stage, "fn", None))).get("__call__")
            if getattr(call, "__code__", None) in ran:
                return address
        return next(iter(self._runtimes), _MADE_IN)

    def end(self, now_ns: int, epoch: int) -> int:
        """Called when an epoch is over; return the time [ns]."""
        with self._lock:
            self._back(now_ns)
            self._sample(now_ns, epoch, last=True)
            self.record.end(now_ns)
        return now_ns

    def _back(self, now_ns: int) -> int:
        """Note that the loop is its own again; return the time that it was not [ns]."""
        consumer = self.record.consumer
        since_ns, consumer.waits_since_ns = consumer.waits_since_ns, 0
        spent_ns = max(0, now_ns - since_ns) if since_ns else 0
        consumer.waited_ns += spent_ns
        runtime = self._runtimes.get(_MADE_IN)
        if runtime is not None:
            runtime.account(now_ns, BLOCKED)
            runtime.active = 0
        return spent_ns

    def _sample(self, now_ns: int, epoch: int, *, last: bool) -> None:
        runtimes = [(runtime, 0, 0) for runtime in self._runtimes.values()]
        self._sample_ns = self.record.sample(now_ns, epoch, runtimes, last=last)

    # -- looking in -----------------------------------------------------------------------
    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Return stats by address, and of the loop."""
        with self._lock:
            since_ns = self.record.consumer.waits_since_ns
            running_ns = max(0, now_ns - since_ns) if since_ns else 0
            rows = {
                address: runtime.stats(now_ns, 0, running_ns if address == _MADE_IN else 0)
                for address, runtime in self._runtimes.items()
            }
            rows[CONSUMER] = self.record.consumer.stats(now_ns)
        return rows

    def history(self) -> list[Row]:
        """Return one row a second and stage."""
        with self._lock:
            return self.record.history()

    def failures(self) -> list[Failure]:
        """Return the last batches that could not be made, oldest first."""
        with self._lock:
            return list(self.record.failures)

    # -- reaching in ----------------------------------------------------------------------
    @property
    def paused(self) -> bool:
        """Whether no further batch is to be made."""
        return not self._going.is_set()

    def pause(self) -> None:
        """Make no further batch."""
        self._going.clear()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    def wait_while_paused(self) -> None:
        """Wait until batches may be made."""
        while not self._going.wait(ATTEND_S):
            if self.between_waits is not None:
                self.between_waits()


# -- all epochs of a loader ------------------------------------------------------------------------
class ClosableEpoch(Protocol):
    """The iterator of an epoch, as far as its run knows it."""

    over: bool
    dropped: bool

    def close(self) -> None:
        """Leave it."""


class Loader(Protocol):
    """A loader, as far as its run knows it."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def close(self) -> None:
        """End its workers."""


class _Begun(NamedTuple):
    """One epoch: its number, who makes the batches, its iterator, unless that was dropped.

    And the thread that began it, by its number.
    """

    number: int
    maker: Run | LocalEpoch
    epoch: weakref.ref[Any]
    thread: int

    @property
    def going(self) -> bool:
        """Whether more batches may come."""
        epoch = self.epoch()
        if epoch is None or epoch.over or epoch.dropped:
            return False
        return not (isinstance(self.maker, LocalEpoch) and self.maker.over)


@final
class LoaderRun:
    """The run of a loader: one for all of its epochs, whoever makes their batches.

    There before the first epoch, and with other workers in each one. Of two iterators side by
    side it shows the newest that is under way. A loader's `run` is displayed, and asked, as the
    run of a pipeline is.

    Args:
        loader: whose run it is; it is held weakly.
        in_batches: the loader gives batches, not samples.

    Attributes:
        on_run: called with every run that makes batches for this one, or None.
        between_waits: called before a batch is made in the calling thread, or None.
        shown: what shows this run; its `rest` is called at the end of each epoch.
    """

    def __init__(self, loader: Loader, *, in_batches: bool) -> None:
        self.on_run: Callable[[AttendedRun], object] | None = None
        self.between_waits: Callable[[], object] | None = None
        self.shown: weakref.WeakSet[Shown] = weakref.WeakSet()
        self._loader = weakref.ref(loader)
        self._in_batches = in_batches
        self._pipeline = Pipeline(())
        self._local = LocalEpochs()
        self._begun: list[_Begun] = []
        self._number = -1
        self._lock = threading.RLock()
        self._runs: list[tuple[Run, dict[int, int]]] = []  # each with the numbers of its epochs
        self._past: list[Row] = []  # of runs that are closed, and let go
        self._sums: dict[str, dict[str, int]] = {}
        self._lost: deque[Failure] = deque(maxlen=KEPT)
        self._events: deque[KnobChange] = deque(maxlen=EVENTS_KEPT)
        self._knobs: dict[str, dict[str, Knob]] = {}
        self._watched: weakref.WeakSet[Knob] = weakref.WeakSet()
        self._begun_s = time()
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
                    knob.watch(_noting(self))

    @property
    def knobs(self) -> Mapping[str, Mapping[str, Knob]]:
        """The knobs of all chains that there were, by address: tuned values stay."""
        return self._knobs

    def began(self, epoch: ClosableEpoch, run: Run | None, before: int) -> LocalEpoch | None:
        """Called when an epoch begins.

        Args:
            epoch: its iterator; it is held weakly.
            run: makes the batches; None: the calling thread does.
            before: batches of it that the loop had before.

        Returns:
            What counts an epoch that is made in the calling thread.
        """
        with self._lock:
            self._number += 1
            self._let_go()
            maker: Run | LocalEpoch
            if run is None:
                self._local.between_waits = self.between_waits
                chain = self._pipeline.chain
                maker = self._local.begin(chain, self._number, before, self._total())
            else:
                maker = run
                self._numbers_of(run)[run.epoch] = self._number
            self._begun = [one for one in self._begun if one.going]
            self._begun.append(_Begun(self._number, maker, weakref.ref(epoch), get_ident()))
        return maker if isinstance(maker, LocalEpoch) else None

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
            self._numbers_of(other)[other.epoch] = self._number

    def _numbers_of(self, run: Run) -> dict[int, int]:
        for known, numbers in self._runs:
            if known is run:
                return numbers
        self._runs.append((run, {}))
        if self.on_run is not None:
            self.on_run(run)
        return self._runs[-1][1]

    def _let_go(self) -> None:
        """Keep of the runs that are closed what they counted, and no more."""
        for run, numbers in [one for one in self._runs if one[0].closed]:
            self._runs.remove((run, numbers))
            self._past += self._placed(run.history(), numbers)
            self._lost.extend(_renumbered(run.failures(), numbers))
            for address, row in run.stats().items():
                sums = self._sums.setdefault(address, dict.fromkeys(_SUMS, 0))
                for name in _SUMS:
                    sums[name] += getattr(row, name)
        self._past = _thinned(self._past)

    # -- looking in --------------------------------------------------------------------------
    @property
    def _current(self) -> _Begun | None:
        """The newest epoch that is under way, else the newest."""
        begun = self._begun
        return next((one for one in reversed(begun) if one.going), begun[-1] if begun else None)

    @property
    def _run(self) -> Run | None:
        """The run that makes, or made, the batches of the newest epoch."""
        current = self._current
        return current.maker if current is not None and isinstance(current.maker, Run) else None

    @property
    def title(self) -> str:
        """The addresses of the stages, in one line."""
        return " > ".join(self.stages)

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
    def paused(self) -> bool:
        """Whether the run is paused."""
        run = self._run
        return self._local.paused if run is None else run.paused

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
            status = _ready(self._total(), by_loop=is_local(self._pipeline))
        elif isinstance(current.maker, LocalEpoch):
            status = current.maker.status(going=current.going)
        else:
            status = current.maker.status()
            state = status.state if current.going else current.maker.outcome
            status = dataclasses.replace(status, state=state, epoch=current.number)
        if self.closed:
            status = dataclasses.replace(status, state="closed")
        units = dict.fromkeys(self.stages, "batches" if self._in_batches else "items")
        return dataclasses.replace(status, units=units, called="loader.run")

    def _total(self) -> int | None:
        try:
            return length(self._pipeline.chain)
        except LengthUnknownError:
            return None

    def stats(self) -> RunStats:
        """Return frozen stats by stage address; the training loop's own row is "consumer".

        Counts are those of all epochs. Between epochs, "the last seconds" are those of the last
        epoch.
        """
        with self._lock:
            current = self._current
            rows = {name: _idle(stage) for name, stage in self.stages.items()}
            rows[CONSUMER] = StageStats()
            shown: Run | LocalEpochs | None = None
            if current is not None and isinstance(current.maker, Run):
                shown = current.maker
                rows |= current.maker.stats()
            elif current is not None and isinstance(current.maker, LocalEpoch):
                shown = self._local
                rows |= self._local.stats(current.maker.now_ns(going=current.going))
            others: list[Mapping[str, StageStats]] = [
                run.stats() for run, _ in self._runs if run is not shown
            ]
            if shown is not self._local:
                others.append(self._local.stats(perf_counter_ns()))
            return RunStats({name: self._summed(name, row, others) for name, row in rows.items()})

    def _summed(
        self, name: str, row: StageStats, others: list[Mapping[str, StageStats]]
    ) -> StageStats:
        """Add what others counted for the stage of this name."""
        sums = {part: self._sums.get(name, {}).get(part, 0) for part in _SUMS}
        for rows in others:
            other = rows.get(name)
            for part in _SUMS if other is not None else ():
                sums[part] += getattr(other, part)
        return dataclasses.replace(
            row, **{part: getattr(row, part) + count for part, count in sums.items()}
        )

    def history(self) -> list[Row]:
        """Return one row a second and stage, of all epochs; old times are thinned."""
        with self._lock:
            rows = [*self._past, *self._placed(self._local.history())]
            for run, numbers in self._runs:
                rows += self._placed(run.history(), numbers)
        rows.sort(key=lambda row: row["time_s"])
        return rows

    def _placed(self, rows: list[Row], numbers: Mapping[int, int] | None = None) -> list[Row]:
        """Have rows count their time from when the loader was made, and the loader's epochs."""
        if not rows:
            return rows
        later_s = float(rows[0]["when_s"]) - float(rows[0]["time_s"]) - self._begun_s
        known = numbers or {}
        return [
            {
                **row,
                "time_s": float(row["time_s"]) + later_s,
                "epoch": known.get(int(row["epoch"]), row["epoch"]),
            }
            for row in rows
        ]

    def failures(self) -> tuple[Failure, ...]:
        """Return the last 100 items that failed, oldest first."""
        with self._lock:
            found = [*self._lost, *self._local.failures()]
            for run, numbers in self._runs:
                found += _renumbered(run.failures(), numbers)
        found.sort(key=lambda one: one.when_s)
        return tuple(found[-KEPT:])

    def __getitem__(self, address: str) -> Stage | LiveStage:
        """Return a stage; one with workers also tells how many, and their process ids.

        Raises:
            UnknownStageError: there is no such stage.
        """
        run = self._run
        return stage_at(self.stages, address, "loader") if run is None else run[address]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.stages)

    def __len__(self) -> int:
        """Return the number of batches of an epoch, as the loader says it."""
        return len(self._open_loader())

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        current = self._current
        state = "closed" if self.closed else "paused" if self.paused else "open"
        if current is not None and current.going:
            state += f", epoch {current.number} in progress"
        return f"LoaderRun({self.title}; {state})"

    # -- reaching in -------------------------------------------------------------------------
    def _open_loader(self) -> Loader:
        loader = self._loader()
        if loader is None:
            raise RunClosedError("this run's loader is gone; make another one")
        return loader

    def __iter__(self) -> Iterator[Any]:
        """Begin the loader's next epoch.

        Raises:
            RunClosedError: the loader is gone.
        """
        return iter(self._open_loader())

    def pause(self) -> None:
        """Begin no further batch until `resume()`, in this epoch."""
        run = self._run
        if run is None:
            self._local.pause()
        elif not run.closed:
            run.pause()

    def resume(self) -> None:
        """Go on after `pause()`."""
        run = self._run
        self._local.resume()
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

    def close_epochs(self) -> None:
        """Leave the epochs that this thread began: the code that iterated them is gone."""
        for one in tuple(self._begun):
            epoch = one.epoch()
            if epoch is not None and one.thread == get_ident():
                epoch.close()

    def close(self, timeout_s: float = 5) -> None:
        """End the epochs in progress and all workers; the loader's next epoch starts others.

        Args:
            timeout_s: how long to wait for calls in progress [s].
        """
        for run, _ in tuple(self._runs):
            run.close(timeout_s)
        for one in tuple(self._begun):
            epoch = one.epoch()
            if epoch is not None:
                epoch.close()

    def __enter__(self) -> LoaderRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what belongs to the loader ----------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        """Tell where something is that this run has not.

        Raises:
            AttributeError: always; with the way out.
        """
        raise AttributeError(self._elsewhere(name), name=name, obj=self)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and name not in _SETTABLE:
            known = hasattr(type(self), name)
            reason = f"{name} of a loader's run cannot be set" if known else self._elsewhere(name)
            raise AttributeError(reason, name=name, obj=self)
        object.__setattr__(self, name, value)

    def _elsewhere(self, name: str) -> str:
        if name.startswith("_"):
            return f"{type(self).__name__!r} object has no attribute {name!r}"
        way = _ELSEWHERE.get(name)
        if way is None and hasattr(self._loader(), name):
            way = f"that is the loader's: loader.{name}"
        return f"a loader's run has no {name!r}" + (f"; {way}" if way else "")

    # -- what others make of it --------------------------------------------------------------
    def diagnose(self) -> Diagnosis:
        """Name what limits the loader, from the last 5 s, and what to try; prints as a sentence."""
        from ..show.diagnose import diagnose

        return diagnose(self)

    def plot(self) -> Figure:
        """Draw the history of all epochs: a `plotly.graph_objects.Figure`.

        Raises:
            MissingExtraError: plotly is not installed.
        """
        from ..show.figure import figure

        return figure(self)

    def controls(self) -> VBox:
        """Return sliders and buttons bound to the knobs: an `ipywidgets.VBox`.

        Raises:
            MissingExtraError: ipywidgets is not installed.
        """
        from ..jupyter import controls_of

        return controls_of(self)

    def export(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Exported:
        """Write the loader's chain as a module: `Pipeline.export`."""
        return self._pipeline.export(path, overwrite=overwrite)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        from ..show.html import bundle

        return bundle(self)


def _noting(run: LoaderRun) -> Callable[[KnobChange], None]:
    reference = weakref.ref(run)  # knobs may outlive it

    def noted(change: KnobChange) -> None:
        one = reference()
        if one is not None:
            one._events.append(change)

    return noted


def _ready(total: int | None, *, by_loop: bool) -> Status:
    return Status(
        state="ready",
        epoch=0,
        epochs=None,
        epochs_begun=None,
        delivered=0,
        total=total,
        units={},
        elapsed_s=0.0,
        waited_s=0.0,
        cpu_cores=None,
        error="",
        held_bytes=None,
        limit_bytes=None,
        by_loop=by_loop,
    )


def _idle(stage: Stage) -> StageStats:
    knobs = {name: knob.value for name, knob in stage.knobs.items()}
    return StageStats(concurrency=knobs.get("concurrency", 1), prefetch=knobs.get("prefetch", 0))


def _renumbered(failures: tuple[Failure, ...], numbers: Mapping[int, int]) -> list[Failure]:
    return [dataclasses.replace(one, epoch=numbers.get(one.epoch, one.epoch)) for one in failures]


def _thinned(rows: list[Row]) -> list[Row]:
    """Leave out every second tick of the older half, where there are many."""
    ticks: dict[float, list[Row]] = {}
    for row in rows:
        ticks.setdefault(float(row["time_s"]), []).append(row)
    if len(ticks) <= TICKS_KEPT:
        return rows
    kept = list(ticks.values())
    half = TICKS_KEPT // 2
    return [row for tick in (*kept[:half:2], *kept[half:]) for row in tick]
