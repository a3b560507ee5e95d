"""Measurement: the numbers one child process found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OK = "ok"
REFUSED = "cannot"
MISSING = "not installed"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One contender on one workload in one round.

    Attributes:
        workload: key of the workload.
        contender: name of the contender.
        round: number of the round, from 0.
        status: "ok", "cannot", "not installed" or "failed".
        note: why there is no number, or how the numbers were come by.
        options: settings it ran with.
        values: the numbers; the unit ends the name.
    """

    workload: str
    contender: str
    round: int
    status: str = OK
    note: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Give plain data, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Read what `to_dict` gave."""
        return cls(**data)
