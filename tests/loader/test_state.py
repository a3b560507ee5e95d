"""The state of a loader: taken in mid-epoch, it goes on in another loader, batch by batch."""

import functools
import itertools
import json

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import nbpipe
from nbpipe import StateError
from tests.loader.conftest import WAYS, begun_everywhere
from tests.loader.datasets import Drawn, Numbers, Parted, Ranged, Stream, Workers, narrow
from tests.loader.stateful import (
    Backwards,
    Bookmark,
    Counted,
    Late,
    Lists,
    Reel,
    Rewound,
    Sloppy,
    Tape,
    Walk,
    Wheel,
    Wound,
    cut,
    numbers,
    plain,
    resumed,
    sent,
)

THREADS = {"num_workers": 3, "workers": "thread", "prefetch_factor": 5}


@pytest.mark.parametrize("seeded", [True, False], ids=["generator", "global"])
@pytest.mark.parametrize("at", range(7))
def test_cut_at_every_batch(at, seeded, thread_or_not):
    """Cut behind any batch, the rest and the next epochs are the uninterrupted ones."""
    make = functools.partial(numbers, seeded=seeded)
    state, wanted = cut(functools.partial(make, **thread_or_not), at)
    assert resumed(make, state) == wanted
    assert resumed(functools.partial(make, **THREADS), state) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stays"), [("inline", False), ("thread", False), ("thread", True)]
)
@pytest.mark.parametrize("seeded", [True, False], ids=["generator", "global"])
def test_a_state_while_an_epoch_begins(kind, stays, seeded):
    """Another thread may take it at any moment: the order is that of this epoch, and the next."""
    make = functools.partial(numbers, seeded=seeded, persistent_workers=stays, **WAYS[kind])

    def second():
        torch.manual_seed(3)
        loader = make()
        assert len(list(loader)) == len(loader)
        return loader

    for loader, epoch, state in begun_everywhere(second, nbpipe.DataLoader.state_dict, step=47):
        wanted = [[plain(batch) for batch in items] for items in (epoch, loader)]
        assert resumed(make, state, 2) == wanted


@pytest.mark.slow
def test_a_state_with_that_of_a_sampler_while_an_epoch_begins():
    """It is that of before the first index was drawn."""
    make = functools.partial(nbpipe.DataLoader, Numbers(9), 2, **WAYS["thread"])

    def begun():
        return make(sampler=Walk(9))

    for _, epoch, state in begun_everywhere(begun, nbpipe.DataLoader.state_dict, step=47):
        assert resumed(begun, state, 1) == [[plain(batch) for batch in epoch]]


@pytest.mark.slow
@pytest.mark.parametrize("other", WAYS)
def test_cut_and_gone_on_with_other_workers(way, other):
    """Taken of one kind of workers, a state goes on with each other kind."""
    state, wanted = cut(functools.partial(numbers, **way), 2, epoch=1)
    assert resumed(functools.partial(numbers, **WAYS[other]), state) == wanted


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("epoch", [0, 1])
def test_workers_that_stay(other, epoch):
    """The order is the uninterrupted one; where workers stay otherwise, for the rest."""
    make = functools.partial(numbers, persistent_workers=True, **WAYS["thread"])
    state, wanted = cut(make, 3, epoch=epoch)
    got = resumed(numbers if other else make, state)
    assert got[: 1 if other else 3] == wanted[: 1 if other else 3]


@pytest.mark.parametrize("seeded", [True, False], ids=["generator", "global"])
@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_that_was_not_asked_goes_on_with_workers_that_stay(epoch, seeded):
    """Taken without workers before the first batch, a state has the same order for any workers."""
    make = functools.partial(numbers, seeded=seeded)
    state, wanted = cut(make, 0, epoch=epoch)
    later = functools.partial(make, persistent_workers=True, **WAYS["thread"])
    assert resumed(later, state)[0] == wanted[0]


@pytest.mark.parametrize("kept", ["first", "second", "both"])
def test_iterator_that_is_kept_unused(kept):
    """Workers that stay: an iterator that nobody asks changes no epoch behind a resume."""

    def make():
        how = {"num_workers": 2, "workers": "thread", "persistent_workers": True}
        return nbpipe.DataLoader(Numbers(), 4, shuffle=True, **how)

    def epochs(loader):
        got = [[plain(batch) for batch in loader] for _ in range(3)]
        loader.close()
        return got

    torch.manual_seed(3)
    loader = make()
    unused = [iter(loader)] if kept != "second" else []
    batches = iter(loader)
    next(batches)
    state = sent(loader.state_dict())
    wanted = [plain(batch) for batch in batches]
    after = epochs(loader)
    other = make()
    other.load_state_dict(state)
    unused += [iter(other)] if kept != "first" else []
    assert [[plain(batch) for batch in other], *epochs(other)] == [wanted, *after]
    for one in unused:
        one.close()


