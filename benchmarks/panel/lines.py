"""Lines: the table with its goals, and the numbers from what the kernel noted of itself."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from ..report import markdown, number
from ..results import Results, ratios

Window = tuple[float, float]  # from and until [s], time of day


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: a number for each round, and the goal for their median.

    Attributes:
        what: what was measured.
        unit: "%", "s", "µs", "B" or "1/s".
        values: a number for each round.
        at_most: largest median that meets the goal; None where there is no goal.
    """

    what: str
    unit: str
    values: Sequence[float]
    at_most: float | None = None

    def cells(self) -> list[str]:
        """Give the goal, the median, the middle half of the rounds, their number, the verdict."""
        if not self.values:
            return [self.what, self._goal(), "-", "-", "0", "not measured"]
        low, high = self._middle_half()
        return [
            self.what,
            self._goal(),
            self._text(median(self.values)),
            f"{self._text(low)} to {self._text(high)}",
            str(len(self.values)),
            self._verdict(low, high),
        ]

    def _middle_half(self) -> tuple[float, float]:
        if len(self.values) < 4:
            return min(self.values), max(self.values)
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    def _verdict(self, low: float, high: float) -> str:
        if self.at_most is None:
            return ""
        bound = low if self.at_most == 0 else median(self.values)  # of none, noise is half above
        verdict = "met" if bound <= self.at_most else "missed"
        return f"{verdict}, within noise" if low < self.at_most < high else verdict

    def _goal(self) -> str:
        if self.at_most is None:
            return ""
        return f"at most {self._text(self.at_most)}" if self.at_most else "none"

    def _text(self, value: float) -> str:
        scaled = 100 * value if self.unit == "%" else value
        space = "" if self.unit == "%" else " "
        return f"{number(scaled) if abs(scaled) >= 0.001 else '0'}{space}{self.unit}"


def report(results: Results) -> str:
    """Give the tables."""
    about = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    head = ("", "goal", "median", "middle half", "rounds", "verdict")
    rows = [line.cells() for line in _lines(results)]
    return (
        f"# The live panel, {results.started}\n\n"
        f"{about['cores']} cores, {about['cpu']}, {about['python']}. {versions}.\n\n"
        f"`{results.command}`\n\n{markdown(head, rows)}\n\n{_acks(results)}\n"
    )


def _lines(results: Results) -> list[Line]:
    """Return what a panel costs the kernel and the page, and how soon it is there."""
    panels, sockets, w2 = "nbpipe-panels_share", "IOPub_share", "cpu_us_per_item"

    def of(workload: str, name: str, value: str) -> list[float]:
        return list(results.by_round(workload, name, value).values())

    six, paint = partial(of, "six stages"), partial(of, "first paint")
    sent, added = partial(of, "messages", "open"), partial(_added, results)
    return [
        Line("six stages: an open view adds", "%", added("kernel_share"), 0.005),
        Line("- its thread alone", "%", six("open", panels)),
        Line("- the thread that writes to sockets", "%", added(sockets)),
        Line("- the kernel without a view", "%", six("no view", "kernel_share")),
        Line("W2: an open view adds, CPU per item", "%", _extra(results, "open"), 0.01),
        Line("- its threads alone, of the process", "%", _own(results), 0.01),
        Line("W2: no view adds, CPU per item", "%", _extra(results, "no view"), 0.0),
        Line("- its thread alone, of a core", "%", of("W2", "no view", panels), 0.0),
        Line("- CPU per item, never shown", "µs", of("W2", "plain", w2)),
        Line("browser: the panel adds to its page", "%", added("renderer_share"), 0.08),
        Line("- to all of Chromium", "%", added("chromium_share")),
        Line("- the page without a view", "%", six("no view", "renderer_share")),
        Line("a tick", "B", sent("tick_bytes")),
        Line("- in a second", "1/s", sent("ticks_per_s")),
        Line("a hello", "B", sent("hello_bytes")),
        Line("the widget, once", "B", paint("shown", "widget_bytes")),
        Line("display message to first paint", "s", paint("shown", "paint_s"), 0.3),
        Line("- from the execution of the cell", "s", paint("shown", "whole_s")),
        Line("reload: state of the widget to paint", "s", paint("reload", "paint_s"), 0.3),
        Line("- from the reload", "s", paint("reload", "whole_s")),
    ]


def _added(results: Results, value: str) -> list[float]:
    """Give what an open view adds to a number of the six stages, round by round."""
    opened, none = (results.by_round("six stages", name, value) for name in ("open", "no view"))
    return [opened[turn] - none[turn] for turn in opened if turn in none]


def _extra(results: Results, name: str) -> list[float]:
    """Give by how much an item costs more than one of a run never shown, round by round."""
    value = "cpu_us_per_item"
    plain = results.by_round("W2", "plain", value)
    return [found - 1 for found in ratios(results.by_round("W2", name, value), plain)]


def _own(results: Results) -> list[float]:
    """Give the share of the process that the panel's threads have, round by round."""
    panels, sockets, whole = (
        results.by_round("W2", "open", f"{name}_share")
        for name in ("nbpipe-panels", "IOPub", "kernel")
    )
    before = results.by_round("W2", "no view", "IOPub_share")
    own = {turn: panels[turn] + sockets[turn] - before.get(turn, 0.0) for turn in panels}
    return ratios(own, whole)


def _acks(results: Results) -> str:
    """Give the table of key presses."""
    times = ("median_s", "worst_s", "step_s")
    rows = [
        [one.contender, *(f"{1000 * one.values[name]:.0f} ms" for name in times), one.note]
        for one in results.measurements
        if one.workload == "acks" and one.values
    ]
    return markdown(("key press to ack", "median", "worst", "a step takes", ""), rows)


def inside(rows: Sequence[Any], window: Window) -> dict[str, float]:
    """Give what a log says of a window.

    Args:
        rows: time of day [s], CPU time of the process [s], items so far, and by name of thread
            the CPU time of each thread of that name [s].
        window: the time to look at.

    Raises:
        ValueError: there are fewer than two rows in it.
    """
    found = [row for row in rows if window[0] <= row[0] <= window[1]]
    if len(found) < 2:
        raise ValueError(f"a window needs at least 2 rows of the log, got {len(found)}")
    (since_s, cpu_since_s, items_since, before), *_, (until_s, cpu_s, items, after) = found
    elapsed_s, spent_s, passed = until_s - since_s, cpu_s - cpu_since_s, items - items_since
    numbers = {"kernel_share": spent_s / elapsed_s, "items_per_s": passed / elapsed_s}
    if passed:
        numbers["cpu_us_per_item"] = 1e6 * spent_s / passed
    for name, threads in after.items():
        own_s = sum(own_s - before[name].get(thread, 0.0) for thread, own_s in threads.items())
        numbers[f"{name}_share"] = own_s / elapsed_s
    return numbers
