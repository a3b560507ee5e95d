"""Ranges in the trace of a torch profiler: waits of the training loop, and calls of the stages.

A profiler shows the ranges of the thread that started it; with `profile_all_threads`, of all.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

from .interface import Work

PROFILER = "torch.autograd.profiler"


def profiler_at_work() -> Any:
    """Return torch's module of the profiler while one records, else None."""
    module = sys.modules.get(PROFILER)
    return module if getattr(module, "_is_profiler_enabled", False) else None


def wait_range() -> AbstractContextManager[object] | None:
    """Return a range that shows a wait of the training loop; None while no profiler records."""
    profiler = profiler_at_work()
    return None if profiler is None else profiler.record_function("nbpipe: waits for data")


def perform_in_range(work: Work, profiler: Any) -> None:
    """Do a piece of work in a range with the names of its stages."""
    with profiler.record_function(f"nbpipe: {work.title}"):
        work.perform(work)
