"""Sources: everything that may begin a pipeline, epoch after epoch."""

import asyncio
import collections
import functools
import io
import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError, ArgumentTypeError, StageError, source
from tests.gates import Gate, epochs, finished


class MapStyle:
    """A dataset that is read by index, and remembers how."""

    def __init__(self, length):
        self.length = length
        self.asked = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.asked.append(index)
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index * 10


class Again:
    """Something that can be iterated again and again."""

    def __iter__(self):
        return iter([1, 2, 3])


class OnlyIndexed:
    """Something that ends with an IndexError, and has no length."""

    def __getitem__(self, index):
        return [5, 6][index]


class AgainAsync:
    """An object with `__aiter__`."""

    async def __aiter__(self):
        for number in range(3):
            await asyncio.sleep(0)
            yield number


def plain_function():
    """Return a fresh iterator."""
    return iter([1, 2])


def generator_function():
    """Yield items."""
    yield from (1, 2)


def function_of_indexed():
    """Return what is read by index."""
    return OnlyIndexed()


def function_of_async():
    """Return an async iterator without being async itself."""
    return async_generator_function()


async def async_generator_function():
    """Yield items from the event loop."""
    for number in (1, 2):
        await asyncio.sleep(0)
        yield number


async def coroutine_function():
    """Return items that took an await."""
    await asyncio.sleep(0)
    return [1, 2]


async def coroutine_of_async():
    """Return an async iterator after an await."""
    return async_generator_function()


class CallableAsync:
    """An instance that is called for an async generator."""

    async def __call__(self):
        yield 1
        yield 2


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ((1, 2), [1, 2]),
        (range(3), [0, 1, 2]),
        (np.arange(3), [0, 1, 2]),
        (collections.deque([1, 2]), [1, 2]),
        ({"a": 1}.values(), [1]),
        (Again(), [1, 2, 3]),
        (OnlyIndexed(), [5, 6]),
        (MapStyle(3), [0, 10, 20]),
        (plain_function, [1, 2]),
        (generator_function, [1, 2]),
        (functools.partial(iter, [1, 2]), [1, 2]),
        (lambda: [1, 2], [1, 2]),
        (function_of_indexed, [5, 6]),
        (async_generator_function, [1, 2]),
        (functools.partial(async_generator_function), [1, 2]),
        (function_of_async, [1, 2]),
        (coroutine_function, [1, 2]),
        (coroutine_of_async, [1, 2]),
        (CallableAsync(), [1, 2]),
        (AgainAsync(), [0, 1, 2]),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_every_kind_of_source_gives_its_items_every_epoch(items, expected):
    """Whatever it is, it is read afresh in each epoch."""
    assert epochs(nbpipe.source(items)) == [expected, expected]


async def nothing():
    """Yield no items from the event loop."""
    for number in ():
        yield number


def same_async():
    """Return a function that gives one async iterator again and again."""
    made = async_generator_function()

    async def again():
        return made

    return again


def test_the_same_async_generator_again_is_refused():
    """An epoch is not empty in silence because the one before it has read the items."""
    pipe = nbpipe.source(same_async())
    assert list(pipe) == [1, 2]
    with pytest.raises(nbpipe.StageError, match="got a generator that was read to its end before"):
        list(pipe)


@pytest.mark.parametrize("empty", [lambda: iter([]), nothing])
def test_no_items_are_no_mistake(empty):
    """A source that has none in an epoch is read afresh as any other."""
    assert epochs(nbpipe.source(empty)) == [[], []]


def test_rows_of_an_array():
    """An array gives its rows."""
    rows = list(nbpipe.source(np.eye(2)))
    assert [row.tolist() for row in rows] == [[1, 0], [0, 1]]


def test_a_dataset_is_asked_for_ints_in_order():
    """Indices are Python ints: some datasets refuse numpy's."""
    dataset = MapStyle(100)
    list(nbpipe.source(dataset).shuffle())
    assert sorted(dataset.asked) == list(range(100))
    assert {type(index) for index in dataset.asked} == {int}


def test_nothing_is_read_before_the_run_starts():
    """Building a pipeline touches no data."""
    dataset = MapStyle(3)
    pipe = nbpipe.source(dataset).shuffle().shard(0, 2).map(str).batch(2)
    assert (len(pipe), dataset.asked) == (1, [])


def test_a_source_reads_no_more_than_it_may_hold():
    """At most `prefetch` items and one call's are read ahead of the consumer."""
    dataset = MapStyle(1000)
    with nbpipe.source(dataset, prefetch=4).start() as run:
        iterator = iter(run)
        next(iterator)
        iterator.close()
    assert len(dataset.asked) <= 4 + 1 + 1


