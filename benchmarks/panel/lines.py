"""Lines: the table, and its goals."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ..ratios import median, ratios
from ..results import Results
from ..table import markdown, number


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: a number for each round, and the goal for their median."""

    what: str
    values: list[float]
    unit: str
    at_most: float | None = None

    def cells(self) -> list[str]:
        """Give goal, median, spread and verdict."""
        if not self.values:
            return [self.what, self._goal(), "-", "-", "0", "not measured"]
        found = median(self.values)
        middle = f"{self._text(min(self.values))} to {self._text(max(self.values))}"
        if len(self.values) > 3:
            low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
            middle = f"{self._text(low)} to {self._text(high)}"
        met = "" if self.at_most is None else "met" if found <= self.at_most else "missed"
        return [self.what, self._goal(), self._text(found), middle, str(len(self.values)), met]

    def _goal(self) -> str:
        return "" if self.at_most is None else f"at most {self._text(self.at_most)}"

    def _text(self, value: float) -> str:
        scaled = 100 * value if self.unit == "%" else value
        return f"{number(scaled) if abs(scaled) >= 0.001 else '0'} {self.unit}"


def _added(results: Results, value: str) -> list[float]:
    """Give what an open view adds to a number of the six stages, round by round."""
    opened, none = (results.by_round("six stages", name, value) for name in ("open", "no view"))
    return [opened[turn] - none[turn] for turn in opened if turn in none]


def _extra(results: Results, name: str, value: str = "cpu_us_per_item") -> list[float]:
    """Give by how much W2 costs more than where nothing was shown, round by round."""
    plain = results.by_round("W2", "plain", value)
    return [found - 1 for found in ratios(results.by_round("W2", name, value), plain)]


def _of(results: Results, workload: str, name: str, value: str) -> list[float]:
    return list(results.by_round(workload, name, value).values())


def lines(results: Results) -> list[Line]:
    """Give the lines of the table."""
    of = results
    six = (of, "six stages", "open")
    w2_own = [
        own / whole
        for own, whole in zip(
            _of(of, "W2", "open", "nbpipe-panels_share"),
            _of(of, "W2", "open", "kernel_share"),
            strict=True,
        )
    ]
    return [
        Line("six stages: kernel, open view added", _added(of, "kernel_share"), "%", 0.005),
        Line("- its thread alone", _of(*six, "nbpipe-panels_share"), "%"),
        Line("- thread that writes to sockets, added", _added(of, "IOPub_share"), "%"),
        Line("- kernel without a view", _of(of, "six stages", "no view", "kernel_share"), "%"),
        Line("W2: CPU per item, open view added", _extra(of, "open"), "%", 0.01),
        Line("- its thread alone, of the process", w2_own, "%"),
        Line("W2: CPU per item, no view added", _extra(of, "no view"), "%", 0.0),
        Line("- CPU per item, never shown", _of(of, "W2", "plain", "cpu_us_per_item"), "us"),
        Line("browser: page's process, added", _added(of, "renderer_share"), "%", 0.08),
        Line("- all of Chromium, added", _added(of, "chromium_share"), "%"),
        Line("- page without a view", _of(of, "six stages", "no view", "renderer_share"), "%"),
        Line("bytes of a tick", _of(of, "messages", "open", "tick_bytes"), "B"),
        Line("ticks in a second", _of(of, "messages", "open", "ticks_per_s"), "1/s"),
        Line("bytes of a hello", _of(of, "messages", "open", "hello_bytes"), "B"),
        Line(
            "display message to first paint", _of(of, "first paint", "shown", "paint_s"), "s", 0.3
        ),
        Line("- from the cell's execution", _of(of, "first paint", "shown", "whole_s"), "s"),
        Line(
            "reload: widget's state to paint", _of(of, "first paint", "reload", "paint_s"), "s", 0.3
        ),
        Line("- from the reload", _of(of, "first paint", "reload", "whole_s"), "s"),
    ]


def report(results: Results) -> str:
    """Give the tables."""
    head = ("", "goal", "median", "middle half", "rounds", "verdict")
    took = ("key press to ack", "median", "worst", "a step takes", "")
    rows = [
        [one.contender, *(f"{1000 * one.values[name]:.0f} ms" for name in
                          ("median_s", "worst_s", "step_s")), one.note]
        for one in results.measurements if one.workload == "acks"
    ]  # fmt: skip
    main_table = markdown(head, [line.cells() for line in lines(results)])
    versions = ", ".join(f"{k} {v}" for k, v in results.machine["versions"].items())
    return (
        f"# The live panel, {results.started}\n\n{results.machine['cores']} cores, "
        f"{results.machine['cpu']}, {results.machine['python']}. {versions}.\n\n"
        f"`{results.command}`\n\n{main_table}\n\n{markdown(took, rows)}\n"
    )
