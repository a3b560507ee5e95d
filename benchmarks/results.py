"""Results: all measurements of one run of the benchmarks, with the machine they come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .measurement import OK, Measurement
from .ratios import median, ratio

OURS = "nbpipe"
BARE = "bare"


@dataclass(frozen=True, slots=True)
class Results:
    """Raw numbers, and the questions a report asks of them.

    Attributes:
        machine: cores, CPU, Python, system, versions.
        started: time of the run, ISO 8601, UTC.
        command: what was asked for.
        measurements: all measurements in the order they were taken.
    """

    machine: dict[str, Any]
    started: str
    command: str
    measurements: tuple[Measurement, ...]

    def workloads(self) -> list[str]:
        """Give the keys of the workloads in the order they were measured."""
        return list(dict.fromkeys(found.workload for found in self.measurements))

    def contenders(self, workload: str) -> list[str]:
        """Give the names of those who were asked for a workload."""
        found = self.measurements
        return list(dict.fromkeys(one.contender for one in found if one.workload == workload))

    def of(self, workload: str, contender: str) -> list[Measurement]:
        """Give the measurements of one contender on one workload."""
        return [
            found
            for found in self.measurements
            if (found.workload, found.contender) == (workload, contender)
        ]

    def by_round(self, workload: str, contender: str, value: str) -> dict[int, float]:
        """Give one number of a contender for each round that has it."""
        return {
            found.round: found.values[value]
            for found in self.of(workload, contender)
            if found.status == OK and value in found.values
        }

    def median(self, workload: str, contender: str, value: str) -> float | None:
        """Give the median over the rounds, or None."""
        numbers = self.by_round(workload, contender, value)
        return median(numbers.values()) if numbers else None

    def ratio(self, workload: str, above: str, below: str, value: str) -> float | None:
        """Give the median over the rounds of `above` divided by `below`."""
        return ratio(self.by_round(workload, above, value), self.by_round(workload, below, value))

    def to_json(self) -> str:
        """Write as JSON."""
        data = {
            "machine": self.machine,
            "started": self.started,
            "command": self.command,
            "measurements": [found.to_dict() for found in self.measurements],
        }
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        found = tuple(Measurement.from_dict(one) for one in data["measurements"])
        return cls(data["machine"], data["started"], data["command"], found)

    @classmethod
    def merged(cls, files: Sequence[Path]) -> Results:
        """Read several files as one; a later file counts its rounds on."""
        parts = [cls.from_json(path.read_text()) for path in files]
        first = parts[0]
        found: list[Measurement] = []
        for offset, part in enumerate(parts):
            found += [_later(one, 1000 * offset) for one in part.measurements]
        command = "; ".join(dict.fromkeys(part.command for part in parts))
        return cls(first.machine, first.started, command, tuple(found))


def _later(measurement: Measurement, rounds: int) -> Measurement:
    data = measurement.to_dict()
    return Measurement.from_dict({**data, "round": data["round"] + rounds})
