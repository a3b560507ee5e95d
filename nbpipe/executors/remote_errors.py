"""Exceptions of another process: sent as bytes, raised here with tracebacks of their own."""

from __future__ import annotations

import ast
import copyreg
import functools
import linecache
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, GeneratorType, TracebackType
from typing import Any, NamedTuple

from ..errors import RemoteError
from .pickling import HEAP_TYPE, Pickler, TooLargeError, dumps

_MOST_ERRORS = 32  # of one chain
_MOST_FRAMES = 1024  # frames; of a longer traceback the ends are kept
_MOST_NOTES = 32
_MOST_BYTES = 1 << 20  # of one exception, pickled
_LONGEST = 10_000  # characters of a message or a note
_MOST_LINES = 10**6  # a source longer than this is not imitated
_HOOKS = (  # a class that has one of these says itself how it is pickled
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__new__",
    "__getnewargs__",
    "__getnewargs_ex__",
)


# -- Packed: what is sent --------------------------------------------------------------------------
# Each exception of a chain is pickled by itself, so one that cannot be does not cost the others.
# What arrives looks as if it had been raised here: its traceback names the lines of the worker.
def pack_error(error: BaseException) -> PackedError:
    """Make an exception ready for another process; this never raises, whatever the exception.

    Args:
        error: with its causes, contexts, groups and notes; up to 32 exceptions are kept.
    """
    numbers = {id(error): 0}
    chain = [error]
    singles = []
    for each in chain:  # it grows meanwhile
        try:
            singles.append(_pack(each, chain, numbers))
        except BaseException as problem:  # an exception may do anything when it is looked at
            singles.append(_Single(type(each).__qualname__, "", problem=_line(problem)))
    return PackedError(tuple(singles))


@dataclass(frozen=True, slots=True)
class PackedError:
    """An exception with all that led to it, as plain values of bounded size."""

    errors: tuple[_Single, ...]

    def unpack(self) -> BaseException:
        """Build the exception again: its type, arguments, attributes, notes, chain, traceback.

        One that cannot be built here becomes a `RemoteError` with its type and message.
        """
        made: dict[int, BaseException] = {}
        error = self._build(0, made)
        for number in tuple(made):
            self._link(number, made)
        return error

    def _build(self, number: int, made: dict[int, BaseException]) -> BaseException:
        """Build an exception, and those in it where it is a group."""
        single = self.errors[number]
        members = [made.get(each) or self._build(each, made) for each in single.members]
        made[number] = error = single.build(members)
        return error

    def _link(self, number: int, made: dict[int, BaseException]) -> None:
        single, error = self.errors[number], made[number]
        for each in (single.cause, single.context):
            if each is not None and each not in made:
                self._build(each, made)
                self._link(each, made)
        error.__cause__ = None if single.cause is None else made[single.cause]
        error.__context__ = None if single.context is None else made[single.context]
        error.__suppress_context__ = single.suppresses_context


@dataclass(frozen=True, slots=True)
class _Single:
    """One exception of a chain; others are meant by their numbers.

    Attributes:
        name: of its type.
        message: its text.
        data: the exception pickled, without its traceback; None where it cannot be.
        problem: why it cannot be.
        notes: what was added to it.
        frames: its traceback.
        left_out: frames that are missing in the middle.
        members: of a group.
    """

    name: str
    message: str
    data: bytes | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()
    frames: tuple[_Frame, ...] = ()
    left_out: int = 0
    cause: int | None = None
    context: int | None = None
    suppresses_context: bool = False
    members: tuple[int, ...] = ()

    def build(self, members: Sequence[BaseException]) -> BaseException:
        error = self._loaded(members)
        error.__traceback__ = _traceback_of(self.frames)
        if not hasattr(error, "__notes__"):
            for note in self.notes:
                error.add_note(note)
        if self.left_out:
            error.add_note(f"{self.left_out} frames in the middle of its traceback were left out")
        return error

    def _loaded(self, members: Sequence[BaseException]) -> BaseException:
        if self.data is None:
            return self._instead(self.problem)
        try:
            error = pickle.loads(self.data)  # noqa: S301  of a process that we started
            if self.members:
                kind, message, state = error
                error = BaseExceptionGroup.__new__(kind, message, members)
                _set_state(error, state)
        except Exception as problem:
            return self._instead(_line(problem))
        if not isinstance(error, BaseException):
            return self._instead(f"it arrived as {type(error).__name__}")
        return error

    def _instead(self, problem: str) -> RemoteError:
        error = RemoteError(f"{self.name}: {self.message}" if self.message else self.name)
        for note in (*self.notes, f"the {self.name} itself could not be sent: {problem}"):
            error.add_note(note)
        return error


