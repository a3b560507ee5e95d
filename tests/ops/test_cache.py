"""cache: the items of the first whole epoch, in memory or in a folder."""

import collections
import contextlib
import decimal
import errno
import fractions
import functools
import gc
import importlib
import io
import itertools
import json
import operator
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import nbpipe
from nbpipe import CacheError, StageError
from tests import models
from tests.chains import build
from tests.gates import Gate, delivered, drained, epochs, finished, quiet, until
from tests.inner import holds_lock
from tests.strategies import HANDS, recipes

ROOT = Path(__file__).resolve().parents[2]
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


# -- what is kept ----------------------------------------------------------------------------------


def test_what_comes_before_runs_once(place):
    """Later epochs, and later runs, read the cache."""
    count = Counting()
    pipe = nbpipe.source(range(5)).map(count).cache(place).map(str)
    assert epochs(pipe, 3) == 3 * [list("12345")]
    assert (list(pipe), count.calls) == (list("12345"), 5)


def thumb(image):
    """Make an image smaller, in place."""
    image.thumbnail((2, 2))
    return image.size


def emptied(items):
    """Take all out of a container; return how many there were."""
    count = len(items)
    items.clear()
    return count


def overwritten(table):
    """Sum up a column, and set it to 0."""
    total = int(table["n"].sum())
    table["n"] = 0
    return total


def counted_up(item):
    """Add 1 to an array in a dict, in place."""
    item["x"] += 1
    return item["x"].tolist()


def made_image(_):
    """Return a small image of Pillow."""
    return importlib.import_module("PIL.Image").new("L", (8, 4))


def made_table(_):
    """Return a table of pandas."""
    return importlib.import_module("pandas").DataFrame({"n": [1, 2]})


CHANGED = {
    "image": (made_image, thumb, (2, 1)),
    "table": (made_table, overwritten, 3),
    "set": (lambda n: {n, "a"}, emptied, 2),
    "bytes": (lambda _: bytearray(3), emptied, 3),
    "deque": (lambda n: collections.deque([n]), emptied, 1),
    "dict": (lambda n: {"n": n}, emptied, 1),
    "array": (lambda _: {"x": np.zeros(2)}, counted_up, [1, 1]),
}
LIBRARIES = {"image": "PIL", "table": "pandas"}


@pytest.mark.parametrize("kind", CHANGED)
def test_what_changes_items_in_place_does_not_change_the_cache(kind, place):
    """Each epoch reads the items as they were made, whatever was done to them before."""
    if kind in LIBRARIES:
        pytest.importorskip(LIBRARIES[kind])
    make, change, result = CHANGED[kind]
    pipe = nbpipe.source(range(2)).map(lambda n: (n, make(n))).cache(place)
    assert epochs(pipe.map(lambda pair: change(pair[1])), 3) == 3 * [[result, result]]


@given(recipes(longest=4), HANDS)
def test_the_cache_of_any_chain(recipe, hands):
    """Read from a cache, any pipeline gives what it gave."""
    pipe = build(recipe, hands).cache().map(lambda item: item)
    assert epochs(pipe) == 2 * [models.given(recipe)]


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


@pytest.mark.parametrize(("had", "kept"), [(1, False), (3, False), (4, True), (6, True)])
@pytest.mark.parametrize("leave", ["break", "stop", "close"])
def test_a_pass_that_the_loop_had_in_part_is_not_kept(place, had, kept, leave):
    """What `repeat` has moved ahead decides nothing: the loop must have had the whole pass."""
    count = Counting()
    cached = nbpipe.source(range(4)).map(count).cache(place)
    with cached.repeat(3).start() as run:
        items = iter(run)
        got = [next(items) for _ in range(had)]
        quiet(run)
        {"break": items.close, "stop": run.stop, "close": run.close}[leave]()
    assert (got, count.calls) == ([1, 2, 3, 4, 1, 2][:had], 4)
    assert cached["cache"].spec.store.complete == kept
    assert list(cached) == [1, 2, 3, 4]
    assert count.calls == (4 if kept else 8)


@pytest.mark.parametrize(("had", "kept"), [(1, False), (3, False), (4, True), (9, True)])
@pytest.mark.parametrize("prefetch", [1, 16])
def test_a_pass_within_passes_that_the_loop_had_in_part_is_not_kept(place, had, kept, prefetch):
    """So it is where the pass belongs to one that is moved to its end already."""
    count = Counting()
    cached = nbpipe.source(range(4)).map(count).cache(place)
    pipe = cached.repeat(2).map(lambda n: n, name="same").repeat(3)
    with pipe.map(abs, prefetch=prefetch).start() as run:
        items = iter(run)
        got = [next(items) for _ in range(had)]
        quiet(run)
    assert (got, count.calls) == (([1, 2, 3, 4] * 3)[:had], 4)
    assert cached["cache"].spec.store.complete == kept
    assert list(pipe) == [1, 2, 3, 4] * 6


