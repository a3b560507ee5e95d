"""What every stage of an epoch may know about it."""

from __future__ import annotations

import threading


class EpochContext:
    """Seed, number and end of one epoch.

    Attributes:
        seed: the run's seed.
        epoch: number of the epoch, from 0.
        ended: set when the epoch is over, so that whoever waits stops waiting.
    """

    __slots__ = ("ended", "epoch", "seed")

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        self.ended = threading.Event()
