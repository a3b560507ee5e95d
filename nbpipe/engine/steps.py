"""Step: a user's function in one epoch: its call, its random generator, what a failure does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import StageTimeoutError
from ..operations import Batch, Call, FailurePolicy, Filter
from ..seeding import generator_for
from .batching import Collate
from .failures import Failed, failed
from .task import Entry, Task

if TYPE_CHECKING:
    from .context import EpochContext

_RAISE = FailurePolicy()


class Counted(Protocol):
    """What counts the calls that are tried again."""

    retried: tuple[str, ...]


class Step:
    """A plain function called on values.

    Args:
        stage: address of the stage.
        fn: function of a value or, with `wants_rng`, of a value and `rng=`.
        context: seed, number and end of the epoch.
        keeps: the function is a predicate; entries pass unchanged or are dropped.
    """

    __slots__ = ("_context", "executor", "fn", "keeps", "policy", "stage", "wants_rng")

    def __init__(
        self,
        stage: str,
        fn: Callable[..., Any],
        context: EpochContext,
        *,
        policy: FailurePolicy = _RAISE,
        keeps: bool = False,
        wants_rng: bool = False,
        executor: str = "thread",
    ) -> None:
        self.stage = stage
        self.fn = fn
        self.policy = policy
        self.keeps = keeps
        self.wants_rng = wants_rng
        self.executor = executor
        self._context = context

    @property
    def epoch(self) -> int:
        """Number of the epoch whose items it makes."""
        return self._context.epoch

    @property
    def plain(self) -> bool:
        """Nothing but a call: the fast loop may run it."""
        return not self.keeps and not self.wants_rng

    def arguments(self, entry: Entry) -> dict[str, Any]:
        """Give the keyword arguments of the call."""
        if not self.wants_rng:
            return {}
        context = self._context
        return {"rng": generator_for(context.seed, context.epoch, self.stage, entry[0])}

    def produce(self, entry: Entry) -> Entry | None:
        """Call the function once; its exceptions pass."""
        value = self.fn(entry[1], **self.arguments(entry))
        return self.wrap(entry, value)

    def wrap(self, entry: Entry, value: Any) -> Entry | None:
        """Make the result's entry."""
        if self.keeps:
            return entry if value else None
        return (entry[0], value)

    def apply(self, entry: Entry, task: Task) -> Entry | Failed | None:
        """Call the function; a failure is retried or becomes a `Failed`."""
        try:
            return self.produce(entry)
        except BaseException as error:
            return self.recover(entry, error, task)

    def recover(self, entry: Entry, error: BaseException, task: Counted) -> Entry | Failed | None:
        """Try again as the policy says; give a result, or the failure."""
        attempts = 1
        while (wait_s := self.wait_before_retry_s(attempts, error)) is not None:
            if not self.wait(wait_s):
                break
            attempts += 1
            task.retried += (self.stage,)
            try:
                return self.produce(entry)
            except BaseException as again:
                error = again
        return self.failure(entry, error, attempts)

    def wait_before_retry_s(self, attempts: int, error: BaseException) -> float | None:
        """Give the wait before one more call after `attempts` calls [s]; None: no more calls."""
        retry = self.policy.retry
        if retry is None or attempts > retry.times or not isinstance(error, Exception):
            return None
        return retry.backoff_s * float(2 ** (attempts - 1))

    def wait(self, wait_s: float) -> bool:
        """Wait in this thread, but not beyond the epoch's end; say whether the epoch goes on."""
        return not (wait_s and self._context.ended.wait(wait_s))

    def failure(self, entry: Entry, error: BaseException, attempts: int) -> Failed:
        """Make the record of a failed item."""
        return failed(
            error,
            stage=self.stage,
            executor=self.executor,
            epoch=self._context.epoch,
            path=entry[0],
            value=entry[1],
            attempts=attempts,
            policy=self.policy,
        )


class AsyncStep(Step):
    """A coroutine function, awaited on the run's event loop."""

    __slots__ = ("timeout_s",)

    def __init__(self, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_s = timeout_s

    async def call(self, entry: Entry) -> Entry | None:
        """Await the function once, at most `timeout_s`."""
        import asyncio

        if self.timeout_s is None:
            value = await self.fn(entry[1], **self.arguments(entry))
        else:
            try:
                async with asyncio.timeout(self.timeout_s) as limit:
                    value = await self.fn(entry[1], **self.arguments(entry))
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise StageTimeoutError(
                    f"a call of stage {self.stage!r} took longer than timeout_s={self.timeout_s:g}",
                    stage=self.stage,
                    path=entry[0],
                    executor=self.executor,
                ) from error
        return self.wrap(entry, value)

    @property
    def plain(self) -> bool:
        """Nothing but a call without a time limit."""
        return super().plain and self.timeout_s is None

    async def attempt(self, entry: Entry, task: Task) -> Entry | Failed | None:
        """Await the function; a failure is retried or becomes a `Failed`."""
        try:
            return await self.call(entry)
        except BaseException as error:
            return await self.recover_async(entry, error, task)

    async def recover_async(
        self, entry: Entry, error: BaseException, task: Task
    ) -> Entry | Failed | None:
        """Try again as the policy says; give a result, or the failure.

        Raises:
            CancelledError: the epoch is over.
        """
        import asyncio

        attempts = 1
        while True:
            if isinstance(error, asyncio.CancelledError) and self._context.ended.is_open:
                raise error
            wait_s = self.wait_before_retry_s(attempts, error)
            if wait_s is None:
                return self.failure(entry, error, attempts)
            await asyncio.sleep(wait_s)
            attempts += 1
            task.retried += (self.stage,)
            try:
                return await self.call(entry)
            except BaseException as again:
                error = again


def step_of(stage: str, spec: Call | Batch, context: EpochContext, executor: str) -> Step:
    """Make the step of a map, filter, flat_map or batch stage."""
    if isinstance(spec, Batch):
        return Step(stage, Collate(spec), context, executor=executor)
    if executor == "coroutine" and not inspect.isasyncgenfunction(spec.fn):
        return AsyncStep(
            stage,
            spec.fn,
            context,
            policy=spec.policy,
            keeps=isinstance(spec, Filter),
            wants_rng=spec.wants_rng,
            executor=executor,
            timeout_s=spec.timeout_s,
        )
    return Step(
        stage,
        spec.fn,
        context,
        policy=spec.policy,
        keeps=isinstance(spec, Filter),
        wants_rng=spec.wants_rng,
        executor=executor,
    )
