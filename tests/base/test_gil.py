"""The interpreter lock: who waits for it, and what part of a call holds it."""

import os
import threading
import time
import zlib
from types import SimpleNamespace

import pytest

from nbpipe.base import gil
from nbpipe.base.gil import LockLook, LockProbe, LockUse, Spinner, Switches, TimedCall

MS = 1_000_000
DATA = os.urandom(100_000)


@pytest.fixture
def locked(monkeypatch):
    """Stand for an interpreter with a lock, that counts switches, with an interval of 0.2 ms."""
    monkeypatch.setattr(gil, "is_locked", lambda: True)
    monkeypatch.setattr(gil, "COUNTS_SWITCHES", True)
    monkeypatch.setattr(gil, "sys", SimpleNamespace(getswitchinterval=lambda: 0.0002))


# -- how long a thread waits for it ----------------------------------------------------------------
@pytest.mark.parametrize(
    ("waited_ms", "no_core_ms", "slept", "preempted", "found_ms"),
    [
        (10, 0, 50, 0, (10, 10)),  # it asked for the lock every 0.2 ms
        (10, 0, 1, 0, (0.3, 0.3)),  # it slept once: for a disk
        (10, 0, 0, 0, (0, 0)),
        (-0.01, 0, 9, 0, (0, 0)),  # clocks differ a little
        (4, 16, 4, 4, (1.2, 4)),  # to get a core took 2 ms each time, so a turn takes so long, too
        (10, 4, 1, 1, (0.3, 2.3)),  # a disk, on a busy machine
    ],
)
@pytest.mark.usefixtures("locked")
def test_waits_for_the_lock(waited_ms, no_core_ms, slept, preempted, found_ms):
    """A thread that waits for the lock wakes up after each interval."""
    before, after = Switches(7, 2), Switches(7 + slept, 2 + preempted)
    found = gil.lock_wait(int(waited_ms * MS), no_core_ms * MS, before, after)
    assert found == tuple(int(ms * MS) for ms in found_ms)


@pytest.mark.usefixtures("locked")
def test_what_cannot_be_told(monkeypatch):
    """Long intervals, or a system that counts nothing, tell nothing; no lock has no waits."""
    asked = (10 * MS, 0, Switches(0, 0), Switches(50, 0))
    monkeypatch.setattr(gil, "COUNTS_SWITCHES", False)
    assert (gil.lock_wait(*asked), gil.switches()) == (None, (0, 0))
    monkeypatch.setattr(gil, "COUNTS_SWITCHES", True)
    monkeypatch.setattr(gil, "sys", SimpleNamespace(getswitchinterval=lambda: 0.005))
    assert gil.lock_wait(*asked) is None
    monkeypatch.setattr(gil, "is_locked", lambda: False)
    assert gil.lock_wait(*asked) == (0, 0)


@pytest.mark.skipif(not gil.COUNTS_SWITCHES, reason="Linux only")
def test_sleeps_are_counted():
    """Each wait counts."""
    before = gil.switches()
    for _ in range(5):
        time.sleep(0.0001)
    assert gil.switches().slept - before.slept >= 5


# -- in words --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("use", "words"),
    [
        (
            LockUse(0.35, 0.0015),
            (
                "decode holds the lock 35% of 1.5 ms: about 3 threads help at most; use "
                'executor="process" for more'
            ),
        ),
        (
            LockUse(0.96, 0.002),
            'decode holds the lock 96% of 2 ms: more threads do not help; use executor="process"',
        ),
        (LockUse(0.01, 0.004), "decode holds the lock 1% of 4 ms: many threads help"),
        (LockUse(0.0, 0.004), "decode holds the lock 0% of 4 ms: many threads help"),
        (
            LockUse(asks=True),
            (
                "decode asks for the lock all the time: more threads do not help; use "
                'executor="process"'
            ),
        ),
        (LockUse(why_none="it is so"), "decode: no figure, it is so"),
    ],
)
def test_in_words(use, words):
    """A sentence names the stage, the value and the way out."""
    assert use.sentence("decode") == words


def test_threads_that_can_help():
    """As many as get the lock in turn while others do without it; not known without a figure."""
    assert LockUse(0.25, 0.001).threads == 4.0
    assert (LockUse(asks=True).threads, LockUse(why_none="so").threads) == (1.0, None)


# -- the decision, from calls that were timed ------------------------------------------------------
def looked(alone, beside):
    """Return a look at calls: (time [ms], share without a core), or with the time held [ms]."""
    look = LockLook()
    look.alone = [TimedCall(int(ms * MS), no_core) for ms, no_core in alone]
    look.beside = [TimedCall(int(ms * MS), c, int(held * MS)) for ms, c, held in beside]
    return look


