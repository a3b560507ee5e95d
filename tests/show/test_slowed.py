"""What is said of a loop whose steps are longer beside its workers than without them."""

from dataclasses import replace

import pytest

import nbpipe
from nbpipe.engine.measures.stats import StageStats
from nbpipe.ops.stage import CONSUMER, addresses
from nbpipe.show.diagnose import diagnose
from nbpipe.show.verdict.case import Case, is_crowded
from nbpipe.show.verdict.decide import decide
from nbpipe.show.verdict.load import loads_of
from nbpipe.show.verdict.slowed import slowed
from tests.show.fakes import NOW_S, STATUS, FakeWatched, photographs, read, row

SLOWED = replace(
    STATUS, step_s=0.097, step_at_rest_s=0.03, slowed_by="lock", held_bytes=None, limit_bytes=None
)
BUSY, IDLE = (0.6, 0.1, 0.3), (0.01, 0.1, 0.89)


def stages(*, batch="thread", **decode):
    """Give the stages of files > decode > batch."""
    fn = read if decode.pop("is_async", False) else abs
    pipe = nbpipe.source(range(9), name="files").map(fn, name="decode", **decode)
    return addresses(pipe.batch(2, executor=batch).chain)


def case(given, rows=None, status=SLOWED, starved=0.01):
    """Give a case of these stages; a row is (busy, starved, blocked), or more."""
    told = {"files": IDLE, "decode": BUSY, "batch": IDLE, **(rows or {})}
    stats = {}
    for name, numbers in told.items():
        knob = given[name].knobs.get("concurrency")
        one = numbers if isinstance(numbers, StageStats) else row(*numbers, 100.0)
        stats[name] = replace(one, concurrency=knob.value if knob else 1)
    loads = loads_of(given, stats, crowded=is_crowded(status, 8))
    return Case(given, stats, starved, loads, status, 8, locked=True, now_s=NOW_S)


TEXT = "Data loading slows training: a step takes 97 ms, and 30 ms while workers rest."
APART = "Start with isolate=True. Its process takes seconds to start, and copies each batch once."
JOINED = (
    'Make batches in its workers too, with executor="process". The first batch then comes later.'
)
PRICE = "They take seconds to start and the memory of an interpreter each."


def test_threads_that_hold_the_lock():
    """The stage whose threads compute is named, with the line that helps and its price."""
    found = slowed(case(stages(concurrency=4)))
    assert (found.text, found.evidence) == (TEXT, "threads of decode hold the interpreter lock")
    assert found.advice == f'Run decode in worker processes: executor="process". {PRICE}'
    assert (found.stage, found.kind, found.severity) == (CONSUMER, "slows", "warning")
    assert found.code == 'executor="process"'


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ({"files": BUSY, "decode": IDLE}, "files"),  # a source has no workers
        ({"decode": row(*BUSY, 100.0, cpu_share=0.01), "files": (0.2, 0, 0)}, "files"),  # it waits
    ],
)
def test_source_that_holds_the_lock(rows, named):
    """What cannot be done in workers is done apart with all the rest."""
    found = slowed(case(stages(concurrency=4), rows))
    assert (f"threads of {named} hold" in found.evidence, found.advice) == (True, APART)


def test_event_loop_that_holds_the_lock():
    """Calls on the event loop compute in one thread of the run's process."""
    found = slowed(case(stages(is_async=True)))
    assert ("threads of decode hold" in found.evidence, found.advice) == (True, APART)


@pytest.mark.parametrize(
    ("batch", "advice"),
    [
        (
            "thread",
            JOINED,
        ),
        ("process", APART),
    ],
)
def test_messages_that_hold_the_lock(batch, advice):
    """Where no thread computes, those that serve worker processes are named."""
    given = stages(batch=batch, executor="process", concurrency=4)
    found = slowed(case(given))
    text = "threads that serve the workers of decode hold the interpreter lock"
    assert (text in found.evidence, found.advice) == (True, advice)


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({}, {}, 'executor="process"'),
        ({"is_async": True}, {}, "isolate=True"),
        ({"executor": "process"}, {}, 'executor="process"'),
        ({}, {"called": "loader.run"}, 'workers="process"'),
    ],
)
def test_line_that_helps_can_be_copied(options, status, code):
    """The panel offers what the advice would write in the cell."""
    assert slowed(case(stages(**options), status=replace(SLOWED, **status))).code == code


