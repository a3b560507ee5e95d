"""Slot: one worker process as its parent sees it: what is sent, what is heard, how it ends."""

from __future__ import annotations

import math
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, perf_counter_ns
from typing import Any, final

from ..errors import StageTimeoutError, UnpicklableError, WorkerDiedError, WorkerStartError
from ..text import shortened
from .base import Answer, Job
from .blocks import Blocks
from .channel import Channel
from .launch import Worker, launch
from .shipping import Shipped
from .worker import ENDED, ENTRY, Settings

_RESTED_S = 0.05
_LONGEST = 300  # characters of a user's error that ours repeats
LEAVE_S = 2.0  # a worker that is told to leave does so within this time, or is killed


@final
class Slot:
    """One worker process and its pipe; used by one thread at a time.

    Attributes:
        number: number of the worker in its region.
        ready: it has answered once.
        usable: it may be given another job.
        items: items it was given.
        freed: set while no thread uses it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.ready = False
        self.usable = True
        self.items = 0
        self.freed = threading.Event()
        self._worker: Worker | None = None
        self._channel: Channel | None = None
        self._digest = ""
        self._epoch = -1
        self._rests_since_s = 0.0

    @property
    def pid(self) -> int:
        """Process id of the worker; 0 before it was started."""
        return self._worker.pid if self._worker is not None else 0

    def start(self, settings: Settings, *, copy: bool, blocks: Blocks) -> None:
        """Start the process; it works on the first job as soon as it can."""
        worker = launch(ENTRY, pickle.dumps(settings))
        budget_bytes = settings["budget_bytes"]
        self._channel = Channel(
            worker.connection, copy=copy, budget_bytes=budget_bytes, blocks=blocks
        )
        self._worker = worker
        if not self.usable:  # killed while it started
            worker.kill()

    def rest(self) -> None:
        """Hear that there is nothing to do for now."""
        self._rests_since_s = monotonic()
        self.freed.set()

    def rested(self) -> bool:
        """Say whether it had nothing to do for so long that its process may be gone."""
        return monotonic() - self._rests_since_s > _RESTED_S

    def is_alive(self) -> bool:
        """Say whether the worker, which has nothing to do, is there; print what it printed."""
        assert self._channel is not None
        try:
            while self._channel.poll(0):
                self._heard(self._channel.recv())
        except (EOFError, OSError):
            return False
        return True

    def do(self, job: Job) -> Answer:
        """Have a job done, and wait for it."""
        announces = job.suspect or job.timeout_s is not None
        self._send(job, ("do", list(job.entries), job.epoch, announces))
        answer = Answer(*self._expect("answer", job))
        self.items += answer.tally[0][0]
        return answer

    def open(self, job: Job) -> None:
        """Have the iterator over one item's children made."""
        self._send(job, ("open", job.entries[0], job.epoch))
        self.items += 1
        self._expect("opened", job)

    def more(self, job: Job, count: int) -> tuple[list[Any], bool, int]:
        """Have up to `count` children made: they, whether that was all, and the time [ns]."""
        self._send(job, ("more", count))
        drawn, over, busy_ns = self._expect("children", job)
        return drawn, over, busy_ns

    def drop(self, job: Job) -> None:
        """Let the worker close the iterator."""
        self._send(job, ("drop",))

    def load(self, job: Job, shipped: Shipped) -> None:
        """Send the program, if the worker does not have it yet.

        Raises:
            WorkerStartError: it could not be loaded there, or `worker_init` failed.
        """
        assert self._channel is not None
        if self._epoch != job.epoch or self._digest != shipped.digest:
            self._epoch = job.epoch
            self._channel.renew()
        if self._digest == shipped.digest:
            return
        self._send(job, ("program", shipped.data))
        try:
            (failed,) = self._expect("ready", job)
        except (WorkerDiedError, StageTimeoutError):
            raise
        except Exception as error:
            self.usable = False
            raise WorkerStartError(
                f"{_line(error)}: the function of {job.program.label!r} could not be loaded in a "
                "worker"
            ) from error
        if failed is not None:
            self.usable = False
            cause: BaseException = failed.unpack()
            raise WorkerStartError(
                f"{_line(cause)}: worker_init failed in a worker of {job.program.label!r}"
            ) from cause
        self._digest = shipped.digest

    def _send(self, job: Job, message: tuple[Any, ...]) -> None:
        assert self._channel is not None
        try:
            self._channel.send(message)
        except (EOFError, OSError) as error:
            raise self._death(job, None) from error
        except Exception as error:
            kinds = ", ".join(sorted({type(entry[1]).__name__ for entry in job.entries}))
            raise UnpicklableError(
                f"an item cannot be sent to the worker of {job.program.label!r}: {kinds} cannot "
                "be pickled; hand on plain values, arrays or tensors, or use executor='thread'"
            ) from error

    def _expect(self, wanted: str, job: Job) -> Sequence[Any]:
        """Wait for an answer; hear what else the worker says meanwhile."""
        stage: int | None = None
        ends_s = math.inf  # of the call that the worker is in
        while True:
            message = self._next(job, stage, ends_s)
            if message is None:
                raise self._late(job, stage or 0)
            kind, *values = message
            self.ready = True
            if kind == wanted:
                return values
            if kind == "error":
                raise values[0].unpack()
            if kind == "part" and job.hand is not None:
                job.hand(values[0])
            stage = self._heard((kind, *values), stage)
            if kind == "begun" and job.timeout_s is not None:
                ends_s = math.inf if stage is None else monotonic() + job.timeout_s

    def _next(self, job: Job, stage: int | None, ends_s: float) -> tuple[Any, ...] | None:
        """Wait for what the worker says next; None: it took too long."""
        assert self._channel is not None
        try:
            if ends_s < math.inf and not self._channel.poll(max(0.0, ends_s - monotonic())):
                return None
            message: tuple[Any, ...] = self._channel.recv()
        except (EOFError, OSError):
            raise self._death(job, stage) from None
        return None if message[0] == "text" and monotonic() > ends_s else message

    def _heard(self, message: tuple[Any, ...], stage: int | None = None) -> int | None:
        """Take in a message that is no answer; give the stage that the worker is in."""
        kind, *values = message
        if kind == "text":
            name, text = values
            stream = getattr(sys, name, None)
            if stream is not None:
                stream.write(text)
        if kind == "begun":
            return None if values[0] == ENDED else int(values[0])
        return stage

    def _late(self, job: Job, stage: int) -> StageTimeoutError:
        """Kill a worker that took too long."""
        self.kill()
        self._reaped()
        address = _address(job, stage)
        return StageTimeoutError(
            f"a call of stage {address!r} took longer than timeout_s={job.timeout_s:g}; its "
            "worker was killed",
            stage=address,
            path=job.entries[0][0],
            executor="process",
        )

    def _death(self, job: Job, stage: int | None) -> WorkerDiedError:
        """Say how the worker died."""
        self.usable = False
        address = job.program.label if stage is None else _address(job, stage)
        return WorkerDiedError(
            f"the worker of stage {address!r} (process {self.pid}) died {self._reaped()} while "
            f"it had item {job.entries[0][0]}",
            stage=address,
            path=job.entries[0][0],
            executor="process",
        )

    def _reaped(self) -> str:
        assert self._worker is not None
        self._worker.close()
        code = self._worker.wait(LEAVE_S)
        if code is None:
            self._worker.kill()
            code = self._worker.wait(LEAVE_S)
        return how_it_ended(code)

    def kill(self) -> None:
        """Kill the process, from any thread; who waits for it hears of it at once."""
        self.usable = False
        if self._worker is not None:
            self._worker.kill()

    def leave(self) -> Worker | None:
        """Let the worker go; give the process that is on its way out."""
        self.usable = False
        self.freed.set()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if self._worker is not None:
            self._worker.close()
        return self._worker


