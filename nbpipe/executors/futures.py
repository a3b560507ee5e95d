"""Any `concurrent.futures.Executor`: work through an executor that the user made."""

from __future__ import annotations

import copy
import pickle
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from pickle import PickleBuffer
from typing import Any

from ..errors import ExecutorBrokenError, StageError, StageTimeoutError, UnpicklableError
from .base import Answer, Caller, Job, Program
from .pickling import PROTOCOL, Classes, dumps_message
from .pickling import dumps as dumps_by_value
from .remote_errors import PackedError, pack_error
from .shipping import Shipper, load

_KEPT_PROGRAMS = 4
# A program up to this size travels with every call; a larger one to who has not got it.
_SMALL_BYTES = 32_768


# -- The caller, and a job on its way --------------------------------------------------------------
class ForeignCaller(Caller):
    """Has jobs done by an executor that the user made, and that stays the user's.

    Args:
        executor: what does the work; it is never shut down here.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._name = type(executor).__name__
        self._calls = PendingCalls(self._name)
        self._shipper = Shipper(afar=True)
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
        """Have all children of the job's one entry made; then return an iterator over them."""
        children = self._done(job, expands=True)
        assert isinstance(children, DrawnChildren)
        return children.draw()

    def _done(self, job: Job, *, expands: bool) -> Answer | DrawnChildren:
        done = self._deliver(job, self._seen, expands=expands)
        if done is None:  # this worker has not got the program yet
            done = self._deliver(job, seen="", expands=expands)
        if isinstance(done, Payload):
            return answer_of(done, expands=expands)
        assert done is not None
        return done

    def _deliver(
        self, job: Job, seen: str, *, expands: bool
    ) -> Answer | DrawnChildren | Payload | None:
        with self._calls.open(job) as call:
            sent = _SentJob(call, self._shipper, seen, expands=expands)
            future = self._submit(sent, call)
            self._calls.follow(call, future)
            try:
                call.wait()
            except BaseException:
                future.cancel()
                raise
            self._seen = sent.digest
            done: Answer | DrawnChildren | Payload | None = self._outcome(future, sent, call)
            return done

    def _submit(self, sent: _SentJob, call: PendingCall) -> Future[Any]:
        try:
            return self._executor.submit(sent)
        except Exception as error:
            raise sent.problem or self._broken(call, error) from error

    def _outcome(self, future: Future[Any], sent: _SentJob, call: PendingCall) -> Any:
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            return future.result()
        if isinstance(error, UnpicklableError):
            raise sent.problem or error
        raise sent.problem or self._broken(call, error) from error

    def _broken(self, call: PendingCall, error: BaseException) -> ExecutorBrokenError:
        what = f"was not done: {type(error).__name__}: {error}".rstrip(": ")
        broken = call.error(ExecutorBrokenError, f"{what}; {_way_out(error)}")
        assert isinstance(broken, ExecutorBrokenError)
        return broken

    def renew(self) -> None:
        """Called when functions may have changed: they are pickled again."""
        self._shipper.renew()

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


