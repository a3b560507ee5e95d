"""Curve: the rates of one stage by its calls, and which calls to try next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from .point import SAME, Point

_KEEP, _UNSURE = 0.015, 0.02  # of the best rate: fewer calls may give so much less,
_MANY_FEWER, _MOST_LESS = 1.5, 0.04  # and more where they are so many times fewer
_BOUND = 0.92  # of the calls that a rate needs by the slot-time of few calls: fewer are too few
_NEAR = 1.15  # calls that lie so near are not told apart,
_CLOSE = 1.8  # and between such the law holds
_UP, _DOWN = 1.5, 1.6  # to the open side


@final
class Curve:
    """What was measured of one stage, by its calls.

    Args:
        known: the points.
        few: the fewest calls measured, and the slot-time per batch that they took [s].
        rate: the best rate so far: fewer calls than it needs are not tried.
        most: the most calls that the stage may get.
        crowded: they have all cores, so fewer are tried before more.
    """

    def __init__(
        self,
        known: Mapping[int, Point],
        *,
        few: tuple[int, float] = (1, 0.0),
        rate: float = 0.0,
        most: int = 1,
        crowded: bool = False,
    ) -> None:
        self._known = known
        self._few, self._rate, self._most, self._crowded = few, rate, most, crowded

    @property
    def _top(self) -> int:
        return max(self._known, key=lambda calls: self._known[calls].rate)

    @property
    def best(self) -> int:
        """The fewest calls that are as fast as any; many fewer may be a little slower."""
        most, top = self._top, self._known[self._top]

        def is_equal(calls: int) -> bool:
            doubt = math.hypot(self._known[calls].error, top.error) / top.rate
            share = min(_UNSURE, max(_KEEP, doubt))
            if most >= _MANY_FEWER * calls:
                share = min(_MOST_LESS, SAME + doubt)
            return self._known[calls].rate >= (1 - share) * top.rate

        return min(filter(is_equal, self._known))

    @property
    def law(self) -> int | None:
        """The fewest calls as fast as any by the universal scalability law; None outside of it.

        n / rate = a + b n + c n², through the fastest point and two neighbours.

        Source: Gunther, "A simple capacity model of massively parallel transaction systems" (1993).
        """
        top = self._top
        up = sorted(calls for calls in self._known if calls > top)
        down = sorted(calls for calls in self._known if calls < top)
        near = [*down[-(1 if up else 2) :], top, *up[: 1 if down else 2]]
        if len(near) < 3:  # noqa: PLR2004
            return None
        (x, y, z), (p, q, r) = near, (calls / self._known[calls].rate for calls in near)
        rise, last = (q - p) / (y - x), (r - q) / (z - y)
        c = (last - rise) / (z - x)
        rates = {n: n / (p + (n - x) * (rise + c * (n - y))) for n in range(x, z + 1)}
        most = max(rates.values())
        fewest = min(n for n, rate in rates.items() if rate >= (1 - _KEEP) * most)
        return fewest if c > 0 and rates[z] < most else None

    def next(self) -> int | None:
        """Return what to try: the law's calls, the open side of the bracket, or inside it."""
        known, best, most = self._known, self.best, self._most
        up = min((calls for calls in known if calls > best), default=None)
        down = max((calls for calls in known if calls < best), default=None)
        law = self.law
        if law is not None and self._is_open(law) and not _are_near(law, best):
            return law
        fewer = round(best / _DOWN)
        goes_down = down is None and best > 1 and self._is_open(fewer)
        if up is None and best < most and not (goes_down and self._crowded):
            return min(most, max(best + 1, round(_UP * best)))
        if goes_down:
            return fewer
        sides = [
            (known[side].rate, round(math.sqrt(side * best)))
            for side in (up, down)
            if side is not None and not _are_near(side, best, _NEAR if law is None else _CLOSE)
        ]
        sides = [side for side in sides if self._is_open(side[1])]
        return max(sides)[1] if sides else None

    def _is_open(self, calls: int) -> bool:
        """Return whether calls may be the best: too few cannot be, as far as is known."""
        few, slots_s = self._few
        enough = calls < few or calls >= _BOUND * slots_s * self._rate
        return enough and 1 <= calls <= self._most and calls not in self._known


def _are_near(calls: int, others: int, times: float = _NEAR) -> bool:
    return max(calls, others) <= times * min(calls, others)
