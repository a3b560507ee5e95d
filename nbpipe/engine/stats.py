"""Stats: limits and counters of a stage, the stats that are read from them, and a run's status."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field, fields, replace
from html import escape
from itertools import accumulate
from math import inf
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from ..base.format import (
    format_bytes,
    format_rate,
    format_seconds,
    format_share,
    html_table,
    plain,
)
from ..base.gil import LockWait
from ..errors import UnknownStageError, near_match
from ..ops.stage import CONSUMER, LOOP, Stage

# -- Counters of a stage, and the frozen `StageStats` that are read from them ----------------------
# The engine changes counters under its lock; this file has only the arithmetic.
WINDOW_NS = 5_000_000_000
SAMPLE_NS = 250_000_000
_SHARES_KEPT = 32
PACE_NS = 1_000_000_000  # a run needs this long after a pause to reach its pace again
Row = dict[str, int | float | str]  # one stage at one second, for a DataFrame


@dataclass(frozen=True, slots=True)
class StageStats:
    """The stats of one stage at one moment, as plain values.

    Attributes:
        items_in: items taken since the run started.
        items_out: items handed on since the run started.
        epoch_in: items taken in the epoch in progress, or in the last one.
        epoch_out: items handed on in that epoch.
        errors: items that failed for good.
        retries: calls that were tried again.
        items_per_s: rate over the last seconds, without the time between epochs [items/s].
        mean_per_s: rate since the first epoch began, without pauses and the time between epochs
            [items/s].
        busy: share of slot-time inside the stage's function over the last 5 s.
        starved: share with no input.
        blocked: share with no room for a result.
        waiting: share in which a call could have run, but no thread was free yet, or the
            run was paused. busy + starved + blocked + waiting = 1.
        running: calls in progress.
        concurrency: limit in force [calls].
        queued: results that wait for the next stage [items].
        prefetch: limit in force [items].
        latency_p50_s: median time of one call, or of one child of a `flat_map`, over the last 5
            to 10 s [s].
        latency_p95_s: 95th percentile [s].
        latency_p99_s: 99th percentile [s].
        bytes_out: bytes handed on, measured on one item of each task [bytes].
        cpu_share: share of the calls' time in which they computed, measured on some calls of the
            last 5 s. Time spent waiting for a core or for the interpreter lock is left out. None
            if it is not known. Stages that run together have one value, in the row of the first.
        cpu_share_p50: the same share for the median call. On a busy machine some calls wait for
            a call that holds a lock and waits for a core; the median is less affected by them.
        lock_share: share of the calls' time, without waits for a core, in which they surely waited
            for the interpreter lock. None if it is not known, as outside the run's threads.
        workers: processes, or Dask workers, that make this stage's calls. Stages that share
            workers have them in the row of the first.
        worker_threads: calls that the workers can make at once: one each, or one for each thread
            of a Dask worker; 0 if it is not known.
        starting: workers that have not done anything yet.
        memory_bytes: resident memory of the worker processes [bytes]. Memory that they share is
            counted in each; 0 if it is not known.
        oldest_s: how long the oldest call in progress has been running [s]; 0 if there is none.
            Stages that share workers have it in the row of the last. After an epoch, this is the
            oldest call that the epoch left in progress: `running` is 0 if it has ended since.
        oldest_item: the item that this call works on, as messages name it, or "first to last"
            of several; empty if it is not known.
        busy_s: slot-time inside the stage's function since the run started [s]. In the row of
            the training loop, time of its own steps.
        starved_s: slot-time with no input [s]; in the row of the loop, time that it waited.
        blocked_s: slot-time with no room for a result [s].
        slot_s: slot-time as a whole [s]. These four leave out pauses and the time between epochs:
            the difference of two moments gives the shares between them.
        item_bytes: size of a result, as a mean of the last ones that were measured [bytes].

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(4)).map(abs).start() as run:
        ...     numbers = list(run)
        ...     row = run.stats()["abs"]
        >>> row.items_out, row.errors, round(row.busy + row.starved + row.blocked + row.waiting)
        (4, 0, 1)
    """

    items_in: int = 0
    items_out: int = 0
    errors: int = 0
    retries: int = 0
    items_per_s: float = 0.0
    mean_per_s: float = 0.0
    busy: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0
    waiting: float = 1.0
    running: int = 0
    concurrency: int = 1
    queued: int = 0
    prefetch: int = 0
    latency_p50_s: float = 0.0
    latency_p95_s: float = 0.0
    latency_p99_s: float = 0.0
    bytes_out: int = 0
    cpu_share: float | None = None
    cpu_share_p50: float | None = None
    lock_share: float | None = None
    workers: int = 0
    worker_threads: int = 0
    starting: int = 0
    memory_bytes: int = 0
    oldest_s: float = 0.0
    oldest_item: str = ""
    epoch_in: int = 0
    epoch_out: int = 0
    busy_s: float = 0.0
    starved_s: float = 0.0
    blocked_s: float = 0.0
    slot_s: float = 0.0
    item_bytes: int = 0

    def as_dict(self) -> dict[str, int | float | str | None]:
        """Return the fields as a dict, in their order.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     numbers = list(run)
            ...     run.stats()["source"].as_dict()["items_out"]
            4
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def table(self) -> list[list[str]]:
        """Return the rows of a table: name and value of each field, with its unit.

        Examples:
            >>> import nbpipe
            >>> nbpipe.StageStats(items_out=4).table()[1]
            ['items_out', '4']
        """
        return [[name, _worded(name, value)] for name, value in self.as_dict().items()]

    def _repr_html_(self) -> str:
        return html_table(("", ""), self.table())


