"""What is said of a run in each of its states, and of an epoch that is over."""

import threading
from dataclasses import replace

import pytest

import nbpipe
from nbpipe.engine.measures.stats import StageStats
from nbpipe.ops.stage import addresses
from nbpipe.run import core
from nbpipe.show.diagnose import diagnose
from nbpipe.show.picture import picture_html, picture_text
from nbpipe.show.snapshot import snapshot
from nbpipe.show.verdict import hang as hang_file
from nbpipe.show.verdict.hang import hang_of
from tests.gates import Gate, drained, finished, held, stage
from tests.show.fakes import STATUS, FakeWatched, photographs


@pytest.mark.parametrize(
    ("state", "changes", "start"),
    [
        ("ready", {}, "Waiting for your loop."),
        ("paused", {}, "Paused."),
        ("running", {"elapsed_s": 0.4}, "Too early to tell."),
        ("running", {"since_pause_s": 0.4}, "Too early to tell."),
        ("running", {}, "decode is the bottleneck: "),
        ("finished", {}, "Finished. decode was the bottleneck: "),
        ("cancelled", {}, "Cancelled. decode was the bottleneck: "),
        ("closed", {}, "Closed. decode was the bottleneck: "),
        ("failed", {"error": "StageError: stage 'read' failed on item 3: no"}, "read failed: "),
        ("failed", {"error": "KeyError: 1"}, "decode failed: KeyError: 1."),  # the last failure
        ("failed", {"error": "", "epoch": 7}, "The epoch failed."),
    ],
)
def test_states(state, changes, start):
    """Each state is told in words of its own."""
    said = diagnose(photographs(state=state, **changes))
    assert (said.text[: len(start)], said.text[-1]) == (start, ".")
    assert said.suggestion is None or "decode" in said.text


def test_what_to_do_before_and_in_a_pause():
    """The advice names the loop and the run as the code has them."""
    said = [
        str(diagnose(photographs(state=state, called=called)))
        for state, called in (("ready", "run"), ("ready", "loader.run"), ("paused", "run"))
    ]
    assert said == [
        "Waiting for your loop. Run `for batch in run:` in a cell.",
        "Waiting for your loop. Run `for batch in loader:` in a cell.",
        "Paused. Press Resume or call run.resume().",
    ]


def test_workers_that_start():
    """Before the first result of workers nothing else limits."""
    run = photographs()
    run.rows["batch"] = replace(run.rows["batch"], workers=2, starting=2, items_out=0)
    found = diagnose(run)
    assert str(found) == "Starting 2 worker processes for batch..."
    assert (found.stage, found.kind) == ("batch", "starts")


@pytest.mark.parametrize(
    ("oldest_s", "p99_s", "hangs"),
    [
        (4.9, 0.0, False),
        (5.0, 0.0, True),  # there was no result yet
        (4.9, 0.012, False),
        (5.0, 0.012, True),
        (19.9, 1.0, False),
        (20.0, 1.0, True),
    ],
)
def test_call_that_hangs(oldest_s, p99_s, hangs):
    """A call hangs from 5 s on, or from 20 times the 99th percentile, whichever is later."""
    run = photographs()
    decode = run.rows["decode"]
    run.rows["decode"] = replace(decode, oldest_s=oldest_s, oldest_item="40", latency_p99_s=p99_s)
    found = diagnose(run)
    assert (found.kind, "has been running" in found.text) == (
        ("hangs", True) if hangs else ("limits", False)
    )


@pytest.mark.parametrize(
    ("stage", "item", "marked", "sentence"),
    [
        ("decode", "40", "decode", "decode hangs: one call has been running for 32 s, on item 40."),
        ("decode", "", "decode", "decode hangs: one call has been running for 32 s."),
        (
            *("normalise", "40 to 47", "batch"),
            "batch > normalise hangs: one call has been running for 32 s, on items 40 to 47.",
        ),
    ],
)
def test_words_of_a_call_that_hangs(stage, item, marked, sentence):
    """Stage, time and item are told, and no knob is advised; also of an epoch that just began."""
    run = photographs(elapsed_s=33.0, delivered=0)
    run.rows["batch"] = replace(run.rows["batch"], starting=0)
    run.rows[stage] = replace(run.rows[stage], oldest_s=32.4, oldest_item=item)
    found = diagnose(run)
    assert (found.text, found.stage, found.suggestion) == (sentence, marked, None)
    assert (found.kind, found.severity) == ("hangs", "error")


