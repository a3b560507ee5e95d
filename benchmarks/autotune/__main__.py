"""`python -m benchmarks.autotune [KIND ...]`: how near the best settings a tuner comes.

Kinds: see benchmarks/autotune/kinds.py; all where none is named.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from .. import machine
from ..feed.plan import load
from ..results import FAILED, Results, say
from .kinds import KINDS
from .plan import measured, pythons
from .report import report

QUICK = ("io", "consumer")
QUICK_PACE = 0.1
_PACKAGES = ("numpy", "tensorflow-cpu")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autotune", description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="two kinds, a tenth of the time: no tuner settles"
    )
    parser.add_argument(
        "--tensorflow",
        metavar="PYTHON",
        default=sys.executable,
        help="an interpreter that has tensorflow (default: this one)",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path(__file__).parent.parent / "results"
    )
    given = parser.parse_args(arguments)
    given.kinds = given.kinds or list(QUICK if given.quick else KINDS)
    if unknown := [name for name in given.kinds if name not in KINDS]:
        parser.error(f"no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
    return given


def main(arguments: list[str]) -> int:
    """Measure, and write `autotune-<time>.json` and `autotune-<time>.md`.

    Returns:
        0; 1 if a kind failed.
    """
    given = parse(arguments)
    now, before = datetime.now(UTC), load()
    path = given.out / f"autotune-{now:%Y%m%d-%H%M}.json"
    command = " ".join(["python -m benchmarks.autotune", *arguments])
    about = machine.describe(_PACKAGES)
    results = Results(about, now.isoformat(" ", "minutes"), command, ())
    interpreters = pythons(given.tensorflow)
    for kind in given.kinds:
        for one in measured(kind, interpreters, pace=QUICK_PACE if given.quick else 1.0):
            results = replace(results, measurements=(*results.measurements, one))
        about["load"] = [before, load()]
        given.out.mkdir(parents=True, exist_ok=True)
        path.write_text(results.to_json())
        path.with_suffix(".md").write_text(report(results))
    say(f"\n{report(results)}\nraw numbers: {path}")
    return 1 if any(one.status == FAILED for one in results.measurements) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
