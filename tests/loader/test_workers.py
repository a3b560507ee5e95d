"""Who the workers are: `get_worker_info`, `worker_init_fn`, seeds."""

import multiprocessing
import random
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

import nbpipe
from tests.gates import HANG_S, Gate
from tests.loader.conftest import WAYS
from tests.loader.datasets import Drawn, Fickle, Made, Numbers, Workers
from tests.loader.same import of_nbpipe, same


def rows(loader):
    """Give what each sample says of its worker."""
    return [sample for batch in loader for sample in batch]


def test_batches_come_in_order():
    """`in_order=False` takes no effect: what is done waits for the slow batch before it."""
    gate = Gate()

    def read(index):
        if index == 2:  # by now the second one is done
            gate.open()
        if index == 0:
            gate.wait()
        return index

    how = {"num_workers": 2, "workers": "thread", "in_order": False}
    assert list(nbpipe.DataLoader(Made(read, 4), None, **how)) == [0, 1, 2, 3]


def test_samples_know_their_worker():
    """`get_worker_info` gives number, count and torch's seed in each worker."""
    torch.manual_seed(5)
    base = torch.empty((), dtype=torch.int64).random_().item()
    torch.manual_seed(5)
    found = rows(nbpipe.DataLoader(Workers(), 4, collate_fn=list, num_workers=2))
    assert [row[0] for row in found] == list(range(23))
    assert {row[1] for row in found} <= {0, 1}
    assert {(row[2], row[3] - row[1]) for row in found} == {(2, base)}


@pytest.mark.parametrize("how", [{}, WAYS["thread"]], ids=["inline", "thread"])
def test_nobody_is_a_worker_here(how):
    """Outside worker processes `get_worker_info` gives None, in threads, too."""
    found = rows(nbpipe.DataLoader(Workers(), 4, collate_fn=list, **how))
    assert (get_worker_info(), {row[1] for row in found}) == (None, {-1})


def test_collate_fn_knows_its_worker():
    """`collate_fn` may ask, too."""
    count = lambda _: get_worker_info().num_workers  # noqa: E731
    loader = nbpipe.DataLoader(Numbers(), 4, collate_fn=count, num_workers=2)
    assert set(loader) == {2}


def test_worker_init_fn_is_called_once_in_each():
    """`worker_init_fn` gets each number once, with the worker's seed and dataset at hand."""

    def init(worker):
        info = get_worker_info()
        info.dataset.calls = [*getattr(info.dataset, "calls", []), worker]

    def make(n):
        info = get_worker_info()
        return info.id, info.dataset.calls

    how = {"num_workers": 2, "worker_init_fn": init}
    loader = nbpipe.DataLoader(Made(make, 8), 1, collate_fn=list, **how)
    assert {calls.count(worker) for worker, calls in rows(loader)} == {1}


def test_seed_in_worker_init_fn():
    """In `worker_init_fn` of a process torch's seed is that of the worker, as the recipe asks."""

    def init(worker):
        info = get_worker_info()
        info.dataset.same = torch.initial_seed() == info.seed

    make = lambda n: get_worker_info().dataset.same  # noqa: E731
    loader = nbpipe.DataLoader(Made(make, 4), 1, num_workers=2, worker_init_fn=init)
    assert [bool(batch) for batch in loader] == [True] * 4


@pytest.mark.slow
def test_seed_of_a_sample_is_one_of_torchs_numbers():
    """`torch.initial_seed()` of a sample fits into a tensor, as in torch's workers."""
    make = lambda n: torch.initial_seed()  # noqa: E731
    (batch,) = nbpipe.DataLoader(Made(make, 40), 40, num_workers=1)
    seeds = [int(one) for one in nbpipe.DataLoader(Made(make, 40), None, num_workers=1)]
    assert len(batch) == 40
    assert len({seed for seed in seeds if 0 <= seed < 2**63}) == 40


