"""A second connection to a process that was started with one."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from ..executors.launch import Worker


def handed_over(worker: Worker) -> Connection:
    """Give our end of a new connection to a worker that calls `taken_over` first.

    Raises:
        OSError: the worker is gone, or files have run out.
    """
    ours, theirs = Pipe()
    try:
        with theirs:
            send_handle(worker.connection, theirs.fileno(), worker.pid)
    except BaseException:
        ours.close()
        raise
    return ours


def taken_over(connection: Connection) -> Any:
    """Give the other end; a process that user code starts here does not get it."""
    handle = recv_handle(connection)
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        return PipeConnection(handle)
    os.set_inheritable(handle, False)  # noqa: FBT003
    second = Connection(handle)
    os.register_at_fork(after_in_child=second.close)
    return second
