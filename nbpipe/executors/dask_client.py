"""The way to a Dask cluster and back: coroutines that live in the event loop of a client.

All that is told to Dask is told from there, so that nothing has to be locked; and all that waits
there ends with the loop, so that no thread waits for a client that was closed.
"""

from __future__ import annotations

import asyncio
import time
import uuid
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UnpicklableError
from .calls import Call
from .payload import Payload
from .shipping import Shipped

if TYPE_CHECKING:
    from distributed import Client

_TRIES = 4  # a cluster that was restarted, or lost a scattered program, is given the task again
_FRESH_S = 1.0
_FIRST_LOOK_S = 0.5

_Result = TypeVar("_Result")
# What was done once for each client: the plugin registered, the topic of begun calls.
_plugins: weakref.WeakKeyDictionary[Client, asyncio.Future[Any]] = weakref.WeakKeyDictionary()
_topics: weakref.WeakKeyDictionary[Client, str] = weakref.WeakKeyDictionary()
_timed: weakref.WeakValueDictionary[str, Call] = weakref.WeakValueDictionary()


def on_loop(client: Client, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
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


@dataclass(frozen=True, slots=True)
class Order:
    """One task to be done.

    Attributes:
        name: what the task is called in Dask's own pages.
        program: the program as it is shipped.
        entries: what it is to work on.
        epoch: number of the epoch.
        expands: the function gives many items for one.
        options: keyword arguments of `Client.submit`.
        call: the call that hears when a function begins, where its time is limited.
    """

    name: str
    program: Shipped
    entries: Payload
    epoch: int
    expands: bool
    options: dict[str, Any] = field(default_factory=dict)
    call: Call | None = None


class Sender:
    """Has orders done by the workers; used in the client's event loop only.

    Args:
        scatter_from_bytes: programs of this size are put on the workers once; smaller ones
            travel with every task.
    """

    def __init__(self, client: Client, scatter_from_bytes: float) -> None:
        self._client = client
        self._scatter_from_bytes = scatter_from_bytes
        self._scattered: tuple[str, asyncio.Task[Any]] | None = None

    async def run(self, order: Order) -> Payload:
        """Have an order done.

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
                return await self._attempt(order)
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

    async def _attempt(self, order: Order) -> Payload:
        program = await self._on_workers(order)
        answer = await _fetched(self._submit(order, program))
        if isinstance(answer, UnpicklableError):
            raise answer
        assert isinstance(answer, Payload)
        return answer

    def _submit(self, order: Order, program: Any) -> Any:
        from .dask_worker import run_task

        return self._client.submit(
            run_task,
            (order.program.digest, order.entries, order.epoch, order.expands),
            program,
            None if order.call is None else _listened(self._client, order.call),
            key=f"{order.name}-{uuid.uuid4().hex}",
            pure=False,  # equal items may have different results
            **order.options,
        )

    async def _on_workers(self, order: Order) -> Any:
        """Give the program's bytes, or what stands for them on the workers."""
        program = order.program
        if program.size_bytes < self._scatter_from_bytes:
            return program.data
        if self._scattered is None or self._scattered[0] != program.digest:
            self._scattered = program.digest, asyncio.ensure_future(self._scatter(order))
        try:
            return await asyncio.shield(self._scattered[1])
        except Exception:  # there are no workers just now, or they are being restarted
            self._scattered = None
            return program.data

    async def _scatter(self, order: Order) -> Any:
        key = f"{order.name}-program-{uuid.uuid4().hex}"
        data = {key: order.program.data}
        return (await self._client.scatter(data, broadcast=True, asynchronous=True))[key]


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
    from .dask_worker import IgnoreInterrupts

    done = _plugins.get(client)
    if done is None or (done.done() and (done.cancelled() or done.exception() is not None)):
        done = _plugins[client] = asyncio.ensure_future(client.register_plugin(IgnoreInterrupts()))
    await asyncio.shield(done)


def _listened(client: Client, call: Call) -> tuple[str, str]:
    """Give the topic that begun calls are told on, and what this one is called there."""
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


class ClusterView:
    """What the scheduler says about its workers; asked at most once a second, waited for once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._workers: dict[str, Any] = {}
        self._asked_s = -float("inf")
        self._looked = False

    def workers(self) -> dict[str, Any]:
        """Give what is known of each worker, by its address."""
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
            answer = on_loop(self._client, self._look())
            if not self._looked:
                answer.exception(_FIRST_LOOK_S)
        except (OSError, TimeoutError, CancelledError):
            return  # what is known stays; ConnectionError is an OSError
        self._looked = True

    async def _look(self) -> None:
        identity = await self._client.scheduler.identity()
        self._workers = identity["workers"]
