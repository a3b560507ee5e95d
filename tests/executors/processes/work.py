"""What the tests run in workers: they import it, so it loads little."""

import ctypes
import faulthandler
import os
import random
import signal

import numpy as np

import nbpipe

LARGE_BYTES = 20_000_000


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


class Counted:
    """Data that says when it is pickled, and when it is loaded."""

    def __init__(self, bell, pickled):
        self.bell = bell
        self.pickled = pickled
        self.data = np.zeros(LARGE_BYTES, np.uint8)

    def __reduce__(self):
        self.pickled.append(os.getpid())
        return _loaded, (self.bell, self.data)


def _loaded(bell, data):
    bell.ring()
    return data


def draw(n, rng):
    """Draw from all that there is to draw from."""
    return (
        random.random(),
        float(np.random.rand()),  # noqa: NPY002 - the generator that users draw from
        float(rng.random()),
        nbpipe.worker_info().seed,
    )


def add(n):
    """Give the next number."""
    return n + 1


def is_wanted(n):
    """Drop every third number."""
    return n % 3 != 0


def split(n):
    """Give up to three numbers for one."""
    return [n * 10 + k for k in range(n % 4)]
