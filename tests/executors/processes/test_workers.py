"""The life of workers: when they start, what they are told, when they end or are replaced."""

import contextlib
import gc
import os
import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.gates import HANG_S, Calls, Gate, delivered, drained, finished, quiet, stage


def test_an_item_that_cannot_be_sent_costs_no_worker():
    """Neither it nor those that were to be sent with it: all others come from one worker."""
    items = [*range(200), threading.Lock(), *range(201, 300)]
    pipe = nbpipe.source(items).map(lambda n: (n, os.getpid()), executor="process", on_error="skip")
    got, pids = zip(*drained(pipe), strict=True)
    assert (list(got), len(set(pids))) == ([n for n in range(300) if n != 200], 1)


# -- worker_init -----------------------------------------------------------------------------------
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


@pytest.mark.slow
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


@pytest.mark.slow
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


# -- max_items_per_worker --------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
def test_workers_are_replaced(ordered):
    """A worker is replaced after so many items; nothing of the epoch shows it."""
    most = 7
    chain = placed(60, lambda n: (n, os.getpid()), max_items_per_worker=most, ordered=ordered)
    got = drained(chain)
    counts = [sum(pid == other for _, other in got) for pid in {pid for _, pid in got}]
    assert (sorted(n for n, _ in got), max(counts) <= most) == (list(range(60)), True)
    assert not ordered or [n for n, _ in got] == list(range(60))


# -- worker_info -----------------------------------------------------------------------------------
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


# -- stats -----------------------------------------------------------------------------------------
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


@pytest.mark.slow
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


@pytest.mark.slow
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


# -- The end of workers: with their run, however and whenever that ends ----------------------------
def processes(run):
    """Give the workers of a run."""
    return [psutil.Process(pid) for pid in run["fn"].pids]


def alive(workers):
    """Give those that do not end."""
    return psutil.wait_procs(workers, timeout=HANG_S)[1]


def test_a_run_that_is_dropped():
    """A run that nobody holds any more takes its workers with it."""
    run = placed(100, lambda n: n, prefetch=1).start()
    items = iter(run)
    finished(next, items)
    workers, died = processes(run), weakref.ref(run)
    del run, items
    gc.collect()
    assert (died(), alive(workers)) == (None, [])


@pytest.mark.parametrize("fails", [True, False])
def test_a_loop_over_a_pipeline_that_is_left(fails):
    """One epoch of a pipeline takes its workers with it when the loop fails or is left."""
    workers = []

    def train():
        for n, pid in placed(100, lambda n: (n, os.getpid())):
            workers.append(psutil.Process(pid))
            if n == 5 and fails:
                raise ZeroDivisionError
            if n == 5:
                break

    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        finished(train)
    gc.collect()
    assert (len(workers), alive(workers)) == (6, [])


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.01, 0.03, 0.1])
def test_close_while_workers_start(gate, after_s):
    """A run that is closed while its workers start leaves none of them, though they never end."""

    def work(n):
        gate.wait()
        return n

    run = placed(10, work, concurrency=3).start()
    items = iter(run)
    threading.Event().wait(after_s)  # somewhere in the start
    finished(lambda: run.close(timeout_s=0))
    del items
    assert run["fn"].pids == ()


@pytest.mark.slow
def test_pipelines_in_several_threads():
    """Each has workers of its own, and its items."""

    def search(n):
        return list(placed(100, lambda item: item + n, concurrency=1))

    with ThreadPoolExecutor(4) as pool:
        found = drained(pool.map(search, range(4)))
    assert found == [list(range(n, n + 100)) for n in range(4)]


@pytest.mark.slow
def test_many_short_lives():
    """Runs that are closed at any moment, one after the other, leave nothing behind."""
    counts = []
    for taken in range(12):
        run = placed(50, lambda n: n, concurrency=3).start()
        items = iter(run)
        counts.append(len(finished(lambda items=items, n=taken: [next(items) for _ in range(n)])))
        finished(lambda run=run: run.close(timeout_s=0))
        del items, run
    assert counts == list(range(12))


def test_close_while_paused(bell):
    """A paused run closes at once, with its workers."""
    run = placed(50, bell.ring, prefetch=1).start()
    items = iter(run)
    bell.wait()
    run.pause()
    finished(run.close)
    del items
    assert (run.closed, run["fn"].pids) == (True, ())


@pytest.mark.slow
def test_a_worker_that_is_stopped():
    """A worker that hears nothing any more is killed when the run closes."""
    with placed(10, lambda n: n).start() as run:
        drained(run)
        workers = processes(run)
        for worker in workers:
            worker.suspend()
    assert (len(workers) > 0, alive(workers)) == (True, [])


def test_a_thread_that_a_stage_leaves_behind():
    """A thread of user code does not keep a worker from leaving."""

    def work(n):
        threading.Thread(target=threading.Event().wait).start()
        return n

    with placed(4, work).start() as run:
        got = drained(run)
        workers = processes(run)
    assert (got, alive(workers)) == ([0, 1, 2, 3], [])


# -- The limit of a stage of processes, changed while items flow -----------------------------------
CHANGES = 1000
LIMITS = (1, 6, 2, 8, 1, 3)


def until(event):
    """Count until an event is set."""

    def items():
        item = 0
        while not event.is_set():
            yield item
            item += 1

    return items


def change(stage, done):
    """Change the knobs of a stage at random, as fast as it goes."""
    rng = random.Random(5)
    for _ in range(CHANGES):
        stage.concurrency = rng.choice(LIMITS)
        stage.prefetch = rng.randint(1, 9)
        done.wait(0.0005)
    done.set()


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
def test_thousands_of_changes_under_load(ordered):
    """Nothing is lost, doubled or reordered, and never are more calls in progress than allowed."""
    done, calls = threading.Event(), Calls()
    chain = placed(until(done), stage("process", calls=calls), ordered=ordered)
    with chain.start() as run:
        changer = threading.Thread(target=change, args=(run["fn"], done))
        changer.start()
        got = drained(run)
        changer.join()
    assert (got if ordered else sorted(got)) == list(range(len(got)))
    assert (calls.begun, calls.running, calls.peak <= max(LIMITS)) == (len(got), 0, True)


@pytest.mark.slow
@pytest.mark.parametrize("at_work", [False, True])
def test_surplus_workers_leave(bell, gate, at_work):
    """After the limit is lowered, workers without work leave, the others after their call."""

    def work(n):
        bell.ring(n)
        gate.wait()
        return n

    with placed(range(20), work, concurrency=6).start() as run:
        items = iter(run)
        processes = [psutil.Process(pid) for _, pid in bell.wait(6)]
        if at_work:
            run["fn"].concurrency = 2
            assert run["fn"].workers == 6
        gate.open()
        got = drained(items)
        quiet(run)
        run["fn"].concurrency = 2
        kept = run["fn"].pids
        gone = [process for process in processes if process.pid not in kept]
        _, alive = psutil.wait_procs(gone, timeout=HANG_S)
        again = drained(run)
    assert (len(kept), alive) == (2, [])
    assert got == again == list(range(20))


def test_workers_start_with_the_work_there_is():
    """A high limit starts no workers for which there is nothing to do."""
    with placed(range(1), lambda n: os.getpid(), concurrency=16).start() as run:
        (pid,) = finished(list, run)
        assert run["fn"].pids == (pid,)
