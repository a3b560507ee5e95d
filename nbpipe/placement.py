"""Placement: where the calls of a stage run, when they do not run in the run's own threads."""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import ArgumentError

WORDS = ("process", "dask")
MAX_PROCESSES = 256


@dataclass(frozen=True, slots=True)
class Placement:
    """Workers outside the run's threads.

    Attributes:
        executor: "process", "dask", "executor" or "device": the thread of a device.
        given: the executor object, Dask client or `DaskExecutor`, where one was given; the
            `Target` of a device.
        worker_init: called once in each worker, before its first item.
        max_items_per_worker: a worker is replaced after so many items [items].
        copy: results are copied out of shared memory; False gives views of it.
        region: neighbours that agree with it are run together, item by item, in one worker.
    """

    executor: str
    given: object = None
    worker_init: Callable[[], object] | None = None
    max_items_per_worker: int | None = None
    copy: bool = True
    region: bool = True

    @property
    def limit(self) -> str:
        """The knob that stages share where they share workers."""
        return "depth" if self.executor == "device" else "concurrency"

    @property
    def most_calls(self) -> int:
        """The most calls that may be in progress at once [calls]."""
        return MAX_PROCESSES if self.executor == "process" else 1024

    def joins(self, above: Placement) -> bool:
        """Say whether a stage placed here may share the workers of the stage above it."""
        return (
            self.region
            and above.region
            and self.executor == above.executor
            and self.given is above.given
            and self.worker_init in (None, above.worker_init)
            and self.max_items_per_worker in (None, above.max_items_per_worker)
        )


def placed(name: str, executor: object) -> tuple[str, object] | None:
    """Give the word and the object of an executor outside the run's threads, or None.

    Raises:
        ArgumentError: a class instead of an object of it.
    """
    if isinstance(executor, str):
        return (executor, None) if executor in WORDS else None
    if isinstance(executor, type):
        raise ArgumentError(
            f"{name} executor must be an executor, got the class {executor.__name__}; "
            f"make one: {executor.__name__}(...)"
        )
    if isinstance(executor, concurrent.futures.Executor):
        return ("executor", executor)
    return ("dask", executor) if _is_dask(executor) else None


def _is_dask(value: object) -> bool:
    distributed: Any = sys.modules.get("distributed")
    client = getattr(distributed, "Client", None)
    if client is not None and isinstance(value, client):
        return True
    return type(value).__name__ == "DaskExecutor" and hasattr(value, "client")
