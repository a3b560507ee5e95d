"""Link: the process of an isolated run, as its parent sees it."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, final

from ...base.threads import Latch, uninterrupted
from ...engine.nodes.provenance import StageStates
from ...errors import WorkerDiedError, WorkerStartError
from ...executors.workers.channel import BUDGET_BYTES, Channel
from ...executors.workers.launch import LEAVE_S, Worker, launch
from ...executors.workers.worker import OUTPUT, show_output

_ENTRY = f"{__package__}.child:serve"
STATE_S = 10.0  # longest wait for a state, without which a training cannot be saved
_RING_SHARE = 4  # shared memory gets a quarter of a run's memory budget
_END = None


def second_connection(worker: Worker) -> Connection:
    """Open a second connection to a worker, which must call `received_connection` first.

    Raises:
        OSError: the worker is gone, or no more files can be opened.
    """
    ours, theirs = Pipe()
    try:
        with theirs:
            send_handle(worker.connection, theirs.fileno(), worker.pid)
    except BaseException:
        ours.close()
        raise
    return ours


def received_connection(connection: Connection) -> Any:
    """Return the worker's end of it; processes that user code starts do not inherit it."""
    handle = recv_handle(connection)
    os.set_inheritable(handle, False)  # noqa: FBT003
    second = Connection(handle)
    os.register_at_fork(after_in_child=second.close)
    return second


class Beginning(NamedTuple):
    """How an epoch begins in the process.

    Attributes:
        program: number of the stages that it runs.
        epoch: number of the epoch.
        given: the indices of its order, or None for the pipeline's own.
        node_state: the states in which its stages begin.
        settings: settings of this process.
    """

    program: int
    epoch: int
    given: Sequence[Any] | None
    node_state: StageStates
    settings: bytes


class NoAnswerError(Exception):
    """The process did not answer in time, or is gone."""


@final
class Reply:
    """The answer to a request."""

    def __init__(self) -> None:
        self._arrived = Latch()
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def arrived(self) -> bool:
        """Whether the answer is here, or will never come."""
        return self._arrived.is_open

    def set(self, value: Any, error: BaseException | None = None) -> None:
        """Set the answer, or an error."""
        self._value, self._error = value, error
        self._arrived.open()

    def wait(self, timeout_s: float | None) -> Any:
        """Wait for the answer; with None, as long as it takes.

        Raises:
            NoAnswerError: it did not come in time.
            Exception: the process raised it.
        """
        if not self._arrived.wait(timeout_s):
            raise NoAnswerError
        if self._error is not None:
            raise self._error
        return self._value


