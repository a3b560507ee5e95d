"""A pipeline in a process of its own gives the items it gives in this one."""

import asyncio
import os
import random
import shutil

import numpy as np
import pytest

import nbpipe
from tests.gates import Gate, delivered, drained, quiet


def both(chain, *, epochs=2, seed=0):
    """Give the items of some epochs, with and without a process of its own."""
    found = []
    for isolate in (False, True):
        with chain.start(seed=seed, isolate=isolate) as run:
            found.append([drained(run) for _ in range(epochs)])
    return found


def draw(item, rng):
    """Give a number that depends on the item's place."""
    return item, float(rng.random())


async def later(item):
    """Take an item through the event loop."""
    await asyncio.sleep(0)
    return item + 1


def numbers():
    """Begin a chain of numbers."""
    return nbpipe.source(range(60))


CHAINS = {
    "map": lambda: numbers().map(lambda n: n * n, name="square", concurrency=4),
    "inline": lambda: numbers().map(abs, executor="inline"),
    "async": lambda: numbers().map(later, concurrency=8),
    "process": lambda: numbers().map(lambda n: n + 1, name="add", executor="process"),
    "filter": lambda: numbers().filter(lambda n: n % 3, name="odd", concurrency=2),
    "flat_map": lambda: numbers().flat_map(range, concurrency=2),
    "batch": lambda: numbers().batch(7, collate=list),
    "unbatch": lambda: numbers().batch(7, collate=list).unbatch(),
    "window": lambda: numbers().window(3, stride=2),
    "shuffle": lambda: numbers().shuffle(seed=3).map(draw, concurrency=3),
    "buffer": lambda: nbpipe.source(lambda: iter(range(60))).shuffle(seed=1, buffer_size=16),
    "shard": lambda: numbers().shuffle(seed=2).shard(1, 4),
    "repeat": lambda: numbers().shuffle().repeat(2).map(draw),
    "take": lambda: numbers().skip(5).take(9).enumerate(),
    "zip": lambda: nbpipe.zip(numbers().map(draw), numbers().map(later)),
    "concat": lambda: nbpipe.concat(numbers(), numbers().shuffle(seed=5)),
    "mix": lambda: nbpipe.mix([numbers(), numbers().map(abs)], weights=[1, 2]),
    "interleave": lambda: nbpipe.interleave([numbers().take(5)] * 4, cycle=2),
    "route": lambda: numbers().route(
        lambda n: n % 2, {0: lambda c: c.map(draw, name="draw"), 1: lambda c: c.map(abs)}
    ),
    "routes": lambda: numbers().route(
        lambda n: n % 2,
        {
            0: lambda c: c.route(lambda n: n % 3, dict.fromkeys(range(3), lambda c: c.map(draw))),
            1: lambda c: c.map(draw, name="odd").batch(4, collate=list),
        },
    ),
    "cache": lambda: numbers().map(draw).cache().map(lambda pair: pair, name="after"),
    "nested": lambda: nbpipe.source(numbers().map(abs)).map(draw),
    "empty": lambda: nbpipe.source([]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS)
def test_the_items_are_the_same(name):
    """Whatever the stages are, the items are those of a run in this process, in its order."""
    plain, isolated = both(CHAINS[name](), seed=11)
    assert isolated == plain


def test_the_stages_run_in_another_process():
    """Nothing of a stage runs in the process of the loop; all of it runs in one other."""
    chain = numbers().map(lambda _: os.getpid(), concurrency=4)
    with chain.start(isolate=True) as run:
        found = {pid for _ in range(2) for pid in drained(run)}
    assert len(found - {os.getpid()}) == len(found) == 1


def test_arrays_arrive_whole():
    """Arrays keep their values, types, shapes and strides; they may be written to."""
    arrays = [np.arange(n * 1000, dtype=np.float32).reshape(n, -1)[:, ::2] for n in range(1, 30)]
    with nbpipe.source(arrays).start(isolate=True) as run:
        got = drained(run)
    for array in got:
        np.add(array, 1, out=array)
    assert all(np.array_equal(a + 1, b) for a, b in zip(arrays, got, strict=True))


@pytest.mark.slow
def test_an_epoch_that_was_given_up_has_no_part_in_the_next_one():
    """Whoever is late to begin the one does not begin the other in its place."""

    class Told:
        epoch = -1

        def set_epoch(self, number):
            self.epoch = number

        def __iter__(self):
            return iter([self.epoch] * 3)

    with nbpipe.source(Told()).start(isolate=True) as run:
        for number in range(1, 400, 2):
            iter(run)
            assert drained(run) == [number] * 3


def test_folder_cache(tmp_path):
    """A folder cache that one process wrote is read by another, and the other way round."""
    chain = numbers().map(lambda _: random.random(), name="draw").cache(tmp_path / "cache")
    with chain.start(isolate=True) as run:
        written = drained(run)
    plain, isolated = both(chain, epochs=1)
    assert plain == isolated == [written]


def test_memory_cache_lives_with_the_run():
    """A memory cache is kept in the process of the run, epoch after epoch."""
    chain = numbers().map(lambda _: random.random(), name="draw").cache()
    with chain.start(isolate=True) as run:
        first, second = drained(run), drained(run)
    assert first == second


@pytest.mark.parametrize(
    ("had", "passes", "kept"),
    [(1, 1, False), (3, 1, False), (4, 1, False), (1, 3, False), (4, 3, True), (6, 3, True)],
)
@pytest.mark.parametrize("leave", ["break", "stop", "close"])
def test_a_cache_of_which_the_loop_had_a_part_is_not_kept(tmp_path, had, passes, kept, leave):
    """What the other process has handed out decides nothing: the loop must have had it all."""
    chain = nbpipe.source(range(4)).map(abs).cache(tmp_path)
    with (chain if passes == 1 else chain.repeat(passes)).start(isolate=True) as run:
        items = iter(run)
        assert [next(items) for _ in range(had)] == [0, 1, 2, 3, 0, 1][:had]
        quiet(run)
        {"break": items.close, "stop": run.stop, "close": run.close}[leave]()
    assert [path.name for path in tmp_path.iterdir()] == ["items.pickle"] * kept


def test_a_memory_cache_of_which_the_loop_had_a_part_is_made_again():
    """The next epoch runs what is in front of it again, and keeps what that gives."""
    chain = numbers().map(lambda _: random.random(), name="draw").cache()
    with chain.start(isolate=True) as run:
        items = iter(run)
        left = [next(items) for _ in range(60)]
        quiet(run)
        items.close()
        again, kept = drained(run), drained(run)
    assert (set(left).isdisjoint(again), again == kept) == (True, True)


@pytest.mark.slow
def test_a_pass_of_a_cache_is_not_kept_where_the_next_one_fails_before_the_loop_had_it(tmp_path):
    """An error that waits behind items that the loop never took ends nothing over there."""
    chain = nbpipe.source(range(4)).cache(tmp_path).repeat(2).enumerate()
    with chain.map(lambda pair: 1 / (5 - pair[0]), name="f").start(isolate=True) as run:
        items = iter(run)
        next(items)
        quiet(run)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path):
    """The loop hears of it behind the last item, and the next epoch makes the items again."""
    folder = tmp_path / "cache"

    def removes(item):
        if item == 59:
            shutil.rmtree(folder)
        return item

    with numbers().cache(folder).map(removes).start(isolate=True) as run:
        ends = [delivered(run) for _ in range(2)]
    for got, error in ends:
        assert (got, type(error)) == (list(range(60)), nbpipe.errors.CacheError)