@pytest.mark.slow
def test_random_samples_do_not_depend_on_workers():
    """In processes a sample draws the same numbers, however many workers there are."""

    def seed(worker):
        np.random.seed(torch.initial_seed() % 2**32)  # noqa: NPY002
        random.seed(worker)

    ways = ({"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "worker_init_fn": seed})
    found = [of_nbpipe(Drawn(), batch_size=3, shuffle=True, **way) for way in ways]
    assert [same(one, found[0]) for one in found] == [True] * 3
    assert not same(found[0][0], found[0][1])


def test_random_samples_follow_torchs_seed():
    """Another seed of torch gives other numbers."""
    batches = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        batches.append(next(iter(nbpipe.DataLoader(Drawn(), 4, num_workers=1))))
    assert [same(batch, batches[0]) for batch in batches] == [True, True, False]


@pytest.mark.slow
def test_numpy_and_random_are_seeded():
    """The generators of numpy and `random` draw by the sample, too, and no two samples alike."""
    make = lambda n: (np.random.rand(), random.random())  # noqa: E731, NPY002
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append([*map(tuple, nbpipe.DataLoader(Made(make, 12), None, num_workers=2))])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 12


def seeded(seed, *, worker=False):
    """Give a `worker_init_fn` that sets seeds, which may depend on the worker."""

    def alike(_):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)

    def apart(number):
        torch.manual_seed(seed + number)
        np.random.seed(seed + number)  # noqa: NPY002
        random.seed(seed + number)

    return apart if worker else alike


def numbers_drawn(init, base, count, **how):
    """Give the seed of torch and three numbers for each of 8 samples, with torch's seed."""
    make = lambda n: (torch.initial_seed(), torch.rand(()), np.random.rand(), random.random())  # noqa: E731, NPY002
    torch.manual_seed(base)
    loader = nbpipe.DataLoader(Made(make, 8), None, num_workers=count, worker_init_fn=init, **how)
    got = [[tuple(map(float, sample)) for sample in loader] for _ in range(2)]
    loader.close()
    return got


@pytest.mark.slow
@pytest.mark.parametrize("worker", [False, True], ids=["alike", "by number"])
def test_seeds_of_worker_init_fn_hold(worker):
    """They take the place of torch's, in any number of workers: by number, those of the first."""
    ways = [(12345, 1, 1), (12345, 2, 2), (54321, 1, 2)]
    one, two, other = (numbers_drawn(seeded(n, worker=worker), *how) for n, *how in ways)
    assert one == two
    assert {sample[0] for epoch in one for sample in epoch} == {12345.0}
    values = [value for found in (one, other) for sample in found[0] for value in sample[1:]]
    assert len(set(values)) == 2 * 8 * 3


def by_recipe(number):
    """Seed as torch's notes on reproducibility do."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


@pytest.mark.slow
def test_seeds_by_torchs_recipe_follow_torchs_seed():
    """The recipe of torch's notes draws the same in any number of workers, by torch's seed."""
    one, two, other = (numbers_drawn(by_recipe, *how) for how in [(1, 1), (1, 2), (2, 2)])
    assert one == two != other


@pytest.mark.slow
def test_seeds_beside_other_work_change_nothing():
    """Where the function does more than to seed by the worker, samples follow torch's seed."""

    def opening(seed):
        def init(number):
            random.seed(seed + number)
            get_worker_info().dataset.opened = True

        return init

    ways = [(7, 1, 1), (8, 1, 2), (7, 2, 1)]
    one, two, other = (numbers_drawn(opening(seed), *how) for seed, *how in ways)
    assert one == two != other


@pytest.mark.slow
def test_seeds_hold_in_workers_that_read_a_part():
    """Each worker that reads its part of a dataset has the seeds that were set in it."""

    class Parted(Fickle):
        def __iter__(self):
            get_worker_info()
            yield from super().__iter__()

    def run(seed, base):
        torch.manual_seed(base)
        init = seeded(seed, worker=True)
        how = {"num_workers": 2, "worker_init_fn": init}
        return [tuple(sample) for sample in nbpipe.DataLoader(Parted(), None, **how)]

    first, again, other = run(3, 1), run(3, 2), run(5, 1)
    assert first == again
    assert len({value for sample in (*first, *other) for value in sample}) == 2 * 12 * 3


class Counted(Numbers):
    """Counts its samples in what a manager holds."""

    def __init__(self, manager):
        super().__init__(6)
        self.count, self.lock, self.indices = manager.Value("i", 0), manager.Lock(), manager.Queue()

    def __getitem__(self, index):
        with self.lock:
            self.count.value += 1
        self.indices.put(index)
        return index


@pytest.mark.slow
def test_what_a_manager_holds_is_shared():
    """A manager's `Value`, `Lock` and `Queue` are those of the workers."""
    with multiprocessing.get_context("spawn").Manager() as manager:
        dataset = Counted(manager)
        loader = nbpipe.DataLoader(dataset, 2, num_workers=2)
        for _ in range(2):
            assert sorted(number for batch in loader for number in batch.tolist()) == [*range(6)]
        got = sorted(dataset.indices.get(timeout=HANG_S) for _ in range(12))
        assert (got, dataset.count.value) == (sorted([*range(6)] * 2), 12)


@pytest.mark.parametrize("make", [multiprocessing.Lock, multiprocessing.SimpleQueue])
def test_what_is_made_for_children_is_refused(make):
    """What multiprocessing shares with its own children alone is refused, with the way out."""
    dataset = Numbers(3)
    dataset.held = make()
    with pytest.raises(nbpipe.UnpicklableError, match=r"multiprocessing\.Manager\(\)"):
        list(nbpipe.DataLoader(dataset, num_workers=1))


@pytest.fixture
def memory():
    """Give shared memory of a few bytes."""
    held = SharedMemory(create=True, size=16)
    yield held
    held.close()
    held.unlink()


@pytest.mark.slow
def test_shared_memory_outlives_workers(memory):
    """Shared memory that a dataset holds is that of its workers, and is there when they end."""

    def make(n):
        memory.buf[n] = n + 1
        return n

    for _ in range(2):
        list(nbpipe.DataLoader(Made(make, 4), 1, num_workers=2))
    again = SharedMemory(memory.name)
    assert bytes(again.buf[:4]) == bytes([1, 2, 3, 4])
    again.close()


class Filled:
    """A dataset that fills one buffer for all of its samples."""

    def __init__(self):
        self.buffer = np.zeros(1000)

    def __len__(self):
        return 60

    def __getitem__(self, index):
        self.buffer[:] = index
        return {"a": {"x": self.buffer}}


def last_of(samples):
    """Collate samples into one array that is used for all batches."""
    BATCH[:] = samples[-1]["a"]["x"][0]
    return {"batch": (BATCH, len(samples))}


BATCH = np.zeros(3000)


@pytest.mark.slow
def test_a_buffer_that_a_dataset_or_collate_fn_fills_again():
    """Samples without a batch, and batches of a `collate_fn`, come as they were given."""
    singles = nbpipe.DataLoader(Filled(), None, num_workers=2)
    batches = nbpipe.DataLoader(Filled(), 4, collate_fn=last_of, num_workers=2)
    assert [float(one["a"]["x"].max()) for one in singles] == list(range(60))
    assert [float(one["batch"][0].max()) for one in batches] == list(range(3, 60, 4))
