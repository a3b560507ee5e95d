"""The messages between a run and a browser: each is checked, and answered.

`{"op": "set", "id": 7, "stage": "decode", "knob": "concurrency", "value": 8}` is answered by
`{"type": "ack", "id": 7, "ok": true, "value": 8}`, where `value` is the value in force. Handlers
may run in any thread and do not block: `{"op": "export", "id": 8, "path": "loader.py", "overwrite":
false}` is acknowledged at once, and its result follows, as `{"type": "exported", "id": 8, "ok":
true, "path": "/home/..", ...}`.
"""

from __future__ import annotations

import math
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, TypeVar, final

from ..base.format import plain
from ..base.knobs import Knob, KnobChange
from ..engine.stats import StageStats, Status
from ..errors import ArgumentError, ModuleEditedError, NbpipeError, RunClosedError, RunError
from .snapshot import (
    LINE,
    NAME,
    Count,
    Frame,
    Integer,
    KnobTarget,
    Limits,
    Line,
    Snapshot,
    frame_of,
    in_frame,
    label,
    line,
)
from .watch import Exportable, RunView

LEASE_S = 180.0  # a view that sends nothing for so long is gone: a reload does not close it [s]
_MOST_VIEWS = 64
_LONGEST = 64  # characters of a view's name
_GESTURE_S = 1.0  # turns of one knob that follow one another so soon are one change [s]
_UNDO_KEPT = 1000
_JUST_NOW_S = 0.02  # a snapshot published so lately is sent again [s]
_FRAMED_S = 0.9  # a frame may be so old where a run is shown several times a second [s]
_LONGEST_PATH = 1000  # characters of the path of a module, as it is asked for
_LONGEST_WRITTEN = 4096  # characters of a path that was written
_LONGEST_REFUSAL = 8000
_MOST_NOTES = 50
_GONE = "this run is closed; start another with pipe.start()"
_LOST = "this run is gone, nothing holds it any more; type: pipe.export({path!r})"
_BUSY = "this run is being exported already; wait until that is done"


# -- Messages to a browser -------------------------------------------------------------------------
class Ack(TypedDict):
    """Answer to a message; `value` is the value in force, where a knob was meant."""

    type: Literal["ack"]
    id: Count
    ok: bool
    value: Integer | None
    error: NotRequired[Line]


class ExportedMessage(TypedDict):
    """Result of an export: the file and notes, or why there is none, which may be long.

    With `edited`, the file holds what export did not write: it asks for `overwrite`.
    """

    type: Literal["exported"]
    id: Count
    ok: bool
    path: Annotated[str, Limits(0, _LONGEST_WRITTEN)]
    notes: Annotated[list[Line], Limits(0, _MOST_NOTES)]
    error: Annotated[str, Limits(0, _LONGEST_REFUSAL + 100)]
    edited: bool


Later = Callable[[ExportedMessage], object]


def refused(number: int, error: Exception) -> Ack:
    """Return the answer to a message that cannot be followed."""
    words = plain(str(error))[:LINE]
    return {"type": "ack", "id": number, "ok": False, "value": None, "error": words}


# -- Messages from a browser: each handler stands beside the shape of its message ------------------
class _Missing:
    """Stands for a field that a message does not have."""


_MISSING = _Missing()
_MOST_ID = 1 << 53
Check = Callable[[object, str], Any]  # returns the value of a field, or raises ArgumentError
_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class _Op(NamedTuple):
    """What a browser may ask for.

    Attributes:
        handler: called with the receiver and the fields of the message.
        fields: the shape of the message: what checks each field, by name.
        ack: whether a message that was followed is acknowledged.
    """

    handler: Callable[..., Any]
    fields: Mapping[str, Check]
    ack: bool


@final
class Ops:
    """The operations that one kind of receiver offers to browsers, by name."""

    def __init__(self) -> None:
        self._ops: dict[str, _Op] = {}

    def op(self, *names: str, ack: bool = True, **fields: Check) -> Callable[[_Handler], _Handler]:
        """Return a decorator that adds a handler.

        Args:
            names: of its operations.
            ack: whether it is acknowledged, with the value that the handler returns.
            fields: what checks each field of the message; the handler gets them by name.
        """

        def add(handler: _Handler) -> _Handler:
            self._ops.update(dict.fromkeys(names, _Op(handler, fields, ack)))
            return handler

        return add

    def answer(self, receiver: object, message: object) -> Ack | None:
        """Check a message and do what it asks for; raise no error of nbpipe.

        Returns:
            The acknowledgement, or a refusal; None where the handler answers itself.
        """
        number = number_of(message)
        try:
            op, fields = self._checked(message)
            value = op.handler(receiver, **fields)
        except NbpipeError as error:
            return refused(number, error)
        return {"type": "ack", "id": number, "ok": True, "value": value} if op.ack else None

    def _checked(self, message: object) -> tuple[_Op, dict[str, Any]]:
        if not isinstance(message, Mapping):
            raise ArgumentError(f"a message must be an object, got {got(message)}")
        name = message.get("op", _MISSING)
        op = self._ops.get(name) if isinstance(name, str) else None
        if op is None:
            raise ArgumentError(f"op must be one of {', '.join(self._ops)}, got {got(name)}")
        return op, {
            field: check(message.get(field, _MISSING), field) for field, check in op.fields.items()
        }


def got(value: object) -> str:
    """Return a refused value as a message names it: bounded."""
    if value is _MISSING:
        return "nothing"
    simple = value is None or isinstance(value, str | int | float)
    text = repr(value) if simple else type(value).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def number_of(message: object) -> int:
    """Return the number that the answer to a message bears; 0 where it has none."""
    number = message.get("id") if isinstance(message, Mapping) else None
    return number if type(number) is int and 0 <= number < _MOST_ID else 0


