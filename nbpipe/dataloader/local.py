"""An epoch without workers: the training loop makes each batch itself, when it asks for it."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter_ns, sleep, time
from typing import Any, final

from ..engine.lifecycle import CANCELLED, FAILED, FINISHED, STOPPED
from ..engine.measures.counters import BLOCKED, SAMPLE_NS, StageRuntime
from ..engine.measures.record import RunRecord
from ..engine.measures.stats import Row, StageStats, Status
from ..engine.measures.trace import TracedCalls, TraceEvents
from ..engine.nodes.failures import Failure, formatted, one_line
from ..executors.stack import Place, place_in_thread
from ..ops.chain import known_length
from ..ops.stage import CONSUMER, Chain, Stage, addresses
from ..run.iterator import ATTEND_S
from ..run.pace import exchange_of
from .chain import FETCH
from .samplers import END


@final
class LoopCounts:
    """Counts the batches that a loop makes itself, and the time that it spends on them.

    Args:
        stages: of its chain, by address.
        before: batches of the epoch that the loop has had already.

    Attributes:
        before: batches of the epoch that the loop has had already.
        record: the history and failures, and how long the loop waited.
        lock: held while counts change or are read.
        over: the epoch is over: the stats are those of its end.
    """

    def __init__(self, stages: Mapping[str, Stage], before: int) -> None:
        self.before = before
        self.record = RunRecord()
        self.lock = threading.RLock()
        self.over = False
        self._begun_ns = self._changed_ns = now_ns = perf_counter_ns()
        self._sample_ns = now_ns + SAMPLE_NS
        self._runtimes = {
            address: StageRuntime(address, stage, prefetch=0, now_ns=now_ns)
            for address, stage in stages.items()
        }
        for one in self._runtimes.values():
            one.state, one.counters.first_ns = BLOCKED, now_ns
        self._made_in = self._runtimes[FETCH]
        self.record.begin(now_ns)

    @property
    def delivered(self) -> int:
        """Batches of the epoch that the loop has had."""
        return self.before + self.record.consumer.counted

    def begin_batch(self) -> None:
        """Count the time from here on as that of a batch."""
        consumer = self.record.consumer
        consumer.waits_since_ns = consumer.active_ns(perf_counter_ns())

    def end_batch(self) -> None:
        """Count a batch, and the time from here on as that of the loop's own work."""
        with self.lock:
            spent_ns = self._leave()
            self._made_in.count(self._changed_ns, 1, spent_ns)
            self.record.consumer.counted += 1
            if self._changed_ns >= self._sample_ns:
                self._sample(last=False)

    def _leave(self) -> int:
        """End the time of a batch; return how long it was [ns]."""
        self._changed_ns = now_ns = perf_counter_ns()
        consumer, spent_ns = self.record.consumer, self._spent_ns(now_ns)
        consumer.waits_since_ns = 0
        consumer.waited_ns += spent_ns
        if spent_ns and consumer.trace is not None:
            consumer.trace.add_wait(now_ns - spent_ns, now_ns)
        return spent_ns

    def _spent_ns(self, now_ns: int) -> int:
        """Return the time spent on the batch in progress, or 0 [ns]."""
        since_ns = self.record.consumer.waits_since_ns
        return max(0, self.record.consumer.active_ns(now_ns) - since_ns) if since_ns else 0

    def end(self, stage: str, error: BaseException | None) -> None:
        """End the epoch, with the error that a stage raised or None."""
        with self.lock:
            if isinstance(error, Exception):
                self._runtimes[stage].counters.errors += 1
                told = one_line(error), formatted(error), ""
                self.record.remember(Failure(stage, self.delivered, 0, *told, 1, time()))
            self._leave()
            self._sample(last=True)
            self.record.end(self._changed_ns)
            self.over = True

    def _sample(self, *, last: bool) -> None:
        now_ns = self._changed_ns
        self._sample_ns = self.record.sample(now_ns, 0, self._settled(now_ns), last=last)

    def _settled(self, now_ns: int) -> list[tuple[StageRuntime, int, int]]:
        """Bring the counters up to date; return each stage with the time in its running call."""
        spent_ns, made_in = self._spent_ns(now_ns), self._made_in.counters
        for one in self._runtimes.values():
            one.account(now_ns)
            one.counters.items_in = one.counters.items_out = self.record.consumer.counted
        made_in.blocked_ns = max(0, made_in.slot_ns - made_in.busy_ns - spent_ns)
        runtimes = self._runtimes.values()
        return [(one, 0, spent_ns if one is self._made_in else 0) for one in runtimes]

    def pause(self, *, paused: bool) -> None:
        """Stop the clock of the loop, or let it continue; rates are those since then."""
        with self.lock:
            now_ns = perf_counter_ns()
            if self.record.consumer.pause(now_ns, paused=paused):
                runtimes = self._settled(now_ns)
                for one, *_ in runtimes:
                    one.counters.begin_window(now_ns, 0)
                if not paused:
                    self.record.resume(now_ns, runtimes)

    @property
    def _now_ns(self) -> int:
        return self._changed_ns if self.over else perf_counter_ns()

    def stats(self) -> dict[str, StageStats]:
        """Return the stats of the stages by address, and of the loop."""
        with self.lock:
            now_ns, consumer = self._now_ns, self.record.consumer
            runtimes = self._settled(now_ns)
            rows = {one.address: one.stats(now_ns, 0, spent_ns) for one, _, spent_ns in runtimes}
            runs, oldest_s = consumer.waits_since_ns > 0, self._spent_ns(now_ns) / 1e9
            rows[FETCH] = replace(rows[FETCH], running=int(runs), oldest_s=oldest_s)
            return {**consumer.with_means(rows, now_ns), CONSUMER: consumer.stats(now_ns)}

    def pace(self) -> tuple[float, float] | None:
        """Return the share of the time that the loop makes batches, and its batches a second."""
        row = None if self.over else self.stats()[CONSUMER]
        return (row.starved, row.items_per_s) if row is not None and row.items_per_s else None

    def times(self) -> dict[str, Any]:
        """Return the times of the epoch and the use of the cores, as fields of a status."""
        consumer, now_ns = self.record.consumer, self._now_ns
        active_ns = consumer.active_ns(now_ns)
        return {
            "elapsed_s": (active_ns - self._begun_ns) / 1e9,
            "waited_s": (consumer.waited_ns + self._spent_ns(now_ns)) / 1e9,
            "since_pause_s": consumer.since_pause_s(self._begun_ns, active_ns),
            "cpu_cores": self.record.cpu_cores,
            "idle_cores": self.record.idle_cores,
        }


