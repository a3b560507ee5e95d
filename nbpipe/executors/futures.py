"""Any `concurrent.futures.Executor`: work through an executor that the user made."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future
from concurrent.futures import Executor as PoolExecutor
from contextlib import contextmanager
from pickle import PickleBuffer
from time import monotonic
from typing import Any, ClassVar, final

from ..base.threads import ThreadSettings
from ..errors import ExecutorBrokenError, StageError, StageTimeoutError, UnpicklableError
from .interface import Executor, Program, Request, Response
from .stack import Place, place_in_thread
from .workers.pickling import PROTOCOL, Classes, dumps_message
from .workers.pickling import dumps as dumps_by_value
from .workers.remote_errors import PackedError, pack_error
from .workers.serialize import FunctionSerializer, SerializedFunction, load

_KEPT_PROGRAMS = 4


# -- Callers: whatever gives futures, and any executor of the user's -------------------------------
class FutureExecutor(Executor):
    """Has requests done by something of the user's that gives a future for each.

    Args:
        name: name of the executor, for messages.

    Attributes:
        ways_out: what to do where a call was not done, by the kind of error; the first that fits.
    """

    ways_out: ClassVar[Mapping[type[BaseException], str]]

    def __init__(self, name: str) -> None:
        self._name = name
        self._serializer = FunctionSerializer(afar=True)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._calls: dict[PendingCall, Future[Any] | None] = {}
        self._closed = False

    @abstractmethod
    def _submit(self, call: PendingCall) -> Future[Any]:
        """Have a call done; its future gives an `Response`, or what `run_serialized` returned.

        Raises:
            UnpicklableError: the program or an item cannot be pickled.
            Exception: no more work is taken.
        """

    def _failure(self, call: PendingCall, error: BaseException) -> StageError:
        """Return what to raise where a call was not done: what happened, and the way out."""
        what = f"was not done: {type(error).__name__}: {error}".rstrip(": ")
        way = next(way for kind, way in self.ways_out.items() if isinstance(error, kind))
        return call.error(ExecutorBrokenError, f"{what}; {way}")

    def call(self, request: Request) -> Response:
        """Have a request done, and wait for it in this thread.

        Raises:
            StageTimeoutError: a call of a function took longer than the request's `timeout_s`. It
                cannot be stopped: if it has begun, it continues where it is.
            WorkerDiedError: every worker that was given the request died.
            ExecutorBrokenError: no more work is done there.
            UnpicklableError: the program, an item or a result cannot be pickled.
        """
        return self._response(PendingCall(request, self._name))

    def expand(self, request: Request) -> Iterator[Any]:
        """Have all children of the request's one entry made; then return an iterator over them."""
        results = self._response(PendingCall(request, self._name, expands=True)).results
        if results and isinstance(results[0], PackedError):
            raise results[0].unpack()
        return _children_of(results)

    def _response(self, call: PendingCall) -> Response:
        done = self._wait_for(call)
        if isinstance(done, Response):
            return done
        *results, rest = done.open()
        return Response([*map(_opened, results)], *rest)

    def _wait_for(self, call: PendingCall) -> Response | Payload:
        with self._counted(call):
            try:
                future = self._submit(call)
            except UnpicklableError:
                raise
            except Exception as error:
                raise call.problem or self._failure(call, error) from error
            with self._lock:
                self._calls[call] = future
            future.add_done_callback(call.end)
            try:
                call.wait()
            finally:
                future.cancel()  # no harm where it is done
            reason = CancelledError() if future.cancelled() else future.exception()
            if reason is None:
                done: Response | Payload = future.result()
                return done
            if isinstance(reason, UnpicklableError):
                raise call.problem or reason
            raise call.problem or self._failure(call, reason) from reason

    @contextmanager
    def _counted(self, call: PendingCall) -> Iterator[None]:
        """Count a call while it is in progress.

        Raises:
            StageError: the caller is closed.
        """
        with self._lock:
            if self._closed:
                raise call.error(StageError, "did not begin: its run is closed")
            self._calls[call] = None
        try:
            yield
        finally:
            with self._lock:
                del self._calls[call]
                self._changed.notify_all()

    def renew(self) -> None:
        """Called when functions may have changed: they are pickled again."""
        self._serializer.renew()

    def cancel(self, epoch: int | None = None) -> None:
        """Take back the calls that have not begun; those that have are waited for."""
        with self._lock:
            futures = [self._calls[call] for call in self._calls_of(epoch)]
        for future in futures:
            if future is not None:
                future.cancel()

    def abandon(self, epoch: int | None = None) -> None:
        """Wake every thread that waits for a call of an epoch, or with None of any."""
        with self._lock:
            for call in self._calls_of(epoch):
                call.abandon()

    def place(self) -> Place | None:
        """Return where in user code the oldest call is that a thread of this process makes."""
        with self._lock:
            idents = [call.thread for call in self._calls if call.thread]
        return place_in_thread(idents[0]) if idents else None

    def _calls_of(self, epoch: int | None) -> list[PendingCall]:
        return [call for call in self._calls if epoch is None or call.request.epoch == epoch]

    def close(self, timeout_s: float) -> list[str]:
        """Wait for the calls in progress; what does the work is the user's to close."""
        self.cancel()
        with self._lock:
            self._closed = True
            self._changed.wait_for(lambda: not self._calls, timeout_s)
            late = {call.request.program.label for call in self._calls}
        self.abandon()
        return sorted(late)


