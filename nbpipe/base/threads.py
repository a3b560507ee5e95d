"""Threads and the interpreter: starts, libraries' threads, calls at exit, the switch interval."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import math
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from queue import SimpleQueue
from time import thread_time_ns
from types import ModuleType
from typing import Any, final

import numpy as np

from ..errors import WorkerStartError

FREE_THREADED = "free-threading" in sys.version  # a build that may run without interpreter lock


# -- Threads that an interrupt cannot half start ---------------------------------------------------
# An interrupt reaches the main thread between any two calls, even inside `threading.Thread.start`:
# there it could leave an unknown thread, or a lock that stays closed.
def uninterrupted(function: Callable[[], object]) -> None:
    """Call a function where no interrupt reaches it, and wait; an interrupt ends only the wait.

    Args:
        function: it must not need a lock that the caller holds.

    Raises:
        BaseException: what the function raised.
    """
    if _thread.get_ident() != threading.main_thread().ident:
        function()
        return
    ended = _thread.allocate_lock()
    ended.acquire()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001  the caller raises it
            errors.append(error)
        finally:
            ended.release()

    try:
        _thread.start_new_thread(call, ())
    except RuntimeError:  # no more threads may be started: the interpreter is shutting down
        call()
    ended.acquire()
    if errors:
        raise errors[0]


def in_new_thread(function: Callable[[], object]) -> None:
    """Call a function in a new thread, without the locks that this thread holds.

    `threading` starts the thread, so it knows when the thread ends. For a thread started by
    `_thread` it would keep an object for ever, once the function or a log line asks for the
    thread's name. Starting takes locks that this thread may hold, so another thread starts it.
    """

    def begin() -> None:
        thread = threading.Thread(target=function, name="nbpipe-aside", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads may be started
            function()

    try:
        _thread.start_new_thread(begin, ())
    except RuntimeError:  # the interpreter is shutting down
        return


def holds(lock: threading.RLock) -> bool:
    """Return whether this thread holds a lock: garbage collected under it may call us again.

    No public function says which thread holds an `RLock`: `acquire` also succeeds if it is free. A
    record of our own would cost two more steps at each use of the lock.
    """
    return bool(lock._is_owned())  # type: ignore[attr-defined]


def no_thread(what: str, error: RuntimeError) -> WorkerStartError:
    """Return the error of a system that gives no more threads, with `error` as its cause."""
    refusal = WorkerStartError(
        f"no thread could be started for {what}: {error}; end other threads and processes, or "
        "raise the limit on them (`ulimit -u`)"
    )
    refusal.__cause__ = error
    return refusal


class Latch:
    """Opens once, for all threads that wait.

    A wait may be interrupted at any moment. A `threading.Event` could then keep its lock, and the
    thread that sets it would wait for ever.
    """

    def __init__(self) -> None:
        self._gate = _thread.allocate_lock()
        self._gate.acquire()
        self.is_open = False

    def open(self) -> None:
        """Wake all threads that wait, and let later ones pass."""
        self.is_open = True
        self._pass_on()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is open, at most `timeout_s` [s]; return whether it is open."""
        if not self.is_open:
            try:
                self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s)
            finally:
                if self.is_open:
                    self._pass_on()
        return self.is_open

    def _pass_on(self) -> None:
        with contextlib.suppress(RuntimeError):  # another thread was quicker
            self._gate.release()


