"""IsolatedEngine: the stages of a run in a process of their own."""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby
from time import monotonic, perf_counter_ns
from typing import Any, final

from ...base.knobs import Knob
from ...engine.engine import Engine
from ...engine.epoch import Epoch
from ...engine.epoch_runner import EpochRunner
from ...engine.local_engine import LocalEngine
from ...engine.nodes.external import ExternalOrder, Listed
from ...engine.nodes.failures import Failure
from ...engine.nodes.provenance import StageStates
from ...engine.record import RunRecord
from ...engine.stats import Row, StageStats
from ...executors.interface import Executor, Request, Response
from ...executors.workers.reloads import Versions, are_current, reloaded
from ...executors.workers.serialize import SerializedFunction
from ...executors.workers.settings import Modules, current_settings
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
from .remote_source import MOST, RemoteSource

HIDDEN = "isolated"  # name of the source in this process; users never see it
_NEAR_S = 2.0  # rows of the loop and of the stages belong together if this near [s]
_MOMENT_S = 0.05  # the loop waits at most this long for an answer about a rest [s]
_FRESH_S = 0.5  # a report that is younger is used again [s]


@final
class IsolatedEngine(Engine):
    """The stages of a run in a process of their own, from the start of the run to its end.

    A `LocalEngine` in this process runs the device stages, and one hidden source that draws from
    the other process. That process is replaced at the start of an epoch if it died, or if a module
    that it imported was reloaded.

    Args:
        chain: the stages.
        record: keeps the row of the loop and knob changes.
        seed: seed of the run.
        memory_bytes: budget for all buffers, or None [bytes].

    Raises:
        ArgumentError: a stage has an executor that cannot be used there.
        UnpicklableError: part of a stage cannot be sent.
    """

    def __init__(
        self, chain: Chain, record: RunRecord, *, seed: int, memory_bytes: int | None
    ) -> None:
        self._seed = seed
        count = sum(stage.executor != "device" for stage in chain)
        after = chain[count:]  # they run here: a batch stays on its device
        self._after = frozenset(addresses(after))
        serialized = pickled(chain[:count])
        ready = Knob(f"{HIDDEN}.prefetch", 0, minimum=0, maximum=MOST - 1, unit="items")
        self._source = RemoteSource(self._current, record.consumer, ready, self._new_report)
        source = Stage(Source(self._source), name=HIDDEN, shared={"prefetch": ready})
        self._here = here = LocalEngine((source, *after), record, seed=seed, memory_bytes=None)
        self.epochs, self.scheduler = here.epochs, here.scheduler
        ready.watch(lambda _: here.refresh())
        here.epochs.remember = self._remember
        self.limit_bytes = memory_bytes
        self.sources_read: Callable[[], object] = lambda: None
        self._record = record
        self._chain = chain[:count]
        self._isolated = tuple(addresses(self._chain))
        self._knobs = {
            (address, name): knob
            for address, stage in addresses(self._chain).items()
            for name, knob in stage.knobs.items()
        }
        self._blank = _report_before(self._chain, seed=seed, memory_bytes=memory_bytes)
        self._report = self._blank
        self._title = " > ".join(addresses(chain))
        self._lock = threading.RLock()  # garbage collection may call us while we hold it
        self._stale = self._paused = self._closed = False
        self._program, self._digest = 0, ""
        self._versions: Versions = ()
        self._modules = Modules()
        self._storages: tuple[object, ...] = ()
        self._sent: Values = {}
        self._request: tuple[float, Reply] | None = None
        self._reported_s = 0.0
        self._heard = 0, 0  # number of the program, and of its failed items that were reported
        self._rows: list[Row] = []
        self._link = self._linked(serialized)

    # -- the process ----------------------------------------------------------------------
    def _linked(self, serialized: SerializedFunction) -> Link:
        """Start a process and build the chain in it."""
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
        self._storages = serialized.storages  # held until the process has opened them
        self._sent = values = self._values()
        order = (self._program, serialized.data, values, self._seed, self.limit_bytes)
        self._loading = link.request("load", *order)

    def _values(self) -> Values:
        return {place: knob.value for place, knob in self._knobs.items()}

    def _current(self) -> tuple[Link, int]:
        """Return the process for the next epoch, and the number of the program that it runs."""
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
        """Whether the process answers; items may arrive before the answer to `load`."""
        return self._link.is_open and (self._loading.arrived or self._link.served)

    @property
    def pid(self) -> int:
        """Process id of the stages' process; 0 before it was started."""
        return self._link.pid

    # -- an epoch, from start to end ----------------------------------------------------------
    def begin(
        self, external: ExternalOrder | None, node_state: StageStates
    ) -> tuple[int, ExternalOrder | None, StageStates]:
        """Prepare an epoch: send changed functions, settings and the order."""
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
        """Return the states of the stages here and in the process."""
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
        """Return what the process says of its caches; without a process there are none."""
        if not self._loaded:
            return {}
        with contextlib.suppress(NoAnswerError):
            found: StageStates = self._link.ask("caches", timeout_s=STATE_S)
            return found
        return {}

    def finish(self, epoch: Epoch) -> None:
        """Finish an epoch here and in the process.

        Raises:
            CacheError: a cache cannot be written.
        """
        self._here.finish(epoch)
        self._source.finish()
        self._reported_s = 0.0  # the last report was of an earlier moment

    def cancel(self, ticket: int, epoch: Epoch) -> None:
        """Send to the process how many items the loop has taken."""
        with self.scheduler.lock:
            here = epoch.node_state(IndexRanges(epoch.delivered))
        self._source.cancel(ticket, IndexRanges.read(here[HIDDEN]["rest"]).start)
        self._reported_s = 0.0  # as in `finish`

    # -- control ------------------------------------------------------------------------------
    def refresh(self) -> None:
        """Send the changed values of the knobs."""
        with self._lock:
            values = self._values()
            changed = {place: new for place, new in values.items() if self._sent[place] != new}
            self._sent = values
            if changed:
                self._link.send("turn", changed)
        self._here.refresh()

    def pause(self, *, paused: bool) -> None:
        """Start no further call, or start them again; wait for the answer."""
        self._paused = paused
        self._here.pause(paused=paused)
        answer = self._link.request("pause", paused)
        if self._link.is_open:  # before it answers, calls may still start
            with contextlib.suppress(NoAnswerError):
                answer.wait(ANSWER_S)

    def hold(self, most_ns: int) -> bool:
        """Start no call there for `most_ns` at most; return False if too few items are ready."""
        return bool(self._asked("hold", most_ns))

    def rested_ns(self) -> int | None:
        """Return when its last call ended: processes of one machine share a clock."""
        found: int | None = self._asked("rested")
        return found

    def release(self) -> None:
        """End the rest that `hold` started."""
        self._link.request("release")

    def _asked(self, what: str, *arguments: Any) -> Any:
        """Ask something that the loop waits for; None if the answer takes too long."""
        with contextlib.suppress(NoAnswerError):
            return self._link.ask(what, *arguments, timeout_s=_MOMENT_S) if self._loaded else None

    def renew(self) -> None:
        """Send functions again at the next epoch: a cell may have changed them."""
        self._stale = True

    def close(self, timeout_s: float) -> list[str]:
        """End the process, which itself names its stages that are still in user code."""
        with self._lock:
            self._closed = True
        self._new_report()
        self._link.close(timeout_s)
        self._storages = ()
        return [late for late in self._here.close(timeout_s) if late != HIDDEN]

    def disown(self) -> None:
        """Drop the process in a fork of this one."""
        self._closed = True
        self._link.disown()
        self._here.disown()

    # -- measurements -------------------------------------------------------------------------
    def _new_report(self) -> ChildReport:
        """Return a new report of the process; the last one if it does not answer."""
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
        """Keep a report and its failed items, unless another report brought them."""
        number, failed = report.heard
        with self.scheduler.lock:
            known = self._heard[1] if self._heard[0] == number else 0
            if number >= self._heard[0] and failed > known:
                self._heard = report.heard
                for failure in report.failures[known - failed :]:
                    self._record.remember(failure)
            self._report, self._reported_s = report, monotonic()

    def _remember(self, failure: Failure) -> None:
        """Keep an item that failed here; failures in the process come with its reports."""
        if failure.stage != HIDDEN:
            self._record.remember(failure)

    def _pending(self) -> tuple[float, Reply]:
        """Return a request for a report and its time; an old request is used again."""
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
        """Return the stats of every stage, from a new report or the last one."""
        here = self._here.stats(now_ns)
        del here[HIDDEN]
        return {**self._new_report().stats, **here}

    def failures(self) -> tuple[Failure, ...]:
        """Return the last failed items, oldest first."""
        self._new_report()
        return tuple(sorted(self._here.failures(), key=lambda one: one.when_s))

    def executor(self, address: str) -> Executor | None:
        """Return the executor of a stage; None if threads do the work."""
        if address in self._after:
            return self._here.executor(address)
        return RemoteExecutor(self, address) if address in self._report.workers else None

    def workers(self, address: str) -> Workers:
        """Return the workers of a stage."""
        return self._new_report().workers[address] if self._link.is_open else Workers()

    @property
    def cpu_cores(self) -> float | None:
        """Processor time of the stages' process over the last seconds [cores]."""
        return self._recent_report().cpu_cores

    @property
    def idle_cores(self) -> float | None:
        """Idle cores over the last seconds [cores]; None if the system does not report them."""
        return self._recent_report().idle_cores

    @property
    def isolated_stages(self) -> tuple[str, ...]:
        """Addresses of the stages that run in the process."""
        return self._isolated

    def reads_ahead_of(self, number: int) -> bool:
        """Return False: an isolated run does not read ahead."""
        return False

    @property
    def process_bytes(self) -> int:
        """Resident memory of the stages' process [bytes]."""
        return self._recent_report().process_bytes

    @property
    def skipped(self) -> int:
        """Items of the epoch that failed in the process and were left out [items]."""
        report = self._recent_report()
        return report.skipped if report.ticket == self._source.ticket else 0

    @property
    def held_bytes(self) -> int | None:
        """Bytes in all buffers of the stages' process [bytes]."""
        return self._recent_report().held_bytes

    def history(self) -> list[Row]:
        """Return the rows of all stages, each time with the nearest rows of this process."""
        ours = [row for row in self._here.history() if row["stage"] != HIDDEN]
        if self._loaded:
            with contextlib.suppress(NoAnswerError):
                self._rows = _shifted(self._link.ask("history") or [], ours)
        return _merged(self._rows, ours)


