"""A run driven in random sequences, beside a model of the items it has to give."""

import asyncio
import threading

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import nbpipe
from tests.gates import finished

ITEMS = 60
BATCH = 4
STAGES = ("source", "first", "later", "keep", "twice", "batch", "last")
FEW = settings(stateful_step_count=40, suppress_health_check=list(HealthCheck))


class Trouble:
    """Decides which item fails, and where; set before an epoch begins."""

    def __init__(self):
        self.item = -1
        self.stage = ""

    def check(self, stage, item):
        if stage == self.stage and item == self.item:
            raise ValueError(item)


def chain_with(trouble):
    """Make a chain of all kinds of stages in which the trouble may strike."""

    def first(item):
        trouble.check("first", item)
        return item

    async def later(item):
        await asyncio.sleep(0.0005 * (item % 2))
        trouble.check("later", item)
        return item

    def keep(item):
        trouble.check("keep", item)
        return item % 3

    def twice(item):
        trouble.check("twice", item)
        yield item
        yield -item

    chain = nbpipe.source(lambda: iter(range(ITEMS))).map(first, concurrency=2)
    chain = chain.map(later, concurrency=4).filter(keep, executor="inline", name="keep")
    chain = chain.flat_map(twice, concurrency=2).batch(BATCH, collate=list)
    return chain.map(lambda batch: batch, name="last")


def expected(trouble):
    """Give the batches of an epoch, and whether an error ends it."""
    singles = []
    for item in range(ITEMS):
        reached = trouble.stage in ("first", "later", "keep") or item % 3
        if item == trouble.item and trouble.stage and reached:
            whole = len(singles) // BATCH * BATCH
            return [singles[n : n + BATCH] for n in range(0, whole, BATCH)], True
        if item % 3:
            singles += [item, -item]
    return [singles[n : n + BATCH] for n in range(0, len(singles), BATCH)], False


class RunMachine(RuleBasedStateMachine):
    """Starts, breaks, iterates, turns, pauses, fails, stops and closes in any order."""

    @initialize()
    def begin(self):
        self.threads = set(threading.enumerate())
        self.trouble = Trouble()
        self.chain = chain_with(self.trouble)
        self.run = self.chain.start()
        self.items = None
        self.left = []
        self.fails = False
        self.epochs = 0

    def running(self):
        return self.items is not None and not self.run.closed

    @precondition(lambda self: not self.run.closed)
    @rule(
        item=st.integers(-20, ITEMS - 1), stage=st.sampled_from(("first", "later", "keep", "twice"))
    )
    def iterate(self, item, stage):
        """Begin an epoch, perhaps with an item that will fail; an old one is cancelled."""
        if self.items is not None:
            self.items.close()
        self.trouble.item, self.trouble.stage = item, stage
        self.left, self.fails = expected(self.trouble)
        self.items = iter(self.run)
        self.epochs += 1

    @precondition(running)
    @rule(count=st.integers(1, 12))
    def take(self, count):
        """Take some batches: they are the next ones of the model."""
        if self.run.paused:
            self.run.resume()
        for _ in range(count):
            if not self.left:
                self._ends()
                return
            assert finished(next, self.items) == self.left.pop(0)

    def _ends(self):
        failed_at, more = None, None
        try:
            more = finished(next, self.items, None)
        except nbpipe.StageError as error:
            failed_at = error.path
        assert (more, failed_at) == (None, self.trouble.item if self.fails else None)
        self.items = None

    @precondition(running)
    @rule()
    def exhaust(self):
        """Take all that is left."""
        self.take(len(self.left) + 1)

    @precondition(running)
    @rule()
    def break_off(self):
        """Drop the iterator in mid-epoch."""
        self.items = None

    @rule(stage=st.sampled_from(STAGES), which=st.booleans(), value=st.integers(1, 9))
    def turn(self, stage, which, value):
        """Turn a knob, in another thread."""
        knobs = list(self.chain[stage].knobs.values()) if stage != "keep" else []
        if knobs:
            finished(knobs[which % len(knobs)].set, value)

    @precondition(lambda self: not self.run.closed)
    @rule()
    def pause(self):
        """Pause, perhaps again."""
        self.run.pause()

    @precondition(lambda self: not self.run.closed)
    @rule()
    def resume(self):
        """Resume, perhaps without a pause."""
        self.run.resume()

    @precondition(running)
    @rule()
    def stop(self):
        """Stop the epoch: the iterator ends, as if it were exhausted."""
        finished(self.run.stop)
        assert finished(list, self.items) == []
        assert self.run.stopped
        self.items = None

    @precondition(lambda self: not self.run.closed)
    @rule()
    def look(self):
        """Read everything there is to read."""
        rows = self.run.stats()
        assert all(
            abs(r.busy + r.starved + r.blocked + r.waiting - 1) < 0.01 for r in rows.values()
        )
        assert self.run.epoch == max(0, self.epochs - 1)
        self.run.history()
        self.run.failures()

    @rule()
    def close_and_start_again(self):
        """Close, find it closed, start another run of the same stages."""
        finished(self.run.close)
        if self.items is not None:
            assert finished(list, self.items) == []
            self.items = None
        try:
            iter(self.run)
        except nbpipe.RunClosedError:
            self.run = self.chain.start()
            self.epochs = 0
            return
        raise AssertionError("a closed run was iterated")

    @invariant()
    def one_loop_and_one_ticker(self):
        """A run never has more than one event loop and one ticker."""
        names = [t.name for t in threading.enumerate() if t not in self.threads]
        assert names.count("nbpipe-event-loop") <= 1
        assert names.count("nbpipe-ticker") <= 1

    def teardown(self):
        if hasattr(self, "run"):
            self.items = None
            finished(self.run.close)
            left = set(threading.enumerate()) - self.threads
            assert {t.name for t in left if t.name.startswith("nbpipe")} == set()


TestRun = RunMachine.TestCase
TestRun.settings = FEW
