"""`run.autotune()`: its arguments, the knobs that it turns, and the end of a tuner."""

import os
import threading
import time

import pytest

import nbpipe
from nbpipe.base.machine import Machine
from nbpipe.tune import limits
from nbpipe.tune import tuner as tuners
from tests.gates import finished

GB = 10**9


def nap(number):
    """Stand for a call that waits for a disk."""
    time.sleep(0.02)
    return number


@pytest.fixture
def pipe():
    """Return a pipeline with knobs."""
    return nbpipe.source(range(40), name="numbers").map(abs, name="read").batch(4, collate=list)


def tuner_threads():
    """Return the threads that tune."""
    return [one for one in threading.enumerate() if one.name == "nbpipe-autotune"]


def test_one_tuner_for_a_run(pipe):
    """A second call gives the same tuner with the new limits; there is one thread, which ends."""
    with pipe.start() as run:
        assert run.tuner is None
        tuner = run.autotune()
        assert run.autotune(keep=["read"], most=8) is tuner is run.tuner
        assert len(tuner_threads()) == 1
        batches = list(run)
    assert (len(batches), tuner.state, tuner_threads()) == (10, "stopped", [])


def test_several_runs_share_a_thread(pipe):
    """Stages that two runs share are tuned by the first; the other run says so."""
    with pipe.start() as first, pipe.start() as second:
        first.autotune()
        tuner = second.autotune()
        assert len(tuner_threads()) == 1
        assert tuner.state == "nothing to tune: another run's tuner turns it"
        assert "read is left alone: another run's tuner turns it" in map(str, tuner.log)
        first.close()
        assert len(tuner_threads()) == 1
    assert tuner_threads() == []


def test_several_runs_share_a_ceiling(pipe):
    """A run without one takes that of the others; one that is given later holds for all."""
    other = nbpipe.source(range(40)).map(abs)
    with pipe.start(autotune={"memory": "1000 GB"}) as first, other.start() as second:
        tuner = second.autotune()
        assert first.tuner.memory == tuner.memory == 1000 * GB
        second.autotune(memory="900 GB")
        assert first.tuner.memory == tuner.memory == 900 * GB
        first.autotune(keep=["read"])
        assert first.tuner.memory == 900 * GB
    with pipe.start(autotune=True) as run:
        assert run.tuner.memory < 900 * GB


@pytest.mark.parametrize("options", [True, {"memory": "1000 GB", "keep": "read", "most": 3}])
def test_start_takes_the_arguments(pipe, options):
    """`start(autotune=)` takes True, or a dict of the arguments."""
    with pipe.start(autotune=options) as run:
        assert run.tuner is not None
        assert list(run) == [list(range(at, at + 4)) for at in range(0, 40, 4)]


def test_without_a_tuner(pipe):
    """Without the argument nothing tunes."""
    with pipe.start(autotune=False) as run:
        assert run.tuner is None
    assert tuner_threads() == []


