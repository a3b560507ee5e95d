"""Cores: threads that mostly wait share one, and hand the interpreter on there.

Of threads that wait for milliseconds and compute for microseconds, one after the other wakes up and
waits for the interpreter. Linux wakes it on a core that is idle, and to wake that core up takes
longer than what the thread has to do: 25 us where 3 are enough on the core of the thread that
hands the interpreter on.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import clock_gettime_ns
from typing import final

from .threads import FREE_THREADED

MOST_PROCESSES = 4  # for each core; more take memory, and wait for one another
SWITCH = "NBPIPE_ONE_CORE"  # environment: "off"
IDLE = 0.1  # threads that compute for less of the time than this are not kept on one core [cores]
FULL = 0.9  # for those that compute for more, one may not be enough [cores]
MUCH = 1.5  # and for those that compute for more than this, it is not [cores]
GAIN = 1.1  # so much more must be done on one core, where it is full, than on all
LOSS = 0.8  # and not so little where it is not full: somebody else may need that core, too
SPARE = 0.1  # where the machine has less to spare than this, it is crowded [cores]
MANY = 500  # of fewer it cannot be told [items]
KEPT_NS = 10_000_000_000  # so long they are kept; then they may go elsewhere for a moment
AGAIN_NS = 20_000_000_000  # where that was in vain it is tried no more often than this
SOON_NS = 50_000_000  # to look sooner says nothing
_PROC = Path("/proc")
_CORE, _PARENT = 36, 1  # fields of /proc/<number>/stat, behind the name
_kept_anywhere: set[int] = set()  # threads of all runs of this process


@final
class SharedCore:
    """Keeps some threads on one core while that is enough for them, and only them.

    Where they compute for about as long as there is of one core, each in its turn may hold the
    interpreter, or several at once do without: it is tried which way more is done. Where no
    core of the machine has time left, they may compute for less than they would: they go free.

    A thread or a process that one of them starts would be kept there, too: where such are seen, all
    may go where they will, for good. So they may where somebody else says where one of them runs.

    Attributes:
        core: where the threads are kept; None while they may run on any.
    """

    def __init__(self) -> None:
        self.core: int | None = None
        self._cores: set[int] = set()  # those that the process may use
        self._kept: set[int] = set()  # threads
        self._strangers: set[int] = set()  # threads that were on the core before, and only there
        self._born: set[int] = set()  # others, when this was last seen
        self._older: frozenset[int] = frozenset()  # processes that were there before
        self._processes: set[int] = set()  # of the machine, that were seen
        self._spent_ns: dict[int, int] = {}  # by thread
        self._idle_ns = 0  # of all cores
        self._done = 0
        self._fits = False  # one core seemed enough, or worth a try, for the first time
        self._may_be_full = False  # it was tried, and more was done
        self._least = 0.0  # so much must be done on the core [items/ns]
        self._looked_ns = self._since_ns = self._again_ns = 0
        self._reaped: object = None
        off = os.environ.get(SWITCH, "").lower() in ("off", "0")
        self._over = off or FREE_THREADED or not hasattr(os, "sched_setaffinity")

    def look(self, clocks: Mapping[int, int], now_ns: int, done: int) -> int:
        """See how much the threads compute, and keep them on one core or let them go.

        Called a few times a second, by one of the threads.

        Args:
            clocks: of each thread, by its number in the system, the clock of its processor time.
            now_ns: when.
            done: how much the threads have done so far [items].

        Returns:
            When to look again, at the latest [ns].
        """
        if self._over or now_ns - self._looked_ns < SOON_NS:
            return now_ns + KEPT_NS
        measured, kept = bool(self._spent_ns), self.core
        try:
            self._look(clocks, now_ns, done)
        except (OSError, ValueError, IndexError, OverflowError):
            self._let_go(clocks)  # a thread has ended, or the cores are others
        waits_long = measured and kept == self.core and not self._fits
        return now_ns + (KEPT_NS if waits_long else SOON_NS)

    def rest(self, threads: Collection[int]) -> None:
        """Let what the threads have started go free; called when nobody looks for a while.

        Args:
            threads: their numbers in the system; of those that go on.
        """
        with suppress(OSError):
            if self._others(threads) or self._starts_processes():
                self._let_go(threads)

    def end(self) -> None:
        """Let all go free: the threads, of which some may go on, and what they have started."""
        with suppress(OSError):
            self._let_go(self._kept & _numbers(_PROC / "self/task"))

    def _look(self, clocks: Mapping[int, int], now_ns: int, done: int) -> None:
        before, elapsed_ns = self._spent_ns, now_ns - self._looked_ns
        fresh, self._done = done - self._done, done
        rate = fresh / elapsed_ns
        self._spent_ns = spent = {one: clock_gettime_ns(clock) for one, clock in clocks.items()}
        self._looked_ns = now_ns
        mine = os.sched_getaffinity(0) if self.core is None else self._cores
        idle_ns, self._idle_ns = self._idle_ns, idle_so_far_ns(mine)
        crowded = self._idle_ns - idle_ns < SPARE * elapsed_ns
        if not before:
            self._reaped = _reaped()
            return
        cores = sum(spent[one] - before.get(one, 0) for one in spent) / elapsed_ns
        before_born, self._born = self._born, self._others(clocks)
        started = before_born & self._born  # seen once, it may be about to be one of these
        moved = not all(_is_on(one, {self.core}) for one in self._kept & clocks.keys())
        if started or moved or self._reaped != _reaped() or self._starts_processes():
            self._over = True
            self._let_go(clocks)
        elif self.core is None:
            tries = fresh > MANY and now_ns > self._again_ns
            fits = IDLE < cores < (MUCH if tries else FULL) and not crowded
            fitted, self._fits = self._fits, fits and not self._fits
            if fitted and fits:  # a single look says little: idle time is counted in steps of 10 ms
                self._may_be_full = cores >= FULL
                self._least = (GAIN if cores >= FULL else LOSS) * rate if fresh > MANY else 0.0
                self._keep(clocks, now_ns)
        elif cores > FULL and (rate < self._least or not self._may_be_full):
            self._again_ns = now_ns + AGAIN_NS
            self._let_go(clocks)
        elif crowded or cores < IDLE / 2 or rate < self._least or now_ns - self._since_ns > KEPT_NS:
            self._let_go(clocks)
        else:
            self._limit(clocks.keys() - self._kept)

    def _keep(self, threads: Iterable[int], now_ns: int) -> None:
        self._cores = cores = os.sched_getaffinity(0)
        if len(cores) > 1 and all(_is_on(one, cores) for one in threads):
            self.core, self._since_ns = int(_stat("thread-self")[_CORE]), now_ns
            self._strangers = self._others(threads)
            self._processes = _numbers(_PROC) if _has_children() else set()
            self._older = frozenset(self._processes)
            self._limit(threads)

    def _limit(self, threads: Iterable[int]) -> None:
        assert self.core is not None
        for one in threads:
            os.sched_setaffinity(one, {self.core})
            self._kept.add(one)
            _kept_anywhere.add(one)

    def _let_go(self, threads: Iterable[int]) -> None:
        """Let all run on any core: the threads, and what they have started meanwhile."""
        if self.core is None:
            return
        free = {*threads}
        with suppress(OSError):  # there are too many open files
            free |= self._others(threads)
            free |= _of_descendants(self._older) if _has_children() else set()
        for one in free:
            with suppress(OSError):  # it has ended
                if _is_on(one, {self.core}):
                    os.sched_setaffinity(one, self._cores)
        self.core = None
        _kept_anywhere.difference_update(self._kept)
        self._kept.clear()
        self._strangers.clear()

    def _others(self, threads: Iterable[int]) -> set[int]:
        """Return other threads of this process that may run on this core alone."""
        found: set[int] = set()
        if self.core is None:
            return found
        known = self._strangers | _kept_anywhere
        for one in _numbers(_PROC / "self/task").difference(threads, known):
            with suppress(OSError):  # it has ended
                if _is_on(one, {self.core}):
                    found.add(one)
        return found

    def _starts_processes(self) -> bool:
        """Tell whether a process of these threads has come that may run on this core alone."""
        if self.core is None or not _has_children():
            return False
        fresh = _numbers(_PROC) - self._processes
        self._processes |= fresh
        for one in fresh:
            with suppress(OSError, IndexError):  # it has ended
                if _is_on(one, {self.core}) and _parent(one) == os.getpid():
                    return True
        return False


def idle_so_far_ns(mine: Collection[int]) -> int:
    """Return how long some cores, or all there are, have been idle, added up [ns]."""
    if len(mine) == os.cpu_count():  # the other file takes long to read where cores are many
        return int(float((_PROC / "uptime").read_text().split()[1]) * 1e9)
    rows = [line.split() for line in (_PROC / "stat").read_text().splitlines()]
    ticks = sum(int(row[4]) for row in rows if row[0] in {f"cpu{core}" for core in mine})
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def own_idle_ns() -> int | None:
    """Return how long the cores that this process may use have been idle so far, added up [ns].

    None where the system does not tell.
    """
    try:
        return idle_so_far_ns(os.sched_getaffinity(os.getpid())) or None
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def _is_on(thread: int, cores: Collection[int | None]) -> bool:
    """Tell whether a thread may run on these cores, and no others."""
    return os.sched_getaffinity(thread) == cores


def _stat(process: str) -> list[str]:
    """Return what the system tells of a process, or of this thread, behind its name."""
    return (_PROC / process / "stat").read_text().rpartition(")")[2].split()


def _parent(process: int) -> int:
    return int(_stat(str(process))[_PARENT])


def _numbers(folder: Path) -> set[int]:
    """Return the numbers of the processes, or of the threads of one, that the system names."""
    return {int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()}


def _reaped() -> object:
    """Return what changes when a process that this one has started ends."""
    import resource  # not on Windows

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime, used.ru_stime, used.ru_minflt, used.ru_nvcsw


def _has_children() -> bool:
    """Tell whether processes run that this one has started, or have ended and not been noticed."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _of_descendants(older: Collection[int]) -> set[int]:
    """Return all threads of the processes that this one has started, and of those they started.

    Args:
        older: processes that are none of these.
    """
    parents = {}
    for process in _numbers(_PROC).difference(older):
        with suppress(OSError, IndexError):  # it has ended
            parents[process] = _parent(process)
    found, threads = [os.getpid()], set[int]()
    for parent in found:
        children = [process for process, one in parents.items() if one == parent]
        found += children
        for child in children:
            with suppress(OSError):
                threads |= _numbers(_PROC / str(child) / "task")
    return threads
