"""Run: a started pipeline. It owns its workers for its whole life; one iteration is an epoch."""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import TracebackType
from typing import Any, final

from . import gil
from .engine.epoch import Epoch
from .engine.failures import Failure
from .engine.record import Record, Row
from .engine.scheduler import LOG, OVER, WAIT, Scheduler
from .errors import (
    ConcurrentIterationError,
    ReentrantRunError,
    RunClosedError,
    UnknownStageError,
    near_match,
)
from .knobs import KnobChange
from .lengths import length
from .operations import whole
from .stage import CONSUMER, Chain, Stage, addresses
from .stats import RunStats

_live: weakref.WeakSet[Run] = weakref.WeakSet()
started: list[Callable[[Run], None]] = []  # called with every run that starts


@final
class Run:
    """A started pipeline; `for batch in run` is one epoch, the next `for` the next one.

    Args:
        chain: the stages.
        seed: seed of every random generator handed to a stage.
        memory_bytes: budget for what all buffers hold [bytes], or None.

    Attributes:
        seed: the seed.
        stopped: `stop()` ended the last epoch.
    """

    def __init__(self, chain: Chain, *, seed: int = 0, memory_bytes: int | None = None) -> None:
        self._chain = chain
        self._stages = addresses(chain)
        self.seed = seed
        self.stopped = False
        self._record = Record()
        self._scheduler = Scheduler(chain, seed=seed, memory_bytes=memory_bytes)
        self._scheduler.remember = self._record.failures.append
        self._next_epoch = 0
        self._epoch: Epoch | None = None
        self._end_lock = threading.Lock()
        self._owner: threading.Thread | None = None
        self._closed = False
        self._forked = False
        self._iterators: weakref.WeakSet[EpochIterator] = weakref.WeakSet()
        self._connect()

    def _connect(self) -> None:
        scheduler, record = self._scheduler, self._record
        reference = weakref.ref(scheduler)

        def sample(now_ns: int) -> int:
            engine = reference()
            if engine is None or engine.epoch is None:
                return now_ns
            return record.sample(now_ns, engine.epoch.context.epoch, engine.look(now_ns))

        def changed(change: KnobChange) -> None:
            record.events.append(change)
            engine = reference()
            if engine is not None:
                engine.refresh()

        scheduler.sample = sample
        knobs = {id(k): k for stage in self._stages.values() for k in stage.knobs.values()}
        self._unwatch = unwatch = [knob.watch(changed) for knob in knobs.values()]
        self._finalizer = weakref.finalize(self, _abandon, scheduler, unwatch)
        self._finalizer.atexit = False
        _live.add(self)
        for hear in tuple(started):
            hear(self)

    # -- epochs ---------------------------------------------------------------------------
    def __iter__(self) -> EpochIterator:
        """Start the next epoch.

        An epoch that this thread left unfinished is cancelled first.

        Raises:
            RunClosedError: the run is closed, or was started in another process.
            ConcurrentIterationError: another thread is iterating this run.
            ReentrantRunError: a stage of this run asks for it.
        """
        return self._start_epoch(closes_run=False)

    def single_epoch(self) -> EpochIterator:
        """Start the next epoch; when it ends, or its iterator is dropped, the run is closed."""
        return self._start_epoch(closes_run=True)

    def _start_epoch(self, *, closes_run: bool) -> EpochIterator:
        self._check_open()
        self._check_outside("iterate")
        epoch, owner, me = self._epoch, self._owner, threading.current_thread()
        if epoch is not None and owner is not None and owner is not me and owner.is_alive():
            raise ConcurrentIterationError(
                f"this run is being iterated by thread {owner.name!r}; end that epoch with "
                "run.stop(), or start a second run for a second loop"
            )
        if epoch is not None:
            self._end(epoch)
        number, self._next_epoch = self._next_epoch, self._next_epoch + 1
        self.stopped = False
        self._owner = me
        gil.lower()
        try:
            self._record.consumer.begin(perf_counter_ns())
            self._epoch = epoch = self._scheduler.start_epoch(number)
        except BaseException:
            gil.restore()
            raise
        iterator = EpochIterator(self, epoch, closes_run=closes_run)
        self._iterators.add(iterator)
        return iterator

    def _end(self, epoch: Epoch) -> None:
        with self._end_lock:
            ours = self._epoch is epoch
            if ours:
                self._epoch = None
        if ours:
            self._record.consumer.end(perf_counter_ns())
            gil.restore()
        self._scheduler.end_epoch(epoch)

    @property
    def epoch(self) -> int:
        """Number of the epoch in progress, or of the last one; before the first, 0."""
        return max(0, self._next_epoch - 1)

    def set_epoch(self, number: int) -> None:
        """Give the next epoch this number.

        Raises:
            ArgumentError: not an int of at least 0.
        """
        self._next_epoch = whole("epoch", number, minimum=0)

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted; from any thread."""
        epoch = self._epoch
        if epoch is not None:
            self.stopped = True
            self._end(epoch)

    def pause(self) -> None:
        """Let no further call start; `__next__` waits until `resume()`."""
        self._check_open()
        self._scheduler.pause(True)

    def resume(self) -> None:
        """Go on after `pause()`."""
        self._check_open()
        self._scheduler.pause(False)

    @property
    def paused(self) -> bool:
        """Whether the run is paused."""
        return self._scheduler.paused

    # -- looking in -----------------------------------------------------------------------
    def stats(self) -> RunStats:
        """Give frozen stats by stage address; the training loop's own row is "consumer"."""
        now_ns = perf_counter_ns()
        rows = self._scheduler.stats(now_ns)
        rows[CONSUMER] = self._record.consumer.stats(now_ns)
        return RunStats(rows)

    def history(self) -> list[Row]:
        """Give one row a second and stage, for a DataFrame; old times are thinned."""
        with self._scheduler.lock:
            return self._record.history()

    def failures(self) -> tuple[Failure, ...]:
        """Give the last 100 items that failed, oldest first."""
        return tuple(self._record.failures)

    @property
    def events(self) -> tuple[KnobChange, ...]:
        """Every knob change of this run: when, who, from, to, why."""
        return tuple(self._record.events)

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages by address."""
        return dict(self._stages)

    @property
    def closed(self) -> bool:
        """Whether the run was closed."""
        return self._closed

    def __getitem__(self, address: str) -> Stage:
        """Give a stage.

        Raises:
            UnknownStageError: there is no such stage.
        """
        stage = self._stages.get(address)
        if stage is None:
            raise UnknownStageError(
                f"no stage {address!r}{near_match(str(address), self._stages)}; this run has "
                + ", ".join(map(repr, self._stages))
            )
        return stage

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._stages)

    def __len__(self) -> int:
        return length(self._chain)

    def __bool__(self) -> bool:
        return True

    # -- the end --------------------------------------------------------------------------
    def close(self, timeout_s: float = 5) -> None:
        """End the run and its workers; calling it again does nothing.

        Args:
            timeout_s: how long to wait for calls in progress [s]. A stage still inside user
                code then is named in a warning; its thread is left a daemon.

        Raises:
            ReentrantRunError: a stage of this run asks for it; `stop()` is allowed there.
        """
        if self._closed or self._forked:
            return
        self._check_outside("close")
        self._closed = True
        self._finalizer.detach()
        _live.discard(self)
        if self._epoch is not None:
            self._end(self._epoch)
        for unwatch in self._unwatch:
            unwatch()
        late = self._scheduler.close(timeout_s)
        if late:
            LOG.warning(
                "run closed, but after %g s still inside user code: %s", timeout_s, ", ".join(late)
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close_epochs(self) -> None:
        """Cancel the epoch in progress: the code that iterated it is gone."""
        for iterator in tuple(self._iterators):
            iterator.close()

    def _check_open(self) -> None:
        if self._forked:
            raise RunClosedError(
                "this run belongs to the process that started it, and this process was forked "
                "from it; start a run here"
            )
        if self._closed:
            raise RunClosedError("this run is closed; start another with pipe.start()")

    def _check_outside(self, verb: str) -> None:
        if self._scheduler.is_own_thread(threading.get_ident()):
            raise ReentrantRunError(
                f"a stage cannot {verb} the run that runs it; do it outside, or call run.stop() "
                "to end the epoch"
            )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "paused" if self.paused else "open"
        if self._epoch is not None:
            state += f", epoch {self.epoch} in progress"
        return f"Run({' > '.join(self._stages)}; {state})"


@final
class EpochIterator(Iterator[Any]):
    """One epoch being iterated; closing or dropping it cancels the epoch."""

    def __init__(self, run: Run, epoch: Epoch, *, closes_run: bool) -> None:
        self._run = run
        self._epoch = epoch
        self._scheduler = run._scheduler
        self._consumer = run._record.consumer
        self._closes_run = closes_run
        self._done = False
        self._waits = False
        self._sink = epoch.sink
        self._pop = epoch.sink.popleft

    def __next__(self) -> Any:
        """Give the next item; wait for it, also while the run is paused.

        Raises:
            StageError: a stage failed; its exception is the `__cause__`.
            ConcurrentIterationError: another thread waits in this iterator.
        """
        epoch = self._epoch
        if epoch.direct:  # appends and pops of a deque are atomic: no lock is needed
            try:
                entry = self._pop()
            except IndexError:
                return self._next(epoch)
            self._consumer.items += 1
            if len(self._sink) == epoch.low:
                self._scheduler.wake_threads()
            return entry[1]
        return self._next(epoch)

    def _next(self, epoch: Epoch) -> Any:
        run = self._run
        while not self._done:
            if run._forked:
                run._check_open()
            if self._waits:
                raise ConcurrentIterationError(
                    "another thread is waiting in this iterator; let one thread iterate"
                )
            found = self._scheduler.next_entry(epoch)
            if found is WAIT:
                self._wait(epoch)
            elif found is OVER:
                self._over(epoch)
            else:
                self._consumer.items += 1
                run._owner = threading.current_thread()
                return found[1]
        raise StopIteration

    def _wait(self, epoch: Epoch) -> None:
        consumer = self._consumer
        if self._scheduler.is_own_thread(threading.get_ident()):
            self._run._check_outside("iterate")
        self._waits = True
        consumer.waits_since_ns = begun_ns = perf_counter_ns()
        try:
            epoch.gate.acquire()
        finally:
            self._waits = False
            consumer.waits_since_ns = 0
            consumer.waited_ns += perf_counter_ns() - begun_ns

    def _over(self, epoch: Epoch) -> None:
        error = epoch.error if not epoch.over else None
        self.close()
        if error is not None:
            raise error

    def close(self) -> None:
        """Cancel what is left of the epoch; closing again does nothing."""
        if self._done:
            return
        self._done = True
        self._run._end(self._epoch)
        if self._closes_run:
            self._run.close()

    def __length_hint__(self) -> int:
        try:
            return max(0, length(self._run._chain) - self._consumer.items)
        except TypeError:
            return 0

    def __iter__(self) -> EpochIterator:
        return self

    def __del__(self) -> None:
        if getattr(self, "_done", True) or self._run._forked:
            return
        if self._scheduler.lock.locked():  # perhaps by this very thread, which collects garbage
            _in_new_thread(self.close)
        else:
            self.close()


def _abandon(scheduler: Scheduler, unwatch: list[Callable[[], None]]) -> None:
    """Close what a collected run left; no lock may be taken here, it may be held below us."""
    for end in unwatch:
        _in_new_thread(end)
    _in_new_thread(lambda: scheduler.close(0))


def _in_new_thread(function: Callable[[], Any]) -> None:
    try:
        _thread.start_new_thread(function, ())
    except RuntimeError:  # the interpreter is shutting down
        return


def _close_all() -> None:
    for run in tuple(_live):
        run.close(timeout_s=1)


def _after_fork() -> None:
    for run in tuple(_live):
        run._forked = True
        if run._epoch is not None:
            run._epoch.direct = False
        run._finalizer.detach()
        run._scheduler.lock = threading.Lock()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
