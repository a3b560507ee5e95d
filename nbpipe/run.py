"""Run: a started pipeline. It owns its workers for its whole life; one iteration is an epoch."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from types import TracebackType
from typing import final

from .engine.failures import Failure
from .engine.life import Life
from .engine.record import Record, Row
from .engine.scheduler import Scheduler
from .errors import UnknownStageError, near_match
from .iterator import EpochIterator, in_new_thread
from .knobs import KnobChange
from .lengths import length
from .operations import seconds, whole
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
    """

    def __init__(self, chain: Chain, *, seed: int = 0, memory_bytes: int | None = None) -> None:
        self._chain = chain
        self._stages = addresses(chain)
        self._seed = seed
        self._record = Record()
        self._scheduler = Scheduler(chain, seed=seed, memory_bytes=memory_bytes)
        self._life = Life(self._scheduler, self._record)
        self._iterators: weakref.WeakSet[EpochIterator] = weakref.WeakSet()
        self._scheduler.remember = self._record.failures.append
        self._scheduler.sample = _sampler(self._scheduler, self._record)
        watcher = _watcher(self._scheduler, self._record)
        knobs = {id(k): k for stage in self._stages.values() for k in stage.knobs.values()}
        self._unwatch = [knob.watch(watcher) for knob in knobs.values()]
        self._finalizer = weakref.finalize(self, _abandon, self._life, self._unwatch)
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
        return self._iterator(None)

    def single_epoch(self) -> EpochIterator:
        """Start the next epoch; when it ends, or its iterator is dropped, the run is closed."""
        return self._iterator(self.close)

    def _iterator(self, at_end: Callable[[], None] | None) -> EpochIterator:
        epoch = self._life.start_epoch()
        iterator = EpochIterator(self._life, epoch, self._chain, keeps=self, at_end=at_end)
        self._iterators.add(iterator)
        return iterator

    @property
    def epoch(self) -> int:
        """Number of the epoch in progress, or of the last one; before the first, 0."""
        return self._life.number

    def set_epoch(self, number: int) -> None:
        """Give the next epoch this number.

        Raises:
            ArgumentError: not an int of at least 0.
        """
        self._life.next_epoch = whole("epoch", number, minimum=0)

    def stop(self) -> None:
        """End the epoch in progress as if it were exhausted; from any thread."""
        self._life.stop()

    @property
    def stopped(self) -> bool:
        """Whether `stop()` ended the last epoch."""
        return self._life.stopped

    def pause(self) -> None:
        """Let no further call start; `__next__` waits until `resume()`."""
        self._life.check_open()
        self._scheduler.pause(paused=True)

    def resume(self) -> None:
        """Go on after `pause()`."""
        self._life.check_open()
        self._scheduler.pause(paused=False)

    @property
    def paused(self) -> bool:
        """Whether the run is paused."""
        return self._scheduler.paused

    def close_epochs(self) -> None:
        """Cancel the epoch in progress: the code that iterated it is gone."""
        for iterator in tuple(self._iterators):
            iterator.close()

    # -- looking in -----------------------------------------------------------------------
    @property
    def seed(self) -> int:
        """Seed of every random generator handed to a stage."""
        return self._seed

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
        return self._life.closed

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
        life = self._life
        if life.closed or life.forked:
            return
        timeout_s = seconds("close timeout_s", timeout_s, zero=True)
        life.check_outside("close")
        self._finalizer.detach()
        _live.discard(self)
        for unwatch in self._unwatch:
            unwatch()
        life.close(timeout_s)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def disown(self) -> None:
        """Take note that this process was forked: the run stayed in the other one."""
        self._finalizer.detach()
        self._life.disown()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "paused" if self.paused else "open"
        if self._life.epoch is not None:
            state += f", epoch {self.epoch} in progress"
        return f"Run({' > '.join(self._stages)}; {state})"


def _sampler(scheduler: Scheduler, record: Record) -> Callable[[int], int]:
    reference = weakref.ref(scheduler)  # the scheduler holds this function

    def sample(now_ns: int) -> int:
        engine = reference()
        if engine is None or engine.epoch is None:
            return now_ns
        engine.catch_up()
        return record.sample(now_ns, engine.epoch.context.epoch, engine.look(now_ns))

    return sample


def _watcher(scheduler: Scheduler, record: Record) -> Callable[[KnobChange], None]:
    reference = weakref.ref(scheduler)  # knobs outlive runs

    def changed(change: KnobChange) -> None:
        record.events.append(change)
        engine = reference()
        if engine is not None:
            engine.refresh()

    return changed


def _abandon(life: Life, unwatch: list[Callable[[], None]]) -> None:
    """Close what a collected run left; no lock may be taken here, it may be held below us."""

    def close() -> None:
        for end in unwatch:
            end()
        life.close(0)

    in_new_thread(close)


def _close_all() -> None:
    for run in tuple(_live):
        run.close(timeout_s=1)


def _after_fork() -> None:
    for run in tuple(_live):
        run.disown()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
