"""Limits of trials: workers that would not pay back their start, and ranks that wait for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ..ops.stage import Stage
from .point import Observation, Slots

_START_S = 1.0  # a worker takes so long to start, as long as it is not known
_PAYS = 2.0  # it is started if the epoch lasts so many times as long
_PROBES = 0.1  # of the time: a rank that waits less may wait for others inside its step
OTHERS_WAIT = "other ranks may wait for this one: no stage gets fewer calls"
ENDS_SOON = "the epoch ends soon: no worker is started"


@final
class TrialLimits:
    """Refuses trials of concurrency that would cost more than they can bring.

    Args:
        ranks: ranks of the job. Where their loops take their steps together, fewer calls in one
            of them slow all, and only a rank that waits for its own data sees what they bring.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._since: dict[str, float] = {}  # by stage, since when its workers start [s]
        self._start_s = 0.0  # how long workers took to start, at most; 0 if it is not known [s]

    def look(self, one: Observation, groups: Sequence[Slots]) -> None:
        """Learn how long workers take to start."""
        for address in (group.address for group in groups):
            if one.stats[address].starting:
                self._since.setdefault(address, one.time_s)
            elif address in self._since:
                took_s = one.time_s - self._since.pop(address)
                self._start_s = max(self._start_s, took_s)

    def refuses_fewer(self, wait: float) -> bool:
        """Return whether no stage may get fewer calls than it has, while the loop waits so much."""
        return self._ranks > 1 and wait < _PROBES

    def refuses_more(self, stage: Stage, left: int | None, rate: float) -> bool:
        """Return whether a stage may start no worker: the epoch ends before that pays.

        Args:
            stage: the stage.
            left: batches to the end of the epoch; None if it is not known.
            rate: batches a second.
        """
        if stage.executor != "process" or left is None or not rate:
            return False
        return left / rate < _PAYS * (self._start_s or _START_S)
