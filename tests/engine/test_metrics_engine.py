"""The numbers of a run say the truth. Time passes on a clock that the tests set forward."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter_ns
from types import SimpleNamespace

import numpy as np
import pytest

import nbpipe
from tests.engine.inner import SAMPLE_NS, TICKS_KEPT, Consumer, RunRecord, gil, node, program
from tests.gates import (
    HANG_S,
    Calls,
    Gate,
    consumer_waits,
    drained,
    finished,
    held,
    quiet,
    set_clock,
    stage,
    until,
)
from tests.inner import holds_lock

LATER_S = 1000  # beside it, the time that a test takes is nothing
FIELDS = ("busy", "starved", "blocked", "waiting")


def later(run):
    """Give the stats as they are when nothing changes for a long time.

    Why slots are idle is noted at the latest when the ticker falls asleep, some 10 ms later.
    """
    ticker = run._core.life.scheduler.ticker

    until(lambda: ticker.asleep)
    now_ns = perf_counter_ns() + LATER_S * 10**9
    rows = run._core.life.engine.epochs.rows.stats(now_ns)
    rows["consumer"] = run._core.record.consumer.stats(now_ns)
    return rows


def shares(row):
    """Give busy, starved, blocked and waiting, rounded to hundredths."""
    return tuple(round(getattr(row, name), 2) for name in FIELDS)


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_call_in_progress_is_busy_and_idle_slots_starve(kind):
    """Three calls in progress and one slot without input: three quarters busy, one starved."""
    gate, calls = Gate(), Calls()
    fn = stage(kind, gate=lambda _: gate, calls=calls)
    with nbpipe.source(range(3)).map(fn, concurrency=4, name="w").start() as run:
        items = iter(run)
        calls.wait_running(3)
        row = later(run)["w"]
        gate.open()
        assert (shares(row), row.running) == ((0.75, 0.25, 0, 0), 3)
        assert drained(items) == [0, 1, 2]


def test_full_buffer_is_blocked_and_the_consumer_busy():
    """With nobody taking items every stage is blocked, and the training loop busy."""
    chain = nbpipe.source(range(500)).map(lambda n: n, name="a").map(lambda n: n, name="b")
    with chain.start() as run:
        items = iter(run)
        finished(next, items)
        quiet(run)
        rows = later(run)
        assert [shares(rows[name]) for name in ("source", "a", "b")] == [(0, 0, 1, 0)] * 3
        assert shares(rows["consumer"]) == (1, 0, 0, 0)
        most = 9 + 64  # at most a chunk on top of what was just not full
        assert 9 <= rows["b"].queued <= most
        assert 9 <= rows["source"].queued <= most


def test_slow_source_starves_all_stages_and_the_consumer():
    """With the source inside its iterator, it alone is busy; the wait is the consumer's."""
    gate, inside = Gate(), threading.Event()

    def slow():
        inside.set()
        gate.wait()
        yield 1

    chain = nbpipe.source(slow).map(lambda n: n, name="a", concurrency=4)
    with chain.start() as run:
        items = iter(run)
        got = []
        consumer = threading.Thread(target=lambda: got.extend(items))
        consumer.start()
        assert inside.wait(HANG_S)
        consumer_waits(items)
        rows = later(run)
        gate.open()
        consumer.join()
    assert [shares(rows[name]) for name in ("source", "a", "consumer")] == [
        (1, 0, 0, 0),
        (0, 1, 0, 0),
        (0, 1, 0, 0),
    ]


def test_paused_run_waits():
    """Paused, a stage with input and room is waiting; one without input starves."""
    gate, calls = Gate(), Calls()
    fn = stage("thread", gate=lambda _: gate, calls=calls)
    chain = nbpipe.source(range(500)).map(fn, name="a", prefetch=50).map(lambda n: n, name="b")
    with chain.start() as run:
        items = iter(run)
        calls.wait_running(1)
        until(lambda: run.stats()["source"].queued > 0)
        run.pause()
        gate.open()
        quiet(run)
        rows = later(run)
        run.resume()
        assert shares(rows["a"]) == (0, 0, 0, 1)
        assert shares(rows["b"])[0] == 0
        assert drained(items) == list(range(500))


