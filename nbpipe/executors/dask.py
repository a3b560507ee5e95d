"""Dask: work on the workers of a `distributed.Client`."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, final

from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    MissingExtraError,
    StageError,
    UnpicklableError,
    WorkerDiedError,
)
from .futures import FutureExecutor, Payload, PendingCall, run_serialized
from .interface import Program
from .workers.serialize import SerializedFunction

if TYPE_CHECKING:
    from distributed import Client

_SCATTER_FROM_BYTES = 300_000  # from about here on it takes less time
_TRIES = 4  # a cluster that was restarted, or lost a scattered program, is given the task again
_FRESH_S = 1.0
_FIRST_LOOK_S = 0.5
_PROCESS = uuid.uuid4().hex

_Result = TypeVar("_Result")
# The plugin, as it was registered once for each client.
_plugins: weakref.WeakKeyDictionary[Client, asyncio.Future[Any]] = weakref.WeakKeyDictionary()
# Clients of this process that were made for an executor of another one, by the cluster's address.
_connections: weakref.WeakValueDictionary[str, Client] = weakref.WeakValueDictionary()


# -- What users ask of Dask ------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class DaskExecutor:
    """Run a stage's calls on a Dask cluster: `pipe.map(fn, executor=DaskExecutor(client))`.

    A call may run more than once: Dask repeats the work of a worker that was killed.

    Attributes:
        client: a `distributed.Client`; nbpipe never closes it.
        scatter: put the objects that the function captures on the workers once, instead of
            sending them with every call; "auto" does so from 300 kB on.

    Raises:
        ArgumentError: `scatter` is another value.
        ArgumentTypeError: `client` is not a client, or is asynchronous.
        MissingExtraError: distributed is not installed.

    Examples:
        >>> import nbpipe
        >>> from distributed import Client
        >>> with Client(processes=False, n_workers=1, dashboard_address=None) as client:
        ...     executor = nbpipe.DaskExecutor(client)
        ...     list(nbpipe.source([1, -2]).map(abs, executor=executor))
        [1, 2]
    """

    client: Client
    _: KW_ONLY
    scatter: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        _check_client(self.client)
        if self.scatter not in (True, False, "auto"):
            raise ArgumentError(f"scatter must be True, False or 'auto', got {self.scatter!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave for another process of this machine, which connects to the cluster by itself."""
        return _connected, (self.address, self.client.security, self.scatter)

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        return str(self.client.scheduler.address)

    @property
    def scatter_from_bytes(self) -> float:
        """Size from which a program is scattered [bytes]."""
        if self.scatter == "auto":
            return _SCATTER_FROM_BYTES
        return 0 if self.scatter else float("inf")


def dask_executor_of(value: object) -> DaskExecutor | None:
    """Return what a stage's `executor=` asks of Dask: "dask", a client, a `DaskExecutor`, or None.

    Raises:
        ArgumentError: "dask", and there is no client.
        MissingExtraError: "dask", and distributed is not installed.
    """
    if isinstance(value, DaskExecutor):
        return value
    if isinstance(value, str):
        return DaskExecutor(_default_client()) if value == "dask" else None
    distributed: Any = sys.modules.get("distributed")  # no client where it was not loaded
    if hasattr(distributed, "Client") and isinstance(value, distributed.Client):
        return DaskExecutor(value)
    return None


def _connected(address: str, security: Any, scatter: Any) -> DaskExecutor:
    client = _connections.get(address)
    if client is None or client.status != "running":
        client = _distributed().Client(address, security=security, set_as_default=False)
        _connections[address] = client
    return DaskExecutor(client, scatter=scatter)


def _check_client(client: object) -> None:
    distributed = _distributed()
    if not isinstance(client, distributed.Client):
        raise ArgumentTypeError(
            f"client must be a distributed.Client, got {client!r}; "
            "make one with distributed.Client(), or Client('tcp://scheduler:8786')"
        )
    if client.asynchronous:
        raise ArgumentTypeError(
            f"client must work from threads, got the asynchronous {client!r}; "
            "make it without asynchronous=True"
        )


def _default_client() -> Client:
    try:
        return _distributed().get_client()
    except ValueError as error:
        raise ArgumentError(
            "executor='dask' must find a Dask client, got none; make one first: "
            "client = distributed.Client() for this machine, "
            "distributed.Client('tcp://scheduler:8786') for a cluster"
        ) from error


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise MissingExtraError.of("distributed", "dask", "executor='dask'") from error
    return distributed


