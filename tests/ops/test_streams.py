"""take, skip, enumerate, window, shuffle, shard, repeat: by index and on any stream."""

import itertools
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError
from tests import models
from tests.chains import build
from tests.gates import HANG_S, delivered, epochs
from tests.inner import order_generator
from tests.models import sharded
from tests.strategies import INDEX_STEPS, ITEMS, TAILS, recipes


def stream_of(items):
    """Make a source that has no length and no index."""
    return nbpipe.source(lambda: iter(items))


def both(items):
    """Give a source read by index and a stream of the same items."""
    return nbpipe.source(items), stream_of(items)


@given(recipes(INDEX_STEPS))
def test_index_and_stream_do_the_same(recipe):
    """What a source does by index, in other places the stream does alike."""
    (_, items), *steps = recipe
    by_index, on_stream = build(recipe), build([["stream", items], *steps])
    assert (list(by_index), list(on_stream)) == 2 * (models.given(recipe),)


@given(recipes(INDEX_STEPS, longest=3), recipes(INDEX_STEPS, longest=3), st.integers(0, 3))
def test_index_of_concat_and_stream_do_the_same(one, two, count):
    """Where a full shuffle follows, joined sources are read by index: the same items come."""
    on_stream = nbpipe.concat(build(one), build(two)).skip(count)
    by_index = on_stream.shuffle()
    assert Counter(map(repr, by_index)) == Counter(map(repr, on_stream))
    assert len(by_index) == len(on_stream)


# -- window ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [
        (2, 1, [[0, 1], [1, 2], [2, 3], [3, 4]]),
        (2, 2, [[0, 1], [2, 3]]),
        (2, 3, [[0, 1], [3, 4]]),
        (1, 4, [[0], [4]]),
        (5, 1, [[0, 1, 2, 3, 4]]),
        (6, 1, []),
    ],
)
def test_windows(size, stride, expected):
    """Whole windows only, `stride` items apart, also where some items are in none."""
    pipe = nbpipe.source(range(5)).window(size, stride)
    assert (list(pipe), len(pipe)) == (expected, len(expected))


# -- shuffle by index ------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.integers(0, 200), st.integers(-(2**63), 2**64), st.integers(0, 5))
def test_shuffle_is_a_permutation_by_seed_and_epoch(length, seed, epoch):
    """The order depends on (seed, epoch) alone, and holds every item once."""
    pipe = nbpipe.source(range(length)).shuffle(seed=seed)
    with pipe.start(seed=5) as run:
        run.set_epoch(epoch)
        items = list(run)
    with pipe.map(int, concurrency=3).batch(1).unbatch().start(seed=6) as run:
        run.set_epoch(epoch)
        again = [int(item) for item in run]
    assert sorted(items) == list(range(length))
    assert items == again


def test_epochs_passes_and_seeds_differ():
    """Each epoch, each pass of `repeat` and each seed has an order of its own."""
    items = range(40)
    one, two = epochs(nbpipe.source(items).shuffle().repeat(2))
    other = list(nbpipe.source(items).shuffle(seed=1))
    assert one[:40] == list(nbpipe.source(items).shuffle())
    orders = {tuple(part) for part in (one[:40], one[40:], two[:40], two[40:], other)}
    assert len(orders) == 5
    assert {tuple(sorted(order)) for order in orders} == {tuple(items)}


def test_shuffle_before_take_draws_from_all():
    """`take` after `shuffle` is a random sample; before it, the first ones in random order."""
    sample = list(nbpipe.source(range(1000)).shuffle().take(20))
    first = list(nbpipe.source(range(1000)).take(20).shuffle())
    assert max(sample) > 100
    assert sorted(first) == list(range(20))


# -- shuffle by a buffer ---------------------------------------------------------------------------


def shuffled(items, size, rng):
    """Draw from a buffer, as the documentation says."""
    buffer, found = [], []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
        else:
            place = int(rng.integers(size))
            found.append(buffer[place])
            buffer[place] = item
    return found + [buffer[place] for place in rng.permutation(len(buffer)).tolist()]


@given(ITEMS, st.integers(1, 20), st.integers(0, 2**64), st.integers(1, 5))
def test_shuffle_with_a_buffer(items, size, seed, prefetch):
    """The order depends on (seed, epoch) alone, for a source read by index as for a stream."""
    made = [pipe.shuffle(seed=seed, buffer_size=size, prefetch=prefetch) for pipe in both(items)]
    expected = [shuffled(items, size, order_generator(seed, epoch)) for epoch in range(2)]
    assert [epochs(pipe) for pipe in made] == [expected, expected]


def test_a_failure_behind_a_buffer():
    """What the buffer holds came before the item that failed, and arrives before the error."""

    def source():
        yield from range(10)
        raise OSError("no disk")

    got = []
    with pytest.raises(nbpipe.StageError):
        got.extend(nbpipe.source(source).shuffle(buffer_size=100))
    assert sorted(got) == list(range(10))


def test_a_buffer_is_no_larger_than_what_is_in_it():
    """A size beyond all items, and all memory, is that of the items."""
    sizes = (9, 10, 2**50)
    orders = [epochs(stream_of(range(9)).shuffle(buffer_size=size).repeat(2)) for size in sizes]
    assert orders == [orders[0]] * 3


def test_passes_shuffle_a_buffer_anew():
    """The passes of `repeat` draw other orders, in every epoch."""
    one, two = epochs(stream_of(range(20)).shuffle(buffer_size=20).repeat(2))
    assert len({tuple(part) for part in (one[:20], one[20:], two[:20], two[20:])}) == 4