@final
class ForeignExecutor(FutureExecutor):
    """Has requests done by an executor that the user made, and that stays the user's.

    Args:
        executor: what does the work; it is never shut down here.
    """

    ways_out: ClassVar = {
        BrokenExecutor: "make a new executor, or use executor='process', where a worker that dies "
        "costs its own item at most",
        CancelledError: "keep the executor open, and its work uncancelled, for as long as the run "
        "lasts",
        ImportError: "install what is missing where the executor's workers run",
        BaseException: "keep the executor open for as long as the run lasts",
    }

    def __init__(self, executor: PoolExecutor) -> None:
        super().__init__(type(executor).__name__)
        self._executor = executor

    @property
    def workers(self) -> int:
        """Workers there are, as far as the executor says."""
        workers = getattr(self._executor, "_max_workers", 0)
        return workers if isinstance(workers, int) else 0

    def _submit(self, call: PendingCall) -> Future[Any]:
        return self._executor.submit(SentJob(call, self._serializer))


@final
class SentJob:
    """A request on its way: run where it is; where it is pickled, the program goes along by value.

    Whether an executor has its work done in this process need not be asked: it shows.
    """

    def __init__(self, call: PendingCall, serializer: FunctionSerializer) -> None:
        self._call = call
        self._serializer = serializer
        self._settings = ThreadSettings()

    def __call__(self) -> Response:
        """Do the request in this process, with the settings of the thread that sent it."""
        with self._settings.enter():
            return self._settings.of_call().run(self._run)

    def _run(self) -> Response:
        call, request = self._call, self._call.request
        call.thread = threading.get_ident()
        program = PROGRAMS.ready(request.program)
        return _run(
            program, request.entries, request.epoch, lambda *_: call.begin(), expands=call.expands
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave for another process: the time of the call counts from now."""
        call = self._call
        try:
            serialized = self._serializer.of(call.request.program)
            parts = call.parts(serialized)
        except UnpicklableError as error:
            call.problem = error
            raise
        call.begin(call.request.program.calls(call.request.entries))
        return functools.partial, (run_serialized, parts, serialized.data)


class PendingCall:
    """One request in progress, and the thread that waits for its end.

    Attributes:
        request: the work.
        executor: name of the executor, for messages.
        expands: the function gives many items for the request's one.
        problem: what kept the request from being pickled; executors report that in their own ways.
        thread: identifier of the thread of this process that makes the call; 0 without one.
    """

    def __init__(self, request: Request, executor: str, *, expands: bool = False) -> None:
        self.request = request
        self.executor = executor
        self.expands = expands
        self.problem: UnpicklableError | None = None
        self.thread = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._deadline_s: float | None = None
        self._ended = False
        self._abandoned = False

    @property
    def path(self) -> Any:
        """Position of the item in the epoch's order, where there is but one."""
        entries = self.request.entries
        return entries[0][0] if len(entries) == 1 else None

    @property
    def items(self) -> str:
        """The items in words."""
        paths = [str(entry[0]) for entry in self.request.entries]
        return ("item " if len(paths) == 1 else "one of the items ") + ", ".join(paths)

    def parts(self, serialized: SerializedFunction) -> tuple[Any, ...]:
        """Return what is sent with the program; the items are pickled now.

        Raises:
            UnpicklableError: an item cannot be pickled.
        """
        entries = packed(self.request.entries, self.request.program.label, "item")
        return serialized.digest, entries, self.request.epoch, self.expands

    def begin(self, calls: int = 1) -> None:
        """Called when a call of a function begins: its time counts from now.

        Args:
            calls: how many follow one another without saying so.
        """
        if self.request.timeout_s is not None:
            with self._lock:
                self._deadline_s = monotonic() + calls * self.request.timeout_s
                self._changed.notify_all()

    def end(self, _: object = None) -> None:
        """Called when the request is done."""
        with self._lock:
            self._ended = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Wait no longer: the response is not wanted any more."""
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
                ends_s = self._deadline_s
                left_s = None if ends_s is None else ends_s - monotonic()
                if left_s is not None and left_s <= 0:
                    limit = f"took longer than timeout_s={self.request.timeout_s:g}"
                    raise self.error(StageTimeoutError, f"{limit}, and cannot be stopped there")
                self._changed.wait(left_s)

    def error(self, kind: type[StageError], what: str) -> StageError:
        """Make an error that says what happened to the call."""
        stage = self.request.program.label
        return kind(
            f"the call of stage {stage!r} on {self.items} ({self.executor}) {what}",
            stage=stage,
            path=self.path,
            executor=self.executor,
        )


# -- Items and answers on their way ----------------------------------------------------------------
# They are pickled here, and not by the executor, so that what cannot be pickled is named.
class Payload:
    """A pickled value; large buffers are kept apart, so that the sender can send them as such."""

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

    def whole(self) -> Payload:
        """Return it with memory of its own."""
        return Payload(self._head, tuple(map(bytearray, self._buffers)))

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


# -- Programs in processes that another library started --------------------------------------------
# A program travels as bytes with its digest; a process that was given it keeps it for a while.
class Programs:
    """The programs that this process has done work for last; threads share them."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[str, Program] = OrderedDict()
        self._prepared: weakref.WeakSet[Program] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._preparing = threading.Lock()

    def get(self, digest: str, data: bytes) -> Program:
        """Return the program; it is loaded once, also where two threads need it."""
        with self._lock:
            if digest not in self._loaded:
                self._loaded[digest] = load(data)
            self._loaded.move_to_end(digest)
            while len(self._loaded) > _KEPT_PROGRAMS:
                self._loaded.popitem(last=False)
            return self._loaded[digest]

    def ready(self, program: Program) -> Program:
        """Return a copy for one request: a program has state; the first calls `worker_init`."""
        with self._preparing:
            if program not in self._prepared:
                program.prepare()
                self._prepared.add(program)
        return copy.copy(program)


PROGRAMS = Programs()


def run_serialized(parts: tuple[Any, ...], data: bytes) -> Payload:
    """Do the work of a serialized program in this process; called on workers.

    Args:
        parts: what `PendingCall.parts` gave.
        data: the program.

    Returns:
        Results, and what else the response holds.

    Raises:
        UnpicklableError: a result cannot be sent back.
    """
    digest, entries, epoch, expands = parts
    program = PROGRAMS.get(digest, data)
    items = entries.open()
    several = expands or len(items) > 1
    kept = functools.partial(_kept, program.label) if several else None
    response = _run(PROGRAMS.ready(program), items, epoch, None, kept, expands=expands)
    rest = (response.tally, response.retried)
    return packed((*response.results, rest), program.label, "result")


def _run(
    program: Program,
    entries: Sequence[Any],
    epoch: int,
    begun: Callable[[int, Any], object] | None,
    kept: Callable[[Any, Any], Any] | None = None,
    *,
    expands: bool,
) -> Response:
    if not expands:
        return program.work(entries, epoch, begun, kept)
    if begun is not None:
        begun(0, entries[0][0])
    return Response(list(_expanded(program, entries[0], epoch, kept)), [])


def _kept(stage: str, _: Any, result: Any) -> Any:
    """Pickle an item before the next call begins, which may fill its memory again."""
    return packed([result], stage, "result").whole() if type(result) is tuple else result


def _opened(result: Any) -> Any:
    return result.open()[0] if isinstance(result, Payload) else result


def _expanded(
    program: Program, entry: Any, epoch: int, kept: Callable[[Any, Any], Any] | None
) -> Iterator[Any]:
    """Call a program's function on one entry: its children, then what was raised, if anything."""
    path, value = entry
    try:
        for child in program.open(value, path, epoch):
            yield (path, child) if kept is None else kept(entry, (path, child))
    except UnpicklableError:
        raise
    except BaseException as error:
        yield pack_error(error)


def _children_of(results: list[Any]) -> Iterator[Any]:
    for result in results:
        if isinstance(result, PackedError):
            raise result.unpack()
        yield result[1]