@pytest.mark.slow
def test_seeds_of_items_go_on(tmp_path):
    """Random samples of processes, and the seed that workers are told, are the same."""

    def make(stays):
        return nbpipe.DataLoader(Drawn(), 4, num_workers=2, persistent_workers=stays)

    for stays in (False, True):
        one = functools.partial(make, stays)
        state, wanted = cut(one, 2, epoch=1)
        assert resumed(one, state) == wanted
    workers = nbpipe.DataLoader(Workers(), 1, collate_fn=list, **WAYS["process"])
    batches = iter(workers)
    seeds = {batch[0][3] - batch[0][1] for batch in itertools.islice(batches, 5)}
    state = workers.state_dict()
    batches.close()
    workers.load_state_dict(state)
    assert {batch[0][3] - batch[0][1] for batch in workers} == seeds


def test_samples_drawn_without_workers():
    """Without workers, samples that draw from torch's own generator are the same, too."""
    make = functools.partial(nbpipe.DataLoader, Drawn(), 4, shuffle=True)
    state, wanted = cut(make, 3)
    assert resumed(make, state) == wanted


SAMPLERS = {
    "no state": lambda: {"sampler": Backwards(23), "batch_size": 4},
    "own state": lambda: {"sampler": Walk(23), "batch_size": 4},
    "sloppy": lambda: {"sampler": Sloppy(23), "batch_size": 4},
    "own, one by one": lambda: {"sampler": Walk(23), "batch_size": None},
    "lists": lambda: {"batch_sampler": Lists()},
    "own in lists": lambda: {"batch_sampler": BatchSampler(Walk(23), 4, drop_last=True)},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(17)), "batch_size": 4},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * 23, 20), "batch_size": 4},
    "replacement": lambda: {
        "sampler": RandomSampler(
            Numbers(), replacement=True, num_samples=70, generator=torch.Generator()
        ),
        "batch_size": 4,
    },
    "subset beside a generator": lambda: {
        "sampler": SubsetRandomSampler(range(17)),
        "batch_size": 4,
        "generator": torch.Generator().manual_seed(2),
    },
    "its own iterator": lambda: {"batch_sampler": Wheel(6)},
    "not shuffled": lambda: {"batch_size": 4, "drop_last": True},
}


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize(("at", "epoch"), [(0, 1), (2, 0), (2, 1), (4, 1)])
def test_samplers(kind, at, epoch, thread_or_not):
    """All kinds of samplers go on, in the first epoch and in later ones."""

    def make(**how):
        return nbpipe.DataLoader(Numbers(), **SAMPLERS[kind](), **how)

    state, wanted = cut(functools.partial(make, **thread_or_not), at, epoch=epoch)
    assert resumed(make, state) == wanted
    assert resumed(functools.partial(make, **THREADS), state) == wanted