# -- shard -----------------------------------------------------------------------------------------


@example(items=list(range(7)), world_size=3, tail="drop", by_index=False)
@example(items=list(range(7)), world_size=3, tail="pad", by_index=False)
@given(ITEMS, st.integers(1, 5), TAILS, st.booleans())
def test_shards_together_are_the_whole(items, world_size, tail, by_index):
    """Rank by rank, in both positions, the parts are those of the model."""
    pipe = both(items)[0 if by_index else 1]
    parts = [list(pipe.shard(rank, world_size, tail=tail)) for rank in range(world_size)]
    assert parts == [sharded(items, rank, world_size, tail) for rank in range(world_size)]


def test_shard_follows_shuffle():
    """Ranks share one order: together they are the shuffled whole, anew in each epoch."""
    pipe = nbpipe.source(range(12)).shuffle(seed=3)
    whole = epochs(pipe)
    parts = [epochs(pipe.shard(rank, 3)) for rank in range(3)]
    together = [
        [parts[rank][epoch][place] for place in range(4) for rank in range(3)] for epoch in range(2)
    ]
    assert together == whole


def test_only_this_ranks_items_are_read():
    """By index, a rank reads its own part of the data."""

    class Counted(list):
        read = ()

        def __getitem__(self, index):
            self.read = (*self.read, index)
            return super().__getitem__(index)

    items = Counted(range(9))
    assert (list(nbpipe.source(items).shard(1, 3)), items.read) == ([1, 4, 7], (1, 4, 7))


# -- take, skip, repeat ----------------------------------------------------------------------------


def test_take_ends_the_epoch_early():
    """Failures and endless sources behind the last item taken are never seen."""

    def source():
        yield from range(3)
        raise OSError("never seen")

    def endless():
        number = 0
        while True:
            yield number
            number += 1

    assert list(nbpipe.source(source).take(3)) == [0, 1, 2]
    assert list(nbpipe.source(endless).take(5)) == [0, 1, 2, 3, 4]
    assert list(nbpipe.source(endless).take(0)) == []


def test_an_endless_source_is_closed_where_the_loop_breaks():
    """A loop of so many steps over a stream that never ends leaves no generator open."""
    closed = threading.Event()

    def endless():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    pipe = nbpipe.source(endless).shuffle(seed=0, buffer_size=10).batch(4, collate=len)
    got = []
    for size in pipe:
        got.append(size)
        if len(got) == 3:
            break
    assert (got, closed.wait(HANG_S)) == ([4, 4, 4], True)


def test_take_in_the_middle():
    """A filter behind `take` sees just the items taken; one before it is asked for more."""
    endless = nbpipe.source([1, 2, 3]).repeat()
    assert list(endless.filter(lambda item: item > 1).take(3)) == [2, 3, 2]
    assert list(endless.take(3).filter(lambda item: item > 1)) == [2, 3]


@pytest.mark.parametrize("by_index", [True, False])
def test_repeat_draws_anew_in_each_pass(by_index):
    """Random numbers differ from pass to pass, whether `repeat` stands before or after."""

    def draw(item, rng):
        return int(rng.integers(2**62))

    pipe = both([1, 2, 3])[0 if by_index else 1]
    assert len(set(pipe.repeat(4).map(draw))) == 12
    assert len(set(pipe.map(draw).repeat(4))) == 12
    assert len(set(pipe.repeat(2).map(draw).repeat(3))) == 18


def test_repeat_keeps_its_workers():
    """A pass is no epoch: the run's counts go on, and the source is read again."""
    opened = []

    def source():
        opened.append(1)
        return iter(range(3))

    with nbpipe.source(source).map(str).repeat(3).start() as run:
        items = list(run)
        assert (items, run.stats()["str"].items_out, opened) == (3 * ["0", "1", "2"], 9, [1, 1, 1])


def test_repeat_of_nothing_is_nothing():
    """An empty pass ends, by index as on a stream, for ever as for a while."""
    made = [pipe.repeat(times) for pipe in both([]) for times in (3, None)]
    assert [list(pipe) for pipe in made] == 4 * [[]]


def test_repeat_for_ever_of_a_source_that_runs_dry():
    """An endless search for an item ends in an error; a few empty passes may be by chance."""
    passes = iter([[1], *50 * [[]], [2], *100 * [[]]])
    pipe = nbpipe.source(lambda: next(passes)).repeat()
    got, error = delivered(pipe)
    assert (got, type(error)) == ([1, 2], ArgumentError)
    assert str(error) == (
        "repeat for ever must have items to continue with, got none in 100 passes; check that the "
        "source can be read again, or give repeat(n)"
    )


def test_a_pass_that_fails():
    """The error comes after everything before it, and says in which pass it was."""
    passes = iter([False, True])

    def source():
        yield 1
        if next(passes):
            raise OSError("no disk")

    got = []
    with pytest.raises(nbpipe.StageError) as caught:
        got.extend(nbpipe.source(source).map(int).repeat(3))
    assert (got, str(caught.value.__cause__)) == ([1, 1], "no disk")


def test_a_large_index_order_is_read_lazily():
    """A range of billions is shuffled without holding it."""
    pipe = nbpipe.source(range(10**12)).shuffle(seed=1).shard(3, 7).take(4)
    items = list(pipe)
    assert (len(set(items)), len(pipe), np.mean(items) > 10**9) == (4, 4, True)
