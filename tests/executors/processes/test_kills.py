"""Worker processes that are really killed: idle, at work, in mid-result, a hundred times."""

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from itertools import count, takewhile

import numpy as np
import psutil
import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.executors.processes.work import Ringing
from tests.gates import HANG_S, drained, finished, quiet

MANY = 100  # kills in one epoch
HUGE_BYTES = 300_000_000
LARGE_BYTES = 100_000_000


def end(pids):
    """Kill processes, and wait until they are gone."""
    processes = [psutil.Process(pid) for pid in pids]
    for process in processes:
        process.kill()
    _, alive = psutil.wait_procs(processes, timeout=HANG_S)
    assert not alive


def test_killed_between_epochs():
    """Workers killed between two epochs are replaced, and cost nothing."""
    with placed(50, lambda n: n).start() as run:
        first = drained(run)
        pids = run["fn"].pids
        end(pids)
        second = drained(run)
        new = run["fn"].pids
    assert (first, second) == (list(range(50)), list(range(50)))
    assert new
    assert not set(new) & set(pids)


def test_a_kill_among_stages_that_share_workers_is_counted(tmp_path):
    """Which of their calls it ended is not known: the retry counts as one of the first stage."""

    def work(n):
        if n == 30 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    with placed(50, abs).map(work, name="second", executor="process").start() as run:
        got = drained(run)
        retries = [run.stats()[name].retries for name in ("fn", "second")]
    assert (got, retries) == (list(range(50)), [1, 0])


def test_killed_while_paused():
    """Workers killed while the run is paused are replaced when it goes on."""
    with placed(100, lambda n: n, prefetch=1).start() as run:
        items = iter(run)
        got = [finished(next, items)]
        run.pause()
        quiet(run)
        end(run["fn"].pids)
        run.resume()
        got += drained(items)
    assert got == list(range(100))


def test_killed_while_nobody_consumes(bell):
    """Workers killed while results wait for a consumer: those results are here already."""

    def work(n):
        bell.ring(n)
        return n

    with placed(30, work, prefetch=3).start() as run:
        items = iter(run)
        rung = bell.wait(5)
        quiet(run)
        end(run["fn"].pids)
        got = drained(items)
        rung += bell.wait(25)
    assert got == list(range(30))
    assert sorted(word for word, _ in rung) == got


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGABRT])
def test_killed_at_work(bell, gate, number):
    """Whatever signal ends its worker, an item goes to another one; nobody hears of it."""

    def work(n):
        bell.ring(n)
        gate.wait()
        return n

    with placed(10, work).start() as run:
        items = iter(run)
        (_, first), (_, second) = bell.wait(2)
        os.kill(first, number)
        (_, third) = bell.wait(1)[0]
        gate.open()
        got = drained(items)
        retries = run.stats()["fn"].retries
        failures = run.failures()
    assert (got, failures) == (list(range(10)), ())
    assert (third in (first, second), retries) == (False, 1)


@pytest.mark.parametrize(("after_s", "copy"), [(0.0, True), (0.02, False), (0.06, True)])
def test_killed_while_writing_a_huge_result(bell, after_s, copy):
    """A worker killed while it writes 300 MB: the item comes whole, from another worker."""

    def work(n):
        return n, Ringing(bell), np.full(HUGE_BYTES if n == 1 else 10, n, np.uint8)

    def kill():
        for _ in range(2):
            (_, pid) = bell.wait(1)[0]
            threading.Event().wait(after_s)  # somewhere in the copying
            kill_now(pid)

    with placed(4, work, concurrency=1, copy=copy).start() as run:
        killer = threading.Thread(target=kill)
        killer.start()
        got = drained(run)
        killer.join()
    found = [(n, word, array.size, int(array.min()), int(array.max())) for n, word, array in got]
    assert found == [(n, "sent", HUGE_BYTES if n == 1 else 10, n, n) for n in range(4)]


