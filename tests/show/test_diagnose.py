"""Diagnoses: the right stage is named, with advice that can be followed, from numbers alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbpipe
from nbpipe.base.knobs import KnobChange
from nbpipe.engine.measures.stats import RankPace, StageStats, Status
from nbpipe.ops.stage import CONSUMER, addresses
from nbpipe.show.diagnose import attended, diagnose, patient
from nbpipe.show.history import Past, Trial
from nbpipe.show.verdict.case import Case, is_crowded
from nbpipe.show.verdict.decide import decide
from nbpipe.show.verdict.diagnosis import Diagnosis
from nbpipe.show.verdict.load import loads_of
from tests.show.fakes import NOW_S, STATUS, FakeTuner, FakeWatched, photographs, read, row

RUNNING = replace(STATUS, cpu_cores=0.1, held_bytes=None, limit_bytes=None)


def chain(concurrency=4, executor=None, **options):
    """Give the stages of files > decode > batch."""
    decode = {"executor": executor} if executor else {}
    if executor != "inline":
        decode["concurrency"] = concurrency
    fn = read if executor == "coroutine" else abs
    decode["executor"] = None if executor == "coroutine" else executor
    pipe = nbpipe.source(range(9), name="files").map(fn, name="decode", **decode, **options)
    return addresses(pipe.batch(2, executor="thread").chain)


def case(rows, starved, stages=None, status=RUNNING, *, cores=8, locked=True):
    """Give a case of files > decode > batch; a row is (busy, starved, blocked)."""
    stages = chain() if stages is None else stages
    stats = {}
    for name, numbers in rows.items():
        knob = stages[name].knobs.get("concurrency")
        told = numbers if isinstance(numbers, StageStats) else row(*numbers, 100.0)
        stats[name] = replace(told, concurrency=knob.value if knob else 1)
    loads = loads_of(stages, stats, crowded=is_crowded(status, cores))
    return Case(stages, stats, starved, loads, status, cores, locked, NOW_S)


IDLE = (0.01, 0, 0.9)
STARVED = (0.02, 0.95, 0)
DECODE_LIMITS = {"files": IDLE, "decode": (0.97, 0.01, 0), "batch": STARVED}


# -- a stage is full -------------------------------------------------------------------------------


def test_full_stage_limits():
    """A stage whose slots are full is named, in the words that the documents promise."""
    found = decide(case(DECODE_LIMITS, 0.62))
    assert str(found) == (
        "decode is the bottleneck: training waits 62% of the time (busy 97%, 4 ms a call). Set "
        "concurrency to 8."
    )
    assert (found.cause, found.evidence) == ("more-calls", "busy 97%, 4 ms a call")


def test_verdict_in_html():
    """It is in lines that wrap, in the colours of the page, and all text is escaped."""
    found = Diagnosis(text="<b> failed.", evidence="a & b", advice="Write 'x'.")
    html = found._repr_html_()
    assert html.count("<div") == 4
    assert "&lt;b&gt; failed.</div>" in html
    assert 'opacity:.7">a &amp; b</div>' in html
    assert ("white-space:normal" in html, "color" in html) == (True, False)
    assert Diagnosis(text="Paused.")._repr_html_().count("<div") == 2


@pytest.mark.parametrize(
    ("starved", "batch", "machine", "concurrency", "wanted"),
    [
        (0.62, 0.02, (0.1, 8), 4, 8),  # doubled at most
        (0.62, 0.80, (0.1, 8), 4, 5),  # batch would limit next
        (0.30, 0.02, (0.1, 8), 8, 12),  # the loop takes no more
        (0.06, 0.02, (0.1, 8), 4, 5),  # one more at least
        (0.62, 0.02, (0.1, 1), 4, 8),  # calls that wait may be many,
        (0.62, 0.02, (2.0, 3), 2, 3),  # calls that compute are as many as the cores
        (0.62, 0.02, (None, 3), 2, 4),  # nothing is known of them: a raise can be undone
        (0.62, 0.02, (0.1, 8), 1000, 1024),  # the knob's own bound
    ],
)
def test_wanted_concurrency(starved, batch, machine, concurrency, wanted):
    """The suggestion brings the stage level with what limits next."""
    rows = {**DECODE_LIMITS, "batch": (batch, 1 - batch, 0)}
    status = replace(RUNNING, cpu_cores=machine[0])
    found = decide(case(rows, starved, chain(concurrency), status, cores=machine[1]))
    assert found.suggestion == ("decode", "concurrency", wanted)


READ_SLEEPS = {"files": IDLE, "read": (1, 0, 0), "decode": (0.9, 0, 0), "batch": STARVED}


def reading(concurrency, executor=None):
    """Give the stages of files > read > decode > batch."""
    pipe = nbpipe.source(range(9), name="files").map(
        read if executor else abs, name="read", concurrency=concurrency
    )
    return addresses(pipe.map(abs, name="decode", concurrency=2).batch(2).chain)


@pytest.mark.parametrize("cpu", [0.5, 1.0, 1.5, 1.75, 1.95])
def test_others_may_compute(cpu):
    """A stage that sleeps is not charged with what the loop and other stages use."""
    found = decide(case(READ_SLEEPS, 0.44, reading(12), replace(RUNNING, cpu_cores=cpu), cores=2))
    assert (found.stage, found.suggestion) == ("read", ("read", "concurrency", 14))


@pytest.mark.parametrize(
    ("cpu_share", "concurrency", "wanted", "words"),
    [
        (0.02, 2, 4, "mostly waiting"),
        (0.97, 1, 2, "mostly computing"),
        (0.97, 2, None, "Make its function cheaper: "),
        (0.25, 4, 8, "mostly waiting"),  # so many use two cores
        (0.25, 8, None, "8 calls at once are enough for 2 cores"),
    ],
)
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_measured_calls(executor, cpu_share, concurrency, wanted, words):
    """Whether calls wait or compute is measured: one decision is named, in threads and workers."""
    stages = chain(concurrency, executor)
    decode = row(0.97, 0.01, 0, 100.0, cpu_share=cpu_share)
    status = replace(RUNNING, cpu_cores=0.1)
    found = decide(case({**DECODE_LIMITS, "decode": decode}, 0.47, stages, status, cores=2))
    assert (words in str(found), "where" in found.advice) == (True, False)
    assert found.suggestion == (wanted and ("decode", "concurrency", wanted))


def test_as_many_calls_that_wait_as_use_the_cores():
    """Their number is that with which they compute on all cores, for all that they wait."""
    decode = row(0.97, 0.01, 0, 100.0, cpu_share=0.02)
    found = decide(case({**DECODE_LIMITS, "decode": decode}, 0.47, chain(64), cores=2))
    assert found.suggestion == ("decode", "concurrency", 100)


@pytest.mark.parametrize(
    ("concurrency", "cpu_share", "wanted"), [(6, 0.02, 8), (8, 0.02, None), (8, None, None)]
)
def test_calls_that_wait_in_many_processes(concurrency, cpu_share, wanted):
    """More processes than four for each core are not advised: threads may wait, too."""
    decode = row(0.97, 0.01, 0, 100.0, cpu_share=cpu_share)
    status = replace(RUNNING, called="loader.run")
    stages = chain(concurrency, "process")
    rows = {**DECODE_LIMITS, "decode": decode}
    found = decide(case(rows, 0.9, stages, cores=2))
    assert found.suggestion == (wanted and ("decode", "concurrency", wanted))
    many = ("many-processes", True)
    seen = (found.cause, "8 processes on 2 cores" in found.evidence)
    assert (seen == many) == (cpu_share is not None and not wanted)
    assert (
        wanted
        or cpu_share is None
        or 'workers="thread"' in str(decide(case(rows, 0.9, stages, status, cores=2)))
    )


def test_batches_that_wait_in_many_processes():
    """A batch without workers is one call at a time: what waits goes into a stage of threads."""
    stages = addresses(
        nbpipe.source(range(9), name="files").batch(2, executor="process", concurrency=8).chain
    )
    batch = row(0.97, 0.01, 0, 100.0, cpu_share=0.02)
    found = decide(case({"files": IDLE, "batch": batch}, 0.9, stages, cores=2))
    assert "8 processes on 2 cores" in found.evidence
    assert (found.cause, found.code) == ("many-processes", "collate=list")


def test_workers_fill_the_machine():
    """What worker processes compute counts where it is told that the machine is full."""
    decode = row(0.97, 0.01, 0, 100.0, cpu_share=0.9)
    rows = {**DECODE_LIMITS, "decode": decode}
    found = decide(case(rows, 0.9, chain(2, "process"), cores=2))
    assert (found.cause, "1.8 of 2 cores in use" in found.evidence) == ("full-machine", True)


@pytest.mark.parametrize("cpu", [1.3, 1.5, 1.75, 1.9])
@pytest.mark.parametrize("concurrency", [2, 4, 6])
def test_computes_on_a_shared_machine(cpu, concurrency):
    """Calls that compute gain nothing beyond the cores, however much others use of those."""
    status = replace(RUNNING, cpu_cores=cpu)
    found = decide(case(DECODE_LIMITS, 0.9, chain(concurrency), status, cores=2))
    assert (found.stage, found.suggestion, "cheaper" in found.advice) == ("decode", None, True)


@pytest.mark.parametrize("executor", ["thread", "process", "dask"])
@pytest.mark.parametrize(
    ("idle", "half", "words"),
    [
        (0.05, 0.96, "mostly computing"),
        (0.05, 0.05, "Set concurrency to 8."),  # the median call waits
        (1.2, 0.96, "Set concurrency to 8."),  # no one is in the way: calls wait on their own
        (None, 0.96, "Set concurrency to 8."),
    ],
)
def test_others_fill_the_machine(executor, idle, half, words):
    """Where others use all cores, calls that compute wait for them, and more are no help."""
    status = replace(RUNNING, cpu_cores=0.5, idle_cores=idle)
    decode = row(0.97, 0.01, 0, 100.0, cpu_share=0.2, cpu_share_p50=half)
    found = decide(
        case({**DECODE_LIMITS, "decode": decode}, 0.9, chain(4, executor), status, cores=2)
    )
    full = words == "mostly computing" and executor != "dask"  # a cluster has other cores
    assert (words in str(found), "used by other programs" in found.evidence) == (True, full)
    assert (found.suggestion is None, found.cause == "full-machine") == (full, full)


@pytest.mark.parametrize(
    ("cpu_share", "concurrency", "knob", "old", "advice"),
    [
        (
            0.02,
            4,
            "concurrency",
            8,
            "calls wait for: concurrency 8 was no faster.",
        ),
        (0.9, 4, "concurrency", 8, "Make its function cheaper: concurrency 8 was no faster."),
        (
            0.001,
            1024,
            "prefetch",
            8,
            "Speed up what its calls wait for: concurrency 1024 is the maximum.",
        ),
    ],
)
def test_what_is_left_where_more_calls_do_not_help(cpu_share, concurrency, knob, old, advice):
    """A stage whose calls wait is not told to compute less."""
    decode = row(0.97, 0.01, 0, 100.0, cpu_share=cpu_share)
    one = case({**DECODE_LIMITS, "decode": decode}, 0.9, chain(concurrency))
    found = decide(one._replace(past=tried("decode", knob, concurrency, old)))
    assert (found.suggestion, advice in found.advice) == (None, True)


def tried(stage, knob, value, other):
    """Give a past in which another value of a knob gave no more, all others being as they are."""
    past = Past(photographs(), list)
    past.trials = [Trial(stage, knob, other, value, 100.0, 100.0, sure=False, others={})]
    return past


def test_time_of_a_flat_map():
    """Its calls give many items: what a call takes is told, not the median time of an item."""
    pipe = nbpipe.source(range(9), name="files").flat_map(lambda _: [1, 2], name="parts")
    parts = row(0.96, 0, 0, 200.0, items_in=3300, latency_p50_s=2e-6)
    found = decide(case({"files": IDLE, "parts": parts}, 0.9, addresses(pipe.chain)))
    assert found.stage == "parts"
    assert found.evidence.startswith("busy 96%, 9.6 ms a call on average")


@pytest.mark.parametrize(
    ("concurrency", "busy", "threads", "p50_s", "words"),
    [
        (4, 0.25, 4, 0.02, "Set concurrency to 8."),  # workers wait for what is on its way
        (8, 0.45, 4, 0.02, "Give the cluster more workers."),
        (8, 0.1, 4, 0.02, "Give each call more work: "),  # they do not have much to do
        (4, 0.25, 4, 0.0002, "Give each call more work: "),
        (4, 0.25, 0, 0.02, "Give the cluster more workers."),  # how many there are is not known
    ],
)
def test_the_way_to_a_cluster(concurrency, busy, threads, p50_s, words):
    """More calls at once hide the way, until the workers are full."""
    decode = row(busy, 0.01, 0, 100.0, latency_p50_s=p50_s, worker_threads=threads)
    found = decide(
        case({"files": IDLE, "decode": decode, "batch": STARVED}, 0.9, chain(concurrency, "dask"))
    )
    seen = "on the way to and from its workers" in found.evidence
    assert (found.stage, seen, words in found.advice) == ("decode", True, True)


def test_event_loop_uses_one_core_at_most():
    """Many calls in progress on an event loop leave the processor to others."""
    stages = reading(64, "coroutine")
    rows = {**READ_SLEEPS, "read": (0.5, 0, 0.5), "decode": (0.99, 0, 0)}
    found = decide(case(rows, 0.95, stages, replace(RUNNING, cpu_cores=2.9), cores=4))
    assert found.suggestion == ("decode", "concurrency", 4)


def test_upper_of_equals():
    """Of two full stages the upper one is named: the lower one does not hold it back."""
    stages = addresses(
        nbpipe.source([1]).map(abs, name="one").map(abs, name="two", concurrency=2).chain
    )
    rows = {"source": IDLE, "one": (0.985, 0, 0), "two": (0.99, 0, 0)}
    assert decide(case(rows, 0.5, stages)).stage == "one"


@pytest.mark.parametrize(
    ("machine", "concurrency", "cause", "words"),
    [
        ((1.05, 8, True), 4, "lock", "its threads share one core because of the interpreter lock"),
        ((1.05, 8, False), 4, "more-calls", "Set concurrency to 8."),
        ((1.05, 8, True), 1, "more-calls", "Set concurrency to 2."),  # one thread may hold the lock
        ((3.4, 8, True), 4, "more-calls", "Set concurrency to 8."),
        ((0.1, 8, True), 4, "more-calls", "Set concurrency to 8."),
        ((7.6, 8, True), 4, "full-machine", "7.6 of 8 cores in use"),
        ((0.98, 1, True), 4, "full-machine", "1.0 of 1 cores in use"),
        ((2.0, 4, True), 16, "enough-calls", "16 calls at once are enough for 4 cores"),
    ],
)
def test_when_more_threads_help(machine, concurrency, cause, words):
    """More threads are suggested only where they can help; else why not."""
    cpu, cores, locked = machine
    status = replace(RUNNING, cpu_cores=cpu)
    # The core is used by decode alone: the loop does next to nothing.
    found = decide(
        case(DECODE_LIMITS, 0.95, chain(concurrency), status, cores=cores, locked=locked)
    )
    assert (found.cause, words in str(found), found.stage) == (cause, True, "decode")
    assert (found.suggestion is not None) == (cause == "more-calls")


@pytest.mark.parametrize(
    ("cpu", "idle", "lock_share", "held"),
    [
        (1.0, 1.0, 0.7, True),
        (0.6, 0.05, 0.7, True),  # others fill the machine: they get less than a core
        (0.35, 0.0, 0.5, True),
        (0.6, 1.0, 0.7, False),  # a core is free: the thread with the lock would use one
        (1.0, 1.0, 0.05, False),  # one core is used, and no call waits for the lock
        (0.6, 0.05, 0.05, False),
    ],
)
@pytest.mark.parametrize("called", ["run", "loader.run"])
def test_waits_for_the_lock_are_measured(cpu, idle, lock_share, held, called):
    """Threads that take turns are told so on a busy machine too, and never to try more calls."""
    decode = row(0.97, 0.01, 0, 100.0, cpu_share=0.96, cpu_share_p50=0.98, lock_share=lock_share)
    status = replace(RUNNING, cpu_cores=cpu, idle_cores=idle, called=called)
    found = decide(case({**DECODE_LIMITS, "decode": decode}, 0.9, chain(4), status, cores=2))
    waits = f"{lock_share:.0%} of it waiting for the interpreter lock" in found.evidence
    process = 'executor="process"' if called == "run" else 'workers="process"'
    assert (found.cause == "lock", found.code == process) == (held, held)
    assert (waits, found.suggestion) == (held, None)


def test_threads_that_use_more_than_a_core_may_wait_for_the_lock():
    """Functions that hold it for a part of their time end at as many threads as that allows."""
    decode = row(0.97, 0.01, 0, 100.0, cpu_share=0.97, lock_share=0.5)
    status = replace(RUNNING, cpu_cores=4.8, idle_cores=11.0)
    found = decide(case({**DECODE_LIMITS, "decode": decode}, 0.9, chain(14), status, cores=16))
    assert found.evidence.endswith("its threads wait for the interpreter lock")
    assert (found.cause, found.suggestion) == ("lock", None)


def test_calls_that_wait_for_the_lock_of_another():
    """A stage that hardly computes is not blamed for the lock: it has its threads to wait."""
    decode = row(0.97, 0.01, 0, 100.0, cpu_share=0.05, lock_share=0.4)
    status = replace(RUNNING, cpu_cores=1.0, idle_cores=1.0)
    found = decide(case({**DECODE_LIMITS, "decode": decode}, 0.6, chain(4), status, cores=2))
    assert found.suggestion == ("decode", "concurrency", 8)


@pytest.mark.parametrize("lock_share", [0.1, 0.4])
@pytest.mark.parametrize("where", ["files", "inline"])
def test_one_call_at_a_time_may_wait_for_the_lock(where, lock_share):
    """A source, or an inline stage in it, that waits for the lock is not said to wait for data."""
    told = row(0.97, 0.01, 0, 100.0, cpu_share=0.96, lock_share=lock_share)
    rows = {"files": told, "decode": STARVED, "batch": STARVED}
    status = replace(RUNNING, cpu_cores=1.0, idle_cores=0.0)
    stages = chain(executor="inline") if where == "inline" else chain()
    found = decide(case(rows, 0.9, stages, status, cores=2))
    assert ("mostly computing" in found.evidence, found.suggestion) == (True, None)


def test_other_stage_may_use_the_core():
    """Where another stage may be what uses the one core, the lock is not blamed."""
    rows = {**DECODE_LIMITS, "batch": (0.8, 0.2, 0)}
    found = decide(case(rows, 0.9, status=replace(RUNNING, cpu_cores=1.0)))
    assert (found.suggestion, found.cause) == (("decode", "concurrency", 5), "more-calls")


@pytest.mark.parametrize(
    ("decode", "cpu", "idle"),
    [
        ((0.97, 0.01, 0), 1.0, None),
        ((0.12, 0, 0.18), 1.0, 6.5),
        ((0.12, 0, 0.18), 0.4, 0.1),  # others have the rest
    ],
)
def test_coroutines_that_compute(decode, cpu, idle):
    """An async stage that uses a whole core computes on the event loop; its calls wait for it."""
    stages = chain(16, "coroutine")
    rows = {**DECODE_LIMITS, "decode": decode}
    status = replace(RUNNING, cpu_cores=cpu, idle_cores=idle)
    found = decide(case(rows, 0.97, stages, status))
    assert (found.stage, found.cause, found.suggestion) == ("decode", "event-loop", None)
    assert ("event loop" in found.evidence, "ordinary function" in found.advice) == (True, True)


@pytest.mark.parametrize(
    ("full", "cause", "words"),
    [
        ("files", "source", "give paths or indices"),
        ("batch", "batch", 'executor="process". They take seconds to start'),
    ],
)
def test_full_stage_without_concurrency(full, cause, words):
    """A source or a batch that limits gets advice of another kind."""
    rows = {"files": STARVED, "decode": STARVED, "batch": STARVED, full: (0.98, 0.01, 0)}
    found = decide(case(rows, 0.8))
    assert (found.stage, found.cause, found.suggestion) == (full, cause, None)
    assert words in found.advice


def test_batches_of_a_budget_are_not_sent_to_workers():
    """Which refuse them: what costs time is moved into stages around them."""
    pipe = nbpipe.source(range(9), name="files").batch(4, cost=abs)
    found = decide(case({"files": IDLE, "batch": (0.98, 0.01, 0)}, 0.9, addresses(pipe.chain)))
    assert (found.stage, found.suggestion, found.code) == ("batch", None, "")
    assert (found.cause, "in a map stage before it" in found.advice) == ("batch", True)


SHORT_CALLS = row(0.1, 0.0, 0, 100.0, latency_p50_s=2e-4)


@pytest.mark.parametrize(
    ("rows", "executor", "cpu", "advice"),
    [
        ((0.97, 0.01, 0), "thread", 1.0, 'Run it in worker processes: workers="process". '),
        (SHORT_CALLS, "process", 0.1, "Give each call more work: a larger batch_size."),
    ],
)
def test_advice_on_a_loader_is_of_its_arguments(rows, executor, cpu, advice):
    """Which has no `executor=`, and whose stages nobody writes."""
    stages = chain(4, executor)
    status = replace(RUNNING, cpu_cores=cpu, called="loader.run")
    found = decide(case({**DECODE_LIMITS, "decode": rows}, 0.97, stages, status))
    assert (found.stage, found.advice[: len(advice)]) == ("decode", advice)


def test_advice_on_the_source_of_a_loader():
    """It is a sampler, or a dataset that one reads."""
    status = replace(RUNNING, called="loader.run")
    found = decide(case({"files": (0.98, 0.01, 0), "decode": STARVED}, 0.9, status=status))
    assert (found.stage, "IterableDataset" in found.advice) == ("files", True)


def test_inline_stage_counts_with_its_host():
    """An inline stage has no slots: its time is its host's, and so is the knob to turn."""
    pipe = nbpipe.source([1], name="files").map(abs, name="read", concurrency=4)
    stages = addresses(pipe.map(abs, name="crop", executor="inline").chain)
    rows = {"files": IDLE, "read": (0.05, 0, 0), "crop": (1.0, 0, 0)}
    found = decide(case(rows, 0.5, stages))
    assert (found.stage, found.suggestion) == ("crop", ("read", "concurrency", 8))
    assert (found.cause, found.advice) == ("more-calls", "Set read.concurrency to 8.")