@final
class LocalRun(Iterator[Any]):
    """One epoch whose batches the training loop makes itself; it is asked what a `Run` is.

    Args:
        items: gives indices or samples, from the first batch of the epoch on.
        chain: the stages; those after the source make the batches.
        before: batches of the epoch that the loop has had already.
        between: called before each batch, and again and again in a pause, or None.

    Attributes:
        between: called before each batch, and again and again in a pause, or None.
        stages: by address.
        epoch: 0: there is one.
        outcome: how it ended; CANCELLED until then.
        closed: it has ended.
        paused: no further batch is made.
    """

    epoch = 0

    def __init__(
        self,
        items: Iterator[Any],
        chain: Chain,
        *,
        before: int,
        between: Callable[[], object] | None,
    ) -> None:
        self.stages = addresses(chain)
        self.outcome = CANCELLED
        self.closed = self.paused = self._stopping = False
        self._total = known_length(chain)
        self.between = between
        self._error = ""
        self._stage = next(iter(self.stages))  # that is at work
        self._thread = threading.current_thread()
        self._counts = counts = LoopCounts(self.stages, before)
        self._paces = exchange_of(chain, counts.pace)
        if self._paces is not None:
            weakref.finalize(self, self._paces.leave)
        self._batches = self._loop(itertools.islice(items, before, None))

    def __next__(self) -> Any:
        """Make the next batch, after a pause if there is one.

        Raises:
            BaseException: what the source or a stage raised; the epoch is over.
        """
        self._thread = threading.current_thread()
        return next(self._batches)

    def _loop(self, items: Iterator[Any]) -> Iterator[Any]:
        source, *others = self.stages
        try:
            while self._continues():
                self._counts.begin_batch()
                self._stage = source
                batch = next(items, END)
                if batch is END:
                    self._end(FINISHED)
                    break
                for self._stage in others:
                    batch = self.stages[self._stage].fn(batch)
                self._counts.end_batch()
                if self.closed:  # by another thread: this one closes the sampler
                    items = iter(())
                yield batch
                batch = None
        except BaseException as error:
            if not isinstance(error, GeneratorExit):  # it may come while this thread has the lock
                self._end(FAILED, error)
            raise

    def _continues(self) -> bool:
        """Wait while it is paused; return whether to make another batch."""
        if self.between is not None:
            self.between()
        while self.paused and not self.closed:
            sleep(ATTEND_S)
            if self.between is not None:
                self.between()
        if self._stopping:
            self._end(STOPPED)
        return not self.closed

    def _end(self, outcome: str, error: BaseException | None = None) -> None:
        if not self.closed:
            self.closed = True
            self.outcome, self._error = outcome, "" if error is None else one_line(error)
            self._counts.end(self._stage, error)
            self._leave()

    def _leave(self) -> None:
        if self._paces is not None:
            self._paces.close()

    # -- control, from any thread ---------------------------------------------------------
    def pause(self) -> None:
        """Make no further batch until `resume()`."""
        self.paused = True
        self._counts.pause(paused=True)

    def resume(self) -> None:
        """Continue after `pause()`."""
        self.paused = False
        self._counts.pause(paused=False)

    def stop(self) -> None:
        """End the epoch as if it were exhausted, before its next batch."""
        self._stopping = True
        self.resume()

    def close(self, timeout_s: float = 0) -> None:
        """End the epoch, also in a pause, without waiting for anything.

        A sampler belongs to the thread that iterates. Another thread leaves it open, and the
        iterating thread closes it when it asks for the next batch, unless that thread has ended.
        """
        self._end(CANCELLED)
        if self._thread is threading.current_thread() or not self._thread.is_alive():
            self.forget()

    def forget(self) -> None:
        """Close the sampler; take no lock: this thread may collect garbage while it holds one."""
        self.closed = self._counts.over = True
        self._batches = iter(())

    def begin_trace(self, trace: TraceEvents) -> None:
        """Give a trace the time in which the loop makes batches, as waits."""
        self._counts.record.consumer.trace = trace

    def end_trace(self) -> list[TracedCalls]:
        """Give it no more; no other process makes batches."""
        self._counts.record.consumer.trace = None
        return []

    # -- what it shows --------------------------------------------------------------------
    def status(self) -> Status:
        """Return the state of the epoch, its batches, its times, and why it failed."""
        status = Status(
            state="paused" if self.paused else "running",
            epoch=self.epoch,
            delivered=self._counts.delivered,
            total=self._total,
            error=self._error,
            outcome=self.outcome,
            resumed=self._counts.before,
            by_loop=True,
            **self._counts.times(),
        )
        return status if self._paces is None else self._paces.added_to(status)

    def stats(self) -> dict[str, StageStats]:
        """Return the stats of the stages by address, and of the loop."""
        return self._counts.stats()

    def place(self) -> Place | None:
        """Return where in user code the thread is that iterates; None if that is not known."""
        return place_in_thread(self._thread.ident)

    def history(self) -> list[Row]:
        """Return one row for each second and stage."""
        return self._counts.record.history(self._counts.lock)

    def failures(self) -> tuple[Failure, ...]:
        """Return the batch that could not be made, if there is one."""
        return tuple(self._counts.record.failures)
