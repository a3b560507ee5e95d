"""Run: a started pipeline. It owns its workers for its whole life; one iteration is an epoch."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, SupportsIndex, final

from ..base.checks import integer, seconds
from ..base.knobs import KnobChange
from ..base.names import methods_name_arguments, shown, word_for
from ..base.threads import in_new_thread, no_thread, uninterrupted
from ..engine.epoch import LOG
from ..engine.external import MAX_DEPTH, ExternalOrder, Feed, Listed, external_chain, whole_order
from ..engine.failures import Failure
from ..engine.machine import STOPPED, Engine, RunLifecycle, RunRecord, knob_watcher
from ..engine.node import StageStates
from ..engine.stats import Row, RunStats, Status
from ..engine.step_time import Rests, StepTimes
from ..errors import CacheError, RunError, UnknownKnobError, near_match
from ..executors.interface import Executor
from ..executors.transfer import Device
from ..ops.chain import known_length, length, units
from ..ops.checkpoint import EpochPlace, check_caches, read, written
from ..ops.ranges import IndexRanges
from ..ops.stage import CONSUMER, Chain, Stage, addresses, stage_at
from ..show import watch
from .failed import Failures, Origins, retried
from .iterator import EpochIterator, OpenEpoch, Training, close_dropped

if TYPE_CHECKING:
    from ipywidgets import VBox
    from plotly.graph_objects import Figure

    from ..export.store import Exported
    from ..show.rules import Diagnosis


# What nbpipe's own rooms ask of a run; completion does not offer it.
_OURS = (
    *("active_s", "begin_epoch", "between_waits", "chain_code", "close_dropped", "close_epochs"),
    *("devices", "disown", "export_goal", "failures_since", "go_on_timing", "node_state"),
    *("outcome", "renew_functions", "rests"),
    *("single_epoch", "title", "turn", "unnamed_failures"),
)
_FORGOTTEN_S = 5  # so long the calls of a run that was forgotten may take to end [s]


@final
class LiveStage:
    """A stage whose calls run in workers of one run; everything else is the stage's.

    Attributes:
        stage: the stage itself.
    """

    __slots__ = ("_executor", "stage")

    stage: Stage

    def __init__(self, stage: Stage, executor: Executor) -> None:
        object.__setattr__(self, "stage", stage)
        object.__setattr__(self, "_executor", executor)

    @property
    def workers(self) -> int:
        """Workers there are."""
        return int(self._executor.workers)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers on this machine."""
        return tuple(self._executor.pids)

    @property
    def link(self) -> str | None:
        """Address of a page that shows the workers, or None."""
        link: str | None = self._executor.link
        return link

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the workers [bytes]; what they share is counted in each."""
        return int(self._executor.memory_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.stage, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*shown(self, ("stage",)), *dir(self.stage)})

    def __repr__(self) -> str:
        return f"{self.stage!r} with {self.workers} workers"


class ShownRun(watch.RunView):
    """What others make of a run, be it of a pipeline or of a loader."""

    _nbpipe_kind_ = "run"

    def export_goal(self) -> str:
        """Return what an export appends to this object's expression to get its pipeline."""
        return ".pipeline"

    @property
    def title(self) -> str:
        """The addresses of the stages, in one line."""
        return " > ".join(self.stages)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.stages)

    def __bool__(self) -> bool:
        return True

    def diagnose(self) -> Diagnosis:
        """Name what limits the run, from its last 5 s, and what to try; prints as a sentence."""
        from ..show.diagnose import diagnose

        return diagnose(self)

    def plot(self) -> Figure:
        """Draw the history: the rate of each stage over time, knob changes, how full buffers are.

        Returns:
            A `plotly.graph_objects.Figure`.

        Raises:
            MissingExtraError: plotly is not installed.
        """
        from ..show.figure import figure

        return figure(self)

    def controls(self) -> VBox:
        """Return sliders and buttons bound to the knobs, to lay out in a dashboard of your own.

        Returns:
            An `ipywidgets.VBox`; in a notebook, the run itself shows the whole panel.

        Raises:
            MissingExtraError: ipywidgets is not installed.
        """
        from ..jupyter import controls_of

        return controls_of(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        from ..show.picture import bundle

        return bundle(self)

    def _display_(self) -> Any:
        """Return what marimo shows, which alone asks for it."""
        from ..jupyter import shown_in_marimo

        return shown_in_marimo(self)


@final
@methods_name_arguments
class Run(ShownRun):
    """A started pipeline; `for batch in run` is one epoch, the next `for` the next one.

    A run that is collected closes itself. One whose own stages refer to it is not collected: its
    threads, and what closes it, hold its stages, and these hold the run. `close()` or `with` ends
    it; else it is closed as the interpreter exits.

    Args:
        chain: the stages.
        seed: seed of every random generator handed to a stage.
        memory_bytes: budget for what all buffers hold [bytes], or None.
        machine: where the stages run.
        read_ahead: an epoch begins to fill when the one before it drains.
        pipeline: makes a pipeline of a chain.
        times_steps: what iterates is a loop, whose steps are worth timing.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        seed: int = 0,
        memory_bytes: int | None = None,
        machine: Callable[..., Engine] = Engine,
        read_ahead: bool = False,
        pipeline: Callable[[Chain], Any] | None = None,
        times_steps: bool = True,
    ) -> None:
        self._chain = chain
        self._pipeline = pipeline
        self._reads_ahead = read_ahead
        self._stages = addresses(chain)
        self._units = units(chain)
        self._away = [name for name, one in self._stages.items() if one.executor_spec is not None]
        self._counted: tuple[int, int | None] = (0, None)  # when an epoch began [ns], its items
        self._training: Training | None = None
        self._seed = seed
        self._record = RunRecord()
        self._machine = machine(chain, self._record, seed=seed, memory_bytes=memory_bytes)
        self._scheduler = self._machine.scheduler
        if times_steps:
            self._record.time_steps(self._scheduler.lock)
        self._origins = Origins(chain, sees_caches=not self._machine.isolated)
        self._life = life = RunLifecycle(self._machine, self._record)
        origins = self._origins
        self._machine.sources_read = lambda: origins.sources_read(life.number)
        self._iterators: weakref.WeakSet[EpochIterator] = weakref.WeakSet()
        watcher = knob_watcher(self._machine, self._record)
        knobs = {id(k): k for stage in self._stages.values() for k in stage.knobs.values()}
        self._unwatch = [knob.watch(watcher) for knob in knobs.values()]
        self._finalizer = weakref.finalize(self, _abandon, self._life, self._unwatch)
        self._finalizer.atexit = False
        watch.add(self)
        for started in tuple(watch.run_started):
            started(self)

    def __dir__(self) -> list[str]:
        return shown(self, _OURS)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnknownKnobError(self._no_attribute(name), name=name, obj=self)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and name != "between_waits":
            raise UnknownKnobError(self._no_attribute(name, f" = {value!r}"), name=name, obj=self)
        object.__setattr__(self, name, value)

    def _no_attribute(self, name: str, assigned: str = "") -> str:
        """Say that a run has no such attribute, or none that can be set, and what is meant."""
        stages: dict[str, Stage] = self.__dict__.get("_stages", {})
        knob = word_for(name, ("concurrency", "prefetch", "depth")) or name
        having = [address for address, stage in stages.items() if knob in stage.knobs]
        if having:
            others = f" (so have {', '.join(map(repr, having[1:]))})" if having[1:] else ""
            return (
                f"a run has no {name}: each stage has its own; write "
                f"run[{having[0]!r}].{knob}{assigned}{others}"
            )
        if hasattr(type(self), name):
            way = "; call run.set_epoch(number)" if name == "epoch" else ""
            return f"run.{name} cannot be set{way}"
        return f"a run has no attribute {name!r}{near_match(name, dir(self))}"

    # -- what it is -----------------------------------------------------------------------
    @property
    def stages(self) -> dict[str, Stage]:
        """The stages by address."""
        return dict(self._stages)

    @property
    def pipeline(self) -> Any:
        """The `Pipeline` that it runs, with the same stages and knobs.

        Raises:
            RunError: the run belongs to no pipeline.
        """
        return self._pipeline_of(self._chain)

    def _pipeline_of(self, chain: Chain) -> Any:
        if self._pipeline is None:
            raise RunError("this run was not started by a pipeline; start it with pipe.start()")
        return self._pipeline(chain)

    @property
    def seed(self) -> int:
        """Seed of every random generator handed to a stage."""
        return self._seed

    def __getitem__(self, address: str) -> Stage | LiveStage:
        """Return a stage; one with workers also tells how many, and their process ids.

        Raises:
            UnknownStageError: there is no such stage.
        """
        stage = stage_at(self._stages, address, "run")
        executor = self._machine.executor(address)
        return stage if executor is None else LiveStage(stage, executor)

    def __len__(self) -> int:
        return length(self._chain)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "paused" if self.paused else "open"
        if self._life.is_in_progress:
            state += f", epoch {self.epoch} in progress"
        return f"Run({self.title}; {state})"

    # -- how far it is, and how it goes ---------------------------------------------------
    @property
    def epoch(self) -> int:
        """Number of the epoch in progress, or of the last one; before the first, 0."""
        return self._life.number

    @property
    def active_s(self) -> float:
        """Time on a clock that stands still while the run is paused [s]."""
        return self._life.record.consumer.active_ns(perf_counter_ns()) / 1e9

    @property
    def outcome(self) -> str:
        """How the last epoch ended: "finished", "stopped", "cancelled", "failed"; or "ready"."""
        return self._life.outcome

    @property
    def stopped(self) -> bool:
        """Whether `stop()` ended the last epoch."""
        return self._life.outcome == STOPPED

    @property
    def paused(self) -> bool:
        """Whether the run is paused."""
        return self._scheduler.paused

    @property
    def closed(self) -> bool:
        """Whether the run was closed."""
        return self._life.closed

    def status(self) -> Status:
        """Tell where the run is: state, epoch, items delivered, time, why the last epoch failed."""
        training = self._training
        trains = training is not None and not training.ended
        ours = training is not None and (trains or self._life.owner is training.thread)
        return self._life.status(
            trains=trains,
            epochs=training.total if training is not None and ours else None,
            epochs_begun=training.begun if training is not None and ours else None,
            total=self._total,
            units=self._units,
            links=self._links(),
        )

    def _links(self) -> dict[str, str]:
        executors = {address: self._machine.executor(address) for address in self._away}
        links = {
            address: executor.link
            for address, executor in executors.items()
            if executor is not None
        }
        return {address: link for address, link in links.items() if link}

    def _total(self, external: ExternalOrder | None, begun_ns: int) -> int | None:
        """Return the items of an epoch; they are counted once in one that is in progress."""
        counted = self._counted
        if not begun_ns or counted[0] != begun_ns:
            chain = self._chain if external is None else external_chain(self._chain, external)
            self._counted = counted = begun_ns, known_length(chain)
        return counted[1]

    def stats(self) -> RunStats:
        """Return frozen stats by stage address; the training loop's own row is "consumer".

        Between epochs, "the last seconds" are those of the last epoch.
        """
        now_ns = self._life.ended_ns or perf_counter_ns()
        known = self._machine.stats(now_ns)
        rows = {address: known[address] for address in self._stages if address in known}
        with self._scheduler.lock:
            rows[CONSUMER] = self._record.consumer.stats(now_ns)
        return RunStats(rows, self._units)

    def history(self) -> list[Row]:
        """Return one row a second and stage, for a DataFrame; old times are thinned."""
        return self._machine.history()

    def failures(self) -> Failures:
        """Return the last 100 items that failed, oldest first; shown as a table.

        Each tells its stage, the item of the source that it was made of, and its traceback.
        """
        return self._origins.named(self._machine.failures())

    def unnamed_failures(self) -> tuple[Failure, ...]:
        """Return `failures()` without the items of the source."""
        return self._machine.failures()

    def failures_since(self, count: int) -> tuple[tuple[Failure, ...], int]:
        """Return those behind the first `count`, without their sources, and how many failed."""
        return self._machine.failures_since(count)

    def retry_failed(self) -> Any:
        """Return a pipeline of the source items of `failures()`, each once, with all stages.

        `take`, `skip`, `repeat`, `dedupe`, `shard` and `cache` are left out, and the last batch
        is not dropped. StageStates share their knobs with this run's.

        Returns:
            A `Pipeline`; without items where nothing failed.

        Raises:
            ArgumentTypeError: the pipeline does not begin with one source.
            RunError: the run belongs to no pipeline.
        """
        return self._pipeline_of(retried(self._chain, self._origins, self._machine.failures()))

    @property
    def events(self) -> tuple[KnobChange, ...]:
        """The last 10,000 knob changes of this run, with when, who, from, to, why."""
        with self._scheduler.lock:
            kept = self._record.events.copy()  # at once: garbage found below us may turn a knob
        return tuple(kept)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that this run uses; `nbpipe.debug` looks at them."""
        return tuple(self._scheduler.devices)

    @property
    def turn(self) -> tuple[int, int]:
        """How far it is: epochs begun, items delivered in all of them."""
        return self._life.next_epoch, self.stats()[CONSUMER].items_out

    # -- epochs ---------------------------------------------------------------------------
    def __iter__(self) -> EpochIterator:
        """Start the next epoch.

        An epoch that this thread left unfinished is cancelled first: its iterator raises
        `EpochClosedError` where it is asked for another item.

        Raises:
            RunClosedError: the run is closed, or was started in another process.
            ConcurrentIterationError: another thread is iterating this run.
            ReentrantRunError: a stage of this run asks for it.
        """
        return self._iterator(None)

    def single_epoch(self) -> EpochIterator:
        """Start the next epoch; when it ends, cannot begin, or is dropped, the run is closed."""
        try:
            return self._iterator(self.close)
        except BaseException:  # what cannot be sent to a process is found now
            self.close()
            raise

    def iterate(self, indices: Iterable[SupportsIndex]) -> EpochIterator:
        """Start the next epoch, in an order given from outside.

        The source is read by these indices; what else stands at the head of the pipeline and
        orders indices (`shuffle`, `shard`, `take`, `skip`, `repeat`, `sample`, `balance`,
        `claim`) is left out, and `enumerate` numbers what is read. A `cache` neither keeps nor
        gives items. All other stages do what they do in any epoch. An item's path, which its
        random generator depends on, is (its place in `indices`, its index).

        Args:
            indices: ints from 0 to the source's length - 1, as often and in the order that they
                are wanted: a list, an array, a tensor, a sampler, a generator, which may be
                endless. They are drawn as the source reads them, `prefetch` items ahead; with
                `isolate=True` they need a length, and are drawn at once.

        Returns:
            The iterator of the epoch, as `iter(run)` gives it. An index that is out of range or
            no int ends it with a `StageError` of the source, after the items before it.

        Raises:
            ArgumentTypeError: `indices` cannot be iterated, or the pipeline does not begin with
                a source that has a length and an index.
            ArgumentError: a `repeat` behind the head would read the source again, or the run is
                isolated and the indices have no length.
            RunClosedError, ConcurrentIterationError, ReentrantRunError: as for `iter(run)`.
        """
        return self.begin_epoch(Listed(indices))

    def open_epoch(self, *, depth: int = 2) -> OpenEpoch:
        """Start the next epoch, and push the indices to it while it runs.

        Example::

            with run.open_epoch() as epoch:
                epoch.load(indices_of(0))
                for step in range(steps):
                    epoch.load(indices_of(step + 1))  # read while the step is under way
                    train(next(epoch))

        Args:
            depth: loads that may wait until the source begins them [loads]. One thread that
                loads and iterates needs as many as it loads ahead of what it takes.

        Returns:
            The epoch, to which `load(indices)` and `end()` push, from any thread; iterating it
            gives the items, as in `iterate`.

        Raises:
            ArgumentTypeError: the pipeline does not begin with a source that has a length and an
                index.
            ArgumentError: `depth` is out of range, a `repeat` behind the head would read the
                source again, or the run is isolated.
            RunClosedError, ConcurrentIterationError, ReentrantRunError: as for `iter(run)`.
        """
        feed = Feed(integer("open_epoch depth", depth, minimum=1, maximum=MAX_DEPTH, unit="loads"))
        return OpenEpoch(self.begin_epoch(feed), feed, self._life)

    def begin_epoch(
        self, external: ExternalOrder | None, node_state: StageStates | None = None
    ) -> EpochIterator:
        """Start the next epoch, in an order given from outside or, with None, in its own.

        Args:
            external: the order.
            node_state: where the stages go on, for a process that runs the stages of another one.
        """
        if node_state:
            number = self._life.next_epoch
            self._life.following = EpochPlace(number, 0, node_state, external is not None)
        if external is not None and self._machine.isolated:
            external = whole_order(external)
        return self._iterator(None, external)

    def go_on_timing(self, steps: StepTimes) -> None:
        """Time the steps of a loop that was beside another run before."""
        self._record.consumer.steps = steps

    @property
    def rests(self) -> Rests:
        """Lets the workers rest for a moment, for the process whose loop they slow."""
        return self._machine

    def node_state(self, epoch: int, rest: IndexRanges) -> StageStates | None:
        """Tell where the stages stand in an epoch, for the process whose stages they are."""
        return self._life.node_state(epoch, rest)

    def _iterator(
        self,
        at_end: Callable[[], None] | None,
        external: ExternalOrder | None = None,
        *,
        last: bool = False,
    ) -> EpochIterator:
        chain = self._chain if external is None else external_chain(self._chain, external)
        if self._training is not None and self._training.goes_on:
            self._life.check_free()
        epoch = self._life.start_epoch(external, reads_ahead=self._reads_ahead and not last)
        iterator = EpochIterator(self._life, epoch, chain, keeps=self, at_end=at_end)
        self._iterators.add(iterator)
        return iterator

    def set_epoch(self, number: int) -> None:
        """Have the next epoch take this number.

        After `load_state_dict`, the epoch of the state goes on where that says; any other begins
        at its beginning. Between two epochs, `state_dict()` is from then on that of the epoch to
        come, also where the one before was left in its middle.

        Raises:
            ArgumentError: not an int of at least 0.
        """
        self._life.set_epoch(integer("epoch", number, minimum=0))

    def state_dict(self) -> dict[str, Any]:
        """Tell where the run stands, in numbers: behind the last item that the loop has had.

        What was read ahead, buffered or shuffled but not handed out is read again by whoever
        goes on; items that were skipped are not tried again. Nothing waits for this.

        Returns:
            JSON-ready values, to be kept with `json`, `torch.save` or a checkpoint of Lightning.
            After an epoch came to its end, the beginning of the next one.

        Raises:
            StateError: the process of an isolated run died in the epoch, or does not answer.
        """
        return written(self._chain, self._seed, self._life.place())

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a state: the next iteration gives the rest of its epoch.

        After the epoch's last item that rest is empty, and the iteration after it is the next
        epoch. With the same number of ranks and stages in input order the items are those of the
        uninterrupted epoch, one by one, whatever the executors and knobs are now. With another
        number of ranks, or in completion order, each item that is left comes once.

        Args:
            state: what `state_dict()` gave; for another number of ranks, the list of the states
                of all ranks.

        Raises:
            StateError: the state belongs to another pipeline, seed or data, or cannot be read.
            RunClosedError: the run is closed, or was started in another process.
        """
        self._life.check_open()
        place = read(self._chain, self._seed, state)
        with contextlib.suppress(CacheError):  # the epoch tells of it as it begins
            check_caches(self._chain, place, self._machine.caches())
        self._life.go_on_from(place)

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted, and what `train` started."""
        training = self._training
        if training is not None:
            training.stopping = True
        self._life.stop()
        if (started := self._training) is not training and started is not None:
            started.stopping = True  # its first epoch has begun before it

    def pause(self) -> None:
        """Start no further call; `__next__` waits until `resume()`."""
        self._life.check_open()
        self._machine.pause(paused=True)

    def resume(self) -> None:
        """Go on after `pause()`."""
        self._life.check_open()
        self._machine.pause(paused=False)

    def close_epochs(self) -> None:
        """Cancel the epoch that this thread iterates: the code that did so is gone."""
        if self._life.owner is threading.current_thread():
            for iterator in tuple(self._iterators):
                iterator.close()

    # -- a loop in the background ---------------------------------------------------------
    def train(self, step: Callable[[Any], object], epochs: int = 1) -> Run:
        """Call `step` with every item of some epochs, in a thread; return at once.

        What `step` prints appears in the cell that called this. `stop()` ends the loop after
        the step in progress, `close()` too; an interrupt of the kernel does not.

        Args:
            step: called with one item; what it raises ends the loop, is shown in the panel
                and raised by `wait()`.
            epochs: epochs to iterate one after the other [epochs].

        Returns:
            This run, so that `run.train(step).wait()` is one line, and a cell shows the panel.

        Raises:
            ArgumentError: `epochs` is not an int of at least 1.
            ArgumentTypeError: `step` cannot be called, or is `async`.
            ConcurrentIterationError: another thread is iterating this run.
            RunClosedError: the run is closed, or was started in another process.
            WorkerStartError: the system gives no more threads.
        """
        training = Training(self._epoch_of_training, step, epochs=epochs)
        training.first = self._epoch_of_training(last=training.total == 1)
        uninterrupted(functools.partial(self._start, training))
        return self

    def _epoch_of_training(self, *, last: bool) -> EpochIterator:
        return self._iterator(None, last=last)

    def _start(self, training: Training) -> None:
        before = self._training, self._life.owner
        self._training = training
        self._life.owner = training.thread
        training.stopping = self.stopped  # the first epoch, before anybody knew of the others
        try:
            training.thread.start()
        except RuntimeError as error:
            self._training, self._life.owner = before
            self.stop()
            raise no_thread("the training loop", error) from error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the loop that `train` started has ended; without one, return at once.

        An interrupt ends the wait, not the loop.

        Args:
            timeout_s: how long at most [s]; None for as long as it takes.

        Returns:
            Whether the loop has ended.

        Raises:
            ReentrantRunError: a stage of this run asks for it.
            BaseException: what `step` or a stage raised.
        """
        if timeout_s is not None:
            seconds("wait timeout_s", timeout_s, zero=True)
        self._life.check_outside("wait for")
        training = self._training
        if training is None:
            return True
        ended = training.wait(timeout_s, self.between_waits)
        if ended and training.error is not None:
            raise training.error
        return ended

    @property
    def between_waits(self) -> Callable[[], object] | None:
        """Called by whoever iterates, before it takes an item and while it waits for one."""
        return self._life.between_waits

    @between_waits.setter
    def between_waits(self, function: Callable[[], object] | None) -> None:
        self._life.between_waits = function

    # -- what others make of it -------------------------------------------------------------
    def export(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Exported:
        """Write the pipeline as a module with the knobs' present values: `Pipeline.export`."""
        from ..export.exporting import export_chain

        anew = functools.partial(Run, self._chain, seed=0)
        return export_chain(
            self, self._chain, path, items=lambda: anew().single_epoch(), overwrite=overwrite
        )

    def chain_code(self) -> str:
        """Return the pipeline with the knobs' present values, as code for a cell."""
        from ..export.exporting import chain_code

        return chain_code(self, self._chain)

    def renew_functions(self) -> None:
        """Called when a cell was run: workers get the functions that it changed."""
        self._machine.renew()

    # -- the end --------------------------------------------------------------------------
    def close(self, timeout_s: float = 5) -> None:
        """End the run and its workers; calling it again does nothing.

        Args:
            timeout_s: how long to wait for calls in progress [s]. A stage still inside user
                code then is named in a warning; its thread is left a daemon.

        Raises:
            ReentrantRunError: a stage of this run asks for it; `stop()` is allowed there.
        """
        life = self._life
        if life.closed or life.forked:
            return
        timeout_s = seconds("close timeout_s", timeout_s, zero=True)
        life.check_outside("close")
        try:
            self._close(timeout_s)
        except BaseException:  # interrupted: what is left to do is done, without waiting
            uninterrupted(functools.partial(life.close, 0))
            raise
        for told in tuple(watch.run_closed):
            told(self)

    def _close(self, timeout_s: float) -> None:
        uninterrupted(self._let_go)
        training = self._training
        if training is not None and training.thread is not threading.current_thread():
            self.stop()
            if training.wait(timeout_s, None):
                training.thread.join()  # it is on its way out
            else:
                LOG.warning("run closed, but after %g s still in a training step", timeout_s)
        self._life.close(timeout_s)

    def _let_go(self) -> None:
        self._finalizer.detach()
        watch.discard(self)
        for unwatch in self._unwatch:
            unwatch()

    def close_dropped(self, close: Callable[[], object]) -> None:
        """Called where something was collected that is to be closed, and iterates this run."""
        close_dropped(self._life, close)

    def disown(self) -> None:
        """Take note that this process was forked: the run stayed in the other one."""
        self._finalizer.detach()
        watch.discard(self)
        self._life.disown()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def runs() -> tuple[Run, ...]:
    """Return the open runs of this process, in the order in which they were started."""
    return tuple(one for one in watch.open_runs() if isinstance(one, Run) and not one.closed)


def close_all(timeout_s: float = 5) -> None:
    """Close every open run of this process, the newest first.

    Args:
        timeout_s: how long to wait for calls in progress of each [s].

    Raises:
        ReentrantRunError: a stage of one of them asks for it; the others are closed.
    """
    timeout_s = seconds("close_all timeout_s", timeout_s, zero=True)
    with contextlib.ExitStack() as all_runs:
        for run in runs():
            all_runs.callback(run.close, timeout_s)


def _abandon(life: RunLifecycle, unwatch: list[Callable[[], None]]) -> None:
    """Close what a collected run left; no lock may be taken here, it may be held below us."""

    def close() -> None:
        for end in unwatch:
            end()
        life.close(_FORGOTTEN_S)

    in_new_thread(close)