def test_inline_stage_inside_a_source():
    """A source has no concurrency: the inline stage wants threads of its own."""
    stages = chain(executor="inline")
    found = decide(case({"files": (0.01, 0, 0), "decode": (0.99, 0, 0)}, 0.9, stages))
    assert (found.stage, found.code) == ("decode", "executor='thread', concurrency=2")
    assert (found.cause, "runs inside files" in found.evidence) == ("inline", True)


def test_turned_just_now():
    """While the last turn of a knob does not show in the stats, nothing more is suggested."""
    stages = chain()
    knob = stages["decode"].knobs["concurrency"]
    knob._last = KnobChange(NOW_S - 2, "decode.concurrency", 2, 4, "panel", "")
    looked = case(DECODE_LIMITS, 0.62, stages)
    found = patient(looked, decide(looked))
    assert (found.stage, found.suggestion, found.cause) == ("decode", None, "just-turned")
    assert "decode.concurrency has just changed" in found.advice


@pytest.mark.parametrize("stage", ["decode", "other"])
def test_a_tuner_works_on_it(stage):
    """The bottleneck is named; what the tuner turns is not suggested, what it leaves alone is."""
    looked = case(DECODE_LIMITS, 0.62, chain())
    found = replace(decide(looked), suggestion=(stage, "concurrency", 4))
    told = attended(FakeWatched(tuner=FakeTuner()), found)
    assert (told.stage, told.text) == ("decode", found.text)
    if stage == "other":
        assert told == found
    else:
        assert (told.suggestion, told.cause) == (None, "autotune")
        assert told.advice == "Autotune is working on it: searching decode."
    assert attended(FakeWatched(), found) == found


