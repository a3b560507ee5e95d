"""Sources that are refused, and sources that fail."""

import collections
import functools
import itertools

import numpy as np
import pytest

from nbpipe import ArgumentError, ArgumentTypeError, StageError, source
from tests.gates import Gate, finished


async def fetch(item):
    """Await nothing."""
    return item


async def draw(item):
    """Yield nothing."""
    yield item


def epochs(pipe, count=2):
    """Give the items of some epochs of one run."""
    with pipe.start() as run:
        return [list(run) for _ in range(count)]


def refusal(items):
    """Give the message with which a source is refused."""
    with pytest.raises(ArgumentTypeError) as caught:
        source(items)
    return str(caught.value)


# -- refused ------------------------------------------------------------------------------


class Frame:
    """What looks like a table."""

    columns = ("a",)
    iloc = None

    def __len__(self):
        return 1

    def __getitem__(self, key):
        return [1]


class Series:
    """What looks like a column: read by label."""

    iloc = None

    def __len__(self):
        return 1

    def __getitem__(self, key):
        return 1


class LazyFrame:
    """What looks like a table of another library."""

    columns = ("a",)

    def iter_rows(self):
        return iter([])


def needs_arguments(path, *, mode):
    """Need arguments."""


EMPTY_SECOND = "which is empty the second time; give the function that makes it, source(make), or "
FOR_ROWS = (
    "for its rows give source(df.to_dict('records')) or source(df.to_dicts()), for row numbers "
    "source(range(len(df)))"
)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            "a.jpg",
            (
                "source must be a collection of items, got the str 'a.jpg'; for one path write "
                "source([path]), for files source(sorted(Path(folder).glob('*.jpg')))"
            ),
        ),
        (b"ab", "source must be a collection of items, got the bytes b'ab'; for one path write"),
        (bytearray(b"ab"), "source must be a collection of items, got the bytearray bytearray("),
        (
            (n for n in "a"),
            "every epoch, got an object of type generator, " + EMPTY_SECOND + "source(list(...))",
        ),
        (iter([1]), "every epoch, got an object of type list_iterator, " + EMPTY_SECOND),
        (map(str, [1]), "every epoch, got an object of type map, " + EMPTY_SECOND),
        (itertools.count(), "every epoch, got an object of type count, " + EMPTY_SECOND),
        (draw(1), "every epoch, got an object of type async_generator, " + EMPTY_SECOND),
        (
            {"a": 1},
            (
                "source must be a collection of items, got a dict; say which: "
                "source(list(d.items())), source(list(d)) or source(list(d.values()))"
            ),
        ),
        (collections.Counter(), "source must be a collection of items, got a Counter; say which"),
        (
            {1, 2},
            "source must have an order that stays, got a set; give source(sorted(items))",
        ),
        (frozenset(), "source must have an order that stays, got a frozenset; give"),
        (Frame(), f"source must be a collection of items, got a Frame; {FOR_ROWS}"),
        (LazyFrame(), f"source must be a collection of items, got a LazyFrame; {FOR_ROWS}"),
        (
            Series(),
            (
                "source must be a collection of items, got a Series, which is read by label; give "
                "source(series.tolist())"
            ),
        ),
        (
            np.array(5),
            (
                "source must be a collection of items, got the ndarray array(5) without "
                "dimensions; give source([...])"
            ),
        ),
        (
            Frame,
            "source must be a collection or a function, got the class Frame; give an instance",
        ),
        (5, "source must be a collection, a dataset or a function that returns an iterator, got 5"),
        (None, "source must be a collection, a dataset or a function that returns an iterator"),
        (
            needs_arguments,
            (
                "source function must take no arguments, got one that needs path, mode; use "
                "functools.partial"
            ),
        ),
        (
            functools.partial(needs_arguments, "a"),
            "source function must take no arguments, got one that needs mode; use functools",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_sources(items, message):
    """What cannot be read again and again, in one order, is refused with the fix."""
    assert message in refusal(items)


def test_a_coroutine_object_as_a_source():
    """The function is wanted, not what it returns."""
    coroutine = fetch(1)
    message = refusal(coroutine)
    coroutine.close()
    assert message == (
        "source must be a collection or a function, got a coroutine object; give the async "
        "generator function itself, without calling it"
    )


def test_a_long_value_is_cut():
    """A message stays readable, whatever it was given."""
    assert len(refusal("x" * 10_000)) < 250


# -- failing --------------------------------------------------------------------


def two_items():
    """Yield items."""
    yield from (1, 2)


class ReturnsIt:
    """Something that looks as if it could be iterated again."""

    def __init__(self, generator):
        self.generator = generator

    def __iter__(self):
        return self.generator


def test_a_source_that_fails_at_once():
    """The error of the function itself is the cause."""

    def broken():
        raise OSError("no disk")

    with pytest.raises(StageError) as caught:
        list(source(broken, name="files"))
    assert (repr(caught.value.__cause__), caught.value.stage) == ("OSError('no disk')", "files")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_source_that_fails_later_hands_on_what_it_gave(kind):
    """Everything before the failure arrives first; the error names the item's place."""

    def plain():
        yield from (0, 1, 2)
        raise OSError("no disk")

    async def asynchronous():
        for number in range(3):
            yield number
        raise OSError("no disk")

    made = {"plain": plain, "async": asynchronous}
    got = []
    with pytest.raises(StageError) as caught:
        got.extend(source(made[kind]))
    assert (caught.value.path, str(caught.value.__cause__)) == (3, "no disk")
    assert got == [0, 1, 2]


def test_a_source_that_fails_names_its_item():
    """The item is the one to come, also when those before were handed on in mid-task."""
    gate = Gate()

    def items():
        yield from range(1001)
        gate.wait()
        raise ValueError

    with source(items).start() as run:
        entries = iter(run)
        got = finished(lambda: [next(entries) for _ in range(1001)])
        gate.open()
        with pytest.raises(StageError, match="on item 1001: ValueError"):
            finished(next, entries)
    assert got == list(range(1001))


def test_a_failed_source_can_be_read_in_the_next_epoch():
    """A run survives the failure of an epoch."""
    fails = iter([True, False])

    def sometimes():
        yield 1
        if next(fails):
            raise OSError("no disk")

    with source(sometimes).start() as run:
        with pytest.raises(StageError):
            list(run)
        assert list(run) == [1]


@pytest.mark.parametrize("change", ["append", "clear", "pop"])
def test_a_source_that_changes_its_length_is_refused(change):
    """Items added or removed during an epoch would be read by some of its stages only."""
    items = list(range(100))

    def change_length(item):
        if item == 5:
            getattr(items, change)(*([0] if change == "append" else []))
        return item

    with pytest.raises(StageError) as caught:
        list(source(items, prefetch=1).map(change_length, prefetch=1))
    assert isinstance(caught.value.__cause__, ArgumentError)
    assert "length of a source must stay the same during an epoch, got 100" in str(caught.value)


def test_a_source_may_change_between_epochs():
    """The next epoch reads the items that there are then."""
    items = [1, 2]
    pipe = source(items)
    with pipe.start() as run:
        first = list(run)
        items.append(3)
        assert (first, list(run), len(pipe)) == ([1, 2], [1, 2, 3], 3)


@pytest.mark.parametrize("items", [[], range(0), lambda: iter([]), np.zeros((0, 3))])
def test_an_empty_source_ends_at_once(items):
    """An epoch without items is an epoch, with and without stages behind."""
    pipe = source(items)
    assert epochs(pipe) + epochs(pipe.map(str).batch(2).unbatch().window(2)) == 4 * [[]]


@pytest.mark.parametrize("made", ["abc", b"abc", 5, None, {"a": 1}])
def test_a_function_must_return_items(made):
    """What it returned is named when the epoch starts."""
    with pytest.raises(StageError) as caught:
        list(source(lambda: made, name="files"))
    assert isinstance(caught.value.__cause__, ArgumentTypeError)
    assert str(caught.value.__cause__) == (
        "the function of source 'files' must return an iterator of items, got "
        f"{type(made).__name__}; yield the items, or return a list of them"
    )


@pytest.mark.parametrize("wrapped", [lambda one: lambda: one, ReturnsIt])
def test_a_generator_that_was_read_before_is_refused(wrapped):
    """A function that gives the same generator twice would give an empty epoch."""
    pipe = source(wrapped(two_items()))
    with pipe.start() as run:
        assert list(run) == [1, 2]
        with pytest.raises(StageError) as caught:
            list(run)
    assert "got a generator that was read to its end before" in str(caught.value.__cause__)
