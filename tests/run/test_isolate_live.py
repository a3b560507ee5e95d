"""A run in a process of its own is looked at and turned like any other."""

import contextlib
import logging
import os
import threading
from pathlib import Path

import pytest

import nbpipe
from nbpipe.base.threads import own_idle_ns
from nbpipe.errors import ArgumentError, UnpicklableError, WorkerStartError
from nbpipe.ops.stage import CONSUMER
from nbpipe.run.isolated.link import Link
from nbpipe.show.history import ticks_of
from tests.gates import HANG_S, Calls, Gate, delivered, drained, in_force, stage

MIDDLE = 3  # a value that no knob has by itself


def held(gate, calls, *, count=100):
    """Make a chain whose calls are counted here and wait at a gate."""
    fn = stage("thread", gate=lambda _: gate, calls=calls)
    return nbpipe.source(range(count)).map(fn, name="work")


# -- states ----------------------------------------------------------------------------------------


def test_a_state_is_waited_for(monkeypatch):
    """A process too busy to tell its numbers at once still tells where its stages stand."""
    monkeypatch.setattr(Link, "answer_s", 0.0)
    with nbpipe.source(range(9)).filter(abs).start(isolate=True) as run:
        items = iter(run)
        had = [next(items), next(items)]
        state = run.state_dict()
        items.close()
        run.load_state_dict(state)
        assert [*had, *drained(run)] == [*range(1, 9)]


# -- knobs -----------------------------------------------------------------------------------------


def test_knobs_tuned_before_the_start_are_what_the_process_begins_with():
    """Values live in the stages here: what was tuned before is in force there."""
    gate, calls = Gate(), Calls()
    chain = held(gate, calls)
    chain["work"].concurrency = MIDDLE
    with chain.start(isolate=True) as run:
        items = iter(run)
        calls.wait_running(MIDDLE)
        limits = run.stats()["work"].concurrency, chain["work"].knob("concurrency").default
        gate.open()
        assert (len(drained(items)), limits) == (100, (MIDDLE, 1))


def test_runs_that_share_a_stage_share_its_knobs():
    """One knob turns isolated runs and plain ones, of pipelines made from one another."""
    shared = nbpipe.source(range(50)).map(abs, name="shared")
    with contextlib.ExitStack() as stack:
        runs = [
            stack.enter_context(shared.map(abs, name="work").start(isolate=isolate))
            for isolate in (True, True, False)
        ]
        for run in runs:
            run["shared"].prefetch = MIDDLE
        assert {run.stats()["shared"].prefetch for run in runs} <= {MIDDLE, 8}
        assert shared["shared"].prefetch == MIDDLE


@pytest.mark.slow
def test_stages_that_share_their_workers_share_a_knob_there_as_well():
    """A concurrency that is set on one stage of a region is set on all of them, here and there."""
    chain = nbpipe.source(range(20)).map(abs, executor="process").map(float, executor="process")
    with chain.start(isolate=True) as run:
        drained(run)
        run["float"].concurrency = 2
        rows = run.stats()
        assert (run["abs"].concurrency, rows["abs"].concurrency) == (2, 2)
        assert (rows["float"].concurrency, rows["abs"].workers) == (2, 1)


def test_a_changed_knob_is_an_event_of_the_run():
    """Who turned what, and why, is on record here."""
    with nbpipe.source(range(9)).map(abs).start(isolate=True) as run:
        run["abs"].knob("concurrency").set(4, by="panel", why="trial")
        drained(run)
        (event,) = run.events
        assert (event.knob, event.old, event.new, event.by) == ("abs.concurrency", 1, 4, "panel")
        assert run.stats()["abs"].concurrency == 4


@pytest.mark.slow
def test_a_knob_is_quick_while_large_items_cross():
    """What is told to the process does not wait for the items on their way."""
    gate, calls = Gate(), Calls()
    small = stage("thread", gate=lambda item: gate if item else None, calls=calls)
    chain = nbpipe.source(range(8)).map(small, name="work")
    chain = chain.map(lambda n: bytes(40_000_000), name="large")
    with chain.start(isolate=True) as run:
        items = iter(run)
        next(items)
        run["work"].concurrency = 5
        calls.wait_running(5)
        gate.open()
        assert len(drained(items)) == 7


