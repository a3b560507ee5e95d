"""Items that kill every worker they are given to."""

import os
import resource
import sys
from collections import Counter
from time import perf_counter_ns

import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.executors.processes.work import poison_exit, poison_kill, poison_segmentation_fault
from tests.gates import delivered, drained, quiet

POISONS = {
    poison_exit: "exit code 3",
    poison_segmentation_fault: "SIGSEGV",
    poison_kill: "SIGKILL",
}


def poisoned(poison, bell=None):
    """Make a function that meets a poison in item 5."""

    def work(n):
        if n == 5:
            if bell is not None:
                bell.ring(n)
            poison(n)
        return n

    return work


@pytest.mark.parametrize("poison", POISONS)
def test_a_poison_item_is_named(bell, poison):
    """An item that kills every worker is given to three, then named, with how they died."""
    with placed(20, poisoned(poison, bell)).start() as run:
        got, error = delivered(run)
        rung = bell.wait(3)
        quiet(run)
        (failure,) = run.failures()
    assert got == list(range(5))
    assert (type(error), error.stage, error.path) == (nbpipe.WorkerDiedError, "fn", 5)
    assert (error.executor, failure.path, failure.attempts) == ("process", 5, 3)
    assert POISONS[poison] in str(error)
    assert len({pid for _, pid in rung}) == 3


@pytest.mark.parametrize(
    ("poison", "ordered"), [*[(poison, True) for poison in POISONS], (poison_exit, False)]
)
def test_a_poison_item_is_skipped(poison, ordered):
    """With on_error="skip" it is left out, its neighbours in the same job come all the same."""
    chain = placed(200, poisoned(poison), on_error="skip", ordered=ordered)
    with chain.start() as run:
        got, error = delivered(run)
        failures = [(failure.path, failure.attempts) for failure in run.failures()]
        row = run.stats()["fn"]
    assert error is None
    assert (row.items_in, row.items_out, row.errors, row.retries) == (200, 199, 1, 2)
    assert sorted(got) == [n for n in range(200) if n != 5]
    assert failures == [(5, 3)]


@pytest.mark.parametrize(("then", "rest"), [("skip", [6, 7, 8, 9]), ("raise", [])])
def test_a_poison_item_with_retry(then, rest):
    """Deaths have tries of their own; after them `then` decides."""
    retry = nbpipe.Retry(2, then=then)
    got, error = delivered(placed(10, poisoned(poison_exit), on_error=retry))
    assert got == [*range(5), *rest]
    assert isinstance(error, nbpipe.WorkerDiedError) == (then == "raise")


def test_neighbours_of_a_poison_item_are_done_at_most_once_more(bell):
    """Items that shared a job with a poison item are worked on again, not left out or doubled."""

    def work(n):
        bell.ring(n)
        if n == 150:
            os._exit(1)
        return n

    with placed(300, work, concurrency=1, on_error="skip").start() as run:
        got = drained(run)
        calls = Counter(word for word, _ in bell.rings())
    assert got == [n for n in range(300) if n != 150]
    assert calls.keys() == set(range(300))
    assert max(calls[n] for n in got) <= 2


def test_what_was_finished_before_a_death_is_not_done_again(bell):
    """Of a job of several items, results are there as soon as their calls took a while."""

    def work(n):
        bell.ring(n)
        begun_ns = perf_counter_ns()
        while perf_counter_ns() - begun_ns < 1_000_000:
            pass
        if n == 45:
            os._exit(1)
        return n

    with placed(60, work, concurrency=1, on_error="skip").start() as run:
        assert drained(run) == [n for n in range(60) if n != 45]
        calls = Counter(word for word, _ in bell.rings())
    assert calls == {**dict.fromkeys(range(60), 1), 45: 3}


@pytest.mark.skipif(sys.platform != "linux", reason="limits as on Linux")
def test_a_poison_item_where_there_is_no_shared_memory():
    """Results that go through the pipe are kept, too; the item is found among its neighbours."""

    def forbid_memory():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    def work(n):
        if n == 150:
            os._exit(1)
        return n

    with placed(300, work, worker_init=forbid_memory, on_error="skip").start() as run:
        got = drained(run)
        failures = [(failure.path, failure.attempts) for failure in run.failures()]
        row = run.stats()["fn"]
    assert (got, failures) == ([n for n in range(300) if n != 150], [(150, 3)])
    assert (row.items_in, row.items_out, row.errors, row.retries) == (300, 299, 1, 2)


def test_poison_in_a_region():
    """Of stages that share a worker, the one that the worker died in is named."""

    def first(n):
        return n + 1

    def second(n):
        if n == 4:
            os._exit(9)
        return n * 10

    chain = nbpipe.source(range(10)).map(first, executor="process").map(second, executor="process")
    got, error = delivered(chain)
    assert got == [10, 20, 30]
    assert (error.stage, error.path) == ("second", 3)
    assert "exit code 9" in str(error)


def test_budget_counts_deaths():
    """Deaths count against `max_failures` as exceptions do."""

    def work(n):
        if n % 2:
            os._exit(1)
        return n

    chain = placed(20, work, on_error="skip", max_failures=2)
    got, error = delivered(chain)
    assert isinstance(error, nbpipe.FailureBudgetError)
    assert got == [n for n in range(len(got) * 2) if n % 2 == 0]
