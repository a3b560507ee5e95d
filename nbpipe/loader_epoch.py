"""LoaderEpoch: one epoch of a `DataLoader`, as the training loop sees it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Protocol, final

from .engine.life import CANCELLED, FAILED, FINISHED
from .errors import StageError, StageTimeoutError
from .loader_chain import Order
from .loader_here import HereEpoch
from .loader_state import Progress
from .loader_workers import WantsWorkersError
from .run import Run
from .threads import in_new_thread

CLOSE_S = 5.0  # for calls in progress when somebody says close
_GRACE_S = 0.5  # for calls in progress when an epoch is left: then their workers are killed
_OURS = (StageError, StopIteration, StopAsyncIteration)  # the latter would end the loop in silence


class Patience:
    """Bounds how long the training loop waits for one batch.

    Args:
        limit_s: the bound [s].
        others: called as often as this is, or None.
    """

    def __init__(self, limit_s: float, others: Callable[[], object] | None) -> None:
        self._limit_s = limit_s
        self._others = others
        self._until_s = 0.0

    def begin(self) -> None:
        """Hear that a wait may begin."""
        self._until_s = monotonic() + self._limit_s

    def __call__(self) -> None:
        """Hear that the wait goes on.

        Raises:
            StageTimeoutError: it has taken too long.
        """
        if self._others is not None:
            self._others()
        if monotonic() > self._until_s:
            raise StageTimeoutError(
                f"no batch came within timeout={self._limit_s:g} s; raise timeout, or see what "
                "limits it: loader.run.diagnose()"
            )


class Loader(Protocol):
    """A loader, as far as its epochs know it."""

    def split(self, run: Run, progress: Progress) -> LoaderEpoch:
        """Begin an epoch again, with a reader in each worker."""

    def ended(self) -> None:
        """Hear that an epoch is over."""

    def yielded(self, count: int) -> None:
        """Hear how many batches of an epoch came."""

    def __len__(self) -> int: ...


@final
class LoaderEpoch(Iterator[Any]):
    """Gives the batches of one epoch; what a dataset raised is raised here as it was.

    Args:
        loader: whose epoch it is.
        items: gives the batches.
        progress: how far it came.
        run: the run that makes them, or None.
        closes: the run ends with the epoch.

    Attributes:
        over: no more batches will come.
        dropped: nobody holds it any more, and it is being closed.
        here: is told what happens, where the calling thread makes the batches; else None.
    """

    def __init__(
        self,
        loader: Loader,
        items: Iterator[Any],
        progress: Progress,
        run: Run | None = None,
        *,
        closes: bool = False,
    ) -> None:
        self.over = self.dropped = False
        self.here: HereEpoch | None = None
        self._loader = loader
        self._items = items
        self._run = run
        self._closes = closes
        self._progress = progress

    def __next__(self) -> Any:
        """Give the next batch.

        Raises:
            Exception: what the dataset, `collate_fn`, the sampler or `worker_init_fn` raised.
            StageTimeoutError: it took longer than the loader's `timeout`.
            WorkerDiedError: each worker process that was given this batch died.
        """
        if self.over:
            raise StopIteration
        self._progress.asked = True
        if self.here is not None:
            batch = self._next_here(self.here)
            self._loader.yielded(self._progress.deliver())
            return batch
        patience = None if self._run is None else self._run.between_waits
        if isinstance(patience, Patience):
            patience.begin()
        try:
            batch = next(self._items)
        except StopIteration:
            self._progress.finished = True
            self.close()
            raise
        except StageError as error:
            failure = error
        else:
            self._loader.yielded(self._progress.deliver())
            return batch
        return self._failed(failure)  # not in the handler: it would stand in the error's context

    def _next_here(self, here: HereEpoch) -> Any:
        """Make the next batch."""
        try:
            here.ask()
            batch = next(self._items)
        except StopIteration:
            self._progress.finished = True
            here.end(FINISHED)
            self.close()
            raise
        except BaseException as error:
            here.end(FAILED, error)
            raise
        here.made()
        return batch

    def _failed(self, failure: StageError) -> Any:
        """Begin again where a dataset wants to be split; else raise what was raised there."""
        self.close()
        cause = failure.__cause__
        if isinstance(cause, WantsWorkersError) and self._run is not None:
            failure.__traceback__ = None  # nobody sees it: its frames would hold this epoch
            self._begin_again(self._loader.split(self._run, self._progress))
            return next(self)
        if not isinstance(cause, Exception) or isinstance(cause, _OURS):
            raise failure
        for note in getattr(failure, "__notes__", ()):
            cause.add_note(note)
        raise cause

    def _begin_again(self, other: LoaderEpoch) -> None:
        """Give the batches of an epoch that nobody else knows."""
        self._items, self._run, self._closes = other._items, other._run, other._closes
        self.over, other.over = False, True

    def close(self) -> None:
        """Leave the epoch; workers that end with it end at once. Again does nothing."""
        if self.over:
            return
        self.over = True
        if self.here is not None:
            self.here.end(CANCELLED)
        if self._run is not None and self._closes:
            close_run(self._run, _GRACE_S)
        close = getattr(self._items, "close", None)
        if close is not None:
            close()
        self._loader.ended()

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> LoaderEpoch:
        return self

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # runs were closed; modules may be empty by now, arguments are not
            return
        self.dropped = True
        if not getattr(self, "over", True) and self._closes:
            in_new_thread(self.close)  # garbage may be found where a lock is held


def close_run(run: Run, timeout_s: float) -> None:
    """Close a run, and let go of what its workers mapped."""
    run.close(timeout_s=timeout_s)
    for stage in run.stages.values():
        release = getattr(stage.fn, "release", None)
        if release is not None:
            release()


@final
class Team:
    """The workers of one run, for one epoch or for all.

    Args:
        run: their run.
        order: gives them indices, or None.
        seed: that of its items.
        readers: how many of them read a part of an iterable dataset each; 0: none does.
        stays: they stay when an epoch ends.
    """

    def __init__(
        self,
        run: Run,
        order: Order | None,
        seed: int,
        *,
        readers: int,
        stays: bool,
    ) -> None:
        self.run = run
        self.stays = stays
        self.seed = seed
        self._order = order
        self._readers = readers
        self._epoch: weakref.ref[LoaderEpoch] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no epoch of theirs is under way."""
        epoch = None if self._epoch is None else self._epoch()
        return epoch is None or epoch.over

    def is_free(self, readers: int) -> bool:
        """Say whether another epoch may begin.

        Args:
            readers: workers that are to read a part each, where they do.
        """
        return self.is_idle and not self.run.closed and self._readers in (0, readers)

    def epoch(
        self, loader: Loader, indices: Iterator[Any] | None, progress: Progress
    ) -> LoaderEpoch:
        """Begin an epoch, with these indices."""
        if self._order is not None:
            self._order.prepared = indices
        if self._epoch is not None:  # the epochs between had workers of their own
            self.run.set_epoch(progress.mark.epoch)
        try:
            items = iter(self.run)
        except BaseException:  # what cannot be sent to a process is found now
            close_run(self.run, _GRACE_S)
            raise
        progress.run, progress.readers = self.run, self._readers
        epoch = LoaderEpoch(loader, items, progress, self.run, closes=not self.stays)
        self._epoch = weakref.ref(epoch)
        return epoch
