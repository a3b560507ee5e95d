"""Meter: wall time, CPU time and threads of this process."""

from __future__ import annotations

import resource
import threading
import time
from typing import Any


def cpu_s() -> float:
    """Give the CPU seconds of this process and of the children it has waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def live_children() -> int:
    """Give the number of processes below this one."""
    import psutil

    return len(psutil.Process().children(recursive=True))


def live_children_cpu_s() -> float:
    """Give the CPU seconds of processes below this one, and of those they have waited for."""
    import psutil

    return sum(_process_cpu_s(child) for child in psutil.Process().children(recursive=True))


def tree_cpu_s() -> float:
    """Give the CPU seconds of this process and of all below it, ended or still running."""
    return cpu_s() + live_children_cpu_s()


def _process_cpu_s(process: Any) -> float:
    import psutil

    try:
        return float(sum(process.cpu_times()[:4]))  # user, system, and those of its children
    except psutil.NoSuchProcess:  # it ended meanwhile: who waited for it counts its time
        return 0.0


class Meter:
    """Wall and CPU time since it was made; what the process had spent before is left out."""

    def __init__(self) -> None:
        self._cpu_s = cpu_s()
        self._switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        self.start_s = time.perf_counter()
        self.threads = threading.active_count()

    def elapsed_s(self) -> float:
        """Give the wall time since the start [s]."""
        return time.perf_counter() - self.start_s

    def cpu_s(self) -> float:
        """Give the CPU time since the start, children included [s]."""
        return cpu_s() - self._cpu_s

    def switches(self) -> int:
        """Return how often threads gave their core away of themselves since the start."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - self._switches

    def threads_left(self) -> int:
        """Give the number of threads beyond those at the start."""
        return threading.active_count() - self.threads
