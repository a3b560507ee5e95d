"""Report: `python -m benchmarks.autotune.report results/autotune-x.json` makes the table again.

`--readme` puts it into README.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..readme import README, between_marks
from ..report import conditions, markdown, number
from ..results import FAILED, Results, say
from .plan import ROUNDS

BEGIN = "<!-- begin: written by python -m benchmarks.autotune.report -->"
_AGAINST = ("best", "written", "random", "tf.data")
_HEAD = (
    "kind",
    "batches/s",
    "of best",
    "in a round",
    *(f"of {name}" for name in _AGAINST[1:]),
    "learned after s",
    "calls",
    "of the best",
    "turns",
    "reversals",
    "memory",
    "identical",
)


def report(results: Results) -> str:
    """Return the whole report as markdown."""
    head = f"# Autotune against other settings, {results.started}"
    return "\n\n".join(filter(None, [head, about(results), table(results), notes(results)])) + "\n"


def about(results: Results) -> str:
    """Return machine, versions, command and how busy the machine was."""
    before, after = results.machine["load"]
    return f"{conditions(results)} Load of the machine before and after: {before:g}, {after:g}."


def table(results: Results) -> str:
    """Return a row for each kind that has numbers, and a row with the medians and the worst."""
    kinds = [kind for kind in results.workloads() if results.median(kind, "autotune", "rate")]
    rows = [_row(results, kind) for kind in kinds]
    return markdown(_HEAD, rows)


def _row(results: Results, kind: str) -> list[str]:
    def ours(value: str, contender: str = "autotune") -> float | None:
        return results.median(kind, contender, value)

    memory = ours("memory")
    identical = all(
        results.median(kind, name, "identical") == 1.0 for name in _found(results, kind)
    )
    return [
        kind,
        number(ours("rate")),
        number(quotient(results, kind, "best")),
        _range(results, kind),
        *(number(quotient(results, kind, name)) for name in _AGAINST[1:]),
        number(ours("learned_s")),
        f"{ours('calls'):.0f}",
        f"{ours('calls', 'best'):.0f}",
        f"{ours('turns'):.0f}",
        f"{ours('reversals'):.0f}",
        f"{100 * memory:.0f}%" if memory else "-",
        "yes" if identical else "NO",
    ]


def _found(results: Results, kind: str) -> list[str]:
    return [name for name in results.contenders(kind) if results.by_round(kind, name, "rate")]


def quotient(results: Results, kind: str, other: str) -> float | None:
    """Return the rate with a tuner as a multiple of another one: the sums of all turns."""
    ours, theirs = (results.median(kind, name, "rate") for name in ("autotune", other))
    return ours / theirs if ours and theirs else None


def _range(results: Results, kind: str) -> str:
    """Return the quotients to the best setting, by the turns of one round."""
    found = [
        ours / best
        for turn in range(ROUNDS)
        if (ours := results.median(kind, "autotune", f"rate{turn}"))
        and (best := results.median(kind, "best", f"rate{turn}"))
    ]
    return f"{number(min(found))} to {number(max(found))}" if found else "-"


def notes(results: Results) -> str:
    """Return a line for each kind that failed."""
    wrong = [one for one in results.measurements if one.status == FAILED]
    return "\n".join(f"- **{one.workload}**: {one.note}" for one in wrong)


def write_readme(results: Results, files: list[Path], page: Path = README) -> None:
    """Put the table into the page."""
    names = ", ".join(f"`results/{path.name}`" for path in files)
    inner = f"{table(results)}\n\nFrom {names}: {about(results)}"
    page.write_text(between_marks(page.read_text(), inner, BEGIN))


def main() -> None:
    """Print the report of the files named, or write the table of README.md."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autotune.report", description=__doc__
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--readme", action="store_true")
    given = parser.parse_args()
    results = Results.merged(given.files)
    if given.readme:
        write_readme(results, given.files)
    else:
        say(report(results))


if __name__ == "__main__":
    main()
