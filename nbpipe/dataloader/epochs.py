"""The epochs of a loader: how each begins, gives its batches and ends."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, final

from ..base.names import shown
from ..base.threads import in_new_thread
from ..engine.lifecycle import in_turn
from ..errors import StageError, add_note
from ..pipeline import Pipeline
from .arguments import Arguments
from .chain import EpochIndices, build, head_of
from .generators import RandomSources
from .local import LocalRun
from .position import Position, read_state
from .run import LoaderRun
from .samplers import started
from .state import EpochProgress, LoaderState
from .worker import WantsWorkersError
from .worker_run import GRACE_S, BatchTimeout, WorkerRun, close_run, load_into

_CLOSE_S = 5.0  # for calls in progress when the user closes a loader
_OURS = (StageError, StopIteration, StopAsyncIteration)  # raised as a StageError, not as they are


# -- one epoch -------------------------------------------------------------------------------------
@final
class LoaderEpoch(Iterator[Any]):
    """The batches of one epoch; raises what a dataset raised.

    Args:
        loader: kept alive, and asked for its length.
        epochs: of the loader.
        arguments: of the loader, when the epoch began.
        progress: of the epoch.

    Attributes:
        over: no more batches come.

    Examples:
        >>> import nbpipe
        >>> batches = iter(nbpipe.DataLoader(range(3), batch_size=2))
        >>> next(batches).tolist(), next(batches).tolist()
        ([0, 1], [2])
    """

    def __init__(
        self, loader: Any, epochs: Epochs, arguments: Arguments, progress: EpochProgress
    ) -> None:
        self.over = False
        self._loader = loader
        self._epochs = epochs
        self._arguments = arguments
        self._progress = progress
        self._items: Iterator[Any] = iter(())
        self._made: WorkerRun | None = None

    def begin(self, made: WorkerRun, indices: Iterator[Any] | None) -> None:
        """Let the workers of a run make the batches of these indices."""
        self._made = made
        try:
            self._items = made.begin(indices, self._progress)
        except BaseException:
            self.over = True
            self._progress.close_sampler()
            self._epochs.run.log.not_begun(self)
            raise

    def begin_in_loop(self, local: LocalRun) -> None:
        """Let the training loop make the batches itself."""
        self._items = local

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            Exception: what the dataset, `collate_fn`, the sampler or `worker_init_fn` raised.
            StageTimeoutError: it took longer than the loader's `timeout`.
            WorkerDiedError: each worker process that got this batch died.
        """
        if self.over:
            self._close_items()  # another thread may have closed the epoch
            raise StopIteration
        self._progress.asked = True
        made = self._made
        if made is not None and made.timeout is not None:
            made.timeout.begin()
        try:
            batch = next(self._items)
        except StopIteration:
            self._progress.finished = True
            self.close()
            raise
        except StageError as error:
            if made is None:
                self.close()
                raise
            failure = error
        except BaseException:
            if made is None:
                self.close()
            raise
        else:
            self._check_length(self._progress.deliver())
            return batch
        return self._failed(failure)  # outside the handler, or it would be the error's context

    def _failed(self, failure: StageError) -> Any:
        """Raise what the user's code raised, or begin again if the dataset is to be split."""
        self.close()
        cause = failure.__cause__
        if isinstance(cause, WantsWorkersError):
            failure.__traceback__ = None  # its frames would hold this epoch
            self._made, self._items = self._epochs.split(self._arguments, self._progress)
            self.over = self._progress.left = False
            return next(self)
        if not isinstance(cause, Exception) or isinstance(cause, _OURS):
            raise failure
        for note in getattr(failure, "__notes__", ()):
            add_note(cause, note)
        raise cause

    def _check_length(self, count: int) -> None:
        """Warn if an iterable dataset gives more batches than its length says."""
        length = self._epochs.length
        if length is not None and count > length:
            warnings.warn(
                f"the IterableDataset said that its length is {length}, and this is batch {count}; "
                "where workers read parts, each must leave out what the others read",
                stacklevel=3,
            )

    def close(self) -> None:
        """End the epoch, and workers that are not persistent; a second call does nothing.

        Examples:
            >>> import nbpipe
            >>> batches = iter(nbpipe.DataLoader(range(6), batch_size=2))
            >>> first = next(batches)
            >>> batches.close()
            >>> list(batches)
            []
        """
        if not self.over:
            self.over = True
            self._progress.leave()
            self._leave()

    def _leave(self) -> None:
        if self._made is not None and not self._made.stays:
            close_run(self._made.run, GRACE_S)
        self._close_items()
        self._progress.close_sampler()
        self._epochs.run.ended()

    def _close_items(self) -> None:
        close = getattr(self._items, "close", None)
        if close is not None:
            close()

    def __dir__(self) -> list[str]:
        return shown(self, ("begin", "begin_in_loop", "over"))

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> LoaderEpoch:
        return self

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # runs were closed; modules may be empty already, arguments are not
            return
        items = getattr(self, "_items", None)
        if isinstance(items, LocalRun):
            items.forget()
        if getattr(self, "over", True):
            return
        self.over = True
        self._progress.leave()
        if self._made is not None and not self._made.stays:
            in_new_thread(self._leave)  # garbage may be collected where a lock is held


