"""LoaderRun: all epochs of a loader as one run, from the moment that the loader is made."""

from __future__ import annotations

import dataclasses
import os
import weakref
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, SupportsIndex, final

from ..base.knobs import AUTOTUNE, Knob, KnobChange
from ..base.names import shown
from ..engine.lifecycle import in_turn
from ..engine.measures.lock_waits import LockedCalls
from ..engine.measures.record import EVENTS_KEPT, slowdown
from ..engine.measures.stats import Row, RunStats, StageStats, Status
from ..engine.measures.step_time import StepTimes
from ..engine.nodes.failures import Failure
from ..errors import RunClosedError, near_match
from ..executors.stack import Place
from ..ops.chain import known_length
from ..ops.stage import CONSUMER, Stage, addresses, stage_at
from ..pipeline import Pipeline
from ..run.failed import Failures
from ..run.live_stage import LiveStage
from ..run.run import Run
from ..run.shown import ShownRun
from ..run.trace import MOST_EVENTS, Trace, Traces
from ..show.watch import AttendedRun, Shown, loader_made, title_of
from ..tune.limits import TunerLimits
from ..tune.tuner import Tuner
from .arguments import prefetch_of
from .chain import FETCH, is_local
from .epoch_log import EpochLog
from .local import LocalRun

if TYPE_CHECKING:
    from ..export.store import Exported


# Used by the loader and by nbpipe's notebook support; completion does not offer them.
_OURS = (
    *("active_s", "adopt", "between_waits", "call_in_loop", "chain_code", "close_epochs"),
    *("ended", "follow", "knobs", "lock_wait", "log", "loop_calls", "no_call_in_loop"),
    *("on_run", "place", "shown", "traces", "turn", "unnamed_failures"),
)
_ATTRIBUTES = ("between_waits", "knobs", "log", "loop_calls", "on_run", "shown", "traces")


