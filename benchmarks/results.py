"""Results: all measurements of one run of the benchmarks, with the machine they come from."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

OURS = "nbpipe"
BARE = "bare"
RATE = "items_per_s"
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
        """Return the keys of the workloads in the order they were measured."""
        return list(dict.fromkeys(found.workload for found in self.measurements))

    def contenders(self, workload: str) -> list[str]:
        """Return the names of those who were asked for a workload."""
        found = self.measurements
        return list(dict.fromkeys(one.contender for one in found if one.workload == workload))

    def of(self, workload: str, contender: str) -> list[Measurement]:
        """Return the measurements of one contender on one workload."""
        return [
            found
            for found in self.measurements
            if (found.workload, found.contender) == (workload, contender)
        ]

    def by_round(self, workload: str, contender: str, value: str) -> dict[int, float]:
        """Return one number of a contender for each round that has it."""
        return {
            found.round: found.values[value]
            for found in self.of(workload, contender)
            if found.status == OK and value in found.values
        }

    def median(self, workload: str, contender: str, value: str) -> float | None:
        """Return the median over the rounds, or None."""
        numbers = self.by_round(workload, contender, value)
        return median(numbers.values()) if numbers else None

    def ratios(self, workload: str, above: str, below: str, value: str = RATE) -> list[float]:
        """Divide `above` by `below`, round by round, where both have a number."""
        return ratios(self.by_round(workload, above, value), self.by_round(workload, below, value))

    def ratio(self, workload: str, above: str, below: str, value: str = RATE) -> float | None:
        """Return the median of these quotients, or None where no round has both."""
        quotients = self.ratios(workload, above, below, value)
        return median(quotients) if quotients else None

    def to_json(self) -> str:
        """Write as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        found = tuple(Measurement(**one) for one in data.pop("measurements"))
        return cls(**data, measurements=found)

    @classmethod
    def merged(cls, files: Sequence[Path]) -> Results:
        """Read several files as one; a later file counts its rounds on."""
        parts = [cls.from_json(path.read_text()) for path in files]
        found = [
            dataclasses.replace(one, round=one.round + 1000 * offset)
            for offset, part in enumerate(parts)
            for one in part.measurements
        ]
        command = "; ".join(dict.fromkeys(part.command for part in parts))
        return dataclasses.replace(parts[0], command=command, measurements=tuple(found))


def ratios(above: Mapping[int, float], below: Mapping[int, float]) -> list[float]:
    """Divide round by round, where both have a number."""
    return [above[number] / below[number] for number in above if below.get(number)]


def write(folder: Path, text: str, report: str, prefix: str = "") -> Path:
    """Write raw numbers as `<time>.json` and the tables as `<time>.md`; return the first path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{prefix}{datetime.now(UTC):%Y%m%d-%H%M}.json"
    path.write_text(text)
    path.with_suffix(".md").write_text(report)
    return path


def say(text: str) -> None:
    """Write a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
