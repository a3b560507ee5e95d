"""What a test may leave behind: threads, child processes, open files, shared memory."""

import gc
import os
import sys
import threading
import time
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
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "nbpipe.executors.nursery import serve",
)
SHARED_MEMORY = Path("/dev/shm")
FILES = Path("/proc/self/fd") if sys.platform == "linux" else Path("/dev/fd")


@dataclass(frozen=True)
class Held:
    """What the process holds at one moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    files: frozenset[tuple[int, str]]
    segments: frozenset[str]

    @classmethod
    def now(cls) -> "Held":
        return cls(_threads(), _children(), _files(), _segments())


def find_leaks(before: Held) -> list[str]:
    """Name what is held now and was not `before`, after a grace for threads that are ending."""
    if _leaks_since(before):
        gc.collect()
        _wait_ending(before)
        # An iterator that was dropped may close its run in a thread that nobody can join.
        until_s = time.monotonic() + GRACE_S
        while _leaks_since(before) and time.monotonic() < until_s:
            threading.Event().wait(PAUSE_S)
    return _leaks_since(before)


def _leaks_since(before: Held) -> list[str]:
    now = Held.now()
    segments = [name for name in now.segments - before.segments if not _used_elsewhere(name)]
    return sorted(
        [f"thread {thread.name!r}" for thread in now.threads - before.threads]
        + [f"child process {pid}" for pid in now.children - before.children]
        + [f"open file {fd} of {target}" for fd, target in now.files - before.files]
        + [f"shared memory {name!r}" for name in segments]
    )


def _wait_ending(before: Held) -> None:
    """Join nbpipe's threads and children: they may be on their way out."""
    for thread in _threads() - before.threads:
        if thread.name.startswith("nbpipe") and thread is not threading.current_thread():
            thread.join(GRACE_S)
    children = [process for process in _processes() if process.pid not in before.children]
    psutil.wait_procs(children, timeout=GRACE_S)


def _threads() -> frozenset[threading.Thread]:
    return frozenset(
        thread
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)
        and not thread.name.startswith(KEPT_THREADS)
    )


def _processes() -> list[psutil.Process]:
    """Direct children; from the kernel's own list where there is one, which is fast."""
    lists = list(Path("/proc/self/task").glob("*/children"))
    if lists:
        pids = [int(pid) for path in lists for pid in _read(path).split()]
        found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    else:
        found = psutil.Process().children()
    servers = [process for process in found if _is_kept(process)]
    others = [process for process in found if process not in servers]
    return others + [worker for server in servers for worker in _children_of(server)]


def _children_of(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.Error:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread ended meanwhile
        return ""


def _children() -> frozenset[int]:
    return frozenset(process.pid for process in _processes())


def _is_kept(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(name in command for name in KEPT_CHILDREN)


def _files() -> frozenset[tuple[int, str]]:
    kept = {resource_tracker._resource_tracker._fd}
    launch = sys.modules.get("nbpipe.executors.launch")
    if launch is not None:
        kept.update(launch.held_files())  # the pipes to the fork server
    passing = ("socket:",) if _dask_is_open() else ()  # it connects and parts as it likes
    found = set()
    for link in FILES.iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # the listing itself, closed by now
            continue
        if int(link.name) not in kept and not target.startswith((*KEPT_FILES, *passing)):
            found.add((int(link.name), target))
    return frozenset(found)


def _dask_is_open() -> bool:
    distributed = sys.modules.get("distributed")
    return distributed is not None and bool(getattr(distributed.Client, "_instances", ()))


def _segments() -> frozenset[str]:
    """Named segments; a semaphore of `multiprocessing` loses its name as soon as it is made."""
    names = (path.name for path in SHARED_MEMORY.glob("*"))
    return frozenset(name for name in names if not name.startswith("sem."))


def _used_elsewhere(segment: str) -> bool:
    """Tell whether another process has the segment mapped: then this one did not leak it."""
    own = {str(pid) for pid in (os.getpid(), *_children())}
    if segment.startswith("torch_"):  # it is named after the process that made it
        return segment.split("_")[1] not in own
    others = [path for path in Path("/proc").glob("[0-9]*/maps") if path.parent.name not in own]
    return any(f"{SHARED_MEMORY}/{segment}" in _text(path) for path in others)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # gone by now, or another user's
        return ""