# -- The executor ----------------------------------------------------------------------------------
@final
class ClusterExecutor(FutureExecutor):
    """Has requests done on a Dask cluster.

    Attributes:
        link: address of Dask's dashboard, or None.
    """

    ways_out: ClassVar = {
        ImportError: "install what is missing, and nbpipe, where the scheduler and the workers run",
        OSError: "keep the client and its cluster open for as long as the run lasts",
        BaseException: "the logs of the scheduler and the workers may say more",
    }
    retries_of_deaths = 1  # Dask also gives up an innocent item that waited beside a poisonous one

    def __init__(self, spec: DaskExecutor) -> None:
        super().__init__("dask")
        self._client = spec.client
        self._sender = _Sender(spec)
        self._view = _ClusterView(spec.client)
        with suppress(Exception):  # a scheduler without a dashboard; a client that is closed
            self.link = spec.client.dashboard_link or None

    def _submit(self, call: PendingCall) -> Future[Payload]:
        program = call.request.program
        serialized = self._serializer.of(program)
        call.begin(program.calls(call.request.entries))
        return _on_loop(
            self._client, self._sender.run(program.label, serialized, call.parts(serialized))
        )

    def _failure(self, call: PendingCall, error: BaseException) -> StageError:
        if type(error).__name__ == "KilledWorker":
            deaths = getattr(error, "allowed_failures", 0) + 1
            return call.error(WorkerDiedError, f"killed its worker {deaths} times, and is given up")
        if isinstance(error, CancelledError):
            error = ConnectionError(f"the Dask client is {self._client.status}")
        return super()._failure(call, error)

    def prepare(self, program: Program) -> None:
        """Pickle the program now."""
        self._serializer.of(program)

    def cancel(self, epoch: int | None = None) -> None:
        """Drop the tasks in progress; a call that has begun continues, its result is dropped."""
        self.abandon(epoch)

    @property
    def workers(self) -> int:
        """Workers there are, as of a second ago."""
        return len(self._view.workers())

    @property
    def worker_threads(self) -> int:
        """Calls that the workers can make at once, as of a second ago."""
        return sum(int(worker.get("nthreads", 0)) for worker in self._view.workers().values())

    @property
    def memory_bytes(self) -> int:
        """Memory of the workers as they report it [bytes]."""
        workers = self._view.workers().values()
        return sum(int(worker.get("metrics", {}).get("memory", 0)) for worker in workers)


