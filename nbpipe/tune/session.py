"""Session: the tuning of one run, driven by observations; it has no thread and no clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import final

from ..base.knobs import AUTOTUNE, Knob, KnobChange
from ..ops.stage import CONSUMER
from .board import Board
from .limits import ENDS_SOON, OTHERS_WAIT, TrialLimits
from .memory import FREE, MemoryGuard
from .point import Measure, Observation, Point
from .search import CONTENT, Doing, Keep, Search, Turn
from .window import Measurement, Pauses

_LEAST_S, _MOST_S = 0.25, 2.0  # calls in progress end within so long
_IN_FORCE_S = 10.0  # longest wait until a turn is in force
_FIRST_S = 1.0  # of an epoch buffers fill, and in the last second they drain: neither is measured
_LOG_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of a tuner.

    Attributes:
        when_s: time of the decision [seconds since the Unix epoch].
        text: what was decided, and why.
        knob: full name of the knob that was turned; empty without one.
        old: value before.
        new: value after.
        rate: batches a second before, as measured last; 0 if not known.
        after: batches a second after, as measured next; 0 if not known.
        taken_back: whether the turn was a trial that was taken back.
    """

    when_s: float
    text: str
    knob: str = ""
    old: int = 0
    new: int = 0
    rate: float = 0.0
    after: float = 0.0
    taken_back: bool = False

    def __str__(self) -> str:
        return f"{self.knob} {self.old} → {self.new}: {self.text}" if self.knob else self.text


