"""Loaders that are copied, pickled, and made by subclasses of the user's."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import nbpipe
from tests.loader.datasets import Numbers

pytestmark = pytest.mark.torch
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
}


class Forever:
    """A batch sampler over and over."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        """Begin the sampler again and again."""
        while True:
            yield from self.sampler


class Infinite(nbpipe.DataLoader):
    """A loader that keeps one iterator for all epochs, as those of detection models do."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        """Count the batches of one epoch."""
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        """Give as many batches."""
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self):
        """Begin again."""
        self.iterator = self._get_iterator()


def listed(loader):
    """Return the batches of an epoch as lists."""
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("copied", WAYS.values(), ids=WAYS)
def test_a_copy_has_the_arguments_and_a_run_of_its_own(copied):
    """A copy begins at the start, with what was tuned and what the user added."""
    generator = torch.Generator().manual_seed(3)
    loader = nbpipe.DataLoader(Numbers(7), 2, shuffle=True, generator=generator, workers="thread")
    loader.num_workers, loader.tag = 2, "mine"
    state = generator.get_state()
    other = copied(loader)
    first = listed(loader)
    (other.generator or generator).set_state(state)
    assert (other.num_workers, other.tag, other.batch_size) == (2, "mine", 2)
    assert other.run is not loader.run
    assert listed(other) == first


@pytest.mark.parametrize("copied", [WAYS["deepcopy"], WAYS["pickle"]])
def test_a_live_executor_is_named(copied):
    """An executor cannot be copied; the message says which workers can."""
    with ThreadPoolExecutor(1) as pool:
        loader = nbpipe.DataLoader(Numbers(4), 2, num_workers=1, workers=pool)
        with pytest.raises(TypeError, match="a live ThreadPoolExecutor; use workers='process'"):
            copied(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subclass_repeats_its_batch_sampler(workers):
    """A batch sampler that a subclass put in place is read, by one iterator for all epochs."""
    loader = Infinite(Numbers(5), 2, num_workers=workers, workers="thread")
    epoch = [[0, 1], [2, 3], [4]]
    assert [listed(loader), listed(loader)] == [epoch, epoch]
    loader.iterator.close()
    loader.reset()
    assert (listed(loader), len(nbpipe.progress(loader))) == (epoch, 3)
    loader.iterator.close()


def test_the_samplers_of_a_loader_are_told_its_epoch():
    """Trainers call `set_epoch` of a loader's samplers, and read its dataset."""
    sampler = torch.utils.data.DistributedSampler(Numbers(8), num_replicas=2, rank=0, seed=1)
    loader = nbpipe.DataLoader(Numbers(8), 2, sampler=sampler)
    orders = []
    for epoch in (0, 1, 0):
        loader.batch_sampler.sampler.set_epoch(epoch)
        orders.append(listed(loader))
    assert (loader.sampler is sampler, len(loader.dataset)) == (True, 8)
    assert (orders[0] == orders[2], orders[0] == orders[1]) == (True, False)
