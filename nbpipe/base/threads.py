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

FREE_THREADED = "free-threading" in sys.version  # a build that can do without the interpreter lock


# -- Threads that an interrupt cannot half start ---------------------------------------------------
# An interrupt reaches the main thread between any two calls, those inside `threading.Thread.start`
# included: it can leave a thread that nobody knows, or a lock that nobody opens.
def uninterrupted(function: Callable[[], object]) -> None:
    """Call a function where no interrupt comes in, and wait; an interrupt ends only the wait.

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
        except BaseException as error:  # noqa: BLE001  it is raised where it was asked for
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
    """Call a function where no lock of this thread is in its way.

    `threading` starts the thread, so that it knows when it ends: of another one it would keep an
    object for ever, once the function, or a line of a log, asks for the thread's name. But to start
    it takes locks that may be held below us, so that is done in a thread of its own.
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
    """Return whether this thread holds a lock: garbage collected inside it may call us again.

    Nothing public says whose an `RLock` is: `acquire` succeeds where it is free, too. A record of
    our own would cost every use of the lock two more steps.
    """
    return bool(lock._is_owned())  # type: ignore[attr-defined]


def no_thread(what: str, error: RuntimeError) -> WorkerStartError:
    """Return the error, with `error` as its cause, where the system gives no more threads."""
    refusal = WorkerStartError(
        f"no thread could be started for {what}: {error}; end other threads and processes, or "
        "raise the limit on them (`ulimit -u`)"
    )
    refusal.__cause__ = error
    return refusal


class Latch:
    """Opens once, for all who wait.

    Unlike a `threading.Event` it bears an interrupt at any moment of a wait: an event would keep
    its lock, and whoever sets it then waits for ever.
    """

    def __init__(self) -> None:
        self._gate = _thread.allocate_lock()
        self._gate.acquire()
        self.is_open = False

    def open(self) -> None:
        """Wake all who wait, now and later."""
        self.is_open = True
        self._pass_on()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is open, at most so long [s]; return whether it is."""
        if not self.is_open:
            try:
                self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s)
            finally:
                if self.is_open:
                    self._pass_on()
        return self.is_open

    def _pass_on(self) -> None:
        with contextlib.suppress(RuntimeError):  # another one was quicker
            self._gate.release()


# -- What holds in a thread: context variables, and modes of libraries -----------------------------
@final
class ThreadSettings:
    """What holds in the thread that makes this: context variables, modes of torch and numpy.

    A plain loop would call the functions of an epoch where these hold, so its threads and tasks
    take them over. `torch.no_grad`, `inference_mode`, `autocast` and the default device are modes
    of a thread; `numpy.errstate` is one up to numpy 1, and a context variable from numpy 2 on.
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
        """Return a new copy, with a decimal context that no other thread changes."""
        context = self._context.copy()
        if self._has_decimals:
            context.run(_own_decimals)
        return context

    def enter(self) -> ExitStack:
        """Enter the modes in this thread; close the result here, too."""
        stack = ExitStack()
        for mode in self._modes:
            stack.enter_context(mode())
        return stack


_left_behind: set[ContextVar[Any]] = set()
leave_behind = _left_behind.add  # called with a variable that is about its own thread alone


def _context_here() -> Context:
    """Copy the context of this thread, without what is left behind."""
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
    """Return what enters the modes of this thread, but for those that hold in any new thread."""
    if _NUMPY_HOLDS_BY_THREAD:
        yield functools.partial(np.errstate, **np.geterr())
    torch = sys.modules.get("torch")
    if not hasattr(torch, "autocast"):  # it is not there, or another thread is loading it
        return
    assert torch is not None
    if torch.is_inference_mode_enabled():
        yield torch.inference_mode
    elif not torch.is_grad_enabled():
        yield torch.no_grad
    default = torch.get_default_device()  # it holds in the thread that has set it
    if default.type != "cpu":
        yield functools.partial(torch.device, default)
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            yield functools.partial(torch.autocast, device, dtype=dtype)


# -- An iterator that has a thread of its own ------------------------------------------------------
_LOOK_S = 1.0  # a wait for such a thread checks this often whether the thread is still there
_LOOKS = 5  # who closes it waits at most so many times
_END = object()


class _Request:
    """The next item that is asked for, and what came of it."""

    __slots__ = ("answered", "error", "item")

    def __init__(self) -> None:
        self.answered = Latch()
        self.item: object = _END
        self.error: BaseException | None = None


class _ReaderThread:
    """The thread: it holds the iterator, and nothing else does."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._settings = ThreadSettings()
        self._iterable = iterable
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()  # garbage may put below us
        self.busy = self.over = False
        self.thread = threading.Thread(target=self._run, name="nbpipe-sampler", daemon=True)

    def ask(self) -> object:
        """Wait for the next item, or `_END`; the first time `iter` is called."""
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
        """Have it let go of the iterator and end, after what it does now; nothing is waited for."""
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
                except BaseException as error:  # noqa: BLE001  it is raised where it was asked for
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
    """Gives the items of an iterable, whose iterator one thread and one context read.

    Any thread may ask for the next item; one at a time. It ends with the iterator, or when it is
    closed or dropped.

    Args:
        iterable: `iter` is called on it at once, in that thread.

    Raises:
        BaseException: what `iter` raised.
        WorkerStartError: there can be no more threads.
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
        """Have the iterator closed in its thread; nothing is waited for."""
        self._reader.leave()

    def close(self) -> None:
        """Do so, and wait for that where it is not in the middle of an item."""
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