@final
class Link:
    """A process with a pipeline: it answers requests, in `child`, and prints here.

    One thread starts it and sends requests, so that callers neither wait for a process that does
    not read, nor are interrupted in the middle of a message. Another thread receives the answers.
    Items take a way of their own, so that they wait for neither thread: see `RemoteIterator`.

    Args:
        title: addresses of the stages, for messages.
        memory_bytes: the run's budget for all buffers [bytes], or None.

    Attributes:
        answer_s: longest wait for an answer: after it, the process counts as busy [s].
        loading: the answer to the last "load".
        served: it has sent items.
    """

    answer_s = 1.0

    def __init__(self, title: str, *, memory_bytes: int | None) -> None:
        self.loading = Reply()
        self.served = False
        self._title = title
        self._budget_bytes = BUDGET_BYTES if memory_bytes is None else memory_bytes // _RING_SHARE
        self._worker: Worker | None = None
        self._connection: Connection | None = None
        self._control: Channel | None = None
        self._data: Channel | None = None
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._replies: dict[int, Reply] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()  # garbage collection may call us while we hold it
        self._started = Latch()
        self._error: BaseException | None = None
        self._gone = self._closed = False
        self._sender = _daemon(self._send, "nbpipe-isolated-send")
        self._receiver = _daemon(self._receive, "nbpipe-isolated-receive")
        uninterrupted(self._sender.start)

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return 0 if self._worker is None else self._worker.pid

    @property
    def gone(self) -> bool:
        """Whether the process has ended, or could not start."""
        return self._gone or (self._worker is not None and self._worker.wait(0) is not None)

    @property
    def is_open(self) -> bool:
        """Whether the process runs."""
        return self._started.is_open and not self._gone

    @property
    def is_loaded(self) -> bool:
        """Whether the process runs and has its stages."""
        return self.is_open and (self.loading.arrived or self.served)

    def data(self) -> Channel:
        """Wait for the start of the process; return the channel for items, for one thread.

        Raises:
            WorkerStartError: it could not be started.
        """
        self._started.wait()
        if self._data is None:
            raise WorkerStartError(
                f"the process of the run '{self._title}' could not be started: {self._error}"
            ) from self._error
        return self._data

    def died(self) -> WorkerDiedError:
        """Return the error that says how the process ended."""
        assert self._worker is not None
        return WorkerDiedError(
            f"the process of the run '{self._title}' (process {self.pid}) died "
            f"{self._worker.end()}; the next epoch starts a new one",
            executor="process",
        )

    # -- requests -------------------------------------------------------------------------
    def ask(self, what: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """Send a request and wait for the answer, `answer_s` if nothing else is given.

        Raises:
            NoAnswerError: it did not come in time.
            Exception: the process raised it.
        """
        return self.request(what, *arguments).wait(
            self.answer_s if timeout_s is None else timeout_s
        )

    def request(self, what: str, *arguments: Any) -> Reply:
        """Send a request; return its `Reply` at once."""
        reply = Reply()
        with self._lock:
            number = next(self._numbers)  # under the lock: the counter alone may repeat a number
            if self._gone:
                reply.set(None, NoAnswerError())
                return reply
            self._replies[number] = reply
        self._requests.put((number, what, *arguments))
        return reply

    # -- the two threads ------------------------------------------------------------------
    def _send(self) -> None:
        """Start the process, then send requests, one after the other."""
        try:
            self._control, self._data = self._start()
            self._receiver.start()
        except BaseException as error:  # noqa: BLE001  `data` raises it
            self._error = error
            self._lost()
            return
        finally:
            self._started.open()
        with contextlib.suppress(OSError):  # the process is gone: the other thread notices
            while (request := self._requests.get()) is not _END:
                self._control.send(request)
        if self._closed:
            self._hang_up()  # `close` may not have waited for the start

    def _start(self) -> tuple[Channel, Channel]:
        """Start the process, with a channel for requests and one for items."""
        worker = launch(_ENTRY, pickle.dumps(self._budget_bytes))
        try:
            self._connection = second_connection(worker)
        except BaseException:
            worker.close()
            raise
        self._worker = worker
        return Channel(self._connection), Channel(
            worker.connection, budget_bytes=self._budget_bytes
        )

    def _receive(self) -> None:
        """Receive answers until the process is gone."""
        assert self._control is not None
        try:
            while True:
                kind, *values = self._control.recv()
                if kind in OUTPUT:
                    show_output(kind, *values)
                else:
                    self._answered(kind, *values)
        except (EOFError, OSError):
            pass
        finally:
            self._lost()

    def _answered(self, kind: str, number: int, value: Any) -> None:
        with self._lock:
            reply = self._replies.pop(number)
        if kind == "error":
            reply.set(None, value.unpack())
        else:
            reply.set(value)

    def _lost(self) -> None:
        """End all requests: the process is gone."""
        with self._lock:
            self._gone = True
            replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply.set(None, NoAnswerError())
        if self._worker is not None and not self._closed:
            self._worker.kill()  # so that a thread that waits for items wakes up
        self._requests.put(_END)

    # -- the end --------------------------------------------------------------------------
    def close(self, timeout_s: float) -> None:
        """End the process; calls in progress have `timeout_s` to end."""
        self._closed = True
        deadline_s = monotonic() + timeout_s + LEAVE_S
        self._started.wait(LEAVE_S)
        with contextlib.suppress(NoAnswerError):
            self.ask("close", timeout_s, timeout_s=timeout_s + self.answer_s)
        if self._worker is not None:
            self._worker.end(max(0.0, deadline_s - monotonic()))
        self._requests.put(_END)
        self._hang_up()
        for thread in (self._sender, self._receiver):
            with contextlib.suppress(RuntimeError):  # it never started, or it is this thread
                thread.join(LEAVE_S)

    def _hang_up(self) -> None:
        for channel in (self._data, self._control):
            if channel is not None:
                channel.close()

    def disown(self) -> None:
        """Drop it in a forked process: it belongs to the parent."""
        self._gone = self._closed = True
        if self._connection is not None:
            with contextlib.suppress(OSError):  # a thread of the parent was closing it
                self._connection.close()  # not the channel: that would hang up for the parent


def _daemon(target: Callable[[], None], name: str) -> threading.Thread:
    return threading.Thread(target=target, name=name, daemon=True)
