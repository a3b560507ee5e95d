"""The same batches as torch's loader: map-style datasets, samplers, collation."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import nbpipe
from tests.gates import until
from tests.loader.conftest import WAYS
from tests.loader.datasets import AtOnce, Drawn, Made, Numbers, Point
from tests.loader.same import epochs, of_nbpipe, of_torch, same

SAMPLES = {
    "tensor": lambda n: torch.full((2, 3), float(n)),
    "number": float,
    "whole": int,
    "bool": bool,
    "text": str,
    "bytes": lambda n: str(n).encode(),
    "array": lambda n: np.full((3,), n, dtype=np.float32),
    "scalar": np.int16,
    "tuple": lambda n: (torch.tensor(n), str(n)),
    "list": lambda n: [n, [n, n]],
    "dict": lambda n: {"x": torch.tensor([n]), "y": {"z": n / 2}},
    "ordered": lambda n: OrderedDict(b=n, a=n),
    "namedtuple": lambda n: Point(torch.tensor(n), n),
    "empty": lambda n: torch.empty(0, 3),
    "none of a list": lambda n: (n, ()),
    "complex": lambda n: torch.tensor(complex(n, 1)),
    "half": lambda n: torch.tensor([n], dtype=torch.bfloat16),
    "trained": lambda n: torch.ones(2, requires_grad=True),
}


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("way", ["inline", "thread"], indirect=True)
def test_samples_of_every_kind(kind, way):
    """Whatever a sample is, its batch is torch's."""
    dataset = Made(SAMPLES[kind])
    wanted = of_torch(dataset, batch_size=4)
    assert same(of_nbpipe(dataset, batch_size=4, **way), wanted)


def test_samples_of_every_kind_come_from_processes():
    """All kinds of samples come from worker processes as torch gives them."""
    makers = {kind: make for kind, make in SAMPLES.items() if kind != "trained"}
    dataset = Made(lambda n: {kind: make(n) for kind, make in makers.items()}, 5)
    wanted = list(DataLoader(dataset, 2))
    got = list(nbpipe.DataLoader(dataset, 2, num_workers=2))
    wrong = [kind for kind in makers if not same([b[kind] for b in got], [b[kind] for b in wanted])]
    assert wrong == []


def test_tensor_that_wants_gradients():
    """A sample that wants gradients comes from a process as one."""
    loader = nbpipe.DataLoader(Made(SAMPLES["trained"], 2), None, num_workers=2)
    assert [sample.requires_grad for sample in loader] == [True, True]


CHOICES = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "whole batches": {"batch_size": 4, "drop_last": True},
    "last batch": {"batch_size": 4},
    "one by one": {"batch_size": None},
    "one by one, shuffled": {"batch_size": None, "shuffle": True},
    "sampler": {"sampler": [3, 1, 2, 20], "batch_size": 3},
    "batch sampler": {"batch_sampler": [[1, 2], [5], [4, 4, 4]]},
    "subset": {"sampler": SubsetRandomSampler(range(5, 15)), "batch_size": 4},
    "weighted": {"sampler": WeightedRandomSampler([1.0] * 23, 17), "batch_size": 5},
    "replaced": {"sampler": RandomSampler(range(23), replacement=True, num_samples=70)},
    "more than all": {"sampler": RandomSampler(range(23), num_samples=60), "batch_size": 8},
    "gathered": {"batch_sampler": BatchSampler(RandomSampler(range(23)), 6, drop_last=True)},
    "distributed": {"sampler": DistributedSampler(range(23), 3, 1), "batch_size": 2},
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("way", ["inline", "thread"], indirect=True)
def test_order_and_batches(choice, way):
    """Two epochs have torch's batches in torch's order."""
    wanted = of_torch(Numbers(), **CHOICES[choice])
    assert same(of_nbpipe(Numbers(), **CHOICES[choice], **way), wanted)


@pytest.mark.parametrize("choice", ["shuffled", "weighted", "one by one, shuffled"])
def test_order_in_processes(choice):
    """Worker processes change nothing about the order."""
    options = {**CHOICES[choice], "num_workers": 2}
    wanted = of_torch(Numbers(), **CHOICES[choice])
    assert same(of_nbpipe(Numbers(), persistent_workers=True, **options)[:1], wanted[:1])