# -- no stage is full ------------------------------------------------------------------------------


def test_data_keeps_up():
    """A loop that hardly waits is what one wants, whatever the stages do."""
    found = decide(case(DECODE_LIMITS, 0.02))
    assert str(found) == "The data keeps up: training waits 2% of the time."
    assert (found.stage, found.kind) == (CONSUMER, "keeps_up")


@pytest.mark.parametrize(
    ("options", "p95_s", "suggestion"),
    [({}, 0.4, ("decode", "prefetch", 32)), ({"ordered": False}, 0.4, None)],
)
def test_stragglers(options, p95_s, suggestion):
    """Blocked, while the next stage has no input: a slow call holds back the order."""
    slow = row(0.2, 0, 0.8, 50.0, latency_p95_s=p95_s)
    rows = {"files": IDLE, "decode": slow, "batch": STARVED}
    found = decide(case(rows, 0.9, chain(**options)))
    assert (found.stage, found.suggestion) == (suggestion and "decode", suggestion)
    assert (found.cause == "slow-calls") == (suggestion is not None)


def test_stragglers_without_a_knob_that_helps():
    """Order is what holds results back: without it, or with quicker items, they come sooner."""
    slow = row(0.2, 0, 0.8, 50.0, latency_p95_s=0.4)
    rows = {"files": IDLE, "decode": slow, "batch": STARVED}
    stages = chain(prefetch=65_536)
    found = decide(case(rows, 0.9, stages))
    assert (found.cause, found.suggestion, found.code) == ("slow-calls", None, "ordered=False")
    loader = decide(case(rows, 0.9, stages, replace(RUNNING, called="loader.run")))
    assert (loader.cause, loader.code, "dataset" in loader.advice) == ("slow-calls", "", True)


