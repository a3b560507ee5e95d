"""Frames of another process: a traceback as plain values, and as a traceback again."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, FunctionType, GeneratorType, TracebackType
from typing import NamedTuple

_MOST = 1024  # frames; of a longer traceback the ends are kept
_LINES = 10**6  # a source longer than this is not imitated


class Frame(NamedTuple):
    """One line of a traceback.

    Attributes:
        filename: of the code.
        line: number of the line.
        name: of the function.
        qualname: of the function, with its class.
        first_line: number of the line where the function begins.
        text: the line, as far as this process knows the source.
    """

    filename: str
    line: int
    name: str
    qualname: str
    first_line: int
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
    return Frame(code.co_filename, line, code.co_name, code.co_qualname, code.co_firstlineno, text)


def traceback_of(frames: Sequence[Frame]) -> TracebackType | None:
    """Build a traceback that looks like the one the frames were taken from.

    Its frames hold no variables: each belongs to a function of the same name, file and line
    that does nothing.
    """
    traceback: TracebackType | None = None
    for frame in reversed(frames):
        _know_source(frame)
        # Without an instruction nothing is underlined: the columns would be those of our code.
        traceback = TracebackType(traceback, _frame_of(_code_of(frame)), -1, frame.line)
    return traceback


@functools.lru_cache(512)
def _code(filename: str, name: str, qualname: str, first_line: int) -> CodeType:
    return _here.__code__.replace(
        co_filename=filename, co_name=name, co_qualname=qualname, co_firstlineno=first_line
    )


def _code_of(frame: Frame) -> CodeType:
    return _code(frame.filename, frame.name, frame.qualname, max(1, frame.first_line))


def _here() -> Iterator[None]:
    yield


def _frame_of(code: CodeType) -> FrameType:
    """Give a frame of a generator that was not begun: unlike others it holds no caller."""
    generator: GeneratorType[None, None, None] = FunctionType(code, {})()
    frame = generator.gi_frame
    assert frame is not None  # only one that has ended has none
    return frame


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
