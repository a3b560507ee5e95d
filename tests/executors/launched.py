"""What the tests of worker processes run in them; it loads little, so that they start fast."""

import os
import pickle  # noqa: F401  as below
import random  # noqa: F401  expressions use it
import signal  # noqa: F401  as above
import sys  # noqa: F401  as above
import tempfile  # noqa: F401  as above
from pathlib import Path


def files():
    """Say of each open file whether programs started here get it."""
    fds = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    open_ones = [fd for fd in fds if Path(f"/proc/self/fd/{fd}").exists()]  # not the listing
    return {fd: os.get_inheritable(fd) for fd in open_ones}


kept = []


def keep(value):
    """Hold a value until the worker ends, and give it."""
    kept.append(value)
    return value


def launch(entry, argument):
    """Start a worker of this worker."""
    from nbpipe.executors.workers.launch import launch

    return launch(entry, argument)


def evaluate(connection, argument):
    """Send back the argument, then the value of each expression that comes."""
    connection.send(argument)
    while True:
        try:
            expression = connection.recv()
        except EOFError:
            return
        connection.send(eval(expression, dict(globals())))


def leave(connection, argument):
    """Leave at once, by the exit that the argument names."""
    exec(argument, dict(globals()))
