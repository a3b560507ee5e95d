"""Fold: operations that see the items in order and remember something from one to the next."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from numpy.random import Generator

from ..base.collate import collate
from ..base.seeding import Entry, Path, order_generator
from ..errors import ArgumentError
from ..ops.cache import Made, Recorder, Store, with_passes, without_passes
from ..ops.checkpoint import check_below
from ..ops.index import LONGEST, Remaining
from ..ops.operations import (
    Batch,
    Enumerate,
    FailurePolicy,
    Shard,
    Shuffle,
    Skip,
    Take,
    Window,
    as_float,
)
from ..ops.stage import Stage
from .failures import Failed, failed
from .node import Node, Stages, note
from .runtime import StageRuntime
from .task import EpochContext, Expansion, Task, run_steps

if TYPE_CHECKING:
    from .epoch import Epoch
    from .map import Step


# -- Batches: collate samples, gather by cost, take apart again ------------------------------------
class Collate:
    """Calls the user's collate function, or stacks as `collate` does."""

    def __init__(self, spec: Batch) -> None:
        self._spec = spec

    def __call__(self, samples: list[Any]) -> Any:
        """Make one batch."""
        spec = self._spec
        if spec.collate is not None:
            return spec.collate(samples)
        return collate(samples, names=spec.names, dtype=spec.dtype, pad=spec.pad)


class BatchByCost:
    """Gathers items while the sum of their costs stays within `size`."""

    def __init__(self, spec: Batch, node_state: dict[str, Any]) -> None:
        self._spec = spec
        self._collate = Collate(spec)
        self._known = deque(node_state.get("sizes", ()))  # of batches that the loop has not got
        self._sizes: deque[int] = deque()  # of those given; the first is number `_first`
        self._first = self._before = 0
        self._entries: list[Entry] = []
        self._sum = 0.0
        self.finished = False
        self.holds_items = False

    def rest_of_input(self, rest: Remaining, node_state: dict[str, Any]) -> Remaining:
        """Tell how many items belong to the batches that are not wanted."""
        sizes = list(enumerate(tuple(self._sizes), self._first))
        ends = list(itertools.accumulate((size for _, size in sizes), initial=self._before))
        again = [size for number, size in sizes if number in rest]
        node_state["sizes"] = [*again, *self._known]
        gone = [ends[n : n + 2] for n, (number, _) in enumerate(sizes) if number not in rest]
        return Remaining.of(self._before, [(first, end) for first, end in gone])

    def forget(self, start: int) -> None:
        """Forget the sizes of the batches before number `start`."""
        for _ in range(min(start - self._first, len(self._sizes))):
            self._before += self._sizes.popleft()
            self._first += 1

    def push(self, entry: Entry) -> Entry | None:
        """Add an item; give the batch before it where it does not fit any more."""
        if self._known:
            self._entries.append(entry)
            return self._close() if len(self._entries) == self._known[0] else None
        assert self._spec.cost is not None
        given = self._spec.cost(entry[1])
        cost = as_float(given)
        if not 0 <= cost <= self._spec.size:
            raise ArgumentError(
                f"batch cost of an item must be a number in [0, {self._spec.size:g}], got "
                f"{given!r}; filter such items out, or raise the size"
            )
        full = None
        if self._entries and self._sum + cost > self._spec.size:
            full = self._close()
        self._entries.append(entry)
        self._sum += cost
        return full

    def _close(self) -> Entry:
        entries, self._entries, self._sum = self._entries, [], 0.0
        if self._known:
            self._known.popleft()
        self._sizes.append(len(entries))
        return (entries[0][0], self._collate([entry[1] for entry in entries]))

    def flush(self) -> Iterator[Entry]:
        """Return the last batch, unless it is dropped."""
        if self._entries and not self._spec.drop_last:
            yield self._close()