def test_run_that_goes_on_is_not_judged_by_its_pause(monkeypatch):
    """After a pause of an hour, rates and shares are of the time since then, not of the pause."""
    paused_s = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + paused_s[0] * 10**9)
    with nbpipe.source(range(500)).map(int, name="m", prefetch=1).start() as run:
        items = iter(run)
        finished(next, items)
        before = run.status().since_pause_s
        run.pause()
        quiet(run)
        paused_s[0] = 3600
        assert run.stats()["m"].items_per_s < 1
        run.resume()
        assert [finished(next, items) for _ in range(400)] == list(range(1, 401))
        status, rows = run.status(), run.stats()
        assert drained(items) == list(range(401, 500))
    assert (before, 0 < status.since_pause_s < status.elapsed_s) == (None, True)
    for row in rows.values():
        assert row.items_per_s > 10 * 400 / 3600
        assert row.waiting < 0.99


def test_mean_rates_leave_out_pauses(monkeypatch):
    """In a pause of an hour, and behind it, the mean is that of the time in which the run ran."""
    paused_s = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + paused_s[0] * 10**9)
    slow = 500 / 3600  # items in a second, were the hour counted
    seen = []
    with nbpipe.source(range(500)).map(int, name="m").start() as run:
        items = iter(run)
        assert [finished(next, items) for _ in range(100)] == list(range(100))
        run.pause()
        quiet(run)
        paused_s[0] = 3600
        seen.append(run.stats())
        run.resume()
        assert drained(items) == list(range(100, 500))
        seen.append(run.stats())
    assert min(row.mean_per_s for rows in seen for row in rows.values()) > 10 * slow


def test_sums_of_slot_time_leave_out_pauses(monkeypatch):
    """The time in each state is summed over all epochs, without a pause of an hour in each."""
    paused_s = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + paused_s[0] * 10**9)
    seen = []
    with nbpipe.source(range(500)).map(int, name="m", concurrency=2).start() as run:
        for epoch in range(2):
            items = iter(run)
            next(items)
            run.pause()
            quiet(run)
            paused_s[0] += 3600
            run.stats()
            if epoch:
                break  # an epoch may end in its pause
            run.resume()
            drained(items)
            seen.append(run.stats())
        items.close()
        seen.append(run.stats())
    for before, after in zip(seen[0].values(), seen[1].values(), strict=True):
        parts = ("busy_s", "starved_s", "blocked_s", "slot_s")
        assert all(getattr(before, part) <= getattr(after, part) < 100 for part in parts)
        assert after.busy_s + after.starved_s + after.blocked_s <= after.slot_s + 1e-6
    assert seen[1]["m"].busy_s > 0
    assert seen[1]["consumer"].slot_s > 0


def test_history_leaves_out_a_pause(monkeypatch):
    """The first rows behind a pause of an hour say so, and are of the time since then."""
    moved_s = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + moved_s[0] * 10**9)
    with nbpipe.source(range(100)).map(int).start() as run:
        items = iter(run)
        next(items)
        run.pause()
        moved_s[0] += 3600
        run.resume()
        for _ in range(50):
            next(items)
        moved_s[0] += 2  # a row is due
        assert len(list(items)) == 49
        rows = [row for row in run.history() if row["stage"] == "consumer"]
    behind = [row for row in rows if row["paused"]]
    assert (len(behind), behind[0]["items_per_s"] > 1) == (1, True)


