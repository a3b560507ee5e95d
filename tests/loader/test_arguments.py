"""What a loader is given, and what it shows of it."""

import inspect
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

import nbpipe
from tests.loader.datasets import Numbers, Stream

REFUSED = {
    "workers below 0": ({"num_workers": -1}, "num_workers must be an int of at least 0"),
    "no time": ({"timeout": -1}, "timeout must be a number of at least 0"),
    "factor without workers": ({"prefetch_factor": 2}, "prefetch_factor option"),
    "factor of 0": ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor must be an int"),
    "workers that stay": ({"persistent_workers": True}, "persistent_workers option needs"),
    "sampler and shuffle": ({"sampler": [1], "shuffle": True}, "sampler option is mutually"),
    "batches and size": ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler option"),
    "rest of nothing": ({"batch_size": None, "drop_last": True}, "exclusive with drop_last"),
    "size of 0": ({"batch_size": 0}, "batch_size must be an int of at least 1"),
    "fork": ({"num_workers": 1, "multiprocessing_context": "fork"}, "never a copy of a process"),
    "context alone": ({"multiprocessing_context": "spawn"}, "multi-process loading"),
    "stream shuffled": ({"dataset": Stream(), "shuffle": True}, "shuffle must be left out beside"),
    "stream sampled": ({"dataset": Stream(), "sampler": [1]}, "unspecified sampler option"),
    "init in threads": ({"worker_init_fn": print, "workers": "thread"}, "worker_init_fn must be"),
    "inline": ({"num_workers": 1, "workers": "inline"}, "executor"),
    "another word": ({"num_workers": 1, "workers": "fibre"}, "workers must be 'process', 'thr"),
    "word without workers": ({"workers": "fibre"}, "workers must be 'process', 'thread', "),
    "class": ({"workers": ThreadPoolExecutor}, r"make one: ThreadPoolExecutor\(\.\.\.\)"),
    "too many": ({"num_workers": 257}, "concurrency must be an int in"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    """What cannot be is refused with a ValueError that gives the rule, as torch refuses it."""
    options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        nbpipe.DataLoader(**{"dataset": Numbers(), **options})
    assert isinstance(caught.value, nbpipe.ArgumentError)


def test_words_that_torch_takes():
    """Numbers stand for True and False, and True for one, as in torch."""
    given = {"num_workers": True, "persistent_workers": 1, "in_order": 1, "prefetch_factor": True}
    loader = nbpipe.DataLoader(Numbers(5), 2, workers="thread", **given)
    assert [getattr(loader, name) for name in given] == [1, True, True, 1]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    loader.num_workers = False
    loader.close()
    assert (loader.num_workers, len(list(loader))) == (0, 3)


def test_numbers_of_numpy():
    """An integer of numpy is a number as any other; torch's samplers do not take it."""
    two = np.int64(2)
    loader = nbpipe.DataLoader(Numbers(5), two, num_workers=two, workers="thread")
    found = [type(loader.batch_size), type(loader.num_workers)]
    assert (found, [batch.tolist() for batch in loader]) == ([int, int], [[0, 1], [2, 3], [4]])


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": 0, "sampler": [1, 0]},
        {"shuffle": 0, "drop_last": 0, "batch_sampler": [[1], [0]]},
        {"batch_size": None, "drop_last": 0},
        {"dataset": Stream(3), "shuffle": 0},
    ],
    ids=["sampler", "batches", "no batches", "stream"],
)
def test_zero_says_no(options):
    """A flag of 0 beside what excludes the flag is taken, as in torch."""
    options = {"dataset": Numbers(2), **options}
    theirs = DataLoader(**options)
    ours = nbpipe.DataLoader(**options)
    assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in theirs]


TYPES = {
    "collate_fn": {"collate_fn": 3},
    "worker_init_fn": {"num_workers": 1, "worker_init_fn": 3},
    "multiprocessing_context": {"num_workers": 1, "multiprocessing_context": 3},
}


@pytest.mark.parametrize("name", TYPES)
def test_refused_types(name):
    """What cannot be called is refused with a TypeError."""
    with pytest.raises(nbpipe.ArgumentTypeError, match=name) as caught:
        nbpipe.DataLoader(Numbers(), **TYPES[name])
    assert isinstance(caught.value, TypeError)


def test_pipeline_for_a_dataset():
    """A pipeline, or a run of one, is refused at once, with what to write instead."""
    pipe = nbpipe.source([1, 2])
    with pipe.start() as run:
        for given in (pipe, run):
            with pytest.raises(nbpipe.ArgumentTypeError, match=r"for batch in pipe\.batch\(64\)$"):
                nbpipe.DataLoader(given, 2)


def test_arguments_of_torch():
    """Every argument of torch's loader is there, in its place and with its default."""
    ours = inspect.signature(nbpipe.DataLoader).parameters
    torchs = inspect.signature(DataLoader).parameters
    found = [(p.name, p.kind, p.default) for p in ours.values()]
    wanted = [(p.name, p.kind, p.default) for p in torchs.values()]
    assert found[: len(wanted)] == wanted


