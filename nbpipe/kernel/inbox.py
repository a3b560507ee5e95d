"""Inbox: the messages that wait for the kernel's main shell."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from inspect import isawaitable
from typing import Any, Protocol, final

LIMIT = 100  # messages taken at once
LOG = logging.getLogger("nbpipe")

Frames = list[Any]  # a message as it came


class Stream(Protocol):
    """What is used of a `ZMQStream`."""

    socket: Any
    io_loop: Any
    _recv_callback: Callable[[Frames], object]
    _recv_copy: bool

    def flush(self, flag: int) -> int:
        """Send what waits, receive what waits, or both."""


@final
class Inbox:
    """What waits for the kernel's main shell."""

    def __init__(self, kernel: Any) -> None:
        thread = getattr(kernel, "shell_channel_thread", None)
        self._queue: Any = None
        if thread is not None:  # ipykernel 7: a thread sorts messages by subshell
            manager = thread.manager
            self._stream: Stream = manager._shell_channel_to_main.to_stream
            self.replies: Any = manager.get_subshell_to_shell_channel_socket(None)
        else:
            self._stream = self.replies = kernel.shell_stream
            self._queue = getattr(kernel, "msg_queue", None)  # ipykernel 6: read, but not begun
            self._dispatch = getattr(kernel, "dispatch_shell", None)
        require(self._stream, "socket.recv_multipart", "io_loop.asyncio_loop", "flush")
        require(self._stream, "_recv_callback", "_recv_copy")
        self.copies = self._stream._recv_copy
        self._seen = -1  # number of the last message of the queue that was looked at
        self._tasks: set[asyncio.Future[Any]] = set()

    @property
    def is_ours(self) -> bool:
        """Whether this thread is the one that reads: its event loop is under way here."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        return loop is self._stream.io_loop.asyncio_loop

    def take(self, is_wanted: Callable[[Frames], bool]) -> list[Frames]:
        """Take what is wanted of what waits; the kernel gets the rest in the order of arrival."""
        found = self._take_queued(is_wanted)
        for frames in self._receive():
            if is_wanted(frames):
                found.append(frames)
            else:
                self.hand_back(frames)
        return found

    def _take_queued(self, is_wanted: Callable[[Frames], bool]) -> list[Frames]:
        queue, found = self._queue, []
        for _ in range(0 if queue is None else queue.qsize()):
            number, dispatch, arguments = entry = queue.get_nowait()
            known = number <= self._seen or dispatch != self._dispatch
            self._seen = max(self._seen, number)
            if not known and is_wanted(arguments[0]):
                found.append(arguments[0])
            else:
                queue.put_nowait(entry)
        return found

    def _receive(self) -> list[Frames]:
        import zmq

        found: list[Frames] = []
        while len(found) < LIMIT:
            try:
                found.append(self._stream.socket.recv_multipart(zmq.NOBLOCK, copy=self.copies))
            except zmq.Again:
                return found
        # What is left causes no event any more: the event loop is told to look.
        Context().run(self._stream.io_loop.add_callback, self._stream.flush)
        return found

    def hand_back(self, frames: Frames) -> None:
        """Let the kernel do with a message what it would have done without us."""
        try:
            Context().run(self._begin, frames)  # what it starts is no part of the running cell
        except Exception:
            LOG.exception("the kernel could not take a message back")

    def _begin(self, frames: Frames) -> None:
        result = self._stream._recv_callback(frames)
        if isawaitable(result):
            task = asyncio.ensure_future(result)
            self._tasks.add(task)  # the event loop holds it weakly
            task.add_done_callback(self._tasks.discard)

    def send(self) -> None:
        """Send replies now: the event loop, which would, is busy."""
        import zmq

        if self.replies is self._stream:
            self._stream.flush(zmq.POLLOUT)


def require(owner: object, *paths: str) -> None:
    """Raise AttributeError where an object lacks an attribute, or an attribute of one."""
    for path in paths:
        found = owner
        for name in path.split("."):
            found = getattr(found, name)