# -- The way to the cluster and back: coroutines that live in the event loop of a client -----------
# All messages to Dask are sent from there, so that nothing has to be locked; and all that waits
# there ends with the loop, so that no thread waits for a client that was closed.
def _on_loop(client: Client, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
    """Start a coroutine in the client's event loop.

    Raises:
        ConnectionError: the client is closed.
    """
    try:
        future = asyncio.run_coroutine_threadsafe(work, client.loop.asyncio_loop)
    except RuntimeError as error:  # the loop has ended
        work.close()
        raise ConnectionError("the Dask client is closed") from error
    if client.status in ("closing", "closed"):  # the loop may have ended before it saw this
        future.cancel()
    return future


class _Sender:
    """Has calls done by the workers; used in the client's event loop only."""

    def __init__(self, spec: DaskExecutor) -> None:
        self._spec = spec
        self._client = spec.client
        self._scattered: tuple[str, asyncio.Task[Any]] | None = None

    async def run(self, label: str, program: SerializedFunction, parts: tuple[Any, ...]) -> Payload:
        """Have a call done.

        Raises:
            ConnectionError: the client is closed, or has lost its scheduler.
            UnpicklableError: a result cannot be sent back.
            Exception: whatever Dask ended the task with.
        """
        client = self._client
        await _registered(client)
        reason: BaseException | None = None
        for _ in range(_TRIES):
            if client.status != "running":
                break
            try:
                return await self._attempt(label, program, parts)
            except CancelledError as error:
                reason = error
                self._scattered = None
            except Exception as error:
                if reason is None or type(error).__name__ != "KilledWorker":
                    raise
                reason = error  # it was sent to workers that a restart was about to end
        else:
            raise ConnectionError(f"Dask cancelled the task {_TRIES} times: {reason}")
        raise ConnectionError(f"the Dask client is {client.status}")

    async def _attempt(
        self, label: str, program: SerializedFunction, parts: tuple[Any, ...]
    ) -> Payload:
        data = await self._on_workers(label, program)
        task = self._client.submit(
            run_task,
            parts,
            data,
            key=f"{label}-{uuid.uuid4().hex}",  # as Dask's own pages show it
            pure=False,  # equal items may have different results
        )
        response = await _fetched(task)
        if isinstance(response, UnpicklableError):
            raise response
        assert isinstance(response, Payload)
        return response

    async def _on_workers(self, name: str, program: SerializedFunction) -> Any:
        """Return the program's bytes, or what stands for them on the workers."""
        if program.size_bytes < self._spec.scatter_from_bytes:
            return program.data
        if self._scattered is None or self._scattered[0] != program.digest:
            scattered = asyncio.ensure_future(self._scatter(name, program.data))
            self._scattered = program.digest, scattered
        try:
            return await asyncio.shield(self._scattered[1])
        except Exception:  # there are no workers just now, or they are being restarted
            self._scattered = None
            return program.data

    async def _scatter(self, name: str, data: bytes) -> Any:
        key = f"{name}-program-{uuid.uuid4().hex}"
        return (await self._client.scatter({key: data}, broadcast=True, asynchronous=True))[key]


async def _fetched(task: Any) -> Any:
    """Wait for the result of a task of Dask's, which stays on its worker only as long as that.

    The client fetches the results of many tasks in one go. To cancel one that waits for it
    would cancel it for all, and can leave the client unable to fetch any more. So a result that is
    on its way arrives, also where it is not wanted any more.
    """
    arrival = asyncio.ensure_future(task)
    # Of an error that is not asked for asyncio would complain, where nothing waits any more.
    arrival.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(arrival)
    finally:
        if arrival.done() or not task.done():
            task.release()
        else:
            arrival.add_done_callback(lambda _: task.release())


async def _registered(client: Client) -> None:
    """Register the plugin, once for each client."""
    done = _plugins.get(client)
    if done is None or (done.done() and (done.cancelled() or done.exception() is not None)):
        done = _plugins[client] = asyncio.ensure_future(client.register_plugin(_interrupt_plugin()))
    await asyncio.shield(done)


class _ClusterView:
    """What the scheduler says about its workers; asked at most once a second, waited for once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._workers: dict[str, Any] = {}
        self._asked_s = -math.inf

    def workers(self) -> dict[str, Any]:
        """Return what is known of each worker, by its address."""
        if self._client.status != "running":
            return {}
        first, now_s = self._asked_s < 0, time.monotonic()
        if now_s - self._asked_s >= _FRESH_S:
            self._asked_s = now_s
            with suppress(OSError, TimeoutError, CancelledError):  # what is known stays
                response = _on_loop(self._client, self._look())
                response.exception(_FIRST_LOOK_S if first else 0)
        return self._workers

    async def _look(self) -> None:
        identity = await self._client.scheduler.identity()
        self._workers = identity["workers"]


# -- What runs on the workers of the cluster -------------------------------------------------------
def run_task(parts: tuple[Any, ...], data: bytes) -> Payload | UnpicklableError:
    """Do the work of one task: what `PendingCall.parts` gave, and the program."""
    try:
        return run_serialized(parts, data)
    except UnpicklableError as error:  # returned: what is raised, Dask also writes to its log
        return error


def _interrupt_plugin() -> Any:
    """Make what lets a worker process live on when the notebook's stop button is pressed.

    The interrupt goes to every process of the notebook's group. Only workers with a nanny ignore
    it, for the nanny ends them; a worker in the process of the notebook itself changes nothing.
    """
    from distributed import WorkerPlugin

    class IgnoreInterrupts(WorkerPlugin):  # type: ignore[misc]
        name = "nbpipe-ignore-interrupts"

        def __init__(self) -> None:
            self._home = _PROCESS

        def setup(self, worker: Any) -> None:
            _ignore_interrupts(worker, self._home)

    return IgnoreInterrupts()


def _ignore_interrupts(worker: Any, home: str) -> None:
    """Ignore SIGINT in a worker's process; found there by its name, with that process's number."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if worker.nanny and in_main_thread and home != _PROCESS:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
