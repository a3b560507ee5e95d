"""Report: `python -m benchmarks.feed.report results/feed-x.json` makes the tables again.

`--readme` puts the table of `loop` into README.md. Several files count as further rounds of one
run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..readme import README, between_marks
from ..report import conditions, markdown, number
from ..results import FAILED, OK, RATE, Results, say
from .plan import BY_KEY, text_of

BEGIN = "<!-- begin: written by python -m benchmarks.feed.report -->"
_LISTS, _TORCH, _BARE, _PUMP = "lists", "torch", "bare", "pump"
# Part, number, whom it is divided by.
_RATIOS = {
    "calls": (("of lists", "calls", _LISTS),),
    "loop": (("of lists", "whole", _LISTS), ("of torch", "whole", _TORCH)),
    "decode": (("of bare", RATE, _BARE),),
    "train resnet50": (("of torch", "share", _TORCH),),
    "train transformer": (("of torch", "share", _TORCH),),
    "overlap": (("of the pump", "hidden", _PUMP), ("the same, ahead", "hidden_ahead", _PUMP)),
}


def report(results: Results) -> str:
    """Return the whole report as markdown."""
    parts = [f"# Feeding the loop, {results.started}", about(results)]
    for key in results.workloads():
        parts += [f"## {key}: {BY_KEY[key].title}", table(results, key), notes(results, key)]
    return "\n\n".join(filter(None, parts)) + "\n"


def about(results: Results) -> str:
    """Return machine, versions, command and how busy the machine was."""
    before, after = results.machine["load"]
    device = results.machine.get("device")
    return f"{conditions(results)} Load of the machine before and after: {before:g}, {after:g}." + (
        f" GPU: {device}." if device else ""
    )


def table(results: Results, key: str) -> str:
    """Return a row for each chain that has numbers."""
    columns, against = BY_KEY[key].columns, _RATIOS[key]
    head = ["chain", *(title for title, _, _ in columns), *(title for title, _, _ in against)]
    rows = []
    for chain in results.contenders(key):
        first = results.by_round(key, chain, columns[0][1])
        if not first:
            continue
        cells = [text_of(chain)]
        for _, value, scale in columns:
            found = results.median(key, chain, value)
            cells.append(number(None if found is None else found * scale))
        cells += [number(results.ratio(key, chain, to, value)) for _, value, to in against]
        scaled = [value * columns[0][2] for value in first.values()]
        rows.append([*cells, f"{number(min(scaled))} to {number(max(scaled))}", str(len(scaled))])
    return markdown([*head, "range of the first", "rounds"], rows)


def notes(results: Results, key: str) -> str:
    """Return a line for each chain that gave no number or failed in a round."""
    lines = []
    for chain in results.contenders(key):
        wrong = [one for one in results.of(key, chain) if one.status != OK]
        texts = dict.fromkeys(f"{one.status}: {one.note}" for one in wrong)
        lines += [f"- **{chain}**: {text}" for text in texts]
    return "\n".join(lines)


def failed(results: Results) -> bool:
    """Return whether a measurement failed."""
    return any(one.status == FAILED for one in results.measurements)


def write_readme(results: Results, files: list[Path], page: Path = README) -> None:
    """Put the table of `loop` into the page."""
    names = ", ".join(f"`results/{path.name}`" for path in files)
    inner = f"{table(results, 'loop')}\n\nFrom {names}: {about(results)}"
    page.write_text(between_marks(page.read_text(), inner, BEGIN))


def main() -> None:
    """Print the report of the files named, or write the table of README.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feed.report", description=__doc__)
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
