"""Idle: the CPU time of an epoch that nobody takes a batch from, all its processes together."""

from __future__ import annotations

import time
from types import ModuleType

from .job import Job
from .meter import live_children, live_children_cpu_s

SETTLE_S = 1.0
Numbers = dict[str, float]


def measure(job: Job, shape: str, peer: ModuleType) -> Numbers:
    """Measure a blocked epoch and, where there is `pause()`, a paused one."""
    with peer.open_pipeline(job, shape) as iterator:
        next(iterator)
        time.sleep(SETTLE_S)
        blocked, processes = _share_of_a_core(job.window_s), 1 + live_children()
        numbers = {"blocked_share": blocked, "processes": processes}
        del iterator
    if hasattr(peer, "build"):
        with peer.build(job, shape).start() as run:
            batches = iter(run)
            next(batches)
            run.pause()
            time.sleep(SETTLE_S)
            numbers["paused_share"] = _share_of_a_core(job.window_s)
            del batches
    return numbers


def _share_of_a_core(window_s: float) -> float:
    children_s = live_children_cpu_s()  # looked up outside the window: it costs some itself
    start_s, own_s = time.perf_counter(), time.process_time()
    time.sleep(window_s)
    own_s = time.process_time() - own_s
    elapsed_s = time.perf_counter() - start_s
    return (own_s + live_children_cpu_s() - children_s) / elapsed_s
