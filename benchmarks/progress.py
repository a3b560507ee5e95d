"""Progress: what is said in the terminal while the measurements run."""

from __future__ import annotations

import sys
import time

from .measurement import OK, Measurement

_HEADLINES = (
    ("items_per_s", "{:,.0f} items/s"),
    ("first_s", "first batch after {:.4f} s"),
    ("grow_p95_s", "growth p95 {:.4f} s"),
    ("added_share", "reading adds {:.2%} of CPU"),
    ("blocked_share", "{:.3%} of a core"),
)


def say(text: str) -> None:
    """Write a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Progress:
    """Counts the measurements of a plan.

    Args:
        total: measurements to come.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start_s = time.perf_counter()

    def add(self, measurement: Measurement) -> None:
        """Say what came out."""
        self._done += 1
        elapsed_s = time.perf_counter() - self._start_s
        say(
            f"[{self._done:3d}/{self._total}] {elapsed_s:5.0f} s  round {measurement.round + 1}  "
            f"{measurement.workload:8}{measurement.contender:20}{headline(measurement)}"
        )


def headline(measurement: Measurement) -> str:
    """Give the one number of a measurement, or why there is none."""
    if measurement.status != OK:
        return f"{measurement.status}: {measurement.note}"
    for key, text in _HEADLINES:
        if key in measurement.values:
            return text.format(measurement.values[key])
    return ""
