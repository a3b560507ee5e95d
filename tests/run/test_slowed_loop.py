"""A run and a loader report that they slow their loop; other loops get no such report."""

import itertools
import time

import numpy as np
import pytest

import nbpipe
from tests.gates import finished, until
from tests.inner import engine_of, snapshot
from tests.run.inner import step_time

ARRAY = np.zeros(64)


def computed(number):
    """Return a sum that Python computes."""
    return sum(k * k for k in range(30_000 + number % 2))


def waited(number):
    """Wait as a disk does."""
    time.sleep(0.004)
    return number


def short_calls():
    """Do a step of many short calls, each of which needs the interpreter lock."""
    for _ in range(12_000):
        np.add(ARRAY, 1.0)


def endless(call, count=1 << 20, **options):
    """Return a pipeline whose calls are in threads, and more of it than anyone takes."""
    pipe = nbpipe.source(range(count)).map(call, name="work", concurrency=4, prefetch=64, **options)
    return pipe.batch(8, collate=len, prefetch=16)


def stepped(run, step, done):
    """Iterate a run, one epoch after the other, until something is so."""
    for _ in itertools.chain.from_iterable(itertools.repeat(run)):
        step()
        if done():
            break


@pytest.fixture
def hurried(monkeypatch):
    """Have rests be short, and one after the other: what is tested is not how long they are."""
    for name in ("_REVIEW_NS", "_WORK_NS", "_PROBE_NS"):
        monkeypatch.setattr(step_time, name, 0)
    monkeypatch.setattr(step_time, "_REST_NS", 4_000_000)
    monkeypatch.setattr(step_time, "_SURE", 2)


class Slowed:
    """Steps that take far longer beside workers that work, from some step on."""

    def __init__(self, run):
        self.run = run
        self.count = 0

    def __call__(self):
        self.count += 1
        slow = self.count > 20 and engine_of(self.run).rest.rested_ns() is None
        time.sleep(0.02 if slow else 0.002)


def said(run):
    """Return what a run says once its loop is slowed."""
    found, shown = run.diagnose(), snapshot(run)
    return {
        "kind": (found.kind, shown["diagnosis"]["kind"]),
        "severity": found.severity,
        "stage": found.stage,
        "longer": run.status().step_s > shown["step_at_rest_s"],
        "events": [(one.knob, one.by, one.new >= one.old) for one in run.events],
    }


SAID = {
    "kind": ("slows", "slows"),
    "severity": "warning",
    "stage": "consumer",
    "longer": True,
    "events": [("training loop.step_ms", "nbpipe", True)],
}


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("options", [{}, {"isolate": True}])
def test_run_says_so_in_its_epoch_and_after_it(options):
    """Status, sentence, panel and events carry the verdict, wherever the stages run."""
    with endless(abs).start(**options) as run:
        next(iter(run))  # a process starts, for which the epoch waits
        told = finished(lambda: [*map(said, in_epoch(run))])
        assert told == [SAID]
        assert "Cancelled. Data loading slowed training: a step took " in run.diagnose().text


def in_epoch(run):
    """Give a run while its slowed loop continues."""
    step = Slowed(run)
    for _ in run:
        step()
        if run.status().slowed_by:
            until(lambda: run.status().elapsed_s > 1)  # a diagnosis is of a second at least
            yield run
            return


@pytest.mark.usefixtures("hurried")
def test_short_epochs_are_compared_together():
    """Findings of one epoch are kept for the next ones."""
    with endless(abs, count=240).start() as run:
        finished(stepped, run, Slowed(run), lambda: run.status().slowed_by)
        assert run.epoch > 0


@pytest.mark.usefixtures("hurried")
@pytest.mark.torch
@pytest.mark.parametrize("persistent", [False, True])
def test_loader_says_so(persistent):
    """The same of a `DataLoader` and its epochs, whether its workers stay or not."""
    loader = nbpipe.DataLoader(
        range(400),
        batch_size=8,
        num_workers=2,
        workers="thread",
        prefetch_factor=8,
        persistent_workers=persistent,
    )
    makers = []
    loader.run.on_run = makers.append
    step = Slowed(None)

    def slowed():
        step.run = makers[-1]
        step()

    finished(stepped, loader, slowed, lambda: loader.run.status().slowed_by)
    assert [one.by for one in loader.run.events] == ["nbpipe"]
    assert (len(makers) > 1) == (not persistent)


@pytest.mark.slow
def test_threads_that_compute_slow_a_loop_of_short_calls():
    """Real threads of Python beside short calls."""
    with endless(computed).start() as run:
        finished(stepped, run, short_calls, lambda: run.status().slowed_by)
        found = run.diagnose()
    assert "Data loading slowed training: a step took " in found.text


@pytest.mark.slow
def test_threads_that_wait_slow_no_loop():
    """Nothing is said of a loop of short calls beside threads that wait."""
    until_s = time.monotonic() + 5
    with endless(waited).start() as run:
        finished(stepped, run, short_calls, lambda: time.monotonic() > until_s)
        assert (run.status().slowed_by, run.events) == ("", ())
