"""Threads that mostly wait are kept on one core, while nothing else is kept there with them."""

import hashlib
import itertools
import os
import queue
import subprocess
import sys
import threading
import time

import pytest

import nbpipe
from nbpipe.base import cores
from nbpipe.base.cores import FULL, GAIN, IDLE, MUCH, SWITCH, SharedCore
from nbpipe.base.threads import FREE_THREADED

pytestmark = pytest.mark.skipif(
    FREE_THREADED or not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs Linux, two cores and an interpreter lock",
)
SPENT_NS = 5_000_000


class Member(threading.Thread):
    """A thread that does what it is told, one thing after the other."""

    def __init__(self):
        super().__init__(daemon=True)
        self.orders, self.answers = queue.Queue(), queue.Queue()
        self.start()
        self.clock = time.pthread_getcpuclockid(self.ident)

    def run(self):
        while (order := self.orders.get()) is not None:
            self.answers.put(order())

    def do(self, order):
        """Have it call a function; return what that gives."""
        self.orders.put(order)
        return self.answers.get(timeout=60)

    @property
    def cores(self):
        return os.sched_getaffinity(self.native_id)


def compute():
    """Compute for a while."""
    until_ns = time.thread_time_ns() + SPENT_NS
    while time.thread_time_ns() < until_ns:
        pass


class Team:
    """Threads that one core looks after, and a clock that tells what share they computed."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(cores, "idle_so_far_ns", self.idle_so_far_ns)  # it may be crowded
        self.members = [Member() for _ in range(2)]
        self.core = SharedCore()
        self.now_ns, self.done = 1 << 40, 0
        self.idle_ns = 0
        self.whole = os.sched_getaffinity(0)
        self._look()

    def _look(self):
        clocks = {member.native_id: member.clock for member in self.members}
        self.members[0].do(lambda: self.core.look(clocks, self.now_ns, self.done))

    def idle_so_far_ns(self, whole):
        """Return how long cores have been idle: asked for those that the process may use."""
        assert set(whole) == self.whole
        return self.idle_ns

    def _spent_ns(self):
        return sum(time.clock_gettime_ns(member.clock) for member in self.members)

    def work(self, share=0.4, rate=1, idle=1):
        """Let a thread compute for this share of the time, and do so much in it; then look.

        Meanwhile so many cores have nothing to do.
        """
        before_ns = self._spent_ns()
        while self._spent_ns() - before_ns < max(SPENT_NS, 60_000_000 * share):
            self.members[-1].do(compute)
        elapsed_ns = int((self._spent_ns() - before_ns) / share)
        self.now_ns += elapsed_ns
        self.done += rate * elapsed_ns
        self.idle_ns += int(idle * elapsed_ns)
        self._look()
        return self

    def go_on(self, share=0.4, rate=1, idle=1):
        """Do the same for so long that one core is found to be enough."""
        return self.work(share, rate, idle).work(share, rate, idle)

    @property
    def is_kept(self):
        """Whether the threads are on one core; they must all be where the others are."""
        assert len({frozenset(member.cores) for member in self.members}) == 1
        return len(self.members[0].cores) == 1

    def end(self):
        for member in self.members:
            member.orders.put(None)
            member.join(60)


@pytest.fixture
def team(monkeypatch):
    """Return two threads that nothing keeps yet."""
    made = Team(monkeypatch)
    yield made
    made.end()


def test_threads_that_mostly_wait_share_a_core(team):
    """They go to one that the process may use; whoever is not among them stays where it is."""
    assert not team.work().is_kept, "it may be chance"
    assert team.work().is_kept
    assert team.members[0].cores == {team.core.core} < team.whole
    assert os.sched_getaffinity(0) == team.whole


@pytest.mark.parametrize("share", [IDLE / 4, MUCH + 0.3])
def test_threads_that_compute_much_or_little_go_where_they_will(team, share):
    """One core would not be enough for the first, and the second gain nothing."""
    assert not team.go_on(share).is_kept
    assert team.go_on().is_kept
    assert not team.work(share).is_kept
    assert team.go_on().is_kept


def test_on_a_crowded_machine_threads_go_where_they_will(team):
    """They compute for less of the time than they would."""
    assert not team.go_on(idle=0.05).is_kept
    assert not team.work().is_kept, "it may be chance"
    assert team.work().is_kept
    assert not team.work(idle=0).is_kept, "it was not, when they were put there"


def test_idle_time_is_that_of_the_cores_asked_for():
    """Of all there are, as of each by itself; it grows while nobody computes there."""
    whole = os.sched_getaffinity(0)
    before_ns = cores.idle_so_far_ns(whole)
    each_ns = sum(cores.idle_so_far_ns({core}) for core in whole)
    after_ns = cores.idle_so_far_ns(whole)
    tick_ns = 10_000_000 * len(whole)  # each is counted in such steps, and rounded
    assert before_ns - tick_ns <= each_ns <= after_ns + tick_ns


def no_file(_):
    """Stand for a system that has no such files."""
    raise FileNotFoundError


@pytest.mark.parametrize(("read", "idle_ns"), [(no_file, None), (lambda _: 0, None), (len, 2)])
def test_idle_time_of_a_system_that_does_not_tell(monkeypatch, read, idle_ns):
    """It is not known where there is no such file, or where nothing is counted."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    monkeypatch.setattr(cores, "idle_so_far_ns", read)
    assert cores.own_idle_ns() == idle_ns


