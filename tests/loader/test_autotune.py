"""`loader.run.autotune()`: it tunes `num_workers`, and reports where there is nothing to tune."""

import threading
import time

import pytest

import nbpipe
from tests.loader.datasets import Numbers


def nap(batch):
    """Stand for a collate function that waits for a disk."""
    time.sleep(0.03)
    return batch


@pytest.mark.slow
def test_the_batches_held_ready_follow_the_workers():
    """As many are ready for each worker as `prefetch_factor` says; `undo` restores both."""
    options = {"num_workers": 1, "workers": "thread", "prefetch_factor": 3, "collate_fn": nap}
    loader = nbpipe.DataLoader(Numbers(600), 2, **options)
    tuner = loader.run.autotune()
    assert loader.run.tuner is tuner
    while loader.num_workers == 1:
        assert [one for batch in loader for one in batch] == list(range(600))
    knobs = loader.run["fetch"].knobs
    assert knobs["prefetch"].value == 3 * loader.num_workers
    tuner.undo()
    assert (loader.num_workers, knobs["prefetch"].value) == (1, 3)


def test_without_workers():
    """A loader without workers has nothing to tune; its batches still come."""
    loader = nbpipe.DataLoader(Numbers(6), 2)
    tuner = loader.run.autotune()
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert tuner.state == ("nothing to tune: the loader has no workers; set num_workers above 0")
    tuner.stop()


def test_a_loader_that_is_dropped_ends_its_tuner():
    """The thread does not keep the loader."""
    loader = nbpipe.DataLoader(Numbers(6), 2, num_workers=1, workers="thread")
    loader.run.autotune()
    (thread,) = [one for one in threading.enumerate() if one.name == "nbpipe-autotune"]
    del loader
    thread.join()


def test_refused_arguments():
    """They are those of a run."""
    loader = nbpipe.DataLoader(Numbers(6), 2)
    with pytest.raises(nbpipe.UnknownStageError, match="no stage 'fetc'; did you mean 'fetch'"):
        loader.run.autotune(keep=["fetc"])
    with pytest.raises(nbpipe.ArgumentError, match="autotune most must be an int of at least 1"):
        loader.run.autotune(most=0)
