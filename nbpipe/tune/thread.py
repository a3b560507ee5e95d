"""Thread: one looks at the runs of all tuners of a process, which share a ceiling of memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Protocol, final

from ..base.knobs import Knob
from ..ops.stage import Stage

_LOG = logging.getLogger("nbpipe")


class Tuning(Protocol):
    """A tuner, as the thread sees it."""

    @property
    def knobs(self) -> frozenset[Knob]:
        """The knobs that it may turn."""

    @property
    def missing_bytes(self) -> float:
        """What its run may still take with its knobs as they are [bytes]."""

    @property
    def is_held(self) -> bool:
        """Whether the calling thread is inside of it."""

    def look(self) -> float | None:
        """Take one look at the run; return when to look again [s], or None if it has ended."""

    def limit_memory(self, ceiling_bytes: int | None) -> None:
        """Set the ceiling of the resident memory."""


@final
class TunerThread:
    """Looks at the runs of all tuners; it lives while there are any."""

    def __init__(self) -> None:
        self._tuners: tuple[Tuning, ...] = ()
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._ceiling: int | None = None  # of all tuners [bytes]
        self._warned = False

    def add(self, tuner: Tuning) -> None:
        """Look at a tuner's run from now on."""
        with self._changed:
            self._tuners = (*(one for one in self._tuners if one is not tuner), tuner)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="nbpipe-autotune", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def remove(self, tuner: Tuning) -> None:
        """Look at it no more; wait for the end of the thread if it was the last."""
        with self._changed:
            self._tuners = tuple(one for one in self._tuners if one is not tuner)
            self._changed.notify_all()
            thread = None if self._tuners else self._thread
        own = thread is threading.current_thread()
        if thread is not None and not own and not tuner.is_held:
            thread.join()

    def taken(self, stages: Mapping[str, Stage], tuner: Tuning) -> list[str]:
        """Return the stages with a knob that another tuner turns."""
        theirs = {knob for one in self._tuners if one is not tuner for knob in one.knobs}
        return [
            name for name, stage in stages.items() if not theirs.isdisjoint(stage.knobs.values())
        ]

    def shared(
        self,
        tuner: Tuning,
        memory: int | str | None,
        read: Callable[[int | str | None], int | None],
    ) -> int | None:
        """Return the ceiling of all tuners [bytes]: the one given last, else the one there is.

        Args:
            tuner: the one that asks.
            memory: what it was given, or None.
            read: gives the ceiling [bytes].
        """
        with self._changed:
            others = [one for one in self._tuners if one is not tuner]
            if others and memory is None and self._ceiling:
                return self._ceiling
            self._ceiling = found = read(memory)
        for one in others:
            one.limit_memory(found)
        return found

    def missing_bytes(self, tuner: Tuning) -> float:
        """Return what the runs of all other tuners may still take [bytes]."""
        return sum(one.missing_bytes for one in self._tuners if one is not tuner)

    def warn(self, error: Exception) -> None:
        """Report once that memory cannot be read."""
        if not self._warned:
            self._warned = True
            _LOG.warning("autotune raises no knob: resident memory cannot be read (%s)", error)

    def _serve(self) -> None:
        due_s: dict[Tuning, float] = {}
        while True:
            with self._changed:
                tuners = self._tuners
                if not tuners:
                    self._thread = None
                    return
                now_s = perf_counter()
                wait_s = min(due_s.get(one, now_s) for one in tuners) - now_s
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
            due_s = {one: due_s[one] for one in tuners if one in due_s}
            for one in tuners:
                if due_s.get(one, 0.0) <= perf_counter():
                    again_s = one.look()
                    if again_s is None:
                        self._drop(one)
                    else:
                        due_s[one] = perf_counter() + again_s

    def _drop(self, tuner: Tuning) -> None:
        with self._changed:
            self._tuners = tuple(one for one in self._tuners if one is not tuner)
