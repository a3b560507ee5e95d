"""The contract of everything that does work for a run: the same tests for each kind of stage."""

import asyncio
import contextlib
import functools
import itertools
import logging
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    held,
    in_force,
    quiet,
    seen_at_work,
    stage,
)

pytestmark = pytest.mark.timeout(120)  # the first test of a kind starts its executor
NEAR = ("thread", "coroutine", "inline")
AWAY = ("process", "pool", "loky", "dask", "cluster")
ISOLATED = ("isolated thread", "isolated coroutine", "isolated process")
KINDS = (*NEAR, "isolated inline", *AWAY, *ISOLATED)
OURS = ("thread", "coroutine", "process", "isolated thread")  # how a run itself calls
LIVE = ("thread", "coroutine", *AWAY, *ISOLATED)  # those with knobs of their own
HERE = ("thread", "coroutine", *AWAY)  # those whose engine is in this process
SMALL = ("pool", "loky", "dask", "cluster")  # they have few workers, and a call costs milliseconds
SLOW = (*SMALL, *ISOLATED)  # there a call, or what it tells the test, costs milliseconds
NOT_EVERYDAY = ("isolated process", "cluster", "loky")  # seconds to start
FRAMES = str(Path(nbpipe.__file__).parent / "")  # nbpipe's own files
EXECUTORS = {}
_ON_THE_WAY = 3  # results between a process of its own and the consumer


@pytest.fixture(scope="module")
def pools():
    """Keep what runs the stages of other kinds, from its first use to the end of the module."""
    with contextlib.ExitStack() as stack:
        yield stack
        EXECUTORS.clear()


@pytest.fixture(scope="module")
def kind(request, pools):
    """Give a kind of stage whose executor has started; skip it where its package is missing."""
    if request.param in STARTS and request.param not in EXECUTORS:
        EXECUTORS[request.param] = STARTS[request.param](pools)
    return request.param


def start_threads(stack):
    """Start a pool of threads that a user made."""
    pool, begun = stack.enter_context(ThreadPoolExecutor(6)), threading.Barrier(6)
    list(pool.map(lambda _: begun.wait(), range(6)))  # a thread starts with the first work
    return pool


def start_loky(stack):
    """Start a pool of loky, with all its processes."""
    loky = pytest.importorskip("loky")
    pool = stack.enter_context(loky.ProcessPoolExecutor(max_workers=6))
    list(pool.map(abs, range(6)))  # processes and threads start with the first work
    return pool


def start_dask(stack, *, processes):
    """Start Dask in this process, or with two workers in processes of their own."""
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        2 if processes else 1,
        processes=processes,
        threads_per_worker=8,
        dashboard_address=":0",
        silence_logs=logging.ERROR,
    )
    client = stack.enter_context(distributed.Client(stack.enter_context(cluster)))
    if not processes:
        client.gather(client.map(time.sleep, [0.1] * 8, pure=False))
    return client


STARTS = {
    "pool": start_threads,
    "loky": start_loky,
    "dask": functools.partial(start_dask, processes=False),
    "cluster": functools.partial(start_dask, processes=True),
}


def added(chain, kind, fn, *, method="map", name="work", ordered=True, on_error="raise", **knobs):
    """Append a stage of this kind; an inline one has no knobs."""
    word = kind.removeprefix("isolated ")
    if word == "inline":
        knobs = {}
    if word != "coroutine":
        knobs["executor"] = EXECUTORS.get(word, word)
    return getattr(chain, method)(fn, name=name, ordered=ordered, on_error=on_error, **knobs)


def started(chain, kind, **options):
    """Start a run, in a process of its own where the kind says so."""
    return chain.start(isolate=kind.startswith("isolated"), **options)


def source(count):
    """Begin a chain of numbers."""
    return nbpipe.source(range(count))


