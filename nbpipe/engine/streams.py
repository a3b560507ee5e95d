"""Stream operations: they see the items in order and remember something from one to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from ..cache import Made, Recorder, Store, with_passes, without_passes
from ..index_order import LONGEST
from ..operations import Batch, Enumerate, Shard, Shuffle, Skip, Take, Window
from ..rest import Rest
from ..stage import Stage
from .batching import BatchByCost
from .context import EpochContext
from .shuffling import Shuffling
from .stream import StreamOperation
from .task import Entry

Stands = dict[str, Any]  # where a stage stands; JSON-ready


class Taking:
    """The first `count` items."""

    holds_items = False

    def __init__(self, count: int, stands: Stands) -> None:
        self._count = self._left = stands.get("left", count)
        self.finished = self._left == 0

    def rest_of_input(self, rest: Rest, stands: Stands) -> Rest:
        """Say how many items are left to take."""
        stands["left"] = max(0, self._count - rest.left_out)
        return rest

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

    def __init__(self, count: int, stands: Stands) -> None:
        self._count = self._left = stands.get("left", count)

    def rest_of_input(self, rest: Rest, stands: Stands) -> Rest:
        """Say how many items are still to be left out."""
        if rest.is_all:
            stands["left"] = left = self._left
            return Rest(self._count - left)
        stands["left"] = 0
        return rest.moved(self._count)

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

    def __init__(self, stands: Stands) -> None:
        self._rest = Rest.read(stands.get("rest", [0, []]))
        self._numbers = self._rest.numbers(LONGEST)

    def rest_of_input(self, rest: Rest, stands: Stands) -> Rest:
        """Say which numbers are still to be given."""
        stands["rest"] = self._rest.of_wanted(rest).data
        return rest

    def push(self, entry: Entry) -> Entry | None:
        """Number an item."""
        return (entry[0], (next(self._numbers), entry[1]))

    def flush(self) -> Iterator[Entry]:
        """Give nothing more."""
        return iter(())


class Windowing:
    """Lists of `size` neighbours, `stride` apart; the path is that of the first."""

    finished = False
    holds_items = False

    def __init__(self, size: int, stride: int, stands: Stands) -> None:
        self._size = size
        self._stride = stride
        self._entries: deque[Entry] = deque(maxlen=size)
        self._skipped = stands.get("skip", 0)
        self._until = self._skipped + size
        self._pushed = 0

    def rest_of_input(self, rest: Rest, stands: Stands) -> Rest:
        """Begin with the first item of the next window; windows behind it overlap."""
        first = self._skipped + rest.start * self._stride if rest.start else 0
        start = min(first, self._pushed)
        stands["skip"] = first - start if rest.start else self._skipped
        if rest.holes:
            stands["drop"] = rest.behind_start().data
        return Rest(start)

    def push(self, entry: Entry) -> Entry | None:
        """Add an item; give a window when one is whole."""
        self._pushed += 1
        self._entries.append(entry)
        self._until -= 1
        if self._until:
            return None
        self._until = self._stride
        return (self._entries[0][0], [one[1] for one in self._entries])

    def flush(self) -> Iterator[Entry]:
        """Give nothing more: a window that is not whole is left out."""
        return iter(())


class Sharding:
    """Every `world_size`-th item of a stream from `rank` on."""

    finished = False
    holds_items = False

    def __init__(self, spec: Shard, stands: Stands) -> None:
        self._rank = spec.rank
        self._world = spec.world_size
        self._tail = spec.tail
        self._rounds = Rest.read(stands.get("rest", [0, []]))
        self._begun = self._seen = min(self._rounds.start * self._world, stands.get("seen", 0))
        self._padded: bool = stands.get("padded", False)
        self._inputs = self._wanted(self._rounds, self._begun)
        self._numbers = self._inputs.numbers(LONGEST)
        self._given = 0
        self._held: Entry | None = None
        self._first: list[Entry] = []  # what "pad" repeats

    def rest_of_input(self, rest: Rest, stands: Stands) -> Rest:
        """Begin with the next round; what is to pad the last one is read again."""
        rounds = self._rounds.of_wanted(rest)
        stands.update(rest=rounds.data, seen=self._seen)
        stands["padded"] = self._padded or rest.start > self._given
        return self._inputs.ranked(self._wanted(rounds, self._seen))

    def _wanted(self, rounds: Rest, seen: int) -> Rest:
        """Give the items of the whole stream that are wanted, given the rounds that are."""
        world = self._world
        start = min(rounds.start * world, seen)
        holes = [(first * world, end * world) for first, end in rounds.holes]
        if self._tail != "pad":
            return Rest.of(start, holes)
        return Rest.of(0, [(min(world, start), start), *holes])

    def push(self, entry: Entry) -> Entry | None:
        """Keep this rank's items; with "drop", until their round is whole."""
        number = next(self._numbers)
        if self._tail == "pad" and len(self._first) < self._world:
            self._first.append(entry)
        if number < self._begun:
            return None
        self._seen = number + 1
        found = self._passed(entry, number % self._world)
        self._given += found is not None
        return found

    def _passed(self, entry: Entry, place: int) -> Entry | None:
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
        if self._tail != "pad" or self._padded or not short or self._rank < short:
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

    def __init__(self, store: Store, passes: tuple[int, ...], made: Made, stands: Stands) -> None:
        self._store = store
        self._passes = passes
        self._as_of = made
        self._rest = Rest.read(stands.get("rest", [0, []]))
        self._keeps = self._rest.is_all  # else the beginning was seen by another process
        self._made: Recorder | None = None
        self._closed = False
        self._whole = False

    def rest_of_input(self, rest: Rest, stands: Stands) -> Rest:
        """Say which items are left, for a cache that is complete by then."""
        stands["rest"] = self._rest.of_wanted(rest).data
        stands["made"] = [self._as_of[0], list(self._as_of[1])]
        return rest

    def _recorder(self) -> Recorder:
        recorder = self._made
        if recorder is None:  # made when it is first used: some inputs are never opened
            recorder = self._made = self._store.recorder(self._as_of)
            if self._closed:
                recorder.close()
        return recorder

    def push(self, entry: Entry) -> Entry | None:
        """Keep an item."""
        path = entry[0]
        if self._passes:
            path = without_passes(path)
        if self._keeps:
            self._recorder().add(path, entry[1])
        return (with_passes(path, self._passes), entry[1])

    def flush(self) -> Iterator[Entry]:
        """Take note that all items were seen."""
        self._whole = True
        return iter(())

    def commit(self) -> None:
        """Complete the cache: all items were consumed; or have the next epoch make them again."""
        if self._whole and self._keeps:
            self._recorder().complete()
        elif self._whole:
            self._store.as_of = self._as_of

    def close(self) -> None:
        """Forget what was kept, unless it is complete; from any thread."""
        self._closed = True
        if self._made is not None:
            self._made.close()


