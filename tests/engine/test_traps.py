"""The traps that other engines fell into, each one a test; numbers as in the list of traps."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import nbpipe
from tests.gates import (
    HANG_S,
    Calls,
    Gate,
    consumer_waits,
    delivered,
    drained,
    finished,
    options,
    quiet,
    stage,
    until,
)

KINDS = ("thread", "coroutine", "inline")


def same(item):
    """Give the item."""
    return item


# -- 1: items gathering for a batch do not count against the buffer --------------------------------


@pytest.mark.parametrize("operation", ["skip", "window", "enumerate", "shuffle", "unbatch"])
def test_batch_behind_a_stream_operation(operation):
    """A batch fills up behind operations that have a buffer of their own."""
    chain = nbpipe.source(lambda: iter(range(100)), prefetch=1)
    chain = {
        "skip": lambda: chain.skip(1),
        "window": lambda: chain.window(2),
        "enumerate": chain.enumerate,
        "shuffle": lambda: chain.shuffle(buffer_size=5),
        "unbatch": lambda: chain.batch(7, collate=list).map(tuple).flat_map(list),
    }[operation]()
    assert sum(drained(chain.batch(32, collate=len))) in (99, 100)


def test_batch_behind_expansions_that_work_ahead():
    """A later `flat_map` call that worked ahead leaves the first one its way into the batch."""
    ahead, gate = threading.Event(), Gate()

    def children(item):
        if item == 0:
            gate.wait()
        for child in range(100):
            yield item, child
            ahead.set()

    chain = nbpipe.source(range(2)).flat_map(children, concurrency=2, prefetch=1)
    with chain.batch(32, collate=list).start() as run:
        items = iter(run)
        finished(ahead.wait)
        until(lambda: run.stats()["children"].running == 1)  # the second has no more room
        gate.open()
        found = [item for batch in drained(items) for item in batch]
        assert found == [(item, child) for item in range(2) for child in range(100)]


@pytest.mark.parametrize("cheap", ["map", "filter"])
def test_cheap_stage_between_coroutines_and_a_batch(cheap):
    """What coroutines give late is taken on by a cheap stage, though its buffer is not empty."""

    async def wait(item):
        await asyncio.sleep(0.001)
        return item

    chain = nbpipe.source(range(40)).map(wait, concurrency=8)
    chain = chain.map(same) if cheap == "map" else chain.filter(lambda _: True)
    with chain.batch(32, collate=list).start() as run:
        epochs = [[item for batch in drained(run) for item in batch] for _ in range(20)]
        assert epochs == [list(range(40))] * 20


# -- 2: an exception inside a chunk runs no earlier item again -------------------------------------
@pytest.mark.parametrize(
    "on_error", ["raise", "skip", nbpipe.Retry(2), nbpipe.Retry(2, then="skip")]
)
@pytest.mark.parametrize("ordered", [True, False])
def test_failure_in_a_chunk_runs_no_item_again(on_error, ordered):
    """Items before and after a failing one are called once; a retry calls that one alone."""
    calls = Calls()

    def fail(item):
        calls.enter(item)
        calls.leave()
        if item % 1000 == 777:
            raise ValueError(item)
        return item

    chain = nbpipe.source(range(5000)).map(fail, on_error=on_error, ordered=ordered)
    got, error = delivered(chain)
    tries = on_error.times + 1 if isinstance(on_error, nbpipe.Retry) else 1
    skips = on_error == "skip" or getattr(on_error, "then", "") == "skip"
    assert (error is None) == skips
    if ordered or skips:
        assert got == [n for n in range(5000 if skips else 777) if n % 1000 != 777]
    assert {count for item, count in calls.of.items() if item % 1000 != 777} == {1}
    assert {calls.of[n] for n in calls.of if n % 1000 == 777} == {tries}


@pytest.mark.parametrize("kind", ["map", "filter"])
def test_nothing_behind_a_failure_that_ends_the_epoch_is_called(kind):
    """One call at a time: what follows in the chunk of the item that failed is left alone."""
    called = []

    def fail(item):
        called.append(item)
        if item == 777:
            raise ValueError(item)
        return True

    got, error = delivered(getattr(nbpipe.source(range(5000)), kind)(fail, concurrency=1))
    assert (len(got), error.path, called) == (777, 777, list(range(778)))


# -- 3: a chunk that turns slow, a source that bursts, publishes what it has -----------------------
def cheap_until(last, gate):
    """Make a function that is cheap up to item `last` and waits at the gate from then on."""

    def wait(item):
        if item >= last:
            gate.wait()
        return item

    return wait


def opened_by(items, last, gate):
    """Take items; open the gate when the one before `last` arrives."""
    got = []
    for item in items:
        got.append(item)
        if item == last - 1:
            gate.open()
    return got


@pytest.mark.parametrize("kind", ["map", "filter"])
def test_what_was_taken_back_from_a_slow_chunk_is_not_called_behind_its_failure(kind):
    """One call at a time: it fails after the rest of its chunk was taken back; that is left."""
    gate, called = Gate(), []
    wait = cheap_until(500, gate)

    def fail(item):
        called.append(item)
        wait(item)
        if item == 500:
            raise ValueError(item)
        return True

    def opening(items):
        for number, _ in enumerate(items):
            yield number
            if number == 499:
                gate.open()

    with getattr(nbpipe.source(range(600)), kind)(fail, concurrency=1).start() as run:
        got, _ = delivered(opening(run))
    assert (got, called) == (list(range(500)), list(range(501)))


@pytest.mark.parametrize("last", [500, 501, 502, 503, 533, 563])
@pytest.mark.parametrize("kind", ["map", "filter", "inline", "flat_map", "source"])
def test_what_a_chunk_has_done_is_handed_on_when_it_turns_slow(kind, last):
    """The consumer gets every item before the slow one while that one still runs."""
    gate = Gate()
    wait = cheap_until(last, gate)
    source = nbpipe.source(range(600))
    chain = {
        "map": lambda: source.map(wait),
        "filter": lambda: source.filter(lambda item: wait(item) >= 0),
        "inline": lambda: source.map(same).map(wait, executor="inline"),
        "flat_map": lambda: source.take(1).flat_map(lambda _: map(wait, range(600))),
        "source": lambda: nbpipe.source(lambda: map(wait, range(600))),
    }[kind]()
    with chain.start() as run:
        assert finished(opened_by, run, last, gate) == list(range(600))


@pytest.mark.parametrize("kind", ["source", "map"])
def test_a_small_chunk_of_middling_cost_is_handed_on_too(kind):
    """A chunk of a few items that cost some 15 us each is freed as well when it turns slow."""
    gate, runs = Gate(), []

    def work(item):
        if item >= 200:
            gate.wait()
        runtime = runs[0]._core.life.scheduler.runtimes[kind]
        runtime.cost_ns = max(runtime.cost_ns, 15_000)  # as if every call took 15 us
        return item

    if kind == "source":
        chain = nbpipe.source(lambda: map(work, range(210)))
    else:
        chain = nbpipe.source(range(210)).map(work, name="map")
    with chain.start() as run:
        runs.append(run)
        assert finished(opened_by, run, 200, gate) == list(range(210))


@pytest.mark.parametrize("kind", ["source", "flat_map"])
def test_async_iterator_that_bursts_and_waits_hands_on_the_burst(kind):
    """What an async source or generator gave is handed on while it waits for more."""
    gate = Gate()

    async def burst(_=None):
        for item in range(1000):
            yield item
        await gate.wait_async()
        yield 1000

    async def source():
        async for item in burst():
            yield item

    chain = nbpipe.source(source)
    if kind == "flat_map":
        chain = nbpipe.source([0]).flat_map(burst)
    with chain.start() as run:
        assert finished(opened_by, run, 1000, gate) == list(range(1001))


def test_items_not_begun_of_a_slow_chunk_go_to_another_thread():
    """Items behind the slow one in its chunk run elsewhere where the limit allows it."""
    after = threading.Event()

    def wait(item):
        if item == 500 and not after.wait(HANG_S):
            raise TimeoutError
        if item > 500:
            after.set()
        return item

    assert drained(nbpipe.source(range(600)).map(wait, concurrency=2)) == list(range(600))


# -- 4: ordered stages: one limit for calls in progress, one bound for what waits ------------------
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_ordered_stage_keeps_limit_and_bound_while_its_first_call_runs(kind):
    """With the first call held, later ones run up to prefetch + concurrency results, no more."""
    first, calls = Gate(), Calls()
    fn = stage(kind, gate=lambda item: first if item == 0 else None, calls=calls)
    with nbpipe.source(range(100)).map(fn, concurrency=3, prefetch=4).start() as run:
        items = iter(run)
        calls.wait_begun(7)
        calls.wait_running(1)
        begun = calls.begun
        first.open()
        assert (begun, drained(items)) == (7, list(range(100)))
    assert calls.peak <= 3


# -- 5: shared threads -----------------------------------------------------------------------------
def test_threads_are_shared_and_bounded():
    """All stages together are served by no more threads than calls are allowed, and one."""
    calls = [Calls() for _ in range(4)]
    chain = nbpipe.source(range(500))
    for n, counted in enumerate(calls):
        chain = chain.map(stage("thread", calls=counted), concurrency=2, name=f"s{n}")
    got = drained(chain)
    assert got == list(range(500))
    assert len(set().union(*(counted.threads for counted in calls))) <= 2 * 4 + 1 + 1


# -- 7: many calls at once -------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_256_calls_are_in_progress_at_once(kind):
    """The limit is reached: 256 calls wait side by side, coroutines of them on one event loop."""
    gate, calls = Gate(), Calls()
    fn = stage(kind, gate=lambda _: gate, calls=calls)
    with nbpipe.source(range(600)).map(fn, concurrency=256).start() as run:
        before = threading.active_count()
        items = iter(run)
        calls.wait_running(256)
        more = threading.active_count() - before
        gate.open()
        assert drained(items) == list(range(600))
    assert calls.peak == 256
    assert kind == "thread" or more <= 5


def test_an_item_left_to_a_call_that_hangs_is_begun_by_another_thread():
    """A call that suddenly waits for the next item's gets it, though no thread comes back."""
    begun = [threading.Event() for _ in range(400)]

    def first(item):
        sum(range(4000))
        if item % 10 == 1 and item > 1:
            assert begun[item - 1].wait(HANG_S)  # no thread comes back here either
        return item

    def second(item):
        begun[item].set()
        sum(range(4000))
        if item % 10 == 9 and item < 399:
            assert begun[item + 1].wait(HANG_S)
        return item

    with nbpipe.source(range(400)).map(first).map(second, concurrency=2).start() as run:
        assert drained(run) == list(range(400))