def anything(value: object, _: str) -> object:
    """Return a field that its handler checks; None where it is missing."""
    return None if value is _MISSING else value


def message_id(value: object, _: str) -> int:
    """Return the number of a message, for an answer that follows later."""
    return number_of({"id": value})


def optional(check: Check, default: object) -> Check:
    """Return a check of a field that may be missing."""
    return lambda value, name: default if value is _MISSING else check(value, name)


def integer(value: object, name: str) -> int:
    """Return an integer."""
    if type(value) is not int:
        raise ArgumentError(f"{name} must be an integer, got {got(value)}")
    return value


def boolean(value: object, name: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} must be true or false, got {got(value)}")
    return value


def text(value: object, name: str) -> str:
    """Return a name of a stage or knob."""
    return _text(value, name, NAME)


def view_name(value: object, name: str) -> str:
    """Return the name of a view."""
    return _text(value, name, _LONGEST)


def view_names(value: object, name: str) -> list[str]:
    """Return the names of views; those that are too many are left out."""
    if not isinstance(value, list):
        raise ArgumentError(f"{name} must be a list, got {got(value)}")
    return [view_name(one, f"one of {name}") for one in value[:_MOST_VIEWS]]


def _text(value: object, name: str, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        rule = f"{name} must be a text of at most {most} characters"
        raise ArgumentError(f"{rule}, got {got(value)}")
    return value


def _module_path(value: object, name: str) -> str:
    """Return the path of a module."""
    if not isinstance(value, str):
        raise ArgumentError(f"{name} must be a text, got {got(value)}")
    if not value.isprintable() or len(value) > _LONGEST_PATH or not value.endswith(".py"):
        raise ArgumentError(
            f"{name} must be that of a module, for example 'loader.py': printable, at most "
            f"{_LONGEST_PATH} characters, with .py at its end; got {got(value)}"
        )
    return value


EXPORT: Mapping[str, Any] = {  # checks, by field
    "id": message_id,
    "path": _module_path,
    "overwrite": optional(boolean, default=False),
}


# -- The run ---------------------------------------------------------------------------------------
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
        found = self._knobs.get((stage, knob))
        if found is None:
            raise ArgumentError(f"no knob {got(knob)} of a stage {got(stage)} in this run")
        self._open_run()
        return found.set(value, by=self._by)

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
        """Set the knob that was changed last back to the value before.

        Raises:
            ArgumentError: nothing was changed.
        """
        self._open_run()
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
        """Return whether a change is part of this one: a slider that is dragged makes many."""
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


# -- Exports: each in a thread of its own, one at a time of each run or pipeline -------------------
_exporting: weakref.WeakSet[Exportable] = weakref.WeakSet()
_exporting_lock = threading.Lock()


def export_later(
    one: Exportable,
    later: Later,
    *,
    id: int,  # noqa: A002  as the message calls it
    path: str,
    overwrite: bool,
) -> None:
    """Export a run or a pipeline in another thread.

    Args:
        one: the run or pipeline.
        later: called in that thread with the result.
        id: number of the message that asks for it.
        path: of the module.
        overwrite: whether a file may be replaced that holds what export did not write.

    Raises:
        RunError: it is being exported already.
    """
    with _exporting_lock:
        if one in _exporting:
            raise RunError(_BUSY)
        _exporting.add(one)
    threading.Thread(
        target=lambda: later(_exported(one, id, path, overwrite=overwrite)),
        name="nbpipe-export",
        daemon=True,
    ).start()


def _exported(one: Exportable, number: int, path: str, *, overwrite: bool) -> ExportedMessage:
    """Export a run or a pipeline, and return the result; takes some seconds."""
    answer: ExportedMessage = {
        "type": "exported",
        "id": number,
        "ok": False,
        "path": "",
        "notes": [],
        "error": "",
        "edited": False,
    }
    try:
        written = one.export(path, overwrite=overwrite)
        answer["path"] = plain(str(written.path))[:_LONGEST_WRITTEN]
        answer["notes"] = [line(note) for note in written.notes[:_MOST_NOTES]]
        answer["ok"] = True
    except Exception as error:  # noqa: BLE001  the browser waits for an answer
        answer["error"], answer["edited"] = refusal(error), isinstance(error, ModuleEditedError)
    finally:
        with _exporting_lock:
            _exporting.discard(one)
    return answer


def refusal(error: Exception) -> str:
    """Return the text of a refusal in full; of any other error only where it was raised."""
    if isinstance(error, NbpipeError | OSError):
        edited = isinstance(error, ModuleEditedError) and error.told("press Overwrite")
        text = plain(edited or str(error))
        more = f"\n... ({len(text) - _LONGEST_REFUSAL:,} more characters)"
        return text if len(text) <= _LONGEST_REFUSAL else text[:_LONGEST_REFUSAL] + more
    code = traceback.extract_tb(error.__traceback__)[-1]  # its text may hold a secret
    place = f"{Path(code.filename).name}, line {code.lineno}"
    return f"export failed by a mistake of nbpipe, a {type(error).__name__} in {place}"


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

    def open(self, name: str) -> None:
        """Note that a view is open, unless there are too many."""
        with self._lock:
            if name in self._until_s or len(self._until_s) < _MOST_VIEWS:
                self._until_s[name] = self._clock() + LEASE_S

    def renew(self, names: Iterable[str]) -> None:
        """Note that views are still open."""
        for name in names:
            self.open(name)

    def close(self, name: str) -> None:
        """Note that a view was closed."""
        with self._lock:
            self._until_s.pop(name, None)

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
        """Return whether a view is open."""
        return bool(self.names)
