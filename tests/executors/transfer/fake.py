"""A device that computes nothing until it is told to: what is read too early, or too late, shows.

Streams are queues of operations, and the test says when they are carried out. Memory of the
device is handed out again at once: a block whose tensor is gone goes to the next copy, unless
some stream was recorded that has not passed its present end.
"""

import contextlib
import threading
import weakref
from collections import deque

import numpy as np

from tests.executors.transfer.inner import device


class Place(str):
    """Name of a device, as `torch.device` shows it."""

    __slots__ = ()

    @property
    def type(self):
        return self.partition(":")[0]


class Block:
    """Memory: what it holds now, and whether it was given back."""

    def __init__(self, data=None):
        self.data = data
        self.freed = False


class FakeTensor:
    """A tensor in some block of memory; its data on a device are there only in time."""

    def __init__(self, block, device, *, pinned=False, owner=None):
        self.block = block
        self.device = Place(device)
        self.pinned = pinned
        self.readers = []
        self.nbytes = 8
        self.owner = owner
        if owner is not None:
            weakref.finalize(self, owner.free, block, self.readers)

    def to(self, device):
        if device != "cpu" or self.owner is None:
            raise TypeError(f"the backend copies, not the tensor, to {device}")
        stream, target = self.owner.current_stream(self.device), host(None)
        self.owner.enqueue_copy(self, target, stream)
        self.owner.carry_out(stream)
        return target

    def __repr__(self):
        return f"FakeTensor({self.device})"


def host(value, *, pinned=False):
    """Make a tensor on the host; its block is marked when the tensor is gone."""
    block = Block(value)
    tensor = FakeTensor(block, "cpu", pinned=pinned)
    weakref.finalize(tensor, setattr, block, "freed", True)  # noqa: FBT003
    return tensor


class FakeEvent:
    """Done once the stream has carried out what came before it."""

    def __init__(self, world, stream):
        self.world = world
        self.stream = stream
        self.done = False

    def query(self):
        return self.done

    def synchronize(self):
        self.world.carry_out(self.stream, until=self)


class FakeStream:
    """A queue of operations."""

    def __init__(self, world, device):
        self.world = world
        self.device = device
        self.operations = deque()
        self.eager = False

    def add(self, operation):
        with self.world.lock:
            self.operations.append(operation)
            if self.eager:
                self.world.carry_out(self)

    def wait_event(self, event):
        self.add(event.synchronize)