def test_a_long_history_is_thinned(monkeypatch):
    """Of half an hour the last minutes have all their rows, those before fewer and fewer."""
    past_s = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + past_s[0] * 10**9)

    def work(item):
        past_s[0] += 1
        return item

    with nbpipe.source(range(1800)).map(work).start() as run:
        assert finished(drained, run) == list(range(1800))
        times = [row["time_s"] for row in run.history() if row["stage"] == "consumer"]
    early = [time_s for time_s in times if time_s < times[-1] / 2]
    assert (len(times) <= TICKS_KEPT, len(early) < len(times) / 4) == (True, True)
    assert times == sorted({*times})
    assert times[-1] - times[0] > 1700


@pytest.mark.parametrize("goes_on", [False, True])
def test_run_that_ends_with_its_pause_keeps_its_rates(monkeypatch, goes_on):
    """Who pauses a run, and stops it an hour later, sees what it did before the pause."""
    paused_s = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + paused_s[0] * 10**9)
    with nbpipe.source(range(10**6)).map(int, name="m").start() as run:
        items = iter(run)
        assert [finished(next, items) for _ in range(400)] == list(range(400))
        run.pause()
        quiet(run)
        paused_s[0] = 3600
        if goes_on:
            run.resume()
        run.stop()
        assert drained(items) == []
        rows = run.stats()
    for name, row in rows.items():
        assert row.items_per_s > 10 * 400 / 3600, name
        assert row.waiting < 0.99, name


def test_loop_of_a_paused_run_does_not_wait(monkeypatch):
    """A wait of 5 hours, of which the run was paused for 3, counts 2; a second pause is none."""
    hours = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + hours[0] * 3600 * 10**9)
    gate = Gate()
    with nbpipe.source([1]).map(stage("thread", gate=lambda _: gate)).start() as run:
        items, got = iter(run), []
        loop = threading.Thread(target=lambda: got.extend(items))
        loop.start()
        consumer_waits(items)
        hours[0] += 1
        run.pause()
        hours[0] += 1
        run.pause()
        hours[0] += 2
        during = run.status().waited_s
        run.resume()
        hours[0] += 1
        gate.open()
        loop.join()
        after = run.status().waited_s
    assert (got, round(during / 3600), round(after / 3600)) == ([1], 1, 2)


def test_busy_of_an_inline_stage():
    """A fused stage that does all the work of a run is busy, not half of it starved."""
    spent_ns = []

    def work(item):
        begun_ns = perf_counter_ns()
        sum(range(10_000))
        spent_ns.append(perf_counter_ns() - begun_ns)
        return item

    begun_ns = perf_counter_ns()
    chain = nbpipe.source(range(100)).map(work, executor="inline", name="work")
    with chain.start() as run:
        drained(run)
        run.stats()
        counters = run._core.life.scheduler.runtimes["work"].counters
    assert counters.busy_ns >= sum(spent_ns)
    assert 0 < counters.slot_ns <= perf_counter_ns() - begun_ns


def is_odd(number):
    """Return whether a number is odd."""
    return number % 2 == 1


def same(chain):
    """Leave a branch as it is."""
    return chain


def torn(number):
    """Fail on every third number."""
    if number % 3 == 0:
        raise ValueError(number)
    return number


