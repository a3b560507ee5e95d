"""What runs on the workers of a Dask cluster; loaded where Dask is used, and nowhere else."""

from __future__ import annotations

import functools
import signal
import threading
import uuid
from typing import Any

from distributed import WorkerPlugin, get_worker

from ..errors import UnpicklableError
from .futures import Payload, run_shipped

_PROCESS = uuid.uuid4().hex


class IgnoreInterrupts(WorkerPlugin):  # type: ignore[misc]
    """Lets a worker process live on when the notebook's stop button is pressed.

    The interrupt goes to every process of the notebook's group. Only workers with a nanny ignore
    it, for the nanny ends them; a worker in the process of the notebook itself changes nothing.
    """

    name = "nbpipe-ignore-interrupts"

    def __init__(self) -> None:
        self._home = _PROCESS

    def setup(self, worker: Any) -> None:
        """Ignore SIGINT in this worker's process."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if worker.nanny and in_main_thread and self._home != _PROCESS:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_task(
    parts: tuple[Any, ...], data: bytes, tell: tuple[str, str] | None
) -> Payload | UnpicklableError | None:
    """Do the work of one task.

    Args:
        parts: digest of the program, entries, number of the epoch, whether it expands.
        data: the program.
        tell: a topic, and what to say there when a call of a function begins.
    """
    digest, entries, epoch, expands = parts
    begun = None if tell is None else functools.partial(_tell, *tell)
    try:
        return run_shipped(digest, data, entries, epoch, expands=expands, begun=begun)
    except UnpicklableError as error:  # returned: what is raised, Dask also writes to its log
        return error


def _tell(topic: str, call: str, _: int) -> None:
    get_worker().log_event(topic, call)
