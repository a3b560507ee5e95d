"""`run.train`: the loop in a thread of its own, and waiting for it."""

import logging
import threading

import pytest

import nbpipe
from nbpipe import (
    ArgumentError,
    ArgumentTypeError,
    ConcurrentIterationError,
    EpochClosedError,
    RunClosedError,
)
from tests.gates import still_alive
from tests.inner import call_between_waits


@pytest.fixture
def run():
    """Give a run of five items."""
    with nbpipe.source(range(5)).start() as run:
        yield run


class Step:
    """A training step that notes what it gets, and can be held up."""

    def __init__(self, *, fails_at=None):
        self.items, self.threads = [], set()
        self.begun, self.gate = threading.Event(), threading.Event()
        self.fails_at = fails_at

    def __call__(self, item):
        self.begun.set()
        self.gate.wait()
        if item == self.fails_at:
            raise ZeroDivisionError("no such luck")
        self.items.append(item)
        self.threads.add(threading.current_thread().name)

    def let_go(self):
        self.gate.set()
        return self


def test_step_gets_every_item_of_every_epoch(run):
    """The step is called with all items of all epochs, in one thread."""
    step = Step().let_go()
    run.train(step, epochs=3).wait()
    assert (step.items, step.threads) == ([*range(5)] * 3, {"nbpipe-train"})


def test_train_returns_at_once_and_wait_says_whether_it_ended(run):
    """`wait` with a limit says False while the loop is under way, and True after it."""
    step = Step()
    run.train(step)
    early = run.wait(timeout_s=0)
    step.let_go()
    assert (early, run.wait()) == (False, True)


def test_wait_without_a_loop_returns_at_once(run):
    """Without a loop there is nothing to wait for."""
    assert run.wait() is True


def test_error_of_the_step(run, caplog):
    """`wait` raises it, status and log name it, and the next loop begins with a fresh epoch."""
    run.train(Step(fails_at=2).let_go())
    with pytest.raises(ZeroDivisionError, match="no such luck"):
        run.wait()
    status = run.status()
    assert (status.state, status.error) == ("failed", "ZeroDivisionError: no such luck")
    assert caplog.messages == ["training ended: ZeroDivisionError: no such luck"]
    step = Step().let_go()
    run.train(step).wait()
    assert step.items == [*range(5)]


def test_error_of_a_stage_is_raised_by_wait(caplog):
    """A stage that fails ends the loop with its StageError."""
    caplog.set_level(logging.CRITICAL, "nbpipe")
    with nbpipe.source([1, 0]).map(lambda x: 1 / x, name="divide").start() as run:
        run.train(Step().let_go())
        with pytest.raises(nbpipe.StageError, match="divide"):
            run.wait()


def test_stop_ends_all_epochs(run):
    """`stop` ends the loop after the step in progress, further epochs included."""
    step = Step()
    run.train(step, epochs=100)
    step.begun.wait()
    run.stop()
    step.let_go()
    ended = run.wait()
    assert (ended, step.items, run.status().state) == (True, [0], "stopped")


def test_close_ends_the_loop():
    """Closing the run ends its loop and the thread."""
    step = Step()
    run = nbpipe.source(range(5)).start()
    run.train(step, epochs=100)
    step.begun.wait()
    step.let_go()
    run.close()
    alive = [thread.name for thread in threading.enumerate() if thread.name == "nbpipe-train"]
    assert (run.wait(), alive) == (True, [])


def test_close_names_a_step_that_does_not_end(caplog):
    """A step that takes longer than the time limit of `close` is warned of."""
    step = Step()
    run = nbpipe.source(range(5)).start()
    run.train(step)
    step.begun.wait()
    run.close(timeout_s=0)
    step.let_go()
    run.wait()
    assert "still in a training step" in caplog.text


def test_step_may_close_its_run():
    """A step that closes the run ends the loop."""
    run = nbpipe.source(range(5)).start()
    run.train(lambda _: run.close()).wait()
    assert run.closed


def test_only_one_loop_at_a_time(run):
    """A second loop, or a loop of one's own, is refused while the first is under way."""
    step = Step()
    run.train(step)
    step.begun.wait()
    with pytest.raises(ConcurrentIterationError):
        run.train(step)
    with pytest.raises(ConcurrentIterationError):
        iter(run)
    step.let_go()
    assert run.wait()


def test_unfinished_epoch_of_this_thread_is_cancelled(run):
    """`train` begins another epoch after a loop that was left; that loop cannot continue."""
    kept = iter(run)
    next(kept)
    step = Step().let_go()
    run.train(step).wait()
    assert step.items == [*range(5)]
    with pytest.raises(EpochClosedError, match="second loop, which began at line"):
        next(kept)


async def coroutine_step(_):
    """Be a step that nobody would await."""


@pytest.mark.parametrize(
    ("step", "epochs", "wrong"),
    [
        *((print, epochs, "train epochs") for epochs in (0, -1, 1.5, True, "2")),
        *((step, 1, "train step") for step in (None, coroutine_step)),
    ],
)
def test_arguments_are_checked(run, step, epochs, wrong):
    """An impossible number of epochs, a step that cannot be called or would have to be awaited."""
    with pytest.raises((ArgumentError, ArgumentTypeError), match=wrong):
        run.train(step, epochs=epochs)
    assert run.status().state == "ready"


def test_closed_run_trains_no_more(run):
    """A closed run refuses."""
    run.close()
    with pytest.raises(RunClosedError):
        run.train(print)
    assert run.wait()


def test_stage_cannot_wait_for_its_own_run(caplog):
    """A stage that waits for the loop that it feeds is told so."""
    caplog.set_level(logging.CRITICAL, "nbpipe")
    runs = []
    pipe = nbpipe.source(range(3)).map(lambda _: runs[0].wait(), name="waits")
    with pipe.start() as run:
        runs.append(run)
        run.train(print)
        with pytest.raises(nbpipe.StageError) as caught:
            run.wait()
    assert isinstance(caught.value.__cause__, nbpipe.ReentrantRunError)


def test_wait_lets_others_work_meanwhile(run):
    """While `wait` waits it calls what is to be done between waits."""
    step = Step()
    call_between_waits(run, step.let_go)  # the loop goes on once this was called
    run.train(step)
    assert run.wait()


def test_run_under_way_is_kept_alive_by_its_loop():
    """Nobody has to hold a run that trains."""
    step = Step()
    nbpipe.source(range(5)).start().train(step)
    step.begun.wait()
    step.let_go()
    found = [t for t in threading.enumerate() if t.name == "nbpipe-train"]
    assert still_alive(found) == []
    assert step.items == [*range(5)]