def test_attributes():
    """Users read what they gave, and what was chosen for them."""
    dataset = Numbers()
    loader = nbpipe.DataLoader(dataset, 4, num_workers=2, timeout=9, persistent_workers=True)
    wanted = DataLoader(dataset, 4, num_workers=2, timeout=9, persistent_workers=True)
    words = "dataset batch_size num_workers collate_fn pin_memory drop_last timeout generator"
    more = "worker_init_fn prefetch_factor persistent_workers in_order multiprocessing_context"
    names = f"{words} {more}".split()
    found = {name: getattr(loader, name) for name in names}
    assert found == {name: getattr(wanted, name) for name in names}


def test_samplers_that_are_chosen():
    """The samplers are torch's."""
    loaders = [nbpipe.DataLoader(Numbers(), 4), nbpipe.DataLoader(Numbers(), 4, shuffle=True)]
    found = [(type(loader.sampler), loader.batch_sampler.batch_size) for loader in loaders]
    assert found == [(SequentialSampler, 4), (RandomSampler, 4)]


@pytest.mark.parametrize("name", ["batch_size", "sampler", "drop_last", "dataset"])
def test_fixed(name):
    """What cannot change later says so, as torch's loader does."""
    loader = nbpipe.DataLoader(Numbers())
    with pytest.raises(ValueError, match=f"{name} of a DataLoader is fixed"):
        setattr(loader, name, 3)
    assert getattr(loader, name) != 3


ASSIGNED = {
    "collate_fn": (3, "collate_fn must be a function"),
    "worker_init_fn": (3, "worker_init_fn must be a function"),
    "timeout": (-1, "timeout must be a number of at least 0"),
    "multiprocessing_context": ("fork", "never a copy of a process"),
    "workers": ("thread", "worker_init_fn must be left out"),
}


@pytest.mark.parametrize("name", ASSIGNED)
def test_assigned_as_given(name):
    """What the constructor refuses is refused where it is assigned, and nothing changes."""
    value, message = ASSIGNED[name]
    loader = nbpipe.DataLoader(Numbers(), num_workers=1, worker_init_fn=print)
    before = getattr(loader, name)
    with pytest.raises((nbpipe.ArgumentError, nbpipe.ArgumentTypeError), match=message):
        setattr(loader, name, value)
    assert getattr(loader, name) is before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("numworkers", "a DataLoader has no 'numworkers'; write loader.num_workers = 3"),
        ("time_out", "a DataLoader has no 'time_out'; write loader.timeout = 3"),
        ("collate", "a DataLoader has no 'collate'; write loader.collate_fn = 3"),
        ("batchsize", "a DataLoader has no 'batchsize'; did you mean 'batch_size'?"),
        ("shuffle", "shuffle of a DataLoader is fixed, got 3; make another loader: "),
    ],
)
def test_assigned_under_a_wrong_name(name, said):
    """What is meant for an argument is not taken for an attribute of the user's own."""
    loader = nbpipe.DataLoader(Numbers())
    with pytest.raises((nbpipe.ArgumentError, nbpipe.UnknownKnobError)) as caught:
        setattr(loader, name, 3)
    assert str(caught.value).startswith(said)
    assert not hasattr(loader, name)


def test_attributes_of_the_users_own():
    """Other names are taken, as by torch's loader, also a second time."""
    loader = nbpipe.DataLoader(Numbers())
    for name in ("label", "data", "batches", "epoch", "_collatefn"):
        setattr(loader, name, 1)
        setattr(loader, name, 2)
    assert (loader.label, loader.data, loader.batches, loader.epoch) == (2, 2, 2, 2)


def test_init_assigned_to_a_loader_with_threads():
    """A `worker_init_fn` that nobody would call is refused later, too."""
    loader = nbpipe.DataLoader(Numbers(), num_workers=1, workers="thread")
    with pytest.raises(nbpipe.ArgumentError, match="worker_init_fn must be left out"):
        loader.worker_init_fn = print
    assert loader.worker_init_fn is None


def test_contexts_that_are_meant_anyway():
    """Contexts that start fresh processes are taken."""
    contexts = [None, "spawn", "forkserver", multiprocessing.get_context("spawn")]
    loaders = [
        nbpipe.DataLoader(Numbers(), num_workers=1, multiprocessing_context=context)
        for context in contexts
    ]
    assert [loader.multiprocessing_context for loader in loaders] == contexts


def test_empty_dataset_as_in_torch(way):
    """An empty dataset gives no batches; shuffled, it is refused where torch refuses it."""
    with pytest.raises(ValueError, match="num_samples"):
        nbpipe.DataLoader(Numbers(0), shuffle=True, **way)
    assert list(nbpipe.DataLoader(Numbers(0), **way)) == []


def test_pinning_without_an_accelerator(way):
    """Where nothing can be pinned, that is said once an epoch, and batches come."""
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = nbpipe.DataLoader(Numbers(2), pin_memory=True, **way)
    with pytest.warns(UserWarning, match="pin_memory=True takes no effect") as caught:
        got = torch.cat(list(loader)).tolist()
    assert (len(caught), got) == (1, [0, 1])
    assert caught[0].filename == __file__


def test_loader_says_what_its_items_are():
    """The class takes a type, for annotations."""
    assert nbpipe.DataLoader[int].__origin__ is nbpipe.DataLoader