class _SentJob:
    """A job on its way: run where it is; where it is pickled, the program goes along by value.

    Whether an executor has its work done in this process need not be asked: it shows.

    Args:
        seen: digest of the program that workers have got already.
        expands: the function gives many items for one.

    Attributes:
        digest: of the program, once it was pickled.
        problem: what kept it from being pickled; executors report that in their own ways.
    """

    def __init__(self, call: PendingCall, shipper: Shipper, seen: str, *, expands: bool) -> None:
        self._call = call
        self._shipper = shipper
        self._seen = seen
        self._expands = expands
        self.digest = ""
        self.problem: UnpicklableError | None = None

    def __call__(self) -> Answer | DrawnChildren:
        """Do the job in this process."""
        return _run_here(self._call.job, lambda _: self._call.begin(), expands=self._expands)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave for another process: the time of the call counts from now."""
        try:
            parts = self._parts()
        except UnpicklableError as error:
            self.problem = error
            raise
        self._call.begin(self._call.functions)
        return _ArrivedJob, parts

    def _parts(self) -> tuple[Any, ...]:
        job = self._call.job
        shipped = self._shipper.of(job.program)
        self.digest = shipped.digest
        spared = shipped.digest == self._seen and shipped.size_bytes > _SMALL_BYTES
        entries = packed(job.entries, job.program.label, "item")
        data = None if spared else shipped.data
        return shipped.digest, data, entries, job.epoch, self._expands


class _ArrivedJob:
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


# -- Jobs in progress elsewhere, and the threads that wait for them --------------------------------
class PendingCalls:
    """The calls in progress of one caller."""

    def __init__(self, executor: str) -> None:
        self._executor = executor
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._calls: dict[PendingCall, Future[Any] | None] = {}
        self._closed = False

    @contextmanager
    def open(self, job: Job) -> Iterator[PendingCall]:
        """Return a call, and count it while it is in progress.

        Raises:
            StageError: the caller is closed.
        """
        call = PendingCall(job, self._executor)
        with self._lock:
            if self._closed:
                raise call.error(StageError, "did not begin: its run is closed")
            self._calls[call] = None
        try:
            yield call
        finally:
            with self._lock:
                del self._calls[call]
                self._changed.notify_all()

    def follow(self, call: PendingCall, future: Future[Any]) -> None:
        """Note the future of a call; the call ends with it."""
        with self._lock:
            self._calls[call] = future
        future.add_done_callback(call.end)

    def futures(self) -> list[Future[Any]]:
        """Return the futures of the calls in progress."""
        with self._lock:
            return [future for future in self._calls.values() if future is not None]

    def abandon(self) -> None:
        """Wake every thread that waits."""
        with self._lock:
            for call in self._calls:
                call.abandon()

    def close(self, timeout_s: float) -> list[str]:
        """Wait for the calls in progress, at most `timeout_s`; return the stages of the others."""
        with self._lock:
            self._closed = True
            self._changed.wait_for(lambda: not self._calls, timeout_s)
            late = {call.job.program.label for call in self._calls}
        self.abandon()
        return sorted(late)


class PendingCall:
    """One job in progress, and the thread that waits for its end.

    Args:
        job: what is to be done.
        executor: name of what does it, for messages.
    """

    def __init__(self, job: Job, executor: str) -> None:
        self.job = job
        self.executor = executor
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._deadline_s: float | None = None
        self._ended = False
        self._abandoned = False

    @property
    def path(self) -> Any:
        """Position of the item in the epoch's order, where there is but one."""
        entries = self.job.entries
        return entries[0][0] if len(entries) == 1 else None

    @property
    def items(self) -> str:
        """The items in words."""
        paths = [str(entry[0]) for entry in self.job.entries]
        return ("item " if len(paths) == 1 else "one of the items ") + ", ".join(paths)

    @property
    def functions(self) -> int:
        """Calls of functions that the job takes at most, as far as its program says."""
        count: int = getattr(self.job.program, "calls", len)(self.job.entries)
        return count

    def begin(self, calls: int = 1) -> None:
        """Called when a call of a function begins: its time counts from now.

        Args:
            calls: how many follow one another without saying so.
        """
        if self.job.timeout_s is not None:
            with self._lock:
                self._deadline_s = time.monotonic() + calls * self.job.timeout_s
                self._changed.notify_all()

    def end(self, _: object = None) -> None:
        """Called when the job is done."""
        with self._lock:
            self._ended = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Wait no longer: nobody wants the answer any more."""
        with self._lock:
            self._abandoned = True
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            StageTimeoutError: a call took too long.
            StageError: the call was abandoned.
        """
        with self._lock:
            while not self._ended:
                if self._abandoned:
                    raise self.error(StageError, "was abandoned: its epoch is over")
                left_s = self._left_s()
                if left_s is not None and left_s <= 0:
                    limit = f"took longer than timeout_s={self.job.timeout_s:g}"
                    raise self.error(StageTimeoutError, f"{limit}, and cannot be stopped there")
                self._changed.wait(left_s)

    def _left_s(self) -> float | None:
        return None if self._deadline_s is None else self._deadline_s - time.monotonic()

    def error(self, kind: type[StageError], what: str) -> StageError:
        """Make an error that says what happened to the call."""
        stage = self.job.program.label
        return kind(
            f"the call of stage {stage!r} on {self.items} ({self.executor}) {what}",
            stage=stage,
            path=self.path,
            executor=self.executor,
        )


