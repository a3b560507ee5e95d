"""Worker processes: one process and one pipe for each call in progress."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import final

import psutil

from ..errors import ExecutorBrokenError, WorkerDiedError, WorkerStartError
from ..threads import no_thread
from .base import Answer, Caller, Job, Program
from .blocks import Blocks
from .launch import Worker
from .shipping import LARGE_BYTES, Shipped, ship, warn_if_large
from .slot import LEAVE_S, Children, Slot
from .worker import Settings

LOG = logging.getLogger("nbpipe")
_RSS_S = 1.0  # resident memory is read no more often than this
_TOTAL_BYTES = int(psutil.virtual_memory().total)
_RING_SHARE = 4  # of the machine's memory, shared memory may take this part
_MANY = 4  # times the cores: more workers than this only take memory
_warned = [False]


@final
class ProcessCaller(Caller):
    """Has jobs done in worker processes that start when they are needed.

    Args:
        limit: gives the calls that may be in progress at once, now.
        copy: results are copied out of shared memory.
        max_items: a worker is replaced after so many items, or None.
        budget_bytes: shared memory that all workers may take together [bytes]; a quarter of
            the machine's memory where not given.
    """

    retries_of_deaths = 2

    def __init__(
        self,
        *,
        limit: Callable[[], int],
        copy: bool = True,
        max_items: int | None = None,
        budget_bytes: int | None = None,
    ) -> None:
        self._limit = limit
        self._copy = copy
        self._max_items = max_items
        self._budget_bytes = budget_bytes or _TOTAL_BYTES // _RING_SHARE
        self._blocks = Blocks()
        self._lock = threading.RLock()  # garbage that is found below us may look at the run
        self._changed = threading.Condition(self._lock)
        self._errors: list[BaseException] = []  # of workers that could not be started
        self._shipping = threading.Lock()
        self._shipped: Shipped | None = None
        self._program: Program | None = None
        self._measured = ""
        self._idle: list[Slot] = []
        self._slots: set[Slot] = set()
        self._leaving: list[Worker] = []
        self._waiting = self._starting = 0
        self._closed = self._reaped = False
        self._memory = (0.0, 0)

    # -- what is sent ---------------------------------------------------------------------
    def prepare(self, program: Program) -> None:
        """Pickle the program: workers get it with their next job if it has changed."""
        self.renew()
        self._current(program)
        with self._lock:
            self._errors.clear()

    def renew(self) -> None:
        """Pickle the program again with the next job: a cell may have changed a function."""
        with self._shipping:
            self._shipped = None

    def _current(self, program: Program) -> Shipped:
        with self._shipping:
            if self._shipped is None:
                self._program = program
                self._shipped = ship(program, stage=program.label)
                if self._shipped.size_bytes > LARGE_BYTES:
                    self._measure(program, self._shipped.digest)
            return self._shipped

    def _measure(self, program: Program, digest: str) -> None:
        """Name what makes a program large; measuring takes as long as pickling."""
        if digest != self._measured:
            self._measured = digest
            for stage, fn in program.functions:
                warn_if_large(fn, stage)

    # -- jobs -----------------------------------------------------------------------------
    def call(self, job: Job) -> Answer:
        """Have a job done by a worker that has nothing to do, or by a new one."""
        slot = self._prepared(job)
        try:
            return slot.do(job)
        finally:
            self._give_back(slot)

    def expand(self, job: Job) -> Children:
        """Have the function called on the job's one entry; its worker is ours until the end."""
        slot = self._prepared(job)
        try:
            slot.open(job)
        except BaseException:
            self._give_back(slot)
            raise
        return Children(slot, job, self._give_back)

    def _prepared(self, job: Job) -> Slot:
        """Give a worker that has the program.

        Raises:
            WorkerStartError: worker after worker died before it had an item.
        """
        shipped = self._current(job.program)
        tries = 0
        while True:
            try:
                slot = self._take(job, shipped)
                return self._loaded(slot, job, shipped)
            except WorkerDiedError as error:
                tries += 1
                if tries > self.retries_of_deaths:
                    raise WorkerStartError(
                        f"workers of {job.program.label!r} die before their first item: {error}"
                    ) from error

    def _loaded(self, slot: Slot, job: Job, shipped: Shipped) -> Slot:
        try:
            slot.load(job, shipped)
        except BaseException:
            self._give_back(slot)
            raise
        return slot

    def _take(self, job: Job, shipped: Shipped) -> Slot:
        """Give a worker that has nothing to do; where there is none, have one started.

        Whichever is free first is taken, so that nobody waits for a new worker in vain.
        """
        while True:
            with self._lock:
                slot = self._next_idle(job, shipped)
            if not slot.rested() or slot.is_alive():
                return slot
            self._drop(slot)

    def _next_idle(self, job: Job, shipped: Shipped) -> Slot:
        """Wait for a worker; under the lock. One is being started for each who waits."""
        self._waiting += 1
        try:
            while not self._idle:
                self._check_open(job)
                if self._starting < self._waiting:
                    self._start(job, shipped)
                self._changed.wait()
        finally:
            self._waiting -= 1
        slot = self._idle.pop()
        slot.freed.clear()
        return slot

    def _check_open(self, job: Job) -> None:
        if self._closed:
            raise ExecutorBrokenError(
                f"the workers of {job.program.label!r} are closed", stage=job.program.label
            )
        if self._errors:
            raise self._errors.pop()

    def _start(self, job: Job, shipped: Shipped) -> None:
        """Have a worker started, in a thread of its own; under the lock.

        Raises:
            WorkerStartError: no thread could be started, and there is no other worker.
        """
        slot = Slot(self._free_number())
        self._slots.add(slot)
        self._starting += 1
        thread = threading.Thread(
            target=self._started, args=(slot, job, shipped), name="nbpipe-start", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._slots.discard(slot)
            self._starting -= 1
            if not self._slots:
                raise no_thread(f"a worker of {job.program.label!r}", error) from error

    def _free_number(self) -> int:
        taken = {slot.number for slot in self._slots}
        count = len(taken) + 1
        if count > _MANY * (os.cpu_count() or 1) and not _warned[0]:
            _warned[0] = True
            LOG.warning(
                "more than %d worker processes for each core: they take memory and wait for one "
                "another; lower the concurrency",
                _MANY,
            )
        return next(number for number in range(count) if number not in taken)

    def _started(self, slot: Slot, job: Job, shipped: Shipped) -> None:
        each_bytes = self._budget_bytes // (2 * max(self._limit(), slot.number + 1))  # two ways
        settings: Settings = {"number": slot.number, "budget_bytes": each_bytes}
        try:
            slot.start(settings, copy=self._copy, blocks=self._blocks)
            slot.load(job, shipped)
        except BaseException as error:
            slot.usable = False
            with self._lock:
                if self._waiting:
                    self._errors.append(error)
        with self._lock:
            self._starting -= 1
        self._give_back(slot)

    def _give_back(self, slot: Slot) -> None:
        most = self._max_items
        worn = most is not None and slot.items >= most
        with self._lock:
            surplus = len(self._slots) > self._limit() and not self._waiting
            keep = slot.usable and not worn and not surplus and not self._closed
            if keep:
                self._idle.append(slot)
                slot.rest()
                self._changed.notify()
        if not keep:
            self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        with self._lock:
            self._slots.discard(slot)
            self._leaving = [worker for worker in self._leaving if worker.wait(0) is None]
            worker = slot.leave()
            if worker is not None:
                self._leaving.append(worker)
                if self._reaped:  # nobody waits for it any more
                    worker.kill()
            self._changed.notify_all()  # there is room for another

    def trim(self) -> None:
        """Let workers go that a lowered limit leaves without work."""
        with self._lock:
            surplus = len(self._slots) - self._limit()
            gone = [self._idle.pop(0) for _ in range(min(surplus, len(self._idle)))]
        for slot in gone:
            self._drop(slot)

    # -- looking in -----------------------------------------------------------------------
    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        with self._lock:
            return tuple(sorted(slot.pid for slot in self._slots if slot.pid))

    @property
    def starting(self) -> int:
        """Workers that have not done anything yet."""
        with self._lock:
            return sum(not slot.ready for slot in self._slots)

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the workers [bytes]; what they share is counted in each."""
        read_s, known = self._memory
        now_s = monotonic()
        if not known or now_s - read_s > _RSS_S:
            known = sum(map(_resident_bytes, self.pids))
            self._memory = now_s, known
        return known

    # -- the end --------------------------------------------------------------------------
    def close(self, timeout_s: float) -> list[str]:
        """End all workers; those still at work after `timeout_s` are killed."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            idle, self._idle = self._idle, []
            for slot in self._slots:
                if not slot.ready:
                    slot.kill()
        for slot in idle:
            self._drop(slot)
        deadline_s = monotonic() + timeout_s
        with self._lock:
            busy = list(self._slots)
        late = [slot for slot in busy if not slot.freed.wait(max(0.0, deadline_s - monotonic()))]
        for slot in late:
            slot.kill()
        for slot in late:
            slot.freed.wait(LEAVE_S)
        self._reap()
        return [self._program.label] if late and self._program else []

    def _reap(self) -> None:
        """Wait for workers that were told to leave; kill those that do not."""
        with self._lock:
            leaving = list(self._leaving)
            self._reaped = True
        deadline_s = monotonic() + LEAVE_S
        for worker in leaving:
            if worker.wait(max(0.0, deadline_s - monotonic())) is None:
                worker.kill()
                worker.wait(LEAVE_S)
        with self._lock:
            self._leaving = [worker for worker in self._leaving if worker not in leaving]


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
