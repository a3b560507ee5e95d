"""Worker processes: one process and one pipe for each call in progress."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Any, final

import psutil

from ..base.format import shortened
from ..base.threads import no_thread
from ..errors import (
    ArgumentTypeError,
    ExecutorBrokenError,
    StageTimeoutError,
    UnpicklableError,
    WorkerDiedError,
    WorkerStartError,
)
from .interface import MOST_PROCESSES, Executor, Program, Request, Response
from .stack import Place, StackPipe
from .workers.channel import Channel, ResultReader, Wire
from .workers.launch import LEAVE_S, Worker, launch, not_started
from .workers.memory import Blocks
from .workers.reloads import Versions, reloaded
from .workers.serialize import FunctionSerializer, SerializedFunction
from .workers.settings import warn_once
from .workers.worker import ENDED, ENTRY, OUTPUT, show_output

LOG = logging.getLogger("nbpipe")
_LONGEST = 300  # characters of a user's error that ours repeats
_RESTED_S = 0.05
_RSS_S = 1.0  # resident memory is read no more often than this
_TOTAL_BYTES = int(psutil.virtual_memory().total)
_RING_SHARE = 4  # of the machine's memory, shared memory may take this part
_warned = [False]


# -- The pool --------------------------------------------------------------------------------------
@final
class ProcessExecutor(Executor):
    """Has requests done in worker processes that start when they are needed.

    Args:
        limit: gives the calls that may be in progress at once, now.
        copy: results are copied out of shared memory once many are kept.
        max_items: a worker is replaced after so many items, or None.
        budget_bytes: shared memory that all workers may take together [bytes]; a quarter of
            the machine's memory where not given.
    """

    retries_of_deaths = 2

    def __init__(
        self,
        *,
        limit: Callable[[], int],
        copy: bool = True,
        max_items: int | None = None,
        budget_bytes: int | None = None,
    ) -> None:
        self._limit = limit
        self._copy = copy
        self._max_items = max_items
        self._budget_bytes = budget_bytes or _TOTAL_BYTES // _RING_SHARE
        self._blocks = Blocks()
        self._lock = threading.RLock()  # garbage that is found below us may look at the run
        self._changed = threading.Condition(self._lock)
        self._errors: list[BaseException] = []  # of workers that could not be started
        self._serializer = FunctionSerializer(measures=True)
        self._idle: list[_Slot] = []
        self._slots: set[_Slot] = set()
        self._sent: dict[
            int, _Slot
        ] = {}  # those at work on a request whose thread has not called for it yet
        self._leaving: list[Worker] = []
        self._waiting = self._starting = 0
        self._closed = self._reaped = False
        self._memory = (0.0, 0)
        self._stacks: StackPipe | None = None

    # -- what is sent ---------------------------------------------------------------------
    def prepare(self, program: Program) -> None:
        """Pickle the program: workers get it with their next request if it has changed."""
        self._serializer.of(program)
        with self._lock:
            self._errors.clear()

    def renew(self) -> None:
        """Pickle the program again with the next request: a cell may have changed a function."""
        self._serializer.renew()

    # -- requests -----------------------------------------------------------------------------
    def call(self, request: Request) -> Response:
        """Have a request done by a worker that has nothing to do, or by a new one."""
        slot = self._sent.pop(id(request), None) or self._prepared(request)
        try:
            return slot.do(request, partial(self._go_on, slot, request))
        finally:
            if slot.sent is None:
                self._give_back(slot)

    def _go_on(self, slot: _Slot, request: Request) -> None:
        """Send a worker that has done a request the next one: its results are read meanwhile."""
        with self._lock:
            stays = not self._closed and len(self._slots) <= self._limit()
        if request.following is None or not stays:
            return
        with contextlib.suppress(Exception):  # the caller tries again, and gets the error
            if not slot.has(self._serializer.of(request.program), request.epoch):
                return  # a cell has changed a function
            following = request.following()
            if following is not None:
                slot.begin(following)
                self._sent[id(following)] = slot

    def expand(self, request: Request) -> _RemoteChildren:
        """Have the function called on the request's one entry; its worker is ours until the end."""
        slot = self._prepared(request)
        try:
            slot.open(request)
        except BaseException:
            self._give_back(slot)
            raise
        return _RemoteChildren(slot, request, self._give_back)

    def _prepared(self, request: Request) -> _Slot:
        """Return a worker that has the program.

        Raises:
            WorkerStartError: worker after worker died before it had an item.
        """
        serialized = self._serializer.of(request.program)
        tries = 0
        while True:
            try:
                slot = self._take(request, serialized)
                return self._loaded(slot, request, serialized)
            except WorkerDiedError as error:
                tries += 1
                if tries > self.retries_of_deaths:
                    raise WorkerStartError(
                        f"workers of {request.program.label!r} die before their first item: {error}"
                    ) from error

    def _loaded(self, slot: _Slot, request: Request, serialized: SerializedFunction) -> _Slot:
        try:
            slot.load(request, serialized)
        except BaseException:
            self._give_back(slot)
            raise
        return slot

    def _take(self, request: Request, serialized: SerializedFunction) -> _Slot:
        """Return a worker that has nothing to do; where there is none, have one started.

        Whichever is free first is taken, so that no call waits for a new worker in vain.
        """
        while True:
            with self._lock:
                slot = self._next_idle(request, serialized)
            if slot.fits(serialized) and (not slot.rested() or slot.is_alive()):
                return slot
            self._drop(slot)

    def _next_idle(self, request: Request, serialized: SerializedFunction) -> _Slot:
        """Wait for a worker; under the lock. One is being started for each caller that waits."""
        self._waiting += 1
        try:
            while not self._idle:
                self._check_open(request)
                if self._starting < self._waiting:
                    self._start(request, serialized)
                self._changed.wait()
        finally:
            self._waiting -= 1
        return self._idle.pop()

    def _check_open(self, request: Request) -> None:
        if self._closed:
            raise ExecutorBrokenError(
                f"the workers of {request.program.label!r} are closed", stage=request.program.label
            )
        if self._errors:
            raise self._errors.pop()

    def _start(self, request: Request, serialized: SerializedFunction) -> None:
        """Have a worker started, in a thread of its own; under the lock.

        Raises:
            WorkerStartError: no thread could be started, and there is no other worker.
        """
        slot = _Slot(self._free_number())
        self._slots.add(slot)
        self._starting += 1
        thread = threading.Thread(
            target=self._started, args=(slot, request, serialized), name="nbpipe-start", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._slots.discard(slot)
            self._starting -= 1
            if not self._slots:
                raise no_thread(f"a worker of {request.program.label!r}", error) from error

    def _free_number(self) -> int:
        taken = {slot.number for slot in self._slots}
        count = len(taken) + 1
        if count > MOST_PROCESSES * (os.cpu_count() or 1) and not _warned[0]:
            _warned[0] = True
            LOG.warning(
                "more than %d worker processes for each core: they take memory and wait for one "
                "another; lower the concurrency",
                MOST_PROCESSES,
            )
        return next(number for number in range(count) if number not in taken)

    def _started(self, slot: _Slot, request: Request, serialized: SerializedFunction) -> None:
        each_bytes = self._budget_bytes // (2 * max(self._limit(), slot.number + 1))  # two ways
        try:
            slot.start(each_bytes, self._stack_pipe(), copy=self._copy, blocks=self._blocks)
            slot.load(request, serialized)
        except BaseException as error:
            slot.usable = False
            with self._lock:
                if self._waiting:
                    self._errors.append(error)
        with self._lock:
            self._starting -= 1
        self._give_back(slot)

    def _stack_pipe(self) -> StackPipe:
        """Return the pipe that all workers write their stacks to."""
        with self._lock:
            if self._stacks is None:
                try:
                    self._stacks = StackPipe()
                except OSError as error:
                    raise not_started(error) from error
            return self._stacks

    def _give_back(self, slot: _Slot) -> None:
        most = self._max_items
        worn = most is not None and slot.items >= most
        with self._lock:
            surplus = len(self._slots) > self._limit() and not self._waiting
            keep = slot.usable and not worn and not surplus and not self._closed
            if keep:
                self._idle.append(slot)
                slot.rest()
                self._changed.notify()
        if not keep:
            self._drop(slot)

    def _drop(self, slot: _Slot) -> None:
        with self._lock:
            self._slots.discard(slot)
            self._leaving = [worker for worker in self._leaving if worker.wait(0) is None]
            worker = slot.leave()
            if worker is not None:
                self._leaving.append(worker)
                if self._reaped:  # nothing waits for it any more
                    worker.kill()
            self._changed.notify_all()  # there is room for another

    def trim(self) -> None:
        """Let workers go that a lowered limit leaves without work."""
        with self._lock:
            surplus = len(self._slots) - self._limit()
            gone = [self._idle.pop(0) for _ in range(min(surplus, len(self._idle)))]
        for slot in gone:
            self._drop(slot)

    # -- looking in -----------------------------------------------------------------------
    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        with self._lock:
            return tuple(sorted(slot.pid for slot in self._slots if slot.pid))

    @property
    def starting(self) -> int:
        """Workers that have not done anything yet."""
        with self._lock:
            return sum(not slot.ready for slot in self._slots)

    def place(self) -> Place | None:
        """Return where in user code the worker is that has been at work for the longest time."""
        with self._lock:
            busy = [slot for slot in self._slots if slot.ready and slot.since_s < math.inf]
            stacks, slot = self._stacks, min(busy, key=lambda one: one.since_s, default=None)
        return None if slot is None or stacks is None else stacks.place(slot.pid)

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the workers [bytes]; what they share is counted in each."""
        read_s, known = self._memory
        now_s = monotonic()
        if not known or now_s - read_s > _RSS_S:
            known = sum(map(_resident_bytes, self.pids))
            self._memory = now_s, known
        return known

    # -- the end --------------------------------------------------------------------------
    def close(self, timeout_s: float) -> list[str]:
        """End all workers; those still at work after `timeout_s` are killed."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            idle, self._idle = self._idle, []
            for slot in self._slots:
                if not slot.ready:
                    slot.kill()
        for slot in idle:
            self._drop(slot)
        late = self._at_work(timeout_s)
        for slot in late:
            slot.kill()
        self._at_work(LEAVE_S)
        self._reap()
        if self._stacks is not None:
            self._stacks.close()
        program = self._serializer.program
        return [program.label] if late and program else []

    def _at_work(self, timeout_s: float) -> list[_Slot]:
        """Wait until no worker is at work any more, at most so long; return those that are."""
        with self._lock:
            self._changed.wait_for(lambda: not self._slots, timeout_s)
            return list(self._slots)

    def _reap(self) -> None:
        """Wait for workers that were asked to leave; kill those that do not."""
        with self._lock:
            leaving = list(self._leaving)
            self._reaped = True
        deadline_s = monotonic() + LEAVE_S
        for worker in leaving:
            worker.end(max(0.0, deadline_s - monotonic()))
        with self._lock:
            self._leaving = [worker for worker in self._leaving if worker not in leaving]


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


_Call = tuple[int, Any]  # the number of a stage, and the path of an item


# -- One worker as its parent sees it: what is sent, what is heard, how it ends --------------------
@final
class _Slot:
    """One worker process and its pipe; used by one thread at a time.

    Attributes:
        number: number of the worker in its region.
        ready: it has answered once.
        usable: it may be given another request.
        items: items it was given.
        sent: the request that it is at work on.
        since_s: since when its answer is waited for; infinite while none is [s].
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.ready = False
        self.usable = True
        self.items = 0
        self.sent: Request | None = None
        self.since_s = math.inf
        self._worker: Worker | None = None
        self._channel: Channel | None = None
        self._answered = False
        self._digest = ""
        self._settings = b""
        self._versions: Versions = ()  # of the modules that it imported
        self._epoch = -1
        self._rests_since_s = 0.0

    @property
    def pid(self) -> int:
        """Process id of the worker; 0 before it was started."""
        return self._worker.pid if self._worker is not None else 0

    def start(self, budget_bytes: int, stacks: StackPipe, *, copy: bool, blocks: Blocks) -> None:
        """Start the process; it works on the first request as soon as it can.

        Args:
            budget_bytes: shared memory for each way [bytes].
            stacks: the pipe that it writes its stacks to when it is asked for them.
            copy: results are copied out of shared memory once many are kept.
            blocks: memory to copy them to.
        """
        worker = launch(ENTRY, pickle.dumps((self.number, budget_bytes)))
        try:
            Wire(worker.connection).send_fd(stacks.file)
        except ConnectionError:
            pass  # it has died, and the first request reports it
        except OSError as error:
            worker.close()
            worker.end()
            raise not_started(error) from error
        self._channel = Channel(
            worker.connection, copy=copy, budget_bytes=budget_bytes, blocks=blocks
        )
        self._worker = worker
        if not self.usable:  # killed while it started
            worker.kill()

    def rest(self) -> None:
        """Called when there is nothing to do for now."""
        self._rests_since_s = monotonic()

    def rested(self) -> bool:
        """Return whether it had nothing to do for so long that its process may be gone."""
        return monotonic() - self._rests_since_s > _RESTED_S

    def is_alive(self) -> bool:
        """Return whether the worker, which has nothing to do, is there; print what it printed."""
        assert self._channel is not None
        try:
            while self._channel.poll(0):
                self._heard(self._channel.recv())
        except (EOFError, OSError):
            return False
        return True

    def begin(self, request: Request) -> None:
        """Send it a request; it has nothing to do."""
        announces = request.suspect or request.timeout_s is not None
        self._send(request, ("do", list(request.entries), request.epoch, announces))
        self.sent = request

    def do(self, request: Request, go_on: Callable[[], object]) -> Response:
        """Have a request done, and wait for it.

        Args:
            request: it may have begun already.
            go_on: called when the worker has done all of it, before the results are read.
        """
        if self.sent is not request:
            self.begin(request)
        self._answered = False
        try:
            results, tally, retried, slabs, goes_on = self._expect("response", request)
            worker = self.pid, perf_counter_ns()
            self.items += tally[0][0]  # of a batch, all of its items
            self.sent = None
            opened = self._reader(slabs).open
            if goes_on:
                go_on()
        except BaseException:
            if not self._answered:  # more of this request would come
                self.kill()
            raise
        finally:
            if self.sent is request:
                self.sent = None
        items = [(one[0], opened(one[1])) if type(one) is tuple else one for one in results]
        return Response(items, tally, retried, worker)

    def _reader(self, slabs: Sequence[int]) -> ResultReader:
        assert self._channel is not None
        return self._channel.reader(slabs)

    def open(self, request: Request) -> None:
        """Have the iterator over one item's children made."""
        self._send(request, ("open", request.entries[0], request.epoch))
        self.items += 1
        self._expect("opened", request)

    def more(self, request: Request, count: int) -> tuple[list[Any], bool, int]:
        """Have up to `count` children made: they, whether that was all, and the time [ns]."""
        self._send(request, ("more", count))
        drawn, slabs, over, busy_ns = self._expect("children", request)
        return [*map(self._reader(slabs).open, drawn)], over, busy_ns

    def drop(self, request: Request) -> None:
        """Let the worker close the iterator."""
        self._send(request, ("drop",))

    def has(self, serialized: SerializedFunction, epoch: int) -> bool:
        """Return whether it has this program, for this epoch."""
        return self._epoch == epoch and self._is_loaded(serialized)

    def _is_loaded(self, serialized: SerializedFunction) -> bool:
        return self._digest == serialized.digest and self._settings == serialized.settings

    def fits(self, serialized: SerializedFunction) -> bool:
        """Return whether it imported no module that was reloaded since."""
        return not reloaded(self._versions, serialized.versions)

    def load(self, request: Request, serialized: SerializedFunction) -> None:
        """Send the program, if the worker does not have it yet.

        Raises:
            WorkerStartError: it could not be loaded there, or `worker_init` failed.
        """
        assert self._channel is not None
        if not self.has(serialized, request.epoch):
            self._epoch = request.epoch
            self._channel.renew()
        if self._is_loaded(serialized):
            return
        self._digest = ""
        self._versions = tuple({**dict(self._versions), **dict(serialized.versions)}.items())
        self._send(request, ("program", serialized.data, serialized.settings))
        try:
            failed, notes = self._expect("ready", request)
        except (WorkerDiedError, StageTimeoutError):
            raise
        except Exception as error:
            self.usable = False
            raise WorkerStartError(
                f"{_line(error)}: the function of {request.program.label!r} could not be loaded in "
                "a worker"
            ) from error
        warn_once(notes)
        if failed is not None:
            self.usable = False
            cause: BaseException = failed.unpack()
            raise WorkerStartError(
                f"{_line(cause)}: worker_init failed in a worker of {request.program.label!r}"
            ) from cause
        self._digest, self._settings = serialized.digest, serialized.settings

    def _send(self, request: Request, message: tuple[Any, ...]) -> None:
        assert self._channel is not None
        try:
            self._channel.send(message)
        except (EOFError, OSError) as error:
            raise self._death(request, None) from error
        except ArgumentTypeError as error:  # our own refusal says what to do
            raise UnpicklableError(
                f"an item cannot be sent to the worker of {request.program.label!r}: {error}"
            ) from error
        except Exception as error:
            kinds = ", ".join(sorted({type(entry[1]).__name__ for entry in request.entries}))
            raise UnpicklableError(
                f"an item cannot be sent to the worker of {request.program.label!r}: {kinds} "
                "cannot be pickled; hand on plain values, arrays or tensors, or use "
                "executor='thread'"
            ) from error

    def _expect(self, wanted: str, request: Request) -> Sequence[Any]:
        """Wait for an response; hear what else the worker says meanwhile."""
        self.since_s = monotonic()
        try:
            return self._answer(wanted, request)
        finally:
            self.since_s = math.inf

    def _answer(self, wanted: str, request: Request) -> Sequence[Any]:
        call: _Call | None = None
        ends_s = math.inf  # of the call that the worker is in
        while True:
            message = self._next(request, call, ends_s)
            if message is None:
                raise self._late(request, call or (0, request.entries[0][0]))
            kind, *values = message
            self.ready = True
            self._answered = kind in (wanted, "error")
            if kind == wanted:
                return values
            if kind == "error":
                raise values[0].unpack()
            call = self._heard((kind, *values), call)
            if kind == "begun" and request.timeout_s is not None:
                ends_s = math.inf if call is None else monotonic() + request.timeout_s

    def _next(self, request: Request, call: _Call | None, ends_s: float) -> tuple[Any, ...] | None:
        """Wait for what the worker says next; None: it took too long."""
        assert self._channel is not None
        try:
            if ends_s < math.inf and not self._channel.poll(max(0.0, ends_s - monotonic())):
                return None
            message: tuple[Any, ...] = self._channel.recv()
        except (EOFError, OSError):
            raise self._death(request, call) from None
        return None if message[0] in OUTPUT and monotonic() > ends_s else message

    def _heard(self, message: tuple[Any, ...], call: _Call | None = None) -> _Call | None:
        """Take in a message that is no response; return the call that the worker is in."""
        kind, *values = message
        if kind in OUTPUT:
            show_output(kind, *values)
        if kind == "begun":
            return None if values[0] == ENDED else (int(values[0]), values[1])
        return call

    def _late(self, request: Request, call: _Call) -> StageTimeoutError:
        """Kill a worker that took too long."""
        self.kill()
        self._reaped()
        stage, path = call
        address = request.program.stages[stage]
        return StageTimeoutError(
            f"a call of stage {address!r} took longer than timeout_s={request.timeout_s:g}; its "
            "worker was killed",
            stage=address,
            path=path,
            executor="process",
        )

    def _death(self, request: Request, call: _Call | None) -> WorkerDiedError:
        """Return how the worker died."""
        self.usable = False
        paths = [entry[0] for entry in request.entries]
        stage, path = call or (None, paths[0] if len(paths) == 1 else None)
        what = f"items {paths[0]} to {paths[-1]}" if path is None else f"item {path}"
        when = f"while it had {what}" if self._digest else "before it was ready for any"
        address = request.program.label if stage is None else request.program.stages[stage]
        return WorkerDiedError(
            f"the worker of stage {address!r} (process {self.pid}) died {self._reaped()} {when}",
            stage=address,
            path=path,
            executor="process",
        )

    def _reaped(self) -> str:
        assert self._worker is not None
        self._worker.close()
        return self._worker.end()

    def kill(self) -> None:
        """Kill the process, from any thread; a thread that waits for it wakes immediately."""
        self.usable = False
        if self._worker is not None:
            self._worker.kill()

    def leave(self) -> Worker | None:
        """Let the worker go; return the process that is on its way out."""
        self.usable = False
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if self._worker is not None:
            self._worker.close()
        return self._worker


@final
class _RemoteChildren(Iterator[Any]):
    """What a worker makes of one item, fetched as it is wanted.

    Attributes:
        away_ns: time spent here that was not spent in the user's function [ns].
    """

    def __init__(self, slot: _Slot, request: Request, give_back: Callable[[_Slot], None]) -> None:
        self._slot = slot
        self._request = request
        self._give_back = give_back
        self._ready: list[Any] = []
        self._over = False
        self._wanted = 1
        self.away_ns = 0

    def want(self, count: int) -> None:
        """Return how many children there is room for."""
        self._wanted = count

    def __next__(self) -> Any:
        """Return the next child."""
        while not self._ready and not self._over:
            self._fetch()
        if not self._ready:
            raise StopIteration
        self._wanted = max(1, self._wanted - 1)
        return self._ready.pop()

    def _fetch(self) -> None:
        begun_ns = perf_counter_ns()
        try:
            drawn, over, busy_ns = self._slot.more(self._request, self._wanted)
        except BaseException:
            self._end()
            raise
        self.away_ns += max(0, perf_counter_ns() - begun_ns - busy_ns)
        self._ready = drawn[::-1]
        if over:
            self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._give_back(self._slot)

    def close(self) -> None:
        """Let the worker close its iterator, and go to other work."""
        if not self._over:
            try:
                self._slot.drop(self._request)
            except WorkerDiedError:
                pass  # and its iterator with it
            finally:
                self._end()


def _line(error: BaseException) -> str:
    """Put the user's own error first."""
    text = shortened(str(error), _LONGEST)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
