"""RunController: gives snapshots of a run, and controls it, for all that show the run."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, NamedTuple, final

from ..base.knobs import AUTOTUNE, Knob, KnobChange
from ..engine.measures.stats import StageStats, Status
from ..errors import ArgumentError, RunClosedError
from .messages import Later, export_later, got
from .snapshot import Frame, KnobTarget, Snapshot, frame_of, in_frame, label
from .watch import RunView, TunerView

_GESTURE_S = 1.0  # turns of one knob that follow one another so soon are one change [s]
_UNDO_KEPT = 1000
_JUST_NOW_S = 0.02  # a snapshot published so lately is sent again [s]
_FRAMED_S = 0.9  # a frame may be so old where a run is shown several times a second [s]
_GONE = "this run is closed; start another with pipe.start()"
_LOST = "this run is gone, nothing holds it any more; type: pipe.export({path!r})"


@final
class RunController:
    """Gives snapshots of a run, and controls it. It holds the run weakly.

    Args:
        run: the run.
        by: the author of its changes in the log.
    """

    def __init__(self, run: RunView, *, by: str = "panel") -> None:
        self._run = weakref.ref(run)
        self._by = by
        self._knobs: dict[tuple[str, str], Knob] = {}
        self._place: dict[int, tuple[str, str]] = {}
        self._unwatch: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._done: list[_Done] = []  # for `undo`, oldest first
        self._undoing = threading.local()
        self._turns = 0  # of its knobs
        self._framed: _Framed | None = None
        weakref.finalize(self, _end_all, self._unwatch).atexit = False  # knobs outlive runs
        self._last = self._published = self.snapshot()
        self._published_s = -math.inf

    @classmethod
    def of(cls, run: RunView) -> RunController:
        """Return the controller that all front ends of a run share, and so its list of changes."""
        with _controllers_lock:
            if run not in _controllers:
                _controllers[run] = cls(run)
            return _controllers[run]

    def _follow(self, run: RunView) -> None:
        """Watch the knobs of the run; another epoch of a loader may have others."""
        with self._lock:
            for address, stage in run.stages.items():
                for name, knob in stage.knobs.items():
                    place = label(address), name  # as the snapshot calls it
                    if self._knobs.get(place) is knob:
                        continue
                    self._knobs[place] = knob
                    if id(knob) not in self._place:  # stages may share one: it is the first's
                        self._place[id(knob)] = place
                        self._unwatch.append(knob.watch(_recorder(self, knob)))

    # -- snapshots ------------------------------------------------------------------------
    def snapshot(self, *, lately: bool = False) -> Snapshot:
        """Return a snapshot of the run; of a run that is gone the last one, as closed.

        Args:
            lately: all but the numbers may be a second old, unless a knob was turned since.
        """
        run = self._run()
        if run is None:
            shown: Snapshot = {**self._last, "state": "closed", "left_s": None}
        else:
            status, stats = run.status(), dict(run.stats())
            frame = self._frame(run, status, stats, lately=lately)
            shown = in_frame(frame, status, stats)
        has_knobs = any(stage["knobs"] for stage in shown["stages"])  # else none has an effect
        shown["undo"] = self._undo_target() if has_knobs else None
        shown["actions"] = self._actions(shown["state"], undo=has_knobs)
        self._last = shown
        return shown

    def publish(self, *, lately: bool) -> Snapshot:
        """Return `snapshot(lately=lately)`; `glance` returns it again for a moment."""
        self._published, self._published_s = self.snapshot(lately=lately), monotonic()
        return self._published

    def glance(self) -> Snapshot:
        """Return the snapshot that was just published, or else `snapshot(lately=True)`."""
        if monotonic() - self._published_s < _JUST_NOW_S:
            return self._published
        return self.snapshot(lately=True)

    def _frame(
        self, run: RunView, status: Status, stats: Mapping[str, StageStats], *, lately: bool
    ) -> Frame:
        errors = [row.errors for row in stats.values()]
        tuner = None if run.tuner is None else run.tuner.state
        key = self._turns, tuner, status.state, status.epoch, status.error, list(stats), errors
        now_s, known = monotonic(), self._framed
        if lately and known is not None and known.key == key and now_s < known.until_s:
            return known.frame
        self._follow(run)
        frame = frame_of(run, status, stats)
        self._framed = _Framed(key, now_s + _FRAMED_S, frame)
        return frame

    @property
    def run(self) -> RunView | None:
        """The run, or None where it is gone."""
        return self._run()

    def _actions(self, state: str, *, undo: bool) -> list[str]:
        export = ["export"] if self._run() is not None else []
        if state == "closed":
            return export
        going = {"running": ["pause", "stop"], "paused": ["resume", "stop"]}.get(state, [])
        done = ["undo"] if undo and self._done else []
        return [*going, *done, *(self._tuner_actions() if undo else []), *export]

    def _tuner_actions(self) -> list[str]:
        run = self._run()
        if run is None:
            return []
        tuner = run.tuner
        found = ["autotune" if tuner is None or not tuner.active else "autotune_stop"]
        return [*found, *(["autotune_undo"] if tuner is not None and tuner.can_undo else [])]

    def _undo_target(self) -> KnobTarget | None:
        with self._lock:
            if not self._done:
                return None
            last = self._done[-1]
        address, name = self._place[id(last.knob)]
        return {"stage": address, "knob": name, "value": last.value}

    # -- controls -------------------------------------------------------------------------
    # Those of a closed run raise RunClosedError.
    def set(self, stage: str, knob: str, value: Any) -> int:
        """Set a knob, and return the value in force.

        Args:
            stage: its address, as the snapshot has it.
            knob: name of the knob.
            value: checked by the knob.

        Raises:
            ArgumentError: there is no such knob, or it does not take this value.
        """
        found = self._found(stage, knob)
        self._open_run()
        return found.set(value, by=self._by)

    def _found(self, stage: str, knob: str) -> Knob:
        found = self._knobs.get((stage, knob))
        if found is None:
            raise ArgumentError(f"no knob {got(knob)} of a stage {got(stage)} in this run")
        return found

    def in_force(self, stage: object, knob: object) -> int | None:
        """Return the value of a knob; None where there is no such knob."""
        known = isinstance(stage, str) and isinstance(knob, str)
        found = self._knobs.get((stage, knob)) if known else None  # type: ignore[arg-type]
        return None if found is None else found.value

    def pause(self) -> None:
        """Start no further call."""
        self._open_run().pause()

    def resume(self) -> None:
        """Continue after a pause."""
        self._open_run().resume()

    def stop(self) -> None:
        """End the epoch in progress."""
        self._open_run().stop()

    def export(self, later: Later, *, path: str, **asked: Any) -> None:
        """Export the run as `export_later` does.

        Raises:
            RunClosedError: nothing holds the run any more.
            RunError: it is being exported already.
        """
        run = self._run()
        if run is None:
            raise RunClosedError(_LOST.format(path=path))
        export_later(run, later, path=path, **asked)

    def undo(self) -> None:
        """Set the knob that was changed last back to the value before; a tuner undoes all its own.

        Raises:
            ArgumentError: nothing was changed.
        """
        tuner = self._open_run().tuner
        with self._lock:
            if not self._done:
                raise ArgumentError("there is no change to undo")
            last = self._done.pop()
        self._undoing.now = True
        try:
            if last.by == AUTOTUNE and tuner is not None:
                self._undo_all(tuner)
            else:
                last.knob.set(last.value, by=self._by, why="undo")
        finally:
            self._undoing.now = False

    # -- the tuner of the run -------------------------------------------------------------
    def autotune(self) -> None:
        """Begin to turn the knobs by measured gain, with the limits of an earlier tuner."""
        run = self._open_run()
        if run.tuner is None:
            run.autotune()
        elif not run.tuner.active:
            run.tuner.renew()

    def autotune_stop(self) -> None:
        """End the tuning; the knobs stay as they are."""
        self._tuner().stop()

    def autotune_undo(self) -> None:
        """End the tuning, and restore the knobs that it turned."""
        tuner = self._tuner()
        self._undoing.now = True
        try:
            self._undo_all(tuner)
        finally:
            self._undoing.now = False

    def give_back(self, stage: str, knob: str) -> None:
        """Let the tuner turn a knob that a person turned.

        Raises:
            ArgumentError: there is no such knob, or no tuner.
        """
        found = self._found(stage, knob)
        self._tuner().give_back(found)

    def _undo_all(self, tuner: TunerView) -> None:
        tuner.undo()
        with self._lock:
            self._done = [one for one in self._done if one.by != AUTOTUNE]

    def _tuner(self) -> TunerView:
        tuner = self._open_run().tuner
        if tuner is None:
            raise ArgumentError("this run has no tuner; start one with run.autotune()")
        return tuner

    def _record(self, knob: Knob, change: KnobChange) -> None:
        self._turns += 1
        if getattr(self._undoing, "now", False):
            return
        with self._lock:
            last = self._done[-1] if self._done else None
            if last is not None and last.includes(knob, change, self._by):
                self._done[-1] = last._replace(until_s=change.when_s)
            else:
                self._done.append(_Done(knob, change.old, change.by, change.when_s))
                del self._done[:-_UNDO_KEPT]

    def _open_run(self) -> RunView:
        run = self._run()
        if run is None or run.closed:
            raise RunClosedError(_GONE)
        return run


class _Framed(NamedTuple):
    """A frame, what it was made of, and until when it may be reused [s]."""

    key: object
    until_s: float
    frame: Frame


class _Done(NamedTuple):
    """A change of a knob: the value before, who made it, and when it ended [s]."""

    knob: Knob
    value: int
    by: str
    until_s: float

    def includes(self, knob: Knob, change: KnobChange, by: str) -> bool:
        """Return whether a change is part of this one: a slider or a tuner makes many."""
        if self.by == change.by == AUTOTUNE:
            return True
        ours = self.knob is knob and self.by == change.by == by
        return ours and change.when_s - self.until_s < _GESTURE_S


_controllers: weakref.WeakKeyDictionary[RunView, RunController] = weakref.WeakKeyDictionary()
_controllers_lock = threading.RLock()


def _end_all(unwatch: list[Callable[[], None]]) -> None:
    for end in unwatch:
        end()


def _recorder(controller: RunController, knob: Knob) -> Callable[[KnobChange], None]:
    reference = weakref.ref(controller)

    def record(change: KnobChange) -> None:
        one = reference()
        if one is not None:
            one._record(knob, change)

    return record
