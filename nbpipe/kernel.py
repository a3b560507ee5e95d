"""What nbpipe needs of ipykernel's private parts: all of it, and nowhere else.

A cell that runs keeps the kernel's main shell busy: what a widget sends waits until it ends.
The pump takes what waits from inside the running cell, answers widgets, and hands all the rest
back to the kernel. The cures set two of ipykernel's and comm's habits right, on our own widgets.

Seen to work with ipykernel 6.29 to 7.4. Where a part that is needed is missing, the pump is off.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from inspect import isawaitable, iscoroutine
from time import monotonic
from types import CodeType, FrameType
from typing import Any, Protocol, final

INTERVAL_S = 0.03  # between two looks [s]
LIMIT = 100  # messages taken at one look
PATIENCE_S = 0.5  # an answer that takes longer than this can be interrupted [s]
COMM = frozenset({"comm_open", "comm_msg", "comm_close"})
# What a page that is reloaded asks before its widgets come back.
QUERIES = frozenset({"kernel_info_request", "comm_info_request"})
LOG = logging.getLogger("nbpipe")

_Frames = list[Any]  # one message as it came: zmq frames
_Message = dict[str, Any]  # one message unpacked
_Handler = Callable[[object, list[bytes], _Message], object]


class Session(Protocol):
    """Packs and unpacks messages."""

    def feed_identities(self, frames: _Frames, copy: bool) -> tuple[list[bytes], _Frames]: ...  # noqa: D102, FBT001
    def deserialize(self, frames: _Frames, content: bool, copy: bool) -> _Message: ...  # noqa: D102, FBT001
    def unpack(self, frame: bytes) -> Any: ...  # noqa: D102


class Kernel(Protocol):
    """What is used of ipykernel's kernel."""

    session: Session
    log: logging.Logger
    shell_handlers: MutableMapping[str, _Handler]
    _parent_ident: Mapping[str, Any]

    def get_parent(self, channel: str) -> _Message: ...  # noqa: D102
    def set_parent(self, ident: Any, parent: _Message, channel: str) -> None: ...  # noqa: D102
    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None: ...


class Stream(Protocol):
    """What is used of a `ZMQStream`."""

    socket: Any
    io_loop: Any
    _recv_callback: Callable[[_Frames], object]
    _recv_copy: bool