# -- What holds in a thread: context variables, and modes of libraries -----------------------------
@final
class ThreadSettings:
    """The settings of the thread that makes this: context variables, modes of torch and numpy.

    A plain loop would call the functions of an epoch with these settings, so the threads and tasks
    of the epoch apply them. `torch.no_grad`, `inference_mode`, `autocast` and the default device
    are modes of a thread; so is `numpy.errstate` in numpy 1. In numpy 2 it is a context variable.
    """

    __slots__ = ("_context", "_has_decimals", "_modes")

    def __init__(self) -> None:
        self._context = _context_here()
        names = {one.name for one in self._context}
        self._has_decimals = "decimal" in sys.modules and "decimal_context" in names
        if self._has_decimals:
            self._context.run(_own_decimals)
        self._modes = tuple(_modes())

    def of_call(self) -> Context:
        """Return a new copy of the context variables."""
        return self._context.copy()

    def of_thread(self) -> Context:
        """Return a new copy of the context variables, with its own decimal context."""
        context = self._context.copy()
        if self._has_decimals:
            context.run(_own_decimals)
        return context

    def enter(self) -> ExitStack:
        """Enter the modes in this thread; the result is to be closed in the same thread."""
        stack = ExitStack()
        for mode in self._modes:
            stack.enter_context(mode())
        return stack


_left_behind: set[ContextVar[Any]] = set()
leave_behind = _left_behind.add  # called with a variable that belongs to its own thread alone


def _context_here() -> Context:
    """Copy the context of this thread, without the variables that belong to it alone."""
    context = copy_context()
    if not _left_behind.isdisjoint(context):
        here, context = context, Context()
        for variable in set(here) - _left_behind:
            context.run(variable.set, here[variable])
    return context


def _own_decimals() -> None:
    """Copy the decimal context: functions change it in place, and copies of a context share it."""
    decimal = sys.modules["decimal"]
    decimal.setcontext(decimal.getcontext().copy())


_NUMPY_HOLDS_BY_THREAD = int(np.__version__.partition(".")[0]) < 2  # noqa: PLR2004  the version


def _modes() -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """Yield functions that enter the modes of this thread that a new thread would lack."""
    if _NUMPY_HOLDS_BY_THREAD:
        yield functools.partial(np.errstate, **np.geterr())
    torch = sys.modules.get("torch")
    if not hasattr(torch, "autocast"):  # torch is missing, or another thread is importing it
        return
    assert torch is not None
    if torch.is_inference_mode_enabled():
        yield torch.inference_mode
    elif not torch.is_grad_enabled():
        yield torch.no_grad
    default = torch.get_default_device()  # it is set for one thread
    if default.type != "cpu":
        yield functools.partial(torch.device, default)
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            yield functools.partial(torch.autocast, device, dtype=dtype)


# -- An iterator that has a thread of its own ------------------------------------------------------
_LOOK_S = 1.0  # a wait for such a thread checks this often whether the thread is alive
_LOOKS = 5  # closing it waits at most this many times
_END = object()


class _Request:
    """A request for the next item, and its answer."""

    __slots__ = ("answered", "error", "item")

    def __init__(self) -> None:
        self.answered = Latch()
        self.item: object = _END
        self.error: BaseException | None = None


