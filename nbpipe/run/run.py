"""Run: a started pipeline. It owns its workers for its whole life; one iteration is an epoch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, final

from ..base.checks import integer, seconds
from ..base.knobs import KnobChange
from ..base.names import methods_name_arguments, word_for
from ..engine.lifecycle import STOPPED
from ..engine.measures.stats import Row, RunStats, Status
from ..engine.nodes.external import MAX_DEPTH, Feed, Listed
from ..errors import CacheError, UnknownKnobError, near_match
from ..ops.chain import length
from ..ops.checkpoint import check_caches, read, written
from ..ops.stage import Stage, stage_at
from ..show import watch
from ..tune.limits import TunerLimits
from ..tune.tuner import Tuner
from .core import RunCore
from .failed import Failures
from .iterator import EpochIterator
from .live_stage import LiveStage
from .open_epoch import OpenEpoch
from .shown import ShownRun
from .trace import MOST_EVENTS, Trace

if TYPE_CHECKING:
    from ..export.store import Exported


@final
@methods_name_arguments
class Run(ShownRun):
    """A started pipeline; each `for batch in run` is one epoch. Start one with `pipe.start()`.

    A run owns its workers until it closes: at the end of a `with` block, by `close()`, when it is
    garbage-collected, or when the interpreter exits. A run that its own stages refer to is not
    collected.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(4)).batch(2).start() as run:
        ...     for epoch in range(2):
        ...         for batch in run:
        ...             print(run.epoch, batch)
        0 [0 1]
        0 [2 3]
        1 [0 1]
        1 [2 3]
    """

    def __init__(self, core: RunCore) -> None:
        self._core = core
        core.attach(self)

    # -- what it is ---------------------------------------------------------------------------
    @property
    def stages(self) -> dict[str, Stage]:
        """The stages by name, those of joined pipelines and of branches included."""
        return dict(self._core.stages)

    @property
    def pipeline(self) -> Any:
        """The `Pipeline` that this run started from, with the same stages and knobs.

        Raises:
            RunError: the run was not started by a pipeline.
        """
        return self._core.pipeline_of(self._core.chain)

    @property
    def seed(self) -> int:
        """The seed of every `rng` in a stage function."""
        return self._core.seed

    def __getitem__(self, address: str) -> Stage | LiveStage:
        """Return a stage; a stage with workers also has `workers`, `pids` and `memory_bytes`.

        Raises:
            UnknownStageError: there is no such stage.
        """
        stage = stage_at(self._core.stages, address, "run")
        served = self._core.engine.workers(address)
        return stage if served is None else LiveStage(stage, served)

    def __len__(self) -> int:
        """Return the number of items of an epoch, as `len(pipe)`."""
        return length(self._core.chain)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "paused" if self.paused else "open"
        if self._core.life.is_in_progress:
            state += f", epoch {self.epoch} in progress"
        return f"Run({' > '.join(self._core.stages)}; {state})"

    # -- inspect ------------------------------------------------------------------------------
    @property
    def epoch(self) -> int:
        """The number of the epoch in progress, or of the last one; 0 before the first."""
        return self._core.life.position.number

    @property
    def stopped(self) -> bool:
        """Whether `stop()` ended the last epoch."""
        return self._core.life.outcome == STOPPED

    @property
    def paused(self) -> bool:
        """Whether the run is paused."""
        return self._core.life.scheduler.paused

    @property
    def closed(self) -> bool:
        """Whether the run is closed."""
        return self._core.life.closed

    @property
    def events(self) -> tuple[KnobChange, ...]:
        """The last 10,000 knob changes: time, author, old and new value, reason."""
        return self._core.events()

    def status(self) -> Status:
        """Return where the run is: state, epoch, items delivered, time, the last error.

        Returns:
            A `Status` of plain values; times are in seconds.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     numbers = list(run)
            ...     status = run.status()
            >>> status.state, status.epoch, status.delivered, status.total
            ('finished', 0, 4, 4)
        """
        return self._core.status()

    def stats(self) -> RunStats:
        """Return frozen numbers for each stage; "consumer" is the training loop.

        Between epochs they are the numbers at the end of the last one. `print` shows a table.

        Returns:
            A mapping of stage names to `StageStats`.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).map(abs).start() as run:
            ...     numbers = list(run)
            ...     run.stats()["abs"].items_out
            4
        """
        return self._core.stats()

    def history(self) -> list[Row]:
        """Return one row for each second and stage, oldest first; older rows are thinned out.

        Returns:
            Dicts; `pandas.DataFrame(run.history())` makes a table of them.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     numbers = list(run)  # took less than a second
            ...     {row["stage"] for row in run.history()} <= {"source", "consumer"}
            True
        """
        return self._core.engine.history()

    def failures(self) -> Failures:
        """Return the last 100 failed items, oldest first; a notebook shows a table.

        Returns:
            A tuple of `Failure`: stage, traceback, and the source item that it was made from.

        Examples:
            >>> import nbpipe
            >>> pipe = nbpipe.source(["1", "one", "2"]).map(int, on_error="skip")
            >>> with pipe.start() as run:
            ...     list(run), run.failures()[0].source
            ([1, 2], 'one')
        """
        return self._core.failures()

    def retry_failed(self) -> Any:
        """Return a pipeline of the source items of `failures()`, each once, with all stages.

        It leaves out `take`, `skip`, `repeat`, `dedupe`, `shard` and `cache`, and keeps the last
        batch even with `drop_last`. It shares its knobs with this run.

        Returns:
            A `Pipeline`; it is empty if nothing failed.

        Raises:
            ArgumentTypeError: the pipeline does not begin with one source.
            RunError: the run was not started by a pipeline.

        Examples:
            >>> import nbpipe
            >>> prices = {"apple": 3}
            >>> fruit = nbpipe.source(["apple", "pear"])
            >>> pipe = fruit.map(lambda name: prices[name], on_error="skip")
            >>> with pipe.start() as run:
            ...     found = list(run)
            ...     again = run.retry_failed()
            >>> prices["pear"] = 4
            >>> found, list(again)
            ([3], [4])
        """
        return self._core.retried()

    # -- epochs -------------------------------------------------------------------------------
    def __iter__(self) -> EpochIterator:
        """Start the next epoch.

        First it cancels an epoch that this thread left unfinished: the old iterator then raises
        `EpochClosedError`.

        Raises:
            RunClosedError: the run is closed, or was started in another process.
            ConcurrentIterationError: another thread is iterating this run.
            ReentrantRunError: a stage of this run calls it.
        """
        return self._core.start_epoch()

    def iterate(self, indices: Iterable[SupportsIndex]) -> EpochIterator:
        """Start the next epoch, in an order that you give.

        The source is read by these indices. Stages at the head of the pipeline that order indices
        (`shuffle`, `shard`, `take`, `skip`, `repeat`, `sample`, `balance`, `claim`) are left out;
        `enumerate` numbers the items as they are read; a `cache` is neither read nor written. An
        item's random generator depends on its position in `indices` and on its index.

        Args:
            indices: ints from 0 to the source's length - 1, in any order, any number of times: a
                list, an array, a tensor, a sampler, a generator, which may be endless. They are
                drawn as the source reads them, `prefetch` items ahead; with `isolate=True` they
                need a length and are drawn at once.

        Returns:
            The iterator of the epoch. An index that is out of range or no int ends it with a
            `StageError` of the source, after the items before it.

        Raises:
            ArgumentTypeError: `indices` cannot be iterated, or the pipeline does not begin with a
                source that has a length and an index.
            ArgumentError: a `repeat` after the head would read the source again, or the run is
                isolated and the indices have no length.
            RunClosedError, ConcurrentIterationError, ReentrantRunError: as for `iter(run)`.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(list("abcd")).start() as run:
            ...     list(run.iterate([3, 0, 3]))
            ['d', 'a', 'd']
        """
        return self._core.start_epoch(Listed(indices))

    def open_epoch(self, *, depth: int = 2) -> OpenEpoch:
        """Start the next epoch, and load its indices while it runs.

        Args:
            depth: loads that may wait for the source [loads]. A thread that both loads and
                iterates needs as many as it loads ahead.

        Returns:
            The epoch: `load(indices)` and `end()` work from any thread; iterate it for the items.

        Raises:
            ArgumentTypeError: the pipeline does not begin with a source that has a length and an
                index.
            ArgumentError: `depth` is out of range, a `repeat` after the head would read the
                source again, or the run is isolated.
            RunClosedError, ConcurrentIterationError, ReentrantRunError: as for `iter(run)`.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(list("abcd")).start() as run, run.open_epoch() as epoch:
            ...     loaded = epoch.load([2])
            ...     for step in range(3):
            ...         loaded = epoch.load([step])  # the source reads it during this step
            ...         print(next(epoch))
            c
            a
            b
        """
        feed = Feed(integer("open_epoch depth", depth, minimum=1, maximum=MAX_DEPTH, unit="loads"))
        return OpenEpoch(self._core.start_epoch(feed), feed, self._core.life)

    def set_epoch(self, number: int) -> None:
        """Set the number of the next epoch.

        After `load_state_dict`, only the epoch of the state resumes in the middle. Between two
        epochs, `state_dict()` then describes the epoch to come.

        Args:
            number: the number, at least 0.

        Raises:
            ArgumentError: not an int of at least 0.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(9)).shuffle().start() as run:
            ...     first = list(run)
            ...     run.set_epoch(0)
            ...     list(run) == first
            True
        """
        self._core.life.set_epoch(integer("epoch", number, minimum=0))

    # -- resume -------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last item that the loop took.

        Items that were read ahead, buffered or shuffled but not delivered are read again after a
        resume; skipped items are not tried again. The run does not wait for this.

        Returns:
            JSON-ready values for `json`, `torch.save` or a checkpoint of Lightning. After the end
            of an epoch, they describe the start of the next one.

        Raises:
            StateError: the process of an isolated run died in the epoch, or does not answer.

        Examples:
            >>> import nbpipe
            >>> pipe = nbpipe.source(range(5))
            >>> with pipe.start() as run:
            ...     items = iter(run)
            ...     next(items), next(items)
            ...     state = run.state_dict()
            (0, 1)
            >>> with pipe.start() as run:
            ...     run.load_state_dict(state)
            ...     list(run)
            [2, 3, 4]
        """
        return written(self._core.chain, self.seed, self._core.life.position.place())

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Resume from a state: the next iteration yields the rest of its epoch.

        After the last item of an epoch that rest is empty; then comes the next epoch. With the
        same number of ranks, and stages in input order, the items are exactly those of an
        uninterrupted epoch, whatever the executors and knobs. With another number of ranks, or in
        completion order, each remaining item comes once.

        Args:
            state: a result of `state_dict()`; for another number of ranks, a list of the states
                of all ranks.

        Raises:
            StateError: the state belongs to another pipeline, seed or data, or cannot be read.
            RunClosedError: the run is closed, or was started in another process.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(3)).start() as run:
            ...     first = next(iter(run))
            ...     run.load_state_dict(run.state_dict())
            ...     list(run)
            [1, 2]
        """
        core = self._core
        core.life.check_open()
        place = read(core.chain, core.seed, state)
        with contextlib.suppress(CacheError):  # the epoch raises it when it begins
            check_caches(core.chain, place, core.engine.caches())
        core.life.resume_at(place)

    # -- control ------------------------------------------------------------------------------
    def pause(self) -> None:
        """Start no further call; the loop waits at its next item until `resume()`.

        Raises:
            RunClosedError: the run is closed, or was started in another process.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     run.pause()
            ...     run
            Run(source; paused)
        """
        self._core.life.check_open()
        self._core.engine.pause(paused=True)

    def resume(self) -> None:
        """Continue after `pause()`.

        Raises:
            RunClosedError: the run is closed, or was started in another process.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     run.pause()
            ...     run.resume()
            ...     list(run)
            [0, 1, 2, 3]
        """
        self._core.life.check_open()
        self._core.engine.pause(paused=False)

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted, and the loop of `train`.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     for number in run:
            ...         run.stop()
            ...     number, run.stopped
            (0, True)
        """
        self._core.background.stop()

    def train(self, step: Callable[[Any], object], epochs: int = 1) -> Run:
        """Call `step` with every item of some epochs, in a thread; return at once.

        The output of `step` appears in the cell that called `train`. `stop()` and `close()` end
        the loop after the step in progress; an interrupt of the kernel does not end it.

        Args:
            step: called with one item. An exception ends the loop: the panel shows it, and
                `wait()` raises it.
            epochs: number of epochs [epochs].

        Returns:
            This run, so that `run.train(step).wait()` is one line, and a cell shows the panel.

        Raises:
            ArgumentError: `epochs` is not an int of at least 1.
            ArgumentTypeError: `step` cannot be called, or is `async`.
            ConcurrentIterationError: another thread is iterating this run.
            RunClosedError: the run is closed, or was started in another process.
            WorkerStartError: the system gives no more threads.

        Examples:
            >>> import nbpipe
            >>> seen = []
            >>> with nbpipe.source(range(3)).start() as run:
            ...     run.train(seen.append, epochs=2).wait()
            True
            >>> seen
            [0, 1, 2, 0, 1, 2]
        """
        self._core.background.start(self._core.start_epoch, step, epochs)
        return self

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the loop that `train` started; without one, return at once.

        An interrupt ends the wait, not the loop.

        Args:
            timeout_s: longest wait [s]; None waits as long as it takes.

        Returns:
            Whether the loop has ended.

        Raises:
            ReentrantRunError: a stage of this run calls it.
            BaseException: the exception of `step` or of a stage.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(3)).start() as run:
            ...     run.train(print).wait()
            0
            1
            2
            True
        """
        if timeout_s is not None:
            seconds("wait timeout_s", timeout_s, zero=True)
        self._core.life.check_outside("wait for")
        return self._core.background.wait(timeout_s)

    @property
    def memory(self) -> int | None:
        """The budget for the bytes in all buffers, as `start(memory=)` gave it [bytes].

        Set it at any time, as a number of bytes or as text: it holds immediately. None without a
        budget; then none can be set.

        Raises:
            ArgumentError: it is set to no size, or the run was started without a budget.
            RunClosedError: it is set, and the run is closed or was started in another process.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start(memory="8 MB") as run:
            ...     run.memory = "16 MB"
            ...     run.memory
            16000000
        """
        budget = self._core.budget
        return None if budget is None else budget.value

    @memory.setter
    def memory(self, size: int | str) -> None:
        self._core.limit_memory(size)

    # -- tuning -------------------------------------------------------------------------------
    def autotune(
        self,
        memory: int | str | None = None,
        keep: str | Iterable[str] = (),
        most: SupportsIndex | None = None,
    ) -> Tuner:
        """Turn the knobs by measured gain, while the run is iterated, until `stop()` or `close()`.

        `concurrency`, `prefetch` and `run.memory` are turned. Items, their order and their seeds
        stay the same. A knob that you turn is yours from then on. A second call gives the same
        tuner, with the new limits.

        Args:
            memory: ceiling of the resident memory of this process and all below it, as "4 GB" or
                a number of bytes. Without one, it is the resident memory now, plus a quarter of
                the free memory.
            keep: addresses of stages to leave alone.
            most: the most concurrent calls of a stage; 64 if left out [calls].

        Returns:
            The tuner; it has `state`, `log`, `stop()` and `undo()`.

        Raises:
            ArgumentError: `memory` is no size, or less than is in use; `most` is no int of at
                least 1.
            UnknownStageError: `keep` names no stage.
            RunClosedError: the run is closed, or was started in another process.
            ReentrantRunError: a stage of this run calls it.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).map(abs).start() as run:
            ...     tuner = run.autotune(keep=["source"])
            ...     list(run)
            [0, 1, 2, 3]
        """
        return self._core.autotune(TunerLimits(memory, keep, most))

    @property
    def tuner(self) -> Tuner | None:
        """The tuner that `autotune` gave; None before the first call."""
        return self._core.tuner

    # -- traces -------------------------------------------------------------------------------
    def trace(self, path: str | os.PathLike[str], *, events: int = MOST_EVENTS) -> Trace:
        """Record which thread and worker did what and when, for https://ui.perfetto.dev.

        Call it at any moment, also while a cell trains; `close()` writes the file, and so does the
        end of a `with` block or of the run. It shows a track for each thread and each worker
        process, the waits of the training loop, and knob changes.

        Args:
            path: the file, for example "trace.json", or "trace.json.gz"; one that is there is
                replaced.
            events: the most calls to keep: the last ones; calls of some microseconds count
                together. The file says how many were left out.

        Returns:
            The trace; it has `close()`, and is a context manager.

        Raises:
            ArgumentError, ArgumentTypeError: the file cannot be written there, or `events` is out
                of range.
            RunError: the run already records a trace.
            RunClosedError: the run is closed, or was started in another process.

        Examples:
            >>> import nbpipe, tempfile
            >>> with nbpipe.source(range(4)).start() as run, tempfile.TemporaryDirectory() as here:
            ...     with run.trace(f"{here}/trace.json"):
            ...         numbers = list(run)
        """
        return self._core.trace_to(path, events)

    # -- export -------------------------------------------------------------------------------
    def export(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Exported:
        """Write the pipeline as a Python module, with the knobs' present values.

        Args:
            path: the file, for example "loader.py".
            overwrite: replace a file that you edited, or that `export` did not write.

        Returns:
            What was written; see `Pipeline.export`.

        Raises:
            ExportError: something cannot be written; the message has the fix.

        Examples:
            In a notebook or a script::

                import nbpipe

                run = nbpipe.source(range(8)).map(abs).batch(4).start()
                run["abs"].concurrency = 4  # tune it while it runs
                run.export("loader.py")
                assert nbpipe.load("loader.py")["abs"].concurrency == 4
                run.close()
        """
        from ..export.exporting import export_chain

        chain = self._core.chain
        return export_chain(
            self, chain, path, items=lambda: single_epoch(Run(RunCore(chain))), overwrite=overwrite
        )

    # -- the end ------------------------------------------------------------------------------
    def close(self, timeout_s: float = 5) -> None:
        """End the run and its workers; a second call does nothing.

        Args:
            timeout_s: how long to wait for calls in progress [s]. A stage that is still in user
                code after that is named in a warning; its thread stays as a daemon.

        Raises:
            ReentrantRunError: a stage of this run calls it; `stop()` is allowed there.

        Examples:
            >>> import nbpipe
            >>> run = nbpipe.source(range(3)).start()
            >>> run.close()
            >>> run.closed
            True
        """
        self._core.close(timeout_s)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- names that it does not have ------------------------------------------------------------
    if not TYPE_CHECKING:  # a type checker reports these names by itself

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise UnknownKnobError(_no_attribute(self, name), name=name, obj=self)

        def __setattr__(self, name: str, value: object) -> None:
            if name == "between_waits":  # for front ends, as a loader's run has it
                self._core.between_waits = value
                return
            if not name.startswith("_") and name != "memory":
                message = _no_attribute(self, name, f" = {value!r}")
                raise UnknownKnobError(message, name=name, obj=self)
            object.__setattr__(self, name, value)


def _no_attribute(run: Run, name: str, assigned: str = "") -> str:
    """Write that a run has no such attribute, or that it cannot be set, and name the one meant."""
    stages: dict[str, Stage] = run.stages if "_core" in vars(run) else {}
    knob = word_for(name, ("concurrency", "prefetch", "depth")) or name
    having = [address for address, stage in stages.items() if knob in stage.knobs]
    if having:
        others = f" (so have {', '.join(map(repr, having[1:]))})" if having[1:] else ""
        return (
            f"a run has no {name}: each stage has its own; write "
            f"run[{having[0]!r}].{knob}{assigned}{others}"
        )
    if hasattr(type(run), name):
        way = "; call run.set_epoch(number)" if name == "epoch" else ""
        return f"run.{name} cannot be set{way}"
    return f"a run has no attribute {name!r}{near_match(name, dir(run))}"


def single_epoch(run: Run) -> EpochIterator:
    """Start the only epoch of a run; the run closes when the epoch ends or is dropped."""
    try:
        return run._core.start_epoch(at_end=run.close)
    except BaseException:  # for example a function that cannot be sent to a process
        run.close()
        raise


def runs() -> tuple[Run, ...]:
    """Return the open runs of this process, oldest first.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(3)).start() as run:
        ...     run in nbpipe.runs()
        True
    """
    found = (one for one in watch.open_runs() if isinstance(one, Run))
    return tuple(one for one in found if one._core.listed and not one.closed)


def close_all(timeout_s: float = 5) -> None:
    """Close every open run of this process, the newest first.

    Args:
        timeout_s: how long to wait for calls in progress of each run [s].

    Raises:
        ReentrantRunError: a stage of one of them calls it; the others are closed.

    Examples:
        >>> import nbpipe
        >>> run = nbpipe.source(range(3)).start()
        >>> nbpipe.close_all()
        >>> run.closed
        True
    """
    timeout_s = seconds("close_all timeout_s", timeout_s, zero=True)
    with contextlib.ExitStack() as all_runs:
        for run in runs():
            all_runs.callback(run.close, timeout_s)