def test_a_pass_behind_batches_is_not_kept_before_its_last_item_was_had(place):
    """A batch that holds the last items of a pass and the first of the next one must be had."""
    cached = nbpipe.source(range(4)).map(int).cache(place)
    pipe = cached.repeat(3).batch(3, collate=list)
    for had in (1, 2):
        with pipe.start() as run:
            items = iter(run)
            for _ in range(had):
                next(items)
            quiet(run)
        assert cached["cache"].spec.store.complete == (had == 2)


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


# -- random numbers behind a cache -----------------------------------------------------------------


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


# -- in a folder: other chains, damage, processes that are killed ----------------------------------


def names_in(folder):
    """List the files of a folder."""
    return sorted(path.name for path in folder.iterdir())


def chain(folder, *, size=2, name="add", fn=lambda item: item + 1, items=range(6)):
    """Make a chain with a cache."""
    return nbpipe.source(items).map(fn, name=name).batch(size, collate=list).cache(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 3}, 'detail of stage \'batch\' was "2", is "3"'),
        ({"name": "sub"}, "its stages were source, add, batch, they are source, sub, batch"),
        ({"fn": lambda item: item + 2}, "fn of stage 'add' was"),
        ({"items": range(7)}, "items of stage 'source' was"),
        ({"items": list(range(6))}, 'detail of stage \'source\' was "range", is "list"'),
    ],
)
def test_the_folder_of_another_chain_is_refused(tmp_path, change, words):
    """The error says what differs, and leaves the folder as it is."""
    list(chain(tmp_path))
    before = (tmp_path / ITEMS).read_bytes()
    with pytest.raises(CacheError) as caught:
        list(chain(tmp_path, **change))
    assert str(caught.value).startswith(f"cache folder '{tmp_path}' was written by another chain")
    assert words in str(caught.value)
    assert str(caught.value).endswith("delete it, or cache to another folder")
    assert (tmp_path / ITEMS).read_bytes() == before


def scaled(item, factor=2):
    """Multiply."""
    return item * factor


def enclosing(number):
    """Make a function that encloses a number."""
    return lambda item: item + number


class Adder:
    """A function with a state."""

    def __init__(self, number):
        self.number = number

    def __call__(self, item):
        return item + self.number

    def add(self, item):
        return item + self.number


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (functools.partial(scaled, factor=2), functools.partial(scaled, factor=3)),
        (enclosing(1), enclosing(2)),
        (Adder(1), Adder(2)),
        (Adder(1).add, Adder(2).add),
        (np.sqrt, np.abs),
        (lambda item, by=1: item + by, lambda item, by=2: item + by),
    ],
)
def test_the_values_a_function_uses_are_part_of_the_chain(tmp_path, one, other):
    """Arguments, enclosed values and attributes change the items as code does."""
    list(chain(tmp_path, fn=one))
    with pytest.raises(CacheError, match="fn of stage 'add'"):
        list(chain(tmp_path, fn=other))


class Slotted:
    """An object without a dict of attributes."""

    __slots__ = ("hidden", "number")

    def __init__(self, number):
        self.number = number


class SlottedBelow(Slotted):
    """An object with slots of a base class, and one more."""

    __slots__ = ("more",)

    def __init__(self, number):
        super().__init__(0)
        self.more = number


def holding(value):
    """Make a function that encloses a value, and gives items as they are."""
    return lambda item: (item, value)[0]


@pytest.mark.parametrize(
    "make",
    [
        Slotted,
        SlottedBelow,
        lambda number: [0, number].__getitem__,
        lambda number: {0: number}.get,
        lambda number: np.array([0, number]).__getitem__,
        lambda number: re.compile(str(number)),
        operator.itemgetter,
        lambda number: operator.methodcaller("add", number),
        lambda number: operator.attrgetter(f"at_{number}"),
        range,
        slice,
        lambda number: collections.deque([number]),
        lambda number: bytearray([number]),
        np.float32,
        lambda number: np.dtype(f"S{number}"),
        decimal.Decimal,
        lambda number: fractions.Fraction(number, 7),
        lambda number: np.arange(4).astype(object) * number,
        pytest.param(
            lambda number: importlib.import_module("torch").full((3,), number),
            marks=pytest.mark.torch,
        ),
    ],
)
def test_enclosed_objects_are_part_of_the_chain(tmp_path, make):
    """Objects of all kinds that a function encloses count by their values."""
    expected = list(chain(tmp_path, fn=holding(make(1))))
    assert list(chain(tmp_path, fn=holding(make(1)))) == expected
    with pytest.raises(CacheError, match="fn of stage 'add'"):
        list(chain(tmp_path, fn=holding(make(2))))