def kill_now(pid):
    """Kill a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Killer:
    """Kills random workers at random moments, each time other items: none is hit three times.

    Args:
        run: whose workers are killed.
        held: items that may be under way at once.
    """

    def __init__(self, run, held):
        self.run = run
        self.held = held
        self.done = threading.Event()
        self.kills = 0
        self._changed = threading.Condition()
        self._missing = 0  # the first item that was not delivered
        self._ahead = set()
        self._rng = random.Random(4)

    def see(self, item):
        """Hear that an item was delivered."""
        with self._changed:
            self._ahead.add(item)
            while self._missing in self._ahead:
                self._ahead.discard(self._missing)
                self._missing += 1
            self._changed.notify_all()

    def kill(self):
        """Kill as often as is meant."""
        bound = 0
        while self.kills < MANY:
            with self._changed:
                assert self._changed.wait_for(lambda b=bound: self._missing >= b, 20)
            threading.Event().wait(self._rng.random() * 0.01)
            with self._changed:
                bound = max([self._missing, *self._ahead]) + self.held + 1
            self._kill_one()
        self.done.set()

    def _kill_one(self):
        pids = self.run["fn"].pids
        if pids:
            kill_now(self._rng.choice(pids))
            self.kills += 1


@pytest.mark.parametrize("ordered", [True, False])
def test_a_hundred_kills_in_one_epoch(ordered):
    """However often workers are killed, every item comes exactly once, in order if promised."""
    killers = []

    def items():
        return takewhile(lambda _: not killers[0].done.is_set(), count())

    def work(n):
        for _ in range(20_000):
            n += 0
        return n

    chain = nbpipe.source(items, prefetch=1).map(
        work, name="fn", executor="process", concurrency=3, prefetch=2, ordered=ordered
    )
    with chain.start() as run:
        killer = Killer(run, held=12)
        killers.append(killer)
        thread = threading.Thread(target=killer.kill)

        def consume():
            thread.start()
            got = []
            for item in run:
                got.append(item)
                killer.see(item)
            return got

        got = finished(consume)
        thread.join()
    assert killer.kills == MANY
    assert (got if ordered else sorted(got)) == list(range(len(got)))


def test_killed_while_it_begins(bell, gate):
    """A worker that is killed while it prepares itself is replaced: the epoch goes on."""

    def init():
        bell.ring()
        gate.wait()

    with placed(10, lambda n: n, worker_init=init).start() as run:
        items = iter(run)
        end([pid for _, pid in bell.wait(2)])
        bell.wait(2)
        gate.open()
        assert drained(items) == list(range(10))


def test_killed_while_it_is_sent_a_large_item(bell):
    """A worker killed while 100 MB are on their way to it: the item is sent once more."""

    def make(n):
        return n, Ringing(bell), np.full(LARGE_BYTES if n == 1 else 10, n, np.uint8)

    def work(item):
        n, word, array = item
        return n, word, array.size, int(array.min()), int(array.max())

    with (
        nbpipe.source(range(4))
        .map(make, prefetch=1)
        .map(work, name="fn", executor="process")
        .start() as run
    ):
        items = iter(run)
        got = [finished(next, items)]

        def kill():
            bell.wait(2)
            kill_now(*run["fn"].pids)

        killer = threading.Thread(target=kill)
        killer.start()
        got += drained(items)
        killer.join()
    assert got == [(n, "sent", LARGE_BYTES if n == 1 else 10, n, n) for n in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ordered", "copy"), [(True, True), (True, False), (False, True)])
def test_random_deaths_in_the_midst_of_jobs(tmp_path, seed, ordered, copy):
    """What was finished stays, what its worker died in is tried again, the rest is done once."""
    log = tmp_path / "begun"
    rng = np.random.default_rng([seed, ordered, copy])
    deaths = dict(enumerate(rng.choice(3, 600, p=[0.97, 0.02, 0.01]).tolist()))
    sizes = rng.choice([1, 100, 10_000, 60_000], 600).tolist()

    def work(n):
        with log.open("ab", buffering=0) as file:
            file.write(b"%d\n" % n)
        threading.Event().wait(0.0005)
        if log.read_bytes().split().count(b"%d" % n) <= deaths[n]:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(sizes[n], n)

    chain = placed(600, work, concurrency=3, ordered=ordered, copy=copy)
    with chain.start() as run:
        got = [(int(array[0]), int(array[-1]), len(array)) for array in drained(run)]
        row = run.stats()["fn"]
    begun = Counter(map(int, log.read_bytes().split()))
    assert (got if ordered else sorted(got)) == [(n, n, sizes[n]) for n in range(600)]
    assert begun == {n: 1 + deaths[n] for n in range(600)}
    assert (row.items_in, row.items_out, row.errors) == (600, 600, 0)
    assert row.retries == sum(deaths.values())