class Dropping:
    """What is left of a stream whose stages begin again with items that the loop has had.

    Args:
        rest: the items that are left.
    """

    finished = False
    holds_items = False

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._pushed = 0

    def rest_of_input(self, rest: Rest, stands: Stands) -> Rest:
        """Count among all items; what has not come yet is left out when it comes."""
        left, seen = self._rest.of_wanted(rest), self._pushed
        inputs = Rest.of(min(left.start, seen), left.until(seen).holes)
        later = inputs.ranked(left)
        if not later.is_all:
            stands["drop"] = later.data
        return inputs

    def push(self, entry: Entry) -> Entry | None:
        """Let an item pass that is left."""
        self._pushed += 1
        return entry if self._pushed - 1 in self._rest else None

    def flush(self) -> Iterator[Entry]:
        """Give nothing more."""
        return iter(())


def operation_of(
    stage: Stage, context: EpochContext, passes: tuple[int, ...], stands: Stands
) -> StreamOperation:
    """Make the operation of a stage for one pass, or for what is left of it."""
    match stage.spec:
        case Take(count=count):
            return Taking(count, stands)
        case Skip(count=count):
            return Skipping(count, stands)
        case Enumerate():
            return Enumerating(stands)
        case Window(size=size, stride=stride):
            return Windowing(size, stride, stands)
        case Shuffle() as shuffle:
            return Shuffling(shuffle, context.epoch, passes or 0, stands)
        case Shard() as shard:
            return Sharding(shard, stands)
        case Batch() as batch:
            return BatchByCost(batch, stands)
    raise TypeError(f"{stage.op} is no stream operation")