# -- all epochs ------------------------------------------------------------------------------------
@final
class Epochs:
    """Begins the epochs of a loader, and keeps workers that stay for the next one.

    Args:
        run: shows all epochs.
        arguments: of the loader.

    Attributes:
        run: shows all epochs.
        state: where the loader is.
        asks: the dataset calls `get_worker_info()`, to read a part of itself in each worker.
        length: of an iterable dataset in batches, once `len` was called; or None.
    """

    def __init__(self, run: LoaderRun, arguments: Arguments) -> None:
        self.run = run
        self.asks = False
        self.length: int | None = None
        self._kept: WorkerRun | None = None  # the run that stays
        self.restart(arguments)

    def restart(self, arguments: Arguments) -> None:
        """Begin with the first epoch, also with another sampler."""
        dataset, samples = arguments.dataset, arguments.samples
        self.state = LoaderState(dataset, samples, iterable=arguments.iterable)
        self._build(arguments)

    def _build(self, arguments: Arguments, seed: int = 0, at: Position | None = None) -> Pipeline:
        """Build the chain of the next epoch, and show it."""
        pipe = build(arguments, self.run.knobs, seed=seed, position=at)
        self.run.follow(pipe)
        return pipe

    # -- beginning one --------------------------------------------------------------------
    def begin(self, loader: Any, arguments: Arguments) -> LoaderEpoch:
        """Begin the next epoch, or the rest of the epoch of a loaded state.

        Raises:
            StateError: the dataset was read in parts by other workers.
        """
        position, sources = self.state.loaded(), arguments.sources
        if position is None or not position.begun:
            return self._begin(loader, arguments, sources, position)
        self.check_readers(arguments, position)
        sources.restore(position)
        with sources.with_torch(position.torch):
            return self._begin(loader, replace(arguments, asks=self.asks), sources, position)

    def _begin(
        self, loader: Any, arguments: Arguments, sources: RandomSources, loaded: Position | None
    ) -> LoaderEpoch:
        resumes, begun = loaded is not None and loaded.begun, None
        try:
            progress, indices = self.state.begin(
                sources,
                loaded,
                arguments.draw_seed,
                stays=arguments.stays,
                ahead=arguments.ahead,
            )
            if arguments.num_workers:
                free = None if resumes else self._free_run(arguments, progress.position.seed)
                made = free or self._open(arguments, progress.position)
                epoch = LoaderEpoch(loader, self, arguments, progress)
                self.run.log.begins(epoch, made.run, progress.position.epoch)
                epoch.begin(made, indices)
            else:
                if resumes and indices is not None:  # while torch's generator is as it was
                    indices = started(indices)
                local = self._in_loop(arguments, progress, indices)
                epoch = LoaderEpoch(loader, self, arguments, progress)
                epoch.begin_in_loop(local)
                self.run.log.begins(epoch, local)
                self.run.traces.follow(local)
            begun = progress
        finally:
            self.state.begun(begun)
        return epoch

    def _in_loop(
        self, arguments: Arguments, progress: EpochProgress, indices: Iterator[Any] | None
    ) -> LocalRun:
        """Return an epoch whose batches the training loop makes itself."""
        pipe = self._build(arguments, at=progress.position)
        if indices is None:
            lists = head_of(pipe)
            progress.reading = lists.now
            indices = iter(lists)
        between = in_turn(self.run.between_waits, self.run.loop_calls)
        return LocalRun(indices, pipe.chain, before=progress.delivered, between=between)

    # -- workers --------------------------------------------------------------------------
    def _free_run(self, arguments: Arguments, seed: int | None) -> WorkerRun | None:
        """Return the run that stayed, if the next epoch can use it; or None."""
        kept = self._kept
        if kept is None or kept.run.closed or kept.seed != seed or self.run.log.is_busy(kept.run):
            return None
        return kept if kept.readers == arguments.readers else None

    def _open(self, arguments: Arguments, position: Position) -> WorkerRun:
        """Start a run; it is kept if workers are to stay, and no others do."""
        kept = self._kept
        if kept is not None and not self.run.log.is_busy(kept.run):  # it has other readers
            close_run(kept.run, _CLOSE_S)
        seed = position.seed or 0
        pipe = self._build(arguments, seed, position)
        run = pipe.start(seed=seed)
        self.run.adopt(run)
        load_into(run, position)
        timeout = None
        if arguments.timeout:
            run._core.between_waits = timeout = BatchTimeout(arguments.timeout, run)
        head, stays = head_of(pipe), arguments.persistent_workers
        made = WorkerRun(
            run,
            head if isinstance(head, EpochIndices) else None,
            seed,
            arguments.readers,
            stays and (kept is None or kept.run.closed),
            timeout,
        )
        self._kept = made if made.stays else kept
        return made

    def split(
        self, arguments: Arguments, progress: EpochProgress
    ) -> tuple[WorkerRun, Iterator[Any]]:
        """Begin an epoch again, with a part of the dataset for each worker.

        Returns:
            The run that makes the batches, and the batches.

        Raises:
            StateError: the loop has had batches of the whole dataset.
        """
        before = progress.run
        assert before is not None
        close_run(before, _CLOSE_S)
        if progress.delivered:
            raise progress.position.read_whole()
        self.asks = True
        made = self._open(replace(arguments, asks=True), progress.position)
        items = made.begin(None, progress)
        self.run.log.moved(before, made.run)
        return made, items

    # -- states ---------------------------------------------------------------------------
    def load(self, arguments: Arguments, state: Any) -> None:
        """Have the next epoch begin where a state says.

        Raises:
            StateError: the state is of another loader, or cannot be read.
        """
        sources = arguments.sources
        position = read_state(state, self.state.about(sources), sources.check)
        self.check_readers(arguments, position)
        self.state.load(sources, position)
        if self._kept is not None:
            close_run(self._kept.run, _CLOSE_S)

    def check_readers(self, arguments: Arguments, position: Position) -> None:
        """Check that the workers can continue a position, and note if it was read in parts.

        Raises:
            StateError: the dataset was read by other workers.
        """
        in_processes = arguments.place == "process"
        asks = self.asks or (position.parts is not None and in_processes)
        workers = arguments.num_workers if in_processes else 0
        splits = asks or arguments.readers > 0
        position.check_readers(workers, splits=splits)
        self.asks = asks

    def close(self) -> None:
        """End the workers that stay, and all epochs in progress."""
        self.run.close(_CLOSE_S)
