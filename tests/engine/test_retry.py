"""Retries and timeouts: how often a call is tried, what cancels it, what its record says."""

import asyncio

import pytest

import nbpipe
from tests.engine.inner import Latch
from tests.gates import Calls, delivered, drained, finished, options, stage

KINDS = ("thread", "coroutine", "inline")


def not_four(item):
    """Fail on the number four."""
    if item == 4:
        raise ValueError(item)
    return item


@pytest.mark.parametrize("kind", KINDS)
def test_retry_gives_the_item_its_place(kind):
    """A call that succeeds at the third try gives its item in order; tries are counted."""
    calls = Calls()

    def result(item):
        if item % 10 == 0 and calls.of[item] < 3:
            raise OSError(item)
        return item

    fn = stage(kind, result=result, calls=calls)
    chain = nbpipe.source(range(100)).map(
        fn, **options(kind, concurrency=4), on_error=nbpipe.Retry(2), name="m"
    )
    with chain.start() as run:
        assert drained(run) == list(range(100))
        assert (run.stats()["m"].retries, run.stats()["m"].errors) == (20, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("then", ["raise", "skip"])
def test_retry_that_never_succeeds_ends_as_asked(kind, then):
    """After the last try the item is an error or is left out; the record counts the calls."""
    fn = stage(kind, result=not_four)
    chain = nbpipe.source(range(10)).map(
        fn, **options(kind), on_error=nbpipe.Retry(3, backoff_s=1e-6, then=then)
    )
    with chain.start() as run:
        got, error = delivered(run)
        assert [failure.attempts for failure in run.failures()] == [4]
    expected = [n for n in range(10) if n != 4] if then == "skip" else [0, 1, 2, 3]
    assert (got, error is None) == (expected, then == "skip")


@pytest.mark.parametrize("kind", KINDS)
def test_retry_draws_the_same_random_numbers(kind):
    """Each try of an item gets the same generator."""
    drawn = {}

    def work(item, rng):
        drawn.setdefault(item, []).append(rng.integers(2**60))
        if len(drawn[item]) < 3:
            raise OSError
        return item

    async def awaited(item, rng):
        return work(item, rng)

    fn = awaited if kind == "coroutine" else work
    chain = nbpipe.source(range(20)).map(fn, **options(kind), on_error=nbpipe.Retry(2))
    drained(chain)
    assert [(len(tries), len(set(tries))) for tries in drawn.values()] == [(3, 1)] * 20


@pytest.mark.parametrize(
    ("method", "kind"),
    [*(("map", kind) for kind in KINDS), ("flat_map", "thread"), ("flat_map", "coroutine")],
)
def test_waits_before_retries_double(monkeypatch, method, kind):
    """The first wait is `backoff_s`, and each further one twice as long."""
    hour_s, waits_s, wait = 3600.0, [], Latch.wait

    def skip_hours(latch, wait_s=None):
        if wait_s is None or wait_s < hour_s:
            return wait(latch, wait_s)
        waits_s.append(wait_s)
        return latch.is_open

    async def skip(wait_s):
        waits_s.append(wait_s)

    monkeypatch.setattr(Latch, "wait", skip_hours)
    monkeypatch.setattr(asyncio, "sleep", skip)
    retry = nbpipe.Retry(4, backoff_s=hour_s, then="skip")
    fn = stage(kind, result=lambda item: not_four(4))
    add = getattr(nbpipe.source([4]), method)
    assert drained(add(fn, **options(kind), on_error=retry)) == []
    assert waits_s == [hour_s, 2 * hour_s, 4 * hour_s, 8 * hour_s]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_retried_flat_map_gives_no_child_twice(concurrency):
    """A generator that is begun again leaves out the children it has given."""
    begun = []

    def children(item):
        begun.append(item)
        for child in range(50):
            if child == 30 and begun.count(item) < 3:
                raise OSError
            yield item, child

    retry = nbpipe.Retry(2)
    chain = nbpipe.source(range(4)).flat_map(children, concurrency=concurrency, on_error=retry)
    assert drained(chain) == [(item, child) for item in range(4) for child in range(50)]


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_end_of_the_epoch_ends_the_wait_before_a_retry(kind):
    """Closing a run does not wait for a long backoff."""
    calls = Calls()

    def result(item):
        raise OSError

    fn = stage(kind, result=result, calls=calls)
    chain = nbpipe.source([1]).map(fn, on_error=nbpipe.Retry(1, backoff_s=3600))
    run = chain.start()
    items = iter(run)
    calls.wait_begun(1)
    finished(run.close)
    assert (calls.begun, list(items)) == (1, [])


@pytest.mark.parametrize("on_error", ["raise", "skip", nbpipe.Retry(1, then="skip")])
def test_timeout_cancels_the_call(on_error):
    """A coroutine that takes too long is cancelled; the timeout is a failure like others."""
    cancelled = []

    async def work(item):
        if item == 3:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(item)
        return item

    chain = nbpipe.source(range(6)).map(work, timeout_s=0.01, on_error=on_error, concurrency=2)
    got, error = delivered(chain)
    if on_error == "raise":
        assert (got, type(error)) == ([0, 1, 2], nbpipe.StageTimeoutError)
        assert isinstance(error, TimeoutError)
        assert "took longer than timeout_s=0.01" in str(error)
    else:
        assert (got, error) == ([0, 1, 2, 4, 5], None)
    assert cancelled == [3] * (2 if isinstance(on_error, nbpipe.Retry) else 1)


def test_timeout_of_the_users_own_is_no_stage_timeout():
    """A TimeoutError that the function raises itself keeps its own meaning."""

    async def work(item):
        raise TimeoutError("mine")

    _, error = delivered(nbpipe.source([1]).map(work, timeout_s=60))
    assert (type(error), str(error.__cause__)) == (nbpipe.StageError, "mine")