@pytest.mark.parametrize(
    ("grow", "counts"),
    [
        (lambda pipe: pipe.filter(is_odd, executor="inline"), {"is_odd": (10, 5)}),
        (
            lambda pipe: pipe.filter(is_odd).flat_map(lambda n: [n] * 2, name="m").batch(8),
            {"is_odd": (10, 5), "m": (5, 10), "batch": (10, 2)},
        ),
        (
            lambda pipe: pipe.map(abs).map(torn, executor="inline", on_error="skip"),
            {"abs": (10, 10), "torn": (10, 6)},
        ),
        (
            lambda pipe: (
                pipe.filter(bool)
                .filter(is_odd, executor="inline")
                .map(torn, executor="inline", on_error="skip")
            ),
            {"bool": (10, 9), "is_odd": (9, 5), "torn": (5, 3)},
        ),
        (lambda pipe: pipe.shuffle(buffer_size=4), {"shuffle": (10, 10)}),
        (lambda pipe: pipe.batch(3, cost=lambda number: 1), {"batch": (10, 4)}),
        (lambda pipe: pipe.window(3, 2), {"window": (10, 4)}),
        (lambda pipe: pipe.map(str).repeat(2), {"str": (20, 20), "repeat": (20, 20)}),
        (
            lambda pipe: pipe.route(is_odd, {True: lambda chain: chain.map(str), False: same}),
            {"str@True": (5, 5), "route": (10, 10)},
        ),
    ],
)
@pytest.mark.parametrize("memory", [None, "1 MB"])
def test_each_item_is_counted_once_in_each_row(grow, counts, memory):
    """A stage counts what it is given and what it hands on, in the order of the pipeline."""
    pipe = grow(nbpipe.source(range(10)))
    with pipe.start(memory=memory) as run:
        list(run)
        rows = run.stats()
    given = 20 if "repeat" in counts else 10
    found = {name: (row.items_in, row.items_out) for name, row in rows.items()}
    handed_on = [*counts.values()][-1][1]
    assert list(found.items()) == [
        ("source", (given, given)),
        *counts.items(),
        ("consumer", (handed_on, handed_on)),
    ]


def test_bytes_and_latency():
    """Bytes are those of the results; latencies are of single calls and in order."""
    with nbpipe.source(range(200)).map(lambda n: np.zeros(1000), name="a").start() as run:
        drained(run)
        row = run.stats()["a"]
    assert row.bytes_out == pytest.approx(200 * 8000, rel=0.05)
    assert 0 < row.latency_p50_s <= row.latency_p95_s <= row.latency_p99_s


class Work:
    """A function that takes time, computes and waits for a core, on clocks of its own [ns]."""

    def __init__(self, time_ns, cpu_ns, wanted_ns=0):
        self.now_ns = self.spent_ns = self.lacked_ns = 0
        self.time_ns, self.cpu_ns, self.wanted_ns = time_ns, cpu_ns, wanted_ns

    def __call__(self, item):
        self.now_ns += self.time_ns
        self.spent_ns += self.cpu_ns
        self.lacked_ns += self.wanted_ns
        return item


@pytest.mark.parametrize("module", [node, program])
@pytest.mark.parametrize("more", [1, 2])
@pytest.mark.parametrize(
    ("work", "share"),
    [
        (Work(4_000, 3_000), 0.75),
        (Work(8_000, 3_000, 4_000), 0.75),  # on a machine that is full: the same calls
        (Work(8_000, 0, 4_000), 0.0),  # it sleeps, and wakes up late
    ],
)
def test_share_of_calls_that_compute(monkeypatch, module, more, work, share):
    """It is measured where the calls are made; of stages that run together in the first row."""
    here = module is node
    monkeypatch.setattr(module, "perf_counter_ns", lambda: work.now_ns)
    monkeypatch.setattr(module, "core_times_ns", lambda: (work.spent_ns, work.lacked_ns))
    monkeypatch.setattr(module, "switches", lambda: gil.Switches(0, 0))
    with ThreadPoolExecutor(1) as pool:
        chain = nbpipe.source(range(9)).map(work, name="w", executor="thread" if here else pool)
        if more > 1:
            chain = chain.map(Work(0, 0), name="more", executor="inline" if here else pool)
        with chain.start() as run:
            assert list(run) == list(range(9))
            rows = run.stats()
    assert (rows["w"].cpu_share, rows["consumer"].cpu_share) == (share, None)
    assert rows["w"].cpu_share_p50 == share
    assert more == 1 or rows["more"].cpu_share is None