# -- looking in ------------------------------------------------------------------------------------
def test_stats_have_the_shape_of_a_plain_run():
    """The rows are the same, before the first epoch and after it."""
    chain = nbpipe.source(range(50)).shuffle().map(abs).batch(4, collate=list)
    with chain.start() as plain, chain.start(isolate=True) as run:
        before = list(plain.stats()), list(run.stats())
        drained(plain), drained(run)
        ours, theirs = plain.stats(), run.stats()
        assert before[0] == before[1] == list(ours) == list(theirs)
        counted = [(row.items_in, row.items_out, row.errors) for row in theirs.values()]
    assert counted == [(row.items_in, row.items_out, row.errors) for row in ours.values()]


@pytest.mark.slow
def test_history_has_rows_of_all_stages_and_of_the_loop():
    """Each time in the history has one row for each stage, and one for the loop."""
    chain = nbpipe.source(range(500)).map(lambda n: sum(range(20_000)), name="work")
    with chain.start(isolate=True) as run:
        for _ in range(2):
            drained(run)
        rows = run.history()
        names = [[row["stage"] for row in tick] for tick in ticks_of(rows)]
        assert all(name == ["source", "work", CONSUMER] for name in names)
        assert {row["epoch"] for row in rows} == {0, 1}


@pytest.mark.slow
def test_diagnose_status_and_plot():
    """What reads a run reads this one: diagnosis, state, picture."""
    pytest.importorskip("plotly")
    chain = nbpipe.source(range(300)).map(lambda n: sum(range(30_000)), name="work")
    with chain.start(isolate=True) as run:
        before = run.status().state
        drained(run)
        status = run.status()
        assert (before, status.state, status.delivered) == ("ready", "finished", 300)
        assert "work" in str(run.diagnose())
        assert "work" in str(run.plot())
        while (status.cpu_cores or 0) <= 0.1:  # on a crowded machine it gets less for a while
            drained(run)
            status = run.status()
        assert 0.1 < status.cpu_cores < 8
        if own_idle_ns() is not None:
            assert 0 <= status.idle_cores <= os.cpu_count()


@pytest.mark.slow
def test_workers_of_a_stage_are_seen_through_the_process():
    """`run["work"]` tells the process ids of workers that the other process started."""
    chain = nbpipe.source(range(40)).map(lambda _: os.getpid(), name="w", executor="process")
    chain = chain.map(lambda pid: (pid, os.getpid()), name="pair")
    with chain.start(isolate=True) as run:
        assert run["w"].pids == ()
        pids = {pid for pid, _ in drained(run)}
        assert (set(run["w"].pids), run["w"].workers) == (pids, 1)
        assert run["w"].memory_bytes > 0
    assert run["w"].pids == ()


def test_prints_are_whole_lines_here(capfd):
    """What stages print in several threads appears here, line by line, before the epoch ends."""

    def noisy(item):
        print("item", item, "of", "many")
        return item

    with nbpipe.source(range(50)).map(noisy, concurrency=4).start(isolate=True) as run:
        drained(run)
        lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"item {n} of many" for n in range(50))


def test_a_line_without_an_end_is_printed_when_the_epoch_ends(capfd):
    """What was printed last is not held back for want of a newline."""

    def dot(item):
        print(".", end="")
        return item

    with nbpipe.source(range(5)).map(dot).start(isolate=True) as run:
        drained(run)
        assert capfd.readouterr().out.strip() == "....."


def test_log_records_are_logged_here(caplog):
    """What a stage logs in the other process is a record of this one."""

    def warns(item):
        logging.getLogger("mine").warning("item %d", item)
        return item

    with nbpipe.source([7]).map(warns).start(isolate=True) as run:
        drained(run)
    assert [(r.name, r.getMessage()) for r in caplog.records] == [("mine", "item 7")]


