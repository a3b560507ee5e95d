"""A batch joins the process stages above it, and changes nothing else by that."""

import os
import signal
import threading
import time
from itertools import islice

import numpy as np
import pytest

import nbpipe
from nbpipe import Retry

SIZE = 5


def pid(item):
    """Say which process this is."""
    return (item, os.getpid())


def drawn(item, rng):
    """Give a number that depends on the seed, the epoch and the item."""
    return (item, int(rng.integers(1 << 30)))


def picky(item):
    """Fail on one item."""
    if item == 33:
        raise ValueError(f"picky about {item}")
    return item


def slow(item):
    """Take far too long on one item."""
    if item == 33:
        time.sleep(60)
    return item


def poison(item):
    """End the process on one item."""
    if item == 33:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def numbered(count=200, fn=pid, **options):
    """Begin a chain of numbers that worker processes look at."""
    return nbpipe.source(range(count)).map(
        fn, name="work", **{"executor": "process", "concurrency": 2, **options}
    )


def where(chain):
    """Give the executor of the batch in a run, and why it is that."""
    with chain.start() as run:
        return run["batch"].executor, run["batch"].why


@pytest.mark.slow
def test_a_batch_is_made_in_the_worker_of_its_items():
    """All items of a batch come from one process; the rows count items and batches as ever."""
    with numbered().batch(SIZE, collate=list).start() as run:
        batches = list(run)
        stats, live = run.stats(), run["work"].pids
    assert [item for batch in batches for item, _ in batch] == list(range(200))
    assert [len({process for _, process in batch}) for batch in batches] == [1] * 40
    assert {process for batch in batches for _, process in batch} <= set(live)
    assert [stats[name].items_in for name in ("work", "batch")] == [200, 200]
    assert [stats[name].items_out for name in ("work", "batch")] == [200, 40]


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (numbered, {"executor": "thread"}),
        (lambda: numbered(region=False), {}),
        (lambda: numbered(on_error="skip"), {}),
        (lambda: numbered(on_error=Retry(1, then="skip")), {}),
        (lambda: numbered(on_error="skip", max_failures=3), {}),
        (lambda: numbered(ordered=False), {}),
        (numbered, {"cost": len}),
        (lambda: numbered().filter(bool, executor="process"), {}),
        (lambda: numbered().flat_map(list, executor="process"), {}),
        (lambda: numbered().map(pid, name="after"), {}),
        (lambda: numbered().take(150), {}),
    ],
)
def test_what_keeps_a_batch_in_threads(made, options):
    """Wherever an item may be missing, or somebody says so, batches are made in threads."""
    assert made().batch(SIZE, **options)["batch"].executor == "thread"


def test_few_batches_are_made_in_threads():
    """The first batch comes sooner where all workers make it: the row says so."""
    few = numbered(35).batch(SIZE)
    assert where(few) == ("thread", "7 batches for 2 workers")
    assert "thread: 7 batches for 2 workers" in repr(few)
    assert where(numbered(36).batch(SIZE)) == ("process", "")
    assert "process, with work" in repr(numbered(36).batch(SIZE))


def test_workers_of_its_own():
    """Behind items that may be dropped, a batch gets workers by name; the row says the cost."""
    apart = numbered(on_error="skip").batch(SIZE, executor="process", concurrency=2)
    assert where(apart) == ("process", "apart from work, items are sent twice")
    assert "process: apart from work, items are sent twice" in repr(apart)
    assert where(numbered().batch(SIZE, executor="process")) == ("process", "")


@pytest.mark.slow
def test_a_collate_function_that_cannot_be_sent():
    """It is called in the run's process, as it is without workers."""
    lock, calls = threading.Lock(), []

    def counted(samples):
        with lock:
            calls.append(len(samples))
        return samples

    chain = numbered().batch(SIZE, collate=counted)
    assert where(chain) == ("thread", "its collate function cannot be sent")
    assert len(list(chain)) == len(calls) == 40


@pytest.mark.slow
def test_a_lambda_is_sent():
    """A collate function may be a lambda that holds what it needs."""
    factor = 3
    chain = numbered(fn=abs).batch(SIZE, collate=lambda samples: [factor * n for n in samples])
    assert where(chain) == ("process", "")
    assert [n for batch in chain for n in batch] == list(range(0, 600, 3))


