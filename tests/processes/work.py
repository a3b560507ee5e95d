"""What the tests run in workers: they import it, so it loads little."""

import ctypes
import faulthandler
import os
import signal


class Ringing:
    """Rings while it is pickled: the result is being sent."""

    def __init__(self, bell):
        self.bell = bell

    def __reduce__(self):
        self.bell.ring()
        return str, ("sent",)


def poison_exit(n):
    """End the process without a word."""
    os._exit(3)


def poison_segmentation_fault(n):
    """Read where there is nothing."""
    faulthandler.disable()
    ctypes.string_at(0)


def poison_kill(n):
    """Kill the own process."""
    os.kill(os.getpid(), signal.SIGKILL)