def _pack(error: BaseException, chain: list[BaseException], numbers: dict[int, int]) -> _Single:
    members: tuple[int, ...] = ()
    if isinstance(error, BaseExceptionGroup):
        found = [_number(each, chain, numbers) for each in error.exceptions]
        members = tuple(number for number in found if number is not None)
    frames, left_out = _frames_of(error.__traceback__)
    data, problem = _data(error)
    return _Single(
        name=_name(type(error)),
        message=_message(error),
        data=data,
        problem=problem,
        notes=_notes(error),
        frames=tuple(frames),
        left_out=left_out,
        cause=_number(error.__cause__, chain, numbers),
        context=_number(error.__context__, chain, numbers),
        suppresses_context=error.__suppress_context__,
        members=members,
    )


def _number(
    error: BaseException | None, chain: list[BaseException], numbers: dict[int, int]
) -> int | None:
    """Return the number of an exception in its chain, and one to a new exception."""
    if error is None:
        return None
    if id(error) not in numbers:
        if len(chain) == _MOST_ERRORS:
            return None
        numbers[id(error)] = len(chain)
        chain.append(error)
    return numbers[id(error)]


def _data(error: BaseException) -> tuple[bytes | None, str]:
    """Pickle an exception, or tell why it cannot be."""
    value: object = error
    if isinstance(error, BaseExceptionGroup):
        value = type(error), error.message, object.__getstate__(error)
    try:
        return dumps(value, _MOST_BYTES, _ErrorPickler), ""
    except TooLargeError:
        return None, f"it is larger than {_MOST_BYTES >> 20} MiB"
    except BaseException as problem:
        return None, _line(problem)


class _ErrorPickler(Pickler):
    """Takes exceptions apart without what their `__init__` wants."""

    def reducer_override(self, obj: Any) -> Any:
        """Tell how an object is pickled."""
        if isinstance(obj, BaseException) and _is_plain(type(obj)):
            state = object.__getstate__(obj)
            return _blank, (type(obj), obj.args), state, None, None, _set_state
        if isinstance(obj, BaseException) and _is_taken_over(type(obj)):
            return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def _is_plain(kind: Any) -> bool:
    """Tell exceptions that are their arguments and attributes, and have an `__init__` of Python.

    Pickle would call that with `args`, which are what it gave to its base class.
    """
    base = kind
    while base.__flags__ & HEAP_TYPE:
        base = base.__base__
    return (
        isinstance(kind.__init__, FunctionType)
        and base.__basicsize__ == Exception.__basicsize__
        and not any(isinstance(getattr(kind, name, None), FunctionType) for name in _HOOKS)
        and (kind not in copyreg.dispatch_table or _is_taken_over(kind))
    )


def _is_taken_over(kind: type) -> bool:
    """Tell what tblib, which Dask loads, has registered: it follows causes and tracebacks, too."""
    reducer = copyreg.dispatch_table.get(kind)
    while isinstance(reducer, functools.partial):
        reducer = reducer.func
    return str(getattr(reducer, "__module__", "")).startswith("tblib")


def _blank(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    return kind.__new__(kind, *args)


def _set_state(error: BaseException, state: Any) -> None:
    """Set attributes, without asking the class; those of slots stand in a second dict."""
    plain, slots = state if isinstance(state, tuple) else (state, None)
    error.__dict__.update(plain or {})
    for name, value in (slots or {}).items():
        object.__setattr__(error, name, value)


# -- Text ------------------------------------------------------------------------------------------
def _name(kind: type) -> str:
    plain = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST]
    except BaseException as problem:
        return f"its text cannot be shown ({type(problem).__name__})"


