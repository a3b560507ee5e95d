"""The kernel of a notebook: widgets are answered from inside a running cell.

All that nbpipe knows of ipykernel's private parts stands here: `Pump` answers what waits, `Inbox`
takes it from the kernel's stream, `Shield` keeps interrupts back meanwhile, `cure` sets right how
the messages of one widget travel, and `cure_streams` how a thread that prints finds its cell.
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
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from inspect import isawaitable, iscoroutine
from time import monotonic
from types import FrameType
from typing import Any, Protocol, final

from ..base.threads import leave_behind

LOG = logging.getLogger("nbpipe")
INTERVAL_S = 0.03  # between two looks [s]
LIMIT = 100  # messages taken at once
PATIENCE_S = 0.5  # what takes longer can be interrupted [s]
COMM = frozenset({"comm_open", "comm_msg", "comm_close"})
# What a page that is reloaded asks before its widgets come back.
QUERIES = frozenset({"kernel_info_request", "comm_info_request"})

# The execution of the cell whose code is running; the code that answers a message has none.
execution_of_cell: ContextVar[object] = ContextVar("nbpipe_execution", default=None)

Message = dict[str, Any]
Frames = list[Any]  # a message as it came


class IpyKernel(Protocol):
    """What is used of ipykernel's kernel."""

    session: Any
    log: logging.Logger
    shell_handlers: dict[str, Callable[[Any, list[bytes], Message], object]]
    _parent_ident: Any

    def get_parent(self, channel: str) -> Message:
        """Return the request that output belongs to."""

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
        _require(kernel, "session.feed_identities", "session.deserialize", "session.unpack")
        _require(kernel, "shell_handlers", "get_parent", "set_parent", "log.exception")
        _require(kernel, "_parent_ident", "_publish_status")
        self._kernel: IpyKernel = kernel
        self._inbox = Inbox(kernel)
        self._kinds = _answered_at_once(kernel)
        self._thread = threading.main_thread().ident
        self._process = os.getpid()
        self._due_s = 0.0
        self._at_work = False
        self._off = False

    @staticmethod
    def of(shell: object) -> Pump | None:
        """Return the pump of the kernel that a shell runs in.

        Args:
            shell: IPython's, or None.

        Returns:
            The pump, always the same for one kernel; None outside a kernel, and in one that lacks
            a part that is needed, which one warning reports.
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
        execution_of_cell.set(None)
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

    ANSWER = _answer.__code__  # above its frame is the running cell


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


def _answered_at_once(kernel: IpyKernel) -> frozenset[str]:
    """Name what is answered in mid-cell: a subclass's own queries may wait for something."""
    own = {
        kind
        for kind in QUERIES
        if getattr(kernel.shell_handlers.get(kind), "__module__", "").startswith("ipykernel.")
    }
    return COMM | own


