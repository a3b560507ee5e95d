"""The snapshot: every field as promised, small, bounded, and the file that the front end reads."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe import KnobChange, StageStats
from tests.gates import finished
from tests.show.fakes import BEGUN_S, FAILURE, NOW_S, STATUS, FakeWatched, photographs
from tests.show.inner import (
    Limits,
    Snapshot,
    addresses,
    case,
    headline,
    record_export,
    snapshot,
    snapshot_key,
)

DATA = Path(__file__).resolve().parent.parent / "data" / "snapshot.json"


@pytest.fixture
def at_now(monkeypatch):
    """Stop the clock, on a machine of 8 cores with an interpreter lock."""
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    monkeypatch.setattr(case, "cores", lambda: 8)
    monkeypatch.setattr(case, "is_locked", lambda: True)


def test_file_for_the_front_end(at_now):
    """tests/data/snapshot.json is what Python makes; NBPIPE_WRITE_DATA=1 writes it again."""
    text = json.dumps(snapshot(photographs()), indent=2, allow_nan=False) + "\n"
    if os.environ.get("NBPIPE_WRITE_DATA"):
        DATA.parent.mkdir(exist_ok=True)
        DATA.write_text(text, encoding="utf-8")
    stored = DATA.read_text(encoding="utf-8") if DATA.exists() else ""
    hint = "the snapshot changed: NBPIPE_WRITE_DATA=1 pytest tests/show/test_snapshot.py"
    assert stored == text, hint


def misfits(kind, value, at="snapshot"):
    """List the fields that hold what their types do not allow."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        yield from min((list(misfits(one, value, at)) for one in parts), key=len)
    elif origin is Annotated and isinstance(parts[1], Limits):
        size = value if isinstance(value, int | float) or value is None else len(value)
        wrong = list(misfits(parts[0], value, at))
        yield from wrong or [at] * (not parts[1].least <= size <= parts[1].most)
    elif origin is Annotated:
        yield from misfits(parts[1], value, at)
    elif origin is Literal:
        yield from [at] * (value not in parts)
    elif origin is list:
        for place, one in enumerate(value or ()):
            yield from misfits(parts[0], one, f"{at}[{place}]")
    elif is_typeddict(kind):
        fields = get_type_hints(kind, include_extras=True)
        yield from [at] * (value is None or list(fields) != list(value))
        for name, one in (value or {}).items():
            yield from misfits(fields[name], one, f"{at}.{name}")
    else:
        yield from [at] * (not isinstance(value, int | float if kind is float else kind))


def endless():
    """Give a run with the longest texts: names, errors, a traceback, a link."""
    long = "x" * 9999
    run = photographs(error=long, links={"batch": f"http://{long}"})
    lost = replace(FAILURE, error=long, input=long, path=(10**300,), traceback=long, stage=long)
    run.lost = (lost,) * 9
    run.events = (KnobChange(BEGUN_S, long, 1, 2, long, long),) * 99
    run.stages = {f"{name}{long}": stage for name, stage in run.stages.items()}
    run.rows = {name if name == "consumer" else f"{name}{long}": n for name, n in run.rows.items()}
    return run


@pytest.mark.parametrize("make", [photographs, endless])
def test_every_field_is_as_its_type_allows(make):
    """Each part has exactly the fields of its type, in their limits, however long texts are."""
    assert list(misfits(Snapshot, snapshot(make()))) == []


def test_what_did_not_change_is_left_out():
    """Changes and failures are None where they are not asked for."""
    found = snapshot(photographs(), changes=False, failures=False)
    assert (found["changes"], found["failures"]) == (None, None)


def test_last_changes_and_failures():
    """Only the last 50 changes and 5 failures are given, oldest first."""
    run = photographs()
    run.events = tuple(
        KnobChange(BEGUN_S + n, "decode.prefetch", n, n + 1, "", "") for n in range(99)
    )
    run.lost = tuple(replace(FAILURE, path=n) for n in range(9))
    found = snapshot(run)
    assert [one["old"] for one in found["changes"]] == list(range(49, 99))
    assert [one["path"] for one in found["failures"]] == ["4", "5", "6", "7", "8"]


class NotedPath(PurePosixPath):
    """A path that notes when it is asked for its text."""

    asked = 0

    def __fspath__(self):
        NotedPath.asked += 1
        return str(self)


def test_look_asks_no_item_of_the_source():
    """Failed items are shown without looking up what they were made of, as `failures()` does."""
    paths = [NotedPath(f"{n}.jpg") for n in range(4)]
    with nbpipe.source(paths).map(len, name="decode", on_error="skip").start() as run:
        assert list(run) == []
        before = NotedPath.asked
        found = snapshot(run)["failures"]
        asked = NotedPath.asked - before
        named = [one.source for one in run.failures()]
    assert (len(found), asked, named) == (4, 0, ["0.jpg", "1.jpg", "2.jpg", "3.jpg"])


def test_text_is_bounded():
    """Long text is cut; of a traceback the end is kept, with its lines."""
    run = photographs(error="x" * 9999)
    run.lost = (replace(FAILURE, error="e" * 9999, traceback="a\n" * 9999 + "last"),)
    found = snapshot(run)
    (failure,) = found["failures"]
    assert (len(found["error"]), len(failure["error"]), len(failure["traceback"])) == (
        500,
        500,
        4000,
    )
    assert failure["traceback"].endswith("a\nlast")


def test_export_is_bounded():
    """Of a long name the beginning is given, and of many knobs the first."""
    pipe = nbpipe.source(range(3))
    for _ in range(60):
        pipe = pipe.map(abs)
    with pipe.start() as run:
        knobs = [stage.knobs["concurrency"] for stage in run.stages.values() if stage.fn]
        record_export(dict.fromkeys(knobs, 99), Path("x" * 9999 + "\udcff.py"))
        found = snapshot(run)["export"]
    assert (len(found["file"]), len(found["turned"])) == (200, 50)


