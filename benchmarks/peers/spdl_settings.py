"""SPDL's settings that a job may ask for, the same for threads and processes."""

from __future__ import annotations

from typing import Any

from spdl.pipeline import AsyncQueue

from ..job import Job


class DeepQueue(AsyncQueue):
    """A queue of 64 between stages, where SPDL's own holds 2."""

    def __init__(self, info: Any, *, buffer_size: int = 1) -> None:
        super().__init__(info, buffer_size=max(buffer_size, 64))


def order(job: Job) -> str:
    """Give the order of the output: "input" or "completion"."""
    found: str = job.option("order", default="input")
    return found


def settings(job: Job) -> dict[str, Any]:
    """Give the arguments of `build`: statistics are off unless the job wants them."""
    found: dict[str, Any] = {"use_thread_output_queue": job.option("thread_queue", default=True)}
    if not job.option("hooks", default=False):
        found["task_hook_factory"] = _no_hooks
    if not job.option("queue_stats", default=False):
        deep = job.option("deep_queues", default=False)
        found["queue_class"] = DeepQueue if deep else AsyncQueue
    return found


def _no_hooks(_: object) -> list[Any]:
    return []