def test_bursts():
    """Blocked at one time, starved at another: the last buffer is to bridge it."""
    rows = {"files": IDLE, "decode": (0.2, 0, 0.8), "batch": (0.01, 0.16, 0.8)}
    found = decide(case(rows, 0.16))
    assert (found.stage, found.suggestion) == (None, ("batch", "prefetch", 8))
    assert (found.cause, "80%" in found.evidence) == ("bursts", True)
    assert found.advice == "Set batch.prefetch to 8."


@pytest.mark.parametrize(
    ("rows", "starved"),
    [
        ({"files": (0.01, 0, 0.95), "decode": (0.4, 0, 0), "batch": STARVED}, 1.0),
        ({"files": IDLE, "decode": (0.2, 0, 0.8), "batch": (0.01, 0.04, 0.95)}, 0.97),
    ],
)
def test_full_buffers_above_are_no_bursts(rows, starved):
    """A loop that waits all the time is not helped by a deeper last buffer."""
    found = decide(case(rows, starved))
    assert (found.suggestion, found.cause == "bursts") == (None, False)


def test_calls_that_wait_for_a_core():
    """Where others use the machine, calls that could run and do not wait for a core."""
    status = replace(RUNNING, cpu_cores=0.2, idle_cores=0.1)
    rows = {"files": (0.01, 0, 0.95), "decode": (0.4, 0, 0), "batch": STARVED}
    found = decide(case(rows, 1.0, status=status, cores=2))
    assert str(found) == (
        "decode waits for a free core: training waits 100% of the time (1.7 of 2 cores used by "
        "other programs). Look again when less runs on this machine."
    )
    assert (found.stage, found.cause) == ("decode", "no-core")


