"""The life of workers: when they start, what they are told, when they end or are replaced."""

import os
import threading

import numpy as np
import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.gates import Gate, delivered, drained, quiet


def test_an_item_that_cannot_be_sent_costs_no_worker():
    """Neither it nor those that were to be sent with it: all others come from one worker."""
    items = [*range(200), threading.Lock(), *range(201, 300)]
    pipe = nbpipe.source(items).map(lambda n: (n, os.getpid()), executor="process", on_error="skip")
    got, pids = zip(*drained(pipe), strict=True)
    assert (list(got), len(set(pids))) == ([n for n in range(300) if n != 200], 1)


# -- worker_init --------------------------------------------------------------------------
def test_worker_init_runs_once_in_each_worker(gate, bell):
    """It is called before the first item, and not again with the next epoch."""

    def init():
        import builtins

        bell.ring(-1)
        builtins.prepared = os.getpid()

    def work(n):
        import builtins

        bell.ring(n)
        gate.wait()
        return builtins.prepared == os.getpid(), os.getpid()

    with placed(50, work, worker_init=init).start() as run:
        items = iter(run)
        rung = bell.wait(4)  # each worker is at an item
        gate.open()
        got = [*drained(items), *drained(run)]
        rung += bell.rings()
    assert {ready for ready, _ in got} == {True}
    assert sorted(pid for n, pid in rung if n < 0) == sorted({pid for _, pid in got})


@pytest.mark.parametrize("on_error", ["raise", "skip", nbpipe.Retry(3, then="skip")])
def test_worker_init_that_fails(on_error):
    """It ends the epoch whatever `on_error`: the next item would fare no better."""

    def init():
        raise ValueError("no licence")

    with placed(10, lambda n: n, worker_init=init, on_error=on_error).start() as run:
        got, error = delivered(run)
        again, _ = delivered(run)
    causes = []
    while error is not None:
        causes.append(error)
        error = error.__cause__
    assert (got, again) == ([], [])
    assert [type(one) for one in causes][-2:] == [nbpipe.WorkerStartError, ValueError]
    assert str(causes[-2]).startswith("ValueError: no licence: worker_init failed")
    assert "no licence" in str(causes[-1])


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_worker_init_that_dies(on_error):
    """A worker that dies whenever it begins ends the epoch, too, and no item is blamed for it."""
    chain = placed(10, lambda n: n, worker_init=lambda: os._exit(5), on_error=on_error)
    got, error = delivered(chain)
    assert (got, isinstance(error, nbpipe.StageError)) == ([], True)
    assert "exit code 5" in str(error)


def test_worker_init_of_a_region(bell):
    """Stages that share workers are prepared together, by the init of the first."""
    chain = placed(10, lambda n: n, worker_init=bell.ring, concurrency=1)
    got = drained(chain.map(lambda n: n + 1, executor="process"))
    assert (got, len(bell.rings())) == (list(range(1, 11)), 1)


# -- max_items_per_worker -----------------------------------------------------------------
@pytest.mark.parametrize("ordered", [True, False])
def test_workers_are_replaced(ordered):
    """A worker is replaced after so many items; nothing of the epoch shows it."""
    most = 7
    chain = placed(60, lambda n: (n, os.getpid()), max_items_per_worker=most, ordered=ordered)
    got = drained(chain)
    counts = [sum(pid == other for _, other in got) for pid in {pid for _, pid in got}]
    assert (sorted(n for n, _ in got), max(counts) <= most) == (list(range(60)), True)
    assert not ordered or [n for n, _ in got] == list(range(60))


# -- worker_info --------------------------------------------------------------------------
def test_worker_info():
    """A stage's function can ask where it is: stage, worker, epoch and seed of the item."""

    def work(n):
        info = nbpipe.worker_info()
        return info.stage, info.worker, info.epoch, info.seed

    chain = placed(40, work, concurrency=3).map(
        lambda found: (*found, nbpipe.worker_info().stage), name="next", executor="process"
    )
    with chain.start(seed=5) as run:
        got = [drained(run) for _ in range(2)]
    assert nbpipe.worker_info() is None
    assert {(stage, other) for epoch in got for stage, _, _, _, other in epoch} == {("fn", "next")}
    assert {worker for epoch in got for _, worker, _, _, _ in epoch} <= {0, 1, 2}
    assert [{number for _, _, number, _, _ in epoch} for epoch in got] == [{0}, {1}]
    assert len({seed for epoch in got for _, _, _, seed, _ in epoch}) == 80


# -- stats --------------------------------------------------------------------------------
def test_stats_tell_of_the_workers(gate, bell):
    """The row of a stage says how many workers it has, how many begin, what memory they take."""
    all_there = Gate()

    def init():
        bell.ring()
        gate.wait()

    def work(n):
        bell.ring()
        all_there.wait()
        return n

    with placed(4, work, worker_init=init).start() as run:
        before = run.stats()["fn"]
        items = iter(run)
        bell.wait(2)
        begun = run.stats()["fn"]
        gate.open()
        bell.wait(2)
        all_there.open()
        got = drained(items)
        quiet(run)
        after = run.stats()["fn"]
    assert (before.workers, before.memory_bytes) == (0, 0)
    assert (begun.workers, begun.starting) == (2, 2)
    assert (after.workers, after.starting, got) == (2, 0, [0, 1, 2, 3])
    assert run.stats()["source"].workers == 0


def test_time_in_a_worker_is_busy_time():
    """`busy` is the time inside the function; the way there and back is none of it."""

    def work(n):
        threading.Event().wait(0.02)
        return n

    with placed(50, work, concurrency=2).start() as run:
        drained(run)
        row = run.stats()["fn"]
    assert (row.items_in, row.items_out, row.errors) == (50, 50, 0)
    assert row.latency_p50_s > 0.01  # durations are counted in buckets
    assert row.busy + row.starved + row.blocked + row.waiting == pytest.approx(1)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_a_job_has_not_begun_goes_to_others(gate, bell, ordered):
    """Short calls share a job; where one takes long, others take over what comes behind it."""

    def work(n):
        if 284 <= n <= 300:  # two jobs of eight, so that none begins behind them unseen
            threading.Event().wait(0.05)  # longer than a job waits for its next item
        if n in (301, 302):
            bell.ring(n)
            gate.wait()
        return n

    with placed(1000, work, ordered=ordered, prefetch=1).start() as run:
        items = iter(run)
        got = [next(items) for _ in range(300)]
        begun = {word for word, _ in bell.wait(2)}
        gate.open()
        got += drained(items)
    assert (begun, sorted(got)) == ({301, 302}, list(range(1000)))


@pytest.mark.parametrize(
    ("make", "slow", "ordered"),
    [
        (int, (90,), True),
        (int, (90,), False),
        # where the loop keeps all arrays, each job writes to memory of its own
        (lambda n: np.full(5000, n), (45, 90), True),
    ],
)
def test_a_slow_call_holds_back_nothing_before_it(gate, make, slow, ordered):
    """What a worker has finished of a job is there, while its next call goes on and on."""

    def work(n):
        threading.Event().wait(0.001)
        if n in slow:
            gate.wait()
        return make(n)

    with placed(100, work, concurrency=1, ordered=ordered).start() as run:
        items = iter(run)
        before = [next(items) for _ in range(slow[0])]
        gate.open()
        after = drained(items)
    assert [int(np.max(one)) for one in before + after] == list(range(100))