IN_USE = Machine().resident_bytes()
REFUSED = {
    "a text": ({"memory": "much"}, nbpipe.ArgumentError, "memory must be a size in bytes"),
    "too little": (
        {"memory": "10 MB"},
        nbpipe.ArgumentError,
        r"autotune memory must be above the .*B in use now, got '10 MB'",
    ),
    "no stage": (
        {"keep": ["raed"]},
        nbpipe.UnknownStageError,
        "no stage 'raed'; did you mean 'read'",
    ),
    "no calls": (
        {"most": 0},
        nbpipe.ArgumentError,
        "autotune most must be an int of at least 1, got 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_arguments(pipe, case):
    """A wrong value is refused with its reason; the tuner that is there keeps its limits."""
    options, error, said = REFUSED[case]
    with pipe.start() as run:
        with pytest.raises(error, match=said):
            run.autotune(**options)
        assert run.tuner is None
        tuner = run.autotune()
        with pytest.raises(error, match=said):
            run.autotune(**options)
        assert (run.tuner, tuner.state) == (tuner, "measuring")
    with pytest.raises(error, match=said):
        pipe.start(autotune=options)
    assert run not in nbpipe.runs()


def test_refused_settings_of_start(pipe):
    """`start(autotune=)` refuses other values, and arguments that there are not."""
    with pytest.raises(nbpipe.ArgumentTypeError, match="autotune must be True, False or a dict"):
        pipe.start(autotune=3)
    with pytest.raises(nbpipe.ArgumentTypeError, match="autotune has no argument 'memry'"):
        pipe.start(autotune={"memry": "4 GB"})
    assert nbpipe.runs() == ()


def test_a_closed_run(pipe):
    """A closed run is not tuned, nor is a run tuned by its own stage."""
    run = pipe.start()
    run.close()
    with pytest.raises(nbpipe.RunClosedError):
        run.autotune()
    runs = []
    tunes = nbpipe.source([1]).map(lambda _: runs[0].autotune())
    with tunes.start() as run:
        runs.append(run)
        with pytest.raises(nbpipe.StageError) as caught:
            finished(list, run)
    assert isinstance(caught.value.__cause__, nbpipe.ReentrantRunError)


def test_nothing_to_tune():
    """Where there is nothing to tune, the state gives the reason."""
    with nbpipe.source(range(4), name="numbers").start() as run:
        assert run.autotune(keep=["numbers"]).state.startswith("nothing to tune: all its knobs")
        assert list(run) == [0, 1, 2, 3]


def test_a_person_owns_a_knob_for_good(pipe):
    """What a person turned is left alone, and is not restored by `undo`."""
    with pipe.start() as run:
        tuner = run.autotune()
        assert tuner.turns("read", "concurrency")
        pipe["read"].concurrency = 3
        assert not tuner.turns("read", "concurrency")
        assert tuner.state == "measuring; read.concurrency left alone"
        pipe["read"].knob("concurrency").set(4, by="autotune")
        assert not tuner.turns("read", "concurrency")
        tuner.undo()
        assert (pipe["read"].concurrency, tuner.state) == (4, "undone")


def test_memory_that_cannot_be_read(pipe, monkeypatch, caplog):
    """One warning, and no knob is raised from then on."""

    def fails(_self):
        raise OSError("no such file")

    monkeypatch.setattr(Machine, "resident_bytes", fails)
    monkeypatch.setattr(tuners, "_thread", tuners.TunerThread())
    with pipe.start() as run:
        run.autotune()
        run.autotune()
        assert list(run)
    assert [record.getMessage() for record in caplog.records] == [
        "autotune raises no knob: resident memory cannot be read (no such file)"
    ]


def test_a_forked_process_has_no_tuner(pipe):
    """The thread stays in the parent, and so does the tuning."""
    from tests.gates import said_in_a_fork

    with pipe.start(autotune=True) as run:
        assert said_in_a_fork(lambda: str(len(tuner_threads()))) == "0"
        assert len(tuner_threads()) == 1
        assert list(run)


def test_a_dropped_run_ends_its_tuner(pipe):
    """The tuner does not keep a run alive."""
    run = pipe.start(autotune=True)
    threads = tuner_threads()
    del run
    for thread in threads:
        thread.join()
    assert tuner_threads() == []


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_batches_are_the_same(isolate):
    """The knobs are turned, and each batch is what it is without a tuner."""
    pipe = nbpipe.source(range(1200), name="numbers").shuffle(seed=3).map(nap, name="read")
    pipe = pipe.batch(4, collate=list)
    plain = [[4 * at + one for one in range(4)] for at in range(300)]
    with pipe.start(isolate=isolate, autotune={"memory": 200 * GB}) as run:
        batches = []
        for batch in run:
            batches.append(batch)
            time.sleep(0.004)
        turns = [change for change in run.events if change.by == "autotune"]
        tuner = run.tuner
    order = sorted(number for batch in batches for number in batch)
    assert order == [number for batch in plain for number in batch]
    again = nbpipe.source(range(1200), name="numbers").shuffle(seed=3).batch(4, collate=list)
    assert batches == list(again)
    assert pipe["read"].concurrency > 1
    assert turns[0].why.startswith("the loop waits")
    assert str(tuner.log[0]).startswith("read.concurrency 1 → 4: the loop waits")
    tuner.undo()
    assert pipe["read"].concurrency == 1


def large(number):
    """Make an item of 1 MB, slowly."""
    time.sleep(0.02)
    return bytes(10**6)


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_the_budget_of_a_run_is_raised(isolate):
    """Calls that wait for room get more of it; undo restores the budget."""
    pipe = nbpipe.source(range(10**6), name="numbers").map(large, concurrency=8)
    with pipe.start(memory="3 MB", autotune={"memory": 200 * GB}, isolate=isolate) as run:
        for _ in run:
            if run.memory > 3 * 10**6:
                break
        change = run.events[-1]
        run.tuner.undo()
        assert run.memory == 3 * 10**6
    assert (change.knob, change.by) == ("memory", "autotune")
    assert change.why.startswith("calls wait for room ")


def test_ranks_share_the_machine(monkeypatch):
    """Each rank on a machine has its part of the cores."""
    monkeypatch.setitem(os.environ, "LOCAL_WORLD_SIZE", "4")
    assert limits.ranks_here() == 4
    monkeypatch.setitem(os.environ, "LOCAL_WORLD_SIZE", "many")
    assert limits.ranks_here() == 1