def test_text_that_is_not_unicode():
    """A file name with stray bytes can be sent all the same."""
    run = photographs()
    run.lost = (replace(FAILURE, input="\udcff.jpg"),)
    assert snapshot(run)["failures"][0]["input"].encode("utf-8") == rb"\udcff.jpg"


@pytest.mark.parametrize(
    ("state", "total", "delivered", "rate", "left_s"),
    [
        ("running", 1000, 500, 100.0, 5.0),  # the rate of the last seconds
        ("running", 1000, 500, 1.0, 50.0),  # too few items for one: that of the epoch
        ("running", 1000, 500, 0.0, 50.0),
        ("running", 400, 500, 100.0, 0.0),  # the total was an upper bound, or less
        ("running", None, 500, 100.0, None),
        ("running", 1000, 0, 0.0, None),
        ("paused", 1000, 500, 100.0, None),
        ("ready", 1000, 0, 0.0, None),
    ],
)
def test_time_left(state, total, delivered, rate, left_s):
    """The time left is estimated while that makes sense."""
    run = photographs(state=state, total=total, delivered=delivered, elapsed_s=50.0)
    run.rows["consumer"] = replace(run.rows["consumer"], items_per_s=rate)
    assert snapshot(run)["left_s"] == left_s


FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@given(FLOATS, FLOATS, FLOATS, FLOATS)
def test_every_number_is_finite(rate, busy, elapsed_s, cpu):
    """Whatever the stats hold, the message is JSON, and shares are between 0 and 1."""
    run = photographs()
    told = StageStats(items_out=3, items_per_s=rate, busy=busy, starved=busy, latency_p50_s=rate)
    run.rows = dict.fromkeys(run.rows, told)
    run.now = replace(run.now, state="ready", elapsed_s=elapsed_s, cpu_cores=cpu)
    found = json.loads(json.dumps(snapshot(run), allow_nan=False))
    shares = [stage[key] for stage in found["stages"] for key in ("busy", "starved", "waiting")]
    assert all(0 <= share <= 1 for share in shares)


def test_key_leaves_time_out(monkeypatch):
    """Two snapshots that differ only in their time have the same key."""
    run = photographs(state="paused")
    keys = []
    for now_s in (NOW_S, NOW_S + 1):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        keys.append(snapshot_key(snapshot(run)))
    assert keys[0] == keys[1]


def test_real_run():
    """A run satisfies what is asked of it, before, in and after an epoch."""
    with nbpipe.source(range(20), name="files").map(abs).batch(4).start() as run:
        ready = snapshot(run)
        batches = iter(run)
        finished(next, batches)
        running = snapshot(run)
        finished(list, batches)
        done = snapshot(run)
    found = (ready, running, done, snapshot(run))
    assert [list(misfits(Snapshot, one)) for one in found] == [[]] * 4
    states = [one["state"] for one in found]
    assert states == ["ready", "running", "finished", "closed"]
    assert (done["delivered"], done["total"], done["unit"]) == (5, 5, "batches")
    assert [stage["address"] for stage in ready["stages"]] == ["files", "abs", "batch"]


def test_each_stage_says_where_it_runs():
    """A process of their own, workers, a device: each in a word; what is on a device is weighed."""
    chain = (
        nbpipe.source(range(8), name="files")
        .map(abs, name="read")
        .map(abs, name="decode", executor="process")
        .batch(4)
        .to_device("cuda:1")
        .chain
    )
    stages = addresses(chain)
    rows = {name: StageStats() for name in (*stages, "consumer")}
    rows["to_device"] = StageStats(items_out=10, queued=2, bytes_out=1_000)
    inside = ("files", "read", "decode", "batch")
    now = replace(STATUS, isolated=inside, process_bytes=310_000_000, skipped=17, ahead=True)
    found = snapshot(FakeWatched(stages, rows, now))
    assert [(part["place"], part["held_bytes"]) for part in found["stages"]] == [
        ("isolated", None),
        ("isolated", None),
        ("process", None),
        ("process", None),
        ("cuda:1", 200),
    ]
    assert (found["process_bytes"], found["skipped"], found["ahead"]) == (310_000_000, 17, True)
    said = headline(found)
    assert ("17 skipped" in said, "the next epoch has begun" in said) == (True, True)


def test_the_rate_of_an_epoch_that_went_on_from_a_state_is_that_of_its_rest():
    """What came before the state took none of the time."""
    stages = addresses(nbpipe.source(range(100)).chain)
    rows = {name: StageStats() for name in (*stages, "consumer")}
    over = replace(STATUS, state="finished", delivered=100, resumed=60, total=100, elapsed_s=10.0)
    assert "4 items/s over 10 s" in headline(snapshot(FakeWatched(stages, rows, over)))


def test_an_isolated_run_tells_what_its_process_holds():
    """The status names the stages that run in the process, and its memory once it is there."""
    with nbpipe.source(range(5)).map(abs, name="read").start(isolate=True) as run:
        items = list(run)
        found = snapshot(run)
    places = [part["place"] for part in found["stages"]]
    assert (items, places) == (list(range(5)), ["isolated"] * 2)
    assert found["process_bytes"] > 1_000_000


def test_share_of_waiting_is_rounded_once():
    """What is 64.47% in the sentence is not 65% beside it, by way of 64.5%."""
    seen = snapshot(photographs(state="finished", elapsed_s=100.0, waited_s=64.47))
    assert round(100 * seen["waited_share"]) == 64
    assert "64%" in seen["diagnosis"]["text"].replace("\xa0", " ")
