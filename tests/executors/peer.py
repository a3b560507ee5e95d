"""The other end of a channel: python -m tests.executors.peer FD BEHAVIOUR [NUMBER ...]."""

import gc
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from nbpipe.executors.workers.channel import Channel


def echo(channel):
    """Send back what comes, as views where they came as views, until "end" comes."""
    while True:
        try:
            message = channel.recv()
        except (EOFError, OSError):
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        if isinstance(message, str) and message == "end":
            return
        channel.send(message)
        del message


def echo_views(channel):
    """Send back what comes without copying it first."""
    channel.copy = False
    echo(channel)


def attribute(channel):
    """Tell of the class of what comes, and mark it."""
    while not isinstance(message := channel.recv(), str):
        kind = type(message)
        channel.send((kind.total, kind.mark))
        kind.mark = "set here"


def count(channel, size, times):
    """Send `times` arrays of `size` bytes, each filled with its number; one for each message."""
    for number in range(times):
        channel.recv()
        channel.send(np.full(size, number % 251, np.uint8))
    channel.recv()


def fork(channel):
    """Keep a view, let a forked process drop its copy; tell what the view holds in the end."""
    channel.copy = False
    view = channel.recv()
    pid = os.fork()
    if pid == 0:
        del view
        os._exit(0)
    os.waitpid(pid, 0)
    channel.send("dropped")
    for _ in range(4):
        channel.recv()
    channel.send(np.unique(view).tolist())


def flood(channel, size):
    """Say that it begins, and send one array."""
    channel.send("now")
    channel.send(np.zeros(size, np.uint8))
    signal.pause()


def limited(channel, name, limit, size):
    """Send two arrays under a limit of the system, then what the log says."""
    records = _logged()
    kind = getattr(resource, name)
    resource.setrlimit(kind, (limit, limit))
    for number in (1, 2):
        channel.send(np.full(size, number, np.uint8))
    channel.send(records)


def deaf(channel, limit):
    """Receive under a limit of the address space, and send what came or went wrong."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    held = pages * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + limit, held + limit))
    for _ in range(2):
        try:
            channel.send(len(channel.recv()))
        except OSError as error:
            channel.send(str(error))


def hold(channel, size, times, budget):
    """Under a small budget, send arrays; say what the log holds and the ring takes."""
    records = _logged()
    channel._ring.budget_bytes = budget
    for number in range(times):
        channel.send(np.full(size, number, np.uint8))
    channel.send((records, channel.held_bytes))


def _logged():
    import logging

    records = []

    class Collect(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    logging.getLogger("nbpipe").addHandler(Collect())
    return records


def main(fd, behaviour, *numbers):
    """Run a behaviour over a channel."""
    channel = Channel(Connection(int(fd)))
    values = [int(n) if n.lstrip("-").isdigit() else n for n in numbers]
    try:
        globals()[behaviour](channel, *values)
    except (EOFError, OSError):
        pass
    finally:
        gc.collect()
        channel.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
