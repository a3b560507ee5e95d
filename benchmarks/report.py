"""Report: `python -m benchmarks.report results/x.json` makes the tables from the raw numbers.

Several files count as further rounds of one run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .columns import COLUMNS, RATED, Column
from .goals import GOALS, verdict
from .measurement import FAILED, OK, Measurement
from .progress import say
from .readme import write_goals
from .results import BARE, OURS, Results
from .table import markdown, number
from .workload import BY_KEY


def report(results: Results) -> str:
    """Give the whole report as markdown."""
    parts = [_head(results), "## Goals", goals_table(results)]
    parts += [_workload(results, key) for key in results.workloads()]
    return "\n\n".join(parts) + "\n"


def _head(results: Results) -> str:
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gil = ", free-threaded" if machine["free_threaded"] else ""
    return (
        f"# Benchmarks of {results.started}\n\n"
        f"{machine['cores']} cores, {machine['cpu']}, {machine['system']}, "
        f"{machine['python']}{gil}. {versions}.\n\n"
        f"`{results.command}`. Medians over the rounds; ratios are medians of the quotients "
        "within a round."
    )


def goals_table(results: Results) -> str:
    """Give a row for each goal of the workloads that were measured."""
    measured = set(results.workloads())
    rows = [
        [goal.workload, goal.text, number(goal.measure(results)), verdict(goal, results)]
        for goal in GOALS
        if goal.workload in measured
    ]
    return markdown(("workload", "goal", "measured", "verdict"), rows)


def _workload(results: Results, key: str) -> str:
    workload = BY_KEY[key]
    columns = COLUMNS[workload.measure]
    is_rated = workload.measure in RATED
    ratio_titles = ("nbpipe is", "share of bare") if is_rated else ()
    header = ["", *(column.title for column in columns), *ratio_titles, "spread", "rounds"]
    names = results.contenders(key)
    done = [name for name in names if _ok(results.of(key, name))]
    rows = [_row(results, key, name, columns, is_rated=is_rated) for name in done]
    notes = [_note(results.of(key, name)) for name in names]
    listed = "\n".join(f"- {note}" for note in notes if note)
    return f"## {key}: {workload.title}\n\n{markdown(header, rows)}\n\n{listed}".rstrip()


def _row(
    results: Results, key: str, name: str, columns: Sequence[Column], *, is_rated: bool
) -> list[str]:
    cells = [name]
    for column in columns:
        found = results.median(key, name, column.value)
        cells.append(number(None if found is None else found * column.scale))
    if is_rated:
        times = results.ratio(key, OURS, name, "items_per_s")
        share = results.ratio(key, name, BARE, "items_per_s")
        cells.append("-" if times is None else f"{number(times)} x")
        cells.append("-" if share is None else f"{100 * share:.3g} %")
    rounds = results.by_round(key, name, columns[0].value)
    return [*cells, _spread(list(rounds.values()), columns[0].scale), str(len(rounds))]


def _spread(values: Sequence[float], scale: float) -> str:
    """Give the smallest and the largest number of the first column."""
    if not values:
        return "-"
    return f"{number(min(values) * scale)} to {number(max(values) * scale)}"


def _ok(found: Sequence[Measurement]) -> list[Measurement]:
    return [one for one in found if one.status == OK]


def _note(found: Sequence[Measurement]) -> str:
    """Say why there is no number, what is different, what went wrong."""
    first, texts = found[0], []
    if not _ok(found):
        return f"**{first.contender}**: {first.status}: {first.note}"
    options = ", ".join(f"{name}={value}" for name, value in first.options.items())
    if options:
        texts.append(options)
    texts += list(dict.fromkeys(one.note for one in _ok(found) if one.note))
    texts += list(dict.fromkeys(f"failed: {one.note}" for one in found if one.status == FAILED))
    texts += _damage(_ok(found))
    return f"**{first.contender}**: {'; '.join(texts)}" if texts else ""


def _damage(found: Sequence[Measurement]) -> list[str]:
    lost = max(one.values.get("lost", 0) for one in found)
    texts = [f"**{lost:g} items lost**"] if lost else []
    if any(one.values.get("in_order", 1) == 0 for one in found):
        texts.append("**out of order**")
    return texts


def main() -> None:
    """Print the report of the files named; write it where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write x.md beside x.json")
    parser.add_argument("--readme", action="store_true", help="put the goals into README.md")
    given = parser.parse_args()
    results = Results.merged(given.files)
    text = report(results)
    if given.write:
        given.files[0].with_suffix(".md").write_text(text)
    if given.readme:
        write_goals(f"From `results/{given.files[0].name}`:\n\n{goals_table(results)}")
    say(text)


if __name__ == "__main__":
    main()
