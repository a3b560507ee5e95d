"""Reports: what the process of an isolated run says of its stages."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from time import monotonic, perf_counter_ns
from typing import final

import psutil

from ...engine.engine import ProcessNumbers
from ...engine.epoch_runner import EpochRunner
from ...engine.measures.record import RunRecord
from ...engine.measures.stats import StageStats
from ...engine.nodes.failures import Failure
from ...executors.interface import Served
from ...ops.stage import CONSUMER, Chain, addresses
from ..run import Run
from .link import Link, NoAnswerError, Reply
from .sent_stages import SentStages

_OLD_S = 0.5  # a request that waits so long for its answer serves the next caller as well [s]


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a stage, as an executor tells of them."""

    workers: int = 0
    pids: tuple[int, ...] = ()
    link: str | None = None
    memory_bytes: int = 0

    @classmethod
    def of(cls, one: Served) -> Workers:
        """Return what holds now."""
        return cls(one.workers, one.pids, one.link, one.memory_bytes)


@dataclass(frozen=True, slots=True)
class ChildReport:
    """A report of the process at one moment.

    Attributes:
        stats: stats of the stages, by address.
        workers: the workers of each stage that has some, by address.
        numbers: of the process as a whole.
        ticket: ticket of its epoch; 0 before the first.
        failures: failed items that were not reported before.
        heard: number of the program, and of its failed items reported so far.
    """

    stats: dict[str, StageStats]
    workers: dict[str, Workers]
    numbers: ProcessNumbers
    ticket: int = 0
    failures: tuple[Failure, ...] = ()
    heard: tuple[int, int] = (0, 0)


def report_before(chain: Chain, *, seed: int, memory_bytes: int | None) -> ChildReport:
    """Return the report of a pipeline that has not begun.

    Raises:
        CacheError: another chain wrote a cache folder.
    """
    epochs = EpochRunner(chain, seed=seed, memory_bytes=memory_bytes)
    rows = epochs.rows.stats(perf_counter_ns())
    served = [name for name in addresses(chain) if epochs.fused_stages.executor(name) is not None]
    epochs.close(0)
    return ChildReport(rows, dict.fromkeys(served, Workers()), ProcessNumbers())


def report_of(run: Run, ticket: int, heard: tuple[int, int]) -> ChildReport:
    """Return a report of the run in this process.

    Args:
        run: the run.
        ticket: of its epoch; read before the rest: an epoch that begins now has skipped nothing.
        heard: number of the program, and of its failed items that are known already.
    """
    program, known = heard
    failures, failed = run._core.failures_since(known)
    rows = dict(run.stats())
    del rows[CONSUMER]
    engine = run._core.engine
    told = {address: engine.workers(address) for address in run.stages}
    workers = {address: Workers.of(tell()) for address, tell in told.items() if tell is not None}
    numbers = engine.numbers()._replace(
        process_bytes=psutil.Process().memory_info().rss, skipped=run.status().skipped
    )
    return ChildReport(rows, workers, numbers, ticket, failures, (program, failed))


@final
class Reports:
    """Asks the process for reports, and keeps the last one.

    Args:
        stages: those in the process.
        blank: the report of a pipeline that has not begun.
        record: keeps the failed items.
        lock: the record's.

    Attributes:
        last: the last report.
    """

    def __init__(
        self,
        stages: SentStages,
        blank: ChildReport,
        record: RunRecord,
        lock: AbstractContextManager[object],
    ) -> None:
        self.last = self._blank = blank
        self._stages = stages
        self._record = record
        self._lock = lock
        self._request: tuple[float, Reply] | None = None

    def forget(self) -> None:
        """Begin again: another process takes the place of the one that reported."""
        with self._lock:
            self.last = replace(self._blank, heard=self.last.heard)

    def new(self) -> ChildReport:
        """Return a new report; the last one if the process does not answer."""
        link = self._stages.link
        if link.is_loaded:
            since_s, reply = self._pending(link)
            with contextlib.suppress(NoAnswerError):
                report = reply.wait(max(0.0, since_s + link.answer_s - monotonic()))
                if report is not None:
                    self._take(report)
        return self.last

    def _pending(self, link: Link) -> tuple[float, Reply]:
        """Return a request for a report and its time; an old request is used again."""
        known = self._request
        if known is not None and not known[1].arrived and monotonic() - known[0] > _OLD_S:
            return known
        self._request = pending = monotonic(), link.request("report", self.last.heard)
        return pending

    def _take(self, report: ChildReport) -> None:
        """Keep a report and its failed items, unless a later one was quicker."""
        with self._lock:
            program, failed = report.heard
            known = self.last.heard[1] if self.last.heard[0] == program else 0
            if report.heard >= self.last.heard:
                for failure in report.failures[known - failed :] if failed > known else ():
                    self._record.remember(failure)
                self.last = report
