"""The background loop of `run.train`."""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, NamedTuple, Protocol, final

from ..base.checks import function, integer, is_coroutine_function, refuse_coroutine
from ..base.threads import Latch, no_thread, uninterrupted
from ..engine.epoch import LOG
from ..engine.lifecycle import STOPPED, RunLifecycle
from ..errors import ArgumentTypeError
from .iterator import ATTEND_S, EpochIterator


class Iterate(Protocol):
    """Starts an epoch."""

    def __call__(self, *, last: bool) -> EpochIterator:
        """Start the next epoch; `last` if none follows it."""


@final
class Training:
    """Calls `step` with every item of some epochs, in a thread of its own.

    Args:
        iterate: starts an epoch.
        step: called with each item.
        epochs: number of epochs [epochs].

    Attributes:
        first: the first epoch; the caller of `train` starts it, and gets its errors.
        error: the exception that ended the loop early, or None.
        total: number of epochs [epochs].
        begun: epochs that have begun [epochs].
        stopping: start no further epoch.
        thread: the thread, which owns the epochs.
    """

    def __init__(self, iterate: Iterate, step: Callable[[Any], object], *, epochs: int) -> None:
        if is_coroutine_function(function("train step", step)):
            raise ArgumentTypeError(
                "train step must be a plain function, got an async one; call asyncio.run in it, "
                "or write the loop yourself: for batch in run"
            )
        self.total = integer("train epochs", epochs, minimum=1, unit="epochs")
        self.first: EpochIterator | None = None
        self.error: BaseException | None = None
        self.stopping = self._all_begun = False
        self.begun = 0
        self._iterate = iterate
        self._step = step
        self._ended = Latch()
        context = contextvars.copy_context()  # so that its output appears in the caller's cell
        self.thread = threading.Thread(
            target=context.run, args=(self._loop,), name="nbpipe-train", daemon=True
        )

    @property
    def ended(self) -> bool:
        """Whether the loop has ended."""
        return self._ended.is_open

    @property
    def has_more(self) -> bool:
        """Whether another epoch will begin."""
        return not (self._all_begun or self.stopping or self.ended or self.error is not None)

    def wait(self, timeout_s: float | None, between: Callable[[], object] | None) -> bool:
        """Wait for the end of the loop; return whether it has ended.

        Args:
            timeout_s: longest wait [s]; None waits as long as it takes.
            between: called repeatedly during the wait, or None.
        """
        if between is None:
            return self._ended.wait(timeout_s)
        until_s = None if timeout_s is None else monotonic() + timeout_s
        while not self._ended.wait(ATTEND_S):
            between()
            if until_s is not None and monotonic() >= until_s:
                return False
        return True

    def _epochs(self) -> Iterator[EpochIterator]:
        for number in range(self.total):
            if number and self.stopping:
                return
            first, self.first = self.first, None
            self.begun = number + 1
            epoch = first or self._iterate(last=self.begun == self.total)
            self._all_begun = self.begun == self.total
            if self.stopping:  # it was set while the epoch started
                epoch.stop()
            yield epoch

    def _loop(self) -> None:
        epoch = None
        try:
            for epoch in self._epochs():
                for item in epoch:
                    refuse_coroutine("train step", self._step(item))
        except BaseException as error:  # noqa: BLE001  `wait` raises it, the panel shows it
            self.error = error
            if epoch is not None:
                epoch.fail(error)
            LOG.error("training ended: %s: %s", type(error).__name__, error)
        finally:
            self._ended.open()


class TrainedEpochs(NamedTuple):
    """How far the background loop is; None in a loop of the user's own.

    Attributes:
        total: number of epochs [epochs].
        begun: epochs that have begun [epochs].
    """

    total: int | None = None
    begun: int | None = None


@final
class BackgroundLoop:
    """The background loop of a run: one at a time.

    Args:
        life: lifecycle of the run.
    """

    def __init__(self, life: RunLifecycle) -> None:
        self._life = life
        self._training: Training | None = None

    def start(self, iterate: Iterate, step: Callable[[Any], object], epochs: int) -> None:
        """Start the first epoch here, and a thread that iterates.

        Raises:
            WorkerStartError: the system gives no more threads.
            ArgumentError, ArgumentTypeError, ConcurrentIterationError, RunClosedError: see
                `Run.train`.
        """
        training = Training(iterate, step, epochs=epochs)
        training.first = iterate(last=training.total == 1)
        uninterrupted(functools.partial(self._start, training))

    def _start(self, training: Training) -> None:
        before = self._training, self._life.owner
        self._training, self._life.owner = training, training.thread
        training.stopping = self._life.outcome == STOPPED  # `stop` ended the first epoch already
        try:
            training.thread.start()
        except RuntimeError as error:
            self._training, self._life.owner = before
            self.stop()
            raise no_thread("the training loop", error) from error

    def stop(self) -> None:
        """End the epoch in progress and the loop."""
        training = self._training
        if training is not None:
            training.stopping = True
        self._life.stop()
        if (started := self._training) is not training and started is not None:
            started.stopping = True  # it started during the lines above

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end of the loop; return whether it has ended.

        Raises:
            BaseException: the exception that ended it.
        """
        training = self._training
        if training is None:
            return True
        ended = training.wait(timeout_s, self._life.between_waits)
        if ended and training.error is not None:
            raise training.error
        return ended

    def close(self, timeout_s: float) -> None:
        """End the loop, unless this is called in one of its steps."""
        training = self._training
        if training is None or training.thread is threading.current_thread():
            return
        self.stop()
        if training.wait(timeout_s, None):
            training.thread.join()  # it is about to end
        else:
            LOG.warning("run closed, but after %g s still in a training step", timeout_s)

    @property
    def has_more(self) -> bool:
        """Whether it will begin another epoch."""
        return self._training is not None and self._training.has_more

    @property
    def is_active(self) -> bool:
        """Whether the loop has not ended."""
        return self._training is not None and not self._training.ended

    @property
    def epochs(self) -> TrainedEpochs:
        """How far it is, if the epoch in progress, or the last one, is its own."""
        training = self._training
        if training is None or (training.ended and self._life.owner is not training.thread):
            return TrainedEpochs()
        return TrainedEpochs(training.total, training.begun)
