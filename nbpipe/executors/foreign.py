"""Any `concurrent.futures.Executor`: work through an executor that the user made."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any

from ..errors import ExecutorBrokenError, UnpicklableError
from .base import Answer, Caller, Job
from .calls import Call, Calls
from .payload import Payload, packed
from .shipped import Cargo, Children, opened, run_here, run_shipped

# A program up to this size travels with every call; a larger one to who has not got it.
_SMALL_BYTES = 32_768


class Delivery:
    """A job on its way: run where it is; where it is pickled, the program goes along by value.

    Whether an executor has its work done in this process need not be asked: it shows.

    Args:
        seen: digest of the program that workers have got already.
        expands: the function gives many items for one.

    Attributes:
        digest: of the program, once it was pickled.
        problem: what kept it from being pickled; executors report that in their own ways.
    """

    def __init__(self, call: Call, cargo: Cargo, seen: str, *, expands: bool) -> None:
        self._call = call
        self._cargo = cargo
        self._seen = seen
        self._expands = expands
        self.digest = ""
        self.problem: UnpicklableError | None = None

    def __call__(self) -> Answer | Children:
        """Do the job in this process."""
        return run_here(self._call.job, lambda _: self._call.begin(), expands=self._expands)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave for another process: the time of the call counts from now."""
        try:
            parts = self._parts()
        except UnpicklableError as error:
            self.problem = error
            raise
        self._call.begin(self._call.functions)
        return Delivered, parts

    def _parts(self) -> tuple[Any, ...]:
        job = self._call.job
        shipped = self._cargo.of(job.program)
        self.digest = shipped.digest
        spared = shipped.digest == self._seen and shipped.size_bytes > _SMALL_BYTES
        entries = packed(job.entries, job.program.label, "item")
        data = None if spared else shipped.data
        return shipped.digest, data, entries, job.epoch, self._expands


class Delivered:
    """A job that has arrived in another process; its parts are arguments of `run_shipped`."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __call__(self) -> Payload | None:
        """Do the job; None: the program is not here yet."""
        *parts, expands = self._parts
        return run_shipped(*parts, expands=expands)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel on: some executors unpickle on the way."""
        return type(self), self._parts


class ForeignCaller(Caller):
    """Has jobs done by an executor that the user made, and that stays the user's.

    Args:
        executor: what does the work; it is never shut down here.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._name = type(executor).__name__
        self._calls = Calls(self._name)
        self._cargo = Cargo()
        self._seen = ""  # digest of the program that some worker has

    @property
    def workers(self) -> int:
        """Workers there are, as far as the executor says."""
        workers = getattr(self._executor, "_max_workers", 0)
        return workers if isinstance(workers, int) else 0

    def call(self, job: Job) -> Answer:
        """Have a job done, and wait for it in this thread.

        Raises:
            StageTimeoutError: the call took longer than the job's `timeout_s`. It cannot be
                stopped: if it has begun, it goes on in the executor.
            ExecutorBrokenError: the executor does no more work.
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
        done = self._deliver(job, self._seen, expands=expands)
        if done is None:  # this worker has not got the program yet
            done = self._deliver(job, seen="", expands=expands)
        if isinstance(done, Payload):
            return opened(done, expands=expands)
        assert done is not None
        return done

    def _deliver(self, job: Job, seen: str, *, expands: bool) -> Answer | Children | Payload | None:
        with self._calls.open(job) as call:
            delivery = Delivery(call, self._cargo, seen, expands=expands)
            future = self._submit(delivery, call)
            self._calls.follow(call, future)
            try:
                call.wait()
            except BaseException:
                future.cancel()
                raise
            self._seen = delivery.digest
            done: Answer | Children | Payload | None = self._outcome(future, delivery, call)
            return done

    def _submit(self, delivery: Delivery, call: Call) -> Future[Any]:
        try:
            return self._executor.submit(delivery)
        except Exception as error:
            raise delivery.problem or self._broken(call, error) from error

    def _outcome(self, future: Future[Any], delivery: Delivery, call: Call) -> Any:
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            return future.result()
        if isinstance(error, UnpicklableError):
            raise delivery.problem or error
        raise delivery.problem or self._broken(call, error) from error

    def _broken(self, call: Call, error: BaseException) -> ExecutorBrokenError:
        what = f"was not done: {type(error).__name__}: {error}".rstrip(": ")
        broken = call.error(ExecutorBrokenError, f"{what}; {_way_out(error)}")
        assert isinstance(broken, ExecutorBrokenError)
        return broken

    def renew(self) -> None:
        """Hear that functions may have changed: they are pickled again."""
        self._cargo.renew()

    def cancel(self) -> None:
        """Take back the calls that have not begun; those that have are waited for."""
        for future in self._calls.futures():
            future.cancel()

    def close(self, timeout_s: float) -> list[str]:
        """Wait for the calls in progress; the executor is the user's to shut down."""
        self.cancel()
        return self._calls.close(timeout_s)


def _way_out(error: BaseException) -> str:
    if isinstance(error, BrokenExecutor):
        return (
            "make a new executor, or use executor='process', where a worker that dies costs "
            "its own item at most"
        )
    if isinstance(error, CancelledError):
        return "keep the executor open, and its work uncancelled, for as long as the run lasts"
    if isinstance(error, ImportError):
        return "install what is missing where the executor's workers run"
    return "keep the executor open for as long as the run lasts"