@pytest.mark.parametrize(
    ("alone", "beside", "share"),
    [
        ([(2, 0)] * 4, [(4, 0, 2)] * 4, 1.0),
        ([(2, 0)] * 4, [(4, 0, 2.2)] * 4, 1.0),
        ([(4, 0.02)] * 4, [(9, 0.1, 1)] * 4, 0.25),
        ([(4, 0), (40, 0.9)] * 3, [(9, 0, 1), (90, 0.9, 0)] * 3, 0.25),  # those without a core
        ([(150, 0)], [(300, 0, 150)], 1.0),  # one call that is long enough
    ],
)
def test_share_of_a_call(alone, beside, share):
    """The share is that of the median call; calls that wanted for a core do not count."""
    assert looked(alone, beside).use().share == pytest.approx(share)


@pytest.mark.parametrize(
    ("alone", "beside", "words"),
    [
        ([(2, 0)] * 4, [(4, 0.5, 2)] * 4, "too busy"),
        ([(2, 0.2)] * 4, [(4, 0, 2)] * 4, "too busy"),
        ([(2, 0)] * 4, [(4, 0, 2)] * 2 + [(4, 0.15, 2)] * 2, "too busy"),
        ([(2, 0)], [(4, 0, 2)], "too few calls"),
        ([], [], "too few calls"),
        ([(0.005, 0)] * 9, [(0.005, 0, 0.005)] * 9, "too short"),
    ],
)
def test_no_figure(alone, beside, words):
    """Without calls that had their cores all the time there is no figure, but a reason."""
    found = looked(alone, beside).use()
    assert (found.share, words in found.why_none, found.asks) == (None, True, False)


def test_asks_all_the_time():
    """A call that waits for the lock at each of many steps takes many times as long beside others.

    A short one that waits a few times does so too, and has a figure.
    """
    assert looked([(2, 0)] * 4, [(100, 0, 1)] * 4).use().asks
    assert looked([(0.1, 0)] * 4, [(1.6, 0, 0.05)] * 4).use().share == pytest.approx(0.5)


@pytest.mark.parametrize(("known", "word"), [((2, 0, 2), "share"), ((2, 0, 1), "busy")])
def test_a_loop_of_python_must_look_like_one(monkeypatch, known, word):
    """Where it does not, nothing is said of any stage."""
    ms, no_core, held = known
    monkeypatch.setattr(gil, "timed_alone", lambda _: TimedCall(2 * MS, 0.0))
    found = TimedCall(ms * MS, no_core, held * MS)
    monkeypatch.setattr(Spinner, "timed_beside", lambda *_: found)
    with LockProbe(["decode"]) as probe:
        for _ in range(9):
            probe.make("decode", int)
            probe.make("other", int)
        (use,) = probe.uses().values()
    told = "busy" if "busy" in use.why_none else "share"
    assert (told, use.share == 1.0) == (word, word == "share")


def test_budget_of_a_stage():
    """Calls are looked at until the time for the stage is spent; later ones are only made."""
    look, made = LockLook(), []
    with Spinner() as spinner:
        look.make(lambda: made.append(1), spinner)
    look.spent_ns, look.beside = 600 * MS, [TimedCall(MS, 0.9)] * 3
    assert (made, look.is_over, LockLook().is_over) == ([1], True, False)
    look.beside = look.beside[:2]
    assert not look.is_over  # two calls are few
    look.spent_ns = 2_000 * MS
    assert look.is_over  # but enough time was spent


@pytest.mark.parametrize(("first_ms", "counts"), [(499, 0), (500, 1)])
def test_first_call(monkeypatch, first_ms, counts):
    """It counts only where it takes so long that imports do not matter."""
    monkeypatch.setattr(gil, "timed_alone", lambda _: TimedCall(first_ms * MS, 0.0))
    look = LockLook()
    with Spinner() as spinner:
        look.make(int, spinner)
    assert len(look.alone) == counts


# -- for real --------------------------------------------------------------------------------------
def python():
    """Compute in Python for about a millisecond."""
    return sum(k * k for k in range(10_000))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "least", "most"),
    [
        (python, 0.75, 1.0),
        (lambda: time.sleep(0.002), 0.0, 0.35),
        (lambda: zlib.compress(DATA), 0.0, 0.6),
    ],
    ids=["python", "sleep", "zlib"],
)
def test_share_of_real_calls(call, least, most):
    """Python holds the lock, a sleep does not, zlib hardly; or the machine is too busy to tell."""
    if not gil.is_locked():
        pytest.skip("no interpreter lock")
    with LockProbe(["call"]) as probe:
        while not probe.is_over:
            probe.make("call", call)
        found = probe.uses()["call"]
    assert found.share is None or least <= found.share <= most
    assert "nbpipe-spinner" not in [one.name for one in threading.enumerate()]


def test_error_of_a_call_passes():
    """An error leaves the thread at rest, for the next call."""
    with Spinner() as spinner:
        with pytest.raises(ZeroDivisionError):
            spinner.timed_beside(lambda: 1 / 0, MS)
        again = spinner.timed_beside(int, 50 * MS)
    assert again.call_ns > 0