def at_the_pace_of(stats: StageStats, other: StageStats) -> StageStats:
    """Return the counts of `stats` with the rate and the shares of another moment."""
    pace = ("items_per_s", "busy", "starved", "blocked", "waiting")
    return replace(stats, **{name: getattr(other, name) for name in pace})


def with_mean(stats: StageStats, active_ns: int) -> StageStats:
    """Return `stats` with the mean rate of a run that was active for this long [ns]."""
    return replace(stats, mean_per_s=1e9 * stats.items_out / max(1, active_ns))


def _worded(name: str, value: int | float | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if name.endswith("_per_s"):
        return format_rate(value)
    if name.endswith("_s"):
        return format_seconds(value)
    if name.endswith("_bytes") or name == "bytes_out":
        return format_bytes(value)
    return format_share(value) if isinstance(value, float) else f"{value:,}"


class Reading(NamedTuple):
    """Cumulated counters at one moment; rates are differences of two of them."""

    at_ns: int
    items_out: int
    busy_ns: int
    starved_ns: int
    blocked_ns: int
    slot_ns: int
    timed_ns: int = 0
    cpu_ns: int = 0
    rest_ns: int = 0
    asked_ns: int = 0
    locked_ns: int = 0

    @property
    def sums_s(self) -> dict[str, Any]:
        """Slot-time so far, by the names in the stats [s]."""
        names = ("busy", "starved", "blocked", "slot")
        return {f"{name}_s": getattr(self, f"{name}_ns") / 1e9 for name in names}


_at_ns = itemgetter(0)  # of a reading


class Histogram:
    """ItemCounts of durations in buckets a quarter of an octave wide; forgets after 5 to 10 s.

    Attributes:
        calls: by the number of a bucket, the calls that took so long; few buckets have any.
        spent_ns: likewise, the time of all of them [ns].
        until_ns: after this time `turn` has to be called before anything is added.
    """

    __slots__ = ("_old_calls", "_old_ns", "calls", "spent_ns", "until_ns")

    def __init__(self) -> None:
        self.calls: defaultdict[int, int] = defaultdict(int)
        self.spent_ns: defaultdict[int, int] = defaultdict(int)
        self._old_calls: dict[int, int] = {}
        self._old_ns: dict[int, int] = {}
        self.until_ns = 0

    def turn(self, now_ns: int) -> None:
        """Forget the old calls, and start to count again."""
        lasts = now_ns <= self.until_ns + WINDOW_NS
        self._old_calls, self._old_ns = (self.calls, self.spent_ns) if lasts else ({}, {})
        self.calls, self.spent_ns = defaultdict(int), defaultdict(int)
        self.until_ns = now_ns + WINDOW_NS

    def quantiles_s(self, *shares: float) -> list[float]:
        """Return the durations below which `shares` of the calls lie [s].

        The calls in a bucket are assumed to lie evenly around their mean, within the bucket. If all
        take equally long, the result is that time.
        """
        calls, old = self.calls, self._old_calls
        buckets = sorted({**old, **calls})
        if not buckets:
            return [0.0 for _ in shares]
        counts = [calls.get(bucket, 0) + old.get(bucket, 0) for bucket in buckets]
        below = list(accumulate(counts))  # calls in each bucket and those before it
        found = []
        for share in shares:
            rank = share * below[-1]
            place = bisect_left(below, rank)
            bucket, count = buckets[place], counts[place]
            width = 2.0 ** ((bucket >> 2) - 3)
            low = width * (4 + (bucket & 3))
            mean = (self.spent_ns.get(bucket, 0) + self._old_ns.get(bucket, 0)) / count
            reach = max(0.0, min(mean - low, low + width - mean))
            found.append((mean + reach * (2 * (rank - below[place]) / count + 1)) / 1e9)
        return found


@dataclass(eq=False, repr=False, slots=True)
class ItemCounts:
    """Items of one stage: taken, handed on, failed, tried again."""

    items_in: int = 0
    items_out: int = 0
    errors: int = 0
    retries: int = 0


class Booked(NamedTuple):
    """The slot-time of a stage that was booked up to some moment."""

    since_ns: int
    busy_ns: int
    starved_ns: int
    blocked_ns: int
    slot_ns: int
    rest_ns: int


@dataclass(eq=False, repr=False, slots=True)
class Counters(ItemCounts):
    """Everything counted for one stage of one run."""

    before: tuple[int, int] = (0, 0)  # items taken and handed on before this epoch
    bytes_out: float = 0.0  # an estimate: one result of each task is measured
    busy_ns: int = 0
    starved_ns: int = 0
    blocked_ns: int = 0
    slot_ns: int = 0
    first_ns: int = 0
    timed_ns: int = 0  # time of the calls with measured processor time, without waits for the lock
    cpu_ns: int = 0
    asked_ns: int = 0  # time of the calls whose wait for the lock is known
    locked_ns: int = 0
    cpu_shares: deque[float] = field(default_factory=lambda: deque(maxlen=_SHARES_KEPT))
    rest_ns: int = 0  # time between epochs, since the first one began
    histogram: Histogram = field(default_factory=Histogram)
    readings: deque[Reading] = field(
        default_factory=lambda: deque(maxlen=2 * WINDOW_NS // SAMPLE_NS)
    )

    def add(self, other: ItemCounts) -> None:
        """Count what was counted apart."""
        self.items_in += other.items_in
        self.items_out += other.items_out
        self.errors += other.errors
        self.retries += other.retries

    def counts(self) -> dict[str, int]:
        """Return the counts of the run and of the epoch, by their names in the stats."""
        taken, given = self.before
        return {
            "items_in": self.items_in,
            "items_out": self.items_out,
            "errors": self.errors,
            "retries": self.retries,
            "epoch_in": self.items_in - taken,
            "epoch_out": self.items_out - given,
            "bytes_out": int(self.bytes_out),
        }

    def read(self, now_ns: int, running_ns: int) -> Reading:
        """Take a reading; `running_ns` is the time spent so far in calls still running."""
        return Reading(
            now_ns,
            self.items_out,
            self.busy_ns + running_ns,
            self.starved_ns,
            self.blocked_ns,
            self.slot_ns,
            self.timed_ns,
            self.cpu_ns,
            self.rest_ns,
            self.asked_ns,
            self.locked_ns,
        )

    def sample(self, now_ns: int, running_ns: int) -> None:
        """Keep a reading for later rates."""
        self.readings.append(self.read(now_ns, running_ns))

    def begin_window(self, now_ns: int, running_ns: int) -> None:
        """Take later rates and shares from this moment on."""
        self.readings.clear()
        self.sample(now_ns, running_ns)

    def window_start(self, now_ns: int) -> Reading | None:
        """Return the latest reading that is at least 5 s old, else the oldest."""
        readings = self.readings
        if not readings:
            return None
        return readings[max(0, bisect_right(readings, now_ns - WINDOW_NS, key=_at_ns) - 1)]


def stats_of(
    counters: Counters,
    now_ns: int,
    *,
    running_ns: int,
    running: int,
    concurrency: int,
    queued: int,
    prefetch: int,
    oldest: tuple[int, str] = (0, ""),
    item_bytes: int = 0,
) -> StageStats:
    """Turn counters into frozen stats, with shares and rates over the last 5 s."""
    new = counters.read(now_ns, running_ns)
    first = Reading(counters.first_ns or now_ns, 0, 0, 0, 0, 0)
    old = counters.window_start(now_ns) or first
    busy, starved, blocked = shares_between(old, new)
    p50, p95, p99 = counters.histogram.quantiles_s(0.5, 0.95, 0.99)
    return StageStats(
        **counters.counts(),
        items_per_s=(new.items_out - old.items_out) / _between_s(old, new),
        mean_per_s=counters.items_out / _between_s(first, new),
        busy=busy,
        starved=starved,
        blocked=blocked,
        waiting=max(0.0, 1.0 - busy - starved - blocked),
        running=running,
        concurrency=concurrency,
        queued=queued,
        prefetch=prefetch,
        latency_p50_s=p50,
        latency_p95_s=p95,
        latency_p99_s=p99,
        cpu_share=_share(old, new, "cpu_ns", "timed_ns"),
        cpu_share_p50=_median(counters.cpu_shares),
        lock_share=_share(old, new, "locked_ns", "asked_ns"),
        oldest_s=oldest[0] / 1e9,
        oldest_item=oldest[1],
        item_bytes=item_bytes,
        **new.sums_s,
    )


def _between_s(old: Reading, new: Reading) -> float:
    """Return the time from one reading to the next in which an epoch was in progress [s]."""
    return max(new.at_ns - old.at_ns - (new.rest_ns - old.rest_ns), 1) / 1e9


def _share(old: Reading, new: Reading, part: str, whole: str) -> float | None:
    """Return one time as a share of another: lately, or else in the whole run."""
    part_ns, whole_ns = getattr(new, part), getattr(new, whole)
    if whole_ns > getattr(old, whole):
        part_ns, whole_ns = part_ns - getattr(old, part), whole_ns - getattr(old, whole)
    return min(1.0, part_ns / whole_ns) if whole_ns > 0 else None


def _median(shares: Collection[float]) -> float | None:
    return sorted(shares)[len(shares) // 2] if shares else None


def shares_between(old: Reading, new: Reading) -> tuple[float, float, float]:
    """Return busy, starved and blocked as shares of slot-time; their sum is at most 1."""
    # Time booked for running calls may be taken back, so no share may fall below 0.
    busy_ns = max(0, new.busy_ns - old.busy_ns)
    starved_ns = max(0, new.starved_ns - old.starved_ns)
    blocked_ns = max(0, new.blocked_ns - old.blocked_ns)
    whole_ns = max(new.slot_ns - old.slot_ns, busy_ns + starved_ns + blocked_ns, 1)
    return busy_ns / whole_ns, starved_ns / whole_ns, blocked_ns / whole_ns


# -- StageRuntime: the limits and counters of a stage, kept from epoch to epoch --------------------
# Every method is called under the scheduler's lock.
STARVED, BLOCKED, READY = 1, 2, 0
PESSIMISTIC_NS = 1_000_000  # cost of a call that was never measured
SLOW_NS = 10_000  # a call that takes longer is worth waking another thread for the next call
SOON_NS = 500_000  # what waits is left so long to a thread that is about to come back
CHEAP_NS = 20_000  # a stage whose calls take longer gets one item at a time
CHUNK_MAX = 1024  # others get several: at most so many,
CHUNK_NS = 250_000  # as many as take about this long,
CHUNK_BYTES = 1 << 20  # and as many as have results of this size
BOOKING_NS = 100_000  # a stage whose calls take longer books its slot-time at each call
BOOKED_NS = 500_000  # others book it no more often than this
TIMING_NS = 50_000_000  # a stage's processor time is measured no more often than this
_SINGLY = ("coroutine", "device")  # always one item at a time; memory of a device is scarce
_NEVER_NS = 1 << 62


def most_at_once(prefetch: int) -> int:
    """Return the most items that a task may take: few if few may wait for the next stage."""
    return min(CHUNK_MAX, 2 * prefetch**3)


@dataclass(eq=False, repr=False, slots=True)
class StageRuntime:
    """Limits and counters of one stage in one run.

    Attributes:
        address: name of the stage in its pipeline.
        concurrency: limit in force [calls].
        prefetch: limit in force [items].
        active: calls in progress, with those of other epochs than the one in progress [calls].
        cost_ns: estimated time of one call; it rises at once and falls slowly [ns].
        chunk_size: most items that one task takes: several while calls are cheap.
        chunk_from_ns, chunk_to_ns: `chunk_size` fits a cost of one call in this range [ns].
        item_bytes: estimated size of one result [bytes]; `sized` earlier ones were counted with
            another estimate.
        state: why idle slots are idle: STARVED, BLOCKED or READY.
        spent_ns: `active * now + spent_ns` is the time spent in calls so far, with those in
            progress [ns]; so it changes only when calls begin and end.
        since_ns: time up to which slot-time was booked; `booked_ns`: time spent in calls by then.
        booking_ns: from this time on it is to be booked again.
        ended_ns: when a call last ended.
        measured_ns: time at which a result was last measured.
        timing_ns: from this time on the processor time of the next task in a thread is measured.
    """

    address: str
    stage: Stage
    _: KW_ONLY
    prefetch: int
    now_ns: InitVar[int]
    concurrency: int = 1
    active: int = 0
    cost_ns: float = PESSIMISTIC_NS
    chunk_size: int = 1
    chunk_from_ns: float = 0.0
    chunk_to_ns: float = 0.0
    item_bytes: float = 0.0
    sized: int = 0
    state: int = STARVED
    spent_ns: int = 0
    since_ns: int = 0
    booked_ns: int = 0
    booking_ns: int = 0
    ended_ns: int = 0
    measured_ns: int = 0
    timing_ns: int = 0
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self, now_ns: int) -> None:
        self.skip_time(now_ns)
        elsewhere = self.stage.executor_spec is not None and self.stage.executor != "device"
        if elsewhere or self.stage.executor == "coroutine":
            self.timing_ns = _NEVER_NS
        self.read_knobs()

    def account(self, now_ns: int) -> None:
        """Book the time since the last booking; the state was the same all that time."""
        elapsed_ns = now_ns - self.since_ns
        if elapsed_ns <= 0:
            return
        counters, in_calls_ns = self.counters, self.active * now_ns + self.spent_ns
        spent_ns, slots_ns = in_calls_ns - self.booked_ns, self.concurrency * elapsed_ns
        if spent_ns >= slots_ns:
            slots_ns = spent_ns
        elif self.state == STARVED:
            counters.starved_ns += slots_ns - spent_ns
        elif self.state == BLOCKED:
            counters.blocked_ns += slots_ns - spent_ns
        counters.slot_ns += slots_ns
        self._size_results()
        self.since_ns, self.booked_ns = now_ns, in_calls_ns
        self.booking_ns = now_ns if self.cost_ns > BOOKING_NS else now_ns + BOOKED_NS

    def occupy(self, calls: int, now_ns: int) -> None:
        """Note that so many more calls are in progress, or fewer."""
        self.active += calls
        self.spent_ns -= calls * now_ns

    def count(self, now_ns: int, calls: int, busy_ns: int, aside_ns: int = 0) -> None:
        """Count calls that have ended.

        Args:
            now_ns: when.
            calls: how many.
            busy_ns: time that they took together [ns].
            aside_ns: time to add to the cost that decides how many items a task may take [ns]: the
                time on the way to a worker, less the time of records of failures.
        """
        counters = self.counters
        counters.busy_ns += busy_ns
        if not calls:
            return
        each_ns, histogram = busy_ns // calls, counters.histogram
        if now_ns > histogram.until_ns:
            histogram.turn(now_ns)
        octave = each_ns.bit_length()
        bucket = octave << 2 | (each_ns << 3 >> octave) & 3  # four an octave
        histogram.calls[bucket] += calls
        histogram.spent_ns[bucket] += busy_ns
        if aside_ns:
            each_ns += aside_ns // calls
        cost_ns = self.cost_ns
        self.cost_ns = cost_ns = each_ns if each_ns > cost_ns else 0.8 * cost_ns + 0.2 * each_ns
        if not self.chunk_from_ns <= cost_ns < self.chunk_to_ns:
            self.set_chunk_size()

    def read_knobs(self) -> None:
        """Take over the limits from the stage's knobs."""
        knobs = self.stage.knobs
        if "concurrency" in knobs:
            self.concurrency = knobs["concurrency"].value
        if "prefetch" in knobs:
            self.prefetch = knobs["prefetch"].value
        elif "depth" in knobs:
            self.prefetch = knobs["depth"].value
        self.set_chunk_size()

    def set_chunk_size(self) -> None:
        """Decide how many items a task may take, by the cost and size of one and the limits."""
        cost_ns = max(1.0, self.cost_ns)
        if cost_ns >= CHEAP_NS or self.stage.executor in _SINGLY:
            self.chunk_size, self.chunk_from_ns, self.chunk_to_ns = 1, CHEAP_NS, inf
            return
        self.chunk_from_ns, self.chunk_to_ns = cost_ns / 2, min(1.25 * cost_ns, CHEAP_NS)
        most = min(
            most_at_once(self.prefetch), CHUNK_NS // cost_ns, CHUNK_BYTES // max(1, self.item_bytes)
        )
        self.chunk_size = max(1, int(most))

    def skip_time(self, now_ns: int) -> None:
        """Leave out the time since the last booking: no epoch was in progress."""
        if self.counters.first_ns:
            self.counters.rest_ns += now_ns - self.since_ns
        self.since_ns = self.booking_ns = now_ns
        self.booked_ns = self.active * now_ns + self.spent_ns

    def learn_least(self, duration_ns: int) -> None:
        """Raise the estimated cost: a call in progress has taken this long already."""
        if duration_ns > self.cost_ns:
            self.cost_ns = duration_ns
            self.set_chunk_size()

    def learn_cpu(self, timed_ns: int, cpu_ns: int, wait: LockWait | None = None) -> None:
        """Count calls whose processor time was measured.

        Args:
            timed_ns: time that they took, without waits for a core [ns].
            cpu_ns: time in which they computed [ns].
            wait: how long they waited for the interpreter lock; None if it is not known.
        """
        counters = self.counters
        if wait is not None and timed_ns > 0:
            counters.asked_ns += timed_ns
            counters.locked_ns += wait.sure_ns
            timed_ns -= wait.most_ns
        if timed_ns > 0:
            cpu_ns = max(0, min(cpu_ns, timed_ns))
            counters.timed_ns += timed_ns
            counters.cpu_ns += cpu_ns
            counters.cpu_shares.append(cpu_ns / timed_ns)

    def measured(self, size_bytes: int) -> None:
        """Take the size of one result into the estimate."""
        self._size_results()
        before = self.item_bytes
        self.item_bytes = 0.9 * before + 0.1 * size_bytes if before else size_bytes
        if self.chunk_size > 1:
            self.set_chunk_size()

    def _size_results(self) -> None:
        counters = self.counters
        counters.bytes_out += self.item_bytes * (counters.items_out - self.sized)
        self.sized = counters.items_out

    def stats(
        self, now_ns: int, queued: int, running_ns: int, oldest: tuple[int, str] = (0, "")
    ) -> StageStats:
        """Read the counters; `oldest` is the time of the oldest call in progress [ns], its item."""
        self.account(now_ns)
        return stats_of(
            self.counters,
            now_ns,
            running_ns=running_ns,
            running=self.active,
            concurrency=self.concurrency,
            queued=queued,
            prefetch=self.prefetch,
            oldest=oldest,
            item_bytes=round(self.item_bytes),
        )

    def booked(self) -> Booked:
        """Return the slot-time that was booked up to here."""
        counted = self.counters
        return Booked(
            self.since_ns,
            counted.busy_ns,
            counted.starved_ns,
            counted.blocked_ns,
            counted.slot_ns,
            counted.rest_ns,
        )

    def restore(self, booked: Booked) -> None:
        """Leave out the slot-time that was booked since then."""
        counters = self.counters
        self.since_ns, *times_ns = booked
        (
            counters.busy_ns,
            counters.starved_ns,
            counters.blocked_ns,
            counters.slot_ns,
            counters.rest_ns,
        ) = times_ns

    def leave_out(self, booked: Booked, now_ns: int) -> None:
        """Leave out the idle slot-time of a pause that began when this was booked."""
        counters, busy_ns = self.counters, self.counters.busy_ns
        self.restore(booked)
        counters.slot_ns += busy_ns - booked.busy_ns  # calls in progress have ended
        counters.busy_ns = busy_ns
        self.since_ns = self.booking_ns = now_ns
        self.booked_ns = self.active * now_ns + self.spent_ns


# -- RunStats: the stats of all stages at one moment, by address -----------------------------------
def worker_count(count: int, starting: int, memory_bytes: int) -> str:
    """Describe workers: how many there are, how many are starting, and their memory.

    Examples:
        >>> worker_count(4, 0, 1_200_000_000)
        '4 workers, 1.2 GB'
        >>> worker_count(2, 2, 0)
        'starting 2 workers'
    """
    if starting >= count:
        return f"starting {_workers(starting)}" if starting else "no workers"
    if starting:
        return f"{_workers(count)}, {starting} starting"
    return f"{_workers(count)}, {format_bytes(memory_bytes)}" if memory_bytes else _workers(count)


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


_HOLDS = {  # by column of a table of stats, what it holds
    "stage": "name of the stage",
    "items": "items or batches that it has handed on",
    "rate": "what it handed on each second, in the last 5 s",
    "busy": "share of the last 5 s inside its function",
    "starved": "share of the last 5 s without input",
    "blocked": "share of the last 5 s without room for its results",
    "calls": "calls in progress / the most at a time",
    "queue": "results that wait for the next stage / prefetch",
    "p50": "median time of a call",
    "workers": "worker processes and their memory",
}


class RunStats(Mapping[str, StageStats]):
    """Frozen stats by stage name; prints as a table.

    Args:
        rows: stats by name.
        units: what each stage passes on, by name, in the order of the stages: "items" or
            "batches". The training loop takes those of the last stage.

    Examples:
        >>> import nbpipe
        >>> with nbpipe.source(range(4)).batch(2).start() as run:
        ...     batches = list(run)
        ...     {name: row.items_out for name, row in run.stats().items()}
        {'source': 4, 'batch': 2, 'consumer': 2}
    """

    __slots__ = ("_rows", "_units")

    def __init__(
        self, rows: Mapping[str, StageStats], units: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._rows = dict(rows)
        self._units = {CONSUMER: next(reversed(tuple(units.values())), "items"), **units}

    def __getitem__(self, stage: str) -> StageStats:
        """Return the stats of a stage.

        Raises:
            UnknownStageError: there is no row of this name.
        """
        found = self._rows.get(stage)
        if found is None:
            raise UnknownStageError(
                f"no stats of {stage!r}{near_match(str(stage), self._rows)}; there are rows for "
                + ", ".join(map(repr, self._rows))
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._rows)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the head and the rows of a table, as text.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start() as run:
            ...     head, rows = run.stats().table()
            >>> head[:3], [row[0] for row in rows]
            (['stage', 'items', 'rate'], ['source', 'training loop'])
        """
        head = list(_HOLDS)[:-1]
        rows = [
            [
                LOOP if name == CONSUMER else name,
                str(row.items_out),
                format_rate(row.items_per_s, self._units.get(name, "items")),
                format_share(row.busy),
                format_share(row.starved),
                format_share(row.blocked),
                "" if name == CONSUMER else f"{row.running}/{row.concurrency}",
                "" if name == CONSUMER else f"{row.queued}/{row.prefetch}",
                format_seconds(row.latency_p50_s) if row.latency_p50_s else "",
            ]
            for name, row in self._rows.items()
        ]
        crews = [worker_count(*_crew(row)) if any(_crew(row)) else "" for row in self.values()]
        if any(crews):
            head = list(_HOLDS)
            rows = [[*row, crew] for row, crew in zip(rows, crews, strict=True)]
        return head, rows

    def __repr__(self) -> str:
        from ..base.format import text_table

        return text_table(*self.table())

    def _repr_html_(self) -> str:
        from ..base.format import html_table

        return html_table(*self.table(), hints=_HOLDS)


def _crew(row: StageStats) -> tuple[int, int, int]:
    return row.workers, row.starting, row.memory_bytes


class RankPace(NamedTuple):
    """How the loop of one rank goes.

    Attributes:
        rank: number of the rank.
        waits: share of the last seconds in which it waited for data, 0 to 1.
        batches_per_s: batches, or items, that it took a second [batches/s].
    """

    rank: int
    waits: float
    batches_per_s: float


@dataclass(frozen=True, slots=True)
class Status:
    """Where a run is.

    Attributes:
        state: "ready" before the first epoch; "running" or "paused" during one; "finished",
            "stopped", "cancelled" or "failed" after it; "closed".
        epoch: number of the epoch in progress, or of the last one.
        epochs: epochs that `train` was asked for [epochs]; None in a loop of the user's own.
        epochs_begun: how many of them have begun [epochs].
        delivered: items handed to the loop in this epoch.
        resumed: how many of them the loop had before this run resumed from a state.
        total: items of an epoch; None if it is not known before they are made.
        units: what each stage hands on, by address: "items" or "batches".
        elapsed_s: time since the epoch began, or that it took, without pauses [s].
        waited_s: time that the loop waited for items in this epoch, without pauses [s].
        since_pause_s: time since the last pause in this epoch ended [s]; None if there was none.
        cpu_cores: processor time of the whole process over the last seconds [cores]; None
            if it is not known yet.
        idle_cores: how many of the cores that it may use had nothing to do over the last seconds
            [cores]; None if the system does not report it.
        error: why the last epoch failed, in one line, else empty.
        held_bytes: bytes in all buffers; None without a budget for them [bytes].
        limit_bytes: the budget; None without one [bytes].
        links: the pages that show the workers of stages, by address, as far as they are known.
        skipped: items that failed in this epoch and were left out [items].
        ahead: calls of the next epoch have started already.
        isolated: addresses of the stages that run in a process of their own.
        process_bytes: memory of that process [bytes]; 0 where there is none.
        by_loop: the loop makes its items itself, so knobs have no effect.
        called: the name of the run in the code that iterates: "run", or "loader.run".
        outcome: how the last epoch ended, even if the run is closed: "finished", "stopped",
            "cancelled" or "failed"; "ready" before the first. If empty, `state` has it.
        rank: number of this rank in a job of several.
        world_size: number of ranks of the job.
        ranks: how their loops go, as far as they reported it in the last seconds.
    """

    state: str
    epoch: int
    epochs: int | None = None
    epochs_begun: int | None = None
    delivered: int = 0
    total: int | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    cpu_cores: float | None = None
    idle_cores: float | None = None
    error: str = ""
    held_bytes: int | None = None
    limit_bytes: int | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    resumed: int = 0
    skipped: int = 0
    ahead: bool = False
    isolated: tuple[str, ...] = ()
    process_bytes: int = 0
    by_loop: bool = False
    called: str = "run"
    since_pause_s: float | None = None
    outcome: str = ""
    step_s: float | None = None
    step_before_s: float | None = None
    step_at_rest_s: float | None = None
    slowed_by: str = ""
    step_untold: bool = False
    step_cpu_share: float | None = None
    rank: int = 0
    world_size: int = 1
    ranks: tuple[RankPace, ...] = ()

    @property
    def came_to_its_end(self) -> bool:
        """Whether the last epoch gave all its items."""
        return self.is_over and (self.outcome or self.state) == "finished"

    @property
    def unit(self) -> str:
        """What the loop is handed: "items" or "batches"."""
        return next(reversed(tuple(self.units.values())), "items")

    @property
    def has_begun(self) -> bool:
        """Whether there was an epoch."""
        return self.state not in ("ready", "closed") or self.elapsed_s > 0

    @property
    def is_over(self) -> bool:
        """Whether the last epoch has ended, in one way or another."""
        return self.state not in ("ready", "running", "paused")

    @property
    def waited_share(self) -> float:
        """Share of the epoch, so far or as a whole, in which the loop waited for items, 0 to 1."""
        return min(1.0, self.waited_s / self.elapsed_s) if self.elapsed_s > 0 else 0.0

    def _repr_html_(self) -> str:
        """Return the fields that hold something, one in each row; long values wrap."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        rows = [
            (name, _status_words(name, value))
            for name, value in values
            if value or name in ("epoch", "delivered")
        ]
        left = 'style="text-align:left"'
        wraps = 'style="text-align:left;white-space:normal;overflow-wrap:anywhere"'
        shown = [
            f"<tr><td {left}>{name}</td><td {wraps}>{escape(plain(words))}</td></tr>"
            for name, words in rows
        ]
        return f'<table style="max-width:60em;color:inherit">{"".join(shown)}</table>'


def _status_words(name: str, value: object) -> str:
    """Return a value of a status as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {one}" for key, one in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if name.endswith("_cores"):
        return f"{value:.1f} cores"
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    return _worded(name, value) if isinstance(value, int | float | str) else str(value)
