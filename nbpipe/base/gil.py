"""The interpreter lock: how long a thread waits for it, and what part of a call holds it."""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter_ns, thread_time_ns
from typing import NamedTuple, Self, final

from .format import format_seconds, format_share
from .threads import core_times_ns

with contextlib.suppress(ImportError):  # not on Windows
    import resource

COUNTS_SWITCHES = hasattr(globals().get("resource"), "RUSAGE_THREAD")  # on Linux
_LATE_NS = 100_000  # what a wait takes longer than was asked for: the timer's slack, the way back
_SHORT_NS = 1_000_000  # longer intervals say nothing: calls wait as long for a disk


def is_locked() -> bool:
    """Return whether this interpreter lets one thread run Python at a time."""
    enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return enabled()


class Switches(NamedTuple):
    """How often a thread has left its core.

    Attributes:
        slept: to wait for something.
        preempted: because another thread got it.
    """

    slept: int
    preempted: int


def switches() -> Switches:
    """Return how often this thread has left its core; zeros where the system does not count it."""
    if not COUNTS_SWITCHES:
        return Switches(0, 0)
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return Switches(usage.ru_nvcsw, usage.ru_nivcsw)


class LockWait(NamedTuple):
    """How long a thread waited for the interpreter lock.

    Attributes:
        sure_ns: in short sleeps, as only such a wait has them in a row [ns].
        most_ns: with sleeps that are longer where others use the cores: a thread that
            gives the lock away waits until the next thread has it and a core [ns].
    """

    sure_ns: int
    most_ns: int


def lock_wait(
    waited_ns: int, no_core_ns: int, before: Switches, after: Switches
) -> LockWait | None:
    """Return how long a thread waited for the interpreter lock.

    A thread that waits for it wakes up after each switch interval to ask for it, so it sleeps
    often. One that waits for a disk or a server sleeps once.

    Args:
        waited_ns: time in which it neither computed nor waited for a core [ns].
        no_core_ns: time in which it waited for a core [ns].
        before: how often it had left its core at the beginning.
        after: the same at the end.

    Returns:
        None where that cannot be told: switches are not counted, or the interval is long.
    """
    if not is_locked():
        return LockWait(0, 0)
    interval_ns = round(1e9 * sys.getswitchinterval())
    if not COUNTS_SWITCHES or interval_ns > _SHORT_NS:
        return None
    slept, waited_ns = after.slept - before.slept, max(0, waited_ns)
    left = slept + after.preempted - before.preempted
    sleep_ns, core_ns = interval_ns + _LATE_NS, max(0, no_core_ns) // max(1, left)
    return LockWait(min(waited_ns, slept * sleep_ns), min(waited_ns, slept * (sleep_ns + core_ns)))


# -- What part of a call holds the lock ------------------------------------------------------------
# A thread spins beside the call and wants the lock all the time. While it stands still although it
# has a core, the call has the lock.
_BUDGET_NS = 500_000_000  # for the calls of one stage,
_SLOW_NS = 4 * _BUDGET_NS  # or so long, where calls are slow
_ENOUGH, _ENOUGH_NS = 3, 200_000_000  # calls beside it that tell something, or their time
_CROWDED = 0.15  # share of the time without a core from which a call tells nothing
_SPINS_NS = 100_000_000  # the thread gives up after so long,
_SLOWER = 10  # or if the call takes so many times as long as alone
_ASKS = 10  # in which it asked for the lock so often, or more
_SHORT_CALL_NS = 10_000  # what is shorter is mostly the way into the call and out of it
_KNOWN_LOOP = range(20_000)
_KNOWN_CALLS = 12
_KNOWN_SHARE = 0.9  # a loop of Python must look like one
_MANY = 16  # calls at once from which on the lock is no matter


