"""Dask: work on the workers of a `distributed.Client`."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError, Future
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
from .base import Program
from .futures import FutureCaller, Payload, PendingCall, run_shipped
from .shipping import Shipped

if TYPE_CHECKING:
    from distributed import Client

_SCATTER_FROM_BYTES = 300_000  # from about here on it takes less time
_TRIES = 4  # a cluster that was restarted, or lost a scattered program, is given the task again
_FRESH_S = 1.0
_FIRST_LOOK_S = 0.5
_PROCESS = uuid.uuid4().hex

_Result = TypeVar("_Result")
# What was done once for each client: the plugin registered, the topic of begun calls.
_plugins: weakref.WeakKeyDictionary[Client, asyncio.Future[Any]] = weakref.WeakKeyDictionary()
_topics: weakref.WeakKeyDictionary[Client, str] = weakref.WeakKeyDictionary()
_timed: weakref.WeakValueDictionary[str, PendingCall] = weakref.WeakValueDictionary()
# Clients of this process that were made for an executor of another one, by the cluster's address.
_connections: weakref.WeakValueDictionary[str, Client] = weakref.WeakValueDictionary()


# -- What users ask of Dask ------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class DaskExecutor:
    """Has a stage's calls done on a Dask cluster: `pipe.map(fn, executor=DaskExecutor(client))`.

    A call may be done more than once: Dask does the work of a worker that was killed again.

    Attributes:
        client: a `distributed.Client`; it is never closed here.
        scatter: put what the function captures on the workers once, instead of sending it with
            every call; "auto" does so from 300 kB on.
        scale: `run["decode"].workers = n` may change the size of the client's cluster.
        resources: what each call needs of a worker, as in `Client.submit`.
        priority: of the calls among other work of the cluster, as in `Client.submit`.

    Raises:
        ArgumentError: an option that cannot be accepted.
        ArgumentTypeError: `client` is no client, or an asynchronous one.
        MissingExtraError: distributed is not installed.
    """

    client: Client
    _: KW_ONLY
    scatter: bool | Literal["auto"] = "auto"
    scale: bool = False
    resources: Mapping[str, float] | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        _check_client(self.client)
        if self.scatter not in (True, False, "auto"):
            raise ArgumentError(f"scatter must be True, False or 'auto', got {self.scatter!r}")
        if not isinstance(self.scale, bool):
            raise ArgumentTypeError(f"scale must be True or False, got {self.scale!r}")
        if not isinstance(self.priority, int):
            raise ArgumentTypeError(f"priority must be an int, got {self.priority!r}")
        if not isinstance(self.resources, Mapping | None):
            raise ArgumentTypeError(
                f"resources must be a mapping of names to amounts, got {self.resources!r}; "
                "for instance {'GPU': 1}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave for another process of this machine, which connects to the cluster by itself."""
        about = {"scatter": self.scatter, "resources": self.resources, "priority": self.priority}
        return _connected, (self.address, self.client.security, about)

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        return str(self.client.scheduler.address)

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `Client.submit`."""
        resources = None if self.resources is None else dict(self.resources)
        return {"resources": resources, "priority": self.priority}

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


def _connected(address: str, security: Any, about: dict[str, Any]) -> DaskExecutor:
    client = _connections.get(address)
    if client is None or client.status != "running":
        client = _distributed().Client(address, security=security, set_as_default=False)
        _connections[address] = client
    return DaskExecutor(client, **about)


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


# -- The caller ------------------------------------------------------------------------------------
@final
class DaskCaller(FutureCaller):
    """Has jobs done on a Dask cluster.

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
        self._spec = spec
        self._client = spec.client
        self._sender = _Sender(spec)
        self._view = _ClusterView(spec.client)
        self.link = _link(spec.client)

    def _submit(self, call: PendingCall) -> Future[Payload]:
        shipped = self._shipper.of(call.job.program)
        return _on_loop(self._client, self._sender.run(call, shipped, call.parts(shipped)))

    def _failure(self, call: PendingCall, error: BaseException) -> StageError:
        if type(error).__name__ == "KilledWorker":
            deaths = getattr(error, "allowed_failures", 0) + 1
            return call.error(WorkerDiedError, f"killed its worker {deaths} times, and is given up")
        if isinstance(error, CancelledError):
            error = ConnectionError(f"the Dask client is {self._client.status}")
        return super()._failure(call, error)

    def prepare(self, program: Program) -> None:
        """Pickle the program now."""
        self._shipper.of(program)

    def cancel(self) -> None:
        """Drop the tasks in progress; a call that has begun goes on in its worker, unheard."""
        self.abandon()

    def scale(self, workers: int) -> None:
        """Ask the client's cluster for this many workers.

        Raises:
            ArgumentError: that was not allowed, or the cluster cannot be scaled from here.
        """
        if not self._spec.scale:
            raise ArgumentError(
                f"the size of a Dask cluster must be set where it was made, got workers={workers}; "
                "to set it here, use executor=nbpipe.DaskExecutor(client, scale=True)"
            )
        try:
            self._client.cluster.scale(workers)
        except (AttributeError, NotImplementedError) as error:
            raise ArgumentError(
                f"the Dask client must know a cluster with scale() for workers={workers}, "
                f"got {self._client.cluster!r}; make the client from its cluster: Client(cluster)"
            ) from error
        self._view.expire()

    @property
    def workers(self) -> int:
        """Workers there are, as of a second ago."""
        return len(self._view.workers())

    @property
    def memory_bytes(self) -> int:
        """Memory of the workers as they report it [bytes]."""
        workers = self._view.workers().values()
        return sum(int(worker.get("metrics", {}).get("memory", 0)) for worker in workers)