@pytest.mark.parametrize(
    ("slept", "interval_s", "shares"),
    [
        (30, 0.0002, (1.0, 0.75)),  # a thread that waits for the lock asks for it again and again
        (1, 0.0002, (3 / 11.7, 0.025)),  # one that waits for a disk does not
        (0, 0.0002, (0.25, 0.0)),
        (30, 0.005, (0.25, None)),  # it may do so where the interval is long
    ],
)
@pytest.mark.parametrize("module", [node, program])
def test_waits_for_the_lock_are_no_other_waits(monkeypatch, module, slept, interval_s, shares):
    """They are told apart by how often a thread wakes up, and count as neither part of a call."""
    work, counts, here = Work(12_000_000, 3_000_000), itertools.count(0, slept), module is node
    monkeypatch.setattr(module, "perf_counter_ns", lambda: work.now_ns)
    monkeypatch.setattr(module, "core_times_ns", lambda: (work.spent_ns, work.lacked_ns))
    monkeypatch.setattr(module, "switches", lambda: gil.Switches(next(counts), 0))
    monkeypatch.setattr(gil, "COUNTS_SWITCHES", True)
    monkeypatch.setattr(gil, "is_locked", lambda: True)
    interval = SimpleNamespace(getswitchinterval=lambda: interval_s)
    monkeypatch.setattr(gil, "sys", interval)
    with ThreadPoolExecutor(1) as pool:
        chain = nbpipe.source(range(9)).map(work, name="w", executor="thread" if here else pool)
        with chain.start() as run:
            assert list(run) == list(range(9))
            found = run.stats()["w"]
    share = shares[1] if here else None  # in the row of threads of the run alone
    assert (found.cpu_share, found.lock_share) == pytest.approx((shares[0], share))


@pytest.mark.parametrize(("idle_ns", "idle"), [(100_000_000, 0.4), (None, None)])
def test_cores_of_the_last_seconds(monkeypatch, idle_ns, idle):
    """What the process uses of them, and how many are idle, where that is known; not at once."""
    now = iter(range(1, 100))
    set_clock(monkeypatch, lambda: next(now) * SAMPLE_NS // 2, "process_time_ns")
    spare = (n and n * idle_ns for n in range(1, 100)) if idle_ns else itertools.repeat(None)
    set_clock(monkeypatch, lambda: next(spare), "own_idle_ns")
    record = RunRecord()
    told = []
    for sample in range(30):
        record.sample(sample * SAMPLE_NS, 0, (), last=False)
        told.append((record.cpu_cores, record.idle_cores))
    assert (told[2], told[3], told[-1]) == ((None, None), (0.5, idle), (0.5, idle))


def test_share_of_calls_that_compute_in_processes():
    """Workers measure it, too; a coroutine has none, as its calls take turns in one thread."""
    chain = nbpipe.source(range(9)).map(stage("process"), name="far", executor="process")
    with chain.map(stage("coroutine"), name="near").start() as run:
        assert list(run) == list(range(9))
        rows = run.stats()
    assert (0 <= rows["far"].cpu_share <= 1, rows["near"].cpu_share) == (True, None)


def test_history_has_a_row_for_each_stage_and_the_consumer():
    """Rows say when, which epoch and stage; they are plain values."""
    with nbpipe.source(range(50_000)).map(lambda n: n, name="a").start() as run:
        drained(run)
        rows = run.history()
    assert {row["stage"] for row in rows} == {"source", "a", "consumer"}
    assert {type(value) for row in rows for value in row.values()} <= {int, float, str}


def held_source(gate):
    """Give a chain whose source hangs before its third item."""

    def items():
        yield from (0, 1)
        gate.wait()
        yield 2

    return nbpipe.source(items, name="held")


def held_inline(gate):
    """Give a chain with an inline stage that hangs, fused with the one before it."""
    chain = nbpipe.source(range(5)).map(lambda n: n, name="above")
    return chain.map(
        stage("thread", gate=lambda n: gate if n == 2 else None), executor="inline", name="held"
    )


def held_expansion(gate):
    """Give a chain with a stage that hangs between the children of an item."""

    def expand(n):
        yield n
        if n == 2:
            gate.wait()

    return nbpipe.source(range(5)).flat_map(expand, name="held")


def held_stream(gate):
    """Give a chain with a stage that sees the items one after the other."""
    cost = stage("thread", gate=lambda n: gate if n == 2 else None)
    return nbpipe.source(range(5)).batch(9, cost=cost, collate=list, name="held")


@pytest.mark.parametrize("chain", [held_source, held_inline, held_expansion, held_stream])
def test_oldest_call_is_named_in_every_kind_of_stage(chain):
    """The row of the stage that a call hangs in, and no other, says on which item it is."""
    gate = Gate()
    with chain(gate).start() as run:
        reader = threading.Thread(target=drained, args=(run,), daemon=True)
        reader.start()
        rows = held(run, "held", 2)
        gate.open()
        reader.join()
    assert (rows["held"].oldest_item, rows["held"].oldest_s > 0) == ("2", True)


# -- an epoch that is over -------------------------------------------------------------------------
def test_stats_of_a_finished_epoch_do_not_change():
    """What is turned later changes the limits that stand beside the counts, and nothing else."""
    with nbpipe.source(range(50)).map(int, name="m").start() as run:
        assert drained(run) == list(range(50))
        quiet(run)
        before = run.stats()
        for value in (8, 1, 200):
            run["m"].concurrency = value
            after = run.stats()
            rows = {
                name: replace(row, concurrency=before[name].concurrency)
                for name, row in after.items()
            }
            assert rows == dict(before)
            assert after["m"].concurrency == value
        assert drained(run) == list(range(50))
        assert run.stats()["m"].items_out == 100


def test_rates_leave_out_the_time_between_epochs(monkeypatch):
    """Who looks at the first epoch for an hour before he runs the next sees the rate of that."""
    idle_s = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + idle_s[0] * 10**9)
    with nbpipe.source(range(50)).map(int, name="m").start() as run:
        rows = []
        for _ in range(2):
            assert drained(run) == list(range(50))
            rows.append(run.stats())
            run["m"].prefetch += 1  # to turn a knob reads the clock
            idle_s[0] += 3600
    slow = 100 / 3600  # items in a second, were the hour counted
    for row in rows[1].values():
        assert row.items_out == 100
        assert min(row.items_per_s, row.mean_per_s) > 10 * slow


