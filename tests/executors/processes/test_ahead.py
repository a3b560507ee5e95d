"""A worker that has done a job begins the next one, while the results of the last are read."""

import os
import random
import signal
import threading
import time

import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.gates import delivered, drained, quiet

ON_LOADING = []  # what is done in this process when a result is loaded


class Result:
    """Loads as the number of an item, once that was done which the test says."""

    def __init__(self, n):
        self.n = n

    def __reduce__(self):
        return _loaded, (self.n,)


def _loaded(n):
    for do in ON_LOADING:
        do(n)
    return n


@pytest.fixture
def on_loading():
    """Take what is to be done when a result is loaded."""
    yield ON_LOADING.append
    ON_LOADING.clear()


def results(bell):
    """Make the function of a stage that rings, and gives results that take their time to load."""

    def work(n):
        bell.ring(n)
        return Result(n)

    return work


@pytest.mark.parametrize("ordered", [True, False])
def test_the_next_job_is_begun_while_results_are_read(bell, on_loading, ordered):
    """Else the first result would wait for the second item for ever."""
    begun = []

    def begin_next(n):
        if n == 0:
            begun.extend(bell.wait(2))

    on_loading(begin_next)
    assert drained(placed(40, results(bell), concurrency=1, ordered=ordered)) == list(range(40))
    assert [n for n, _ in begun] == [0, 1]


@pytest.mark.parametrize("last", [0, 1])
def test_behind_an_item_that_ends_the_epoch_no_other_is_begun(bell, last):
    """It is the last of its job: that the next may not be sent is known when it has failed."""

    def work(n):
        bell.ring(n)
        if n == last:
            raise ValueError(n)
        return n

    got, error = delivered(placed(40, work, concurrency=1))
    assert (got, error.path) == (list(range(last)), last)
    assert [n for n, _ in bell.rings()] == list(range(last + 1))


def test_behind_a_result_that_cannot_be_sent_no_other_is_begun(bell):
    """The worker finds out when it has done all of the job."""

    def work(n):
        bell.ring(n)
        return threading.Lock() if n == 1 else n

    got, error = delivered(placed(40, work, concurrency=1))
    assert (got, type(error.__cause__), error.path) == ([0], nbpipe.errors.UnpicklableError, 1)
    assert [n for n, _ in bell.rings()] == [0, 1]


def test_a_result_that_cannot_be_loaded_while_its_worker_goes_on(bell, on_loading):
    """It is made once more by the only worker there is, which first ends what it has begun."""
    begun, fails = [], [True]

    def fail(n):
        if n == 0 and fails:
            begun.extend([] if begun else bell.wait(2))
            fails.pop()
            raise ValueError("no number")

    on_loading(fail)
    stage = placed(40, results(bell), concurrency=1, on_error=nbpipe.Retry(1))
    with stage.start() as run:
        got = drained(run)
        row = run.stats()["fn"]
        assert [n for n, _ in begun] == [0, 1]
        assert {pid for _, pid in begun + bell.rings()} == set(run["fn"].pids)
    assert (got, row.items_in, row.retries, row.running) == (list(range(40)), 40, 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("last", [10, 15, 20])
def test_items_behind_a_result_that_cannot_be_loaded_turn_slow(on_loading, last):
    """Those that their worker has not begun go back once: they are done once, and counted once."""
    fails = [True]

    def work(n):
        if last < n <= last + 12:
            time.sleep(0.03)
        return Result(n)

    def fail(n):
        if n == last and fails:
            fails.pop()
            raise ValueError("no number")

    on_loading(fail)
    stage = placed(60, work, concurrency=1, prefetch=4, on_error=nbpipe.Retry(3))
    with stage.start() as run:
        got = drained(run)
        row = run.stats()["fn"]
    assert (got, row.items_in, row.items_out, row.running) == (list(range(60)), 60, 60, 0)


@pytest.mark.parametrize("before", [False, True])
def test_calls_take_as_long_as_they_took_in_the_worker(bell, gate, on_loading, before):
    """However late their thread sees to them: they may be done by then."""

    def numbers():
        yield from range(12)
        gate.open()  # else the first item may be done before there is a second one

    def work(n):
        gate.wait()
        time.sleep(0.012)
        bell.ring(n)
        return Result(n)

    def wait_for_next(n):
        if n % 2 == 0:
            bell.wait(2)

    on_loading(wait_for_next)
    source = nbpipe.source(numbers)
    if before:
        source = source.map(int, executor="process", concurrency=1)
    stage = source.map(work, name="fn", executor="process", prefetch=32)
    stage["fn"].concurrency = 1
    with stage.start() as run:
        assert drained(run) == list(range(12))
        assert run.stats()["fn"].latency_p50_s > 0.009


def test_a_worker_that_is_killed_in_the_next_job(bell, gate, on_loading):
    """What it had done is kept, and what it had begun is done by another."""
    killed = []

    def work(n):
        bell.ring(n)
        if n == 1:
            gate.wait()
        return Result(n)

    def kill(n):
        if n == 0:
            (_, pid), _ = bell.wait(2)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            gate.open()

    on_loading(kill)
    with placed(40, work, concurrency=1).start() as run:
        got = drained(run)
        row = run.stats()["fn"]
        assert set(killed).isdisjoint(run["fn"].pids)
    assert (got, row.retries) == (list(range(40)), 1)


def test_a_loop_that_ends_while_the_next_job_is_done(bell, on_loading):
    """Its worker does the jobs of the next epoch, and goes with the run."""
    on_loading(lambda n: bell.wait(1))
    with placed(40, results(bell), concurrency=1).start() as run:
        for _ in range(3):
            for n in run:
                assert n == 0
                break
        assert len(run["fn"].pids) == 1
        assert run.stats()["fn"].running <= 1


def test_a_paused_run_sends_nothing_on(bell, gate):
    """The job in progress ends, and the next begins when the run goes on."""

    def work(n):
        bell.ring(n)
        gate.wait()
        return n

    with placed(3, work, concurrency=1).start() as run:
        items = iter(run)
        bell.wait(1)
        run.pause()
        gate.open()
        quiet(run)
        assert (run.stats()["fn"].items_out, bell.rings()) == (1, [])
        run.resume()
        assert drained(items) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_or_doubled_where_results_cannot_be_loaded(on_loading, seed):
    """Whatever takes long, and however many calls there may be: epochs are whole, and counted."""
    rng = random.Random(seed)
    fails, slow = set(), set(rng.sample(range(120), 6))

    def work(n):
        if n in slow:
            time.sleep(0.05)
        return Result(n)

    def fail(n):
        if n in fails:
            fails.discard(n)
            raise ValueError("no number")
        if n % 10 == 0:
            run["fn"].concurrency = 1 + rng.randrange(3)

    on_loading(fail)
    stage = placed(120, work, prefetch=1 + rng.randrange(4), on_error=nbpipe.Retry(3))
    with stage.start() as run:
        for epoch in range(1, 4):
            fails.update(rng.sample(range(120), 5))
            assert drained(run) == list(range(120))
            row = run.stats()["fn"]
            assert (row.items_in, row.items_out, row.running) == (120 * epoch, 120 * epoch, 0)
