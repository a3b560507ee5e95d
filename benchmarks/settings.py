"""Settings: `python -m benchmarks.settings` tries the settings each peer was chosen from.

It writes a table: every row one setting, with its median throughput and CPU time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import machine, plan, table
from .catalogue import CONTENDERS
from .contender import Contender
from .measurement import OK, Measurement
from .progress import Progress, say
from .ratios import median
from .scenery import scenery
from .selection import chosen
from .workload import WORKLOADS, Workload


def tries(
    workloads: Sequence[Workload], contenders: Sequence[Contender], rounds: int
) -> Iterator[plan.Entry]:
    """Give every setting of every contender, rounds interleaved."""
    for number in range(rounds):
        for workload in workloads:
            for contender in contenders:
                best = contender.options.get(workload.key, {})
                others = contender.alternatives.get(workload.key, ())
                for options in (best, *others) if others else ():
                    yield plan.Entry(workload, contender, number, options)


def render(measurements: Sequence[Measurement]) -> str:
    """Give the table of all settings."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for found in measurements:
        key = (found.workload, found.contender, _words(found))
        groups.setdefault(key, []).append(found)
    rows = [[*key, *_numbers(group)] for key, group in groups.items()]
    return table.markdown(("workload", "peer", "settings", "items/s", "CPU us/item"), rows)


def _words(measurement: Measurement) -> str:
    options = measurement.options
    return ", ".join(f"{name}={value}" for name, value in options.items()) or "base"


def _numbers(group: Sequence[Measurement]) -> list[str]:
    done = [found.values for found in group if found.status == OK]
    if not done:
        return [f"{group[0].status}: {group[0].note}", ""]
    rate = median(values["items_per_s"] for values in done)
    cpu_us = median(values["cpu_us_per_item"] for values in done)
    return [table.number(rate), table.number(cpu_us)]


def main() -> None:
    """Try all settings and write `settings.json` and `settings.md`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.settings", description=__doc__)
    parser.add_argument("--only", default="", help="workloads, as W1,W2")
    parser.add_argument("--peers", default="", help="contenders, as spdl,grain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    workloads = chosen(WORKLOADS, given.only, lambda workload: workload.key)
    contenders = chosen(CONTENDERS, given.peers, lambda contender: contender.name)
    todo = list(tries(workloads, contenders, given.rounds))
    with scenery(given.rounds, quick=False) as scene:
        measurements = plan.run(todo, scene, Progress(len(todo)).add)
    given.out.mkdir(parents=True, exist_ok=True)
    raw = {
        "machine": machine.describe(),
        "measurements": [found.to_dict() for found in measurements],
    }
    (given.out / "settings.json").write_text(json.dumps(raw, indent=1) + "\n")
    (given.out / "settings.md").write_text(render(measurements) + "\n")
    say(render(measurements))


if __name__ == "__main__":
    main()
