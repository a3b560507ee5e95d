"""Failure: one item that failed for good."""

from __future__ import annotations

from dataclasses import dataclass

from .seeding import Path


@dataclass(frozen=True, slots=True)
class Failure:
    """One item that failed for good.

    Attributes:
        stage: address of the stage.
        path: position of the item in the epoch's global order.
        epoch: number of the epoch.
        error: the exception in one line, as "ValueError: bad header".
        traceback: the whole traceback as text.
        input: short description of the item: type, shape, dtype.
        attempts: calls made for this item.
        when_s: time of the failure [seconds since the Unix epoch].
    """

    stage: str
    path: Path
    epoch: int
    error: str
    traceback: str
    input: str
    attempts: int
    when_s: float
