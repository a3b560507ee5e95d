"""Consumer: how long the training loop waits for data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..epoch import Epoch
from .counters import Counters, stats_of
from .stats import PACE_NS, StageStats, at_the_pace_of, with_mean
from .step_time import StepTimes
from .trace import TraceEvents


@dataclass(eq=False, repr=False, slots=True)
class Consumer:
    """The training loop: the items it took, and how long it waited for them.

    Call the methods under the scheduler's lock.

    Attributes:
        counted: items taken in earlier epochs [items].
        epoch: the epoch in progress, which counts its own items; or None.
        waited_ns: time spent waiting, without pauses; written by the consuming thread [ns].
        waits_since_ns: start of the wait in progress on the clock of `active_ns`; 0 without one.
        steps: times the steps of the loop; None when no training loop takes the items.
        trace: takes every wait; None without a trace.
    """

    counted: int = 0
    epoch: Epoch | None = None
    waited_ns: int = 0
    waits_since_ns: int = 0
    counters: Counters = field(default_factory=Counters)
    steps: StepTimes | None = None
    trace: TraceEvents | None = None
    _since_ns: int = 0
    _paused: tuple[int, int] = (0, 0)  # start of the pause, or 0; length of earlier pauses [ns]
    _resumed_ns: int = 0  # on the clock of `active_ns`
    _before_pause: StageStats | None = None  # stats at the start of this epoch's last pause
    _past: StageStats | None = None  # stats at the end of the last epoch

    @property
    def items(self) -> int:
        """Items taken so far."""
        return self.counted + (0 if self.epoch is None else self.epoch.delivered)

    def takes(self, epoch: Epoch | None) -> None:
        """Set the epoch that the items come from; None after its end."""
        self.counted, self.epoch = self.items, epoch

    def pause(self, now_ns: int, *, paused: bool) -> bool:
        """Stop the clock of the loop, or start it again.

        Averages restart at this moment.

        Returns:
            Whether this changed anything.
        """
        since_ns, before_ns = self._paused
        if paused == bool(since_ns):
            return False
        if paused:
            self._before_pause = self.stats(now_ns)
            self._paused = (now_ns, before_ns)
        else:
            self._paused = (0, before_ns + now_ns - since_ns)
            self._resumed_ns = self.active_ns(now_ns)
        if self._since_ns:
            self.settle(now_ns)
            self.counters.begin_window(now_ns, 0)
        return True

    @property
    def is_paused(self) -> bool:
        """Whether the clock of the loop is stopped."""
        return self._paused[0] > 0

    def since_pause_s(self, begun_ns: int, active_ns: int) -> float | None:
        """Return the time since the epoch's last pause ended [s]; None without a pause."""
        resumed_ns = self._resumed_ns
        return (active_ns - resumed_ns) / 1e9 if resumed_ns > begun_ns else None

    def active_ns(self, now_ns: int) -> int:
        """Return the time on a clock that stops during pauses [ns]."""
        since_ns, before_ns = self._paused
        return (since_ns or now_ns) - before_ns

    @property
    def paused_ns(self) -> int:
        """Length of all pauses that ended, plus 1 ns during a pause [ns]."""
        since_ns, before_ns = self._paused
        return before_ns + (since_ns > 0)

    def begin(self, now_ns: int) -> None:
        """Start timing an epoch."""
        if self.steps is not None:
            self.steps.begin()
        self._since_ns = self.active_ns(now_ns)
        self._past = self._before_pause = None
        if not self.counters.first_ns:
            self.counters.first_ns = now_ns

    def settle(self, now_ns: int) -> None:
        """Bring the counters up to date."""
        counters, active_ns = self.counters, self.active_ns(now_ns)
        if self._since_ns:
            counters.slot_ns += max(0, active_ns - self._since_ns)
            self._since_ns = active_ns
        since = self.waits_since_ns
        counters.starved_ns = self.waited_ns + (max(0, active_ns - since) if since else 0)
        counters.busy_ns = max(0, counters.slot_ns - counters.starved_ns)
        counters.items_in = counters.items_out = self.items

    def end(self, now_ns: int) -> None:
        """Keep the stats of the epoch that ended; a second call does nothing."""
        if self._past is None:
            active_ns, stats = self.active_ns(now_ns), self.stats(now_ns)
            at_rest = self._paused[0] or active_ns - self._resumed_ns < PACE_NS
            before = self._before_pause if at_rest else None
            self._past = stats if before is None else at_the_pace_of(stats, before)
            self._since_ns = 0
            self.takes(None)

    def stats(self, now_ns: int) -> StageStats:
        """Return the stats of the loop; between epochs, those at the end of the last one."""
        if self._past is not None:
            return self._past
        self.settle(now_ns)
        stats = stats_of(
            self.counters,
            now_ns,
            running_ns=0,
            running=0,
            concurrency=1,
            queued=0,
            prefetch=0,
        )
        return with_mean(stats, self.counters.slot_ns)

    def with_means(self, rows: Mapping[str, StageStats], now_ns: int) -> dict[str, StageStats]:
        """Return rows of stages with mean rates that leave out pauses."""
        if self._past is None:
            self.settle(now_ns)
        active_ns = self.counters.slot_ns
        return {address: with_mean(row, active_ns) for address, row in rows.items()}