def test_bursts_that_a_deeper_buffer_did_not_bridge():
    """What gave no more is not advised again."""
    rows = {"files": IDLE, "decode": (0.2, 0, 0.8), "batch": (0.01, 0.16, 0.8)}
    stages = chain()
    value = stages["batch"].knobs["prefetch"].value
    one = case(rows, 0.16, stages)._replace(past=tried("batch", "prefetch", value, 8))
    found = decide(one)
    assert (found.stage, found.suggestion, found.advice) == (
        None,
        None,
        "Make the pauses of the training loop shorter. A prefetch of 8 made no difference.",
    )


def test_memory_budget():
    """Calls that could run, and do not for want of memory, are named."""
    status = replace(RUNNING, held_bytes=20_000_000, limit_bytes=30_000_000)
    rows = {"files": (0, 0, 0.9), "decode": (0.4, 0, 0), "batch": STARVED}
    found = decide(case(rows, 0.9, status=status))
    assert (found.stage, found.cause) == ("decode", "memory")
    assert "budget 30 MB" in found.evidence
    assert found.code == 'memory="60MB"'


@pytest.mark.parametrize(("item_bytes", "stage"), [(4_000_000, "decode"), (4_000, None)])
def test_memory_budget_of_few_results(item_bytes, stage):
    """Short calls wait for a thread now and then, but not where a few results fill the budget."""
    status = replace(RUNNING, held_bytes=20_000_000, limit_bytes=30_000_000)
    decode = row(0.1, 0, 0, 100.0, latency_p50_s=0.0005, bytes_out=3300 * item_bytes)
    rows = {"files": (0, 0, 0.9), "decode": decode, "batch": STARVED}
    found = decide(case(rows, 0.9, status=status))
    assert (found.stage, found.cause == "memory") == (stage, stage is not None)


