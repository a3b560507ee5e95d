"""InlineEngine: one epoch worked off in the calling thread.

The nodes are built as for a run. Only, no threads ask them for work: one loop does, which always
takes the most downstream work there is and lets no stage hold anything ready. So it does what a
run does, and no more of it than the items need.
"""

from __future__ import annotations

import dataclasses
from _thread import allocate_lock
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any, Protocol, cast

from .cache import Made, MemoryStore, Recorder, Store
from .claims import LocalStore
from .draws import Claim
from .engine.build import Builder
from .engine.context import EpochContext
from .engine.epoch import Epoch
from .engine.join import PumpNode
from .engine.lane import Lane
from .engine.mapnode import MapNode
from .engine.node import Node
from .engine.route import Chooser
from .engine.steps import Step
from .engine.task import Entry, Task
from .executors.base import Work
from .executors.coroutine import EventLoop
from .failure import Failure
from .operations import Cache
from .seeding import Path
from .stage import Chain, Stage

_CLOSE_S = 5.0  # how long a coroutine may take to hear that it is cancelled


class Witness(Protocol):
    """Sees what the stages do."""

    def gave(self, address: str, entries: Iterable[Entry]) -> None:
        """Hear what a stage gave, before the next one gets it."""

    def failed(self, failure: Failure) -> None:
        """Hear of an item that failed."""


class InlineEngine:
    """Works off epoch 0 with seed 0; coroutines run on a loop that it closes again.

    Caches are read, but never written.

    Args:
        chain: the stages.
        witness: sees what they do.

    Attributes:
        lanes: counters by address.
    """

    def __init__(self, chain: Chain, witness: Witness) -> None:
        self.lanes: dict[str, Lane] = {}
        self._witness = witness
        self._loop = EventLoop(self)
        self._answered = allocate_lock()
        self._answered.acquire()
        self._crash: BaseException | None = None
        self._task: Task | None = None
        self._epoch = Epoch(EpochContext(0, 0), memory=None, remember=witness.failed)
        Builder(_with_private_caches(chain, {}), self._epoch, self._lane).build()

    def _lane(self, address: str, stage: Stage, prefetch: int) -> Lane:
        lane = self.lanes.get(address)
        if lane is None:
            lane = Lane(address, stage, prefetch=0, now_ns=perf_counter_ns())
            lane.concurrency, lane.prefetch = 1, 0  # one item at a time, whatever the knobs say
            self.lanes[address] = lane
        return lane

    def items(self, n: int) -> list[Any]:
        """Give the first `n` items, or fewer where the epoch has fewer; then close everything."""
        given: list[Any] = []
        try:
            while len(given) < n and (entry := self._next()) is not None:
                given.append(entry[1])
        finally:
            self._close()
        return given

    def _next(self) -> Entry | None:
        epoch = self._epoch
        while True:
            epoch.changed = False
            self._pump()
            if epoch.sink and not epoch.urgent:
                return epoch.sink.popleft()
            if epoch.exhausted:
                if epoch.error is not None:
                    raise epoch.error
                return None
            task = self._take()
            if task is not None:
                self._do(task)
            elif not epoch.changed:
                raise RuntimeError("no stage can go on, and none has ended: please report this")

    def _pump(self) -> None:
        """Let the joins move what they can, and see what it is."""
        epoch = self._epoch
        now_ns = epoch.now_ns = perf_counter_ns()
        moved = True
        while moved:
            moved = False
            for pump in tuple(epoch.pumps):
                before = pump.lane.counters.items_out
                moved = pump.pump(now_ns) or moved
                fresh = pump.lane.counters.items_out - before
                if fresh:
                    self._witness.gave(pump.lane.address, list(pump.out)[-fresh:])

    def _take(self) -> Task | None:
        """Choose the most downstream work, but none for a join that waits for another input."""
        for lane in self.lanes.values():
            lane.cost_ns = float("inf")  # or a task would be a chunk of several items
        now_ns = perf_counter_ns()
        wanted = {id(self._epoch.last)}
        for node in self._epoch.order:
            if id(node) not in wanted:
                continue
            task = node.take(now_ns)
            if task is not None:
                return task
            joins = isinstance(node, PumpNode)
            wanted.update(id(above) for above in node.upstream if not (joins and above.out))
        return None

    def _do(self, task: Task) -> None:
        node = task.node
        self._watch_fused(node)
        self._task = task
        if node.remote:
            self._loop.submit((task,))
            self._answered.acquire()
            if self._crash is not None:
                raise self._crash
        else:
            task.run()
        for result in task.results:
            _raise_interrupt(result)
        if not _chooses(node):
            lane = node.rest_lanes[-1] if node.rest_lanes else node.lane
            self._witness.gave(lane.address, (r for r in task.results if type(r) is tuple))
        node.settle(task)
        self._task = None

    def _watch_fused(self, node: Node) -> None:
        if not node.rest or isinstance(node.rest[0], _SeenStep):
            return
        above = (node.lane, *node.rest_lanes)
        steps = [
            _SeenStep(step, place, above[place].address, self._witness)
            for place, step in enumerate(node.rest)
        ]
        node.rest = cast("tuple[Step, ...]", tuple(steps))

    # -- what the event loop calls, in its thread
    def advance_loop(self, done: Work) -> Sequence[Work]:
        """Hear that a call ended."""
        assert isinstance(done, Task)
        done.ended_ns = perf_counter_ns()
        self._answered.release()
        return ()

    def crashed(self, error: BaseException) -> None:
        """Hear that the loop itself failed."""
        self._crash = error

    def end_turn(self) -> None:
        """Hear that the loop went round: nothing to do, there is one call at a time."""

    def _close(self) -> None:
        epoch = self._epoch
        epoch.end()
        if self._task is not None and self._task.expansion is not None:
            epoch.litter.append(self._task.expansion)
        self._loop.close(_CLOSE_S)
        epoch.clear_up("a peek")


