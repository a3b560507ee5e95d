"""`python -m benchmarks.feed [PART ...]`: what a loader costs the loop that it feeds.

Parts: calls, loop (2 cores), decode (4 cores), train and overlap (a CUDA GPU); all where none is
named. Parts that the machine cannot do are skipped with a line.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from .. import gpu, machine
from ..plan import chosen
from ..results import Results, say
from .chains import CHAINS
from .plan import NAMES, PARTS, load, possible, run
from .report import failed, report

ROUNDS = 3
GPU_LIMIT_S = 400.0  # the last child may take another minute
_PACKAGES = ("spdl", "spdl_core", "spdl_io", "torch", "numpy", "pillow")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feed", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}; 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument(
        "--gpu", action="store_true", help="train and overlap, in under eight minutes"
    )
    parser.add_argument("--chains", default="", help=f"of {', '.join(CHAINS)} (default: all)")
    parser.add_argument("--limit-s", type=float, help="no measurement begins after so long [s]")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path(__file__).parent.parent / "results"
    )
    given = parser.parse_args(arguments)
    given.rounds = given.rounds or (1 if given.quick else ROUNDS)
    given.parts = given.parts or (["train", "overlap"] if given.gpu else list(NAMES))
    given.limit_s = given.limit_s or (GPU_LIMIT_S if given.gpu else float("inf"))
    if unknown := [name for name in given.parts if name not in NAMES]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(NAMES)}")
    return given


def main(arguments: list[str]) -> int:
    """Measure, and write `feed-<time>.json` and `feed-<time>.md`.

    Returns:
        0; 1 if a measurement failed; 2 if nothing can be measured here.
    """
    given = parse(arguments)
    device = gpu.cuda_device()
    parts = possible([part for part in PARTS if part.name in given.parts], device)
    if not parts:
        say("nothing was measured")
        return 2
    now, before = datetime.now(UTC), load()
    path = given.out / f"feed-{now:%Y%m%d-%H%M}.json"
    command = " ".join(["python -m benchmarks.feed", *arguments])
    about = {**machine.describe(_PACKAGES), "device": device}
    chains = chosen(list(CHAINS), given.chains, str) if given.chains else ()
    results = Results(about, now.isoformat(" ", "minutes"), command, ())
    for one in run(parts, given.rounds, quick=given.quick, chains=chains, limit_s=given.limit_s):
        about["load"] = [before, load()]
        results = replace(results, measurements=(*results.measurements, one))
        save(results, path)  # each time: a machine may be taken away
    say(f"\n{report(results)}\nraw numbers: {path}")
    return 1 if failed(results) else 0


def save(results: Results, path: Path) -> None:
    """Write the raw numbers and, beside them, the tables."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(results.to_json())
    path.with_suffix(".md").write_text(report(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
