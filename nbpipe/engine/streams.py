"""Stream operations: they see the items in order and remember something from one to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..cache import Recorder, Store, with_passes, without_passes
from ..operations import Batch, Cache, Enumerate, Shard, Shuffle, Skip, Take, Window
from ..seeding import Path, order_generator
from ..stage import Stage
from .batching import BatchByCost
from .context import EpochContext
from .stream import StreamOperation
from .task import Entry


class Taking:
    """The first `count` items."""

    holds_items = False

    def __init__(self, count: int) -> None:
        self._left = count
        self.finished = count == 0

    def push(self, entry: Entry) -> Entry | None:
        """Let an item pass while there are some to take."""
        self._left -= 1
        self.finished = self._left <= 0
        return entry

    def flush(self) -> Iterator[Entry]:
        """Give nothing more."""
        return iter(())


class Skipping:
    """All but the first `count` items."""

    finished = False
    holds_items = False

    def __init__(self, count: int) -> None:
        self._left = count

    def push(self, entry: Entry) -> Entry | None:
        """Let an item pass once enough were left out."""
        if self._left:
            self._left -= 1
            return None
        return entry

    def flush(self) -> Iterator[Entry]:
        """Give nothing more."""
        return iter(())


class Enumerating:
    """Pairs of a number and an item."""

    finished = False
    holds_items = False

    def __init__(self) -> None:
        self._number = -1

    def push(self, entry: Entry) -> Entry | None:
        """Number an item."""
        self._number += 1
        return (entry[0], (self._number, entry[1]))

    def flush(self) -> Iterator[Entry]:
        """Give nothing more."""
        return iter(())


class Windowing:
    """Lists of `size` neighbours, `stride` apart; the path is that of the first."""

    finished = False
    holds_items = False

    def __init__(self, size: int, stride: int) -> None:
        self._size = size
        self._stride = stride
        self._entries: deque[Entry] = deque(maxlen=size)
        self._until = size

    def push(self, entry: Entry) -> Entry | None:
        """Add an item; give a window when one is whole."""
        self._entries.append(entry)
        self._until -= 1
        if self._until:
            return None
        self._until = self._stride
        return (self._entries[0][0], [one[1] for one in self._entries])

    def flush(self) -> Iterator[Entry]:
        """Give nothing more: a window that is not whole is left out."""
        return iter(())


class Shuffling:
    """A buffer from which each new item pushes out a random one.

    Source: the buffered shuffle that tf.data and WebDataset describe.
    """

    finished = False
    holds_items = True

    def __init__(self, spec: Shuffle, epoch: int, passes: Path) -> None:
        assert spec.buffer_size is not None
        self._size = spec.buffer_size
        self._rng = order_generator(spec.seed, epoch, passes)
        self._entries: list[Entry] = []

    def push(self, entry: Entry) -> Entry | None:
        """Keep an item; give another one once the buffer is full."""
        if len(self._entries) < self._size:
            self._entries.append(entry)
            return None
        place = int(self._rng.integers(self._size))
        out, self._entries[place] = self._entries[place], entry
        return out

    def flush(self) -> Iterator[Entry]:
        """Give what is left, in random order."""
        order = self._rng.permutation(len(self._entries))
        for place in order.tolist():
            yield self._entries[place]


class Sharding:
    """Every `world_size`-th item of a stream from `rank` on."""

    finished = False
    holds_items = False

    def __init__(self, spec: Shard) -> None:
        self._rank = spec.rank
        self._world = spec.world_size
        self._tail = spec.tail
        self._seen = 0
        self._held: Entry | None = None
        self._first: list[Entry] = []  # what "pad" repeats

    def push(self, entry: Entry) -> Entry | None:
        """Keep this rank's items; with "drop", until their round is whole."""
        place = self._seen % self._world
        self._seen += 1
        if self._tail == "pad" and len(self._first) < self._world:
            self._first.append(entry)
        if self._tail != "drop":
            return entry if place == self._rank else None
        if place == self._rank:
            self._held = entry
        if place == self._world - 1:
            whole, self._held = self._held, None
            return whole
        return None

    def flush(self) -> Iterator[Entry]:
        """With "pad", give one of the first items where the last round is short."""
        short = self._seen % self._world
        if self._tail != "pad" or not short or self._rank < short:
            return
        place = self._seen - short + self._rank
        path, value = self._first[(place - self._seen) % len(self._first)][:2]
        yield ((*path, place) if isinstance(path, tuple) else (path, place), value)


class Recording:
    """Passes items on and keeps them in a cache.

    The cache is complete only when the epoch was consumed to its end: how far the stage had run
    ahead when a loop was left is a matter of timing, and must not show.

    The passes of repeats around it move to the end of each path, where a replay puts them.
    """

    finished = False
    holds_items = False

    def __init__(self, store: Store, passes: tuple[int, ...]) -> None:
        self._store = store
        self._passes = passes
        self._made: Recorder | None = None
        self._closed = False
        self._whole = False

    def _recorder(self) -> Recorder:
        recorder = self._made
        if recorder is None:  # made when it is first used: some inputs are never opened
            recorder = self._made = self._store.recorder()
            if self._closed:
                recorder.close()
        return recorder

    def push(self, entry: Entry) -> Entry | None:
        """Keep an item."""
        path = entry[0]
        if self._passes:
            path = without_passes(path)
        self._recorder().add(path, entry[1])
        return (with_passes(path, self._passes), entry[1])

    def flush(self) -> Iterator[Entry]:
        """Take note that all items were seen."""
        self._whole = True
        return iter(())

    def commit(self) -> None:
        """Complete the cache: all items were consumed."""
        if self._whole:
            self._recorder().complete()

    def close(self) -> None:
        """Forget what was kept, unless it is complete; from any thread."""
        self._closed = True
        if self._made is not None:
            self._made.close()


def operation_of(stage: Stage, context: EpochContext, passes: tuple[int, ...]) -> StreamOperation:
    """Make the operation of a stage, fresh for one pass."""
    match stage.spec:
        case Take(count=count):
            return Taking(count)
        case Skip(count=count):
            return Skipping(count)
        case Enumerate():
            return Enumerating()
        case Window(size=size, stride=stride):
            return Windowing(size, stride)
        case Shuffle() as shuffle:
            return Shuffling(shuffle, context.epoch, passes or 0)
        case Shard() as shard:
            return Sharding(shard)
        case Cache(store=store):
            return Recording(store, passes)
        case Batch() as batch:
            return BatchByCost(batch)
    raise TypeError(f"{stage.op} is no stream operation")