@final
class RemoteExecutor(Executor):
    """The workers of a stage, as the process reports them."""

    def __init__(self, engine: IsolatedEngine, address: str) -> None:
        self._engine = engine
        self._address = address

    def call(self, job: Request) -> Response:
        """Refuse: the other process gives them their work."""
        raise TypeError("another process gives these workers their work")

    @property
    def link(self) -> str | None:  # type: ignore[override]
        """Address of a page that shows the workers."""
        return self._engine.workers(self._address).link

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers on this machine."""
        return self._engine.workers(self._address).pids

    @property
    def workers(self) -> int:
        """Workers there are."""
        return self._engine.workers(self._address).count

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the workers [bytes]."""
        return self._engine.workers(self._address).memory_bytes

    def close(self, timeout_s: float) -> list[str]:
        """End nothing: the workers end with their process."""
        return []


def _report_before(chain: Chain, *, seed: int, memory_bytes: int | None) -> ChildReport:
    """Return the report of a pipeline that has not begun.

    Raises:
        CacheError: another chain wrote a cache folder.
    """
    epochs = EpochRunner(chain, seed=seed, memory_bytes=memory_bytes)
    rows = epochs.rows.stats(perf_counter_ns())
    served = [name for name in addresses(chain) if epochs.fused_stages.executor(name) is not None]
    epochs.close(0)
    workers = dict.fromkeys(served, Workers())
    return ChildReport(rows, (), (0, 0), None, None, None, workers, 0, 0, 0)


# -- History: the rows of the process with those of the loop ---------------------------------------
def _shifted(rows: Sequence[Row], ours: Sequence[Row]) -> list[Row]:
    """Return rows with times since the start of this run, not of the child's run."""
    if not rows or not ours:
        return list(rows)
    shift_s = _zero_s(rows[0]) - _zero_s(ours[0])
    return [{**row, "time_s": float(row["time_s"]) + shift_s} for row in rows]


def _zero_s(row: Row) -> float:
    return float(row["when_s"]) - float(row["time_s"])


def _merged(rows: Sequence[Row], ours: Sequence[Row]) -> list[Row]:
    """Add to the rows of each time our rows that are nearest."""
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
