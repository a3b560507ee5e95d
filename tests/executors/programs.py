"""Programs for the tests of executors: what a region does, without an engine."""

import os
import signal
import threading

from nbpipe.executors.interface import Request, Response


class Program:
    """Calls a function on each value; a failure is the exception itself."""

    def __init__(self, fn, label="work"):
        self.fn = fn
        self.label = label

    def prepare(self):
        """Do nothing."""

    def calls(self, entries):
        """Count one for each entry."""
        return len(entries)

    @property
    def stages(self):
        """Give its one stage."""
        return (self.label,)

    def work(self, entries, epoch, begun=None, kept=None):
        """Response entry by entry."""
        results, kept = [], kept or (lambda _, result: result)
        for entry in entries:
            if begun is not None:
                begun(0, entry[0])
            results.append(kept(entry, (entry[0], self.fn(entry[1]))))
        return Response(results, [[len(entries)] * 2 + [0]])


def request(program, *values, epoch=0, timeout_s=None, first=0):
    """Give a request; paths count from `first`."""
    return Request(program, epoch, list(enumerate(values, first)), timeout_s)


def values_of(response):
    """Give the values of an response."""
    return [value for _, value in response.results]


# -- functions that another process imports --------------------------------------------------------
def double(value):
    """Give the value twice."""
    return 2 * value


def thread_id(_):
    """Give the id of the thread."""
    return threading.get_ident()


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


class Expanding(Program):
    """Gives numbers up to the value, and then fails."""

    def open(self, value, path, epoch):
        yield from range(value)
        raise ValueError(f"item {path} in epoch {epoch}")


class Prepared(Program):
    """Counts how often it was prepared."""

    def prepare(self):
        BEGUN.release()


# -- functions for workers in this process: the gate is the same object there ----------------------
GATE = threading.Event()
BEGUN = threading.Semaphore(0)


def wait_at_gate(value):
    """Say that the call has begun, and wait for the gate."""
    BEGUN.release()
    GATE.wait()
    return value
