"""A profile runs each stage alone on what one pass gave it, and leaves nothing behind."""

import asyncio
import threading
import time
from collections import Counter

import numpy as np
import pytest

import nbpipe

QUICK = {"seconds": 0.03, "concurrency": [1, 2]}


def double(number):
    """Return twice a number."""
    return 2 * number


def even(number):
    """Keep every other number."""
    return number % 2 == 0


def twice(number):
    """Give a number two times."""
    return [number, number]


async def later(number):
    """Give the loop a turn."""
    await asyncio.sleep(0)
    return number


def numbers():
    """Give numbers again in every epoch."""
    yield from range(50)


def measured(found):
    """Give what was measured: the calls by stage."""
    calls = {}
    for row in found.rows:
        if row.per_s:
            calls.setdefault(row.stage, []).append(row.calls)
    return calls


def idle(_):
    """Do nothing with a batch."""


def source(count=60):
    """Begin a pipeline of numbers."""
    return nbpipe.source(range(count))


# -- measurements ----------------------------------------------------------------------------------
def test_each_stage_is_measured_at_each_concurrency():
    """So is the present value; a stage without the knob is measured as it is."""
    pipe = source().map(double, concurrency=3).batch(8)
    found = nbpipe.profile(pipe, idle, **QUICK)
    assert measured(found) == {"source": [None], "double": [1, 2, 3], "batch": [None]}
    assert [row.calls for row in found.rows if row.now] == [None, 3, None]
    assert found.complete
    assert min(found.feeds, found.ceiling, found.live) > 0
    units = {row.stage: row.unit for row in found.rows}
    assert units == {"source": "items", "double": "items", "batch": "batches"}


def test_a_stage_gets_what_one_pass_gave_it():
    """Each stage sees the results of the one before it, and each more than once."""
    seen, batches = Counter(), []

    def note(number):
        seen[number] += 1
        return number

    pipe = source(20).map(double).map(note).batch(5)
    nbpipe.profile(pipe, batches.append, **QUICK)
    assert set(seen) == {2 * number for number in range(20)}
    assert min(seen.values()) > 1
    assert {tuple(batch) for batch in batches} == {
        tuple(2 * number for number in range(first, first + 5)) for first in (0, 5, 10, 15)
    }


@pytest.mark.slow
def test_the_slow_stage_limits():
    """A stage whose calls wait limits, more calls feed the step, and no more are suggested."""

    def read(number):
        time.sleep(0.02)
        return number

    found = nbpipe.profile(
        source(200).map(double).map(read),
        lambda _: time.sleep(0.008),
        concurrency=[1, 4, 8],
        seconds=0.6,
    )
    assert found.limit == "read"
    assert found.verdict()[0] == "Data is the problem: read limits it."
    assert found.suggest()["read"] == 4
    assert "Set read.concurrency to 4" in repr(found)


@pytest.mark.slow
def test_a_fast_pipeline_is_not_the_problem():
    """Where the step is slower by far, that is the first line."""
    found = nbpipe.profile(source(), lambda _: time.sleep(0.05), seconds=0.3)
    assert found.verdict()[0].startswith("Data is not the problem")