@final
class LoaderRun(ShownRun):
    """The run of a loader: one for all of its epochs, from before the first one.

    It has the panel and the methods of a pipeline's run. If two iterators are in progress, it
    shows the newer one.

    Args:
        loader: held weakly.
        unit: "batches", or "items" if the loader gives samples.

    Attributes:
        log: the epochs that have begun.
        knobs: the knobs of all chains so far, by stage: tuned values stay.
        on_run: called with every run that makes batches, or None.
        between_waits: called before the loop makes a batch itself, or None; an epoch takes the
            one that is set when it begins.
        loop_calls: the loop calls these before it takes a batch.
        traces: its traces.
        shown: the displays of this run; their `rest` is called at the end of each epoch.

    Examples:
        >>> import nbpipe
        >>> loader = nbpipe.DataLoader(range(6), batch_size=2, num_workers=1, workers="thread")
        >>> for batch in loader:
        ...     pass
        >>> loader.run.stats()["fetch"].items_out
        3
    """

    def __init__(self, loader: Any, unit: str) -> None:
        self.log = EpochLog()
        self.knobs: dict[str, dict[str, Knob]] = {}
        self.shown: weakref.WeakSet[Shown] = weakref.WeakSet()
        self.on_run: Callable[[AttendedRun], object] | None = None
        self.between_waits: Callable[[], object] | None = None
        self.loop_calls: list[Callable[[], object]] = []
        self.traces = Traces()
        weakref.finalize(self, self.traces.close)
        self._loader = weakref.ref(loader)
        self._unit = unit
        self._pipeline = Pipeline(())
        self._tuner: Tuner | None = None
        self._events: deque[KnobChange] = deque(maxlen=EVENTS_KEPT)
        events = self._events
        self._steps = StepTimes(lambda found: events.append(slowdown(found)))
        self._watched: weakref.WeakSet[Knob] = weakref.WeakSet()
        for made in tuple(loader_made):
            made(self)

    # -- for the loader -------------------------------------------------------------------
    def follow(self, pipeline: Pipeline) -> None:
        """Show a chain that was built; changes of its knobs are events of this run."""
        self._pipeline = pipeline
        for address, stage in addresses(pipeline.chain).items():
            self.knobs.setdefault(address, {}).update(stage.knobs)
            for knob in stage.knobs.values():
                if knob not in self._watched:
                    self._watched.add(knob)
                    knob.watch(self._events.append)  # knobs may outlive this run

    def adopt(self, run: Run) -> None:
        """Show a run that makes batches; it times the steps of the same loop as those before."""
        run._core.time_steps(self._steps)
        run._core.life.loop_calls = self.loop_calls
        self.traces.follow(run._core.engine)
        if self.on_run is not None:
            self.on_run(run)

    def call_in_loop(self, call: Callable[[], object]) -> None:
        """Have the loop call a function before it takes a batch."""
        self.loop_calls.append(call)
        maker = self._maker
        if isinstance(maker, LocalRun):
            maker.between = in_turn(self.between_waits, self.loop_calls)
        elif maker is not None:
            maker._core.renew_calls()

    def no_call_in_loop(self, call: Callable[[], object]) -> None:
        """End the calls of a function, from the next epoch on."""
        if call in self.loop_calls:
            self.loop_calls.remove(call)

    def ended(self) -> None:
        """Update the displays: an epoch is over."""
        for one in tuple(self.shown):
            one.rest()

    @property
    def _core(self) -> LoaderRun:
        """What panel and kernel use: methods of its own."""
        return self

    # -- for notebooks --------------------------------------------------------------------
    @property
    def active_s(self) -> float:
        """A clock [s]; it continues in pauses, as what makes the batches changes."""
        return perf_counter_ns() / 1e9

    @property
    def turn(self) -> tuple[int, int]:
        """How far it is: epochs begun, batches delivered in all of them."""
        return self.log.number, self.stats()[CONSUMER].items_out

    def close_epochs(self, threads: Collection[int] = ()) -> bool:
        """Close the epochs that a thread began, as the code that iterated them is gone.

        Args:
            threads: identifiers of threads; this thread's if left out.

        Returns:
            Whether one was in progress.
        """
        return self.log.close_epochs(threads or (get_ident(),))

    def unnamed_failures(self) -> tuple[Failure, ...]:
        """Return `failures()` without the items of the source."""
        current = self.log.current
        if current is None:
            return ()
        maker = current.maker
        found = maker.failures() if isinstance(maker, LocalRun) else maker._core.unnamed_failures()
        return current.renumbered(found)

    def lock_wait(self, address: str) -> LockedCalls | None:
        """Return how much the calls of a stage wait for a lock; None where that is not known."""
        maker = self._maker
        return maker._core.lock_wait(address) if isinstance(maker, Run) else None

    def place(self, address: str) -> Place | None:
        """Return where in user code the oldest call of a stage is; None if it is not known."""
        maker = self._maker
        return maker._core.place(address) if isinstance(maker, Run) else maker and maker.place()

    def chain_code(self) -> str:
        """Return the statement that makes the loader, with its workers as they are, for a cell."""
        from ..export.exporting import chain_code

        loader = self._open_loader()
        values = {name: getattr(loader, name) for name in ("num_workers", "prefetch_factor")}
        known = {name: value for name, value in values.items() if value is not None}
        return chain_code(loader, loader.pipeline.chain, arguments=known)

    # -- what it is -----------------------------------------------------------------------
    def _open_loader(self) -> Any:
        loader = self._loader()
        if loader is None:
            raise RunClosedError("this run's loader is gone; make another one")
        return loader

    @property
    def _maker(self) -> Run | LocalRun | None:
        """What makes, or made, the batches of the newest epoch."""
        current = self.log.current
        return None if current is None else current.maker

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages by name."""
        maker = self._maker
        return addresses(self._pipeline.chain) if maker is None else maker.stages

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that the loader runs.

        Raises:
            RunClosedError: the loader is gone.
        """
        pipeline: Pipeline = self._open_loader().pipeline
        return pipeline

    def __getitem__(self, address: str) -> Stage | LiveStage:
        """Return a stage; one with workers also has their number and process ids.

        Raises:
            UnknownStageError: there is no such stage.
        """
        maker = self._maker
        found = stage_at(self.stages, address, "loader")
        return maker[address] if isinstance(maker, Run) else found

    def __len__(self) -> int:
        """Return the number of batches of an epoch, as the loader does."""
        return len(self._open_loader())

    def __iter__(self) -> Iterator[Any]:
        """Begin the loader's next epoch.

        Raises:
            RunClosedError: the loader is gone.
        """
        return iter(self._open_loader())

    def __repr__(self) -> str:
        current = self.log.current
        state = "closed" if self.closed else "paused" if self.paused else "open"
        if current is not None and current.in_progress:
            state += f", epoch {current.number} in progress"
        return f"LoaderRun({title_of(self)}; {state})"

    # -- how it goes ----------------------------------------------------------------------
    @property
    def epoch(self) -> int:
        """The number of the epoch in progress, or of the last one; 0 before the first."""
        current = self.log.current
        return 0 if current is None else current.number

    @property
    def paused(self) -> bool:
        """Whether the run is paused."""
        maker = self._maker
        return maker is not None and maker.paused

    @property
    def stopped(self) -> bool:
        """Whether `stop()` ended the last epoch."""
        return self.status().state == "stopped"

    @property
    def closed(self) -> bool:
        """Whether the loader no longer exists; until then it can start another epoch."""
        return self._loader() is None

    @property
    def events(self) -> tuple[KnobChange, ...]:
        """The last 10,000 knob changes: time, author, old and new value, reason."""
        return tuple(self._events.copy())

    def status(self) -> Status:
        """Return where the loader is: state, epoch, batches delivered, time, the last error.

        Returns:
            A `Status` of plain values; times are in seconds.

        Examples:
            >>> import nbpipe
            >>> loader = nbpipe.DataLoader(range(5), batch_size=2)
            >>> loader.run.status().state, loader.run.status().total
            ('ready', 3)
        """
        current = self.log.current
        if current is None:
            total = known_length(self._pipeline.chain)
            status = Status("ready", 0, total=total, by_loop=is_local(self._pipeline))
        else:
            in_progress, status = current.in_progress, current.maker.status()
            if status.epoch + current.offset != current.number:  # the next one began meanwhile
                return self.status()
            state = status.state if in_progress else status.outcome
            status = dataclasses.replace(status, state=state, epoch=current.number)
        if self.closed:
            status = dataclasses.replace(status, state="closed")
        return dataclasses.replace(status, units=self._units(), called="loader.run")

    def _units(self) -> dict[str, str]:
        return dict.fromkeys(self.stages, self._unit)

    def stats(self) -> RunStats:
        """Return frozen numbers for each stage; "consumer" is the training loop.

        Counts are those of the newest epoch; with persistent workers, also of those before it.
        Between epochs, rates and shares are those of the last epoch.

        Returns:
            A mapping of stage names to `StageStats`.

        Examples:
            >>> import nbpipe
            >>> loader = nbpipe.DataLoader(range(6), batch_size=2, num_workers=1, workers="thread")
            >>> batches = list(loader)
            >>> list(loader.run.stats()), loader.run.stats()["fetch"].items_out
            (['indices', 'fetch', 'consumer'], 3)
        """
        maker = self._maker
        rows = {name: _idle(stage) for name, stage in self.stages.items()}
        rows[CONSUMER] = StageStats()
        return RunStats(rows if maker is None else rows | dict(maker.stats()), self._units())

    def history(self) -> list[Row]:
        """Return one row for each second and stage, oldest first; older rows are thinned out.

        Returns:
            Dicts; `pandas.DataFrame(loader.run.history())` makes a table of them.

        Examples:
            >>> import nbpipe
            >>> nbpipe.DataLoader(range(6)).run.history()  # before the first epoch
            []
        """
        current = self.log.current
        rows = [] if current is None else current.maker.history()
        offset = 0 if current is None else current.offset
        return [{**row, "epoch": int(row["epoch"]) + offset} for row in rows]

    def failures(self) -> Failures:
        """Return the last failed items of the epochs in `stats`, oldest first.

        Returns:
            A tuple of `Failure`; a notebook shows a table.

        Examples:
            >>> import nbpipe
            >>> nbpipe.DataLoader(range(6)).run.failures()
            No failed items
        """
        current = self.log.current
        return Failures(() if current is None else current.renumbered(current.maker.failures()))

    # -- control --------------------------------------------------------------------------
    def pause(self) -> None:
        """Start no further batch in this epoch until `resume()`.

        Examples:
            >>> import nbpipe
            >>> loader = nbpipe.DataLoader(range(6), num_workers=1, workers="thread")
            >>> batches = iter(loader)
            >>> loader.run.pause()
            >>> loader.run.paused
            True
            >>> batches.close()
        """
        maker = self._maker
        if maker is not None and not maker.closed:
            maker.pause()

    def resume(self) -> None:
        """Continue after `pause()`.

        Examples:
            >>> import nbpipe
            >>> loader = nbpipe.DataLoader(range(4), batch_size=2, num_workers=1, workers="thread")
            >>> batches = iter(loader)
            >>> loader.run.pause()
            >>> loader.run.resume()
            >>> len(list(batches))
            2
        """
        maker = self._maker
        if maker is not None and not maker.closed:
            maker.resume()

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted.

        Examples:
            >>> import nbpipe
            >>> loader = nbpipe.DataLoader(range(6), batch_size=2, num_workers=1, workers="thread")
            >>> for batch in loader:
            ...     loader.run.stop()
            >>> loader.run.stopped
            True
        """
        current = self.log.current
        if current is not None and current.in_progress:
            current.maker.stop()

    def close(self, timeout_s: float = 5) -> None:
        """End epochs in progress and all workers; the loader's next epoch starts new ones.

        Args:
            timeout_s: how long to wait for calls in progress [s].

        Examples:
            >>> import nbpipe
            >>> loader = nbpipe.DataLoader(range(6), num_workers=1, workers="thread")
            >>> batches = iter(loader)
            >>> loader.run.close()
            >>> list(batches)
            []
        """
        if self._tuner is not None:
            self._tuner.stop()
        self.log.close(timeout_s)
        self.traces.close()

    # -- tuning ---------------------------------------------------------------------------
    def autotune(
        self,
        memory: int | str | None = None,
        keep: str | Iterable[str] = (),
        most: SupportsIndex | None = None,
    ) -> Tuner:
        """Turn `num_workers` by measured gain, over all epochs, until `stop()` or `close()`.

        The batches held ready follow `prefetch_factor`. Without workers nothing is tuned.

        Args:
            memory: ceiling of the resident memory of this process and all below it, as "4 GB" or
                a number of bytes. Without one, it is the resident memory now, plus a quarter of
                the free memory.
            keep: addresses of stages to leave alone.
            most: the most workers; 64 if left out.

        Returns:
            The tuner; it has `state`, `log`, `stop()` and `undo()`.

        Raises:
            ArgumentError: `memory` is no size, or less than is in use; `most` is no int of at
                least 1.
            UnknownStageError: `keep` names no stage.
            RunClosedError: the loader is gone.

        Examples:
            >>> import nbpipe
            >>> loader = nbpipe.DataLoader(range(6), num_workers=1, workers="thread")
            >>> tuner = loader.run.autotune(most=4)
            >>> len(list(loader))
            6
            >>> tuner.stop()
        """
        self._open_loader()
        limits = TunerLimits(memory, keep, most)
        if self._tuner is None:
            self._tuner = Tuner(self, limits, follow=self._follow_workers, fixed=self._left_alone)
        else:
            self._tuner.renew(limits)
        return self._tuner

    @property
    def tuner(self) -> Tuner | None:
        """The tuner that `autotune` gave; None before the first call."""
        return self._tuner

    def _follow_workers(self, knob: Knob, before: int) -> None:
        """Hold `prefetch_factor` batches ready for each worker, where it was so before."""
        loader, knobs = self._loader(), self.knobs.get(FETCH, {})
        if loader is None or knob is not knobs.get("concurrency"):
            return
        factor, ready = loader.prefetch_factor or 1, knobs["prefetch"]
        if ready.value == prefetch_of(factor, before):
            ready.set(prefetch_of(factor, knob.value), by=AUTOTUNE, why="prefetch_factor")

    def _left_alone(self) -> dict[str, str]:
        """Return why stages are left alone: the workers of a loader are one stage."""
        loader, stages = self._loader(), self.stages
        if loader is None or not loader.num_workers:
            return dict.fromkeys(stages, "the loader has no workers; set num_workers above 0")
        if FETCH not in stages:
            return dict.fromkeys(stages, "each worker reads a part of the dataset")
        return {name: "" for name in stages if name != FETCH}

    # -- traces ---------------------------------------------------------------------------
    def trace(self, path: str | os.PathLike[str], *, events: int = MOST_EVENTS) -> Trace:
        """Record which thread and worker did what and when, for https://ui.perfetto.dev.

        It continues over all epochs until its `close()`, the end of a `with` block, or the run's
        `close()`. Without workers, it shows when the training loop made its batches.

        Args:
            path: the file, for example "trace.json", or "trace.json.gz"; one that is there is
                replaced.
            events: the most calls to keep: the last ones.

        Returns:
            The trace; it has `close()`, and is a context manager.

        Raises:
            ArgumentError, ArgumentTypeError: the file cannot be written there, or `events` is out
                of range.
            RunError: the run already records a trace.
            RunClosedError: the loader is gone.

        Examples:
            >>> import nbpipe, tempfile
            >>> loader = nbpipe.DataLoader(range(6), num_workers=1, workers="thread")
            >>> with tempfile.TemporaryDirectory() as here:
            ...     with loader.run.trace(f"{here}/trace.json"):
            ...         batches = list(loader)
        """
        self._open_loader()
        makers = self.log.makers
        traced = [one if isinstance(one, LocalRun) else one._core.engine for one in makers]
        return self.traces.begin(path, events, self._events.copy, traced)

    def __enter__(self) -> LoaderRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def export(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Exported:
        """Write the loader's pipeline as a Python module.

        Args:
            path: the file, for example "loader.py".
            overwrite: replace a file that you edited, or that `export` did not write.

        Returns:
            What was written; see `DataLoader.export`.

        Raises:
            ExportError: something cannot be written; the message has the fix.

        Examples:
            In a notebook or a script::

                import nbpipe

                loader = nbpipe.DataLoader(range(6), batch_size=2)
                loader.run.export("loader.py")
                assert len(nbpipe.load("loader.py")) == 3
        """
        done: Exported = self._open_loader().export(path, overwrite=overwrite)
        return done

    # -- names ----------------------------------------------------------------------------
    def __dir__(self) -> list[str]:
        return shown(self, _OURS)

    if not TYPE_CHECKING:  # a type checker reports these names by itself

        def __getattr__(self, name: str) -> Any:
            raise _no_attribute(self, name)

        def __setattr__(self, name: str, value: object) -> None:
            if name[0] != "_" and name not in _ATTRIBUTES:
                raise _no_attribute(self, name)  # other attributes are the loader's
            object.__setattr__(self, name, value)


def _no_attribute(run: LoaderRun, name: str) -> AttributeError:
    """Return the error for a name that a loader's run does not have; it names the one meant."""
    way = ""
    if name[0] != "_":
        there = hasattr(run._loader(), name)
        way = f"; that is the loader's: loader.{name}" if there else near_match(name, dir(run))
    return AttributeError(f"a loader's run has no {name!r}{way}", name=name, obj=run)


def _idle(stage: Stage) -> StageStats:
    knobs = {name: knob.value for name, knob in stage.knobs.items()}
    return StageStats(concurrency=knobs.get("concurrency", 1), prefetch=knobs.get("prefetch", 0))
