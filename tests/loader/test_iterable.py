"""Iterable datasets: read once, or by each worker its part."""

import os
import random
import sqlite3
import threading
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info

import nbpipe
from tests.loader.conftest import WAYS
from tests.loader.datasets import Cursor, Fickle, Parted, Ranged, Sized, Stream, narrow
from tests.loader.same import epochs, same

PROCESSES = WAYS["process"]
SHAPES = [
    {"batch_size": 4},
    {"batch_size": 4, "drop_last": True},
    {"batch_size": None},
    {"batch_size": 5, "collate_fn": sum},
]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [*((Stream, shape) for shape in SHAPES), *((Cursor, shape) for shape in SHAPES[::2])],
    ids=str,
)
def test_read_once(kind, shape, way):
    """A dataset that does not ask who reads is read once, and asked for its iterator once."""
    wanted = epochs(DataLoader(kind(), **shape))
    assert same(epochs(nbpipe.DataLoader(kind(), **shape, **way)), wanted)


def test_dataset_that_never_goes_back(placed):
    """Workers read a copy of the dataset in each epoch, and leave the one here as it was."""
    dataset = Cursor(rewinds=False)
    loader = nbpipe.DataLoader(dataset, 4, **placed)
    got = [[batch.tolist() for batch in epoch] for epoch in epochs(loader)]
    assert (got, dataset.at) == ([[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]] * 2, 0)


def test_dataset_that_gives_more_after_its_end(way):
    """A dataset that has come to its end is not asked again, though it would begin anew."""

    class Endless(Cursor):
        def __next__(self):
            try:
                return super().__next__()
            except StopIteration:
                self.at = 0
                raise

    assert [len(batch) for batch in nbpipe.DataLoader(Endless(), 4, **way)] == [4, 4, 2]


@pytest.mark.parametrize("count", [1, 3])
def test_generators_of_the_loop_are_left_alone(count):
    """A dataset that draws in a worker takes nothing from the loop, and repeats its samples."""

    def run():
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        loader = nbpipe.DataLoader(Fickle(), None, num_workers=count)
        return [
            (sample, random.random(), float(np.random.rand()), float(torch.rand(())))  # noqa: NPY002
            for sample in loader
        ]

    first = run()
    samples = {value for sample, *_ in first for value in sample}
    drawn = {value for _, *values in first for value in values}
    assert (run(), len(samples), len(drawn)) == (first, 18, 18)


def parts(length, workers, size):
    """Give the batches of a `Parted` as torch's workers give them, in turn."""
    numbers = [list(range(worker, length, workers)) for worker in range(workers)]
    made = [[one[at : at + size] for at in range(0, len(one), size)] for one in numbers]
    turns = max(map(len, made))
    return [batches[turn] for turn in range(turns) for batches in made if turn < len(batches)]


@pytest.mark.parametrize(("workers", "readers"), [("process", 1), ("process", 2), ("thread", 1)])
def test_each_worker_reads_its_part(workers, readers):
    """A dataset that asks is read by all processes, which take turns; by one thread whole."""
    loader = nbpipe.DataLoader(Parted(), 4, num_workers=readers, workers=workers)
    got = [[batch.tolist() for batch in epoch] for epoch in epochs(loader)]
    assert got == [parts(21, readers, 4)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("stays", [False, True])
def test_worker_init_fn_narrows_the_dataset(stays):
    """`worker_init_fn` may tell each worker's own dataset which part to read, once for a worker."""
    dataset = Ranged(0, 12)
    how = {"worker_init_fn": narrow, "persistent_workers": stays}
    loader = nbpipe.DataLoader(dataset, 3, **how, **PROCESSES)
    got = [[batch.tolist() for batch in epoch] for epoch in epochs(loader)]
    loader.close()
    assert got == [[[0, 1, 2], [6, 7, 8], [3, 4, 5], [9, 10, 11]]] * 2
    assert (dataset.start, dataset.end) == (0, 12)


@pytest.mark.slow
@pytest.mark.parametrize("stays", [False, True])
def test_worker_init_fn_given_later_narrows_too(stays):
    """A `worker_init_fn` counts from the next epoch on where it is assigned."""
    loader = nbpipe.DataLoader(Ranged(0, 12), 3, persistent_workers=stays, **PROCESSES)
    whole = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    parted = [whole[0], whole[2], whole[1], whole[3]]
    got = []
    for loader.worker_init_fn in (None, narrow, None):
        got.append([batch.tolist() for batch in loader])
    loader.close()
    assert got == [whole, parted, whole]


def test_dataset_that_asks_late_is_read_whole(placed):
    """Asked for after the first sample, nobody is a worker: all is read, nothing twice."""

    class Late(IterableDataset):
        def __iter__(self):
            yield 0
            yield from range(1, 9 if get_worker_info() is None else 5)

    loader = nbpipe.DataLoader(Late(), None, **placed)
    assert list(loader) == list(range(9))


@pytest.mark.slow
def test_dataset_that_catches_everything_is_split(placed):
    """A dataset whose handlers catch all exceptions is seen to ask all the same."""

    class Careful(Parted):
        def __iter__(self):
            try:
                info = get_worker_info()
            except BaseException:
                info = None
            first, step = (0, 1) if info is None else (info.id, info.num_workers)
            yield from range(first, 10, step)

    loader = nbpipe.DataLoader(Careful(), None, **placed)
    assert list(loader) == list(range(10))


def test_chained_datasets(placed):
    """A chain of datasets asks where one of them does."""
    loader = nbpipe.DataLoader(ChainDataset([Parted(4), Parted(6)]), None, **placed)
    assert sorted(loader) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]


