"""Gate: `python -m benchmarks.gate` holds two wide ratios to SPDL; exit code 1 if one fails.

The best of three rounds counts: the gate is there to catch what broke, not what is noisy. SPDL
keeps its statistics on, as its own default is and as nbpipe's always are; without them bare
threads themselves are hardly 2 x SPDL on W2, and the gate would say nothing about nbpipe.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import plan
from .catalogue import BY_NAME
from .contender import Contender
from .measurement import OK, Measurement
from .progress import Progress, say
from .ratios import ratios
from .results import OURS, Results
from .scenery import scenery
from .workload import BY_KEY

PEER = "spdl with stats"
BOUNDS = {"W1": 20.0, "W2": 2.0}
ROUNDS = 3


def failures(found: Sequence[Measurement]) -> list[str]:
    """Give a line for each ratio that does not hold; none where all hold."""
    return [line for key, bound in BOUNDS.items() if (line := _failure(found, key, bound))]


def best_ratio(found: Sequence[Measurement], workload: str) -> float:
    """Give the best ratio of nbpipe to SPDL in items per second over the rounds; 0 for none."""
    results = Results({}, "", "", tuple(found))
    ours = results.by_round(workload, OURS, "items_per_s")
    theirs = results.by_round(workload, PEER, "items_per_s")
    return max(ratios(ours, theirs), default=0.0)


def _failure(found: Sequence[Measurement], workload: str, bound: float) -> str:
    best = best_ratio(found, workload)
    if best >= bound:
        return ""
    wrong = [one for one in found if one.workload == workload and one.status != OK]
    reasons = "".join(f"; {one.contender} {one.status}: {one.note}" for one in wrong[:2])
    return f"{workload}: nbpipe must be at least {bound:g} x {PEER}, best is {best:.2f} x{reasons}"


def _contenders() -> list[Contender]:
    return [BY_NAME[OURS], BY_NAME[PEER]]


def main() -> int:
    """Measure, compare, say what came out; 0 if both ratios hold, else 1."""
    if missing := BY_NAME[PEER].missing():
        say(f"gate failed: {missing}")
        return 1
    workloads = [BY_KEY[key] for key in BOUNDS]
    todo = list(plan.entries(workloads, _contenders(), ROUNDS))
    with scenery(ROUNDS, quick=True) as scene:
        found = plan.run(todo, scene, Progress(len(todo)).add)
    for workload, bound in BOUNDS.items():
        say(f"{workload}: {best_ratio(found, workload):.1f} x {PEER} (at least {bound:g})")
    lines = failures(found)
    for line in lines:
        say(f"gate failed: {line}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
