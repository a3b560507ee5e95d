"""A kernel of the shape of ipykernel's, without sockets or processes."""

import asyncio
import json
import logging
from types import SimpleNamespace

import zmq

LOG = logging.getLogger("tests.kernel.fakes")


class FakeSocket:
    """Gives the messages that were put into `waiting`."""

    def __init__(self):
        self.waiting = []
        self.asked = 0

    def recv_multipart(self, flags, *, copy):
        self.asked += 1
        if not self.waiting:
            raise zmq.Again
        return self.waiting.pop(0)


class FakeStream:
    """A stream whose kernel keeps what it is handed back."""

    def __init__(self, loop):
        self.socket = FakeSocket()
        self.io_loop = SimpleNamespace(asyncio_loop=loop, add_callback=loop.call_soon)
        self.handed_back = []
        self._recv_callback = self.handed_back.append
        self._recv_copy = True
        self.flushed = []

    def flush(self, flag=None):
        self.flushed.append(flag)


class FakeSession:
    """Messages are lists of bytes: an identity, then the JSON of the header."""

    def feed_identities(self, frames, *, copy):
        return frames[:1], frames[1:]

    def unpack(self, frame):
        return json.loads(frame)

    def deserialize(self, parts, *, content, copy):
        return {"header": json.loads(parts[1]), "content": {}}


class FakeKernel:
    """Notes what is asked of it, in `done`."""

    def __init__(self, loop):
        self.shell_stream = FakeStream(loop)
        self.session = FakeSession()
        self.log = LOG
        self.done = []
        self.parent = {}
        self._parent_ident = {"shell": b"front end"}
        self.shell_handlers = {"comm_msg": self.on_comm}
        self.handler = lambda number: None

    def on_comm(self, stream, idents, message):
        number = message["header"]["number"]
        self.handler(number)
        self.done.append(number)

    def get_parent(self, channel):
        return self.parent

    def set_parent(self, ident, parent, channel):
        self.parent = parent

    def _publish_status(self, status, channel, parent=None):
        return


def message(kind, number=0):
    """Return a message as it comes from the wire."""
    header = {"msg_type": kind, "number": number}
    return [b"front end", b"signature", json.dumps(header).encode()]


def in_loop(test):
    """Run a test with a kernel whose event loop is under way."""

    async def run():
        return test(FakeKernel(asyncio.get_running_loop()))

    loop = asyncio.new_event_loop()  # unlike `asyncio.run`, it leaves interrupts alone
    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()
