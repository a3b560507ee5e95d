"""Worker processes that are really killed: at any moment, by their items, a hundred times."""

import contextlib
import os
import random
import resource
import signal
import sys
import threading
from collections import Counter
from itertools import count, takewhile
from time import perf_counter_ns

import numpy as np
import psutil
import pytest

import nbpipe
from tests.executors.processes.chain import placed
from tests.executors.processes.work import (
    Ringing,
    add,
    is_wanted,
    poison_exit,
    poison_kill,
    poison_segmentation_fault,
    split,
)
from tests.gates import HANG_S, delivered, drained, finished, quiet

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


@pytest.mark.slow
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
                assert self._changed.wait_for(lambda b=bound: self._missing >= b, HANG_S)
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    """Every item comes once: what shared a job with a death is done again, each by itself."""
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
    assert all(1 + deaths[n] <= begun[n] <= 2 + deaths[n] for n in range(600))
    assert (row.items_in, row.items_out, row.errors) == (600, 600, 0)
    assert row.retries == sum(deaths.values())


# -- Items that kill every worker they are given to ------------------------------------------------
POISONS = {poison_exit: "exit code 3", poison_segmentation_fault: "SIGSEGV", poison_kill: "SIGKILL"}


def poisoned(poison, bell=None):
    """Make a function that meets a poison in item 5."""

    def work(n):
        if n == 5:
            if bell is not None:
                bell.ring(n)
            poison(n)
        return n

    return work


@pytest.mark.parametrize("poison", POISONS)
def test_a_poison_item_is_named(bell, poison):
    """An item that kills every worker is given to three, then named, with how they died."""
    with placed(20, poisoned(poison, bell)).start() as run:
        got, error = delivered(run)
        rung = bell.wait(3)
        quiet(run)
        (failure,) = run.failures()
    assert got == list(range(5))
    assert (type(error), error.stage, error.path) == (nbpipe.WorkerDiedError, "fn", 5)
    assert (error.executor, failure.path, failure.attempts) == ("process", 5, 3)
    assert POISONS[poison] in str(error)
    assert len({pid for _, pid in rung}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("poison", "ordered"), [*[(poison, True) for poison in POISONS], (poison_exit, False)]
)
def test_a_poison_item_is_skipped(poison, ordered):
    """With on_error="skip" it is left out, its neighbours in the same job come all the same."""
    chain = placed(200, poisoned(poison), on_error="skip", ordered=ordered)
    with chain.start() as run:
        got, error = delivered(run)
        failures = [(failure.path, failure.attempts) for failure in run.failures()]
        row = run.stats()["fn"]
    assert error is None
    assert (row.items_in, row.items_out, row.errors, row.retries) == (200, 199, 1, 2)
    assert sorted(got) == [n for n in range(200) if n != 5]
    assert failures == [(5, 3)]


@pytest.mark.parametrize(("then", "rest"), [("skip", [6, 7, 8, 9]), ("raise", [])])
def test_a_poison_item_with_retry(then, rest):
    """Deaths have tries of their own; after them `then` decides."""
    retry = nbpipe.Retry(2, then=then)
    got, error = delivered(placed(10, poisoned(poison_exit), on_error=retry))
    assert got == [*range(5), *rest]
    assert isinstance(error, nbpipe.WorkerDiedError) == (then == "raise")


@pytest.mark.slow
def test_neighbours_of_a_poison_item_are_done_at_most_once_more(bell):
    """Items that shared a job with a poison item are worked on again, not left out or doubled."""

    def work(n):
        bell.ring(n)
        if n == 150:
            os._exit(1)
        return n

    with placed(300, work, concurrency=1, on_error="skip").start() as run:
        got = drained(run)
        calls = Counter(word for word, _ in bell.rings())
    assert got == [n for n in range(300) if n != 150]
    assert calls.keys() == set(range(300))
    assert max(calls[n] for n in got) <= 2