# -- what is sent ----------------------------------------------------------------------------------
def test_an_executor_object_is_refused_by_name():
    """An executor of this process cannot go along; the stage is named, and the way out."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        chain = nbpipe.source(range(3)).map(abs, executor=pool)
        with pytest.raises(ArgumentError, match=r"stage 'abs' has an executor object \(ThreadPool"):
            chain.start(isolate=True)


def test_what_cannot_be_pickled_is_named():
    """The stage and the variable are named at the start, and nothing is left behind."""
    lock = threading.Lock()
    chain = nbpipe.source(range(3)).map(lambda n: (lock, n), name="locks")
    with pytest.raises(UnpicklableError, match=r"stage 'locks' .* 'lock' \(_thread.lock\)"):
        chain.start(isolate=True)


def test_a_source_that_cannot_be_pickled_is_named():
    """A source's function is looked at as well."""
    with Path(os.devnull).open() as file:
        chain = nbpipe.source(lambda: iter(file))
        with pytest.raises(UnpicklableError, match=r"stage 'source' .* 'file'"):
            chain.start(isolate=True)


# -- failed items ----------------------------------------------------------------------------------
def fails(item):
    """Fail on every item but the first."""
    if item:
        raise ValueError(item)
    return item


def test_failures_come_once():
    """Those that are known are not sent again; the last hundred of all epochs are kept."""
    with nbpipe.source(range(61)).map(fails, on_error="skip").start(isolate=True) as run:
        found = []
        for _ in range(3):
            drained(run)
            found.append([(one.epoch, one.path) for one in run.failures()])
            heard = run._core.engine._reports.last.heard
            again = run._core.engine.stages.ask("report", HANG_S, heard)
            assert (again.failures, again.heard) == ((), (1, 60 * len(found)))
    every = [(epoch, path) for epoch in range(3) for path in range(1, 61)]
    assert found == [every[:60], every[20:120], every[80:]]


def test_failures_of_before_a_cell_are_kept():
    """What failed before a function was changed is listed with what failed after it."""
    space = {}
    exec("def f(n):\n    raise ValueError(n)\ndef g(n):\n    return f(n)", space)
    with nbpipe.source(range(3)).map(space["g"], on_error="skip").start(isolate=True) as run:
        drained(run)
        known = run.failures()
        exec("def f(n):\n    raise KeyError(n)", space)
        run._core.engine.renew()
        drained(run)
        found = run.failures()
    assert (found[:3], [one.epoch for one in found]) == (known, [0] * 3 + [1] * 3)


def test_a_changed_function_is_sent_after_a_cell():
    """The next epoch has the functions as they are then; the chain begins with values in force."""
    space = {}
    exec("def f(n):\n    return n + 1", space)
    exec("import os\ndef g(n):\n    return f(n), os.getpid()", space)
    chain = nbpipe.source(range(3)).map(space["g"])
    with chain.start(isolate=True) as run:
        first = drained(run)
        run["g"].concurrency = MIDDLE
        exec("def f(n):\n    return n + 2", space)
        run._core.engine.renew()
        (pid,) = {pid for _, pid in first}
        both = [[(number + more, pid) for number in range(3)] for more in (1, 2)]
        assert [first, drained(run)] == both
        in_force(run, "g", MIDDLE)


class Vanishing:
    """Can be pickled, and not loaded anywhere."""

    def __reduce__(self):
        return unload, ()


def unload():
    """Fail where it is called."""
    raise ImportError("no module of that kind here")


def test_a_pipeline_that_cannot_be_built_there():
    """What fails when the stages are loaded there is said at the first item, of every epoch."""
    vanishing = Vanishing()
    chain = nbpipe.source(range(3)).map(lambda n: (vanishing, n), name="f")
    with chain.start(isolate=True) as run:
        said = [delivered(run)[1] for _ in range(2)]
    for error in said:
        assert isinstance(error, WorkerStartError)
        assert "ImportError: no module of that kind here" in str(error)
        assert isinstance(error.__cause__, ImportError)
