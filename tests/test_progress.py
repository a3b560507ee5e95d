"""progress() iterates, says how it goes in few lines, and closes what it started."""

import contextlib
import io
import itertools
from time import perf_counter_ns

import numpy as np
import pytest

import nbpipe
from nbpipe.progress import Progress
from tests.gates import Gate, finished, held, set_clock, stage


class Ticks:
    """A clock that goes on by `step_s` whenever it is read."""

    def __init__(self, step_s):
        self._times = itertools.count(step=step_s)

    def __call__(self):
        return next(self._times)


@pytest.fixture
def runs(monkeypatch):
    """Collect the runs that a test starts."""
    found, start = [], nbpipe.Pipeline.start

    def started(pipe, **options):
        found.append(start(pipe, **options))
        return found[-1]

    monkeypatch.setattr(nbpipe.Pipeline, "start", started)
    return found


def watched(pipe_or_run, step_s=0, **options):
    """Give a progress with a clock of its own, and what it writes to."""
    out = io.StringIO()
    return Progress(pipe_or_run, clock=Ticks(step_s), out=out, **options), out


def lines(out):
    """Give the lines written, without the stage that real time decides on."""
    return [line.split(";")[0] for line in out.getvalue().splitlines()]


def test_a_pause_is_neither_time_nor_wait(monkeypatch):
    """What a run is paused for counts in no line, as it does not in its status."""
    now_s = 0
    set_clock(monkeypatch, lambda: int(now_s * 1e9))
    out = io.StringIO()
    with nbpipe.source(range(3)).start() as run:
        progress = Progress(run, out=out)
        next(progress)
        now_s = 3
        next(progress)
        run.pause()
        now_s += 60
        run.resume()
        assert list(progress) == [2]
    assert lines(out)[-1] == "epoch 0: 3 items in 3 s, 1 items/s, waited for data 0% of the time"


def test_lines_tell_how_it_goes():
    """A line has items, share, rate, time left and the wait; the last line is on the epoch."""
    progress, out = watched(nbpipe.source(range(4)), step_s=1)
    list(progress)
    assert lines(out) == [
        "epoch 0: 1/4 items (25%), 0.5 items/s, 6 s left, waited for data 50% of the time",
        "epoch 0: 2/4 items (50%), 0.5 items/s, 4 s left, waited for data 50% of the time",
        "epoch 0: 3/4 items (75%), 0.5 items/s, 2 s left, waited for data 50% of the time",
        "epoch 0: 4/4 items (100%), 0.5 items/s, 0 s left, waited for data 50% of the time",
        "epoch 0: 4 items in 10 s, 0.4 items/s, waited for data 40% of the time",
    ]


def test_an_epoch_that_goes_on_from_a_state_counts_what_came_before_it():
    """Share and time left are those of the whole epoch; rates are those of this run."""
    pipe = nbpipe.source(range(8))
    with pipe.start() as run:
        items = iter(run)
        for _ in range(6):
            next(items)
        state = run.state_dict()
    with pipe.start() as run:
        run.load_state_dict(state)
        progress, out = watched(run, step_s=1)
        list(progress)
        assert lines(out) == [
            "epoch 0: 7/8 items (88%), 0.5 items/s, 2 s left, waited for data 50% of the time",
            "epoch 0: 8/8 items (100%), 0.5 items/s, 0 s left, waited for data 50% of the time",
            "epoch 0: 2 items in 6 s, 0.33 items/s, waited for data 33% of the time",
        ]


def test_batches_are_counted_as_batches():
    """Where the loop is handed batches, the lines speak of batches, as the panel does."""
    progress, out = watched(nbpipe.source(range(4)).batch(2), step_s=1)
    list(progress)
    assert lines(out) == [
        "epoch 0: 1/2 batches (50%), 0.5 batches/s, 2 s left, waited for data 50% of the time",
        "epoch 0: 2/2 batches (100%), 0.5 batches/s, 0 s left, waited for data 50% of the time",
        "epoch 0: 2 batches in 6 s, 0.33 batches/s, waited for data 33% of the time",
    ]


def test_unknown_length_is_left_out():
    """Where the number of items is not known, share and time left are not guessed."""
    progress, out = watched(nbpipe.source(range(1)).filter(lambda _: True), step_s=1)
    list(progress)
    assert lines(out)[0] == "epoch 0: 1 item, 0.5 items/s, waited for data 50% of the time"


def test_no_line_for_every_item():
    """However many items, there is one line in two seconds and one at each end."""
    progress, out = watched(nbpipe.source(range(5000)), step_s=0.001, epochs=2)
    list(progress)
    assert len(lines(out)) == 2 * (4 + 1)


