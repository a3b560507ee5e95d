"""Question: what a fresh process was asked, the way back, and words for what user code raises."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, final

from ..errors import StageError
from ..text import shortened
from .portrait import portrait
from .secrets import scrubbed

_LONGEST = 500  # characters of an error's text
_READ = 100_000  # of them that are read at all


@final
class Question:
    """A request, and the pipe that its answer takes.

    Attributes:
        request: what was asked.
        cwd: the notebook's working folder.
        folder: folder of the module's file.
    """

    def __init__(self, given: dict[str, Any], answers: int) -> None:
        self.request: dict[str, Any] = given["request"]
        self.cwd: str = given["cwd"]
        self.folder: str = given["folder"]
        self._answers = answers
        self._pid = os.getpid()

    def say(self, line: object) -> None:
        """Answer one JSON value; a process that user code forked off is none of ours."""
        if os.getpid() != self._pid:
            os._exit(0)
        data = memoryview(json.dumps(line).encode("ascii") + b"\n")
        while data:
            data = data[os.write(self._answers, data) :]

    def step(self, name: str) -> None:
        """Announce what comes next: its time begins."""
        self.say({"step": name})

    def close_after_fork(self) -> None:
        """Let go of the way back in a process that user code forks off."""
        os.close(self._answers)


def portrayed(value: object) -> Any:
    """Give the portrait of a value as it comes out of JSON."""
    return json.loads(json.dumps(portrait(value)))


def error_words(error: BaseException) -> str:
    """Give an exception as its traceback's last line does, in one line."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"no module named {error.name!r} can be found from a fresh process"
    if isinstance(error, StageError) and error.__cause__ is not None:
        return f"stage {error.stage!r} raised {error_words(error.__cause__)}"
    line = traceback.format_exception_only(error)[-1]
    text = shortened(scrubbed(line[:_READ]), _LONGEST)  # half a secret is not known as one
    return text or type(error).__name__


def error_line(error: BaseException, file: str) -> int | None:
    """Give the line of `file` that an exception came from: the innermost one."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    found = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def text_of_line(file: str, line: int | None) -> str:
    """Give a line of a file, without its indent."""
    lines = Path(file).read_text(encoding="utf-8").split("\n")
    return lines[line - 1].strip() if line is not None and 0 < line <= len(lines) else ""
