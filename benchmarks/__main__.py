"""`python -m benchmarks`: measure, then write the raw numbers and a table."""

from __future__ import annotations

import argparse
import ast
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import machine, plan
from .catalogue import CONTENDERS
from .report import report
from .results import Results, say, write
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
    parser.add_argument("--set", action="append", default=[], help="a setting, as buffer=16")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    given.rounds = given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS)
    return given


def setting(text: str) -> tuple[str, Any]:
    """Read a setting: a name and a Python value, or else a text."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def main() -> None:
    """Measure everything asked for and write `<time>.json` and `<time>.md`."""
    given = parse(sys.argv[1:])
    workloads = plan.chosen(WORKLOADS, given.only, lambda workload: workload.key)
    contenders = plan.chosen(CONTENDERS, given.peers, lambda contender: contender.name)
    more = dict(map(setting, given.set))
    todo = list(plan.entries(workloads, contenders, given.rounds, more))
    started = datetime.now(UTC).isoformat(" ", "minutes")
    found = plan.run(todo, quick=given.quick)
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    results = Results(machine.describe(), started, command, tuple(found))
    text = report(results)
    path = write(given.out, results.to_json(), text)
    say(f"\n{text}\nraw numbers: {path}")


if __name__ == "__main__":
    main()
