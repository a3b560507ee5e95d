"""Text and numbers as a message may hold them: short, finite, in UTF-8."""

from __future__ import annotations

import functools
import math

from ..text import shortened

NAME, LINE = 200, 500  # most characters of a name, of a line
_MOST = 1e300  # larger numbers, and those that are none, are given as 0


def rounded(number: float) -> float:
    """Give a finite number with four digits: messages are to be small."""
    return float(f"{number:.4g}") if -_MOST < number < _MOST else 0.0


def seconds(time_s: float) -> float:
    """Give a finite time in hundredths of a second."""
    return round(time_s, 2) if math.isfinite(time_s) else 0.0


def share(number: float) -> float:
    """Give a share of 1 with three digits."""
    return round(min(1.0, max(0.0, number)), 3) if math.isfinite(number) else 0.0


def line(text: str) -> str:
    """Give text in one bounded line that can be written as UTF-8."""
    return shortened(plain(text), LINE)


@functools.lru_cache(maxsize=256)
def label(text: str) -> str:
    """Give a bounded name, its spaces kept: it is what the front end asks for."""
    return plain(text)[:NAME]


def plain(text: str) -> str:
    """Give text that can be written as UTF-8: a file name may hold what cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