def test_one_epoch_after_the_other_without_an_item():
    """Epochs that are given up at once leave nothing behind, however many there are."""
    with numbers().start(isolate=True) as run:
        for _ in range(50):
            iter(run)
        assert drained(run) == list(range(60))


class FailsOnce:
    """A stage whose first call fails."""

    def __init__(self):
        self.errors = [ValueError("once")]

    def __call__(self, item):
        if self.errors:
            raise self.errors.pop()
        return item


def test_what_an_epoch_left_out_is_not_said_of_the_next():
    """Not even just behind it, while what the process said of the last one is fresh."""
    pipe = nbpipe.source(range(3)).map(FailsOnce(), on_error="skip", concurrency=1)
    with pipe.start(isolate=True) as run:
        assert (drained(run), run.status().skipped) == ([1, 2], 1)
        loop = iter(run)
        before, first, inside = run.status().skipped, next(loop), run.status().skipped
        assert (before, first, inside) == (0, 0, 0)


@pytest.mark.parametrize("ends", [lambda run, items: run.stop(), lambda run, items: items.close()])
def test_what_an_epoch_left_out_is_said_behind_it(ends):
    """Of an epoch that was left, too, however short ago the process told less."""
    gate = Gate()

    def picky(item):
        if item:
            gate.wait()
        if item % 7:
            raise ValueError(item)
        return item

    pipe = nbpipe.source(range(8)).map(picky, on_error="skip")
    with pipe.start(isolate=True) as run:
        items = iter(run)
        first, before = next(items), run.status().skipped
        gate.open()
        last = next(items)
        ends(run, items)
        assert (first, before, last, run.status().skipped) == (0, 0, 7, 6)


@pytest.mark.slow
def test_items_that_are_small_and_many():
    """A hundred thousand numbers come through in order."""
    with nbpipe.source(range(100_000)).map(abs, concurrency=2).start(isolate=True) as run:
        assert drained(run) == list(range(100_000))


def test_length_units_and_stages():
    """What a run says of its chain is said without the process."""
    chain = numbers().map(abs).batch(7, collate=list)
    with chain.start(isolate=True) as run:
        items = iter(run)
        said = len(run), items.__length_hint__(), list(run.stages), run.status().units["batch"]
        assert said == (9, 9, ["source", "abs", "batch"], "batches")


def test_memory_budget():
    """A budget holds in the other process, and is reported."""
    chain = nbpipe.source(range(40)).map(lambda n: np.full(10_000, n), name="make")
    with chain.start(isolate=True, memory="1 MB") as run:
        assert [int(a[0]) for a in drained(run)] == list(range(40))
        assert run.status().limit_bytes == 1_000_000


def test_isolate_must_be_a_flag():
    """Another value than True or False is refused."""
    with pytest.raises(nbpipe.errors.ArgumentError, match="isolate must be True or False, got 1"):
        numbers().start(isolate=1)


def test_an_item_that_cannot_be_sent():
    """An item that cannot be pickled ends the epoch after those before it, and is named."""
    chain = numbers().map(lambda n: (x for x in ()) if n == 3 else n, name="make")
    with chain.start(isolate=True) as run:
        got, error = delivered(run)
        assert got == [0, 1, 2]
        assert "an item of stage 'make' cannot be sent" in str(error)
        assert "generator" in str(error)
        state = run.state_dict()
        assert (state["delivered"], state["stages"]["source"]["rest"]) == (3, [3, []])
        got, again = delivered(run)
    assert (got, type(again)) == ([0, 1, 2], nbpipe.errors.UnpicklableError)