class _ReaderThread:
    """The thread that holds the iterator; nothing else does."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._settings = ThreadSettings()
        self._iterable = iterable
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()  # garbage may call `put`
        self.busy = self.over = False
        self.thread = threading.Thread(target=self._run, name="nbpipe-sampler", daemon=True)

    def ask(self) -> object:
        """Wait for the next item, or `_END`; the first request calls `iter`."""
        request = _Request()
        self.busy = True
        self._requests.put(request)
        while not (request.answered.wait(_LOOK_S) or self.over or not self.thread.is_alive()):
            pass
        error, request.error = request.error, None
        if error is not None:
            raise error
        return request.item

    def leave(self) -> None:
        """Let the thread drop the iterator and end, after its present call; do not wait."""
        self._requests.put(None)

    def _run(self) -> None:
        self._settings.of_thread().run(self._read)

    def _read(self) -> None:
        items: Iterator[Any] | None = None
        with self._settings.enter():
            while (request := self._requests.get()) is not None:
                try:
                    if items is None:
                        items, request.item = iter(self._iterable), None
                    else:
                        request.item = next(items, _END)
                except BaseException as error:  # noqa: BLE001  `ask` raises it
                    request.error = error
                over = request.item is _END
                if over:
                    items = None
                self.busy = False
                request.answered.open()
                del request
                if over:
                    break
            self.over = True
            items = None  # a generator is closed here


@final
class OwnThread(Iterator[Any]):
    """An iterator that is read in a thread and a context of its own.

    Any thread may ask for the next item, one thread at a time. The thread ends with the iterator,
    or when this is closed or dropped.

    Args:
        iterable: `iter` is called on it at once, in that thread.

    Raises:
        BaseException: what `iter` raised.
        WorkerStartError: the system gives no more threads.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._reader = reader = _ReaderThread(iterable)
        try:
            uninterrupted(reader.thread.start)
        except RuntimeError as error:
            raise no_thread("a sampler", error) from error
        reader.ask()

    def __next__(self) -> Any:
        item = _END if self._reader.over else self._reader.ask()
        if item is _END:
            raise StopIteration
        return item

    def leave(self) -> None:
        """Close the iterator in its thread; do not wait."""
        self._reader.leave()

    def close(self) -> None:
        """Close the iterator in its thread; wait, unless it is in the middle of an item."""
        reader = self._reader
        reader.leave()
        if reader.thread is threading.current_thread():
            return
        for _ in range(_LOOKS):
            if reader.busy or not reader.thread.is_alive():
                return
            reader.thread.join(_LOOK_S)

    def __del__(self) -> None:
        self._reader.leave()


# -- Threads of libraries: one for each library, as the workers are the parallelism ----------------
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)

_held: set[str] = set()  # libraries that were limited already, in this process


def hold_library_threads() -> None:
    """Limit the loaded libraries to one thread each; a library is limited once."""
    for name, hold in _HOLDS.items():
        module = sys.modules.get(name)
        if module is not None and name not in _held:
            _held.add(name)
            with contextlib.suppress(Exception):  # an unknown version keeps its threads
                hold(module)


def _hold_torch(torch: ModuleType) -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)  # refused once these threads run


def _hold_numba(numba: ModuleType) -> None:
    if numba.config.NUMBA_NUM_THREADS > 1:  # loaded before the variable was set
        numba.set_num_threads(1)


_HOLDS: dict[str, Callable[[ModuleType], None]] = {
    "torch": _hold_torch,
    "cv2": lambda cv2: cv2.setNumThreads(0),  # OpenCV's word for "in the calling thread"
    "numba": _hold_numba,
}


# -- Exit calls: functions that run as the interpreter ends, in spite of interrupts ----------------
# A late interrupt is raised as an exit handler begins, before any `try` of the handler: Python
# reports the interrupt through `sys.unraisablehook` and skips the handler. So the hook is replaced
# for that moment, and calls the handler. Python code could be interrupted as well, so the hook is
# kept and replaced by calls into C.
@final
class ExitCall:
    """A function that is called as the interpreter ends, and again if it was interrupted.

    Args:
        function: called with False, and with True after an interrupt: then it has to be quick.
    """

    def __init__(self, function: Callable[[bool], object]) -> None:
        self._function = function
        self._kept: dict[str, Any] = {}  # the values in `sys`, with the hook
        self._calls = (
            self._run,
            functools.partial(setattr, sys, "unraisablehook", self._report),
            functools.partial(self._kept.update, vars(sys)),
        )

    def register(self) -> None:
        """Register it, to be called before all handlers that were registered earlier."""
        for call in self._calls:  # handlers are called in reverse order
            atexit.unregister(call)
            atexit.register(call)

    def _run(self) -> None:
        try:
            self._function(False)  # noqa: FBT003
        except KeyboardInterrupt:
            self._run_again()
        self._reset_hook()

    def _run_again(self) -> None:
        while True:
            try:
                self._function(True)  # noqa: FBT003
            except KeyboardInterrupt:
                continue
            return

    def _reset_hook(self) -> None:
        sys.unraisablehook = self._before()
        self._kept.clear()

    def _before(self) -> Callable[[Any], object]:
        hook: Callable[[Any], object] = self._kept.get("unraisablehook", sys.__unraisablehook__)
        return hook

    def _report(self, report: Any) -> None:
        """Stand in for the hook that reports exceptions which cannot be caught."""
        ours = report.object == self._run or repr(self._run) in str(report.err_msg)
        if ours and issubclass(report.exc_type, KeyboardInterrupt):
            self._run_again()
            self._reset_hook()
        else:
            self._before()(report)


