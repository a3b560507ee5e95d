"""Report: `python -m benchmarks.report results/x.json` makes the tables from the raw numbers.

Several files count as further rounds of one run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .goals import GOALS
from .results import BARE, FAILED, OK, OURS, RATE, Measurement, Results, say
from .workload import BY_KEY

Column = tuple[str, str, float]  # heading with the unit, number in a measurement, its scale
_RATES: tuple[Column, ...] = (
    ("items/s", RATE, 1),
    ("us/item", "us_per_item", 1),
    ("CPU µs/item", "cpu_us_per_item", 1),
)
COLUMNS: dict[str, tuple[Column, ...]] = {  # by the module that measures
    "stream": (
        *_RATES,
        ("switches/item", "switches_per_item", 1),
        ("steady items/s", "steady_per_s", 1),
        ("first ms", "first_s", 1e3),
        ("close ms", "close_s", 1e3),
    ),
    "restart": (
        ("first batch ms", "first_s", 1e3),
        ("cold ms", "first_cold_s", 1e3),
        ("close ms", "close_s", 1e3),
        ("beyond the running task ms", "close_beyond_task_s", 1e3),
        ("worst ms", "close_beyond_task_max_s", 1e3),
        ("calls after close", "late_calls", 1),
        ("threads left", "threads_left", 1),
    ),
    "live": (
        ("growth ms", "grow_s", 1e3),
        ("growth p95 ms", "grow_p95_s", 1e3),
        ("shrink beyond the running task ms", "shrink_s", 1e3),
        ("surplus starts", "surplus_starts", 1),
        ("out of order", "disordered", 1),
    ),
    "polling": (
        ("CPU µs/item, nobody reads", "cpu_us_per_item_plain", 1),
        ("CPU µs/item, 4 Hz", "cpu_us_per_item_polled", 1),
        ("reader's CPU, % of the epoch's", "added_share", 100),
        ("reader's CPU, % of a core", "of_a_core", 100),
    ),
    "idle": (
        ("blocked, % of a core", "blocked_share", 100),
        ("paused, % of a core", "paused_share", 100),
        ("processes", "processes", 1),
    ),
}


def columns_of(key: str) -> tuple[Column, ...]:
    """Return the columns of a workload; the first is the number that is looked at first."""
    return _RATES if BY_KEY[key].is_warm else COLUMNS[BY_KEY[key].measure]


def report(results: Results) -> str:
    """Return the whole report as markdown."""
    head = f"# Benchmarks of {results.started}\n\n{conditions(results)}"
    parts = [head, "## Goals", goals_table(results)]
    parts += [_workload(results, key) for key in results.workloads()]
    return "\n\n".join(parts) + "\n"


def conditions(results: Results) -> str:
    """Tell on which machine, with which versions and how the numbers were taken."""
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gil = ", free-threaded" if machine["free_threaded"] else ""
    return (
        f"{machine['cores']} cores, {machine['cpu']}, {machine['system']}, "
        f"{machine['python']}{gil}. {versions}.\n\n"
        f"`{results.command}`. Medians over the rounds; ratios are medians of the quotients "
        "within a round."
    )


def goals_table(results: Results) -> str:
    """Return a row for each goal of the workloads that were measured."""
    measured = set(results.workloads())
    rows = [
        [goal.workload, goal.text, number(goal.measure(results)), goal.verdict(results)]
        for goal in GOALS
        if goal.workload in measured
    ]
    return markdown(("workload", "goal", "measured", "verdict"), rows)


def _workload(results: Results, key: str) -> str:
    workload, columns = BY_KEY[key], columns_of(key)
    header = ["", *(title for title, _, _ in columns)]
    header += ["nbpipe is", "share of bare"] if workload.is_rated else []
    names = results.contenders(key)
    rows = [_row(results, key, name, columns) for name in names if _ok(results.of(key, name))]
    notes = [_note(results.of(key, name)) for name in names]
    table = markdown([*header, "spread", "rounds"], rows)
    listed = "\n".join(f"- {note}" for note in notes if note)
    return f"## {key}: {workload.title}\n\n{table}\n\n{listed}".rstrip()


def _row(results: Results, key: str, name: str, columns: Sequence[Column]) -> list[str]:
    cells = [name]
    for _, value, scale in columns:
        found = results.median(key, name, value)
        cells.append(number(None if found is None else found * scale))
    if BY_KEY[key].is_rated:
        times, share = results.ratio(key, OURS, name), results.ratio(key, name, BARE)
        cells.append("-" if times is None else f"{number(times)} x")
        cells.append("-" if share is None else f"{100 * share:.3g}%")
    _, first, scale = columns[0]
    rounds = [value * scale for value in results.by_round(key, name, first).values()]
    spread = f"{number(min(rounds))} to {number(max(rounds))}" if rounds else "-"
    return [*cells, spread, str(len(rounds))]


def _ok(found: Sequence[Measurement]) -> list[Measurement]:
    return [one for one in found if one.status == OK]


def _note(found: Sequence[Measurement]) -> str:
    """Return why there is no number, what is different, what went wrong."""
    first, done = found[0], _ok(found)
    if not done:
        return f"**{first.contender}**: {first.status}: {first.note}"
    texts = [", ".join(f"{name}={value}" for name, value in first.options.items())]
    texts += [one.note for one in done]
    texts += [f"failed: {one.note}" for one in found if one.status == FAILED]
    lost = max(one.values.get("lost", 0) for one in done)
    texts += [f"**{lost:g} items lost**"] if lost else []
    if any(one.values.get("in_order", 1) == 0 for one in done):
        texts.append("**out of order**")
    listed = "; ".join(filter(None, dict.fromkeys(texts)))
    return f"**{first.contender}**: {listed}" if listed else ""


# -- Tables ----------------------------------------------------------------------------------------
def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a markdown table; columns of numbers alone are aligned to the right."""
    cells = [[cell.replace("|", "/").replace("\n", " ") for cell in row] for row in (header, *rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [_is_numeric(column[1:]) for column in columns]
    lines = [_line(row, widths, right) for row in cells]
    rule = "|".join(
        "-" * (width + 1) + (":" if is_right else "-")
        for width, is_right in zip(widths, right, strict=True)
    )
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def number(value: float | None) -> str:
    """Return three significant digits, or a dash where there is no number."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1e}" if abs(value) < 0.001 else f"{value:.3g}"


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(row, widths, right, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def _is_numeric(cells: Sequence[str]) -> bool:
    begins = [cell.lstrip("-")[:1] for cell in cells]
    return any(map(str.isdigit, begins)) and all(not one or one.isdigit() for one in begins)


def main() -> None:
    """Print the report of the files named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    say(report(Results.merged(parser.parse_args().files)))


if __name__ == "__main__":
    main()
