"""Chains at random, workers killed at random, knobs turned at random: what comes is what must."""

import contextlib
import os
import random
import signal
import threading

import pytest

import nbpipe
from tests.executors.processes.work import add, is_wanted, split
from tests.gates import finished

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
