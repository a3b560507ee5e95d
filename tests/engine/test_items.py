"""What the engine does with the items of a user: it hands them on, and nothing else."""

import contextlib
import gc
import threading
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import pytest

import nbpipe
from tests.gates import Gate, delivered, finished, still_alive
from tests.inner import FREE_THREADED, holds_lock, lock_of


class Prickly:
    """Notes whatever is asked of it."""

    asked: ClassVar[list[str]] = []

    def __init__(self, number=0):
        object.__setattr__(self, "number", number)

    def __getattribute__(self, name):
        if not name.startswith("__"):
            Prickly.asked.append(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name):
        Prickly.asked.append(name)
        raise AttributeError(name)


def _asked(name):
    def ask(self, *_):
        Prickly.asked.append(name)
        raise RuntimeError(name)

    return ask


for _name in ("eq", "hash", "len", "iter", "bool", "repr", "sizeof", "contains", "getitem", "lt"):
    setattr(Prickly, f"__{_name}__", _asked(f"__{_name}__"))


class PricklyMapping(Prickly, Mapping):
    """The same, and a mapping: what holds an archive open looks like this."""

    keys = values = items = _asked("values")


CHAINS = {
    "map": lambda chain: chain,
    "filter": lambda chain: chain.filter(lambda item: True),
    "shuffle": lambda chain: chain.shuffle(buffer_size=5),
    "take": lambda chain: chain.take(10),
    "window": lambda chain: chain.window(3),
    "batch": lambda chain: chain.batch(4, collate=list),
    "flat_map": lambda chain: chain.flat_map(lambda item: [item, item], concurrency=2),
    "enumerate": lambda chain: chain.enumerate(),
    "route": lambda chain: chain.route(lambda item: 0, {0: lambda part: part.map(lambda x: x)}),
    "zip": lambda chain: nbpipe.zip(chain, nbpipe.source(range(20))),
    "repeat": lambda chain: chain.repeat(2),
}


def looked(chain, **options):
    """Iterate a chain and look at its stats meanwhile; give what was asked of its items."""
    del Prickly.asked[:]
    with chain.start(**options) as run:
        for _ in run:
            run.stats()
    return set(Prickly.asked)


@pytest.mark.parametrize("kind", [Prickly, PricklyMapping])
@pytest.mark.parametrize("memory", [None, "1 MB"])
@pytest.mark.parametrize("name", CHAINS)
def test_nothing_is_asked_of_an_item(name, kind, memory):
    """No stage of the engine's own calls anything of an object that it does not know."""
    chain = CHAINS[name](nbpipe.source(range(20)).map(kind))
    assert looked(chain, memory=memory) == set()


@pytest.mark.parametrize("name", CHAINS)
def test_what_items_hold_is_given_back(name):
    """A memory budget counts each item in and out of every buffer: nothing is left at the end."""
    chain = CHAINS[name](nbpipe.source(range(20)).map(lambda _: np.zeros(1000, np.uint8)))
    with chain.start(memory="50 kB") as run:
        items = iter(run)
        memory = run._core.life.scheduler.epoch.memory
        held = [run.status().held_bytes for _ in items]
    assert min(held) >= 0
    assert memory.held_bytes == 0


@pytest.mark.parametrize("memory", [None, "1 MB"])
def test_an_archive_is_not_read(tmp_path, monkeypatch, memory):
    """What `np.load` gives for an archive passes on as it is: no array is decompressed."""
    np.savez_compressed(tmp_path / "one.npz", a=np.zeros(9), b=np.ones(9))
    read = []
    archive = type(np.load(tmp_path / "one.npz"))
    ask = archive.__getitem__
    monkeypatch.setattr(
        archive, "__getitem__", lambda self, key: read.append(key) or ask(self, key)
    )
    chain = nbpipe.source([tmp_path / "one.npz"] * 40).map(np.load)
    with chain.start(memory=memory) as run:
        for archive in run:
            run.stats()
            archive.close()
    assert read == []


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Let no garbage of before end in the midst of a test: it may end anywhere."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Guest:
    """An item that is looked for where it ends: is the run's lock held there?"""

    run = None
    ended: ClassVar[list[bool]] = []

    def __init__(self, number=0):
        self.number = number

    def __del__(self):
        if Guest.run is not None:
            Guest.ended.append(holds_lock(Guest.run))


