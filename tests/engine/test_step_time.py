"""Steps of the loop: longer ones are noticed, and only a rest of the workers says why."""

import itertools
import sys

import pytest

from tests.engine.inner import CORES, LOCK, UNKNOWN, StepTimes, Switches, Usage, gil

MS = 1_000_000


@pytest.fixture(autouse=True)
def interval(monkeypatch):
    """Have threads switch as in an epoch, on a system that counts how often they do."""
    monkeypatch.setattr(sys, "getswitchinterval", lambda: 0.0002)
    monkeypatch.setattr(gil, "COUNTS_SWITCHES", True)
    monkeypatch.setattr(gil, "is_locked", lambda: True)


class World:
    """A loop beside workers, on a clock of its own.

    Args:
        at_work: a step beside them [ms].
        at_rest: a step without them [ms].
        call: a call in progress takes so much longer when they are held [ms].
        lock, cores: shares of a step in which the loop waits for the lock, or for a core.
        ready: batches that are ready when a rest begins.
    """

    def __init__(self, at_work, at_rest, *, call=2, lock=0.0, cores=0.0, ready=100):
        self.at_work, self.at_rest, self.call = at_work, at_rest, call
        self.lock, self.cores, self.ready = lock, cores, ready
        self.now_ns = MS
        self.used = Usage(0, 0, Switches(0, 0))
        self.held_ns = self.left = self.held = self.until_ns = 0
        self.longest = 0  # rest [ms]
        self.told = []
        self.steps = StepTimes(self.told.append, clock=lambda: self.now_ns, read=lambda: self.used)

    def hold(self, most_ns):
        if self.ready < 3:
            return False
        self.held_ns, self.left, self.until_ns = self.now_ns, self.ready, self.now_ns + most_ns
        return True

    def rested_ns(self):
        if not self.held_ns or self.left < 2:
            return None
        rested_ns = self.held_ns + self.call * MS
        return rested_ns if rested_ns <= self.now_ns else 0

    def release(self):
        if self.held_ns:
            self.longest = max(self.longest, (self.now_ns - self.held_ns) // MS)
            self.held += self.now_ns - self.held_ns
        self.held_ns = 0

    def step(self):
        """Let the loop take a batch, and do a step."""
        goes_on = self.steps.take(0, 0, self)
        rests = bool(self.held_ns and self.rested_ns() is not None)
        step_ns = int(MS * (self.at_rest if rests else self.at_work))
        self.left -= rests
        lock, cores = (0.0, 0.0) if rests else (self.lock, self.cores)
        slept = round(lock * step_ns / (0.3 * MS))  # each time for the interval, and late
        cpu, lacked = int(step_ns * (1 - lock - cores)), int(cores * step_ns)
        used = self.used
        switches = Switches(used.switches.slept + slept, 0)
        self.used = Usage(used.cpu_ns + cpu, used.lacked_ns + lacked, switches)
        self.now_ns += step_ns
        return goes_on

    def run(self, seconds):
        """Let the loop do steps for so long; return the findings."""
        until_ns = self.now_ns + int(seconds * 1e9)
        while self.now_ns < until_ns:
            self.step()
        return self.steps.findings


@pytest.mark.parametrize(
    ("at_work", "at_rest", "shares", "cause"),
    [
        (97, 30, {"lock": 0.2}, LOCK),
        (97, 30, {"lock": 0.1, "cores": 0.5}, LOCK),  # what waited for the lock, waits for a core
        (40, 30, {"cores": 0.25}, CORES),
        (100, 90, {"cores": 0.3}, CORES),
        (2, 1.5, {"cores": 0.3}, CORES),
    ],
)
def test_loader_that_slows_its_loop_is_found_with_its_cause(at_work, at_rest, shares, cause):
    """A rest tells how much; the counters of the thread tell why; both within 20 s."""
    world = World(at_work, at_rest, **shares)
    found = world.run(20)
    assert (found.slowed_by, found.before_s) == (cause, None)
    assert (found.step_s, found.at_rest_s) == pytest.approx((at_work / 1e3, at_rest / 1e3))
    assert [one.slowed_by for one in world.told] == [cause]  # one event


def test_long_steps_take_longer():
    """A rest is a whole step at least, and no more of the time may be rest."""
    world = World(300, 200, cores=0.3)
    found = world.run(80)
    assert (found.slowed_by, found.at_rest_s) == (CORES, 0.2)
    assert world.held <= 0.03 * 80e9


def test_long_calls_take_longer():
    """A rest waits for calls that are in progress; the others have nothing to do meanwhile."""
    world = World(40, 20, call=320, cores=0.3)
    assert world.run(100).slowed_by == CORES
    assert 320 < world.longest < 400


def test_rests_are_short_and_few():
    """Workers rest for about 100 ms, and for 3% of any 20 s at most."""
    world = World(20, 10, cores=0.3)
    world.run(5)
    assert 100 <= world.longest <= 150
    world.run(55)
    assert world.held <= 0.03 * 60e9


def test_nothing_suspicious_nothing_rests():
    """A loop whose steps are as they were, with a thread that lacks nothing, is left alone."""
    world = World(20, 10, lock=0.0)
    assert (world.run(30).slowed_by, world.held) == ("", 0)


@pytest.mark.parametrize("rests", [1.0, 1.04, 1.3])
def test_workers_that_are_no_reason_are_cleared(rests):
    """Where a rest makes no step shorter, steps as long as these are no longer suspicious."""
    world = World(30, 30 * rests, cores=0.4)
    found = world.run(30)
    assert (found.slowed_by, found.before_s, world.told) == ("", None, [])
    assert 0 < world.held < 1e9


def test_longer_steps_are_told_until_it_is_known_why():
    """Steps that became longer are named with what they were; a rest then clears the workers."""
    world = World(30, 30)
    world.run(3)
    world.at_work = world.at_rest = 45
    seen = []
    while world.steps.findings.before_s is None:
        world.step()
    while (found := world.steps.findings).before_s is not None:
        seen.append((found.before_s, found.slowed_by))
        world.step()
    assert {(round(before_s, 6), cause) for before_s, cause in seen} == {(0.03, "")}
    assert world.run(20).before_s is None  # its own reasons


def test_longer_steps_whose_cause_is_unknown_are_put_down_to_the_loader():
    """Where the counters say nothing, a rest does."""
    world = World(30, 30)
    world.run(3)
    world.at_work = 45
    assert world.run(17).slowed_by == UNKNOWN


@pytest.mark.parametrize(
    ("options", "at_work"),
    [({"ready": 2}, 45), ({"call": 600}, 45), ({"ready": 3, "call": 60}, 45), ({}, 900)],
)
def test_rests_that_show_nothing_give_no_verdict(options, at_work):
    """Too few batches, calls that do not end, steps that are too long: it is said, and no more."""
    world = World(30, 10, **options)
    world.run(3)
    world.at_work = at_work
    found = world.run(60)
    assert (found.slowed_by, found.untold, found.before_s) == ("", True, pytest.approx(0.03))


def test_no_lock_without_a_lock(monkeypatch):
    """An interpreter without the lock has none to wait for."""
    monkeypatch.setattr(gil, "is_locked", lambda: False)
    world = World(40, 20, lock=0.3)
    assert (world.run(20).slowed_by, world.held) == ("", 0)


def test_turned_knob_has_it_compared_again():
    """A verdict is of one setting: after a turn, the step at rest is what it was before."""
    world = World(40, 20, cores=0.3)
    assert world.run(20).slowed_by == CORES
    world.steps.turned()
    world.step()
    world.step()
    found = world.steps.findings
    assert (found.slowed_by, found.at_rest_s, found.before_s) == ("", None, pytest.approx(0.02))
    world.at_work, world.cores = 20, 0.0
    assert world.run(20).before_s is None
    assert [one.slowed_by for one in world.told] == [CORES]


def test_verdict_ends_with_its_reason():
    """A loop that is no longer slowed is not said to be, whatever changed."""
    world = World(40, 20, cores=0.3)
    assert world.run(20).slowed_by == CORES
    world.at_work = 20
    assert world.run(120).slowed_by == ""


def test_findings_stay_between_epochs_and_rests_do_not():
    """An epoch that ends in a rest takes it along; evidence is that of all epochs."""
    world = World(40, 20, cores=0.3)
    for _ in range(12):
        world.steps.begin()
        world.release()
        world.run(2)
    assert world.steps.findings.slowed_by == CORES


def test_waits_and_pauses_are_no_part_of_a_step():
    """What the loop waited is taken off; a step with a pause in it does not count."""
    world = World(20, 20)
    for number in range(50):
        world.steps.take(number * 5 * MS, 0, world)
        world.now_ns += 25 * MS
    assert world.steps.findings.step_s == pytest.approx(0.02)
    world.steps.take(50 * 5 * MS, 60_000 * MS, world)
    assert world.steps.findings.step_s == pytest.approx(0.02)


def test_quick_loop_is_not_timed():
    """Steps of less than half a millisecond end the timing; of one and more they do not."""
    world = World(2, 2)
    assert all(world.step() for _ in range(10))
    world.run(1)
    assert world.steps.findings.step_s == pytest.approx(0.002)
    world.at_work = 0.1
    timed = len(list(itertools.takewhile(bool, (world.step() for _ in range(30)))))
    assert (1 < timed < 30, world.steps.findings.step_s) == (True, None)