def test_rather_busy_stage():
    """Without another reason, a stage that is rather busy limits."""
    rows = {"files": IDLE, "decode": (0.7, 0.3, 0), "batch": STARVED}
    assert decide(case(rows, 0.5)).suggestion == ("decode", "concurrency", 6)


def test_a_loader_is_advised_in_its_arguments():
    """The stage that a loader makes has knobs that are set by the loader's arguments."""
    rows = {"files": IDLE, "decode": (0.7, 0.3, 0), "batch": STARVED}
    found = decide(case(rows, 0.5, status=replace(RUNNING, called="loader.run")))
    assert found.advice == "Set num_workers to 6."


def test_prefetch_of_a_loader_is_its_prefetch_factor():
    """It counts batches for each worker."""
    slow = row(0.2, 0, 0.8, 50.0, latency_p95_s=0.4)
    pipe = nbpipe.source(range(9), name="files").map(abs, name="fetch", concurrency=4)
    status = replace(RUNNING, called="loader.run")
    found = decide(case({"files": IDLE, "fetch": slow}, 0.9, addresses(pipe.chain), status))
    value = found.suggestion[2]
    assert found.suggestion[:2] == ("fetch", "prefetch")
    assert found.advice == f"Set prefetch_factor to {-(-value // 4)}."