# -- 8: the end of an epoch ------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 200])
def test_epochs_of_any_length_end(kind, count, ordered):
    """Empty, of one item, ended in mid-chunk or mid-batch: all items come, then the end."""
    fn = stage(kind)
    chain = nbpipe.source(lambda: iter(range(count)))
    chain = chain.map(fn, **options(kind, concurrency=2), ordered=ordered)
    with chain.batch(32, collate=list).start() as run:
        epochs = [sorted(i for batch in drained(run) for i in batch) for _ in range(3)]
    assert epochs == [list(range(count))] * 3


def test_end_wakes_a_consumer_that_waits():
    """A consumer that waits for an item hears that there is none."""
    gate = Gate()

    def items():
        gate.wait()
        return
        yield

    with nbpipe.source(items).start() as run, ThreadPoolExecutor(1) as pool:
        iterator = iter(run)
        got = pool.submit(drained, iterator)
        consumer_waits(iterator)
        gate.open()
        assert got.result() == []


# -- 10: all counters change under the lock --------------------------------------------------------
def test_counters_are_exact_with_many_threads(monkeypatch):
    """With threads that change places all the time, every item, error and retry is counted."""
    monkeypatch.setenv("NBPIPE_SWITCH_INTERVAL", "0.000001")
    tried = set()

    def work(item):
        if item % 3 == 0:
            raise ValueError(item)
        if item % 5 == 0 and item not in tried:
            tried.add(item)
            raise OSError(item)
        return item

    retry = nbpipe.Retry(1, then="skip")
    chain = nbpipe.source(range(6000)).map(work, concurrency=8, on_error=retry)
    chain = chain.filter(lambda item: item % 2, concurrency=4, name="odd")
    with chain.start() as run:
        got = drained(run)
        quiet(run)
        stats = run.stats()
    assert got == [n for n in range(6000) if n % 3 and n % 2]
    work_row, odd, consumer = stats["work"], stats["odd"], stats["consumer"]
    assert (work_row.items_in, work_row.items_out, work_row.errors) == (6000, 4000, 2000)
    assert work_row.retries == 2000 + len(tried)
    assert (odd.items_in, odd.items_out, consumer.items_out) == (4000, 2000, 2000)


# -- found on the way: a cheap last stage hands on without the lock --------------------------------
def test_lowered_prefetch_of_a_full_cheap_stage_does_not_strand_the_consumer():
    """A full buffer drains below the new bound, and the stage goes on."""
    chain = nbpipe.source(range(3000), prefetch=64).map(same, prefetch=100)
    with chain.start() as run:
        items = iter(run)
        got = finished(lambda: [next(items) for _ in range(1000)])
        quiet(run)
        run["same"].prefetch = 1
        assert got + drained(items) == list(range(3000))