@pytest.fixture(params=["inline", "thread"])
def thread_or_not(request):
    """Give the arguments of a loader that works inline or in threads."""
    return WAYS[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
def test_distributed_sampler(told, way):
    """The epoch of a `DistributedSampler` is in the state; `set_epoch` may be called, too."""

    def make():
        sampler = DistributedSampler(Numbers(), num_replicas=2, rank=1, seed=4)
        return nbpipe.DataLoader(Numbers(), 3, sampler=sampler, **way)

    loader = make()
    loader.sampler.set_epoch(6)
    batches = iter(loader)
    next(batches)
    state = sent(loader.state_dict())
    wanted = [plain(batch) for batch in batches]
    other = make()
    other.load_state_dict(state)
    if told:
        other.sampler.set_epoch(6)
    assert ([plain(batch) for batch in other], other.sampler.epoch) == (wanted, 6)


def test_an_epoch_that_was_left_for_another_one(way):
    """Once the sampler was told another epoch, the state is that of the epoch to come."""

    def make():
        sampler = DistributedSampler(Numbers(), num_replicas=2, rank=1, seed=4)
        return nbpipe.DataLoader(Numbers(), 3, sampler=sampler, **way)

    loader = make()
    loader.sampler.set_epoch(6)
    batches = iter(loader)
    next(batches)
    loader.sampler.set_epoch(7)
    assert loader.state_dict()["delivered"] == 1
    batches.close()
    state = sent(loader.state_dict())
    wanted = [plain(batch) for batch in loader]
    other = make()
    other.load_state_dict(state)
    assert ([plain(batch) for batch in other], other.sampler.epoch) == (wanted, 7)


@pytest.mark.slow
@pytest.mark.parametrize("other", WAYS)
@pytest.mark.parametrize("dataset", [Stream, Tape])
@pytest.mark.parametrize(("at", "epoch"), [(0, 1), (2, 0), (2, 1), (6, 0)])
def test_iterable_datasets(dataset, at, epoch, other, way):
    """An iterable dataset that is read once goes on, with a state of its own or without."""

    def make(**how):
        return nbpipe.DataLoader(dataset(), 4, **how)

    state, wanted = cut(functools.partial(make, **way), at, epoch=epoch)
    by = "dataset" if dataset is Tape and not way["num_workers"] else "skipping"
    assert state["by"] == by
    assert resumed(functools.partial(make, **WAYS[other]), state) == wanted


@pytest.mark.parametrize("dataset", [Bookmark, Wound, Rewound, Late])
@pytest.mark.parametrize(("at", "epoch"), [(0, 1), (2, 0), (6, 0)])
def test_datasets_that_go_back(dataset, at, epoch):
    """A dataset goes on where it was, whether it goes back at its beginning or behind its end."""

    def make(**how):
        return nbpipe.DataLoader(dataset(), 4, **how)

    state, wanted = cut(make, at, epoch=epoch)
    for other in ({}, WAYS["thread"]):
        assert resumed(functools.partial(make, **other), state) == wanted


def test_dataset_that_is_its_own_iterator_goes_on_in_a_process():
    """A worker that reads a dataset is told the state, and so is no dataset of another epoch."""
    state, wanted = cut(lambda: nbpipe.DataLoader(Bookmark(), 4), 2)
    how = WAYS["process"] | {"persistent_workers": True}
    assert resumed(lambda: nbpipe.DataLoader(Bookmark(), 4, **how), state) == wanted


@pytest.mark.parametrize("dataset", [Reel, Counted])
@pytest.mark.parametrize("at", [0, 2, 5])
def test_state_of_the_iterator_of_a_dataset(dataset, at):
    """Where a dataset's iterator has the state, that is told its own."""

    def make():
        return nbpipe.DataLoader(dataset(), 4)

    state, (wanted, *_) = cut(make, at)
    assert (resumed(make, state, epochs=1), state["by"]) == ([wanted], "dataset")


@pytest.mark.parametrize("dataset", [Bookmark, Wound, Rewound, Late])
def test_state_before_the_first_batch(dataset, way):
    """A state may be taken before the epoch begins, and before its first batch."""
    loader = nbpipe.DataLoader(dataset(), 4, **way)
    states = [sent(loader.state_dict())]
    batches = iter(loader)
    states.append(sent(loader.state_dict()))
    wanted = [plain(batch) for batch in batches]
    for state in states:
        assert resumed(lambda: nbpipe.DataLoader(dataset(), 4), state, epochs=1) == [wanted]


def test_dataset_with_a_state_is_not_read_again():
    """What was delivered is not read again where the dataset has a state."""
    state, _ = cut(lambda: nbpipe.DataLoader(Tape(), 4), 3)
    other = nbpipe.DataLoader(Tape(), 4)
    other.load_state_dict(state)
    list(other)
    assert other.dataset.read == 9


def test_state_between_epochs_of_a_dataset_with_a_state():
    """A dataset whose state is that of its end is read from its beginning in the next epoch."""
    loader = nbpipe.DataLoader(Tape(), 4)
    list(loader)
    assert [
        len(epoch) for epoch in resumed(lambda: nbpipe.DataLoader(Tape(), 4), loader.state_dict())
    ] == [6] * 3


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize(
    "make",
    [
        lambda **how: nbpipe.DataLoader(Parted(), 4, **how),
        lambda **how: nbpipe.DataLoader(Ranged(0, 24), 4, worker_init_fn=narrow, **how),
    ],
    ids=["asks", "narrowed"],
)
def test_datasets_read_in_parts(make, at):
    """Where each worker reads its part, as many go on, each where it was."""
    state, wanted = cut(functools.partial(make, **WAYS["process"]), at)
    assert resumed(functools.partial(make, **WAYS["process"]), state) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, WAYS["thread"], {"num_workers": 3}], ids=str)
def test_parts_with_other_workers_are_refused(how):
    """Another number of workers cannot go on with parts."""
    state, _ = cut(functools.partial(nbpipe.DataLoader, Parted(), 4, **WAYS["process"]), 3)
    loader = nbpipe.DataLoader(Parted(), 4, **how)
    with pytest.raises(StateError, match="processes read in parts"):
        loader.load_state_dict(state)
    assert len(list(loader)) >= 6


@pytest.mark.parametrize("options", [{}, {"worker_init_fn": narrow}])
def test_what_was_read_whole_is_not_read_in_parts(options):
    """The state of a dataset that was read without workers is refused by workers that split it."""
    dataset = Ranged(0, 24) if options else Parted()
    state, _ = cut(functools.partial(nbpipe.DataLoader, dataset, 4, **options), 2)
    loader = nbpipe.DataLoader(dataset, 4, **options, **WAYS["process"])
    with pytest.raises(StateError, match="was read once"):
        resumed(lambda: loader, state)
    assert loader.run.status().state != "running"


