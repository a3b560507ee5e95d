"""Table: rows of text as markdown, and numbers as text."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Give a markdown table; columns after the first are aligned to the right where all numbers."""
    cells = [[_plain(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    right = [_is_numeric([row[column] for row in cells[1:]]) for column in range(len(header))]
    lines = [_line(row, widths, right) for row in cells]
    rule = "|" + "|".join(_rule(*pair) for pair in zip(widths, right, strict=True)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def number(value: float | None) -> str:
    """Give three significant digits, or a dash where there is no number."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:.3g}"


def _plain(cell: str) -> str:
    return cell.replace("|", "/").replace("\n", " ")


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(row, widths, right, strict=True)
    ]
    return "| " + " | ".join(padded) + " |"


def _rule(width: int, right: bool) -> str:  # noqa: FBT001
    return "-" * (width + 1) + (":" if right else "-")


def _is_numeric(cells: Sequence[str]) -> bool:
    return any(cell[:1].isdigit() for cell in cells) and all(
        cell[:1].isdigit() or cell in ("", "-") for cell in cells
    )
