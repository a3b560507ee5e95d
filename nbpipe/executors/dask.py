"""Dask: work on the workers of a `distributed.Client`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    ExecutorBrokenError,
    MissingExtraError,
    StageError,
    UnpicklableError,
    WorkerDiedError,
)
from .base import Answer, Caller, Job, Program
from .calls import Call, Calls
from .dask_client import ClusterView, Order, Sender, on_loop
from .payload import Payload, packed
from .shipped import Cargo, Children, opened

if TYPE_CHECKING:
    from distributed import Client

SCATTER_FROM_BYTES = 300_000  # from about here on it takes less time


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

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `Client.submit`."""
        resources = None if self.resources is None else dict(self.resources)
        return {"resources": resources, "priority": self.priority}

    @property
    def scatter_from_bytes(self) -> float:
        """Size from which a program is scattered [bytes]."""
        if self.scatter == "auto":
            return SCATTER_FROM_BYTES
        return 0 if self.scatter else float("inf")


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


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise MissingExtraError.of("distributed", "dask", "executor='dask'") from error
    return distributed


def dask_executor_of(value: object) -> DaskExecutor | None:
    """Give what a stage's `executor=` asks of Dask: "dask", a client, a `DaskExecutor`, or None.

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


def _default_client() -> Client:
    try:
        return _distributed().get_client()
    except ValueError as error:
        raise ArgumentError(
            "executor='dask' must find a Dask client, got none; make one first: "
            "client = distributed.Client() for this machine, "
            "distributed.Client('tcp://scheduler:8786') for a cluster"
        ) from error


class DaskCaller(Caller):
    """Has jobs done on a Dask cluster.

    Attributes:
        link: address of Dask's dashboard, or None.
    """

    retries_of_deaths = 1  # Dask also gives up an innocent item that waited beside a poisonous one

    def __init__(self, spec: DaskExecutor) -> None:
        self._spec = spec
        self._client = spec.client
        self._calls = Calls("dask")
        self._cargo = Cargo()
        self._sender = Sender(spec.client, spec.scatter_from_bytes)
        self._view = ClusterView(spec.client)
        self.link = _link(spec.client)

    def call(self, job: Job) -> Answer:
        """Have a job done, and wait for it in this thread.

        Raises:
            StageTimeoutError: a call of a function took longer than the job's `timeout_s`; it
                goes on in its worker, which Dask cannot stop.
            WorkerDiedError: every worker that was given the job died.
            ExecutorBrokenError: the client is closed, or the scheduler is gone.
            UnpicklableError: the program, an item or a result cannot be pickled.
        """
        answer = self._done(job, expands=False)
        assert isinstance(answer, Answer)
        return answer

    def expand(self, job: Job) -> Iterator[Any]:
        """Have all children of the job's one entry made; then give an iterator over them."""
        children = self._done(job, expands=True)
        assert isinstance(children, Children)
        return children.draw()

    def _done(self, job: Job, *, expands: bool) -> Answer | Children:
        with self._calls.open(job) as call:
            reply = self._send(self._order(job, call, expands=expands), call)
            self._calls.follow(call, reply)
            try:
                call.wait()
            finally:
                reply.cancel()  # no harm where it is done; else Dask is told to drop the task
            return opened(self._outcome(reply, call), expands=expands)

    def _order(self, job: Job, call: Call, *, expands: bool) -> Order:
        return Order(
            name=job.program.label,
            program=self._cargo.of(job.program),
            entries=packed(job.entries, job.program.label, "item"),
            epoch=job.epoch,
            expands=expands,
            options=self._spec.options,
            call=None if job.timeout_s is None else call,
        )

    def _send(self, order: Order, call: Call) -> Future[Payload]:
        try:
            return on_loop(self._client, self._sender.run(order))
        except ConnectionError as error:
            raise _error(call, error) from error

    def _outcome(self, reply: Future[Payload], call: Call) -> Payload:
        if reply.cancelled():
            raise _error(call, ConnectionError(f"the Dask client is {self._client.status}"))
        error = reply.exception()
        if error is None:
            return reply.result()
        if isinstance(error, UnpicklableError):
            raise error
        raise _error(call, error) from error

    def prepare(self, program: Program) -> None:
        """Pickle the program now."""
        self._cargo.of(program)

    def renew(self) -> None:
        """Hear that functions may have changed: they are pickled again."""
        self._cargo.renew()

    def cancel(self) -> None:
        """Drop the tasks in progress; a call that has begun goes on in its worker, unheard."""
        self._calls.abandon()

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

    def close(self, timeout_s: float) -> list[str]:
        """Drop the tasks in progress; the client and its cluster are the user's to close."""
        self.cancel()
        return self._calls.close(timeout_s)


def _link(client: Client) -> str | None:
    try:
        return client.dashboard_link or None
    except Exception:  # a scheduler without a dashboard; a client that is closed
        return None


def _error(call: Call, error: BaseException) -> StageError:
    """Make the error that ends a job: what happened, and the way out."""
    if type(error).__name__ == "KilledWorker":
        deaths = getattr(error, "allowed_failures", 0) + 1
        return call.error(WorkerDiedError, f"killed its worker {deaths} times, and is given up")
    what = f"was not done: {type(error).__name__}: {error}"
    return call.error(ExecutorBrokenError, f"{what}; {_way_out(error)}")


def _way_out(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return "install what is missing, and nbpipe, where the scheduler and the workers run"
    if isinstance(error, OSError | CancelledError):
        return "keep the client and its cluster open for as long as the run lasts"
    return "the logs of the scheduler and the workers may say more"