def test_a_module_counts_by_its_name(tmp_path):
    """What it holds is no part of the chain: other processes load it otherwise."""
    one, other = types.ModuleType("one"), types.ModuleType("one")
    other.names = {"a", "b"}
    expected = list(chain(tmp_path, fn=holding(one)))
    assert list(chain(tmp_path, fn=holding(other))) == expected
    with pytest.raises(CacheError, match="fn of stage 'add'"):
        list(chain(tmp_path, fn=holding(types.ModuleType("two"))))


METHODS = """
class Moving:
    step = {step}

    def __call__(self, item):
        return self.move(item)

    def move(self, item):
        return self.moved(item) + self.twice + self.fixed(item) + self.made(item)

    def moved(self, item):
        return item + self.step + {here}

    @property
    def twice(self):
        return 2 * {there}

    @staticmethod
    def fixed(item):
        return item + {fixed}

    @classmethod
    def made(cls, item):
        return item + {made}
"""


def moving(**numbers):
    """Define a class with methods that use one another, and make an object of it."""
    namespace = {"__name__": "somewhere"}
    names = ("step", "here", "there", "fixed", "made")
    exec(METHODS.format(**dict.fromkeys(names, 1) | numbers), namespace)
    return namespace["Moving"]()


@pytest.mark.parametrize("name", ["step", "here", "there", "fixed", "made"])
@pytest.mark.parametrize("way", [lambda one: one, lambda one: one.move])
def test_what_a_method_uses_of_its_class_is_part_of_the_chain(tmp_path, way, name):
    """Methods that a method calls, and values of the class, count as functions of a module do."""
    expected = list(chain(tmp_path, fn=way(moving())))
    assert list(chain(tmp_path, fn=way(moving()))) == expected
    with pytest.raises(CacheError, match="fn of stage 'add'"):
        list(chain(tmp_path, fn=way(moving(**{name: 2}))))


class Calling:
    """Has a method of its own do what it is called for."""

    def __call__(self, item):
        return self.forward(item)


def test_what_classes_of_one_base_use_is_part_of_the_chain(tmp_path):
    """A method of the base that both use is looked through for each of them."""

    def both(number):
        one = type("One", (Calling,), {"forward": lambda self, item: item})
        other = type("Other", (Calling,), {"forward": lambda self, item: item + number})
        return holding((one(), other()))

    list(chain(tmp_path, fn=both(1)))
    with pytest.raises(CacheError, match="fn of stage 'add'"):
        list(chain(tmp_path, fn=both(2)))


def scaled_by(sizes):
    """Define a function that reads a tuple of its module."""
    namespace = {"__name__": "somewhere", "SIZES": sizes}
    exec("def scaled(item):\n    return item * SIZES[1]", namespace)
    return namespace["scaled"]


def test_a_tuple_of_the_module_is_part_of_the_chain(tmp_path):
    """It changes only where somebody writes another one; a list may be changed by an epoch."""
    list(chain(tmp_path / "tuple", fn=scaled_by((1, 2))))
    with pytest.raises(CacheError, match="fn of stage 'add'"):
        list(chain(tmp_path / "tuple", fn=scaled_by((1, 3))))
    expected = list(chain(tmp_path / "list", fn=scaled_by([1, 2])))
    assert list(chain(tmp_path / "list", fn=scaled_by([1, 3]))) == expected


class Records:
    """A dataset with an attribute."""

    def __init__(self, number):
        self.number = number

    def __len__(self):
        return 3

    def __getitem__(self, at):
        return range(3)[at] * self.number


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Records(1), Records(2)),
        (np.arange(6), np.arange(1, 7)),
        (np.arange(6), np.arange(6.0)),
        (np.zeros((3, 2)), np.zeros((3, 4))),
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (np.array(["a", None]), np.array(["a", 1])),
        (collections.UserList([1, 2]), collections.UserList([1, 3])),
        (collections.deque([1, 2]), collections.deque([1, 3])),
    ],
)
def test_the_first_items_of_a_source_are_part_of_the_chain(tmp_path, one, other):
    """Those of an array, too; a dataset counts by its attributes, and is not read."""

    def cached(items):
        return nbpipe.source(items).map(str).cache(tmp_path)

    expected = list(cached(one))
    assert list(cached(one)) == expected
    with pytest.raises(CacheError, match="items of stage 'source' was"):
        list(cached(other))