class _SeenStep:
    """A fused step that shows what the stage before it gave; the time of that counts for none."""

    def __init__(self, step: Step, place: int, above: str, witness: Witness) -> None:
        self._step = step
        self._place = place
        self._above = above
        self._witness = witness

    def apply(self, entry: Entry, task: Task) -> Any:
        """Note the entry, then do the step."""
        begun_ns = perf_counter_ns()
        self._witness.gave(self._above, (entry,))
        spent_ns = perf_counter_ns() - begun_ns
        task.started_ns += spent_ns
        if task.tally is not None:
            task.tally[self._place][2] -= spent_ns
        return self._step.apply(entry, task)


def _chooses(node: Node) -> bool:
    """Say whether a node only finds the branches of a route; its items show behind them."""
    return isinstance(node, MapNode) and isinstance(node.first.fn, Chooser)


def _raise_interrupt(result: Any) -> None:
    """Let through the interrupt that hit a function: it was meant for this thread."""
    cause = getattr(getattr(result, "exception", None), "__cause__", None)
    if isinstance(cause, KeyboardInterrupt):
        raise cause


# -- caches -------------------------------------------------------------------------------


class _PrivateStore(Store):
    """Reads a cache; writes to memory of its own, for the later passes of a `repeat`."""

    def __init__(self, store: Store) -> None:
        self._stores = (store, MemoryStore())
        self.place = store.place

    @property
    def complete(self) -> bool:
        """Whether there is a whole pass to read."""
        return any(store.complete for store in self._stores)

    @property
    def made(self) -> Made:
        """The epoch that made what is complete."""
        return next(store for store in self._stores if store.complete).made

    def recorder(self, made: Made) -> Recorder:
        """Record into memory."""
        return self._stores[1].recorder(made)

    def entries(self) -> Iterator[tuple[Path, Any]]:
        """Read what is complete."""
        return next(store for store in self._stores if store.complete).entries()


def _with_private_caches(chain: Chain, known: dict[int, _PrivateStore]) -> Chain:
    return tuple(_with_private_cache(stage, known) for stage in chain)


def _with_private_cache(stage: Stage, known: dict[int, _PrivateStore]) -> Stage:
    spec = stage.spec
    if isinstance(spec, Cache):
        store = known.setdefault(id(spec.store), _PrivateStore(spec.store))
        spec = dataclasses.replace(spec, store=store)
    elif isinstance(spec, Claim):  # the other ranks keep what it would take
        spec = dataclasses.replace(spec, store=LocalStore())
    inputs = tuple(_with_private_caches(inner, known) for inner in stage.inputs)
    if spec is stage.spec and inputs == stage.inputs:
        return stage
    return Stage(spec, name=stage.name, named=stage.named, executor=stage.executor, inputs=inputs)
