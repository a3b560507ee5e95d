"""Readme: the part of README.md that is written from raw numbers."""

from __future__ import annotations

from pathlib import Path

PATH = Path(__file__).parent / "README.md"
BEGIN = "<!-- goals: written by python -m benchmarks.report --readme -->"
END = "<!-- end of goals -->"


def with_goals(text: str, goals: str) -> str:
    """Put `goals` between the two marks.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md must hold both marks, {BEGIN} and {END}")
    return f"{before}{begin}\n\n{goals}\n\n{end}{after}"


def write_goals(goals: str) -> None:
    """Put the table of goals into the README."""
    PATH.write_text(with_goals(PATH.read_text(), goals))