class Told:
    """A source that is told the number of every epoch."""

    def __init__(self):
        self.number = 0
        self.told = []

    def set_epoch(self, number):
        self.number = number
        self.told.append(number)

    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize("hold", [lambda one: one, lambda one: collections.UserList([one])])
def test_the_number_of_the_epoch_is_no_part_of_the_chain(tmp_path, hold):
    """A pipeline that is built again, over a source that was told of epochs, reads the folder."""
    told = Told()
    with nbpipe.source(hold(told)).map(str).cache(tmp_path).start() as run:
        expected = list(run)
    told.set_epoch(1)
    assert list(nbpipe.source(hold(told)).map(str).cache(tmp_path)) == expected


def test_options_of_a_batch_are_part_of_the_chain(tmp_path):
    """Everything that changes a batch does."""
    source = nbpipe.source(range(3))
    list(source.batch(2).cache(tmp_path))
    for options in ({"drop_last": True}, {"dtype": "float32"}, {"collate": list}, {"pad": 0}):
        with pytest.raises(CacheError, match="of stage 'batch'"):
            list(source.batch(2, **options).cache(tmp_path))


def test_knobs_and_executors_are_no_part_of_the_chain(tmp_path):
    """How a chain is run changes no item."""
    source = nbpipe.source(range(6))
    expected = list(source.map(scaled).cache(tmp_path))
    again = nbpipe.source(range(6), prefetch=3).map(scaled, concurrency=4, prefetch=2)
    inline = source.map(scaled, executor="inline").cache(tmp_path)
    assert [list(again.cache(tmp_path)), list(inline)] == [expected, expected]


def test_the_folder_of_another_version_is_refused(tmp_path):
    """What an older version wrote is not guessed at."""
    list(chain(tmp_path))
    head, *rest = _pickled((tmp_path / ITEMS).read_bytes())
    about = json.loads(head)
    head = json.dumps(about | {"format": about["format"] - 1})
    (tmp_path / ITEMS).write_bytes(b"".join(map(pickle.dumps, (head, *rest))))
    now = about["format"]
    with pytest.raises(CacheError, match=f"another chain: format was {now - 1}, is {now}; delete"):
        list(chain(tmp_path))


def _pickled(data):
    with io.BytesIO(data) as file:
        while file.tell() < len(data):
            yield pickle.load(file)


def test_a_damaged_folder_is_refused(tmp_path):
    """What cannot be read raises with the way out, at the start or in the middle."""
    expected = list(chain(tmp_path))
    whole = (tmp_path / ITEMS).read_bytes()
    (tmp_path / ITEMS).write_bytes(whole[:-3])
    got, error = delivered(chain(tmp_path))
    assert (got, type(error), type(error.__cause__)) == (expected[:-1], StageError, CacheError)
    (tmp_path / ITEMS).write_bytes(b"no pickle")
    with pytest.raises(CacheError, match=r"cannot be read \(.*; delete it, or cache to another"):
        list(chain(tmp_path))


def test_a_folder_that_was_cut_off_anywhere_is_refused(tmp_path):
    """Wherever its file ends, the error is that of a cache, and all items before it were there."""
    expected = list(chain(tmp_path, items=range(2)))
    whole = (tmp_path / ITEMS).read_bytes()
    found = set()
    for end in range(0, len(whole), 4):
        (tmp_path / ITEMS).write_bytes(whole[:end])
        got, error = delivered(chain(tmp_path, items=range(2)))
        cause = error.__cause__ if isinstance(error, StageError) else error
        found.add((got == expected[: len(got)], type(cause), "delete it, or cache" in str(cause)))
    assert found == {(True, CacheError, True)}


def test_items_that_cannot_be_pickled(tmp_path):
    """The error says where else the cache may stand."""
    with pytest.raises(StageError) as caught:
        list(nbpipe.source([1]).map(lambda item: lambda: item).cache(tmp_path))
    assert str(caught.value.__cause__).startswith("cache items must be picklable, got function (")
    gc.collect()
    assert names_in(tmp_path) == []


