"""How epochs and runs in a process of their own end: errors, kills, interrupts, the exit."""

import gc
import os
import signal
import threading
import weakref

import psutil
import pytest

import nbpipe
from nbpipe.errors import RunClosedError, StageTimeoutError, WorkerDiedError
from nbpipe.run.isolated.link import Link
from tests.gates import HANG_S, Calls, Gate, delivered, drained, finished, stage
from tests.leaks import processes_of
from tests.scripts import ran


def numbers(count=40):
    """Begin a chain of numbers."""
    return nbpipe.source(range(count))


def child(run):
    """Give the process of a run that has begun."""
    return psutil.Process(run._core.engine.pid)


def is_gone(process):
    """Wait for the end of a process that is not our child."""
    gone, _ = psutil.wait_procs([process], timeout=HANG_S)
    return bool(gone) or process.status() == psutil.STATUS_ZOMBIE


# -- errors ----------------------------------------------------------------------------------------
def fails_at(place):
    """Make a function that fails at one item."""

    def fails(item):
        if item == place:
            raise KeyError(f"bad {item}")
        return item

    return fails


@pytest.mark.slow
def test_a_timeout_keeps_its_type():
    """Errors with a type of their own are raised as that."""
    gate = Gate()

    def waits(item):
        gate.wait()
        return item

    chain = numbers().map(waits, executor="process", timeout_s=0.3)
    with chain.start(isolate=True) as run:
        got, error = delivered(run)
        gate.open()
    assert (got, type(error)) == ([], StageTimeoutError)


# -- kills -----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_killed_in_mid_epoch():
    """A process that is killed is named after the items that came; the next epoch has another."""
    gate, calls = Gate(), Calls()
    fn = stage("thread", gate=lambda item: gate if item == 5 else None, calls=calls)
    with numbers().map(fn, name="work").start(isolate=True) as run:
        items = iter(run)
        got = [next(items) for _ in range(5)]
        calls.wait_begun(6)
        pid = child(run).pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError) as caught:
            finished(next, items)
        gate.open()
        assert got == list(range(5))
        assert f"(process {pid}) died by SIGKILL" in str(caught.value)
        assert "'source > work'" in str(caught.value)
        assert drained(run) == list(range(40))
        assert child(run).pid != pid


@pytest.mark.slow
@pytest.mark.parametrize("how", ["os._exit(7)", "ctypes.string_at(0)"])
def test_a_stage_that_ends_its_process(how):
    """A stage that takes the process down ends the epoch with what the system says of it."""

    def deadly(item):
        if item == 20:
            exec(f"import ctypes, os; {how}", {})
        return item

    with numbers().map(deadly).start(isolate=True) as run:
        ends = [delivered(run) for _ in range(2)]
    word = "with exit code 7" if "exit" in how else "by SIGSEGV"
    for got, error in ends:
        assert got == list(range(len(got)))
        assert (len(got) <= 20, word in str(error)) == (True, True)


def test_killed_between_epochs():
    """A process that was killed while nobody iterated is replaced without a word."""
    with numbers().map(abs).start(isolate=True) as run:
        first = drained(run)
        for _ in range(2):
            os.kill(child(run).pid, signal.SIGKILL)
            assert drained(run) == first == list(range(40))


@pytest.mark.slow
def test_knobs_pause_and_seeds_outlive_the_process():
    """The process that replaces another has the knobs, the seed and the epochs of the run."""

    def draw(item, rng):
        return int(rng.integers(1 << 40))

    chain = numbers().shuffle().map(draw)
    with chain.start(seed=5) as run:
        plain = [drained(run) for _ in range(2)]
    with chain.start(seed=5, isolate=True) as run:
        first = drained(run)
        run["draw"].concurrency = 3
        os.kill(child(run).pid, signal.SIGKILL)
        assert [first, drained(run)] == plain
        assert run.stats()["draw"].concurrency == 3


@pytest.mark.slow
def test_asked_while_dead():
    """A run whose process was killed gives what it last said, at once."""
    chain = numbers(30_000).map(fails_at(3), name="f", on_error="skip")
    with chain.start(isolate=True) as run:
        drained(run)
        known, rows, past = run.failures(), run.stats(), run.history()
        process = child(run)
        process.kill()
        assert is_gone(process)
        assert (run.failures(), run.stats()["f"].items_out) == (known, rows["f"].items_out)
        run.pause()
        run.resume()
        assert (run.history(), past[-1]["stage"]) == (past, "consumer")
        assert len(drained(run)) == 29_999
        assert {row["epoch"] for row in run.history()} == {1}
        assert [one.epoch for one in run.failures()] == [0, 1]
        assert run.stats()["f"].items_out == 29_999  # a new process counts anew


@pytest.fixture
def haste(monkeypatch):
    """Wait for numbers of the process no longer than a user does."""
    monkeypatch.setattr(Link, "answer_s", 1.0)


@pytest.mark.slow
def test_asked_while_stuck(haste):
    """A process that does not answer is not waited for; what it last said stands."""
    with numbers().map(abs).start(isolate=True) as run:
        drained(run)
        rows = run.stats()
        child(run).suspend()
        run["abs"].concurrency = 2
        found = finished(run.stats)
        child(run).resume()
        assert found["abs"].items_out == rows["abs"].items_out
        assert len(drained(run)) == 40