def test_one_core_is_tried_where_it_may_just_be_enough(team, monkeypatch):
    """Threads of pure Python do more there, those that compute without the interpreter less."""
    monkeypatch.setattr(cores, "AGAIN_NS", 250_000_000)
    full = FULL + 0.05
    assert team.go_on(full).is_kept
    assert team.work(full, rate=1.2 * GAIN).is_kept
    assert not team.work(full, rate=0.8 * GAIN).is_kept
    assert not team.go_on(full).is_kept, "it was tried a moment ago"
    assert team.go_on().is_kept
    assert not team.work(full, rate=2).is_kept


def test_a_core_on_which_less_is_done_is_left(team):
    """Somebody else may need it; what is done by then is the measure of the next one."""
    assert team.go_on().is_kept
    assert team.work(rate=0.9).is_kept
    assert not team.work(rate=0.7).is_kept
    assert team.go_on(rate=0.7).is_kept
    assert team.work(rate=0.7).is_kept


def test_where_little_is_done_nothing_is_tried(team):
    """Chance would decide which way is the faster one."""
    assert not team.go_on(FULL + 0.05, rate=0).is_kept


def test_a_thread_that_comes_later_is_kept_with_the_others(team):
    """Its core is theirs at the next look."""
    team.go_on()
    team.members.append(Member())
    assert team.work().is_kept


def test_after_a_while_they_may_go_elsewhere(team, monkeypatch):
    """The core that was the best one may have other work now."""
    monkeypatch.setattr(cores, "KEPT_NS", 75_000_000)
    assert [team.work().is_kept for _ in range(8)] == [False, True, True, False] * 2


def test_a_thread_that_one_of_them_begins_sets_all_free(team):
    """It would stay on that core for ever, as a pool of a library may."""
    team.go_on()
    born = team.members[0].do(Member)
    assert born.cores == team.members[0].cores
    assert team.work().is_kept, "seen once, it may be one that is about to join"
    assert not team.work().is_kept
    assert born.cores == team.whole
    assert not team.go_on().is_kept
    born.orders.put(None)


def test_a_process_that_one_of_them_starts_sets_all_free(team):
    """It runs on all cores again, and so do those that it has started."""
    team.go_on()
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1); input()'])"
    process = team.members[0].do(
        lambda: subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    )
    assert process.stdout.readline() == b"1\n"
    assert os.sched_getaffinity(process.pid) == team.members[0].cores
    assert not team.work().is_kept
    assert os.sched_getaffinity(process.pid) == team.whole
    process.communicate(b"\n")
    assert not team.go_on().is_kept


def test_processes_of_other_threads_change_nothing(team):
    """They may run on any core, whether they were there before or come later."""
    command = [sys.executable, "-c", "input()"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE)]
    assert team.go_on().is_kept
    processes.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    assert team.work().is_kept
    for process in processes:
        assert os.sched_getaffinity(process.pid) == team.whole
        process.communicate(b"\n")


def test_a_thread_that_somebody_moves_stays_there_and_sets_all_free(team):
    """A library, or who runs the process, knows better where it should run."""
    team.go_on()
    elsewhere = {min(team.whole - team.members[0].cores)}
    team.members[1].do(lambda: os.sched_setaffinity(0, elsewhere))
    team.work()
    assert [member.cores for member in team.members] == [team.whole, elsewhere]
    team.go_on()
    assert [member.cores for member in team.members] == [team.whole, elsewhere]


def test_where_no_file_can_be_opened_threads_go_where_they_will(team):
    """What the system tells of threads and cores stands in files; there may be too many open."""
    import resource  # not on Windows

    team.go_on()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not team.go_on().is_kept
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert team.go_on().is_kept


def test_threads_that_somebody_has_put_somewhere_stay_there(team):
    """They are not among those that may run on all cores."""
    place = {min(team.whole)}
    team.members[1].do(lambda: os.sched_setaffinity(0, place))
    team.go_on()
    assert [member.cores for member in team.members] == [team.whole, place]


