"""Frames of another process: a traceback as plain values, and as a traceback again."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Iterator, Sequence
from itertools import islice
from types import CodeType, FrameType, FunctionType, GeneratorType, TracebackType
from typing import NamedTuple

_MOST = 1024  # frames; of a longer traceback the ends are kept
_LINES = 10**6  # a source longer than this is not imitated
_LONG_FORM = 14  # kinds of entries in a table of locations
_NO_COLUMNS = 13
_MOST_UNITS = 8  # instructions of one entry
_DIGIT = 0x3F


class Frame(NamedTuple):
    """One line of a traceback.

    Attributes:
        filename: of the code.
        line: number of the line.
        name: of the function.
        qualname: of the function, with its class.
        first_line: number of the line where the function begins.
        span: last line, first and last column of what was executed; None where not known.
        text: the line, as far as this process knows the source.
    """

    filename: str
    line: int
    name: str
    qualname: str
    first_line: int
    span: tuple[int, int, int] | None
    text: str


def frames_of(traceback: TracebackType | None) -> tuple[list[Frame], int]:
    """Give the frames of a traceback, outermost first, and how many were left out."""
    steps: list[TracebackType] = []
    while traceback is not None:
        steps.append(traceback)
        traceback = traceback.tb_next
    left_out = max(0, len(steps) - _MOST)
    if left_out:
        steps = steps[: _MOST // 2] + steps[-_MOST // 2 :]
    return [_frame(step) for step in steps], left_out


def _frame(step: TracebackType) -> Frame:
    code, line = step.tb_frame.f_code, step.tb_lineno or 0
    text = linecache.getline(code.co_filename, line, step.tb_frame.f_globals)
    name, qualname, first_line = code.co_name, code.co_qualname, code.co_firstlineno
    span = _span(code, step.tb_lasti, line)
    return Frame(code.co_filename, line, name, qualname, first_line, span, text)


def _span(code: CodeType, instruction: int, line: int) -> tuple[int, int, int] | None:
    if instruction < 0:
        return None
    places = islice(code.co_positions(), instruction // 2, None)
    start, end, column, end_column = next(places, (None, None, None, None))
    if start != line or end is None or column is None or end_column is None or end < line:
        return None
    return end, column, end_column


def traceback_of(frames: Sequence[Frame]) -> TracebackType | None:
    """Build a traceback that looks like the one the frames were taken from.

    Its frames hold no variables: each belongs to a function of the same name, file and line
    that does nothing.
    """
    traceback: TracebackType | None = None
    for frame in reversed(frames):
        _know_source(frame)
        code = _code(frame._replace(text=""))
        traceback = TracebackType(traceback, _frame_of(code), 0, frame.line)
    return traceback


@functools.lru_cache(512)
def _code(frame: Frame) -> CodeType:
    return _nothing.__code__.replace(
        co_filename=frame.filename,
        co_name=frame.name,
        co_qualname=frame.qualname,
        co_firstlineno=frame.first_line,
        co_linetable=_location_table(frame, len(_nothing.__code__.co_code) // 2),
    )


def _nothing() -> Iterator[None]:
    yield


def _frame_of(code: CodeType) -> FrameType:
    """Give a frame of a generator that was not begun: unlike others it holds no caller."""
    generator: GeneratorType[None, None, None] = FunctionType(code, {})()
    frame = generator.gi_frame
    assert frame is not None  # only one that has ended has none
    return frame


def _location_table(frame: Frame, units: int) -> bytes:
    """Say that each of `units` instructions stands where the frame's did.

    Source: CPython, InternalDocs/code_objects.md, "Format of the locations table".
    """
    rest = b""
    if frame.span is not None:
        end, column, end_column = frame.span
        rest = _varint(end - frame.line) + _varint(column + 1) + _varint(end_column + 1)
    kind = _NO_COLUMNS if frame.span is None else _LONG_FORM
    table, lines = b"", frame.line - frame.first_line
    for done in range(0, units, _MOST_UNITS):
        count = min(_MOST_UNITS, units - done)
        table += bytes([0x80 | kind << 3 | count - 1]) + _signed_varint(lines) + rest
        lines = 0
    return table


def _varint(value: int) -> bytes:
    """Write a number in digits of six bits, the lowest first."""
    digits = bytearray()
    while value > _DIGIT:
        digits.append(value & _DIGIT | _DIGIT + 1)
        value >>= 6
    return bytes([*digits, value])


def _signed_varint(value: int) -> bytes:
    return _varint(-value << 1 | 1 if value < 0 else value << 1)


def _know_source(frame: Frame) -> None:
    """Remember a line of a file that this machine does not have."""
    if not frame.text or not 0 < frame.line < _LINES:
        return
    if linecache.getline(frame.filename, frame.line):
        return
    known = linecache.getlines(frame.filename)
    lines = known + ["\n"] * (frame.line - len(known))
    lines[frame.line - 1] = frame.text
    linecache.cache[frame.filename] = (0, None, lines, frame.filename)
