"""The interpreter's switch interval while epochs are in progress.

One loop of pure Python in the consuming cell adds about 5 ms to every wake-up of a worker, the
interpreter's default switch interval. While at least one epoch is in progress the interval is
lowered; when the last one ends, it is put back.
"""

from __future__ import annotations

import math
import os
import sys
import threading

INTERVAL_S = 0.0002
SWITCH = "NBPIPE_SWITCH_INTERVAL"  # environment: "off", or another interval [s]


class _Interval:
    """Knows who has an epoch in progress, so that two runs do not undo each other."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders: set[int] = set()
        self._before_s: float | None = None

    def lower(self, holder: object) -> None:
        """Hear that `holder` has an epoch in progress; to say it again does nothing."""
        with self._lock:
            self._holders.add(id(holder))
            wanted_s = _wanted_s()
            if self._before_s is None and wanted_s is not None:
                before_s = sys.getswitchinterval()
                if before_s > wanted_s:
                    self._before_s = before_s
                    sys.setswitchinterval(wanted_s)

    def restore(self, holder: object) -> None:
        """Hear that it has none; after the last, put the interval back unless others changed it."""
        with self._lock:
            self._holders.discard(id(holder))
            if self._holders or self._before_s is None:
                return
            wanted_s = _wanted_s()
            if wanted_s is None or math.isclose(sys.getswitchinterval(), wanted_s, rel_tol=0.01):
                sys.setswitchinterval(self._before_s)
            self._before_s = None

    def forget(self) -> None:
        """Begin anew in a forked process: its epochs stayed in the other one."""
        self._lock = threading.RLock()
        self._holders = set()


def _wanted_s() -> float | None:
    text = os.environ.get(SWITCH, "")
    if text.lower() in ("off", "0"):
        return None
    try:
        return float(text) if text else INTERVAL_S
    except ValueError:
        return INTERVAL_S


_interval = _Interval()
lower = _interval.lower
restore = _interval.restore

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_interval.forget)
