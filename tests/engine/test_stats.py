"""Counters, histograms and the frozen stats that are read from them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import StageStats, UnknownStageError
from tests.engine.inner import WINDOW_NS, Counters, RunStats, StageRuntime, Status, stats_of

SECOND_NS = 1_000_000_000


def read(counters, now_ns, **changes):
    """Give stats with plain values for what does not matter."""
    options = {"running_ns": 0, "running": 0, "concurrency": 2, "queued": 0, "prefetch": 8}
    return stats_of(counters, now_ns, **{**options, **changes})


# -- histogram -------------------------------------------------------------------------------------


def counted(*calls):
    """Return the histogram of a stage whose calls took so long [ns]: so many each, by a time."""
    stage = nbpipe.source([1]).map(abs).chain[1]
    runtime = StageRuntime("abs", stage, prefetch=8, now_ns=0)
    for duration_ns, count, now_ns in calls:
        runtime.count(now_ns, count, count * duration_ns)
    return runtime.counters.histogram


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=200))
def test_quantiles_are_close(durations_ns):
    """A quantile lies no further from the true one than its bucket is wide."""
    histogram = counted(*((duration_ns, 1, SECOND_NS) for duration_ns in durations_ns))
    found = np.array(histogram.quantiles_s(0.5, 0.95, 0.99)) * 1e9
    true = np.quantile(durations_ns, [0.5, 0.95, 0.99], method="inverted_cdf")
    assert np.all(found <= 1.25 * true + 8)
    assert np.all(found >= true / 1.25 - 8)


@given(st.integers(1, 2**50), st.integers(1, 1000))
def test_median_of_calls_that_take_as_long(duration_ns, count):
    """Where all calls take as long, the median is how long they take."""
    (median_s,) = counted((duration_ns, count, SECOND_NS)).quantiles_s(0.5)
    assert median_s * 1e9 == pytest.approx(duration_ns)


def test_counts_weigh():
    """A chunk of many calls counts as many."""
    histogram = counted((1000, 99, SECOND_NS), (1_000_000, 1, SECOND_NS))
    p50, p100 = histogram.quantiles_s(0.5, 1.0)
    assert (round(p50 * 1e6, 1), p100 * 1e3 > 0.9) == (1.0, True)


@pytest.mark.parametrize(("pause_s", "forgotten"), [(1, False), (6, False), (11, True)])
def test_old_calls_are_forgotten(pause_s, forgotten):
    """After 5 to 10 s a call no longer counts, also when there was nothing in between."""
    later_ns = (100 + pause_s) * SECOND_NS
    histogram = counted((SECOND_NS, 100, 100 * SECOND_NS), (1000, 1, later_ns))
    (median_s,) = histogram.quantiles_s(0.5)
    assert (median_s < 0.1) == forgotten


# -- stats -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**12), min_size=8, max_size=8))
def test_shares_sum_to_one(numbers):
    """Busy + starved + blocked + waiting = 1, each within 0 and 1, whatever was counted."""
    counters = Counters()
    counters.first_ns = 1
    counters.busy_ns, counters.starved_ns, counters.blocked_ns, counters.slot_ns = numbers[:4]
    counters.sample(1, 0)
    counters.busy_ns += numbers[4]
    counters.starved_ns += numbers[5]
    counters.blocked_ns += numbers[6]
    counters.slot_ns += numbers[7]
    stats = read(counters, SECOND_NS)
    shares = (stats.busy, stats.starved, stats.blocked, stats.waiting)
    assert sum(shares) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in shares)


def test_rates_are_of_the_last_seconds():
    """`items_per_s` looks at the window, `mean_per_s` at all since the start."""
    counters = Counters()
    counters.first_ns = SECOND_NS
    for second in range(1, 21):
        counters.items_out += 100 if second <= 10 else 10
        counters.sample(second * SECOND_NS, 0)
    stats = read(counters, 20 * SECOND_NS)
    assert stats.items_per_s == pytest.approx(10)
    assert stats.mean_per_s == pytest.approx(1100 / 19)


def test_before_anything_happened():
    """A stage that has not run waits; nothing is divided by zero."""
    stats = read(Counters(), 5)
    assert (stats.items_per_s, stats.mean_per_s, stats.waiting, stats.latency_p50_s) == (0, 0, 1, 0)


def test_calls_in_progress_count_as_busy():
    """A call that takes long shows before it ends."""
    counters = Counters()
    counters.first_ns = 1
    counters.slot_ns = 2 * SECOND_NS
    assert read(counters, SECOND_NS, running_ns=SECOND_NS).busy == pytest.approx(0.5)


def test_the_size_of_an_item_follows_the_last_ones():
    """It is a mean of the last results, not of the whole run."""
    runtime = StageRuntime("abs", nbpipe.source([1]).map(abs).chain[1], prefetch=8, now_ns=0)
    for size_bytes in [1000] * 100 + [10_000] * 50:
        runtime.measured(size_bytes)
    assert runtime.stats(SECOND_NS, 0, 0).item_bytes == pytest.approx(10_000, rel=0.01)


def test_the_window_keeps_what_it_needs():
    """The reading to compare with is the latest that is 5 s old, else the oldest."""
    counters = Counters()
    for tick in range(100):
        counters.sample(tick * SECOND_NS // 4, 0)
    now_ns = 99 * SECOND_NS // 4
    assert len(counters.readings) == 40
    assert counters.window_start(now_ns).at_ns == now_ns - WINDOW_NS
    assert Counters().window_start(now_ns) is None


def test_stats_are_frozen_and_plain():
    """Every field is a number or not known, but for an item's name; `as_dict` keeps their order."""
    stats = StageStats(items_in=1)
    fields = [field.name for field in dataclasses.fields(StageStats)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.items_in = 2
    assert list(stats.as_dict()) == fields
    texts = [name for name, value in stats.as_dict().items() if not isinstance(value, int | float)]
    assert (texts, stats.cpu_share) == (
        ["cpu_share", "cpu_share_p50", "lock_share", "oldest_item"],
        None,
    )


# -- counts of a run -------------------------------------------------------------------------------


def test_limits_show_in_the_stats():
    """The knobs in force stand beside the counts."""
    pipe = nbpipe.source([1]).map(abs, concurrency=3, prefetch=5)
    with pipe.start() as run:
        list(run)
        pipe["abs"].concurrency = 4
        row = run.stats()["abs"]
    assert (row.concurrency, row.prefetch, row.running, row.queued) == (4, 5, 0, 0)


def test_an_unknown_row():
    """The near match is named."""
    stats = RunStats({"decode": StageStats()})
    with pytest.raises(UnknownStageError) as caught:
        stats["decod"]
    assert str(caught.value) == (
        "no stats of 'decod'; did you mean 'decode'?; there are rows for 'decode'"
    )


def test_stats_print_as_a_table():
    """One line a stage in a terminal, an escaped table in a notebook."""
    stats = RunStats({"<b>": StageStats(items_out=5, busy=0.5, latency_p50_s=0.002)})
    lines = repr(stats).splitlines()
    assert lines[0].split() == [
        "stage", "items", "rate", "busy", "starved", "blocked", "calls", "queue", "p50",
    ]  # fmt: skip
    assert lines[2].split() == [
        "<b>", "5", "0", "items/s", "50%", "0%", "0%", "0/1", "0/0", "2", "ms",
    ]  # fmt: skip
    assert "<b>" not in stats._repr_html_()
    assert (list(stats), len(stats), stats._ipython_key_completions_()) == (["<b>"], 1, ["<b>"])


def test_the_table_says_what_is_counted():
    """A rate is of items or of batches; the training loop takes what the last stage hands on."""
    pipe = nbpipe.source(range(8)).batch(4)
    with pipe.start() as run:
        list(run)
        head, rows = run.stats().table()
    rates = [(row[0], row[head.index("rate")].split()[-1]) for row in rows]
    assert rates == [("source", "items/s"), ("batch", "batches/s"), ("training loop", "batches/s")]
    assert [rows[-1][head.index(column)] for column in ("calls", "queue")] == ["", ""]


def test_each_column_says_what_it_holds():
    """Under the mouse, in the tables of stats and of a pipeline."""
    pipe = nbpipe.source(range(4)).map(abs)
    with pipe.start() as run:
        list(run)
        tables = [run.stats()._repr_html_(), pipe._repr_html_()]
    assert [html.count("<th") - html.count("<thead>") for html in tables] == [
        html.count("<th title=") for html in tables
    ]


def test_stats_of_a_stage_as_html():
    """One stage's stats are a table with units in a notebook."""
    shown = StageStats(items_per_s=12345.0, busy=0.5, latency_p50_s=0.004, bytes_out=10**6)
    html = shown._repr_html_()
    found = [word in html for word in ("12.3 k items/s", "50%", "4 ms", "1 MB", "latency_p50_s")]
    assert found == [True] * 5


def test_status_as_html():
    """Fields that hold something are rows, with units; long values wrap, and all is escaped."""
    status = Status(
        "failed",
        epoch=0,
        delivered=1200,
        units={"files": "items"},
        elapsed_s=3.2,
        held_bytes=1_000_000,
        isolated=("files", "read"),
        ahead=True,
        error="ValueError: <b>" + "long " * 50,
    )
    html = status._repr_html_()
    words = ("1,200", "files: items", "3.2 s", "1 MB", "files, read", "yes", "&lt;b&gt;long")
    assert [word for word in words if word not in html] == []
    assert (html.count("long "), "white-space:normal" in html) == (50, True)
    assert [">epoch</td>" in html, "limit_bytes" in html, "skipped" in html] == [
        True,
        False,
        False,
    ]


# -- in words --------------------------------------------------------------------------------------


STARTING = StageStats(workers=2, starting=2)
AT_WORK = StageStats(workers=4, memory_bytes=1_200_000_000, busy=0.5)


def test_workers_have_a_column():
    """Where there are workers, and only there, the table says how many, and their memory."""
    assert RunStats({"files": StageStats()}).table()[0][-1] == "p50"
    head, rows = RunStats({"files": StageStats(), "decode": AT_WORK, "embed": STARTING}).table()
    assert [head[-1], *(row[-1] for row in rows)] == [
        *("workers", "", "4 workers, 1.2 GB"),
        "starting 2 workers",
    ]
