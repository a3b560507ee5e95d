"""The resize fuzz: every knob turned thousands of times a second while items are checked.

What is checked, and how honestly:

- Limit and bound are checked under the engine's own lock, at the moment when a task is accepted:
  a stage whose calls in progress grew is within the limit in force, a stage whose held results and
  tasks grew is within its bound (`prefetch` results and `concurrency` chunks, of one item where
  calls are slow), and no chunk is larger than it may be. `Knob.set` has returned only after the new
  limit is in force.
- From outside, calls inside the user's functions are counted on entry. A call was accepted after
  its thread left its last call; so the calls now in progress were once allowed together: their
  number is at most the highest value the knob had since the latest of these moments.
"""

import asyncio
import random
import threading
import time
from collections import deque

import pytest

import nbpipe
from tests.engine.inner import Epoch
from tests.gates import drained
from tests.strategies import examples

ITEMS = 600
TURNS = examples(40)  # of each of the threads that turn knobs
BROKEN = examples(1)  # epochs broken off


class Ceiling:
    """The highest limit in force over time, and the calls in progress under it."""

    def __init__(self, value):
        self.lock = threading.Lock()
        self.values = deque([(0, value)], maxlen=100_000)
        self.since = {}  # of each call in progress: when its thread left its last call
        self.left = {}
        self.problems = []

    def change(self, knob, value):
        """Set the knob; meanwhile the higher of both values is allowed."""
        with self.lock:
            self.values.append((time.perf_counter_ns(), max(knob.value, value)))
        knob.set(value)
        with self.lock:
            self.values.append((time.perf_counter_ns(), value))

    def enter(self):
        me = threading.get_ident()
        with self.lock:
            self.since[me] = self.left.get(me, 0)
            latest = max(self.since.values())
            allowed = 0
            for at, value in reversed(self.values):
                allowed = max(allowed, value)
                if at < latest:
                    break
            if len(self.since) > allowed:
                self.problems.append((len(self.since), allowed))

    def leave(self):
        me = threading.get_ident()
        with self.lock:
            del self.since[me]
            self.left[me] = time.perf_counter_ns()


@pytest.fixture
def broken(monkeypatch):
    """Check limit and bound of every stage under the lock, whenever a call is accepted."""
    found = []
    take = Epoch.take

    def held(node):
        by_item = node.runtime.chunk_size > 1 and node.chunked
        return (node.reserved if by_item else node.waiting + node.running) + node.held()

    def head_goes_on(node, holds):
        """In order, the first of several expansions has one place whatever later ones hold."""
        return hasattr(node, "buffered") and not node.out and held(node) <= holds + 1

    def checked(epoch, now_ns, **options):
        before = {id(node): (node.runtime.active, held(node)) for node in epoch.order}
        task = take(epoch, now_ns, **options)
        for node in epoch.order:
            active, holds = before.get(id(node), (0, 0))
            runtime = node.runtime
            if runtime.active > max(active, runtime.concurrency):
                found.append(
                    f"{runtime.address}: {runtime.active} calls, limit {runtime.concurrency}"
                )
            chunk_size = runtime.chunk_size if node.chunked else 1
            bound = runtime.prefetch + runtime.concurrency * chunk_size + node.gathers
            if held(node) > max(holds, bound) and not head_goes_on(node, holds):
                found.append(f"{runtime.address}: {held(node)} held, bound {bound}")
        if task is not None:
            size, prefetch = max(task.count, task.quota), task.node.runtime.prefetch
            if size > max(1, min(1024, 2 * prefetch**3)):
                found.append(f"{task.node.runtime.address}: {size} at once, prefetch {prefetch}")
        return task

    monkeypatch.setattr(Epoch, "take", checked)
    return found


def chain_of(ordered, ceiling, concurrency):
    """Make a chain of every kind of stage; the ceiling watches the slow one."""

    def slow(item):
        ceiling.enter()
        time.sleep(0.0001)
        ceiling.leave()
        return item

    async def wait(item):
        await asyncio.sleep(0.0005 * (item % 3))
        return item

    def children(item):
        for child in range(item % 4):
            yield item, child

    same = {"ordered": ordered, "concurrency": 2}
    chain = nbpipe.source(lambda: iter(range(ITEMS)))
    chain = chain.map(slow, name="slow", ordered=ordered, concurrency=concurrency)
    chain = chain.map(wait, name="wait", **same).map(lambda n: n, name="cheap", **same)
    chain = chain.filter(lambda n: n % 5, name="keep", **same)
    chain = chain.flat_map(children, name="many", **same)
    chain = chain.map(lambda pair: pair, executor="inline", name="fused")
    return chain.batch(7, collate=list).map(lambda batch: batch, name="last", **same)


EXPECTED = [(item, child) for item in range(ITEMS) if item % 5 for child in range(item % 4)]


def turn(run, ceiling, over, seed):
    """Turn every knob at random, as fast as it goes, until there were enough or all is over."""
    rng = random.Random(seed)
    knobs = [knob for stage in run.stages.values() for knob in stage.knobs.values()]
    watched = run["slow"].knob("concurrency")
    for turned in range(TURNS):
        if over.is_set():
            return
        knob = rng.choice(knobs)
        value = rng.choice((1, 1, 2, 3, 5, 8, 13))
        if knob is watched:
            if seed:  # one thread alone turns what is watched from outside
                continue
            ceiling.change(knob, value)
        else:
            knob.set(value, by=f"turner {seed}")
        if turned % 4 == 0:
            time.sleep(0.0002)  # thousands a second, and still some time for the work


@pytest.mark.parametrize("ordered", [True, False])
def test_resize_fuzz(ordered, broken):
    """Nothing is lost, doubled or reordered; limits and bounds hold, while knobs are turned."""
    ceiling, over, wrong = Ceiling(4), threading.Event(), []
    with chain_of(ordered, ceiling, 4).start() as run:
        turners = [
            threading.Thread(target=turn, args=(run, ceiling, over, seed)) for seed in (0, 1)
        ]
        for turner in turners:
            turner.start()
        try:
            while not wrong and any(turner.is_alive() for turner in turners):
                got = [pair for batch in drained(run) for pair in batch]
                if (got if ordered else sorted(got)) != EXPECTED:
                    wrong.append(got)
        finally:
            over.set()
            for turner in turners:
                turner.join()
    assert (wrong, broken, ceiling.problems) == ([], [], [])


@pytest.mark.parametrize("ordered", [True, False])
def test_resize_fuzz_with_broken_epochs(ordered, broken):
    """Epochs broken off while knobs are turned leave nothing to the next one."""
    ceiling, over = Ceiling(4), threading.Event()
    rng = random.Random(7)
    with chain_of(ordered, ceiling, 4).start() as run:
        turner = threading.Thread(target=turn, args=(run, ceiling, over, 0))
        turner.start()
        try:
            for _ in range(BROKEN):
                items = iter(run)
                count = rng.choice((0, 1, 3, 20))
                got = drained(_first(items, count))
                flat = [pair for batch in got for pair in batch]
                items.close()
                assert len(set(flat)) == len(flat) == 7 * count
                assert not ordered or flat == EXPECTED[: 7 * count]
            got = [pair for batch in drained(run) for pair in batch]
        finally:
            over.set()
            turner.join()
    assert (sorted(got), broken, ceiling.problems) == (sorted(EXPECTED), [], [])


def _first(items, count):
    for _ in range(count):
        yield next(items)
