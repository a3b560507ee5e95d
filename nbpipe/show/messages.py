"""The messages between a run and a browser: each is checked, and answered.

`{"op": "set", "id": 7, "stage": "decode", "knob": "concurrency", "value": 8}` is answered by
`{"type": "ack", "id": 7, "ok": true, "value": 8}`, where `value` is the value in force. Handlers
may run in any thread and do not block: `{"op": "export", "id": 8, "path": "loader.py", "overwrite":
false}` is acknowledged at once, and its result follows, as `{"type": "exported", "id": 8, "ok":
true, "path": "/home/..", ...}`.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, TypeVar, final

from ..base.format import plain
from ..errors import ArgumentError, ModuleEditedError, NbpipeError, RunError
from .snapshot import LINE, NAME, Count, Integer, Limits, Line, line
from .watch import Exportable

LEASE_S = 180.0  # a view that sends nothing for so long is gone: a reload does not close it [s]
_MOST_VIEWS = 64
_LONGEST = 64  # characters of a view's name
_LONGEST_PATH = 1000  # characters of the path of a module, as it is asked for
_LONGEST_WRITTEN = 4096  # characters of a path that was written
_LONGEST_REFUSAL = 8000
_MOST_NOTES = 50
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
