"""DeviceCaller: one thread for a device, in which batches are copied to it and worked on there."""

from __future__ import annotations

import itertools
import threading
from _thread import allocate_lock
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any, final

from ..errors import RunClosedError
from .base import Answer, Caller, Job
from .holdings import Counts

_PATIENCE_NS = 25_000_000  # a batch waits no longer for those that are handed over with it
_numbers = itertools.count()


class Device(ABC):
    """A device as one run uses it. One thread at a time, but for `held` and `close`.

    Attributes:
        name: its full name, as "cuda:0".
    """

    name: str

    @abstractmethod
    def active(self) -> AbstractContextManager[Any]:
        """Make it this thread's device, and the run's stream the one its work goes to."""

    @abstractmethod
    def copy(self, value: Any) -> Any:
        """Begin to copy a batch to the device."""

    @abstractmethod
    def read(self, value: Any) -> Any:
        """Open what an earlier stage made, for work on the device."""

    @abstractmethod
    def finish(self, value: Any) -> Any:
        """Give what was made as a value that every thread may read."""

    @abstractmethod
    def settle(self) -> None:
        """Take care of what was begun since the last call, also where it failed."""

    @abstractmethod
    def held(self) -> Counts:
        """Count what is held."""

    @abstractmethod
    def close(self) -> None:
        """Wait until nothing is under way, and let go of everything."""


@final
class DeviceCaller(Caller):
    """Has the jobs of all stages on one device done in one thread, which starts with the first.

    Args:
        device: where.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call(self, job: Job) -> Answer:
        """Have a job done, and wait for it in this thread."""
        errand = _Errand(job)
        with self._lock:
            if self._closed:
                raise RunClosedError(f"the run was closed: nothing goes to {self.device.name}")
            if self._thread is None:
                self._start()
            self._errands.put(errand)
        errand.gate.acquire()
        if errand.error is not None:
            raise errand.error
        assert errand.answer is not None
        return errand.answer

    def _start(self) -> None:
        name = f"nbpipe-{self.device.name}-{next(_numbers)}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._thread = None
            raise

    def _serve(self) -> None:
        try:
            with self.device.active():
                while (errand := self._errands.get()) is not None:
                    errand.run(self.device)
                    del errand  # a batch must not stay with a thread that waits
        except BaseException as error:  # the device cannot be made active, or left
            self._refuse(error)
        finally:
            self.device.close()

    def _refuse(self, error: BaseException) -> None:
        while (errand := self._errands.get()) is not None:
            errand.fail(error)

    def has(self, ident: int) -> bool:
        """Say whether the thread with this id is the device's."""
        thread = self._thread
        return thread is not None and thread.ident == ident and thread.is_alive()

    def close(self, timeout_s: float) -> list[str]:
        """End the thread once what it does is done; whoever waits for it is named elsewhere."""
        with self._lock:
            first, self._closed = not self._closed, True
            thread = self._thread
        if first:
            self._errands.put(None)
        if thread is None:
            self.device.close()
        elif thread is not threading.current_thread():
            thread.join(timeout_s)
        return []


@final
class _Errand:
    """A job, and the gate at which its caller waits."""

    __slots__ = ("answer", "error", "gate", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.answer: Answer | None = None
        self.error: BaseException | None = None
        self.gate = allocate_lock()
        self.gate.acquire()

    def run(self, device: Device) -> None:
        """Do the job in this thread."""
        try:
            self.answer = _done(self.job, device)
        except BaseException as error:
            self.error = error
        finally:
            self.gate.release()

    def fail(self, error: BaseException) -> None:
        """Give up."""
        self.error = error
        self.gate.release()


def _done(job: Job, device: Device) -> Answer:
    """Do a job, batch by batch; an event for each."""
    made = Answer([], [[0, 0, 0] for _ in job.program.functions])
    since_ns = perf_counter_ns()
    try:
        for entry in job.entries:
            answer = _one(job, entry, device)
            made = _together(made, answer)
            if getattr(answer.results[-1], "fatal", False):
                break
            if job.hand is not None and perf_counter_ns() - since_ns > _PATIENCE_NS:
                job.hand(made.results)
                made, since_ns = replace(made, results=[]), perf_counter_ns()
    except BaseException:
        if job.hand is not None:
            job.hand(made.results)
        raise
    return made


def _one(job: Job, entry: Any, device: Device) -> Answer:
    try:
        answer = job.program.run([entry], job.epoch)
        (result,) = answer.results
        if isinstance(result, tuple):
            result = (result[0], device.finish(result[1]))
    finally:
        device.settle()
    return replace(answer, results=[result])


def _together(made: Answer, answer: Answer) -> Answer:
    tally = [
        [old + new for old, new in zip(*rows, strict=True)]
        for rows in zip(made.tally, answer.tally, strict=True)
    ]
    return Answer([*made.results, *answer.results], tally, made.retried + answer.retried)
