"""Charts: one picture with every contender side by side, drawn from the raw numbers as SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path

from .report import number
from .results import BARE, OURS, RATE, Results
from .workload import BY_KEY

FOLDER = Path(__file__).parent.parent / "docs" / "images"
COLUMNS = 3
_LOOKS = {  # colours of words, of ours, of the peers, of bare; none behind them
    "light": ("#1f2328", "#0969da", "#8c959f", "#bc4c00"),
    "dark": ("#e6edf3", "#4493f8", "#6e7681", "#f0883e"),
}
_WIDTH, _LABELS, _RIGHT = 420, 230, 14  # widths of a chart, of its words, of what stays free
_TITLE, _LINE, _BAR, _GAP = 42, 16, 20, 20  # heights of two lines of title, of one, of a bar, below
_LETTERS = 50  # in a line of title
_FAR = 1.6  # bare that is so many times faster than the fastest is left out


def rates(results: Results, key: str) -> list[tuple[str, float]]:
    """Return who did a workload and how many items a second, the fastest first, bare left out."""
    found = [(name, results.median(key, name, RATE)) for name in results.contenders(key)]
    done = [(name, rate) for name, rate in found if rate is not None and name != BARE]
    return sorted(done, key=lambda one: -one[1])


def draw(results: Results, folder: Path = FOLDER) -> list[Path]:
    """Write `benchmarks-light.svg` and `benchmarks-dark.svg`."""
    paths = [folder / f"benchmarks-{look}.svg" for look in _LOOKS]
    for look, path in zip(_LOOKS, paths, strict=True):
        path.write_text(picture(results, look))
    return paths


def picture(results: Results, look: str) -> str:
    """Return the charts of all workloads that have a rate, in the colours "light" or "dark"."""
    keys = [key for key in results.workloads() if BY_KEY[key].is_rated and rates(results, key)]
    parts, top = [], 0
    for at in range(0, len(keys), COLUMNS):
        row = keys[at : at + COLUMNS]
        for column, key in enumerate(row):
            chart = "\n".join(_chart(results, key, look))
            parts.append(f'<g transform="translate({column * _WIDTH} {top})">\n{chart}\n</g>')
        top += _TITLE + _BAR * max(len(rates(results, key)) for key in row) + _GAP
    width, style = COLUMNS * _WIDTH, 'font-family="system-ui, sans-serif" font-size="12"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" '
        f'fill="{_LOOKS[look][0]}" {style}>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _chart(results: Results, key: str, look: str) -> Iterator[str]:
    _, ours, theirs, bare = _LOOKS[look]
    found, limit = rates(results, key), results.median(key, BARE, RATE)
    is_near = limit is not None and limit <= _FAR * found[0][1]
    most = max(found[0][1], limit or 0.0) if is_near else found[0][1]
    room = _WIDTH - _LABELS - _RIGHT
    for line, text in enumerate(textwrap.wrap(f"{key}: {BY_KEY[key].title}", _LETTERS)):
        yield f'<text x="8" y="{_LINE * (line + 1)}" font-weight="600">{escape(text)}</text>'
    for place, (name, rate) in enumerate(found):
        y, colour = _TITLE + place * _BAR, ours if name.split()[0] == OURS else theirs
        yield f'<text x="8" y="{y + 12}">{escape(name)}</text>'
        yield f'<text x="{_LABELS - 6}" y="{y + 12}" text-anchor="end">{number(rate)}</text>'
        length = max(1.0, room * rate / most)
        yield f'<rect x="{_LABELS}" y="{y}" width="{length:.1f}" height="15" fill="{colour}"/>'
    if limit is not None and is_near:
        x, bottom = _LABELS + room * limit / most, _TITLE + _BAR * len(found)
        line_of = f'x1="{x:.1f}" x2="{x:.1f}" y1="{_TITLE - 4}" y2="{bottom}"'
        yield f'<line {line_of} stroke="{bare}" stroke-width="1.5" stroke-dasharray="5 3"/>'
        said_of = f'x="{x:.1f}" y="{_TITLE - 7}" text-anchor="end" font-size="11"'
        yield f'<text {said_of} fill="{bare}">{BARE}</text>'