def test_two_teams_on_one_core_know_each_other(team, monkeypatch):
    """Neither has started the threads of the other."""
    monkeypatch.setattr(cores, "_stat", lambda _: [str(min(team.whole))] * 40)
    other = Team(monkeypatch)
    monkeypatch.setattr(cores, "idle_so_far_ns", lambda _: team.idle_ns + other.idle_ns)
    assert team.go_on().is_kept
    assert other.go_on().is_kept
    assert team.members[0].cores == other.members[0].cores
    assert team.go_on().is_kept
    other.core.end()
    assert not other.is_kept
    assert team.go_on().is_kept
    other.end()


def test_processes_that_somebody_has_put_on_that_core_stay_there(team, monkeypatch):
    """They were there before the threads were."""
    core = min(team.whole)
    monkeypatch.setattr(cores, "_stat", lambda _, of=cores._stat: [*of(_)[:36], str(core)])
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.sched_setaffinity(process.pid, {core})
    assert team.go_on().is_kept
    assert not team.work(0.01).is_kept
    assert os.sched_getaffinity(process.pid) == {core}
    process.communicate(b"\n")


@pytest.mark.parametrize("rest", ["rest", "end"])
def test_where_nobody_looks_any_more_what_they_started_is_free(team, rest):
    """The pool of a library serves others, too, between epochs and when the run is over."""
    team.go_on()
    born = team.members[0].do(Member)
    process = team.members[0].do(
        lambda: subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    )
    if rest == "end":
        team.core.end()
    else:
        team.core.rest([member.native_id for member in team.members])
    everywhere = [born.cores, os.sched_getaffinity(process.pid)]
    assert everywhere == [team.whole] * 2
    assert not team.is_kept
    born.orders.put(None)
    process.communicate(b"\n")


def test_a_short_process_sets_all_free(team):
    """Nobody saw which thread it was of."""
    team.go_on()
    team.members[0].do(lambda: subprocess.run([sys.executable, "-c", ""], check=True))
    assert not team.work().is_kept
    assert not team.go_on().is_kept


def test_it_can_be_switched_off(monkeypatch):
    """A variable of the environment leaves the threads alone."""
    monkeypatch.setenv(SWITCH, "off")
    team = Team(monkeypatch)
    assert not team.go_on().is_kept
    team.end()


def always_idle(_cores):
    """Say that a core has nothing to do, however crowded the machine is."""
    return time.perf_counter_ns()


def numbers():
    """Return numbers without end."""
    yield from itertools.count()


@pytest.mark.timeout(120)
def test_stages_that_compute_on_a_crowded_machine_may_run_on_any_core():
    """They get less than a core, but could do with more."""
    whole = os.sched_getaffinity(0)
    block = bytes(1 << 20)

    def digest(item):
        hashlib.sha256(block * 2)
        return os.sched_getaffinity(0)

    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3 * len(whole))]
    try:
        for other in others:
            other.stdout.readline()
        with nbpipe.source(numbers).map(digest, concurrency=2).start() as run:
            items = iter(run)
            cores_seen = [next(items)]
            until_s = time.monotonic() + 1.5
            cores_seen += itertools.takewhile(lambda _: time.monotonic() < until_s, items)
        assert {*map(frozenset, cores_seen)} == {frozenset(whole)}
    finally:
        for other in others:
            other.kill()
            other.communicate()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("closed", [True, False])
def test_a_pool_that_a_stage_starts_is_free_when_the_loop_has_ended(monkeypatch, closed):
    """It lives on, where the last look at what the threads had started was before it came."""
    monkeypatch.setattr(cores, "idle_so_far_ns", always_idle)
    whole = os.sched_getaffinity(0)
    born, first = [], threading.Lock()

    def wait(item):
        time.sleep(0.001)
        if len(os.sched_getaffinity(0)) == 1 and first.acquire(blocking=False):
            born.append(Member())
        return bool(born)

    with nbpipe.source(numbers).map(wait, concurrency=4).start() as run:
        items = iter(run)
        next(filter(None, items))
        if not closed:
            items.close()
            assert born[0].cores == whole
    assert born[0].cores == whole
    born[0].orders.put(None)


@pytest.mark.timeout(120)
def test_stages_that_wait_share_a_core(monkeypatch):
    """The threads of a run do, and the one that iterates does not."""
    monkeypatch.setattr(cores, "idle_so_far_ns", always_idle)
    whole = os.sched_getaffinity(0)

    def wait(item):
        time.sleep(0.001)
        return sum(range(500))

    with nbpipe.source(numbers).map(wait, concurrency=4).start() as run:
        for _ in run:
            threads = [t for t in threading.enumerate() if t.name.startswith("nbpipe-worker")]
            numbers_known = [t.native_id for t in threads if t.native_id]  # one may just begin
            if {len(os.sched_getaffinity(number)) for number in numbers_known} == {1}:
                break
        assert os.sched_getaffinity(0) == whole
