"""Machine: the cores and the memory that this process and its children may use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

import psutil

_UNLIMITED = 1 << 60  # a control group of version 1 writes a huge number where it has no limit
# Limit and use of a control group's memory, in version 2 and in version 1.
_MEMORY = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


@final
class Machine:
    """Reads cores and memory, with the limits of control groups at all levels.

    Args:
        root: where the files of the system are; another folder in tests.
        pid: the process at the top of the tree.
    """

    def __init__(self, root: Path = Path("/"), pid: int | None = None) -> None:
        self._proc = root / "proc"
        self._groups = root / "sys/fs/cgroup"
        self._pid = os.getpid() if pid is None else pid
        self._page_bytes = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

    # -- cores --------------------------------------------------------------------------------
    def cores(self) -> float:
        """Return the cores that this process may use; a quota may be a part of a core."""
        allowed = getattr(os, "sched_getaffinity", None)
        count = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
        return min([float(count), *self._quotas()])

    def _quotas(self) -> Iterator[float]:
        for folder in self._levels("cpu"):
            with contextlib.suppress(OSError, ValueError, ArithmeticError):
                quota, period = (folder / "cpu.max").read_text().split()
                yield int(quota) / int(period)
            with contextlib.suppress(OSError, ValueError, ArithmeticError):
                quota_us = _integer(folder / "cpu.cfs_quota_us")
                if quota_us > 0:
                    yield quota_us / _integer(folder / "cpu.cfs_period_us")

    # -- memory -------------------------------------------------------------------------------
    def resident_bytes(self) -> int:
        """Return the resident memory of the process and of all below it [bytes].

        Raises:
            OSError: the system does not report it.
        """
        if not self._proc.is_dir():
            return _resident_elsewhere(self._pid)
        total, pids = self._resident_bytes(self._pid), list(self._children(self._pid))
        while pids:
            pid = pids.pop()
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
                total += self._resident_bytes(pid)
                pids += self._children(pid)
        return total

    def _resident_bytes(self, pid: int) -> int:
        return int((self._proc / str(pid) / "statm").read_text().split()[1]) * self._page_bytes

    def _children(self, pid: int) -> Iterator[int]:
        for thread in (self._proc / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (thread / "children").read_text().split())

    def free_bytes(self) -> int:
        """Return how much more memory can become resident [bytes].

        It is the least of what each control group above this process has left, and of what the
        machine has.

        Raises:
            OSError: the system does not report it.
        """
        if not self._proc.is_dir():
            return int(psutil.virtual_memory().available)
        text = (self._proc / "meminfo").read_text()
        rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return min([int(rows["MemAvailable"].split()[0]) * 1024, *self._left()])

    def _left(self) -> Iterator[int]:
        for folder in self._levels("memory"):
            for limit, used in _MEMORY:
                with contextlib.suppress(OSError, ValueError):  # another version, or "max"
                    limit_bytes = _integer(folder / limit)
                    if limit_bytes < _UNLIMITED:
                        cached = _cached_bytes(folder / "memory.stat")
                        yield max(0, limit_bytes - max(0, _integer(folder / used) - cached))

    # -- control groups -----------------------------------------------------------------------
    def _levels(self, controller: str) -> Iterator[Path]:
        """Yield the folders of the group of this process, and of those above it."""
        try:
            lines = (self._proc / str(self._pid) / "cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, names, path = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            for top in self._mounts(names, controller):
                inner = top / path.strip("/")
                yield from (one for one in (inner, *inner.parents) if one.is_relative_to(top))

    def _mounts(self, names: str, controller: str) -> tuple[Path, ...]:
        """Return where a hierarchy may be mounted: version 2 has no names of controllers."""
        if names:
            return (self._groups / names, self._groups / controller)
        return (self._groups, self._groups / "unified")


def _resident_elsewhere(pid: int) -> int:
    """Return the resident memory of a tree on a system without /proc [bytes].

    Raises:
        OSError: the system does not report it.
    """
    try:
        top = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (top, *top.children(recursive=True)))
    except psutil.Error as error:
        raise OSError(f"resident memory cannot be read: {error}") from error


def _integer(file: Path) -> int:
    return int(file.read_text().split()[0])


def _cached_bytes(file: Path) -> int:
    """Return how much of a group's memory the system takes back when it is needed [bytes]."""
    with contextlib.suppress(OSError, ValueError):
        rows = dict(line.split() for line in file.read_text().splitlines())
        return int(rows.get("total_inactive_file", rows.get("inactive_file", 0)))
    return 0


def _trimmer() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    with contextlib.suppress(OSError, AttributeError):
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
        return trim
    return None


def release_free_memory() -> None:
    """Have the C library return memory that was freed: until then it counts as resident."""
    trim = _trimmer()
    if trim is not None:
        trim(0)