THREAD_WAY_OUT = (
    'Write executor="process", timeout_s=30 to end such calls: a thread cannot be stopped, a '
    "process can."
)


@pytest.mark.parametrize(
    ("options", "called", "p99_s", "advice", "code"),
    [
        (
            *({}, "run", 0.012),
            THREAD_WAY_OUT,
            'executor="process", timeout_s=30',
        ),
        (
            *({"executor": "process"}, "run", 1.5),
            "Write timeout_s=30 to end such calls.",
            "timeout_s=30",
        ),
        (
            *({"executor": "process"}, "run", 200.0),  # calls of this length are no rare ones
            "Write timeout_s=4000 to end such calls.",
            "timeout_s=4000",
        ),
        (
            *({"executor": "process", "timeout_s": 9e3}, "run", 1.5),
            "Set a timeout_s below 9000 to end such calls sooner.",
            "",
        ),
        (
            *({}, "loader.run", 0.012),
            'Write workers="process", timeout=30 to get an error instead.',
            'workers="process", timeout=30',
        ),
        (
            *({"executor": "process"}, "loader.run", 0.012),
            "Write timeout=30 to get an error instead.",
            "timeout=30",
        ),
    ],
)
def test_what_ends_a_call_that_hangs(options, called, p99_s, advice, code):
    """The advice fits the executor, and its time limit the calls that end."""
    pipe = nbpipe.source(range(9)).map(abs, name="fetch", **options)
    rows = {"fetch": StageStats(oldest_s=9999.0, oldest_item="4", running=1, latency_p99_s=p99_s)}
    found = diagnose(FakeWatched(addresses(pipe.chain), rows, replace(STATUS, called=called)))
    assert (found.advice, found.code) == (advice, code)


@pytest.mark.parametrize("op", ["source", "flat_map"])
def test_call_that_hangs_and_takes_no_limit(op):
    """Where no argument ends a call, the advice is about what it waits for."""
    pipe = nbpipe.source(range(9), name="source").flat_map(range, name="flat_map")
    rows = {op: StageStats(oldest_s=32.0, running=1)}
    found = diagnose(FakeWatched(addresses(pipe.chain), rows))
    assert found.advice == "Set a time limit on what it waits for, for example on the connection."


@pytest.mark.parametrize("state", ["stopped", "cancelled", "closed", "finished"])
@pytest.mark.parametrize(
    ("running", "words"),
    [
        (1, "decode hangs: one call has been running for 32 s, on item 40."),
        (0, "decode hung: one call ran for 32 s, on item 40."),
    ],
)
def test_call_that_hung_when_the_epoch_ended(state, running, words):
    """An epoch that was left because of a call that hangs still says so."""
    run = photographs(state=state)
    hung = {"oldest_s": 32.4, "oldest_item": "40", "running": running}
    run.rows["decode"] = replace(run.rows["decode"], **hung)
    found = diagnose(run)
    assert (found.text, found.severity) == (f"{state.capitalize()}. {words}", "error")
    assert "timeout_s=30" in found.code


def test_longest_of_several_calls_that_hang():
    """Of calls that hang, that which began first is told."""
    run = photographs()
    for name, oldest_s in {"read": 31.0, "decode": 44.0, "files": 8.0}.items():
        run.rows[name] = replace(run.rows[name], oldest_s=oldest_s, oldest_item="40")
    assert diagnose(run).stage == "decode"


def test_call_that_waits_for_a_worker_to_start():
    """While workers start, their calls are not said to hang."""
    run = photographs()
    run.rows["normalise"] = replace(run.rows["normalise"], oldest_s=32.0, oldest_item="40")
    assert (run.rows["batch"].starting, diagnose(run).kind) == (1, "limits")


@pytest.mark.parametrize(("workers", "kind"), [(0, False), (2, True)])
def test_call_that_waits_for_a_cluster(workers, kind):
    """A call that was sent to a cluster without workers does not hang: nobody has begun it."""
    stages = addresses(nbpipe.source([1]).map(abs, name="far", executor="dask").chain)
    rows = {"far": StageStats(oldest_s=32.0, oldest_item="0", workers=workers)}
    assert (hang_of(stages, rows) is not None) == kind