def _line(error: BaseException) -> str:
    message = _message(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _notes(error: BaseException) -> tuple[str, ...]:
    notes = getattr(error, "__notes__", ())
    if not isinstance(notes, list | tuple):
        return ()
    return tuple(note[:_LONGEST] for note in notes[:_MOST_NOTES] if isinstance(note, str))


# -- Tracebacks: as plain values, and as tracebacks again ------------------------------------------
class _Frame(NamedTuple):
    """One line of a traceback.

    Attributes:
        filename: of the code.
        line: number of the line.
        name: of the function.
        span: last line, first and last column of what was executed; None where not known.
        text: the line, as far as this process knows the source.
    """

    filename: str
    line: int
    name: str
    span: tuple[int, int, int] | None
    text: str


def _frames_of(error: TracebackType | None) -> tuple[list[_Frame], int]:
    """Return the frames of a traceback, outermost first, and how many were left out."""
    steps = list(traceback.extract_tb(error))
    left_out = max(0, len(steps) - _MOST_FRAMES)
    if left_out:
        steps = steps[: _MOST_FRAMES // 2] + steps[-_MOST_FRAMES // 2 :]
    return [_frame_from(step) for step in steps], left_out


def _frame_from(step: traceback.FrameSummary) -> _Frame:
    line, end, column, last = step.lineno or 0, step.end_lineno, step.colno, step.end_colno
    text = linecache.getline(step.filename, line)
    if end is None or column is None or last is None or (end, last) < (line, column):
        return _Frame(step.filename, line, step.name, None, text)
    return _Frame(step.filename, line, step.name, (end, column, last), text)


def _traceback_of(frames: Sequence[_Frame]) -> TracebackType | None:
    """Build a traceback that looks like the one the frames were taken from.

    Its frames hold no variables: each belongs to a function of the same name, file and line
    that does nothing.
    """
    built: TracebackType | None = None
    for frame in reversed(frames):
        _know_source(frame)
        code, instruction = _code(frame._replace(text=""))
        built = TracebackType(built, _frame_of(code), instruction, frame.line)
    return built


@functools.lru_cache(512)
def _code(frame: _Frame) -> tuple[CodeType, int]:
    """Return code that does nothing, and the instruction that stands where the frame's did."""
    end, column, end_column = frame.span or (frame.line, -1, -1)  # -1: the compiler leaves it out
    module = ast.parse("def nothing(): yield")
    (function,) = module.body
    function.lineno = function.end_lineno = frame.line
    for node in ast.walk(function.body[0]):  # type: ignore[attr-defined]
        lines = {"lineno": frame.line, "end_lineno": end}
        vars(node).update(lines, col_offset=column, end_col_offset=end_column)
    constants = compile(module, "<nothing>", "exec").co_consts
    code = next(constant for constant in constants if isinstance(constant, CodeType))
    place = (frame.line, *(frame.span or (frame.line, None, None)))
    instruction = list(code.co_positions()).index(place)
    code = code.replace(co_filename=frame.filename, co_name=frame.name, co_qualname=frame.name)
    return code, 2 * instruction


def _frame_of(code: CodeType) -> FrameType:
    """Return a frame of a generator that was not begun: unlike others it holds no caller."""
    generator: GeneratorType[None, None, None] = FunctionType(code, {})()
    frame = generator.gi_frame
    assert frame is not None  # only one that has ended has none
    return frame


def _know_source(frame: _Frame) -> None:
    """Remember a line of a file that this machine does not have."""
    if not frame.text or not 0 < frame.line < _MOST_LINES:
        return
    if linecache.getline(frame.filename, frame.line):
        return
    known = linecache.getlines(frame.filename)
    lines = known + ["\n"] * (frame.line - len(known))
    lines[frame.line - 1] = frame.text
    linecache.cache[frame.filename] = (0, None, lines, frame.filename)
