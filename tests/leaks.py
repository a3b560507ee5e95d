"""What a test may leave behind: threads, child processes, open files, shared memory.

The check runs twice a test, so it reads the kernel's own lists: of the children of each thread
(`/proc/<pid>/task/*/children`), of open files, of `/dev/shm`.
"""

# Making `Path` objects would cost more than the reading.
# ruff: noqa: PTH115, PTH123, PTH208

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

GRACE_S = 5.0
PAUSE_S = 0.02  # between two looks
# Threads that packages keep for the life of the process.
KEPT_THREADS = ("IPythonHistorySaving", "pytest_timeout", "tqdm_monitor", "Dask-Offload")
# Files that packages keep open once loaded.
KEPT_FILES = ("/dev/nvidia", "/dev/urandom", "/proc/", "/sys/")
# Helper processes that are started once for all: of the standard library, and our fork server.
KEPT_CHILDREN = (
    b"multiprocessing.resource_tracker",
    b"multiprocessing.forkserver",
    b"nbpipe.executors.workers.launch import serve",
)
SHARED_MEMORY = "/dev/shm"
FILES = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
HAS_FILE_LIST = Path(FILES).exists()
HAS_CHILD_LISTS = bool(list(Path("/proc/self/task").glob("*/children")))


@dataclass(frozen=True)
class Held:
    """What the process holds at one moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    files: frozenset[tuple[int, str]]
    segments: frozenset[str]

    @classmethod
    def now(cls) -> "Held":
        return cls(_threads(), frozenset(_children()), _files(), _segments())


def find_leaks(before: Held) -> list[str]:
    """Name what is held now and was not `before`, after a grace for threads that are ending."""
    leaks = _leaks_since(before)
    if leaks:
        gc.collect()
        _wait_ending(before)
        # An iterator that was dropped may close its run in a thread that nobody can join.
        leaks, pauses = _leaks_since(before), int(GRACE_S / PAUSE_S)
        while leaks and pauses:  # counted: a machine that stands still takes none of the grace
            threading.Event().wait(PAUSE_S)
            leaks, pauses = _leaks_since(before), pauses - 1
    return leaks


def _leaks_since(before: Held) -> list[str]:
    now = Held.now()
    segments = [name for name in now.segments - before.segments if not _used_elsewhere(name)]
    passing = ("socket:",) if _dask_is_open() else ()  # it connects and parts as it likes
    files = [one for one in now.files - before.files if not one[1].startswith(passing)]
    return sorted(
        [f"thread {thread.name!r}" for thread in now.threads - before.threads]
        + [f"child process {pid}" for pid in now.children - before.children]
        + [f"open file {fd} of {target}" for fd, target in files]
        + [f"shared memory {name!r}" for name in segments]
    )


def _wait_ending(before: Held) -> None:
    """Join nbpipe's threads and children: they may be on their way out."""
    for thread in _threads() - before.threads:
        if thread.name.startswith("nbpipe") and thread is not threading.current_thread():
            with contextlib.suppress(RuntimeError):  # it is only starting
                thread.join(GRACE_S)
    ending = processes_of(pid for pid in _children() if pid not in before.children)
    psutil.wait_procs(ending, timeout=GRACE_S)


def _threads() -> frozenset[threading.Thread]:
    return frozenset(
        thread
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)
        and not thread.name.startswith(KEPT_THREADS)
    )


def _children() -> Iterator[int]:
    """Yield the direct children; in place of a helper process, the children it has started."""
    for pid in children_of(os.getpid()):
        if _is_kept(pid):
            yield from children_of(pid)
        else:
            yield pid


def processes_of(pids: Iterable[int]) -> list[psutil.Process]:
    """List the processes of these ids that are there: others may end while this looks."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def children_of(pid: int) -> list[int]:
    """List the processes that a process has started and that were not waited for yet."""
    if not HAS_CHILD_LISTS:
        return _children_by_parents(pid)
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it ended meanwhile
        return []
    return [
        int(child) for task in tasks for child in _read(f"/proc/{pid}/task/{task}/children").split()
    ]


def _children_by_parents(pid: int) -> list[int]:
    """List children where the kernel keeps no such list: ask every process for its parent."""
    try:
        return [process.pid for process in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def _is_kept(pid: int) -> bool:
    if HAS_CHILD_LISTS:
        command = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ")
    else:
        command = b""
        with contextlib.suppress(psutil.Error):
            command = " ".join(psutil.Process(pid).cmdline()).encode()
    return any(name in command for name in KEPT_CHILDREN)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # gone by now, or another user's
        return b""


def held_files(own):
    """Return the descriptors that a process holds for its fork servers, workers or none."""
    with own.lock:
        return (*(own.lifeline or ()), *(server.file for server in own.servers))


def _files() -> frozenset[tuple[int, str]]:
    kept = {resource_tracker._resource_tracker._fd}
    launch = sys.modules.get("nbpipe.executors.workers.launch")
    if launch is not None:
        kept.update(held_files(launch._own))  # the pipes to the fork server
    found = set()
    for name in os.listdir(FILES) if HAS_FILE_LIST else ():
        try:
            target = os.readlink(f"{FILES}/{name}")
        except OSError:  # the listing itself, closed by now
            continue
        if int(name) not in kept and not target.startswith(KEPT_FILES):
            found.add((int(name), target))
    return frozenset(found)


def _dask_is_open() -> bool:
    distributed = sys.modules.get("distributed")
    return distributed is not None and bool(getattr(distributed.Client, "_instances", ()))


def _segments() -> frozenset[str]:
    """Named segments; a semaphore of `multiprocessing` loses its name as soon as it is made."""
    try:
        names = os.listdir(SHARED_MEMORY)
    except OSError:  # another system
        names = []
    return frozenset(name for name in names if not name.startswith("sem."))


def _used_elsewhere(segment: str) -> bool:
    """Return whether another process has the segment mapped: then this one did not leak it."""
    own = {str(pid) for pid in (os.getpid(), *_children())}
    if segment.startswith("torch_"):  # it is named after the process that made it
        return segment.split("_")[1] not in own
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in own]
    mapped = f"{SHARED_MEMORY}/{segment}".encode()
    return any(mapped in _read(f"/proc/{pid}/maps") for pid in others)
