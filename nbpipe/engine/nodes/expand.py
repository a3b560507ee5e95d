"""ExpandNode: operations that give any number of items for one; SourceNode: sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, final

from ...base.seeding import Entry, Path
from ...base.threads import Latch
from ...base.tree import size_bytes
from ...executors.thread import WorkerThread
from ...ops.ranges import IndexRanges
from ..measures.counters import StageRuntime
from .external import Feed
from .factories import IteratorFactory
from .failures import Failed
from .node import Node, NodeEpoch, Runner, Task, draw
from .provenance import ChildLog, Provenance, SourceLog
from .step import Chunk, OpenIterator, chunk_of_results


class DrawRunner(Runner):
    """Draws results from open iterators.

    Args:
        factory: opens them, and decides what a failure means.
    """

    __slots__ = ("_factory",)

    def __init__(self, epoch: NodeEpoch, factory: IteratorFactory) -> None:
        super().__init__(epoch)
        self._factory = factory

    def run(self, task: Task) -> None:
        """Draw up to the quota; results before a failure are kept."""
        iterator = task.iterator
        assert iterator is not None
        if self._factory.own and iterator.context is None:
            iterator.context = self.epoch.settings.of_thread()
        iterator.run(self._draw, task, iterator)

    def _draw(self, task: Task, iterator: OpenIterator) -> None:
        rest = self.rest
        try:
            if iterator.entries is None:
                self._factory.open(iterator)
                if rest or self.epoch.memory is not None:
                    iterator.pair()
            entries = iterator.entries
            if rest:
                entries = (task.through(entry, rest) for entry in entries)
            iterator.over = draw(task, entries)
        except BaseException as error:
            self._recover(task, iterator, error)

    async def run_async(self, task: Task) -> None:
        """Draw up to the quota from an async iterator."""
        iterator = task.iterator
        assert iterator is not None
        try:
            if iterator.entries is None:
                await self._factory.open_async(iterator)
            for _ in range(task.quota):
                task.results.append(await iterator.entries.__anext__())
        except StopAsyncIteration:
            iterator.over = True
        except BaseException as error:
            self._recover(task, iterator, error)

    def _recover(self, task: Task, iterator: OpenIterator, error: BaseException) -> None:
        failure = self._factory.recover(iterator, error, task)
        if failure is None:  # to be opened again, past the children already given
            return
        iterator.over = iterator.failed = task.irregular = True
        task.results.append(failure)

    def measure(self, task: Task) -> None:
        """Measure a result, to estimate the bytes that the stage hands on."""
        iterator, results = task.iterator, task.results
        if iterator is None or iterator.paths is None:
            super().measure(task)
        elif results and type(results[-1]) is not Failed:
            task.result_bytes = size_bytes(results[-1])

    def made(self, task: Task) -> Iterator[Entry]:
        """Yield the items that a task made."""
        iterator = task.iterator
        if iterator is None or iterator.paths is None:
            return super().made(task)
        pairs = zip(iterator.paths[task.drawn :], task.results, strict=False)
        return (one for one in pairs if type(one[1]) is not Failed)

    def item_of(self, task: Task) -> str:
        """Return the path of the item that is drawn from; of a source, the one that is drawn."""
        iterator = task.iterator
        if iterator is None:
            return ""
        if iterator.entry is not None:
            return str(iterator.entry[0])
        return str(self._factory.path_of(task.drawn + len(task.results)))


# -- ExpandNode ------------------------------------------------------------------------------------
class ExpandNode(Node):
    """Draws from one iterator for each item, from up to `concurrency` of them at once.

    In input order, results of the first iterator are handed on at once. Later ones work ahead into
    buffers, which count against the same limit; one place always remains for the first.

    Args:
        factory: opens the iterators, and decides what a failure means.
        runner: draws from them; a `DrawRunner` unless given.
        provenance: a `ChildLog` unless given.
        ordered: results keep input order.
        remote: tasks run on the event loop.
        known: for the path of an input its children that are wanted, where not all are.

    Attributes:
        least_free: a task begins when this share of a chunk has places.
        live: iterators that have not given all their results.
        seq_in: number of the next input.
        buffered: results in all buffers.
        children: the provenance.
    """

    __slots__ = ("buffered", "children", "live", "seq_in")
    one_each = False
    least_free: ClassVar[float] = 0.5

    def __init__(
        self,
        runtime: StageRuntime,
        epoch: NodeEpoch,
        factory: IteratorFactory,
        *,
        runner: Runner | None = None,
        provenance: Provenance | None = None,
        ordered: bool = True,
        remote: bool = False,
        known: dict[Path, IndexRanges] | None = None,
    ) -> None:
        self.children = ChildLog(runtime.address, known or {})
        super().__init__(
            runtime,
            epoch,
            runner or DrawRunner(epoch, factory),
            provenance=provenance or self.children,
            ordered=ordered,
            remote=remote,
        )
        self.active_without_input = True
        self.chunked = not factory.shared  # draw no more of a shared order than is needed
        self.counts_in = False  # an item is counted when its call begins
        self.live: list[OpenIterator] = []
        self.seq_in = 0
        self.buffered = 0

    # -- room ---------------------------------------------------------------------------
    def held(self) -> int:
        """Return the number of results ready, those that wait for earlier ones included."""
        return self.out.count + self.out.lent + self.buffered

    def room(self) -> int:
        """Return the number of further items that may be drawn.

        While they are cheap, a call has places for a chunk. It begins when half of them are free,
        so that iterators of few items do not each hand on alone; a source, when all are.
        """
        runtime, chunk_size = self.runtime, self.runtime.chunk_size
        if chunk_size == 1 or not self.chunked:
            return super().room()
        places, out = runtime.prefetch + runtime.concurrency * chunk_size + self.gathers, self.out
        places -= self.reserved + out.count + out.lent + self.buffered
        return places if places >= chunk_size * self.least_free else 0

    def _room_of(self, place: int, room: int) -> int:
        """Return the most that the live iterator at `place` may give, if there is `room`."""
        if not self.ordered:
            return room
        if place == 0:  # it continues though later ones, or a lowered knob, leave no room
            needed = not self.reserved and super().held() < (self.gathers or 1)
            return max(room, 1) if needed else room
        return min(room, self._room_ahead())

    def _room_ahead(self) -> int:
        """Return the places for iterators that work ahead: all but one for the first.

        Their results wait until the first one ends, so a chunk counts with all its items.
        """
        runtime, first = self.runtime, self.live[0]
        ahead = self.reserved - first.owed
        return runtime.prefetch + runtime.concurrency - ahead - self.held() - 1

    # -- choosing work ------------------------------------------------------------------
    def has_input(self) -> bool:
        """Return whether anything could be drawn."""
        return bool(self.inbox.count) or any(not x.over and not x.held for x in self.live)

    @property
    def _may_start(self) -> bool:
        """Whether a task may start, if it finds room."""
        if self.done or self.halted or self.runtime.active >= self.runtime.concurrency:
            return False
        return self.epoch.memory is None or self.epoch.admits(self)

    def runnable(self) -> bool:
        """Return whether `take` would return a task."""
        return self._choose() is not None

    def take(self, now_ns: int) -> Task | None:
        """Choose an iterator to draw from, or begin a new one."""
        choice = self._choose()
        return None if choice is None else self._begin(*choice, now_ns)

    def _choose(self) -> tuple[OpenIterator | None, int] | None:
        """Return the iterator to draw from (None: a new one) and the most it may give.

        An iterator that belongs to a thread is left to it.
        """
        if not self._may_start:
            return None
        runtime, room = self.runtime, self.room()
        calls = runtime.active - self.running
        for place, iterator in enumerate(self.live):
            calls += not iterator.over
            if iterator.held or iterator.over or iterator.owner is not None:
                continue
            allowed = self._room_of(place, room)
            if allowed > 0:
                return iterator, allowed
        if not self.inbox.count or calls >= runtime.concurrency:
            return None
        allowed = min(room, self._room_ahead()) if self.live and self.ordered else room
        if allowed > 0 and len(self.live) < runtime.prefetch + runtime.concurrency:
            return None, allowed
        return None

    def readable(self) -> Iterator[tuple[OpenIterator, int]]:
        """Yield iterators that belong to a thread and may be read, with the most they may give."""
        if not self._may_start:
            return
        room = self.room()
        for place, iterator in enumerate(self.live):
            if iterator.owner is not None and not (iterator.held or iterator.over):
                allowed = self._room_of(place, room)
                if allowed > 0:
                    yield iterator, allowed

    def read_on(self, iterator: OpenIterator, now_ns: int) -> Task | None:
        """Choose the next task of an iterator, for the thread that it belongs to."""
        for other, allowed in self.readable():
            if other is iterator:
                task = self._begin(iterator, allowed, now_ns)
                task.cheap = False  # this thread is bound: others are woken for the other stages
                return task
        return None

    def _begin(self, iterator: OpenIterator | None, allowed: int, now_ns: int) -> Task:
        """Return the task that draws from an iterator, or from that of the next input."""
        if iterator is None:
            entry = self.inbox.popleft()
            iterator = OpenIterator(self.seq_in, entry)
            iterator.wanted = self.children.begin(self.seq_in, entry[0])
            self.seq_in += 1
            self.live.append(iterator)
            self.counts.items_in += 1
            self.freed(now_ns)
        iterator.held = True
        task = Task(self, iterator.seq, now_ns, quota=self.chunk(allowed))
        task.iterator = iterator
        task.drawn = iterator.drawn
        self.reserved += task.quota
        iterator.owed = task.quota
        return self.started(task, now_ns)

    # -- handing on results -------------------------------------------------------------
    def accept(self, task: Task, at: int, results: list[Any], now_ns: int, *, final: bool) -> None:
        """Hand on what was drawn, or keep it until its turn."""
        iterator = task.iterator
        assert iterator is not None
        if final and self.halted and iterator.end is not None:
            iterator.end()
        if self.done:
            return
        made = iterator.owed if final else len(results)
        self.reserved -= made
        iterator.owed -= made
        iterator.held = iterator.held and not final
        iterator.drawn += len(results)
        if not self.ordered or self.live[0] is iterator:
            self.hand_on(iterator, results, now_ns, irregular=task.irregular)
        else:
            iterator.buffer.extend(results)
            iterator.irregular = iterator.irregular or task.irregular
            self.buffered += len(results)
        self._end_iterators(now_ns)
        if final:
            self.note_state(now_ns)

    def hand_on(
        self, iterator: OpenIterator, results: list[Any], now_ns: int, *, irregular: bool
    ) -> None:
        """Hand on results of an iterator whose turn it is."""
        if results:
            sized = self.epoch.memory is not None
            chunk = chunk_of_results(results, irregular=irregular, sized=sized)
            self.emit(chunk, now_ns, irregular=irregular)
        kept = sum(type(one) is tuple for one in results) if irregular else len(results)
        self.children.record(iterator.seq, kept)

    def _end_iterators(self, now_ns: int) -> None:
        """Remove iterators that gave all their results; then it is the turn of the next one."""
        if not self.ordered:
            for x in [x for x in self.live if x.over and not x.held]:
                self.live.remove(x)
                self._ended(x)
            return
        while self.live and not self.done and self.live[0].over and not self.live[0].held:
            self._ended(self.live.pop(0))
            if self.live and self.live[0].buffer and not self.done:
                self._hand_on_buffer(self.live[0], now_ns)

    def _hand_on_buffer(self, iterator: OpenIterator, now_ns: int) -> None:
        results, iterator.buffer = iterator.buffer, []
        self.buffered -= len(results)
        self.epoch.deferred_release.append(results)
        self.hand_on(iterator, results, now_ns, irregular=iterator.irregular)

    def _ended(self, iterator: OpenIterator) -> None:
        """Count an input that gave all its children; one that failed was counted before."""
        self.epoch.deferred_release.append(iterator)
        self.children.end(iterator.seq, failed=iterator.failed)
        if not iterator.failed:
            error = self.failures.count_input()
            if error is not None:
                self.fail(error)

    # -- the end ------------------------------------------------------------------------
    def exhausted(self) -> bool:
        """Return whether every iterator came to its end."""
        return not self.inbox.count and not self.live

    def let_go(self) -> None:
        """Release all items, and results that wait for earlier ones."""
        super().let_go()
        for x in self.live:
            self.epoch.deferred_release.append(x.buffer)
            x.buffer = []

    def halt(self) -> None:
        """Stop, and have open iterators closed: by the threads that they belong to, if any."""
        super().halt()
        self.epoch.pending_close.extend(x for x in self.live if not x.held)
        for x in self.live:
            x.unwanted = True
            if x.owner is not None:
                x.owner.call()
            elif x.end is not None and not x.held:
                x.end()


# -- SourceNode: a source has one iterator, and no input -------------------------------------------
class SourceNode(ExpandNode):
    """Draws from the one iterator of a source.

    Args:
        factory: opens the iterator.
        remote: it is read on the event loop.

    Attributes:
        fuses: inline stages may run with it.
        log: the provenance.
    """

    __slots__ = ("fuses", "log")
    one_each = True
    least_free = 1

    def __init__(
        self,
        runtime: StageRuntime,
        epoch: NodeEpoch,
        factory: IteratorFactory,
        *,
        remote: bool = False,
    ) -> None:
        self.log = SourceLog(runtime.address, factory.record_state)
        super().__init__(runtime, epoch, factory, provenance=self.log, remote=remote)
        self.fuses = not factory.own
        self.counts_in = True
        self.live.append(OpenIterator(0))
        self.input_over = True

    def hand_on(
        self, iterator: OpenIterator, results: list[Any], now_ns: int, *, irregular: bool
    ) -> None:
        """Hand on results, and record those that inline stages dropped."""
        first = self.seq_out
        self.seq_out += len(results)
        if results:
            if iterator.paths is None:
                sized = self.epoch.memory is not None
                chunk = chunk_of_results(results, irregular=irregular, sized=sized)
            else:
                paths = iterator.paths[iterator.drawn - len(results) : iterator.drawn]
                chunk = Chunk(paths, results)
            self.emit(chunk, now_ns, irregular=irregular)
        if irregular:
            self.log.record(first, results)

    def _ended(self, iterator: OpenIterator) -> None:
        self.epoch.deferred_release.append(iterator)


class FedNode(SourceNode):
    """A source that draws only indices that were pushed, so that no thread waits for them.

    Args:
        factory: opens the iterator over the items.
        feed: where the indices come from.
    """

    __slots__ = ("feed",)

    def __init__(
        self, runtime: StageRuntime, epoch: NodeEpoch, factory: IteratorFactory, feed: Feed
    ) -> None:
        super().__init__(runtime, epoch, factory)
        self.feed = feed

    def has_input(self) -> bool:
        """Return whether there is an index to draw, or the end to be noticed."""
        return bool(self.feed.ready or self.feed.ended) and super().has_input()

    def _choose(self) -> tuple[OpenIterator | None, int] | None:
        return super()._choose() if self.has_input() else None

    def chunk(self, available: int) -> int:
        """Return the number of items for one task: as many as there are indices, or the end."""
        return super().chunk(min(available, max(1, self.feed.ready)))

    def finish(self) -> None:
        """Take no more indices: everything was read, or one failed."""
        super().finish()
        self.feed.cut()

    def halt(self) -> None:
        """Stop, and let no thread wait that pushes indices."""
        super().halt()
        self.feed.cut()


# -- Readers: threads that have an open iterator of the user's -------------------------------------
@final
class Readers:
    """Threads that are bound to an open iterator of the user's, and do nothing else meanwhile.

    The iterator may set what holds in one thread, as `torch.no_grad` does, or use what another
    thread may not, as a connection of sqlite. A thread that finds an iterator still open after a
    task is bound to it until the iterator ends or is closed. Called under the scheduler's lock.

    Attributes:
        of: for each thread its node and its iterator.
    """

    def __init__(self, bind: Callable[..., object]) -> None:
        self._bind = bind
        self.of: dict[WorkerThread, tuple[ExpandNode, OpenIterator]] = {}

    def complete(self, node: Node, iterator: OpenIterator, worker: WorkerThread) -> None:
        """Called when a thread has drawn from an iterator: bind or release the thread."""
        if not iterator.stays:
            self.release(worker)
        elif iterator.owner is None and isinstance(node, ExpandNode):
            iterator.owner, iterator.closed = worker, Latch()
            self.of[worker] = node, iterator
            self._bind(worker, bound=True)
            iterator.unwanted |= node.halted

    def release(self, worker: WorkerThread) -> None:
        """Release a thread whose iterator has ended or is closed."""
        if worker in self.of:
            _, iterator = self.of.pop(worker)
            self._bind(worker, bound=False)
            iterator.owner = None
            assert iterator.closed is not None
            iterator.closed.open()

    def call(self) -> None:
        """Wake for each node the first thread that may read; when it does, it wakes more."""
        for node in {node: None for node, _ in self.of.values()}:
            iterator, _ = next(node.readable(), (None, 0))
            if iterator is not None and iterator.owner is not None:
                iterator.owner.call()
