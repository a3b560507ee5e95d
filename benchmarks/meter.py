"""Meter: wall time, CPU time and threads of this process."""

from __future__ import annotations

import resource
import threading
import time


def cpu_s() -> float:
    """Give the CPU seconds of this process and of the children it has waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def live_children_cpu_s() -> float:
    """Give the CPU seconds of child processes that are still running."""
    import psutil

    total = 0.0
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system
    return total


class Meter:
    """Wall and CPU time since it was made; what the process had spent before is left out."""

    def __init__(self) -> None:
        self._cpu_s = cpu_s()
        self.start_s = time.perf_counter()
        self.threads = threading.active_count()

    def elapsed_s(self) -> float:
        """Give the wall time since the start [s]."""
        return time.perf_counter() - self.start_s

    def cpu_s(self) -> float:
        """Give the CPU time since the start, children included [s]."""
        return cpu_s() - self._cpu_s

    def threads_left(self) -> int:
        """Give the number of threads beyond those at the start."""
        return threading.active_count() - self.threads
