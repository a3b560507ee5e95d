"""A trace has a track for each thread and worker, a slice for each call, and knob changes."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest

import nbpipe
from tests.gates import HANG_S, Gate, consumer_waits, until
from tests.trace.reader import read


def double(number):
    """Return twice a number."""
    return 2 * number


def busy(number):
    """Take so long that each item is a call of its own."""
    return sum(range(20_000)) and number


async def later(number):
    """Give the loop a turn."""
    await asyncio.sleep(0.001)
    return number


def items_of(slices):
    """Give how many items slices have together."""
    return sum(one["args"]["items"] for one in slices)


@pytest.fixture
def path(tmp_path):
    """Give a place for a trace."""
    return tmp_path / "trace.json"


# -- what is in it ---------------------------------------------------------------------------------
def test_each_call_is_a_slice(path):
    """Its name is that of the stage; short calls count together, and no item is missing."""
    pipe = nbpipe.source(range(50)).map(busy, concurrency=2).map(double).batch(5)
    with pipe.start() as run, run.trace(path):
        assert len(list(run)) == 10
    found = read(path)
    assert items_of(found.slices("busy")) == items_of(found.slices("double")) == 50
    assert items_of(found.slices("batch")) == 50
    assert found.left_out == {"calls_left_out": 0, "waits_left_out": 0}
    assert {track.process for track in found.tracks.values()} == {"nbpipe"}
    places = {one["args"].get("item") or one["args"]["first item"] for one in found.slices("busy")}
    assert "0" in {place.strip("(),") for place in places}


def test_inline_stages_are_in_the_slice_of_their_neighbour(path):
    """The name has all of them, in the order of the items."""
    pipe = nbpipe.source(range(9)).map(busy).map(double, executor="inline")
    with pipe.start() as run, run.trace(path):
        list(run)
    assert items_of(read(path).slices("busy + double")) == 9


def test_coroutines_have_tracks_of_their_own(path):
    """As many as there were at once: slices of one track do not overlap."""
    with nbpipe.source(range(30)).map(later, concurrency=3).start() as run, run.trace(path):
        list(run)
    found = read(path)
    names = [one.name for one in found.tracks.values() if one.name.startswith("coroutine")]
    assert names == [f"coroutine {number}" for number in range(1, len(names) + 1)]
    assert 1 <= len(names) <= 4
    assert items_of(found.slices("later")) == 30


def test_the_waits_of_the_loop(path):
    """They are on the track of the training loop, and nothing else is."""
    gate = Gate()

    def held_up(number):
        gate.wait()
        return number

    with nbpipe.source(range(3)).map(held_up).start() as run, run.trace(path):
        items = iter(run)
        opener = threading.Thread(target=lambda: (consumer_waits(items), gate.open()))
        opener.start()
        assert list(items) == [0, 1, 2]
        opener.join()
    track = read(path).named("training loop")
    assert {one["name"] for one in track.slices} == {"waits for data"}


def test_knob_changes_are_marks(path):
    """Those during the trace, with their author and reason."""
    with nbpipe.source(range(9)).map(double).start() as run:
        run["double"].concurrency = 2
        with run.trace(path):
            run["double"].knob("concurrency").set(3, by="<me>", why="a \N{SNOWMAN} reason")
            list(run)
        run["double"].concurrency = 4
    (mark,) = read(path).marks
    assert mark["name"] == "double.concurrency 2 → 3"
    assert mark["args"] == {"by": "<me>", "why": "a \N{SNOWMAN} reason"}


@pytest.mark.slow
def test_each_worker_process_has_a_track(path):
    """Its slices end when the results came; the thread that waited has slices, too."""
    pipe = nbpipe.source(range(40)).map(busy, executor="process", concurrency=2)
    pipe = pipe.map(double, executor="process").batch(4, executor="process")
    with pipe.start() as run, run.trace(path):
        list(run)
        pids = set(run["busy"].pids)
    found = read(path)
    workers = {pid: track for (pid, _), track in found.tracks.items() if pid != os.getpid()}
    assert workers.keys() <= pids
    assert {track.process for track in workers.values()} == {f"worker {pid}" for pid in workers}
    calls = [one for track in workers.values() for one in track.slices]
    assert {one["name"] for one in calls} == {"busy + double + batch"}
    assert items_of(calls) == 40
    assert items_of(found.slices("busy + double + batch")) == 80


def test_epochs_one_after_the_other(path):
    """A trace goes through all epochs, also those that are read ahead."""
    with nbpipe.source(range(8)).map(double).start(read_ahead=True) as run, run.trace(path):
        for _ in range(3):
            list(run)
    assert items_of(read(path).slices("double")) >= 24


# -- when it begins and ends -----------------------------------------------------------------------
def test_it_can_begin_and_end_in_the_middle_of_an_epoch(path):
    """Only what ended between the two is in it, and the epoch continues."""
    with nbpipe.source(range(30)).map(busy, prefetch=1).start() as run:
        items = iter(run)
        first = [next(items) for _ in range(10)]
        trace = run.trace(path)
        more = [next(items) for _ in range(10)]
        trace.close()
        assert [*first, *more, *items] == list(range(30))
    assert 1 <= items_of(read(path).slices("busy")) < 25
    trace.close()  # does nothing


def test_another_thread_may_record_it(path):
    """As a cell does while another one trains."""
    with nbpipe.source(range(10**6)).map(double).start() as run:
        run.train(lambda _: None)
        trace = run.trace(path)
        begun = run.stats()["double"].items_out
        until(lambda: run.stats()["double"].items_out > begun + 10_000)
        trace.close()
        run.stop()
        run.wait()
    assert read(path).slices("double")


def test_a_run_that_closes_writes_it(path):
    """So nothing is lost where `close()` was forgotten."""
    with nbpipe.source(range(9)).map(double).start() as run:
        trace = run.trace(path)
        list(run)
        assert "recording" in repr(trace)
    assert trace.closed
    assert "written" in repr(trace)
    assert items_of(read(path).slices("double")) == 9


def test_a_run_that_is_dropped_writes_it(path):
    """It closes in another thread."""
    run = nbpipe.source(range(9)).map(double).start()
    run.trace(path)
    list(run)
    del run
    gc.collect()
    assert until(path.exists)
    assert items_of(read(path).slices("double")) == 9


def test_an_error_in_the_block_writes_it_too(path):
    """What happened before an error is what one wants to see."""
    run = nbpipe.source(["1", "a"]).map(int).start()
    with run, pytest.raises(nbpipe.StageError), run.trace(path):
        list(run)
    assert read(path).slices("int")


def test_the_first_calls_are_left_out(path):
    """A bound holds the memory; the file says how many are missing."""
    pipe = nbpipe.source(range(50)).map(busy)
    with pipe.start() as run, run.trace(path, events=10) as trace:
        list(run)
    found = read(path)
    slices = [one for track in found.tracks.values() for one in track.slices if "args" in one]
    assert len(slices) == 10
    assert found.left_out["calls_left_out"] == trace._events.calls - 10
    (note,) = found.marks
    assert note["name"].endswith("left out")
    assert any(one["args"].get("item", "").strip("(),") == "49" for one in slices)


def test_compressed(tmp_path):
    """A name that ends with .gz is compressed; Perfetto opens that as it is."""
    with nbpipe.source(range(9)).start() as run, run.trace(tmp_path / "trace.json.gz"):
        list(run)
    assert read(tmp_path / "trace.json.gz").slices("source")


def test_names_are_escaped(path):
    """Any name makes a file in ASCII that a reader of JSON takes."""
    name = 'say "hi" \\ <b> \N{SNOWMAN} 𝄞'
    with nbpipe.source(range(3)).map(double, name=name).start() as run, run.trace(path):
        list(run)
    assert items_of(read(path).slices(name)) == 3


# -- refusals --------------------------------------------------------------------------------------
def test_a_closed_run_is_refused(path):
    """Nothing will happen in it any more."""
    with nbpipe.source(range(3)).start() as run:
        pass
    with pytest.raises(nbpipe.RunClosedError):
        run.trace(path)
    assert not path.exists()


def test_one_trace_at_a_time(path, tmp_path):
    """The message names the other one; after that one another may begin."""
    with nbpipe.source(range(3)).start() as run:
        trace = run.trace(path)
        with pytest.raises(nbpipe.RunError, match=r"already records a trace to .*trace\.json"):
            run.trace(tmp_path / "other.json")
        trace.close()
        with run.trace(tmp_path / "other.json"):
            list(run)
    assert read(tmp_path / "other.json").slices("source")


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        (3, {}, "trace path must be a file, as a str or a Path, got 3"),
        ("", {}, "got ''"),
        (".", {}, "got the folder '.'"),
        ("nowhere/trace.json", {}, "in a folder that exists"),
        ("trace.json", {"events": 0}, "trace events must be an int in"),
    ],
)
def test_bad_input(given, options, says, tmp_path, monkeypatch):
    """It is refused before anything is recorded."""
    monkeypatch.chdir(tmp_path)
    with nbpipe.source(range(3)).start() as run:
        with pytest.raises((nbpipe.ArgumentError, nbpipe.ArgumentTypeError)) as raised:
            run.trace(given, **options)
        assert says in str(raised.value)
        list(run)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written(tmp_path, caplog):
    """`close()` raises it, and the end of a run logs it; no other file is left."""
    folder = tmp_path / "gone"
    folder.mkdir()
    with nbpipe.source(range(3)).start() as run:
        trace = run.trace(folder / "trace.json")
        folder.rmdir()
        with pytest.raises(OSError, match="gone"):
            trace.close()
        folder.mkdir()
        run.trace(folder / "trace.json")
        folder.rmdir()
    assert "the trace cannot be written" in caplog.text


# -- isolated runs and loaders ---------------------------------------------------------------------
def items_in(found, name):
    """Give how many items the slices of a name have, by the kind of their process."""
    counts = Counter()
    for track in found.tracks.values():
        kind = track.process.rstrip("0123456789 ")
        counts[kind] += items_of(one for one in track.slices if one["name"] == name)
    return +counts


@pytest.mark.slow
def test_the_stages_of_an_isolated_run(path):
    """Their process has its own threads and workers; the waits are those of the loop here."""
    pipe = nbpipe.source(range(40)).map(busy, concurrency=2).map(double, executor="process")
    with pipe.start(isolate=True) as run:
        with run.trace(path):
            assert len(list(run)) == 40
        list(run)
    found = read(path)
    assert items_in(found, "busy") == {"stages": 40}
    assert items_in(found, "double") == {"stages": 40, "worker": 40}
    waits = [one for track in found.tracks.values() for one in track.slices if "args" not in one]
    assert {one["pid"] for one in waits} == {os.getpid()}
    assert found.slices("isolated") == []
    starts = [one["ts"] for one in found.slices("busy")]
    assert 0 <= min(starts) <= max(starts) < 1e6 * HANG_S


@pytest.mark.slow
def test_an_isolated_run_that_closes_writes_it(path):
    """The calls come before its process ends."""
    with nbpipe.source(range(9)).map(busy).start(isolate=True) as run:
        run.trace(path)
        list(run)
    assert items_in(read(path), "busy") == {"stages": 9}


@pytest.mark.slow
def test_the_process_of_an_isolated_run_dies(path):
    """The calls of the process that replaces it are there."""
    with nbpipe.source(range(9)).map(busy).start(isolate=True) as run, run.trace(path):
        list(run)
        os.kill(run._core.engine.pid, signal.SIGKILL)
        with contextlib.suppress(nbpipe.WorkerDiedError):
            list(run)
        list(run)
    assert items_in(read(path), "busy")["stages"] >= 9


@pytest.mark.torch
@pytest.mark.parametrize("persistent", [True, False])
def test_a_loader(persistent, path):
    """All its epochs are in one file, whichever run makes their batches."""
    loader = nbpipe.DataLoader(
        range(8), batch_size=2, num_workers=1, workers="thread", persistent_workers=persistent
    )
    list(loader)
    with loader.run.trace(path):
        list(loader)
        list(loader)
    list(loader)
    assert items_of(read(path).slices("fetch")) == 8


@pytest.mark.torch
def test_a_loader_without_workers(path):
    """Its loop waits while it makes a batch."""
    loader = nbpipe.DataLoader(range(8), batch_size=2)
    with loader.run.trace(path):
        assert len(list(loader)) == 4
    waits = read(path).named("training loop").slices
    assert len(waits) >= 4
    assert {one["name"] for one in waits} == {"waits for data"}


@pytest.mark.torch
@pytest.mark.parametrize("ends", ["close", "dropped"])
def test_a_loader_that_ends_writes_it(ends, path):
    """So nothing is lost where `close()` was forgotten."""
    loader = nbpipe.DataLoader(range(8), num_workers=1, workers="thread")
    loader.run.trace(path)
    list(loader)
    if ends == "close":
        loader.run.close()
    del loader
    gc.collect()
    assert items_of(read(path).slices("fetch")) == 8


@pytest.mark.torch
def test_one_trace_of_a_loader_at_a_time(path):
    """The message names the other one; a loader that is gone has none."""
    loader = nbpipe.DataLoader(range(8))
    run = loader.run
    with run.trace(path), pytest.raises(nbpipe.RunError, match="already records a trace"):
        run.trace(path)
    del loader
    gc.collect()
    with pytest.raises(nbpipe.RunClosedError):
        run.trace(path)


# -- torch -----------------------------------------------------------------------------------------
_SCRIPT = """
import json, sys, time, torch, nbpipe
from torch._C._profiler import _ExperimentalConfig
def read(number):
    time.sleep(0.01)
    return number
config = _ExperimentalConfig(profile_all_threads=True) if sys.argv[2] == "all" else None
with torch.profiler.profile(experimental_config=config) as profiler:
    for item in nbpipe.source(range(3)).map(read).map(abs, executor="inline"):
        pass
profiler.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(("threads", "calls"), [("all", 3), ("own", 0)])
def test_a_trace_of_torch(threads, calls, path):
    """The loop's waits show, and where all threads are profiled, the calls of the stages.

    A process of its own has the profiler's threads.
    """
    command = [sys.executable, "-c", _SCRIPT, path, threads]
    subprocess.run(command, check=True, capture_output=True)
    names = [one.get("name") for one in json.loads(path.read_text())["traceEvents"]]
    assert names.count("nbpipe: waits for data") >= 3
    assert names.count("nbpipe: read + abs") == calls
