"""States that do not belong to a loader, or were not written by one, are refused."""

import functools

import pytest
import torch

import nbpipe
from nbpipe import StateError
from tests.loader.datasets import Numbers
from tests.loader.stateful import cut, numbers, plain

REFUSED = {
    "length": lambda: numbers(24),
    "batch_size": lambda: numbers(size=5),
    "drop_last": lambda: numbers(drop_last=True),
    "sampler": lambda: nbpipe.DataLoader(Numbers(), 4),
}


@pytest.mark.parametrize("what", REFUSED)
def test_state_of_another_loader_is_refused(what):
    """Other data, sizes and samplers are refused, and named."""
    state, _ = cut(numbers, 2)
    with pytest.raises(StateError, match=f"whose {what} is") as caught:
        REFUSED[what]().load_state_dict(state)
    assert "begin the epoch again" in str(caught.value)


def test_state_of_another_generator_is_refused():
    """A state without the generator's is refused by a loader that has one, and the other way."""
    one, _ = cut(numbers, 2)
    other, _ = cut(functools.partial(numbers, seeded=True), 2)
    with pytest.raises(StateError, match="generator"):
        numbers(seeded=True).load_state_dict(one)
    with pytest.raises(StateError, match="generator") as caught:
        numbers().load_state_dict(other)
    assert isinstance(caught.value, ValueError)


def test_state_of_a_sampler_that_draws_from_another_generator_is_refused():
    """As many generators are not the same ones: one sampler has its own, the other has torch's."""

    def loader(*, apart):
        ours = torch.Generator().manual_seed(1)
        sampler = torch.utils.data.RandomSampler(Numbers(8), generator=ours if apart else None)
        return nbpipe.DataLoader(Numbers(8), 2, sampler=sampler, generator=ours)

    for apart in (True, False):
        state, _ = cut(functools.partial(loader, apart=apart), 2)
        with pytest.raises(StateError, match="draws its order from another generator; give"):
            loader(apart=not apart).load_state_dict(state)


def test_state_of_a_dataset_that_has_none_by_now_is_refused():
    """Where the epoch goes on, and the dataset is to be told it."""
    state, _ = cut(lambda: nbpipe.DataLoader(Going(), 2), 2)
    loader = nbpipe.DataLoader(torch.utils.data.ChainDataset([]), 2)
    loader.load_state_dict(state)
    with pytest.raises(StateError, match="that of a ChainDataset, which has no load_state"):
        list(loader)


class Going(torch.utils.data.IterableDataset):
    """Numbers, from where it was."""

    at = 0

    def __iter__(self):
        while self.at < 8:
            self.at += 1
            yield self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("garbage", [None, {}, [], {"nbpipe_loader": 7}, {"nbpipe_loader": 1}])
def test_garbage_is_refused(garbage):
    """What is no state is refused, and leaves the place that was loaded before."""
    state, wanted = cut(numbers, 2)
    loader = numbers()
    loader.load_state_dict(state)
    with pytest.raises(StateError):
        loader.load_state_dict(garbage)
    assert [plain(batch) for batch in loader] == wanted[0]


@pytest.mark.parametrize("word", ["begun", "delivered", "generators", "about"])
def test_broken_states_are_refused(word):
    """A state in which something else stands than was written is refused, and changes nothing."""
    state, _ = cut(numbers, 2)
    loader = numbers()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with pytest.raises(StateError):
        loader.load_state_dict(state | {word: [1]})
    assert torch.equal(before, torch.get_rng_state())
    assert loader.state_dict()["begun"] is False