class World:
    """Two devices, "fake:0" and "fake:1"; it is asked what a `Backend` is.

    Args:
        records: whether `record_stream` does anything.
        waits: whether `wait_event` does anything.

    Attributes:
        wrong: what went wrong, in words.
        seen: what was read on the devices.
        pinnings: tensors that were copied to pinned memory.
        pinned_blocks: pinned memory that was given to be filled.
        given: tensors of torch that it was given.
        pins: whether it gives pinned memory.
        streams: all that were made.
        waited: pairs of a stream that was to wait, and the one it was to wait for.
        eager_copies: streams carry out at once what is given them; the default ones do not.
        at_once: by device, the most threads in which it was active at the same time.
    """

    def __init__(self, *, records=True, waits=True, eager_copies=False):
        self.lock = threading.RLock()
        self.records = records
        self.waits = waits
        self.eager_copies = eager_copies
        self.wrong = []
        self.seen = []
        self.pinnings = 0
        self.pinned_blocks = []
        self.given = []
        self.pins = True
        self.events = 0
        self.waited = []
        self.blocks = 0
        self.streams = []
        self.idle = {}
        self.at_once = {}
        self._active = []
        self._free = {}
        self._deferred = []
        self._current = threading.local()
        self._default = {}
        self.failing = None

    # -- what nbpipe asks for
    def resolve(self, device):
        return device if ":" in device else f"{device}:0"

    def new_stream(self, device):
        stream = FakeStream(self, device)
        stream.eager = self.eager_copies
        self.streams.append(stream)
        return stream

    def default_stream(self, device):
        return self._default.setdefault(device, FakeStream(self, device))

    def current_stream(self, device):
        chosen = getattr(self._current, "streams", {})
        return chosen.get(str(device)) or self.default_stream(str(device))

    @contextlib.contextmanager
    def active(self, device, stream):
        before = dict(getattr(self._current, "streams", {}))
        self._current.streams = {**before, str(device): stream}
        self._active.append(str(device))
        self.at_once[device] = max(self.at_once.get(device, 0), self._active.count(device))
        try:
            yield
        finally:
            self._active.remove(str(device))
            self._current.streams = before

    def record_event(self, stream):
        event = FakeEvent(self, stream)
        self.events += 1

        def done():
            event.done = True

        stream.add(done)
        return event

    def wait_event(self, stream, event):
        self.waited.append((stream, event.stream))
        if self.waits:
            stream.wait_event(event)

    def device_of(self, leaf):
        if not isinstance(leaf, FakeTensor):
            return None
        return str(leaf.device) if leaf.device.type == "fake" else ""

    def record_stream(self, leaf, stream):
        if self.records:
            leaf.readers.append(stream)

    def pinned(self, leaf):
        if not isinstance(leaf, FakeTensor):
            self.given.append(leaf)
            leaf = host(leaf.tolist(), pinned=self.lies_in_pinned(leaf))
        if leaf.pinned or leaf.device.type != "cpu":
            return leaf
        self.pinnings += 1
        return host(leaf.block.data, pinned=True)

    def lies_in_pinned(self, tensor):
        begins = [block.__array_interface__["data"][0] for block in self.pinned_blocks]
        return tensor.data_ptr() in begins

    def pinned_block(self, size_bytes, device):
        if not self.pins:
            return None
        self.pinned_blocks.append(np.empty(size_bytes, np.uint8))
        return self.pinned_blocks[-1]

    def copy(self, leaf, device):
        if self.failing is not None and leaf.block.data == self.failing:
            raise MemoryError("the device is full")
        target = self.allocate(device)
        stream = self.current_stream(device)
        if leaf.device.type == "cpu":
            return self.enqueue_copy(leaf, target, stream)
        source = self.current_stream(leaf.device)  # between devices it is the source's, as in torch
        source.wait_event(self.record_event(stream))
        self.enqueue_copy(leaf, target, source)
        stream.wait_event(self.record_event(source))
        return target

    def enqueue_copy(self, source, target, stream):
        block, into = source.block, target.block

        def copy():
            if block.freed:
                self.wrong.append("a source was freed before its copy")
            into.data = block.data

        stream.add(copy)
        return target

    # -- memory
    def allocate(self, device):
        """Give a tensor on a device; a block that is free on the current stream comes first."""
        stream = self.current_stream(device)
        with self.lock:
            self._look_at_deferred()
            free = self._free.setdefault(id(stream), [])
            block = free.pop() if free else Block()
            self.blocks += not block.freed
            block.freed = False
            block.home = id(stream)
        return FakeTensor(block, device, owner=self)

    def free(self, block, readers):
        """Take memory back, as soon as its readers have passed what they do now."""
        with self.lock:
            events = [self.record_event(stream) for stream in readers]
            self._deferred.append((events, block))
            self._look_at_deferred()

    def _look_at_deferred(self):
        waiting = []
        for events, block in self._deferred:
            if all(event.done for event in events):
                block.freed = True
                self._free.setdefault(block.home, []).append(block)
            else:
                waiting.append((events, block))
        self._deferred = waiting

    # -- what the test does
    def blocks_in_use(self):
        """Count the memory that tensors hold, or streams that are still to pass."""
        with self.lock:
            self._look_at_deferred()
            return self.blocks - sum(map(len, self._free.values()))

    def compute(self, tensor, change=None):
        """Read a tensor on its device, on this thread's stream; with `change`, make another."""
        stream = self.current_stream(tensor.device)
        block = tensor.block
        if change is None:
            stream.add(lambda: self.seen.append(block.data))
            return None
        made = self.allocate(tensor.device)
        target = made.block

        def work():
            target.data = change(block.data)

        stream.add(work)
        return made

    def carry_out(self, stream, until=None):
        """Carry out what a stream was given, to its end or to an event."""
        with self.lock:
            while stream.operations and not (until is not None and until.done):
                stream.operations.popleft()()

    def finish(self):
        """Carry out everything."""
        for stream in (*self.streams, *self._default.values()):
            self.carry_out(stream)


def machine(monkeypatch, **options):
    """Install a machine with fake devices."""
    made = World(**options)
    monkeypatch.setitem(device.BACKENDS, "fake", made)
    return made