@pytest.mark.slow
def test_what_shared_a_job_with_a_death_is_done_once_more(bell):
    """About 20 ms of work is lost; what came before that job, or behind it, is done once."""

    def work(n):
        bell.ring(n)
        begun_ns = perf_counter_ns()
        while perf_counter_ns() - begun_ns < 1_000_000:
            pass
        if n == 45:
            os._exit(1)
        return n

    with placed(60, work, concurrency=1, on_error="skip").start() as run:
        assert drained(run) == [n for n in range(60) if n != 45]
        calls = Counter(word for word, _ in bell.rings())
    twice = {n for n, count in calls.items() if n != 45 and count > 1}
    assert calls.keys() == set(range(60))
    assert calls[45] in (3, 4)  # its job, and three times alone
    assert (max(calls[n] for n in twice | {0}) <= 2, len(twice) <= 30) == (True, True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits as on Linux")
def test_a_poison_item_where_there_is_no_shared_memory():
    """The item is found among its neighbours: each is sent alone, and no other dies."""

    def forbid_memory():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    def work(n):
        if n == 150:
            os._exit(1)
        return n

    with placed(300, work, worker_init=forbid_memory, on_error="skip").start() as run:
        got = drained(run)
        failures = [(failure.path, failure.attempts) for failure in run.failures()]
        row = run.stats()["fn"]
    assert (got, failures) == ([n for n in range(300) if n != 150], [(150, 3)])
    assert (row.items_in, row.items_out, row.errors, row.retries) == (300, 299, 1, 3)


@pytest.mark.slow
def test_poison_in_a_region():
    """Of stages that share a worker, the one that the worker died in is named."""

    def first(n):
        return n + 1

    def second(n):
        if n == 4:
            os._exit(9)
        return n * 10

    chain = nbpipe.source(range(10)).map(first, executor="process").map(second, executor="process")
    got, error = delivered(chain)
    assert got == [10, 20, 30]
    assert (error.stage, error.path) == ("second", 3)
    assert "exit code 9" in str(error)


@pytest.mark.slow
def test_budget_counts_deaths():
    """Deaths count against `max_failures` as exceptions do."""

    def work(n):
        if n % 2:
            os._exit(1)
        return n

    chain = placed(20, work, on_error="skip", max_failures=2)
    got, error = delivered(chain)
    assert isinstance(error, nbpipe.FailureBudgetError)
    assert got == [n for n in range(len(got) * 2) if n % 2 == 0]


# -- Chains at random, workers killed at random, knobs turned at random ----------------------------
ITEMS = 300
MOST = 1000
EPOCHS = 3


def pick(rng, chain, expected):
    """Append a stage at random, to the chain and to what is expected of it."""
    where = {"executor": "process", "region": rng.random() < 0.7} if rng.random() < 0.8 else {}
    knobs = {"concurrency": 1 + rng.randrange(3)}
    above = chain.stages[-1]
    if where and above.executor == "process":
        knobs = {}  # it may share those of the stage above
    kind = rng.choice(["map", "map", "filter", "flat_map", "batch"])
    if kind == "map":
        return chain.map(add, **knobs, **where), [add(n) for n in expected]
    if kind == "filter":
        return chain.filter(is_wanted, **knobs, **where), [n for n in expected if is_wanted(n)]
    if kind == "flat_map":
        many = [k for n in expected for k in split(n)]
        return chain.flat_map(split, **knobs, **where), many
    where.pop("region", None)
    chain = chain.batch(1 + rng.randrange(5), collate=list, **where).unbatch()
    return chain, expected


class Disturber:
    """Turns knobs until the epoch ends, and kills two workers: fewer than an item is given."""

    def __init__(self, run, rng):
        self.run = run
        self.rng = rng
        self.over = threading.Event()
        self.kills = 0
        self.thread = threading.Thread(target=self._disturb)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def _disturb(self):
        stages = self.run.stages
        placed = [name for name, stage in stages.items() if stage.executor == "process"]
        while not self.over.wait(self.rng.random() * 0.05):
            for stage in stages.values():
                if "concurrency" in stage.knobs:
                    stage.concurrency = 1 + self.rng.randrange(4)
            if placed and self.kills < 2:
                self._kill_one(self.rng.choice(placed))

    def _kill_one(self, name):
        pids = self.run[name].pids
        if pids and self.rng.random() < 0.3:
            self.kills += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(pids), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_doubled_or_reordered(seed):
    """Whatever the chain, and whoever is killed meanwhile, epochs are whole."""
    rng = random.Random(seed)
    chain, expected = nbpipe.source(range(ITEMS)), list(range(ITEMS))
    for _ in range(2 + rng.randrange(3)):
        chain, expected = pick(rng, chain, expected)
    chain = chain.take(MOST)
    with chain.start(seed=seed) as run:
        got = []
        for _ in range(EPOCHS):
            with Disturber(run, rng):
                got.append(finished(list, run))
    assert got == [expected[:MOST]] * EPOCHS
