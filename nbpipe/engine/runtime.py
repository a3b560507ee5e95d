"""StageRuntime: what a stage keeps from epoch to epoch; and the bytes that its run may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ops.stage import Stage
from .stats import Counters, StageStats, stats_of

if TYPE_CHECKING:
    from .node import Node

# -- Memory: a budget for the bytes held in all buffers of a run -----------------------------------
# Called under the scheduler's lock. While items wait, they carry their sizes, as measured by the
# thread that made them; the queues count them.
_SHRINKS = 1.1  # a stage whose results are at most this much larger than its input


class Memory:
    """Bytes held in buffers, and the rule for what may still start.

    Args:
        limit_bytes: the budget [bytes].

    Attributes:
        held_bytes: of everything that waits in a queue [bytes].
    """

    __slots__ = ("_making_bytes", "_running", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._making_bytes = 0.0  # estimated, of the results that places are reserved for
        self._running = 0  # tasks

    def began(self, node: Node) -> None:
        """Called when a task of `node` was taken."""
        self._running += 1
        self.note(node)

    def ended(self, node: Node) -> None:
        """Called when a task of `node` was settled."""
        self._running -= 1
        self.note(node)

    def note(self, node: Node) -> None:
        """Called when the places which `node` has reserved may be others now."""
        promised_bytes = 0.0 if node.done else node.reserved * node.runtime.item_bytes
        self._making_bytes += promised_bytes - node.promised_bytes
        node.promised_bytes = promised_bytes

    def affordable(self, node: Node) -> int:
        """Return the number of results of `node` that there is place for, at least 1."""
        if not node.runtime.item_bytes:
            return 1
        left = self.limit_bytes - self.held_bytes - self._making_bytes
        return max(1, int(left / node.runtime.item_bytes))

    def admits(self, node: Node, *, waits: bool) -> bool:
        """Tell whether a call of `node` may start.

        A stage that does not make items larger may always start: it empties a buffer. Others
        wait until what is held and what is being made leaves room. When nothing is running
        and the consumer has nothing (`waits`), one call may start whatever is held: a batch
        larger than the budget is made item by item instead of never.
        """
        runtime = node.runtime
        grows = not node.upstream or runtime.item_bytes > _SHRINKS * input_bytes(node)
        if not grows:
            return True
        if not runtime.item_bytes and runtime.active:
            return False  # measure one item first
        wanted_bytes = self.held_bytes + self._making_bytes + runtime.item_bytes
        return wanted_bytes <= self.limit_bytes or (waits and not self._running)


def input_bytes(node: Node) -> float:
    """Estimate the bytes that one call of `node` takes from its buffers."""
    return (getattr(node, "gather", 0) or 1) * sum(
        above.runtime.item_bytes for above in node.upstream
    )


# -- StageRuntime: what one stage of a run keeps: limits, running calls, counters ------------------
# Every method is called under the scheduler's lock.
STARVED, BLOCKED, READY = 1, 2, 0
PESSIMISTIC_NS = 1_000_000  # cost of a call that was never measured


class StageRuntime:
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