def test_epochs_are_numbered():
    """Each epoch has its own number, and shuffles anew."""
    progress, out = watched(nbpipe.source(range(50)).shuffle(), epochs=2)
    items = list(progress)
    numbers = [line.split(":")[0] for line in lines(out)]
    assert (numbers, items[:50] == items[50:]) == (["epoch 0", "epoch 1"], False)


def test_slowest_stage_is_named():
    """The stage that is busy for the largest share of the time is named at the end of a line."""
    pipe = nbpipe.source(range(20)).map(
        lambda n: np.sort(np.arange(300_000) % (n + 7)), name="sort"
    )
    progress, out = watched(pipe)
    list(progress)
    assert "; slowest: sort (busy " in out.getvalue()


def test_workers_that_start_are_named(monkeypatch):
    """A line says why nothing comes yet."""
    starting = nbpipe.StageStats(workers=2, starting=2)
    rows = {
        "files": nbpipe.StageStats(busy=0.1),
        "decode": starting,
        "embed": nbpipe.StageStats(workers=4, busy=0.5),
    }
    with nbpipe.source([]).start() as run:
        stats = type(run.stats())(rows)
    monkeypatch.setattr(nbpipe.Run, "stats", lambda _: stats)
    progress, out = watched(nbpipe.source(range(1)))
    list(progress)
    said = "; slowest: embed (busy 50%); decode is starting 2 workers\n"
    assert out.getvalue().endswith(said)


def test_call_that_hangs_is_told(monkeypatch):
    """While others go on, a call that hangs is named, and no time left is told."""
    hours = [0]
    set_clock(monkeypatch, lambda: perf_counter_ns() + hours[0] * 3600 * 10**9)
    gate = Gate()
    fn = stage("thread", gate=lambda n: None if n else gate)
    pipe = nbpipe.source(range(9)).map(fn, name="fetch", concurrency=2, ordered=False)
    with pipe.start() as run:
        items, out = watched(run, 1.5)
        finished(next, items)
        held(run, "fetch", 0)
        hours[0] = 1
        out.truncate(out.seek(0))
        finished(next, items)
        told = out.getvalue()
        gate.open()
        list(items)
    found = told.count("; fetch hangs: one call has been running for"), told.count(" left")
    assert found == (1, 0), told


def test_lines_go_to_stderr(capsys):
    """Without an `out`, lines are written to stderr as it is at that moment."""
    list(nbpipe.progress(nbpipe.source([1])))
    written = capsys.readouterr()
    assert (written.out, written.err[:18]) == ("", "epoch 0: 1 item in")


def test_nothing_starts_before_the_first_item(runs):
    """A progress that is never iterated starts no run."""
    nbpipe.progress(nbpipe.source([1]))
    assert runs == []


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("leave", ["end", "break", "error"])
def test_run_is_closed_however_the_loop_is_left(runs, epochs, leave):
    """After the last epoch, a break or an error the run that was started is closed."""

    def loop():
        for item in nbpipe.progress(nbpipe.source(range(1000)), epochs=epochs):
            if leave == "error":
                1 / item
            elif leave == "break":
                break

    with pytest.raises(ZeroDivisionError) if leave == "error" else contextlib.nullcontext():
        loop()
    assert [run.closed for run in runs] == [True]


def test_failing_stage_closes_the_run(runs):
    """The error of a stage passes, and the run is closed."""
    progress, _ = watched(nbpipe.source([1, 0]).map(lambda x: 1 / x), epochs=3)
    with pytest.raises(nbpipe.StageError):
        list(progress)
    assert ([run.closed for run in runs], list(progress)) == ([True], [])


def test_given_run_stays_open():
    """A run that was given is not closed; what is left of its epoch is cancelled."""
    with nbpipe.source(range(1000)).start() as run:
        progress, _ = watched(run, epochs=2)
        first = next(progress)
        progress.close()
        again = next(iter(run))
        state = (first, again, run.epoch, run.closed)
    assert state == (0, 0, 1, False)


def test_stopped_run_ends_the_loop():
    """`run.stop()` ends the loop, not only the epoch."""
    with nbpipe.source(range(1000)).start() as run:
        progress, _ = watched(run, epochs=5)
        for _ in progress:
            run.stop()
        assert run.epoch == 0


def test_length_counts_all_epochs():
    """`len` is the number of items of all epochs."""
    assert len(nbpipe.progress(nbpipe.source(range(10)).batch(3), epochs=2)) == 8


def test_unknown_length_raises_as_that_of_the_pipeline():
    """`len` raises where the pipeline's does; iterating works all the same."""
    progress, _ = watched(nbpipe.source(range(3)).filter(lambda x: x))
    with pytest.raises(nbpipe.LengthUnknownError):
        len(progress)
    assert (bool(progress), list(progress)) == (True, [1, 2])


