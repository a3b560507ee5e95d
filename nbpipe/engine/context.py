"""What every stage of an epoch may know about it."""

from __future__ import annotations

from ..threads import Latch


class EpochContext:
    """Seed, number and end of one epoch.

    Attributes:
        seed: the run's seed.
        epoch: number of the epoch, from 0.
        ended: open when the epoch is over, so that whoever waits stops waiting.
    """

    __slots__ = ("ended", "epoch", "seed")

    def __init__(self, seed: int, epoch: int, ended: Latch | None = None) -> None:
        self.seed = seed
        self.epoch = epoch
        self.ended = Latch() if ended is None else ended

    def as_of(self, epoch: int) -> EpochContext:
        """Give the context of stages that make the items of another epoch in this one."""
        return EpochContext(self.seed, epoch, self.ended)
