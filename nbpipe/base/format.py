"""Text for people: numbers with their units, and tables."""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import SupportsIndex

from ..errors import ArgumentError, ArgumentTypeError
from .checks import as_int


# -- Tables as plain text and as HTML; everything that goes into them is text from outside ---------
def style_sheet(rules: str) -> str:
    """Return rules of style as an element that a page can hold anywhere.

    It is a link that carries them: where styles are taken away, as in Markdown on a web page, of
    a link nothing is left, and of a style element a wall of text.
    """
    data = base64.b64encode(rules.encode()).decode("ascii")
    return f'<link rel="stylesheet" href="data:text/css;base64,{data}">'


_STYLE = style_sheet(
    ".nbpipe-table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    ".nbpipe-table th,.nbpipe-table td{padding:2px 10px;text-align:left!important;"
    "border-bottom:1px solid var(--jp-border-color2,rgba(128,128,128,.4));white-space:nowrap;"
    "max-width:none!important}"
    ".nbpipe-table th{font-weight:600}.nbpipe-table th[title]{cursor:help}"
    ".nbpipe-table img{display:block;max-height:64px;image-rendering:pixelated}"
    ".nbpipe-table td{vertical-align:top}"
    ".nbpipe-wrap{overflow-x:auto;max-width:100%}"
    ".nbpipe-caption{opacity:.75;margin:2px 0 6px}"
)
_LONGEST = 60
_MARKDOWN = re.compile(r"[\\`*_\[\]|~$]")  # what has a meaning in a cell of Markdown


def plain(text: str) -> str:
    r"""Return text that can be written as UTF-8: the name of a file may hold bytes that cannot.

    Examples:
        >>> plain("photo\udcff.jpg")
        'photo\\udcff.jpg'
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def shortened(text: str, limit: int = _LONGEST) -> str:
    """Return `text` in at most `limit` characters, in one line, an ellipsis where it was cut."""
    line = " ".join(plain(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table in columns of plain text."""
    cells = [[shortened(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def html_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    pictures: Sequence[bytes | None] = (),
    folds: Mapping[int, Sequence[str]] = MappingProxyType({}),
    hints: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Lay out a table as HTML; every cell is escaped.

    Args:
        head: column titles.
        rows: cells of each row.
        caption: line above the table.
        pictures: PNG bytes for each row, shown in a last column.
        folds: by column, a longer text for each row, folded into its cell.
        hints: what a column holds, by its title; shown under the mouse.
    """
    shows = any(pictures)
    titles = "".join(_title(title, hints.get(title, "")) for title in head)
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(
            f'<td title="{html.escape(plain(cell), quote=True)}">'
            f"{_folded(cell, folds[column][number] if column in folds else '')}</td>"
            for column, cell in enumerate(row)
        )
        if shows:
            cells += f"<td>{_picture(pictures[number])}</td>"
        lines.append(f"<tr>{cells}</tr>")
    above = f'<div class="nbpipe-caption">{html.escape(caption)}</div>' if caption else ""
    last = "<th></th>" if shows else ""
    return (
        f'<div class="nbpipe-wrap">{_STYLE}{above}<table class="nbpipe-table">'
        f"<thead><tr>{titles}{last}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _title(title: str, hint: str) -> str:
    said = f' title="{html.escape(hint, quote=True)}"' if hint else ""
    return f"<th{said}>{html.escape(title)}</th>"


def _folded(cell: str, text: str) -> str:
    shown = html.escape(shortened(cell))
    if not text:
        return shown
    return f"<details><summary>{shown}</summary><pre>{one_block(text)}</pre></details>"


def one_block(text: str) -> str:
    """Return lines as HTML without line ends: in Markdown an empty line would end the HTML."""
    return html.escape(plain(text)).replace("\n", "&#10;")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table as Markdown; every cell is escaped."""
    cells = ([markdown_text(shortened(cell)) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells))


def markdown_text(text: str) -> str:
    """Return text in one line as Markdown shows it; nothing in it has a meaning of its own."""
    return _MARKDOWN.sub(r"\\\g<0>", html.escape(" ".join(plain(text).split()), quote=False))


def _picture(png: bytes | None) -> str:
    if not png:
        return ""
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode("ascii")}">'


# -- Numbers with their units, as people read and type them ----------------------------------------
_ONE = {"items": "item", "batches": "batch"}  # one of a unit
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_STEP = 1000
_WHOLE_FROM = 100  # amounts from here on need no decimals
_ALMOST = 0.95  # rounds to 1
_MINUTE_S = 60
_HOUR_S = 3600
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", re.ASCII)
_WAY_OUT = 'give an int of bytes or a text such as "500 MB", "2 GB", "1.5 GiB"'


def format_count(count: float) -> str:
    """Return a count with three digits and a decimal prefix.

    Examples:
        >>> format_count(12345.0)
        '12.3 k'
        >>> format_count(7)
        '7'
    """
    amount, prefix = _scaled(float(count))
    return f"{amount} {prefix}" if prefix else amount


def unit_of(count: float, unit: str) -> str:
    """Return the word for so many, `unit` being the plural.

    Examples:
        >>> unit_of(1, "batches"), unit_of(2, "items")
        ('batch', 'items')
    """
    return _ONE.get(unit, unit) if count == 1 else unit


def format_rate(items_per_s: float, unit: str = "items") -> str:
    """Return a rate; `unit` is a plural.

    Examples:
        >>> format_rate(12345.0)
        '12.3 k items/s'
    """
    return f"{format_count(items_per_s)} {unit}/s"


def format_bytes(size_bytes: float) -> str:
    """Return a size in decimal units (1 kB is 1,000 bytes).

    Examples:
        >>> format_bytes(1_300_000_000)
        '1.3 GB'
    """
    amount, prefix = _scaled(float(size_bytes))
    return f"{amount} {prefix}B"


def format_seconds(time_s: float) -> str:
    """Return a time in the unit that suits it, from ns to hours.

    Examples:
        >>> format_seconds(0.0042)
        '4.2 ms'
        >>> format_seconds(3725)
        '1 h 2 min'
    """
    time_s = float(time_s)
    if math.isfinite(time_s) and round(abs(time_s), 1) >= _MINUTE_S:
        return _long_time(time_s)
    for factor, unit in _TIMES:
        if abs(time_s) >= factor * _ALMOST:
            return f"{_digits(time_s / factor)} {unit}"
    return f"{_digits(time_s * 1e9)} ns" if time_s else "0 s"


def format_share(share: float) -> str:
    """Return a share of 1 in percent, without hiding a small one.

    Examples:
        >>> format_share(0.97)
        '97%'
        >>> format_share(0.001)
        '0.1%'
    """
    percent = float(share) * 100
    if not 0 < percent < _ALMOST:
        return f"{percent:.0f}%"
    return f"{percent:.1f}%" if round(percent, 1) else "<0.1%"


def parse_bytes(size: str | SupportsIndex) -> int:
    """Read a number of bytes: the argument `memory`.

    Args:
        size: an int [bytes], or a text with a unit: B, kB, MB, GB, TB (powers of 1,000),
            KiB, MiB, GiB, TiB (powers of 1,024); case does not matter.

    Raises:
        ArgumentError: a text that is no size, or a size below 0.
        ArgumentTypeError: neither an int nor a text.

    Examples:
        >>> parse_bytes("2 GB")
        2000000000
    """
    if isinstance(size, str):
        return _parse_text(size)
    count = as_int(size)
    if count is None:
        raise ArgumentTypeError(
            f"memory must be an int or a text [bytes], got {size!r}; {_WAY_OUT}"
        )
    if count < 0:
        raise ArgumentError(f"memory must be at least 0 bytes, got {size!r}; {_WAY_OUT}")
    return count


def _parse_text(text: str) -> int:
    match = _AMOUNT.fullmatch(text)
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ArgumentError(f"memory must be a size in bytes, got {text!r}; {_WAY_OUT}")
    amount = match[1]
    return int(amount) * factor if amount.isdigit() else round(float(amount) * factor)


def _scaled(amount: float) -> tuple[str, str]:
    """Return the digits of an amount and its decimal prefix."""
    step = 0
    while math.isfinite(amount) and round(abs(amount)) >= _STEP and step < len(_PREFIXES) - 1:
        amount /= _STEP
        step += 1
    return _digits(amount), _PREFIXES[step]


def _digits(amount: float) -> str:
    """Return at most three digits, without a zero after the point at the end."""
    if not math.isfinite(amount):
        return str(amount)
    if round(abs(amount), 1) >= _WHOLE_FROM:
        return f"{amount:.0f}"
    small = 0 < abs(amount) < _ALMOST
    return f"{amount:.2g}" if small else f"{amount:.1f}".removesuffix(".0")


def _long_time(time_s: float) -> str:
    sign = "-" if time_s < 0 else ""
    whole_s = round(abs(time_s))
    if whole_s < _HOUR_S:
        return f"{sign}{whole_s // _MINUTE_S} min {whole_s % _MINUTE_S} s"
    minutes = round(whole_s / _MINUTE_S)
    return f"{sign}{minutes // 60} h {minutes % 60} min"
