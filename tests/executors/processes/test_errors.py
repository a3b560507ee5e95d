"""Exceptions of a stage in a worker: their type, their traceback, their cause."""

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


def test_the_failure_keeps_the_traceback():
    """`run.failures()` shows the worker's lines, too."""

    def work(n):
        if n == 2:
            raise_value_error(n)
        return n

    with placed(5, work, on_error="skip").start() as run:
        got = drained(run)
        (failure,) = run.failures()
    assert (got, failure.error) == ([0, 1, 3, 4], "ValueError: bad item 2")
    assert "the line that is at fault" in failure.traceback


def test_causes_and_notes_come_along():
    """A chain of exceptions arrives as a chain."""

    def fail(n):
        try:
            {}["first"]
        except KeyError as error:
            error.add_note("a note")
            raise OSError(5, "second") from error

    _, error = failure_of(fail)
    second = error.__cause__
    assert (type(second), second.args) == (OSError, (5, "second"))
    assert (type(second.__cause__), second.__cause__.__notes__) == (KeyError, ["a note"])


def test_an_exception_of_a_class_made_here():
    """An exception whose class only this process knows arrives with its attributes."""

    class OddError(Exception):
        def __init__(self, n, *, why):
            super().__init__(f"odd {n}")
            self.why = why

    def fail(n):
        raise OddError(n, why="because")

    _, error = failure_of(fail)
    cause = error.__cause__
    assert (type(cause).__name__, str(cause), cause.why) == ("OddError", "odd 2", "because")
    assert isinstance(cause, OddError)


def test_an_exception_that_cannot_be_sent():
    """One that cannot be pickled is stood for by a RemoteError with its text and traceback."""

    def fail(n):
        error = ValueError("holds a lock")
        error.lock = threading.Lock()
        raise error

    got, error = failure_of(fail)
    cause = error.__cause__
    text = "".join(traceback.format_exception(cause))
    assert (got, type(cause)) == ([0, 1], nbpipe.RemoteError)
    assert "ValueError: holds a lock" in str(cause)
    assert "raise error" in text


def test_an_exception_that_cannot_be_shown():
    """One whose text fails ends the epoch all the same."""

    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def fail(n):
        raise MuteError

    got, error = failure_of(fail)
    assert (got, type(error), error.path) == ([0, 1], nbpipe.StageError, 2)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_exceptions_that_mean_something_elsewhere(kind):
    """What would end a process or a loop ends neither here: it is the item's failure."""

    def fail(n):
        raise kind("no matter")

    got, error = failure_of(fail)
    assert (got, type(error), error.path) == ([0, 1], nbpipe.StageError, 2)
    assert type(error.__cause__) is kind


def test_tries_in_a_worker(tmp_path):
    """An exception with Retry is tried again; a random generator gives the same numbers."""

    def work(n, rng):
        mark = tmp_path / str(n)
        drawn = rng.random()
        if mark.exists():
            return float(mark.read_text()) == drawn
        mark.write_text(repr(drawn))
        raise OSError(n)

    with placed(6, work, on_error=nbpipe.Retry(1)).start() as run:
        got = drained(run)
        retries = run.stats()["fn"].retries
    assert (got, retries) == ([True] * 6, 6)


def test_earlier_items_come_before_an_error(gate, bell):
    """An error waits for the items before it, however late they are."""

    def work(n):
        if n == 0:
            gate.wait()
        if n == 3:
            bell.ring()
            raise ValueError(n)
        return n

    with placed(10, work, concurrency=2, timeout_s=30).start() as run:
        items = iter(run)
        bell.wait()
        gate.open()
        got, error = delivered(items)
    assert (got, error.path) == ([0, 1, 2], 3)


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
