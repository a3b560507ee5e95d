"""Post: gates, bells and counters of a test, reached from its worker processes over a local socket.

A `Gate`, `Bell` or `Calls` that is pickled into a worker becomes a `Remote`: its methods run in
the test.
"""

import asyncio
import contextlib
import os
import socket
import threading
from multiprocessing.connection import Client, Listener

_GRACE_S = 5.0


class Post:
    """Serves objects of this process to others until it is closed."""

    def __init__(self):
        self._listener = Listener(authkey=b"test")
        self._objects = {}
        self._numbers = {}  # of an object, by its id: what is pickled twice stays the same
        self._threads = []
        self._connections = []
        self._closing = False
        self._start(self._accept)

    def address(self, thing):
        """Give what a worker needs to reach an object."""
        number = self._numbers.setdefault(id(thing), len(self._numbers))
        self._objects[number] = thing
        return self._listener.address, number

    def _start(self, function, *args):
        thread = threading.Thread(target=function, args=args, name="nbpipe-test-post", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError):  # a worker that was killed while it connected
                if self._closing:
                    return
                continue
            self._connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection):
        with contextlib.suppress(EOFError, OSError), connection:
            while True:
                number, method, args = connection.recv()
                try:
                    answer = (True, getattr(self._objects[number], method)(*args))
                except BaseException as error:
                    answer = (False, repr(error))
                connection.send(answer)

    def close(self):
        """End all threads; the workers are gone by now."""
        self._closing = True
        _hang_up(self._listener._listener._socket)
        self._threads[0].join(_GRACE_S)
        self._listener.close()
        for connection in self._connections:  # workers of a pool that goes on keep theirs
            _hang_up(connection)
        for thread in self._threads[1:]:
            thread.join(_GRACE_S)


def _hang_up(connection):
    """Wake who waits for a message, or for a connection."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Remote:
    """An object of the test, seen from a worker process."""

    def __init__(self, address, number):
        self._address = address
        self._number = number

    def __reduce__(self):
        return type(self), (self._address, self._number)

    def __getattr__(self, method):
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *args: self._ask(method, args)

    async def wait_async(self):
        await asyncio.to_thread(self._ask, "wait", ())

    def ring(self, word=0):
        self._ask("rung", (word, os.getpid()))

    def _ask(self, method, args):
        connection = _connection(self._address)
        connection.send((self._number, method, args))
        done, value = connection.recv()
        if not done:
            raise RuntimeError(value)
        return value


_local = threading.local()


def _connection(address):
    known = getattr(_local, "known", None)
    if known is None or known[0] != (os.getpid(), address):
        _local.known = (os.getpid(), address), Client(address, authkey=b"test")
    return _local.known[1]


_open = []


def reach(thing):
    """Give the `Remote` of an object, for its `__reduce__`."""
    if not _open:
        _open.append(Post())
    return Remote, _open[0].address(thing)


def close():
    """End the post, if there is one."""
    while _open:
        _open.pop().close()
