"""Exceptions of a stage in a worker: their type, their traceback, their cause."""

import os
import threading
import traceback

import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.gates import delivered, drained


def failure_of(fn, **options):
    """Run a stage whose function raises on item 2; give what came before, and the error."""

    def work(n):
        if n == 2:
            fn(n)
        return n

    with placed(5, work, **options).start() as run:
        return delivered(run)


def raise_value_error(n):
    """Raise from a helper."""
    raise ValueError(f"bad item {n}")  # the line that is at fault


def test_an_exception_keeps_its_type_and_traceback():
    """It is the cause of a StageError; its traceback shows the line in the worker."""
    got, error = failure_of(raise_value_error)
    text = "".join(traceback.format_exception(error))
    assert got == [0, 1]
    assert (type(error), type(error.__cause__)) == (nbpipe.StageError, ValueError)
    assert (error.stage, error.path, error.executor) == ("fn", 2, "process")
    assert "the line that is at fault" in text
    assert text.count("in raise_value_error") == 1
    assert "item 2, epoch 0, executor process" in text


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_exceptions_that_mean_something_elsewhere(kind):
    """What would end a process or a loop ends neither here: it is the item's failure."""

    def fail(n):
        raise kind("no matter")

    got, error = failure_of(fail)
    assert (got, type(error), error.path) == ([0, 1], nbpipe.StageError, 2)
    assert type(error.__cause__) is kind


def test_an_item_that_cannot_be_sent_costs_no_worker():
    """Neither it nor those that were to be sent with it: all others come from one worker."""
    items = [0] * 300
    items[200] = threading.Lock()
    pipe = nbpipe.source(items).map(lambda _: os.getpid(), executor="process", on_error="skip")
    got = drained(pipe)
    assert (len(got), len(set(got))) == (299, 1)


def test_a_warning_in_a_worker_is_shown(capfd):
    """What a library warns of in a worker is on the parent's standard error."""

    def work(n):
        import warnings

        warnings.warn(f"careful with {n}", stacklevel=1)
        return n

    with placed(1, work).start() as run:
        got = drained(run)
    assert got == [0]
    assert "careful with 0" in capfd.readouterr().err