def test_generator_gives_torchs_order(way):
    """A generator of one's own gives the order that it gives torch, epoch after epoch."""
    loaders = [
        DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(3)),
        nbpipe.DataLoader(
            Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(3), **way
        ),
    ]
    wanted, got = map(epochs, loaders)
    assert same(got, wanted)


def test_global_generator_is_left_as_torch_leaves_it(way):
    """After an epoch torch's own generator stands where torch's loader would have left it."""
    node_state = []
    for kind, options in ((DataLoader, {}), (nbpipe.DataLoader, way)):
        torch.manual_seed(1)
        list(kind(Numbers(), 4, shuffle=True, **options))
        node_state.append(torch.rand(3).tolist())
    assert node_state[0] == node_state[1]


def of_epoch_left(kind, ahead=None, **options):
    """Return the first batch of an epoch that is left there, and what the generator gives then."""
    generator = torch.Generator().manual_seed(3)
    sampler = RandomSampler(range(23), replacement=True, num_samples=320, generator=generator)
    loader = kind(Numbers(), 32, sampler=sampler, num_workers=2, prefetch_factor=1, **options)
    batches = iter(loader)
    first = next(batches).tolist()
    if ahead is not None:
        until(lambda: loader.run.stats()["indices"].items_out > ahead)
    del batches
    return first, torch.rand(3, generator=generator).tolist()


def test_generator_is_left_at_a_break_as_torch_leaves_it(placed):
    """A generator stands behind the lists that torch has drawn, however far ours were read."""
    placed = {name: value for name, value in placed.items() if name != "num_workers"}
    wanted = of_epoch_left(DataLoader)
    assert of_epoch_left(nbpipe.DataLoader, ahead=3, **placed) == wanted


def of_shared_generator(kind, **options):
    """Return what a loop draws from its loader's generator, in an epoch that it leaves and behind.

    The sampler draws before the first index alone.
    """
    generator = torch.Generator().manual_seed(3)
    loader = kind(Numbers(), 1, shuffle=True, generator=generator, num_workers=1, **options)
    drawn = []
    for batch in loader:
        drawn.append((batch.item(), torch.rand(1, generator=generator).item()))
        if len(drawn) == 3:
            break
    return [*drawn, torch.rand(1, generator=generator).item()]


def test_what_the_loop_draws_from_the_generator_stays_drawn():
    """A generator from which the loop draws, too, is not set back behind an epoch that it left."""
    wanted = of_shared_generator(DataLoader)
    for _ in range(20):  # a thread reads the sampler while the loop draws
        assert of_shared_generator(nbpipe.DataLoader, workers="thread") == wanted


def test_two_loaders_share_a_seed():
    """The same seed of torch gives two loaders the order that two of torch's would have."""
    orders = []
    for kind, options in ((DataLoader, {}), (nbpipe.DataLoader, WAYS["thread"])):
        torch.manual_seed(0)
        pair = [kind(Numbers(), 23, shuffle=True, **options) for _ in range(2)]
        orders.append([[batch.tolist() for batch in loader] for loader in pair])
    assert orders[0] == orders[1]


DATASETS = {
    "tensors": lambda: TensorDataset(torch.arange(20).reshape(10, 2), torch.arange(10)),
    "subset": lambda: Subset(Numbers(), range(3, 20, 2)),
    "subset at once": lambda: Subset(AtOnce(), range(3, 20, 2)),
    "several": lambda: ConcatDataset([Numbers(5), Numbers(4)]),
    "list": lambda: [float(n) for n in range(9)],
    "array": lambda: np.arange(12.0).reshape(6, 2),
    "tensor": lambda: torch.arange(12.0).reshape(6, 2),
    "at once": AtOnce,
}


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("way", ["inline", "thread"], indirect=True)
def test_datasets_of_every_kind(kind, way):
    """Datasets of torch, lists and arrays are read as torch reads them."""
    dataset = DATASETS[kind]()
    wanted = of_torch(dataset, batch_size=4, shuffle=True)
    assert same(of_nbpipe(dataset, batch_size=4, shuffle=True, **way), wanted)


