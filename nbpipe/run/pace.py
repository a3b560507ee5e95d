"""Pace: each rank of a job writes how long its loop waits to the store that the ranks share."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic, time
from typing import Any, final

from ..engine.measures.stats import RankPace, Status
from ..ops.index import Store, default_store
from ..ops.plan import default_rank
from ..ops.stage import Chain, addresses

EVERY_S = 5.0  # from one report of a rank to the next
_FRESH = 3.0  # reports of so many intervals count
_READS_S = 30.0  # the other ranks' reports are read for so long after they were asked for
_LEAVE_S = 1.0
# A report is one whole number of 63 bits: the time [s], the wait [1/1000], the rate [1/100 s].
_RATE_BITS, _WAIT_BITS = 21, 10


@final
class PaceExchange:
    """Writes the pace of this rank every few seconds, in a thread of its own, and reads the others.

    Only a job of several ranks has one. No rank waits for another one.

    Args:
        store: what the ranks share.
        rank: number of this rank.
        world_size: number of ranks.
        title: tells the runs of a job apart.
        pace: gives the share of the time that the loop waits, and its batches a second; None
            while there is no epoch.

    Attributes:
        rank: number of this rank.
        world_size: number of ranks.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        title: str,
        pace: Callable[[], tuple[float, float] | None],
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._store, self._pace = store, pace
        self._key = f"nbpipe/pace/{zlib.crc32(title.encode()):08x}"
        self._written: int | None = None
        self._asked_s = float("-inf")
        self._known: tuple[RankPace, ...] = ()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="nbpipe-ranks", daemon=True)
        self._thread.start()

    def added_to(self, status: Status) -> Status:
        """Return a status with the paces of all ranks that reported lately, as far as known."""
        return replace(status, rank=self.rank, world_size=self.world_size, ranks=self.paces())

    def paces(self) -> tuple[RankPace, ...]:
        """Return the last paces of all ranks that reported lately, as far as they are known."""
        self._asked_s = monotonic()
        return self._known

    def close(self) -> None:
        """End the thread, and wait for that; one that waits for the store ends later."""
        self.leave()
        if self._thread is not threading.current_thread():
            self._thread.join(_LEAVE_S)

    def leave(self) -> None:
        """Have the thread end."""
        self._over.set()

    def _serve(self) -> None:
        with suppress(Exception):  # the process with the store has ended
            while not self._over.wait(EVERY_S):
                pace = self._pace()
                if pace is not None:
                    self._write(_packed(*pace, time()))
                if monotonic() - self._asked_s < _READS_S:
                    found = [self._read(rank) for rank in range(self.world_size)]
                    self._known = tuple(one for one in found if one is not None)

    def _write(self, report: int) -> None:
        """Set this rank's number: a store can only add."""
        key = f"{self._key}/{self.rank}"
        before = self._store.add(key, 0) if self._written is None else self._written
        self._written = self._store.add(key, report - before)

    def _read(self, rank: int) -> RankPace | None:
        report = self._store.add(f"{self._key}/{rank}", 0)
        written_s, wait, rate = _unpacked(report)
        if abs(time() - written_s) > _FRESH * EVERY_S + 1.0:
            return None
        return RankPace(rank, wait, rate)


def _packed(wait: float, batches_per_s: float, now_s: float) -> int:
    rate = min(round(100 * batches_per_s), (1 << _RATE_BITS) - 1)
    return (int(now_s) << _WAIT_BITS | round(1000 * min(1.0, wait))) << _RATE_BITS | rate


def _unpacked(report: int) -> tuple[int, float, float]:
    rate, rest = report & (1 << _RATE_BITS) - 1, report >> _RATE_BITS
    return rest >> _WAIT_BITS, (rest & (1 << _WAIT_BITS) - 1) / 1000, rate / 100


def exchange_of(
    chain: Chain, pace: Callable[[], tuple[float, float] | None]
) -> PaceExchange | None:
    """Return what exchanges the paces of a job; None where there is one rank, or no store."""
    known = default_rank() or _rank_of_launcher()
    if known is None or known[1] <= 1:
        return None
    stages = addresses(chain)
    specs: list[Any] = [stage.spec for stage in stages.values() if stage.spec.claims]
    store: Store | None = next((one.store for one in specs if one.store is not None), None)
    if store is None:
        if default_rank() is None:
            return None
        store = default_store()
    return PaceExchange(store, *known, " > ".join(stages), pace)


def _rank_of_launcher() -> tuple[int, int] | None:
    """Return rank and world size as torchrun and other launchers write them."""
    with suppress(KeyError, ValueError):
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return None
