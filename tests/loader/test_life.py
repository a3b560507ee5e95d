"""Runs of a loader: when workers begin and end, and the knobs that are turned meanwhile."""

import gc
import weakref

import psutil
import pytest
import torch

import nbpipe
from tests.gates import HANG_S, Bell, Calls, Gate, stage, until
from tests.leaks import processes_of
from tests.loader.datasets import AtOnce, Made, Numbers, Parted, Stream, Workers


def pids(loader):
    """Give the worker processes of a loader's run, by what their samples say."""
    return {sample[4] for batch in loader for sample in batch}


def ended(pids):
    """Say whether all processes end."""
    return psutil.wait_procs(processes_of(pids), HANG_S)[1] == []


def test_workers_end_with_the_epoch():
    """After the last batch no worker is left."""
    loader = nbpipe.DataLoader(Workers(), 4, num_workers=2, collate_fn=list)
    assert ended(pids(loader))


def test_leaving_the_loop_closes_the_sampler():
    """Leaving the loop early closes what gives the indices in the calling thread."""
    closed = []

    class Ordered:
        def __iter__(self):
            try:
                yield from range(10)
            finally:
                closed.append(True)

    loader = nbpipe.DataLoader(Numbers(10), 2, sampler=Ordered())
    for _ in loader:
        break
    left = list(closed)
    assert (left, len(list(loader))) == ([True], 5)


@pytest.mark.slow
def test_leaving_kills_a_busy_worker():
    """A worker that is busy when the loop is left does not hold it up."""
    bell, gate = Bell(), Gate()

    def make(n):
        bell.ring()
        gate.wait()

    epoch = iter(nbpipe.DataLoader(Made(make, 8), 1, num_workers=2))
    pid = {who for _, who in bell.wait(2)}
    epoch.close()
    assert ended(pid)
    gate.open()
    assert list(epoch) == []


@pytest.mark.slow
def test_epochs_of_one_loader_side_by_side(way):
    """A second iterator, while the first is under way, is an epoch of its own."""
    loader = nbpipe.DataLoader(Numbers(6), 2, persistent_workers=way["num_workers"] > 0, **way)
    pairs = [(one.tolist(), other.tolist()) for one in loader for other in loader]
    loader.close()
    batches = [[0, 1], [2, 3], [4, 5]]
    assert pairs == [(one, other) for one in batches for other in batches]


def test_workers_that_stay():
    """With `persistent_workers` the first epoch's processes work in all; else each has its own."""
    how = {"num_workers": 2, "collate_fn": list}
    loader = nbpipe.DataLoader(Workers(200), 4, persistent_workers=True, **how)
    stay = [pids(loader) for _ in range(3)]
    loader.run.close()
    loader = nbpipe.DataLoader(Workers(), 4, **how)
    go = [pids(loader) for _ in range(2)]
    assert len(set.union(*stay)) <= 2
    assert set.intersection(*go) == set()


def test_run_that_was_closed_is_replaced():
    """A persistent run that somebody closed is replaced in the next epoch."""
    loader = nbpipe.DataLoader(
        Numbers(6), 2, num_workers=1, workers="thread", persistent_workers=True
    )
    list(loader)
    loader.run.close()
    got = [batch.tolist() for batch in loader]
    loader.close()
    assert got == [[0, 1], [2, 3], [4, 5]]


def test_dropped_loader_ends_its_workers():
    """Workers that stay end with their loader."""
    loader = nbpipe.DataLoader(
        Workers(), 4, num_workers=2, collate_fn=list, persistent_workers=True
    )
    workers = pids(loader)
    run = weakref.ref(loader.run)
    files = psutil.Process().num_fds()
    del loader
    gc.collect()
    assert ended(workers)
    until(lambda: psutil.Process().num_fds() < files)  # a thread of no name closes them
    assert run() is None