@final
@dataclass(frozen=True, slots=True)
class LockUse:
    """How much of a call holds the interpreter lock.

    Attributes:
        share: of the time of a call, 0 to 1; None where there is no figure.
        call_s: time of a call alone [s]; 0 where there is no figure.
        why_none: why there is no figure; else empty.
        asks: it gives the lock back and asks for it again all the time, so that there is no figure.
    """

    share: float | None = None
    call_s: float = 0.0
    why_none: str = ""
    asks: bool = False

    @property
    def threads(self) -> float | None:
        """How many threads can help at most, whatever the number of cores; None if not known."""
        if self.asks:
            return 1.0
        return None if self.share is None else 1.0 / max(self.share, 1e-3)

    def sentence(self, stage: str) -> str:
        """Return it in words, about a stage of this name."""
        if self.asks:
            return f"{stage} asks for the lock all the time: {_NO_THREADS}"
        if self.share is None or self.threads is None:
            return f"{stage}: no figure, {self.why_none}"
        held = f"{stage} holds the lock {format_share(self.share)} of {format_seconds(self.call_s)}"
        count = round(self.threads)
        if count > _MANY:
            return f"{held}: many threads help"
        if count == 1:
            return f"{held}: {_NO_THREADS}"
        return f'{held}: about {count} threads help at most; use executor="process" for more'


_NO_THREADS = 'more threads do not help; use executor="process"'
TOO_BUSY = "the machine is too busy to tell; measure again"


class TimedCall(NamedTuple):
    """A call that was timed.

    Attributes:
        call_ns: time that it took [ns].
        no_core: share of that time, or a little more, in which a thread waited for a core.
        held_ns: time in which it held the lock, where another thread wanted that [ns].
    """

    call_ns: int
    no_core: float
    held_ns: int = 0


def timed_alone(call: Callable[[], object]) -> TimedCall:
    """Make a call with nothing beside it."""
    wanted_ns, begun_ns = core_times_ns()[1], perf_counter_ns()
    call()
    ended_ns, lacked_ns = perf_counter_ns(), core_times_ns()[1]
    call_ns = max(1, ended_ns - begun_ns)
    return TimedCall(call_ns, (lacked_ns - wanted_ns) / call_ns)


