"""Cures for some habits of ipykernel, each on one comm only."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

Message = dict[str, Any]


def cure(comm: Any, handle_msg: Callable[[Message], object] | None = None) -> None:
    """Set right how messages of one of our own widgets travel; does nothing where all is well.

    Args:
        comm: the widget's, or None.
        handle_msg: the widget's handler. Messages go straight to it: the hooks of a cell's end,
            which show and close half-drawn figures, are left out.
    """
    if hasattr(comm, "_reply_subshell_for"):  # ipykernel 7.4 sends to whoever published last
        comm._reply_subshell_for = _where_it_was_sent
    if hasattr(comm, "publish_msg"):
        _let_threads_publish(comm)
    if handle_msg is not None and hasattr(comm, "handle_msg"):
        comm.handle_msg = handle_msg


def _where_it_was_sent(_data: object, default: str | None) -> str | None:
    return default


def _let_threads_publish(comm: Any) -> None:
    """On ipykernel 7.0, a thread publishes only if it knows the cell that it belongs to."""
    parent = getattr(getattr(comm, "kernel", None), "_shell_parent", None)
    if not isinstance(parent, ContextVar) or hasattr(comm.kernel, "_shell_context"):
        return
    context, publish = copy_context(), comm.publish_msg

    def publish_msg(*args: Any, **keywords: Any) -> None:
        known = parent.get(None) is not None
        (copy_context() if known else context.copy()).run(publish, *args, **keywords)

    comm.publish_msg = publish_msg