def test_source_that_was_read_is_not_read_again(placed):
    """A stream that cannot be read twice loses nothing by being watched."""

    class Once(IterableDataset):
        def __init__(self, items):
            self.items = items

        def __iter__(self):
            return self.items

    loader = nbpipe.DataLoader(Once(iter(range(7))), None, num_workers=2, workers="thread")
    assert list(loader) == list(range(7))


@pytest.mark.slow
def test_readers_follow_num_workers():
    """The next epoch has as many readers as there are workers by then; the others have ended."""
    loader = nbpipe.DataLoader(Parted(), 4, num_workers=2, persistent_workers=True)
    got, readers = [], []
    for count in (2, 3, 3):
        loader.num_workers = count
        got.append([batch.tolist() for batch in loader])
        readers.append(sum(name.endswith("read") for name in loader.run.stages))
    loader.close()
    assert got == [parts(21, 2, 4), *[parts(21, 3, 4)] * 2]
    assert readers == [2, 3, 3]


def test_length_that_is_said(way):
    """The length is what the dataset says, in batches."""
    shapes = [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}]
    found = [len(nbpipe.DataLoader(Sized(), **shape, **way)) for shape in shapes]
    assert found == [len(DataLoader(Sized(), **shape)) for shape in shapes]


def test_length_that_is_not_said(way):
    """A dataset without a length gives a loader without one."""
    with pytest.raises(TypeError, match="len") as caught:
        len(nbpipe.DataLoader(Stream(), **way))
    assert "Stream" in str(caught.value)


def test_more_than_was_said(way):
    """More batches than the dataset said are a warning, once its length was asked for."""
    loader = nbpipe.DataLoader(Sized(5, said=4), None, **way)
    with warnings.catch_warnings(record=True) as before:
        warnings.simplefilter("always")
        for _ in loader:  # `list` would ask for the length
            continue
    len(loader)
    with pytest.warns(UserWarning, match="said that its length is 4") as caught:
        got = list(loader)
    assert (len(before), len(caught), got) == (0, 1, list(range(5)))
    assert caught[0].filename == __file__


def test_process_that_reads():
    """With workers another process reads, and one alone."""

    class Read(Stream):
        def __iter__(self):
            for _ in range(9):
                yield os.getpid()

    found = {pid for batch in nbpipe.DataLoader(Read(), 2, num_workers=2) for pid in batch.tolist()}
    assert len(found - {os.getpid()}) == len(found) == 1


def test_more_calls_cannot_read():
    """One call reads: no knob, and so no advice, asks for more."""
    loader = nbpipe.DataLoader(Stream(), 4, num_workers=2)
    assert loader.pipeline["samples"].knobs["concurrency"].maximum == 1
    assert loader.pipeline["fetch"].knobs["concurrency"].value == 2


def test_connection_that_the_dataset_opens(placed):
    """An iterable dataset may open a connection of sqlite in `__iter__`."""

    class Rows(IterableDataset):
        def __iter__(self):
            own = sqlite3.connect(":memory:")
            for number in range(40):
                yield own.execute("select ?", (number,)).fetchone()[0]
            own.close()

    assert [len(batch) for batch in nbpipe.DataLoader(Rows(), 10, **placed)] == [10] * 4


def test_thread_that_reads():
    """Without workers the calling thread reads; with threads as workers, another one."""
    threads = []

    class Noted(Stream):
        def __iter__(self):
            threads.append(threading.current_thread())
            return super().__iter__()

    list(nbpipe.DataLoader(Noted()))
    list(nbpipe.DataLoader(Noted(), num_workers=1, workers="thread"))
    here = threading.current_thread()
    assert [thread is here for thread in threads] == [True, False]
