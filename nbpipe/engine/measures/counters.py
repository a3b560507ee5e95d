"""Counters: limits and counters of a stage, and the stats that are read from them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import KW_ONLY, InitVar, dataclass, field
from itertools import accumulate
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from ...base.gil import LockWait
from ...ops.stage import Stage
from .stats import StageStats

# -- Counters of a stage, and the frozen `StageStats` that are read from them ----------------------
# The engine changes counters under its lock; this file has only the arithmetic.
WINDOW_NS = 5_000_000_000
SAMPLE_NS = 250_000_000
_SHARES_KEPT = 32


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
