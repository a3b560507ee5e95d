"""Link: the process of an isolated run, as its parent sees it."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from queue import SimpleQueue
from time import monotonic
from typing import Any, final

from ...base.threads import Latch, uninterrupted
from ...engine.nodes.failures import Failure
from ...engine.stats import StageStats
from ...errors import ArgumentError, WorkerDiedError, WorkerStartError
from ...executors.workers.channel import BUDGET_BYTES, Channel
from ...executors.workers.launch import LEAVE_S, Worker, launch
from ...executors.workers.serialize import SerializedFunction, serialize
from ...executors.workers.worker import OUTPUT, show_output
from ...ops.stage import Chain, ExecutorSpec, addresses

_ENTRY = f"{__package__}.child:serve"
ANSWER_S = 1.0  # longest wait for an answer: after it, the process counts as busy
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
    """A process with a pipeline, and the two threads that talk to it.

    One thread starts it and sends messages, so that callers neither wait for a process that does
    not read, nor are interrupted in the middle of a message. The other thread receives. Items use
    a second channel, `data`, which one thread reads at a time.

    Args:
        title: addresses of the stages, for messages.
        memory_bytes: the run's budget for all buffers [bytes], or None.

    Attributes:
        data: the channel for items; None until the process has started.
        served: it has sent items.
    """

    def __init__(self, title: str, *, memory_bytes: int | None) -> None:
        self.data: Channel | None = None
        self.served = False
        self._title = title
        self._budget_bytes = BUDGET_BYTES if memory_bytes is None else memory_bytes // _RING_SHARE
        self._worker: Worker | None = None
        self._connection: Connection | None = None
        self._control: Channel | None = None
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._pending: dict[int, Reply] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()  # garbage collection may call us while we hold it
        self._started = Latch()
        self._error: BaseException | None = None
        self._gone = self._closed = False
        self._sender = _daemon(self._send, "nbpipe-isolated-send")
        self._receiver = _daemon(self._receive, "nbpipe-isolated-receive")
        uninterrupted(self._sender.start)

    # -- start and end --------------------------------------------------------------------
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

    def ready(self) -> Channel:
        """Wait for the start of the process; return the channel for items.

        Raises:
            WorkerStartError: it could not be started.
        """
        self._started.wait()
        if self._error is not None:
            raise WorkerStartError(
                f"the process of the run '{self._title}' could not be started: {self._error}"
            ) from self._error
        assert self.data is not None
        return self.data

    def _start(self) -> None:
        """Start the process, with one channel for messages and one for items."""
        worker = launch(_ENTRY, pickle.dumps({"budget_bytes": self._budget_bytes}))
        try:
            self._connection = second_connection(worker)
        except BaseException:
            worker.close()
            raise
        self._control = Channel(self._connection)
        self.data = Channel(worker.connection, budget_bytes=self._budget_bytes)
        self._worker = worker

    def died(self) -> WorkerDiedError:
        """Return the error that says how the process ended."""
        assert self._worker is not None
        return WorkerDiedError(
            f"the process of the run '{self._title}' (process {self.pid}) died "
            f"{self._worker.end()}; the next epoch starts a new one",
            executor="process",
        )

    # -- messages -------------------------------------------------------------------------
    def send(self, *message: Any) -> None:
        """Send a message; return at once, even if the process is gone."""
        self._messages.put(message)

    def ask(self, what: str, *arguments: Any, timeout_s: float = ANSWER_S) -> Any:
        """Send a request and wait for the answer.

        Raises:
            NoAnswerError: it did not come in time.
            Exception: the process raised it.
        """
        return self.request(what, *arguments).wait(timeout_s)

    def request(self, what: str, *arguments: Any) -> Reply:
        """Send a request; return its `Reply` at once."""
        reply = Reply()
        with self._lock:
            number = next(self._numbers)  # under the lock: the counter alone may repeat a number
            if self._gone:
                reply.set(None, NoAnswerError())
                return reply
            self._pending[number] = reply
        self.send("ask", number, what, *arguments)
        return reply

    # -- the two threads ------------------------------------------------------------------
    def _send(self) -> None:
        """Start the process, then send messages, one after the other."""
        try:
            self._start()
            self._receiver.start()
        except BaseException as error:  # noqa: BLE001  `ready` raises it
            self._error = error
            self._lost()
            return
        finally:
            self._started.open()
        assert self._control is not None
        with contextlib.suppress(OSError):  # the process is gone: the other thread notices
            while (message := self._messages.get()) is not _END:
                self._control.send(message)
        if self._closed:
            self._hang_up()  # `close` may not have waited for the start

    def _receive(self) -> None:
        """Receive messages until the process is gone."""
        assert self._control is not None
        try:
            while True:
                kind, *values = self._control.recv()
                self._take(kind, values)
        except (EOFError, OSError):
            pass
        finally:
            self._lost()

    def _take(self, kind: str, values: list[Any]) -> None:
        if kind in OUTPUT:
            show_output(kind, *values)
        else:
            self._answered(kind, *values)

    def _answered(self, kind: str, number: int, value: Any) -> None:
        with self._lock:
            reply = self._pending.pop(number, None)
        if reply is None:
            return
        if kind == "error":
            reply.set(None, value.unpack())
        else:
            reply.set(value)

    def _lost(self) -> None:
        """End all requests: the process is gone."""
        with self._lock:
            self._gone = True
            pending, self._pending = self._pending, {}
        for reply in pending.values():
            reply.set(None, NoAnswerError())
        if self._worker is not None and not self._closed:
            self._worker.kill()  # so that threads that wait for items wake up
        self._messages.put(_END)

    # -- the end --------------------------------------------------------------------------
    def close(self, timeout_s: float) -> None:
        """End the process; calls in progress have `timeout_s` to end."""
        self._closed = True
        deadline_s = monotonic() + timeout_s + LEAVE_S
        self._started.wait(LEAVE_S)
        with contextlib.suppress(NoAnswerError):
            self.ask("close", timeout_s, timeout_s=timeout_s + ANSWER_S)
        if self._worker is not None:
            self._worker.end(max(0.0, deadline_s - monotonic()))
        self._messages.put(_END)
        self._hang_up()
        for thread in (self._sender, self._receiver):
            with contextlib.suppress(RuntimeError):  # it never started, or it is this thread
                thread.join(LEAVE_S)

    def _hang_up(self) -> None:
        for channel in (self.data, self._control):
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


# -- Messages: the chain, and reports --------------------------------------------------------------
Values = dict[tuple[str, str], int]  # values of knobs, by address of the stage and name


def pickled(chain: Chain) -> SerializedFunction:
    """Serialize a chain, with its knobs at their first values.

    Raises:
        ArgumentError: a stage has an executor that lives in this process.
        UnpicklableError: part of a stage cannot be pickled; the message names it.
    """
    known = list(addresses(chain).items())  # sent as well: errors name a stage by its address
    for address, stage in known:
        if stage.executor_spec is not None:
            _check_placement(stage.executor_spec, address)
    return serialize((known, chain), stage=known[0][0])


def _check_placement(executor_spec: ExecutorSpec, address: str) -> None:
    if executor_spec.executor == "executor":
        kind = type(executor_spec.given).__name__
        raise ArgumentError(
            f"stage {address!r} has an executor object ({kind}), which lives in this process "
            "and cannot be used with isolate=True; give executor='process' or 'thread', or "
            "start the run without isolate"
        )
    if executor_spec.executor == "dask":
        from ...executors.dask import dask_executor_of

        executor = dask_executor_of(executor_spec.given or "dask")
        if executor is not None and executor.address.startswith("inproc:"):
            raise ArgumentError(
                f"stage {address!r} uses a Dask cluster inside this process "
                f"({executor.address}), which another process cannot reach: with isolate=True, "
                "make the client with processes=True"
            )


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a stage."""

    count: int = 0
    pids: tuple[int, ...] = ()
    link: str | None = None
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ChildReport:
    """A report of the process at one moment.

    Attributes:
        stats: stats of the stages, by address.
        failures: failed items that were not reported before.
        heard: number of the run, and of its failed items reported so far.
        cpu_cores: processor time of the process over the last seconds [cores].
        idle_cores: idle cores, or None [cores].
        held_bytes: bytes in all buffers, if there is a budget [bytes].
        workers: the workers of each stage that has some, by address.
        process_bytes: resident memory of the process [bytes].
        skipped: items of its epoch that failed and were left out [items].
        ticket: ticket of that epoch; 0 before the first.
    """

    stats: dict[str, StageStats]
    failures: tuple[Failure, ...]
    heard: tuple[int, int]
    cpu_cores: float | None
    idle_cores: float | None
    held_bytes: int | None
    workers: dict[str, Workers]
    process_bytes: int
    skipped: int
    ticket: int
