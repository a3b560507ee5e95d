"""Datasets that lie in memory: their arrays are mapped by workers, not copied to them."""

import gc
import logging
import sys

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import nbpipe
from tests.executors.inner import Packer, unpack
from tests.loader.same import same

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere arrays are sent"),
]
LARGE = 300_000


class Arrays(Dataset):
    """Holds large arrays of several kinds."""

    def __init__(self):
        self.tensor = torch.arange(LARGE).reshape(-1, 3)
        self.array = np.arange(LARGE, dtype=np.float64)
        self.turned = torch.arange(LARGE, dtype=torch.float32).reshape(-1, 2).T
        self.rows = list(torch.arange(LARGE).reshape(-1, 1000))
        self.names = [str(n) for n in range(8)]

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.tensor[index], self.array[index], self.turned[1, index], self.rows[index][-1]


@pytest.mark.slow
def test_arrays_come_as_they_are():
    """What workers read in mapped arrays is what lies in them here."""
    got = list(nbpipe.DataLoader(Arrays(), 4, num_workers=2))
    wanted = list(torch.utils.data.DataLoader(Arrays(), 4))
    assert same(got, wanted)


def test_what_cannot_be_mapped_is_named(caplog):
    """What is large and sent to each worker is told once: of the dataset, and what to do."""
    with caplog.at_level(logging.WARNING, logger="nbpipe"):
        list(nbpipe.DataLoader([b"1234" * 300_000, b""], None, num_workers=1))
    line = (
        "stage 'fetch' sends 1.2 MB with its function to each worker, once: attribute 'dataset' "
        "(Packed, 1.2 MB); hold paths in the dataset, memory-map it, or use workers='thread', if "
        "that is too much"
    )
    assert [record.getMessage() for record in caplog.records] == [line]


def packed_bytes(value):
    """Give the bytes that are sent, and whether the rest is mapped."""
    head, where = Packer().pack(value)
    return len(head), where is not None


def test_large_arrays_stay_out_of_what_is_sent():
    """Large arrays are not part of the message; views bring only what they show."""
    rows = list(torch.zeros(LARGE).reshape(-1, 1000))[:5]
    found = [packed_bytes(value) for value in (np.zeros(LARGE), torch.zeros(LARGE), rows)]
    assert [mapped for _, mapped in found] == [True, True, False]
    assert [size < 50_000 for size, _ in found] == [True] * 3


def test_worker_may_write_to_its_arrays():
    """An array may be written to in a worker; nobody else sees it."""

    class Counting(Dataset):
        def __init__(self):
            self.counts = np.zeros(LARGE)

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.counts[index] += 1
            return self.counts[index]

    dataset = Counting()
    got = torch.cat(list(nbpipe.DataLoader(dataset, num_workers=2))).tolist()
    assert (got, dataset.counts.sum()) == ([1.0] * 4, 0)


@pytest.mark.parametrize("stays", [True, False])
def test_next_epoch_sees_what_is_there_now(stays):
    """Workers that stay see an array that took another's place; new ones see what was written."""
    dataset = TensorDataset(torch.zeros(8, LARGE // 8))
    loader = nbpipe.DataLoader(dataset, 8, num_workers=1, persistent_workers=stays)
    found = []
    for value in range(3):
        if stays:
            dataset.tensors = (torch.full((8, LARGE // 8), float(value)),)
        else:
            dataset.tensors[0].fill_(value)
        found += [batch[0].unique().tolist() for batch in loader]
    loader.close()
    assert found == [[0.0], [1.0], [2.0]]


@pytest.mark.slow
def test_epoch_leaves_no_file_open():
    """After an epoch the memory is given back, also while the loader lives."""
    loader = nbpipe.DataLoader(TensorDataset(torch.zeros(8, LARGE // 8)), 8, num_workers=1)
    list(loader)
    gc.collect()  # of other tests' files that nobody has
    before = psutil.Process().num_fds()
    during = [psutil.Process().num_fds() for _ in range(3) for _ in loader]
    assert psutil.Process().num_fds() == before
    assert min(during) > before


def test_same_arrays_are_copied_once():
    """Packed again, an object that did not change is the same to the byte."""
    packer, value = Packer(), {"a": torch.ones(LARGE), "b": np.ones(LARGE)}
    first, second = packer.pack(value), packer.pack(value)
    value["b"] = np.zeros(LARGE)
    third = packer.pack(value)
    assert (first == second, second == third) == (True, False)
    assert same(unpack(*third), value)


def test_what_hangs_together_stays_so():
    """A `collate_fn` that is the dataset's own method keeps its dataset in the worker."""

    class Whole(Dataset):
        def __init__(self):
            self.data = torch.arange(LARGE)

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.last = index
            return index

        def collate(self, samples):
            return self.last, int(self.data[-1])

    dataset = Whole()
    loader = nbpipe.DataLoader(dataset, 2, num_workers=2, collate_fn=dataset.collate)
    assert list(loader) == [(1, LARGE - 1), (3, LARGE - 1)]


def test_parameters_and_gradients():
    """Tensors that want gradients, sparse and empty ones are packed as what they are."""
    values = [
        torch.ones(LARGE, requires_grad=True),
        torch.empty(0, 3),
        torch.ones(3, dtype=torch.bool),
        torch.nn.Parameter(torch.ones(2)),
        torch.eye(3).to_sparse(),
    ]
    packer = Packer()
    got = unpack(*packer.pack(values))
    assert same(got, values)
