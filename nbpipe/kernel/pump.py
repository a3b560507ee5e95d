"""Pump: answers widgets from inside a running cell."""

from __future__ import annotations

import logging
import os
import sys
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from inspect import iscoroutine
from time import monotonic
from types import FrameType
from typing import Any, Protocol, final

from .inbox import Frames, Inbox, require
from .interrupts import Shield

INTERVAL_S = 0.03  # between two looks [s]
COMM = frozenset({"comm_open", "comm_msg", "comm_close"})
# What a page that is reloaded asks before its widgets come back.
QUERIES = frozenset({"kernel_info_request", "comm_info_request"})
LOG = logging.getLogger("nbpipe")

Message = dict[str, Any]


class Kernel(Protocol):
    """What is used of ipykernel's kernel."""

    session: Any
    log: logging.Logger
    shell_handlers: dict[str, Callable[[Any, list[bytes], Message], object]]
    _parent_ident: Any

    def get_parent(self, channel: str) -> Message:
        """Give the request that output belongs to."""

    def set_parent(self, ident: Any, parent: Message, channel: str) -> None:
        """Set the request that output belongs to."""

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None: ...


@final
class Pump:
    """Answers widgets, and a page that is reloaded, from inside a running cell.

    Args:
        kernel: ipykernel's.

    Raises:
        AttributeError: a part that is needed is missing.
    """

    def __init__(self, kernel: Any) -> None:
        require(kernel, "session.feed_identities", "session.deserialize", "session.unpack")
        require(kernel, "shell_handlers", "get_parent", "set_parent", "log.exception")
        require(kernel, "_parent_ident", "_publish_status")
        self._kernel: Kernel = kernel
        self._inbox = Inbox(kernel)
        self._kinds = _answered_at_once(kernel)
        self._thread = threading.main_thread().ident
        self._process = os.getpid()
        self._due_s = 0.0
        self._at_work = False
        self._off = False

    @staticmethod
    def of(shell: object) -> Pump | None:
        """Give the pump of the kernel that a shell runs in.

        Args:
            shell: IPython's, or None.

        Returns:
            The pump, always the same for one kernel; None outside a kernel, and in one that lacks
            a part that is needed, which is said once in a warning.
        """
        kernel = getattr(shell, "kernel", None)
        if kernel is None:
            return None
        if not _found or _found[0][0] is not kernel:
            _found[:] = [(kernel, _pump_of(kernel))]
        return _found[0][1]

    def poll(self) -> int:
        """Answer what waits; does nothing more often than every 30 ms, or in another thread.

        Raises:
            KeyboardInterrupt: the kernel was interrupted meanwhile; no message is lost.

        Returns:
            The number of messages answered.
        """
        if monotonic() < self._due_s or get_ident() != self._thread:
            return 0
        if self._off or self._at_work or os.getpid() != self._process or not self._inbox.is_ours:
            self._due_s = monotonic() + INTERVAL_S
            return 0
        return self._work()

    def _work(self) -> int:
        answered = 0
        shield = Shield()
        try:
            with shield:
                answered = self._answer_all(shield)
        except Exception:
            self._off = True
            LOG.warning(
                "widgets stay still from now on while a cell runs, and catch up when it ends: "
                "answering them failed",
                exc_info=True,
            )
        shield.release()
        return answered

    def _answer_all(self, shield: Shield) -> int:
        self._at_work = True
        waiting: deque[Frames] = deque()
        answered = 0
        try:
            waiting.extend(self._inbox.take(self._is_wanted))
            while waiting and not shield.pierced:
                # What is set on the way stays out of the context of the running cell.
                copy_context().run(self._answer, waiting.popleft(), shield)
                answered += 1
        finally:
            while waiting:
                self._inbox.hand_back(waiting.popleft())
            if answered and _in_cell():
                self._kernel._publish_status("busy", "shell")  # as the cell still is
            self._at_work = False
            self._due_s = monotonic() + INTERVAL_S
        return answered

    def _is_wanted(self, frames: Frames) -> bool:
        session = self._kernel.session
        try:
            _, parts = session.feed_identities(frames, copy=self._inbox.copies)
            header = parts[1] if self._inbox.copies else parts[1].bytes
            return session.unpack(header)["msg_type"] in self._kinds
        except (ValueError, LookupError, TypeError, AttributeError):  # the kernel's affair
            return False

    def _answer(self, frames: Frames, shield: Shield) -> None:
        kernel, copies = self._kernel, self._inbox.copies
        try:
            idents, parts = kernel.session.feed_identities(frames, copy=copies)
            message = kernel.session.deserialize(parts, content=True, copy=copies)
        except Exception:
            kernel.log.exception("Invalid message")
            return
        ident, parent = kernel._parent_ident["shell"], kernel.get_parent("shell")
        kernel._publish_status("busy", "shell", parent=message)
        try:
            self._handle(idents, message, shield)
        finally:
            kernel.set_parent(ident, parent, channel="shell")
            kernel._publish_status("idle", "shell", parent=message)
            self._inbox.send()

    def _handle(self, idents: list[bytes], message: Message, shield: Shield) -> None:
        kernel = self._kernel
        kernel.set_parent(idents, message, channel="shell")
        try:
            with shield.patience():
                if not _hand_to_widget(kernel, message):
                    handler = kernel.shell_handlers[message["header"]["msg_type"]]
                    _complete(handler(self._inbox.replies, idents, message))
        except BaseException:  # whatever it is, the running cell has no part in it
            kernel.log.exception("Exception in message handler")
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()


_found: list[tuple[object, Pump | None]] = []  # the kernel of this process, and its pump


def _pump_of(kernel: object) -> Pump | None:
    try:
        return Pump(kernel)
    except AttributeError as error:
        LOG.warning(
            "sliders and buttons of nbpipe stay still while a cell runs, and take effect when it "
            "ends: %s is not known to nbpipe (%s); ipykernel 6.29 to 7.4 are",
            _name(kernel),
            error,
        )
        return None


def _name(kernel: object) -> str:
    package = sys.modules.get("ipykernel")
    if any(cls.__module__.startswith("ipykernel.") for cls in type(kernel).__mro__):
        return f"ipykernel {getattr(package, '__version__', '')}".strip()
    return f"the kernel {type(kernel).__name__}"


def _answered_at_once(kernel: Kernel) -> frozenset[str]:
    """Name what is answered in mid-cell: a subclass's own queries may wait for something."""
    own = {
        kind
        for kind in QUERIES
        if getattr(kernel.shell_handlers.get(kind), "__module__", "").startswith("ipykernel.")
    }
    return COMM | own


def _hand_to_widget(kernel: Kernel, message: Message) -> bool:
    """Hand a comm message to its widget without the hooks of a cell's end.

    Those show and close the figures that the running cell has only half drawn.
    """
    if message["header"]["msg_type"] != "comm_msg":
        return False
    comms = getattr(getattr(kernel, "comm_manager", None), "comms", {})
    comm: Any = comms.get(message["content"].get("comm_id"))
    callback = getattr(comm, "_msg_callback", None)
    if callback is None or comm.handle_msg.__module__ != "comm.base_comm":
        return False
    callback(message)
    return True


def _complete(result: object) -> None:
    """Run a coroutine that waits for nothing."""
    if not iscoroutine(result):
        return
    try:
        result.send(None)
    except StopIteration:
        return
    result.close()
    raise RuntimeError("the answer was given up: it waits for something")


def _in_cell() -> bool:
    """Tell whether who looks is part of a cell that is under way."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in ("run_cell", "run_cell_async"):
            return True
        frame = frame.f_back
    return False