def _link(client: Client) -> str | None:
    try:
        return client.dashboard_link or None
    except Exception:  # a scheduler without a dashboard; a client that is closed
        return None


# -- The way to the cluster and back: coroutines that live in the event loop of a client -----------
# All that is told to Dask is told from there, so that nothing has to be locked; and all that waits
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

    async def run(self, call: PendingCall, program: Shipped, parts: tuple[Any, ...]) -> Payload:
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
                return await self._attempt(call, program, parts)
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
        self, call: PendingCall, program: Shipped, parts: tuple[Any, ...]
    ) -> Payload:
        name = call.job.program.label  # as Dask's own pages show it
        data = await self._on_workers(name, program)
        task = self._client.submit(
            run_task,
            parts,
            data,
            None if call.job.timeout_s is None else _listened(self._client, call),
            key=f"{name}-{uuid.uuid4().hex}",
            pure=False,  # equal items may have different results
            **self._spec.options,
        )
        answer = await _fetched(task)
        if isinstance(answer, UnpicklableError):
            raise answer
        assert isinstance(answer, Payload)
        return answer

    async def _on_workers(self, name: str, program: Shipped) -> Any:
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

    The client fetches the results of many tasks in one go. To cancel one of those who wait for it
    would cancel it for all, and can leave the client unable to fetch any more. So a result that is
    on its way arrives, also where nobody wants it any more.
    """
    arrival = asyncio.ensure_future(_awaited(task))
    arrival.add_done_callback(_heard)
    try:
        return await asyncio.shield(arrival)
    finally:
        if arrival.done() or not task.done():
            task.release()
        else:
            arrival.add_done_callback(lambda _: task.release())


async def _awaited(task: Any) -> Any:
    return await task


def _heard(arrival: asyncio.Task[Any]) -> None:
    """Take note of an error, which asyncio would complain of where nobody waits any more."""
    if not arrival.cancelled():
        arrival.exception()


async def _registered(client: Client) -> None:
    """Register the plugin, once for each client."""
    done = _plugins.get(client)
    if done is None or (done.done() and (done.cancelled() or done.exception() is not None)):
        done = _plugins[client] = asyncio.ensure_future(client.register_plugin(_interrupt_plugin()))
    await asyncio.shield(done)


def _listened(client: Client, call: PendingCall) -> tuple[str, str]:
    """Return the topic that begun calls are told on, and what this one is called there."""
    topic = _topics.get(client)
    if topic is None:
        topic = _topics[client] = f"nbpipe-begun-{client.id}"
        client.subscribe_topic(topic, _begun)
    name = uuid.uuid4().hex
    _timed[name] = call
    return topic, name


def _begun(event: tuple[float, str]) -> None:
    call = _timed.get(event[1])
    if call is not None:
        call.begin()


class _ClusterView:
    """What the scheduler says about its workers; asked at most once a second, waited for once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._workers: dict[str, Any] = {}
        self._asked_s = -float("inf")
        self._looked = False

    def workers(self) -> dict[str, Any]:
        """Return what is known of each worker, by its address."""
        if self._client.status != "running":
            return {}
        if time.monotonic() - self._asked_s >= _FRESH_S:
            self._ask()
        return self._workers

    def expire(self) -> None:
        """Ask again when it is wanted next."""
        self._asked_s = -float("inf")

    def _ask(self) -> None:
        self._asked_s = time.monotonic()
        try:
            answer = _on_loop(self._client, self._look())
            if not self._looked:
                answer.exception(_FIRST_LOOK_S)
        except (OSError, TimeoutError, CancelledError):
            return  # what is known stays; ConnectionError is an OSError
        self._looked = True

    async def _look(self) -> None:
        identity = await self._client.scheduler.identity()
        self._workers = identity["workers"]


# -- What runs on the workers of the cluster -------------------------------------------------------
def run_task(
    parts: tuple[Any, ...], data: bytes, tell: tuple[str, str] | None
) -> Payload | UnpicklableError | None:
    """Do the work of one task.

    Args:
        parts: what `PendingCall.parts` gave.
        data: the program.
        tell: a topic, and what to say there when a call of a function begins.
    """
    begun = None if tell is None else functools.partial(_tell, *tell)
    try:
        return run_shipped(parts, data, begun)
    except UnpicklableError as error:  # returned: what is raised, Dask also writes to its log
        return error


def _tell(topic: str, call: str, _: int) -> None:
    from distributed import get_worker

    get_worker().log_event(topic, call)


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
