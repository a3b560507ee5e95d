"""`python -m benchmarks`: measure, then write the raw numbers and a table."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from . import machine, plan
from .catalogue import CONTENDERS
from .progress import Progress, say
from .report import report
from .results import Results
from .scenery import scenery
from .selection import chosen
from .workload import WORKLOADS

ROUNDS = 5
QUICK_ROUNDS = 2


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help="workloads, as W1,W2 (default: all)")
    parser.add_argument("--peers", default="", help="contenders, as nbpipe,spdl (default: all)")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}; {QUICK_ROUNDS} with --quick")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    given.rounds = given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS)
    return given


def main() -> None:
    """Measure everything asked for and write `<time>.json` and `<time>.md`."""
    given = parse(sys.argv[1:])
    workloads = chosen(WORKLOADS, given.only, lambda workload: workload.key)
    contenders = chosen(CONTENDERS, given.peers, lambda contender: contender.name)
    todo = list(plan.entries(workloads, contenders, given.rounds))
    now = datetime.now(UTC)
    with scenery(given.rounds, quick=given.quick) as scene:
        found = plan.run(todo, scene, Progress(len(todo)).add)
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    results = Results(machine.describe(), now.isoformat(" ", "minutes"), command, tuple(found))
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{now:%Y%m%d-%H%M}.json"
    path.write_text(results.to_json())
    text = report(results)
    path.with_suffix(".md").write_text(text)
    say(f"\n{text}\nraw numbers: {path}")


if __name__ == "__main__":
    main()
