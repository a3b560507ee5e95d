"""Gate: `python -m benchmarks.gate` holds four wide ratios; exit code 1 if one fails.

Three are to SPDL. The fourth holds what a loop keeps of its rate beside a process map and a batch
to what it keeps beside lists of items in one call.

The best of three rounds counts, or of two for the loop: the gate is there to catch what broke, not
noise. SPDL keeps its statistics on, as its own default is and as nbpipe's always are;
without them bare threads themselves are hardly 2 x SPDL on W2, and the gate would say nothing about
nbpipe.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from . import plan
from .catalogue import BY_NAME
from .feed import plan as feed
from .results import OK, OURS, RATE, Results, say
from .workload import BY_KEY

ROUNDS = 3
FEED_ROUNDS = 2  # each takes about ten seconds on two quiet cores


class Bound(NamedTuple):
    """A workload, whom its number is divided by, and the smallest quotient that holds."""

    workload: str
    peer: str
    at_least: float
    ours: str = OURS
    value: str = RATE

    def best(self, results: Results) -> float:
        """Return the best ratio over the rounds; 0 for none."""
        return max(results.ratios(self.workload, self.ours, self.peer, self.value), default=0.0)

    def failure(self, results: Results) -> str:
        """Return a line that says what does not hold; an empty text where it does."""
        best = self.best(results)
        if best >= self.at_least:
            return ""
        wrong = [
            one
            for one in results.measurements
            if one.workload == self.workload and one.status != OK
        ]
        reasons = "".join(f"; {one.contender} {one.status}: {one.note}" for one in wrong[:2])
        return (
            f"{self.workload}: {self.ours} must be at least {self.at_least:g} x {self.peer}, "
            f"best is {best:.2f} x{reasons}"
        )


BOUNDS = (
    Bound("W1", "spdl with stats", 150.0),
    Bound("W2", "spdl with stats", 2.0),
    Bound("W6s", "spdl ring", 1.5),
)
FEED = Bound("loop", "lists", 0.8, "as written", "whole")  # of the rate of the loop alone
CHAINS = (FEED.ours, FEED.peer)


def failures(results: Results, bounds: Sequence[Bound] = BOUNDS) -> list[str]:
    """Return a line for each ratio that does not hold; none where all hold."""
    return [line for bound in bounds if (line := bound.failure(results))]


def main() -> int:
    """Measure, compare, say what came out; 0 if all ratios hold, else 1."""
    peers = [BY_NAME[name] for name in dict.fromkeys(bound.peer for bound in BOUNDS)]
    if missing := next(filter(None, (peer.missing() for peer in peers)), ""):
        say(f"gate failed: {missing}")
        return 1
    workloads = [BY_KEY[bound.workload] for bound in BOUNDS]
    todo = list(plan.entries(workloads, [BY_NAME[OURS], *peers], ROUNDS))
    found = plan.run(todo, quick=True)
    found += feed.run([feed.BY_KEY["loop"]], FEED_ROUNDS, quick=True, chains=CHAINS)
    results, bounds = Results({}, "", "", tuple(found)), (*BOUNDS, FEED)
    for bound in bounds:
        best = f"{bound.best(results):.1f} x {bound.peer}"
        say(f"{bound.workload}: {best} (at least {bound.at_least:g})")
    lines = failures(results, bounds)
    for line in lines:
        say(f"gate failed: {line}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