@pytest.mark.parametrize(
    ("given", "epochs", "message"),
    [
        ([1], 1, "progress must be given a pipeline, a run or a nbpipe.DataLoader, got a list; .*"),
        (nbpipe.source([1]), 0, "progress epochs must be an int of at least 1 epochs, got 0"),
        (nbpipe.source([1]), True, "progress epochs must be an int of at least 1 epochs, got True"),
    ],
)
def test_wrong_arguments_are_refused(given, epochs, message):
    """What is no pipeline, and a number of epochs below one, is refused with the way out."""
    with pytest.raises(nbpipe.NbpipeError, match=f"^{message}$") as raised:
        nbpipe.progress(given, epochs=epochs)
    assert isinstance(raised.value, TypeError | ValueError)


# -- where it is shown -----------------------------------------------------------------------------
class Console(io.StringIO):
    """A terminal."""

    def isatty(self):
        """Tell that it is one."""
        return True

    def screen(self):
        """Return the lines that can be seen, each as it was written last."""
        return [line.split("\r")[-1].rstrip() for line in self.getvalue().split("\n")]


def test_one_line_is_rewritten_in_a_terminal(monkeypatch):
    """In a terminal an epoch has one line, written anew in its width; its last line stays."""
    monkeypatch.setenv("COLUMNS", "50")
    out = Console()
    list(Progress(nbpipe.source(range(4)), clock=Ticks(1), out=out, epochs=2))
    written = out.getvalue().split("\n")
    shown = [part for line in written for part in line.split("\r")[1:-1]]
    assert (len(shown), max(map(len, shown)) < 50) == (8, True)
    assert shown[0].startswith("epoch 0: 1/4 items (25%), 0.5 items/s, 6 s left")
    assert [line.split(";")[0] for line in out.screen()] == [
        "epoch 0: 4 items in 10 s, 0.4 items/s, waited for data 40% of the time",
        "epoch 1: 4 items in 10 s, 0.4 items/s, waited for data 40% of the time",
        "",
    ]


def test_a_line_that_is_left_stays_in_a_terminal():
    """After `break` the next text begins on a line of its own, and nothing is left behind it."""
    out = Console()
    progress = Progress(nbpipe.source(range(9)), clock=Ticks(1), out=out)
    next(progress)
    progress.close()
    out.write("next")
    first, second = out.screen()
    assert (first.startswith("epoch 0: 1/9 items"), second) == (True, "next")


def test_rate_is_that_of_the_last_seconds():
    """A line that is written often tells the rate of the last 2 s, not of the last moment."""
    out = Console()
    list(Progress(nbpipe.source(range(100)), clock=Ticks(0.125), out=out))
    rates = {line.split(", ")[1] for line in out.getvalue().split("\r") if "left" in line}
    assert rates == {"4 items/s"}


@pytest.mark.slow
@pytest.mark.kernel
def test_bar_in_a_notebook():
    """In a notebook a loop has one output: a bar, and a line for each epoch that has ended.

    The bar of an epoch that gave nothing is no success.
    """
    pytest.importorskip("ipykernel")
    from tests.kernel.client import running

    code = """
import itertools, nbpipe
from nbpipe.progress import Progress
pipe = nbpipe.source(range(4)).map(abs, name="<b>")
progress = Progress(pipe, clock=itertools.count().__next__, epochs=2)
print(sum(progress))
"""
    with running("--HistoryManager.enabled=False") as client:
        cell, _ = client.end(code, None)
        empty, _ = client.end("list(nbpipe.progress(nbpipe.source([])))", None)
        heard = [one for one in client.heard if one["parent_header"].get("msg_id") == cell]
        (drawn,) = [
            one["content"]["data"]["text/html"]
            for one in client.heard
            if one["parent_header"].get("msg_id") == empty
            and one["header"]["msg_type"] == "display_data"
        ]
    kinds = [one["header"]["msg_type"] for one in heard if "display" in one["header"]["msg_type"]]
    data = [one["content"]["data"] for one in heard if "display" in one["header"]["msg_type"]]
    assert (kinds[0], set(kinds[1:])) == ("display_data", {"update_display_data"})
    assert 'aria-valuenow="25.0"' in data[0]["text/html"]
    last = data[-1]["text/html"]
    assert ("epoch 0: 4 items" in last, "epoch 1: 4 items" in last) == (True, True)
    assert ('aria-valuenow="100.0"' in last, "<b>" in last) == (True, False)
    assert client.output(cell) == "12\n"
    assert ("success" in last, "success" in drawn, "gave 0 items" in drawn) == (True, False, True)