@pytest.mark.slow
def test_a_stuck_process_is_killed_at_the_close(haste):
    """Closing does not wait for a process that does not answer."""
    run = numbers().map(abs).start(isolate=True)
    drained(run)
    process = child(run)
    process.suspend()
    finished(lambda: run.close(0))
    assert is_gone(process)


# -- the end of a run ------------------------------------------------------------------------------
@pytest.mark.slow
def test_close_in_mid_epoch():
    """Closing ends the loop, the process and its workers; closing again does nothing."""
    gate, calls = Gate(), Calls()
    fn = stage("thread", gate=lambda item: gate, calls=calls)
    chain = numbers().map(fn, name="work", executor="process", concurrency=2)
    run = chain.start(isolate=True)
    iter_ = iter(run)
    calls.wait_running(2)
    process = child(run)
    left = [process, *process.children(recursive=True)]
    gate.open()
    run.close()
    run.close()
    assert [is_gone(one) for one in left] == [True] * len(left)
    assert len(left) >= 3
    with pytest.raises(RunClosedError):
        iter(run)
    assert list(iter_) == []


@pytest.mark.slow
def test_closed_before_it_began():
    """A run that is closed at once leaves nothing."""
    for _ in range(5):
        numbers().start(isolate=True).close()
    assert not [t for t in threading.enumerate() if t.name.startswith("nbpipe-isolated")]


def test_a_process_that_cannot_be_started(monkeypatch):
    """The start returns; the first item says why there is no process."""
    monkeypatch.setenv("NBPIPE_START_METHOD", "teleport")
    with numbers().start(isolate=True) as run:
        assert list(run.stats()) == ["source", "consumer"]
        with pytest.raises(nbpipe.errors.WorkerStartError, match="teleport"):
            drained(run)
        monkeypatch.undo()
        assert drained(run) == list(range(40))


@pytest.mark.slow
def test_a_forgotten_run_ends_its_process():
    """A run that nobody holds any more is closed."""
    run = numbers().map(abs).start(isolate=True)
    drained(run)
    process, gone = child(run), weakref.ref(run)
    del run
    gc.collect()
    assert (gone(), is_gone(process)) == (None, True)


@pytest.mark.slow
def test_a_dropped_iterator_gives_its_epoch_up():
    """What an iterator left is given up with it; the run goes on."""
    with numbers().map(abs).start(isolate=True) as run:
        items = iter(run)
        next(items)
        del items
        gc.collect()
        assert (run.status().state, drained(run)) == ("cancelled", list(range(40)))


# -- processes of their own ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("where", ["begun", "waiting", "not begun"])
def test_interpreter_exit(tmp_path, where):
    """An interpreter that ends with a live run ends quickly and quietly, and its process too."""
    code, out, err = ran(
        f"""
        import nbpipe
        run = nbpipe.source(lambda: iter(int, 1)).map(abs, concurrency=2).start(isolate=True)
        if {where!r} != "not begun":
            items = iter(run)
        if {where!r} == "waiting":
            next(items)
        print(run._core.engine.pid)
    """,
        tmp_path,
    )
    assert (code, err) == (0, "")
    assert not psutil.pid_exists(int(out)) or int(out) == 0


@pytest.mark.slow
def test_the_parent_is_killed(tmp_path):
    """A process whose parent was killed is gone, and so are the workers that it started."""
    code, out, _ = ran(
        """
        import os, signal
        import nbpipe
        import psutil
        chain = nbpipe.source(range(100)).map(abs, executor="process", concurrency=2)
        run = chain.map(lambda _: os.getpid()).start(isolate=True)
        items = iter(run)
        one = psutil.Process(next(items))
        print(*[p.pid for p in (one, *one.children(recursive=True))], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """,
        tmp_path,
    )
    left = processes_of(map(int, out.split()))
    assert (code, len(out.split()) >= 3) == (-signal.SIGKILL, True)
    assert [is_gone(one) for one in left] == [True] * len(left)


@pytest.mark.slow
def test_a_fork_has_no_part_in_it(tmp_path):
    """In a forked process the run refuses, and goes on where it was started."""
    code, out, err = ran(
        """
        import os, sys, warnings
        import nbpipe
        warnings.simplefilter("ignore")
        run = nbpipe.source(range(30)).map(abs).start(isolate=True)
        items = iter(run)
        first = next(items)
        pid = os.fork()
        if pid == 0:
            try:
                iter(run)
            except nbpipe.errors.RunClosedError:
                run.close()
                os._exit(3)
            os._exit(4)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print([first, *items] == list(range(30)), list(run) == list(range(30)))
        run.close()
    """,
        tmp_path,
    )
    assert (code, err) == (0, "")
    assert out.splitlines() == ["3", "True True"]


@pytest.mark.slow
def test_without_a_fork_server(tmp_path):
    """A fresh interpreter holds the pipeline where there is no fork server."""
    code, out, err = ran(
        """
        import os
        os.environ["NBPIPE_START_METHOD"] = "spawn"
        import nbpipe
        chain = nbpipe.source(range(30)).map(lambda n: (n + 1, os.getpid()))
        with chain.start(isolate=True) as run:
            numbers, pids = zip(*run)
        print(numbers == tuple(range(1, 31)), os.getpid() not in pids)
    """,
        tmp_path,
    )
    assert (code, out, err) == (0, "True True\n", "")
