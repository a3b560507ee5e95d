"""Workers in what is shown: how many, who shares them, and what that leaves out elsewhere."""

import concurrent.futures
import threading
from dataclasses import replace
from time import perf_counter_ns

import pytest

import nbpipe
from nbpipe import StageStats
from tests.gates import Gate, drained, finished, held, seen_at_work, set_clock, stage, until
from tests.show.fakes import BEGUN_S, STATUS, FakeWatched, photographs, row
from tests.show.inner import (
    addresses,
    diagnose,
    hang_file,
    last_stretch,
    picture_html,
    picture_text,
    snapshot,
    worker_count,
    worker_words,
)

PAGE = "http://127.0.0.1:8787/status"


def stage_of(run, address):
    """Give a stage as a snapshot of the run has it."""
    return next(one for one in snapshot(run)["stages"] if one["address"] == address)


def idle(pipe, **changes):
    """Give a run of a pipeline that never ran; `changes` are in the stats of its last stage."""
    stages = addresses(pipe.chain)
    rows = dict.fromkeys(stages, StageStats())
    rows[next(reversed(rows))] = StageStats(**changes)
    return FakeWatched(stages, rows)


def test_region():
    """The first has workers and calls, the last the queue; the others name the first."""
    run = photographs()
    run.rows["normalise"] = replace(run.rows["normalise"], running=2, queued=3)
    first, last = (stage_of(run, name) for name in ("batch", "normalise"))
    assert [
        (one["shares"], one["running"], one["queued"], one["bound"]) for one in (first, last)
    ] == [
        (None, 2, 0, 0),
        ("batch", 0, 3, 4),
    ]
    assert (first["workers"], last["workers"]) == (
        {"count": 2, "starting": 1, "memory_bytes": 310_000_000, "link": None},
        None,
    )


@pytest.mark.parametrize(
    ("given", "expected"), [(PAGE, PAGE), ("javascript:alert(1)", None), (7, None), (None, None)]
)
def test_link(given, expected):
    """The page of the workers is given where it is one of the web."""
    run = photographs(links={} if given is None else {"batch": given})
    assert stage_of(run, "batch")["workers"]["link"] == expected


