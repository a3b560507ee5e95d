"""Tables as plain text and as HTML; everything that goes into them is text from outside."""

from __future__ import annotations

import html
from collections.abc import Sequence

_STYLE = (
    "<style>.nbpipe-table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    ".nbpipe-table th,.nbpipe-table td{padding:2px 10px;text-align:left!important;"
    "border-bottom:1px solid var(--jp-border-color2,#ccc);white-space:nowrap}"
    ".nbpipe-table th{font-weight:600}.nbpipe-table img{display:block;max-height:64px;"
    "image-rendering:pixelated}.nbpipe-wrap{overflow-x:auto}"
    ".nbpipe-caption{opacity:.75;margin:2px 0 6px}</style>"
)
_LONGEST = 60


def shortened(text: str, limit: int = _LONGEST) -> str:
    """Give `text` in at most `limit` characters, in one line, an ellipsis where it was cut."""
    line = " ".join(text.split())
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
) -> str:
    """Lay out a table as HTML; every cell is escaped.

    Args:
        head: column titles.
        rows: cells of each row.
        caption: line above the table.
        pictures: PNG bytes for each row, shown in a last column.
    """
    shows = any(pictures)
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in head)
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(
            f'<td title="{html.escape(cell, quote=True)}">{html.escape(shortened(cell))}</td>'
            for cell in row
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


def _picture(png: bytes | None) -> str:
    import base64

    if not png:
        return ""
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode("ascii")}">'
