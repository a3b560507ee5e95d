"""Columns: which numbers of a workload stand in its table, and in what unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        title: heading, with the unit.
        value: name of the number in a measurement.
        scale: what the number is multiplied by.
    """

    title: str
    value: str
    scale: float = 1.0


STREAM = (
    Column("items/s", "items_per_s"),
    Column("steady items/s", "steady_per_s"),
    Column("us/item", "us_per_item"),
    Column("CPU us/item", "cpu_us_per_item"),
    Column("first ms", "first_s", 1e3),
    Column("close ms", "close_s", 1e3),
)
WARM = (
    Column("items/s", "items_per_s"),
    Column("us/item", "us_per_item"),
    Column("CPU us/item", "cpu_us_per_item"),
)
RESTART = (
    Column("first batch ms", "first_s", 1e3),
    Column("cold ms", "first_cold_s", 1e3),
    Column("close ms", "close_s", 1e3),
    Column("beyond the running task ms", "close_beyond_task_s", 1e3),
    Column("worst ms", "close_beyond_task_max_s", 1e3),
    Column("calls after close", "late_calls"),
    Column("threads left", "threads_left"),
)
LIVE = (
    Column("growth ms", "grow_s", 1e3),
    Column("growth p95 ms", "grow_p95_s", 1e3),
    Column("shrink beyond the running task ms", "shrink_s", 1e3),
    Column("surplus starts", "surplus_starts"),
    Column("out of order", "disordered"),
)
POLLING = (
    Column("CPU us/item, nobody reads", "cpu_us_per_item_plain"),
    Column("CPU us/item, 4 Hz", "cpu_us_per_item_polled"),
    Column("reader's CPU, % of the epoch's", "added_share", 100),
    Column("reader's CPU, % of a core", "of_a_core", 100),
)
IDLE = (
    Column("blocked, % of a core", "blocked_share", 100),
    Column("paused, % of a core", "paused_share", 100),
    Column("processes", "processes"),
)

RATED = ("stream", "warm")  # measures that have items per second, and so ratios
COLUMNS = {
    "stream": STREAM,
    "warm": WARM,
    "restart": RESTART,
    "live": LIVE,
    "polling": POLLING,
    "idle": IDLE,
}
