"""`run.memory`: the budget for the bytes in all buffers changes while an epoch runs."""

import numpy as np
import pytest

import nbpipe
from tests.gates import finished, until

MB = 10**6


def load(number):
    """Make an item of 1 MB."""
    return np.full(MB, number % 100, np.uint8)


@pytest.fixture
def pipe():
    """Return a pipeline whose buffer has room for many large items."""
    return nbpipe.source(range(200)).map(load, prefetch=20)


def settles(run, at_least, at_most):
    """Wait until so many items wait, and no call is in progress."""

    def holds():
        row = run.stats()["load"]
        return at_least <= row.queued <= at_most and not row.running

    return until(holds)


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_budget_changes_in_an_epoch(pipe, isolate):
    """More items are made as soon as it is raised, and fewer wait once it is lowered."""
    with pipe.start(memory="4 MB", isolate=isolate) as run:
        items = iter(run)
        finished(next, items)
        settles(run, 1, 4)
        run.memory = "12 MB"
        settles(run, 8, 12)
        assert (run.memory, run.status().limit_bytes) == (12 * MB, 12 * MB)
        run.memory = 3 * MB
        for _ in range(12):
            finished(next, items)
        settles(run, 1, 3)
        assert [int(one[0]) for one in finished(list, items)] == [n % 100 for n in range(13, 200)]
        changes = [(one.knob, one.old, one.new, one.by) for one in run.events]
    assert changes == [
        ("memory", 4 * MB, 12 * MB, "code"),
        ("memory", 12 * MB, 3 * MB, "code"),
    ]


def test_it_holds_in_the_next_epoch(pipe):
    """Also for one that is read ahead."""
    with pipe.start(memory="12 MB", read_ahead=True) as run:
        for _ in run:
            run.memory = "3 MB"
        items = iter(run)
        finished(next, items)
        settles(run, 1, 3)
        items.close()


def test_values_that_are_refused(pipe):
    """Without a budget from the start none can be set; a size must be one."""
    with pipe.start() as run:
        assert run.memory is None
        with pytest.raises(nbpipe.ArgumentError, match=r"pipe.start\(memory="):
            run.memory = "1 GB"
    with pipe.start(memory="4 MB") as run:
        with pytest.raises(nbpipe.ArgumentError, match="memory must be a size in bytes"):
            run.memory = "much"
        with pytest.raises(nbpipe.ArgumentTypeError, match="memory must be an int or a text"):
            run.memory = None
        assert run.memory == 4 * MB
    with pytest.raises(nbpipe.RunClosedError):
        run.memory = "1 GB"
