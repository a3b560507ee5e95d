"""Samplers of torch as sources of indices."""

import pytest

import nbpipe

pytestmark = pytest.mark.torch


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
def data():
    """Give `torch.utils.data`, with its global generator seeded."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return pytest.importorskip("torch.utils.data")


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
    with pipe.start() as run:
        epochs = [list(run) for _ in range(2)]
    lengths = [len(pipe), *map(len, epochs)]
    assert lengths == [len(sampler)] * 3
    assert (
        indices is None
        or [sorted(epoch) for epoch in epochs] == [sorted(index * index for index in indices)] * 2
    )


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
    with nbpipe.source(items).start() as run:
        for _ in range(3):
            list(run)
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
    with nbpipe.source(loader).start() as run:
        epochs = [[n for batch in run for n in batch.tolist()] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == [n * n for n in range(10)]