def test_a_path_that_is_no_folder(tmp_path):
    """A file in the way is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StageError) as caught:
        list(nbpipe.source([1]).cache(tmp_path / "file"))
    assert str(caught.value.__cause__).startswith("cache path must be a folder that can be written")


def test_an_abandoned_epoch_leaves_no_file(tmp_path):
    """After `break` the folder is empty, as soon as the epoch is closed."""
    with nbpipe.source(range(100)).cache(tmp_path).start() as run:
        iterator = iter(run)
        next(iterator)
        iterator.close()
        assert names_in(tmp_path) == []


def test_two_runs_fill_one_folder(tmp_path):
    """The first to be whole wins, the other one's items are its own."""
    pipe = nbpipe.source(range(5)).cache(tmp_path)
    with pipe.start() as one, pipe.start() as other:
        pairs = list(zip(one, other, strict=True))
    assert pairs == [(number, number) for number in range(5)]
    assert (list(pipe), names_in(tmp_path)) == ([0, 1, 2, 3, 4], [ITEMS])


def test_a_run_answers_while_a_pass_is_written(tmp_path, monkeypatch):
    """A slow disk holds up the next pass of `repeat`, not the loop, nor who looks at the run."""
    writing, gate = Gate(), Gate()

    def fsync(handle):
        writing.open()
        gate.wait()

    monkeypatch.setattr(os, "fsync", fsync)
    with nbpipe.source(range(4), name="src").cache(tmp_path).repeat(2).start() as run:
        items = iter(run)
        first = finished(lambda: [next(items) for _ in range(4)])
        writing.wait()
        seen = finished(lambda: (run.stats()["src"].items_out, run.state_dict()["delivered"]))
        run["src"].prefetch = 3
        gate.open()
        rest = drained(items)
    assert (first, seen, rest) == ([0, 1, 2, 3], (4, 4), [0, 1, 2, 3])


@pytest.mark.parametrize("kept", [False, True])
def test_no_file_is_touched_under_the_lock(tmp_path, monkeypatch, kept):
    """The folder is read and written where nobody waits for it, in each pass, by a state too."""
    touched = []
    opened, synced = Path.open, os.fsync

    def watched(function):
        def touch(*args, **options):
            if not str(args[0]).startswith("/proc/"):  # it is no file that lies on a disk
                touched.append(run is not None and holds_lock(run))
            return function(*args, **options)

        return touch

    run = None
    pipe = nbpipe.source(range(4)).cache(tmp_path).repeat(3)
    if kept:
        list(pipe)
    monkeypatch.setattr(Path, "open", watched(opened))
    monkeypatch.setattr(os, "fsync", watched(synced))
    run = pipe.start()
    with run:
        got = []
        for item in run:
            got.append(item)
            run.state_dict()
    assert (got, touched != [], any(touched)) == (3 * [0, 1, 2, 3], True, False)


@pytest.mark.parametrize("times", [1, 2])
def test_a_disk_that_is_full(tmp_path, monkeypatch, times):
    """It is said where the cache cannot be written at last; the run can go on with another one."""

    def fsync(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with nbpipe.source(range(4)).cache(tmp_path).repeat(times).start() as run:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            got, error = delivered(run)
        outcome, left = run.status().outcome, names_in(tmp_path)
        assert list(run) == times * [0, 1, 2, 3]
    assert (got, outcome, left) == ([0, 1, 2, 3], "failed", [])
    assert str(error).startswith(f"cache folder {str(tmp_path)!r} cannot be written")


@contextlib.contextmanager
def room_for(size_bytes):
    """Let files grow to a size, and fail as on a full disk beyond it."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def large(item):
    """Make an item of 8 kB."""
    return np.full(1000, item)


@pytest.mark.parametrize("size_bytes", [600, 9_000, 20_000])
@pytest.mark.parametrize("times", [1, 2])
def test_a_disk_that_is_full_in_the_middle(tmp_path, times, size_bytes):
    """The epoch, or the pass, goes on to its last item; then it is said, and nothing is left."""
    pipe = nbpipe.source(range(5)).map(large).cache(tmp_path).repeat(times)
    with pipe.start() as run:
        with room_for(size_bytes):
            got, error = delivered(run)
        outcome, left = run.status().outcome, names_in(tmp_path)
        assert [int(item[0]) for item in run] == times * [0, 1, 2, 3, 4]
    assert ([int(item[0]) for item in got], outcome, left) == ([0, 1, 2, 3, 4], "failed", [])
    assert str(error) == (
        f"cache folder {str(tmp_path)!r} cannot be written ([Errno 27] File too large); "
        "make room, cache to another folder, or use cache() in memory"
    )


KILLED = """
import os, signal, sys
import nbpipe

def double(item):
    if item == 50 and sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return item * 2

pipe = nbpipe.source(range(100)).map(double).cache(sys.argv[1])
print(list(pipe) == list(range(0, 200, 2)))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_process_killed_while_writing(tmp_path):
    """It leaves no cache; the next process writes it whole and clears what was left."""
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)]
    died = subprocess.run([*command, "die"], cwd=ROOT, check=False)
    left = names_in(tmp_path)
    again = subprocess.run([*command, "live"], cwd=ROOT, check=True, capture_output=True)
    assert died.returncode == -signal.SIGKILL
    assert len(left) == 1
    assert left[0].endswith(".part")
    assert (again.stdout, names_in(tmp_path)) == (b"True\n", [ITEMS])


