"""The ring of slabs that one end of a channel writes: sizes learned from the messages."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import final

from ..units import format_bytes
from .slabs import LINUX, Slab, open_memory, size_class

LOG = logging.getLogger("nbpipe")

IDLE_MESSAGES = 256  # a slab unused for so long is dropped

_LOOK_MESSAGES = 32  # how often that is looked at
_ROOMY = 4  # times what a message needs: beyond, a slab of its own serves it better
_CLOSE = 2  # times what a message needs: the next ones may be as large as the largest
_FORGET = 0.99  # what remains of the largest size with each message
_RETRY_MESSAGES = 64  # after no memory was to be had

_warned: set[str] = set()


@final
class Ring:
    """Slabs of one writer, within a budget.

    Args:
        budget_bytes: how much they may take together [bytes].

    Attributes:
        opened: slabs that the other end has not heard of, with their file descriptors.
        dropped: numbers of slabs that the other end may forget.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.opened: list[tuple[Slab, int]] = []
        self.dropped: list[int] = []
        self._slabs: list[Slab] = []
        self._kept: dict[int, int] = {}
        self._number = 0
        self._messages = 0
        self._largest = 0.0
        self._retry = 0
        self._latest: Slab | None = None  # whose memory is warm

    @property
    def held_bytes(self) -> int:
        """What its slabs take together [bytes]."""
        return sum(slab.size_bytes for slab in self._slabs)

    @property
    def _busy_bytes(self) -> int:
        return sum(slab.size_bytes for slab in self._slabs if slab.flag[0])

    def take(self, need_bytes: int) -> Slab | None:
        """Give a slab for a message, flagged as in use; None where there is no memory for it."""
        self._messages += 1
        self._largest = max(need_bytes, self._largest * _FORGET)
        if self._messages % _LOOK_MESSAGES == 0:
            self._drop_idle()
        best = self._latest
        if best is None or best.flag[0] or not need_bytes <= best.size_bytes <= _ROOMY * need_bytes:
            best = self._latest = self._find(need_bytes)
        if best is not None:
            best.used = self._messages
            best.flag[0] = 1
        return best

    def _find(self, need_bytes: int) -> Slab | None:
        fitting = [slab for slab in self._slabs if slab.size_bytes >= need_bytes]
        free = [slab for slab in fitting if not slab.flag[0]]
        best = min(free, key=lambda slab: (slab.size_bytes, -slab.used), default=None)
        if best is None:
            return self._open(need_bytes)
        size_bytes = size_class(need_bytes)
        if best.size_bytes <= _ROOMY * size_bytes:
            return best
        fits = self.held_bytes + 2 * size_bytes <= self.budget_bytes
        return self._open(need_bytes) if fits else best

    def forget(self) -> None:
        """Let go of everything."""
        for _, fd in self.opened:
            os.close(fd)
        for fd in self._kept.values():
            os.close(fd)
        self.opened.clear()
        self._kept.clear()
        self._slabs.clear()
        self._latest = None

    def sent(self) -> None:
        """Hear that the other end has been told what was opened and dropped."""
        for slab, fd in self.opened:
            if LINUX:
                os.close(fd)
            else:  # elsewhere a descriptor under way may be lost when it is closed
                self._kept[slab.number] = fd
        self.opened.clear()
        self.dropped.clear()

    def _open(self, need_bytes: int) -> Slab | None:
        near = self._largest <= _CLOSE * need_bytes
        size_bytes = size_class(int(self._largest) if near else need_bytes)
        if self._busy_bytes + size_bytes > self.budget_bytes:
            size_bytes = size_class(need_bytes)
        if self._messages < self._retry or not self._make_room(size_bytes):
            return None
        try:
            slab, fd = self._new(size_bytes)
        except OSError as error:
            self._retry = self._messages + _RETRY_MESSAGES
            warn_once(
                "memory",
                f"no shared memory for a message of {format_bytes(need_bytes)} ({error}): it goes "
                "through a pipe, which is slower; give the machine or the container more memory, "
                "raise the limit that is named, or make items smaller",
            )
            return None
        self._slabs.append(slab)
        self.opened.append((slab, fd))
        return slab

    def _new(self, size_bytes: int) -> tuple[Slab, int]:
        fd = open_memory(size_bytes)
        try:
            slab = Slab(self._number, fd, size_bytes)
        except BaseException:
            os.close(fd)
            raise
        self._number += 1
        return slab, fd

    def _make_room(self, size_bytes: int) -> bool:
        """Drop free slabs, those unused for longest first, until another one fits."""
        busy_bytes = self._busy_bytes
        if busy_bytes + size_bytes > self.budget_bytes:
            warn_once(
                "budget",
                f"shared memory is used up: {format_bytes(busy_bytes)} of "
                f"{format_bytes(self.budget_bytes)} are held by arrays that the other process "
                f"still uses, and a message needs {format_bytes(size_bytes)}: it goes through a "
                "pipe, which is slower; drop results sooner, copy them out (copy=True), or make "
                "items smaller",
            )
            return False
        free = [slab for slab in self._slabs if not slab.flag[0]]
        for slab in sorted(free, key=lambda slab: slab.used):
            if self.held_bytes + size_bytes <= self.budget_bytes:
                break
            self._drop(slab)
        return True

    def _drop_idle(self) -> None:
        since = self._messages - IDLE_MESSAGES
        for slab in [s for s in self._slabs if s.used < since and not s.flag[0]]:
            self._drop(slab)

    def _drop(self, slab: Slab) -> None:
        self._slabs.remove(slab)
        if self._latest is slab:
            self._latest = None
        self.dropped.append(slab.number)
        with contextlib.suppress(KeyError):
            os.close(self._kept.pop(slab.number))


def warn_once(kind: str, text: str) -> None:
    """Log a warning, once for each kind and process."""
    if kind not in _warned:
        _warned.add(kind)
        LOG.warning("%s", text)