def test_nothing_stands_out():
    """Where no rule fits, that is said."""
    rows = {"files": (0, 1, 0), "decode": (0, 1, 0), "batch": (0, 1, 0)}
    found = decide(case(rows, 0.5))
    assert (found.stage, found.cause) == (None, "changing")
    assert str(found) == (
        "No stage is the bottleneck for long: training waits 50% of the time. Look again in a few "
        "seconds."
    )


def test_verdict_of_an_epoch_that_is_over():
    """It is in the past, and names the share of the last seconds, and that of the whole epoch."""
    status = replace(RUNNING, state="finished", waited_s=10.0, elapsed_s=40.0)
    waited = decide(case(DECODE_LIMITS, 0.62, status=status)).after("finished")
    assert str(waited) == (
        "Finished. decode was the bottleneck: training waited 62% of the time in the last seconds, "
        "25% in the whole epoch (busy 97%, 4 ms a call). Set concurrency to 8."
    )
    kept_up = decide(case(DECODE_LIMITS, 0.02, status=status)).after("stopped")
    assert kept_up.text.startswith("Stopped. The data kept up: training waited 2% of the time")


@pytest.mark.parametrize(
    ("advice", "code"),
    [
        (
            'Run it in worker processes: executor="process". They take seconds to start.',
            'executor="process"',
        ),
        ("Give it threads: executor='thread', concurrency=2.", "executor='thread', concurrency=2"),
        ("Set num_workers=2: from then on, workers make them.", "num_workers=2"),
        ("Write on_error=nbpipe.Retry(2) to try such items again.", "on_error=nbpipe.Retry(2)"),
        ("Run it in threads: leave out executor=.", ""),
        ("Make its function cheaper.", ""),
    ],
)
def test_advice_that_is_code(advice, code):
    """Advice that no knob can carry out names the arguments to write."""
    assert Diagnosis(text="", advice=advice).code == code
    assert not Diagnosis(text="", advice=advice, suggestion=("decode", "concurrency", 2)).code


# -- whatever the numbers --------------------------------------------------------------------------

SHARES = st.tuples(*[st.floats(0, 1)] * 4).map(lambda s: [x / max(1e-9, sum(s)) for x in s])
ROWS = st.builds(
    lambda s, rate, p50, ratio, items, cpu_share, lock_share: StageStats(
        items_out=items,
        cpu_share=cpu_share,
        lock_share=lock_share,
        cpu_share_p50=cpu_share and min(1.0, ratio * cpu_share),
        items_per_s=rate,
        busy=s[0],
        starved=s[1],
        blocked=s[2],
        waiting=s[3],
        latency_p50_s=p50,
        latency_p95_s=p50 * ratio,
    ),
    SHARES,
    st.floats(0, 1e7),
    st.sampled_from([0.0, 1e-7, 0.004, 10.0]),
    st.floats(1, 1e9),
    st.integers(0, 1000),
    st.none() | st.floats(0, 1),
    st.none() | st.floats(0, 1),
)
STATUSES = st.builds(
    Status,
    state=st.sampled_from(["running", "finished", "failed", "paused", "ready", "closed"]),
    epoch=st.integers(0, 3),
    epochs=st.none(),
    delivered=st.integers(0, 100),
    total=st.none(),
    units=st.just({}),
    elapsed_s=st.floats(0, 1e6),
    waited_s=st.floats(0, 1e6),
    cpu_cores=st.none() | st.floats(0, 256),
    idle_cores=st.none() | st.floats(0, 256),
    error=st.text(max_size=40),
    held_bytes=st.none(),
    limit_bytes=st.none() | st.integers(0, 10**12),
)


@given(st.data())
def test_whatever_the_numbers(data):
    """A diagnosis never raises, names a stage that exists and a value its knob would take."""
    run = photographs()
    run.now = data.draw(STATUSES)
    for name in run.rows:
        told = data.draw(ROWS)
        knob = None if name == CONSUMER else run.stages[name].knobs.get("concurrency")
        run.rows[name] = replace(told, concurrency=knob.value if knob else 1)
    found = diagnose(run)
    assert found.stage in (None, CONSUMER, *run.stages)
    if found.suggestion is not None:
        stage, name, value = found.suggestion
        knob = run.stages[stage].knobs[name]
        assert found.kind == "slower" or knob.value < value <= min(knob.maximum, 4 * knob.value)