def test_set_epoch_of_an_indexed_source():
    """A dataset hears it too, also where several are joined and shuffled."""

    class Told(MapStyle):
        numbers = ()

        def set_epoch(self, number):
            self.numbers = (*self.numbers, number)

    one, two = Told(3), Told(2)
    joined = nbpipe.concat(nbpipe.source(one), nbpipe.source(two)).shuffle()
    assert [sorted(items) for items in epochs(joined)] == 2 * [[0, 0, 10, 10, 20]]
    assert (one.numbers, two.numbers) == ((0, 1), (0, 1))


def test_a_pipeline_as_the_source_of_another():
    """Its stages run as part of the outer one, and its length is known."""
    inner = nbpipe.source(range(6)).map(lambda item: item + 1).batch(2, collate=list)
    outer = nbpipe.source(inner, name="batches").map(sum)
    assert (list(outer), len(outer)) == ([3, 7, 11], 3)


def test_a_pipeline_as_source_draws_anew_every_epoch():
    """What is random inside is so in the outer pipeline, epoch by epoch."""
    outer = nbpipe.source(nbpipe.source(range(50)).shuffle(), name="outer")
    first, second = epochs(outer)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))


@pytest.mark.slow
@given(st.integers(0, 300), st.integers(1, 70))
def test_any_length_with_any_prefetch(length, prefetch):
    """Nothing is lost, doubled or reordered at the border of a chunk or buffer."""
    pipe = nbpipe.source(iter_of(length), prefetch=prefetch).map(lambda item: item, prefetch=1)
    assert list(pipe) == list(range(length))


def iter_of(length):
    """Give a function that gives an iterator."""
    return lambda: iter(range(length))


# -- generators are closed -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["generator", "async generator", "async from a function"])
def test_an_abandoned_source_is_closed(kind):
    """After `break` the generator's `finally` has run, when the run is closed."""
    closed = threading.Event()

    def plain():
        try:
            yield from range(1000)
        finally:
            closed.set()

    async def asynchronous():
        try:
            for number in range(1000):
                yield number
        finally:
            closed.set()

    def function_of_it():
        return asynchronous()

    makers = {
        "generator": plain,
        "async generator": asynchronous,
        "async from a function": function_of_it,
    }
    for _ in nbpipe.source(makers[kind]):
        break
    assert closed.is_set()


# -- torch -----------------------------------------------------------------------------------------


def stream_of_torch():
    """Make an iterable dataset that has a length."""
    from torch.utils.data import IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

        def __len__(self):
            return 3

    return Stream()


def test_torch_datasets(torch):
    """Map-style datasets are read by index, iterable ones iterated, tensors by row."""
    from torch.utils.data import TensorDataset

    rows = TensorDataset(torch.arange(4))
    stream = nbpipe.source(stream_of_torch())
    assert [int(row[0]) for row in nbpipe.source(rows).shuffle()] != [0, 1, 2, 3]
    assert (epochs(stream), len(stream)) == ([[0, 1, 2]] * 2, 3)
    assert [int(row) for row in nbpipe.source(torch.arange(3))] == [0, 1, 2]


@pytest.mark.torch
def test_an_iterable_dataset_cannot_be_shuffled_by_index():
    """It has a length and inherits `__getitem__`, but no items by index."""
    with pytest.raises(ArgumentError, match="buffer_size"):
        nbpipe.source(stream_of_torch()).shuffle()


# -- samplers of torch -----------------------------------------------------------------------------


