"""Interrupts at chosen moments: one for each at which the interpreter lets a signal in.

CPython calls signal handlers where a Python function is entered, after a call of a function in C,
and where a loop goes round; there it lets other threads go on, too. A trace function sees these
moments, and can raise there, or do what another thread may do just then.
"""

import dis
import sys
import threading

from tests.inner import holds, lock_of

MOMENTS = frozenset(
    dis.opmap[name]
    for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD")
    if name in dis.opmap
)
SEEN = ("nbpipe", threading.__file__)  # files whose moments count


def _interrupt():
    raise KeyboardInterrupt


class Interrupter:
    """Raises KeyboardInterrupt once, at the moment with this number, in the code of nbpipe.

    Args:
        number: of the moment.
        act: called there instead.
        waits: whether another thread would have to wait just then: such a moment does not count.

    Attributes:
        where: the place that was hit, or None.
    """

    def __init__(self, number, act=_interrupt, *, waits=lambda: False):
        self.where = None
        self._left = number
        self._act, self._waits = act, waits
        self._last = None  # the frame and what it did last, unless that was a Python function

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)
        self._last = None

    def _trace(self, frame, event, _):
        if event == "call":
            self._last = None
            if not any(name in frame.f_code.co_filename for name in SEEN):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._moment(frame)
        elif event == "opcode":
            last, self._last = self._last, (frame, frame.f_code.co_code[frame.f_lasti])
            if last is not None and last[0] is frame and last[1] in MOMENTS:
                self._moment(frame)
        else:
            self._last = None
        return self._trace

    def _moment(self, frame):
        if self._waits():
            return
        if self._left == 0:
            self.where = f"{frame.f_code.co_qualname} in line {frame.f_lineno}"
            sys.settrace(None)
            self._act()
        self._left -= 1


def interrupted_everywhere(prepare, act, *, step=1):
    """Interrupt `act(subject)` at one moment after the other; `prepare()` makes the subject.

    Yields:
        The subject, and the place where it was interrupted.
    """
    number = 0
    while True:
        subject, interrupter = prepare(), Interrupter(number)
        try:
            with interrupter:
                act(subject)
        except (KeyboardInterrupt, RuntimeError):  # the latter: from a lock of `threading`
            pass
        yield subject, interrupter.where
        if interrupter.where is None:
            assert number, "no moment was seen: is the interpreter another one?"
            return
        number += step


def joined_everywhere(prepare, act, other, *, step=3):
    """Have `other(run)` done at one moment after the other of `act(run)`, as another thread may.

    Args:
        prepare: makes a run; it is closed when that moment was looked at.
        act: what a thread does with it.
        other: what another one does meanwhile.
        step: so many moments further it is done again.

    Yields:
        The run; what `act` and `other` returned, or the error; and the place where it was.
    """
    number, where = 0, ""
    while where is not None:
        with prepare() as run:
            said = []
            life, lock = run._core.life, lock_of(run)
            interrupter = Interrupter(
                number,
                lambda run=run, said=said: said.append(_answer(other, run)),
                waits=lambda life=life, lock=lock: holds(lock) or holds(life._finishing),
            )
            with interrupter:
                done = _answer(act, run)
            where = interrupter.where
            if where is not None:
                yield run, done, said[0], where
        number += step
    assert number > step, "no moment was seen: is the interpreter another one?"


def _answer(function, run):
    try:
        return function(run)
    except Exception as error:
        return error
