"""IsolatedEngine: the stages of a run in a process of their own."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import final

from ...base.knobs import Knob
from ...engine.engine import Engine, ProcessNumbers
from ...engine.epoch import Epoch
from ...engine.local_engine import LocalEngine
from ...engine.measures.lock_waits import LockedCalls
from ...engine.measures.record import RunRecord
from ...engine.measures.stats import Row, StageStats
from ...engine.measures.trace import TracedCalls, TraceEvents
from ...engine.nodes.external import ExternalOrder, Listed
from ...engine.nodes.failures import Failure
from ...engine.nodes.provenance import StageStates
from ...executors.interface import Served
from ...executors.stack import Place
from ...ops.ranges import IndexRanges
from ...ops.source import Source
from ...ops.stage import CONSUMER, Chain, Stage, addresses
from .link import STATE_S, Link, NoAnswerError
from .remote_source import MOST, RemoteSource
from .reports import Reports, Workers, report_before
from .sent_stages import SentStages

HIDDEN = "isolated"  # name of the source in this process; users never see it
_NEAR_S = 2.0  # rows of the loop and of the stages belong together if this near [s]
_MOMENT_S = 0.05  # the loop waits at most this long for an answer about a rest [s]
_PLACE_S = 1.0  # a worker there may have to be asked for its line of code


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

    Attributes:
        stages: those in the other process, and that process.

    Raises:
        ArgumentError: a stage has an executor that cannot be used there.
        UnpicklableError: part of a stage cannot be sent.
        CacheError: another chain wrote a cache folder.
    """

    def __init__(
        self, chain: Chain, record: RunRecord, *, seed: int, memory_bytes: int | None
    ) -> None:
        count = sum(stage.executor != "device" for stage in chain)
        there, after = chain[:count], chain[count:]  # a batch stays on its device
        self.isolated_stages = tuple(addresses(there))
        self._after = frozenset(addresses(after))
        ready = Knob(f"{HIDDEN}.prefetch", 0, minimum=0, maximum=MOST - 1, unit="items")
        self._source = RemoteSource(self._revived, record.consumer, ready, self._settle)
        source = Stage(Source(self._source), name=HIDDEN, shared={"prefetch": ready})
        self._here = here = LocalEngine((source, *after), record, seed=seed, memory_bytes=None)
        self.epochs, self.scheduler = here.epochs, here.scheduler
        here.epochs.remember = lambda failure: (  # failures there come with reports
            None if failure.stage == HIDDEN else record.remember(failure)
        )
        ready.watch(lambda _: here.refresh())
        self.limit_bytes = memory_bytes
        self.sources_read: Callable[[], object] = lambda: None
        blank = report_before(there, seed=seed, memory_bytes=memory_bytes)
        self._rows: list[Row] = []
        self._trace: TraceEvents | None = None
        self._traced: list[TracedCalls] = []
        self.stages = SentStages(
            there,
            " > ".join(addresses(chain)),
            seed=seed,
            memory_bytes=memory_bytes,
            sent=lambda: self.sources_read(),  # noqa: PLW0108  it is set later
        )
        self._reports = Reports(self.stages, blank, record, self.scheduler.lock)
        self.rest = _RemoteRest(self.stages)

    @property
    def pid(self) -> int:
        """Process id of the stages' process; 0 before it was started."""
        return self.stages.link.pid

    # -- an epoch, from start to end ----------------------------------------------------------
    def begin(
        self, external: ExternalOrder | None, node_state: StageStates
    ) -> tuple[int, ExternalOrder | None, StageStates]:
        """Prepare an epoch: send changed functions, settings and the order."""
        self._source.now.give_up()
        settings = self.stages.renew()
        indices = external.indices if isinstance(external, Listed) else None
        return self._source.begin(indices, node_state, settings), None, node_state

    def _revived(self) -> tuple[Link, int]:
        """Return the process for the epoch that begins, and the number of its program."""
        if self.stages.revive():
            self._reports.forget()
            self._rows = []
        return self.stages.link, self.stages.program

    def _settle(self) -> None:
        self._reports.new()

    def node_state(self, epoch: Epoch, delivered: int) -> StageStates | None:
        """Return the states of the stages here and in the process."""
        with self.scheduler.lock:
            here = epoch.node_state(IndexRanges(delivered))
        rest = here.pop(HIDDEN)["rest"]
        if IndexRanges.read(rest).is_all:
            return {**self.caches(), **self._source.now.node_state, **here}
        with contextlib.suppress(NoAnswerError):
            found: StageStates | None = self.stages.link.ask(
                "node_state", epoch.context.epoch, rest, timeout_s=STATE_S
            )
            return None if found is None else {**found, **here}
        return None

    def caches(self) -> StageStates:
        """Return what the process says of its caches; without a process there are none."""
        return self.stages.ask("caches", STATE_S) or {}

    def finish(self, epoch: Epoch) -> None:
        """Finish an epoch here and in the process.

        Raises:
            CacheError: a cache cannot be written.
        """
        self._here.finish(epoch)
        self._source.now.finish()

    def cancel(self, ticket: int, epoch: Epoch) -> None:
        """Send to the process how many items the loop has taken."""
        with self.scheduler.lock:
            here = epoch.node_state(IndexRanges(epoch.delivered))
        if self._source.now.ticket == ticket:
            self._source.now.end(IndexRanges.read(here[HIDDEN]["rest"]).start)

    # -- control ------------------------------------------------------------------------------
    def refresh(self) -> None:
        """Send the values of the knobs."""
        self.stages.turn()
        self._here.refresh()

    def limit_memory(self, limit_bytes: int) -> None:
        """Send the budget for all buffers."""
        self.limit_bytes = limit_bytes
        self.stages.limit_memory(limit_bytes)

    def pause(self, *, paused: bool) -> None:
        """Start no further call, or start them again; wait for the answer."""
        self._here.pause(paused=paused)
        self.stages.pause(paused=paused)

    def renew(self) -> None:
        """Send functions again at the next epoch: a cell may have changed them."""
        self.stages.stale = True

    def close(self, timeout_s: float) -> list[str]:
        """End the process, which itself names its stages that are still in user code."""
        self._reports.new()
        self._fetch_trace()
        self.stages.close(timeout_s)
        return [late for late in self._here.close(timeout_s) if late != HIDDEN]

    def disown(self) -> None:
        """Drop the process in a fork of this one."""
        self.stages.disown()
        self._here.disown()

    # -- measurements -------------------------------------------------------------------------
    def stats(self, now_ns: int) -> dict[str, StageStats]:
        """Return the stats of every stage, from a new report or the last one."""
        here = self._here.stats(now_ns)
        del here[HIDDEN]
        return {**self._reports.new().stats, **here}

    def failures(self) -> tuple[Failure, ...]:
        """Return the last failed items, oldest first."""
        self._reports.new()
        return tuple(sorted(self._here.failures(), key=lambda one: one.when_s))

    def workers(self, address: str) -> Callable[[], Served] | None:
        """Return what tells of the workers of a stage; None if threads do the work."""
        if address in self._after:
            return self._here.workers(address)
        if address not in self._reports.last.workers:
            return None
        return lambda: (
            self._reports.new().workers[address] if self.stages.link.is_open else Workers()
        )

    def place(self, address: str) -> Place | None:
        """Return where in user code the oldest call of a stage is, here or in the process."""
        if address in self._after:
            return self._here.place(address)
        found: Place | None = self.stages.ask("place", _PLACE_S, address)
        return found

    def lock_wait(self, address: str) -> LockedCalls | None:
        """Return how much the calls of a stage there wait for a lock."""
        if address in self._after:
            return None
        found: LockedCalls | None = self.stages.ask("lock_wait", _PLACE_S, address)
        return found

    # -- a trace ------------------------------------------------------------------------------
    def begin_trace(self, trace: TraceEvents) -> None:
        """Give a trace the calls here and the waits of the loop; the process keeps its calls."""
        self._trace, self._traced = trace, []
        self._here.begin_trace(trace)
        self.stages.begin_trace(trace.most)

    def end_trace(self) -> list[TracedCalls]:
        """End it here and there; return the calls of the process."""
        self._fetch_trace()
        return self._traced

    def _fetch_trace(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            self._here.end_trace()
            trace.leave_out(HIDDEN)
            found: TracedCalls | None = self.stages.end_trace(STATE_S)
            self._traced = [] if found is None else [found]

    def numbers(self) -> ProcessNumbers:
        """Return the numbers of the stages' process."""
        report = self._reports.new()
        own = report.ticket == self._source.now.ticket
        return report.numbers if own else report.numbers._replace(skipped=0)

    def history(self) -> list[Row]:
        """Return the rows of all stages, each time with the nearest rows of this process."""
        ours = [row for row in self._here.history() if row["stage"] != HIDDEN]
        found: list[Row] | None = self.stages.ask("history")
        if found is not None:
            self._rows = _shifted([row for row in found if row["stage"] != CONSUMER], ours)
        return _merged(self._rows, ours)


@final
class _RemoteRest:
    """Lets the workers of the process stand still for a moment.

    Args:
        stages: those in the process.
    """

    def __init__(self, stages: SentStages) -> None:
        self._stages = stages

    def hold(self, most_ns: int) -> bool:
        """Start no call there for `most_ns` at most; return False if too few items are ready."""
        return bool(self._stages.ask("hold", _MOMENT_S, most_ns))

    def rested_ns(self) -> int | None:
        """Return when its last call ended: processes of one machine share a clock."""
        found: int | None = self._stages.ask("rested", _MOMENT_S)
        return found

    def release(self) -> None:
        """End the rest that `hold` started."""
        self._stages.link.request("release")


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
