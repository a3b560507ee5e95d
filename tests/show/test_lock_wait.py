"""Calls that wait for a lock are seen at once: no knob has to be turned first."""

import contextlib
import gc
import threading
import time

import pytest

import nbpipe
from nbpipe.engine.measures.lock_waits import LockedCalls
from nbpipe.executors.stack import Place
from tests.gates import until
from tests.show.fakes import photographs
from tests.show.inner import case, diagnose

LOCK, CONDITION, SEMAPHORE = threading.Lock(), threading.Condition(), threading.Semaphore(2)


def in_turn(number):
    """Hold a lock all the time."""
    with LOCK:
        time.sleep(0.005)
    return number


def partly(number):
    """Hold a lock that is written in Python for a third of the time."""
    time.sleep(0.01)
    with CONDITION:
        time.sleep(0.005)
    return number


def two_at_once(number):
    """Let two calls through."""
    with SEMAPHORE:
        time.sleep(0.005)
    return number


def apart(number):
    """Enter a context that does not wait, and wait in it."""
    with contextlib.nullcontext():
        time.sleep(0.005)
    return number


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(
    ("fn", "line", "calls"),
    [(in_turn, "with LOCK:", {1, 2, 3}), (partly, "with CONDITION:", {2, 3, 4, 5})],
)
def test_calls_that_wait_for_a_lock(fn, line, calls, isolate):
    """The line is named, and the calls that do not wait are advised, in one jump.

    While the machine is busy, calls that wait for a core count, too.
    """
    pipe = nbpipe.source(range(10**6)).map(fn, concurrency=16)
    with pipe.start(isolate=isolate) as run:
        for _ in run:
            found = run.diagnose()
            if found.cause == "calls-in-turn" and found.suggestion[2] in calls:
                break
    stage, knob, _ = found.suggestion
    assert (stage, knob, run.events) == (fn.__name__, "concurrency", ())
    assert f"of its calls wait for a lock: in {fn.__name__}, test_lock_wait.py line" in str(found)
    assert line in found.evidence


def test_a_look_keeps_nothing_alive():
    """A loop that another thread has looked at and that is left ends its epoch at once."""
    seen = threading.Event()

    def train(run):
        for _ in run:
            if seen.is_set():
                return

    with nbpipe.source(range(10**6)).map(in_turn, concurrency=4).start() as run:
        thread = threading.Thread(target=train, args=(run,))
        gc.disable()
        try:
            thread.start()
            until(lambda: run._core.lock_wait("in_turn"))
            seen.set()
            thread.join()
            assert run.status().state == "cancelled"
        finally:
            gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("fn", [apart, two_at_once])
def test_calls_that_wait_for_something_else(fn):
    """A context that does not wait is no lock; where two calls may enter, not less are advised."""
    pipe = nbpipe.source(range(10**6)).map(fn, concurrency=4)
    with pipe.start() as run:
        for _ in run:
            found = run.diagnose()
            if found.cause not in ("early", "bursts", "changing"):
                break
    assert found.suggestion is None or found.suggestion[2] >= (2 if fn is two_at_once else 5)


@pytest.mark.parametrize(
    ("share", "calls", "cause"),
    [(0.85, 1, "calls-in-turn"), (0.5, 3, "calls-in-turn"), (0.3, 10, "more-calls")],
)
def test_from_four_tenths_of_the_calls_on(monkeypatch, share, calls, cause):
    """Fewer that wait are no reason."""
    monkeypatch.setattr(case, "cores", lambda: 8)
    run = photographs(cpu_cores=0.1)
    run.stages["decode"].knobs["concurrency"]._last = None  # it has not just changed
    run.locks = LockedCalls(share, Place("/none/loader.py", 12, "decode"))
    found = diagnose(run)
    assert (found.stage, found.cause) == ("decode", cause)
    assert found.suggestion == ("decode", "concurrency", calls)
    if cause == "calls-in-turn":
        assert found.evidence.endswith(
            f"{share:.0%} of its calls wait for a lock: in decode, line 12"
        )
