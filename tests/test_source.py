"""Sources: everything that may begin a pipeline, epoch after epoch."""

import asyncio
import collections
import functools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import ArgumentError


def epochs(pipe, count=2):
    """Give the items of some epochs of one run."""
    with pipe.start() as run:
        return [list(run) for _ in range(count)]


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

    def __init__(self):
        self.epochs = []

    def set_epoch(self, number):
        self.epochs.append(number)

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
    nbpipe.source(dataset).shuffle().map(str).batch(2)
    assert dataset.asked == []


def test_a_source_reads_no_more_than_it_may_hold():
    """At most `prefetch` items and one call's are read ahead of the consumer."""
    dataset = MapStyle(1000)
    with nbpipe.source(dataset, prefetch=4).start() as run:
        iterator = iter(run)
        next(iterator)
        iterator.close()
    assert len(dataset.asked) <= 4 + 1 + 1


def test_set_epoch_is_told_every_number():
    """An object with `set_epoch` hears the number of each epoch before it is read."""
    source = AgainAsync()
    with nbpipe.source(source).start() as run:
        list(run)
        run.set_epoch(7)
        list(run)
    assert source.epochs == [0, 7]


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


@given(st.integers(0, 300), st.integers(1, 70))
def test_any_length_with_any_prefetch(length, prefetch):
    """Nothing is lost, doubled or reordered at the border of a chunk or buffer."""
    pipe = nbpipe.source(iter_of(length), prefetch=prefetch).map(lambda item: item, prefetch=1)
    assert list(pipe) == list(range(length))


def iter_of(length):
    """Give a function that gives an iterator."""
    return lambda: iter(range(length))


# -- generators are closed ----------------------------------------------------------------


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


# -- torch --------------------------------------------------------------------------------


@pytest.mark.torch
def test_torch_datasets():
    """Map-style datasets are read by index, iterable ones iterated, tensors by row."""
    import torch
    from torch.utils.data import IterableDataset, TensorDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

        def __len__(self):
            return 3

    rows = TensorDataset(torch.arange(4))
    stream = nbpipe.source(Stream())
    assert [int(row[0]) for row in nbpipe.source(rows).shuffle()] != [0, 1, 2, 3]
    assert (epochs(stream), len(stream)) == ([[0, 1, 2]] * 2, 3)
    assert [int(row) for row in nbpipe.source(torch.arange(3))] == [0, 1, 2]


@pytest.mark.torch
def test_an_iterable_dataset_cannot_be_shuffled_by_index():
    """It has a length and inherits `__getitem__`, but no items by index."""
    from torch.utils.data import IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

        def __len__(self):
            return 3

    with pytest.raises(ArgumentError, match="buffer_size"):
        nbpipe.source(Stream()).shuffle()


@pytest.mark.torch
def test_torch_samplers():
    """Samplers and batch samplers give indices, in the order of the epoch."""
    from torch.utils.data import BatchSampler, SequentialSampler
    from torch.utils.data.distributed import DistributedSampler

    sequential = SequentialSampler(range(5))
    batches = BatchSampler(sequential, 2, drop_last=False)
    distributed = DistributedSampler(list(range(8)), num_replicas=2, rank=0, seed=3)
    first, second = epochs(nbpipe.source(distributed))
    assert list(nbpipe.source(sequential)) == [0, 1, 2, 3, 4]
    assert (list(nbpipe.source(batches)), len(nbpipe.source(batches))) == ([[0, 1], [2, 3], [4]], 3)
    assert first != second
    distributed.set_epoch(1)
    assert second == list(distributed)