@final
class TuningSession:
    """Tunes one run.

    Args:
        board: the knobs.
        memory_bytes: ceiling of the resident memory, or None [bytes].
        release: returns freed memory to the system.
        follow: called with each knob that was turned, and its value before.
        ranks: ranks of the job: their loops may take their steps together.

    Attributes:
        board: the knobs.
        state: what it does now, in a few words.
        nothing: why there is nothing to tune; empty where there is.
        guard: keeps the resident memory below its ceiling.
        log: its decisions, oldest first.
    """

    def __init__(
        self,
        board: Board,
        *,
        memory_bytes: int | None = None,
        release: Callable[[], object] = lambda: None,
        follow: Callable[[Knob, int], object] = lambda *_: None,
        ranks: int = 1,
    ) -> None:
        self.state = "measuring"
        self.nothing = ""
        self.log: deque[Decision] = deque(maxlen=_LOG_KEPT)
        self.board = board
        board.turned = self._record
        self._follow = follow
        self.guard = MemoryGuard(board, memory_bytes, release)
        self._limits = TrialLimits(ranks)
        self._said: set[str] = set()  # notes that one epoch has once
        self._search = Search(board)
        self._before: dict[Knob, int] = {}  # values before the trial in progress
        self._trial = 0  # decisions since a setting was kept
        self._seen: dict[Knob, KnobChange | None] = {}
        self._last: Observation | None = None
        self._pauses = Pauses()
        self._rate = self._step_s = self._wait = 0.0
        self._settled_s = self._turned_s = 0.0
        self._paused = -1  # pauses of the loop before the last turn
        self._begin_search()

    def _begin_search(self) -> None:
        self._steps = self._search.run()
        self._window: Measurement | None = None
        self._measure = self._advanced(None)

    # -- observations ------------------------------------------------------------------------
    def look(self, one: Observation) -> None:
        """Take an observation; turn knobs if that is due."""
        if self.nothing:
            return
        last, self._last = self._last, one
        if one.state != "running":
            self._window = None
            if one.state != "finished":
                self.take_back("the run was interrupted")
            return
        if last is None or last.state != "running" or last.epoch != one.epoch:
            self._window, self._settled_s = None, one.time_s + _FIRST_S
            self._pauses.begin()
            said, self._said = self._said, set()
            if ENDS_SOON in said:  # what was refused may pay now
                self._begin_again()
        if not self._is_ready(one):
            return
        if self._window is None:
            self._window = Measurement(self._measure, self.board.groups, self._pauses)
        if self._window.add(one):
            point, self._window = self._window.point(), None
            self._take(point, one)

    def _is_ready(self, one: Observation) -> bool:
        """Notice what others did, and guard memory; return whether to measure now."""
        if self._pauses.add(one):
            self.note(f"the loop pauses every {self._pauses.cycle} batches")
            self._begin_again()
        self._notice_others()
        self._limits.look(one, self.board.groups)
        self.board.loop_cpu = one.loop_cpu
        if self.guard.look(one, self._step_s):
            self._settle(one)
        if self.guard.is_foreign:
            self._say("memory is near its ceiling, and no knob frees any: nothing is raised")
        if one.left is not None and one.left <= self._rate * _FIRST_S:
            self._window = None
            return False
        return one.time_s >= self._settled_s and self._is_in_force(one)

    def _take(self, point: Point, one: Observation) -> None:
        """Take a measurement: raise the budget, or continue the search."""
        self._rate, self._step_s, self._wait = point.rate, point.step_s, point.wait
        self._record_after()
        if point.wait >= CONTENT and not self._before and self.guard.widen(point):
            self._begin_again()
            self._settle(one)
            return
        self._measure = self._advanced(point)

    def _settle(self, one: Observation) -> None:
        """Wait until a turn shows: calls in progress have ended."""
        self._window = None
        p95_s = sum(row.latency_p95_s for name, row in one.stats.items() if name != CONSUMER)
        self._turned_s, self._paused = one.time_s, self._pauses.count
        self._settled_s = one.time_s + min(_MOST_S, max(_LEAST_S, 1.2 * p95_s + 0.1))

    def _is_in_force(self, one: Observation) -> bool:
        """Return whether the stages run by the values of their knobs."""
        if self._window is not None or one.time_s > self._turned_s + _IN_FORCE_S:
            return True
        if self._pauses.cycle and self._pauses.count == self._paused:
            return False  # a buffer shows what it is worth after a pause
        rows = [one.stats[group.address] for group in self.board.groups]
        return not any(row.starting or row.running > row.concurrency for row in rows)

    # -- what is decided ----------------------------------------------------------------------
    def _advanced(self, point: Point | None) -> Measure:
        """Continue the search until it measures again."""
        answer: Point | bool | None = point
        turned = False
        while True:
            step = self._steps.send(answer)
            answer = None
            if isinstance(step, Measure):
                if turned and step.settles and self._last is not None:
                    self._settle(self._last)
                return step
            if isinstance(step, Turn):
                answer = self._turn(step)
                turned = turned or answer
            elif isinstance(step, Keep):
                self._kept(step)
            elif isinstance(step, Doing):
                self.state = step.state

    def _turn(self, turn: Turn) -> bool:
        board, knob = self.board, self.board.knob(turn.stage, turn.knob)
        if knob is None:
            return False
        old = knob.value
        value = self.guard.fitting(turn.stage, turn.knob, self._allowed(turn, knob))
        if not board.turn(turn.stage, turn.knob, value, turn.why):
            return False
        self._before.setdefault(knob, old)
        return True

    def _allowed(self, turn: Turn, knob: Knob) -> int:
        """Return the value of a turn, or where it is not worth a trial the one that was kept."""
        kept, stage = self._before.get(knob, knob.value), self.board.stages[turn.stage]
        if turn.knob != "concurrency":
            return turn.value
        if turn.value < kept and self._limits.refuses_fewer(self._wait):
            self._say(OTHERS_WAIT)
            return kept
        left = None if self._last is None else self._last.left
        if turn.value > knob.value and self._limits.refuses_more(stage, left, self._rate):
            self._say(ENDS_SOON)
            return knob.value
        return turn.value

    def _say(self, text: str) -> None:
        """Log a decision that turns no knob, once in an epoch."""
        if text not in self._said:
            self._said.add(text)
            self.note(text)

    def _record(self, knob: Knob, old: int, why: str) -> None:
        self._seen[knob] = change = knob.last_change
        when_s = time.time() if change is None else change.when_s
        self._log(Decision(when_s, why, knob.name, old, knob.value, self._rate))
        self._follow(knob, old)

    def _log(self, decision: Decision) -> None:
        self.log.append(decision)
        self._trial += 1

    def _record_after(self) -> None:
        """Add the rate that was measured to the turns before it."""
        for place in reversed(range(len(self.log))):
            one = self.log[place]
            if one.after:
                break
            if one.knob:
                self.log[place] = replace(one, after=self._rate)

    def _record_taken_back(self, count: int, names: Collection[str] | None = None) -> None:
        """Mark those of the last decisions whose turns did not lead to the value that is kept.

        Args:
            count: of decisions.
            names: of the knobs that are meant; all if left out.
        """
        turns: dict[str, list[int]] = {}
        for place in range(max(0, len(self.log) - count), len(self.log)):
            name = self.log[place].knob
            if name and (names is None or name in names):
                turns.setdefault(name, []).append(place)
        for places in turns.values():
            first, last = self.log[places[0]].old, self.log[places[-1]].new
            for place in places if last == first else places[:-1]:
                one = self.log[place]
                leads = (one.new - one.old) * (last - first) > 0
                if not (leads and min(first, last) <= one.new <= max(first, last)):
                    self.log[place] = replace(one, taken_back=True)
        self._trial = 0

    def _kept(self, keep: Keep) -> None:
        self._before.clear()
        self._record_taken_back(self._trial)
        self.state = keep.state
        if keep.note:
            self.note(keep.note)
        resident, ceiling = self._resident_bytes, self.guard.ceiling_bytes
        if keep.changed and (ceiling is None or resident is None or resident < FREE * ceiling):
            self.board.caps.clear()

    @property
    def _resident_bytes(self) -> int | None:
        return None if self._last is None else self._last.resident_bytes

    def note(self, text: str) -> None:
        """Log a decision that turns no knob."""
        self._log(Decision(time.time(), text, rate=self._rate))

    # -- what others do -----------------------------------------------------------------------
    def _notice_others(self) -> None:
        """Begin again where a knob was turned by others: its value is part of the load."""
        others = []
        for knob in self.board.watched:
            change = knob.last_change
            if self._seen.get(knob, change) is not change and change and change.by != AUTOTUNE:
                others.append(change)
            self._seen[knob] = change
        if not others:
            return
        for change in others:
            self.note(f"{change.knob} was changed by {change.by}: it is left alone from now on")
        self.take_back(f"{others[-1].knob} was changed meanwhile")
        self._begin_again()

    def _begin_again(self) -> None:
        """Forget what was measured, and measure again."""
        self._search.forget()
        self._begin_search()

    def take_back(self, why: str) -> None:
        """Take back the trial in progress, if there is one."""
        before, self._before = self._before, {}
        turned = False
        for stage, knob in self.board.knobs:
            if knob in before:
                name = knob.name.rpartition(".")[2]
                turned = self.board.turn(stage, name, before[knob], why) or turned
        if turned:
            self._record_taken_back(self._trial)
            self._begin_search()

    def undo(self) -> None:
        """Restore the values before the first turn, unless they were changed since."""
        self._before.clear()
        names = {knob.name for knob in self.board.turned_by_it}
        self.board.undo()
        self._record_taken_back(len(self.log), names)
