"""Readme: `python -m benchmarks.readme results/x.json` puts a run into the pages.

It writes the table of README.md, and the charts of docs/benchmarks.md. Several files count as
further rounds of one run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from . import charts
from .report import conditions, markdown, number
from .results import BARE, OURS, RATE, Results, say
from .workload import BY_KEY

README = Path(__file__).parent / "README.md"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN = "<!-- begin: written by python -m benchmarks.readme -->"
END = "<!-- end -->"
PEERS = ("spdl", "torchdata", "grain", "DataLoader")
_VIEWS = "nbpipe views"


def table(results: Results) -> str:
    """Return a row for each workload that has a rate, with the best row of every peer."""
    rows = [
        _row(results, key, who)
        for key in results.workloads()
        for who in (OURS, _VIEWS)
        if BY_KEY[key].is_rated and results.by_round(key, who, RATE)
    ]
    head = ("workload", "items/s", "of bare", "CPU µs/item", *PEERS, "against the best of them")
    return markdown(head, rows)


def _row(results: Results, key: str, who: str) -> list[str]:
    best = {peer: name for peer in PEERS if (name := _best(results, key, peer))}
    rates = {peer: results.median(key, name, RATE) for peer, name in best.items()}
    fastest = best[max(rates, key=lambda peer: rates[peer] or 0)] if best else ""
    share, times = results.ratio(key, who, BARE), results.ratio(key, who, fastest)
    return [
        f"{key}{who.removeprefix(OURS)}",
        number(results.median(key, who, RATE)),
        "-" if share is None else f"{100 * share:.3g}%",
        number(results.median(key, who, "cpu_us_per_item")),
        *(number(rates.get(peer)) for peer in PEERS),
        "-" if times is None else f"{number(times)} x {fastest}",
    ]


def _best(results: Results, key: str, peer: str) -> str:
    """Return the name under which a peer was fastest; an empty text where it has no number."""
    return next((name for name, _ in charts.rates(results, key) if name.split()[0] == peer), "")


def between_marks(text: str, inner: str, mark: str = BEGIN) -> str:
    """Put `inner` between a mark and the end that follows it.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must hold both marks, {mark} and {END}")
    return f"{before}{begin}\n\n{inner}\n\n{end}{after}"


def main() -> None:
    """Write the table and draw the charts."""
    if len(sys.argv) == 1:
        raise SystemExit("name the raw numbers: python -m benchmarks.readme results/x.json")
    files = [Path(name) for name in sys.argv[1:]]
    results = Results.merged(files)
    about = f"From {', '.join(f'`results/{path.name}`' for path in files)}: {conditions(results)}"
    for page, inner in ((README, f"{table(results)}\n\n{about}"), (PAGE, conditions(results))):
        page.write_text(between_marks(page.read_text(), inner))
    for path in charts.draw(results):
        say(f"wrote {path}")


if __name__ == "__main__":
    main()