def left(chain, taken=None, *, act=None, **options):
    """Iterate a chain, leave it after some items, and give whether items ended under the lock.

    Some may be in the hands of a thread when the loop is over: all have ended when the run has.
    """
    with chain.start(**options) as run:
        Guest.run = run
        del Guest.ended[:]
        with contextlib.suppress(nbpipe.errors.NbpipeError):
            items = iter(run)
            for _ in items if taken is None else range(taken):
                if taken is not None:
                    next(items)
            if act is not None:
                act(run, items)
            items.close()
    Guest.run = None
    return Guest.ended


def guests(count=60, **options):
    """Give a chain of guests."""
    return nbpipe.source(range(count)).map(Guest, **options)


def fails(guest):
    """Refuse every third guest."""
    if guest.number % 3 == 2:
        raise ValueError(guest.number)
    return guest


def late(gates):
    """Give a function that keeps guest 0 until guest 5 was there: results come out of order."""

    def keep(guest):
        if guest.number == 5:
            gates.open()
        if guest.number == 0:
            gates.wait()
        return guest

    return keep


def late_children(gates):
    """The same, for a function that gives several items."""

    def children(number):
        if number == 5:
            gates.open()
        if number == 0:
            gates.wait()
        guest = Guest(number)
        yield Guest(number)
        yield guest

    return children


def lowered(run, items):
    """Lower the knobs of the last stage in the midst of an epoch."""
    stage = list(run.stages.values())[-1]
    stage.prefetch = 1
    stage.concurrency = 1
    next(items)


LEFT = {
    "break": lambda: left(guests(prefetch=20), 1),
    "stop": lambda: left(guests(prefetch=20), 1, act=lambda run, _: run.stop()),
    "close": lambda: left(guests(prefetch=20), 1, act=lambda run, _: run.close()),
    "next epoch": lambda: left(guests(prefetch=20), 1, act=lambda run, _: list(run)),
    "lowered knob": lambda: left(guests(concurrency=4, prefetch=20), 2, act=lowered),
    "take": lambda: left(guests(prefetch=20).take(3)),
    "filter": lambda: left(guests().filter(lambda guest: guest.number % 2)),
    "skip": lambda: left(guests().skip(7)),
    "shard": lambda: left(guests().shard(0, 4)),
    "failed": lambda: left(guests(concurrency=2).map(fails, concurrency=2)),
    "failed, out of order": lambda: left(guests().map(fails, concurrency=2, ordered=False)),
    "skipped": lambda: left(guests().map(fails, concurrency=4, on_error="skip")),
    "over the budget": lambda: left(
        guests().map(fails, concurrency=4, on_error="skip", max_failures=5)
    ),
    "out of order": lambda: left(guests().map(late(Gate()), concurrency=4, prefetch=20)),
    "children": lambda: left(
        nbpipe.source(range(20)).flat_map(late_children(Gate()), concurrency=8, prefetch=20)
    ),
    "children, left": lambda: left(guests().flat_map(lambda guest: [guest] * 3, prefetch=9), 12),
    "shuffle": lambda: left(guests().shuffle(buffer_size=9), 2),
    "window": lambda: left(guests().window(3), 2),
    "last batch": lambda: left(guests().batch(25, drop_last=True, collate=list)),
    "zip": lambda: left(nbpipe.zip(guests(), guests(5), strict=False)),
    "concat": lambda: left(nbpipe.concat(guests(5), guests(5)), 6),
    "route": lambda: left(
        guests().route(lambda guest: guest.number % 2, {0: lambda c: c, 1: lambda c: c.map(fails)})
    ),
    "repeat": lambda: left(guests(5).repeat(3), 12),
    "memory": lambda: left(guests(prefetch=20), 1, memory="1 MB"),
    "inline": lambda: left(guests().map(fails, executor="inline", on_error="skip"), 5),
}


