"""Lock waits: which of a stage's calls wait for a lock now, and in which line of code."""

from __future__ import annotations

from collections import Counter, deque
from time import perf_counter, sleep
from typing import NamedTuple, final

from ...executors.stack import Place, lock_waits
from ..scheduler import Scheduler

_KEPT_S = 3.0  # looks of so long ago count
_ENOUGH = 12  # looks
_BETWEEN_S = 0.002  # from one look to the next


class LockedCalls(NamedTuple):
    """How much of the time of a stage's calls is spent waiting for a lock.

    Attributes:
        share: share of the calls in progress that wait for one, 0 to 1.
        place: the line in which most of them wait; None if none waits.
    """

    share: float
    place: Place | None


@final
class LockWaits:
    """Looks at the threads of a stage a few times.

    Args:
        scheduler: does the work.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._looks: dict[str, deque[tuple[float, int, Counter[Place]]]] = {}

    def of(self, address: str) -> LockedCalls | None:
        """Return how much the calls of a stage wait for a lock; None where threads make none.

        It takes some milliseconds, unless there were enough looks in the last seconds.
        """
        looks = self._looks.setdefault(address, deque(maxlen=10 * _ENOUGH))
        while looks and perf_counter() - looks[0][0] > _KEPT_S:
            looks.popleft()
        while not self._look(address, looks) and len(looks) < _ENOUGH:
            sleep(_BETWEEN_S)
        calls = sum(count for _, count, _ in looks)
        places = sum((found for *_, found in looks), Counter[Place]())
        if not calls:
            return None
        most = places.most_common(1)
        return LockedCalls(places.total() / calls, most[0][0] if most else None)

    def _look(self, address: str, looks: deque[tuple[float, int, Counter[Place]]]) -> bool:
        """Look once; return whether there is nothing to look at."""
        idents = self._scheduler.threads_of(address)
        if not idents:
            return True
        places = lock_waits(idents)
        found = Counter(place for place in places if place is not None)
        looks.append((perf_counter(), len(places), found))
        return False