@pytest.mark.parametrize("stays", [False, True])
def test_loader_read_in_parts_goes_with_its_last_reference(stays):
    """Workers that read parts end with their loader: none waits for the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        loader = nbpipe.DataLoader(Parted(), 4, num_workers=2, persistent_workers=stays)
        assert len(list(loader)) == 6
        alive = weakref.ref(loader)
        del loader
        assert alive() is None
    finally:
        gc.enable()


def test_num_workers_is_live():
    """Setting `num_workers` during an epoch starts more calls at once, and fewer."""
    gates, calls = [Gate() for _ in range(40)], Calls()
    make = stage("plain", gate=gates.__getitem__, calls=calls)
    loader = nbpipe.DataLoader(Made(make, 40), 1, num_workers=1, workers="thread")
    epoch = iter(loader)
    calls.wait_running(1)
    loader.num_workers = 4
    calls.wait_running(4)
    loader.num_workers = 2
    for gate in gates:
        gate.open()
    got = [int(batch) for batch in epoch]
    assert (got, loader.num_workers, calls.peak) == (list(range(40)), 2, 4)


def test_prefetch_factor_is_live():
    """Setting `prefetch_factor` during an epoch lets more batches be made ahead."""
    calls = Calls()
    loader = nbpipe.DataLoader(
        Made(stage("plain", calls=calls), 100), 1, num_workers=1, workers="thread"
    )
    epoch = iter(loader)
    next(epoch)
    loader.prefetch_factor = 20
    calls.wait_begun(21)
    epoch.close()
    assert loader.prefetch_factor == 20


def test_knobs_stay_for_the_next_epoch():
    """What the panel or code tuned holds for the next epoch, and shows in the loader."""
    loader = nbpipe.DataLoader(Numbers(), 4, num_workers=2, workers="thread")
    list(loader)
    loader.pipeline["fetch"].concurrency = 3
    list(loader)
    run = loader.run
    assert (loader.num_workers, run["fetch"].concurrency, run["fetch"].prefetch) == (3, 3, 4)


def test_from_inline_to_workers_and_back():
    """A loader without workers gets them for the next epoch, and loses them again."""
    loader = nbpipe.DataLoader(Workers(), 4, collate_fn=list)
    found = []
    for count in (0, 2, 0):
        loader.num_workers = count
        found.append({sample[1] >= 0 for batch in loader for sample in batch})
    assert found == [{False}, {True}, {False}]


def listed(batches):
    """Return batches as lists."""
    return [one.tolist() if hasattr(one, "tolist") else one for one in batches]


def test_pipeline_is_the_chain():
    """The chain runs by itself, shows, and tells its length."""
    loader = nbpipe.DataLoader(Numbers(6), 2, num_workers=2, workers="thread")
    got = listed(loader.pipeline)
    assert (got, len(loader.pipeline)) == ([[0, 1], [2, 3], [4, 5]], 3)
    assert [stage.name for stage in loader.pipeline.stages] == ["indices", "fetch"]


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Numbers(), {"batch_size": 4}),
        (Numbers(), {"batch_size": None}),
        (Numbers(), {"batch_size": 4, "drop_last": True, "num_workers": 2}),
        (Numbers(), {"batch_sampler": [[3, 1], [2]], "num_workers": 1, "workers": "thread"}),
        (AtOnce(), {"batch_size": 4, "collate_fn": len}),
        (Stream(), {"batch_size": 4}),
        (Stream(), {"batch_size": 4, "num_workers": 2}),
        (Parted(), {"batch_size": 4, "num_workers": 2}),
    ],
)
def test_pipeline_gives_the_batches_of_the_loader(dataset, options):
    """Iterating it gives what the loader gives, also in the middle of an epoch of the loader."""
    loader = nbpipe.DataLoader(dataset, **options)
    expected = listed(loader)
    epoch = iter(loader)
    first = listed([next(epoch)])
    assert (listed(loader.pipeline), first + listed(epoch)) == (expected, expected)
    assert (listed(loader.run.pipeline), listed(loader)) == (expected, expected)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [True, False])
def test_pipeline_shuffles_as_the_loader(workers, own):
    """From the same state of torch's generator, the pipeline has the orders of the loader."""
    found = []
    for goal in ("", "pipeline"):
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(3) if own else None
        loader = nbpipe.DataLoader(
            Numbers(), 4, shuffle=True, num_workers=workers, workers="thread", generator=generator
        )
        batches = getattr(loader, goal) if goal else loader
        found.append([listed(batches), listed(batches)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_pipeline_of_parts_is_there_after_an_epoch():
    """A dataset that asks which worker reads it has a pipeline once the loader has read it."""
    loader = nbpipe.DataLoader(Parted(), 4, num_workers=2)
    with pytest.raises(nbpipe.StageError, match="iterate the loader before its pipeline"):
        list(loader.pipeline)
    expected = listed(loader)
    assert listed(loader.pipeline) == expected


def test_pipeline_of_a_run():
    """The pipeline of a run makes its batches, and has its knobs."""
    pipe = nbpipe.source(range(5), name="numbers").map(str).batch(2, collate=list)
    with pipe.start() as run:
        run["str"].concurrency = 3
        assert list(run.pipeline) == list(run) == [["0", "1"], ["2", "3"], ["4"]]
        assert (run.pipeline.graph(), run.pipeline["str"].concurrency) == (pipe.graph(), 3)
        with pytest.raises(nbpipe.UnknownKnobError, match=r"run\.pipeline cannot be set"):
            run.pipeline = pipe


def test_goal_of_an_export():
    """What an export appends to an object's expression gives the pipeline that is exported."""
    pipe = nbpipe.source(range(3))
    loader = nbpipe.DataLoader(Numbers(3))
    with pipe.start() as run:
        goals = [one._export_goal_() for one in (pipe, run, loader, loader.run)]
    assert goals == ["", ".pipeline", ".pipeline", ".pipeline"]


def test_length_of_an_epoch():
    """An epoch knows its length, for progress bars."""
    epoch = iter(nbpipe.DataLoader(Numbers(), 4))
    assert (len(epoch), len(list(epoch))) == (6, 6)