def _line(error: BaseException) -> str:
    """Put the user's own error first."""
    text = shortened(str(error), _LONGEST)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _address(job: Job, stage: int) -> str:
    stages = getattr(job.program, "stages", ())
    return str(stages[stage]) if stage < len(stages) else job.program.label


def how_it_ended(code: int | None) -> str:
    """Say in words how a process ended, from its exit code."""
    if code is None:
        return "in an unknown way"
    if code >= 0:
        return f"with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    memory = ", as when memory runs out" if name == "SIGKILL" else ""
    return f"by {name}{memory}"


@final
class Children(Iterator[Any]):
    """What a worker makes of one item, fetched as it is wanted.

    Attributes:
        away_ns: time spent here that was not spent in the user's function [ns].
    """

    def __init__(self, slot: Slot, job: Job, give_back: Callable[[Slot], None]) -> None:
        self._slot = slot
        self._job = job
        self._give_back = give_back
        self._ready: list[Any] = []
        self._over = False
        self._wanted = 1
        self.away_ns = 0

    def want(self, count: int) -> None:
        """Say how many children there is room for."""
        self._wanted = count

    def __next__(self) -> Any:
        """Give the next child."""
        while not self._ready and not self._over:
            self._fetch()
        if not self._ready:
            raise StopIteration
        self._wanted = max(1, self._wanted - 1)
        return self._ready.pop()

    def _fetch(self) -> None:
        begun_ns = perf_counter_ns()
        try:
            drawn, over, busy_ns = self._slot.more(self._job, self._wanted)
        except BaseException:
            self._end()
            raise
        self.away_ns += max(0, perf_counter_ns() - begun_ns - busy_ns)
        self._ready = drawn[::-1]
        if over:
            self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._give_back(self._slot)

    def close(self) -> None:
        """Let the worker close its iterator, and go to other work."""
        if not self._over:
            try:
                self._slot.drop(self._job)
            finally:
                self._end()
