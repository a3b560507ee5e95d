"""Limits: what a tuner is given, how many ranks there are, and trials that cost too much."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, SupportsIndex, final

from ..errors import ArgumentTypeError
from ..ops.plan import default_rank
from ..ops.stage import Stage
from .point import Observation, Slots

_START_S = 1.0  # a worker takes so long to start, as long as it is not known
_PAYS = 2.0  # it is started if the epoch lasts so many times as long
_PROBES = 0.1  # of the time: a rank that waits less may wait for others inside its step
OTHERS_WAIT = "other ranks may wait for this one: no stage gets fewer calls"
ENDS_SOON = "the epoch ends soon: no worker is started"


class TunerLimits(NamedTuple):
    """What a tuner was given.

    Attributes:
        memory: ceiling of the resident memory, as text or [bytes]; None for the default.
        keep: addresses of stages to leave alone.
        most: the most concurrent calls of a stage; None for the default.
    """

    memory: int | str | None = None
    keep: str | Iterable[str] = ()
    most: SupportsIndex | None = None


def ranks_here() -> int:
    """Return how many ranks share this machine."""
    with contextlib.suppress(ValueError):
        return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return 1


def ranks_of_job() -> int:
    """Return how many ranks the job has, as far as it is known."""
    known = default_rank()
    if known is not None:
        return known[1]
    with contextlib.suppress(ValueError):
        return max(1, int(os.environ.get("WORLD_SIZE", "1")))
    return 1


def limits_of(value: object) -> TunerLimits | None:
    """Return the limits that the argument `autotune` of `start` gives; None for False.

    Raises:
        ArgumentTypeError: neither a bool nor a dict of the arguments of `run.autotune`.
    """
    if isinstance(value, bool):
        return TunerLimits() if value else None
    known = ", ".join(TunerLimits._fields)
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(
            f"autotune must be True, False or a dict with some of {known}, got {value!r}"
        )
    for word in value:
        if word not in TunerLimits._fields:
            raise ArgumentTypeError(f"autotune has no argument {word!r} (arguments: {known})")
    return TunerLimits(**value)


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