PIPELINES = {
    "coroutine": lambda: source().map(later).batch(8),
    "inline": lambda: source().map(double).map(str, executor="inline").batch(8, collate=list),
    "inline in the source": lambda: source().map(double, executor="inline").map(str),
    "flat_map": lambda: source().flat_map(twice).batch(8),
    "filter": lambda: source().filter(even).batch(8),
    "route": lambda: source().route(even, {True: lambda c: c.map(double), False: lambda c: c}),
    "zip": lambda: nbpipe.zip(source().map(double), source()).batch(8),
    "concat": lambda: nbpipe.concat(source(20).map(double), source(20)).batch(8),
    "concat, shuffled": lambda: nbpipe.concat(source(20), source(20)).shuffle().map(double),
    "mix": lambda: nbpipe.mix([source(20).map(double), source(200)]).map(str),
    "nested": lambda: nbpipe.source(source(30).map(double)).map(double),
    "remembers": lambda: source(30).map(double).shuffle(buffer_size=5).dedupe().take(12).batch(4),
    "repeat": lambda: nbpipe.source(numbers).map(double).repeat().take(90).batch(3),
    "cost": lambda: nbpipe.source(range(1, 60)).batch(60, cost=float, collate=list),
    "unbatch": lambda: source().batch(6).unbatch().map(double),
    "window": lambda: source().map(double).window(4).batch(2),
    "cache": lambda: source(30).map(double).cache().map(str),
    "one item": lambda: nbpipe.source([1]),
    "skip": lambda: nbpipe.source(["1", "a", "2"]).map(int, on_error="skip"),
    "longer than a pass": lambda: source(9).map(double).batch(300),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_of_every_kind(name):
    """Every stage has a row: a rate, or why it has none."""
    pipe = PIPELINES[name]()
    found = nbpipe.profile(pipe, idle, **QUICK)
    shown = {address for row in found.rows for address in (row.stage, *row.beside)}
    assert shown == {row["name"] for row in pipe.graph()}
    assert [row for row in found.rows if not (row.per_s or row.note)] == []
    assert [row for row in found.rows if row.per_s and not 0 < row.feeds_per_s < 1e12] == []
    assert 0 < found.feeds < 1e9
    assert nbpipe.runs() == ()


@pytest.mark.slow
def test_many_joined_pipelines():
    """The first of many pipelines is measured for all; the note says so."""
    pipe = nbpipe.interleave([source(20).map(double) for _ in range(6)], cycle=3)
    found = nbpipe.profile(pipe, **QUICK)
    assert measured(found) == {"0/source": [None], "0/double": [1, 2]}
    (note,) = [row.note for row in found.rows if row.stage == "interleave"]
    assert note.endswith("its first pipeline was measured for all 6")


@pytest.mark.slow
def test_worker_processes():
    """Stages that share workers are measured together, with the batch in them."""
    pipe = source(200).map(double, executor="process").map(str, executor="process").batch(4)
    found = nbpipe.profile(pipe, idle, seconds=0.1, concurrency=[1, 2])
    assert measured(found) == {"source": [None], "double": [1, 2]}
    assert [row.beside for row in found.rows if row.stage == "double"] == [("str", "batch")] * 2
    assert "it runs in processes, which have a lock each" in repr(found)


def test_batches_are_whole():
    """A step gets batches of the full size, also where few items were kept."""
    sizes = []
    pipe = source(500).map(double).batch(16)
    nbpipe.profile(pipe, lambda batch: sizes.append(len(batch)), items=10, **QUICK)
    assert set(sizes) <= {16, 500 % 16}  # the run of all stages has the last one, too
    assert sizes.count(16) > len(sizes) / 2


def test_memory_bounds_what_is_kept():
    """A pass ends when the memory is full; the note says how many results were kept."""
    pipe = source(100).map(lambda _: np.zeros(1000, np.uint8), name="load")
    found = nbpipe.profile(pipe, memory=5000, **QUICK)
    notes = [row.note for row in found.rows if row.stage == "load" and row.note]
    assert notes == ["kept 1 result: memory is full"] or "results: memory is full" in notes[0]


# -- what it leaves alone --------------------------------------------------------------------------
def test_a_function_may_change_its_item():
    """Containers are new in every call; what a function takes out is there again."""

    def make(number):
        return {"raw": number, "about": {"label": 1}}

    def parse(item):
        return item.pop("raw") + item["about"].pop("label")

    def step(batch):
        batch.pop("sum")

    pipe = source(20).map(make).map(parse).map(lambda n: {"sum": n}, name="wrap").batch(4)
    assert nbpipe.profile(pipe, step, **QUICK).complete


def test_knobs_caches_and_claims_stay_as_they_are(tmp_path):
    """No knob is turned, no cache is written, and the ranks' cursor is not moved."""
    store = nbpipe.ranks.LocalStore()
    pipe = (
        source(12).claim(store=store, chunk=2).map(double, concurrency=2).cache(tmp_path / "kept")
    )
    nbpipe.profile(pipe, **QUICK)
    assert (pipe["double"].concurrency, pipe["double"].knob("concurrency").last_change) == (2, None)
    assert not (tmp_path / "kept").exists()
    with pipe.start() as run:
        assert sorted(run) == [2 * number for number in range(12)]


def test_a_complete_cache_is_read():
    """What comes before it does not run, and is no part of the profile."""
    calls = []

    def read(number):
        calls.append(number)
        return number

    pipe = source(12).map(read).cache().map(double)
    with pipe.start() as run:
        list(run)
    calls.clear()
    found = nbpipe.profile(pipe, **QUICK)
    assert (calls, "double" in measured(found)) == ([], True)


# -- errors and interrupts -------------------------------------------------------------------------
def test_an_interrupt_before_anything_was_measured():
    """There is nothing to return: the interrupt goes to the caller."""

    def step(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nbpipe.profile(source().batch(4), step, **QUICK)
    assert nbpipe.runs() == ()


def test_an_interrupt_returns_what_there_is():
    """The profile has the figures until then, and says so."""
    batches = {}

    def step(batch):
        assert nbpipe.runs() == ()  # those of a profile are nothing to a user
        if id(batch) in batches:
            raise KeyboardInterrupt  # only the step that is measured alone has a batch again
        batches[id(batch)] = batch

    found = nbpipe.profile(source().map(double).batch(4), step, **QUICK)
    assert not found.complete
    assert measured(found) == {"source": [None], "double": [1, 2], "batch": [None]}
    assert found.verdict()[0].startswith("Interrupted")
    assert nbpipe.runs() == ()


def test_errors_of_functions_and_of_the_step_are_raised():
    """As in a run; nothing is left running."""

    def picky(number):
        raise ValueError(number)

    with pytest.raises(nbpipe.StageError, match="picky"):
        nbpipe.profile(source().map(picky), **QUICK)

    def step(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        nbpipe.profile(source(), step, **QUICK)
    assert nbpipe.runs() == ()


async def train(_):
    """Train, in a coroutine."""


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        ([[1, 2]], {}, nbpipe.ArgumentTypeError, "a pipeline, got a list; begin one with"),
        ([source(), 3], {}, nbpipe.ArgumentTypeError, "profile step must be a function, got 3"),
        ([source(), train], {}, nbpipe.ArgumentTypeError, "plain function, got an async one"),
        ([source()], {"concurrency": []}, nbpipe.ArgumentError, "list of numbers of calls"),
        ([source()], {"concurrency": 4}, nbpipe.ArgumentError, "got 4; for example (1, 2, 4, 8)"),
        ([source()], {"concurrency": [0]}, nbpipe.ArgumentError, "of at least 1 calls, got 0"),
        ([source()], {"seconds": 0}, nbpipe.ArgumentError, "profile seconds must be a number"),
        ([source()], {"items": 0}, nbpipe.ArgumentError, "profile items must be an int"),
        ([source()], {"memory": "much"}, nbpipe.ArgumentError, "memory must be a size in bytes"),
        ([source(0)], {}, nbpipe.ArgumentError, "'source' has no items"),
        (
            [source().filter(lambda n: n < 0, name="none")],
            {"seconds": 10.0},  # enough for all inputs on any machine
            nbpipe.ArgumentError,
            "'none' gave nothing for 60 of its inputs",
        ),
        (
            [source().map(double, executor="process")],
            {"concurrency": [300]},
            nbpipe.ArgumentError,
            "at most 256 calls for 'double', got 300",
        ),
    ],
)
def test_bad_input(arguments, options, error, says):
    """The message names the value and the way out."""
    with pytest.raises(error) as raised:
        nbpipe.profile(*arguments, **{**QUICK, **options})
    assert says in str(raised.value)


def test_a_run_is_refused():
    """It names what to give."""
    with source().start() as run, pytest.raises(nbpipe.ArgumentTypeError, match="started from"):
        nbpipe.profile(run)


@pytest.mark.slow
@pytest.mark.torch
def test_loaders():
    """A loader is refused with the way out, and its pipeline is measured."""
    loader = nbpipe.DataLoader(list(range(40)), batch_size=4, num_workers=2, workers="thread")
    with pytest.raises(nbpipe.ArgumentTypeError, match=r"loader\.pipeline"):
        nbpipe.profile(loader)
    found = nbpipe.profile(loader.pipeline, idle, **QUICK)
    assert measured(found) == {"indices": [None], "fetch": [1, 2]}
    assert loader.num_workers == 2


@pytest.mark.torch
def test_copies_to_a_device(torch):
    """Neighbours on a device are measured together."""
    pipe = source().map(float).batch(6).to_device("cpu")
    found = nbpipe.profile(pipe, idle, **QUICK)
    assert "to_device" in measured(found)


# -- progress --------------------------------------------------------------------------------------
def test_progress(capsys):
    """Lines name the measurement, and how long it may take; none is written to stdout."""
    before = set(threading.enumerate())
    nbpipe.profile(source().map(double), **QUICK)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("profile: one pass: source\n")
    assert shown.err.splitlines()[-1].startswith("profile: took ")
    assert set(threading.enumerate()) <= before