def test_cores_that_workers_take():
    """Fewer calls are advised, as many as are busy; one fewer at least."""
    status = replace(SLOWED, slowed_by="cores")
    given = stages(executor="process", concurrency=8)
    found = slowed(case(given, status=status))
    assert found.suggestion == ("decode", "concurrency", 5)
    assert (found.text, found.cause) == (TEXT, "slowed-by-cores")
    assert found.advice == "Set decode.concurrency to 5. Fewer batches are then ready."
    busy = slowed(case(stages(concurrency=4), {"decode": (0.99, 0, 0)}, status))
    assert busy.suggestion == ("decode", "concurrency", 3)


def test_cores_that_one_call_takes():
    """With one call at a time there is none to leave out."""
    found = slowed(case(stages(), status=replace(SLOWED, slowed_by="cores")))
    assert (found.suggestion, found.advice) == (
        None,
        "Make a function cheaper, or use a machine with more cores.",
    )


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("unknown", "Lower the concurrency of its stages. Fewer batches are then ready."),
        ("lock", "Make batches larger: its process then sends fewer messages."),
    ],
)
def test_isolated_pipeline_that_slows_the_loop(cause, advice):
    """Its threads hold another interpreter's lock."""
    isolated = replace(SLOWED, slowed_by=cause, isolated=("files", "decode", "batch"))
    found = slowed(case(stages(concurrency=4), status=isolated))
    assert (found.text, found.evidence, found.advice) == (TEXT, "", advice)


@pytest.mark.parametrize(
    ("cause", "executor", "advice"),
    [
        ("lock", "thread", f'Set workers="process". {PRICE}'),
        ("lock", "process", "Set a smaller num_workers. Fewer batches are then ready."),
        ("cores", "thread", "Set num_workers to 3. Fewer batches are then ready."),
        ("unknown", "thread", "Set a smaller num_workers. Fewer batches are then ready."),
    ],
)
def test_loader_hears_of_its_arguments(cause, executor, advice):
    """A `DataLoader` is advised in the words that it is written with."""
    status = replace(SLOWED, slowed_by=cause, called="loader.run")
    found = slowed(case(stages(executor=executor, concurrency=4), status=status))
    assert found.advice == advice


@pytest.mark.parametrize(("starved", "says"), [(0.3, True), (0.69, True), (0.7, False)])
def test_larger_loss_is_told(starved, says):
    """A loop that waits for longer than its steps take too long hears of the wait."""
    found = slowed(case(stages(concurrency=4), starved=starved))
    assert (found is not None) == says
    if found is not None:
        assert found.evidence.endswith(f", training waits {starved:.0%} of the time")


def test_longer_step_is_told_before_its_cause_is_known():
    """It never reads that the data keeps up while steps take longer than they did."""
    status = replace(SLOWED, step_at_rest_s=None, slowed_by="", step_before_s=0.03)
    one = case(stages(concurrency=4), status=status)
    assert (decide(one).kind, slowed(one).kind, slowed(one).stage) == ("keeps_up", "limits", None)
    assert str(slowed(one)) == (
        "A training step takes longer: 97 ms, 30 ms before. Look again soon: whether the workers "
        "are the cause is being checked."
    )
    over = slowed(case(stages(), status=replace(status, state="finished")))
    assert over.advice == "Run a longer epoch to see whether the workers are the cause."
    untold = slowed(case(stages(), status=replace(status, step_untold=True)))
    assert "too few batches are ready, or steps are too long" in untold.evidence
    assert untold.advice == "Set a larger prefetch for the last stage."
    loader = replace(status, step_untold=True, called="loader.run")
    assert slowed(case(stages(), status=loader)).advice == "Set a larger prefetch_factor."
    assert slowed(case(stages(), status=status, starved=0.06)) is None  # then others limit


def test_loop_that_is_as_quick_as_ever():
    """Nothing is said where nothing is amiss."""
    quiet = replace(SLOWED, step_at_rest_s=None, slowed_by="")
    assert slowed(case(stages(), status=quiet)) is None


def test_diagnose_says_it_of_a_run_and_of_its_last_epoch():
    """In an epoch and after it."""
    run = photographs(step_s=0.097, step_at_rest_s=0.03, slowed_by="lock")
    run.rows["consumer"] = row(0.99, 0.01, 0, 13.12)
    assert "hold the interpreter lock" in diagnose(run).evidence
    over = FakeWatched(run.stages, run.rows, replace(run.now, state="finished"), (), (), run.past)
    for one in over.past:
        one["starved"] = 0.01 if one["stage"] == CONSUMER else one["starved"]
    over.now = replace(over.now, waited_s=0.3)
    text = diagnose(over).text
    assert text.startswith("Finished. Data loading slowed training: a step took 97 ms, ")