def test_the_row_of_the_loop_is_read_under_the_lock(monkeypatch):
    """Whoever asks for stats meets no other who counts: no time is counted twice."""
    held, settle = [], Consumer.settle

    def watched(consumer, now_ns):
        held.append(holds_lock(run))
        settle(consumer, now_ns)

    monkeypatch.setattr(Consumer, "settle", watched)
    with nbpipe.source(range(50)).map(int).start() as run:
        for _ in run:
            run.stats()
        run.stats()
        run.history()
    assert len(held) > 50
    assert all(held)


# -- the memory budget -----------------------------------------------------------------------------
def looks(stages):
    """Give the most calls that one question to the memory budget takes, with so many stages."""
    most, inside = [0], {}

    def note(frame, event, _):
        code = frame.f_code
        if not code.co_qualname.startswith(("Memory.", "input_bytes")):
            return
        thread, asks = threading.get_ident(), code.co_name in ("admits", "affordable")
        if event == "call":
            inside[thread] = 1 if asks else inside.get(thread, 0) + 1
        elif event == "return" and asks:
            most[0] = max(most[0], inside[thread])

    chain = nbpipe.source(range(60))
    for number in range(stages):
        chain = chain.map(int, name=f"stage{number}")
    threading.setprofile(note)
    try:
        with chain.start(memory="1 GB") as run:
            assert drained(run) == list(range(60))
    finally:
        threading.setprofile(None)
    return most[0]


def test_memory_budget_costs_the_same_with_many_stages():
    """Whether a call may start is known without a look at all stages."""
    assert looks(20) == looks(2) > 0