@pytest.mark.parametrize("executor", ["thread", "coroutine", "process"])
def test_real_call_that_hangs(monkeypatch, executor):
    """A call at a closed gate is named with its item, also once the run is stopped and closed."""
    gate = Gate()
    fn = stage(executor, gate=lambda n: gate if n == 1 else None)
    where = {} if executor == "coroutine" else {"executor": executor}
    with nbpipe.source(range(9)).map(fn, name="fetch", **where).start() as run:
        reader = threading.Thread(target=drained, args=(run,), daemon=True)
        reader.start()
        held(run, "fetch", 1)
        now_ns = core.perf_counter_ns()
        monkeypatch.setattr(core, "perf_counter_ns", lambda: now_ns)
        now_ns += 32 * 10**9 - round(run.stats()["fetch"].oldest_s * 1e9)
        found, seen = diagnose(run).text, snapshot(run)
        monkeypatch.undo()
        monkeypatch.setattr(hang_file, "LEAST_S", 0.0)
        monkeypatch.setattr(hang_file, "TIMES", 0.0)
        run.stop()
        after = diagnose(run)
        gate.open()
        reader.join()
    closed = diagnose(run)
    sentence = "fetch hangs: one call has been running for 32 s, on item 1."
    shown = [
        sentence[:-1] in text.replace("\xa0", " ")
        for text in (picture_text(seen), picture_html(seen))
    ]
    assert (found, shown, seen["left_s"]) == (sentence, [True, True], None)
    assert [(one.kind, "on item 1" in one.text) for one in (after, closed)] == [("hangs", True)] * 2
    assert (after.text[:8], closed.text[:7]) == ("Stopped.", "Closed.")


def test_few_items():
    """An epoch of few items is not judged in its first seconds."""
    rows = {name: replace(one, items_out=2) for name, one in photographs().rows.items()}
    run = photographs(elapsed_s=3, delivered=0)
    run.rows = rows
    assert str(diagnose(run)) == "Too early to tell. Look again in a few seconds."


def test_over_without_history():
    """An epoch too short for the history is summed up."""
    run = photographs(state="finished", elapsed_s=0.5, waited_s=0.25, delivered=100)
    run.past = []
    assert str(diagnose(run)) == "Finished after 100 batches: training waited 50% of the time."


def test_turned_after_the_epoch():
    """What the last epoch says of a knob does not hold for another value."""
    run = photographs(state="finished")
    run.stages["decode"].concurrency = 9
    found = diagnose(run)
    assert (found.stage, found.cause, found.suggestion) == ("decode", "turned-since", None)
    assert found.advice == "Run another epoch: decode.concurrency has changed since."


@pytest.mark.parametrize(
    ("error", "way"),
    [
        ("ValueError: bad header", "on_error='skip' to leave such items out"),
        ("TimeoutError: ", "on_error=nbpipe.Retry(2) to try such items again"),
        ("ConnectionResetError: [Errno 104]", "on_error=nbpipe.Retry(2) to try such items again"),
        ("FileNotFoundError: ConnectionError", "on_error='skip' to leave such items out"),
    ],
)
def test_failed_stage_says_where_to_look(error, way):
    """A failure in a user's function comes with one way to go on: again, what may pass."""
    run = photographs(state="failed", error="StageError: stage 'decode' failed on item 3: no")
    run.lost = tuple(replace(one, error=error) for one in run.lost)
    found = diagnose(run)
    assert (found.stage, found.kind, found.advice) == (
        "decode",
        "failed",
        f"See run.failures() for inputs and tracebacks. Write {way}.",
    )


def test_real_run_that_fails():
    """The stage that failed is named, with the error."""

    def decode(number):
        raise ValueError(f"no picture {number}")

    with nbpipe.source(range(3)).map(decode).start() as run:
        with pytest.raises(nbpipe.StageError):
            finished(list, run)
        found = diagnose(run)
    assert (found.stage, "no picture 0" in found.text) == ("decode", True)


def test_run_that_was_closed_before_its_first_epoch():
    """Nothing is said of a loop that there was not, and no stage has waited."""
    run = nbpipe.source(range(9)).map(abs).start()
    run.close()
    seen = snapshot(run)
    assert str(diagnose(run)) == "Closed before the first epoch."
    assert [stage["waiting"] for stage in seen["stages"]] == [0.0, 0.0]