def placed(*names, concurrency=2):
    """Stages that share their workers, by name."""
    chain = nbpipe.source(range(3), name="files")
    for number, name in enumerate(names):
        first = {"concurrency": concurrency} if number == 0 else {}
        chain = chain.map(str, name=name, executor="process", **first)
    return {stage.name: stage for stage in chain.stages}


def test_stages_that_share_workers_are_one_load():
    """Their busy times add up; the slowest is named, and the limit they share is suggested."""
    stages = placed("decode", "augment")
    rows = {"decode": row(0.7, 0.3, 0.0, 100.0), "augment": row(0.28, 0.01, 0.0, 100.0)}
    rows = {name: replace(one, concurrency=2) for name, one in rows.items()}
    (load,) = loads_of(stages, rows)
    assert (load.address, load.host, round(load.share, 2)) == ("decode", "decode", 0.99)


@pytest.mark.parametrize(
    ("stages", "name", "words"),
    [
        ({"decode": {}}, "decode", "in shared memory: copy=False."),
        ({"decode": {}, "batch": {}}, "batch", "copy=False in decode."),
        ({"decode": {"copy": False}, "batch": {}}, "batch", "Give smaller results, or run it in"),
        ({"batch": {}}, "batch", "Give smaller results, or run it in threads: leave out executor="),
    ],
)
def test_large_results_of_workers(stages, name, words):
    """What helps is an argument that the stage has, and that was not given yet."""
    pipe = nbpipe.source(range(9), name="files")
    if "decode" in stages:
        pipe = pipe.map(abs, name="decode", executor="process", **stages["decode"])
    if "batch" in stages:
        pipe = pipe.batch(4, executor="process")
    rows = {one: (0.1 * (one == name), 0.0, 0.0) for one in stages}
    told = {one: row(*numbers, 100.0, latency_p50_s=2e-4) for one, numbers in rows.items()}
    last = list(stages)[-1]
    told[last] = replace(told[last], bytes_out=told[last].items_out << 20)
    found = decide(case({"files": IDLE, **told}, 0.9, addresses(pipe.chain)))
    assert (found.stage, found.cause, words in found.advice) == (name, "sending", True)


def test_the_way_to_a_worker_is_named():
    """Where calls are short, it is the way that takes the time; more workers are no help."""
    stages = placed("decode")
    (load,) = loads_of(stages, {"decode": row(0.2, 0.0, 0.0, 100.0)})
    assert (round(load.share, 2), round(load.away, 2)) == (1.0, 0.8)


# -- ranks -----------------------------------------------------------------------------------------
CALM = {"starved": 0.01, "busy": 0.99}


@pytest.mark.parametrize(
    ("waits", "rates", "cause"),
    [
        ([0.01, 0.31, 0.01], [20, 20, 20.5], "rank"),
        ([0.01, 0.31, 0.2], [20, 20, 20], "keeps-up"),  # two of three wait
        ([0.01, 0.04, 0.0], [20, 20, 20], "keeps-up"),
        ([0.01, 0.31, 0.01], [40, 20, 40], "keeps-up"),  # each at its own pace
        ([0.01], [20], "keeps-up"),
        ([0.6, 0.01, 0.01], [20, 20, 20], "keeps-up"),  # this rank itself, some seconds ago
    ],
)
def test_the_rank_that_the_others_wait_for(waits, rates, cause):
    """One rank that waits, where all take as many batches a second, sets the pace."""
    paces = [RankPace(*one) for one in zip(range(3), waits, rates, strict=False)]
    run = photographs(rank=0, world_size=8, ranks=tuple(paces))
    run.rows["consumer"] = replace(run.rows["consumer"], **CALM)
    found = diagnose(run)
    assert found.cause == cause
    if cause == "rank":
        assert str(found) == (
            "Rank 1 of 8 sets the pace: it waits 31%, the others 1% (the ranks take their steps "
            "together). Look at run.diagnose() of rank 1."
        )


@pytest.mark.parametrize(("starved", "cause"), [(0.1, "rank"), (0.3, "more-calls")])
def test_a_rank_that_waits_a_little_itself(starved, cause):
    """It waits for the other one, unless its own data takes much of the time."""
    paces = tuple(RankPace(rank, (0.1, 0.8)[rank], 13.1) for rank in range(2))
    run = photographs(rank=0, world_size=2, ranks=paces)
    run.rows["consumer"] = replace(run.rows["consumer"], starved=starved, busy=1 - starved)
    assert diagnose(run).cause == cause


def test_the_rank_that_sets_the_pace_is_told_why():
    """What limits it is the verdict; that the others wait for it is evidence."""
    paces = tuple(RankPace(rank, 0.6 * (rank == 1), 13.1) for rank in range(4))
    found = diagnose(photographs(rank=1, world_size=4, ranks=paces))
    assert found.text.startswith("decode is the bottleneck: ")
    assert found.evidence.endswith(", rank 1 of 4 sets the pace, the others wait 0%")
