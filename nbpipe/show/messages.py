"""RunController: a run as a front end may reach it: checked messages in, acknowledgements out.

Whatever shows a run in a browser speaks this protocol: `{"op": "set", "id": 7, "stage": "decode",
"knob": "concurrency", "value": 8}` is answered by `{"type": "ack", "id": 7, "ok": true,
"value": 8}`, where `value` is the value in force. Handlers may run in any thread and do not block:
`{"op": "export", "id": 8, "path": "loader.py", "overwrite": false}` is acknowledged at once; what
became of it is told later, as `{"type": "exported", "id": 8, "ok": true, "path": "/home/..", ...}`.
"""

from __future__ import annotations

import math
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypedDict, final

from ..base.format import plain
from ..base.knobs import Knob, KnobChange
from ..engine.stats import StageStats, Status
from ..errors import ArgumentError, ModuleEditedError, NbpipeError, RunClosedError, RunError
from .snapshot import LINE, Frame, KnobTarget, Snapshot, frame_of, in_frame, label, line
from .watch import Exportable, RunView

LEASE_S = 180.0  # a view that says nothing for so long is gone: a reload says no goodbye [s]
_MOST_VIEWS = 64
_LONGEST = 64  # characters of a view's name
_GESTURE_S = 1.0  # turns of one knob that follow one another so soon are one change [s]
_UNDO_KEPT = 1000
_JUST_NOW_S = 0.02  # what was published so lately need not be looked at again [s]
_FRAMED_S = 0.9  # of what is looked at several times a second, all but the numbers is so old [s]
_LONGEST_PATH = 1000  # characters of the path of a module, as it is asked for
_LONGEST_WRITTEN = 4096  # characters of a path that was written
_LONGEST_REFUSAL = 8000
_MOST_NOTES = 50
_GONE = "this run is closed; start another with pipe.start()"
_LOST = "this run is gone, nothing holds it any more; type: pipe.export({path!r})"
_BUSY = "this run is being exported already; wait until that is done"


class Ack(TypedDict, total=False):
    """Answer to a message; `value` is the value in force, where a knob was meant."""

    type: str
    id: int
    ok: bool
    value: int | None
    error: str


class ExportedMessage(TypedDict, total=False):
    """What became of an export: the file and notes, or why there is none, which may be long.

    With `edited`, the file holds what export did not write: it asks for `overwrite`.
    """

    type: str
    id: int
    ok: bool
    path: str
    notes: list[str]
    error: str
    edited: bool


Later = Callable[[ExportedMessage], object]


def number_of(message: object) -> int:
    """Return the number that the answer to a message bears; 0 where it has none."""
    number = message.get("id") if isinstance(message, Mapping) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


def refused(number: int, error: Exception) -> Ack:
    """Return the answer to a message that cannot be followed."""
    words = plain(str(error))[:LINE]
    return {"type": "ack", "id": number, "ok": False, "value": None, "error": words}


