"""A loop that its loader slows is told so, with real threads; a loop beside idle ones is not."""

import time

import numpy as np
import pytest

import nbpipe
from tests.gates import finished

ARRAY = np.zeros(64)


def computed(number):
    """Return a sum that Python computes."""
    return sum(k * k for k in range(30_000 + number % 2))


def waited(number):
    """Wait as a disk does."""
    time.sleep(0.004)
    return number


def short_calls(_):
    """Do a step of many short calls, each of which needs the interpreter lock."""
    for _ in range(20_000):
        np.add(ARRAY, 1.0)


def endless(call):
    """Return a pipeline whose calls are in threads, and more of it than anyone takes."""
    pipe = nbpipe.source(range(1 << 20)).map(call, name="work", concurrency=4, prefetch=64)
    return pipe.batch(4, collate=len, prefetch=16)


def stepped(run, step, done):
    """Iterate a run until something is so."""
    for batch in run:
        step(batch)
        if done():
            break


@pytest.mark.slow
def test_threads_that_compute_slow_a_loop_of_short_calls():
    """Status, sentence and events say so, and the epoch that is over does."""
    with endless(computed).start() as run:
        finished(stepped, run, short_calls, lambda: run.status().slowed_by)
        status, found, event = run.status(), run.diagnose(), run.events[-1]
    assert status.step_s > 1.1 * status.step_at_rest_s
    assert (found.kind, found.stage, found.severity) == ("slows", "consumer", "warning")
    assert "cancelled; in its last seconds the loader slows the loop: a step takes" in found.text
    assert (event.knob, event.by, event.new > event.old) == (
        "training loop.step_ms",
        "nbpipe",
        True,
    )


@pytest.mark.slow
def test_loader_whose_threads_compute_slows_its_loop():
    """The same of a `DataLoader`, in the words of its arguments."""
    torch = pytest.importorskip("torch")

    class Computed(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, number):
            return computed(number)

    loader = nbpipe.DataLoader(
        Computed(), batch_size=4, num_workers=4, workers="thread", prefetch_factor=8
    )
    finished(stepped, loader, short_calls, lambda: loader.run.status().slowed_by)
    found = loader.run.diagnose()
    assert (found.kind, loader.run.events[-1].knob) == ("slows", "training loop.step_ms")
    assert found.advice.startswith("set ")


@pytest.mark.slow
def test_threads_that_wait_slow_no_loop():
    """Nothing is said of a loop of short calls beside threads that wait."""
    until_s = time.monotonic() + 5
    with endless(waited).start() as run:
        finished(stepped, run, short_calls, lambda: time.monotonic() > until_s)
        assert (run.status().slowed_by, run.events) == ("", ())
