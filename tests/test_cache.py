"""cache: the items of the first whole epoch, in memory or in a folder."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import nbpipe
from nbpipe import StageError
from tests.strategies import HANDS, recipes

ROOT = Path(__file__).resolve().parent.parent
ITEMS = "items.pickle"


class Counting:
    """A function that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, item):
        """Count, and change the item a little."""
        self.calls += 1
        return item + 1


def same(chain):
    """Add nothing to a branch."""
    return chain


@pytest.fixture(params=["memory", "folder"])
def place(request, tmp_path):
    """Give the argument of `cache`."""
    return None if request.param == "memory" else tmp_path / "deep" / "cache"


def draw(item, rng):
    """Draw a number for an item."""
    return int(rng.integers(2**62))


# -- what is kept -------------------------------------------------------------------------


def test_what_comes_before_runs_once(place):
    """Later epochs, and later runs, read the cache."""
    count = Counting()
    pipe = nbpipe.source(range(5)).map(count).cache(place).map(str)
    with pipe.start() as run:
        epochs = [list(run) for _ in range(3)]
    assert (epochs, list(pipe), count.calls) == (3 * [list("12345")], list("12345"), 5)


@given(recipes(longest=4), HANDS)
def test_the_cache_of_any_chain(recipe, hands):
    """Read from a cache, any pipeline gives what it gave."""
    pipe = recipe.build(hands).cache().map(lambda item: item)
    with pipe.start() as run:
        epochs = [list(run) for _ in range(2)]
    assert epochs == 2 * [recipe.model()]


def test_an_epoch_that_was_not_whole_is_not_kept(place):
    """After `break`, an error, or behind `take`, the next epoch begins from the start."""
    count = Counting()
    cached = nbpipe.source(range(100), prefetch=1).map(count, prefetch=1).cache(place)
    for _ in cached:
        break
    list(cached.take(2))
    before = count.calls
    assert list(cached) == list(range(1, 101))
    assert count.calls == before + 100
    assert list(cached) == list(range(1, 101))
    assert count.calls == before + 100


@pytest.mark.parametrize(
    ("grow", "kept"),
    [
        (nbpipe.concat, True),
        (lambda cached, other: nbpipe.concat(other, cached), True),
        (lambda cached, other: nbpipe.interleave([other, cached]), True),
        (lambda cached, other: nbpipe.mix([other, cached]), True),
        (lambda cached, other: nbpipe.zip(other, cached), True),
        (lambda cached, other: nbpipe.source(cached, name="outer"), True),
        (lambda cached, other: cached.batch(4, drop_last=True), True),
        (lambda cached, other: cached.window(20), True),
        (lambda cached, other: cached.take(16), True),
        (lambda cached, other: cached.repeat(1), True),
        (lambda cached, other: cached.repeat(3), True),
        (lambda cached, other: cached.route(bool, {True: same, False: same}), True),
        (lambda cached, other: nbpipe.zip(cached, other, strict=False), True),
        (lambda cached, other: nbpipe.zip(other, cached, strict=False), False),
        (lambda cached, other: nbpipe.zip(cached, other.take(9), strict=False), False),
        (lambda cached, other: nbpipe.mix([other, cached], [99, 1], stop="shortest"), False),
        (lambda cached, other: cached.take(15), False),
        (lambda cached, other: cached.take(9), False),
        (lambda cached, other: cached.take(0), False),
        (lambda cached, other: cached.take(9).repeat(2), False),
    ],
)
def test_what_was_seen_to_its_end_is_kept(place, grow, kept):
    """A cache is complete where the stages behind it asked for its end; timing decides nothing."""
    count = Counting()
    cached = nbpipe.source(range(15)).map(count).cache(place)
    with grow(cached, nbpipe.source(range(15))).start() as run:
        list(run)
        before = count.calls
        list(run)
    assert cached["cache"].spec.store.complete == kept
    assert count.calls == before or not kept


def test_a_recorder_that_was_closed_keeps_nothing(place):
    """Whatever still comes from a thread that did not hear of the end is left out."""
    store = nbpipe.source([1]).cache(place)["cache"].spec.store
    recorder = store.recorder((0, ()))
    recorder.add(0, "item")
    recorder.close()
    recorder.add(1, "late")
    recorder.complete()
    recorder.close()
    assert not store.complete


def test_a_failed_epoch_is_not_kept(place):
    """An error before the cache leaves it empty, and the next epoch fills it."""
    fails = iter([True, False])

    def once(item):
        if item == 3 and next(fails):
            raise ValueError(item)
        return item

    with nbpipe.source(range(5)).map(once).cache(place).start() as run:
        with pytest.raises(StageError):
            list(run)
        assert [list(run), list(run)] == 2 * [[0, 1, 2, 3, 4]]


def test_skipped_items_are_not_kept(place):
    """What an epoch left out stays left out."""

    def odd(item):
        if item % 2:
            raise ValueError(item)
        return item

    pipe = nbpipe.source(range(6)).map(odd, on_error="skip").cache(place)
    with pipe.start() as run:
        assert [list(run), list(run)] == 2 * [[0, 2, 4]]


def test_an_empty_epoch_is_kept(place):
    """A cache of nothing is a cache."""
    opened = []

    def nothing():
        opened.append(1)
        return iter([])

    with nbpipe.source(nothing).cache(place).start() as run:
        assert [list(run), list(run), opened] == [[], [], [1]]


def test_work_in_place_does_not_reach_the_cache(place):
    """Every epoch gets arrays of its own."""

    def add(item):
        item["x"] += 1
        return item

    pipe = nbpipe.source(range(2)).map(lambda item: {"x": np.zeros(2)}).cache(place).map(add)
    with pipe.start() as run:
        epochs = [[item["x"].tolist() for item in run] for _ in range(3)]
    assert epochs == 3 * [[[1, 1], [1, 1]]]


def test_none_and_exceptions_are_kept(place):
    """Any item may be kept."""
    pipe = nbpipe.source([None, KeyError("k")]).cache(place)
    list(pipe)
    assert repr(list(pipe)) == "[None, KeyError('k')]"


# -- random numbers behind a cache --------------------------------------------------------


def test_random_numbers_behind_a_cache_are_those_without(place):
    """A full cache changes nothing in what comes after it."""
    source = nbpipe.source(range(9)).flat_map(lambda item: [item] * (item % 3))
    plain, cached = source.map(draw), source.cache(place).map(draw)
    with plain.start() as one, cached.start() as other:
        expected = [list(one) for _ in range(3)]
        assert [list(other) for _ in range(3)] == expected


@pytest.mark.parametrize("chain", ["before", "after"])
def test_passes_of_a_cached_part_draw_anew(place, chain):
    """With `repeat` behind it, each pass over the cache draws its own numbers."""
    cached = nbpipe.source(range(9)).map(int).cache(place)
    pipe = cached.map(draw).repeat(3) if chain == "before" else cached.repeat(3).map(draw)
    with pipe.start() as run:
        first, second = list(run), list(run)
    assert len({*first, *second}) == 54
    assert list(pipe) == first


def test_a_full_cache_draws_as_an_empty_one(tmp_path):
    """Whether the folder was filled before, with or without `repeat`, the numbers are the same."""
    cached = nbpipe.source(range(9)).map(int).cache(tmp_path)
    fresh = nbpipe.source(range(9)).map(int).cache().repeat(2).map(draw)
    list(cached)
    assert list(cached.repeat(2).map(draw)) == list(fresh)
