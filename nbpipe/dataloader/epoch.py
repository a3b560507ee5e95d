"""One epoch of a `DataLoader`, made by a run or in the calling thread."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from time import monotonic, perf_counter_ns, time
from traceback import walk_tb
from typing import Any, Protocol, final

from ..base.threads import in_new_thread
from ..engine.failures import Failure, formatted, one_line
from ..engine.machine import CANCELLED, FAILED, FINISHED, STOPPED, Record
from ..engine.runtime import BLOCKED, READY, StageRuntime
from ..engine.stats import Row, StageStats, Status
from ..errors import StageError, StageTimeoutError
from ..ops.stage import CONSUMER, Chain, addresses
from ..run.iterator import ATTEND_S
from ..run.run import Run
from .chain import Order, WantsWorkersError
from .state import Progress

# -- LoaderEpoch: one epoch of a `DataLoader`, as the training loop sees it ------------------------
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
        """Called when a wait may begin."""
        self._until_s = monotonic() + self._limit_s

    def __call__(self) -> None:
        """Called when the wait goes on.

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
        """Called when an epoch is over."""

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
        """Return the next batch.

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
        """Return the batches of an epoch that nobody else knows."""
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
        """Tell whether another epoch may begin.

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


# -- Here: the epochs that a loader makes in the calling thread, as a run shows its own ------------
_MADE_IN = "fetch"  # the stage whose calls the loop makes itself


@final
class HereEpoch:
    """One epoch that is made in the calling thread; the thread tells it what it does.

    Args:
        here: the loader's epochs of this kind.
        number: of the epoch.
        before: batches of the epoch that the loop had before.
        total: batches of the epoch, or None.

    Attributes:
        outcome: how it ended; CANCELLED while it has not.
    """

    def __init__(self, here: Here, number: int, before: int, total: int | None) -> None:
        self.number = number
        self.outcome = CANCELLED
        self.over = False
        self._here = here
        self._before = before
        self._total = total
        self._error: BaseException | None = None
        self._stopping = False
        self._delivered = before
        self._waited_ns = self._asked_ns = 0  # not 0: a batch is being made since then
        self._begun_ns = self._last_ns = perf_counter_ns()

    # -- what the iterating thread tells ----------------------------------------------------
    def ask(self) -> None:
        """Called when a batch is wanted; wait while it is paused.

        Raises:
            StopIteration: it was stopped.
        """
        here = self._here
        between = here.between_waits
        if between is not None:
            between()
        here.wait_while_paused()
        if self._stopping:
            self.end(STOPPED)
            raise StopIteration
        self._asked_ns = perf_counter_ns()
        here.begin_call(self._asked_ns)

    def made(self) -> None:
        """Called when the batch is there."""
        self._delivered += 1
        self._note(self._here.end_call(perf_counter_ns(), self.number))

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
            self._here.fail(error, self.number, self._delivered)
        self._note(self._here.end(perf_counter_ns(), self.number))

    # -- what others ask and do -------------------------------------------------------------
    def stop(self) -> None:
        """End it as if it were exhausted, before its next batch."""
        self._stopping = True
        self._here.resume()

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
        state = ("paused" if self._here.paused else "running") if going else self.outcome
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
            cpu_cores=self._here.record.cpu_cores,
            error="" if self._error is None else one_line(self._error),
            held_bytes=None,
            limit_bytes=None,
            resumed=self._before,
            by_loop=True,
        )


@final
class Here:
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

    def begin(self, chain: Chain, number: int, before: int, total: int | None) -> HereEpoch:
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
            return HereEpoch(self, number, before, total)

    def begin_call(self, now_ns: int) -> None:
        """Called when a batch is being made."""
        with self._lock:
            self.record.consumer.waits_since_ns = now_ns
            runtime = self._runtimes.get(_MADE_IN)
            if runtime is not None:
                runtime.account(now_ns, READY)
                runtime.active = 1

    def end_call(self, now_ns: int, epoch: int) -> int:
        """Called when a batch was made; give the time [ns]."""
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
        """Called when an epoch is over; give the time [ns]."""
        with self._lock:
            self._back(now_ns)
            self._sample(now_ns, epoch, last=True)
            self.record.end(now_ns)
        return now_ns

    def _back(self, now_ns: int) -> int:
        """Note that the loop is its own again; give the time that it was not [ns]."""
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
        """Let no further batch be made."""
        self._going.clear()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    def wait_while_paused(self) -> None:
        """Wait until batches may be made."""
        while not self._going.wait(ATTEND_S):
            if self.between_waits is not None:
                self.between_waits()
