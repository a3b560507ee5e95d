"""Lane: what one stage of a run keeps from epoch to epoch: limits, running calls, counters.

Every method is called under the scheduler's lock.
"""

from __future__ import annotations

from ..metrics import Counters, StageStats, stats_of
from ..stage import Stage

STARVED, BLOCKED, READY = 1, 2, 0
PESSIMISTIC_NS = 1_000_000  # cost of a call that was never measured


class Lane:
    """Limits and counters of one stage in one run.

    Attributes:
        address: name of the stage in its pipeline.
        concurrency: limit in force [calls].
        prefetch: limit in force [items].
        active: calls in progress, those of an abandoned epoch included [calls].
        cost_ns: estimated time of one call; goes up at once and down slowly [ns].
        item_bytes: estimated size of one result [bytes].
        state: why idle slots are idle: STARVED, BLOCKED or READY.
        since_ns: time up to which slot-time was booked.
        measured_ns: time at which a result was last measured.
    """

    __slots__ = (
        "active",
        "address",
        "concurrency",
        "cost_ns",
        "counters",
        "item_bytes",
        "measured_ns",
        "prefetch",
        "since_ns",
        "stage",
        "state",
    )

    def __init__(self, address: str, stage: Stage, *, prefetch: int, now_ns: int) -> None:
        self.address = address
        self.stage = stage
        self.concurrency = 1
        self.prefetch = prefetch
        self.read_knobs()
        self.active = 0
        self.cost_ns: float = PESSIMISTIC_NS
        self.item_bytes = 0.0
        self.counters = Counters()
        self.state = STARVED
        self.since_ns = now_ns
        self.measured_ns = 0

    def account(self, now_ns: int, state: int) -> None:
        """Book the time since the last call, then note why idle slots are idle from now on."""
        elapsed = now_ns - self.since_ns
        if elapsed > 0:
            counters = self.counters
            counters.slot_ns += max(self.concurrency, self.active) * elapsed
            idle = self.concurrency - self.active
            if idle > 0 and self.state:
                if self.state == STARVED:
                    counters.starved_ns += idle * elapsed
                else:
                    counters.blocked_ns += idle * elapsed
            self.since_ns = now_ns
        self.state = state

    def read_knobs(self) -> None:
        """Take over the limits from the stage's knobs."""
        knobs = self.stage.knobs
        if "concurrency" in knobs:
            self.concurrency = knobs["concurrency"].value
        if "prefetch" in knobs:
            self.prefetch = knobs["prefetch"].value
        elif "depth" in knobs:
            self.prefetch = knobs["depth"].value

    def skip_time(self, now_ns: int) -> None:
        """Leave out the time since the last call: no epoch was in progress."""
        self.since_ns = now_ns

    def learn(self, duration_ns: int, count: int, now_ns: int, away_ns: int = 0) -> None:
        """Count `count` calls that took `duration_ns` in all, and `away_ns` to get there."""
        counters = self.counters
        counters.busy_ns += duration_ns
        if not count:
            return
        each = duration_ns // count
        counters.histogram.add(each, count, now_ns)
        each += away_ns // count
        self.cost_ns = each if each > self.cost_ns else 0.8 * self.cost_ns + 0.2 * each

    def measured(self, size_bytes: int, now_ns: int) -> None:
        """Take note of the size of one result."""
        self.measured_ns = now_ns
        before = self.item_bytes
        self.item_bytes = 0.9 * before + 0.1 * size_bytes if before else size_bytes

    def stats(self, now_ns: int, queued: int, running_ns: int) -> StageStats:
        """Read the counters."""
        self.account(now_ns, self.state)
        return stats_of(
            self.counters,
            now_ns,
            running_ns=running_ns,
            running=self.active,
            concurrency=self.concurrency,
            queued=queued,
            prefetch=self.prefetch,
        )
