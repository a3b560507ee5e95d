"""The interpreter's switch interval while epochs are in progress.

One loop of pure Python in the consuming cell adds about 5 ms to every wake-up of a worker, the
interpreter's default switch interval. While at least one epoch is in progress the interval is
lowered; when the last one ends, it is put back.
"""

from __future__ import annotations

import os
import sys
import threading

INTERVAL_S = 0.0002
SWITCH = "NBPIPE_SWITCH_INTERVAL"  # environment: "off", or another interval [s]

_lock = threading.Lock()
_holders = 0
_before: float | None = None


def _wanted_s() -> float | None:
    text = os.environ.get(SWITCH, "")
    if text.lower() in ("off", "0"):
        return None
    try:
        return float(text) if text else INTERVAL_S
    except ValueError:
        return INTERVAL_S


def lower() -> None:
    """Count one more epoch in progress."""
    global _holders, _before
    with _lock:
        _holders += 1
        wanted = _wanted_s()
        if _holders == 1 and wanted is not None and sys.getswitchinterval() > wanted:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(wanted)


def restore() -> None:
    """Count one epoch less; after the last, put the interval back unless others changed it."""
    global _holders, _before
    with _lock:
        _holders -= 1
        if _holders == 0 and _before is not None:
            wanted = _wanted_s()
            if wanted is None or abs(sys.getswitchinterval() - wanted) < wanted / 100:
                sys.setswitchinterval(_before)
            _before = None
