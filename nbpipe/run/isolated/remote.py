"""IsolatedMachine: the stages of a run in a process of their own, behind what a run asks."""

from __future__ import annotations

import contextlib
import itertools
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from time import monotonic, perf_counter_ns
from typing import Any, final

from ...base.knobs import Knob
from ...engine.epoch import Epoch
from ...engine.expand import EpochItems
from ...engine.external import ExternalOrder, Listed
from ...engine.failures import Failure
from ...engine.machine import CarriedError, Consumer, Engine, RunRecord
from ...engine.node import StageStates
from ...engine.scheduler import Scheduler, stats
from ...engine.stats import CHUNK_MAX, Row, StageStats
from ...executors.interface import Executor, Request, Response
from ...executors.reloads import Versions, are_current, reloaded
from ...executors.serialize import SerializedFunction
from ...executors.settings import Modules, current_settings
from ...ops.ranges import IndexRanges
from ...ops.source import Source
from ...ops.stage import Chain, Stage, addresses
from .link import (
    ANSWER_S,
    STATE_S,
    ChildReport,
    Link,
    NoAnswerError,
    Reply,
    Values,
    Workers,
    pickled,
)

# -- RemoteSource: the items of a pipeline in another process, as a source in this one -------------
MOST = CHUNK_MAX  # items that come at once, where they are small and the loop waits for them
_IN_A_ROW = 4  # answers that say the same, before more come at once


@final
class RemoteSource(EpochItems):
    """A source that draws from another process; each epoch opens it afresh.

    One item comes at a time, and the next one is under way while the loop is busy. Where the
    loop waits and items are small, more come together, and as many are kept ready here.

    Args:
        link: gives the process in which the next epoch runs.
        consumer: the loop, which waits or does not.
        ready: knob of the items kept ready here.
        settle: called at the end of an epoch, before the loop hears of it.

    Attributes:
        node_state: where the stages go on over there in the epoch that begins.
        settings: of this process, which hold in that epoch.
    """

    def __init__(
        self,
        link: Callable[[], tuple[Link, int]],
        consumer: Consumer,
        ready: Knob,
        settle: Callable[[], object],
    ) -> None:
        self.link = link
        self.consumer = consumer
        self.ready = ready
        self.settle = settle
        self.node_state: StageStates = {}
        self.settings = b""
        self._tickets = itertools.count(1)
        self._now = RemoteIterator(self, 0, None)

    def begin(self, given: Sequence[Any] | None) -> int:
        """Called when an epoch is about to begin; return its ticket.

        Args:
            given: indices that take the place of the source's own order, or None.
        """
        before, self._now = self._now, RemoteIterator(self, next(self._tickets), given)
        before.give_up()
        return self._now.ticket

    @property
    def ticket(self) -> int:
        """Of the epoch in progress, or of the last one; 0 before the first."""
        return self._now.ticket

    def of_epoch(self) -> RemoteIterator:
        """Return the items of the epoch that begins."""
        return self._now

    def finish(self) -> None:
        """End the epoch, of which the loop has had everything.

        Raises:
            CacheError: a cache cannot be written over there.
        """
        self._now.finish()

    def cancel(self, ticket: int, had: int) -> None:
        """End an epoch of which so many items were had: whoever waits for one more gets none."""
        if self._now.ticket == ticket:
            self._now.end(had)

    def __iter__(self) -> RemoteIterator:
        return self._now