class Spinner:
    """A thread that wants the interpreter lock all the time, while a call is made beside it.

    Use it in a `with` statement, at whose end the thread ends.
    """

    def __init__(self) -> None:
        self._wishes: SimpleQueue[int] = SimpleQueue()  # how long to spin at most [ns]; 0 leaves
        self._spins: SimpleQueue[None] = SimpleQueue()
        self._ends: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self._cpu_ns = 0
        self._wanted = False
        self._thread = threading.Thread(target=self._serve, name="nbpipe-spinner", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wanted = False
        self._wishes.put(0)
        self._thread.join()

    def timed_beside(self, call: Callable[[], object], limit_ns: int) -> TimedCall:
        """Make a call while the thread spins, for at most `limit_ns`."""
        self._wanted, wanted_ns = True, core_times_ns()[1]
        self._wishes.put(limit_ns)
        self._spins.get()
        try:
            spun_ns, begun_ns = self._cpu_ns, perf_counter_ns()
            call()
            ended_ns, spun_ns = perf_counter_ns(), self._cpu_ns - spun_ns
        finally:
            self._wanted = False
            whole_ns, others_ns = self._ends.get()
        lacked_ns = core_times_ns()[1] - wanted_ns
        call_ns = max(1, ended_ns - begun_ns)
        held_ns = call_ns - spun_ns - others_ns * call_ns // whole_ns
        no_core = max(lacked_ns, others_ns) / whole_ns
        return TimedCall(call_ns, no_core, max(0, held_ns))

    def _serve(self) -> None:
        while limit_ns := self._wishes.get():
            wanted_ns, begun_ns = core_times_ns()[1], perf_counter_ns()
            self._cpu_ns = thread_time_ns()
            self._spins.put(None)
            while self._wanted and perf_counter_ns() - begun_ns < limit_ns:
                self._cpu_ns = thread_time_ns()
            whole_ns = max(1, perf_counter_ns() - begun_ns)
            self._ends.put((whole_ns, core_times_ns()[1] - wanted_ns))


class LockLook:
    """What was seen of the calls of one stage, every other one of them alone.

    Attributes:
        alone: calls with nothing beside them.
        beside: calls beside a thread that wants the lock.
        spent_ns: time that all of it took [ns].
    """

    def __init__(self) -> None:
        self.alone: list[TimedCall] = []
        self.beside: list[TimedCall] = []
        self.spent_ns = 0
        self._warm = False

    @property
    def is_over(self) -> bool:
        """Whether it is known, or enough time was spent."""
        if self._asks(self.beside) or self.spent_ns >= _SLOW_NS:
            return True
        return self.spent_ns >= _BUDGET_NS and _is_enough(self.beside)

    def make(self, call: Callable[[], object], spinner: Spinner) -> None:
        """Make one call and look at it. A short first one does not count: it imports and opens."""
        begun_ns = perf_counter_ns()
        if not self._warm:
            self._warm, first = True, timed_alone(call)
            self.alone += [first] * (first.call_ns >= _BUDGET_NS)
        elif len(self.alone) <= len(self.beside):
            self.alone.append(timed_alone(call))
        else:
            limit_ns = max(_SPINS_NS, _SLOWER * self.alone[-1].call_ns)
            self.beside.append(spinner.timed_beside(call, limit_ns))
        self.spent_ns += perf_counter_ns() - begun_ns

    def use(self) -> LockUse:
        """Return what follows from it."""
        alone, beside = _quiet(self.alone), _quiet(self.beside)
        if self._asks(beside):
            return LockUse(asks=True)
        if not (alone and _is_enough(beside)):
            enough = self.alone and _is_enough(self.beside)
            return LockUse(why_none=TOO_BUSY if enough else "it makes too few calls to tell")
        call_ns = statistics.median(one.call_ns for one in alone)
        if call_ns < _SHORT_CALL_NS:
            return LockUse(why_none="its calls are too short to tell")
        share = statistics.median(one.held_ns for one in beside) / call_ns
        return LockUse(min(1.0, share), call_ns / 1e9)

    def _asks(self, beside: Sequence[TimedCall]) -> bool:
        """Return whether calls beside the thread wait for the lock again and again."""
        if len(beside) < _ENOUGH or not self.alone:
            return False
        alone_ns = statistics.median(one.call_ns for one in self.alone)
        beside_ns = statistics.median(one.call_ns for one in beside)
        waits = (beside_ns - alone_ns) / (1e9 * sys.getswitchinterval())
        return beside_ns >= _SLOWER * alone_ns and waits >= _ASKS


def _quiet(calls: Sequence[TimedCall]) -> list[TimedCall]:
    return [one for one in calls if one.no_core < _CROWDED]


def _is_enough(calls: Sequence[TimedCall]) -> bool:
    return len(calls) >= _ENOUGH or sum(one.call_ns for one in calls) >= _ENOUGH_NS


class LockProbe:
    """Looks at the calls of some stages, in a `with` statement; all are made in one thread.

    Args:
        stages: names of the stages.
    """

    def __init__(self, stages: Iterable[str]) -> None:
        self._looks = {stage: LockLook() for stage in stages}
        self._spinner = Spinner()

    def __enter__(self) -> Self:
        self._spinner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._spinner.__exit__()

    @property
    def is_over(self) -> bool:
        """Whether enough was seen of every stage."""
        return all(look.is_over for look in self._looks.values())

    def make(self, stage: str, call: Callable[[], object]) -> None:
        """Make a call of a stage; nothing is looked at where enough is known."""
        look = self._looks.get(stage)
        if look is None or look.is_over:
            call()
        else:
            look.make(call, self._spinner)

    def can_tell(self) -> bool:
        """Return whether a loop of Python looks like one, as it does where cores are free."""
        known = LockLook()
        for _ in range(2 * _KNOWN_CALLS + 1):
            known.make(_loop_of_python, self._spinner)
        share = known.use().share
        return share is not None and share >= _KNOWN_SHARE

    def uses(self) -> dict[str, LockUse]:
        """Return what was found of each stage."""
        if not self.can_tell():
            return dict.fromkeys(self._looks, LockUse(why_none=TOO_BUSY))
        return {stage: look.use() for stage, look in self._looks.items()}


def _loop_of_python() -> None:
    for _ in _KNOWN_LOOP:
        pass
