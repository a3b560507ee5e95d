"""Interrupts at chosen moments: one for each at which the interpreter lets a signal in.

CPython calls signal handlers where a Python function is entered, after a call of a function in C,
and where a loop goes round. A trace function sees these moments, and can raise there.
"""

import dis
import sys
import threading

MOMENTS = frozenset(
    dis.opmap[name]
    for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD")
    if name in dis.opmap
)
SEEN = ("nbpipe", threading.__file__)  # files whose moments count


class Interrupter:
    """Raises KeyboardInterrupt once, at the moment with this number, in the code of nbpipe.

    Attributes:
        where: the place that was hit, or None.
    """

    def __init__(self, number):
        self.where = None
        self._left = number
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
        if self._left == 0:
            self.where = f"{frame.f_code.co_qualname} in line {frame.f_lineno}"
            sys.settrace(None)
            raise KeyboardInterrupt
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
