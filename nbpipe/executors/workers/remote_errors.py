"""Exceptions of another process: sent as bytes, raised here with tracebacks of their own."""

from __future__ import annotations

import ast
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, GeneratorType, TracebackType
from typing import Any, NamedTuple

from ...errors import RemoteError, add_note, set_attribute
from .pickling import HEAP_TYPE, Pickler, dumps, set_plain_state

_MOST_ERRORS = 32  # of one chain
_LONGEST = 10_000  # characters of a message or a note
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
        error: with its causes, contexts and notes; up to 32 exceptions are kept.
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
    """An exception with all that led to it, as plain values."""

    errors: tuple[_Single, ...]

    def unpack(self) -> BaseException:
        """Build the exception again: its type, arguments, attributes, notes, chain, traceback.

        One that cannot be built here becomes a `RemoteError` with its type and message.
        """
        made = [single.build() for single in self.errors]
        for single, error in zip(self.errors, made, strict=True):
            cause = None if single.cause is None else made[single.cause]
            context = None if single.context is None else made[single.context]
            set_attribute(error, "__cause__", cause)
            set_attribute(error, "__context__", context)
            set_attribute(error, "__suppress_context__", single.suppresses_context)
        return made[0]


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
    """

    name: str
    message: str
    data: bytes | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()
    frames: tuple[_Frame, ...] = ()
    cause: int | None = None
    context: int | None = None
    suppresses_context: bool = False

    def build(self) -> BaseException:
        error = self._loaded()
        set_attribute(error, "__traceback__", _traceback_of(self.frames))
        if not hasattr(error, "__notes__"):
            for note in self.notes:
                add_note(error, note)
        return error

    def _loaded(self) -> BaseException:
        if self.data is None:
            return self._instead(self.problem)
        try:
            error = pickle.loads(self.data)  # noqa: S301  of a process that we started
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
    data, problem = _data(error)
    return _Single(
        name=_name(type(error)),
        message=_message(error),
        data=data,
        problem=problem,
        notes=tuple(str(note)[:_LONGEST] for note in getattr(error, "__notes__", ())),
        frames=tuple(_frames_of(error.__traceback__)),
        cause=_number(error.__cause__, chain, numbers),
        context=_number(error.__context__, chain, numbers),
        suppresses_context=error.__suppress_context__,
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
    try:
        return dumps(error, pickler=_ErrorPickler), ""
    except BaseException as problem:
        return None, _line(problem)


class _ErrorPickler(Pickler):
    """Takes exceptions apart without what their `__init__` wants, or others have registered."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled."""
        if isinstance(obj, BaseException):
            if not _is_plain(type(obj)):
                return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            state = object.__getstate__(obj)
            return _blank, (type(obj), obj.args), state, None, None, set_plain_state
        return super().reducer_override(obj)


def _is_plain(kind: Any) -> bool:
    """Tell exceptions of a class of Python's that are their arguments and attributes.

    Pickle would call their `__init__` with `args`, which are what it gave to its base class, and
    would leave out what stands in slots.
    """
    base = kind
    while base.__flags__ & HEAP_TYPE:
        base = base.__base__
    return (
        base is not kind
        and base.__basicsize__ == Exception.__basicsize__
        and not any(isinstance(getattr(kind, name, None), FunctionType) for name in _HOOKS)
    )


def _blank(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    return kind.__new__(kind, *args)


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


# -- Tracebacks: as plain values, and as tracebacks again ------------------------------------------
class _Frame(NamedTuple):
    """One line of a traceback: its file and number, and the name and first line of the function."""

    filename: str
    line: int
    name: str
    first_line: int


def _frames_of(error: TracebackType | None) -> list[_Frame]:
    """Return the frames of a traceback, outermost first."""
    return [
        _Frame(code.co_filename, line, code.co_name, code.co_firstlineno)
        for frame, line in traceback.walk_tb(error)
        for code in [frame.f_code]
    ]


def _traceback_of(frames: Sequence[_Frame]) -> TracebackType | None:
    """Build a traceback that looks like the one the frames were taken from.

    Its frames hold no variables, and unlike others no caller: each belongs to a generator that
    waits in that line, of a function of the same name, file and first line.
    """
    built: TracebackType | None = None
    for frame in reversed(frames):
        generator = _waiting(frame)
        assert generator.gi_frame is not None  # only one that has ended has none
        built = TracebackType(built, generator.gi_frame, generator.gi_frame.f_lasti, frame.line)
    return built


def _waiting(frame: _Frame) -> GeneratorType[None, None, None]:
    """Return a generator that waits in the line of a frame; which part of the line, is not told."""
    module = ast.parse("def nothing(): yield")
    for node in ast.walk(module):
        if isinstance(node, ast.stmt | ast.expr):
            is_head = isinstance(node, ast.FunctionDef)
            node.lineno = node.end_lineno = frame.first_line if is_head else frame.line
            node.col_offset = node.end_col_offset = -1
    whole = compile(module, frame.filename, "exec")
    code = next(one for one in whole.co_consts if isinstance(one, CodeType))
    named = code.replace(co_name=frame.name, co_qualname=frame.name)
    generator: GeneratorType[None, None, None] = FunctionType(named, {})()
    next(generator)
    return generator