def few(count, kind, least=40):
    """Give a number of items that takes no time where a call costs milliseconds."""
    return max(least, count // 10) if kind in SLOW else count


def for_each(kinds):
    """Run a test for each kind of stage."""
    params = [pytest.param(kind, marks=marks_of(kind)) for kind in kinds]
    return pytest.mark.parametrize("kind", params, indirect=True)


def marks_of(kind):
    """Return `slow` for the kinds whose start takes seconds."""
    return pytest.mark.slow if kind in NOT_EVERYDAY else ()


def with_each(kinds, name, values):
    """Combine kinds and values; slow kinds have the last value alone."""
    pairs = [(kind, value) for kind in kinds for value in values]
    fast = [pair for pair in pairs if pair[0] not in SLOW or pair[1] == values[-1]]
    params = [pytest.param(*pair, marks=marks_of(pair[0])) for pair in fast]
    return pytest.mark.parametrize(("kind", name), params, indirect=["kind"])


@with_each(KINDS, "knobs", [(1, 1), (1, 8), (16, 16), (4, 1)])
def test_order(kind, knobs):
    """Items come in the order of the input, epoch after epoch."""
    concurrency, prefetch = knobs
    count = few(500, kind)
    chain = added(source(count), kind, stage(kind), concurrency=concurrency, prefetch=prefetch)
    with started(chain, kind) as run:
        assert [drained(run) for _ in range(2)] == [list(range(count))] * 2


@for_each(KINDS)
def test_completion_order(kind):
    """In completion order nothing is lost or doubled."""
    count = few(500, kind)
    chain = added(source(count), kind, stage(kind), ordered=False, concurrency=4)
    with started(chain, kind) as run:
        assert sorted(drained(run)) == list(range(count))


@for_each(KINDS)
def test_filter_and_flat_map(kind):
    """The contract holds for all three operations with a function, with a budget too."""
    kept = stage(kind, result=lambda item: item % 3)
    many = stage(kind, result=lambda item: [item] * (item % 4))
    chain = added(source(few(300, kind)), kind, kept, method="filter", name="keep", concurrency=3)
    chain = added(chain, kind, many, method="flat_map", concurrency=3)
    for memory in (None, "1 MB"):
        with started(chain, kind, memory=memory) as run:
            assert drained(run) == [n for n in range(few(300, kind)) if n % 3 for _ in range(n % 4)]


@for_each(LIVE)
def test_limit_goes_up_in_mid_epoch(kind):
    """A raised limit lets more calls begin at once, while all others are held."""
    gate, calls = Gate(), Calls()
    fn = stage(kind, gate=lambda _: gate, calls=calls)
    with started(added(source(100), kind, fn, concurrency=1), kind) as run:
        items = iter(run)
        seen = []
        limits = (1, 2, 4) if kind in SMALL else (1, 2, 7, 20)
        for limit in limits:
            run["work"].concurrency = limit
            calls.wait_running(limit)
            seen.append((calls.begun, calls.peak))
        gate.open()
        assert drained(items) == list(range(100))
    assert seen == [(limit, limit) for limit in limits]


@for_each(LIVE)
def test_limit_goes_down_in_mid_epoch(kind):
    """After the limit was lowered no call begins before enough others have ended."""
    gates, calls = [Gate() for _ in range(40)], Calls()
    fn = stage(kind, gate=lambda item: gates[item], calls=calls)
    with started(added(source(40), kind, fn, concurrency=6, prefetch=40), kind) as run:
        items = iter(run)
        calls.wait_running(6)
        run["work"].concurrency = 2
        in_force(run, "work", 2)
        begun = []
        for item in range(4):
            gates[item].open()
            calls.wait_running(5 - item)
            begun.append(calls.begun)
        calls.peak = 0
        for gate in gates[4:]:
            gate.open()
        assert drained(items) == list(range(40))
    assert (begun, calls.peak <= 2) == ([6, 6, 6, 6], True)


@with_each(LIVE, "ordered", [False, True])
def test_never_above_the_limit(kind, ordered):
    """However fast calls end, no more are in progress than allowed."""
    calls, count = Calls(), few(3000, kind)
    fn = stage(kind, calls=calls)
    with started(added(source(count), kind, fn, concurrency=3, ordered=ordered), kind) as run:
        assert sorted(drained(run)) == list(range(count))
    assert calls.peak <= 3


@with_each(LIVE, "knobs", [(1, 1), (3, 2), (2, 7)])
def test_backpressure(kind, knobs):
    """With no consumer, prefetch + concurrency calls begin and not one more.

    From a process of its own, a few results are on their way besides. Where short calls are sent
    together, so many count as one.
    """
    concurrency, prefetch = knobs
    calls = Calls()
    fn = stage(kind, calls=calls)
    chain = added(source(200), kind, fn, concurrency=concurrency, prefetch=prefetch)
    with started(chain, kind) as run:
        items = iter(run)
        calls.wait_begun(prefetch + concurrency)
        quiet(run)
        held = calls.begun
        got = drained(items)
    away = _ON_THE_WAY if kind.startswith("isolated") else 0
    call = 2 * prefetch**3 if kind.split()[-1] in AWAY else 1
    assert got == list(range(200))
    assert prefetch + concurrency <= held <= prefetch + concurrency * call + away


def test_backpressure_of_an_inline_stage():
    """An inline stage holds nothing itself: the source's bound counts."""
    calls = Calls()
    chain = nbpipe.source(range(200), prefetch=5)
    with added(chain, "inline", stage("inline", calls=calls)).start() as run:
        items = iter(run)
        calls.wait_begun(6)
        quiet(run)
        held = calls.begun
        got = drained(items)
    assert (held, got) == (6, list(range(200)))


@for_each(HERE)
def test_lowered_prefetch_adds_nothing(kind):
    """Held results may exceed a lowered bound until they drain; nothing is added meanwhile."""
    calls = Calls()
    with started(added(source(1400), kind, stage(kind, calls=calls), prefetch=30), kind) as run:
        items = iter(run)
        calls.wait_begun(31)
        quiet(run)
        run["work"].prefetch = 2
        held = calls.begun  # cheap calls in threads may have come in a chunk
        begun = []
        for _ in range(held - 3):  # with 3 left, the bound is reached
            next(items)
            begun.append(calls.begun)
        quiet(run)
        assert 31 <= held <= 30 + 1024
        assert begun == [held] * (held - 3)
        assert calls.begun == held
        assert drained(items) == list(range(held - 3, 1400))


@for_each(KINDS)
def test_exception_of_the_user(kind):
    """It ends the epoch behind all items before it, as the cause of an error that says where."""

    def result(item):
        return 10 // (item - 60)

    with started(added(source(100), kind, stage(kind, result=result), concurrency=3), kind) as run:
        outcomes = [delivered(run) for _ in range(2)]
        kept = run.failures()
    word = kind.removeprefix("isolated ")
    word = {"pool": "executor", "loky": "executor", "cluster": "dask"}.get(word, word)
    with pytest.raises(ZeroDivisionError) as raised:
        result(60)
    why = f"ZeroDivisionError: {raised.value}"
    for epoch, (got, error) in enumerate(outcomes):
        frame = traceback.extract_tb(error.__cause__.__traceback__)[-1]
        assert (got, type(error.__cause__)) == (list(map(result, range(60))), ZeroDivisionError)
        assert (error.stage, error.path, error.executor) == ("work", 60, word)
        assert str(error) == f"stage 'work' failed on item 60: {why}"
        note = f"stage 'work', item 60, epoch {epoch}, executor {word}, input: int 60"
        assert error.__notes__ == [note]
        assert (frame.name, frame.line) == ("result", "return 10 // (item - 60)")
        assert "".join(traceback.format_exception(error)).count("in result") == 1
    assert [(one.stage, one.path, one.epoch, one.attempts, one.error) for one in kept] == [
        ("work", 60, epoch, 1, why) for epoch in range(2)
    ]
    assert all("in result" in one.traceback for one in kept)
    assert not any(FRAMES in one.traceback for one in kept)


@with_each((*NEAR, "isolated thread"), "count", [0, 1, 33, 200])
def test_a_source_that_fails(kind, count):
    """It ends the epoch, at once or later, behind the items that it gave; the run can go on."""

    def items():
        yield from range(count)
        raise OSError("no more disk")

    with started(added(nbpipe.source(items), kind, stage(kind)), kind) as run:
        outcomes = [delivered(run) for _ in range(2)]
    assert [got for got, _ in outcomes] == [list(range(count))] * 2
    assert [(error.stage, type(error.__cause__)) for _, error in outcomes] == [
        ("source", OSError)
    ] * 2


@with_each(KINDS, "ordered", [False, True])
def test_items_that_are_skipped(kind, ordered):
    """Tried as often as was said, they are left out, counted and remembered, also when closed."""
    bad, count = {0, 5, 6, 38, 39}, few(200, kind)

    def result(item):
        if item in bad:
            raise ValueError(f"no {item}")
        return item

    fn, retry = stage(kind, result=result), nbpipe.Retry(2, then="skip")
    chain = added(source(count), kind, fn, ordered=ordered, on_error=retry, concurrency=3)
    with started(chain, kind) as run:
        got = drained(run)
        row, kept = run.stats()["work"], run.failures()
    assert (got if ordered else sorted(got)) == [n for n in range(count) if n not in bad]
    assert (row.items_in, row.items_out, row.errors, row.retries) == (count, count - 5, 5, 10)
    assert {(one.path, one.attempts, one.error) for one in kept} == {
        (n, 3, f"ValueError: no {n}") for n in bad
    }
    assert run.failures() == kept


@pytest.mark.parametrize("on_error", ["raise", nbpipe.Retry(2, then="skip")])
@pytest.mark.parametrize(
    "error",
    [
        *(KeyboardInterrupt, SystemExit, GeneratorExit, BaseException, asyncio.CancelledError),
        *(StopIteration, StopAsyncIteration, ValueError),
    ],
)
@pytest.mark.parametrize(
    ("kind", "method"),
    [*itertools.product(NEAR, ("map", "filter", "flat_map")), ("process", "map")],
    indirect=["kind"],
)
def test_exceptions_that_mean_something_elsewhere(kind, method, error, on_error):
    """What ends a process, a loop or a stream ends none here: it is the failure of its item.

    What is no `Exception` ends the epoch, whatever `on_error`, and is not tried again.
    """
    calls = Calls()

    def result(item):
        if item == 2:
            raise error("stop")
        return [item]

    fn = stage(kind, result=result, calls=calls)
    with started(added(source(4), kind, fn, method=method, on_error=on_error), kind) as run:
        got, raised = delivered(run)
    if on_error != "raise" and issubclass(error, Exception):
        assert (raised, len(got), calls.of[2]) == (None, 3, 3)
    else:
        assert (type(raised), raised.path, len(got), calls.of[2]) == (nbpipe.StageError, 2, 2, 1)
        by_python = [RuntimeError] if kind == "coroutine" and "Stop" in error.__name__ else []
        assert type(raised.__cause__) in [error, *by_python]


@for_each(KINDS)
def test_random_numbers_are_those_of_threads(kind):
    """The generator of an item depends on the item and the epoch alone, wherever it draws."""

    def draw(item, rng):
        return item, int(rng.integers(1 << 30))

    async def draw_in_loop(item, rng):
        return draw(item, rng)

    found = []
    for one in ("thread", kind):
        fn = draw_in_loop if one.endswith("coroutine") else draw
        with started(added(nbpipe.source([0] * 40), one, fn, concurrency=4), one) as run:
            found.append([drained(run) for _ in range(2)])
    assert found[0] == found[1]
    assert len({number for epoch in found[1] for _, number in epoch}) == 80


@with_each(KINDS, "taken", [0, 1, 50])
def test_cancel_in_mid_epoch(kind, taken):
    """After `break` the next epoch is whole: no leftover, nothing missing."""
    calls = Calls()
    with started(added(source(200), kind, stage(kind, calls=calls), concurrency=4), kind) as run:
        for _ in range(few(10, kind, least=2)):
            items = iter(run)
            got = finished(lambda items=items: [next(items) for _ in range(taken)])
            assert got == list(range(taken))
            items.close()
        assert drained(run) == list(range(200))


@for_each(HERE)
def test_cancel_with_calls_in_progress(kind):
    """Calls of a cancelled epoch count against the limit until they end; nothing of them shows."""
    gate, calls = Gate(), Calls()
    epoch = []
    fn = stage(kind, gate=lambda _: gate if len(epoch) == 1 else None, calls=calls)
    with started(added(source(50), kind, fn, concurrency=3), kind) as run:
        epoch.append(1)
        items = iter(run)
        calls.wait_running(3)
        epoch.append(2)
        new = iter(run)
        items.close()
        gate.open()
        assert drained(new) == list(range(50))
    assert calls.peak <= 3


def test_cancelled_calls_take_none_of_the_next_epoch_with_them():
    """A call that begins in the next epoch is not cancelled with those of the last one."""
    held, go, drawn, epoch = threading.Event(), threading.Event(), threading.Event(), []

    async def work(item):
        if len(epoch) == 1 and item == 1:
            held.set()
            go.wait(HANG_S)  # holds up the event loop itself
        elif len(epoch) == 2:
            await asyncio.sleep(0)
        return item

    def items():
        for item in range(20):
            if len(epoch) == 2 and item == 5:
                drawn.set()
            yield item

    chain = nbpipe.source(items).map(work, concurrency=2, prefetch=4)
    for _ in range(5):
        for event in (held, go, drawn):
            event.clear()
        epoch[:] = [1]
        with chain.start() as run:
            old = iter(run)
            assert held.wait(HANG_S)
            epoch.append(2)
            new = iter(run)
            assert drawn.wait(HANG_S)
            go.set()
            assert drained(new) == list(range(20))
            old.close()


def test_dropping_an_old_iterator_cancels_nothing_of_the_new_epoch():
    """`it = iter(run)` twice: the first is dropped after the second epoch has begun."""
    gate, calls = Gate(), Calls()
    fn = stage("coroutine", gate=lambda _: gate, calls=calls)
    with source(30).map(fn, concurrency=4).start() as run:
        items = iter(run)
        calls.wait_running(4)
        new = iter(run)
        calls.wait_begun(8)
        del items
        gate.open()  # after what would be cancelled by it: the event loop keeps the order
        assert drained(new) == list(range(30))


@for_each(HERE)
def test_busy_time_of_a_cancelled_call_that_never_began(kind):
    """A call that was handed over but cancelled before it began counts no time."""
    gate, calls = Gate(), Calls()
    fn = stage(kind, gate=lambda item: gate if item == 0 else None, calls=calls)
    begun_ns = time.perf_counter_ns()
    with started(added(source(20), kind, fn, concurrency=4), kind) as run:
        items = iter(run)
        calls.wait_begun(1)
        items.close()
        gate.open()
        quiet(run)
        busy_ns = run._core.life.scheduler.runtimes["work"].counters.busy_ns
    # The clock's own value, booked by mistake, is the machine's uptime.
    assert busy_ns <= 4 * (time.perf_counter_ns() - begun_ns)


@for_each(KINDS)
def test_the_oldest_call_and_its_item_are_known(kind):
    """Stats say how long the oldest call has been running, and which item it works on."""
    gate = Gate()
    fn = stage(kind, gate=lambda item: gate if item == 3 else None)
    with started(added(source(9), kind, fn, concurrency=2), kind) as run:
        got = threading.Thread(target=drained, args=(run,), daemon=True)
        got.start()
        row = held(run, "work", 3)["work"]
        later = run.stats()["work"].oldest_s
        gate.open()
        got.join()
        after = run.stats()["work"]
    assert 0 < row.oldest_s <= later
    assert (after.oldest_s, after.oldest_item) == (0.0, "")


@for_each(OURS)
def test_pause_lets_no_call_begin(kind):
    """Paused, calls in progress end and no other begins; resumed, everything goes on."""
    gates, calls = [Gate() for _ in range(20)], Calls()
    fn = stage(kind, gate=lambda item: gates[item], calls=calls)
    with started(added(source(20), kind, fn, concurrency=2), kind) as run:
        items = iter(run)
        calls.wait_running(2)
        run.pause()
        for gate in gates:
            gate.open()
        calls.wait_running(0)
        quiet(run)
        begun, state = calls.begun, run.status().state
        run.resume()
        assert (begun, state, drained(items)) == (2, "paused", list(range(20)))


@for_each(OURS)
def test_pause_before_the_first_epoch(kind):
    """A run paused from the start begins when it is resumed."""
    calls = Calls()
    with started(added(source(5), kind, stage(kind, calls=calls)), kind) as run:
        run.pause()
        items = iter(run)
        quiet(run)
        begun = calls.begun
        run.resume()
        assert (begun, drained(items)) == (0, list(range(5)))


@for_each(OURS)
@pytest.mark.parametrize("paused", [False, True])
def test_stop_ends_the_epoch_as_if_it_were_exhausted(kind, paused):
    """A consumer that waits hears the end; the next epoch is whole and not stopped."""
    gate, calls = Gate(), Calls()
    fn = stage(kind, gate=lambda _: gate, calls=calls)
    with started(added(source(20), kind, fn), kind) as run, ThreadPoolExecutor(1) as pool:
        items = iter(run)
        calls.wait_running(1)
        if paused:
            run.pause()
        loop = pool.submit(drained, items)
        consumer_waits(items)
        run.stop()
        got, stopped = loop.result(), run.stopped
        gate.open()
        if paused:
            run.resume()
        assert (got, stopped, drained(run), run.stopped) == ([], True, list(range(20)), False)


@for_each(["thread", "coroutine", "process", "pool", "loky", *ISOLATED])
def test_close_names_the_stage_that_does_not_end(kind, caplog):
    """A stage still inside user code is named; a thread is left alone, a process killed.

    What a Dask cluster does for a run that is closed nobody waits for.
    """
    held, go = Gate(), Gate()

    def result(item):
        held.open()
        go.wait()

    run = started(added(source(5), kind, stage(kind, result=result)), kind)
    items = iter(run)
    held.wait()
    with caplog.at_level(logging.WARNING, logger="nbpipe"):
        run.close(timeout_s=0.05)
    go.open()
    del items
    assert "work" in " ".join(record.getMessage() for record in caplog.records)


@for_each(LIVE)
def test_close_in_mid_epoch_ends_the_iterator(kind):
    """Closing from another thread ends the loop that waits."""
    gate, calls = Gate(), Calls()
    fn = stage(kind, gate=lambda _: gate, calls=calls)
    run = started(added(source(5), kind, fn), kind)
    items = iter(run)
    calls.wait_running(1)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(drained, items)
        consumer_waits(items)
        run.pause()
        gate.open()
        run.close()
        assert got.result() == []


@for_each(LIVE)
def test_coroutines_of_a_cancelled_epoch_are_cancelled(kind):
    """Breaking off does not wait for calls; a coroutine is cancelled where it awaits."""
    gate, calls = Gate(), Calls()
    fn = stage(kind, gate=lambda _: gate, calls=calls)
    with started(added(source(5), kind, fn, concurrency=2), kind) as run:
        items = iter(run)
        calls.wait_running(2)
        seen_at_work(run, "work")
        items.close()
        run.stats()  # another process has heard of the close when it answers
        if not kind.endswith("coroutine"):
            gate.open()
        calls.wait_running(0)
        assert calls.begun == 2
    gate.open()  # a cancelled call in another process still waits for it, in a thread of this one