# -- Threads of libraries: one each where the workers are the parallelism --------------------------
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)

_held: set[str] = set()  # libraries told already, in this process


def hold_library_threads() -> None:
    """Hold the libraries that are loaded by now to one thread; each is told once."""
    for name, hold in _HOLDS.items():
        module = sys.modules.get(name)
        if module is not None and name not in _held:
            _held.add(name)
            with contextlib.suppress(Exception):  # another version: it keeps its threads
                hold(module)


def _hold_torch(torch: ModuleType) -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)  # refused once they run


def _hold_numba(numba: ModuleType) -> None:
    if numba.config.NUMBA_NUM_THREADS > 1:  # loaded before the variable was set
        numba.set_num_threads(1)


_HOLDS: dict[str, Callable[[ModuleType], None]] = {
    "torch": _hold_torch,
    "cv2": lambda cv2: cv2.setNumThreads(0),  # OpenCV's word for "in the calling thread"
    "numba": _hold_numba,
}


# -- Exit calls: what is done as the interpreter ends, whoever interrupts it -----------------------
# An interrupt that came in just before comes up as an exit handler begins, where nothing in it can
# catch it: Python tells of it, and the handler is not called at all. So the hook that would tell is
# ours for that moment, and calls it. Nothing written in Python could do this in time: the hook is
# kept and set by calls that run none.
@final
class ExitCall:
    """A function that is called as the interpreter ends, and again if it was interrupted.

    Args:
        function: called with whether somebody interrupted, and is in a hurry.
    """

    def __init__(self, function: Callable[[bool], object]) -> None:
        self._function = function
        self._kept: dict[str, Any] = {}  # what stood in `sys`, the hook among it
        self._calls = (
            self._run,
            functools.partial(setattr, sys, "unraisablehook", self._report),
            functools.partial(self._kept.update, vars(sys)),
        )

    def register(self) -> None:
        """Register it, to be called before all that was registered up to now."""
        for call in self._calls:  # the last one is the first to be called
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
        """Take the place of the hook that tells of exceptions that nobody can catch."""
        ours = report.object == self._run or repr(self._run) in str(report.err_msg)
        if ours and issubclass(report.exc_type, KeyboardInterrupt):
            self._run_again()
            self._reset_hook()
        else:
            self._before()(report)


# -- The interpreter's switch interval while epochs are in progress --------------------------------
# A loop of pure Python in the training cell holds the interpreter for 5 ms at a time, and every
# worker that wakes up waits for it. While an epoch is in progress the interval is lower; after the
# last one it is as before. Without this, I/O stages beside such a cell deliver 14% less.
INTERVAL_S = 0.0002
SWITCH = "NBPIPE_SWITCH_INTERVAL"  # environment: "off", or another interval [s]


class _Interval:
    """The interval, and who has an epoch in progress: two runs do not undo each other."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders: set[int] = set()
        self._before_s: float | None = None

    def lower(self, holder: object) -> None:
        """Called when `holder` has an epoch in progress; to say it again does nothing."""
        with self._lock:
            self._holders.add(id(holder))
            wanted_s = _wanted_s()
            if self._before_s is None and wanted_s is not None:
                before_s = sys.getswitchinterval()
                if before_s > wanted_s:
                    self._before_s = before_s
                    sys.setswitchinterval(wanted_s)

    def restore(self, holder: object) -> None:
        """Called when it has none; the last puts the interval back, unless others changed it."""
        with self._lock:
            self._holders.discard(id(holder))
            if self._holders or self._before_s is None:
                return
            wanted_s = _wanted_s()
            if wanted_s is None or math.isclose(sys.getswitchinterval(), wanted_s, rel_tol=0.01):
                sys.setswitchinterval(self._before_s)
            self._before_s = None

    def forget(self) -> None:
        """Begin anew in a forked process: its epochs stayed in the other one."""
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


# -- Whether a thread computes, or waits for something else than a core ----------------------------
def core_times_ns() -> tuple[int, int]:
    """Return how long this thread has computed, and how long it waited for a core [ns].

    A thread that wakes up waits for a core, however little it has to do there: what it waited
    tells nothing of what it does. Where the system does not tell it, it is 0.
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
    if len(cores) == os.cpu_count():  # quicker than the other file where there are many cores
        return int(float((_PROC / "uptime").read_text().split()[1]) * 1e9)
    rows = [line.split() for line in (_PROC / "stat").read_text().splitlines()]
    ticks = sum(int(row[4]) for row in rows if row[0] in {f"cpu{core}" for core in cores})
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def own_idle_ns() -> int | None:
    """Return how long the cores that this process may use have been idle, added up [ns].

    None where the system does not count it.
    """
    try:
        return idle_so_far_ns(os.sched_getaffinity(os.getpid())) or None
    except (AttributeError, OSError, ValueError, IndexError):
        return None