# -- Items and answers on their way ----------------------------------------------------------------
# They are pickled here, and not by the executor, so that what cannot be pickled is named.
class Payload:
    """A pickled value; large buffers stand apart, where whoever sends it can send them as such."""

    __slots__ = ("_buffers", "_head")

    def __init__(self, head: bytes, buffers: tuple[Any, ...] = ()) -> None:
        self._head = head
        self._buffers = buffers

    @classmethod
    def of(cls, value: object) -> Payload:
        """Pickle a value; what only a notebook has is pickled by value."""
        pickled = dumps_message(value, Classes())
        if pickled.defines:  # classes of a notebook go along, whole
            return cls(dumps_by_value(value))
        return cls(b"".join(pickled.parts), tuple(pickled.buffers))

    def open(self) -> Any:
        """Return the value; its arrays use the memory of the buffers."""
        return pickle.loads(self._head, buffers=self._buffers)  # noqa: S301  our own workers'

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Offer the buffers as such; older protocols know no such thing."""
        wrap = PickleBuffer if protocol >= PROTOCOL else bytearray
        return type(self), (self._head, tuple(map(wrap, self._buffers)))


def packed(values: Sequence[Any], stage: str, what: str) -> Payload:
    """Pickle entries or results; where that fails, say which one it is.

    Args:
        values: pairs of path and value, or what stands for one.
        stage: what they belong to.
        what: "item" or "result".

    Raises:
        UnpicklableError: one of them cannot be pickled.
    """
    try:
        return Payload.of(values)
    except Exception as error:
        culprit = next((value for value in values if not _is_picklable(value)), None)
        raise _unpicklable(culprit, stage, what, error) from error


def _is_picklable(value: object) -> bool:
    try:
        Payload.of(value)
    except Exception:
        return False
    return True


def _unpicklable(culprit: Any, stage: str, what: str, error: Exception) -> UnpicklableError:
    pair = culprit if isinstance(culprit, tuple) and len(culprit) > 1 else ("?", culprit)
    kind = type(pair[1])
    return UnpicklableError(
        f"the {what} of stage {stage!r} must be picklable to cross to another process, got for "
        f"item {pair[0]} a {kind.__module__}.{kind.__qualname__} "
        f"({type(error).__name__}: {error}); "
        "pass what it is made from (a path, bytes, an array), or use executor='thread'"
    )


def answer_of(payload: Payload, *, expands: bool) -> Answer | DrawnChildren:
    """Return what came of a job that was run by `run_shipped`."""
    *results, rest = payload.open()
    if expands:
        return DrawnChildren([child for _, child in results], rest)
    return Answer(results, *rest)


# -- Programs in processes that somebody else started ----------------------------------------------
# A program travels as bytes with its digest; a process that was given it keeps it for a while.
class Programs:
    """The programs that this process has done work for last; threads share them."""

    def __init__(self, kept: int = _KEPT_PROGRAMS) -> None:
        self._kept = kept
        self._loaded: OrderedDict[str, Program] = OrderedDict()
        self._prepared: weakref.WeakSet[Program] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._preparing = threading.Lock()
        self._own = _ThreadCopies()

    def get(self, digest: str, data: bytes | None) -> Program | None:
        """Return the program; None: it is not here, and `data` was not given."""
        with self._lock:  # two threads that need the same large program load it once
            program = self._loaded.get(digest)
            if program is None and data is not None:
                program = self._loaded[digest] = load(data)
            if program is not None:
                self._loaded.move_to_end(digest)
            while len(self._loaded) > self._kept:
                self._loaded.popitem(last=False)
        return program

    def ready(self, program: Program) -> Program:
        """Return what this thread is to run; the first time here, `worker_init` is called."""
        with self._preparing:
            if program not in self._prepared:
                prepare = getattr(program, "prepare", None)
                if prepare is not None:
                    prepare()
                self._prepared.add(program)
        return self._own.of(program)


class _ThreadCopies(threading.local):
    """A program of its own for each thread: one run of a program keeps its state there."""

    def __init__(self) -> None:
        self._copies: weakref.WeakKeyDictionary[Program, Program] = weakref.WeakKeyDictionary()

    def of(self, program: Program) -> Program:
        """Return this thread's copy; it shares functions and data with the original."""
        own = self._copies.get(program)
        if own is None:
            own = self._copies[program] = copy.copy(program)
        return own


PROGRAMS = Programs()


def _run_here(job: Job, begun: Callable[[int], object], *, expands: bool) -> Answer | DrawnChildren:
    """Do a job in the process it comes from."""
    program = PROGRAMS.ready(job.program)
    if expands:
        begun(0)
        return expand(program, job.entries[0], job.epoch)
    return program.run(job.entries, job.epoch, begun)


def run_shipped(
    digest: str,
    data: bytes | None,
    entries: Payload,
    epoch: int,
    *,
    expands: bool = False,
    begun: Callable[[int], object] | None = None,
) -> Payload | None:
    """Do the work of a shipped program in this process; called on workers.

    Args:
        digest: of the program.
        data: the program, as far as it has to be sent.
        entries: what it is to work on.
        epoch: number of the epoch.
        expands: the program's function gives many items for the one entry.
        begun: called before each call of a function.

    Returns:
        What `answer_of` takes; None where the program is not here and `data` was not given.

    Raises:
        UnpicklableError: a result cannot be sent back.
    """
    program = PROGRAMS.get(digest, data)
    if program is None:
        return None
    given = entries.open()
    program = PROGRAMS.ready(program)
    if expands:
        if begun is not None:
            begun(0)
        children = expand(program, given[0], epoch)
        pairs = [(given[0][0], child) for child in children.values]
        return packed((*pairs, children.error), program.label, "result")
    answer = program.run(given, epoch, begun)
    return packed((*answer.results, (answer.tally, answer.retried)), program.label, "result")


def expand(program: Any, entry: Any, epoch: int) -> DrawnChildren:
    """Call a program's function on one entry, and draw all of its children."""
    path, value = entry
    values: list[Any] = []
    try:
        values.extend(program.open(value, path, epoch))
    except BaseException as error:
        return DrawnChildren(values, pack_error(error))
    return DrawnChildren(values, None)


class DrawnChildren:
    """What a function made of one item: all of it, in order, and how it ended.

    Attributes:
        values: the children.
        error: what was raised after the last of them, or None.
    """

    def __init__(self, values: list[Any], error: PackedError | None) -> None:
        self.values = values
        self.error = error

    def draw(self) -> Iterator[Any]:
        """Return an iterator over the children; what was raised before the first is raised here."""
        if self.error is not None and not self.values:
            raise self.error.unpack()
        return self._drawn()

    def _drawn(self) -> Iterator[Any]:
        yield from self.values
        if self.error is not None:
            raise self.error.unpack()