RANK = """
import sys
import nbpipe

def square(n):
    if n == 5:
        print("filling", flush=True)
        sys.stdin.readline()
    return n * n

pipe = nbpipe.source(range(20)).map(square).cache(sys.argv[1])
expected = [n * n for n in range(20)]
print(list(pipe) == expected, list(pipe) == expected)
"""


@pytest.mark.slow
def test_three_processes_that_fill_one_folder_together(tmp_path):
    """The ranks of a machine may begin at once: each has its items, and one cache is left."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    filling = [finished(rank.stdout.readline) for rank in ranks]
    said = [finished(rank.communicate, "go\n")[0] for rank in ranks]
    assert (filling, said) == (["filling\n"] * 3, ["True True\n"] * 3)
    assert names_in(tmp_path) == [ITEMS]


def test_files_of_living_processes_are_left_alone(tmp_path):
    """What a process that has ended left is removed; others, and other machines, go on."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = socket.gethostname()
    parts = [f"{ITEMS}.{here}.{ended.pid}.x.part", f"{ITEMS}.{here}.{os.getpid()}.x.part"]
    parts += [f"{ITEMS}.elsewhere.{ended.pid}.x.part", "notes.part"]
    for part in parts:
        (tmp_path / part).touch()
    list(nbpipe.source(range(3)).cache(tmp_path))
    assert names_in(tmp_path) == sorted([ITEMS, *parts[1:]])


def test_the_folder_needs_nothing_else(tmp_path):
    """It may be moved: no path is written into it."""
    list(chain(tmp_path / "one"))
    (tmp_path / "one").rename(tmp_path / "two")
    assert list(chain(tmp_path / "two")) == [[1, 2], [3, 4], [5, 6]]
    assert str(tmp_path) not in str(pickle.loads((tmp_path / "two" / ITEMS).read_bytes()))


def test_two_runs_share_what_one_of_them_takes_back():
    """A run that reads items which another one kept too early has them all the same."""
    pipe = nbpipe.source(range(6)).cache().repeat(2)
    with pipe.start() as first, pipe.start() as second:
        early = iter(first)
        next(early)
        until(lambda: pipe["cache"].spec.store.complete)
        second.pause()
        late = iter(second)
        early.close()  # it has had one item of the pass that it kept
        complete = pipe["cache"].spec.store.complete
        second.resume()
        assert (complete, list(late), list(second)) == (False, [*range(6)] * 2, [*range(6)] * 2)


JOINS = {
    "zip": lambda one, other: nbpipe.zip(one, other, strict=False),
    "concat": nbpipe.concat,
    "interleave": lambda one, other: nbpipe.interleave([one, other]),
    "mix": lambda one, other: nbpipe.mix([one, other]),
}


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("join", JOINS)
def test_joined_caches_are_made_again_as_they_were(join, epoch):
    """In another process too, when one input had ended before the state was taken, or all had."""

    def joined():
        parts = [nbpipe.source(range(n), name=f"of_{n}").shuffle(seed=1).cache() for n in (3, 7)]
        return JOINS[join](*parts)

    expected = epochs(joined(), 4)
    found = []
    for cut in range(1, len(expected[epoch]) + 1, 3):
        with joined().start() as run:
            first = [list(run) for _ in range(epoch)]
            begun = list(itertools.islice(run, cut))
            state = json.loads(json.dumps(run.state_dict()))
        with joined().start() as run:
            run.load_state_dict(state)
            rest = [list(run) for _ in range(epoch, 4)]
        found.append([*first, begun + rest[0], *rest[1:]])
    assert found == [expected] * len(found)