def test_state_of_a_resumed_epoch(thread_or_not):
    """A resumed epoch is cut again, and once more."""
    make = functools.partial(numbers, **thread_or_not)
    state, wanted = cut(make, 1)
    for at in (1, 2):
        loader = make()
        loader.load_state_dict(state)
        batches = iter(loader)
        wanted[0] = wanted[0][at:]
        for _ in range(at):
            next(batches)
        state = sent(loader.state_dict())
        batches.close()
    assert resumed(make, state) == wanted


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("epochs", [0, 1])
def test_state_before_an_epoch(epochs, stays, thread_or_not):
    """Before the first epoch and after one it is the next one's, the seed of all that stay too."""
    stays = stays and thread_or_not["num_workers"] > 0
    make = functools.partial(numbers, persistent_workers=stays, **thread_or_not)
    torch.manual_seed(3)
    loader = make()
    for _ in range(epochs):
        list(loader)
    state = sent(loader.state_dict())
    wanted = [[plain(batch) for batch in loader] for _ in range(3)]
    loader.close()
    assert (resumed(make, state), state["begun"]) == (wanted, False)


@pytest.mark.slow
def test_state_after_break(way):
    """After `break` the state is where the loop was left, in the same loader, too."""
    loader = numbers(**way)
    for first in loader:  # noqa: B007
        break
    loader.load_state_dict(loader.state_dict())
    got = [plain(first), *map(plain, loader)]
    assert sorted(itertools.chain(*got)) == list(range(23))


def test_state_after_an_error(placed):
    """After an error the state is behind the last batch that came."""

    def fail(samples):
        if 9 in samples:
            raise KeyError
        return samples

    loader = nbpipe.DataLoader(range(23), 4, collate_fn=fail, **placed)
    with pytest.raises(KeyError):
        list(loader)
    state = sent(loader.state_dict())
    other = nbpipe.DataLoader(range(23), 4, collate_fn=list, **placed)
    other.load_state_dict(state)
    assert next(iter(other)) == [8, 9, 10, 11]


def test_the_newest_iterator_counts(thread_or_not):
    """Of two iterators the state is that of the newer one."""
    loader = nbpipe.DataLoader(Numbers(), 4, **thread_or_not)
    older, newer = iter(loader), iter(loader)
    for _ in range(3):
        next(older)
    next(newer)
    state = loader.state_dict()
    older.close()
    newer.close()
    assert state["delivered"] == 1


def test_iterator_that_gave_nothing_does_not_count(thread_or_not):
    """`iter()` alone, as Lightning tries it, does not use the place up."""
    make = functools.partial(numbers, **thread_or_not)
    state, wanted = cut(make, 2)
    loader = make()
    loader.load_state_dict(state)
    iter(loader).close()
    assert loader.state_dict() == state
    assert [[plain(batch) for batch in loader] for _ in range(3)] == wanted


def test_taking_a_state_changes_nothing(way):
    """Taking a state at each batch leaves the epoch and torch's generator as they are."""
    torch.manual_seed(3)
    wanted = [plain(batch) for batch in numbers(**way)]
    after = torch.rand(1)
    torch.manual_seed(3)
    loader = numbers(**way)
    got = [plain(batch) for batch in loader if loader.state_dict()]
    assert (got, torch.rand(1)) == (wanted, after)


def test_torch_generator_of_the_loop_goes_on(thread_or_not):
    """What the loop draws between batches goes on, too: so do the orders of later epochs."""

    def loop(loader):
        return [(plain(batch), torch.rand(1).item()) for batch in loader]

    make = functools.partial(numbers, **thread_or_not)
    torch.manual_seed(3)
    loader = make()
    batches = iter(loader)
    loop(itertools.islice(batches, 2))
    state = sent(loader.state_dict())
    wanted = [loop(batches), loop(loader)]
    torch.manual_seed(8)
    other = make()
    other.load_state_dict(state)
    assert [loop(other), loop(other)] == wanted


def test_torch_generator_beside_a_generator():
    """With `generator=` torch's own generator is left alone."""
    state, _ = cut(functools.partial(numbers, seeded=True), 2)
    torch.manual_seed(1)
    wanted = torch.rand(1)
    torch.manual_seed(1)
    loader = numbers(seeded=True)
    loader.load_state_dict(state)
    list(loader)
    assert (torch.rand(1), state["torch"]) == (wanted, None)


def test_state_is_small():
    """A state is some thousand characters, also of a large dataset."""
    loader = nbpipe.DataLoader(range(1_000_000), 10, shuffle=True)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 10_000