# -- The interpreter's switch interval while epochs are in progress --------------------------------
# A loop of pure Python in the training cell holds the interpreter for 5 ms at a time, and each
# worker that wakes up waits for it. The interval is lower while an epoch is in progress, and is
# restored after the last one. Otherwise I/O stages beside such a cell deliver 14% less.
INTERVAL_S = 0.0002
SWITCH = "NBPIPE_SWITCH_INTERVAL"  # environment: "off", or another interval [s]


class _Interval:
    """The interval, and the runs with an epoch in progress; two runs do not undo each other."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders: set[int] = set()
        self._before_s: float | None = None

    def lower(self, holder: object) -> None:
        """Lower the interval while `holder` has an epoch in progress; again does nothing."""
        with self._lock:
            self._holders.add(id(holder))
            wanted_s = _wanted_s()
            if self._before_s is None and wanted_s is not None:
                before_s = sys.getswitchinterval()
                if before_s > wanted_s:
                    self._before_s = before_s
                    sys.setswitchinterval(wanted_s)

    def restore(self, holder: object) -> None:
        """Restore the interval when the last holder has no epoch, unless others changed it."""
        with self._lock:
            self._holders.discard(id(holder))
            if self._holders or self._before_s is None:
                return
            wanted_s = _wanted_s()
            if wanted_s is None or math.isclose(sys.getswitchinterval(), wanted_s, rel_tol=0.01):
                sys.setswitchinterval(self._before_s)
            self._before_s = None

    def forget(self) -> None:
        """Forget all holders in a forked process: their epochs stayed in the parent."""
        self._lock = threading.RLock()
        self._holders = set()


def _wanted_s() -> float | None:
    text = os.environ.get(SWITCH, "")
    if text.lower() in ("off", "0"):
        return None
    try:
        return float(text) if text else INTERVAL_S
    except ValueError:
        return INTERVAL_S


_interval = _Interval()
lower_switch_interval = _interval.lower
restore_switch_interval = _interval.restore

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_interval.forget)


# -- Whether a thread computes, or waits for something other than a core ---------------------------
def core_times_ns() -> tuple[int, int]:
    """Return how long this thread has computed, and how long it waited for a core [ns].

    A thread that wakes up waits for a core, however little it has to compute. So this wait says
    nothing about its work. It is 0 if the system does not report it.
    """
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return thread_time_ns(), 0
    try:
        return thread_time_ns(), int(os.read(file, 100).split()[1])
    except (OSError, ValueError, IndexError):
        return thread_time_ns(), 0
    finally:
        os.close(file)


# -- Idle time of the cores ------------------------------------------------------------------------
_PROC = Path("/proc")


def idle_so_far_ns(cores: Collection[int]) -> int:
    """Return how long these cores have been idle since the machine started, added up [ns]."""
    if len(cores) == os.cpu_count():  # with many cores quicker than the other file
        return int(float((_PROC / "uptime").read_text().split()[1]) * 1e9)
    rows = [line.split() for line in (_PROC / "stat").read_text().splitlines()]
    ticks = sum(int(row[4]) for row in rows if row[0] in {f"cpu{core}" for core in cores})
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def own_idle_ns() -> int | None:
    """Return how long the cores that this process may use have been idle, added up [ns].

    None if the system does not count it.
    """
    try:
        return idle_so_far_ns(os.sched_getaffinity(os.getpid())) or None
    except (AttributeError, OSError, ValueError, IndexError):
        return None
