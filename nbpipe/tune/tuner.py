"""Tuner: tunes a run while it is iterated; one thread serves all tuners of a process."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Container, Mapping
from time import perf_counter
from typing import final

from ..base.checks import integer
from ..base.format import format_bytes, parse_bytes
from ..base.knobs import AUTOTUNE, Knob
from ..base.machine import Machine, release_free_memory
from ..base.names import shown
from ..base.threads import holds
from ..errors import ArgumentError, RunClosedError
from ..ops.stage import CONSUMER, Stage, stage_at
from ..show.watch import RunView, title_of
from .board import MOST, Board
from .limits import TunerLimits, ranks_here, ranks_of_job
from .point import Observation
from .search import KEEPS_UP, SETTLED
from .session import Decision, TuningSession
from .thread import TunerThread

# Between two looks: while it tries, while it watches or the run is isolated, and between epochs.
_LOOK_S, _CALM_S, _REST_S = 0.05, 0.1, 0.25  # [s]
_READ_S = 0.25  # memory that is far below its ceiling is read no more often
_INNER = (
    *("active", "can_undo", "give_back", "is_held", "knobs", "left_alone", "limit_memory"),
    *("look", "missing_bytes", "renew", "turns"),
)
_NEAR = 0.8  # of the ceiling: from here on it is read at each look
_QUARTER = 4  # of the free memory, a tuner may use this part unless it is given a ceiling
_LOG = logging.getLogger("nbpipe")


@final
class Tuner:
    """Turns the knobs of a live run by measured gain; `run.autotune()` gives it.

    Args:
        run: the run, held weakly.
        limits: what it was given.
        cores: cores that the process may use; read from the system if left out.
        follow: called with each knob that was turned, and its value before.
        fixed: returns why stages are left alone, by address; without a reason, nothing is logged.
        budget: the knob of the run's budget for all buffers, or None.

    Examples:
        >>> import nbpipe
        >>> pipe = nbpipe.source(range(4)).map(abs)
        >>> with pipe.start() as run:
        ...     tuner = run.autotune()
        ...     numbers = list(run)
        ...     tuner.stop()
        >>> tuner.state
        'stopped'
    """

    def __init__(
        self,
        run: RunView,
        limits: TunerLimits,
        *,
        cores: float | None = None,
        follow: Callable[[Knob, int], object] = lambda *_: None,
        fixed: Callable[[], Mapping[str, str]] = dict,
        budget: Knob | None = None,
    ) -> None:
        self._run = weakref.ref(run)
        self._follow, self._fixed, self._budget = follow, fixed, budget
        self._machine, self._cores = Machine(), cores
        self._lock = threading.RLock()
        self._ended = ""
        self._read_s = float("-inf")
        self._resident: int | None = None
        self._limits = limits
        self._session = self._begun(run)
        _thread.add(self)

    # -- what users see -----------------------------------------------------------------------
    @property
    def state(self) -> str:
        """What it does now: "measuring", "searching read", "keeps up", ..., "stopped".

        Knobs that others turned are named: they are left alone.
        """
        session = self._session
        theirs = "" if session.nothing else ", ".join(session.board.theirs)
        told = f"{session.state}; {theirs} left alone" if theirs else session.state
        return self._ended or told

    @property
    def log(self) -> tuple[Decision, ...]:
        """Its last 1,000 decisions, oldest first: knob changes, and what was decided without."""
        return tuple(self._session.log.copy())

    @property
    def memory(self) -> int | None:
        """Ceiling of the resident memory of this process and all below it [bytes].

        All tuners of a process have the same one. None where memory cannot be read.
        """
        return self._session.guard.ceiling_bytes or None

    def stop(self) -> None:
        """End the tuning; a trial in progress is taken back, all other values stay.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start(autotune=True) as run:
            ...     run.tuner.stop()
            ...     run.tuner.state
            'stopped'
        """
        self._end("stopped")
        _thread.remove(self)

    def undo(self) -> None:
        """End the tuning, and restore the knobs that it turned, unless they were changed since.

        Examples:
            >>> import nbpipe
            >>> with nbpipe.source(range(4)).start(autotune=True) as run:
            ...     run.tuner.undo()
            ...     run.tuner.state
            'undone'
        """
        self.stop()
        with self._lock:
            self._session.undo()
            self._ended = "undone"

    def __repr__(self) -> str:
        run = self._run()
        return f"Tuner({'' if run is None else title_of(run)}; {self.state})"

    def __dir__(self) -> list[str]:
        return shown(self, _INNER)

    # -- what runs and panels do --------------------------------------------------------------
    @property
    def active(self) -> bool:
        """Whether it has not ended."""
        return not self._ended

    @property
    def can_undo(self) -> bool:
        """Whether there is something to undo."""
        return bool(self._session.board.turned_by_it)

    @property
    def left_alone(self) -> list[tuple[str, str, int]]:
        """The knobs that others turned: stage, name and value of each."""
        return self._session.board.left_alone

    @property
    def knobs(self) -> frozenset[Knob]:
        """The knobs that it may turn."""
        return frozenset(knob for _, knob in self._session.board.knobs)

    @property
    def missing_bytes(self) -> float:
        """What the run may still take with its knobs as they are [bytes]."""
        return self._session.guard.missing_bytes

    @property
    def is_held(self) -> bool:
        """Whether the calling thread is inside of it."""
        return holds(self._lock)

    def limit_memory(self, ceiling_bytes: int | None) -> None:
        """Set the ceiling of the resident memory: that of another run has changed."""
        self._session.guard.ceiling_bytes = ceiling_bytes

    def turns(self, stage: str, knob: str) -> bool:
        """Return whether it turns a knob now: it has not ended, and does not leave it alone."""
        return not self._ended and self._session.board.knob(stage, knob) is not None

    def renew(self, limits: TunerLimits | None = None) -> None:
        """Take new limits, or keep those it has, and begin again if it has ended."""
        run = self._run()
        if run is None:
            raise RunClosedError("this run is gone; start another with pipe.start()")
        with self._lock:
            before, self._limits = self._limits, self._limits if limits is None else limits
            try:
                self._begin_again(run, "the limits have changed")
            except BaseException:
                self._limits = before
                raise
            self._ended = ""
        _thread.add(self)

    def give_back(self, knob: Knob) -> None:
        """Turn a knob again that others turned."""
        run = self._run()
        with self._lock:
            knob._hand_over(AUTOTUNE, "given back")
            self._session.board.first.pop(knob, None)  # from here on, this value is the first
            self._session.note(f"{knob.name} was given back")
            if run is not None and not self._ended:
                self._begin_again(run, f"{knob.name} was given back")

    def _begin_again(self, run: RunView, why: str) -> None:
        begun = self._begun(run)
        self._session.take_back(why)
        begun.log.extendleft(reversed(self._session.log))
        for knob, value in self._session.board.first.items():
            begun.board.first.setdefault(knob, value)
        self._session = begun

    def _end(self, state: str) -> None:
        with self._lock:
            if not self._ended:
                self._ended = state
                self._session.take_back("the tuner was stopped")

    def _begun(self, run: RunView) -> TuningSession:
        """Return a session with the stages as they are now."""
        limits, stages = self._limits, run.stages
        keep = [limits.keep] if isinstance(limits.keep, str) else list(limits.keep)
        for address in keep:
            stage_at(stages, address, "run")
        stages = _measured(stages, run.stats()) or stages
        most = MOST if limits.most is None else integer("autotune most", limits.most, minimum=1)
        ceiling = _thread.shared(self, limits.memory, self._ceiling)
        cores = self._machine.cores() / ranks_here() if self._cores is None else self._cores
        left = dict.fromkeys(_thread.taken(stages, self), "another run's tuner turns it")
        left.update(self._fixed())
        keep = [*keep, *left]
        board = Board(stages, cores=cores, keep=keep, most=most, budget=self._budget)
        session = TuningSession(
            board,
            memory_bytes=ceiling,
            release=release_free_memory,
            follow=self._follow,
            ranks=max(ranks_here(), ranks_of_job()),
        )
        session.guard.others_bytes = lambda: _thread.missing_bytes(self)
        for address, why in left.items():
            if why:
                session.note(f"{address} is left alone: {why}")
        if not board.knobs:
            reason = next(filter(None, left.values()), self._why_nothing(stages))
            session.nothing = session.state = f"nothing to tune: {reason}"
        return session

    @staticmethod
    def _why_nothing(stages: Mapping[str, Stage]) -> str:
        if any(stage.knobs for stage in stages.values()):
            return "all its knobs were turned by others, or are to be kept"
        return "no stage has a knob"

    def _ceiling(self, memory: int | str | None) -> int | None:
        """Return the ceiling of the resident memory [bytes]; 0 where memory cannot be read."""
        wanted = None if memory is None else parse_bytes(memory)
        try:
            resident = self._machine.resident_bytes()
            free = self._machine.free_bytes() if wanted is None else 0
        except (OSError, ValueError, LookupError) as error:
            _thread.warn(error)
            return wanted or 0
        if wanted is None:
            return resident + free // (_QUARTER * ranks_here())
        if wanted <= resident:
            raise ArgumentError(
                f"autotune memory must be above the {format_bytes(resident)} in use now, got "
                f"{memory!r}"
            )
        return wanted

    # -- what the thread does -----------------------------------------------------------------
    def look(self) -> float | None:
        """Take one look at the run; return when to look again [s], or None if it has ended."""
        run = self._run()
        if run is None or run.closed or self._ended:
            return None
        try:
            with self._lock:
                return self._look(run)
        except Exception as error:  # noqa: BLE001  the training loop goes its way
            if not run.closed:
                _LOG.warning("autotune stopped: %s: %s", type(error).__name__, error)
            self._end(f"failed: {type(error).__name__}: {error}")
            return None

    def _look(self, run: RunView) -> float | None:
        if self._ended:  # while it waited for the lock
            return None
        status = run.status()
        stats = run.stats()
        now_s = perf_counter()
        if CONSUMER not in stats or not _measured(run.stages, stats):
            return _REST_S  # before the first epoch
        if not _same(_measured(run.stages, stats), self._session.board.stages):
            self._begin_again(run, "the stages have changed")
        resident = self._resident_bytes(now_s)
        left = None if status.total is None else max(0, status.total - status.delivered)
        one = Observation(
            now_s,
            status.state,
            status.epoch,
            stats,
            resident,
            left=left,
            loop_cpu=status.step_cpu_share or 0.0,
            held_bytes=status.held_bytes,
        )
        self._session.look(one)
        if status.state != "running":
            return _REST_S
        near = resident is not None and resident >= _NEAR * (self.memory or 0)
        watches = self._session.state in (KEEPS_UP, SETTLED) and not near
        return _CALM_S if status.isolated or watches else _LOOK_S

    def _resident_bytes(self, now_s: float) -> int | None:
        """Return the resident memory; far below the ceiling, as it was a moment ago."""
        known, ceiling = self._resident, self._session.guard.ceiling_bytes or 0
        far = known is not None and known < _NEAR * ceiling
        if now_s - self._read_s < _READ_S * far:
            return known
        self._read_s = now_s
        try:
            self._resident = self._machine.resident_bytes()
        except (OSError, ValueError, IndexError) as error:
            _thread.warn(error)
            self._resident = None
        return self._resident


def _measured(stages: Mapping[str, Stage], stats: Container[str]) -> dict[str, Stage]:
    """Return the stages that are measured: some only set an order."""
    return {name: stage for name, stage in stages.items() if name in stats}


def _same(stages: Mapping[str, Stage], known: Mapping[str, Stage]) -> bool:
    """Return whether stages have the knobs of others: a loader builds its stages again."""
    if len(stages) != len(known):
        return False
    pairs = zip(stages.values(), known.values(), strict=True)
    return all(new is old or _knobs_of(new) == _knobs_of(old) for new, old in pairs)


def _knobs_of(stage: Stage) -> tuple[str, list[Knob]]:
    return stage.name, list(stage.knobs.values())


_thread = TunerThread()


def _forget() -> None:
    """Begin with no tuner in a forked process: the thread stayed in the parent."""
    global _thread  # noqa: PLW0603
    _thread = TunerThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