@final
class RemoteIterator(Iterator[Any]):
    """The items of one epoch.

    Args:
        source: where they come from.
        ticket: tells the epoch from all others.
        given: indices of an order from outside, or None.
    """

    def __init__(self, source: RemoteSource, ticket: int, given: Sequence[Any] | None) -> None:
        self.ticket = ticket
        self._source = source
        self._epoch = 0
        self._given = given
        self._node_state = source.node_state
        self._link: Link | None = None
        self._program = 0
        self._items: deque[Any] = deque()
        self._wanted = True
        self._asked = self._begun = self._over = False
        self._hungry = self._sated = 0  # answers in a row that the loop waited for, or did not

    def set_epoch(self, number: int) -> None:
        """Called with the number of the epoch."""
        self._epoch = number

    def __next__(self) -> Any:
        """Wait for the next item.

        Raises:
            CarriedError: the epoch failed over there.
        """
        while not self._items:
            if self._over or not self._wanted:
                raise StopIteration
            self._fetch()
        return self._items.popleft()

    def _fetch(self) -> None:
        kind, value = self._answer()
        self._asked = False
        if kind == "items":
            items, more = value
            self._begun = True
            self._items.extend(items)
            self._adapt(more=more)
            if self._wanted:
                self._ask()  # it gets ready while the loop is busy
            return
        self._over = True
        self._source.settle()
        if kind == "error":
            raise CarriedError(value.unpack())

    def _adapt(self, *, more: bool) -> None:
        """Ask for more at once where the loop waits for them, and for fewer where it does not."""
        knob = self._source.ready
        waits = bool(self._source.consumer.waits_since_ns)
        self._hungry = self._hungry + 1 if waits and more else 0
        self._sated = 0 if waits else self._sated + 1
        if self._hungry == _IN_A_ROW:
            self._hungry = 0
            knob.set(min(2 * knob.value + 1, MOST - 1))
        elif self._sated == 2 * _IN_A_ROW:
            self._sated = 0
            knob.set(knob.value // 2)

    def _ask(self) -> None:
        """Ask for the next items."""
        if self._link is None:
            self._link, self._program = self._source.link()
        data = self._link.ready()
        self._asked = True
        with contextlib.suppress(OSError):  # it is gone, as the answer will tell
            where = self._epoch, self._given, self._node_state, self._source.settings
            begin = () if self._begun else (self._program, *where)
            data.send((self.ticket, self._source.ready.value + 1, *begin))
        if not (self._wanted or self._begun):  # the end came before there was whom to tell
            self.end(0)

    def _answer(self) -> tuple[str, Any]:
        """Wait for what was asked for; leave out what earlier epochs no longer wanted."""
        while True:
            try:
                if not self._asked:
                    self._ask()
                assert self._link is not None
                token, kind, value = self._link.ready().recv()
            except (EOFError, OSError):
                self._lost()
                continue
            except BaseException as error:
                raise CarriedError(error) from error
            if token == self.ticket:
                self._link.served = True
                return kind, value

    def _lost(self) -> None:
        """Take note that the process is gone; one that died between two epochs is replaced."""
        link, self._link, self._asked = self._link, None, False
        assert link is not None
        error = link.died()
        if not link.served or self._begun or not self._wanted:
            self._over = True
            raise CarriedError(error)

    def finish(self) -> None:
        """Have the epoch end over there, with all that this takes; one that died has ended."""
        if self._link is not None:
            with contextlib.suppress(NoAnswerError):
                self._link.request("finish", self.ticket).wait(None)

    def give_up(self) -> None:
        """End it where nobody has: an interrupt came as it began, so that it never was the run's.

        The process waits for the end of an epoch before it begins the next one.
        """
        if self._wanted:
            self.end(0)

    def end(self, had: int) -> None:
        """Give up what is left behind so many items: nothing of it is wanted."""
        self._wanted = False
        link = self._link
        if link is not None:
            link.send("end", self.ticket, had)


HIDDEN = "isolated"  # name of the source in this process; nobody sees it
_NEAR_S = 2.0  # the loop's row of another time says nothing [s]
_MOMENT_S = 0.05  # the loop waits so long for an answer about a rest [s]
_FRESH_S = 0.5  # what was asked so short a time ago need not be asked again


@final
class IsolatedMachine(Engine):
    """StageStates in a process of their own, which lives from the start of the run to its end.

    In this process there is a run of one hidden source, from which the loop takes its items. A
    process that dies, or that imported a module that was reloaded since, is replaced when the next
    epoch begins.

    Args:
        chain: the stages.
        record: what the run remembers here: the loop's own row, and knob changes.
        seed: the run's.
        memory_bytes: budget for what all buffers hold [bytes], or None.

    Raises:
        ArgumentError: a stage has an executor that cannot be used there.
        UnpicklableError: part of a stage cannot be sent.
    """

    isolated = True

    def __init__(
        self, chain: Chain, record: RunRecord, *, seed: int, memory_bytes: int | None
    ) -> None:
        self._seed = seed
        count = sum(stage.executor != "device" for stage in chain)
        after = chain[count:]  # a batch stays where it was copied to
        self._after = frozenset(addresses(after))
        serialized = pickled(chain[:count])
        ready = Knob(f"{HIDDEN}.prefetch", 0, minimum=0, maximum=MOST - 1, unit="items")
        self._source = RemoteSource(self._current, record.consumer, ready, self._new_report)
        source = Stage(Source(self._source), name=HIDDEN, shared={"prefetch": ready})
        super().__init__((source, *after), record, seed=seed, memory_bytes=None)
        scheduler = self.scheduler
        ready.watch(lambda _: scheduler.refresh())
        scheduler.remember = self._remember
        self.limit_bytes = memory_bytes
        self._chain = chain[:count]
        self.isolated_stages = tuple(addresses(self._chain))
        self._knobs = {
            (address, name): knob
            for address, stage in addresses(self._chain).items()
            for name, knob in stage.knobs.items()
        }
        self._blank = _report_before(self._chain, seed=seed, memory_bytes=memory_bytes)
        self._report = self._blank
        self._title = " > ".join(addresses(chain))
        self._lock = threading.RLock()  # garbage that is found below us may come here again
        self._stale = self._paused = self._closed = False
        self._program, self._digest = 0, ""
        self._versions: Versions = ()
        self._modules = Modules()
        self._storages: tuple[object, ...] = ()
        self._sent: Values = {}
        self._request: tuple[float, Reply] | None = None
        self._reported_s = 0.0
        self._heard = 0, 0  # number of the program, and of its items that failed
        self._rows: list[Row] = []
        self._link = self._linked(serialized)

    # -- the process ----------------------------------------------------------------------
    def _linked(self, serialized: SerializedFunction) -> Link:
        """Start a process, and have the chain built there."""
        link = Link(self._title, memory_bytes=self.limit_bytes)
        self._load(link, serialized)
        if self._paused:
            link.request("pause", True)  # noqa: FBT003
        return link

    def _load(self, link: Link, serialized: SerializedFunction) -> None:
        self._program += 1
        self.sources_read()
        self._digest, self._versions = serialized.digest, serialized.versions
        self._modules = serialized.modules
        self._storages = serialized.storages  # held until they were opened there
        self._sent = values = self._values()
        order = (self._program, serialized.data, values, self._seed, self.limit_bytes)
        self._loading = link.request("load", *order)

    def _values(self) -> Values:
        return {place: knob.value for place, knob in self._knobs.items()}

    def _current(self) -> tuple[Link, int]:
        """Return the process for an epoch, and the number of the program that it is to run."""
        with self._lock:
            old = self._link
            if (old.gone or not are_current(self._versions)) and not self._closed:
                self._report, self._rows = self._blank, []
                self._link = self._linked(pickled(self._chain))
            link, program = self._link, self._program
        if link is not old:
            old.close(0)
        return link, program

    @property
    def _loaded(self) -> bool:
        """Whether there is somebody to ask; items may be here before the answer to `load` is."""
        return self._link.is_open and (self._loading.arrived or self._link.served)

    @property
    def pid(self) -> int:
        """Process id of the stages' process; 0 before it was started."""
        return self._link.pid

    # -- what it is told ------------------------------------------------------------------
    def begin(
        self, external: ExternalOrder | None, node_state: StageStates
    ) -> tuple[int, ExternalOrder | None, StageStates]:
        """Called when an epoch begins: send what a cell has changed, and the order."""
        self._source.node_state = node_state
        self._source.settings = current_settings(self._modules)
        indices = external.indices if isinstance(external, Listed) else None
        ticket = self._source.begin(indices)
        if self._stale:
            self._stale = False
            serialized = pickled(self._chain)
            if serialized.digest != self._digest and not reloaded(
                self._versions, serialized.versions
            ):
                with self._lock:
                    self._load(self._link, serialized)
        return ticket, None, node_state

    def node_state(self, epoch: Epoch, delivered: int) -> StageStates | None:
        """Ask the stages here, then the process for its own."""
        with self.scheduler.lock:
            here = epoch.node_state(IndexRanges(delivered))
        rest = here.pop(HIDDEN)["rest"]
        if IndexRanges.read(rest).is_all:
            return {**self.caches(), **self._source.node_state, **here}
        with contextlib.suppress(NoAnswerError):
            found: StageStates | None = self._link.ask(
                "node_state", epoch.context.epoch, rest, timeout_s=STATE_S
            )
            return None if found is None else {**found, **here}
        return None

    def caches(self) -> StageStates:
        """Ask the process, which keeps them; one that is not there has none."""
        if not self._loaded:
            return {}
        with contextlib.suppress(NoAnswerError):
            found: StageStates = self._link.ask("caches", timeout_s=STATE_S)
            return found
        return {}

    def finish(self, epoch: Epoch) -> None:
        """Called when the loop has had all of an epoch: the process ends it, too."""
        super().finish(epoch)
        self._source.finish()
        self._reported_s = 0.0  # what was told before is not all of the epoch

    def cancel(self, ticket: int, epoch: Epoch) -> None:
        """Called when an epoch is about to end: tell the process how much the loop has had."""
        with self.scheduler.lock:
            here = epoch.node_state(IndexRanges(epoch.at))
        self._source.cancel(ticket, IndexRanges.read(here[HIDDEN]["rest"]).start)
        self._reported_s = 0.0  # as above

    def refresh(self) -> None:
        """Send the values of the knobs that were turned."""
        with self._lock:
            values = self._values()
            changed = {place: new for place, new in values.items() if self._sent[place] != new}
            self._sent = values
            if changed:
                self._link.send("turn", changed)
        super().refresh()

    def pause(self, *, paused: bool) -> None:
        """Start nothing, or go on; wait until it is so."""
        self._paused = paused
        super().pause(paused=paused)
        answer = self._link.request("pause", paused)
        if self._link.is_open:  # calls may be in progress there before it says so
            with contextlib.suppress(NoAnswerError):
                answer.wait(ANSWER_S)

    def hold(self, most_ns: int) -> bool:
        """Let the workers in the process rest; return False where few items are ready there."""
        return bool(self._asked("hold", most_ns))

    def rested_ns(self) -> int | None:
        """Return when the last call there ended: processes of one machine have one clock."""
        found: int | None = self._asked("rested")
        return found

    def release(self) -> None:
        """Let calls begin again."""
        self._link.request("release")

    def _asked(self, what: str, *arguments: Any) -> Any:
        """Ask for something that the loop waits for; None where it takes too long."""
        with contextlib.suppress(NoAnswerError):
            return self._link.ask(what, *arguments, timeout_s=_MOMENT_S) if self._loaded else None

    def renew(self) -> None:
        """Called when functions may have changed: the next epoch begins with what they are then."""
        self._stale = True

    def close(self, timeout_s: float) -> list[str]:
        """End the process; it names itself the stages that are still inside user code."""
        with self._lock:
            self._closed = True
        self._new_report()
        self._link.close(timeout_s)
        self._storages = ()
        return [late for late in super().close(timeout_s) if late != HIDDEN]

    def disown(self) -> None:
        """Forget the process in one that was forked."""
        self._closed = True
        self._link.disown()
        super().disown()

    # -- what it is asked -----------------------------------------------------------------
    def _new_report(self) -> ChildReport:
        """Return what the process says of itself now, or what it last said."""
        if not self._loaded:
            return self._report
        since_s, request = self._pending()
        with contextlib.suppress(NoAnswerError):
            left_s = max(0.0, since_s + ANSWER_S - monotonic())
            found: ChildReport | None = request.wait(left_s)
            if found is not None:
                self._take(found)
        return self._report

    def _take(self, report: ChildReport) -> None:
        """Take over a report, and keep the failed items that it brings, unless another one did."""
        number, failed = report.heard
        with self.scheduler.lock:
            known = self._heard[1] if self._heard[0] == number else 0
            if number >= self._heard[0] and failed > known:
                self._heard = report.heard
                for failure in report.failures[known - failed :]:
                    self._record.remember(failure)
            self._report, self._reported_s = report, monotonic()

    def _remember(self, failure: Failure) -> None:
        """Keep what failed here; what ended the epoch in the process comes with its report."""
        if failure.stage != HIDDEN:
            self._record.remember(failure)

    def _pending(self) -> tuple[float, Reply]:
        """Return a request for a report and its time: a new one, unless one has waited for long."""
        known = self._request
        if known is not None and not known[1].arrived and monotonic() - known[0] > _FRESH_S:
            return known
        request = self._link.request("report", self._heard)
        self._request = pending = monotonic(), request
        return pending

    def _recent_report(self) -> ChildReport:
        fresh = monotonic() - self._reported_s < _FRESH_S
        return self._report if fresh else self._new_report()

    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Return the stats of every stage, as the process says or last said."""
        here = super().stats(now_ns)
        del here[HIDDEN]
        return {**self._new_report().stats, **here}

    def failures(self) -> tuple[Failure, ...]:
        """Return the last failed items."""
        self._new_report()
        return tuple(sorted(super().failures(), key=lambda one: one.when_s))

    def executor(self, address: str) -> Executor | None:
        """Return what serves a stage from outside its run's threads."""
        if address in self._after:
            return super().executor(address)
        return RemoteExecutor(self, address) if address in self._report.workers else None

    def workers(self, address: str) -> Workers:
        """Tell what workers a stage has now."""
        return self._new_report().workers[address] if self._link.is_open else Workers()

    @property
    def cpu_cores(self) -> float | None:
        """Processor time of the stages' process [cores]."""
        return self._recent_report().cpu_cores

    @property
    def idle_cores(self) -> float | None:
        """How many cores had nothing to do over the last seconds, or None [cores]."""
        return self._recent_report().idle_cores

    @property
    def process_bytes(self) -> int:  # type: ignore[override]
        """Resident memory of the stages' process [bytes]."""
        return self._recent_report().process_bytes

    @property
    def skipped(self) -> int:  # type: ignore[override]
        """Items of the epoch that failed in the process and were left out [items]."""
        report = self._recent_report()
        return report.skipped if report.ticket == self._source.ticket else 0

    @property
    def held_bytes(self) -> int | None:
        """Bytes in all buffers of the stages' process [bytes]."""
        return self._recent_report().held_bytes

    def history(self) -> list[Row]:
        """Return the rows of all stages, each time with the rows of this process nearest to it."""
        ours = [row for row in super().history() if row["stage"] != HIDDEN]
        if self._loaded:
            with contextlib.suppress(NoAnswerError):
                self._rows = _shifted(self._link.ask("history") or [], ours)
        return _merged(self._rows, ours)


@final
class RemoteExecutor(Executor):
    """The workers of a stage, seen through the process that they work for."""

    def __init__(self, machine: IsolatedMachine, address: str) -> None:
        self._machine = machine
        self._address = address

    def call(self, job: Request) -> Response:
        """Refuse: the work is given in the other process."""
        raise TypeError("these workers are given their work in another process")

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


def _report_before(chain: Chain, *, seed: int, memory_bytes: int | None) -> ChildReport:
    """Return the report of a pipeline that has done nothing yet.

    Raises:
        CacheError: a cache folder was written by another chain.
    """
    scheduler = Scheduler(chain, seed=seed, memory_bytes=memory_bytes)
    rows = stats(scheduler, perf_counter_ns())
    served = [
        name for name in addresses(chain) if scheduler.fused_stages.executor(name) is not None
    ]
    scheduler.close(0)
    workers = dict.fromkeys(served, Workers())
    return ChildReport(rows, (), (0, 0), None, None, None, workers, 0, 0, 0)


# -- history: that of the process, and the rows of the loop here -----------------------------------
def _shifted(rows: Sequence[Row], ours: Sequence[Row]) -> list[Row]:
    """Return rows with times since the beginning of this run, not of that in the child."""
    if not rows or not ours:
        return list(rows)
    shift_s = _zero_s(rows[0]) - _zero_s(ours[0])
    return [{**row, "time_s": float(row["time_s"]) + shift_s} for row in rows]


def _zero_s(row: Row) -> float:
    return float(row["when_s"]) - float(row["time_s"])


def _merged(rows: Sequence[Row], ours: Sequence[Row]) -> list[Row]:
    """Add to the rows of each time those of ours that are nearest."""
    ticks = [list(tick) for _, tick in groupby(ours, key=lambda row: float(row["time_s"]))]
    times = [float(tick[0]["time_s"]) for tick in ticks]
    found: list[Row] = []
    for time_s, tick in groupby(rows, key=lambda row: float(row["time_s"])):
        found += tick
        place = bisect_left(times, time_s)
        places = range(max(0, place - 1), min(len(times), place + 1))
        near = min(places, key=lambda place: abs(times[place] - time_s), default=None)
        if near is not None and abs(times[near] - time_s) < _NEAR_S:
            found += [{**row, "time_s": time_s} for row in ticks[near]]
    return found