def _hand_to_widget(kernel: IpyKernel, message: Message) -> bool:
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
    """Return whether the caller is part of a running cell."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in ("run_cell", "run_cell_async"):
            return True
        frame = frame.f_back
    return False


# -- what waits for the kernel's main shell --------------------------------------------------------
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
        _require(self._stream, "socket.recv_multipart", "io_loop.asyncio_loop", "flush")
        _require(self._stream, "_recv_callback", "_recv_copy")
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
        """Take the wanted messages; the kernel gets the others in the order of arrival."""
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
        # The remaining messages cause no event: the event loop is asked to look.
        Context().run(self._stream.io_loop.add_callback, self._stream.flush)
        return found

    def hand_back(self, frames: Frames) -> None:
        """Hand a message to the kernel, which does what it would have done without us."""
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


def _require(owner: object, *paths: str) -> None:
    """Raise AttributeError where an object lacks an attribute, or an attribute of one."""
    for path in paths:
        found = owner
        for name in path.split("."):
            found = getattr(found, name)


# -- interrupts wait while messages are in hand ----------------------------------------------------
@final
class Shield:
    """Keeps interrupts back while messages are in hand; entered in the main thread.

    Attributes:
        pierced: an interrupt was let through to a handler that took too long.
    """

    def __init__(self) -> None:
        self.pierced = False
        self._kept: tuple[int, FrameType | None] | None = None
        self._patience_ends_s: float | None = None
        self._handler: Any = None

    def __enter__(self) -> None:
        # A handler that was not installed from Python cannot be put back.
        if signal.getsignal(signal.SIGINT) is not None:
            self._handler = signal.signal(signal.SIGINT, self._keep)

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self._kept = number, frame
        if self._patience_ends_s is not None and monotonic() > self._patience_ends_s:
            self.pierced = True
            raise KeyboardInterrupt

    @contextmanager
    def patience(self) -> Generator[None]:
        """Interrupt what runs for too long within, where an interrupt came."""
        self._patience_ends_s = monotonic() + PATIENCE_S
        try:
            yield
        finally:
            self._patience_ends_s = None

    def release(self) -> None:
        """Pass on the interrupt that was kept back, if there was one."""
        if self._kept is not None and callable(self._handler):
            self._handler(*self._kept)


# -- a comm that is not announced ------------------------------------------------------------------
def unannounced_comm(
    kernel: object, target: str, handle_msg: Callable[[Message], object]
) -> Any | None:
    """Open a comm that a front end finds when it asks for `target`; nothing is sent.

    Args:
        kernel: ipykernel's.
        target: the comm's target, which a front end need not know.
        handle_msg: called with what a front end sends, in any thread.

    Returns:
        The comm; None where the kernel has none.
    """
    manager = getattr(kernel, "comm_manager", None)
    if manager is None:
        return None
    from comm import create_comm

    comm: Any = create_comm(target_name=target, primary=False)
    comm.kernel = kernel  # else it is known from the first message on, and is cured before
    manager.register_comm(comm)
    cure(comm, handle_msg)
    return comm


def forget_comm(comm: Any) -> None:
    """Close a comm that was not announced, without a message."""
    comm.kernel.comm_manager.comms.pop(comm.comm_id, None)
    comm._closed = True


# -- cures for some habits of ipykernel, each on one comm only -------------------------------------
def cure(comm: Any, handle_msg: Callable[[Message], object] | None = None) -> None:
    """Set right how messages of one of our own widgets travel; does nothing where all is well.

    Args:
        comm: the widget's, or None.
        handle_msg: the widget's handler. Messages go straight to it: the hooks of a cell's end,
            which show and close half-drawn figures, are left out.
    """
    if hasattr(comm, "_reply_subshell_for"):  # ipykernel 7.4 sends to the last publisher
        comm._reply_subshell_for = partial(_subshell_for, comm)
    if hasattr(comm, "publish_msg"):
        _let_threads_publish(comm)
    if handle_msg is not None and hasattr(comm, "handle_msg"):
        comm.handle_msg = handle_msg


def _subshell_for(comm: Any, _data: object, asked: str | None) -> str | None:
    """Return the subshell that a message asks for, None, the main shell, where it is gone.

    JupyterLab deletes the subshell of a page's widgets with the last of them, also where a new one
    has just been given it: what that sends would be refused, and never heard.
    """
    channel = getattr(comm.kernel, "shell_channel_thread", None)
    listed = getattr(getattr(channel, "manager", None), "list_subshell", None)
    return asked if listed is None or asked in listed() else None


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


@final
class _Ancestors(dict[int, int]):
    """Which thread was started by which, by their numbers; never in a circle.

    Attributes:
        orphaned: called with the number of a thread that no known thread has started.
    """

    def __init__(self, known: Mapping[int, int]) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.orphaned: Callable[[int], object] = id
        for number, parent in tuple(known.items()):
            self[number] = parent

    def __setitem__(self, number: int, parent: int) -> None:
        if _is_of_run(parent):
            self.pop(number, None)
            self.orphaned(number)
            return
        with self._lock:
            above: int | None = parent
            while above is not None and above != number:
                above = self.get(above)
            if above is not None:  # the numbers are those of other threads by now
                self.pop(parent, None)
            if parent != number:
                super().__setitem__(number, parent)


@final
class _Requests(dict[int, Message]):
    """The request that output of a thread belongs to; such a thread has no ancestor."""

    def __init__(self, known: Mapping[int, Message], ancestors: _Ancestors) -> None:
        super().__init__(known)
        self._ancestors = ancestors
        ancestors.orphaned = lambda number: self.pop(number, None)

    def __setitem__(self, number: int, request: Message) -> None:
        self._ancestors.pop(number, None)  # that of a thread that is gone
        super().__setitem__(number, request)


def _is_of_run(parent: int) -> bool:
    """Return whether the current thread works for a run, and a bare thread has started it.

    Such a thread is gone at once, and is in no list: its number is soon that of another thread.
    """
    ours = threading.current_thread().name.startswith("nbpipe-")
    return ours and parent not in {thread.ident for thread in threading.enumerate()}


def cure_streams() -> None:
    """Let what threads and other processes print stand below the cell that is under way.

    A thread that belongs to no message prints below the last one, be that the message of a widget
    which a subshell has answered meanwhile; so does what worker processes print. Nothing shows it
    there: such messages count for their own thread.

    Before 7.4 ipykernel looks for the thread that began all, from parent to parent, when a thread
    prints. Numbers are used again: what it knows of a thread may be of one that is gone, and two
    that have become each other's parents it follows for ever.
    """
    for stream in (sys.stdout, sys.stderr):
        parents = getattr(stream, "_thread_to_parent", None)
        requests = getattr(stream, "_thread_to_parent_header", None)
        if type(parents) is dict and type(requests) is dict:
            ancestors = _Ancestors(parents)
            vars(stream).update(
                _thread_to_parent=ancestors, _thread_to_parent_header=_Requests(requests, ancestors)
            )
        if isinstance(getattr(stream, "_parent_header", None), ContextVar):
            vars(stream)["set_parent"] = partial(_set_parent, stream)


def cure_contexts(shell: Any) -> None:
    """Let what the threads of a run print and show stand below the cell that is under way.

    They take over the context of the cell that starts the epoch. A later cell may read on in it.
    """
    leave_behind(execution_of_cell)
    publishers = (shell.displayhook, shell.display_pub, sys.stdout, sys.stderr)
    for owner in (shell, shell.kernel, *publishers):
        for value in getattr(owner, "__dict__", {}).values():
            if isinstance(value, ContextVar):
                leave_behind(value)


def _set_parent(stream: Any, parent: Mapping[str, Any]) -> None:
    """Note which message a stream's output belongs to."""
    from jupyter_client.session import extract_header

    kind = parent.get("header", {}).get("msg_type")
    if kind == "execute_request" or threading.current_thread() is threading.main_thread():
        type(stream).set_parent(stream, parent)
    else:
        stream._parent_header.set(extract_header(parent))
