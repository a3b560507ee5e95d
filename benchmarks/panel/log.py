"""Log: what the kernel noted of its own processor time, read by windows of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Window = tuple[float, float]  # from and until [s], time of day


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