@pytest.mark.parametrize(("workers", "known"), [(0, False), (3, True)])
def test_executor_that_says_nothing_of_its_workers(workers, known):
    """Of an executor of the user's own, the workers are shown where they are known."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        run = idle(nbpipe.source(range(3)).map(abs, executor=pool), workers=workers)
    assert (stage_of(run, "abs")["workers"] is not None) == known


@pytest.mark.parametrize(
    ("count", "starting", "memory_bytes", "expected"),
    [
        (0, 0, 0, "no workers"),
        (0, 1, 0, "starting 1 worker"),
        (2, 2, 5_000_000, "starting 2 workers"),
        (4, 1, 5_000_000, "4 workers, 1 starting"),
        (1, 0, 0, "1 worker"),
        (4, 0, 1_200_000_000, "4 workers, 1.2 GB"),
    ],
)
def test_workers_in_words(count, starting, memory_bytes, expected):
    """Those that only start are named; else what memory they take."""
    assert worker_count(count, starting, memory_bytes) == expected


def test_picture_without_links():
    """A picture is kept longer than the page of the workers: it has no link to it."""
    run = photographs(links={"batch": PAGE})
    assert PAGE not in picture_html(snapshot(run))


def test_text():
    """In a terminal the workers have a column of their own."""
    lines = picture_text(snapshot(photographs())).splitlines()
    assert [
        line.rstrip().endswith(("workers", "1 starting", "with batch")) for line in lines[4:]
    ] == [
        *(True, False, False, False, False, False),
        *(True, True, False),
    ]


def test_text_without_workers():
    """Where all calls are done in threads, nothing is said of workers."""
    run = idle(nbpipe.source(range(3)).map(abs))
    assert "workers" not in picture_text(snapshot(run))


def test_empty_cells_of_a_region():
    """A stage that holds nothing has no queue, one that shares its workers no calls."""
    html = picture_html(snapshot(photographs()))
    cells = [row.split("</td>") for row in html.split("<tr")]
    found = {
        name: [row[3].removeprefix("<td>") for row in cells if f"<td>{tag}" in row[0]]
        for name, tag in (
            ("calls of batch", "<b>batch<"),
            ("calls of normalise", "<b>normalise<"),
            ("queue of batch", "batch<"),
            ("queue of normalise", "normalise<"),
        )
    }
    assert found == {
        "calls of batch": ["1/2"],
        "calls of normalise": [""],
        "queue of batch": [""],
        "queue of normalise": ["0/4"],
    }


def test_real_workers():
    """Of a run with worker processes, they are shown while they are there."""
    pipe = (
        nbpipe.source(range(100), name="files")
        .map(abs, executor="process", concurrency=2)
        .map(float, executor="process")
    )
    with pipe.start() as run:
        seen = [stage_of(run, "abs")]
        epoch = iter(run)
        finished(next, epoch)
        seen.append(stage_of(run, "abs"))
        shares = stage_of(run, "float")["shares"]
        epoch.close()
    seen.append(stage_of(run, "abs"))
    assert [one["workers"]["count"] in range(1, 3) for one in seen] == [False, True, False]
    assert (shares, worker_words(seen[-1])) == ("abs", "no workers")


# -- just after they start -------------------------------------------------------------------------
@pytest.mark.parametrize("p50_s", [0.0011, 0.02, 0.754])
def test_calls_of_milliseconds_are_not_short(p50_s):
    """Calls that take more than 1 ms are worth their way, however much of the time it takes."""
    stages = addresses(
        nbpipe.source(range(9)).map(abs, name="decode", executor="process", concurrency=2).chain
    )
    rows = {"decode": row(0.1, 0, 0, 5.0, concurrency=2, workers=2, latency_p50_s=p50_s)}
    found = diagnose(FakeWatched(stages, {**rows, "consumer": row(0, 1, 0, 5.0)}))
    assert (found.stage, found.cause == "sending") == ("decode", False)


def test_time_in_which_workers_start_is_not_the_way():
    """While a worker starts, the calls that wait for it are not said to be on the way."""
    stages = addresses(
        nbpipe.source(range(9)).map(abs, name="decode", executor="process", concurrency=2).chain
    )
    short = row(0.1, 0, 0, 5.0, concurrency=2, workers=2, starting=1, latency_p50_s=2e-4)
    found = diagnose(FakeWatched(stages, {"decode": short, "consumer": row(0, 1, 0, 5.0)}))
    assert (found.cause == "sending", "way" in str(found)) == (False, False)


def test_shares_begin_with_the_first_result_of_workers(monkeypatch):
    """The time in which workers start is no part of the shares: a call is all there is."""
    start, gate, later_s = Gate(), Gate(), [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + later_s[0] * 10**9)
    fn = stage("process", gate=lambda n: gate if n == 1 else None)

    def init():
        start.wait()

    pipe = nbpipe.source(range(3)).map(fn, name="work", executor="process", worker_init=init)
    with pipe.start() as run:
        items = iter(run)
        until(lambda: run.stats()["work"].starting)
        later_s[0] = 100_000
        start.open()
        finished(next, items)
        held(run, "work", 1)
        later_s[0] += 10_000
        busy = run.stats()["work"].busy
        gate.open()
        assert finished(list, items) == [1, 2]
    assert busy > 0.5


def ticks(name, made):
    """Give a history of one stage and the loop, a row a second: the items made by then."""
    return [
        {"when_s": BEGUN_S + at, "time_s": float(at), "epoch": 1, "stage": one, "items_out": count}
        | {"items_per_s": 1.0, "busy": float(count > 1), "starved": 0.0, "blocked": 0.0}
        for at, count in enumerate(made, 1)
        for one in (name, "consumer")
    ]


@pytest.mark.parametrize(
    ("made", "since_s"), [([0, 0, 1, 5, 9], 3.0), ([0, 0, 0, 0, 1], 4.0), ([3, 5, 7, 9, 11], 0.0)]
)
def test_last_seconds_without_the_start(made, since_s):
    """The verdict on an epoch leaves out the rows before the first result, and the row of that."""
    status = replace(STATUS, state="finished", elapsed_s=5.0)
    assert last_stretch(ticks("work", made), status, ())[1] == since_s


def test_call_that_waited_for_a_worker_did_not_hang(monkeypatch):
    """A run that is stopped while its workers start names no call that hangs."""
    monkeypatch.setattr(hang_file, "LEAST_S", 0.0)
    monkeypatch.setattr(hang_file, "TIMES", 0.0)
    gate = Gate()
    pipe = nbpipe.source(range(3)).map(abs, executor="process", worker_init=gate.wait)
    with pipe.start() as run:
        reader = threading.Thread(target=drained, args=(run,), daemon=True)
        reader.start()
        seen_at_work(run, "abs")
        run.stop()
        until(lambda: run.stopped)  # an epoch that only begins is stopped once it has begun
        stopped = diagnose(run)
        gate.open()
        reader.join()
    assert [one.kind for one in (stopped, diagnose(run))] == ["limits", "limits"]
    assert stopped.text == "Stopped before the first item."