@pytest.mark.slow
def test_the_same_numbers_as_in_threads():
    """Random numbers, order and the last batch do not depend on where batches are made."""
    joined = numbered(203, drawn).batch(SIZE, collate=list)
    apart = numbered(203, drawn).batch(SIZE, collate=list, executor="thread")
    threads = numbered(203, drawn, executor="thread").batch(SIZE, collate=list)
    expected = [list(threads.start(seed=7)) for _ in range(2)]
    assert [list(one.start(seed=7)) for one in (joined, apart)] == expected
    assert len(list(numbered(203).batch(SIZE, drop_last=True))) == 40


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(None, "thread"), ("thread", None)])
def test_a_state_of_the_other_form(before, after):
    """A state resumes exactly, wherever batches are made before and after it."""
    chains = [numbered(203, drawn).batch(SIZE, collate=list, executor=e) for e in (before, after)]
    with chains[0].start(seed=3) as run:
        whole = list(run)
    with chains[0].start(seed=3) as run:
        got = list(islice(iter(run), 11))
        state = run.state_dict()
    with chains[1].start(seed=3) as run:
        run.load_state_dict(state)
        got += list(run)
    assert got == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "options", "error"),
    [
        (picky, {}, ValueError),
        (picky, {"on_error": Retry(1)}, ValueError),
        (slow, {"timeout_s": 0.3}, nbpipe.StageTimeoutError),
        (poison, {}, nbpipe.WorkerDiedError),
    ],
)
def test_the_same_failure_as_in_threads(fn, options, error):
    """Batches before the item that fails are given; the error names its stage and the item."""
    chain = numbered(fn=fn, **options).batch(SIZE, collate=list)
    got = []
    with chain.start() as run, pytest.raises(nbpipe.StageError) as caught:
        got.extend(run)
    assert [n for batch in got for n in batch] == list(range(30))
    assert (caught.value.stage, caught.value.path) == ("work", 33)
    assert isinstance(caught.value, error) or isinstance(caught.value.__cause__, error)


@pytest.mark.slow
def test_workers_are_replaced_after_so_many_items():
    """Not after so many batches."""
    chain = numbered(concurrency=1, max_items_per_worker=20).batch(SIZE, collate=list)
    assert len({process for batch in chain for _, process in batch}) == 10


@pytest.mark.slow
def test_stages_keep_their_knobs():
    """The concurrency is one; the prefetch of the stage before may be set, and waits for use."""
    chain = numbered(prefetch=3).batch(SIZE, collate=list, prefetch=4)
    with chain.start() as run:
        got = list(islice(iter(run), 5))
        run["batch"].concurrency = 3
        run["work"].prefetch = 7
        got += list(run)
    assert (chain["work"].concurrency, chain["work"].prefetch, chain["batch"].prefetch) == (3, 7, 4)
    assert len(got) == 5 + 40


@pytest.mark.slow
@pytest.mark.parametrize("executor", [None, "process"])
def test_a_buffer_that_is_filled_again(executor):
    """A function may give the same memory for every item, as it may where batches are apart."""
    buffer = {"of": ([np.zeros(3)], np.zeros(2))}

    def filled(n):
        buffer["of"][0][0][:] = buffer["of"][1][:] = n
        return buffer

    chain = numbered(fn=filled).batch(SIZE, executor=executor)
    batches = [batch["of"] for batch in chain]
    assert np.concatenate([deep[:, 0] for (deep,), _ in batches]).tolist() == list(range(200))
    assert np.concatenate([flat[:, 0] for _, flat in batches]).tolist() == list(range(200))


@pytest.mark.slow
def test_a_stage_behind_has_workers_of_its_own():
    """And a concurrency of its own, as behind a batch in threads."""
    chain = numbered().batch(SIZE, collate=list)
    chain = chain.map(pid, name="after", executor="process", concurrency=1)
    with chain.start() as run:
        got = list(run)
        assert set(run["work"].pids).isdisjoint(run["after"].pids)
    assert [item for batch, _ in got for item, _ in batch] == list(range(200))


@pytest.mark.parametrize(
    "chain",
    [
        numbered(fn=abs).repeat(2).batch(SIZE, collate=list),
        numbered(fn=abs).batch(SIZE, collate=list).repeat(2),
        nbpipe.concat(*[numbered(fn=abs).batch(SIZE, collate=list) for _ in range(2)]),
        nbpipe.source(range(200))
        .repeat(2)
        .route(
            lambda n: True,
            {
                True: lambda c: c.map(abs, executor="process").batch(SIZE, collate=list),
                False: lambda c: c,
            },
        ),
    ],
)
def test_wherever_it_stands_in_a_chain(chain):
    """In passes, joined pipelines and branches, batches are what they are in threads."""
    assert [n for batch in chain for n in batch] == [*range(200), *range(200)]


@pytest.mark.slow
def test_isolated():
    """The workers of an isolated run make its batches."""
    with numbered().batch(SIZE, collate=list).start(isolate=True) as run:
        batches = list(run)
    assert [len({process for _, process in batch}) for batch in batches] == [1] * 40
    assert os.getpid() not in {process for batch in batches for _, process in batch}


def test_in_an_order_from_outside():
    """An epoch over given indices is made of them."""
    order = list(range(199, -1, -2))
    with numbered(fn=abs).batch(SIZE, collate=list).start() as run:
        assert [n for batch in run.iterate(order) for n in batch] == order
        assert len(list(run)) == 40
