"""Functions that the tests of executors have called in other processes."""

import os
import signal
import threading


def double(value):
    """Give the value twice."""
    return 2 * value


def die(_):
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)


def lock(_):
    """Give what cannot be pickled."""
    return threading.Lock()


def interrupts_ignored(_):
    """Say whether an interrupt would do nothing."""
    return signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def wait_for_file(path):
    """Say that the call has begun, and wait until somebody writes to a named pipe."""
    path.with_suffix(".begun").touch()
    return path.read_bytes()


def expand_and_fail(value):
    """Give numbers up to the value, and then fail."""
    yield from range(value)
    raise ValueError(f"after {value}")


# -- functions for workers in this process: the gate is the same object there ----------------------
GATE = threading.Event()
BEGUN = threading.Semaphore(0)


def prepare():
    """Count how often a worker was prepared."""
    BEGUN.release()


def wait_at_gate(value):
    """Say that the call has begun, and wait for the gate."""
    BEGUN.release()
    GATE.wait()
    return value