COLLATES = {
    "own": lambda samples: (len(samples), sum(samples)),
    "calls torch's": lambda samples: torch.utils.data.default_collate(samples) * 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", COLLATES)
def test_collate_fn_of_ones_own(kind, way):
    """A `collate_fn` gets the list of samples, and may call torch's; also a lambda in a process."""
    options = {"batch_size": 5, "collate_fn": COLLATES[kind]}
    wanted = of_torch(Numbers(), **options)
    assert same(of_nbpipe(Numbers(), **options, **way), wanted)


def test_dataset_of_a_cell(way):
    """A class that is defined here, with what it captures, works wherever the workers are."""
    shift = 100

    class Local(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return index + shift

    got = [batch.tolist() for batch in nbpipe.DataLoader(Local(), 3, **way)]
    assert got == [[100, 101, 102], [103, 104, 105]]


def test_sparse_and_huge_tensors():
    """Sparse tensors, and batches of many megabytes, come whole from processes."""

    def make(n):
        where, what = [[0, 1], [1, 0]], [1.0, float(n)]
        sparse = torch.sparse_coo_tensor(where, what, (2, 2), check_invariants=True)
        return {"sparse": sparse, "huge": torch.full((2_000_000,), float(n))}

    loader = nbpipe.DataLoader(Made(make, 6), None, num_workers=2)
    assert same(list(loader), [make(n) for n in range(6)])


def test_lengths(way):
    """The length is torch's."""
    options = [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}]
    options.append({"batch_sampler": [[1], [2]]})
    found = [len(nbpipe.DataLoader(Numbers(), **each, **way)) for each in options]
    assert found == [len(DataLoader(Numbers(), **each)) for each in options]


def test_sampler_without_length(way):
    """Where a sampler has no length, the loader has none, and can be iterated."""
    sampler = type("Endless", (), {"__iter__": lambda self: iter([4, 2])})()
    loader = nbpipe.DataLoader(Numbers(), sampler=sampler, **way)
    with pytest.raises(TypeError, match="len"):
        len(loader)
    assert torch.cat(list(loader)).tolist() == [4, 2]


@pytest.mark.parametrize("error", [NotImplementedError, ValueError, AttributeError])
def test_lengths_that_raise_are_not_known(way, error):
    """A sampler or an iterable dataset whose `__len__` raises is iterated, and shown."""

    def fail(_):
        raise error

    methods = {"__len__": fail, "__iter__": lambda _: iter([4, 2])}
    order = type("Order", (), methods)()
    stream = type("Stream", (torch.utils.data.IterableDataset,), methods)()
    for loader in (
        nbpipe.DataLoader(Numbers(), None, sampler=order, **way),
        nbpipe.DataLoader(stream, None, **way),
    ):
        assert [int(batch) for batch in list(loader)] == [4, 2]
        assert (loader.run.status().total, str(loader.run.diagnose()) != "") == (None, True)
        assert "text/html" in loader._repr_mimebundle_()
        with pytest.raises(nbpipe.LengthUnknownError, match=f"raised {error.__name__}"):
            len(loader)


def test_sampler_is_told_the_epoch_by_its_user(way):
    """`set_epoch` of a distributed sampler acts as with torch."""
    sampler = DistributedSampler(range(23), 2, 0, seed=5)
    orders = []
    for loader in (
        DataLoader(Numbers(), 12, sampler=sampler),
        nbpipe.DataLoader(Numbers(), 12, sampler=sampler, **way),
    ):
        orders.append([])
        for epoch in range(2):
            sampler.set_epoch(epoch)
            orders[-1].append(next(iter(loader)).tolist())
    assert orders[0] == orders[1]


def test_inline_draws_what_torch_draws():
    """Without workers, random samples are those of torch's loader without workers."""
    wanted = of_torch(Drawn(), batch_size=3, shuffle=True)
    assert same(of_nbpipe(Drawn(), batch_size=3, shuffle=True), wanted)