class Squares:
    """A map-style dataset."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index * index


class Told:
    """A sampler that notes the epochs it was told."""

    def __init__(self):
        self.epochs = []

    def __iter__(self):
        return iter([3, 1, 2])

    def __len__(self):
        return 3

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class Around:
    """A batch sampler, or a loader, around another sampler."""

    def __init__(self, inner, word):
        setattr(self, word, inner)
        self._inner = inner

    def __iter__(self):
        return iter([list(self._inner)])

    def __len__(self):
        return 0  # a sampler may be false


@pytest.fixture
def data(torch):
    """Give `torch.utils.data`, with its global generator seeded."""
    torch.manual_seed(0)
    return torch.utils.data


@pytest.mark.parametrize(
    ("make", "indices"),
    [
        (lambda data: data.SequentialSampler(range(10)), range(10)),
        (lambda data: data.RandomSampler(range(10)), range(10)),
        (lambda data: data.SubsetRandomSampler([7, 1, 4]), [1, 4, 7]),
        (lambda data: data.WeightedRandomSampler([0, 1, 0, 0], 5), [1] * 5),
        (lambda data: data.DistributedSampler(range(10), 2, 1), None),
    ],
)
def test_indices_of_a_sampler(data, make, indices):
    """Each epoch iterates the sampler anew; the dataset is read by a stage, in parallel."""
    sampler, squares = make(data), Squares()
    pipe = nbpipe.source(sampler).map(squares.__getitem__, concurrency=2)
    one, other = epochs(pipe)
    assert [len(pipe), len(one), len(other)] == [len(sampler)] * 3
    if indices is not None:
        assert sorted(one) == sorted(other) == sorted(index * index for index in indices)


def test_batches_of_indices(data):
    """A batch sampler gives lists of indices, and a stage reads the items of one."""
    squares = Squares()
    batches = data.BatchSampler(data.SequentialSampler(squares), 4, drop_last=False)
    pipe = nbpipe.source(batches).map(lambda indices: [squares[index] for index in indices])
    assert (len(pipe), list(pipe)) == (3, [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]])


@pytest.mark.parametrize("words", [(), ("sampler",), ("batch_sampler",), ("sampler",) * 3])
def test_a_sampler_is_told_the_epoch(words):
    """One inside a batch sampler or a loader, too."""
    told = Told()
    items = told
    for word in words:
        items = Around(items, word)
    epochs(nbpipe.source(items), 3)
    assert told.epochs == [0, 1, 2]


def test_the_outermost_sampler_passes_the_epoch_on():
    """One with a `set_epoch` of its own tells whom it likes."""
    outer, inner = Told(), Told()
    outer.sampler = inner
    list(nbpipe.source(outer))
    assert (outer.epochs, inner.epochs) == ([0], [])


def test_a_loader_of_torch_as_a_source(data):
    """Its batches are the items."""
    loader = data.DataLoader(
        Squares(), batch_size=5, sampler=data.DistributedSampler(range(10), 1, 0)
    )
    one, other = epochs(nbpipe.source(loader).unbatch().map(int))
    assert one != other
    assert sorted(one) == sorted(other) == [n * n for n in range(10)]


async def draw(item):
    """Yield nothing."""
    yield item


def refusal(items):
    """Give the message with which a source is refused."""
    with pytest.raises(ArgumentTypeError) as caught:
        source(items)
    return str(caught.value)


# -- refused ---------------------------------------------------------------------------------------


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
        (map(str, [1]), "which is empty the second time; write source(items).map(fn), or source("),
        (enumerate([1]), "write source(items).enumerate(), or source(list(...))"),
        (zip([1], strict=True), "write nbpipe.zip(source(one), source(other)), or"),
        (io.StringIO(), "give the function that opens it, source(lambda: open(path)), or"),
        (itertools.count(), "the function that makes it, source(lambda: itertools.count(...))"),
        (
            itertools.count,
            "class count; give a function that makes one for every epoch: source(lambda: itertools",
        ),
        (range, "got the class range; give an instance: source(range(...))"),
        (map, "got the class map; write source(items).map(fn)"),
        (np.array(3), "got a ndarray without dimensions, array(3); give source([...]), or"),
        (Path("photos"), "; for its files give source(sorted(path.glob('*.jpg')))"),
        (draw(1), "got an object of type async_generator, " + EMPTY_SECOND.removesuffix(", or ")),
        (
            {"a": 1},
            (
                "source must be a collection of items, got a dict; say which: "
                "source(list(d.items())), source(list(d)) or source(list(d.values()))"
            ),
        ),
        (collections.Counter(), "source must be a collection of items, got a Counter; say which"),
        ({1, 2}, "source must have an order that stays, got a set; give source(sorted(items))"),
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
        (Frame, "source must be a collection or a function, got the class Frame; give an instance"),
        (5, "that returns an iterator, got 5; for the numbers below it give source(range(5))"),
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


def test_run_is_no_source():
    """A run is refused at once: by index it would give its stages."""
    with source([1]).start() as run:
        assert refusal(run) == (
            "source must be a pipeline or a collection of items, got a Run; give the pipeline that "
            "it was started from, or the DataLoader that it is of"
        )


def test_what_only_a_loop_can_read_is_not_to_be_listed():
    """No list can be made of an async generator, so the function is all that is advised."""
    assert refusal(draw(1)).endswith("; give the function that makes it, source(make)")


def test_what_is_advised_works():
    """Each way out that a refusal of a table or an iterator names gives its items."""
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"a": [1, 2]})
    for refused, advised, items in (
        (table, "table.to_pylist()", [{"a": 1}, {"a": 2}]),
        (table, "range(table.num_rows)", [0, 1]),
        (table.to_batches()[0], "table.to_pylist()", [{"a": 1}, {"a": 2}]),
        (itertools.count, "lambda: itertools.count()", [0, 1]),
    ):
        assert f"source({advised})" in refusal(refused)
        made = eval(advised, {"table": table, "itertools": itertools})
        assert list(nbpipe.source(made).take(2)) == items


def test_what_is_advised_of_a_dataset_of_files_works():
    """It has batches of rows, and no items of its own."""
    files = pytest.importorskip("pyarrow.dataset")
    rows = files.dataset(pytest.importorskip("pyarrow").table({"a": [1, 2]}))
    advised = "lambda: dataset.to_batches()"
    assert f"source({advised})" in refusal(rows)
    made = eval(advised, {"dataset": rows})
    assert [batch.to_pylist() for batch in nbpipe.source(made)] == [[{"a": 1}, {"a": 2}]]


def test_a_table_that_is_computed_later():
    """One of dask has neither rows nor their number before."""

    class Later(Frame):
        def compute(self):
            return self

    assert refusal(Later()).endswith("source(df.compute().to_dict('records'))")


def test_a_long_value_is_cut():
    """A message stays readable, whatever it was given."""
    assert len(refusal("x" * 10_000)) < 250


# -- failing ---------------------------------------------------------------------------------------


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


class RunsDry:
    """A dataset that takes an item of a reader, which has come to its end."""

    def __init__(self, length, at):
        self.length, self.at = length, at

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return next(iter([index] * (index != self.at)))


@pytest.mark.parametrize(
    ("order", "before"),
    [
        (lambda items: items, 3),
        (lambda items: items.enumerate().repeat(2), 3),
        (lambda items: items.shuffle().repeat(), None),
        (lambda items: nbpipe.concat(source(range(2)), items).shuffle(), None),
        (lambda items: items.claim(store=nbpipe.ranks.LocalStore()), 3),
        (lambda items: items.map(abs).repeat(2), 3),
    ],
)
def test_an_item_that_ends_like_an_iterator_is_an_error(order, before):
    """`StopIteration` of a dataset is no end of it: items behind it would be missing."""
    got = []
    with pytest.raises(StageError, match=r"RunsDry\.__getitem__ raised StopIteration"):
        got.extend(order(source(RunsDry(200, 3), name="rows")))
    assert before is None or len(got) == before


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


async def same(made):
    """Give the same iterator again, from the event loop."""
    return made


@pytest.mark.parametrize("giving", [lambda made: made, same], ids=["plain", "async"])
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: iter([1, 2]), "list_iterator"),
        (lambda: map(int, "12"), "map"),
        (lambda: filter(None, [1, 2]), "filter"),
    ],
)
def test_an_iterator_that_was_read_before_is_refused(make, kind, giving):
    """A function that gives the same iterator twice would give an empty epoch, or run."""
    pipe = source(functools.partial(giving, make()))
    assert list(pipe) == [1, 2]
    with pytest.raises(StageError, match=f"got a {kind} that was read to its end before"):
        list(pipe)


def test_an_iterator_that_was_not_read_to_its_end_goes_on():
    """A function may give an iterator that never ends in all epochs."""
    numbers = map(int, itertools.count())
    pipe = source(lambda: numbers).take(3)
    with pipe.start() as run:
        first, second = list(run), list(run)
    assert first == [0, 1, 2]
    assert second[0] > first[-1]


class Endless:
    """Says that it has more items than Python can count."""

    def __len__(self):
        return 2**63

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: source(range(2**62 + 1)), "range"),
        (lambda: source(range(2**70)), "range"),
        (lambda: len(source(Endless())), "Endless"),
        (lambda: len(source(Endless()).take(1)), "Endless"),
    ],
)
def test_too_many_items_are_refused(make, kind):
    """More items than an order can number are an error that says what to give instead."""
    with pytest.raises(ArgumentError) as caught:
        make()
    assert str(caught.value) == (
        f"source must have at most 2**62 items, got a {kind} of more; for numbers without an end "
        "give source(lambda: itertools.count())"
    )


def test_most_items():
    """As many as an order can number are taken."""
    assert list(source(range(2**62)).skip(2**62 - 2)) == [2**62 - 2, 2**62 - 1]
