"""Stack: the line of user code in which a call is, in a thread, a coroutine or a worker process."""

from __future__ import annotations

import contextlib
import dis
import faulthandler
import gc
import linecache
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, final

from ..base.format import shortened
from ..errors import is_own_file, is_users_file

# Ignored by a process that has not registered it, so it can end none.
_SIGNAL = getattr(signal, "SIGURG", None)
_FIRST_S, _QUIET_S = 0.5, 0.05  # a worker begins to write within so long, and never rests longer
_MOST_BYTES = 1 << 20
_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")  # of coroutines and generators
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")
_DEEPEST = 200  # frames
_ENTERS = ("__enter__", "acquire")  # functions of locks that are written in Python,
_LOCKS = ("threading.py", "synchronize.py")  # in these files of the standard library


class Place(NamedTuple):
    """A line of code.

    Attributes:
        file: its file, as its code names it.
        line: its number, from 1.
        function: the function that it is in.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Return function, file and line in words; a cell of a notebook has no file."""
        known = Path(self.file)
        where = f"{known.name} line" if known.is_file() else "line"
        text = shortened(linecache.getline(self.file, self.line).strip(), 80)
        place = f"in {shortened(self.function, 40)}, {shortened(where, 60)} {self.line}"
        return f"{place}: {text}" if text else place


def innermost(places: Iterable[Place]) -> Place | None:
    """Return the innermost line of user code, else of a library, that nbpipe has called.

    Args:
        places: lines, the innermost first.
    """
    called: list[Place] = []
    for place in places:
        if is_own_file(place.file):
            break
        called.append(place)
    users = (place for place in called if is_users_file(place.file))
    return next(users, called[0] if called else None)


def place_in_thread(ident: int | None) -> Place | None:
    """Return where a thread of this process is; None where that is not user code."""
    frames = _frames_of([ident])
    return innermost(_calls(frames[0])) if frames else None


def _frames_of(idents: Iterable[int | None]) -> list[FrameType]:
    """Return the frames that other threads of this process are in."""
    now = sys._current_frames()
    found = [now[one] for one in idents if one in now and one != threading.get_ident()]
    # It has the frame of this very call: that cycle would keep all frames, and so the iterator of a
    # loop that is in `next`, until garbage is collected.
    now.clear()
    return found


def _calls(frame: FrameType | None) -> Iterator[Place]:
    while frame is not None:
        yield _place(frame)
        frame = frame.f_back


def _place(frame: FrameType) -> Place:
    code = frame.f_code
    return Place(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name)


def lock_waits(idents: Iterable[int]) -> list[Place | None]:
    """Return the line in which each of these threads waits for a lock; None where it does not.

    A thread waits for one if it is inside of what enters a context: `with lock:`. Those that are
    not in Python code of the user's are left out.
    """
    frames = _frames_of(idents)
    return [_lock_wait(one) for one in frames if not is_own_file(one.f_code.co_filename)]


def _lock_wait(frame: FrameType) -> Place | None:
    code = frame.f_code
    ours = code.co_name in _ENTERS and Path(code.co_filename).name in _LOCKS
    waits = ours or _enters_context(code.co_code, frame.f_lasti)
    return innermost(_calls(frame)) if waits else None


def _enters_context(code: bytes, at: int) -> bool:
    """Return whether the instruction at a place calls `__enter__`."""
    if at < 0:
        return False
    name = dis.opname[code[at]]
    if name != "CALL":
        return name == "BEFORE_WITH"
    before = at - 2
    while before >= 0 and dis.opname[code[before]] in ("CACHE", "PUSH_NULL", "NOP"):
        before -= 2
    return before >= 0 and dis.opname[code[before]] == "LOAD_SPECIAL"


def place_in_coroutine(coroutine: object) -> Place | None:
    """Return where a coroutine waits; None where that is not user code."""
    places: list[Place] = []
    awaited: Any = coroutine
    while awaited is not None and len(places) < _DEEPEST:
        frame = _attribute(awaited, _FRAMES)
        if frame is None:  # a step of an async generator does not show the generator
            others = gc.get_referents(awaited)
            awaited = next((one for one in others if _attribute(one, ("ag_frame",))), None)
            continue
        places.append(_place(frame))
        awaited = _attribute(awaited, _AWAITED)
    return innermost(reversed(places))


def _attribute(value: object, names: Iterable[str]) -> Any:
    found = (getattr(value, name, None) for name in names)
    return next((one for one in found if one is not None), None)


# -- workers: a handler in C writes the stack, also while C code holds the interpreter lock --------
def write_stacks(file: int) -> None:
    """Have this process write its stacks to a file when a `StackPipe` asks for them."""
    if _SIGNAL is not None:
        faulthandler.register(_SIGNAL, file, all_threads=True)


@final
class StackPipe:
    """Asks workers for their stacks.

    Attributes:
        file: descriptor that the workers write to.
    """

    def __init__(self) -> None:
        self._read, self.file = os.pipe()
        os.set_blocking(self.file, False)
        self._waiter = select.poll()
        self._waiter.register(self._read, select.POLLIN)
        self._lock = threading.Lock()  # one worker writes at a time
        self._closed = False

    def place(self, pid: int) -> Place | None:
        """Return where the call of a worker is; None if the worker does not answer."""
        with self._lock:
            if self._closed or _SIGNAL is None:
                return None
            self._text(0.0)  # of a worker that answered too late
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, _SIGNAL)
            return innermost(_main_thread(self._text(_FIRST_S)))

    def _text(self, first_s: float) -> str:
        found, wait_s = b"", first_s
        while len(found) < _MOST_BYTES and self._waiter.poll(1000 * wait_s):
            found += os.read(self._read, 1 << 16)
            wait_s = _QUIET_S
        return found.decode(errors="replace")

    def close(self) -> None:
        """Close both ends."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self.file)


def _main_thread(text: str) -> list[Place]:
    """Return the lines of the thread that does the jobs, which is the last one."""
    last = text.rpartition("hread 0x")[2]
    return [Place(_name(file), int(line), name) for file, line, name in _LINE.findall(last)]


def _name(file: str) -> str:
    """Return a file's name without the escapes that the handler writes for other than ASCII."""
    return file.encode().decode("unicode_escape") if "\\" in file else file
