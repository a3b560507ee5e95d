"""WorkerRest: a moment in which no stage works, to see how long the loop's step takes alone."""

from __future__ import annotations

from time import perf_counter_ns
from typing import final

from .scheduler import Scheduler

_ENOUGH = 3  # batches that are ready when a rest begins


@final
class WorkerRest:
    """Lets no call of a function begin for a moment; copies to a device continue.

    Args:
        scheduler: starts the calls.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._since_ns = 0

    def hold(self, most_ns: int) -> bool:
        """Begin no further call for so long at most; return False if few items are ready."""
        scheduler, now_ns = self._scheduler, perf_counter_ns()
        with scheduler.lock:
            epoch = scheduler.epoch
            if epoch is None or scheduler.paused or epoch.output.ready < _ENOUGH:
                return False
            self._since_ns = now_ns
            scheduler.hold(now_ns + most_ns)
        return True

    def rested_ns(self) -> int | None:
        """Return when the last call ended; 0 while some are in progress, None if it is over."""
        scheduler = self._scheduler
        with scheduler.lock:
            epoch = scheduler.epoch
            if not scheduler.held or epoch is None:
                return None
            at_work = [node.runtime for node in epoch.order if node not in epoch.offered]
            if any(runtime.active for runtime in at_work):
                return 0
            return max([self._since_ns, *(runtime.ended_ns for runtime in at_work)])

    def release(self) -> None:
        """Let calls begin again."""
        if self._scheduler.held:
            self._scheduler.change(lambda _: self._scheduler.hold(0))