def split_batch(batch: Any) -> list[Any]:
    """Take a batch apart along the first dimension of everything in it.

    Raises:
        ArgumentError: the parts differ in length, or the item has no first dimension.
    """
    if isinstance(batch, Mapping):
        columns = [split_batch(value) for value in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in _rows(columns)]
    if isinstance(batch, tuple):
        columns = [split_batch(value) for value in batch]
        make = type(batch)._make if hasattr(batch, "_make") else tuple
        return [make(row) for row in _rows(columns)]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch)]
        columns = [split_batch(getattr(batch, name)) for name in names]
        return [
            dataclasses.replace(batch, **dict(zip(names, row, strict=True)))
            for row in _rows(columns)
        ]
    if hasattr(batch, "__getitem__") and hasattr(batch, "__len__") and _has_rows(batch):
        return list(batch)
    raise ArgumentError(
        f"unbatch needs a batch with a first dimension, got {type(batch).__name__}; "
        "use flat_map with a function that takes it apart"
    )


def _has_rows(batch: Any) -> bool:
    return not isinstance(batch, str | bytes) and getattr(batch, "ndim", 1) > 0


def _rows(columns: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise ArgumentError(f"unbatch needs parts of equal length, got lengths {sorted(lengths)}")
    return zip(*columns, strict=True)


# -- Shuffling: a buffer from which items are drawn, and how it is filled again in mid-epoch -------
_AT_ONCE = 2**20  # draws


class Shuffling:
    """A buffer from which each new item pushes out a random one.

    Where an epoch goes on in its middle, the first items are those that the buffer held and,
    before them, those it had given that the loop had not got.

    Args:
        spec: size and seed.
        epoch: number of the epoch.
        passes: numbers of the passes of repeats around it.
        node_state: what `rest_of_input` noted.

    Source: the buffered shuffle that tf.data and WebDataset describe.
    """

    finished = False
    holds_items = True

    def __init__(self, spec: Shuffle, epoch: int, passes: Path, node_state: dict[str, Any]) -> None:
        size = spec.buffer_size
        assert size is not None
        self._node_state = node_state
        self._rng = order_generator(spec.seed, epoch, passes)
        self._drawn: int = node_state.get("drawn", 0)
        self._over: bool = node_state.get("over", False)
        _advance(self._rng, size, self._drawn)
        self._size = size
        again = node_state.get("again", [])
        self._slots: list[int] = list(node_state.get("slots", range(size)))  # numbers of the inputs
        for word, numbers in (("again", again), ("slots", self._slots)):
            check_below("shuffle", word, numbers, len({*again, *self._slots}))
        self._known: deque[int] = deque(again)  # those of the results, from number `_first` on
        self._first = self._pushed = 0
        self._needed = len({*again, *self._slots})  # before the first draw
        self._counted = self._needed  # inputs that are in a slot, or were
        self._lock = threading.Lock()  # whoever asks may come in the midst of a push
        self._early: list[Entry] = []
        self._entries: list[Entry] = []
        self._late = deque(again)  # numbers of those that are given before all others
        self._given: deque[Entry] = deque()  # that wait, since one push gives one item

    def push(self, entry: Entry) -> Entry | None:
        """Keep an item; give another one once the buffer is full."""
        self._pushed += 1
        if self._pushed <= self._needed:
            self._early.append(entry)
            if self._pushed == self._needed:
                self._fill()
            return self._next_late()
        if len(self._slots) < self._size:  # an error emptied the buffer before its time
            self._keep(entry)
            return self._next_late()
        place = int(self._rng.integers(len(self._slots)))
        with self._lock:
            self._known.append(self._slots[place])
            self._slots[place] = self._counted
            self._counted += 1
            self._drawn += 1
        out, self._entries[place] = self._entries[place], entry
        if not self._late and not self._given:
            return out
        self._given.append(out)
        return self._next_late()

    def _keep(self, entry: Entry) -> None:
        self._entries.append(entry)
        with self._lock:
            self._slots.append(self._counted)
            self._counted += 1
            self._over = False

    def _fill(self) -> None:
        early = self._early
        self._entries = [early[number] for number in self._slots if number < len(early)]

    def _next_late(self) -> Entry | None:
        """Return what comes before all that is drawn, once it is there."""
        late = self._late
        if late:
            return self._early[late.popleft()] if late[0] < len(self._early) else None
        if self._pushed >= self._needed:
            self._early = []
        return self._given.popleft() if self._given else None

    def flush(self) -> Iterator[Entry]:
        """Return what is left, in random order."""
        if self._pushed < self._needed:
            with self._lock:
                self._slots = [number for number in self._slots if number < self._pushed]
                self._counted = self._pushed
            self._fill()
            self._late = deque(number for number in self._late if number < self._pushed)
        order = [] if self._over else self._rng.permutation(len(self._entries)).tolist()
        with self._lock:
            self._known.extend(self._slots[place] for place in order)
            self._slots, self._over = [], True
        while (entry := self._next_late()) is not None:
            yield entry
        for place in order:
            yield self._entries[place]

    def rest_of_input(self, rest: Remaining, node_state: dict[str, Any]) -> Remaining:
        """Tell which items are wanted: those in the buffer, those given again, and all to come."""
        if rest.is_all:
            node_state.update(self._node_state)
            return rest
        with self._lock:
            known, slots = list(self._known), list(self._slots)
            frontier = self._counted
            node_state["drawn"], node_state["over"] = self._drawn, self._over
        again = [known[number - self._first] for number in rest.numbers(self._first + len(known))]
        numbers = sorted({*again, *slots})
        rank = {number: place for place, number in enumerate(numbers)}
        node_state["again"] = [rank[number] for number in again]
        node_state["slots"] = [rank[number] for number in slots]
        return Remaining.only(numbers, frontier)

    def close(self) -> None:
        """Hold no items any more: the epoch is over."""
        self._entries, self._early = [], []
        self._given.clear()

    def forget(self, start: int) -> None:
        """Forget what was given before item `start`; under the scheduler's lock."""
        for _ in range(min(start - self._first, len(self._known))):
            self._known.popleft()
            self._first += 1


def _advance(rng: Generator, size: int, draws: int) -> None:
    """Draw as often as was drawn before; as many numbers at once are the same numbers."""
    while draws > 0:
        rng.integers(size, size=min(draws, _AT_ONCE))
        draws -= _AT_ONCE


# -- StreamNode: operations that see the items one after the other and remember something ----------
_NO_REST: tuple[Step, ...] = ()


class StreamOperation(Protocol):
    """One pass over a stream: gives at most one entry for each it is given.

    Attributes:
        holds_items: what `flush` gives are items from before; they come also before an error.
    """

    holds_items: bool

    @property
    def finished(self) -> bool:
        """No further input is wanted."""

    def push(self, entry: Entry) -> Entry | None:
        """Take an entry; give the next one, or None."""

    def flush(self) -> Iterator[Entry]:
        """Return what is left at the end of the input."""

    def rest_of_input(self, rest: Remaining, node_state: dict[str, Any]) -> Remaining:
        """Tell which inputs are wanted, given which results are; note what else is to know.

        A thread may be in `push` meanwhile: only what it changes in one step is to be read.
        """


class StreamStep:
    """Calls `push` of a stream operation, and turns its exceptions into failures."""

    plain = False

    def __init__(self, stage: str, operation: StreamOperation, context: EpochContext) -> None:
        self.stage = stage
        self.operation = operation
        self._context = context

    def apply(self, entry: Entry, task: Task) -> Any:
        """Push one entry."""
        if self.operation.finished:
            return None
        try:
            return self.operation.push(entry)
        except BaseException as error:
            return self.failure(entry[0], entry[1], error)

    def failure(self, path: Any, value: object, error: BaseException) -> Failed:
        """Make the failure that ends the epoch."""
        return failed(
            error,
            stage=self.stage,
            executor="thread",
            epoch=self._context.epoch,
            path=path,
            value=value,
            attempts=1,
            policy=FailurePolicy(),
        )


class StreamNode(Node):
    """One task at a time, in order; at the end of the input, what the operation kept back."""

    __slots__ = (
        "active_without_input",
        "flushed",
        "rest_of_stream",
        "step",
    )

    def __init__(self, runtime: StageRuntime, epoch: Epoch, step: StreamStep) -> None:
        super().__init__(runtime, epoch)
        self.active_without_input = True
        self.step = step
        self.rest_of_stream: Expansion | None = None
        self.flushed = False

    def has_input(self) -> bool:
        """Tell whether there is something to push or to flush."""
        over = self.input_over or self.step.operation.finished
        return bool(self.inbox) or (over and not self.flushed)

    def runnable(self) -> bool:
        """Tell whether `take` would give a task."""
        runtime = self.runtime
        return (
            not (self.done or self.halted or self.running or runtime.active >= runtime.concurrency)
            and self.has_input()
            and self.room() > 0
            and self.epoch.admits(self)
        )

    def take(self, now_ns: int) -> Task | None:
        """Choose the next chunk of the queue, or of what is left at the end."""
        if not self.runnable():
            return None
        if self.step.operation.finished:
            self._close_input()
        available, room = len(self.inbox), self.room()
        if not available:
            return self._take_flush(room, now_ns)
        pop = self.inbox.popleft
        items = deque([pop() for _ in range(self.chunk(room, available))])
        self.epoch.release(items)
        self.reserved += len(items)
        self.freed(now_ns)
        return self.started(Task(self, 0, items), now_ns)

    def _take_flush(self, room: int, now_ns: int) -> Task:
        quota = self.chunk(room, room)
        task = Task(self, 0, deque(), quota)
        if self.rest_of_stream is None:
            self.rest_of_stream = Expansion(0)
        task.expansion = self.rest_of_stream
        self.reserved += quota
        return self.started(task, now_ns)

    def work(self, task: Task) -> None:
        """Push the items, or draw from what is left."""
        if task.expansion is None:
            run_steps(task, self.step, _NO_REST)
            return
        rest = task.expansion
        try:
            if rest.entries is None:
                rest.entries = self._left()
            for _ in range(task.quota):
                task.results.append(next(rest.entries))
        except StopIteration:
            rest.over = True
        except BaseException as error:
            task.irregular = rest.over = True
            task.results.append(self.step.failure(-1, None, error))

    def _left(self) -> Iterator[Entry]:
        operation = self.step.operation
        if self.input_error is not None and not operation.holds_items:
            return iter(())
        return operation.flush()

    def rest_of_input(self, rest: Remaining, stages: Stages) -> Remaining:
        """Have the operation say what it wants."""
        node_state: dict[str, Any] = {}
        inputs = self.step.operation.rest_of_input(rest, node_state)
        note(stages, self.runtime.address, node_state)
        return inputs

    def forget(self, below: Mapping[int, Remaining]) -> None:
        """Let the operation forget what nobody wants any more."""
        forget = getattr(self.step.operation, "forget", None)
        if forget is not None:
            forget(min(rest.start for rest in below.values()))

    @property
    def keeps(self) -> bool:
        """Whether the operation can keep what it made, and saw all of it."""
        return not self.cut and hasattr(self.step.operation, "commit")

    def commit(self) -> None:
        """Let the operation keep what it made: all was consumed; called without the lock."""
        commit = getattr(self.step.operation, "commit", None)
        if commit is not None:
            commit()

    def close(self) -> None:
        """Let the operation drop what it keeps outside this process; called without the lock."""
        close = getattr(self.step.operation, "close", None)
        if close is not None:
            close()

    def halt(self) -> None:
        """Stop, and have the operation closed."""
        super().halt()
        self.epoch.litter.append(self)

    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on results as they come: there is one task at a time."""
        if self.done:
            return
        if final:
            self.reserved = 0
        else:
            self.reserved -= len(results)
        if results:
            self.emit(results, now_ns, irregular=task.irregular)
        if not final:
            return
        if task.expansion is not None:
            self.flushed = task.expansion.over
        elif self.step.operation.finished:
            self._close_input()

    def _close_input(self) -> None:
        self.input_error = None  # whatever comes, or went wrong, behind what is wanted
        for above in self.upstream:
            above.cut_off()
        if not self.input_over and not self.done:
            self.epoch.halt(self.upstream)
            self.epoch.release(self.inbox)
            self.epoch.drop(self.inbox)
            self.input_over = self.epoch.changed = True

    def end_of_input(self, error: BaseException | None) -> None:
        """Called when nothing more will come; it is of no interest once nothing is wanted."""
        super().end_of_input(None if self.step.operation.finished else error)

    def exhausted(self) -> bool:
        """Tell whether everything was pushed and flushed."""
        return not self.inbox and not self.running and self.flushed


# -- Stream operations: they see the items in order and remember something from one to the next ----
NodeState = dict[str, Any]  # where a stage stands; JSON-ready


class Taking:
    """The first `count` items."""

    holds_items = False

    def __init__(self, count: int, node_state: NodeState) -> None:
        self._count = self._left = node_state.get("left", count)
        self.finished = self._left == 0

    def rest_of_input(self, rest: Remaining, node_state: NodeState) -> Remaining:
        """Tell how many items are left to take."""
        node_state["left"] = max(0, self._count - rest.left_out)
        return rest

    def push(self, entry: Entry) -> Entry | None:
        """Let an item pass while there are some to take."""
        self._left -= 1
        self.finished = self._left <= 0
        return entry

    def flush(self) -> Iterator[Entry]:
        """Return nothing more."""
        return iter(())


class Skipping:
    """All but the first `count` items."""

    finished = False
    holds_items = False

    def __init__(self, count: int, node_state: NodeState) -> None:
        self._count = self._left = node_state.get("left", count)

    def rest_of_input(self, rest: Remaining, node_state: NodeState) -> Remaining:
        """Tell how many items are still to be left out."""
        if rest.is_all:
            node_state["left"] = left = self._left
            return Remaining(self._count - left)
        node_state["left"] = 0
        return rest.moved(self._count)

    def push(self, entry: Entry) -> Entry | None:
        """Let an item pass once enough were left out."""
        if self._left:
            self._left -= 1
            return None
        return entry

    def flush(self) -> Iterator[Entry]:
        """Return nothing more."""
        return iter(())


class Enumerating:
    """Pairs of a number and an item."""

    finished = False
    holds_items = False

    def __init__(self, node_state: NodeState) -> None:
        self._rest = Remaining.read(node_state.get("rest", [0, []]))
        self._numbers = self._rest.numbers(LONGEST)

    def rest_of_input(self, rest: Remaining, node_state: NodeState) -> Remaining:
        """Tell which numbers are still to be given."""
        node_state["rest"] = self._rest.of_wanted(rest).data
        return rest

    def push(self, entry: Entry) -> Entry | None:
        """Number an item."""
        return (entry[0], (next(self._numbers), entry[1]))

    def flush(self) -> Iterator[Entry]:
        """Return nothing more."""
        return iter(())


class Windowing:
    """Lists of `size` neighbours, `stride` apart; the path is that of the first."""

    finished = False
    holds_items = False

    def __init__(self, size: int, stride: int, node_state: NodeState) -> None:
        self._size = size
        self._stride = stride
        self._entries: deque[Entry] = deque(maxlen=size)
        self._skipped = node_state.get("skip", 0)
        self._until = self._skipped + size
        self._pushed = 0

    def rest_of_input(self, rest: Remaining, node_state: NodeState) -> Remaining:
        """Begin with the first item of the next window; windows behind it overlap."""
        first = self._skipped + rest.start * self._stride if rest.start else 0
        start = min(first, self._pushed)
        node_state["skip"] = first - start if rest.start else self._skipped
        if rest.gaps:
            node_state["drop"] = rest.behind_start().data
        return Remaining(start)

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
        """Return nothing more: a window that is not whole is left out."""
        return iter(())


class Sharding:
    """Every `world_size`-th item of a stream from `rank` on."""

    finished = False
    holds_items = False

    def __init__(self, spec: Shard, node_state: NodeState) -> None:
        self._rank = spec.rank
        self._world = spec.world_size
        self._tail = spec.tail
        self._rounds = Remaining.read(node_state.get("rest", [0, []]))
        self._begun = self._seen = min(self._rounds.start * self._world, node_state.get("seen", 0))
        self._padded: bool = node_state.get("padded", False)
        self._inputs = self._wanted(self._rounds, self._begun)
        self._numbers = self._inputs.numbers(LONGEST)
        self._given = 0
        self._held: Entry | None = None
        self._first: list[Entry] = []  # what "pad" repeats

    def rest_of_input(self, rest: Remaining, node_state: NodeState) -> Remaining:
        """Begin with the next round; what is to pad the last one is read again."""
        rounds = self._rounds.of_wanted(rest)
        node_state.update(rest=rounds.data, seen=self._seen)
        node_state["padded"] = self._padded or rest.start > self._given
        return self._inputs.ranked(self._wanted(rounds, self._seen))

    def _wanted(self, rounds: Remaining, seen: int) -> Remaining:
        """Return the items of the whole stream that are wanted, given the rounds that are."""
        world = self._world
        start = min(rounds.start * world, seen)
        gaps = [(first * world, end * world) for first, end in rounds.gaps]
        if self._tail != "pad":
            return Remaining.of(start, gaps)
        return Remaining.of(0, [(min(world, start), start), *gaps])

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

    def __init__(
        self, store: Store, passes: tuple[int, ...], made: Made, node_state: NodeState
    ) -> None:
        self._store = store
        self._passes = passes
        self._as_of = made
        self._rest = Remaining.read(node_state.get("rest", [0, []]))
        self._keeps = self._rest.is_all  # else the beginning was seen by another process
        self._made: Recorder | None = None
        self._closed = False
        self._whole = False

    def rest_of_input(self, rest: Remaining, node_state: NodeState) -> Remaining:
        """Tell which items are left, for a cache that is complete by then."""
        node_state["rest"] = self._rest.of_wanted(rest).data
        node_state["made"] = [self._as_of[0], list(self._as_of[1])]
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

    def __init__(self, rest: Remaining) -> None:
        self._rest = rest
        self._pushed = 0

    def rest_of_input(self, rest: Remaining, node_state: NodeState) -> Remaining:
        """Count among all items; what has not come yet is left out when it comes."""
        left, seen = self._rest.of_wanted(rest), self._pushed
        inputs = Remaining.of(min(left.start, seen), left.until(seen).gaps)
        later = inputs.ranked(left)
        if not later.is_all:
            node_state["drop"] = later.data
        return inputs

    def push(self, entry: Entry) -> Entry | None:
        """Let an item pass that is left."""
        self._pushed += 1
        return entry if self._pushed - 1 in self._rest else None

    def flush(self) -> Iterator[Entry]:
        """Return nothing more."""
        return iter(())


def operation_of(
    stage: Stage, context: EpochContext, passes: tuple[int, ...], node_state: NodeState
) -> StreamOperation:
    """Make the operation of a stage for one pass, or for what is left of it."""
    match stage.spec:
        case Take(count=count):
            return Taking(count, node_state)
        case Skip(count=count):
            return Skipping(count, node_state)
        case Enumerate():
            return Enumerating(node_state)
        case Window(size=size, stride=stride):
            return Windowing(size, stride, node_state)
        case Shuffle() as shuffle:
            return Shuffling(shuffle, context.epoch, passes or 0, node_state)
        case Shard() as shard:
            return Sharding(shard, node_state)
        case Batch() as batch:
            return BatchByCost(batch, node_state)
    raise TypeError(f"{stage.op} is no stream operation")