@pytest.mark.skipif(FREE_THREADED, reason="Python ends an item in the thread that made it")
@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("name", LEFT)
def test_no_item_ends_under_the_lock(name):
    """What is let go is dropped where its `__del__` may do what it likes."""
    ended = finished(LEFT[name])
    assert ended
    assert not any(ended)


def test_an_item_looks_at_the_run_as_it_ends():
    """A `__del__` that asks for the stats of its run does not hang the loop that is left."""
    found = []

    class Curious:
        def __init__(self, number):
            self.number = number

        def __del__(self):
            found.append(run.stats()["Curious"].items_out)

    def leave():
        for _ in run:
            break

    with nbpipe.source(range(50)).map(Curious, prefetch=20).start() as run:
        finished(leave)
        if FREE_THREADED:  # an item waits for the thread that made it, or for a collection
            gc.collect()
        assert found


@pytest.mark.parametrize(
    "act",
    [
        lambda run: run.stats(),
        lambda run: run.status(),
        lambda run: run.history(),
        lambda run: run.failures(),
        lambda run: run.state_dict(),
        lambda run: setattr(run["same"], "concurrency", 3),
        lambda run: run.pause() or run.resume(),
        lambda run: run.stop(),
        lambda run: run.close(),
    ],
)
def test_garbage_that_is_found_under_the_lock(act):
    """A collection may come at any moment: what it runs can use the run, and does not hang."""
    found = []

    class Garbage:
        def __init__(self):
            self.me = self

        def __del__(self):
            act(run)
            found.append(1)

    def collect():
        items = iter(run)
        next(items)
        Garbage()
        with lock_of(run):
            gc.collect()
        delivered(items)

    with nbpipe.source(range(50)).map(lambda item: item, name="same").start() as run:
        finished(collect)
    # Such a thread does what could not be done under the lock.
    aside = still_alive([one for one in threading.enumerate() if one.name == "nbpipe-aside"])
    assert (aside, found) == ([], [1])


class Watched:
    """A source, a function and a key in one; notes where the run's lock is held."""

    asked: ClassVar[list[str]] = []

    def __getattribute__(self, name):
        if Guest.run is not None and holds_lock(Guest.run):
            Watched.asked.append(name)
        return object.__getattribute__(self, name)

    def __iter__(self):
        return iter(range(6))

    def __call__(self, item):
        return item

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return type(other) is Watched


@pytest.mark.usefixtures("no_collections")
def test_nothing_else_of_the_user_is_asked_under_the_lock():
    """Sources, functions and keys are looked at before an epoch, also for the passes to come."""
    fn, key = Watched(), Watched()
    chain = nbpipe.source(Watched()).map(fn).filter(lambda item: True).map(fn, executor="inline")
    chain = chain.route(lambda item: key, {key: lambda part: part.map(fn, name="part")})
    chain = chain.batch(2, collate=fn).flat_map(fn).repeat(3)
    del Watched.asked[:]
    with chain.start() as run:
        Guest.run = run
        try:
            assert len(list(run)) == 18
            run.stats()
            run.state_dict()
        finally:
            Guest.run = None
    assert Watched.asked == []


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_garbage_that_is_found_under_the_lock_of_the_workers(isolate):
    """The same where a run looks after processes."""
    found = []

    class Garbage:
        def __init__(self):
            self.me = self

        def __del__(self):
            found.append(run.stats()["abs"].items_out)
            run["abs"].concurrency = 2

    def collect():
        items = iter(run)
        first = next(items)
        engine = run._core.engine
        lock = engine.stages.lock if isolate else engine.workers("abs")()._lock
        Garbage()
        with lock:
            gc.collect()
        return [first, *items]

    options = {} if isolate else {"executor": "process"}
    with nbpipe.source(range(50)).map(abs, **options).start(isolate=isolate) as run:
        assert finished(collect) == list(range(50))
    assert len(found) == 1
