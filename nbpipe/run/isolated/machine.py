"""IsolatedMachine: the stages of a run in a process of their own, behind what a run asks."""

from __future__ import annotations

import contextlib
import functools
import threading
from time import monotonic
from typing import final

from ...base.knobs import Knob
from ...engine.epoch import Epoch
from ...engine.external import GivenOrder
from ...engine.failures import KEPT, Failure
from ...engine.machine import Machine, Record, keep
from ...engine.node import Stages
from ...engine.scheduler import Scheduler, stats
from ...engine.stats import Row, StageStats
from ...executors.base import Answer, Caller, Job
from ...executors.shipping import Shipped
from ...ops.remaining import Remaining
from ...ops.source import Source
from ...ops.stage import Chain, Stage, addresses
from .link import ANSWER_S, IndexSender, Link, NoAnswerError, Reply
from .pickling import Values, knobs_of, shipped, split, warn_of_size
from .report import Past, Report, Workers, report_before, seen_s, shifted, together
from .source import MOST, RemoteSource

HIDDEN = "isolated"  # name of the source in this process; nobody sees it
_FRESH_S = 0.5  # what was asked so short a time ago need not be asked again


@final
class IsolatedMachine(Machine):
    """Stages in a process of their own, which lives from the start of the run to its end.

    In this process there is a run of one hidden source, from which the loop takes its items. A
    process that dies is replaced when the next epoch begins.

    Args:
        chain: the stages.
        record: what the run remembers here: the loop's own row, and knob changes.
        seed: the run's.
        memory_bytes: budget for what all buffers hold [bytes], or None.

    Raises:
        ArgumentError: a stage has an executor that cannot be used there.
        UnpicklableError: part of a stage cannot be sent.
    """

    def __init__(
        self, chain: Chain, record: Record, *, seed: int, memory_bytes: int | None
    ) -> None:
        self.limit_bytes = memory_bytes
        self._record = record
        self._seed = seed
        self._there, here = split(chain)
        self._here = frozenset(addresses(here))
        freight = shipped(self._there)
        warn_of_size(self._there, freight)
        self._knobs = dict(knobs_of(self._there))
        self._blank = report_before(self._there, seed=seed, memory_bytes=memory_bytes)
        self._report = self._blank
        self._title = " > ".join(addresses(chain))
        ready = Knob(f"{HIDDEN}.prefetch", 0, minimum=0, maximum=MOST - 1, unit="items")
        self._crossing = RemoteSource(self._current, record.consumer, ready, self._look)
        source = Stage(Source(self._crossing), name=HIDDEN, shared={"prefetch": ready})
        self.scheduler = scheduler = Scheduler((source, *here), seed=seed, memory_bytes=None)
        keep(scheduler, record)
        ready.watch(lambda _: scheduler.refresh())
        self._lock = threading.RLock()  # garbage that is found below us may come here again
        self._stale = self._paused = self._closed = False
        self._program, self._digest = 0, ""
        self._storages: tuple[object, ...] = ()
        self._told: Values = {}
        self._question: tuple[float, Reply] | None = None
        self._looked_s = 0.0
        self._rows: list[Row] = []
        self._past = Past()
        self._link = self._linked(freight)

    # -- the process ----------------------------------------------------------------------
    def _linked(self, freight: Shipped) -> Link:
        """Start a process, and have the chain built there."""
        link = Link(self._title, memory_bytes=self.limit_bytes)
        self._load(link, freight)
        if self._paused:
            link.asked("pause", True)  # noqa: FBT003
        return link

    def _load(self, link: Link, freight: Shipped) -> None:
        self._program += 1
        self._digest = freight.digest
        self._storages = freight.storages  # held until they were opened over there
        self._told = values = self._values()
        order = (self._program, freight.data, values, self._seed, self.limit_bytes)
        self._loading = link.asked("load", *order)

    def _values(self) -> Values:
        return {place: knob.value for place, knob in self._knobs.items()}

    def _current(self) -> tuple[Link, int]:
        """Return the process for an epoch, and the number of the program that it is to run."""
        with self._lock:
            old = self._link
            if old.gone and not self._closed:
                self._past = self._past.after(self._report, self._rows)
                self._report, self._rows = self._blank, []
                self._link = self._linked(shipped(self._there))
            link, program = self._link, self._program
        if link is not old:
            old.close(0)
        return link, program

    @property
    def _loaded(self) -> bool:
        """Whether there is somebody to ask."""
        return self._link.listens and self._loading.arrived

    @property
    def pid(self) -> int:
        """Process id of the stages' process; 0 before it was started."""
        return self._link.pid

    # -- told -----------------------------------------------------------------------------
    def begin(
        self, given: GivenOrder | None, node_state: Stages
    ) -> tuple[int, GivenOrder | None, Stages]:
        """Called when an epoch begins: send what a cell has changed, and the order."""
        self._crossing.node_state = node_state
        if self._stale:
            self._stale = False
            freight = shipped(self._there)
            if freight.digest != self._digest:
                with self._lock:
                    self._load(self._link, freight)
        if given is None:
            return self._crossing.begin(None), None, node_state
        link, program = self._current()
        deliver = functools.partial(IndexSender, given, link=link, program=program)
        return self._crossing.begin(deliver), None, node_state

    def node_state(self, epoch: Epoch, delivered: int) -> Stages | None:
        """Ask the stages here, then the process for its own."""
        with self.scheduler.lock:
            here = epoch.node_state(Remaining(delivered))
        rest = here.pop(HIDDEN)["rest"]
        if Remaining.read(rest).is_all:
            return {**self.caches(), **self._crossing.node_state, **here}
        with contextlib.suppress(NoAnswerError):
            found: Stages | None = self._link.ask("node_state", epoch.context.epoch, rest)
            return None if found is None else {**found, **here}
        return None

    def caches(self) -> Stages:
        """Ask the process, which keeps them; one that is not there has none."""
        if not self._loaded:
            return {}
        with contextlib.suppress(NoAnswerError):
            found: Stages = self._link.ask("caches")
            return found
        return {}

    def cancel(self, ticket: int) -> None:
        """Called when an epoch is over."""
        self._crossing.cancel(ticket)

    def refresh(self) -> None:
        """Send the values of the knobs that were turned."""
        with self._lock:
            values = self._values()
            changed = {place: new for place, new in values.items() if self._told[place] != new}
            self._told = values
            if changed:
                self._link.tell("turn", changed)
        self.scheduler.refresh()

    def pause(self, *, paused: bool) -> None:
        """Let nothing start, or let it go on; wait until it is so."""
        self._paused = paused
        self.scheduler.pause(paused=paused)
        told = self._link.asked("pause", paused)
        if self._loaded:
            with contextlib.suppress(NoAnswerError):
                told.wait(ANSWER_S)

    def renew(self) -> None:
        """Called when functions may have changed: the next epoch begins with what they are then."""
        self._stale = True

    def close(self, timeout_s: float) -> list[str]:
        """End the process; it names itself the stages that are still inside user code."""
        with self._lock:
            self._closed = True
        self._look()
        self._link.close(timeout_s)
        self._storages = ()
        return [late for late in self.scheduler.close(timeout_s) if late != HIDDEN]

    def disown(self) -> None:
        """Let go of it in a process that was forked."""
        self._closed = True
        self._link.disown()
        self.scheduler.disown()

    # -- asked ----------------------------------------------------------------------------
    def _look(self) -> Report:
        """Return what the process says of itself now, or what it last said."""
        if not self._loaded:
            return self._report
        since_s, question = self._asked()
        with contextlib.suppress(NoAnswerError):
            left_s = max(0.0, since_s + ANSWER_S - monotonic())
            found: Report | None = question.wait(left_s)
            if found is not None:
                self._report, self._looked_s = found.following(self._report), monotonic()
        return self._report

    def _asked(self) -> tuple[float, Reply]:
        """Return a question and its time: a new one, unless one waits for its answer for long."""
        known = self._question
        if known is not None and not known[1].arrived and monotonic() - known[0] > _FRESH_S:
            return known
        question = self._link.asked("look", seen_s(self._report.failures))
        self._question = asked = monotonic(), question
        return asked

    def _lately(self) -> Report:
        fresh = monotonic() - self._looked_s < _FRESH_S
        return self._report if fresh else self._look()

    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Return the stats of every stage, as the process says or last said."""
        here = stats(self.scheduler, now_ns)
        del here[HIDDEN]
        return {**self._past.with_counts(self._look().stats), **here}

    def failures(self) -> tuple[Failure, ...]:
        """Return the last failed items."""
        there = (*self._past.failures, *(self._look().failures or ()))
        here = (one for one in tuple(self._record.failures) if one.stage in self._here)
        return tuple(sorted((*there, *here), key=lambda one: one.when_s))[-KEPT:]

    def caller(self, address: str) -> Caller | None:
        """Return what serves a stage from outside its run's threads."""
        if address in self._here:
            return self.scheduler.regions.caller(address)
        return FarCaller(self, address) if address in self._report.workers else None

    def workers(self, address: str) -> Workers:
        """Tell what workers a stage has now."""
        return self._look().workers[address] if self._link.listens else Workers()

    def scale(self, address: str, count: int) -> None:
        """Ask for so many workers; raises as the stage's own caller does."""
        with contextlib.suppress(NoAnswerError):
            self._link.ask("scale", address, count)

    @property
    def cpu_cores(self) -> float | None:
        """Processor time of the stages' process [cores]."""
        return self._lately().cpu_cores

    @property
    def held_bytes(self) -> int | None:
        """Bytes in all buffers of the stages' process [bytes]."""
        return self._lately().held_bytes

    def history(self) -> list[Row]:
        """Return the rows of all stages, each time with the rows of this process nearest to it."""
        with self.scheduler.lock:
            ours = [row for row in self._record.history() if row["stage"] != HIDDEN]
        if self._loaded:
            with contextlib.suppress(NoAnswerError):
                self._rows = shifted(self._link.ask("history") or [], ours)
        return together([*self._past.rows, *self._rows], ours)


@final
class FarCaller(Caller):
    """The workers of a stage, seen through the process that they work for."""

    def __init__(self, machine: IsolatedMachine, address: str) -> None:
        self._machine = machine
        self._address = address

    def call(self, job: Job) -> Answer:
        """Never be called: the work is given over there."""
        raise TypeError("these workers are given their work in another process")

    def scale(self, workers: int) -> None:
        """Ask for this many workers, where that can be asked."""
        self._machine.scale(self._address, workers)

    @property
    def link(self) -> str | None:  # type: ignore[override]
        """Address of a page that shows the workers."""
        return self._machine.workers(self._address).link

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers on this machine."""
        return self._machine.workers(self._address).pids

    @property
    def workers(self) -> int:
        """Workers there are."""
        return self._machine.workers(self._address).count

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the workers [bytes]."""
        return self._machine.workers(self._address).memory_bytes

    def close(self, timeout_s: float) -> list[str]:
        """End nothing: the workers end with their process."""
        return []