@final
class RunController:
    """The far end of a run's controls. It holds the run weakly.

    Args:
        run: the run.
        by: who turns knobs here, for the log of changes.
    """

    def __init__(self, run: RunView, *, by: str = "panel") -> None:
        self._run = weakref.ref(run)
        self._by = by
        self._knobs: dict[tuple[str, str], Knob] = {}
        self._place: dict[int, tuple[str, str]] = {}
        self._unwatch: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._done: list[_Done] = []  # what `undo` takes back
        self._undoing = threading.local()
        self._turns = 0  # of its knobs
        self._framed: _Framed | None = None
        weakref.finalize(self, _end_all, self._unwatch).atexit = False  # knobs outlive runs
        self._last = self._published = self.snapshot()
        self._published_s = -math.inf

    @classmethod
    def of(cls, run: RunView) -> RunController:
        """Return the one that the front ends of a run share: what one does, the others undo."""
        with _remotes_lock:
            if run not in _remotes:
                _remotes[run] = cls(run)
            return _remotes[run]

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

    # -- looking in -----------------------------------------------------------------------
    def snapshot(self, *, lately: bool = False) -> Snapshot:
        """Return how the run is; one that is gone is as it was last, and closed.

        Args:
            lately: all but the numbers may be of a second ago, if nothing was turned since.
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
        """Return `snapshot(lately=lately)`, for a view; a glance within a moment sees the same."""
        self._published, self._published_s = self.snapshot(lately=lately), monotonic()
        return self._published

    def glance(self) -> Snapshot:
        """Return what was published just now, or else `snapshot(lately=True)`."""
        if monotonic() - self._published_s < _JUST_NOW_S:
            return self._published
        return self.snapshot(lately=True)

    def _frame(
        self, run: RunView, status: Status, stats: Mapping[str, StageStats], *, lately: bool
    ) -> Frame:
        errors = [row.errors for row in stats.values()]
        key = self._turns, status.state, status.epoch, status.error, list(stats), errors
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
        return [*going, *(["undo"] if undo and self._done else []), *export]

    def _undo_target(self) -> KnobTarget | None:
        with self._lock:
            if not self._done:
                return None
            last = self._done[-1]
        address, name = self._place[id(last.knob)]
        return {"stage": address, "knob": name, "value": last.value}

    # -- reaching in ----------------------------------------------------------------------
    def handle(self, message: object, later: Later = lambda _: None) -> Ack:
        """Do what a message from a browser asks for, and answer it; never raises.

        Args:
            message: what came.
            later: called in another thread with what became of an export.
        """
        number = number_of(message)
        ack: Ack = {"type": "ack", "id": number, "ok": True, "value": None}
        try:
            if not isinstance(message, Mapping):
                raise ArgumentError(f"a message must be an object, got {got(message)}")
            ack["value"] = self._do(message, number, later)
        except NbpipeError as error:
            ack["ok"] = False
            ack["error"] = plain(str(error))[:LINE]
            ack["value"] = self._in_force(message)
        return ack

    def _do(self, message: Mapping[Any, Any], number: int, later: Later) -> int | None:
        op = message.get("op")
        if op == "set":
            return self._set(message)
        if op == "export":
            self._export(message, number, later)
            return None
        plain: dict[object, Callable[[RunView], object]] = {
            "pause": lambda run: run.pause(),
            "resume": lambda run: run.resume(),
            "stop": lambda run: run.stop(),
            "undo": lambda _: self.undo(),
        }
        action = plain.get(op) if isinstance(op, str) else None
        if action is None:
            raise ArgumentError(
                f"op must be one of set, export, {', '.join(map(str, plain))}, got {got(op)}"
            )
        action(self._open_run())
        return None

    def _set(self, message: Mapping[Any, Any]) -> int:
        knob = self._knob(message)
        if knob is None:
            raise ArgumentError(
                f"no knob {got(message.get('knob'))} of a stage {got(message.get('stage'))} "
                "in this run"
            )
        self._open_run()
        return knob.set(message.get("value"), by=self._by)  # type: ignore[arg-type]

    def _export(self, message: Mapping[Any, Any], number: int, later: Later) -> None:
        path, _ = _asked_export(message)
        run = self._run()
        if run is None:
            raise RunClosedError(_LOST.format(path=path))
        export_later(run, message, number, later)

    def undo(self) -> None:
        """Set the knob that was changed last back to the value before.

        Raises:
            ArgumentError: nothing was changed.
        """
        with self._lock:
            if not self._done:
                raise ArgumentError("there is no change to undo")
            last = self._done.pop()
        self._undoing.now = True
        try:
            last.knob.set(last.value, by=self._by, why="undo")
        finally:
            self._undoing.now = False

    def _record(self, knob: Knob, change: KnobChange) -> None:
        self._turns += 1
        if getattr(self._undoing, "now", False):
            return
        with self._lock:
            last = self._done[-1] if self._done else None
            if last is not None and last.goes_on(knob, change, self._by):
                self._done[-1] = last._replace(until_s=change.when_s)
            else:
                self._done.append(_Done(knob, change.old, change.by, change.when_s))
                del self._done[:-_UNDO_KEPT]

    def _knob(self, message: Mapping[Any, Any]) -> Knob | None:
        stage, name = message.get("stage"), message.get("knob")
        if not isinstance(stage, str) or not isinstance(name, str):
            return None
        return self._knobs.get((stage, name))

    def _in_force(self, message: object) -> int | None:
        knob = self._knob(message) if isinstance(message, Mapping) else None
        return None if knob is None else knob.value

    def _open_run(self) -> RunView:
        run = self._run()
        if run is None or run.closed:
            raise RunClosedError(_GONE)
        return run


class _Framed(NamedTuple):
    """A frame, what it was made of, and until when it may be used again [s]."""

    key: object
    until_s: float
    frame: Frame


class _Done(NamedTuple):
    """A change of a knob: the value before, who made it, and until when it went on [s]."""

    knob: Knob
    value: int
    by: str
    until_s: float

    def goes_on(self, knob: Knob, change: KnobChange, by: str) -> bool:
        """Tell whether a change is part of this one: a slider that is dragged makes many."""
        ours = self.knob is knob and self.by == change.by == by
        return ours and change.when_s - self.until_s < _GESTURE_S


_remotes: weakref.WeakKeyDictionary[RunView, RunController] = weakref.WeakKeyDictionary()
_remotes_lock = threading.RLock()


def _end_all(unwatch: list[Callable[[], None]]) -> None:
    for end in unwatch:
        end()


def _recorder(remote: RunController, knob: Knob) -> Callable[[KnobChange], None]:
    reference = weakref.ref(remote)

    def record(change: KnobChange) -> None:
        one = reference()
        if one is not None:
            one._record(knob, change)

    return record


# -- Exports: each in a thread of its own, one at a time of each run or pipeline -------------------
_exporting: weakref.WeakSet[Exportable] = weakref.WeakSet()
_exporting_lock = threading.Lock()


def export_later(one: Exportable, message: Mapping[Any, Any], number: int, later: Later) -> None:
    """Export a run or a pipeline in another thread.

    Args:
        one: the run or pipeline.
        message: what a browser asks for: the path, and whether to overwrite.
        number: of the message.
        later: called in that thread with what became of it.

    Raises:
        ArgumentError: no path of a module.
        RunError: it is being exported already.
    """
    path, overwrite = _asked_export(message)
    with _exporting_lock:
        if one in _exporting:
            raise RunError(_BUSY)
        _exporting.add(one)
    threading.Thread(
        target=lambda: later(_exported(one, number, path, overwrite=overwrite)),
        name="nbpipe-export",
        daemon=True,
    ).start()


def _asked_export(message: Mapping[Any, Any]) -> tuple[str, bool]:
    path, overwrite = _module_path(message.get("path")), message.get("overwrite", False)
    if not isinstance(overwrite, bool):
        raise ArgumentError(f"overwrite must be true or false, got {got(overwrite)}")
    return path, overwrite


def _module_path(path: object) -> str:
    """Check the path of a module that a browser sent."""
    if not isinstance(path, str):
        raise ArgumentError(f"path must be a text, got {got(path)}")
    if not path.isprintable() or len(path) > _LONGEST_PATH or not path.endswith(".py"):
        raise ArgumentError(
            "path must be that of a module, as 'loader.py': printable, at most "
            f"{_LONGEST_PATH} characters, with .py at its end; got {got(path)}"
        )
    return path


def _exported(one: Exportable, number: int, path: str, *, overwrite: bool) -> ExportedMessage:
    """Export a run or a pipeline, and say what became of it; takes some seconds."""
    answer: ExportedMessage = {"type": "exported", "id": number, "ok": False, "edited": False}
    answer |= {"path": "", "notes": [], "error": ""}
    try:
        written = one.export(path, overwrite=overwrite)
        answer["path"] = plain(str(written.path))[:_LONGEST_WRITTEN]
        answer["notes"] = [line(note) for note in written.notes[:_MOST_NOTES]]
        answer["ok"] = True
    except Exception as error:  # noqa: BLE001  whoever asked is answered
        answer["error"], answer["edited"] = refusal(error), isinstance(error, ModuleEditedError)
    finally:
        with _exporting_lock:
            _exporting.discard(one)
    return answer


def refusal(error: Exception) -> str:
    """Return the text of a refusal in full; of what is none, no more than where it came from."""
    if isinstance(error, NbpipeError | OSError):
        edited = isinstance(error, ModuleEditedError) and error.told("press Overwrite")
        text = plain(edited or str(error))
        more = f"\n... ({len(text) - _LONGEST_REFUSAL:,} more characters)"
        return text if len(text) <= _LONGEST_REFUSAL else text[:_LONGEST_REFUSAL] + more
    code = traceback.extract_tb(error.__traceback__)[-1]  # its text may hold what is secret
    place = f"{Path(code.filename).name}, line {code.lineno}"
    return f"export failed by a mistake of nbpipe, a {type(error).__name__} in {place}"


def got(value: object) -> str:
    """Return a value that is refused as a message names it: bounded."""
    simple = value is None or isinstance(value, str | int | float)
    text = repr(value) if simple else type(value).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@final
class Views:
    """The views of one run that are open, each with a lease.

    Args:
        clock: gives the time [s].
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def note(self, message: Mapping[str, Any]) -> None:
        """Called when a view was opened or closed, or that some are still there.

        Raises:
            ArgumentError: not the name of a view.
        """
        named = [message.get("view")] if message.get("op") == "view" else message.get("views")
        if not isinstance(named, list):
            raise ArgumentError(f"views must be a list, got {got(named)}")
        for name in named[:_MOST_VIEWS]:
            if not isinstance(name, str) or len(name) > _LONGEST:
                raise ArgumentError(f"a view must be a short name, got {got(name)}")
            self._note(name, here=message.get("open", True) is True)

    def _note(self, name: str, *, here: bool) -> None:
        with self._lock:
            if not here:
                self._until_s.pop(name, None)
            elif name in self._until_s or len(self._until_s) < _MOST_VIEWS:
                self._until_s[name] = self._clock() + LEASE_S

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._until_s.clear()

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are open."""
        now_s = self._clock()
        with self._lock:
            for name in [name for name, until_s in self._until_s.items() if until_s < now_s]:
                del self._until_s[name]
            return tuple(self._until_s)

    def __bool__(self) -> bool:
        """Tell whether there is one."""
        return bool(self.names)
